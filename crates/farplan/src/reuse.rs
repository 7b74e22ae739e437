//! Reuse distances: how many other pages were touched since a page was touched last, and the misses that follow for any size.

use std::collections::HashMap;
use std::hash::Hash;

/// A tree of sums in which marks are set and taken in logarithmic time.
#[derive(Clone, Debug)]
struct Marks {
    sums: Vec<u32>,
}

impl Marks {
    fn new(count: usize) -> Self {
        Self { sums: vec![0; count + 1] }
    }

    fn add(&mut self, index: usize, by: i32) {
        let mut at = index + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add_signed(by);
            at += at & at.wrapping_neg();
        }
    }

    /// Marks before `index`.
    fn before(&self, index: usize) -> u32 {
        let (mut at, mut sum) = (index, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.sums[at]);
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

/// For each touch the number of different pages since the touch of the same page before; `None` for the first.
pub fn distances<P: Copy + Eq + Hash>(pages: &[P]) -> Vec<Option<u32>> {
    let mut marks = Marks::new(pages.len());
    let mut last: HashMap<P, usize> = HashMap::new();
    let mut found = Vec::with_capacity(pages.len());
    for (now, page) in pages.iter().enumerate() {
        let before = last.insert(*page, now);
        found.push(before.map(|before| marks.before(now) - marks.before(before + 1)));
        if let Some(before) = before {
            marks.add(before, -1);
        }
        marks.add(now, 1);
    }
    found
}

/// Touches that would miss in a memory of `pages` pages that drops what was not used for longest; first touches are no misses.
pub fn misses(distances: &[Option<u32>], pages: u64) -> u64 {
    distances.iter().flatten().filter(|distance| u64::from(**distance) >= pages).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_loop_misses_everything_until_all_of_it_fits() {
        let pages: Vec<u64> = (0..4).cycle().take(16).collect();
        let distances = distances(&pages);
        assert_eq!(distances[..4], [None; 4]);
        assert!(distances[4..].iter().all(|distance| *distance == Some(3)));
        assert_eq!((misses(&distances, 3), misses(&distances, 4)), (12, 0));
    }

    proptest! {
        #[test]
        fn distances_are_those_of_a_list_that_is_kept_by_hand(pages in proptest::collection::vec(0u8..20, 0..200)) {
            let mut stack: Vec<u8> = Vec::new();
            let mut expected = Vec::new();
            for page in &pages {
                let place = stack.iter().rposition(|known| known == page);
                expected.push(place.map(|place| (stack.len() - 1 - place) as u32));
                if let Some(place) = place {
                    stack.remove(place);
                }
                stack.push(*page);
            }
            prop_assert_eq!(distances(&pages), expected);
        }
    }
}
