//! A fat binary: a header and entries, each with an image for some GPUs, and how to make one with fewer entries.
//!
//! All numbers are little-endian. The container, 16 bytes:
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | `0xba55ed50` |
//! | 4 | 2 | version, 1 |
//! | 6 | 2 | bytes of this header |
//! | 8 | 8 | bytes of all entries |
//!
//! An entry, at least 64 bytes:
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 2 | kind: 1 PTX, 2 machine code; others exist |
//! | 2 | 2 | version |
//! | 4 | 4 | bytes of this header, with the strings behind it |
//! | 8 | 8 | bytes of the payload behind it, padded to 8 |
//! | 16 | 4 | bytes of the payload that are compressed data, 0 if it is not compressed |
//! | 28 | 4 | capability: 90 is 9.0 |
//! | 32, 36 | 4, 4 | offset and length of the source's name, 0 if there is none |
//! | 40 | 8 | flags: 0x2000 LZ4, 0x8000 Zstandard, 0x100000 `a`, 0x200000 `f` |
//! | 56 | 8 | bytes of the image, 0 if it is not compressed |

use crate::decompress::{self, DecompressError};
use crate::numbers::{u16_at, u32_at, u64_at};
use crate::target::{Capability, Specific, Target};
use std::borrow::Cow;
use thiserror::Error;

/// What every fat binary starts with.
pub const CONTAINER_MAGIC: u32 = 0xba55_ed50;
/// Bytes of a container's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes that an entry's header has at least.
pub const ENTRY_HEADER_BYTES: usize = 64;
/// Entries of one container: hundreds occur, so this is a limit for what nobody meant.
pub const ENTRIES_MAX: usize = 1 << 16;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTANDARD: u64 = 0x8000;
const FLAG_ARCHITECTURE: u64 = 0x10_0000;
const FLAG_FAMILY: u64 = 0x20_0000;

/// Why bytes are no fat binary.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ContainerError {
    /// Other first bytes.
    #[error(
        "a fat binary starts with {CONTAINER_MAGIC:#x}, not with {found:#x} (hint: an ELF file or PTX is an image by itself)"
    )]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// The bytes end within something.
    #[error(
        "a fat binary ends within {what} at byte {offset} (hint: the program's file is damaged or cut off)"
    )]
    Short {
        /// What is not whole.
        what: &'static str,
        /// Where it starts.
        offset: usize,
    },
    /// A version that nobody has seen.
    #[error(
        "version {found} of fat binaries is unknown, 1 is known (hint: report the version of the compiler)"
    )]
    Version {
        /// The version in the header.
        found: u16,
    },
    /// A header says a size that it cannot have.
    #[error(
        "{what} of a fat binary at byte {offset} says {bytes} bytes, which it cannot have (hint: the program's file is damaged)"
    )]
    Size {
        /// Whose size.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// The size that it says.
        bytes: u64,
    },
    /// More entries than anybody makes.
    #[error("a fat binary has more than {ENTRIES_MAX} entries (hint: the program's file is damaged)")]
    Entries,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// PTX, which a driver compiles.
    Assembly,
    /// Machine code, a cubin.
    MachineCode,
    /// Something else, such as code for the linker; no GPU takes it as it is.
    Other(u16),
}

/// How an entry's payload is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    None,
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstandard,
    /// Both flags at once, which nobody writes.
    Unknown,
}

/// One image of a fat binary, still packed.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'bytes> {
    /// What it holds.
    pub kind: Kind,
    /// The GPUs that it was made for.
    pub target: Target,
    /// How it is packed.
    pub compression: Compression,
    /// Bytes of the image as the header says them; for a payload that is not compressed, its own size.
    pub image_bytes: u64,
    /// Header and payload, as they lie in the container.
    pub raw: &'bytes [u8],
    /// The payload without the padding behind compressed data.
    pub payload: &'bytes [u8],
}

impl<'bytes> Entry<'bytes> {
    /// The image: ELF for machine code, text without trailing zeros for PTX.
    ///
    /// # Errors
    /// [`DecompressError`] when the payload does not unpack to what the header says, or is larger than
    /// [`crate::IMAGE_BYTES_MAX`].
    pub fn image(&self) -> Result<Cow<'bytes, [u8]>, DecompressError> {
        let image = decompress::unpack(self.compression, self.payload, self.image_bytes)?;
        Ok(if self.kind == Kind::Assembly { without_trailing_zeros(image) } else { image })
    }

    fn parse(bytes: &'bytes [u8], offset: usize) -> Result<Self, ContainerError> {
        let short = ContainerError::Short { what: "an entry", offset };
        let rest = bytes.get(offset..).ok_or(short)?;
        let header_bytes = u32_at(rest, 4).ok_or(short)? as usize;
        let payload_bytes = u64_at(rest, 8).ok_or(short)?;
        if header_bytes < ENTRY_HEADER_BYTES {
            let bytes = header_bytes as u64;
            return Err(ContainerError::Size { what: "the header of an entry", offset, bytes });
        }
        let header = rest.get(..header_bytes).ok_or(short)?;
        let payload_size = usize::try_from(payload_bytes).map_err(|_| short)?;
        let end = header_bytes.checked_add(payload_size).ok_or(short)?;
        let raw = rest.get(..end).ok_or(short)?;
        let packed_bytes = u32_at(header, 16).ok_or(short)?;
        let flags = u64_at(header, 40).ok_or(short)?;
        let compression = match (flags & FLAG_LZ4 != 0, flags & FLAG_ZSTANDARD != 0) {
            (false, false) => Compression::None,
            (true, false) => Compression::Lz4,
            (false, true) => Compression::Zstandard,
            (true, true) => Compression::Unknown,
        };
        let whole = &raw[header_bytes..];
        let (payload, image_bytes) = match compression {
            Compression::None => (whole, payload_bytes),
            _ => {
                let size = ContainerError::Size {
                    what: "the compressed payload of an entry",
                    offset,
                    bytes: packed_bytes.into(),
                };
                (whole.get(..packed_bytes as usize).ok_or(size)?, u64_at(header, 56).ok_or(short)?)
            }
        };
        let kind = match u16_at(header, 0).ok_or(short)? {
            1 => Kind::Assembly,
            2 => Kind::MachineCode,
            other => Kind::Other(other),
        };
        let specific = match (flags & FLAG_ARCHITECTURE != 0, flags & FLAG_FAMILY != 0) {
            (true, _) => Specific::Architecture,
            (false, true) => Specific::Family,
            (false, false) => Specific::No,
        };
        let capability = Capability::of_number(u32_at(header, 28).ok_or(short)?);
        Ok(Self { kind, target: Target { capability, specific }, compression, image_bytes, raw, payload })
    }
}

fn without_trailing_zeros(image: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let text_bytes = image.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match image {
        Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..text_bytes]),
        Cow::Owned(mut bytes) => {
            bytes.truncate(text_bytes);
            Cow::Owned(bytes)
        }
    }
}

/// How long a fat binary is, from its first [`HEADER_BYTES`] bytes: for who has a pointer and no length.
///
/// # Errors
/// [`ContainerError`] when the header is none.
pub fn container_bytes(header: &[u8]) -> Result<usize, ContainerError> {
    let (header_bytes, entries_bytes) = sizes(header)?;
    let bytes = header_bytes as u64 + entries_bytes as u64;
    usize::try_from(bytes).map_err(|_| ContainerError::Size { what: "the header", offset: 0, bytes })
}

fn sizes(header: &[u8]) -> Result<(usize, usize), ContainerError> {
    let short = ContainerError::Short { what: "the header", offset: 0 };
    let magic = u32_at(header, 0).ok_or(short)?;
    if magic != CONTAINER_MAGIC {
        return Err(ContainerError::Magic { found: magic });
    }
    let version = u16_at(header, 4).ok_or(short)?;
    if version != 1 {
        return Err(ContainerError::Version { found: version });
    }
    let header_bytes = usize::from(u16_at(header, 6).ok_or(short)?);
    let bytes = u64_at(header, 8).ok_or(short)?;
    let size = |bytes| ContainerError::Size { what: "the header", offset: 0, bytes };
    if header_bytes < HEADER_BYTES {
        return Err(size(header_bytes as u64));
    }
    // A sum of both must not overflow, on any machine.
    let entries_bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= isize::MAX as usize - 65536);
    Ok((header_bytes, entries_bytes.ok_or(size(bytes))?))
}

/// The entries of a fat binary, in its own order. Bytes behind its end are ignored.
///
/// # Errors
/// [`ContainerError`] when the bytes are no fat binary, or end within it.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, ContainerError> {
    let (header_bytes, entries_bytes) = sizes(bytes)?;
    let short = ContainerError::Short { what: "its entries", offset: header_bytes };
    let bytes = bytes.get(..header_bytes + entries_bytes).ok_or(short)?;
    let mut found = Vec::new();
    let mut offset = header_bytes;
    while offset < bytes.len() {
        if found.len() == ENTRIES_MAX {
            return Err(ContainerError::Entries);
        }
        let entry = Entry::parse(bytes, offset)?;
        offset += entry.raw.len();
        found.push(entry);
    }
    Ok(found)
}

/// A fat binary around one image, machine code or PTX, as it is: for programs that have images without one.
pub fn wrap(image: &[u8], capability: Capability) -> Vec<u8> {
    let kind: u16 = if image.starts_with(b"\x7fELF") { 2 } else { 1 };
    // PTX ends with a zero at least; both end at a multiple of 8.
    let payload_bytes = (image.len() + 1).next_multiple_of(8);
    let mut entry = vec![0; ENTRY_HEADER_BYTES];
    entry[0..2].copy_from_slice(&kind.to_le_bytes());
    entry[2..4].copy_from_slice(&0x101_u16.to_le_bytes());
    entry[4..8].copy_from_slice(&(ENTRY_HEADER_BYTES as u32).to_le_bytes());
    entry[8..16].copy_from_slice(&(payload_bytes as u64).to_le_bytes());
    entry[28..32].copy_from_slice(&(capability.major * 10 + capability.minor).to_le_bytes());
    entry.extend(image);
    entry.resize(ENTRY_HEADER_BYTES + payload_bytes, 0);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + entry.len());
    bytes.extend(CONTAINER_MAGIC.to_le_bytes());
    bytes.extend(1u16.to_le_bytes());
    bytes.extend((HEADER_BYTES as u16).to_le_bytes());
    bytes.extend((entry.len() as u64).to_le_bytes());
    bytes.extend(entry);
    bytes
}

/// A fat binary with these entries only, unchanged: what is sent to a machine whose GPU needs no more.
pub fn repack(chosen: &[Entry<'_>]) -> Vec<u8> {
    let entries_bytes: usize = chosen.iter().map(|entry| entry.raw.len()).sum();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + entries_bytes);
    bytes.extend(CONTAINER_MAGIC.to_le_bytes());
    bytes.extend(1u16.to_le_bytes());
    bytes.extend((HEADER_BYTES as u16).to_le_bytes());
    bytes.extend((entries_bytes as u64).to_le_bytes());
    chosen.iter().for_each(|entry| bytes.extend(entry.raw));
    bytes
}

/// The fat binaries of a program's section `.nv_fatbin`: one behind the other, with zeros between them.
#[derive(Clone, Debug)]
pub struct Containers<'bytes> {
    rest: &'bytes [u8],
}

impl<'bytes> Containers<'bytes> {
    /// Those of a whole section.
    pub fn new(section: &'bytes [u8]) -> Self {
        Self { rest: section }
    }
}

impl<'bytes> Iterator for Containers<'bytes> {
    type Item = Result<&'bytes [u8], ContainerError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|byte| *byte != 0)?;
        let rest = &self.rest[start..];
        let short = ContainerError::Short { what: "a container", offset: start };
        let found = container_bytes(rest).and_then(|bytes| rest.get(..bytes).ok_or(short));
        self.rest = found.map_or(&[], |found| &rest[found.len()..]);
        Some(found)
    }
}
