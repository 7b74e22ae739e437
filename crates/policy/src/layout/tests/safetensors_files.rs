//! safetensors: places of experts, short prefixes, headers that lie.

use super::*;

#[test]
fn tensors_of_one_expert_that_lie_together_are_one_piece() {
    let bytes = 1024 * 2048 * 2;
    let names: Vec<String> = [0, 1, 10]
        .into_iter()
        .flat_map(|expert| {
            ["down_proj", "gate_proj", "up_proj"]
                .map(|matrix| format!("model.layers.4.mlp.experts.{expert}.{matrix}.weight"))
        })
        .collect();
    let mut tensors: Vec<(&str, &[u64], u64)> = vec![("lm_head.weight", &[1000, 2048], 4_096_000)];
    tensors.extend(names.iter().map(|name| (name.as_str(), &[1024u64, 2048][..], bytes)));
    let (header, object_bytes) = safetensors(&tensors);
    let layout = layout_of(&header, object_bytes);
    assert_eq!((layout.format, layout.tensor_count), (Format::Safetensors, 10));
    let pieces: Vec<(u32, u64)> =
        layout.pieces.iter().map(|piece| (piece.expert.expert, piece.range.bytes())).collect();
    assert_eq!(pieces, [(0, 3 * bytes), (1, 3 * bytes), (10, 3 * bytes)]);
    assert_eq!(layout.pieces[0].range.offset(), header.len() as u64 + 4_096_000);
}

#[test]
fn mixtral_names_are_understood() {
    let names =
        ["w1", "w2", "w3"].map(|matrix| format!("model.layers.0.block_sparse_moe.experts.3.{matrix}.weight"));
    let tensors = names.each_ref().map(|name| (name.as_str(), &[14336u64, 4096][..], 117_440_512));
    let (header, object_bytes) = safetensors(&tensors);
    let layout = layout_of(&header, object_bytes);
    assert_eq!(layout.pieces.len(), 1);
    assert_eq!(layout.pieces[0].expert, Expert { block: 0, expert: 3 });
}

#[test]
fn fused_tensors_are_split_by_their_first_dimension() {
    let (header, object_bytes) = safetensors(&[
        ("model.layers.0.mlp.experts.gate_up_proj", &[64, 1024, 1024], 64 * 2 * MIB),
        ("model.layers.0.mlp.experts.down_proj", &[64, 1024, 512], 64 * MIB),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", &[64, 1024], 64 * 2048),
    ]);
    let layout = layout_of(&header, object_bytes);
    assert_eq!(layout.pieces.len(), 128);
    assert_eq!(layout.pieces[64 + 5].expert, Expert { block: 0, expert: 5 });
    assert_eq!(layout.pieces[64 + 5].range.offset(), header.len() as u64 + (128 + 5) * MIB);
}

#[test]
fn a_header_cut_at_any_byte_asks_for_more() {
    let (header, object_bytes) = safetensors(&[("a.experts.0.w", &[512, 512], 512 * 1024)]);
    for known in 0..header.len() {
        let parsed = parse_prefix(&header[..known], object_bytes);
        assert!(matches!(parsed, Parsed::NeedMore(bytes) if bytes > known as u64), "{known}: {parsed:?}");
    }
}

#[test]
fn places_that_lie_are_refused() {
    let (header, object_bytes) = safetensors(&[("a", &[512], 1024), ("b", &[512], 1024)]);
    assert!(matches!(parse_prefix(&header, object_bytes - 1), Parsed::Bad(LayoutError::BehindEnd { .. })));
    let text = String::from_utf8_lossy(&header[8..]).into_owned();
    let parse = |text: String| {
        let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        parse_prefix(&header, object_bytes + 64)
    };
    let overlap = parse(text.replace("[1024,2048]", "[1023,2048]"));
    assert!(matches!(overlap, Parsed::Bad(LayoutError::Overlap(_))), "{overlap:?}");
    let backwards = parse(text.replace("[1024,2048]", "[2048,1024]"));
    assert!(matches!(backwards, Parsed::Bad(LayoutError::BehindEnd { .. })), "{backwards:?}");
    let huge = parse(text.replace("2048]", "18446744073709551615]"));
    assert!(matches!(huge, Parsed::Bad(LayoutError::BehindEnd { .. })), "{huge:?}");
    for broken in ["[1024]", "[1,2,3]", "[-1,5]", "[1e30,5]", "\"x\"", "[0,99999999999999999999]"] {
        let parsed = parse(text.replace("[1024,2048]", broken));
        assert!(matches!(parsed, Parsed::Bad(LayoutError::Json { .. })), "{broken}: {parsed:?}");
    }
}

#[test]
fn a_shape_has_as_many_lengths_as_a_tensor_can_have() {
    let (most, more) = ([1; 64], [1; 65]);
    let (header, object_bytes) = safetensors(&[("a", &most, 1), ("b", &[], 1)]);
    assert_eq!(layout_of(&header, object_bytes).tensor_count, 2);
    let (header, object_bytes) = safetensors(&[("a", &more, 1), ("b", &[], 1)]);
    let refused = parse_prefix(&header, object_bytes);
    assert!(matches!(refused, Parsed::Bad(LayoutError::Json { .. })), "{refused:?}");
}

#[test]
fn deep_nesting_is_refused_or_skipped_but_never_recursed_into() {
    let deep = "[".repeat(100_000);
    for text in [
        format!(r#"{{"__metadata__":{deep}"#),
        format!(r#"{{"t":{deep}"#),
        format!(r#"{{"t":{{"shape":{deep}"#),
        format!(r#"{{"t":{{"extra":{deep}"#),
    ] {
        let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        assert!(matches!(parse_prefix(&header, 1 << 30), Parsed::Bad(LayoutError::Json { .. })));
    }
}

#[test]
fn a_length_behind_the_object_is_no_safetensors_file() {
    for length in [0u64, 1, 1 << 27, u64::MAX] {
        let header = [&length.to_le_bytes()[..], b"{}      "].concat();
        assert_eq!(parse_prefix(&header, 16), Parsed::NotThis, "{length}");
    }
    let empty = [&8u64.to_le_bytes()[..], b"{}      "].concat();
    assert!(layout_of(&empty, 16).pieces.is_empty());
}
