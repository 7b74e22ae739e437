//! A thousand seeds keep every promise, and a simulator with a broken rule is caught.

use hinterland_sim::{Broken, BrokenRule, Report, run, trace};
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of one test.
const SEEDS: u64 = 1000;

/// Runs seeds on all processors until one breaks a promise; gives the sum of the reports.
fn run_all(seeds: std::ops::Range<u64>, broken: Option<BrokenRule>) -> Result<Report, Broken> {
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut sum = Report::default();
        loop {
            // Relaxed: the counter only hands out seeds.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(sum);
            }
            let report = run(seed, broken).inspect_err(|_| next.store(seeds.end, Ordering::Relaxed))?;
            sum.steps += report.steps;
            sum.puts_done += report.puts_done;
            sum.gets_found += report.gets_found;
            sum.removes += report.removes;
            sum.copies_lost += report.copies_lost;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = Report::default();
        for worker in workers {
            let report = worker.join().expect("a worker that panics has said why")?; // its message is above
            sum.steps += report.steps;
            sum.puts_done += report.puts_done;
            sum.gets_found += report.gets_found;
            sum.removes += report.removes;
            sum.copies_lost += report.copies_lost;
        }
        Ok(sum)
    })
}

#[test]
fn a_thousand_seeds_keep_every_promise() {
    if let Some(seed) = std::env::var("HINTERLAND_SEED").ok().and_then(|text| text.parse().ok()) {
        let (lines, outcome) = trace(seed, None);
        lines.iter().for_each(|line| println!("{line}"));
        outcome.unwrap_or_else(|broken| panic!("{broken}"));
        return;
    }
    // More seeds for a long run: HINTERLAND_SEEDS=100000.
    let seeds = std::env::var("HINTERLAND_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let report = run_all(0..seeds, None).unwrap_or_else(|broken| panic!("{broken}"));
    println!("{report:?}");
    // The runs must have had something to lose.
    assert!(report.puts_done > 2 * seeds && report.gets_found > 5 * seeds, "{report:?}");
    assert!(report.removes > seeds / 2 && report.copies_lost > seeds / 2, "{report:?}");
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 7, 23] {
        assert_eq!(trace(seed, None), trace(seed, None));
    }
}

fn must_be_caught(broken: BrokenRule) {
    let outcome = run_all(0..SEEDS, Some(broken));
    let caught = outcome.expect_err("a broken rule must be noticed"); // that is the test
    println!("{broken:?}: {caught}");
}

#[test]
fn done_before_the_commit_is_caught() {
    must_be_caught(BrokenRule::DoneBeforeCommit);
}

#[test]
fn an_answer_before_it_is_durable_is_caught() {
    must_be_caught(BrokenRule::AnswerBeforeDurable);
}

#[test]
fn a_missing_incarnation_fence_is_caught() {
    must_be_caught(BrokenRule::NoIncarnations);
}

#[test]
fn a_remove_by_name_alone_is_caught() {
    must_be_caught(BrokenRule::RemoveByName);
}

#[test]
fn homes_that_let_go_first_are_caught() {
    must_be_caught(BrokenRule::HomesLetGoFirst);
}

#[test]
fn missing_checksums_are_caught() {
    must_be_caught(BrokenRule::NoChecksums);
}

#[test]
fn pages_with_two_owners_are_caught() {
    let broken = Some(BrokenRule::FreesUnwritten);
    // Other promises are broken too by then: a seed must break this one.
    let caught = (0..SEEDS).filter_map(|seed| run(seed, broken).err());
    let two_owners = caught.take(20).find(|caught| caught.reason.contains("belong to another object too"));
    println!("{}", two_owners.expect("a page of two owners must be noticed")); // that is the test
}
