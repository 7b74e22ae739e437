//! A device against a plain array, and what it takes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use super::*;
use hinterland_far::store::{Disk, Packed, Place, Store};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

const BLOCKS: u64 = 256;

/// Memory with places that run out, as a disk has, and that fails or lies on request.
struct Slots {
    inner: Packed,
    free: Mutex<u32>,
    fails: Arc<AtomicBool>,
}

impl Store for Slots {
    fn name(&self) -> &str {
        "slots"
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let mut free = self.free.lock().unwrap();
        *free = free.checked_sub(1).ok_or_else(|| StoreError::Full { name: "slots".into() })?;
        self.inner.put(content)
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        self.inner.get(place, content)?;
        if self.fails.load(Ordering::Relaxed) {
            content[0] ^= 1;
        }
        Ok(())
    }

    fn free(&self, place: Place) {
        *self.free.lock().unwrap() += 1;
        self.inner.free(place);
    }
}

fn packed() -> Arc<Stores> {
    Arc::new(Stores::new(vec![Box::new(Packed::new(u64::MAX / 2))], 1))
}

fn slots(count: u32) -> (Arc<Stores>, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let inner = Packed::new(u64::MAX / 2);
    let slots = Slots { inner, free: Mutex::new(count), fails: Arc::clone(&fails) };
    (Arc::new(Stores::new(vec![Box::new(slots)], 1)), fails)
}

fn device(stores: Arc<Stores>, blocks: u64, unit_blocks: usize) -> Blocks {
    let unit_bytes = unit_blocks * BLOCK_BYTES;
    Blocks::new(stores, Shape { bytes: blocks * BLOCK_BYTES as u64, unit_bytes, keeps_recent: true })
}

fn block(seed: u64) -> Vec<u8> {
    (0..BLOCK_BYTES as u64 / 8)
        .flat_map(|n| (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n).to_le_bytes())
        .collect()
}

fn at(block: u64) -> u64 {
    block * BLOCK_BYTES as u64
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u64),
    Zero(u64, u64),
    Clear(u64, u64),
    Read(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..BLOCKS).prop_flat_map(|first| (Just(first), 1..=(BLOCKS - first).min(40)));
    let step = prop_oneof![
        5 => (range(), 1..u64::MAX).prop_map(|((first, count), seed)| Step::Write(first, count, seed)),
        1 => range().prop_map(|(first, count)| Step::Zero(first, count)),
        1 => range().prop_map(|(first, count)| Step::Clear(first, count)),
        4 => range().prop_map(|(first, count)| Step::Read(first, count)),
    ];
    proptest::collection::vec(step, 1..120)
}

fn run(device: &Blocks, steps: &[Step]) {
    let mut model = vec![0u8; at(BLOCKS) as usize];
    let range = |first: u64, count: u64| at(first) as usize..at(first + count) as usize;
    for step in steps {
        match *step {
            Step::Write(first, count, seed) => {
                let content: Vec<u8> = (0..count).flat_map(|n| block(seed.wrapping_add(n))).collect();
                device.write(at(first), &content).unwrap();
                model[range(first, count)].copy_from_slice(&content);
            }
            Step::Zero(first, count) => {
                device.write(at(first), &vec![0; at(count) as usize]).unwrap();
                model[range(first, count)].fill(0);
            }
            Step::Clear(first, count) => {
                device.clear(at(first), at(count)).unwrap();
                model[range(first, count)].fill(0);
            }
            Step::Read(first, count) => {
                let mut content = vec![1; at(count) as usize];
                device.read(at(first), &mut content).unwrap();
                assert!(content == model[range(first, count)], "blocks {first}..{}", first + count);
            }
        }
    }
    let mut content = vec![1; model.len()];
    device.read(0, &mut content).unwrap();
    assert!(content == model);
    let live = model.chunks(BLOCK_BYTES).filter(|block| !is_zero(block)).count();
    assert_eq!(device.report().live_bytes, at(live as u64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_device_is_an_array(steps in steps(), unit in 0u32..10) {
        run(&device(packed(), BLOCKS, 1 << unit), &steps);
    }

    #[test]
    fn a_device_of_two_copies_is_an_array(steps in steps()) {
        let disk = Disk::open(&std::env::temp_dir(), 16 << 20, 8 * BLOCK_BYTES as u64).unwrap();
        let stores = Stores::new(vec![Box::new(Packed::new(u64::MAX / 2)), Box::new(disk)], 2);
        run(&device(Arc::new(stores), BLOCKS, 8), &steps);
    }
}

#[test]
fn zeros_and_trimmed_blocks_take_no_room() {
    let stores = packed();
    let device = device(Arc::clone(&stores), 1024, 16);
    device.write(0, &vec![0; at(1024) as usize]).unwrap();
    assert_eq!((device.report().held_bytes, stores.memory_bytes()), (0, 0));
    let content: Vec<u8> = (0..1024).flat_map(block).collect();
    device.write(0, &content).unwrap();
    assert!(stores.memory_bytes() > 0);
    device.clear(0, at(1024)).unwrap();
    let report = device.report();
    assert_eq!((report.held_bytes, report.live_bytes, stores.memory_bytes()), (0, 0, 0));
}

#[test]
fn room_that_lies_idle_is_given_back_while_one_block_of_each_unit_stays() {
    // Each unit keeps one block for ever; without cleaning, all units would stay whole.
    let device = device(packed(), 1 << 14, 16);
    for round in 0..(1 << 14) / 16 {
        let content: Vec<u8> = (0..16).flat_map(|n| block(round * 16 + n)).collect();
        device.write(at(round * 16), &content).unwrap();
        device.clear(at(round * 16 + 1), at(15)).unwrap();
    }
    let report = device.report();
    assert_eq!(report.live_bytes, at((1 << 14) / 16));
    let idle = report.held_bytes - report.live_bytes;
    assert!(idle <= report.live_bytes / 2 + (IDLE_UNITS + 2) * 16 * BLOCK_BYTES as u64, "{report:?}");
    let mut content = vec![0; BLOCK_BYTES];
    for round in 0..(1 << 14) / 16 {
        device.read(at(round * 16), &mut content).unwrap();
        assert!(content == block(round * 16), "block {}", round * 16);
    }
}

#[test]
fn a_full_back_end_refuses_and_loses_nothing_and_takes_again_what_is_trimmed() {
    let (stores, _) = slots(8);
    let device = device(stores, 1024, 4);
    let mut written = 0;
    let refusal = loop {
        match device.write(at(written), &block(written + 1)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(refusal.to_string().contains("hint:"), "{refusal}");
    // Eight units in the back end, one that it refused.
    assert_eq!(written, 36);
    let mut content = vec![0; BLOCK_BYTES];
    for number in 0..written {
        device.read(at(number), &mut content).unwrap();
        assert!(content == block(number + 1), "block {number}");
    }
    device.clear(0, at(8)).unwrap();
    device.write(at(100), &block(7)).unwrap();
    device.read(at(100), &mut content).unwrap();
    assert!(content == block(7));
}

#[test]
fn sparse_units_make_room_in_a_full_back_end() {
    let (stores, _) = slots(8);
    let device = device(stores, 1024, 4);
    for number in 0..36 {
        device.write(at(number), &block(number + 1)).unwrap();
    }
    // Half of each unit, so that none is free.
    for number in (0..32).step_by(2) {
        device.clear(at(number), at(1)).unwrap();
    }
    for number in 100..110 {
        device.write(at(number), &block(number + 1)).unwrap();
    }
    let mut content = vec![0; BLOCK_BYTES];
    for number in (1..32).step_by(2).chain(32..36).chain(100..110) {
        device.read(at(number), &mut content).unwrap();
        assert!(content == block(number + 1), "block {number}");
    }
}

#[test]
fn wrong_bytes_of_a_back_end_are_errors() {
    let (stores, fails) = slots(100);
    let device = device(stores, 64, 4);
    let content: Vec<u8> = (1..=64).flat_map(block).collect();
    device.write(0, &content).unwrap();
    fails.store(true, Ordering::Relaxed);
    let mut read = vec![0; BLOCK_BYTES];
    for number in 0..64 {
        let error = device.read(at(number), &mut read).unwrap_err();
        assert!(error.to_string().contains("hint:"), "{error}");
    }
    assert_eq!(device.report().lost_bytes, at(64));
}

#[test]
fn what_is_not_in_the_device_is_refused() {
    let device = device(packed(), 16, 4);
    let mut bytes = vec![0; BLOCK_BYTES];
    for offset in [1, 512, at(16), u64::MAX, u64::MAX - 4095] {
        assert!(matches!(device.read(offset, &mut bytes), Err(BlockError::Range { .. })), "{offset}");
        assert!(matches!(device.write(offset, &bytes), Err(BlockError::Range { .. })), "{offset}");
        assert!(matches!(device.clear(offset, at(1)), Err(BlockError::Range { .. })), "{offset}");
    }
    assert!(device.clear(0, at(17)).is_err() && device.clear(0, 100).is_err());
}

#[test]
fn threads_at_once_see_whole_blocks() {
    let device = device(packed(), 64, 8);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut read = vec![0; at(4) as usize];
                for round in 0..400u64 {
                    let first = (round * 7 + thread * 3) % 56;
                    let content: Vec<u8> = (0..4).flat_map(|_| vec![thread as u8; BLOCK_BYTES]).collect();
                    device.write(at(first), &content).unwrap();
                    device.read(at(first), &mut read).unwrap();
                    for block in read.chunks(BLOCK_BYTES) {
                        assert!(block[0] != 0 && block.iter().all(|byte| *byte == block[0]));
                    }
                    device.clear(at(60), at(4)).unwrap();
                }
            });
        }
    });
}
