//! The first read of an object of another rack: bytes and handle come together, and later reads go by the handle.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_fabric::adaptive::{Counts, Way};
use hinterland_pool::{Pool, PutOptions};
use hinterland_types::ObjectName;
use pair::Pair;

fn put(pool: &Pool, name: &str, bytes: &[u8]) -> ObjectName {
    let name = ObjectName::parse(name).unwrap();
    pool.put(&mut &bytes[..], &name, &PutOptions::default(), &mut |_| {}).unwrap();
    name
}

fn counts(questions: u64, reads: u64, learned: u64) -> Counts {
    Counts { questions, reads, learned }
}

#[test]
fn reads_of_every_kind_begin_right_and_go_on_right() {
    let pair = Pair::new("first-read", 8 << 20);
    let (here, there) = (pair.a.pool(), pair.b.pool());
    for size in [1usize, 100, 4096, 70_000, 256 << 10, (256 << 10) + 1, 3 << 20] {
        let name = ObjectName::parse(&format!("objects/{size}")).unwrap();
        let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        here.put(&mut &bytes[..], &name, &PutOptions::default(), &mut |_| {}).unwrap();
        let object = there.open_object(&name).unwrap();
        assert!(!object.is_local());
        let mut all = vec![0; size];
        object.read_at(0, &mut all).unwrap();
        assert!(all == bytes, "{size} bytes");
        // By the handle that came with them, also where the first read did not reach.
        let mut last = [0];
        object.read_at(size as u64 - 1, &mut last).unwrap();
        assert_eq!(last, [bytes[size - 1]]);
        // A first read in the middle learns a handle to everything.
        let object = there.open_object(&name).unwrap();
        object.read_at(size as u64 / 2, &mut last).unwrap();
        assert_eq!(last, [bytes[size / 2]]);
        all.fill(0);
        object.read_at(0, &mut all).unwrap();
        assert!(all == bytes, "{size} bytes after a first read in the middle");
        assert!(object.read_at(size as u64, &mut last).is_err());
    }
}

#[test]
fn an_object_that_was_removed_is_refused_in_words() {
    let pair = Pair::new("first-read-removed", 8 << 20);
    let (here, there) = (pair.a.pool(), pair.b.pool());
    let name = ObjectName::parse("gone").unwrap();
    here.put(&mut &[7u8; 1000][..], &name, &PutOptions::default(), &mut |_| {}).unwrap();
    let object = there.open_object(&name).unwrap();
    here.remove(&name).unwrap();
    let mut into = [0; 1000];
    // The home may not have let go yet: then these are the right bytes. Anything else is a refusal.
    match object.read_at(0, &mut into) {
        Ok(()) => assert_eq!(into, [7; 1000]),
        Err(error) => assert!(error.to_string().contains("gone"), "{error}"),
    }
}

#[test]
fn a_first_read_takes_the_round_trips_of_its_way_and_a_second_opening_asks_nothing() {
    let pair = Pair::new("first-read-ways", 16 << 20);
    let bytes: Vec<u8> = (0..3 << 20).map(|at| (at * 31 % 251) as u8).collect();
    let ways = [(Some(Way::Message), 0, 0), (Some(Way::Read), 1, 1), (Some(Way::Direct), 0, 0), (None, 0, 1)];
    for size in [1usize, 64, 4096, 300_000, 3 << 20] {
        let name = put(&pair.a.pool(), &format!("objects/{size}"), &bytes[..size]);
        for (way, reads_of_short, reads_of_long) in ways {
            let there = pair.b.pool().reading_by(way).unwrap();
            // What several streams carry together is asked for and read.
            let reads = if size > 1 << 20 { reads_of_long } else { reads_of_short };
            let mut all = vec![0; size];
            there.open_object(&name).unwrap().read_at(0, &mut all).unwrap();
            assert!(all == bytes[..size], "{way:?} {size}");
            assert_eq!(there.read_counts(), counts(1, reads, 0), "{way:?} {size}");
            for again in 1..3 {
                all.fill(0);
                let object = there.open_object(&name).unwrap();
                object.read_at(0, &mut all).unwrap();
                assert!(all == bytes[..size], "{way:?} {size}");
                assert_eq!(there.read_counts(), counts(1, reads + again, again), "{way:?} {size}");
            }
            there.forget_learned();
            there.open_object(&name).unwrap().read_at(0, &mut all).unwrap();
            assert_eq!(there.read_counts(), counts(2, 2 * reads + 2, 2), "{way:?} {size}");
        }
    }
}

#[test]
fn a_handle_that_the_home_took_back_is_forgotten_and_the_question_asked_again() {
    let pair = Pair::new("first-read-taken-back", 8 << 20);
    let (here, there) = (pair.a.pool(), pair.b.pool());
    let name = put(&here, "x", &[1; 5000]);
    let mut into = [0; 5000];
    let kept = there.open_object(&name).unwrap();
    kept.read_at(0, &mut into).unwrap();
    // Two who have it open share a handle, and it stays theirs when one of them lets go.
    let other = there.open_object(&name).unwrap();
    other.read_at(0, &mut into).unwrap();
    assert_eq!(there.read_counts(), counts(1, 1, 1));
    drop(other);
    here.remove(&name).unwrap();
    into.fill(0);
    kept.read_at(0, &mut into).unwrap();
    assert_eq!(into, [1; 5000]);
    drop(kept);
    // Another object of that name, with its own handle.
    let name = put(&here, "x", &[2; 5000]);
    let before = there.read_counts();
    there.open_object(&name).unwrap().read_at(0, &mut into).unwrap();
    assert_eq!(into, [2; 5000]);
    assert_eq!(there.read_counts().questions, before.questions + 1);
    // Opened by a handle that is lent, and removed then: refused in words, and the connection is good for others.
    let again = there.open_object(&name).unwrap();
    here.remove(&name).unwrap();
    match again.read_at(0, &mut into) {
        Ok(()) => assert_eq!(into, [2; 5000]),
        Err(error) => assert!(error.to_string().contains('x'), "{error}"),
    }
    drop(again);
    let name = put(&here, "y", &[3; 5000]);
    there.open_object(&name).unwrap().read_at(0, &mut into).unwrap();
    assert_eq!(into, [3; 5000]);
}
