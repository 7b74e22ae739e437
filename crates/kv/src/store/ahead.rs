//! Room that is made before somebody wants it: blocks are chosen, copied elsewhere while all can still read them, and leave.

use super::{Leaving, Store};
use crate::header;
use crate::words::Words;

/// A block that was chosen to leave, and can be read meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departing {
    /// What it is, and where its bytes lie.
    pub leaving: Leaving,
    /// Its slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u64,
}

impl<W: Words> Store<W> {
    /// Bytes that no slot in use takes: those of free slots and of chunks that serve no size.
    pub const fn free_bytes(&self) -> u64 {
        self.status.capacity_bytes - self.status.slot_bytes
    }

    /// Chooses the block whose turn it is to leave. It stays until it [`depart`](Self::depart)s, and nobody else is given it
    /// meanwhile.
    pub fn next_to_leave(&mut self, was_touched: &mut dyn FnMut(u32) -> bool) -> Option<Departing> {
        let givers = self.orders.givers();
        let slot = givers.into_iter().find_map(|group| self.victim(group, was_touched))?;
        let used = self.chunks.get(slot).copied()?;
        let leaving = self.leaving(slot, &used);
        let generation = header::generation(&self.words, &self.geometry, slot);
        self.departing.insert(slot, generation);
        Some(Departing { leaving, slot, generation })
    }

    /// Lets a block leave that was chosen; false if somebody wants it by now, or it is gone: then it stays what it is.
    pub fn depart(&mut self, departing: &Departing, was_touched: &mut dyn FnMut(u32) -> bool) -> bool {
        let &Departing { slot, generation, .. } = departing;
        if self.departing.get(&slot) != Some(&generation) {
            return false;
        }
        self.departing.remove(&slot);
        let Some(used) = self.chunks.get(slot).copied() else { return false };
        let is_it =
            used.writer.is_none() && header::generation(&self.words, &self.geometry, slot) == generation;
        if !is_it || used.family.has_child() {
            return false;
        }
        let group = self.group(used.namespace);
        if used.pins > 0 || used.family.expected > 0 || was_touched(slot) {
            self.orders.again(group, used.hash, slot, self.chunks.class(slot));
            return false;
        }
        self.count_eviction(slot);
        self.status.evictions_ahead += 1;
        self.leave(group, slot);
        true
    }

    /// Whether its bytes are known to be those that were published.
    pub fn is_sound(&self, departing: &Departing) -> bool {
        !self.is_unchecked(departing.slot)
    }
}
