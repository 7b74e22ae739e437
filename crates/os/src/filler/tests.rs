//! Tests of fills while others read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::userfault::{Event, FaultModes, Features, Userfault};
use crate::{HUGE_PAGE_BYTES, MapOptions, MemoryFile, PageKind, poll};

const UNITS: usize = 4;
const BYTES: usize = UNITS * HUGE_PAGE_BYTES;

/// The word that belongs at an offset of the test file; never zero.
fn word_at(offset: usize) -> u64 {
    (offset as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

#[test]
fn bytes_arrive_at_their_offsets_also_in_batches() {
    let mut writer = FixedWriter::new(3, 10_000).unwrap();
    assert_eq!(writer.buffer_bytes(), 12_288);
    let file = MemoryFile::anonymous("batch", 1 << 20, PageKind::Base4K).unwrap();
    for index in 0..3 {
        writer.buffer(index).fill(index as u8 + 1);
    }
    let writes: Vec<Write> = (0..3)
        .map(|index| Write { buffer: index, bytes: 4096 << (index % 2), offset: index as u64 * 102_400 })
        .collect();
    writer.write_all(&file, &writes).unwrap();
    for (index, write) in writes.iter().enumerate() {
        let mut back = vec![0; write.bytes + 1];
        file.read_at(write.offset, &mut back).unwrap();
        assert!(back[..write.bytes].iter().all(|&byte| byte == index as u8 + 1));
        assert_eq!(back[write.bytes], 0);
    }
    assert!(writer.write(&file, 3, 1, 0).is_err());
    assert!(writer.write(&file, 0, 12_289, 0).is_err());
    assert!(matches!(writer.write(&file, 0, 4000, 0), Err(OsError::Misaligned { .. })));
    assert!(matches!(writer.write(&file, 0, 4096, 100), Err(OsError::Misaligned { .. })));
    assert!(matches!(writer.write(&file, 0, 4096, 1 << 20), Err(OsError::OutOfBounds { .. })));
    writer.write(&file, 0, 4096, (1 << 20) - 4096).unwrap();
    let read_only = MemoryFile::from_descriptor(file.reopen_read_only().unwrap()).unwrap();
    assert_eq!(writer.write(&read_only, 0, 4096, 0).unwrap_err().errno(), Some(libc::EBADF));
    assert!(FixedWriter::new(0, 4096).is_err());
}

/// One thread fills 2 MiB units, a second one punches them, a third one reads through a mapping whose missing faults wait
/// for the fill. The reader looks at pages at the front of the fill, where a page that is visible too early shows zeros.
#[test]
fn a_reader_never_sees_a_page_before_its_bytes() {
    let file = Arc::new(MemoryFile::anonymous("filled", BYTES as u64, PageKind::Base4K).unwrap());
    scan_while_filling(&file, HUGE_PAGE_BYTES, Duration::from_millis(1500));
}

#[test]
fn a_reader_never_sees_a_huge_page_before_its_bytes() {
    // Needs the right to mount; without it there are no huge pages of this kind to be tested.
    let Some(mount) = HugeMount::new() else { return };
    let file = Arc::new(MemoryFile::create(&mount.0.join("filled"), BYTES as u64).unwrap());
    assert_eq!(file.kind(), PageKind::TransparentHuge);
    scan_while_filling(&file, HUGE_PAGE_BYTES, Duration::from_millis(1500));
}

#[test]
fn a_write_that_would_zero_the_rest_of_a_huge_page_is_refused() {
    let Some(mount) = HugeMount::new() else { return };
    let file = MemoryFile::create(&mount.0.join("partial"), BYTES as u64 - 5000).unwrap();
    let mut writer = FixedWriter::new(1, HUGE_PAGE_BYTES).unwrap();
    assert!(matches!(writer.write(&file, 0, 64 << 10, 0), Err(OsError::Misaligned { .. })));
    let last = BYTES as u64 - HUGE_PAGE_BYTES as u64;
    writer.buffer(0).fill(3);
    writer.write(&file, 0, HUGE_PAGE_BYTES - 5000, last).unwrap();
    let mut end = [0; 1];
    file.read_at(BYTES as u64 - 5001, &mut end).unwrap();
    assert_eq!(end, [3]);
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
    let mut writer = FixedWriter::new(1, unit).unwrap();
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
            for (index, word) in writer.buffer(0).as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = word_at(start + index * 8).to_le_bytes();
            }
            writer.write(file, 0, unit, start as u64).unwrap();
            fault.wake(base + start as u64, unit as u64).unwrap();
            fills += 1;
        }
    }
}
