//! Handles over real sessions: a file is given for all of an object or not at all, with the rights of the handle, and a
//! handle that was taken back leads nowhere.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod ground;
#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use ground::Ground;
use hinterland_os::{MapOptions, MemoryFile};
use hinterland_pool::{PoolError, Session};
use hinterland_proto::control::{Mapped, Opened, Placement, PutStarted, Reply, Request};
use hinterland_types::{ByteRange, Handle, Rights};
use pair::{Pair, put_object};
use std::os::fd::OwnedFd;

const MEBIBYTE: u64 = 1 << 20;

fn both() -> Rights {
    Rights::READ | Rights::WRITE
}

fn open(session: &Session, name: &str, rights: Rights) -> Opened {
    match session.call(&Request::Open { name: ground::name(name), rights }).unwrap() {
        Reply::Opened(opened) => opened,
        other => panic!("{other:?}"),
    }
}

fn begin(session: &Session, name: &str, bytes: u64) -> PutStarted {
    let (name, bytes) = (ground::name(name), Some(bytes));
    let request = Request::PutBegin { name, bytes, copies: 1, placement: Placement::Policy };
    match session.call(&request).unwrap() {
        Reply::PutStarted(started) => started,
        other => panic!("{other:?}"),
    }
}

fn diminish(session: &Session, handle: Handle, rights: Rights, bytes: u64) -> Handle {
    let range = ByteRange::new(0, bytes).unwrap();
    match session.call(&Request::Diminish { handle, rights, range }).unwrap() {
        Reply::Granted { handle } => handle,
        other => panic!("{other:?}"),
    }
}

fn map(session: &Session, handle: Handle) -> Result<(Mapped, OwnedFd), PoolError> {
    match session.call_with(&Request::Map { handle }, &[])? {
        (Reply::Mapped(mapped), mut descriptors) => Ok((mapped, descriptors.remove(0))),
        (other, _) => panic!("{other:?}"),
    }
}

/// The part of a region, for accesses by the words of its pages.
fn pages(session: &Session, handle: Handle) -> Result<OwnedFd, PoolError> {
    match session.call_with(&Request::OpenPages { handle }, &[])? {
        (Reply::PagesOpened(_), mut descriptors) => Ok(descriptors.pop().unwrap()),
        (other, _) => panic!("{other:?}"),
    }
}

fn is_writable(descriptor: OwnedFd) -> bool {
    let file = MemoryFile::from_descriptor(descriptor).unwrap();
    let writable = file.map(0, 4096, MapOptions { write: true, ..MapOptions::default() }).is_ok();
    assert!(file.map(0, 4096, MapOptions::default()).is_ok());
    writable
}

fn refused(result: Result<impl std::fmt::Debug, PoolError>) -> String {
    match result {
        Err(PoolError::Refused { text, .. }) => text,
        other => panic!("it should have been refused: {other:?}"),
    }
}

#[test]
fn a_handle_for_a_part_gets_no_file_of_the_whole() {
    let ground = Ground::new("part");
    let (pool, session) = (ground.pool(), ground.session());
    ground.put(&pool, "sealed", 100_000);
    pool.create_region(&ground::name("region"), 4 * MEBIBYTE, None).unwrap();
    let started = begin(&session, "written", MEBIBYTE);
    let sealed = open(&session, "sealed", Rights::READ).handle;
    let region = open(&session, "region", both()).handle;
    let written = started.targets[0].handle.unwrap();
    for handle in [sealed, region, written] {
        let part = diminish(&session, handle, both(), 4096);
        let text = refused(map(&session, part));
        assert!(text.contains("a part of") && text.contains("hint:"), "{text}");
        session.read(part, 0, &mut [0; 4096]).unwrap();
        map(&session, handle).unwrap();
    }
    let part = diminish(&session, region, both(), 4096);
    let text = refused(pages(&session, part));
    assert!(text.contains("a part of region") && text.contains("hint:"), "{text}");
    pages(&session, region).unwrap();
    // A handle for all bytes is one for the whole, whoever made it of which other.
    map(&session, diminish(&session, sealed, Rights::READ, 100_000)).unwrap();
}

#[test]
fn a_handle_for_a_part_of_an_object_of_another_rack_gets_no_file_either() {
    let pair = Pair::new("part-far", 8 << 20);
    put_object(&pair.a.pool(), "far", 300_000);
    let pool = pair.b.pool();
    let session = pool.session();
    let handle = open(session, "far", Rights::READ).handle;
    let part = diminish(session, handle, Rights::READ, 4096);
    let text = refused(map(session, part));
    assert!(text.contains("a part of far") && text.contains("hint:"), "{text}");
    assert!(map(session, handle).unwrap().0.armed);
}

#[test]
fn a_handle_for_reading_gets_a_file_that_cannot_be_written() {
    let ground = Ground::new("rights");
    let (pool, session) = (ground.pool(), ground.session());
    pool.create_region(&ground::name("region"), 4 * MEBIBYTE, None).unwrap();
    let whole = open(&session, "region", both()).handle;
    for reading in
        [open(&session, "region", Rights::READ).handle, diminish(&session, whole, Rights::READ, 4 * MEBIBYTE)]
    {
        let (mapped, descriptor) = map(&session, reading).unwrap();
        assert!(!mapped.writable && !is_writable(descriptor));
        assert!(!is_writable(pages(&session, reading).unwrap()));
    }
    let (mapped, descriptor) = map(&session, whole).unwrap();
    assert!(mapped.writable && is_writable(descriptor));
    assert!(is_writable(pages(&session, whole).unwrap()));
    // Nor does one that may do neither get any.
    let neither = diminish(&session, whole, Rights::LOCK, 4 * MEBIBYTE);
    refused(map(&session, neither));
    refused(pages(&session, neither));
}

#[test]
fn what_a_handle_read_through_the_cache_is_let_go_when_it_is_taken_back_with_another_one() {
    let pair = Pair::new("cached", 8 << 20);
    put_object(&pair.a.pool(), "far", 300_000);
    let pool = pair.b.pool();
    let session = pool.session();
    pool.prefer(Some(MEBIBYTE), None).unwrap();
    let budget = || pool.status().unwrap().caches.first().and_then(|cache| cache.budget_bytes);
    for takes_back in [|handle| Request::Revoke { handle }, |handle| Request::Close { handle }] {
        let handle = open(session, "far", Rights::READ).handle;
        let part = diminish(session, handle, Rights::READ, 4096);
        session.read(part, 0, &mut [0; 8]).unwrap();
        assert_eq!(budget(), Some(MEBIBYTE), "the session reads it");
        session.call(&takes_back(handle)).unwrap();
        assert_eq!(budget(), None, "nobody does");
    }
}

#[test]
fn what_was_diminished_from_a_handle_that_is_revoked_leads_nowhere() {
    let ground = Ground::new("revoked");
    let (pool, session) = (ground.pool(), ground.session());
    ground.put(&pool, "sealed", 100_000);
    pool.create_region(&ground::name("region"), 4 * MEBIBYTE, None).unwrap();
    for (name, rights, bytes) in [("sealed", Rights::READ, 100_000), ("region", both(), 4 * MEBIBYTE)] {
        let parent = open(&session, name, rights).handle;
        let child = diminish(&session, parent, rights, bytes);
        let grandchild = diminish(&session, child, Rights::READ, 4096);
        map(&session, child).unwrap();
        session.read(child, 0, &mut [0; 8]).unwrap();
        session.read(grandchild, 0, &mut [0; 8]).unwrap();
        session.call(&Request::Revoke { handle: parent }).unwrap();
        for handle in [child, grandchild] {
            let text = refused(map(&session, handle));
            assert!(text.contains("revoked") && text.contains("hint:"), "{text}");
            refused(session.read(handle, 0, &mut [0; 8]));
            refused(session.write(handle, 0, &[1; 8]));
            refused(session.call(&Request::Revoke { handle }));
            let range = ByteRange::new(0, 8).unwrap();
            refused(session.call(&Request::Diminish { handle, rights: Rights::READ, range }));
        }
        // The handle itself stays, and another one may come of it, which the old numbers do not lead to.
        session.read(parent, 0, &mut [0; 8]).unwrap();
        let again = diminish(&session, parent, Rights::READ, bytes);
        map(&session, again).unwrap();
        refused(session.read(child, 0, &mut [0; 8]));
    }
}
