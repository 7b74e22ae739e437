//! Tests of fills while others read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::huge_pages::HugePageCounts;
use crate::userfault::Event;
use crate::{HUGE_PAGE_BYTES, poll};

const UNITS: usize = 4;
const BYTES: usize = UNITS * HUGE_PAGE_BYTES;

/// The word that belongs at an offset of the test file; never zero.
fn word_at(offset: usize) -> u64 {
    (offset as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

#[test]
fn a_filled_page_shows_its_bytes_in_another_mapping_and_a_hole_can_be_filled_again() {
    for kind in [PageKind::Base4K, PageKind::Huge2M] {
        let page = kind.page_bytes() as usize;
        if kind == PageKind::Huge2M && HugePageCounts::read().map_or(0, |counts| counts.obtainable()) < 2 {
            eprintln!("no huge pages on this machine: nothing to check");
            continue;
        }
        let file = MemoryFile::anonymous("filler-test", 2 * page as u64, kind).unwrap();
        let filler = PageFiller::new(&file).unwrap();
        let reader = Arc::new(file.map(0, 2 * page, MapOptions::default()).unwrap());
        for value in [7, 9] {
            filler.copy(page as u64, &vec![value; page]).unwrap();
            let mut seen = [0; 2];
            reader.slice().read_at(2 * page - 2, &mut seen).unwrap();
            assert_eq!(seen, [value; 2]);
            file.punch(page as u64, page as u64).unwrap();
        }
        filler.copy(0, &vec![1; page]).unwrap();
        filler.copy(0, &vec![2; page]).unwrap();
        let mut first = [0; 1];
        reader.slice().read_at(0, &mut first).unwrap();
        assert_eq!(first, [1], "what is there stays");
        assert!(matches!(filler.copy(1, &vec![0; page]), Err(OsError::Misaligned { .. })));
        assert!(matches!(filler.copy(0, &[0; 100]), Err(OsError::Misaligned { .. })));
        let behind = filler.copy(2 * page as u64, &vec![0; page]);
        assert!(matches!(behind, Err(OsError::OutOfBounds { .. })));
    }
}

/// One thread fills 2 MiB units, a second one punches them, a third one reads through a mapping whose missing faults wait
/// for the fill. The reader looks at pages at the front of the fill, where a page that is visible too early shows zeros.
#[test]
fn a_reader_never_sees_a_page_before_its_bytes() {
    let file = Arc::new(MemoryFile::anonymous("filled", BYTES as u64, PageKind::Base4K).unwrap());
    scan_while_filling(&file, HUGE_PAGE_BYTES, Duration::from_millis(1500));
}

#[test]
fn files_whose_pages_the_kernel_chooses_are_refused() {
    // Needs the right to mount; without it there are no huge pages of this kind to be tested.
    let Some(mount) = HugeMount::new() else { return };
    let file = MemoryFile::create(&mount.0.join("file"), BYTES as u64).unwrap();
    assert_eq!(file.kind(), PageKind::TransparentHuge);
    assert!(matches!(PageFiller::new(&file), Err(OsError::Unsupported { .. })));
}

/// A tmpfs with huge pages, unmounted when the test ends.
struct HugeMount(std::path::PathBuf);

impl HugeMount {
    fn new() -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only makes the names differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hinterland-filler-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let mounted = crate::huge_pages::mount_huge_tmpfs(&folder, 64 << 20).is_ok();
        mounted.then_some(Self(folder))
    }
}

impl Drop for HugeMount {
    fn drop(&mut self) {
        let _ = crate::huge_pages::unmount(&self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn scan_while_filling(file: &Arc<MemoryFile>, unit: usize, time: Duration) {
    let view = Arc::new(file.map(0, BYTES, MapOptions::default()).unwrap());
    let fault = Userfault::open(Features::MISSING_SHMEM).unwrap();
    let modes = FaultModes { missing: true, ..FaultModes::default() };
    fault.register(view.address(), BYTES as u64, modes).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let scans = Arc::new(AtomicU64::new(0));
    let filler = {
        let (file, stop, base) = (Arc::clone(file), Arc::clone(&stop), view.address());
        std::thread::spawn(move || fill_on_fault(&file, unit, &fault, base, &stop))
    };
    let reader = {
        let (stop, scans, slice) = (Arc::clone(&stop), Arc::clone(&scans), view.slice());
        std::thread::spawn(move || {
            let mut wrong = 0u64;
            // Relaxed: only ends the loop; what was counted is read after the join.
            while !stop.load(Ordering::Relaxed) {
                for page in (0..BYTES).step_by(crate::BASE_PAGE_BYTES) {
                    for offset in [page + 4088, page] {
                        wrong += u64::from(slice.load_u64(offset).unwrap() != word_at(offset));
                    }
                }
                // Relaxed: a counter that is read after the join.
                scans.fetch_add(1, Ordering::Relaxed);
            }
            wrong
        })
    };
    let end = Instant::now() + time;
    while Instant::now() < end {
        for start in (0..BYTES).step_by(HUGE_PAGE_BYTES) {
            file.punch(start as u64, HUGE_PAGE_BYTES as u64).unwrap();
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    // Relaxed: as above.
    stop.store(true, Ordering::Relaxed);
    assert_eq!(reader.join().unwrap(), 0, "a word was visible before it was written");
    let fills = filler.join().unwrap();
    // Relaxed: the reader has been joined.
    assert!(scans.load(Ordering::Relaxed) > 0 && fills > UNITS as u64, "the test must have raced");
}

/// Serves missing faults: fills the whole unit around each, then wakes who waits in it.
fn fill_on_fault(file: &MemoryFile, unit: usize, fault: &Userfault, base: u64, stop: &AtomicBool) -> u64 {
    let filler = PageFiller::new(file).unwrap();
    let mut bytes = vec![0; unit];
    let (mut events, mut fills) = (Vec::new(), 0);
    loop {
        if !poll::wait_readable(fault, Some(Duration::from_millis(20))).unwrap() {
            // Relaxed: only ends the loop. The reader may still wait for a fault until then, so this comes after it.
            if stop.load(Ordering::Relaxed) {
                return fills;
            }
            continue;
        }
        fault.read_events(&mut events).unwrap();
        for event in events.drain(..) {
            let Event::Fault(found) = event else { continue };
            let start = (found.address - base) as usize / unit * unit;
            for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = word_at(start + index * 8).to_le_bytes();
            }
            filler.copy(start as u64, &bytes).unwrap();
            fault.wake(base + start as u64, unit as u64).unwrap();
            fills += 1;
        }
    }
}
