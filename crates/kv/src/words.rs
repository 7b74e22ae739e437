//! The memory of the books as words of 8 bytes.

/// Memory that several processes reach, as words of 8 bytes each. Out of range reads zero and stores nothing: who uses it
/// has checked the geometry before.
pub trait Words {
    /// Loads a word. Acquire: pairs with the Release of [`store`](Self::store).
    fn load(&self, word: usize) -> u64;
    /// Stores a word. Release: pairs with the Acquire of [`load`](Self::load).
    fn store(&self, word: usize, value: u64);
}

#[cfg(not(loom))]
impl Words for hinterland_os::SharedSlice {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.load_u64(word * 8).unwrap_or(0)
    }

    fn store(&self, word: usize, value: u64) {
        if let Err(error) = self.store_u64(word * 8, value) {
            // A slice that is too short or read-only is a defect of the caller, and nothing that goes on may rely on it.
            debug_assert!(false, "{error}");
        }
    }
}
