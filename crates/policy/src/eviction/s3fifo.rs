//! S3-FIFO: a small queue for newcomers, a main queue for the proven, a ghost list for those that left.

use super::{Eviction, Ghost, Queues, UnitKey};

/// Three first-in-first-out queues, counted in bytes.
///
/// A newcomer enters the small queue (a tenth of the bytes). Touched there, it moves to the main queue;
/// untouched, it leaves and is remembered, and enters the main queue if it comes back soon. The main queue
/// gives each unit as many more rounds as it was touched, at most three. After J. Yang and others, "FIFO
/// queues are all you need for cache eviction", SOSP 2023.
#[derive(Debug)]
pub struct S3Fifo {
    queues: Queues<2>,
    ghost: Ghost,
}

const SMALL: u8 = 0;
const MAIN: u8 = 1;
/// Touches that count: two bits' worth, as in the paper.
const FREQUENCY_MAX: u64 = 3;
/// The small queue's share of all bytes is one part in so many.
const SMALL_SHARE: u64 = 10;

impl S3Fifo {
    /// An empty policy.
    pub fn new() -> Self {
        Self { queues: Queues::new(), ghost: Ghost::new(0) }
    }

    /// The queue to take the next victim from: the small one while it is long, and whenever the main one
    /// holds nothing but units that may not leave (`main_is_held`).
    fn next_queue(&self, main_is_held: bool) -> u8 {
        let small_is_long = self.queues.bytes(SMALL) * SMALL_SHARE >= self.bytes();
        let take_small = small_is_long || main_is_held || self.queues.units(MAIN) == 0;
        if take_small && self.queues.units(SMALL) > 0 { SMALL } else { MAIN }
    }

    /// Looks at the oldest unit of a queue: it leaves, or moves to the front of the main queue.
    fn step(&mut self, queue: u8, is_evictable: &mut dyn FnMut(UnitKey) -> bool) -> Option<Step> {
        let entry = self.queues.oldest(queue)?;
        if entry.mark == 0 && is_evictable(entry.key) {
            self.queues.remove(entry.key);
            if queue == SMALL {
                self.ghost.remember(entry.key, entry.bytes);
            }
            return Some(Step::Leaves(entry.key, entry.bytes));
        }
        // What is held is in use, which proves it as well as a touch.
        let mark = if queue == SMALL { 0 } else { entry.mark.saturating_sub(1) };
        self.queues.push_front(MAIN, entry.key, entry.bytes, mark);
        Some(if entry.mark == 0 { Step::IsHeld } else { Step::Stays })
    }
}

/// What became of the oldest unit of a queue.
enum Step {
    Leaves(UnitKey, u64),
    Stays,
    IsHeld,
}

impl Default for S3Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl Eviction for S3Fifo {
    fn insert(&mut self, key: UnitKey, bytes: u64) {
        if self.queues.get(key).is_some() {
            self.touch(key);
        } else {
            let queue = if self.ghost.recall(key).is_some() { MAIN } else { SMALL };
            self.queues.push_front(queue, key, bytes, 0);
        }
    }

    fn touch(&mut self, key: UnitKey) {
        if let Some(mark) = self.queues.mark_mut(key) {
            *mark = (*mark + 1).min(FREQUENCY_MAX);
        }
    }

    fn remove(&mut self, key: UnitKey) {
        self.queues.remove(key);
        self.ghost.forget(key);
    }

    fn load(&self, key: UnitKey) -> u64 {
        self.queues.load(key)
    }

    fn victims(
        &mut self,
        bytes_needed: u64,
        is_evictable: &mut dyn FnMut(UnitKey) -> bool,
        out: &mut Vec<UnitKey>,
    ) -> u64 {
        let mut taken = 0;
        self.ghost.set_bytes_max(self.bytes());
        // Held units that were met in a row; once it is all of them, nothing is left to take.
        let mut held = 0;
        while taken < bytes_needed && held <= self.units() {
            let queue = self.next_queue(held > self.queues.units(MAIN));
            match self.step(queue, is_evictable) {
                Some(Step::Leaves(key, bytes)) => {
                    out.push(key);
                    taken += bytes;
                    held = 0;
                }
                Some(Step::Stays) => held = 0,
                Some(Step::IsHeld) => held += 1,
                None => break,
            }
        }
        taken
    }

    fn contains(&self, key: UnitKey) -> bool {
        self.queues.get(key).is_some()
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(SMALL) + self.queues.bytes(MAIN)
    }

    fn units(&self) -> usize {
        self.queues.units(SMALL) + self.queues.units(MAIN)
    }
}
