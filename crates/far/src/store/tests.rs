//! Copies come back byte for byte, from any of their back ends, and never wrong.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn what_is_kept_of_each_content_is_small() {
    // There is one for each page that is far, and two counts before it; what holds it is a pointer.
    assert!(size_of::<copy::Content>() <= 104, "{}", size_of::<copy::Content>());
    assert_eq!(size_of::<Copy>(), size_of::<usize>());
}

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
    assert!(stores.members().iter().all(|member| member.held_bytes == 0));
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
fn what_was_begun_is_read_from_its_buffer_until_it_is_settled_and_never_counts_twice() {
    let stores = Arc::new(Stores::new(vec![Box::new(Named::new("small", 150_000))], 1));
    let buffer = Arc::new([content(1), content(2), content(3)].concat());
    let copies: Vec<_> = (0..3).map(|part| stores.begin(&buffer, part << 16..(part + 1) << 16)).collect();
    let all_there = || {
        for (seed, copy) in (1..).zip(&copies) {
            let mut back = vec![0; copy.bytes()];
            copy.read(&mut back).unwrap();
            assert_eq!(back, content(seed));
        }
    };
    all_there();
    assert!(copies.iter().all(|copy| copy.is_here() && !copy.is_stranded()));
    assert_eq!((stores.memory_bytes(), stores.members()[0].held_bytes), (0, 0));
    let refusals: Vec<_> = copies.chunks(1).map(|copies| stores.settle(copies).is_some()).collect();
    assert_eq!(refusals, [false, false, true]);
    assert_eq!(copies.iter().map(|copy| copy.is_here()).collect::<Vec<_>>(), [false, false, true]);
    assert!(copies[2].is_stranded() && Arc::strong_count(&buffer) == 1);
    all_there();
    assert!(stores.settle(&copies[..1]).is_none(), "it is settled");
    drop(copies);
    let dropped = stores.begin(&buffer, 0..1 << 16);
    drop(dropped);
    assert_eq!((stores.memory_bytes(), stores.members()[0].held_bytes), (0, 0));
}

#[test]
fn compressed_memory_leaves_the_host_its_reserve_and_hands_over_to_the_next() {
    let spare = Arc::new(AtomicU64::new(100_000));
    let seen = spare.clone();
    let host = move || reserve::HostMemory {
        total_bytes: 64 << 20,
        available_bytes: (1 << 20) + seen.load(Ordering::SeqCst),
    };
    let packed = || Packed::new(u64::MAX / 2).beside(reserve::Reserve::of(host.clone()));
    let disk = Disk::open(&std::env::temp_dir(), 64 << 16, 1 << 16).unwrap();
    let both = Arc::new(Stores::new(vec![Box::new(packed()), Box::new(disk)], 1));
    spare.store(0, Ordering::SeqCst);
    let kept: Vec<_> = (0..20).map(|seed| both.put(&content(seed)).0).collect();
    assert_eq!((both.memory_bytes(), both.members()[1].held_bytes), (0, 20 << 16));
    all_right(&kept);
    let alone = Arc::new(Stores::new(vec![Box::new(packed())], 1));
    let (copy, refusal) = alone.put(&content(1));
    let told = refusal.unwrap().to_string();
    assert!(copy.is_stranded() && told.contains("hardly any memory") && told.contains("hint:"), "{told}");
    all_right(&[alone.put(&content(0)).0]);
    // Nothing is freed here, but the host has memory again.
    spare.store(1 << 30, Ordering::SeqCst);
    until("it moved", || !copy.is_stranded());
    assert!(alone.members()[0].memory_bytes >= 65536);
}

#[test]
fn back_ends_get_another_size_while_they_have_content_and_refuse_what_is_too_small() {
    let disk = Disk::open(&std::env::temp_dir(), 4 << 16, 1 << 16).unwrap();
    let name = disk.name().to_owned();
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(4 << 16)), Box::new(disk)], 2));
    let copies: Vec<_> = (0..4).map(|seed| stores.put(&content(seed))).collect();
    assert!(copies.iter().all(|(_, refusal)| refusal.is_none()));
    assert!(stores.put(&content(9)).1.is_some());
    for name in ["lz4", &name] {
        let told = stores.resize(name, 3 << 16).unwrap_err().to_string();
        assert!(told.contains(name) && told.contains("hint:"), "{told}");
        assert_eq!(state(&stores, name).limit_bytes, 4 << 16);
        stores.resize(name, 8 << 16).unwrap();
        assert_eq!(state(&stores, name).limit_bytes, 8 << 16);
    }
    let more: Vec<_> = (4..8).map(|seed| stores.put(&content(seed))).collect();
    assert!(more.iter().all(|(_, refusal)| refusal.is_none()));
    let all: Vec<_> = copies.into_iter().chain(more).map(|(copy, _)| copy).collect();
    all_right(&all);
    drop(all);
    for name in ["lz4", &name] {
        stores.resize(name, 1 << 16).unwrap();
    }
    let back = stores.put(&content(3));
    assert!(back.1.is_none() && stores.put(&content(4)).1.is_some());
    let fixed = Stores::new(vec![Box::new(Named::new("fixed", 1 << 20))], 1).resize("fixed", 1 << 30);
    assert!(matches!(fixed, Err(ResizeError::Fixed { .. })));
}

#[test]
fn what_is_taken_of_memory_is_known_at_its_most_and_how_content_compresses_from_samples() {
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 30))], 1));
    assert!((stores.compression(Codec::Lz4) - 1.0).abs() < 1e-9);
    let half = |seed: u8| [&content(seed)[..32768], &[seed; 32768]].concat();
    let copies: Vec<_> = (0..100).map(|seed| stores.put(&half(seed)).0).collect();
    for codec in [Codec::Lz4, Codec::Zstd] {
        let ratio = stores.compression(codec);
        assert!((1.8..2.1).contains(&ratio), "{ratio}");
    }
    let before = state(&stores, "lz4");
    assert_eq!(before.most, (before.memory_bytes, 100 << 16));
    drop(copies);
    let after = state(&stores, "lz4");
    assert_eq!((after.memory_bytes, after.most), (0, before.most));
}

#[test]
fn those_that_are_kept_must_be_enough_else_nothing_changes() {
    let named = |name| -> Box<dyn Store> { Box::new(Named::new(name, 1 << 30)) };
    let stores = Arc::new(Stores::new(vec![named("a"), named("b"), named("c")], 2));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let told = stores.keep_only(&names(&["c", "gone"]), 2).unwrap_err().to_string();
    assert!(told.contains("hint:"), "{told}");
    assert!(stores.members().iter().all(|member| member.life == Life::Active) && stores.copies() == 2);
    stores.keep_only(&names(&["c"]), 1).unwrap();
    until("they are gone", || {
        stores.members().iter().all(|member| member.name == "c" || member.life == Life::Gone)
    });
    assert!(!stores.has_said_fewer.load(Ordering::Relaxed));
}

/// A back end that takes so many contents, and then breaks; what it has can be read.
struct Ending {
    inner: Packed,
    left: AtomicU64,
}

impl Store for Ending {
    fn name(&self) -> &str {
        "ending"
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1..1000 => self.inner.put(content),
            _ => Err(StoreError::Failed { name: "ending".into(), reason: "over".into() }),
        }
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        self.inner.get(place, content)
    }

    fn free(&self, place: Place) {
        self.inner.free(place);
    }
}

#[test]
fn what_is_settled_together_is_all_there_whoever_is_full_or_fails_in_the_middle() {
    for (copies_each, small_bytes, left) in
        [(1, 150_000, 900), (1, 0, 3), (2, 150_000, 900), (2, 1 << 30, 11)]
    {
        let members: Vec<Box<dyn Store>> = vec![
            Box::new(Named::new("small", small_bytes)),
            Box::new(Ending { inner: Packed::new(1 << 30), left: AtomicU64::new(left) }),
            Box::new(Named::new("large", 1 << 30)),
        ];
        let stores = Arc::new(Stores::new(members, copies_each));
        let buffer = Arc::new((0..40).flat_map(content).collect::<Vec<u8>>());
        let copies: Vec<_> =
            (0..40).map(|part| stores.begin(&buffer, part << 16..(part + 1) << 16)).collect();
        for batch in copies.chunks(8) {
            stores.settle(batch);
        }
        assert!(copies.iter().all(|copy| !copy.is_here()) && Arc::strong_count(&buffer) == 1);
        // Somebody else had room each time.
        assert!(!stores.has_said_fewer.load(Ordering::Relaxed));
        let check = || {
            for (seed, copy) in (0..).zip(&copies) {
                let mut back = vec![0; copy.bytes()];
                copy.read(&mut back).unwrap();
                assert!(back == content(seed), "{seed}");
            }
        };
        check();
        if left < 100 {
            // One that was slow at first has had little until now.
            let one_more = || stores.put(&content(41)).0;
            let is_active = || state(&stores, "ending").life == Life::Active;
            let more: Vec<_> = std::iter::from_fn(|| is_active().then(one_more)).take(10_000).collect();
            // What failed gives what it has to the others.
            until("it is even", || state(&stores, "ending").held_bytes == 0);
            assert!(!is_active());
            drop(more);
        }
        check();
        drop(copies);
        until("all is free", || stores.members().iter().all(|member| member.held_bytes == 0));
    }
}

#[test]
fn a_disk_keeps_contents_of_every_length_together_as_alone_and_says_when_it_is_full() {
    let disk = Disk::open(&std::env::temp_dir(), 24 * 65536, 65536).unwrap();
    let lengths = [65536, 65536, 1, 4096, 65535, 4097, 65536, 12_288, 65536, 65536];
    let contents: Vec<Vec<u8>> =
        lengths.iter().zip(0..).map(|(length, seed)| content(seed)[..*length].to_vec()).collect();
    let slices: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let check = |places: &[Place]| {
        let mut back: Vec<Vec<u8>> = lengths.iter().map(|length| vec![9; *length]).collect();
        let parts = back.iter_mut().map(Vec::as_mut_slice);
        let mut wanted: Vec<(Place, &mut [u8])> = places.iter().copied().zip(parts).rev().collect();
        assert!(disk.get_all(&mut wanted).iter().all(Result::is_ok));
        assert!(back == contents);
        for (place, expected) in places.iter().zip(&contents) {
            let mut alone = vec![9; expected.len()];
            disk.get(*place, &mut alone).unwrap();
            assert!(alone == *expected);
        }
    };
    let put = || -> Vec<Place> { disk.put_all(&slices).into_iter().map(Result::unwrap).collect() };
    let (first, second) = (put(), put());
    check(&first);
    let last = disk.put_all(&slices);
    assert_eq!(last.iter().map(Result::is_ok).collect::<Vec<_>>(), [vec![true; 4], vec![false; 6]].concat());
    assert!(matches!(last[4], Err(StoreError::Full { .. })) && disk.put(&[7]).is_err());
    // Places that are no neighbours.
    for place in first.iter().step_by(2).chain(last.iter().flatten()).chain(first.iter().skip(1).take(1)) {
        disk.free(*place);
    }
    let third = put();
    check(&second);
    check(&third);
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

/// A back end under another name, which takes its time.
struct Named {
    name: &'static str,
    inner: Packed,
    pause_us: Arc<AtomicU64>,
}

impl Named {
    fn new(name: &'static str, bytes: u64) -> Self {
        Self { name, inner: Packed::new(bytes), pause_us: Arc::default() }
    }
}

impl Store for Named {
    fn name(&self) -> &str {
        self.name
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        std::thread::sleep(Duration::from_micros(self.pause_us.load(Ordering::Relaxed)));
        self.inner.put(content)
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        std::thread::sleep(Duration::from_micros(self.pause_us.load(Ordering::Relaxed)));
        self.inner.get(place, content)
    }

    fn free(&self, place: Place) {
        self.inner.free(place);
    }
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn all_right(copies: &[super::Copy]) {
    for (seed, copy) in copies.iter().enumerate() {
        let mut back = vec![0; copy.bytes()];
        copy.read(&mut back).unwrap();
        assert_eq!(back, content(seed as u8), "{seed}");
    }
}

fn state(stores: &Stores, name: &str) -> MemberState {
    stores.members().into_iter().rfind(|member| member.name == name).unwrap()
}

#[test]
fn what_is_retired_gives_everything_to_the_others_while_it_is_read() {
    let stores = Arc::new(Stores::new(vec![Box::new(Named::new("one", 1 << 30))], 1));
    let copies: Vec<_> = (0..100).map(|seed| stores.put(&content(seed)).0).collect();
    assert!(stores.retire("one").unwrap_err().to_string().contains("hint: add another"));
    assert!(stores.retire("three").unwrap_err().to_string().contains("one"));
    stores.add(Box::new(Named::new("two", 1 << 30))).unwrap();
    assert!(matches!(stores.add(Box::new(Named::new("two", 1 << 30))), Err(AddError::Known(_))));
    stores.retire("one").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..20).for_each(|_| all_right(&copies)));
        }
    });
    until("it is empty", || state(&stores, "one").life == Life::Gone);
    assert_eq!(state(&stores, "two").held_bytes, 100 << 16);
    all_right(&copies);
    let (late, _) = stores.put(&content(7));
    assert!(format!("{late:?}").contains("two"));
    drop((copies, late));
    assert_eq!(stores.memory_bytes(), 0);
}

/// Each content is in so many back ends.
fn are_in(copies: &[super::Copy], number: usize) -> bool {
    copies.iter().all(|copy| copy.0.places().at.len() == number)
}

#[test]
fn the_number_of_copies_goes_up_and_down_while_content_is_read_and_put() {
    let named = |name| -> Box<dyn Store> { Box::new(Named::new(name, 1 << 30)) };
    let stores = Arc::new(Stores::new(vec![named("one"), named("two"), named("three")], 1));
    let mut copies: Vec<_> = (0..100).map(|seed| stores.put(&content(seed)).0).collect();
    assert!(are_in(&copies, 1) && stores.is_even());
    for (number, late) in [(3, 100), (1, 101), (2, 102)] {
        stores.set_copies(number);
        std::thread::scope(|scope| {
            scope.spawn(|| all_right(&copies));
            scope.spawn(|| all_right(&copies));
        });
        copies.push(stores.put(&content(late)).0);
        until("it is even", || stores.is_even());
        assert!(are_in(&copies, number), "{number}");
        let held: u64 = stores.members().iter().map(|member| member.held_bytes).sum();
        assert_eq!(held, (copies.len() * number) as u64 * 65536);
        all_right(&copies);
    }
    assert!(stores.retire("one").is_ok() && stores.retire("two").is_err());
}

#[test]
fn copies_that_found_no_room_are_made_when_there_is_some() {
    let (large, small) = (Named::new("large", 1 << 30), Named::new("small", 150_000));
    let stores = Arc::new(Stores::new(vec![Box::new(large), Box::new(small)], 2));
    let copies: Vec<_> = (0..10).map(|seed| stores.put(&content(seed)).0).collect();
    assert!(!are_in(&copies, 2) && !stores.is_even() && copies.iter().all(|copy| !copy.is_stranded()));
    all_right(&copies);
    stores.add(Box::new(Named::new("more", 1 << 30))).unwrap();
    until("it is even", || stores.is_even());
    assert!(are_in(&copies, 2));
    all_right(&copies);
}

#[test]
fn who_puts_while_back_ends_come_and_go_loses_nothing() {
    let stores = Arc::new(Stores::new(vec![Box::new(Named::new("a", 1 << 30))], 1));
    stores.set_move_rate(u64::MAX);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in 0..3u8 {
            let (stores, is_over) = (&stores, &is_over);
            scope.spawn(move || {
                let mut kept: Vec<(u8, super::Copy)> = Vec::new();
                let mut seed = first;
                while !is_over.load(Ordering::Relaxed) {
                    seed = seed.wrapping_add(3);
                    kept.push((seed, stores.put(&content(seed)).0));
                    if kept.len() > 20 {
                        kept.remove(usize::from(seed) % 20);
                    }
                    let (seed, copy) = &kept[kept.len() / 2];
                    let mut back = vec![0; copy.bytes()];
                    copy.read(&mut back).unwrap();
                    assert!(back == content(*seed));
                }
            });
        }
        for (new, old) in [("b", "a"), ("c", "b"), ("a", "c"), ("b", "a"), ("d", "b")] {
            stores.add(Box::new(Named::new(new, 1 << 30))).unwrap();
            stores.retire(old).unwrap();
            until("it is empty", || {
                stores.members().iter().all(|state| state.name != old || state.life == Life::Gone)
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(stores.memory_bytes(), 0);
}

#[test]
fn the_number_of_copies_changes_while_content_moves_and_every_byte_stays_with_its_content() {
    let stores = Arc::new(Stores::new(
        ["a", "b", "c"].map(|name| Box::new(Named::new(name, 1 << 30)) as Box<dyn Store>).into(),
        1,
    ));
    stores.set_move_rate(u64::MAX);
    let copies: Vec<_> = (0..200).map(|seed| stores.put(&content(seed)).0).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut number, begun) = (1, Instant::now());
            // Not for ever where the other one panics.
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(120) {
                number = 3 - number;
                stores.set_copies(number);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for (new, old) in [("d", "a"), ("e", "b"), ("f", "c"), ("g", "d"), ("h", "e")] {
            stores.add(Box::new(Named::new(new, 1 << 30))).unwrap();
            stores.retire(old).unwrap();
            until("it is empty", || {
                stores.members().iter().all(|state| state.name != old || state.life == Life::Gone)
            });
            all_right(&copies);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    stores.set_copies(2);
    until("it is even", || stores.is_even());
    all_right(&copies);
    let held: u64 = stores.members().iter().map(|member| member.held_bytes).sum();
    assert_eq!(held, (2 * 200) << 16);
}

#[test]
fn a_back_end_that_fails_is_drained_and_gets_nothing_more() {
    let broken = Arc::new(AtomicBool::new(false));
    let fragile =
        Fragile { inner: Packed::new(1 << 30), broken: broken.clone(), lies: true, order: Mutex::new(()) };
    let others = [Box::new(Named::new("two", 1 << 30)), Box::new(Named::new("three", 1 << 30))];
    // So that the first one is read from.
    others.iter().for_each(|other| other.pause_us.store(2000, Ordering::Relaxed));
    let mut all: Vec<Box<dyn Store>> = vec![Box::new(fragile)];
    all.extend(others.map(|other| other as Box<dyn Store>));
    let stores = Arc::new(Stores::new(all, 2));
    let copies: Vec<_> = (0..60).map(|seed| stores.put(&content(seed)).0).collect();
    assert!(state(&stores, "fragile").held_bytes > 0);
    broken.store(true, Ordering::Relaxed);
    // Some of them are read from there first, and found wrong.
    until("it was found out", || {
        all_right(&copies);
        state(&stores, "fragile").life != Life::Active
    });
    until("it is empty", || state(&stores, "fragile").life == Life::Gone);
    all_right(&copies);
    assert_eq!(state(&stores, "two").held_bytes, 60 << 16);
    assert_eq!(state(&stores, "three").held_bytes, 60 << 16);
}

#[test]
fn a_back_end_that_slows_is_used_less_and_again_when_it_is_quick() {
    let (one, two) = (Named::new("one", 1 << 40), Named::new("two", 1 << 40));
    let (pause_one, pause_two) = (one.pause_us.clone(), two.pause_us.clone());
    let stores = Arc::new(Stores::new(vec![Box::new(one), Box::new(two)], 1));
    let share = |rounds: usize| {
        let before = (state(&stores, "one").put_bytes, state(&stores, "two").put_bytes);
        (0..rounds).for_each(|_| drop(stores.put(&[5; 65536])));
        let one = (state(&stores, "one").put_bytes - before.0) as f64;
        let two = (state(&stores, "two").put_bytes - before.1) as f64;
        two / (one + two)
    };
    // Slow enough that what else the machine does makes no difference.
    for pause in [&pause_one, &pause_two] {
        pause.store(3000, Ordering::Relaxed);
    }
    until("both are used", || (0.2..0.8).contains(&share(100)));
    pause_two.store(60_000, Ordering::Relaxed);
    until("it is used less", || share(100) < 0.2);
    pause_two.store(3000, Ordering::Relaxed);
    until("it is used again", || share(20) > 0.2);
}

#[test]
fn what_finds_no_room_has_a_limit_and_moves_when_there_is_room() {
    let stores = Arc::new(Stores::new(vec![Box::new(Named::new("small", 1 << 20))], 1));
    let mut copies = Vec::new();
    while !stores.is_full() {
        copies.push(stores.put(&content(copies.len() as u8)).0);
        assert!(copies.len() < 1100, "64 MiB are the limit");
    }
    all_right(&copies[..256]);
    stores.add(Box::new(Named::new("large", 1 << 30))).unwrap();
    until("all of it moved", || !stores.is_full() && copies.iter().all(|copy| !copy.is_stranded()));
    all_right(&copies[..256]);
    drop(copies);
    assert_eq!(stores.memory_bytes(), 0);
}

/// A back end that does not answer, and counts how often it was asked.
#[derive(Default)]
struct Silent(Arc<AtomicU64>);

impl Silent {
    fn asked<T>(&self) -> Result<T, StoreError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(StoreError::Failed { name: "silent".into(), reason: "no answer".into() })
    }
}

impl Store for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn put(&self, _content: &[u8]) -> Result<Place, StoreError> {
        self.asked()
    }

    fn get(&self, _place: Place, _content: &mut [u8]) -> Result<(), StoreError> {
        self.asked()
    }

    fn free(&self, _place: Place) {}
}

#[test]
fn a_back_end_that_does_not_answer_is_waited_for_once_and_not_for_each_content() {
    let silent = Silent::default();
    let asked = Arc::clone(&silent.0);
    let place = Place { at: 0, bytes: 1 };
    let mut bytes = [[0; 1]; 3];
    let mut wanted: Vec<_> = bytes.iter_mut().map(|part| (place, &mut part[..])).collect();
    assert_eq!(silent.get_all(&mut wanted).iter().filter(|result| result.is_err()).count(), 3);
    assert_eq!(asked.swap(0, Ordering::Relaxed), 1);
    let stores = Arc::new(Stores::new(vec![Box::new(silent), Box::new(Packed::new(1 << 20))], 2));
    let buffer = Arc::new(content(1));
    let copies: Vec<_> = (0..8).map(|part| stores.begin(&buffer, part * 512..(part + 1) * 512)).collect();
    assert!(stores.settle(&copies).is_some(), "fewer copies than were asked for");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    for (part, copy) in copies.iter().enumerate() {
        let mut back = vec![0; 512];
        copy.read(&mut back).unwrap();
        assert_eq!(back, buffer[part * 512..(part + 1) * 512]);
    }
}
