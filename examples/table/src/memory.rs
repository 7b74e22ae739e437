//! What a table needs of memory: bytes that are read and written, words that are swapped.

use hinterland_pool::{Pool, PoolError};
use hinterland_types::GlobalAddress;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that others read and write at the same time. Offsets are bytes from its start; nobody reads half of an aligned
/// word of 8 bytes.
pub trait Memory {
    /// Reads bytes.
    ///
    /// # Errors
    /// [`PoolError`].
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError>;

    /// Fills each buffer with the bytes at its offset. They are not read at one moment.
    ///
    /// # Errors
    /// [`PoolError`] of the first that failed.
    fn read_many(&self, parts: &mut [(u64, &mut [u8])]) -> Result<(), PoolError> {
        parts.iter_mut().try_for_each(|(offset, into)| self.read(*offset, into))
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`PoolError`].
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError>;

    /// Replaces a word if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// [`PoolError`]; it may have happened nevertheless.
    fn swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError>;

    /// Adds to a word; returns what it was.
    ///
    /// # Errors
    /// [`PoolError`]; it may have happened nevertheless.
    fn add(&self, offset: u64, addend: u64) -> Result<u64, PoolError>;
}

/// A region of a pool, which may lie in another rack.
pub struct PoolMemory {
    pool: Pool,
    start: GlobalAddress,
}

impl PoolMemory {
    /// The memory from an address of the pool on.
    pub const fn new(pool: Pool, start: GlobalAddress) -> Self {
        Self { pool, start }
    }

    fn at(&self, offset: u64) -> Result<GlobalAddress, PoolError> {
        const EINVAL: i32 = 22;
        let refused = || PoolError::Refused { code: EINVAL, text: format!("no address at {offset}") };
        self.start.checked_add(offset).ok_or_else(refused)
    }
}

impl Memory for PoolMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.pool.read(self.at(offset)?, into)
    }

    fn read_many(&self, parts: &mut [(u64, &mut [u8])]) -> Result<(), PoolError> {
        let parts = parts.iter_mut().map(|(offset, into)| Ok((self.at(*offset)?, &mut **into)));
        let mut parts = parts.collect::<Result<Vec<_>, PoolError>>()?;
        self.pool.read_many(&mut parts).map_err(|failed| failed.error)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        self.pool.write(self.at(offset)?, from)
    }

    fn swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        self.pool.compare_and_swap(self.at(offset)?, expected, desired)
    }

    fn add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        self.pool.fetch_and_add(self.at(offset)?, addend)
    }
}

/// Memory of this process, shared by its threads.
pub struct ProcessMemory {
    words: Vec<AtomicU64>,
}

impl ProcessMemory {
    /// `bytes` bytes of zeros.
    pub fn new(bytes: u64) -> Self {
        Self { words: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect() }
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.words[(offset / 8) as usize]
    }
}

/// The words that `bytes` bytes from `offset` lie in: for each where it begins, and which of the bytes are its own and from which of
/// its bytes on.
fn in_words(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let from = ((offset + done as u64) % 8) as usize;
        let end = bytes.min(done + 8 - from);
        let part = (done < bytes).then(|| (offset + done as u64, done..end, from));
        done = end;
        part
    })
}

// Words are copied whole, in order, so that half-written entries are seen as on a machine, and halves of words are not.
impl Memory for ProcessMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        for (place, part, from) in in_words(offset, into.len()) {
            let word = self.word(place).load(Ordering::Acquire).to_le_bytes();
            let bytes = part.len();
            into[part].copy_from_slice(&word[from..from + bytes]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        for (place, part, from) in in_words(offset, bytes.len()) {
            let word = self.word(place);
            // Whoever writes here is alone, as on a machine two writers of the same bytes would be at fault.
            let mut new = word.load(Ordering::Acquire).to_le_bytes();
            new[from..from + part.len()].copy_from_slice(&bytes[part]);
            word.store(u64::from_le_bytes(new), Ordering::Release);
        }
        Ok(())
    }

    fn swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        let word = self.word(offset);
        Ok(match word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        })
    }

    fn add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        Ok(self.word(offset).fetch_add(addend, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn bytes_anywhere_are_read_as_they_were_written() {
        let memory = ProcessMemory::new(64);
        let mut plain = vec![0; 64];
        for (number, (start, bytes)) in
            (0..64).flat_map(|start| (0..=64 - start).map(move |bytes| (start, bytes))).enumerate()
        {
            let new: Vec<u8> = (0..bytes).map(|byte| (number + byte * 7) as u8).collect();
            memory.write(start as u64, &new).unwrap();
            plain[start..start + bytes].copy_from_slice(&new);
            let mut all = vec![0; 64];
            memory.read(0, &mut all).unwrap();
            let mut part = vec![0; bytes];
            memory.read(start as u64, &mut part).unwrap();
            assert!(all == plain && part == new, "{bytes} bytes from {start}");
        }
    }

    #[test]
    fn nobody_reads_half_of_a_word() {
        let (memory, stop) = (ProcessMemory::new(32), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for word in (0..100_000_u64).map(|number| number % 2 * u64::MAX) {
                    memory.swap(8, word, !word).unwrap();
                    memory.write(16, &word.to_le_bytes()).unwrap();
                }
                stop.store(true, Ordering::SeqCst);
            });
            while !stop.load(Ordering::SeqCst) {
                let mut bytes = [0; 32];
                memory.read(0, &mut bytes).unwrap();
                for word in bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)) {
                    assert!(word == 0 || word == u64::MAX, "{word:#x}");
                }
            }
        });
    }
}
