//! A page moves while programs write it, and one of the parties is killed at each step of the move: the node that wants the
//! page, the node that has it, the node with the directory. No acknowledged byte is lost, and the page has one home.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "region_moves/making.rs"]
mod making;
#[path = "region_moves/nodes.rs"]
mod nodes;
#[path = "region_moves/programs.rs"]
mod programs;

use hinterland_os::{MapOptions, MemoryFile};
use hinterland_proto::control::{Reply, Request};
use hinterland_proto::pages::SLOTS_BYTES;
use nodes::{DIRECTORY_STEPS, LONG, Nodes, PAGE, PARTIES, create, pull, region};
use programs::Programs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which steps a move passes, and at each how often it was passed before it.
fn steps_of_a_move(name: &str) -> Vec<(&'static str, String)> {
    let nodes = Nodes::new(name, |_| Some("count".to_owned()));
    let first = create(&nodes);
    let before = nodes.steps().len();
    pull(&nodes, "b", first);
    let is_of_the_move = |(party, step): &(&'static str, String)| {
        let name = step.rsplit_once(':').unwrap().0;
        if *party == "d" {
            DIRECTORY_STEPS.contains(&name)
        } else {
            name.starts_with("move-") || name.starts_with("home-page-") || name.starts_with("part-")
        }
    };
    nodes.steps().split_off(before).into_iter().filter(is_of_the_move).collect()
}

#[test]
fn killing_any_party_at_any_step_of_a_move_loses_nothing() {
    let steps = steps_of_a_move("count");
    let of = |party: &str| steps.iter().filter(|(other, _)| *other == party).count();
    println!(
        "{} steps: {} of the directory, {} of the home, {} of the taker",
        steps.len(),
        of("d"),
        of("a"),
        of("b")
    );
    assert!(of("d") >= 6 && of("a") >= 4 && of("b") >= 6, "{steps:?}");
    for (party, step) in &steps {
        let started = Instant::now();
        let mut nodes = Nodes::new("kill", |other| (other == *party).then(|| step.clone()));
        let first = create(&nodes);
        let sockets = PARTIES.map(|party| nodes.socket(party));
        let programs = Programs::start(&sockets, first);
        // Either way: what the caller is told of a move whose party died is of no importance.
        let told = nodes.pool("b").pull_page(first);
        nodes.revive(party);
        pull(&nodes, "b", first);
        pull(&nodes, "a", first);
        let done = programs.stop();
        programs::check(&sockets, first, &done);
        check_homes(&nodes);
        println!(
            "{party} killed at {step}: {} writes, the caller was told {:?}, {:?}",
            done.written(),
            told.is_ok(),
            started.elapsed()
        );
    }
}

#[test]
fn a_taker_that_was_not_told_of_its_move_does_not_keep_the_page_from_others() {
    let is_begun =
        |(party, step): &(&'static str, String)| *party == "d" && step.starts_with("directory-durable");
    let begun = steps_of_a_move("intents").into_iter().find(is_begun).unwrap().1;
    let mut nodes = Nodes::new("intent", |party| (party == "d").then(|| begun.clone()));
    let first = create(&nodes);
    // The directory has the intent, and dies before it says so.
    nodes.pool("b").pull_page(first).unwrap_err();
    nodes.revive("d");
    pull(&nodes, "d", first);
    check_homes(&nodes);
}

/// Every page has one home, and every node has the memory of what it has and no more.
fn check_homes(nodes: &Nodes) {
    let deadline = Instant::now() + LONG;
    loop {
        let on = nodes.pool("d").pages_at(&region()).unwrap();
        assert_eq!(on.iter().map(|on| on.pages).sum::<u64>(), 2);
        let used = |party| nodes.pool(party).status().unwrap().used_bytes;
        let right = PARTIES.iter().all(|party| {
            let ours =
                on.iter().filter(|on| on.home.as_ref().is_some_and(|home| home.rack.as_str() == *party));
            used(party) == ours.map(|on| on.pages * PAGE).sum::<u64>()
        });
        if right {
            return;
        }
        assert!(Instant::now() < deadline, "{on:?}: {:?}", PARTIES.map(used));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A program of its own, which the test below starts: reads a page for ever.
#[test]
#[ignore = "a test starts it as a process of its own"]
fn reads_a_page_for_ever() {
    let Ok(told) = std::env::var("REGION_READER") else { return };
    let (socket, first) = told.split_once(' ').unwrap();
    let pool = hinterland_pool::Pool::connect(Some(std::path::Path::new(socket))).unwrap();
    let first = hinterland_types::GlobalAddress::new(first.parse().unwrap()).unwrap();
    let mut found = vec![0; 1 << 20];
    pool.read(first, &mut found).unwrap();
    println!("reading");
    loop {
        pool.read(first, &mut found).unwrap();
    }
}

#[test]
fn a_program_that_is_stopped_in_the_middle_of_a_read_keeps_its_page_and_delays_nobody_else() {
    let nodes = Nodes::new("sigstop", |_| None);
    let first = create(&nodes);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reads_a_page_for_ever", "--ignored", "--nocapture"])
        .env("REGION_READER", format!("{} {}", nodes.socket("a").display(), first.raw()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("reading")));
    let signal = |signal: &str| {
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    };
    let taker = nodes.pool("b");
    let deadline = Instant::now() + LONG;
    // A copy of a MiB takes far longer than what is between two: it is stopped in one soon.
    loop {
        signal("-STOP");
        match taker.pull_page(first) {
            Err(refused) => {
                assert!(refused.to_string().contains("stays in the page"), "{refused}");
                break;
            }
            Ok(()) => nodes.pool("a").pull_page(first).unwrap(),
        }
        assert!(Instant::now() < deadline, "it was never in the page");
        signal("-CONT");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The page is as it was, for everybody.
    taker.write(first, &[7; 8]).unwrap();
    taker.pull_page(first.checked_add(PAGE).unwrap()).unwrap();
    assert!(taker.copy_page(first).unwrap_err().to_string().contains("stays in the page"));
    let mut found = [0; 8];
    nodes.pool("a").read(first, &mut found).unwrap();
    assert_eq!(found, [7; 8]);
    signal("-CONT");
    pull(&nodes, "b", first);
    signal("-STOP");
    child.kill().unwrap();
    child.wait().unwrap();
    pull(&nodes, "a", first);
    nodes.pool("d").read(first, &mut found).unwrap();
    assert_eq!(found, [7; 8]);
}

#[test]
fn a_program_that_stopped_inside_an_access_keeps_the_page_until_it_goes_on_or_dies() {
    let nodes = Nodes::new("stopped", |_| None);
    let first = create(&nodes);
    let program = nodes.pool("a");
    let (reply, mut descriptors) = program.session().call_with(&Request::OpenSlots, &[]).unwrap();
    assert_eq!(reply, Reply::Done);
    let file = MemoryFile::from_descriptor(descriptors.remove(0)).unwrap();
    let options = MapOptions { write: true, ..MapOptions::default() };
    let slots = Arc::new(file.map(0, SLOTS_BYTES, options).unwrap()).slice();
    drop(file);
    // As a thread that was stopped between its store to the slot and the end of its copy.
    slots.store_u64(3 * 1024, u64::from(first.page().raw()) + 1).unwrap();
    let taker = nodes.pool("b");
    let refused = taker.pull_page(first).unwrap_err();
    assert!(refused.to_string().contains("stays in the page"), "{refused}");
    // Nobody else notices.
    taker.write(first, &[7; 8]).unwrap();
    let second = first.checked_add(PAGE).unwrap();
    taker.pull_page(second).unwrap();
    // The session is over, the program is not.
    drop(program);
    std::thread::sleep(Duration::from_millis(100));
    assert!(taker.pull_page(first).is_err());
    slots.store_u64(3 * 1024, 0).unwrap();
    taker.pull_page(first).unwrap();
    nodes.pool("a").pull_page(first).unwrap();
    // Stopped again, and killed.
    slots.store_u64(3 * 1024, u64::from(first.page().raw()) + 1).unwrap();
    assert!(taker.pull_page(first).is_err());
    drop(slots);
    taker.pull_page(first).unwrap();
    let mut found = [0; 8];
    nodes.pool("a").read(first, &mut found).unwrap();
    assert_eq!(found, [7; 8]);
}
