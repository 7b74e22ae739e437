//! A client's view: a reader that stops between finding a block and copying it; over real files, coherent or flushed, and over
//! memory whose lines move only when they are told to.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod checked;

use checked::Checked;
use hinterland_kv::{
    BlockKey, Client, Found, Namespace, Owned, Point, Reserved, Store, View, ViewError, Wish, Words,
};
use hinterland_os::checking::{Disorder, segment};
use hinterland_os::{Coherence, MapOptions, MemoryFile, PageKind};
use hinterland_policy::EvictionKind;
use hinterland_proto::checksum::crc32c;
use std::sync::Arc;

const SPACE: Namespace = Namespace(5);

fn wish(number: u8, bytes: u64) -> Wish {
    Wish { namespace: SPACE, key: key(number), bytes, parent: None }
}

/// A client, and the node's books, in one kind of memory.
struct World {
    /// None in checked memory.
    files: Vec<MemoryFile>,
    store: Store<Books>,
    view: Side,
}

enum Side {
    Files(View),
    Checked(Client<Checked>),
}

enum Books {
    Files(Owned),
    Checked(Checked),
}

impl Words for Books {
    fn load(&self, word: usize) -> u64 {
        match self {
            Self::Files(words) => words.load(word),
            Self::Checked(words) => words.load(word),
        }
    }

    fn store(&self, word: usize, value: u64) {
        match self {
            Self::Files(words) => words.store(word, value),
            Self::Checked(words) => words.store(word, value),
        }
    }

    fn write_back(&self, word: usize, words: usize, point: Point) {
        match self {
            Self::Files(memory) => memory.write_back(word, words, point),
            Self::Checked(memory) => memory.write_back(word, words, point),
        }
    }

    fn fence(&self, point: Point) {
        match self {
            Self::Files(memory) => memory.fence(point),
            Self::Checked(memory) => memory.fence(point),
        }
    }

    fn refresh(&self, word: usize, words: usize, point: Point) {
        match self {
            Self::Files(memory) => memory.refresh(word, words, point),
            Self::Checked(memory) => memory.refresh(word, words, point),
        }
    }
}

impl Side {
    fn find(&self, namespace: Namespace, key: &BlockKey) -> Option<Found> {
        match self {
            Self::Files(view) => view.find(namespace, key),
            Self::Checked(client) => client.find(namespace, key),
        }
    }

    fn read(&self, found: &Found, into: &mut [&mut [u8]]) -> bool {
        match self {
            Self::Files(view) => view.read(found, into),
            Self::Checked(client) => client.read(found, into),
        }
    }

    fn write(&self, offset: u64, bytes: u64, from: &[&[u8]]) -> Result<Option<u32>, ViewError> {
        match self {
            Self::Files(view) => view.write(offset, bytes, from),
            Self::Checked(client) => client.write_pieces(offset, bytes, from.iter().copied()),
        }
    }
}

impl World {
    fn new(blocks_bytes: u64) -> Self {
        Self::over_files(blocks_bytes, Coherence::Hardware)
    }

    fn over_files(blocks_bytes: u64, coherence: Coherence) -> Self {
        let geometry = Store::<Books>::geometry_for(blocks_bytes).with_coherence(coherence).with_sums(true);
        let file = |bytes| MemoryFile::anonymous("view", bytes, PageKind::Base4K).unwrap();
        let files = [geometry.books_bytes(), geometry.blocks_bytes(), geometry.touches_bytes()].map(file);
        let files = Vec::from(files);
        let options = MapOptions { write: true, ..MapOptions::default() };
        let books = Arc::new(files[0].map(0, files[0].len() as usize, options).unwrap()).slice();
        let books = Books::Files(Owned::new(books, coherence).unwrap());
        let store = Store::new(books, geometry, EvictionKind::Lru);
        let view = Side::Files(View::map(&files[0], &files[1], &files[2]).unwrap());
        Self { files, store, view }
    }

    fn checked(blocks_bytes: u64) -> Self {
        let geometry =
            Store::<Books>::geometry_for(blocks_bytes).with_coherence(Coherence::Software).with_sums(true);
        let lengths = [geometry.books_bytes(), geometry.blocks_bytes(), geometry.touches_bytes()];
        let disorder = Disorder { seed: 3, calls: 30, garbage: false };
        let sides = lengths.map(|bytes| segment(bytes as usize, 2, disorder, Arc::new(|| ())));
        let side = |file: usize, number: usize| Checked {
            memory: sides[file][number].clone(),
            owner: number == 1,
            skip: None,
        };
        let store = Store::new(Books::Checked(side(0, 1)), geometry, EvictionKind::Lru);
        let view = Side::Checked(Client::new(side(0, 0), side(1, 0), side(2, 0)).unwrap());
        Self { files: Vec::new(), store, view }
    }

    /// One of each kind of memory.
    fn all(blocks_bytes: u64) -> [Self; 3] {
        [
            Self::over_files(blocks_bytes, Coherence::Hardware),
            Self::over_files(blocks_bytes, Coherence::Software),
            Self::checked(blocks_bytes),
        ]
    }

    fn put(&mut self, number: u8, bytes: &[u8]) -> u32 {
        let reserved = self.store.reserve(1, &wish(number, bytes.len() as u64), &mut |_| false).unwrap();
        let Reserved::Slot { slot, offset } = reserved else { panic!("{reserved:?}") };
        let (one, other) = bytes.split_at(bytes.len() / 3);
        let sum = self.view.write(offset, bytes.len() as u64, &[one, other]).unwrap();
        assert_eq!(sum, Some(crc32c(bytes)));
        assert!(self.store.publish(1, slot, &mut |_| false).unwrap());
        slot
    }
}

fn key(number: u8) -> BlockKey {
    BlockKey::new(&[number; 32]).unwrap()
}

#[test]
fn a_reader_that_is_paused_while_its_block_is_evicted_and_its_slot_written_again_reports_a_miss() {
    World::all(4 << 20).into_iter().for_each(pause_a_reader);
}

fn pause_a_reader(mut world: World) {
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
fn a_reader_that_is_paused_in_the_middle_of_its_copy_while_the_slot_is_written_again_reports_a_miss() {
    const BYTES: usize = 1 << 20;
    for coherence in [Coherence::Hardware, Coherence::Software] {
        for is_streamed in [false, true] {
            for (happens, is_right) in
                [("nothing", true), ("removed", false), ("reserved", false), ("written", false)]
            {
                let mut world = World::over_files(4 << 20, coherence);
                let slot = world.put(1, &[1; BYTES]);
                let Side::Files(view) = &world.view else { panic!("these are files") };
                let found = view.find(SPACE, &key(1)).unwrap();
                let mut into = vec![0; BYTES];
                let (first, rest) = into.split_at_mut(BYTES / 2);
                let mut reading = view.reading(&found, 0);
                if is_streamed {
                    reading.stream();
                }
                reading.copy(first);
                if happens != "nothing" {
                    assert!(world.store.remove(SPACE, &key(1)));
                }
                if matches!(happens, "reserved" | "written") {
                    let reserved = world.store.reserve(2, &wish(2, BYTES as u64), &mut |_| false).unwrap();
                    let Reserved::Slot { slot: again, offset } = reserved else { panic!("{reserved:?}") };
                    assert_eq!(again, slot);
                    if happens == "written" {
                        view.write(offset, BYTES as u64, &[&[2; BYTES]]).unwrap();
                        assert!(world.store.publish(2, slot, &mut |_| false).unwrap());
                    }
                }
                reading.copy(rest);
                let mixed = into.contains(&2);
                assert_eq!(reading.is_right(), is_right, "{coherence} {is_streamed} {happens}");
                assert_eq!(mixed, happens == "written", "the copy saw what this is about: {happens}");
            }
        }
    }
}

#[test]
fn a_slot_is_written_whole_or_not_at_all() {
    World::all(4 << 20).into_iter().for_each(write_a_wrong_length);
}

fn write_a_wrong_length(mut world: World) {
    let reserved = world.store.reserve(1, &wish(1, 10), &mut |_| false).unwrap();
    let Reserved::Slot { offset, .. } = reserved else { panic!("{reserved:?}") };
    let error = world.view.write(offset, 10, &[b"four", b"three"]).unwrap_err();
    assert!(matches!(error, ViewError::Length { given: 9, expected: 10 }), "{error}");
    if matches!(world.view, Side::Files(_)) {
        assert!(world.view.write(u64::MAX - 5, 9, &[b"four", b"three"]).is_err());
    }
    assert!(world.view.find(SPACE, &key(1)).is_none(), "it is not published");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let World { files, .. } = World::new(8 << 20);
    let [books, blocks, touches] = files.try_into().unwrap();
    for (one, two, three) in
        [(&blocks, &blocks, &touches), (&books, &touches, &touches), (&books, &blocks, &books)]
    {
        let fits = View::map(one, two, three).is_ok();
        assert_eq!(fits, std::ptr::eq(three, &books), "books are longer than touches, the rest is too short");
    }
}

#[test]
fn books_that_anybody_has_overwritten_make_readers_miss_and_nothing_else() {
    overwrite_the_books(World::over_files(4 << 20, Coherence::Hardware));
    overwrite_the_books(World::over_files(4 << 20, Coherence::Software));
}

fn overwrite_the_books(mut world: World) {
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
