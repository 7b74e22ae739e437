//! A slot that is read while its block is evicted and another one is written into it, and a key whose block is replaced,
//! under every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p hinterland-kv --release --test loom --target-dir target/loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_kv::{BlockKey, Geometry, Namespace, Point, Words, header, index, lookup};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const BYTES: u64 = 8;

/// The header of one slot: what changes is in atomics of the model, what does not is computed.
struct Books {
    header: usize,
    generation: AtomicU64,
    namespace: AtomicU64,
    key: BlockKey,
    /// The bytes of the block: one word, read and written without any order.
    data: AtomicU64,
}

impl Words for Books {
    fn load(&self, word: usize) -> u64 {
        match word - self.header {
            0 => self.generation.load(Ordering::Acquire),
            1 => self.namespace.load(Ordering::Acquire),
            3 => (self.key.len() as u64) << 32 | BYTES,
            8 => 9,
            _ => 0,
        }
    }

    fn store(&self, word: usize, value: u64) {
        match word - self.header {
            0 => self.generation.store(value, Ordering::Release),
            1 => self.namespace.store(value, Ordering::Release),
            // The same in both blocks.
            _ => {}
        }
    }
}

fn geometry() -> Geometry {
    Geometry::new(1, 1, 4 << 20)
}

fn content(namespace: u64) -> header::Content {
    let namespace = Namespace(namespace);
    let (sum, parent, serial, floor) = (None, None, 0, 0);
    header::Content { namespace, key: key(), offset: 0, bytes: BYTES as u32, sum, parent, serial, floor }
}

fn key() -> BlockKey {
    BlockKey::new(&[9, 0, 0, 0, 0, 0, 0, 0]).unwrap()
}

/// Books with one block, whose namespace and bytes are 1.
fn books() -> Arc<Books> {
    // 512 words of the head and one bucket lie before the only header.
    let books = Arc::new(Books {
        header: 520,
        generation: AtomicU64::new(0),
        namespace: AtomicU64::new(0),
        key: key(),
        data: AtomicU64::new(1),
    });
    header::publish(&*books, &geometry(), 0, &content(1));
    books
}

/// Reads as `View::read` does; what it copied, if that counts.
fn read(books: &Books, namespace: u64) -> Option<u64> {
    let block = header::read(books, &geometry(), 0, Namespace(namespace), &key())?;
    let copied = books.data.load(Ordering::Relaxed);
    header::is_still(books, &geometry(), &block, Point::HeaderCopied).then_some(copied)
}

/// One reader of `namespace` while block 1 is evicted and block 2 is written into its slot.
fn replaced_under_a_reader_of(namespace: u64) {
    loom::model(move || {
        let books = books();
        let reading = Arc::clone(&books);
        let reader = thread::spawn(move || read(&reading, namespace));
        // The node evicts; the session that is given the slot writes; the node publishes.
        header::retire(&*books, &geometry(), 0);
        let writing = Arc::clone(&books);
        let writer = thread::spawn(move || {
            header::before_writing();
            writing.data.store(2, Ordering::Relaxed);
        });
        writer.join().unwrap();
        header::publish(&*books, &geometry(), 0, &content(2));
        let copied = reader.join().unwrap();
        assert!(copied.is_none_or(|value| value == namespace), "{copied:?} for {namespace}");
    });
}

#[test]
fn a_reader_of_a_block_that_is_evicted_gets_its_bytes_or_a_miss() {
    replaced_under_a_reader_of(1);
}

#[test]
fn a_reader_of_the_next_block_in_the_slot_gets_its_bytes_or_a_miss() {
    replaced_under_a_reader_of(2);
}

/// Two slots and the entry of a key that names one of them; what the slots have in common is computed.
struct TwoSlots {
    /// The fifth word of the only bucket: others are empty.
    entry: AtomicU64,
    generations: [AtomicU64; 2],
    data: [AtomicU64; 2],
}

/// Words before the first header: the head and one bucket.
const FIRST: usize = 520;

impl Words for TwoSlots {
    fn load(&self, word: usize) -> u64 {
        match word {
            516 => self.entry.load(Ordering::Acquire),
            ..FIRST => 0,
            _ => match (word - FIRST) % 16 {
                0 => self.generations[(word - FIRST) / 16].load(Ordering::Acquire),
                1 => 1,
                3 => (key().len() as u64) << 32 | BYTES,
                8 => 9,
                _ => 0,
            },
        }
    }

    fn store(&self, word: usize, value: u64) {
        match word {
            516 => self.entry.store(value, Ordering::Release),
            _ if word >= FIRST && (word - FIRST).is_multiple_of(16) => {
                self.generations[(word - FIRST) / 16].store(value, Ordering::Release);
            }
            // The same in both blocks.
            _ => {}
        }
    }
}

#[test]
fn a_key_that_is_replaced_is_found_at_every_moment_with_its_old_or_new_bytes() {
    loom::model(|| {
        let geometry = Geometry::new(2, 1, 4 << 20);
        let hash = key().hash(Namespace(1));
        let books = Arc::new(TwoSlots {
            entry: AtomicU64::new((hash >> 32 << 32) | 1),
            generations: [AtomicU64::new(1), AtomicU64::new(0)],
            data: [AtomicU64::new(1), AtomicU64::new(2)],
        });
        let reading = Arc::clone(&books);
        let reader = thread::spawn(move || {
            let geometry = Geometry::new(2, 1, 4 << 20);
            let block = lookup(&*reading, &geometry, Namespace(1), &key()).expect("it is never away");
            let copied = reading.data[block.slot as usize].load(Ordering::Relaxed);
            (header::is_still(&*reading, &geometry, &block, Point::HeaderCopied), block.slot, copied)
        });
        // The node swaps; then somebody writes into the slot that is free.
        header::publish(&*books, &geometry, 1, &content(1));
        assert!(index::swap(&*books, &geometry, hash, 0, 1));
        header::retire(&*books, &geometry, 0);
        header::before_writing();
        books.data[0].store(3, Ordering::Relaxed);
        let (counts, slot, copied) = reader.join().unwrap();
        assert!(!counts || copied == u64::from(slot) + 1, "{copied} of slot {slot}");
    });
}
