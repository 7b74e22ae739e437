//! CLOCK: one queue in which a referenced unit at the back goes round once more.

use super::{Eviction, Queues, UnitKey};

/// A referenced bit for each unit; the hand clears it, and evicts a unit whose bit it finds clear.
#[derive(Debug)]
pub struct Clock(Queues<1>);

/// Referenced since the hand last came by.
const REFERENCED: u64 = 1;

impl Clock {
    /// An empty clock.
    pub fn new() -> Self {
        Self(Queues::new())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Eviction for Clock {
    fn insert(&mut self, key: UnitKey, bytes: u64) {
        if self.0.get(key).is_some() {
            self.touch(key);
        } else {
            self.0.push_front(0, key, bytes, 0);
        }
    }

    fn touch(&mut self, key: UnitKey) {
        if let Some(mark) = self.0.mark_mut(key) {
            *mark = REFERENCED;
        }
    }

    fn remove(&mut self, key: UnitKey) {
        self.0.remove(key);
    }

    fn renew(&mut self, key: UnitKey, bytes: u64) {
        self.0.push_front(0, key, bytes, 0);
    }

    fn load(&self, key: UnitKey) -> u64 {
        self.0.load(key)
    }

    fn victims(
        &mut self,
        bytes_needed: u64,
        is_evictable: &mut dyn FnMut(UnitKey) -> bool,
        out: &mut Vec<UnitKey>,
    ) -> u64 {
        let mut taken = 0;
        // Two rounds clear every bit and meet every unit; a unit that may not leave ends none of them.
        let mut steps_left = 2 * self.0.units(0);
        while taken < bytes_needed && steps_left > 0 {
            let Some(entry) = self.0.oldest(0) else { break };
            steps_left -= 1;
            if entry.mark == REFERENCED || !is_evictable(entry.key) {
                self.0.push_front(0, entry.key, entry.bytes, 0);
            } else {
                self.0.remove(entry.key);
                out.push(entry.key);
                taken += entry.bytes;
            }
        }
        taken
    }

    fn contains(&self, key: UnitKey) -> bool {
        self.0.get(key).is_some()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes(0)
    }

    fn units(&self) -> usize {
        self.0.units(0)
    }
}
