//! KV blocks on the disk of another rack: found, brought into that rack's memory, fetched and checked; and a miss whatever goes wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_racks/home.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod home;
#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_node::KvDisk;
use hinterland_pool::{KvCache, Stored};
use hinterland_proto::control::KvDiskStatus;
use home::{Home, Lie};
use pair::{Member, Pair, Random, block, get, keys};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const BLOCK: usize = 300_000;

/// Two nodes with this much memory for blocks, and with disks.
fn with_disks(name: &str, memory_bytes: u64) -> Pair {
    Pair::with(name, memory_bytes, |options| {
        let folder = options.state.join("kv-disk");
        options.kv_disk = Some(KvDisk { folder, bytes: 96 << 20 });
    })
}

fn disk(member: &Member) -> KvDiskStatus {
    member.pool().kv_status().unwrap()[0].disk.clone().unwrap()
}

/// Puts blocks that are more than the memory holds, and waits until those that left it are on the disk.
fn fill(member: &Member, kv: &KvCache, names: &[Vec<u8>]) {
    pair::until("the disk works", || disk(member).state == "working");
    for name in names {
        assert_eq!(pair::put(kv, name, &block(name, BLOCK)), Stored::Written);
        // As fast as the disk writes, so that nothing is lost.
        pair::until("the disk keeps up", || disk(member).staged_bytes < 8 << 20);
    }
    pair::until("all is written", || disk(member).staged_bytes == 0);
    assert!(
        disk(member).blocks > names.len() as u64 / 2 && disk(member).lost_blocks == 0,
        "{:?}",
        disk(member)
    );
}

#[test]
fn blocks_on_the_disk_of_the_other_rack_are_found_fetched_and_removed() {
    let pair = with_disks("far-disk", 12 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let names = keys(0..100);
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    fill(&pair.a, &a, &names);
    let in_memory = all.iter().filter(|key| a.length(key).unwrap().is_some()).count();
    assert!(in_memory < 50, "{in_memory} of 100");
    assert_eq!(b.match_prefix_everywhere(&all).unwrap(), 100);
    assert_eq!(b.lengths_everywhere(&all).unwrap(), vec![Some(BLOCK as u32); 100]);
    assert_eq!((disk(&pair.a).read_blocks, pair.b.racks().hits), (0, 0), "to ask moves nothing");
    // Fewer at once than fit into either memory.
    for part in all.chunks(20) {
        assert_eq!(b.fetch(part).unwrap(), vec![true; 20]);
        part.iter().for_each(|name| assert_eq!(get(&b, name).unwrap(), block(name, BLOCK)));
    }
    assert!(disk(&pair.a).read_blocks >= 100 - in_memory as u64);
    assert_eq!((pair.b.racks().hits, pair.b.racks().checksum_failures), (100, 0));
    // What is removed does not come back from there.
    let gone = &all[..10];
    assert!(b.remove_everywhere(gone).unwrap() >= 10);
    assert_eq!(b.lengths_everywhere(gone).unwrap(), vec![None; 10]);
    assert_eq!(b.fetch(gone).unwrap(), vec![false; 10]);
    b.clear_everywhere().unwrap();
    let is_anywhere = |kv: &KvCache| kv.lengths_everywhere(&all).unwrap().iter().any(Option::is_some);
    assert!(!is_anywhere(&a) && !is_anywhere(&b));
    assert_eq!((pair.a.reserved(), pair.b.reserved()), (0, 0));
}

#[test]
fn equal_keys_of_engines_that_disagree_do_not_meet_on_a_disk_of_another_rack() {
    let pair = with_disks("far-disk-spaces", 12 << 20);
    let (a, b) = (pair.a.kv("model f16"), pair.b.kv("model f32"));
    let names = keys(0..80);
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    fill(&pair.a, &a, &names);
    // The home knows both.
    let _other = pair.a.kv("model f32");
    assert_eq!(b.lengths_everywhere(&all).unwrap(), vec![None; 80]);
    assert_eq!(b.fetch(&all[..20]).unwrap(), vec![false; 20]);
}

#[test]
fn a_fetched_block_that_left_for_the_disk_does_not_come_back_once_others_were_told_of_another() {
    let mut pair = with_disks("far-disk-replaced", 12 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let (old, own): (&[u8], &[u8]) = (b"old", b"own");
    pair::put(&b, old, &block(old, BLOCK));
    assert_eq!(a.fetch(&[old]).unwrap(), [true]);
    pair::put(&a, own, &block(own, BLOCK));
    fill(&pair.a, &a, &keys(0..80));
    assert_eq!(a.exists(&[old, own]).unwrap(), [false, false], "they are on the disk");
    // What the file says of it counts, too.
    drop(a);
    pair.a.stop();
    pair.a.start();
    let a = pair.a.kv("model");
    pair::until("the disk works", || disk(&pair.a).state == "working");
    pair::until("the other node is there", || pair.a.racks().nodes == 1);
    drop(b);
    let removed = a.remove_elsewhere(&[old, own]).unwrap();
    assert_eq!(a.lengths_everywhere(&[old, own]).unwrap(), [None, Some(BLOCK as u32)]);
    assert_eq!(removed, 2, "one of them was here");
    assert_eq!(a.fetch(&[old, own]).unwrap(), [false, true]);
    assert_eq!(get(&a, own).unwrap(), block(own, BLOCK));
}

#[test]
fn a_flipped_bit_on_a_disk_of_another_rack_is_a_miss() {
    let pair = with_disks("far-disk-flip", 12 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let names = keys(0..80);
    fill(&pair.a, &a, &names);
    let path = disk(&pair.a).path;
    let content = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let first = block(&names[0], BLOCK);
    let at =
        content.windows(64).position(|window| window == &first[..64]).expect("it is on the disk") + 150_000;
    file.write_all_at(&[!content[at]], at as u64).unwrap();
    file.sync_all().unwrap();
    let some: Vec<&[u8]> = names[..10].iter().map(Vec::as_slice).collect();
    let mut right = vec![true; 10];
    right[0] = false;
    assert_eq!(b.fetch(&some).unwrap(), right);
    assert_eq!(disk(&pair.a).checksum_failures, 1);
    assert_eq!(get(&b, &names[1]).unwrap(), block(&names[1], BLOCK));
    assert_eq!(b.fetch(&some[..1]).unwrap(), [false], "nor is it found again");
    assert_eq!((pair.a.reserved(), pair.b.reserved()), (0, 0));
}

#[test]
fn a_home_may_say_what_it_likes_of_its_disk() {
    for (lie, is_first, is_second) in [
        (Lie::OnDisk, true, true),
        (Lie::DamagedOnDisk, true, true),
        (Lie::GoneFromDisk, false, true),
        (Lie::SilentDisk, false, true),
        (Lie::ManyOnDisk, false, false),
    ] {
        let pair = Pair::with(&format!("far-disk-{lie:?}"), 16 << 20, |options| {
            options.kv_remote.stall_after = Duration::from_millis(500);
        });
        let kv = pair.a.kv("model");
        let home = Home::join(&pair, *blake3::hash(b"model").as_bytes(), lie);
        pair::until("the home is asked", || pair.a.racks().nodes == 2);
        assert_eq!(kv.fetch(&[b"first", b"second"]).unwrap(), [is_first, is_second], "{lie:?}");
        if is_first {
            assert_eq!(get(&kv, b"first").unwrap(), block(b"first", home::BLOCK_BYTES));
        }
        // A slow disk is no reason not to ask for what is in memory; one that makes no sense is.
        assert_eq!(pair.a.racks().resting, u32::from(lie == Lie::ManyOnDisk), "{lie:?}");
        if lie == Lie::SilentDisk {
            let before = home.staged();
            let more: Vec<Vec<u8>> = (0..200).map(|number| format!("more {number}").into_bytes()).collect();
            let more: Vec<&[u8]> = more.iter().map(Vec::as_slice).collect();
            assert!(kv.fetch(&more).unwrap().iter().all(|is_here| !is_here));
            assert!(home.staged() - before <= 6, "{} of 16 parts", home.staged() - before);
        }
        assert_eq!(pair.a.reserved(), 0, "{lie:?}");
        home.leave(&pair);
    }
}

#[test]
fn many_who_want_much_of_one_disk_do_not_wait_for_each_other_in_vain() {
    let pair = Pair::with("far-disk-many", 128 << 20, |options| {
        let folder = options.state.join("kv-disk");
        if options.name.as_str() == "a" {
            options.kv_capacity_bytes = 72 << 20;
            options.kv_disk = Some(KvDisk { folder, bytes: 256 << 20 });
        }
        options.kv_remote.find_within = Duration::from_secs(30);
    });
    let a = pair.a.kv("model");
    let names = keys(0..520);
    fill(&pair.a, &a, &names);
    // Each wants several parts, and there are fewer lanes than all of them could use.
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for part in names[..200].chunks(100) {
            let (kv, barrier) = (pair.b.kv("model"), &barrier);
            scope.spawn(move || {
                let some: Vec<&[u8]> = part.iter().map(Vec::as_slice).collect();
                barrier.wait();
                let begun = std::time::Instant::now();
                let here = kv.fetch(&some).unwrap();
                assert!(here.iter().filter(|is_here| **is_here).count() > 90, "{here:?}");
                assert!(begun.elapsed() < Duration::from_secs(25), "it waited in vain");
                for (name, _) in part.iter().zip(here).filter(|(_, is_here)| *is_here) {
                    assert!(get(&kv, name).is_none_or(|bytes| bytes == block(name, BLOCK)));
                }
            });
        }
    });
    assert_eq!((pair.a.reserved(), pair.b.reserved(), pair.b.racks().checksum_failures), (0, 0, 0));
}

#[test]
fn racks_that_read_each_others_disks_at_once_get_right_blocks_and_end() {
    let pair = with_disks("far-disk-both", 8 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let (of_a, of_b) = (keys(0..60), keys(1000..1060));
    fill(&pair.a, &a, &of_a);
    fill(&pair.b, &b, &of_b);
    let found = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4u64)
            .map(|number| {
                let (member, names) = if number % 2 == 0 { (&pair.a, &of_b) } else { (&pair.b, &of_a) };
                scope.spawn(move || {
                    let kv = member.kv("model");
                    let (mut random, mut found) = (Random(number), 0);
                    for _ in 0..60 {
                        let first = random.below(50) as usize;
                        let some: Vec<&[u8]> = names[first..first + 6].iter().map(Vec::as_slice).collect();
                        kv.fetch(&some).unwrap();
                        for name in some {
                            // It may have left again, and is never another one.
                            if let Some(bytes) = get(&kv, name) {
                                assert!(bytes == block(name, BLOCK), "wrong bytes");
                                found += 1;
                            }
                        }
                    }
                    found
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
    });
    assert!(found > 4 * 60 * 6 / 2, "{found} of {}", 4 * 60 * 6);
    for member in [&pair.a, &pair.b] {
        assert_eq!((member.reserved(), member.racks().checksum_failures), (0, 0));
        assert!(disk(member).read_blocks > 20, "{:?}", disk(member));
    }
}
