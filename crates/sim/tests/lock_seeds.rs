//! Locks across racks under many seeds: what programs saw is linearizable, and each broken rule is noticed.

use hinterland_sim::{Broken, BrokenLockRule, LockReport, run_locks};
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of a quick run: HINTERLAND_LOCK_SEEDS=10000 for a long one.
const SEEDS: u64 = 100;

/// The sum of all runs, or the first that failed.
fn run_all(seeds: u64, broken: Option<BrokenLockRule>) -> Result<LockReport, Broken> {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let work = || -> Result<LockReport, Broken> {
        let mut sum = LockReport::default();
        loop {
            // Relaxed: a counter that nothing is ordered by.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return Ok(sum);
            }
            let report = run_locks(seed, broken).inspect_err(|_| next.store(seeds, Ordering::Relaxed))?;
            sum.add(&report);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = LockReport::default();
        for worker in workers {
            sum.add(&worker.join().expect("a worker that panics has said why")?); // its message is above
        }
        Ok(sum)
    })
}

#[test]
fn what_programs_see_under_locks_is_linearizable() {
    if let Some(seed) = std::env::var("HINTERLAND_LOCK_SEED").ok().and_then(|text| text.parse().ok()) {
        println!("{:?}", run_locks(seed, None).unwrap_or_else(|broken| panic!("{broken}")));
        return;
    }
    let wanted = std::env::var("HINTERLAND_LOCK_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds = wanted.unwrap_or(SEEDS);
    let report = run_all(seeds, None).unwrap_or_else(|broken| panic!("{broken}"));
    println!("{report:?}");
    // The runs must have had something to lose.
    assert!(report.locked > 100 * seeds && report.writes > 30 * seeds, "{report:?}");
    assert!(report.flushed > 3 * seeds, "{report:?}");
    assert!(report.cached > 10 * seeds && report.faults > 5 * seeds, "{report:?}");
    assert!(report.refused > seeds / 10 && report.lost > seeds / 20, "{report:?}");
    assert!(report.upgraded > 5 * seeds && report.kept > 5 * seeds, "{report:?}");
}

fn must_be_caught(broken: BrokenLockRule) {
    let caught = run_all(4 * SEEDS, Some(broken)).expect_err("a broken rule must be noticed"); // that is the test
    println!("{broken:?}: {caught}");
}

#[test]
fn page_homes_that_look_at_no_fence_are_caught() {
    must_be_caught(BrokenLockRule::NoFences);
}

#[test]
fn a_lock_home_that_forgets_its_life_before_is_caught() {
    must_be_caught(BrokenLockRule::ForgetfulHome);
}

#[test]
fn a_cache_that_outlives_its_lease_is_caught() {
    must_be_caught(BrokenLockRule::CachesForEver);
}

#[test]
fn a_lock_that_is_passed_on_before_page_homes_forgot_is_caught() {
    must_be_caught(BrokenLockRule::NobodyIsTold);
}

#[test]
fn an_upgrade_that_is_given_up_without_the_homes_word_is_caught() {
    must_be_caught(BrokenLockRule::ReleasesUpgrades);
}

#[test]
fn a_lock_that_is_given_back_before_its_buffer_has_arrived_is_caught() {
    must_be_caught(BrokenLockRule::UnlocksBeforeFlushed);
}
