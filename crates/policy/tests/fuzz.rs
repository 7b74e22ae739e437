//! Headers of model files that lie: the parser keeps its promise for any bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod mutate;

use hinterland_policy::layout::{Parsed, fuzz_header, parse_prefix};
use mutate::fuzz;

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A header as llama.cpp writes it: three values and a few tensors of experts.
fn gguf() -> Vec<u8> {
    const TEXT: u32 = 8;
    const ARRAY: u32 = 9;
    const U32: u32 = 4;
    const F32: u32 = 0;
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(6u64.to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    text(&mut bytes, "general.architecture");
    bytes.extend(TEXT.to_le_bytes());
    text(&mut bytes, "olmoe");
    text(&mut bytes, "olmoe.expert_count");
    bytes.extend(U32.to_le_bytes());
    bytes.extend(4u32.to_le_bytes());
    text(&mut bytes, "tokenizer.ggml.tokens");
    bytes.extend(ARRAY.to_le_bytes());
    bytes.extend(TEXT.to_le_bytes());
    bytes.extend(2u64.to_le_bytes());
    text(&mut bytes, "a");
    text(&mut bytes, "b");
    let mut offset = 0u64;
    for block in 0..2 {
        for matrix in ["gate", "up", "down"] {
            text(&mut bytes, &format!("blk.{block}.ffn_{matrix}_exps.weight"));
            let dimensions = [128u64, 128, 4];
            bytes.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
            bytes.extend(F32.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += dimensions.iter().product::<u64>() * 4;
        }
    }
    bytes
}

fn safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"model.layers.0.mlp.experts.0.up_proj.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]},"model.layers.0.mlp.experts.1.up_proj.weight":{"dtype":"BF16","shape":[64,64],"data_offsets":[16384,24576]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes
}

#[test]
fn the_seeds_are_headers() {
    for seed in [gguf(), safetensors()] {
        assert!(
            matches!(parse_prefix(&seed, 1 << 30), Parsed::Layout(_)),
            "{:?}",
            parse_prefix(&seed, 1 << 30)
        );
    }
}

#[test]
fn fuzz_gguf_headers_keep_the_promise() {
    fuzz(&[gguf()], |_, bytes| fuzz_header(&bytes));
}

#[test]
fn fuzz_safetensors_headers_keep_the_promise() {
    fuzz(&[safetensors()], |_, bytes| fuzz_header(&bytes));
}
