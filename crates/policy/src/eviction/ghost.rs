//! Units that left not long ago, remembered without their bytes.

use super::{Queues, UnitKey};

/// Remembers which units left while the last so many bytes left, and how many bytes left since.
///
/// The distance is what tells a unit that came back too soon: had the cache been larger by that many
/// bytes, the unit would still be there (the kernel's working-set code calls it refault distance).
#[derive(Debug)]
pub struct Ghost {
    queue: Queues<1>,
    left_bytes: u64,
    bytes_max: u64,
}

impl Ghost {
    /// A ghost list that forgets units once `bytes_max` bytes have left after them.
    pub fn new(bytes_max: u64) -> Self {
        Self { queue: Queues::new(), left_bytes: 0, bytes_max }
    }

    /// Changes how far back the list remembers.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        self.forget_old();
    }

    /// A unit of `bytes` left.
    pub fn remember(&mut self, key: UnitKey, bytes: u64) {
        self.left_bytes = self.left_bytes.wrapping_add(bytes);
        self.queue.push_front(0, key, bytes, self.left_bytes);
        self.forget_old();
    }

    /// The unit came back: the bytes that left after it, or `None` if it is not remembered.
    pub fn recall(&mut self, key: UnitKey) -> Option<u64> {
        let entry = self.queue.remove(key)?;
        Some(self.left_bytes.wrapping_sub(entry.mark))
    }

    /// The unit is gone for good.
    pub fn forget(&mut self, key: UnitKey) {
        self.queue.remove(key);
    }

    /// Number of units remembered.
    pub fn units(&self) -> usize {
        self.queue.units(0)
    }

    fn forget_old(&mut self) {
        while let Some(oldest) = self.queue.oldest(0) {
            if self.left_bytes.wrapping_sub(oldest.mark) < self.bytes_max {
                break;
            }
            self.queue.remove(oldest.key);
        }
    }
}
