//! Cache files of objects of another rack: which are kept, of what pages, and what is never mapped through one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_os::Userfault;
use hinterland_os::userfault::Features;
use hinterland_pool::{Pool, PoolError};
use hinterland_proto::control::{CacheStatus, Mapped, Reply, Request};
use hinterland_types::{Handle, ObjectName, Rights};
use pair::{Pair, put_object, read_object, until};
use std::os::fd::AsFd;

/// Idle cache files that the node of these tests keeps.
const IDLE_MAX: usize = 16;
/// An address that a program could have.
const POINTER: u64 = 1 << 30;

fn open(pool: &Pool, name: &str) -> Handle {
    let request = Request::Open { name: ObjectName::parse(name).unwrap(), rights: Rights::READ };
    match pool.session().call(&request).unwrap() {
        Reply::Opened(opened) => opened.handle,
        other => panic!("{other:?}"),
    }
}

fn map(pool: &Pool, handle: Handle) -> Mapped {
    match pool.session().call_with(&Request::Map { handle }, &[]).unwrap() {
        (Reply::Mapped(mapped), descriptors) => {
            assert_eq!(descriptors.len(), 1);
            mapped
        }
        other => panic!("{other:?}"),
    }
}

fn register(pool: &Pool, handle: Handle, fault: &Userfault) -> Result<Reply, PoolError> {
    let request = Request::Register { handle, pointer: POINTER, offset: 0, bytes: 4096 };
    Ok(pool.session().call_with(&request, &[fault.as_fd()])?.0)
}

fn cached(pool: &Pool) -> Vec<CacheStatus> {
    pool.status().unwrap().caches
}

fn userfault() -> Option<Userfault> {
    let fault = Userfault::open(Features::default());
    if fault.is_err() {
        eprintln!("not run: no userfaultfd on this machine");
    }
    fault.ok()
}

#[test]
fn idle_files_go_when_there_are_many_and_files_in_use_stay() {
    let pair = Pair::with("idle", 8 << 20, |options| options.idle_caches_max = IDLE_MAX);
    let (home, pool, holder) = (pair.a.pool(), pair.b.pool(), pair.b.pool());
    for number in 0..3 * IDLE_MAX {
        put_object(&home, &format!("many/{number:03}"), 5000);
    }
    let held = holder.open_object(&ObjectName::parse("many/000").unwrap()).unwrap();
    let mut first = [0; 2];
    held.read_cached(0, &mut first).unwrap();
    for number in 1..3 * IDLE_MAX {
        read_object(&pool, &format!("many/{number:03}"), 5000);
    }
    until("idle files are forgotten", || cached(&pool).len() <= IDLE_MAX + 1);
    let names: Vec<String> = cached(&pool).into_iter().map(|cache| cache.name).collect();
    assert!(names.contains(&"many/000".to_owned()), "somebody reads it: {names:?}");
    assert!(names.contains(&format!("many/{:03}", 3 * IDLE_MAX - 1)), "it was used last: {names:?}");
    assert!(!names.contains(&"many/001".to_owned()), "it was not used for longest: {names:?}");
    let received = pool.status().unwrap().counters.network_received_bytes;
    assert!(received >= 5000 * (3 * IDLE_MAX as u64 - 1), "what is forgotten stays counted: {received}");
    read_object(&pool, "many/001", 5000);
    drop(held);
}

#[test]
fn a_status_lists_what_it_has_room_for_and_counts_the_rest() {
    let pair = Pair::with("listed", 8 << 20, |options| options.idle_caches_max = 1000);
    let (home, pool) = (pair.a.pool(), pair.b.pool());
    for number in 0..260 {
        put_object(&home, &format!("listed/{number:03}"), 100);
        read_object(&pool, &format!("listed/{number:03}"), 100);
    }
    let status = pool.status().unwrap();
    assert_eq!((status.caches.len(), status.caches_left_out), (256, 4));
}

#[test]
fn the_cache_of_an_object_that_was_removed_is_forgotten() {
    let pair = Pair::new("removed-cache", 8 << 20);
    let (home, pool) = (pair.a.pool(), pair.b.pool());
    put_object(&home, "gone", 5000);
    put_object(&home, "kept", 5000);
    read_object(&pool, "gone", 5000);
    read_object(&pool, "kept", 5000);
    home.remove(&ObjectName::parse("gone").unwrap()).unwrap();
    until("it is forgotten", || cached(&pool).len() == 1);
    assert_eq!(cached(&pool)[0].name, "kept");
}

#[test]
fn a_small_object_takes_small_pages_of_the_budget() {
    let pair = Pair::new("small-cache", 8 << 20);
    let (home, pool) = (pair.a.pool(), pair.b.pool());
    put_object(&home, "small", 10 << 10);
    read_object(&pool, "small", 10 << 10);
    let [cache] = &cached(&pool)[..] else { panic!("{:?}", cached(&pool)) };
    assert_eq!((cache.resident_bytes, cache.pages.as_str()), (12 << 10, "base"));
}

#[test]
fn an_object_without_bytes_is_mapped_as_an_empty_file_and_no_fault_of_it_is_served() {
    let pair = Pair::new("empty-cache", 8 << 20);
    let (home, pool) = (pair.a.pool(), pair.b.pool());
    put_object(&home, "empty", 0);
    let handle = open(&pool, "empty");
    let mapped = map(&pool, handle);
    assert_eq!((mapped.bytes, mapped.file_bytes, mapped.armed), (0, 0, false));
    let Some(fault) = userfault() else { return };
    register(&pool, handle, &fault).unwrap_err();
    // Also not if the session has a cache file of it, because it has read all of its bytes.
    pool.session().read(handle, 0, &mut []).unwrap();
    register(&pool, handle, &fault).unwrap_err();
}

#[test]
fn a_program_between_map_and_register_keeps_the_file_that_it_was_given() {
    let Some(fault) = userfault() else { return };
    let pair = Pair::new("map-register", 8 << 20);
    let (home, first, second) = (pair.a.pool(), pair.b.pool(), pair.b.pool());
    put_object(&home, "shared", 3 << 20);
    let (one, another) = (open(&first, "shared"), open(&second, "shared"));
    map(&first, one);
    second.prefer(None, Some(64 << 10)).unwrap();
    map(&second, another);
    register(&first, one, &fault).unwrap();
    let [cache] = &cached(&first)[..] else { panic!("{:?}", cached(&first)) };
    assert_eq!(cache.mappings, 1, "the file that faults are served for is the one that is accounted for");
}
