//! What is said of files behind addresses, by both ways of asking, and of pages that are no longer the file's.

use super::*;
use crate::{MapOptions, Mapping, MemoryFile, PageKind};
use std::sync::Arc;

const BYTES: u64 = 64 << 10;

/// A private mapping of a file that may be written.
fn private(file: &MemoryFile) -> (u64, impl FnOnce()) {
    let descriptor = file.duplicate().unwrap();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: the kernel chooses the place.
    let place = unsafe {
        libc::mmap(std::ptr::null_mut(), BYTES as usize, protection, flags, descriptor.as_raw_fd(), 0)
    };
    assert_ne!(place, libc::MAP_FAILED);
    // SAFETY: mapped above, and unmapped once.
    (place.expose_provenance() as u64, move || unsafe { assert_eq!(libc::munmap(place, BYTES as usize), 0) })
}

fn write(address: u64) {
    // SAFETY: the tests write to their own mappings.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).write_volatile(7) };
}

fn read(address: u64) -> u8 {
    // SAFETY: as above.
    unsafe { std::ptr::with_exposed_provenance::<u8>(address as usize).read_volatile() }
}

#[test]
fn a_mapping_is_described_alike_by_the_question_and_by_the_text() {
    let file = MemoryFile::anonymous("described", BYTES, PageKind::Base4K).unwrap();
    let mapping = file.map(8192, 16384, MapOptions::default()).unwrap();
    let identity = FileIdentity::of(file.duplicate().unwrap().as_fd()).unwrap();
    let found = mapping_at(mapping.address() + 5000).unwrap().unwrap();
    assert_eq!((found.start, found.end), (mapping.address(), mapping.address() + 16384));
    assert_eq!((found.offset, found.file), (8192, identity));
    assert!(found.is_shared && !found.is_writable);
    assert!(found.name.starts_with("/memfd:described"), "{}", found.name);
    let text = search(open("/proc/self/maps").unwrap(), mapping.address() + 5000).unwrap();
    assert_eq!(text, Some(found));
}

#[test]
fn memory_of_no_file_has_none() {
    let memory = Arc::new(Mapping::anonymous(BYTES as usize, false).unwrap());
    for found in [mapping_at(memory.address()), search(open("/proc/self/maps").unwrap(), memory.address())] {
        assert_eq!(found.unwrap(), None);
    }
    assert_eq!(mapping_at(64).unwrap(), None, "nothing is mapped there");
}

#[test]
fn a_page_that_was_written_is_not_the_files_and_its_neighbours_are() {
    let file = MemoryFile::anonymous("copied", BYTES, PageKind::Base4K).unwrap();
    let (start, unmap) = private(&file);
    assert!(is_all_of_file(start, BYTES).unwrap(), "nothing was touched");
    (0..16).for_each(|page| assert_eq!(read(start + page * 4096), 0));
    assert!(is_all_of_file(start, BYTES).unwrap(), "reading makes no copies");
    write(start + 5 * 4096 + 17);
    assert!(!is_all_of_file(start, BYTES).unwrap());
    assert!(is_all_of_file(start, 5 * 4096).unwrap() && is_all_of_file(start + 6 * 4096, 4096).unwrap());
    // A range that touches one byte of the page touches the page.
    assert!(!is_all_of_file(start + 4096, 4 * 4096 + 1).unwrap());
    assert!(!is_all_of_file(start + 6 * 4096 - 1, 1).unwrap());
    // A copy stays a copy when the page may not be written any more, and when it says what the file says.
    let page = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start as usize);
    // SAFETY: the range is the mapping of this test.
    assert_eq!(unsafe { libc::mprotect(page, BYTES as usize, libc::PROT_READ) }, 0);
    assert!(!is_all_of_file(start, BYTES).unwrap());
    unmap();
}

#[test]
fn a_kept_file_keeps_its_identity() {
    let file = MemoryFile::anonymous("kept", BYTES, PageKind::Base4K).unwrap();
    let identity = FileIdentity::of(file.duplicate().unwrap().as_fd()).unwrap();
    keep(file.duplicate().unwrap(), 4096).unwrap();
    drop(file);
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(text.lines().filter_map(line).any(|mapping| mapping.file == identity));
}

#[test]
fn lines_that_are_none_are_passed_over() {
    for bad in ["", "a", "1-2", "1-2 rw-p", "x-2 rw-p 0 0:0 1 a", "1-2 rw-p 0 00 1 a", "1-2 rw-p 0 0:0 b a"] {
        assert_eq!(line(bad), None, "{bad}");
    }
    let good = line("7f00-7f10 rw-s 00001000 00:2a 77                 /a b c").unwrap();
    assert_eq!((good.start, good.end, good.offset, good.file.inode), (0x7f00, 0x7f10, 4096, 77));
    assert_eq!((good.name.as_str(), good.is_shared, good.is_writable), ("/a b c", true, true));
}
