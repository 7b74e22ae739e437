//! The instructions on real memory: nothing gets lost, and nothing beside the range changes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use super::*;
use crate::mapping::Mapping;
use std::sync::Arc;

fn memory(bytes: usize) -> SharedSlice {
    Arc::new(Mapping::anonymous(bytes, false).unwrap()).slice()
}

#[test]
fn pieces_of_any_length_are_streamed_as_one_and_end_in_zeros() {
    let memory = FlushedSlice::new(memory(1 << 16)).unwrap();
    let source: Vec<u8> = (0..5000_u32).map(|number| (number * 7 + 1) as u8).collect();
    for lengths in
        [&[64][..], &[1], &[63, 1], &[65, 63], &[5, 5, 200, 0, 3], &[127, 129, 1], &[4096, 1], &[0]]
    {
        memory.slice().fill(0, 1 << 16, 0xee).unwrap();
        let mut rest = &source[..];
        let pieces: Vec<&[u8]> = lengths.iter().map(|&length| rest.split_off(..length).unwrap()).collect();
        let bytes: usize = lengths.iter().sum();
        // A piece too many is counted and not stored.
        let more = [&source[..9]];
        assert_eq!(memory.stream(128, bytes, pieces.into_iter().chain(more)).unwrap(), bytes + 9);
        memory.fence();
        let end = 128 + bytes.next_multiple_of(LINE_BYTES);
        let mut found = vec![0; 1 << 16];
        memory.refresh(0, 1 << 16);
        memory.slice().read_at(0, &mut found).unwrap();
        assert_eq!(found[128..128 + bytes], source[..bytes], "{lengths:?}");
        assert!(found[128 + bytes..end].iter().all(|&byte| byte == 0), "{lengths:?}");
        assert!(found[..128].iter().chain(&found[end..]).all(|&byte| byte == 0xee), "{lengths:?}");
    }
}

#[test]
fn what_cannot_be_streamed_is_refused_before_a_byte_is_stored() {
    let memory = FlushedSlice::new(memory(4096)).unwrap();
    assert!(matches!(memory.stream(32, 1, [&b"x"[..]]), Err(OsError::Misaligned { .. })));
    assert!(matches!(memory.stream(4032, 65, [&[1; 65][..]]), Err(OsError::OutOfBounds { .. })));
    assert!(memory.stream(64, usize::MAX, [&[1; 65][..]]).is_err());
    assert!(FlushedSlice::new(memory.slice().sub(8, 64).unwrap()).is_err());
    let mut found = [0; 4096];
    memory.slice().read_at(0, &mut found).unwrap();
    assert_eq!(found, [0; 4096]);
}

#[test]
fn lines_that_are_moved_keep_their_stores_and_ranges_outside_are_left_out() {
    let memory = FlushedSlice::new(memory(8192)).unwrap();
    for offset in (0..8192).step_by(8) {
        memory.slice().store_u64(offset, offset as u64).unwrap();
        memory.write_back(offset, 8);
        memory.fence();
        memory.refresh(offset, 1);
        assert_eq!(memory.slice().load_u64(offset).unwrap(), offset as u64);
    }
    for (offset, bytes) in [(0, 0), (8191, 100), (9000, 5), (usize::MAX, usize::MAX), (0, usize::MAX)] {
        memory.write_back(offset, bytes);
        memory.refresh(offset, bytes);
    }
    assert_eq!(memory.slice().load_u64(8184).unwrap(), 8184);
    let (write_back, dropped) = memory.mover.names();
    assert!(write_back.starts_with("cl") && dropped.starts_with("clflush"));
}

#[test]
fn coherence_has_two_names() {
    for coherence in [Coherence::Hardware, Coherence::Software] {
        assert_eq!(coherence.to_string().parse(), Ok(coherence));
    }
    assert!("both".parse::<Coherence>().unwrap_err().contains("hint"));
}
