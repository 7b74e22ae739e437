//! Leaders of a directory under many seeds: no command is lost or done twice, and each broken rule is noticed.

use hinterland_sim::{Broken, BrokenLeaderRule, FailoverReport, run_failover};

/// Seeds of a quick run: HINTERLAND_FAILOVER_SEEDS=10000 for a long one.
const SEEDS: u64 = 60;

fn run_all(seeds: u64, broken: Option<BrokenLeaderRule>) -> Result<FailoverReport, Broken> {
    let mut sum = FailoverReport::default();
    for seed in 0..seeds {
        sum.add(&run_failover(seed, broken)?);
    }
    Ok(sum)
}

#[test]
fn no_command_is_lost_or_done_twice_when_leaders_change() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("HINTERLAND_FAILOVER_SEED") {
        println!("{:?}", run_failover(seed, None).unwrap_or_else(|broken| panic!("{broken}")));
        return;
    }
    let seeds = number("HINTERLAND_FAILOVER_SEEDS").unwrap_or(SEEDS);
    let report = run_all(seeds, None).unwrap_or_else(|broken| panic!("{broken}"));
    println!("{report:?}");
    // The runs must have had something to lose.
    assert!(report.answered > 300 * seeds && report.repeated > 5 * seeds, "{report:?}");
    assert!(
        report.reigns > 2 * seeds && report.fenced > seeds / 10 && report.faults > 3 * seeds,
        "{report:?}"
    );
    assert!(report.unknown < report.answered / 50, "{report:?}");
}

fn must_be_caught(broken: BrokenLeaderRule) {
    let caught = run_all(50 * SEEDS, Some(broken)).expect_err("a broken rule must be noticed"); // that is the test
    println!("{broken:?}: {caught}");
}

#[test]
fn a_store_that_does_not_look_who_leads_is_caught() {
    must_be_caught(BrokenLeaderRule::NoFence);
}

#[test]
fn a_store_that_takes_late_transactions_is_caught() {
    must_be_caught(BrokenLeaderRule::NoMark);
}

#[test]
fn requests_without_numbers_are_caught() {
    must_be_caught(BrokenLeaderRule::NoNumbers);
}

#[test]
fn a_leader_that_believes_for_ever_is_caught() {
    must_be_caught(BrokenLeaderRule::BelievesForEver);
}

#[test]
fn a_leader_that_answers_early_is_caught() {
    must_be_caught(BrokenLeaderRule::AnswerBeforeDurable);
}
