//! Holders of guards are killed at each step of a lock, and stopped for longer than its lease; so are their nodes. What programs of two racks
//! saw of a word under its lock is linearizable, a write of unknown fate comes before the next holder or never, and whoever has lost a
//! lock is told why.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "lock_faults/nodes.rs"]
mod nodes;
#[path = "lock_faults/programs.rs"]
mod programs;

use hinterland_pool::{GuardOptions, PoolError, WriteGuard};
use hinterland_types::GlobalAddress;
use nodes::{LONG, Nodes};
use programs::{Program, Seen, WORDS};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const ETIMEDOUT: i32 = 110;
const EOWNERDEAD: i32 = 130;
/// Accesses of a run that show something.
const ACCESSES_MIN: usize = 40;
/// What the next holder writes everywhere.
const MARK: u64 = u64::MAX / 3;

fn patient() -> GuardOptions {
    GuardOptions { wait: LONG, ..GuardOptions::default() }
}

/// Whether every step is tried; else some are.
fn is_full() -> bool {
    std::env::var_os("HINTERLAND_FULL").is_some_and(|value| value == "1")
}

/// The next holder: it sees either what was there or what the program wrote, and what it writes itself stays.
fn take_over(nodes: &Nodes, party: &str, address: GlobalAddress, flushed: usize, words: &str) {
    let pool = nodes.pool(party);
    let guard = pool.wlock(address, WORDS as u64 * 8, &patient()).unwrap();
    write_all(guard, flushed, words);
}

fn write_all(guard: WriteGuard, flushed: usize, words: &str) {
    for word in 0..WORDS {
        let mut seen = [0; 8];
        guard.read(word as u64 * 8, &mut seen).unwrap();
        let seen = u64::from_le_bytes(seen);
        assert!(seen == 0 || seen == word as u64 + 1, "{words}: word {word} is {seen}");
        assert!(word >= flushed || seen != 0, "{words}: word {word} of {flushed} flushed ones is lost");
        guard.write(word as u64 * 8, &MARK.to_le_bytes()).unwrap();
    }
    guard.unlock().unwrap();
}

fn check_mark(nodes: &Nodes, address: GlobalAddress, words: &str) {
    let mut all = vec![0; WORDS * 8];
    nodes.pool("a").read(address, &mut all).unwrap();
    let is_mark = |word: &[u8]| word == MARK.to_le_bytes();
    assert!(all.chunks(8).all(is_mark), "{words}: something came over what the next holder wrote");
}

fn clear(nodes: &Nodes, address: GlobalAddress) {
    nodes.pool("a").write(address, &vec![0; WORDS * 8]).unwrap();
}

/// The first, a middle and the last time of each step, or all.
fn chosen(counts: &BTreeMap<String, u64>) -> Vec<String> {
    let times = |(name, most): (&String, &u64)| {
        let mut times = vec![1, most.div_ceil(2), *most];
        times.dedup();
        if !is_full() {
            times.truncate(2);
        }
        times.into_iter().map(|time| format!("{name}:{time}")).collect::<Vec<_>>()
    };
    counts.iter().flat_map(times).collect()
}

#[test]
fn killing_a_holder_at_any_step_leaves_the_lock_and_what_was_flushed_to_the_next() {
    let nodes = Nodes::new("holder", Duration::from_secs(3), |_| None);
    for (name, home) in [("near", "b"), ("far", "a")] {
        // The program is at `b`.
        let address = nodes.region(name, home);
        let counted = Program::start("write", &nodes.socket("b"), address, Some("count"));
        let (_, counts) = counted.end();
        println!("{name}: {counts:?}");
        assert!(counts.len() >= 3 && counts.contains_key("lock-unlocking"), "{counts:?}");
        assert!(name == "near" || counts.contains_key("lock-buffers-swapped"), "{counts:?}");
        for step in chosen(&counts) {
            clear(&nodes, address);
            let program = Program::start("write", &nodes.socket("b"), address, Some(&step));
            let (lines, _) = program.end();
            let flushed = lines.iter().rev().find_map(|line| line.strip_prefix("flushed ")?.parse().ok());
            let words = format!("{name}, killed at {step}");
            take_over(&nodes, "a", address, flushed.unwrap_or(0), &words);
            check_mark(&nodes, address, &words);
        }
    }
}

/// Stops a holder, takes the lock over and lets the holder go on, which is told why it has lost it. False if it was stopped in the
/// middle of a store: then nobody gets the lock, and everybody is told so.
fn stop_a_holder(nodes: &Nodes, role: &str, round: u64, address: GlobalAddress, words: &str) -> bool {
    clear(nodes, address);
    let program = Program::start(role, &nodes.socket("b"), address, None);
    program.wait_for("held");
    std::thread::sleep(Duration::from_millis(7 * round));
    program.stop();
    let party = if round == 0 { "a" } else { "b" };
    let options = GuardOptions { wait: Duration::from_secs(6), ..GuardOptions::default() };
    let is_stuck = |error: &PoolError| error.to_string().contains("in the middle of a store");
    match nodes.pool(party).wlock(address, WORDS as u64 * 8, &options) {
        Ok(guard) => write_all(guard, 0, words),
        Err(error) => {
            assert_eq!(error.code(), ETIMEDOUT, "{words}: {error}");
            // A node knows of programs of its own host only.
            let here = nodes.pool("b").wlock(address, 8, &GuardOptions { wait: Duration::ZERO, ..options });
            let why = here.err().unwrap_or_else(|| panic!("{words}: got it after {error}"));
            assert!(is_stuck(&why), "{words}: {error}, then {why}");
            assert!(party == "a" || is_stuck(&error), "{words}: {error}");
            return false;
        }
    }
    program.go_on();
    let refused = program.wait_for("refused ");
    assert!(refused.starts_with(&format!("refused {EOWNERDEAD} ")), "{words}: {refused}");
    assert!(refused.contains("hint:"), "{words}: {refused}");
    check_mark(nodes, address, words);
    let unlocked = program.wait_for("unlocked ");
    assert!(!unlocked.starts_with("unlocked 0"), "{words}: unlock did not say that the lock was lost");
    program.end();
    check_mark(nodes, address, words);
    true
}

#[test]
fn a_holder_that_was_stopped_for_longer_than_a_lease_is_refused_and_told_why() {
    let nodes = Nodes::new("stopped", Duration::from_millis(900), |_| None);
    for (name, home) in [("near", "b"), ("far", "a")] {
        let address = nodes.region(name, home);
        for (round, role) in [(0, "spin"), (1, "spin"), (2, "hold")] {
            let words = format!("{name}, {role}, round {round}");
            // A stop hits a store now and then.
            let is_taken = (0..8).any(|_| stop_a_holder(&nodes, role, round, address, &words));
            assert!(is_taken, "{words}: every stop hit a store");
        }
    }
}

#[test]
fn a_holder_whose_node_was_stopped_for_longer_than_a_lease_is_refused_and_told_why() {
    let nodes = Nodes::new("node", Duration::from_millis(900), |_| None);
    let address = nodes.region("far", "a");
    for round in 0..2 {
        clear(&nodes, address);
        let words = format!("round {round}");
        let program = Program::start("spin", &nodes.socket("b"), address, None);
        program.wait_for("held");
        nodes.signal("b", "STOP");
        take_over(&nodes, "a", address, 0, &words);
        nodes.signal("b", "CONT");
        let refused = program.wait_for("refused ");
        assert!(refused.starts_with(&format!("refused {EOWNERDEAD} ")), "{words}: {refused}");
        program.end();
        check_mark(&nodes, address, &words);
    }
}

/// Programs of both racks at two words, while a party is killed at a step or stopped.
fn run_history(nodes: &mut Nodes, killed: Option<&'static str>, words: &str) {
    let registers = [nodes.region("near", "a"), nodes.region("far", "b")];
    if killed.is_some() {
        // Its lock is kept at `a`, its page lies at `b`, which asks and is told.
        nodes.pull("b", registers[0]);
    }
    let programs: Vec<Program> = ["a", "b", "a", "b"]
        .into_iter()
        .enumerate()
        .map(|(number, party)| {
            let role = format!("history {} {} {number}", registers[0].raw(), registers[1].raw());
            Program::start(&role, &nodes.socket(party), registers[0], None)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(900));
    // A holder is stopped past its lease, another is killed.
    programs[1].stop();
    std::thread::sleep(Duration::from_millis(1300));
    programs[1].go_on();
    programs[2].kill();
    std::thread::sleep(Duration::from_millis(900));
    if let Some(party) = killed {
        nodes.revive(party);
        std::thread::sleep(Duration::from_millis(900));
    }
    // However slow this machine is: with less nothing would be shown.
    let deadline = Instant::now() + 3 * LONG;
    while programs.iter().map(Program::reads).sum::<usize>() <= ACCESSES_MIN {
        assert!(Instant::now() < deadline, "{words}: hardly anything happens");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut seen = Seen::default();
    for program in programs {
        seen.add(&program.end().0);
    }
    let done = seen.check(words);
    println!("{words}: {done} accesses of both words");
    assert!(done > ACCESSES_MIN, "{words}: {done} accesses show nothing");
}

#[test]
fn what_programs_see_while_they_are_stopped_and_killed_is_linearizable() {
    let mut nodes = Nodes::new("history", Duration::from_millis(800), |_| None);
    run_history(&mut nodes, None, "programs");
}

#[test]
fn what_programs_see_while_nodes_are_killed_at_steps_of_locks_is_linearizable() {
    let steps = [
        "lock-home-granted:9",
        "lock-home-checked:1",
        "lock-home-released:7",
        "lock-home-renewed:12",
        "lock-home-asked:20",
        "lock-guard-noted:11",
        "lock-told-to-forget:1",
        "lock-forgotten:1",
    ];
    for (number, step) in steps.into_iter().enumerate() {
        if !is_full() && number > 2 {
            break;
        }
        // Half of the words have their lock at each.
        let party = if step.starts_with("lock-home") { "a" } else { "b" };
        let mut nodes =
            Nodes::new("kill", Duration::from_millis(800), |other| (other == party).then(|| step.to_owned()));
        run_history(&mut nodes, Some(party), &format!("{party} killed at {step}"));
    }
}

#[test]
fn role_of_a_process() {
    programs::play();
}
