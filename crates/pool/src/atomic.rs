//! Atomic operations on words of regions, wherever they lie.
//!
//! A word is 8 bytes at an address that is a multiple of 8. Inside the rack the operation is one instruction of the
//! processor, to another rack it is one request that the home runs as one; both are atomic with each other, with
//! [`Pool::read`] and with [`Pool::write`] of the word.

use crate::{Object, Pool, PoolError};
use hinterland_types::GlobalAddress;

const EINVAL: i32 = 22;

impl Pool {
    /// Replaces the word at an address if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `EINVAL` for an address that is no multiple of 8, else as [`write`](Self::write). After
    /// [`PoolError::Unreachable`] or [`PoolError::Fabric`] the swap may or may not have happened.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let region = pool.create_region(&ObjectName::parse("owners")?, 4 << 20, None)?;
    /// # let owner = region.address.ok_or("a region has an address")?;
    /// // Whoever finds the 0 is the owner.
    /// let is_mine = pool.compare_and_swap(owner, 0, 42)? == 0;
    /// assert!(is_mine);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare_and_swap(
        &self,
        address: GlobalAddress,
        expected: u64,
        desired: u64,
    ) -> Result<u64, PoolError> {
        self.at_word(address, |object, offset| object.compare_and_swap(offset, expected, desired))
    }

    /// Adds to the word at an address, wrapping; returns what it was.
    ///
    /// # Errors
    /// As [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let region = pool.create_region(&ObjectName::parse("numbers")?, 4 << 20, None)?;
    /// # let next = region.address.ok_or("a region has an address")?;
    /// // Each caller, in any rack, gets a number of its own.
    /// let first = pool.fetch_and_add(next, 1)?;
    /// let second = pool.fetch_and_add(next, 1)?;
    /// assert_eq!(second, first + 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fetch_and_add(&self, address: GlobalAddress, addend: u64) -> Result<u64, PoolError> {
        self.at_word(address, |object, offset| object.fetch_and_add(offset, addend))
    }

    fn at_word(
        &self,
        address: GlobalAddress,
        operation: impl Fn(&Object, u64) -> Result<u64, PoolError>,
    ) -> Result<u64, PoolError> {
        if !address.raw().is_multiple_of(8) {
            let text = format!("{address} is no multiple of 8 (hint: atomic words are aligned)");
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        self.on_word(address.raw(), operation)
    }
}
