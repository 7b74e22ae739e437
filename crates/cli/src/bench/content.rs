//! Bytes to measure with: made from their position, so that any two copies of them are the same.

use crate::failure::Failure;
use hinterland_pool::{Pool, PutOptions};
use hinterland_types::ObjectName;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

/// A reader of `bytes` bytes that no compression or page merging makes fewer.
pub struct Content {
    at: u64,
    bytes: u64,
}

impl Content {
    /// From the first byte; `bytes` is a multiple of 8.
    pub const fn new(bytes: u64) -> Self {
        Self { at: 0, bytes }
    }
}

impl Read for Content {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX);
        let whole = into.len().min(left) / 8 * 8;
        for word in into[..whole].as_chunks_mut::<8>().0 {
            let value = self.at.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (self.at >> 7);
            *word = value.to_le_bytes();
            self.at += 8;
        }
        Ok(whole)
    }
}

/// A name of an object of a bench.
///
/// # Errors
/// [`Failure`] if it is none.
pub fn name(text: &str) -> Result<ObjectName, Failure> {
    ObjectName::parse(text).map_err(|error| Failure::of(&error))
}

/// Puts an object of this content.
///
/// # Errors
/// [`Failure`] without room.
pub fn put(pool: &Pool, text: &str, bytes: u64) -> Result<(), Failure> {
    let options = PutOptions { bytes: Some(bytes), ..PutOptions::default() };
    pool.put(&mut Content::new(bytes), &name(text)?, &options, &mut |_| {})?;
    Ok(())
}

/// Writes a file of this content to the disk.
///
/// # Errors
/// [`Failure`] without room.
pub fn write_file(path: &Path, bytes: u64) -> Result<(), Failure> {
    let failed = |error| Failure::file("writing", path, &error);
    let mut file = std::fs::File::create(path).map_err(failed)?;
    let mut content = Content::new(bytes);
    let mut chunk = vec![0; 4 << 20];
    loop {
        let filled = content.read(&mut chunk).map_err(failed)?;
        if filled == 0 {
            return file.sync_all().map_err(failed);
        }
        file.write_all(&chunk[..filled]).map_err(failed)?;
    }
}

/// Takes the pages of a file out of the page cache.
///
/// # Errors
/// [`Failure`] without `dd`.
pub fn forget_pages(path: &Path) -> Result<(), Failure> {
    // `dd` of nothing with this flag asks the kernel to drop the whole file.
    let mut command = Command::new("dd");
    command.arg(format!("if={}", path.display())).args(["iflag=nocache", "count=0", "status=none"]);
    let done = command.status().is_ok_and(|status| status.success());
    if done { Ok(()) } else { Err(Failure::new("the page cache cannot be emptied", "install coreutils")) }
}

/// Offsets without an order that anybody could guess, the same for the same seed.
#[derive(Clone)]
pub struct Offsets {
    state: u64,
}

impl Offsets {
    /// A sequence.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    /// A multiple of 64 below `limit`, which is at least 64.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % (limit / 64) * 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_the_size_of_reads() {
        let mut whole = Vec::new();
        Content::new(1 << 16).read_to_end(&mut whole).unwrap();
        let (mut pieces, mut content) = (Vec::new(), Content::new(1 << 16));
        let mut piece = [0; 1000];
        loop {
            let filled = content.read(&mut piece).unwrap();
            if filled == 0 {
                break;
            }
            pieces.extend_from_slice(&piece[..filled]);
        }
        assert_eq!(whole, pieces);
        assert_eq!(whole.len(), 1 << 16);
    }

    #[test]
    fn offsets_are_aligned_and_below_the_limit() {
        let mut offsets = Offsets::new(7);
        assert!((0..1000).map(|_| offsets.below(640)).all(|offset| offset % 64 == 0 && offset < 640));
    }
}
