//! Tests of layouts: real geometries, and headers that lie.

use super::*;
use crate::unit::{GroupId, UnitBytes, UnitMap};
use proptest::prelude::*;

mod gguf_files;
mod plans;
mod safetensors_files;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const Q4_0: u32 = 2;
const F32: u32 = 0;

/// Writes GGUF headers for tests: metadata as raw bytes, tensors laid behind each other.
struct GgufWriter {
    alignment: u64,
    metadata: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
}

fn gguf_string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl GgufWriter {
    fn new(alignment: u64) -> Self {
        let stated = [
            gguf_string("general.alignment"),
            4u32.to_le_bytes().to_vec(),
            (alignment as u32).to_le_bytes().to_vec(),
        ];
        let words = ["a", "bc", ""].map(gguf_string).concat();
        let vocabulary = [
            gguf_string("tokenizer.ggml.tokens"),
            [9u32, 8].map(u32::to_le_bytes).concat(),
            3u64.to_le_bytes().to_vec(),
            words,
        ];
        let name = [gguf_string("general.name"), 8u32.to_le_bytes().to_vec(), gguf_string("tiny")];
        let scores = [
            gguf_string("tokenizer.ggml.scores"),
            [9u32, 6].map(u32::to_le_bytes).concat(),
            3u64.to_le_bytes().to_vec(),
            vec![0; 12],
        ];
        let metadata = vec![name.concat(), stated.concat(), vocabulary.concat(), scores.concat()];
        Self { alignment, metadata, tensors: Vec::new() }
    }

    /// Adds a tensor; `bytes` is what it takes, without padding.
    fn tensor(&mut self, name: &str, dimensions: &[u64], ggml_type: u32, bytes: u64) -> &mut Self {
        self.tensors.push((name.to_owned(), dimensions.to_vec(), ggml_type, bytes));
        self
    }

    /// The header, where tensor data starts, and the size of the object.
    fn header(&self) -> (Vec<u8>, u64, u64) {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        out.extend(self.metadata.concat());
        let mut offset = 0u64;
        for (name, dimensions, ggml_type, bytes) in &self.tensors {
            out.extend(gguf_string(name));
            out.extend((dimensions.len() as u32).to_le_bytes());
            out.extend(dimensions.iter().flat_map(|length| length.to_le_bytes()));
            out.extend(ggml_type.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + bytes).next_multiple_of(self.alignment);
        }
        let data_offset = (out.len() as u64).next_multiple_of(self.alignment);
        let (_, _, _, last) = self.tensors.last().expect("a tensor");
        let last_start = self.tensors[..self.tensors.len() - 1]
            .iter()
            .fold(0, |at: u64, tensor| (at + tensor.3).next_multiple_of(self.alignment));
        (out, data_offset, data_offset + last_start + last)
    }
}

/// The geometry of the synthetic mixture-of-experts model: 64 experts of three Q4_0 matrices of 1.125 MiB.
fn olmoe(alignment: u64, layers: u32) -> GgufWriter {
    let mut writer = GgufWriter::new(alignment);
    writer.tensor("token_embd.weight", &[2048, 4096], Q4_0, 2048 * 4096 / 32 * 18);
    for layer in 0..layers {
        let matrix = 64 * 2048 * 1024 / 32 * 18;
        writer
            .tensor(&format!("blk.{layer}.attn_norm.weight"), &[2048], F32, 2048 * 4)
            .tensor(&format!("blk.{layer}.attn_q.weight"), &[2048, 2048], Q4_0, 2048 * 2048 / 32 * 18)
            .tensor(&format!("blk.{layer}.ffn_gate_inp.weight"), &[2048, 64], F32, 64 * 2048 * 4)
            .tensor(&format!("blk.{layer}.ffn_gate_exps.weight"), &[2048, 1024, 64], Q4_0, matrix)
            .tensor(&format!("blk.{layer}.ffn_down_exps.weight"), &[1024, 2048, 64], Q4_0, matrix)
            .tensor(&format!("blk.{layer}.ffn_up_exps.weight"), &[2048, 1024, 64], Q4_0, matrix);
    }
    writer
}

fn layout_of(header: &[u8], object_bytes: u64) -> Layout {
    match parse_prefix(header, object_bytes) {
        Parsed::Layout(layout) => layout,
        other => panic!("{other:?}"),
    }
}

/// A safetensors header for tensors that lie behind each other, and the size of the object.
fn safetensors(tensors: &[(&str, &[u64], u64)]) -> (Vec<u8>, u64) {
    let mut at = 0;
    let mut fields = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    for (name, shape, bytes) in tensors {
        fields.push(format!(
            r#""{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{at},{}]}}"#,
            at + bytes
        ));
        at += bytes;
    }
    let mut json = format!("{{{}}}", fields.join(","));
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let header = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let object_bytes = header.len() as u64 + at;
    (header, object_bytes)
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(data in prop::collection::vec(any::<u8>(), 0..400), magic in 0usize..3) {
        let start: &[u8] = [&b"GGUF\x03\0\0\0"[..], b"\x80\0\0\0\0\0\0\0{", b""][magic];
        fuzz_header(&[start, &data].concat());
    }

    #[test]
    fn no_change_of_a_good_header_makes_the_parser_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        use_gguf in any::<bool>(),
    ) {
        let shape: &[u64] = &[8, 512, 256];
        let mut header = if use_gguf {
            olmoe(64 * KIB, 1).header().0
        } else {
            let one = [("model.layers.0.mlp.experts.0.w1", shape, 2 * MIB), ("x.experts.gate_up_proj", shape, 2 * MIB)];
            safetensors(&one).0
        };
        for (at, value) in changes {
            let at = at.index(header.len());
            header[at] = value;
        }
        fuzz_header(&header);
    }
}

#[test]
fn plain_bytes_are_neither_format() {
    assert_eq!(parse_prefix(&[0; 4096], 1 << 30), Parsed::NotThis);
    assert_eq!(parse_prefix(b"", 0), Parsed::NotThis);
    assert_eq!(parse_prefix(b"GG", 2), Parsed::NotThis);
    assert_eq!(parse_prefix(&[7; 16], 16), Parsed::NotThis);
}

#[test]
fn an_empty_prefix_asks_for_the_first_bytes() {
    assert_eq!(parse_prefix(b"", 1 << 30), Parsed::NeedMore(64 * KIB));
    assert_eq!(parse_prefix(b"", 100), Parsed::NeedMore(100));
}
