//! Copies come back byte for byte, from any of their back ends, and never wrong.

use super::*;
use std::sync::Mutex;

/// A back end that breaks on request.
struct Fragile {
    inner: Packed,
    broken: Arc<AtomicBool>,
    lies: bool,
    order: Mutex<()>,
}

impl Store for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let _one = self.order.lock().unwrap();
        self.inner.put(content)
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        self.inner.get(place, content)?;
        match (self.broken.load(Ordering::Relaxed), self.lies) {
            (false, _) => Ok(()),
            (true, true) => {
                content[0] ^= 1;
                Ok(())
            }
            (true, false) => Err(StoreError::Failed { name: "fragile".into(), reason: "gone".into() }),
        }
    }

    fn free(&self, place: Place) {
        self.inner.free(place);
    }
}

fn content(seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..65536u32).map(next).collect()
}

#[test]
fn content_comes_back_and_its_room_too() {
    let folder = std::env::temp_dir();
    let disk = Disk::open(&folder, 4 << 16, 1 << 16).unwrap();
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 20)), Box::new(disk)], 2));
    for round in 0..20 {
        let (copy, error) = stores.put(&content(round));
        assert!(error.is_none());
        let mut back = vec![0; copy.bytes()];
        copy.read(&mut back).unwrap();
        assert_eq!(back, content(round));
    }
    assert_eq!(stores.memory_bytes(), 0);
    assert!(stores.members().all(|(_, member)| member.held_bytes.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_full_back_end_hands_over_to_the_next_and_the_last_one_loses_nothing() {
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(100_000))], 1));
    let copies: Vec<_> = (0..3).map(|seed| stores.put(&content(seed))).collect();
    assert!(copies.iter().any(|(copy, error)| copy.is_stranded() && error.is_some()));
    for (seed, (copy, _)) in copies.iter().enumerate() {
        let mut back = vec![0; copy.bytes()];
        copy.read(&mut back).unwrap();
        assert_eq!(back, content(seed as u8));
    }
}

#[test]
fn a_back_end_that_fails_or_lies_is_found_out_and_the_second_copy_serves() {
    for lies in [false, true] {
        let broken = Arc::new(AtomicBool::new(false));
        let fragile =
            || Fragile { inner: Packed::new(1 << 20), broken: broken.clone(), lies, order: Mutex::new(()) };
        let alone = Arc::new(Stores::new(vec![Box::new(fragile())], 1));
        let both = Arc::new(Stores::new(vec![Box::new(fragile()), Box::new(Packed::new(1 << 20))], 2));
        let (one, _) = alone.put(&content(1));
        let (two, _) = both.put(&content(2));
        broken.store(true, Ordering::Relaxed);
        let mut back = vec![0; one.bytes()];
        assert!(one.read(&mut back).unwrap_err().to_string().contains("hint:"));
        two.read(&mut back).unwrap();
        assert_eq!(back, content(2));
    }
}
