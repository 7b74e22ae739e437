//! What others wait for while blocks are swapped in.

use super::super::UserStore;
use super::super::files::KvFolders;
use super::super::start::Plan;
use hinterland_kv::BlockKey;
use hinterland_os::Coherence;
use hinterland_policy::EvictionKind;
use hinterland_proto::checksum::crc32c;
use hinterland_proto::control::{KvBlock, KvExpects, KvParent, KvSlot, KvSwap, KvSwapped};
use hinterland_types::SessionId;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const SESSION: SessionId = SessionId(1);
const CONTENT: [u8; 900] = [7; 900];

/// A store in memory that ends with it, whose readers check what they read.
fn store() -> UserStore {
    store_that(true)
}

/// A store in memory whose writers take no checksums.
fn store_that(verifies: bool) -> UserStore {
    let plan = Plan {
        capacity_bytes: 8 << 20,
        order: EvictionKind::Lru,
        disk: None,
        coherence: Coherence::Hardware,
        folders: KvFolders { blocks: Vec::new(), books: PathBuf::from("/nonexistent") },
        keeps: false,
        verifies,
        writers_sum: false,
        watermarks: None,
    };
    UserStore::new(0, &plan).unwrap().0
}

#[test]
fn blocks_without_checksums_are_summed_up_before_anybody_is_locked_out() {
    for together in [false, true] {
        let store = store();
        let namespace = store.namespace([7; 32], "model").unwrap().namespace;
        let (_, slots) = store.swap(SESSION, namespace, &[], (&[], &[1000; 2]), false).unwrap();
        let swap = |(slot, key): (&KvSlot, &str)| {
            let KvSlot::Reserved { slot, offset } = *slot else { panic!("{slot:?}") };
            // Shorter than it was taken for.
            store.view.write(offset, CONTENT.len() as u64, &[&CONTENT]).unwrap();
            let (bytes, expects) = (CONTENT.len() as u64, KvExpects::Anything);
            KvSwap { slot, key: key.into(), bytes, parent: None, expects, sum: None }
        };
        let swaps: Vec<KvSwap> = slots.iter().zip(["one", "other"]).map(swap).collect();
        // What the store sums up by itself it does while everybody else waits.
        let waited = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&waited);
        store.lock().store.sum_before(Box::new(move |_, _| {
            counted.fetch_add(1, Ordering::AcqRel);
            None
        }));
        let outcomes = if together {
            store.swap_all(SESSION, namespace, &swaps, (&[], false)).unwrap()
        } else {
            store.swap(SESSION, namespace, &swaps, (&[], &[]), false).unwrap().0
        };
        assert_eq!((outcomes, waited.load(Ordering::Acquire)), (vec![KvSwapped::Done; 2], 0));
        for key in ["one", "other"] {
            let found = store.view.find(namespace, &BlockKey::new(key.as_bytes()).unwrap()).unwrap();
            assert_eq!(store.view.known_sum(&found), Some(crc32c(&CONTENT)));
        }
    }
}

#[test]
fn a_slot_that_is_named_often_is_summed_up_once() {
    let store = store();
    let namespace = store.namespace([7; 32], "model").unwrap().namespace;
    let (_, slots) = store.swap(SESSION, namespace, &[], (&[], &[1000; 2]), false).unwrap();
    let [KvSlot::Reserved { slot: one, offset }, KvSlot::Reserved { slot: other, .. }] = slots[..] else {
        panic!("{slots:?}")
    };
    store.view.write(offset, CONTENT.len() as u64, &[&CONTENT]).unwrap();
    let named = [one, one, other, one].map(|slot| (slot, Some(CONTENT.len() as u64)));
    let sums = store.sums_before(SESSION, named.into_iter());
    assert_eq!(sums[0], Some(crc32c(&CONTENT)));
    assert_eq!(sums.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, false]);
}

#[test]
fn what_was_refused_leaves_no_checksum_to_what_is_written_into_the_slot_later() {
    let store = store_that(false);
    let namespace = store.namespace([7; 32], "model").unwrap().namespace;
    let (_, slots) = store.swap(SESSION, namespace, &[], (&[], &[1000; 2]), false).unwrap();
    let wrong = Some(crc32c(&CONTENT) ^ 1);
    let known = |key: &str| {
        let found = store.view.find(namespace, &BlockKey::new(key.as_bytes()).unwrap()).unwrap();
        store.view.known_sum(&found)
    };
    for (slot, key) in slots.iter().zip(["swapped", "together"]) {
        let KvSlot::Reserved { slot, offset } = *slot else { panic!("{slot:?}") };
        store.view.write(offset, CONTENT.len() as u64, &[&CONTENT]).unwrap();
        let swap = |bytes, sum| {
            let swap =
                KvSwap { slot, key: key.into(), bytes, parent: None, expects: KvExpects::Anything, sum };
            if key == "together" {
                store.swap_all(SESSION, namespace, &[swap], (&[], false))
            } else {
                store.swap(SESSION, namespace, &[swap], (&[], &[]), false).map(|(outcomes, _)| outcomes)
            }
        };
        for bytes in [0, 1 << 20] {
            assert!(swap(bytes, wrong).is_err(), "the slot is not so long");
        }
        assert_eq!(swap(CONTENT.len() as u64, None).unwrap(), [KvSwapped::Done]);
        assert_eq!(known(key), None);
    }
    let block = KvBlock { key: "put".into(), bytes: CONTENT.len() as u64, parent: KvParent::None };
    let slots = store.reserve(SESSION, namespace, &[block]).unwrap();
    let KvSlot::Reserved { slot, offset } = slots[0] else { panic!("{slots:?}") };
    store.view.write(offset, CONTENT.len() as u64, &[&CONTENT]).unwrap();
    let swap = KvSwap {
        slot,
        key: "put".into(),
        bytes: CONTENT.len() as u64,
        parent: None,
        expects: KvExpects::Anything,
        sum: wrong,
    };
    assert!(store.swap(SESSION, namespace, &[swap], (&[], &[]), false).is_err(), "it has a key");
    assert_eq!(store.publish(SESSION, &[slot], &[]).unwrap(), [true]);
    assert_eq!(known("put"), None);
}
