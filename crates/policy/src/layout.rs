//! Where the experts of a model lie in its file: read from the header of GGUF and safetensors files.
//!
//! [`parse_prefix`] reads the first bytes of an object, which anybody may have put: every count, length
//! and offset is checked, nothing is allocated in advance, and what it keeps is bounded by what it read.
//! [`plan`] then divides the object into fault units so that an expert is fetched and evicted whole.

use hinterland_types::ByteRange;
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;

mod cursor;
mod expert_name;
mod fuzz;
mod ggml_type;
mod gguf;
mod plan;
mod safetensors;
#[cfg(test)]
mod tests;

pub use fuzz::fuzz_header;
pub use plan::{EXPERT_UNIT_BYTES_MAX, HUGE_EXPERT_BYTES_MIN, Preference, plan};

/// Longest header that is read. The largest vocabularies take some 20 MiB; safetensors stops at 100 MB.
pub const HEADER_BYTES_MAX: u64 = 128 << 20;
/// Most tensors of one file: models with 400 experts in 100 layers stay below it.
pub const TENSORS_MAX: u64 = 1 << 20;
/// Most experts of one layer; a tensor with more slices than that is something else.
pub const EXPERTS_MAX: u64 = 4096;
/// Most pieces that a layout keeps: 32 MiB of them.
pub const PIECES_MAX: usize = 1 << 20;
/// Shortest piece that is worth a unit: it holds one whole checksum block, wherever it starts.
pub const PIECE_BYTES_MIN: u64 = 2 * CHECKSUM_BLOCK_BYTES;

/// The file formats that [`parse_prefix`] knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// GGUF version 2 or 3, little-endian.
    Gguf,
    /// safetensors.
    Safetensors,
}

/// What a header says about the places of experts; all other bytes are dense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The format of the file.
    pub format: Format,
    /// Where the header ends and tensors begin, in bytes.
    pub data_offset: u64,
    /// Number of tensors.
    pub tensor_count: u32,
    /// Places of experts, ascending, without overlap, each at least [`PIECE_BYTES_MIN`] long. Neighbours
    /// of one expert are one piece.
    pub pieces: Vec<ExpertPiece>,
}

/// An expert: experts of different blocks (layers) have nothing in common but their number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Expert {
    /// The block, numbered as blocks with experts first appear in the header.
    pub block: u32,
    /// The expert within its block, below [`EXPERTS_MAX`].
    pub expert: u32,
}

/// A contiguous part of one expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertPiece {
    /// Where it lies in the object.
    pub range: ByteRange,
    /// Whose it is.
    pub expert: Expert,
}

/// The answer of [`parse_prefix`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The header is understood.
    Layout(Layout),
    /// Ask again with at least so many bytes of the object: always more than were given.
    NeedMore(u64),
    /// Neither GGUF nor safetensors.
    NotThis,
    /// It looks like one of them, but cannot be trusted: treat it as plain bytes.
    Bad(LayoutError),
}

/// Why a header is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum LayoutError {
    /// A version that is not read.
    #[error("GGUF version {0} is not read (hint: version 2 or 3, little-endian)")]
    Version(u32),
    /// A length or offset leads behind the end of the object.
    #[error(
        "{what} leads to byte {end}, the object ends at {object_bytes} (hint: the file is cut short or corrupt)"
    )]
    BehindEnd {
        /// The field.
        what: &'static str,
        /// Where it leads.
        end: u64,
        /// Size of the object.
        object_bytes: u64,
    },
    /// The header is too long.
    #[error("the header needs {0} bytes, more than {HEADER_BYTES_MAX}")]
    HeaderTooLong(u64),
    /// A count passes its limit.
    #[error("{what} is {count}, the most is {limit}")]
    Count {
        /// The field.
        what: &'static str,
        /// Its value.
        count: u64,
        /// Its limit.
        limit: u64,
    },
    /// A value that the format does not allow.
    #[error("{what} cannot be {value}")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors overlap at byte {0}")]
    Overlap(u64),
    /// The safetensors header is not the JSON that it should be.
    #[error("the header is not valid JSON for safetensors: line {line} column {column}")]
    Json {
        /// Line in the header, from 1.
        line: usize,
        /// Column in the line.
        column: usize,
    },
}

/// Reads the header of an object of `object_bytes` from its first bytes.
///
/// A caller starts with whatever it has (a mebibyte is a good start) and repeats with the number of bytes
/// that [`Parsed::NeedMore`] names; each answer asks for twice as much at least, so few rounds are needed.
pub fn parse_prefix(prefix: &[u8], object_bytes: u64) -> Parsed {
    let known = usize::try_from(object_bytes).map_or(prefix, |size| &prefix[..prefix.len().min(size)]);
    let cursor = cursor::Cursor::new(known, object_bytes);
    match gguf::parse(cursor.clone()).or_else(|stop| match stop {
        Stop::NotThis => safetensors::parse(cursor),
        other => Err(other),
    }) {
        Ok(layout) => Parsed::Layout(layout),
        Err(Stop::NeedMore(bytes)) => Parsed::NeedMore(bytes),
        Err(Stop::NotThis) => Parsed::NotThis,
        Err(Stop::Bad(error)) => Parsed::Bad(error),
    }
}

/// Why a parser stopped before the end.
#[derive(Debug)]
enum Stop {
    NeedMore(u64),
    NotThis,
    Bad(LayoutError),
}

impl From<LayoutError> for Stop {
    fn from(error: LayoutError) -> Self {
        Self::Bad(error)
    }
}

/// A tensor as a header describes it, before its place is checked.
#[derive(Debug)]
struct Tensor {
    /// First byte in the object.
    start: u64,
    /// One past its last byte.
    end: u64,
    /// Whose bytes they are.
    part: Part,
}

/// What the bytes of a tensor belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Dense,
    /// One expert.
    One(Expert),
    /// All experts of a block, one behind the other, `stride` bytes each.
    All {
        block: u32,
        count: u32,
        stride: u64,
    },
}

/// Checks that tensors do not overlap and collects the pieces of experts. `tensors` is sorted by start.
fn collect_pieces(tensors: &[Tensor]) -> Result<Vec<ExpertPiece>, LayoutError> {
    let mut pieces = Vec::new();
    let mut end_before = 0;
    for tensor in tensors {
        if tensor.start < end_before {
            return Err(LayoutError::Overlap(tensor.start));
        }
        end_before = tensor.end;
        match tensor.part {
            Part::Dense => {}
            Part::One(expert) => append(&mut pieces, tensor.start, tensor.end, expert)?,
            Part::All { block, count, stride } => {
                if stride < PIECE_BYTES_MIN {
                    continue;
                }
                for expert in 0..count {
                    let start = tensor.start + u64::from(expert) * stride;
                    append(&mut pieces, start, start + stride, Expert { block, expert })?;
                }
            }
        }
    }
    pieces.retain(|piece: &ExpertPiece| piece.range.bytes() >= PIECE_BYTES_MIN);
    Ok(pieces)
}

/// Appends a piece, or makes the last one longer if it is the same expert's and only padding lies between.
fn append(pieces: &mut Vec<ExpertPiece>, start: u64, end: u64, expert: Expert) -> Result<(), LayoutError> {
    /// Longest gap that counts as padding.
    const PADDING_BYTES_MAX: u64 = 4096;
    let mut start = start;
    if let Some(last) = pieces.last()
        && last.expert == expert
        && start - last.range.end() < PADDING_BYTES_MAX
    {
        start = last.range.offset();
        pieces.pop();
    }
    if pieces.len() == PIECES_MAX {
        let (count, limit) = (PIECES_MAX as u64 + 1, PIECES_MAX as u64);
        return Err(LayoutError::Count { what: "the number of expert matrices", count, limit });
    }
    let range = ByteRange::new(start, end - start)
        .map_err(|_| LayoutError::Value { what: "the end of a tensor", value: end })?;
    pieces.push(ExpertPiece { range, expert });
    Ok(())
}
