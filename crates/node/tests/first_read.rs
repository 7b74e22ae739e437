//! The first read of an object of another rack: bytes and handle come together, and later reads go by the handle.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_pool::PutOptions;
use hinterland_types::ObjectName;
use pair::Pair;

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
