//! One queue: least recently used, or first in first out if a touch does not count.

use super::{Eviction, Queues, UnitKey};

/// Least recently used: a touch brings a unit to the front, the back leaves.
#[derive(Debug)]
pub struct Lru(Queues<1>);

/// First in, first out: a touch changes nothing.
#[derive(Debug)]
pub struct Fifo(Queues<1>);

impl Lru {
    /// An empty order.
    pub fn new() -> Self {
        Self(Queues::new())
    }
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Fifo {
    /// An empty order.
    pub fn new() -> Self {
        Self(Queues::new())
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl Eviction for Lru {
    fn insert(&mut self, key: UnitKey, bytes: u64) {
        if self.0.get(key).is_some() {
            self.touch(key);
        } else {
            self.0.push_front(0, key, bytes, 0);
        }
    }

    fn touch(&mut self, key: UnitKey) {
        if let Some(entry) = self.0.get(key) {
            self.0.push_front(0, key, entry.bytes, 0);
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
        take_oldest(&mut self.0, bytes_needed, is_evictable, out)
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

impl Eviction for Fifo {
    fn insert(&mut self, key: UnitKey, bytes: u64) {
        if self.0.get(key).is_none() {
            self.0.push_front(0, key, bytes, 0);
        }
    }

    fn touch(&mut self, _key: UnitKey) {}

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
        take_oldest(&mut self.0, bytes_needed, is_evictable, out)
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

/// Takes units from the back towards the front, stepping over those that may not leave.
fn take_oldest(
    queues: &mut Queues<1>,
    bytes_needed: u64,
    is_evictable: &mut dyn FnMut(UnitKey) -> bool,
    out: &mut Vec<UnitKey>,
) -> u64 {
    let mut taken = 0;
    let mut next = queues.oldest(0);
    while taken < bytes_needed
        && let Some(entry) = next
    {
        next = queues.younger(entry.key);
        if is_evictable(entry.key) {
            queues.remove(entry.key);
            out.push(entry.key);
            taken += entry.bytes;
        }
    }
    taken
}
