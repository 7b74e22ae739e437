//! safetensors headers: a u64 length, then JSON that names each tensor with its shape and place.

use super::cursor::Cursor;
use super::expert_name::{Blocks, Named, of_safetensors};
use super::{
    EXPERTS_MAX, Expert, Format, Layout, LayoutError, Part, Stop, TENSORS_MAX, Tensor, collect_pieces,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Longest header that the format allows.
const JSON_BYTES_MAX: u64 = 100_000_000;
/// Most dimensions of a tensor, as many as PyTorch has. A number takes two bytes of the header and eight of memory: a header of nothing
/// else would take several times its length.
const DIMENSIONS_MAX: usize = 64;

pub(super) fn parse(mut cursor: Cursor<'_>) -> Result<Layout, Stop> {
    // The shortest file is the length and `{}`.
    if cursor.object_bytes() < 10 {
        return Err(Stop::NotThis);
    }
    let json_bytes = cursor.u64("the header length")?;
    // There is no magic number: a length that fits and an opening brace have to do.
    let fits = (2..=JSON_BYTES_MAX).contains(&json_bytes) && json_bytes <= cursor.object_bytes() - 8;
    if !fits || cursor.clone().take("the header", 1)? != b"{" {
        return Err(Stop::NotThis);
    }
    let json = cursor.take("the header", json_bytes)?;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let entries = Entries::deserialize(&mut deserializer)
        .and_then(|entries| deserializer.end().map(|()| entries))
        .map_err(|error| LayoutError::Json { line: error.line(), column: error.column() })?;
    let data_offset = cursor.position();
    let tensors = place(entries.0, data_offset, cursor.object_bytes())?;
    // Reading stops at TENSORS_MAX: the cast loses nothing.
    let tensor_count = tensors.len() as u32;
    Ok(Layout { format: Format::Safetensors, data_offset, tensor_count, pieces: collect_pieces(&tensors)? })
}

/// A tensor entry of the header; other fields are skipped.
#[derive(Deserialize)]
struct Entry {
    shape: Shape,
    data_offsets: (u64, u64),
    #[serde(skip)]
    named: Option<(u32, Named)>,
}

/// What is asked of a shape.
struct Shape {
    dimensions: usize,
    /// The first length, 1 if there is none.
    first: u64,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lengths of a tensor")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut lengths: A) -> Result<Shape, A::Error> {
        let mut shape = Shape { dimensions: 0, first: 1 };
        while let Some(length) = lengths.next_element()? {
            if shape.dimensions == DIMENSIONS_MAX {
                return Err(A::Error::custom("too many dimensions"));
            }
            shape.first = if shape.dimensions == 0 { length } else { shape.first };
            shape.dimensions += 1;
        }
        Ok(shape)
    }
}

struct Entries(Vec<Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut blocks = Blocks::default();
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() as u64 == TENSORS_MAX {
                return Err(A::Error::custom("too many tensors"));
            }
            let mut entry = map.next_value::<Entry>()?;
            entry.named = of_safetensors(&name).and_then(|(block, named)| {
                let fits = match named {
                    Named::One(expert) => u64::from(expert) < EXPERTS_MAX,
                    Named::All => {
                        entry.shape.dimensions >= 3 && (2..=EXPERTS_MAX).contains(&entry.shape.first)
                    }
                };
                fits.then(|| (blocks.number(block), named))
            });
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

fn place(entries: Vec<Entry>, data_offset: u64, object_bytes: u64) -> Result<Vec<Tensor>, LayoutError> {
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        let (begin, end) = entry.data_offsets;
        let behind = LayoutError::BehindEnd { what: "a tensor", end, object_bytes };
        if begin > end || end > object_bytes - data_offset {
            return Err(behind);
        }
        let bytes = end - begin;
        let part = match entry.named {
            None => Part::Dense,
            Some((block, Named::One(expert))) => Part::One(Expert { block, expert }),
            Some((block, Named::All)) if bytes.is_multiple_of(entry.shape.first) => {
                // The count is at most EXPERTS_MAX: the cast loses nothing.
                Part::All { block, count: entry.shape.first as u32, stride: bytes / entry.shape.first }
            }
            Some((_, Named::All)) => Part::Dense,
        };
        tensors.push(Tensor { start: data_offset + begin, end: data_offset + end, part });
    }
    tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
    Ok(tensors)
}
