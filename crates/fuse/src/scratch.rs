//! Memory for the bytes of a file that is being written: sparse, and gone with the file.

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A memory file whose length is set from outside; what was not written is zeros.
pub(crate) struct Scratch {
    file: File,
}

impl Scratch {
    /// An empty one.
    ///
    /// # Errors
    /// Without descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        let file = memfd_create(c"hinterland-draft", MFdFlags::MFD_CLOEXEC)?;
        Ok(Self { file: File::from(file) })
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// Without memory left.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Reads bytes; zeros where nothing was written.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            match self.file.read_at(&mut into[filled..], offset + filled as u64) {
                Ok(0) => {
                    into[filled..].fill(0);
                    return Ok(());
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Cuts off, or makes longer with zeros.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn resize(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    /// Makes a range zeros and gives its memory back.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn blank(&self, offset: u64, bytes: u64) -> io::Result<()> {
        use nix::fcntl::{FallocateFlags, fallocate};
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let number = |value: u64| i64::try_from(value).map_err(|_| Errno::EFBIG);
        Ok(fallocate(&self.file, flags, number(offset)?, number(bytes)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_zeros_also_behind_the_end() {
        let scratch = Scratch::new().unwrap();
        scratch.write_at(5000, b"abc").unwrap();
        let mut bytes = [9; 8];
        scratch.read_at(4997, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0abc\0\0");
        scratch.resize(5001).unwrap();
        scratch.resize(6000).unwrap();
        scratch.read_at(4999, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0a\0\0\0\0\0\0");
        scratch.blank(5000, 10).unwrap();
        scratch.read_at(4999, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    }
}
