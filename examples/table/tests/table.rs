//! A table against a plain map, and under threads that get in each other's way at the same keys.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_pool::PoolError;
use hinterland_table::{Memory, ProcessMemory, Table, TableError};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One memory that several tables use, as programs of several racks do.
#[derive(Clone)]
struct Shared(Arc<ProcessMemory>);

impl Memory for Shared {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.0.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        self.0.write(offset, from)
    }

    fn swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        self.0.swap(offset, expected, desired)
    }

    fn add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        self.0.add(offset, addend)
    }
}

fn programs(bytes: u64, count: usize) -> Vec<Table<Shared>> {
    let memory = Shared(Arc::new(ProcessMemory::new(bytes)));
    let first = Table::create(memory.clone(), bytes).unwrap();
    let others = (1..count).map(|number| Table::open(memory.clone(), number % 2 == 0).unwrap());
    std::iter::once(first).chain(others).collect()
}

fn value(table: &Table<Shared>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    table.get(key, &mut value).unwrap().then_some(value)
}

#[derive(Debug, Clone)]
enum Step {
    Set(u8, usize, u8),
    Remove(u8),
    Get(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<u8>(), 0_usize..3000, any::<u8>()).prop_map(|(key, length, byte)| Step::Set(key, length, byte)),
        1 => any::<u8>().prop_map(Step::Remove),
        3 => any::<u8>().prop_map(Step::Get),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn several_programs_see_one_map(steps in prop::collection::vec((0_usize..3, step()), 1..600)) {
        let programs = programs(4 << 20, 3);
        let mut plain: HashMap<u8, Vec<u8>> = HashMap::new();
        for (program, step) in steps {
            let table = &programs[program];
            match step {
                Step::Set(key, length, byte) => {
                    table.set(&[key], &vec![byte; length]).unwrap();
                    plain.insert(key, vec![byte; length]);
                }
                Step::Remove(key) => prop_assert_eq!(table.remove(&[key]).unwrap(), plain.remove(&key).is_some()),
                Step::Get(key) => prop_assert_eq!(value(table, &[key]), plain.get(&key).cloned()),
            }
        }
        for key in 0..=255 {
            prop_assert_eq!(value(&programs[1], &[key]), plain.get(&key).cloned());
        }
        // All at once, and some twice, by programs that remember places and by one that does not.
        let keys: Vec<[u8; 1]> = (0..=255).chain(0..9).map(|key| [key]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for program in &programs {
            let found = program.get_many(&keys).unwrap();
            prop_assert!(found.iter().eq(keys.iter().map(|key| plain.get(&key[0]).cloned()).collect::<Vec<_>>().iter()));
        }
    }
}

/// A value that says who wrote it and when, long enough to be torn.
fn stamped(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(40)
}

fn stamp(value: &[u8]) -> u64 {
    let numbers: Vec<u64> = value.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    assert!(value.len() == 320 && numbers.iter().all(|number| *number == numbers[0]), "a torn value");
    numbers[0]
}

#[test]
fn nobody_ever_reads_what_was_replaced_before_they_asked() {
    // One writer a key, whose values count up: who has seen a number must never see a smaller one afterwards, and who
    // asks after a set was answered never one from before it.
    const KEYS: usize = 3;
    let programs = programs(2 << 20, 4);
    let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    for key in 0..KEYS {
        programs[0].set(&[key as u8], &stamped(0)).unwrap();
    }
    std::thread::scope(|scope| {
        for (key, written) in written.iter().enumerate() {
            let (table, stop) = (&programs[key], &stop);
            scope.spawn(move || {
                for number in 1..20_000 {
                    table.set(&[key as u8], &stamped(number)).unwrap();
                    written.store(number, Ordering::SeqCst);
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
        for table in &programs {
            let (written, stop) = (&written, &stop);
            scope.spawn(move || {
                let mut seen = [0; KEYS];
                while !stop.load(Ordering::SeqCst) {
                    for key in 0..KEYS {
                        let least = written[key].load(Ordering::SeqCst).max(seen[key]);
                        let found = stamp(&value(table, &[key as u8]).expect("the key is never removed"));
                        assert!(found >= least, "{found} after {least}");
                        seen[key] = found;
                    }
                    let least: Vec<u64> =
                        written.iter().map(|written| written.load(Ordering::SeqCst)).collect();
                    let together = table.get_many(&[&[0], &[1], &[2]]).unwrap();
                    for (key, found) in together.iter().enumerate() {
                        let found = stamp(found.as_ref().expect("the key is never removed"));
                        let least = least[key].max(seen[key]);
                        assert!(found >= least, "{found} together after {least}");
                        seen[key] = found;
                    }
                }
            });
        }
    });
}

/// Memory whose user is interrupted before each swap of a word.
struct Interrupted<'test>(Shared, &'test dyn Fn());

impl Memory for Interrupted<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.0.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        self.0.write(offset, from)
    }

    fn swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        (self.1)();
        self.0.swap(offset, expected, desired)
    }

    fn add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        self.0.add(offset, addend)
    }
}

#[test]
fn nobody_sees_a_value_before_it_is_the_keys() {
    const BYTES: u64 = 2 << 20;
    const SETS: u64 = 200;
    let memory = Shared(Arc::new(ProcessMemory::new(BYTES)));
    Table::create(memory.clone(), BYTES).unwrap().set(b"key", &stamped(0)).unwrap();
    // Each remembers where the first value was. The values that follow come into that room, too.
    let readers: Vec<_> = (0..=SETS).map(|_| Table::open(memory.clone(), true).unwrap()).collect();
    assert!(readers.iter().all(|reader| stamp(&value(reader, b"key").unwrap()) == 0));
    let (now, swaps) = (AtomicU64::new(0), AtomicU64::new(0));
    let look = || {
        // The first swap of a set comes when its entry is written; the second makes it the key's.
        if swaps.fetch_add(1, Ordering::SeqCst) % 2 == 0 {
            let number = now.load(Ordering::SeqCst);
            let reader = &readers[number as usize];
            let seen = match number % 2 {
                0 => value(reader, b"key"),
                _ => reader.get_many(&[b"key"]).unwrap().remove(0),
            };
            assert_eq!(stamp(&seen.unwrap()), number - 1);
        }
    };
    let writer = Table::open(Interrupted(memory, &look), true).unwrap();
    for number in 1..=SETS {
        now.store(number, Ordering::SeqCst);
        writer.set(b"key", &stamped(number)).unwrap();
    }
    assert_eq!(swaps.into_inner(), 2 * SETS, "a set is two swaps");
}

#[test]
fn a_key_that_many_insert_and_remove_at_once_is_there_once_or_not_at_all() {
    let programs = programs(2 << 20, 4);
    for round in 0..2_000_u64 {
        let key = round.to_le_bytes();
        std::thread::scope(|scope| {
            for (number, table) in programs.iter().enumerate() {
                scope.spawn(move || {
                    table.set(&key, &stamped(number as u64)).unwrap();
                    assert!(stamp(&value(table, &key).expect("it was just set by all")) < 4);
                });
            }
        });
        let all: Vec<_> = programs.iter().map(|table| value(table, &key)).collect();
        assert!(all[0].is_some() && all.iter().all(|one| *one == all[0]), "they disagree");
        let removed = std::thread::scope(|scope| {
            let threads: Vec<_> =
                programs.iter().map(|table| scope.spawn(move || table.remove(&key).unwrap())).collect();
            threads
                .into_iter()
                .filter(|_| true)
                .map(|thread| thread.join().unwrap())
                .filter(|gone| *gone)
                .count()
        });
        assert!(removed >= 1);
        assert!(programs.iter().all(|table| value(table, &key).is_none()), "it is still there");
    }
}

#[test]
fn a_full_table_says_so_and_has_room_again_when_something_is_removed() {
    let programs = programs(1 << 20, 1);
    let mut count = 0_u64;
    let error = loop {
        match programs[0].set(&count.to_le_bytes(), &[7; 1000]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TableError::Full) && error.to_string().contains("hint:"));
    assert!(count > 500, "{count}");
    for number in 0..count {
        assert!(value(&programs[0], &number.to_le_bytes()).is_some(), "{number}");
    }
    assert!(programs[0].remove(&0_u64.to_le_bytes()).unwrap());
    programs[0].set(b"another", &[7; 1000]).unwrap();
}

#[test]
fn what_is_no_table_or_too_long_is_refused() {
    let zeros = Shared(Arc::new(ProcessMemory::new(1 << 20)));
    assert!(matches!(Table::open(zeros.clone(), true), Err(TableError::NoTable)));
    assert!(matches!(Table::create(zeros.clone(), 8192), Err(TableError::TooSmall(8192))));
    let table = Table::create(zeros, 1 << 20).unwrap();
    assert!(matches!(table.set(b"k", &vec![0; 300_000]), Err(TableError::TooLong(300_001))));
    assert!(!table.get(b"k", &mut Vec::new()).unwrap());
}

#[test]
fn a_header_with_more_buckets_than_there_can_be_is_no_table() {
    let memory = Shared(Arc::new(ProcessMemory::new(1 << 20)));
    Table::create(memory.clone(), 1 << 20).unwrap();
    for buckets in [0, 3, 1 << 13, 1 << 57, 1 << 63] {
        memory.write(8, &u64::to_le_bytes(buckets)).unwrap();
        let opened = Table::open(memory.clone(), true);
        assert!(matches!(opened, Err(TableError::NoTable)), "{buckets} buckets");
    }
}
