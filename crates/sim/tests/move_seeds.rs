//! Moves of pages under many seeds: what programs saw is linearizable, each step is a place to die at, and each broken rule is noticed.

use hinterland_sim::{
    Broken, BrokenMoveRule, CrashAt, MoveReport, Victim, run_moves, run_moves_with_crash, trace_moves,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of a quick run: HINTERLAND_MOVE_SEEDS=10000 for a long one.
const SEEDS: u64 = 60;
/// Seeds within which each broken rule must be noticed.
const BROKEN_SEEDS: u64 = 2000;

/// What `run` gives for each number below `count`, on all processors, in no order; the first error ends it.
fn on_all<T: Send>(count: u64, run: impl Fn(u64) -> Result<T, Broken> + Sync) -> Result<Vec<T>, Broken> {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the counter only hands out numbers.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(done);
            }
            done.push(run(number).inspect_err(|_| next.store(count, Ordering::Relaxed))?);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().expect("a worker that panics has said why")?); // its message is above
        }
        Ok(all)
    })
}

fn sum(reports: &[MoveReport]) -> MoveReport {
    let mut sum = MoveReport::default();
    reports.iter().for_each(|report| sum.add(report));
    sum
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn pages_that_move_lose_nothing_and_have_one_home() {
    if let Some(seed) = number("HINTERLAND_MOVE_SEED") {
        let (lines, outcome) = trace_moves(seed, None);
        lines.iter().for_each(|line| println!("{line}"));
        println!("{:?}", outcome.unwrap_or_else(|broken| panic!("{broken}")));
        return;
    }
    let seeds = number("HINTERLAND_MOVE_SEEDS").unwrap_or(SEEDS);
    let report =
        sum(&on_all(seeds, |seed| run_moves(seed, None)).unwrap_or_else(|broken| panic!("{broken}")));
    println!("{report:?}");
    // The runs must have had something to lose.
    assert!(
        report.done > 500 * seeds && report.locked > 200 * seeds && report.flushed > 5 * seeds,
        "{report:?}"
    );
    assert!(report.moved > 10 * seeds && report.ended > seeds && report.thawed > seeds, "{report:?}");
    assert!(
        report.fenced > 2 * seeds && report.missed > 50 * seeds && report.faults > 10 * seeds,
        "{report:?}"
    );
    assert!(
        report.cut_off > seeds && report.went_on > 10 * seeds && report.long_pauses > seeds / 10,
        "{report:?}"
    );
    assert!(
        report.copied > seeds
            && report.recalled > seeds
            && report.from_copies > 5 * seeds
            && report.too_late > 0,
        "{report:?}"
    );
    // Every set of nodes but none and all, in both directions and in one.
    assert_eq!((report.cuts, report.one_way_cuts), (0x7ffe, 0x7ffe), "{report:?}");
    for step in STEPS {
        assert!(report.steps.contains_key(step), "{step} was never reached: {report:?}");
    }
}

/// The places at which processes die: of the taker, of the home, of the directory, of a node that starts, of locks and of flushes.
const STEPS: [&str; 40] = [
    "move-begun",
    "move-room-made",
    "move-frozen",
    "move-copied",
    "move-committed",
    "move-arrived",
    "move-taken-back",
    "home-page-marked",
    "home-page-frozen",
    "home-page-decided",
    "home-page-gone",
    "directory-begins",
    "directory-has-begun",
    "directory-commits",
    "directory-has-committed",
    "directory-cancels",
    "directory-has-cancelled",
    "joined",
    "pages-found",
    "lock-wished",
    "fence-to-keep",
    "fence-kept",
    "lock-granted",
    "lock-held",
    "lock-given-back",
    "fence-asked",
    "fence-confirmed",
    "page-home-told",
    "lock-forgotten",
    "flush-begun",
    "flush-arrived",
    "part-made",
    "home-page-shared",
    "home-recall-begun",
    "home-recalled",
    "copy-granted",
    "copy-arrived",
    "copy-shown",
    "copy-hidden",
    "copy-gone",
];

/// Steps that a run passes only after a fault, or a refusal.
const AFTER_FAULTS: [&str; 3] = ["page-home-told", "lock-forgotten", "move-taken-back"];

#[test]
fn a_crash_of_any_party_at_any_step_loses_nothing() {
    let is_full = std::env::var_os("HINTERLAND_FULL").is_some();
    let mut hit: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..if is_full { 5 } else { 3 } {
        let calm = run_moves_with_crash(seed, None, None).unwrap_or_else(|broken| panic!("{broken}"));
        let mut places: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (step, number) in calm.order.iter().zip(1..) {
            places.entry(step).or_default().push(number);
        }
        let some = |places: Vec<u64>| match is_full {
            true => places,
            false => vec![places[0], places[places.len() / 2], places[places.len() - 1]],
        };
        let steps: Vec<u64> = places.into_values().flat_map(some).collect();
        let victims = [Victim::Itself, Victim::Other, Victim::Directory];
        let crashes: Vec<_> =
            steps.iter().flat_map(|step| victims.map(|victim| CrashAt { step: *step, victim })).collect();
        let run = |number: u64| run_moves_with_crash(seed, None, Some(crashes[number as usize]));
        let reports = on_all(crashes.len() as u64, run).unwrap_or_else(|broken| panic!("{broken}"));
        println!("seed {seed}: {} steps, {} crashes", calm.order.len(), reports.len());
        for report in reports {
            *hit.entry(report.crashed_at.expect("every step that was counted is reached again"))
                .or_default() += 1;
        }
    }
    println!("{hit:?}");
    for step in STEPS.iter().filter(|step| !AFTER_FAULTS.contains(step)) {
        assert!(hit.contains_key(step), "nobody died at {step}: {hit:?}");
    }
}

fn must_be_caught(rule: BrokenMoveRule) {
    let caught = on_all(BROKEN_SEEDS, |seed| run_moves(seed, Some(rule)).map(drop));
    println!("{rule:?}: {}", caught.expect_err("a broken rule must be noticed")); // that is the test
}

#[test]
fn a_taker_that_serves_before_the_commit_is_caught() {
    must_be_caught(BrokenMoveRule::ServesBeforeCommit);
}

#[test]
fn a_taker_that_believes_a_commit_without_an_answer_is_caught() {
    must_be_caught(BrokenMoveRule::BelievesItsCommit);
}

#[test]
fn a_taker_that_gives_up_in_doubt_is_caught() {
    must_be_caught(BrokenMoveRule::ForgetsInDoubt);
}

#[test]
fn a_taker_that_forgets_what_it_was_not_told_of_is_caught() {
    must_be_caught(BrokenMoveRule::ForgetsIntents);
}

#[test]
fn a_home_that_thaws_without_asking_is_caught() {
    must_be_caught(BrokenMoveRule::ThawsOnSilence);
}

#[test]
fn a_page_that_is_copied_while_it_is_served_is_caught() {
    must_be_caught(BrokenMoveRule::CopiesUnfrozen);
}

#[test]
fn a_home_that_waits_for_no_thread_is_caught() {
    must_be_caught(BrokenMoveRule::WaitsForNobody);
}

#[test]
fn a_home_that_lets_go_before_the_commit_is_caught() {
    must_be_caught(BrokenMoveRule::DropsWhenCopied);
}

#[test]
fn a_life_that_serves_before_it_has_joined_is_caught() {
    must_be_caught(BrokenMoveRule::ServesBeforeJoin);
}

#[test]
fn a_home_that_forgets_programs_of_its_life_before_is_caught() {
    must_be_caught(BrokenMoveRule::ForgetsEarlierLives);
}

#[test]
fn homes_of_moving_pages_that_look_at_no_fence_are_caught() {
    must_be_caught(BrokenMoveRule::NoFences);
}

#[test]
fn a_node_that_is_cut_off_and_serves_locks_is_caught() {
    must_be_caught(BrokenMoveRule::BelievesItsLease);
}

#[test]
fn a_home_that_writes_a_page_of_which_others_have_copies_is_caught() {
    must_be_caught(BrokenMoveRule::WritesShared);
}

#[test]
fn a_home_that_forgets_copies_of_its_life_before_is_caught() {
    must_be_caught(BrokenMoveRule::ForgetsReaders);
}

#[test]
fn programs_that_believe_copies_whose_time_is_over_are_caught() {
    must_be_caught(BrokenMoveRule::BelievesOldCopies);
}

#[test]
fn a_copy_that_counts_from_the_answer_is_caught() {
    must_be_caught(BrokenMoveRule::CountsFromTheAnswer);
}
