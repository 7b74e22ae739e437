//! Which places of a file are free: they are taken in order, round and round, so that what is taken together lies together.

/// Places by number.
#[derive(Debug)]
pub(super) struct Slots {
    /// A bit for each, set where it is free.
    words: Vec<u64>,
    /// The word at which the next search begins.
    next: usize,
    free: usize,
    count: u32,
}

impl Slots {
    /// So many, all free.
    pub(super) fn new(count: u32) -> Self {
        let free = count as usize;
        let mut words = vec![u64::MAX; free / 64];
        if !free.is_multiple_of(64) {
            words.push((1 << (free % 64)) - 1);
        }
        Self { words, next: 0, free, count }
    }

    /// How many there are.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Has so many from here on, those that are taken among them; `false`, and nothing changes, if one that is taken would be missing.
    pub(super) fn resize(&mut self, count: u32) -> bool {
        let before = Self::new(self.count);
        let mut resized = Self::new(count);
        for (index, (all, free)) in before.words.iter().zip(&self.words).enumerate() {
            let taken = all & !free;
            let word = resized.words.get_mut(index);
            if taken & !word.as_deref().copied().unwrap_or(0) != 0 {
                return false;
            }
            if let Some(word) = word {
                *word &= !taken;
            }
            resized.free -= taken.count_ones() as usize;
        }
        resized.next = if self.next < resized.words.len() { self.next } else { 0 };
        *self = resized;
        true
    }

    /// As many as are asked for, or all that are left, in the order of their numbers from where the last search ended.
    pub(super) fn take(&mut self, count: usize) -> Vec<u32> {
        let count = count.min(self.free);
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let word = &mut self.words[self.next];
            if *word == 0 {
                self.next = (self.next + 1) % self.words.len();
                continue;
            }
            // A file has fewer places than 2^32.
            taken.push(self.next as u32 * 64 + word.trailing_zeros());
            *word &= *word - 1;
        }
        self.free -= count;
        taken
    }

    /// Gives one back.
    pub(super) fn give_back(&mut self, slot: u32) {
        let Some(word) = self.words.get_mut(slot as usize / 64) else { return };
        let bit = 1 << (slot % 64);
        self.free += usize::from(*word & bit == 0);
        *word |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_in_order_and_again_when_they_were_given_back() {
        for count in [0, 1, 63, 64, 65, 200] {
            let mut slots = Slots::new(count);
            assert_eq!(slots.take(10).len(), 10.min(count as usize));
            let rest = slots.take(1000);
            assert!(rest.iter().copied().eq(10.min(count)..count), "{rest:?}");
            assert!(slots.take(1).is_empty());
        }
        let mut slots = Slots::new(200);
        slots.take(150);
        for slot in [3, 70, 71, 70, 199] {
            slots.give_back(slot);
        }
        // On from where it ended, and then from the beginning.
        assert_eq!(slots.take(49).last(), Some(&198));
        assert_eq!(slots.take(10), [199, 3, 70, 71]);
        slots.give_back(12_345);
        assert!(slots.take(1).is_empty());
    }

    #[test]
    fn places_that_are_taken_outlive_another_size_or_refuse_it() {
        for (before, after) in [(0, 70), (63, 64), (64, 200), (100, 129), (200, 64), (200, 63), (130, 0)] {
            let mut slots = Slots::new(before);
            let held = slots.take(5);
            let fits = held.iter().all(|slot| *slot < after);
            assert_eq!((slots.resize(after), slots.count()), (fits, if fits { after } else { before }));
            let mut all = [held, slots.take(1000)].concat();
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..slots.count()), "{before} {after}: {all:?}");
            all.iter().for_each(|slot| slots.give_back(*slot));
            assert_eq!(slots.take(1000).len(), slots.count() as usize);
        }
        let mut slots = Slots::new(200);
        slots.take(150);
        (0..149).for_each(|slot| slots.give_back(slot));
        assert!(!slots.resize(149) && slots.resize(150) && slots.resize(1000));
        assert!(slots.take(1000).iter().all(|slot| *slot != 149));
    }

    #[test]
    fn none_is_taken_twice() {
        let (mut slots, mut held, mut state) = (Slots::new(1000), Vec::new(), 1u64);
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if state >> 63 == 0 {
                held.extend(slots.take((state >> 40) as usize % 40));
            } else if !held.is_empty() {
                slots.give_back(held.swap_remove((state >> 33) as usize % held.len()));
            }
            let mut seen = held.clone();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), held.len());
        }
        held.iter().for_each(|slot| slots.give_back(*slot));
        assert_eq!(slots.take(2000).len(), 1000);
    }
}
