//! Handles that a program makes for its parts and takes back: rights and ranges are refused in words, and what is revoked is of no
//! use any more, in the rack and across racks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod ground;
#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_pool::{Object, Pool, PoolError};
use hinterland_proto::control::{ObjectState, Request};
use hinterland_types::{ByteRange, RackName, Rights};
use pair::{Pair, put_object};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const EBADF: i32 = 9;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const EMLINK: i32 = 31;

fn both() -> Rights {
    Rights::READ | Rights::WRITE
}

fn range(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

fn refused<T>(result: Result<T, PoolError>, code: i32, words: &str) {
    match result {
        Err(PoolError::Refused { code: found, text }) => {
            assert_eq!(found, code, "{text}");
            assert!(text.contains(words) && text.contains("hint:"), "{text}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it should have been refused"),
    }
}

/// Everything that can be done with a handle.
fn every_use(object: &Object) -> Vec<Result<(), PoolError>> {
    vec![
        object.read_at(4096, &mut [0; 8]),
        object.read_cached(4096, &mut [0; 8]),
        object.checked().read_at(0, &mut vec![0; 65536]),
        object.write_at(4096, &[1; 8]),
        object.fetch_and_add(4096, 1).map(drop),
        object.compare_and_swap(4096, 0, 1).map(drop),
        object.diminish(Rights::READ, range(4096, 8)).map(drop),
        object.memory().map(drop),
        object.file().map(drop),
        object.hold(),
        object.right().map(drop),
    ]
}

/// An object and a region in the rack of the pool, and one of each in the other.
fn four(pair: &Pair) -> (Pool, [Object; 4]) {
    let pool = pair.a.pool();
    put_object(&pool, "near", 200_000);
    put_object(&pair.b.pool(), "far", 200_000);
    for rack in ["a", "b"] {
        let name = ground::name(&format!("region-{rack}"));
        pool.create_region(&name, 2 << 20, Some(RackName::parse(rack).unwrap())).unwrap();
    }
    let objects =
        ["near", "far", "region-a", "region-b"].map(|name| pool.open(&ground::name(name), both()).unwrap());
    (pool, objects)
}

#[test]
fn a_weaker_handle_reaches_its_bytes_and_is_refused_all_others_in_words() {
    let pair = Pair::new("dim-range", 8 << 20);
    let (_pool, objects) = four(&pair);
    for object in &objects {
        let part = object.diminish(Rights::READ, range(4096, 1000)).unwrap();
        assert_eq!((part.rights(), part.range()), (Rights::READ, range(4096, 1000)));
        let (mut whole, mut found) = (vec![0; 8192], vec![0; 1000]);
        object.read_at(0, &mut whole).unwrap();
        part.read_at(4096, &mut found).unwrap();
        assert!(found == whole[4096..5096]);
        for (offset, bytes) in [(4095, 2), (0, 8), (5095, 2), (u64::MAX, 2)] {
            refused(part.read_at(offset, &mut vec![7; bytes]), EINVAL, "4096 to 5096");
        }
        refused(part.write_at(4096, &[1]), EACCES, "-w--");
        refused(part.fetch_and_add(4096, 1), EACCES, "r---");
        refused(part.diminish(both(), range(4096, 8)), EACCES, "r---");
        refused(part.diminish(Rights::READ, range(4096, 1001)), EINVAL, "4096 to 5096");
        refused(part.diminish(Rights::NONE, range(4096, 8)), EINVAL, "allows nothing");
        // A file shows its holder all of the object.
        assert!(part.memory().is_err() && part.file().is_err());
        // What was refused has changed nothing.
        part.read_at(4096, &mut found).unwrap();
        assert!(found == whole[4096..5096]);
    }
    for sealed in &objects[..2] {
        let block = sealed.diminish(Rights::READ, range(65536, 65536)).unwrap();
        let (mut right, mut found) = (vec![0; 65536], vec![0; 65536]);
        sealed.read_at(65536, &mut right).unwrap();
        block.read_cached(65536, &mut found).unwrap();
        assert!(found == right);
        found.fill(0);
        block.checked().read_at(65536, &mut found).unwrap();
        assert!(found == right);
        refused(block.checked().read_at(0, &mut found), EINVAL, "65536 to 131072");
        refused(block.read_cached(0, &mut found), EINVAL, "65536 to 131072");
    }
    for region in &objects[2..] {
        let part = region.diminish(both(), range(4096, 1000)).unwrap();
        part.write_at(4096, b"words").unwrap();
        refused(part.write_at(4095, b"words"), EINVAL, "4096 to 5096");
        refused(part.fetch_and_add(8192, 1), EINVAL, "4096 to 5096");
        assert_eq!(part.fetch_and_add(4104, 3).unwrap(), 0);
        let only_writes = region.diminish(Rights::WRITE, range(0, 8192)).unwrap();
        only_writes.write_at(0, b"more").unwrap();
        refused(only_writes.read_at(0, &mut [0; 4]), EACCES, "-w--");
        let mut found = [0; 5];
        region.read_at(4096, &mut found).unwrap();
        assert_eq!(&found, b"words");
    }
}

#[test]
fn a_handle_that_is_revoked_takes_all_that_were_made_from_it_along() {
    let pair = Pair::new("dim-revoked", 8 << 20);
    let (_pool, objects) = four(&pair);
    for object in &objects {
        let bytes = object.info().bytes;
        let rights = object.rights();
        let parent = object.diminish(rights, range(0, bytes)).unwrap();
        let child = parent.diminish(rights, range(0, bytes)).unwrap();
        let grandchild = child.diminish(Rights::READ, range(4096, 4096)).unwrap();
        let sibling = object.diminish(Rights::READ, range(4096, 4096)).unwrap();
        // Each has been used, so that there is something at hand to go on with.
        let mut right = [0; 8];
        object.read_at(4096, &mut right).unwrap();
        for handle in [&parent, &child, &grandchild] {
            handle.read_at(4096, &mut [0; 8]).unwrap();
        }
        parent.revoke().unwrap();
        for handle in [&parent, &child, &grandchild] {
            for result in every_use(handle) {
                refused(result, EBADF, "revoked");
            }
            let mut untouched = [0xaa; 8];
            refused(handle.read_at(4096, &mut untouched), EBADF, object.info().name.as_str());
            assert_eq!(untouched, [0xaa; 8]);
            // Nor does the node know it any more.
            let asked = object.session().call(&Request::Hold { handle: handle.handle() });
            refused(asked, EBADF, "not held");
            handle.revoke().unwrap();
        }
        for handle in [object, &sibling] {
            let mut found = [0; 8];
            handle.read_at(4096, &mut found).unwrap();
            assert_eq!(found, right);
        }
        object.revoke().unwrap();
        refused(sibling.read_at(4096, &mut [0; 8]), EBADF, "revoked");
        refused(object.read_at(4096, &mut [0; 8]), EBADF, "revoked");
    }
}

#[test]
fn a_read_that_meets_a_revocation_has_the_right_bytes_or_an_error() {
    let pair = Pair::new("dim-race", 8 << 20);
    let (_pool, objects) = four(&pair);
    for object in &objects {
        let mut right = vec![0; 3000];
        object.read_at(4096, &mut right).unwrap();
        for _ in 0..20 {
            let lent = object.diminish(Rights::READ, range(0, 8192)).unwrap();
            let part = lent.diminish(Rights::READ, range(4096, 3000)).unwrap();
            let (reads, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let threads = [false, false, true].map(|is_cached| {
                    let (part, right, reads, is_over) = (&part, &right, &reads, &is_over);
                    scope.spawn(move || {
                        let mut found = vec![0; 3000];
                        let is_cached = is_cached && part.info().state == ObjectState::Sealed;
                        loop {
                            // Acquire: pairs with the Release behind the revocation.
                            let was_over = is_over.load(Ordering::Acquire);
                            found.fill(0xaa);
                            let read = match is_cached {
                                true => part.read_cached(4096, &mut found),
                                false => part.read_at(4096, &mut found),
                            };
                            match read {
                                Ok(()) => assert!(found == *right && !was_over),
                                Err(error) => return assert_eq!(error.code(), EBADF, "{error}"),
                            }
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                });
                while reads.load(Ordering::Relaxed) < 10 && !threads.iter().any(|thread| thread.is_finished())
                {
                    std::thread::yield_now();
                }
                lent.revoke().unwrap();
                is_over.store(true, Ordering::Release);
            });
            refused(part.read_at(4096, &mut [0; 8]), EBADF, "revoked");
        }
    }
}

#[test]
fn a_handle_outlives_those_that_it_was_made_from() {
    let pair = Pair::new("dim-lives", 8 << 20);
    let (pool, objects) = four(&pair);
    for object in objects {
        let number = object.handle();
        let child = object.diminish(Rights::READ, range(0, 8192)).unwrap();
        let grandchild = child.diminish(Rights::READ, range(4096, 4096)).unwrap();
        let (sealed, its_number) = (object.right().is_ok(), grandchild.handle());
        drop((object, child));
        grandchild.read_at(4096, &mut [0; 8]).unwrap();
        if sealed {
            grandchild.read_cached(4096, &mut [0; 8]).unwrap();
        }
        drop(grandchild);
        // The last one has given all back.
        for handle in [number, its_number] {
            refused(pool.session().call(&Request::Hold { handle }), EBADF, "not held");
        }
    }
}

#[test]
fn memory_of_a_weaker_handle_is_not_writable_and_stays_when_it_is_revoked() {
    let pair = Pair::new("dim-memory", 8 << 20);
    let (_pool, [_, _, region, _]) = four(&pair);
    region.memory().unwrap().write_at(0, b"bytes").unwrap();
    let reader = region.diminish(Rights::READ, range(0, 2 << 20)).unwrap();
    let memory = reader.memory().unwrap();
    assert!(memory.write_at(0, b"other").is_err());
    reader.revoke().unwrap();
    refused(reader.memory().map(drop), EBADF, "revoked");
    let mut found = [0; 5];
    memory.read_at(0, &mut found).unwrap();
    assert_eq!(&found, b"bytes");
}

#[test]
fn handles_are_not_made_from_each_other_without_end() {
    let pair = Pair::new("dim-deep", 8 << 20);
    let (_pool, [near, ..]) = four(&pair);
    let mut chain = vec![near];
    loop {
        match chain.last().unwrap().diminish(Rights::READ, range(0, 8)) {
            Ok(next) => chain.push(next),
            Err(error) => {
                refused(Err::<(), _>(error), EMLINK, "32 handles");
                break;
            }
        }
    }
    assert_eq!(chain.len(), 32);
    chain[31].read_at(0, &mut [0; 8]).unwrap();
    chain[0].revoke().unwrap();
    refused(chain[31].read_at(0, &mut [0; 8]), EBADF, "revoked");
}
