//! The words of a region, which programs of this host map: what the node says of each page.

use crate::refused::Refused;
use hinterland_os::{MapOptions, MemoryFile, OsError, SharedSlice};
use hinterland_proto::pages::{PageWord, copies_until_at, words_bytes};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The words of a region, in a file with a name, so that the next life of the node can make them say nothing.
pub(super) struct Words {
    file: MemoryFile,
    memory: SharedSlice,
    /// The region was removed: they say nothing any more.
    are_gone: AtomicBool,
}

impl Words {
    /// Words that say nothing, for so many pages.
    ///
    /// # Errors
    /// [`Refused`] without memory.
    pub fn new(path: &Path, pages: u32) -> Result<Self, Refused> {
        let bytes = words_bytes(u64::from(pages)) as u64;
        silence(path);
        let file = MemoryFile::create(path, bytes)?;
        file.allocate(0, bytes)?;
        // 64-bit only.
        let mapping = file.map(0, bytes as usize, MapOptions { write: true, ..MapOptions::default() })?;
        Ok(Self { memory: Arc::new(mapping).slice(), file, are_gone: AtomicBool::new(false) })
    }

    /// What is said of a page, which must be one of the region's.
    pub fn get(&self, index: u32) -> PageWord {
        // There is room for all pages.
        PageWord(self.memory.load_u64(index as usize * 8).unwrap_or(0))
    }

    /// Says something of a page, which must be one of the region's. What follows, such as a look at who uses the page, comes behind it.
    pub fn set(&self, index: u32, word: PageWord) {
        self.store(index as usize * 8, word.0);
    }

    /// Says until when copies of its pages may be read, in nanoseconds of the clock that goes on while the machine is suspended.
    pub fn set_copies_until(&self, pages: u32, until_ns: u64) {
        // There is room for it behind the words.
        self.store(copies_until_at(u64::from(pages)), until_ns);
    }

    fn store(&self, at: usize, number: u64) {
        if self.are_gone() {
            return;
        }
        // In the mapping, which is writable.
        let _ = self.memory.store_u64(at, number);
        // Pairs with the one in `close`: either this thread sees there that they are gone, or that one's zeros come behind this number.
        fence(Ordering::SeqCst);
        if self.are_gone() {
            let _ = self.memory.store_u64(at, 0);
        }
    }

    /// Whether the region was removed.
    pub fn are_gone(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.are_gone.load(Ordering::Acquire)
    }

    /// Makes them say nothing for good.
    pub fn close(&self) {
        // Release: pairs with the Acquire in `are_gone`.
        self.are_gone.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.silence();
    }

    /// Makes all of them say nothing.
    pub fn silence(&self) {
        // The whole of a writable mapping.
        let _ = self.memory.fill(0, self.memory.len(), 0);
    }

    /// A descriptor for programs, which only read them.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn descriptor(&self) -> Result<OwnedFd, OsError> {
        self.file.reopen_read_only()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // Nobody keeps these words up to date any more.
        self.silence();
        // It may have gone with its folder.
        let _ = self.file.remove();
    }
}

/// Makes words that another life of the node, or another region of this one, has left say nothing, and removes them.
pub(super) fn silence(path: &Path) {
    if let Ok(file) = MemoryFile::open(path, true)
        && let Ok(mapping) =
            file.map(0, file.len() as usize, MapOptions { write: true, ..MapOptions::default() })
    {
        let words = Arc::new(mapping).slice();
        // In the mapping that was just made.
        let _ = words.fill(0, words.len(), 0);
    }
    // What is not there is what is wanted.
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn words_say_nothing_once_they_are_closed_whoever_was_saying_something() {
        let path = PathBuf::from(format!("/dev/shm/hinterland-words-{}", std::process::id()));
        for round in 0..20_000 {
            let words = Words::new(&path, 8).unwrap();
            let has_begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !words.are_gone() {
                        (0..8).for_each(|index| words.set(index, PageWord::here(1)));
                        words.set_copies_until(8, 1);
                        has_begun.store(true, Ordering::Relaxed);
                    }
                });
                while !has_begun.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                words.close();
            });
            let places = (0..8).map(|index| index * 8).chain([copies_until_at(8)]);
            let left: Vec<u64> = places.map(|at| words.memory.load_u64(at).unwrap()).collect();
            assert!(left.iter().all(|word| *word == 0), "round {round}: {left:?}");
        }
    }
}
