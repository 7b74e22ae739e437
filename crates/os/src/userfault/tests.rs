//! Tests of fault service between threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::{MapOptions, Mapping, MemoryFile, PageKind, poll};

const PAGE: u64 = BASE_PAGE_BYTES as u64;
const WRITABLE: MapOptions =
    MapOptions { write: true, address: None, populate: false, huge: false, skip_fork: false, guarded: false };

/// Waits for the next fault of a descriptor.
fn next_fault(fault: &Userfault) -> Fault {
    let mut events = Vec::new();
    loop {
        assert!(poll::wait_readable(fault, Some(Duration::from_secs(10))).unwrap(), "no fault came");
        fault.read_events(&mut events).unwrap();
        if let Some(Event::Fault(found)) = events.pop() {
            return found;
        }
    }
}

#[test]
fn a_missing_page_is_filled_in_the_file_and_continued() {
    let file = MemoryFile::anonymous("served", 16 * PAGE, PageKind::Base4K).unwrap();
    let view = Arc::new(file.map(0, 16 * BASE_PAGE_BYTES, MapOptions::default()).unwrap());
    let wanted = Features::MISSING_SHMEM.with(Features::MINOR_SHMEM).with(Features::THREAD_ID);
    let fault = Userfault::open(wanted).unwrap();
    let modes = FaultModes { missing: true, minor: true, write_protect: false };
    fault.register(view.address(), 16 * PAGE, modes).unwrap();
    let slice = view.slice();
    let reader = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for page in 0..16usize {
            seen.push(slice.load_u64(page * BASE_PAGE_BYTES).unwrap());
        }
        seen
    });
    let first = next_fault(&fault);
    assert_eq!((first.address, first.minor, first.write), (view.address(), false, false));
    assert_ne!(first.thread, 0);
    let hole = fault.continue_range(view.address(), PAGE, PAGE).unwrap_err();
    assert_eq!(hole.errno(), Some(libc::EFAULT));
    for page in 0..16u64 {
        file.write_at(page * PAGE, &(page + 100).to_le_bytes()).unwrap();
    }
    let filled = fault.continue_range(view.address(), 8 * PAGE, PAGE).unwrap();
    assert_eq!(filled, Filled { mapped_bytes: 8 * PAGE, present_bytes: 0 });
    let second = next_fault(&fault);
    assert_eq!((second.address, second.minor), (view.address() + 8 * PAGE, true));
    let filled = fault.continue_range(view.address() + 4 * PAGE, 12 * PAGE, PAGE).unwrap();
    assert_eq!(filled, Filled { mapped_bytes: 8 * PAGE, present_bytes: 4 * PAGE });
    assert_eq!(reader.join().unwrap(), (100..116).collect::<Vec<u64>>());
    assert_eq!(fault.read_events(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn anonymous_pages_are_copied_in_moved_and_poisoned() {
    let memory = Arc::new(Mapping::anonymous(16 * BASE_PAGE_BYTES, false).unwrap());
    let fault = Userfault::open(Features::MOVE.with(Features::POISON)).unwrap();
    let modes = FaultModes { missing: true, ..FaultModes::default() };
    fault.register(memory.address(), 16 * PAGE, modes).unwrap();
    let source = vec![7u8; 2 * BASE_PAGE_BYTES];
    // SAFETY: the vector has that many bytes.
    let filled = unsafe { fault.copy(memory.address(), source.as_ptr(), 2 * PAGE, PAGE) }.unwrap();
    assert_eq!(filled.mapped_bytes, 2 * PAGE);
    let to = memory.address() + 4 * PAGE;
    assert_eq!(fault.move_pages(to, memory.address(), 2 * PAGE, false).unwrap(), 2 * PAGE);
    let slice = memory.slice();
    assert_eq!(slice.load_u64(5 * BASE_PAGE_BYTES).unwrap(), 0x0707_0707_0707_0707);
    let hole = fault.move_pages(to + 4 * PAGE, memory.address(), PAGE, false).unwrap_err();
    assert_eq!(hole.errno(), Some(libc::ENOENT));
    assert_eq!(fault.zero(memory.address(), PAGE).unwrap().mapped_bytes, PAGE);
    assert_eq!(slice.load_u64(0).unwrap(), 0);
    let lost = memory.address() + 8 * PAGE;
    assert_eq!(fault.poison(lost, PAGE, PAGE).unwrap().mapped_bytes, PAGE);
    fault.unregister(memory.address(), 16 * PAGE).unwrap();
    // A system call on a poisoned page is refused, where a load would be SIGBUS.
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the kernel checks the address and refuses it.
    let result =
        unsafe { libc::write(writer.as_raw_fd(), slice.as_ptr().add(8 * BASE_PAGE_BYTES).cast(), 8) };
    assert_eq!(result, -1);
}

#[test]
fn write_protection_tells_of_the_first_write_only() {
    let file = MemoryFile::anonymous("protected", 4 * PAGE, PageKind::Base4K).unwrap();
    let view = Arc::new(file.map(0, 4 * BASE_PAGE_BYTES, WRITABLE).unwrap());
    let slice = view.slice();
    slice.fill(0, 4 * BASE_PAGE_BYTES, 1).unwrap();
    let fault = Userfault::open(Features::WRITE_PROTECT_SHARED).unwrap();
    let modes = FaultModes { write_protect: true, ..FaultModes::default() };
    fault.register(view.address(), 4 * PAGE, modes).unwrap();
    fault.write_protect(view.address(), 4 * PAGE, true).unwrap();
    let writer = std::thread::spawn(move || slice.store_u64(BASE_PAGE_BYTES, 5).unwrap());
    let found = next_fault(&fault);
    assert!(found.write_protect && found.write);
    assert_eq!(found.address, view.address() + PAGE);
    fault.write_protect(found.address, PAGE, false).unwrap();
    writer.join().unwrap();
    assert_eq!(view.slice().load_u64(BASE_PAGE_BYTES).unwrap(), 5);
}

#[test]
fn unmapping_a_served_range_is_told() {
    let memory = Mapping::anonymous(4 * BASE_PAGE_BYTES, false).unwrap();
    let fault = Userfault::open(Features::EVENT_UNMAP.with(Features::EVENT_REMOVE)).unwrap();
    let modes = FaultModes { missing: true, ..FaultModes::default() };
    let address = memory.address();
    fault.register(address, 4 * PAGE, modes).unwrap();
    let thread = std::thread::spawn(move || drop(memory));
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(poll::wait_readable(&fault, Some(Duration::from_secs(10))).unwrap());
        fault.read_events(&mut events).unwrap();
    }
    thread.join().unwrap();
    let whole = address + 4 * PAGE;
    assert!(matches!(events[0], Event::Unmap { start, end } if start == address && end == whole));
    assert!(fault.continue_range(address, PAGE, PAGE).is_err());
}

#[test]
fn features_that_no_kernel_has_are_refused() {
    assert!(matches!(Userfault::open(Features(1 << 60)), Err(OsError::Unsupported { .. })));
    let (features, _) = Userfault::available().unwrap();
    assert!(features.contains(Features::MISSING_SHMEM.with(Features::MINOR_SHMEM)));
}

#[test]
fn a_descriptor_that_is_no_userfaultfd_cannot_feed_events() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut message = [0u8; 32];
    message[0] = 0x13;
    message[8] = writer.as_raw_fd() as u8;
    std::io::Write::write_all(&mut writer, &message).unwrap();
    let fake = Userfault::from_descriptor(reader.into(), Scope::Full);
    let mut events = Vec::new();
    assert!(!fake.is_genuine());
    assert!(matches!(fake.read_events(&mut events), Err(OsError::Refused { .. })));
    assert!(matches!(fake.wake(0, PAGE), Err(OsError::Refused { .. })));
    assert!(events.is_empty());
    std::io::Write::write_all(&mut writer, b"still open").unwrap();
}

#[test]
fn a_descriptor_that_its_program_made_blocking_does_not_stop_us() {
    let made = Userfault::open(Features::NONE).unwrap();
    let copy = made.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: plain values; the flag belongs to the description that both descriptors share.
    unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_SETFL, 0) };
    let taken = Userfault::from_descriptor(copy, Scope::Full);
    assert!(taken.is_genuine());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        sender.send(taken.read_events(&mut Vec::new()).map_err(|error| error.to_string()))
    });
    assert_eq!(receiver.recv_timeout(Duration::from_secs(10)).unwrap(), Ok(0));
}

#[test]
fn a_huge_page_is_continued_and_a_punched_one_faults_again() {
    let huge = crate::HUGE_PAGE_BYTES as u64;
    // Needs two huge pages, or the right to have them made.
    let Ok(claim) = crate::huge_pages::claim_overcommit(4) else { return };
    let file = MemoryFile::anonymous("huge", 2 * huge, PageKind::Huge2M).unwrap();
    let enough = file.allocate(0, 2 * huge).is_ok();
    if enough {
        serve_huge_pages(&file, huge);
    }
    drop(file);
    crate::huge_pages::set_overcommit(claim).unwrap();
}

fn serve_huge_pages(file: &MemoryFile, huge: u64) {
    let bytes = 2 * crate::HUGE_PAGE_BYTES;
    let own = Arc::new(file.map(0, bytes, WRITABLE).unwrap()).slice();
    own.store_u64(crate::HUGE_PAGE_BYTES + 8, 77).unwrap();
    let view = Arc::new(file.map(0, bytes, MapOptions::default()).unwrap());
    let fault = Userfault::open(Features::MISSING_HUGETLBFS.with(Features::MINOR_HUGETLBFS)).unwrap();
    let modes = FaultModes { missing: true, minor: true, write_protect: false };
    fault.register(view.address(), 2 * huge, modes).unwrap();
    for expected in [77, 78] {
        let slice = view.slice();
        let reader = std::thread::spawn(move || slice.load_u64(crate::HUGE_PAGE_BYTES + 8).unwrap());
        let found = next_fault(&fault);
        assert_eq!((found.address, found.minor), (view.address() + huge, expected == 77));
        if !found.minor {
            file.allocate(huge, huge).unwrap();
            own.store_u64(crate::HUGE_PAGE_BYTES + 8, 78).unwrap();
        }
        let filled = fault.continue_range(found.address, huge, huge).unwrap();
        assert_eq!(filled, Filled { mapped_bytes: huge, present_bytes: 0 });
        assert_eq!(reader.join().unwrap(), expected);
        let again = fault.continue_range(found.address, huge, huge).unwrap();
        assert_eq!(again, Filled { mapped_bytes: 0, present_bytes: huge });
        file.punch(huge, huge).unwrap();
    }
}
