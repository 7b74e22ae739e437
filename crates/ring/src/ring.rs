//! Positions in a ring of slots: where the next message goes, and where the next one comes from.

use crate::lines::Lines;
use crate::slot::Body;

/// Slots whose old copies are dropped together, at most: as many loads as a core waits for at a time.
const WINDOW_MAX: usize = 16;

/// The writing end of a ring: its position, which is nobody else's.
#[derive(Debug, Default)]
pub struct Outlet {
    position: u32,
}

/// The reading end of a ring: its position, which is nobody else's.
#[derive(Debug, Default, Clone)]
pub struct Inlet {
    position: u32,
    /// How many slots were last worth being looked at together, where copies are dropped by hand.
    window: usize,
}

impl Outlet {
    /// Writes the next message; the caller knows that its slot is free.
    #[inline]
    pub fn push<L: Lines + ?Sized>(&mut self, lines: &L, tag: u32, body: &Body) {
        let place = place_of(lines, self.position);
        self.position = self.position.wrapping_add(1);
        lines.publish(place, self.position, tag, body);
        if L::BY_HAND {
            lines.write_back(place);
        }
    }
}

impl Inlet {
    /// Takes the next message, if it is there.
    #[inline]
    pub fn take<L: Lines + ?Sized>(&mut self, lines: &L) -> Option<(u32, Body)> {
        let place = place_of(lines, self.position);
        let next = self.position.wrapping_add(1);
        // A copy that holds the message is as good as memory: nobody writes the line again before it was taken.
        let mut message = lines.take(place, next);
        if L::BY_HAND && message.is_none() {
            let window = self.window.clamp(1, WINDOW_MAX);
            lines.refresh(place, window.min(lines.slots()));
            message = lines.take(place, next);
            // Where messages come in crowds the next ones are looked at together, else one by one.
            self.window = if message.is_some() { 2 * window } else { 1 };
        }
        self.position = if message.is_some() { next } else { self.position };
        message
    }

    /// Whether the next message is there.
    #[inline]
    pub fn has_next<L: Lines + ?Sized>(&self, lines: &L) -> bool {
        let (place, next) = (place_of(lines, self.position), self.position.wrapping_add(1));
        lines.holds(place, next)
            || L::BY_HAND && {
                lines.refresh(place, 1);
                lines.holds(place, next)
            }
    }
}

#[inline]
fn place_of<L: Lines + ?Sized>(lines: &L, position: u32) -> usize {
    debug_assert!(lines.slots().is_power_of_two());
    position as usize & (lines.slots() - 1)
}
