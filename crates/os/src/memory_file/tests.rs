//! Tests of memory files on whatever pages this machine has.

use std::sync::Arc;

use super::*;

const WRITABLE: MapOptions =
    MapOptions { write: true, address: None, populate: false, huge: false, skip_fork: false, guarded: false };

#[test]
fn a_punched_hole_reads_as_zeros_in_a_mapping_that_saw_the_bytes() {
    let file = MemoryFile::anonymous("punch", 1 << 20, PageKind::Base4K).unwrap();
    let view = Arc::new(file.map(0, 1 << 20, WRITABLE).unwrap()).slice();
    view.fill(0, 1 << 20, 9).unwrap();
    assert_eq!(file.held_bytes().unwrap(), 1 << 20);
    file.punch(4096, 8192).unwrap();
    assert_eq!(file.held_bytes().unwrap(), (1 << 20) - 8192);
    assert_eq!(view.load_u64(4088).unwrap(), 0x0909_0909_0909_0909);
    assert_eq!(view.load_u64(4096).unwrap(), 0);
    assert!(file.punch(100, 4096).is_err());
    assert!(file.punch(0, 2 << 20).is_err());
}

#[test]
fn a_read_only_descriptor_cannot_be_mapped_writably_even_after_reopening() {
    let file = MemoryFile::anonymous("handed out", 4096, PageKind::Base4K).unwrap();
    let handed = MemoryFile::from_descriptor(file.reopen_read_only().unwrap()).unwrap();
    assert_eq!(handed.len(), 4096);
    assert_eq!(handed.map(0, 4096, WRITABLE).unwrap_err().errno(), Some(libc::EACCES));
    assert!(handed.map(0, 4096, MapOptions::default()).is_ok());
    assert!(handed.write_at(0, b"x").is_err());
}

#[test]
fn a_seal_stops_new_writers_and_leaves_the_existing_mapping() {
    let mut file = MemoryFile::anonymous("sealed", 4096, PageKind::Base4K).unwrap();
    let view = Arc::new(file.map(0, 4096, WRITABLE).unwrap()).slice();
    file.add_seals(Seals { future_write: true, shrink: true, ..Seals::default() }).unwrap();
    view.write_at(0, b"still").unwrap();
    let mut text = [0; 5];
    file.read_at(0, &mut text).unwrap();
    assert_eq!(&text, b"still");
    assert!(file.write_at(0, b"x").is_err());
    assert!(file.map(0, 4096, WRITABLE).is_err());
    assert!(file.resize(0).is_err());
}

#[test]
fn files_have_the_page_kind_of_their_file_system_and_refuse_to_be_made_twice() {
    let path = PathBuf::from(format!("/dev/shm/hinterland-os-test-{}", std::process::id()));
    let file = MemoryFile::create(&path, 12288).unwrap();
    assert_eq!(file.kind(), PageKind::Base4K);
    assert_eq!(MemoryFile::create(&path, 1).unwrap_err().errno(), Some(libc::EEXIST));
    file.write_at(12285, b"end").unwrap();
    assert!(file.write_at(12286, b"end").is_err());
    assert!(file.read_at(12286, &mut [0; 3]).is_err());
    let again = MemoryFile::open(&path, false).unwrap();
    assert_eq!(again.len(), 12288);
    file.remove().unwrap();
    assert!(MemoryFile::open(&path, false).is_err());
}

#[test]
fn a_descriptor_that_is_no_memory_is_refused() {
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(MemoryFile::from_descriptor(reader.into()).is_err());
    assert!(MemoryFile::open(Path::new("/dev/null"), true).is_err());
    assert!(MemoryFile::anonymous("a\0b", 1, PageKind::Base4K).is_err());
    assert!(MemoryFile::anonymous("device", 1, PageKind::Device).is_err());
}

#[test]
fn huge_files_refuse_lengths_that_are_no_multiple_of_the_page() {
    let result = MemoryFile::anonymous("huge", 4096, PageKind::Huge2M);
    assert!(matches!(result, Err(OsError::Misaligned { .. } | OsError::System { .. })));
}
