//! Doubly linked queues that share one slab and one index: every step costs the same for any length.

use super::UnitKey;
use foldhash::HashMap;

/// `N` queues of units; a unit is in at most one of them. Youngest at the front, oldest at the back.
#[derive(Debug)]
pub(crate) struct Queues<const N: usize> {
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: HashMap<UnitKey, u32>,
    queues: [Queue; N],
}

/// What a queue keeps about a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The unit.
    pub(crate) key: UnitKey,
    /// Its size.
    pub(crate) bytes: u64,
    /// A small number for the policy: referenced bit, frequency, position.
    pub(crate) mark: u64,
    /// The queue that it is in, below `N`.
    pub(crate) queue: u8,
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    younger: u32,
    older: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    front: u32,
    back: u32,
    bytes: u64,
    units: usize,
}

/// No slot.
const NONE: u32 = u32::MAX;

impl<const N: usize> Queues<N> {
    pub(crate) fn new() -> Self {
        let queue = Queue { front: NONE, back: NONE, bytes: 0, units: 0 };
        Self { slots: Vec::new(), free: Vec::new(), index: HashMap::default(), queues: [queue; N] }
    }

    pub(crate) fn bytes(&self, queue: u8) -> u64 {
        self.queues[queue as usize].bytes
    }

    pub(crate) fn units(&self, queue: u8) -> usize {
        self.queues[queue as usize].units
    }

    pub(crate) fn get(&self, key: UnitKey) -> Option<Entry> {
        self.index.get(&key).map(|&slot| self.slots[slot as usize].entry)
    }

    /// The mark of a unit, to change it.
    pub(crate) fn mark_mut(&mut self, key: UnitKey) -> Option<&mut u64> {
        let slot = *self.index.get(&key)?;
        Some(&mut self.slots[slot as usize].entry.mark)
    }

    /// The oldest unit of a queue.
    pub(crate) fn oldest(&self, queue: u8) -> Option<Entry> {
        self.slots.get(self.queues[queue as usize].back as usize).map(|slot| slot.entry)
    }

    /// The unit that is next younger than `key` in its queue.
    pub(crate) fn younger(&self, key: UnitKey) -> Option<Entry> {
        let slot = *self.index.get(&key)?;
        self.slots.get(self.slots[slot as usize].younger as usize).map(|slot| slot.entry)
    }

    /// Puts a unit at the front of a queue, taking it out of wherever it is.
    pub(crate) fn push_front(&mut self, queue: u8, key: UnitKey, bytes: u64, mark: u64) {
        let entry = Entry { key, bytes, mark, queue };
        let slot = match self.index.get(&key) {
            Some(&slot) => {
                self.unlink(slot);
                self.slots[slot as usize] = Slot { entry, younger: NONE, older: NONE };
                slot
            }
            None => {
                let slot = self.claim(entry);
                self.index.insert(key, slot);
                slot
            }
        };
        let ends = &mut self.queues[queue as usize];
        let former = std::mem::replace(&mut ends.front, slot);
        ends.bytes += bytes;
        ends.units += 1;
        self.slots[slot as usize].older = former;
        match self.slots.get_mut(former as usize) {
            Some(former) => former.younger = slot,
            None => self.queues[queue as usize].back = slot,
        }
    }

    /// Takes a unit out of its queue.
    pub(crate) fn remove(&mut self, key: UnitKey) -> Option<Entry> {
        let slot = self.index.remove(&key)?;
        let entry = self.unlink(slot);
        self.free.push(slot);
        Some(entry)
    }

    /// Loads what a step about a unit looks at: it, and its neighbours. The sum means nothing, and is there so that the loads are made.
    pub(crate) fn load(&self, key: UnitKey) -> u64 {
        let at = |slot: u32| self.slots.get(slot as usize);
        let Some(slot) = self.index.get(&key).and_then(|&slot| at(slot)) else { return 0 };
        let neighbours =
            [slot.younger, slot.older].map(|slot| at(slot).map_or(0, |slot| u64::from(slot.older)));
        neighbours[0] ^ neighbours[1]
    }

    /// Takes a slot out of its queue, and leaves it in the index.
    fn unlink(&mut self, slot: u32) -> Entry {
        let Slot { entry, younger, older } = self.slots[slot as usize];
        let ends = &mut self.queues[entry.queue as usize];
        ends.bytes -= entry.bytes;
        ends.units -= 1;
        match self.slots.get_mut(younger as usize) {
            Some(neighbour) => neighbour.older = older,
            None => ends.front = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(neighbour) => neighbour.younger = younger,
            None => ends.back = younger,
        }
        entry
    }

    fn claim(&mut self, entry: Entry) -> u32 {
        let fresh = Slot { entry, younger: NONE, older: NONE };
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = fresh;
            return slot;
        }
        self.slots.push(fresh);
        // A host would need 4 billion resident units, 256 TiB, to pass 32 bits.
        (self.slots.len() - 1) as u32
    }
}
