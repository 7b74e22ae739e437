//! Tests of the store on real files of 4 KiB pages.

use super::*;
use std::sync::atomic::AtomicU32;

struct Folders {
    root: PathBuf,
}

impl Folders {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = PathBuf::from(format!("/dev/shm/hinterland-holdings-{}-{unique}", std::process::id()));
        fs::create_dir_all(root.join("bytes")).unwrap();
        Self { root }
    }

    fn open(&self, capacity_bytes: u64) -> (Holdings, Vec<String>) {
        Holdings::open(&self.root.join("bytes"), None, &self.root.join("state"), capacity_bytes).unwrap()
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

fn name() -> ObjectName {
    ObjectName::parse("a").unwrap()
}

const MIB: u64 = 1 << 20;

#[test]
fn a_sealed_object_is_there_after_a_restart_and_half_a_put_is_not() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    let one = holdings.create(ObjectId(1), Epoch(5), name(), 3 * MIB, [0; 16]).unwrap();
    one.slice(0, 5).unwrap().write_at(0, b"hello").unwrap();
    let digest = holdings.seal(ObjectId(1), 3 * MIB).unwrap();
    holdings.create(ObjectId(2), Epoch(5), name(), MIB, [0; 16]).unwrap();
    drop(holdings);

    let (holdings, dropped) = folders.open(100 * MIB);
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert!(matches!(holdings.find(ObjectId(2)), Err(HoldingError::Absent(_))));
    let one = holdings.find(ObjectId(1)).unwrap();
    let mut text = [0; 5];
    one.slice(0, 5).unwrap().read_at(0, &mut text).unwrap();
    assert_eq!(&text, b"hello");
    assert_eq!((one.digest(), one.epoch(), one.is_sealed()), (digest, Epoch(5), true));
    assert_eq!(one.compute_blocks(3 * MIB).unwrap(), *one.blocks());
    assert_eq!(holdings.used_bytes(), 4 * MIB);
}

#[test]
fn an_object_that_was_sealed_under_another_name_has_it_after_a_restart() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    let published = ObjectName::parse("folder/file").unwrap();
    for object in [ObjectId(1), ObjectId(2)] {
        holdings.create(object, Epoch(5), name(), MIB, [0; 16]).unwrap();
    }
    holdings.seal_as(ObjectId(1), MIB, Some(&published)).unwrap();
    holdings.seal_as(ObjectId(2), MIB, None).unwrap();
    assert_eq!(holdings.find(ObjectId(1)).unwrap().name(), published);
    drop(holdings);
    let (holdings, _) = folders.open(100 * MIB);
    assert_eq!(holdings.find(ObjectId(1)).unwrap().name(), published);
    assert_eq!(holdings.find(ObjectId(2)).unwrap().name(), name());
}

#[test]
fn a_sealed_object_that_was_renamed_has_its_name_and_its_checksums_after_a_restart() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    let renamed = ObjectName::parse("folder/renamed").unwrap();
    let holding = holdings.create(ObjectId(1), Epoch(5), name(), MIB, [0; 16]).unwrap();
    assert!(matches!(holdings.rename(ObjectId(1), &renamed), Err(HoldingError::State { .. })));
    holding.slice(0, MIB).unwrap().write_at(70_000, b"bytes").unwrap();
    let digest = holdings.seal(ObjectId(1), MIB).unwrap();
    holdings.rename(ObjectId(1), &renamed).unwrap();
    assert!(matches!(holdings.rename(ObjectId(2), &renamed), Err(HoldingError::Absent(_))));
    drop((holding, holdings));
    let (holdings, dropped) = folders.open(100 * MIB);
    assert_eq!(dropped, [""; 0]);
    let holding = holdings.find(ObjectId(1)).unwrap();
    assert_eq!((holding.name(), holding.epoch(), holding.digest()), (renamed, Epoch(5), digest));
}

#[test]
fn a_region_of_before_the_machine_was_started_anew_is_gone_and_a_sealed_object_is_not() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    holdings.create(ObjectId(1), Epoch(5), name(), MIB, [0; 16]).unwrap();
    holdings.seal(ObjectId(1), MIB).unwrap();
    holdings.create_region(ObjectId(2), Epoch(5), ObjectName::parse("b").unwrap(), MIB).unwrap();
    drop(holdings);
    let (holdings, dropped) = folders.open(100 * MIB);
    assert!(dropped.is_empty() && holdings.find(ObjectId(2)).is_ok(), "{dropped:?}");
    drop(holdings);
    fs::write(folders.root.join("state/boot"), "00000000-0000-0000-0000-000000000000\n").unwrap();
    for is_first in [true, false] {
        let (holdings, dropped) = folders.open(100 * MIB);
        assert_eq!(dropped.iter().any(|words| words.contains("started anew")), is_first, "{dropped:?}");
        assert!(holdings.find(ObjectId(1)).is_ok());
        assert!(matches!(holdings.find(ObjectId(2)), Err(HoldingError::Absent(_))));
    }
}

#[test]
fn a_note_of_the_machines_start_that_a_crash_emptied_is_of_another_start() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    holdings.create_region(ObjectId(2), Epoch(5), ObjectName::parse("b").unwrap(), MIB).unwrap();
    drop(holdings);
    let note = folders.root.join("state/boot");
    let noted = fs::read_to_string(&note).unwrap();
    fs::write(&note, "").unwrap();
    let (holdings, dropped) = folders.open(100 * MIB);
    assert!(dropped.iter().any(|words| words.contains("started anew")), "{dropped:?}");
    assert!(holdings.find(ObjectId(2)).is_err());
    assert_eq!(fs::read_to_string(&note).unwrap(), noted);
    assert!(!note.with_extension("partial").exists());
}

#[test]
fn an_object_larger_than_the_node_is_refused_and_nothing_leaks() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(4 * MIB);
    let refused = holdings.create(ObjectId(1), Epoch(0), name(), 5 * MIB, [0; 16]);
    assert!(matches!(refused, Err(HoldingError::Full { needed, .. }) if needed == 6 * MIB));
    assert_eq!(holdings.used_bytes(), 0);
    assert_eq!(fs::read_dir(folders.root.join("bytes")).unwrap().count(), 0);
    holdings.create(ObjectId(1), Epoch(0), name(), 2 * MIB, [0; 16]).unwrap();
    assert!(matches!(holdings.grow(ObjectId(1), 9 * MIB), Err(HoldingError::Full { .. })));
    assert_eq!(holdings.used_bytes(), 2 * MIB);
    holdings.drop_object(ObjectId(1));
    assert_eq!(holdings.used_bytes(), 0);
}

#[test]
fn a_stream_grows_and_keeps_its_bytes() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    let one = holdings.create(ObjectId(1), Epoch(0), name(), 0, [0; 16]).unwrap();
    one.slice(0, 1).unwrap().write_at(0, b"x").unwrap();
    holdings.grow(ObjectId(1), 10 * MIB).unwrap();
    one.slice(10 * MIB - 1, 1).unwrap().write_at(0, b"y").unwrap();
    let mut first = [0];
    one.slice(0, 1).unwrap().read_at(0, &mut first).unwrap();
    assert_eq!(&first, b"x");
    holdings.seal(ObjectId(1), 10 * MIB).unwrap();
    assert!(matches!(holdings.grow(ObjectId(1), 11 * MIB), Err(HoldingError::State { .. })));
}

#[test]
fn a_header_or_bytes_that_cannot_be_looked_at_drop_nothing() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    for object in [ObjectId(1), ObjectId(2)] {
        holdings.create(object, Epoch(5), name(), MIB, [0; 16]).unwrap();
        holdings.seal(object, MIB).unwrap();
    }
    drop(holdings);
    for path in ["state/objects/0000000000000001.object", "bytes/0000000000000001.bytes"] {
        let (path, kept) = (folders.root.join(path), folders.root.join("kept"));
        fs::rename(&path, &kept).unwrap();
        // A link to itself is there and cannot be opened, as any file without descriptors.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let opened =
            Holdings::open(&folders.root.join("bytes"), None, &folders.root.join("state"), 100 * MIB);
        assert!(opened.is_err());
        fs::rename(&kept, &path).unwrap();
    }
    let (holdings, dropped) = folders.open(100 * MIB);
    assert!(dropped.is_empty(), "{dropped:?}");
    assert!([ObjectId(1), ObjectId(2)].iter().all(|object| holdings.find(*object).is_ok()));
}

#[test]
fn a_damaged_header_drops_the_object_and_says_so() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    holdings.create(ObjectId(9), Epoch(0), name(), MIB, [0; 16]).unwrap();
    holdings.seal(ObjectId(9), MIB).unwrap();
    let path = holdings.header_path(ObjectId(9));
    drop(holdings);
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (holdings, dropped) = folders.open(100 * MIB);
    assert!(dropped[0].contains("checksum"), "{dropped:?}");
    assert!(holdings.find(ObjectId(9)).is_err());
    assert_eq!(holdings.used_bytes(), 0);
}

#[test]
fn a_sealed_stream_gives_back_the_room_that_it_did_not_use() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    holdings.create(ObjectId(1), Epoch(0), name(), 0, [0; 16]).unwrap();
    holdings.grow(ObjectId(1), 20 * MIB).unwrap();
    assert_eq!(holdings.used_bytes(), 20 * MIB);
    holdings.seal(ObjectId(1), 3 * MIB).unwrap();
    assert_eq!(holdings.used_bytes(), 4 * MIB);
    holdings.drop_object(ObjectId(1));
    assert_eq!(holdings.used_bytes(), 0);
}

/// Makes a sealed object, as a heat copy or as another one.
fn sealed(holdings: &Holdings, object: u64, bytes: u64, is_heat_copy: bool) {
    let (object, epoch) = (ObjectId(object), Epoch(0));
    let made = if is_heat_copy {
        holdings.create_heat_copy(object, epoch, name(), bytes, [0; 16])
    } else {
        holdings.create(object, epoch, name(), bytes, [0; 16])
    };
    made.unwrap();
    holdings.seal(object, bytes).unwrap();
}

#[test]
fn heat_copies_make_way_for_others_and_not_for_each_other() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(8 * MIB);
    let holdings = Arc::new(holdings);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (weak, seen) = (Arc::downgrade(&holdings), Arc::clone(&asked));
    holdings.when_full(Box::new(move |bytes| {
        seen.lock().unwrap().push(bytes);
        let holdings = weak.upgrade().unwrap();
        let copy = holdings.all().into_iter().find(|holding| holding.is_heat_copy());
        copy.is_some_and(|copy| {
            holdings.drop_object(copy.object);
            true
        })
    }));
    sealed(&holdings, 1, 4 * MIB, true);
    sealed(&holdings, 2, 2 * MIB, true);
    assert_eq!((holdings.heat_room(ObjectId(1)), holdings.heat_room(ObjectId(9))), (Some(4 * MIB), None));
    let refused = holdings.create_heat_copy(ObjectId(3), Epoch(0), name(), 4 * MIB, [0; 16]);
    assert!(matches!(refused, Err(HoldingError::Full { .. })) && asked.lock().unwrap().is_empty());
    sealed(&holdings, 4, 4 * MIB, false);
    assert_eq!(*asked.lock().unwrap(), [2 * MIB]);
    assert!(holdings.find(ObjectId(1)).is_err() && holdings.find(ObjectId(2)).is_ok());
    // A stream that grows is given way to as well; what no copy can make room for is refused.
    holdings.create(ObjectId(5), Epoch(0), name(), 0, [0; 16]).unwrap();
    assert!(matches!(holdings.grow(ObjectId(5), 8 * MIB), Err(HoldingError::Full { .. })));
    assert!(holdings.find(ObjectId(2)).is_err() && holdings.find(ObjectId(4)).is_ok());
    let refused = holdings.create(ObjectId(6), Epoch(0), name(), 9 * MIB, [0; 16]);
    assert!(matches!(refused, Err(HoldingError::Full { .. })));
}

#[test]
fn only_heat_copies_count_who_uses_them() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(8 * MIB);
    sealed(&holdings, 1, MIB, true);
    sealed(&holdings, 2, MIB, false);
    let (heat, other) = (holdings.find(ObjectId(1)).unwrap(), holdings.find(ObjectId(2)).unwrap());
    let open = heat.open_heat_copy();
    assert!(open.is_some() && other.open_heat_copy().is_none());
    assert_eq!((heat.heat_uses(), other.heat_uses()), ((1, true), (0, false)));
    drop(open);
    heat.note_use();
    assert_eq!(heat.heat_uses(), (2, false));
    assert!(heat.take_heat_mark() && !heat.take_heat_mark());
    heat.note_use();
    assert_eq!(heat.heat_uses(), (2, false));
}

#[test]
fn whoever_drops_a_region_tells_of_it_and_a_sealed_object_is_nothing_to_tell_of() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(100 * MIB);
    let told = Arc::new(AtomicU32::new(0));
    let tells = Arc::clone(&told);
    holdings.when_region_goes(Box::new(move || {
        tells.fetch_add(1, Ordering::AcqRel);
    }));
    holdings.create_part(ObjectId(1), Epoch(1), name(), 4 * MIB).unwrap();
    holdings.create_region(ObjectId(2), Epoch(1), name(), 4 * MIB).unwrap();
    sealed(&holdings, 3, MIB, false);
    for object in 1..=3 {
        holdings.drop_object(ObjectId(object));
    }
    assert_eq!(told.load(Ordering::Acquire), 2);
    holdings.drop_object(ObjectId(1));
    assert_eq!(told.load(Ordering::Acquire), 2, "it has gone already");
}

/// Runs `make` in four threads at once.
fn at_once<T: Send>(make: impl Fn() -> T + Sync) -> Vec<T> {
    let together = std::sync::Barrier::new(4);
    let make_together = || {
        together.wait();
        make()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(make_together)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_part_that_several_threads_make_at_once_is_one_and_keeps_its_bytes() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(400 * MIB);
    for number in 1..=40 {
        let made = at_once(|| holdings.create_part(ObjectId(number), Epoch(1), name(), 2 * MIB).unwrap());
        let kept = holdings.find(ObjectId(number)).unwrap();
        assert!(made.iter().all(|part| Arc::ptr_eq(part, &kept)), "part {number}");
        holdings.add_page(&made[0], 0).unwrap();
        made[0].slice(0, 8).unwrap().write_at(0, &number.to_le_bytes()).unwrap();
    }
    drop(holdings);
    let (holdings, dropped) = folders.open(400 * MIB);
    assert!(dropped.is_empty(), "{dropped:?}");
    for number in 1..=40_u64 {
        let mut found = [0; 8];
        holdings.find(ObjectId(number)).unwrap().slice(0, 8).unwrap().read_at(0, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), number);
    }
}

#[test]
fn of_several_threads_that_make_an_object_one_does_and_its_room_is_taken_once() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(400 * MIB);
    for number in 1..=40 {
        let made = at_once(|| holdings.create(ObjectId(number), Epoch(1), name(), 2 * MIB, [1; 16]));
        let (ours, others): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        assert_eq!(ours.len(), 1);
        assert!(others.iter().all(|other| matches!(other, Err(HoldingError::Exists(_)))));
        assert_eq!(holdings.used_bytes(), 2 * MIB);
        at_once(|| holdings.drop_object(ObjectId(number)));
        assert_eq!(holdings.used_bytes(), 0);
    }
}

#[test]
fn the_room_of_a_page_that_is_coming_when_its_region_goes_is_given_back_once() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(8 * MIB);
    let part = holdings.create_part(ObjectId(1), Epoch(1), name(), 8 * MIB).unwrap();
    for index in [0, 1] {
        holdings.add_page(&part, index).unwrap();
    }
    holdings.create_region(ObjectId(2), Epoch(2), name(), 4 * MIB).unwrap();
    holdings.drop_object(ObjectId(1));
    assert_eq!(holdings.used_bytes(), 4 * MIB);
    // Whoever moved them hears that the region is gone, and lets go of what came or went.
    for index in [0, 1] {
        holdings.drop_page(&part, index).unwrap();
    }
    assert_eq!(holdings.used_bytes(), 4 * MIB);
    // One that begins behind that takes no room that nobody would give back.
    assert!(matches!(holdings.add_page(&part, 2), Err(HoldingError::Absent(ObjectId(1)))));
    assert!(matches!(holdings.settle_pages(&part, 4, |_| true), Err(HoldingError::Absent(ObjectId(1)))));
    assert_eq!(holdings.used_bytes(), 4 * MIB);
    holdings.drop_object(ObjectId(2));
    assert_eq!(holdings.used_bytes(), 0);
    holdings.create(ObjectId(3), Epoch(3), name(), 8 * MIB, [0; 16]).unwrap();
}

#[test]
fn a_stream_that_asks_for_room_as_it_is_dropped_or_sealed_has_none_of_it_afterwards() {
    let folders = Folders::new();
    let (holdings, _) = folders.open(64 * MIB);
    // Both stand before the memory, that which came first in front.
    let at_once = |first: &(dyn Fn() + Sync), second: &(dyn Fn() + Sync)| {
        let reads = holdings.create(ObjectId(1), Epoch(1), name(), 4096, [0; 16]).unwrap();
        let memory = reads.memory.read().unwrap();
        let pause = || std::thread::sleep(std::time::Duration::from_millis(20));
        std::thread::scope(|scope| {
            scope.spawn(first);
            pause();
            scope.spawn(second);
            pause();
            drop(memory);
        });
    };
    // It comes too late, or not.
    let grow = || drop(holdings.grow(ObjectId(1), 6 * MIB));
    let seal = || assert!(holdings.seal(ObjectId(1), 4096).is_ok());
    let remove = || holdings.drop_object(ObjectId(1));
    for _ in 0..5 {
        at_once(&grow, &remove);
        assert_eq!(holdings.used_bytes(), 0, "dropped");
        at_once(&seal, &grow);
        let sealed = holdings.find(ObjectId(1)).unwrap();
        assert_eq!((sealed.bytes(), holdings.used_bytes()), (4096, 4096), "sealed");
        remove();
    }
}
