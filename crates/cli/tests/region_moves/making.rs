//! A spread region is made while a party is killed: it is seen whole or not at all, and what was not made keeps no room.

use super::nodes::{LONG, Nodes, PAGE, PARTIES};
use hinterland_pool::{Pool, PoolError};
use hinterland_types::ObjectName;
use std::time::Instant;

const PAGES: u64 = 12;
const ENOENT: i32 = 2;

fn name() -> ObjectName {
    ObjectName::parse("spread").unwrap()
}

/// Asks until it is known whether there is such a region.
fn find(pool: &Pool) -> bool {
    let deadline = Instant::now() + LONG;
    loop {
        match pool.stat(&name()) {
            Ok(_) => return true,
            Err(PoolError::Refused { code: ENOENT, .. }) => return false,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Writes every page from one party and reads it from the next.
fn use_all(nodes: &Nodes, words: &str) {
    let first = nodes.pool("d").stat(&name()).unwrap().address.unwrap();
    let pools = PARTIES.map(|party| nodes.pool(party));
    for page in 0..PAGES {
        let at = first.checked_add(page * PAGE).unwrap();
        let (writer, reader) = (&pools[page as usize % 3], &pools[(page as usize + 1) % 3]);
        writer
            .write(at, &[page as u8 + 1; 64])
            .unwrap_or_else(|error| panic!("{words}, page {page}: {error}"));
        let mut found = [0; 64];
        reader.read(at, &mut found).unwrap_or_else(|error| panic!("{words}, page {page}: {error}"));
        assert_eq!(found, [page as u8 + 1; 64], "{words}, page {page}");
    }
}

/// Nothing is charged to anybody, and nobody has memory of anything.
fn wait_for_all_room(nodes: &Nodes, words: &str) {
    let deadline = Instant::now() + LONG;
    loop {
        let members = nodes.pool("d").members().unwrap();
        let charged: Vec<u64> = members.iter().map(|member| member.used_bytes).collect();
        let used = PARTIES.map(|party| nodes.pool(party).status().unwrap().used_bytes);
        if charged.iter().chain(&used).all(|bytes| *bytes == 0) {
            return;
        }
        assert!(Instant::now() < deadline, "{words}: {charged:?} are charged, {used:?} used");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_spread_region_whose_making_is_cut_short_is_seen_whole_or_not_at_all() {
    let steps = [
        ("a", "region-reserved:1"),
        ("a", "region-home-made:1"),
        ("a", "region-home-made:2"),
        ("a", "region-homes-made:1"),
        ("a", "region-shown:1"),
        ("b", "part-file-made:1"),
        ("b", "home-part-made:1"),
        ("d", "home-part-made:1"),
    ];
    for (party, step) in steps {
        let words = format!("{party} killed at {step}");
        let mut nodes = Nodes::new("making", |other| (other == party).then(|| step.to_owned()));
        let made = nodes.pool("a").create_spread(&name(), PAGES * PAGE).is_ok();
        if party == "a" {
            // It is down: what it has not shown is not there for anybody.
            let is_seen = nodes.pool("d").stat(&name()).is_ok();
            assert_eq!(is_seen, step.starts_with("region-shown"), "{words}");
            let listed = nodes.pool("d").list("").unwrap();
            assert_eq!(listed.is_empty(), !is_seen, "{words}: {listed:?}");
        }
        nodes.revive(party);
        let is_there = find(&nodes.pool("d"));
        assert!(is_there || !made, "{words}: it was made, and is gone");
        if is_there {
            use_all(&nodes, &words);
            nodes.pool("b").remove(&name()).unwrap();
        }
        wait_for_all_room(&nodes, &words);
        println!("{words}: the maker was told {made}, it is there: {is_there}");
        nodes.pool("b").create_spread(&name(), PAGES * PAGE).unwrap();
        use_all(&nodes, &words);
    }
}
