//! A page is copied and the copy taken back while programs write it, and one of the parties is killed or stopped at each step: no
//! acknowledged byte is lost, and no program reads what was there before a write that has returned.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(dead_code, reason = "the helpers are those of the tests of moves, too")]

#[path = "region_moves/nodes.rs"]
mod nodes;
#[path = "region_moves/programs.rs"]
mod programs;

use hinterland_pool::Pool;
use hinterland_types::GlobalAddress;
use nodes::{LONG, Nodes, PARTIES, create};
use programs::Programs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Copies until it works.
fn copy(nodes: &Nodes, party: &str, first: GlobalAddress) {
    let deadline = Instant::now() + LONG;
    loop {
        match Pool::connect(Some(&nodes.socket(party))).and_then(|pool| pool.copy_page(first)) {
            Ok(()) => return,
            Err(error) => assert!(Instant::now() < deadline, "no copy comes to {party}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn word(pool: &Pool, place: GlobalAddress) -> u64 {
    let mut found = [0; 8];
    pool.read(place, &mut found).unwrap();
    u64::from_le_bytes(found)
}

/// Writes until it works.
fn write(nodes: &Nodes, party: &str, place: GlobalAddress, number: u64) {
    let deadline = Instant::now() + LONG;
    loop {
        let written = Pool::connect(Some(&nodes.socket(party)))
            .and_then(|pool| pool.write(place, &number.to_le_bytes()));
        match written {
            Ok(()) => return,
            Err(error) => assert!(Instant::now() < deadline, "nothing is written from {party}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Which steps it takes to copy a page and to take the copy back.
fn steps_of_a_copy() -> Vec<(&'static str, String)> {
    let nodes = Nodes::new("copy-count", |_| Some("count".to_owned()));
    let first = create(&nodes);
    let before = nodes.steps().len();
    copy(&nodes, "b", first);
    write(&nodes, "d", first, 1);
    let is_of_the_copy = |(party, step): &(&'static str, String)| {
        let of_the_home =
            *party == "a" && (step.starts_with("home-page-") || step.starts_with("home-recall"));
        of_the_home || *party == "b" && (step.starts_with("copy-") || step.starts_with("part-"))
    };
    nodes.steps().split_off(before).into_iter().filter(is_of_the_copy).collect()
}

#[test]
fn killing_home_or_reader_at_any_step_of_a_copy_loses_nothing_and_shows_nothing_old() {
    let steps = steps_of_a_copy();
    println!("{steps:?}");
    let of = |party: &str| steps.iter().filter(|(other, _)| *other == party).count();
    assert!(of("a") >= 4 && of("b") >= 6, "{steps:?}");
    for (party, step) in &steps {
        let started = Instant::now();
        let mut nodes = Nodes::new("copy-kill", |other| (other == *party).then(|| step.clone()));
        let first = create(&nodes);
        let sockets = PARTIES.map(|party| nodes.socket(party));
        // Either way: what the caller is told of a copy whose party died is of no importance.
        let told = nodes.pool("b").copy_page(first);
        let programs = Programs::start(&sockets, first);
        nodes.revive(party);
        for _ in 0..3 {
            // Writers take it back at once: that it comes at all is enough.
            let _ = nodes.pool("b").copy_page(first);
            std::thread::sleep(Duration::from_millis(30));
        }
        let done = programs.stop();
        copy(&nodes, "b", first);
        programs::check(&sockets, first, &done);
        let place = first.checked_add(1 << 20).unwrap();
        for number in 1..4 {
            write(&nodes, PARTIES[number as usize % 3], place, number);
            for party in PARTIES {
                assert_eq!(word(&nodes.pool(party), place), number);
            }
            copy(&nodes, "b", first);
        }
        println!(
            "{party} killed at {step}: {} writes, the caller was told {:?}, {:?}",
            done.written(),
            told.is_ok(),
            started.elapsed()
        );
    }
}

/// Sends a signal to a process that the test started.
fn signal(child: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.to_string()]).status().unwrap().success());
}

#[test]
fn a_reader_whose_node_is_stopped_or_cut_off_keeps_a_write_waiting_for_a_lease_and_reads_nothing_old() {
    let nodes = Nodes::new("copy-stopped", |_| None);
    let first = create(&nodes);
    let reader = nodes.pool("b");
    reader.write(first, &1_u64.to_le_bytes()).unwrap();
    copy(&nodes, "b", first);
    assert_eq!(word(&reader, first), 1);
    signal(nodes.running["b"].id(), "-STOP");
    let started = Instant::now();
    let writer = nodes.pool("a");
    writer.write(first, &2_u64.to_le_bytes()).unwrap();
    println!("the write took {:?}", started.elapsed());
    // Words and copy are still mapped and nobody has changed them, but their time is over.
    assert_eq!(word(&reader, first), 2);
    // With nobody left who might read the copy nothing waits any more.
    writer.write(first, &3_u64.to_le_bytes()).unwrap();
    assert_eq!(word(&reader, first), 3);
    signal(nodes.running["b"].id(), "-CONT");
    assert_eq!(word(&reader, first), 3);
    copy(&nodes, "b", first);
    writer.write(first, &4_u64.to_le_bytes()).unwrap();
    assert_eq!(word(&reader, first), 4);
}

#[test]
fn a_home_that_is_started_again_writes_nothing_while_copies_of_its_earlier_life_count() {
    let mut nodes = Nodes::new("copy-life", |_| None);
    let first = create(&nodes);
    let reader = nodes.pool("b");
    reader.write(first, &1_u64.to_le_bytes()).unwrap();
    copy(&nodes, "b", first);
    assert_eq!(word(&reader, first), 1);
    nodes.running.get_mut("a").unwrap().kill().unwrap();
    nodes.revive("a");
    for number in 2..6 {
        write(&nodes, "a", first, number);
        assert_eq!(word(&reader, first), number);
    }
}
