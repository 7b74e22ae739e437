//! What is wanted is read, once, and neither lost nor kept for ever.

use super::*;
use crate::store::{Packed, Store, Stores};

fn stores() -> Arc<Stores> {
    let store: Box<dyn Store> = Box::new(Packed::new(u64::MAX / 2));
    Arc::new(Stores::new(vec![store], 1))
}

fn put(stores: &Arc<Stores>, byte: u8, bytes: usize) -> Copy {
    let (copy, refusal) = stores.put(&vec![byte; bytes]);
    assert!(refusal.is_none());
    copy
}

/// Runs `work` while two threads read.
fn reading(work: impl FnOnce(&Reads)) {
    let reads = Reads::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| reads.serve(|| {}));
        }
        work(&reads);
        reads.end();
    });
}

fn wait(reads: &Reads, copy: &Copy) -> Content {
    loop {
        if let Some(content) = reads.get(copy) {
            return content;
        }
        std::thread::yield_now();
    }
}

#[test]
fn what_is_wanted_comes_and_is_gone_once_used() {
    let stores = stores();
    reading(|reads| {
        for round in 0..200u8 {
            let copy = put(&stores, round, 64 << 10);
            assert!(reads.get(&copy).is_none() && !reads.has(&copy));
            assert!(reads.want(&copy, round % 2 == 0));
            let content = wait(reads, &copy).unwrap();
            assert!(content.iter().all(|byte| *byte == round) && content.len() == 64 << 10);
            reads.used(&copy, content);
            assert!(!reads.has(&copy));
        }
        assert_eq!(reads.lock().bytes, 0);
        assert!(reads.lock().spare.len() <= SPARE_MAX);
    });
}

#[test]
fn reading_ahead_stops_at_the_limit_and_faults_do_not() {
    let stores = stores();
    let reads = Reads::default();
    let copies: Vec<_> = (0..9).map(|byte| put(&stores, byte, 2 << 20)).collect();
    for copy in &copies[..8] {
        assert!(reads.want(copy, false));
    }
    assert!(!reads.want(&copies[8], false));
    assert!(reads.want(&copies[8], true));
    // Wanted by a fault later: it comes first, behind what faults wanted before.
    assert!(reads.want(&copies[5], true));
    let next = || reads.lock().next().unwrap();
    assert!(next().is_same(&copies[8]));
    assert!(next().is_same(&copies[5]));
    assert!(next().is_same(&copies[0]));
}

#[test]
fn a_fault_takes_the_place_of_what_was_read_ahead() {
    let stores = stores();
    reading(|reads| {
        let copies: Vec<_> = (0..8).map(|byte| put(&stores, byte, 2 << 20)).collect();
        for copy in &copies {
            assert!(reads.want(copy, false));
            wait(reads, copy).unwrap();
        }
        let last = put(&stores, 9, 2 << 20);
        assert!(reads.want(&last, true));
        assert_eq!(wait(reads, &last).unwrap()[0], 9);
        assert_eq!(copies.iter().filter(|copy| reads.has(copy)).count(), 7);
    });
}

#[test]
fn content_that_nobody_has_is_an_error_once() {
    let stores = stores();
    reading(|reads| {
        let copy = Copy::lost(&stores, 4096);
        assert!(reads.want(&copy, true));
        assert!(wait(reads, &copy).is_err());
        reads.forget(&copy);
        assert!(!reads.has(&copy));
    });
}
