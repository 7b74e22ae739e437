//! KV blocks of sessions against a real node: shared at once, gone with their writer, never wrong while they are evicted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_pool::{Expects, Gather, KvCache, Pool, PoolError, Replaced, Replacement, Run, Stored};
use hinterland_proto::control::{
    KvBlock, KvExpects, KvParent, KvReply, KvRequest, KvSeen, KvSlot, KvStatus, KvSwap, KvSwapped, Reply,
    Request,
};
use hinterland_types::{Handle, RackName};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Ground {
    root: PathBuf,
    node: Option<Node>,
}

impl Ground {
    fn new(name: &str, kv_capacity_bytes: u64) -> Self {
        let root = std::env::temp_dir().join(format!("hl-kv-{name}-{}", std::process::id()));
        let rack = RackName::parse("one").unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut options =
            NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
        options.capacity_bytes = 16 << 20;
        options.kv_capacity_bytes = kv_capacity_bytes;
        options.backing = BackingChoice::Pages(PageKind::Base4K);
        Self { node: Some(Node::start(options).unwrap()), root }
    }

    fn pool(&self) -> Pool {
        Pool::connect(Some(&self.root.join("socket"))).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

fn kv_status(ground: &Ground) -> KvStatus {
    ground.pool().kv_status().unwrap().remove(0)
}

fn put(kv: &KvCache, key: &[u8], bytes: &[u8]) -> Stored {
    kv.put(&[(key, &[bytes])]).unwrap()[0]
}

fn get(kv: &KvCache, key: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut into = vec![0; most];
    let bytes = kv.get(key, &mut [&mut into]).unwrap()?;
    into.truncate(bytes as usize);
    Some(into)
}

fn code(error: &PoolError) -> i32 {
    error.code()
}

#[test]
fn namespaces_that_hold_nothing_are_forgotten_before_they_are_more_than_can_be_told() {
    let ground = Ground::new("namespaces", 16 << 20);
    let pool = ground.pool();
    // The first ones are counted apart, and stay known.
    let open = |number: u32| pool.kv(&format!("{number} {}", "\u{fc}".repeat(200))).unwrap();
    (0..100).for_each(|number| drop(open(number)));
    let (held, unused, limited) = (open(1000), open(1001), open(1002));
    assert_eq!(put(&held, b"k", b"v"), Stored::Written);
    limited.limit(Some(1 << 20), 7).unwrap();
    let (number_of_held, number_of_limited) = (held.namespace(), limited.namespace());
    drop((held, limited));
    (2000..5000).for_each(|number| drop(open(number)));
    let stores = pool.kv_status().unwrap();
    let told: Vec<u64> = stores[0].namespaces.iter().map(|space| space.namespace).collect();
    assert!(told.len() <= 1024, "{}", told.len());
    for number in [number_of_held, number_of_limited, unused.namespace(), open(0).namespace()] {
        assert!(told.contains(&number));
    }
    assert_eq!((put(&unused, b"k", b"w"), get(&open(1001), b"k", 9)), (Stored::Written, Some(b"w".to_vec())));
    assert_eq!(get(&open(1000), b"k", 9), Some(b"v".to_vec()));
}

#[test]
fn asking_for_a_namespace_that_nobody_opened_takes_no_memory_for_blocks() {
    let ground = Ground::new("unopened", 16 << 20);
    let pool = ground.pool();
    let refused = pool.kv_known(7).err().unwrap();
    assert!(refused.to_string().contains("has no namespace 0000000000000007"), "{refused}");
    assert!(pool.kv_status().unwrap().is_empty(), "a store was made only to be asked");
}

#[test]
fn what_one_session_puts_another_finds_in_pieces_of_any_length() {
    let ground = Ground::new("share", 16 << 20);
    let (one, other) = (ground.pool().kv("model").unwrap(), ground.pool().kv("model").unwrap());
    let block: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
    let (head, tail) = block.split_at(33_333);
    assert_eq!(one.put(&[(b"k", &[head, tail])]).unwrap(), [Stored::Written]);
    assert_eq!(get(&other, b"k", 200_000).unwrap(), block);
    let (mut first, mut gap, mut rest) = (vec![0; 1], vec![0; 4095], vec![0; 200_000]);
    assert_eq!(other.get(b"k", &mut [&mut first, &mut gap, &mut rest]).unwrap(), Some(100_000));
    assert_eq!([&first[..], &gap, &rest[..95_904]].concat(), block);
    assert_eq!(put(&other, b"k", b"another"), Stored::Known);
    assert_eq!(get(&one, b"k", 200_000).unwrap(), block);
    assert_eq!(one.match_prefix(&[b"k", b"l", b"k"]).unwrap(), 1);
    assert_eq!(other.remove(&[b"k", b"l"]).unwrap(), 1);
    assert_eq!(get(&one, b"k", 10), None);
}

#[test]
fn engines_that_disagree_never_meet() {
    let ground = Ground::new("spaces", 16 << 20);
    let pool = ground.pool();
    let (half, full) = (pool.kv("model f16").unwrap(), pool.kv("model f32").unwrap());
    put(&half, b"same", b"half");
    assert_eq!(get(&full, b"same", 10), None);
    put(&full, b"same", b"full!");
    assert_eq!(get(&half, b"same", 10).unwrap(), b"half");
    assert_eq!(full.clear().unwrap(), 1);
    assert_eq!(get(&half, b"same", 10).unwrap(), b"half");
    let status = &pool.kv_status().unwrap()[0];
    assert_eq!((status.blocks, status.bytes, status.namespaces.len()), (1, 4, 2));
    let labels: Vec<_> = status.namespaces.iter().map(|space| (space.label.as_str(), space.blocks)).collect();
    assert!(labels.contains(&("model f16", 1)) && labels.contains(&("model f32", 0)), "{labels:?}");
}

#[test]
fn bad_keys_and_lengths_are_refused_and_nothing_stays_reserved() {
    let ground = Ground::new("bad", 16 << 20);
    let pool = ground.pool();
    let kv = pool.kv("model").unwrap();
    for key in [&[][..], &[1; 65]] {
        assert_eq!(code(&kv.put(&[(b"good", &[b"x"]), (key, &[b"x"])]).unwrap_err()), 22);
        assert_eq!(code(&kv.length(key).unwrap_err()), 22);
        assert_eq!(code(&kv.remove(&[key]).unwrap_err()), 22);
    }
    let large = vec![0; (4 << 20) + 1];
    assert_eq!(code(&kv.put(&[(b"good", &[b"x"]), (b"large", &[&large])]).unwrap_err()), 22);
    assert_eq!(code(&kv.put(&[(b"empty", &[])]).unwrap_err()), 22);
    let status = &pool.kv_status().unwrap()[0];
    assert_eq!((status.blocks, status.reserved), (0, 0));
    assert_eq!(put(&kv, b"good", b"x"), Stored::Written);
}

#[test]
fn a_large_batch_is_answered_in_order_and_stops_at_the_part_that_is_wrong() {
    let ground = Ground::new("parts", 16 << 20);
    let pool = ground.pool();
    let kv = pool.kv("model").unwrap();
    let names: Vec<[u8; 4]> = (0..200_u32).map(u32::to_le_bytes).collect();
    put(&kv, &names[77], b"known");
    let pieces: Vec<[&[u8]; 2]> = names.iter().map(|name| [&name[..], &name[..2]]).collect();
    let mut batch: Vec<(&[u8], &[&[u8]])> =
        names.iter().zip(&pieces).map(|(name, pieces)| (&name[..], &pieces[..])).collect();
    let outcomes = kv.put(&batch).unwrap();
    for (index, outcome) in outcomes.iter().enumerate() {
        assert_eq!(*outcome, if index == 77 { Stored::Known } else { Stored::Written }, "{index}");
        let expected =
            if index == 77 { b"known".to_vec() } else { [&names[index][..], &names[index][..2]].concat() };
        assert_eq!(get(&kv, &names[index], 10).unwrap(), expected);
    }
    assert_eq!(kv.clear().unwrap(), 200);
    batch[199].0 = b"";
    assert_eq!(code(&kv.put(&batch).unwrap_err()), 22);
    let status = &pool.kv_status().unwrap()[0];
    assert_eq!((status.blocks, status.reserved), (187, 0), "all but the last sixteenth");
    assert_eq!(kv.match_prefix(&names.iter().map(|name| &name[..]).collect::<Vec<_>>()).unwrap(), 187);
    batch[199].0 = &names[199];
    assert_eq!(kv.put(&batch).unwrap().iter().filter(|outcome| **outcome == Stored::Written).count(), 13);
    assert_eq!(kv.put(&[]).unwrap(), []);
}

#[test]
fn many_keys_are_looked_up_together_as_one_by_one() {
    let ground = Ground::new("many", 16 << 20);
    let kv = ground.pool().kv("model").unwrap();
    let keys: Vec<[u8; 8]> = (0..500_u64).map(u64::to_le_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let piece: [&[u8]; 1] = [b"bytes"];
    let blocks: Vec<(&[u8], &[&[u8]])> = keys.iter().map(|key| (*key, &piece[..])).collect();
    kv.put(&blocks).unwrap();
    assert_eq!(kv.match_prefix(&keys).unwrap(), 500);
    let gone: Vec<&[u8]> = keys.iter().skip(37).step_by(41).copied().collect();
    kv.remove(&gone).unwrap();
    assert_eq!(kv.match_prefix(&keys).unwrap(), 37);
    assert_eq!(kv.match_prefix(&keys[38..]).unwrap(), 40);
    let one_by_one: Vec<bool> = keys.iter().map(|key| kv.length(key).unwrap().is_some()).collect();
    assert_eq!(kv.exists(&keys).unwrap(), one_by_one);
    assert_eq!(one_by_one.iter().filter(|is_there| !**is_there).count(), gone.len());
    // A key that is none matters only if all before it are there.
    let mixed = |missing: usize| -> Vec<&[u8]> {
        (0..40)
            .map(|index| if index == 20 { &[0; 65][..] } else { keys[if index == missing { 37 } else { 0 }] })
            .collect()
    };
    assert_eq!(kv.match_prefix(&mixed(19)).unwrap(), 19);
    assert_eq!(code(&kv.match_prefix(&mixed(21)).unwrap_err()), 22);
    assert_eq!(code(&kv.exists(&mixed(19)).unwrap_err()), 22);
}

#[test]
fn a_node_without_memory_for_blocks_says_what_to_do() {
    let ground = Ground::new("none", 0);
    let error = ground.pool().kv("model").err().unwrap();
    assert!(error.to_string().contains("--kv-capacity"), "{error}");
}

fn ask(pool: &Pool, request: KvRequest) -> Result<KvReply, PoolError> {
    match pool.session().call(&Request::Kv(request))? {
        Reply::Kv(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn open(pool: &Pool) -> Handle {
    match ask(pool, KvRequest::Open { fingerprint: [7; 32], label: "seven".to_owned() }).unwrap() {
        KvReply::Opened { handle, .. } => handle,
        other => panic!("{other:?}"),
    }
}

fn reserve(pool: &Pool, handle: Handle, count: u64, bytes: u64) -> Vec<u32> {
    let blocks = (0..count)
        .map(|number| KvBlock { key: number.to_le_bytes().to_vec(), bytes, parent: KvParent::None })
        .collect();
    match ask(pool, KvRequest::Reserve { handle, blocks }).unwrap() {
        KvReply::Slots(slots) => slots
            .into_iter()
            .filter_map(|slot| if let KvSlot::Reserved { slot, .. } = slot { Some(slot) } else { None })
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn slots_of_a_writer_that_dies_come_back_however_often() {
    let ground = Ground::new("dead", 16 << 20);
    let watching = ground.pool();
    for round in 0..200 {
        let writer = ground.pool();
        let handle = open(&writer);
        let slots = reserve(&writer, handle, 16, 1 << 20);
        assert_eq!(slots.len(), 16, "round {round}: every slot is free again");
        drop(writer);
        let deadline = Instant::now() + Duration::from_secs(10);
        while watching.kv_status().unwrap()[0].reserved > 0 {
            assert!(Instant::now() < deadline, "round {round}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(watching.kv_status().unwrap()[0].blocks, 0);
}

#[test]
fn a_session_can_publish_and_abort_what_it_has_reserved_and_nothing_else() {
    let ground = Ground::new("foreign", 16 << 20);
    let (one, other) = (ground.pool(), ground.pool());
    let (handle, theirs) = (open(&one), open(&other));
    let slots = reserve(&one, handle, 2, 1000);
    for request in [
        KvRequest::Publish { handle: theirs, slots: slots.clone(), sums: Vec::new() },
        KvRequest::Abort { handle: theirs, slots: slots.clone() },
        KvRequest::Publish { handle: theirs, slots: vec![u32::MAX], sums: Vec::new() },
    ] {
        assert_eq!(code(&ask(&other, request).unwrap_err()), 13);
    }
    assert!(reserve(&other, theirs, 2, 1000).is_empty(), "they are being written");
    ask(&one, KvRequest::Publish { handle, slots: slots.clone(), sums: Vec::new() }).unwrap();
    assert_eq!(code(&ask(&one, KvRequest::Publish { handle, slots, sums: Vec::new() }).unwrap_err()), 13);
    let wrong = Handle(handle.0.wrapping_add(1));
    assert_eq!(code(&ask(&one, KvRequest::Clear { handle: wrong }).unwrap_err()), 9);
}

#[test]
fn values_whose_session_has_ended_write_into_no_slot_that_others_have_by_now() {
    const BYTES: usize = 64 << 10;
    let ground = Ground::new("ended", 16 << 20);
    let kv = ground.pool().kv("model").unwrap();
    let mut values = ground.pool().kv_values("values").unwrap();
    let block = |key| Replacement { key, pieces: &[&[1; BYTES]], expects: Expects::Anything };
    // Those who replace two at once keep two slots for the next time.
    assert_eq!(values.replace(&[block(b"a"), block(b"b")]).unwrap(), [Replaced::Done; 2]);
    let reserved = || kv_status(&ground).reserved;
    assert_eq!(reserved(), 2);
    values.watch().unwrap().shutdown();
    let deadline = Instant::now() + Duration::from_secs(10);
    while reserved() > 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in 0..8 {
        assert_eq!(put(&kv, &[number], &[100 + number; BYTES]), Stored::Written);
    }
    assert!(values.replace(&[block(b"a")]).is_err(), "it is to be opened again");
    for number in 0..8 {
        assert_eq!(get(&kv, &[number], BYTES), Some(vec![100 + number; BYTES]), "{number}");
    }
}

/// A session that writes blocks of a namespace and publishes none of them.
fn writing(ground: &Ground, namespace: u64, keys: &[&[u8]]) -> Pool {
    let pool = ground.pool();
    let opened = ask(&pool, KvRequest::OpenKnown { namespace }).unwrap();
    let KvReply::Opened { handle, .. } = opened else { panic!("{opened:?}") };
    let block = |key: &&[u8]| KvBlock { key: key.to_vec(), bytes: 3, parent: KvParent::None };
    let blocks: Vec<KvBlock> = keys.iter().map(block).collect();
    let KvReply::Slots(slots) = ask(&pool, KvRequest::Reserve { handle, blocks }).unwrap() else { panic!() };
    assert!(slots.iter().all(|slot| matches!(slot, KvSlot::Reserved { .. })), "{slots:?}");
    pool
}

#[test]
fn a_copy_of_a_block_that_another_is_writing_keeps_its_place_in_the_prefix() {
    let ground = Ground::new("copied", 16 << 20);
    let kv = ground.pool().kv("model").unwrap();
    let _writer = writing(&ground, kv.namespace(), &[b"b", b"c", b"alone"]);
    let blocks: [(&[u8], &[&[u8]]); 3] = [(b"a", &[b"1"]), (b"b", &[b"2"]), (b"c", &[b"3"])];
    assert_eq!(kv.put_prefix(&blocks, None).unwrap(), [Stored::Written; 3]);
    assert_eq!(put(&kv, b"alone", b"4"), Stored::Written);
    let parent = |key: &[u8]| kv.inspect(key).unwrap().unwrap().parent;
    assert_eq!((parent(b"a"), parent(b"b"), parent(b"c")), (None, Some(b"a".to_vec()), Some(b"b".to_vec())));
    assert_eq!(parent(b"alone"), None);
    assert_eq!(kv.inspect(b"a").unwrap().unwrap().children, [b"b"]);
}

/// Slots without a key.
fn take(pool: &Pool, handle: Handle, count: usize) -> Vec<u32> {
    let take = vec![1000; count];
    let request = KvRequest::Swap { handle, blocks: Vec::new(), give: Vec::new(), take, on_disk: false };
    let KvReply::Swapped { slots, .. } = ask(pool, request).unwrap() else { panic!("no slots") };
    slots
        .into_iter()
        .map(|slot| if let KvSlot::Reserved { slot, .. } = slot { slot } else { panic!("{slot:?}") })
        .collect()
}

#[test]
fn a_swap_of_several_blocks_that_cannot_be_whole_leaves_nothing() {
    let ground = Ground::new("whole", 16 << 20);
    let (one, other) = (ground.pool(), ground.pool());
    let (handle, theirs) = (open(&one), open(&other));
    let swap = |slot, key: &[u8], expects| KvSwap {
        slot,
        key: key.to_vec(),
        bytes: 9,
        parent: None,
        expects,
        sum: None,
    };
    let all = |handle, blocks, seen| KvRequest::SwapAll { handle, blocks, seen, removes: true };
    let held = || {
        let stores = one.kv_status().unwrap();
        (stores[0].blocks, stores[0].reserved)
    };
    let slots = take(&one, handle, 2);
    let blocks = |keys: [&[u8]; 2], expects| {
        vec![swap(slots[0], keys[0], KvExpects::Nothing), swap(slots[1], keys[1], expects)]
    };
    let nobody = KvSeen { slot: u32::MAX, generation: u64::MAX };
    let right = || blocks([b"a", b"b"], KvExpects::Anything);
    assert_eq!(
        code(&ask(&other, all(theirs, right(), Vec::new())).unwrap_err()),
        13,
        "slots of another session"
    );
    let long = ask(&one, all(handle, blocks([b"a", &[1; 65]], KvExpects::Anything), Vec::new()));
    assert_eq!(code(&long.unwrap_err()), 22);
    let long = ask(&one, all(handle, right(), vec![(vec![1; 65], nobody)]));
    assert_eq!(code(&long.unwrap_err()), 22);
    assert_eq!(held(), (0, 2), "nothing was done, and the slots are the writer's");
    for (blocks, seen) in [
        (blocks([b"a", b"b"], KvExpects::Block(nobody)), Vec::new()),
        (right(), vec![(b"c".to_vec(), nobody)]),
        (blocks([b"a", b"a"], KvExpects::Nothing), Vec::new()),
    ] {
        let slots = take(&one, handle, 2);
        let blocks = blocks.into_iter().zip(&slots).map(|(block, slot)| KvSwap { slot: *slot, ..block });
        let swapped = ask(&one, all(handle, blocks.collect(), seen)).unwrap();
        assert_eq!(swapped, KvReply::Swapped { outcomes: vec![KvSwapped::Changed; 2], slots: Vec::new() });
        assert_eq!(held(), (0, 2), "the first two are held as before");
    }
    let swapped = ask(&one, all(handle, right(), Vec::new())).unwrap();
    assert_eq!(swapped, KvReply::Swapped { outcomes: vec![KvSwapped::Done; 2], slots: Vec::new() });
    assert_eq!(held(), (2, 0));
}

#[test]
fn no_client_can_cut_off_what_the_node_has_mapped_nor_write_the_books() {
    let ground = Ground::new("seals", 8 << 20);
    let pool = ground.pool();
    let open = Request::Kv(KvRequest::Open { fingerprint: [7; 32], label: String::new() });
    let (_, files) = pool.session().call_with(&open, &[]).unwrap();
    let (_, ring) = pool.session().call_with(&Request::OpenRing, &[]).unwrap();
    for (index, descriptor) in files.iter().chain(&ring).enumerate() {
        // Also a read-only descriptor can be opened anew for writing.
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let mut file = std::fs::File::options().write(true).open(path).unwrap();
        for length in [0, 1 << 40] {
            assert!(file.set_len(length).is_err(), "file {index}, {length} bytes");
        }
        assert!(index > 0 || file.write(b"x").is_err(), "the books take no writer");
    }
    // The node answers as before.
    assert_eq!(put(&pool.kv("model").unwrap(), b"k", b"v"), Stored::Written);
}

#[test]
fn readers_of_blocks_that_are_evicted_and_overwritten_get_right_bytes_or_a_miss() {
    let ground = Ground::new("evict", 8 << 20);
    let stop = AtomicBool::new(false);
    let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
    // Every word of a block holds its number, and blocks have three sizes.
    let sizes = [4096, 65_536, 300_000];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let kv = ground.pool().kv("model").unwrap();
            let (stop, hits, misses) = (&stop, &hits, &misses);
            scope.spawn(move || {
                let mut into = vec![0; 300_000];
                for number in (0_u64..).map(|number| number * 7919 % 400) {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    match kv.get(&number.to_le_bytes(), &mut [&mut into]).unwrap() {
                        Some(bytes) => {
                            assert_eq!(bytes as usize, sizes[number as usize % 3]);
                            let (words, _) = into[..bytes as usize].as_chunks::<8>();
                            let is_right = words.iter().all(|word| *word == number.to_le_bytes());
                            assert!(is_right, "block {number}");
                            hits.fetch_add(1, Ordering::AcqRel);
                        }
                        None => _ = misses.fetch_add(1, Ordering::AcqRel),
                    }
                }
            });
        }
        let kv = ground.pool().kv("model").unwrap();
        for number in (0..6000_u64).map(|number| number * 31 % 400) {
            let block = number.to_le_bytes().repeat(sizes[number as usize % 3] / 8);
            put(&kv, &number.to_le_bytes(), &block[..]);
        }
        stop.store(true, Ordering::Release);
    });
    let status = &ground.pool().kv_status().unwrap()[0];
    assert!(status.evictions > 1000 && hits.into_inner() > 100 && misses.into_inner() > 100, "{status:?}");
}

#[test]
fn who_reads_a_block_that_is_replaced_again_and_again_finds_the_old_or_the_new_one() {
    const BYTES: usize = 64 << 10;
    let ground = Ground::new("replaced", 8 << 20);
    let kv = ground.pool().kv("replaced").unwrap();
    let run = [Run { start: 0, bytes: BYTES, stride: BYTES as isize, count: 1 }];
    let replace = |kv: &KvCache, number: u8| {
        let from = vec![number; BYTES];
        let stored = kv.replace_runs(&[(b"key", Gather::within(&from, &run).unwrap())]).unwrap();
        assert_eq!(stored, [Stored::Written]);
    };
    replace(&kv, 0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let kv = ground.pool().kv("replaced").unwrap();
            let (mut reads, mut into) = (0_u64, vec![0; BYTES]);
            while !is_over.load(Ordering::Acquire) {
                assert_eq!(
                    kv.get(b"key", &mut [&mut into]).unwrap(),
                    Some(BYTES as u32),
                    "after {reads} reads"
                );
                assert!(into.iter().all(|byte| *byte == into[0]), "a mixture of two blocks");
                reads += 1;
            }
        });
        for number in 0..5000 {
            replace(&kv, (number % 251) as u8);
            if reader.is_finished() {
                break;
            }
        }
        is_over.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn all_namespaces_that_hold_blocks_are_told_of_however_many_they_are() {
    const COUNT: u32 = 1500;
    let ground = Ground::new("told", 16 << 20);
    let pool = ground.pool();
    for number in 0..COUNT {
        let kv = pool.kv(&format!("{number} {}", "\u{1f600}".repeat(300))).unwrap();
        assert_eq!(put(&kv, b"k", b"v"), Stored::Written);
    }
    let stores = pool.kv_status().unwrap();
    let numbers: Vec<u64> = stores[0].namespaces.iter().map(|space| space.namespace).collect();
    assert_eq!(numbers.len(), COUNT as usize);
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once");
    assert!(stores[0].namespaces.iter().all(|space| space.blocks == 1 && space.label.chars().count() == 200));
}
