//! GGUF headers, versions 2 and 3: metadata is skipped but for the alignment, tensors are placed.
//!
//! Layout, all little-endian: `GGUF`, u32 version, u64 tensor count, u64 metadata count; metadata entries
//! (string key, u32 type, value); tensor entries (string name, u32 dimensions, u64 each, u32 type, u64
//! offset from the aligned end of the header). Strings are a u64 length and bytes.

use super::cursor::Cursor;
use super::expert_name::{Blocks, Named, of_gguf};
use super::ggml_type::tensor_bytes;
use super::{
    EXPERTS_MAX, Expert, Format, Layout, LayoutError, Part, Stop, TENSORS_MAX, Tensor, collect_pieces,
};

/// Alignment of tensors unless the metadata says otherwise.
const ALIGNMENT_BYTES: u64 = 32;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Shortest metadata entry: an empty key, a type, one byte.
const METADATA_ENTRY_BYTES_MIN: u64 = 13;

/// A tensor entry as it stands in the header.
struct Entry {
    /// From the start of tensor data.
    offset: u64,
    /// Bytes, if the type is known.
    bytes: Option<u64>,
    /// Rows and slices, to find the size of a slice when the type is unknown.
    rows: u64,
    slices: u64,
    named: Option<(u32, Named)>,
}

pub(super) fn parse(mut cursor: Cursor<'_>) -> Result<Layout, Stop> {
    if cursor.object_bytes() < 24 || cursor.take("magic", 4)? != b"GGUF" {
        return Err(Stop::NotThis);
    }
    let version = cursor.u32("version")?;
    if !(2..=3).contains(&version) {
        return Err(LayoutError::Version(version).into());
    }
    let tensor_count = cursor.u64("the number of tensors")?;
    if tensor_count > TENSORS_MAX {
        let what = "the number of tensors";
        return Err(LayoutError::Count { what, count: tensor_count, limit: TENSORS_MAX }.into());
    }
    let metadata_count = cursor.u64("the number of metadata entries")?;
    let limit = cursor.object_bytes() / METADATA_ENTRY_BYTES_MIN;
    if metadata_count > limit {
        let what = "the number of metadata entries";
        return Err(LayoutError::Count { what, count: metadata_count, limit }.into());
    }
    let mut alignment = ALIGNMENT_BYTES;
    for _ in 0..metadata_count {
        if let Some(stated) = metadata_entry(&mut cursor)? {
            alignment = stated;
        }
    }
    let mut blocks = Blocks::default();
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        entries.push(tensor_entry(&mut cursor, &mut blocks)?);
    }
    let data_offset = cursor
        .position()
        .checked_next_multiple_of(alignment)
        .ok_or(LayoutError::Value { what: "general.alignment", value: alignment })?;
    let tensors = place(entries, data_offset, cursor.object_bytes())?;
    // Checked against TENSORS_MAX above: the cast loses nothing.
    let tensor_count = tensor_count as u32;
    Ok(Layout { format: Format::Gguf, data_offset, tensor_count, pieces: collect_pieces(&tensors)? })
}

/// Skips one metadata entry; returns the alignment if that is what it states.
fn metadata_entry(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Stop> {
    let key = string(cursor, "a metadata key")?;
    let kind = cursor.u32("a metadata type")?;
    if key == b"general.alignment" && kind == TYPE_U32 {
        let alignment = u64::from(cursor.u32("general.alignment")?);
        if !alignment.is_power_of_two() {
            return Err(LayoutError::Value { what: "general.alignment", value: alignment }.into());
        }
        return Ok(Some(alignment));
    }
    skip_value(cursor, kind)?;
    Ok(None)
}

const TYPE_U32: u32 = 4;
const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;

fn skip_value(cursor: &mut Cursor<'_>, kind: u32) -> Result<(), Stop> {
    match kind {
        TYPE_STRING => string(cursor, "a metadata string").map(drop),
        TYPE_ARRAY => {
            let kind = cursor.u32("an array type")?;
            let count = cursor.u64("an array length")?;
            if kind == TYPE_STRING {
                // Every string takes 8 bytes at least, so the prefix ends the loop whatever the count is.
                for _ in 0..count {
                    string(cursor, "a string of an array")?;
                }
                return Ok(());
            }
            let bytes = count
                .checked_mul(scalar_bytes(kind)?)
                .ok_or(LayoutError::Value { what: "an array length", value: count })?;
            cursor.take("an array", bytes).map(drop)
        }
        _ => cursor.take("a metadata value", scalar_bytes(kind)?).map(drop),
    }
}

/// Bytes of a number; arrays of arrays do not exist in practice and are refused with the unknown types.
fn scalar_bytes(kind: u32) -> Result<u64, LayoutError> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(LayoutError::Value { what: "a metadata type", value: u64::from(kind) }),
    }
}

fn string<'a>(cursor: &mut Cursor<'a>, what: &'static str) -> Result<&'a [u8], Stop> {
    let bytes = cursor.u64(what)?;
    cursor.take(what, bytes)
}

fn tensor_entry(cursor: &mut Cursor<'_>, blocks: &mut Blocks) -> Result<Entry, Stop> {
    let name = string(cursor, "a tensor name")?;
    let dimension_count = cursor.u32("the number of dimensions")?;
    if dimension_count > DIMENSIONS_MAX {
        let (count, limit) = (u64::from(dimension_count), u64::from(DIMENSIONS_MAX));
        return Err(LayoutError::Count { what: "the number of dimensions", count, limit }.into());
    }
    let mut dimensions = [1; DIMENSIONS_MAX as usize];
    for length in dimensions.iter_mut().take(dimension_count as usize) {
        *length = cursor.u64("a dimension")?;
    }
    let ggml_type = cursor.u32("a tensor type")?;
    let offset = cursor.u64("a tensor offset")?;
    // The first dimension runs fastest, so the slices of a tensor of three dimensions lie behind each other.
    let named = str::from_utf8(name).ok().and_then(of_gguf).and_then(|(block, named)| {
        let holds_slices = dimension_count == 3 && (2..=EXPERTS_MAX).contains(&dimensions[2]);
        let fits = match named {
            Named::One(expert) => u64::from(expert) < EXPERTS_MAX,
            Named::All => holds_slices,
        };
        fits.then(|| (blocks.number(block), named))
    });
    let bytes = tensor_bytes(ggml_type, &dimensions);
    Ok(Entry { offset, bytes, rows: dimensions[1], slices: dimensions[2], named })
}

/// Turns offsets into places in the object. A tensor of unknown type ends where the next one starts.
fn place(mut entries: Vec<Entry>, data_offset: u64, object_bytes: u64) -> Result<Vec<Tensor>, LayoutError> {
    entries.sort_by_key(|entry| (entry.offset, entry.bytes));
    let mut tensors = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let behind = |end| LayoutError::BehindEnd { what: "a tensor", end, object_bytes };
        let start = data_offset.checked_add(entry.offset).ok_or(behind(u64::MAX))?;
        let next = entries.get(index + 1).and_then(|next| data_offset.checked_add(next.offset));
        let end = match entry.bytes {
            Some(bytes) => start.checked_add(bytes).ok_or(behind(u64::MAX))?,
            None => next.unwrap_or(object_bytes).max(start),
        };
        if end > object_bytes {
            return Err(behind(end));
        }
        tensors.push(Tensor { start, end, part: part_of(entry, end - start) });
    }
    Ok(tensors)
}

fn part_of(entry: &Entry, bytes: u64) -> Part {
    match entry.named {
        None => Part::Dense,
        Some((block, Named::One(expert))) => Part::One(Expert { block, expert }),
        Some((block, Named::All)) => {
            // A row takes a whole number of bytes; rounding down to rows takes off what is only padding.
            let rows = entry.rows.max(1);
            let row_bytes =
                entry.slices.checked_mul(rows).map_or(0, |rows_in_all| bytes / rows_in_all.max(1));
            // At most `bytes / slices`, and slices is at most EXPERTS_MAX: neither can overflow.
            Part::All { block, count: entry.slices as u32, stride: row_bytes * rows }
        }
    }
}
