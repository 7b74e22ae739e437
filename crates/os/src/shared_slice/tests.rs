//! Tests of the copies and atomics on shared memory.

use std::sync::Arc;

use super::*;
use crate::mapping::Mapping;

fn memory(bytes: usize) -> SharedSlice {
    Arc::new(Mapping::anonymous(bytes, false).unwrap()).slice()
}

#[test]
fn copies_of_every_length_and_alignment_move_exactly_their_bytes() {
    let slice = memory(4096);
    let pattern: Vec<u8> = (0..600u32).map(|i| (i * 7 % 251) as u8).collect();
    for bytes in (0..=300).chain([511, 600]) {
        for shift in [0, 1, 7, 13] {
            slice.fill(0, 4096, 0xEE).unwrap();
            slice.write_at(64 + shift, &pattern[..bytes]).unwrap();
            let mut all = vec![0u8; 4096];
            slice.read_at(0, &mut all).unwrap();
            assert!(all[..64 + shift].iter().all(|&b| b == 0xEE), "{bytes} {shift}");
            assert_eq!(&all[64 + shift..64 + shift + bytes], &pattern[..bytes]);
            assert!(all[64 + shift + bytes..].iter().all(|&b| b == 0xEE), "{bytes} {shift}");
            let mut back = vec![0xAAu8; bytes + 2];
            slice.read_at(64 + shift, &mut back[1..=bytes]).unwrap();
            assert_eq!(&back[1..=bytes], &pattern[..bytes]);
            assert_eq!((back[0], back[bytes + 1]), (0xAA, 0xAA));
        }
    }
}

#[test]
fn accesses_outside_of_the_slice_are_refused() {
    let slice = memory(4096).sub(100, 200).unwrap();
    let mut one = [0u8; 1];
    assert!(slice.read_at(199, &mut one).is_ok());
    assert!(slice.read_at(200, &mut one).is_err());
    assert!(slice.read_at(usize::MAX, &mut one).is_err());
    assert!(slice.write_at(200, &[]).is_ok());
    assert!(slice.write_at(201, &[]).is_err());
    assert!(slice.sub(1, usize::MAX).is_err());
    assert!(slice.load_u64(196).is_err());
    assert!(slice.fill(0, 201, 1).is_err());
}

#[test]
fn atomics_refuse_addresses_that_are_not_aligned() {
    let slice = memory(4096);
    assert!(matches!(slice.load_u64(4), Err(OsError::Misaligned { .. })));
    assert!(matches!(slice.atomic_u32(2), Err(OsError::Misaligned { .. })));
    assert_eq!(slice.fetch_add_u64(8, 5).unwrap(), 0);
    assert_eq!(slice.compare_swap_u64(8, 5, 9).unwrap(), 5);
    assert_eq!(slice.compare_swap_u64(8, 5, 11).unwrap(), 9);
    assert_eq!(slice.load_u64(8).unwrap(), 9);
    slice.store_u64(8, 1).unwrap();
    assert_eq!(slice.load_u64(8).unwrap(), 1);
}

#[test]
fn copies_between_slices_also_when_they_overlap() {
    let slice = memory(4096);
    let bytes: Vec<u8> = (0..200).collect();
    slice.write_at(0, &bytes).unwrap();
    slice.copy_to(0, &slice, 1000, 200).unwrap();
    slice.copy_to(0, &slice, 50, 200).unwrap();
    let (mut apart, mut shifted) = (vec![0; 200], vec![0; 200]);
    slice.read_at(1000, &mut apart).unwrap();
    slice.read_at(50, &mut shifted).unwrap();
    assert_eq!(apart, bytes);
    assert_eq!(shifted, bytes);
}

#[test]
fn a_slice_keeps_its_mapping_alive() {
    let slice = {
        let mapping = Arc::new(Mapping::anonymous(8192, false).unwrap());
        mapping.slice().sub(4096, 16).unwrap()
    };
    slice.write_at(0, &[7; 16]).unwrap();
    assert_eq!(slice.load_u64(0).unwrap(), 0x0707_0707_0707_0707);
}
