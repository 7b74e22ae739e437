//! How the bytes of open files are reached: one way for each inode while it is open anywhere.
//!
//! The kernel refuses to open a file both with and without passthrough at one time, so the choice is made
//! at the first open and kept until the last release.

use crate::source::{Contents, ReadAt, SourceError};
use fuser::BackingId;
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, fstatfs};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One way to the bytes.
pub(crate) enum OpenFile {
    /// The kernel reads and maps the object's own file; the file stays open for requests of its own.
    Passthrough(BackingId, File),
    /// The object's own file, read here.
    OwnFile(File),
    /// Read through the pool.
    Remote(Box<dyn ReadAt>),
}

impl OpenFile {
    /// Contents as they are, without passthrough.
    pub(crate) fn plain(contents: Contents) -> Self {
        match contents {
            Contents::OwnFile(file) => Self::OwnFile(file),
            Contents::Remote(reader) => Self::Remote(reader),
        }
    }

    /// Fills the whole buffer from `offset`, within the object.
    ///
    /// # Errors
    /// [`SourceError`]; a file that ends early is an error and never zeros.
    pub(crate) fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        match self {
            Self::Passthrough(_, file) | Self::OwnFile(file) => {
                file.read_exact_at(buffer, offset).map_err(|error| SourceError {
                    code: nix::libc::EIO,
                    text: format!(
                        "reading {} bytes at {offset} of an object's own file failed: {error} (hint: run `hinterland verify NAME`)",
                        buffer.len()
                    ),
                })
            }
            Self::Remote(reader) => reader.read_exact_at(offset, buffer),
        }
    }
}

/// Whether the kernel may be given this file for an object of `bytes` bytes. Not if it is longer: reads would
/// go on into what fills its last page. Not on hugetlbfs: a mapping through FUSE is placed at a 4 KiB boundary,
/// and nothing on that way checks what huge pages need.
pub(crate) fn may_pass_through(file: &File, bytes: u64) -> bool {
    let has_length = file.metadata().is_ok_and(|metadata| metadata.len() == bytes);
    let is_huge = fstatfs(file).is_ok_and(|status| {
        let FsType(kind) = status.filesystem_type();
        kind == HUGETLBFS_MAGIC.0
    });
    has_length && !is_huge
}

struct Counted {
    file: Arc<OpenFile>,
    opens: u64,
    /// Threads that were told to look its name up again.
    refused: HashSet<u32>,
}

/// Open files by inode number.
#[derive(Default)]
pub(crate) struct OpenFiles {
    by_inode: Mutex<HashMap<u64, Counted>>,
}

impl OpenFiles {
    /// Counts one more open of a file that is open already.
    pub(crate) fn open_again(&self, inode: u64) -> Option<Arc<OpenFile>> {
        let mut files = self.lock();
        let counted = files.get_mut(&inode)?;
        counted.opens += 1;
        Some(counted.file.clone())
    }

    /// Whether a thread that opens a file whose name is another one's now is to look it up again. A thread that was told so and comes back
    /// with the same number has no name to look up: it opens `/proc/self/fd/N`.
    pub(crate) fn refuse(&self, inode: u64, thread: u32) -> bool {
        let mut files = self.lock();
        let Some(counted) = files.get_mut(&inode) else { return true };
        if counted.refused.remove(&thread) {
            return false;
        }
        counted.refused.insert(thread)
    }

    /// Counts an open; if another thread opened the file meanwhile, its way stays.
    pub(crate) fn open_first(&self, inode: u64, file: OpenFile) -> Arc<OpenFile> {
        let mut files = self.lock();
        let counted = files.entry(inode).or_insert_with(|| Counted {
            file: Arc::new(file),
            opens: 0,
            refused: HashSet::new(),
        });
        counted.opens += 1;
        counted.file.clone()
    }

    /// An open file.
    pub(crate) fn file(&self, inode: u64) -> Option<Arc<OpenFile>> {
        self.lock().get(&inode).map(|counted| counted.file.clone())
    }

    /// Counts one open less; the last one closes.
    pub(crate) fn release(&self, inode: u64) {
        let mut files = self.lock();
        let Some(counted) = files.get_mut(&inode) else { return };
        counted.opens -= 1;
        let closed = if counted.opens == 0 { files.remove(&inode) } else { None };
        drop(files);
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Counted>> {
        self.by_inode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Byte(u8);

    impl ReadAt for Byte {
        fn read_exact_at(&self, _: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            buffer.fill(self.0);
            Ok(())
        }
    }

    fn first_byte(file: &OpenFile) -> u8 {
        let mut buffer = [0];
        file.read_exact_at(0, &mut buffer).unwrap();
        buffer[0]
    }

    #[test]
    fn the_way_chosen_first_stays_until_the_last_release() {
        let files = OpenFiles::default();
        assert!(files.open_again(9).is_none());
        assert_eq!(first_byte(&files.open_first(9, OpenFile::Remote(Box::new(Byte(1))))), 1);
        assert_eq!(first_byte(&files.open_first(9, OpenFile::Remote(Box::new(Byte(2))))), 1);
        files.release(9);
        assert_eq!(first_byte(&files.open_again(9).unwrap()), 1);
        files.release(9);
        files.release(9);
        assert!(files.file(9).is_none());
        assert_eq!(first_byte(&files.open_first(9, OpenFile::Remote(Box::new(Byte(3))))), 3);
    }

    #[test]
    fn a_file_that_ends_early_is_an_error_and_not_zeros() {
        let path = std::env::temp_dir().join(format!("hinterland-short-{}", std::process::id()));
        std::fs::write(&path, b"abc").unwrap();
        let file = OpenFile::OwnFile(File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let error = file.read_exact_at(1, &mut [0; 8]).unwrap_err();
        assert!(error.code == nix::libc::EIO && error.text.contains("hint:"), "{error}");
    }
}
