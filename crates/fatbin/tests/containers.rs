//! Fat binaries made by hand: what is read of them, what a GPU takes, and what becomes of damaged ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod images;

use hinterland_fatbin::{
    Capability, Compression, ContainerError, Containers, DecompressError, Entry, IMAGE_BYTES_MAX, Kernels,
    Kind, choose, choose_assembly, container_bytes, content_hash, entries, repack,
};
use images::{ASSEMBLY, LETTER_A, LETTER_F, LZ4, MACHINE_CODE, PTX, ZSTANDARD, container, entry, packed};
use proptest::prelude::*;

/// A GPU's choice, as kind and target: `ptx sm_90`.
fn choice(made: &[Vec<u8>], major: u32, minor: u32) -> Option<String> {
    let bytes = container(made);
    let found = choose(&entries(&bytes).unwrap(), Capability::new(major, minor))?;
    let kind = if found.kind == Kind::Assembly { "ptx" } else { "code" };
    Some(format!("{kind} {}", found.target))
}

#[test]
fn entries_are_read_with_kind_target_and_compression() {
    let made = [
        packed(ASSEMBLY, 90, ZSTANDARD | LETTER_A, PTX.as_bytes()),
        packed(MACHINE_CODE, 120, LZ4 | LETTER_F, &[7; 5000]),
        packed(8, 75, 0, b"code for the linker, 27 b."),
    ];
    let mut bytes = container(&made);
    assert_eq!(container_bytes(&bytes[..16]), Ok(bytes.len()));
    bytes.extend(b"what follows in the section");
    let found = entries(&bytes).unwrap();
    let told: Vec<_> =
        found.iter().map(|it| (it.kind, it.target.to_string(), it.compression, it.image_bytes)).collect();
    assert_eq!(
        told,
        [
            (Kind::Assembly, "sm_90a".to_string(), Compression::Zstandard, PTX.len() as u64),
            (Kind::MachineCode, "sm_120f".to_string(), Compression::Lz4, 5000),
            (Kind::Other(8), "sm_75".to_string(), Compression::None, 32),
        ]
    );
    assert_eq!(found[0].image().unwrap(), PTX.as_bytes());
    assert_eq!(found[1].image().unwrap().as_ref(), [7; 5000]);
    assert_eq!(found[2].image().unwrap().as_ref(), b"code for the linker, 27 b.\0\0\0\0\0\0");
}

#[test]
fn assembly_that_is_not_compressed_loses_its_padding() {
    let bytes = container(&[packed(ASSEMBLY, 90, 0, b".version 9.0\n\0")]);
    assert_eq!(entries(&bytes).unwrap()[0].image().unwrap().as_ref(), b".version 9.0\n");
}

#[test]
fn a_gpu_takes_the_closest_machine_code_then_the_newest_assembly() {
    let made = [
        entry(ASSEMBLY, 75, 0, b"", 0),
        entry(ASSEMBLY, 80, 0, b"", 0),
        entry(MACHINE_CODE, 86, 0, b"", 0),
        entry(MACHINE_CODE, 80, 0, b"", 0),
        entry(ASSEMBLY, 90, LETTER_A, b"", 0),
        entry(MACHINE_CODE, 100, LETTER_F, b"", 0),
        entry(8, 120, 0, b"", 0),
    ];
    assert_eq!(choice(&made, 8, 9).as_deref(), Some("code sm_86"));
    assert_eq!(choice(&made, 8, 0).as_deref(), Some("code sm_80"));
    assert_eq!(choice(&made, 9, 0).as_deref(), Some("ptx sm_90a"));
    assert_eq!(choice(&made, 10, 3).as_deref(), Some("code sm_100f"));
    assert_eq!(choice(&made, 12, 0).as_deref(), Some("ptx sm_80"));
    assert_eq!(choice(&made, 7, 5).as_deref(), Some("ptx sm_75"));
    assert_eq!(choice(&made, 7, 0), None);
    let bytes = container(&made);
    let found = entries(&bytes).unwrap();
    let assembly = |major, minor| choose_assembly(&found, Capability::new(major, minor));
    assert_eq!(assembly(8, 6).unwrap().target.to_string(), "sm_80");
}

#[test]
fn of_two_images_for_one_gpu_the_more_specific_is_taken() {
    let made = [entry(MACHINE_CODE, 90, 0, b"", 0), entry(MACHINE_CODE, 90, LETTER_A, b"", 0)];
    assert_eq!(choice(&made, 9, 0).as_deref(), Some("code sm_90a"));
    let made = [entry(MACHINE_CODE, 100, LETTER_A, b"", 0), entry(MACHINE_CODE, 100, 0, b"", 0)];
    assert_eq!(choice(&made, 10, 3).as_deref(), Some("code sm_100"));
}

#[test]
fn a_repacked_container_has_the_chosen_entries_unchanged() {
    let made = [
        packed(ASSEMBLY, 75, LZ4, PTX.as_bytes()),
        packed(MACHINE_CODE, 90, ZSTANDARD, &[3; 999]),
        packed(ASSEMBLY, 90, 0, PTX.as_bytes()),
    ];
    let bytes = container(&made);
    let all = entries(&bytes).unwrap();
    assert_eq!(repack(&all), bytes);
    let chosen = choose(&all, Capability::new(9, 0)).unwrap();
    let small = repack(&[chosen]);
    assert_eq!(small, container(&made[1..2]));
    let again = entries(&small).unwrap();
    assert_eq!(again[0].image().unwrap().as_ref(), [3; 999]);
    assert_ne!(content_hash(&small), content_hash(&bytes));
    assert_eq!(entries(&repack(&[])).unwrap().len(), 0);
}

#[test]
fn containers_of_a_section_are_found_behind_padding() {
    let one = container(&[entry(ASSEMBLY, 75, 0, b"x", 0)]);
    let two = container(&[]);
    let section = [one.clone(), vec![0; 8], two.clone(), vec![0; 16]].concat();
    let found: Vec<_> = Containers::new(&section).collect();
    assert_eq!(found, [Ok(&one[..]), Ok(&two[..])]);
    let cut: Vec<_> = Containers::new(&section[..one.len() - 1]).collect();
    assert!(matches!(cut[..], [Err(ContainerError::Short { .. })]), "{cut:?}");
}

#[test]
fn damaged_containers_say_what_is_wrong_with_them() {
    let good = container(&[packed(ASSEMBLY, 90, LZ4, PTX.as_bytes())]);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        entries(&bytes).map(|found| found.len()).unwrap_err()
    };
    assert!(matches!(changed(0, 1), ContainerError::Magic { .. }));
    assert!(matches!(changed(4, 2), ContainerError::Version { found: 2 }));
    assert!(matches!(changed(6, 3), ContainerError::Size { bytes: 3, .. }));
    assert!(matches!(changed(15, 0xff), ContainerError::Size { .. }));
    assert!(matches!(changed(9, 0xff), ContainerError::Short { .. }));
    assert!(matches!(changed(16 + 4, 63), ContainerError::Size { bytes: 63, .. }));
    assert!(matches!(changed(16 + 14, 1), ContainerError::Short { offset: 16, .. }));
    assert!(matches!(changed(16 + 19, 1), ContainerError::Size { .. }));
    for error in [changed(0, 1), changed(4, 2), changed(9, 0xff), changed(15, 0xff)] {
        assert!(error.to_string().contains("(hint: "), "{error}");
    }
}

#[test]
fn payloads_that_unpack_to_another_size_are_refused() {
    let lz4 = lz4_flex::block::compress(&[5; 100]);
    let image = |flags, payload: &[u8], said| {
        let bytes = container(&[entry(ASSEMBLY, 90, flags, payload, said)]);
        entries(&bytes).unwrap()[0].image().map(|image| image.len())
    };
    assert_eq!(image(LZ4, &lz4, 100), Ok(100));
    assert!(matches!(image(LZ4, &lz4, 101), Err(DecompressError::Size { found: 100, said: 101 })));
    assert!(matches!(image(LZ4, &lz4, 99), Err(DecompressError::Damaged { .. })));
    assert!(matches!(image(LZ4, &lz4, 99 << 20), Err(DecompressError::Size { .. })));
    let large = IMAGE_BYTES_MAX as u64 + 1;
    assert_eq!(image(LZ4, &lz4, large), Err(DecompressError::TooLarge { bytes: large }));
    assert_eq!(image(LZ4 | ZSTANDARD, &lz4, 100), Err(DecompressError::Unknown));
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstandard = ruzstd::encoding::compress_to_vec(&[5; 100][..], level);
    assert_eq!(image(ZSTANDARD, &zstandard, 100), Ok(100));
    assert!(matches!(image(ZSTANDARD, &zstandard, 99), Err(DecompressError::Size { found: 100, said: 99 })));
    assert!(matches!(image(ZSTANDARD, &zstandard, 5000), Err(DecompressError::Size { .. })));
    assert!(matches!(image(ZSTANDARD, &lz4, 100), Err(DecompressError::Damaged { .. })));
}

/// A frame of a few bytes that says 4 GiB, and goes on with runs of 128 KiB.
#[test]
fn a_small_frame_cannot_become_more_than_it_says() {
    let mut frame = b"\x28\xb5\x2f\xfd\xa0".to_vec();
    frame.extend((64u32 << 20).to_le_bytes());
    for _ in 0..600 {
        let block = ((128u32 << 10) << 3) | (1 << 1);
        frame.extend(&block.to_le_bytes()[..3]);
        frame.push(7);
    }
    let bytes = container(&[entry(ASSEMBLY, 90, ZSTANDARD, &frame, 1000)]);
    let refused = entries(&bytes).unwrap()[0].image();
    assert!(matches!(refused, Err(DecompressError::Size { found: 1001, said: 1000 })), "{refused:?}");
}

/// Everything that a client or a node does with bytes that it was sent.
fn use_all(bytes: &[u8]) {
    let _ = container_bytes(bytes);
    let _ = Containers::new(bytes).take(100).count();
    let Ok(found) = entries(bytes) else { return };
    let total: usize = found.iter().map(|entry| entry.raw.len()).sum();
    assert!(total <= bytes.len());
    let image = |entry: &Entry<'_>| {
        if let Ok(image) = entry.image() {
            assert!(image.len() <= IMAGE_BYTES_MAX.max(bytes.len()));
            let _ = Kernels::of_image(&image);
        }
    };
    found.iter().for_each(image);
    for gpu in [Capability::new(7, 5), Capability::new(9, 0), Capability::new(12, 1)] {
        let chosen = choose(&found, gpu);
        assert_eq!(entries(&repack(chosen.as_slice())).unwrap().len(), chosen.iter().count());
    }
}

fn good() -> Vec<u8> {
    let attributes = [images::parameter(0, 0, 8), images::value(0x19, 8)];
    container(&[
        packed(ASSEMBLY, 75, LZ4, PTX.as_bytes()),
        packed(MACHINE_CODE, 90, ZSTANDARD, &images::cubin("mutated", &attributes)),
        packed(ASSEMBLY, 90, ZSTANDARD, PTX.as_bytes()),
        packed(MACHINE_CODE, 120, 0, &images::cubin("mutated", &attributes)),
    ])
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        use_all(&bytes);
        let mut with_magic = good();
        with_magic.truncate(8);
        with_magic.extend((bytes.len() as u64).to_le_bytes());
        with_magic.extend(bytes);
        use_all(&with_magic);
    }

    #[test]
    fn mutated_containers_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = good();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        use_all(&bytes);
    }
}
