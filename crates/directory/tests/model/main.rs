//! Random commands against a plain model: after each one every rule holds, and what the store has is what is seen.

#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

mod plain;
mod step;

use hinterland_directory::{Command, Directory, Record, Reply, Settings, Table};
use hinterland_types::ObjectName;
use plain::Plain;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};

/// The store: what a crash leaves.
#[derive(Default, Clone)]
struct Store(BTreeMap<(Table, Vec<u8>), Vec<u8>>);

impl Store {
    fn write(&mut self, mutations: Vec<hinterland_directory::Mutation>) {
        for mutation in mutations {
            match mutation.value {
                Some(value) => self.0.insert((mutation.table, mutation.key), value),
                None => self.0.remove(&(mutation.table, mutation.key)),
            };
        }
    }

    fn recover(&self, now_ms: u64) -> Directory {
        let records = self.0.iter().map(|((table, key), value)| Record {
            table: *table,
            key: key.clone(),
            value: value.clone(),
        });
        Directory::recover(Settings::default(), now_ms, records).unwrap()
    }
}

/// Runs the steps; gives which commands were accepted (`true`) and refused on the way.
fn run(steps: &[(u8, step::Step)]) -> BTreeSet<(String, bool)> {
    let mut seen = BTreeSet::new();
    let mut directory = Store::default().recover(0);
    let mut store = Store::default();
    let mut plain = Plain::default();
    let mut now_ms = 0;
    for (place, (wait, step)) in steps.iter().enumerate() {
        // Short of half a lease, behind which the directory thinks that it slept itself.
        now_ms += if *wait < 230 { u64::from(*wait) / 8 } else { u64::from(*wait) * 5 };
        let commands = step.commands(&plain);
        for command in [Command::Tick].into_iter().chain(commands) {
            let before = directory.clone();
            let plan = directory.plan(now_ms, &command);
            assert!(directory.same_records(&before), "planning changes nothing");
            seen.insert((kind(&command), plan.is_ok()));
            let allowed = plain.allows(now_ms, &command);
            match plan {
                Ok(plan) => {
                    assert!(allowed, "step {place}: the model refuses {command:?}");
                    store.write(plan.mutations());
                    let reply = directory.commit(plan);
                    plain.learn(now_ms, &command, &reply);
                    let is_shown = matches!(command, Command::ShowHeld { .. });
                    assert!(!is_shown || directory.same_records(&before), "step {place}: {command:?}");
                }
                Err(error) => {
                    assert!(!allowed, "step {place}: the model allows {command:?}, but: {error}");
                    assert!(error.to_string().contains("hint:"), "{error}");
                }
            }
            directory.check().unwrap();
            assert!(
                store.recover(now_ms).same_records(&directory),
                "step {place}: a crash behind {command:?}"
            );
        }
        compare(&directory, &plain, now_ms);
    }
    seen
}

/// The command's name without its fields.
fn kind(command: &Command) -> String {
    format!("{command:?}").split([' ', '(']).next().unwrap().to_owned()
}

/// What the directory says to outsiders is what the model expects.
fn compare(directory: &Directory, plain: &Plain, now_ms: u64) {
    let ask = |command| directory.clone().apply(now_ms, &command).map(|(reply, _)| reply);
    for name in step::NAMES {
        let name = ObjectName::parse(name).unwrap();
        match (ask(Command::Lookup { name: name.clone() }), plain.visible(&name)) {
            (Ok(Reply::Object(info)), Some((id, object))) => {
                assert_eq!((info.object, info.size, info.pages), (id, object.bytes, object.pages));
                assert_eq!(info.digest, object.digest);
                let mut homes: Vec<_> = info.homes.iter().map(|home| (home.node, home.epoch)).collect();
                homes.sort_unstable();
                assert_eq!(homes, plain.live_homes(object));
            }
            (Err(_), None) => {}
            (answer, expected) => panic!("lookup of {name}: {answer:?}, expected {expected:?}"),
        }
    }
    let Ok(Reply::Members(members)) = ask(Command::Members) else { panic!("members") };
    for member in members {
        assert_eq!(member.reserved_bytes, plain.reserved_bytes(member.node), "{}", member.node);
        let capacity_bytes = plain.members[&member.node].largest_capacity;
        assert!(member.reserved_bytes <= capacity_bytes, "more is reserved than {} has", member.node);
    }
    plain.check_pages();
    let Ok(Reply::List { objects, more: false }) =
        ask(Command::List { prefix: String::new(), after: None, limit: 100 })
    else {
        panic!("list")
    };
    let listed: Vec<_> = objects.iter().map(|info| info.name.as_str()).collect();
    let mut expected: Vec<_> = step::NAMES.to_vec();
    expected.retain(|name| plain.visible(&ObjectName::parse(name).unwrap()).is_some());
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_rule_holds_and_every_crash_recovers(
        start in step::start(),
        steps in prop::collection::vec((any::<u8>(), step::step()), 1..80),
    ) {
        let mut all = start;
        all.extend(steps);
        run(&all);
    }
}

/// The property above says little if its steps never get anywhere.
#[test]
fn random_steps_are_accepted_and_refused_in_every_way() {
    let mut runner = TestRunner::deterministic();
    let strategy = (step::start(), prop::collection::vec((any::<u8>(), step::step()), 60));
    let mut seen = BTreeSet::new();
    for _ in 0..120 {
        let (mut all, steps) = strategy.new_tree(&mut runner).unwrap().current();
        all.extend(steps);
        seen.extend(run(&all));
    }
    let kinds = [
        "Join",
        "Heartbeat",
        "NodeObjects",
        "ShowHeld",
        "Leave",
        "Reserve",
        "Grow",
        "Seal",
        "Abort",
        "CreateRegion",
        "Remove",
        "Forget",
        "AddReplica",
        "ReplicaAdded",
        "AddHeatCopy",
        "DropHeatCopy",
    ];
    for kind in kinds {
        for accepted in [true, false] {
            assert!(seen.contains(&(kind.to_owned(), accepted)), "{kind} was never {accepted}");
        }
    }
}
