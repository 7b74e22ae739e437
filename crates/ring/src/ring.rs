//! Positions in a ring of slots: where the next message goes, and where the next one comes from.

use crate::slot::{Body, Slot};

/// The writing end of a ring: its position, which is nobody else's.
#[derive(Debug, Default)]
pub struct Outlet {
    position: u32,
}

/// The reading end of a ring: its position, which is nobody else's.
#[derive(Debug, Default)]
pub struct Inlet {
    position: u32,
}

impl Outlet {
    /// Writes the next message. `slots` is the whole ring, a power of two long; the caller knows that the slot is free.
    #[inline]
    pub fn push(&mut self, slots: &[Slot], tag: u32, body: &Body) {
        let slot = slot_of(slots, self.position);
        self.position = self.position.wrapping_add(1);
        slot.publish(self.position, tag, body);
    }
}

impl Inlet {
    /// Takes the next message, if it is there.
    #[inline]
    pub fn take(&mut self, slots: &[Slot]) -> Option<(u32, Body)> {
        let next = self.position.wrapping_add(1);
        let message = slot_of(slots, self.position).take(next)?;
        self.position = next;
        Some(message)
    }

    /// Whether the next message is there.
    #[inline]
    pub fn has_next(&self, slots: &[Slot]) -> bool {
        slot_of(slots, self.position).holds(self.position.wrapping_add(1))
    }
}

#[inline]
fn slot_of(slots: &[Slot], position: u32) -> &Slot {
    debug_assert!(slots.len().is_power_of_two());
    &slots[position as usize & (slots.len() - 1)]
}
