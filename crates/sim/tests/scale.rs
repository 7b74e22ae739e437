//! Big clusters in small: one seed is one run, pages go to their users, a dead rack's copies are made again on many nodes at once.

use hinterland_directory::REPAIRS_MAX;
use hinterland_sim::scale::{Access, ScaleError, ScaleFigures, ScalePlan, Workload, simulate};
use std::time::Duration;

fn small(workload: Workload) -> ScalePlan {
    ScalePlan {
        nodes: 20,
        racks: 5,
        workload,
        time: Duration::from_secs(2),
        operations_per_s: 2000,
        objects_per_node: 3,
        ..ScalePlan::default()
    }
}

fn figures(plan: &ScalePlan) -> ScaleFigures {
    simulate(plan, &|| 0).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn one_seed_is_one_run_and_another_is_another() {
    for workload in [Workload::Tenants, Workload::Zipfian] {
        let plan = ScalePlan { rack_dies: Some(Duration::from_secs(1)), ..small(workload) };
        let first = figures(&plan);
        assert_eq!(first, figures(&plan));
        assert_ne!(first, figures(&ScalePlan { seed: 2, ..plan }));
    }
}

#[test]
fn pages_go_to_who_uses_them_alone_and_stay_where_all_use_them() {
    let own = figures(&small(Workload::Tenants));
    assert!(own.moves.taken > 20, "{own:#?}");
    assert!(own.here > own.rack + own.away, "{own:#?}");
    let all = figures(&small(Workload::Uniform));
    assert_eq!(all.moves.taken, 0, "{all:#?}");
    assert!(all.here < all.operations / 10, "{all:#?}");
}

#[test]
fn switched_off_moves_leave_every_page_at_its_home() {
    let mut plan = small(Workload::Tenants);
    plan.heat.moves = false;
    let still = figures(&plan);
    assert_eq!((still.moves.asked, still.stale, still.directory.durable_per_s), (0, 0, 0.0), "{still:#?}");
    let moving = figures(&small(Workload::Tenants));
    assert!(moving.here > 2 * still.here, "moves pay: {} and {}", moving.here, still.here);
}

#[test]
fn programs_that_move_on_take_their_pages_along() {
    // What has moved rests for ten seconds, and heat at the home of before fades for twenty-five.
    let long =
        |workload| ScalePlan { time: Duration::from_secs(75), operations_per_s: 400, ..small(workload) };
    let (shifting, staying) = (figures(&long(Workload::Shifting)), figures(&long(Workload::Tenants)));
    assert!(shifting.moves.taken > staying.moves.taken + 40, "{shifting:#?}");
}

#[test]
fn a_home_that_is_asked_first_spares_the_directory_moves_that_come_to_nothing() {
    let plan = ScalePlan { operations_per_s: 20_000, ..small(Workload::Zipfian) };
    let (before, after) = (figures(&plan), figures(&ScalePlan { asks_home_first: true, ..plan.clone() }));
    assert!(before.moves.refused_by_home > 100, "{before:#?}");
    assert!(after.directory.durable_per_s < before.directory.durable_per_s / 4.0, "{after:#?}");
}

#[test]
fn copies_of_a_dead_rack_are_made_by_many_nodes_at_once() {
    let plan = ScalePlan {
        rack_dies: Some(Duration::from_secs(1)),
        objects_per_node: 30,
        ..small(Workload::Uniform)
    };
    let recovery = figures(&plan).recovery.unwrap_or_default();
    assert_eq!(
        (recovery.nodes, recovery.objects_lost),
        (4, 0),
        "copies are in different racks: {recovery:#?}"
    );
    assert_eq!(recovery.copies_made, recovery.copies, "{recovery:#?}");
    assert!(recovery.copies > u64::from(REPAIRS_MAX), "more than one answer names: {recovery:#?}");
    assert!(recovery.making_max > 8, "half of the sixteen that are left: {recovery:#?}");
    let lease_s = 3.0;
    assert!(recovery.noticed_s <= lease_s + 1.0 && recovery.noticed_s > lease_s - 1.1, "{recovery:#?}");
    assert!(recovery.begun_s >= Some(plan.repair.after.as_secs_f64()), "{recovery:#?}");
    assert!(recovery.whole_s > recovery.begun_s, "{recovery:#?}");
}

#[test]
fn with_one_copy_what_died_is_lost_and_said() {
    let plan = ScalePlan { rack_dies: Some(Duration::from_secs(1)), copies: 1, ..small(Workload::Uniform) };
    let all = figures(&plan);
    let recovery = all.recovery.unwrap_or_default();
    assert_eq!(
        (recovery.copies, recovery.copies_made, recovery.objects_lost),
        (0, 0, 4 * 3),
        "{recovery:#?}"
    );
    assert!(all.lost > 0, "pages of the region died, too");
}

#[test]
fn a_script_does_what_it_says() {
    let access = |page, reads| Access { node: 1, page, reads, writes: 0 };
    let rounds = (0..20).map(|_| vec![access(0, 100), access(1, 2)]).collect();
    let plan = ScalePlan { nodes: 2, racks: 2, ..small(Workload::Script(rounds)) };
    let all = figures(&plan);
    assert_eq!(all.operations, 20 * 102);
    assert_eq!((all.moves.taken, all.moves.refused_by_home, all.stale), (1, 0, 0), "{all:#?}");
    assert_eq!(all.directory.durable_per_s * 2.0, 2.0, "a move is two transactions");
}

#[test]
fn a_plan_that_makes_no_sense_is_refused_with_the_range() {
    let refused =
        |plan: ScalePlan| simulate(&plan, &|| 0).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        refused(ScalePlan { nodes: 1, ..small(Workload::Uniform) }).contains("hint: give a number from 2")
    );
    assert!(refused(ScalePlan { racks: 21, ..small(Workload::Uniform) }).contains("racks is 21"));
    assert!(refused(ScalePlan { time: Duration::ZERO, ..small(Workload::Uniform) }).contains("time"));
    let beyond = Workload::Script(vec![vec![Access { node: 20, page: 0, reads: 1, writes: 0 }]]);
    assert!(refused(small(beyond)).contains("a node of the script is 20"));
    let full = ScalePlan { capacity_bytes: 1 << 20, ..small(Workload::Uniform) };
    assert!(matches!(simulate(&full, &|| 0), Err(ScaleError::Refused(_))));
    let mut cold = small(Workload::Uniform);
    cold.heat.threshold = -1.0;
    assert!(matches!(simulate(&cold, &|| 0), Err(ScaleError::Heat(_))));
}

#[test]
fn times_that_cannot_be_added_up_are_refused() {
    let refused = |plan: ScalePlan| match simulate(&plan, &|| 0) {
        Err(ScaleError::OutOfRange { name, given, .. }) => format!("{name} {given}"),
        other => panic!("{other:?}"),
    };
    let most = Duration::from_secs(u64::MAX);
    let dies = refused(ScalePlan { rack_dies: Some(most), ..small(Workload::Uniform) });
    assert!(dies.contains("rack") && dies.contains(&u64::MAX.to_string()), "{dies}");
    let (mut far, mut slow) = (small(Workload::Uniform), small(Workload::Uniform));
    far.costs.wire = Duration::from_micros(u64::MAX);
    slow.costs.durable = Duration::from_micros(u64::MAX);
    assert!(refused(far).contains("network"));
    assert!(refused(slow).contains("durable"));
    let late = ScalePlan { rack_dies: Some(Duration::from_secs(2)), ..small(Workload::Uniform) };
    assert!(simulate(&late, &|| 0).is_ok());
}
