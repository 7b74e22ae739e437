//! What a table needs of memory: bytes that are read and written, words that are swapped.

use hinterland_pool::{Pool, PoolError};
use hinterland_types::GlobalAddress;
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

// Bytes are copied word by word, in order, so that half-written entries are seen as on a machine.
impl Memory for ProcessMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        for (place, byte) in (offset..).zip(into) {
            *byte = self.word(place).load(Ordering::Acquire).to_le_bytes()[(place % 8) as usize];
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        for (place, &byte) in (offset..).zip(from) {
            let shift = place % 8 * 8;
            let word = self.word(place);
            // Whoever writes here is alone, as on a machine two writers of the same bytes would be at fault.
            let others = word.load(Ordering::Acquire) & !(0xff << shift);
            word.store(others | u64::from(byte) << shift, Ordering::Release);
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
