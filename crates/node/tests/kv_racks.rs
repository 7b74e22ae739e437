//! KV blocks across racks, between real nodes over TCP: found, fetched once, checked, and a miss whatever goes wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_racks/home.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod home;
#[path = "kv_racks/pair.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pair;

use hinterland_fabric::Endpoint;
use hinterland_node::KvDisk;
use hinterland_os::{Coherence, MapOptions, MemoryFile, SharedSlice};
use hinterland_pool::{Gather, KvCache, Run, Stored};
use hinterland_proto::control::{
    KvBlock, KvHeld, KvParent, KvReply, KvRequest, KvSlot, PeerReply, PeerRequest, Reply, Request, decode,
    encode,
};
use hinterland_types::ByteRange;
use home::{Home, Lie};
use pair::{Pair, block, get, key, keys, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn blocks_of_the_other_rack_are_found_fetched_once_and_then_local() {
    for coherence in [Coherence::Hardware, Coherence::Software] {
        blocks_of_the_other_rack_are_found_fetched_once_and_then_local_with(coherence);
    }
}

fn blocks_of_the_other_rack_are_found_fetched_once_and_then_local_with(coherence: Coherence) {
    let pair = Pair::with("found", 96 << 20, |options| options.coherence = coherence);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let names = keys(0..300);
    // From one byte to a few frames; the last is the largest that there is.
    let sizes = [1, 1000, 4097, 65_536, 262_144, 262_145];
    let sizes: Vec<usize> = (0..300).map(|n| if n == 299 { 4 << 20 } else { sizes[n % 6] }).collect();
    for (name, &size) in names.iter().zip(&sizes) {
        assert_eq!(pair::put(&a, name, &block(name, size)), Stored::Written);
    }
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    assert_eq!(b.match_prefix(&all).unwrap(), 0);
    let mut longer = all.clone();
    longer.insert(200, b"nowhere");
    assert_eq!(b.match_prefix_everywhere(&longer).unwrap(), 200);
    let mut lengths: Vec<_> = sizes.iter().map(|&size| Some(size as u32)).collect();
    lengths.insert(200, None);
    assert_eq!(b.lengths_everywhere(&longer).unwrap(), lengths);
    assert_eq!(pair.b.racks().hits, 0, "to ask moves nothing");
    assert_eq!(b.fetch(&all).unwrap(), vec![true; 300]);
    for (name, &size) in names.iter().zip(&sizes) {
        assert_eq!(get(&b, name).unwrap(), block(name, size));
    }
    let (here, there) = (pair.b.racks(), pair.a.racks());
    let total: usize = sizes.iter().sum();
    assert_eq!((here.nodes, here.hits, here.bytes), (1, 300, total as u64));
    assert_eq!((there.sent_blocks, there.sent_bytes), (300, total as u64));
    // From here on nothing moves, and nobody is asked.
    assert_eq!(b.fetch(&all).unwrap(), vec![true; 300]);
    assert_eq!(b.match_prefix_everywhere(&all).unwrap(), 300);
    assert_eq!(b.prefetch(&all).unwrap(), 0);
    assert_eq!(pair.a.racks(), there);
    assert_eq!(pair.b.reserved(), 0);
    assert_eq!(b.fetch(&[&b"nowhere"[..], all[7]]).unwrap(), [false, true]);
    assert_eq!(pair.b.racks().misses, 1);
    assert!(b.fetch(&[]).unwrap().is_empty());
}

#[test]
fn equal_keys_of_engines_that_disagree_never_meet_across_racks() {
    let pair = Pair::new("spaces", 16 << 20);
    let (half, full) = (pair.a.kv("model f16"), pair.b.kv("model f32"));
    pair::put(&half, b"same", b"half");
    assert_eq!(full.fetch(&[b"same"]).unwrap(), [false]);
    assert_eq!(full.match_prefix_everywhere(&[b"same"]).unwrap(), 0);
    pair::put(&full, b"same", b"full!");
    let other = pair.b.kv("model f16");
    assert_eq!(other.fetch(&[b"same"]).unwrap(), [true]);
    assert_eq!(
        (get(&other, b"same").unwrap(), get(&full, b"same").unwrap()),
        (b"half".to_vec(), b"full!".to_vec())
    );
}

/// Opens a namespace by a fingerprint, puts or fetches its block of key `k`.
fn raw(node: &pair::Member, fingerprint: [u8; 32], writes: bool) -> bool {
    let pool = node.pool();
    let ask = |request| match pool.session().call(&Request::Kv(request)).unwrap() {
        Reply::Kv(reply) => reply,
        other => panic!("{other:?}"),
    };
    let open = KvRequest::Open { fingerprint, label: String::new() };
    let KvReply::Opened { handle, .. } = ask(open) else { panic!("it was not opened") };
    if !writes {
        let KvReply::Fetched(here) = ask(KvRequest::Fetch { handle, keys: vec![b"k".to_vec()] }) else {
            panic!("it was not fetched")
        };
        return here[0];
    }
    let blocks = vec![KvBlock { key: b"k".to_vec(), bytes: 100, parent: KvParent::None }];
    let KvReply::Slots(slots) = ask(KvRequest::Reserve { handle, blocks }) else { panic!("no slots") };
    let KvSlot::Reserved { slot, .. } = slots[0] else { panic!("{slots:?}") };
    ask(KvRequest::Publish { handle, slots: vec![slot], sums: Vec::new() });
    true
}

#[test]
fn a_namespace_is_known_by_all_of_its_fingerprint_across_racks() {
    let pair = Pair::new("fingerprint", 16 << 20);
    let (mut one, mut other) = ([7; 32], [7; 32]);
    (one[31], other[31]) = (1, 2);
    assert!(raw(&pair.a, one, true));
    assert!(!raw(&pair.b, other, false), "the first eight bytes are equal, and that is not enough");
    let pair = Pair::new("fingerprint-equal", 16 << 20);
    assert!(raw(&pair.a, one, true));
    assert!(raw(&pair.b, one, false));
}

#[test]
fn other_nodes_are_shown_the_store_of_the_user_that_they_name_and_no_other() {
    let pair = Pair::new("user", 16 << 20);
    let kv = pair.a.kv("model");
    pair::put(&kv, b"k", b"bytes");
    let node = home::directory(&pair);
    let fingerprint = *blake3::hash(b"model").as_bytes();
    let user = pair.a.pool().kv_status().unwrap()[0].user;
    let ask = |request: &PeerRequest| -> PeerReply {
        decode(&node.call(&encode(request).unwrap()).unwrap()).unwrap()
    };
    let find =
        |user| ask(&PeerRequest::KvFind { user, fingerprint, keys: vec![b"k".to_vec(), b"l".to_vec()] });
    assert_eq!(find(user + 1), PeerReply::KvFound { handle: None, places: Vec::new(), on_disk: Vec::new() });
    let PeerReply::KvFound { handle: Some(handle), places, .. } = find(user) else {
        panic!("it has a store")
    };
    let (place, nothing) = (places[0].clone().unwrap(), places[1].clone());
    assert_eq!((place.bytes, nothing), (5, None));
    // What was granted is read-only, and ends with the blocks.
    let run = ByteRange::new(place.offset, 5).unwrap();
    let mut bytes = [0; 5];
    node.read(handle, &[run], &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    assert!(node.write(handle, &[run], b"wrong").is_err());
    assert!(node.read(handle, &[ByteRange::new((16 << 20) - 2, 5).unwrap()], &mut bytes).is_err());
    // A generation that has passed, a slot of another block, a key of another: none has a checksum.
    let held = |key: &[u8], slot, generation| KvHeld { key: key.to_vec(), slot, generation };
    let blocks = vec![
        held(b"k", place.slot, place.generation),
        held(b"k", place.slot, place.generation + 2),
        held(b"k", place.slot + 1, place.generation),
        held(b"l", place.slot, place.generation),
    ];
    let PeerReply::KvChecked { sums } = ask(&PeerRequest::KvCheck { user, fingerprint, blocks }) else {
        panic!("it was not checked")
    };
    assert_eq!(sums.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, false]);
    let keys = vec![vec![1]; 8193];
    assert!(matches!(
        ask(&PeerRequest::KvFind { user, fingerprint, keys }),
        PeerReply::Error { code: 22, .. }
    ));
    let keys = vec![vec![1; 65]];
    assert!(matches!(
        ask(&PeerRequest::KvFind { user, fingerprint, keys }),
        PeerReply::Error { code: 22, .. }
    ));
    assert_eq!(get(&kv, b"k").unwrap(), b"bytes");
}

#[test]
fn what_follows_on_what_is_known_in_the_other_rack_too() {
    let pair = Pair::new("parents", 16 << 20);
    let fingerprint = [3; 32];
    let opened = |member: &pair::Member| {
        let pool = member.pool();
        let open = KvRequest::Open { fingerprint, label: String::new() };
        let reply = pool.session().call(&Request::Kv(open)).unwrap();
        let Reply::Kv(KvReply::Opened { handle, .. }) = reply else { panic!("{reply:?}") };
        (pool, handle)
    };
    let ((home, theirs), (near, ours)) = (opened(&pair.b), opened(&pair.a));
    let block = |name: &[u8], parent| KvBlock { key: name.to_vec(), bytes: 5000, parent };
    let blocks = vec![block(b"first", KvParent::None), block(b"second", KvParent::Previous)];
    let slots = home.session().call(&Request::Kv(KvRequest::Reserve { handle: theirs, blocks })).unwrap();
    let Reply::Kv(KvReply::Slots(slots)) = slots else { panic!("{slots:?}") };
    let slot = |slot: &KvSlot| if let KvSlot::Reserved { slot, .. } = *slot { slot } else { u32::MAX };
    let slots = slots.iter().map(slot).collect();
    home.session()
        .call(&Request::Kv(KvRequest::Publish { handle: theirs, slots, sums: Vec::new() }))
        .unwrap();
    let keys = vec![b"first".to_vec(), b"second".to_vec()];
    let fetch = Request::Kv(KvRequest::Fetch { handle: ours, keys: keys.clone() });
    assert_eq!(near.session().call(&fetch).unwrap(), Reply::Kv(KvReply::Fetched(vec![true; 2])));
    let user = near.kv_status().unwrap()[0].user;
    let find = encode(&PeerRequest::KvFind { user, fingerprint, keys }).unwrap();
    let answer: PeerReply = decode(&home::directory(&pair).call(&find).unwrap()).unwrap();
    let PeerReply::KvFound { places, .. } = answer else { panic!("{answer:?}") };
    let parents: Vec<_> = places.into_iter().map(|place| place.unwrap().parent).collect();
    assert_eq!(parents, [None, Some(b"first".to_vec())]);
}

#[test]
fn many_who_want_the_same_blocks_move_them_once() {
    let pair = Pair::new("once", 64 << 20);
    let a = pair.a.kv("model");
    let names = keys(0..40);
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for name in &names {
        pair::put(&a, name, &block(name, 300_000));
    }
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let kv = pair.b.kv("model");
                barrier.wait();
                assert_eq!(kv.fetch(&all).unwrap(), vec![true; 40]);
                names.iter().for_each(|name| assert_eq!(get(&kv, name).unwrap(), block(name, 300_000)));
            });
        }
    });
    assert_eq!((pair.a.racks().sent_blocks, pair.b.racks().hits), (40, 40));
}

#[test]
fn a_prefetch_brings_blocks_while_nobody_waits() {
    let pair = Pair::new("prefetch", 16 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    pair::put(&a, b"there", &block(b"there", 1 << 20));
    assert_eq!(b.prefetch(&[b"there", b"nowhere"]).unwrap(), 2);
    pair::until("the block is here", || b.length(b"there").unwrap().is_some());
    assert_eq!(get(&b, b"there").unwrap(), block(b"there", 1 << 20));
}

#[test]
fn a_node_that_is_off_neither_asks_nor_answers() {
    let pair = Pair::with("off", 16 << 20, |options| {
        options.kv_remote.is_on = options.name.as_str() == "a";
    });
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    pair::put(&a, b"of-a", b"bytes");
    pair::put(&b, b"of-b", b"bytes");
    assert_eq!(b.fetch(&[b"of-a"]).unwrap(), [false]);
    assert_eq!(b.match_prefix_everywhere(&[b"of-b", b"of-a"]).unwrap(), 1);
    assert_eq!(a.fetch(&[b"of-b"]).unwrap(), [false]);
    assert_eq!((pair.a.racks().resting, pair.a.racks().sent_blocks), (0, 0), "to be off is no failure");
}

#[test]
fn a_node_that_stops_is_a_miss_and_one_that_comes_back_is_found_again() {
    let mut pair = Pair::new("stops", 16 << 20);
    let b = pair.b.kv("model");
    pair::put(&b, b"k", &block(b"k", 100_000));
    let a = pair.a.kv("model");
    assert_eq!(a.fetch(&[b"k"]).unwrap(), [true]);
    assert_eq!(a.remove(&[b"k"]).unwrap(), 1);
    drop(b);
    pair.b.stop();
    assert_eq!(a.fetch(&[b"k"]).unwrap(), [false]);
    pair.b.start();
    let b = pair.b.kv("model");
    pair::put(&b, b"k", &block(b"k", 50_000));
    pair::until("the node is asked again", || a.fetch(&[b"k"]).unwrap()[0]);
    assert_eq!(get(&a, b"k").unwrap(), block(b"k", 50_000));
    assert_eq!(pair.a.reserved(), 0);
}

#[test]
fn blocks_that_leave_their_home_while_they_are_fetched_are_right_or_missing() {
    for coherence in [Coherence::Hardware, Coherence::Software] {
        blocks_that_leave_their_home_while_they_are_fetched_are_right_or_missing_with(coherence);
    }
}

fn blocks_that_leave_their_home_while_they_are_fetched_are_right_or_missing_with(coherence: Coherence) {
    let pair = Pair::with("leave", 64 << 20, |options| {
        options.coherence = coherence;
        if options.name.as_str() == "a" {
            options.kv_capacity_bytes = 8 << 20;
        }
    });
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let stop = AtomicBool::new(false);
    let names = keys(0..64);
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut version = 0;
            while !stop.load(Ordering::Acquire) {
                for name in &names {
                    version += 1;
                    // The store holds 28 of the 64, so each comes and goes; the key says what its bytes must be.
                    a.remove(&[name]).unwrap();
                    pair::put(&a, name, &block(name, 250_000 + version % 7));
                }
            }
        });
        let (mut right, end) = (0, Instant::now() + Duration::from_secs(60));
        for round in 0.. {
            b.clear().unwrap();
            b.fetch(&all[round % 60..]).unwrap();
            for name in &names {
                if let Some(bytes) = get(&b, name) {
                    assert!(bytes == block(name, bytes.len()), "a wrong byte in round {round}");
                    right += 1;
                }
            }
            if round >= 40 && right > 100 || Instant::now() > end {
                assert!(right > 0);
                break;
            }
        }
        stop.store(true, Ordering::Release);
    });
    assert_eq!((pair.b.reserved(), pair.b.racks().checksum_failures), (0, 0));
}

#[test]
fn whatever_a_home_says_that_is_not_true_is_a_miss() {
    let pair =
        Pair::with("lies", 32 << 20, |options| options.kv_remote.stall_after = Duration::from_millis(300));
    let kv = pair.a.kv("model");
    let fingerprint = *blake3::hash(b"model").as_bytes();
    for (lie, is_wrong, rests) in [
        (Lie::None, false, false),
        (Lie::FlippedBit, true, false),
        (Lie::OtherBlock, true, false),
        (Lie::OtherKey, true, false),
        (Lie::OtherNamespace, true, false),
        (Lie::Gone, false, false),
        (Lie::TooLong, false, false),
        (Lie::Empty, false, false),
        (Lie::FewSums, false, true),
        (Lie::ManyPlaces, false, true),
        (Lie::WrongHandle, false, true),
        (Lie::OutsideOfTheFile, false, true),
        (Lie::SilentRead, false, true),
        (Lie::SilentCheck, false, true),
        (Lie::Nonsense, false, true),
    ] {
        let home = Home::join(&pair, fingerprint, lie);
        let before = pair.a.racks();
        pair::until("the home is asked", || pair.a.racks().nodes == 2);
        let found = kv.fetch(&[b"first", b"second"]).unwrap();
        let racks = pair.a.racks();
        if lie == Lie::None {
            assert_eq!(found, [true, true]);
            assert_eq!(get(&kv, b"first").unwrap(), block(b"first", home::BLOCK_BYTES));
            assert_eq!(get(&kv, b"second").unwrap(), block(b"second", home::BLOCK_BYTES));
            kv.clear().unwrap();
        } else {
            assert!(!found[0], "{lie:?}");
            assert_eq!(get(&kv, b"first"), None, "{lie:?}");
            assert_eq!(racks.checksum_failures > before.checksum_failures, is_wrong, "{lie:?}: {racks:?}");
            assert_eq!(racks.resting > 0, rests, "{lie:?}: {racks:?}");
            kv.clear().unwrap();
        }
        assert_eq!(pair.a.reserved(), 0, "{lie:?}");
        home.leave(&pair);
        pair::until("the home is gone", || pair.a.racks().nodes == 1 && pair.a.racks().resting == 0);
    }
}

#[test]
fn blocks_that_are_cleared_everywhere_are_in_no_rack() {
    let pair = Pair::new("everywhere", 16 << 20);
    let (a, b, other) = (pair.a.kv("model"), pair.b.kv("model"), pair.a.kv("other"));
    for name in keys(0..20) {
        pair::put(&a, &name, b"old");
        pair::put(&other, &name, b"other");
    }
    assert_eq!(b.fetch(&[&key(1)]).unwrap(), [true]);
    assert_eq!(b.clear().unwrap(), 1);
    assert_eq!(b.fetch(&[&key(1)]).unwrap(), [true], "the other rack keeps its blocks");
    assert_eq!(b.clear_everywhere().unwrap(), 21);
    assert_eq!((a.length(&key(1)).unwrap(), b.length(&key(1)).unwrap()), (None, None));
    assert_eq!(b.match_prefix_everywhere(&[&key(1)]).unwrap(), 0);
    assert_eq!(get(&other, &key(1)).unwrap(), b"other");
    // Others may be cleared later than this one: it takes nothing from them for a while.
    pair::put(&a, &key(1), b"new");
    assert_eq!(b.fetch(&[&key(1)]).unwrap(), [false]);
    assert_eq!(b.match_prefix_everywhere(&[&key(1)]).unwrap(), 0);
    let b_other = pair.b.kv("other");
    assert_eq!(b_other.fetch(&[&key(1)]).unwrap(), [true], "another namespace is not closed");
}

#[test]
fn a_clear_everywhere_names_the_nodes_at_which_blocks_may_be_left() {
    let mut pair = Pair::new("everywhere-but", 16 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    for kv in [&a, &b] {
        pair::put(kv, b"pinned", b"old");
        pair::put(kv, b"free", b"old");
    }
    assert_eq!(b.pin(&[b"pinned"]).unwrap(), [true]);
    let refused = a.clear_everywhere().unwrap_err().to_string();
    assert!(refused.contains("1 are pinned"), "{refused}");
    assert_eq!((a.length(b"pinned").unwrap(), b.length(b"free").unwrap()), (None, None));
    drop(b);
    pair.b.stop();
    pair::put(&a, b"free", b"old");
    let refused = a.clear_everywhere().unwrap_err().to_string();
    assert!(refused.contains("node-") && refused.contains("hint"), "{refused}");
    assert_eq!(a.length(b"free").unwrap(), None, "here they are removed all the same");
}

#[test]
fn what_a_node_has_on_its_disk_is_cleared_before_anybody_has_opened_it_there() {
    let mut pair = Pair::with("everywhere-disk", 16 << 20, |options| {
        let folder = options.state.join("kv-disk");
        options.kv_disk = (options.name.as_str() == "b").then_some(KvDisk { folder, bytes: 64 << 20 });
        options.kv_keep = false;
    });
    for (is_cleared, is_there) in [(false, true), (true, false)] {
        let b = pair.b.kv("model");
        pair::put(&b, b"k", b"old");
        drop(b);
        pair.b.stop();
        pair.b.start();
        let a = pair.a.kv("model");
        if is_cleared {
            pair::until("the node is reached", || a.clear_everywhere().is_ok());
        }
        let b = pair.b.kv("model");
        let is_known = || pair.b.pool().kv_status().unwrap()[0].disk.as_ref().unwrap().state == "working";
        pair::until("the disk is known", is_known);
        assert_eq!(b.fetch(&[b"k"]).unwrap(), [is_there]);
    }
}

#[test]
fn what_was_on_its_way_when_a_namespace_was_cleared_does_not_count() {
    let pair = Pair::with("on-its-way", 32 << 20, |options| {
        options.kv_remote.stall_after = Duration::from_secs(60);
    });
    let kv = pair.a.kv("model");
    let home = Home::join(&pair, *blake3::hash(b"model").as_bytes(), Lie::LateCheck);
    pair::until("the home is asked", || pair.a.racks().nodes == 2);
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| pair.a.kv("model").fetch(&[b"first"]).unwrap());
        pair::until("the block is read", || home.checks() == 1);
        kv.clear().unwrap();
        home.let_check();
        assert_eq!(fetched.join().unwrap(), [false]);
    });
    assert_eq!((pair.a.racks().hits, pair.a.reserved()), (0, 0));
    home.leave(&pair);
}

#[test]
fn blocks_that_are_removed_everywhere_are_in_no_rack_and_may_be_put_anew_at_once() {
    let mut pair = Pair::with("removed", 16 << 20, |options| {
        let folder = options.state.join("kv-disk");
        options.kv_disk = Some(KvDisk { folder, bytes: 64 << 20 });
    });
    let (a, b, other) = (pair.a.kv("model"), pair.b.kv("model"), pair.a.kv("other"));
    let names = keys(0..20);
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for name in &names {
        pair::put(&a, name, b"old");
        pair::put(&other, name, b"other");
    }
    assert_eq!(b.fetch(&all).unwrap(), [true; 20]);
    assert_eq!(b.remove_everywhere(&[&all[..4], &[b"never"]].concat()).unwrap(), 8);
    assert_eq!(a.lengths_everywhere(&all[..5]).unwrap(), [None, None, None, None, Some(3)]);
    assert_eq!(b.fetch(&all[..5]).unwrap(), [false, false, false, false, true]);
    assert_eq!(get(&other, all[0]).unwrap(), b"other");
    // As after a block that was replaced.
    assert_eq!(a.remove_elsewhere(&all[4..6]).unwrap(), 2);
    assert_eq!((a.length(all[4]).unwrap(), b.length(all[4]).unwrap()), (Some(3), None));
    for name in &all[..6] {
        a.remove(&[*name]).unwrap();
        pair::put(&a, name, b"anew");
        assert_eq!((b.fetch(&[*name]).unwrap(), get(&b, name).unwrap()), (vec![true], b"anew".to_vec()));
    }
    assert!(a.remove_everywhere(&[b""]).is_err() && a.remove_everywhere(&[]).unwrap() == 0);
    drop(b);
    pair.b.stop();
    let refused = a.remove_everywhere(&all[..2]).unwrap_err().to_string();
    assert!(refused.contains("node-") && refused.contains("hint"), "{refused}");
    assert_eq!(a.exists(&all[..3]).unwrap(), [false, false, true], "here they are removed all the same");
    pair.b.start();
    // Nobody has opened the namespace there.
    pair::until("the node is reached", || a.remove_everywhere(&all[6..]).is_ok());
    let b = pair.b.kv("model");
    let is_known = || pair.b.pool().kv_status().unwrap()[0].disk.as_ref().unwrap().state == "working";
    pair::until("the disk is known", is_known);
    assert_eq!(b.fetch(&all[6..]).unwrap(), [false; 14]);
}

fn replace(kv: &KvCache, key: &[u8], bytes: &[u8]) -> Stored {
    let runs = [Run { start: 0, bytes: bytes.len(), stride: bytes.len() as isize, count: 1 }];
    kv.replace_runs(&[(key, Gather::within(bytes, &runs).unwrap())]).unwrap()[0]
}

#[test]
fn a_block_that_was_replaced_is_not_had_from_others_once_they_were_told_however_early_it_left() {
    let pair = Pair::new("replaced", 16 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let (left, stayed): (&[u8], &[u8]) = (b"left", b"stayed");
    for name in [left, stayed] {
        pair::put(&b, name, b"old");
        assert_eq!(replace(&a, name, b"new"), Stored::Written);
    }
    // As if it were evicted; and somebody wants it before others are told.
    a.remove(&[left]).unwrap();
    assert_eq!(a.fetch(&[left]).unwrap(), [true]);
    assert_eq!(get(&a, left).unwrap(), b"old", "until then this is what the pool has");
    let removed = a.remove_elsewhere(&[left, stayed]).unwrap();
    assert_eq!(a.fetch(&[left, stayed]).unwrap(), [false, true], "the old one is nowhere");
    assert_eq!(removed, 3, "one of them was here");
    assert_eq!(b.fetch(&[left, stayed]).unwrap(), [false, true]);
    assert_eq!((get(&a, stayed).unwrap(), get(&b, stayed).unwrap()), (b"new".to_vec(), b"new".to_vec()));
    // What is put where a fetched one was is of this host again.
    assert_eq!(replace(&b, stayed, b"newer"), Stored::Written);
    assert_eq!(b.remove_elsewhere(&[stayed]).unwrap(), 1);
    assert_eq!((get(&a, stayed), get(&b, stayed).unwrap()), (None, b"newer".to_vec()));
}

#[test]
fn a_fetched_block_that_is_pinned_is_named_where_only_others_were_to_have_none() {
    let pair = Pair::new("replaced-pinned", 16 << 20);
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    pair::put(&b, b"k", b"old");
    assert_eq!(a.fetch(&[b"k"]).unwrap(), [true]);
    assert_eq!(a.pin(&[b"k"]).unwrap(), [true]);
    let refused = a.remove_elsewhere(&[b"k"]).unwrap_err().to_string();
    assert!(refused.contains("1 are pinned"), "{refused}");
    assert_eq!(a.unpin(&[b"k"]).unwrap(), [true]);
    assert_eq!(a.remove_elsewhere(&[b"k"]).unwrap(), 1);
    assert_eq!(a.fetch(&[b"k"]).unwrap(), [false]);
}

#[test]
fn what_was_on_its_way_when_it_was_removed_everywhere_does_not_count() {
    let pair = Pair::with("removed-on-its-way", 32 << 20, |options| {
        options.kv_remote.stall_after = Duration::from_secs(60);
    });
    let kv = pair.a.kv("model");
    let fingerprint = *blake3::hash(b"model").as_bytes();
    let node = home::directory(&pair);
    let user = pair.a.pool().kv_status().unwrap()[0].user;
    let remove = |key: &[u8], is_end| {
        let request = PeerRequest::KvRemove { user, fingerprint, keys: vec![key.to_vec()], is_end };
        let reply: PeerReply = decode(&node.call(&encode(&request).unwrap()).unwrap()).unwrap();
        assert_eq!(reply, PeerReply::KvCleared { removed: 0, pinned: 0 });
    };
    let home = Home::join(&pair, fingerprint, Lie::LateCheck);
    pair::until("the home is asked", || pair.a.racks().nodes == 2);
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| pair.a.kv("model").fetch(&[b"first"]).unwrap());
        pair::until("the block is read", || home.checks() == 1);
        // Also if all nodes have removed it by then.
        remove(b"first", false);
        remove(b"first", true);
        remove(b"second", false);
        home.let_check();
        assert_eq!(fetched.join().unwrap(), [false]);
    });
    assert_eq!((pair.a.racks().hits, pair.a.reserved()), (0, 0));
    assert_eq!(kv.fetch(&[b"second"]).unwrap(), [false], "others may have it still");
    remove(b"second", true);
    assert_eq!(kv.fetch(&[b"first", b"second"]).unwrap(), [true, true]);
    home.leave(&pair);
}

/// The file of blocks of a node.
fn blocks_of(member: &pair::Member) -> SharedSlice {
    let open = Request::Kv(KvRequest::Open { fingerprint: [0; 32], label: String::new() });
    let session = member.pool();
    let (_, mut files) = session.session().call_with(&open, &[]).unwrap();
    let blocks = MemoryFile::from_descriptor(files.remove(1)).unwrap();
    let options = MapOptions { write: true, ..MapOptions::default() };
    Arc::new(blocks.map(0, blocks.len() as usize, options).unwrap()).slice()
}

/// Where a block begins in it.
fn place_of(memory: &SharedSlice, bytes: &[u8]) -> Option<usize> {
    (0..memory.len()).step_by(128).find(|at| {
        let mut start = [0; 64];
        memory.read_at(*at, &mut start).unwrap();
        start == bytes[..64]
    })
}

#[test]
fn where_caches_do_not_see_each_other_what_is_not_the_block_reaches_no_slot() {
    for coherence in [Coherence::Hardware, Coherence::Software] {
        let pair = Pair::with("aside", 16 << 20, |options| options.coherence = coherence);
        let kv = pair.a.kv("model");
        let home = Home::join(&pair, *blake3::hash(b"model").as_bytes(), Lie::FlippedBit);
        until("the home is asked", || pair.a.racks().nodes == 2);
        assert_eq!(kv.fetch(&[b"first"]).unwrap(), [false]);
        assert_eq!(pair.a.racks().checksum_failures, 1);
        // Elsewhere it moves into its slot, which is given back.
        let place = place_of(&blocks_of(&pair.a), &block(b"first", home::BLOCK_BYTES));
        assert_eq!(place.is_some(), coherence == Coherence::Hardware, "{coherence:?}");
        assert_eq!(pair.a.reserved(), 0);
        home.leave(&pair);
    }
}

#[test]
fn bytes_that_changed_in_the_memory_of_their_home_are_a_miss() {
    let pair = Pair::with("flipped", 16 << 20, |options| options.kv_keep = true);
    let (home, near) = (pair.b.kv("model"), pair.a.kv("model"));
    until("they see each other", || pair.a.racks().nodes == 1);
    let bytes = block(b"flipped", 100_000);
    assert_eq!(home.put(&[(b"flipped", &[&bytes]), (b"sound", &[&bytes])]).unwrap(), [Stored::Written; 2]);
    until("the node has taken checksums", || pair.b.pool().kv_status().unwrap()[0].kept.unsummed_blocks == 0);
    let memory = blocks_of(&pair.b);
    let found = place_of(&memory, &bytes).unwrap();
    memory.write_at(found + 77_777, &[bytes[77_777] ^ 4]).unwrap();
    let mut here = near.fetch(&[b"flipped", b"sound"]).unwrap();
    here.sort_unstable();
    assert_eq!((here, pair.a.racks().checksum_failures), (vec![false, true], 1));
}

#[test]
fn a_node_that_is_silent_is_waited_for_once_and_others_are_asked_meanwhile() {
    let pair = Pair::with("silent", 32 << 20, |options| {
        options.kv_remote.find_within = Duration::from_millis(500);
        options.kv_remote.rest = Duration::from_secs(600);
    });
    let (a, b) = (pair.a.kv("model"), pair.b.kv("model"));
    let home = Home::join(&pair, *blake3::hash(b"model").as_bytes(), Lie::SilentFind);
    pair::until("the home is asked", || pair.a.racks().nodes == 2);
    pair::put(&b, b"k", b"bytes");
    assert_eq!(a.fetch(&[b"k", b"first"]).unwrap(), [true, false]);
    assert_eq!((pair.a.racks().nodes, pair.a.racks().resting), (1, 1));
    let asked = home.asked();
    for _ in 0..50 {
        assert_eq!(a.fetch(&[b"first"]).unwrap(), [false]);
    }
    assert_eq!(home.asked(), asked, "it rests");
    home.leave(&pair);
}

#[test]
fn readers_in_both_racks_agree_with_a_plain_map() {
    for coherence in [Coherence::Hardware, Coherence::Software] {
        readers_in_both_racks_agree_with_a_plain_map_with(coherence);
    }
}

fn readers_in_both_racks_agree_with_a_plain_map_with(coherence: Coherence) {
    let pair = Pair::with("model", 16 << 20, |options| options.coherence = coherence);
    let nodes = [pair.a.kv("model"), pair.b.kv("model")];
    let mut random = pair::Random(11);
    let mut model = std::collections::HashMap::new();
    let mut hits = 0;
    for round in 0..1000_u64 {
        let number = random.below(160);
        let name = key(number);
        let kv = &nodes[random.below(2) as usize];
        match random.below(16) {
            0..=3 => {
                // What a key means never changes, as in an engine; how often it is put does.
                let size = [1000, 30_000, 100_000, 200_000][number as usize % 4];
                if pair::put(kv, &name, &block(&name, size)) == Stored::Written {
                    model.insert(name, size);
                }
            }
            4 => drop(kv.remove(&[&name]).unwrap()),
            5 if round % 10 == 0 => drop(kv.clear().unwrap()),
            _ => {
                let wanted: Vec<Vec<u8>> =
                    (0..1 + random.below(20)).map(|_| key(random.below(160))).collect();
                let wanted: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
                kv.match_prefix_everywhere(&wanted[..wanted.len() / 2]).unwrap();
                let here = kv.fetch(&wanted).unwrap();
                for (name, here) in wanted.iter().zip(here) {
                    assert!(!here || model.contains_key(*name), "round {round}: what nobody has put is here");
                    if let Some(bytes) = get(kv, name) {
                        assert!(bytes == block(name, model[*name]), "round {round}: a wrong byte");
                        hits += 1;
                    }
                }
            }
        }
    }
    assert!(hits > 1000 && pair.a.racks().hits + pair.b.racks().hits > 100, "{hits} {:?}", pair.a.racks());
    for member in [&pair.a, &pair.b] {
        assert_eq!((member.reserved(), member.racks().checksum_failures), (0, 0));
    }
}
