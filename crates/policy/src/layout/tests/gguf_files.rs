//! GGUF: places of experts, short prefixes, headers that lie.

use super::*;

#[test]
fn every_expert_of_a_fused_tensor_has_its_place() {
    let (header, data_offset, object_bytes) = olmoe(64 * KIB, 2).header();
    let layout = layout_of(&header, object_bytes);
    assert_eq!((layout.format, layout.tensor_count, layout.data_offset), (Format::Gguf, 13, data_offset));
    assert_eq!(layout.pieces.len(), 2 * 3 * 64);
    assert!(layout.pieces.iter().all(|piece| piece.range.bytes() == 18 * 64 * KIB));
    assert_eq!(layout.pieces[65].expert, Expert { block: 0, expert: 1 });
    assert_eq!(layout.pieces[3 * 64 + 2].expert, Expert { block: 1, expert: 2 });
    assert_eq!(layout.pieces[383].range.end(), object_bytes);
}

#[test]
fn a_growing_prefix_leads_to_the_same_layout() {
    let (header, _, object_bytes) = olmoe(32, 40).header();
    let whole = layout_of(&header, object_bytes);
    let mut known = 0;
    for _round in 0..20 {
        match parse_prefix(&header[..known], object_bytes) {
            Parsed::NeedMore(bytes) => known = header.len().min(usize::try_from(bytes).unwrap()),
            Parsed::Layout(layout) => {
                assert_eq!(layout, whole);
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the parser asked 20 times");
}

#[test]
fn a_prefix_cut_at_any_byte_asks_for_more() {
    let (header, _, object_bytes) = olmoe(32, 1).header();
    for known in 0..header.len() {
        match parse_prefix(&header[..known], object_bytes) {
            Parsed::NeedMore(bytes) => assert!(bytes > known as u64 && bytes <= object_bytes),
            other => panic!("{known}: {other:?}"),
        }
    }
}

#[test]
fn an_object_cut_short_is_refused() {
    let (header, _, object_bytes) = olmoe(32, 1).header();
    for size in [24, header.len() as u64 / 2, header.len() as u64, object_bytes - 1] {
        let known = header.len().min(size as usize);
        let parsed = parse_prefix(&header[..known], size);
        assert!(matches!(parsed, Parsed::Bad(_)), "{size}: {parsed:?}");
    }
}

#[test]
fn an_unknown_type_ends_where_the_next_tensor_starts() {
    let mut writer = GgufWriter::new(32);
    // 8 experts of 1000 rows of 333 bytes: 2,664,000 bytes, which the alignment pads by 0; the second by 16.
    writer.tensor("blk.0.ffn_up_exps.weight", &[512, 1000, 8], 999, 333 * 1000 * 8);
    writer.tensor("blk.0.ffn_down_exps.weight", &[512, 1001, 8], 999, 333 * 1001 * 8);
    writer.tensor("output_norm.weight", &[512], F32, 2048);
    let (header, data_offset, object_bytes) = writer.header();
    let layout = layout_of(&header, object_bytes);
    let second = data_offset + (333 * 1000 * 8u64).next_multiple_of(32);
    assert_eq!(layout.pieces.len(), 16);
    for (index, piece) in layout.pieces.iter().enumerate() {
        let index = index as u64;
        let (start, bytes) = if index < 8 {
            (data_offset + index * 333_000, 333_000)
        } else {
            (second + (index - 8) * 333_333, 333_333)
        };
        assert_eq!((piece.range.offset(), piece.range.bytes()), (start, bytes), "expert {index}");
    }
}

#[test]
fn files_with_a_tensor_for_each_expert_are_understood() {
    let mut writer = GgufWriter::new(32);
    for expert in 0..8 {
        for matrix in ["gate", "down", "up"] {
            let bytes = 4096 * 1024 / 32 * 18;
            writer.tensor(&format!("blk.5.ffn_{matrix}.{expert}.weight"), &[4096, 1024], Q4_0, bytes);
        }
    }
    let (header, _, object_bytes) = writer.header();
    let layout = layout_of(&header, object_bytes);
    // The three matrices of an expert lie behind each other: one piece.
    assert_eq!(layout.pieces.len(), 8);
    assert_eq!(layout.pieces[7].expert, Expert { block: 0, expert: 7 });
    assert_eq!(layout.pieces[7].range.bytes(), 3 * 4096 * 1024 / 32 * 18);
}

#[test]
fn small_or_flat_expert_tensors_are_dense() {
    let mut writer = GgufWriter::new(32);
    writer.tensor("blk.0.ffn_gate_exps.bias", &[2880, 32], F32, 2880 * 32 * 4);
    writer.tensor("blk.0.ffn_up_exps.weight", &[64, 64, 32], F32, 64 * 64 * 32 * 4);
    writer.tensor("blk.0.ffn_down_exps.weight", &[64, 64, 5000], F32, 64 * 64 * 5000 * 4);
    let (header, _, object_bytes) = writer.header();
    assert!(layout_of(&header, object_bytes).pieces.is_empty());
}

/// Puts a little-endian number over bytes of a header and parses it.
fn parse_with<const N: usize>(at: usize, value: [u8; N]) -> Parsed {
    let (mut header, _, object_bytes) = olmoe(32, 1).header();
    header[at..at + N].copy_from_slice(&value);
    parse_prefix(&header, object_bytes)
}

#[test]
fn counts_that_no_object_can_hold_are_refused_at_once() {
    let count = |parsed| matches!(parsed, Parsed::Bad(LayoutError::Count { .. }));
    assert!(count(parse_with(8, u64::MAX.to_le_bytes())));
    assert!(count(parse_with(8, (TENSORS_MAX + 1).to_le_bytes())));
    assert!(count(parse_with(16, u64::MAX.to_le_bytes())));
    // A million tensors may be: then the header just does not hold them.
    assert!(!matches!(parse_with(8, TENSORS_MAX.to_le_bytes()), Parsed::Layout(_)));
}

#[test]
fn other_versions_and_big_endian_files_are_refused() {
    assert_eq!(parse_with(4, 1u32.to_le_bytes()), Parsed::Bad(LayoutError::Version(1)));
    assert_eq!(parse_with(4, 3u32.to_be_bytes()), Parsed::Bad(LayoutError::Version(3 << 24)));
    assert!(matches!(parse_with(4, 2u32.to_le_bytes()), Parsed::Layout(_)));
}

#[test]
fn a_string_longer_than_the_object_is_refused() {
    let parsed = parse_with(24, u64::MAX.to_le_bytes());
    assert!(
        matches!(parsed, Parsed::Bad(LayoutError::BehindEnd { what: "a metadata key", .. })),
        "{parsed:?}"
    );
}

#[test]
fn an_array_whose_size_overflows_is_refused() {
    let mut writer = GgufWriter::new(32);
    let array =
        [gguf_string("x"), [9u32, 10].map(u32::to_le_bytes).concat(), (u64::MAX / 2).to_le_bytes().to_vec()];
    writer.metadata.push(array.concat());
    writer.tensor("t", &[4], F32, 16);
    let (header, _, object_bytes) = writer.header();
    let parsed = parse_prefix(&header, object_bytes);
    assert!(matches!(parsed, Parsed::Bad(LayoutError::Value { what: "an array length", .. })), "{parsed:?}");
}

#[test]
fn an_endless_array_of_empty_strings_ends_with_the_object() {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend([0u64, 1].map(u64::to_le_bytes).concat());
    header.extend(gguf_string("x"));
    header.extend([9u32, 8].map(u32::to_le_bytes).concat());
    header.extend(u64::MAX.to_le_bytes());
    header.resize(1 << 20, 0);
    assert_eq!(parse_prefix(&header, 1 << 30), Parsed::NeedMore(2 << 20));
    assert!(matches!(parse_prefix(&header, 1 << 20), Parsed::Bad(LayoutError::BehindEnd { .. })));
}

#[test]
fn a_strange_alignment_is_refused() {
    for alignment in [0u32, 3, 48] {
        let mut writer = GgufWriter::new(32);
        let stated =
            [gguf_string("general.alignment"), 4u32.to_le_bytes().to_vec(), alignment.to_le_bytes().to_vec()];
        writer.metadata.push(stated.concat());
        writer.tensor("t", &[4], F32, 16);
        let (header, _, object_bytes) = writer.header();
        assert!(
            matches!(parse_prefix(&header, object_bytes), Parsed::Bad(LayoutError::Value { .. })),
            "{alignment}"
        );
    }
}

#[test]
fn dimensions_whose_product_overflows_do_not_wrap() {
    let mut writer = GgufWriter::new(32);
    writer.tensor("blk.0.ffn_up_exps.weight", &[1 << 40, 1 << 40, 64], F32, 64 * MIB);
    writer.tensor("t", &[4], F32, 16);
    let (header, _, object_bytes) = writer.header();
    // The product is no size at all, so the next tensor's place says how long this one is.
    let layout = layout_of(&header, object_bytes);
    assert!(layout.pieces.is_empty(), "a slice of 2^40 rows in 1 MiB has no row of a whole byte");
}

#[test]
fn tensors_that_overlap_are_refused() {
    let mut writer = GgufWriter::new(32);
    writer.tensor("a", &[1024], F32, 32).tensor("b", &[8], F32, 32).tensor("c", &[1 << 20], F32, 4 << 20);
    let (header, data_offset, object_bytes) = writer.header();
    assert_eq!(parse_prefix(&header, object_bytes), Parsed::Bad(LayoutError::Overlap(data_offset + 32)));
}

#[test]
fn the_header_may_not_be_endless() {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend([0u64, 1].map(u64::to_le_bytes).concat());
    header.extend((HEADER_BYTES_MAX).to_le_bytes());
    assert!(matches!(parse_prefix(&header, 1 << 40), Parsed::Bad(LayoutError::HeaderTooLong(_))));
}
