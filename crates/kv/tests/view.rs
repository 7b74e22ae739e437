//! A client's view over real files: a reader that stops between finding a block and copying it.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_kv::{BlockKey, Namespace, Reserved, Store, View, ViewError, Wish};
use hinterland_os::{MapOptions, MemoryFile, PageKind, SharedSlice};
use hinterland_policy::EvictionKind;
use std::sync::Arc;

const SPACE: Namespace = Namespace(5);

fn wish(number: u8, bytes: u64) -> Wish {
    Wish { namespace: SPACE, key: key(number), bytes, parent: None }
}

struct World {
    files: [MemoryFile; 3],
    store: Store<SharedSlice>,
    view: View,
}

impl World {
    fn new(blocks_bytes: u64) -> Self {
        let geometry = Store::<SharedSlice>::geometry_for(blocks_bytes);
        let file = |bytes| MemoryFile::anonymous("view", bytes, PageKind::Base4K).unwrap();
        let files =
            [file(geometry.books_bytes()), file(geometry.blocks_bytes()), file(geometry.touches_bytes())];
        let options = MapOptions { write: true, ..MapOptions::default() };
        let books = Arc::new(files[0].map(0, files[0].len() as usize, options).unwrap()).slice();
        let store = Store::new(books, geometry, EvictionKind::Lru);
        let view = View::map(&files[0], &files[1], &files[2]).unwrap();
        Self { files, store, view }
    }

    fn put(&mut self, number: u8, bytes: &[u8]) -> u32 {
        let reserved = self.store.reserve(1, &wish(number, bytes.len() as u64), &mut |_| false).unwrap();
        let Reserved::Slot { slot, offset } = reserved else { panic!("{reserved:?}") };
        self.view.write(offset, bytes.len() as u64, &[bytes]).unwrap();
        assert!(self.store.publish(1, slot, &mut |_| false).unwrap());
        slot
    }
}

fn key(number: u8) -> BlockKey {
    BlockKey::new(&[number; 32]).unwrap()
}

#[test]
fn a_reader_that_is_paused_while_its_block_is_evicted_and_its_slot_written_again_reports_a_miss() {
    let mut world = World::new(4 << 20);
    let slot = world.put(1, &[1; 4000]);
    let found = world.view.find(SPACE, &key(1)).unwrap();
    let mut into = [0; 4000];
    assert!(world.view.read(&found, &mut [&mut into]));
    // The pause: gone; then being written by another; then another block, and at last the same key again.
    assert!(world.store.remove(SPACE, &key(1)));
    assert!(!world.view.read(&found, &mut [&mut into]));
    let reserved = world.store.reserve(2, &wish(2, 4000), &mut |_| false).unwrap();
    assert!(matches!(reserved, Reserved::Slot { slot: again, .. } if again == slot), "{reserved:?}");
    assert!(!world.view.read(&found, &mut [&mut into]));
    world.store.publish(2, slot, &mut |_| false).unwrap();
    assert!(!world.view.read(&found, &mut [&mut into]));
    world.store.remove(SPACE, &key(2));
    assert_eq!(world.put(1, &[3; 4000]), slot);
    assert!(!world.view.read(&found, &mut [&mut into]));
    let found = world.view.find(SPACE, &key(1)).unwrap();
    assert!(world.view.read(&found, &mut [&mut into]) && into == [3; 4000]);
}

#[test]
fn a_slot_is_written_whole_or_not_at_all() {
    let mut world = World::new(4 << 20);
    let reserved = world.store.reserve(1, &wish(1, 10), &mut |_| false).unwrap();
    let Reserved::Slot { offset, .. } = reserved else { panic!("{reserved:?}") };
    let error = world.view.write(offset, 10, &[b"four", b"three"]).unwrap_err();
    assert!(matches!(error, ViewError::Length { given: 9, expected: 10 }), "{error}");
    assert!(world.view.write(u64::MAX - 5, 9, &[b"four", b"three"]).is_err());
    assert!(world.view.find(SPACE, &key(1)).is_none(), "it is not published");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let World { files: [books, blocks, touches], .. } = World::new(8 << 20);
    for (one, two, three) in
        [(&blocks, &blocks, &touches), (&books, &touches, &touches), (&books, &blocks, &books)]
    {
        let fits = View::map(one, two, three).is_ok();
        assert_eq!(fits, std::ptr::eq(three, &books), "books are longer than touches, the rest is too short");
    }
}

#[test]
fn books_that_anybody_has_overwritten_make_readers_miss_and_nothing_else() {
    let mut world = World::new(4 << 20);
    for number in 0..50 {
        world.put(number, &[number; 1000]);
    }
    let length = world.files[0].len();
    let mut chance = 12_345_u64;
    for _ in 0..200 {
        let mut bytes = vec![0; 4096];
        for byte in &mut bytes {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (chance >> 56) as u8;
        }
        let place = (chance >> 8) % (length - 4096);
        world.files[0].write_at(place, &bytes).unwrap();
        let mut into = vec![0; 1 << 20];
        for number in 0..50 {
            if let Some(found) = world.view.find(SPACE, &key(number)) {
                // Any length and place: inside the file, or it would not have been found.
                let _ = world.view.read(&found, &mut [&mut into]);
            }
        }
    }
}
