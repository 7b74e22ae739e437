//! An entry's payload as the image that it stands for.

use crate::container::Compression;
use std::borrow::Cow;
use std::io::Read;
use thiserror::Error;

/// Bytes of an unpacked image. The decoder of Zstandard keeps a window of up to as much again.
pub const IMAGE_BYTES_MAX: usize = 100 << 20;

/// An LZ4 block cannot say more bytes than this for one of its own.
const LZ4_RATIO_MAX: usize = 255;

/// Why a payload does not unpack.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecompressError {
    /// It says that it is larger than anybody should believe.
    #[error(
        "an image says {bytes} bytes, more than the limit of {IMAGE_BYTES_MAX} (hint: build the program with nvcc --compress-mode=none, or for fewer GPUs)"
    )]
    TooLarge {
        /// The size that its header says.
        bytes: u64,
    },
    /// The data are not what the compressor writes.
    #[error("an image's {format} data are damaged: {reason} (hint: the program's file is damaged)")]
    Damaged {
        /// The compression.
        format: &'static str,
        /// What the decoder says.
        reason: String,
    },
    /// It unpacks to another size.
    #[error(
        "an image unpacks to {found} bytes or more, where its header says {said} (hint: the program's file is damaged)"
    )]
    Size {
        /// What came out.
        found: usize,
        /// What the header says.
        said: usize,
    },
    /// Flags that nobody has seen.
    #[error("an image is compressed in an unknown way (hint: report the version of the compiler)")]
    Unknown,
}

/// Unpacks a payload whose image has so many bytes.
pub(crate) fn unpack(
    compression: Compression,
    payload: &[u8],
    image_bytes: u64,
) -> Result<Cow<'_, [u8]>, DecompressError> {
    let limited = || {
        let bytes = usize::try_from(image_bytes).ok().filter(|bytes| *bytes <= IMAGE_BYTES_MAX);
        bytes.ok_or(DecompressError::TooLarge { bytes: image_bytes })
    };
    match compression {
        Compression::None => Ok(Cow::Borrowed(payload)),
        Compression::Lz4 => lz4(payload, limited()?).map(Cow::Owned),
        Compression::Zstandard => zstandard(payload, limited()?).map(Cow::Owned),
        Compression::Unknown => Err(DecompressError::Unknown),
    }
}

fn lz4(payload: &[u8], said: usize) -> Result<Vec<u8>, DecompressError> {
    let most = payload.len().saturating_mul(LZ4_RATIO_MAX);
    if said > most {
        return Err(DecompressError::Size { found: most, said });
    }
    let mut image = vec![0; said];
    let found = lz4_flex::block::decompress_into(payload, &mut image)
        .map_err(|error| DecompressError::Damaged { format: "LZ4", reason: error.to_string() })?;
    if found == said { Ok(image) } else { Err(DecompressError::Size { found, said }) }
}

fn zstandard(payload: &[u8], said: usize) -> Result<Vec<u8>, DecompressError> {
    let damaged = |reason: String| DecompressError::Damaged { format: "Zstandard", reason };
    let decoder =
        ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| damaged(error.to_string()))?;
    // It grows as data come out, so a frame that only says to be large takes no memory.
    let mut image = Vec::new();
    decoder.take(said as u64 + 1).read_to_end(&mut image).map_err(|error| damaged(error.to_string()))?;
    if image.len() == said { Ok(image) } else { Err(DecompressError::Size { found: image.len(), said }) }
}
