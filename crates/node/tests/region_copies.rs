//! Copies of pages that are read in several racks, between real nodes: never a stale byte, and never one that keeps a write waiting for
//! longer than a lease.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, Rights};
use nodes::{Nodes, PAGE, name, pattern};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn at(first: GlobalAddress, offset: u64) -> GlobalAddress {
    first.checked_add(offset).unwrap()
}

fn region(pool: &Pool, pages: u64) -> GlobalAddress {
    pool.create_region(&name("r"), pages * PAGE, None).unwrap().address.unwrap()
}

fn word(pool: &Pool, place: GlobalAddress) -> u64 {
    let mut found = [0; 8];
    pool.read(place, &mut found).unwrap();
    u64::from_le_bytes(found)
}

/// Bytes that a node has sent to others.
fn sent(pool: &Pool) -> u64 {
    pool.status().unwrap().counters.network_sent_bytes
}

#[test]
fn a_copy_is_read_without_its_home_until_somebody_writes() {
    let nodes = Nodes::new("copy", 3, 16);
    let pools = nodes.pools();
    let first = region(&pools[0], 2);
    let all = pattern(5, PAGE as usize);
    pools[0].write(first, &all).unwrap();
    let mut found = vec![0; PAGE as usize];
    for (round, writer) in (0..9_u64).zip([0, 1, 2].into_iter().cycle()) {
        for reader in [1, 2] {
            pools[reader].copy_page(first).unwrap();
            pools[reader].read(first, &mut found).unwrap();
        }
        let before = sent(&pools[0]);
        for pool in &pools {
            pool.read(first, &mut found).unwrap();
            assert!(found[8..] == all[8..]);
        }
        assert!(sent(&pools[0]) - before < PAGE, "copies are read where they are");
        pools[writer].write(first, &(round + 1).to_le_bytes()).unwrap();
        for pool in &pools {
            assert_eq!(word(pool, first), round + 1);
        }
        assert_eq!(pools[2].fetch_and_add(first, 0).unwrap(), round + 1);
    }
    let counters: Vec<_> = pools.iter().map(|pool| pool.status().unwrap().counters).collect();
    assert_eq!((counters[1].pages_copied, counters[2].pages_copied), (9, 9));
    assert_eq!(counters[0].pages_recalled, 18);
    assert_eq!(pools[1].status().unwrap().used_bytes, 0, "copies are not charged");
}

#[test]
fn a_read_that_begins_after_a_write_returned_never_sees_what_was_there_before() {
    let nodes = Nodes::new("stale", 3, 16);
    let first = region(&nodes.all[0].pool(), 1);
    let stop = AtomicBool::new(false);
    // What was written for certain, of each of three words.
    let written = [const { AtomicU64::new(0) }; 3];
    let copies = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (writer, written) in written.iter().enumerate() {
            let (nodes, stop) = (&nodes, &stop);
            scope.spawn(move || {
                let pool = nodes.all[writer].pool();
                let mut number = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    pool.write(at(first, 8 * writer as u64), &number.to_le_bytes()).unwrap();
                    written.store(number, Ordering::SeqCst);
                    // A copy takes some 20 ms to come here, and is to be there for a while.
                    std::thread::sleep(Duration::from_millis(60 + 30 * writer as u64));
                }
            });
        }
        for reader in 0..3 {
            let (nodes, stop, written) = (&nodes, &stop, &written);
            scope.spawn(move || {
                let pool = nodes.all[reader].pool();
                while !stop.load(Ordering::Relaxed) {
                    for (writer, written) in written.iter().enumerate() {
                        let least = written.load(Ordering::SeqCst);
                        let found = word(&pool, at(first, 8 * writer as u64));
                        assert!(found >= least, "reader {reader} saw {found}, {least} was written before");
                    }
                }
            });
        }
        let pools = nodes.pools();
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until {
            for pool in &pools[1..] {
                copies.fetch_add(u64::from(pool.copy_page(first).is_ok()), Ordering::Relaxed);
            }
            // Pages with copies move, too.
            let _ = pools[(copies.load(Ordering::Relaxed) / 16 % 3) as usize].pull_page(first);
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} copies, {written:?} written", copies.load(Ordering::Relaxed));
    assert!(copies.load(Ordering::Relaxed) > 20);
    assert!(written.iter().all(|written| written.load(Ordering::Relaxed) > 20));
}

#[test]
fn a_page_that_is_read_from_both_racks_is_copied_by_itself() {
    let nodes = Nodes::with("hotread", 2, 16, |options| {
        options.heat = Some(hinterland_node::HeatSettings {
            threshold: 1.0,
            rest: Duration::from_millis(200),
            pause: Duration::from_millis(50),
            ..hinterland_node::HeatSettings::default()
        });
    });
    let (home, user) = (nodes.all[0].pool(), nodes.all[1].pool());
    let first = region(&home, 4);
    home.write(at(first, PAGE), &[7; 8]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while user.status().unwrap().counters.pages_copied == 0 {
        assert!(Instant::now() < deadline, "{:?}", user.status().unwrap().counters);
        // In turn: whenever the nodes count, the home has read ten times as often, also on a machine that is busy.
        for _ in 0..200 {
            (0..10).for_each(|_| assert_eq!(word(&home, at(first, PAGE)), u64::from_le_bytes([7; 8])));
            assert_eq!(word(&user, at(first, PAGE)), u64::from_le_bytes([7; 8]));
        }
    }
    assert_eq!(user.status().unwrap().counters.pages_taken, 0, "it stays where it is read most");
    user.write(at(first, PAGE), &[8; 8]).unwrap();
    assert_eq!(word(&home, at(first, PAGE)), u64::from_le_bytes([8; 8]));
    assert_eq!(word(&user, at(first, PAGE)), u64::from_le_bytes([8; 8]));
}

#[test]
fn copies_are_kept_for_longer_than_a_lease_and_a_mapping_takes_them_back() {
    let nodes = Nodes::new("keep", 2, 16);
    let (home, user) = (nodes.all[0].pool(), nodes.all[1].pool());
    let first = region(&home, 1);
    user.copy_page(first).unwrap();
    word(&user, first);
    let before = sent(&home);
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        word(&user, first);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(sent(&home) - before < 1024, "the copy did not count for so long");
    let object = home.open(&name("r"), Rights::READ | Rights::WRITE).unwrap();
    object.memory().unwrap().write_at(0, &[9; 8]).unwrap();
    assert_eq!(word(&user, first), u64::from_le_bytes([9; 8]));
    assert!(user.copy_page(first).unwrap_err().to_string().contains("mapped"));
}

#[test]
fn a_node_that_shares_nothing_says_so() {
    let nodes = Nodes::with("off", 2, 16, |options| options.share_pages = false);
    let first = region(&nodes.all[0].pool(), 1);
    let refused = nodes.all[1].pool().copy_page(first).unwrap_err().to_string();
    assert!(refused.contains("--hot-share"), "{refused}");
}
