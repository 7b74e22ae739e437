//! Which experts each token of a text used, and what a cache of whole experts would have to fetch for it.

use crate::failure::Failure;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Uses of experts in the order of the computation.
pub struct Trace {
    /// Position of the token, layer, expert.
    uses: Vec<(usize, u32, u32)>,
}

impl Trace {
    /// Reads what the driver wrote: a line for each token and layer, with the position, the layer and the experts.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or says nothing.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file("reading", path, &error))?;
        let trace = Self::parse(&text);
        if trace.uses.is_empty() {
            return Err(Failure::new("the trace of experts is empty", "build the driver anew"));
        }
        Ok(trace)
    }

    fn parse(text: &str) -> Self {
        let uses = text.lines().flat_map(|line| {
            let mut words = line.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            let (position, layer) = (words.next(), words.next());
            words.filter_map(move |expert| Some((position? as usize, layer?, expert))).collect::<Vec<_>>()
        });
        Self { uses: uses.collect() }
    }

    /// Experts of all layers together, as far as the numbers that occur tell.
    pub fn experts(&self) -> u64 {
        let layers: HashSet<u32> = self.uses.iter().map(|&(_, layer, _)| layer).collect();
        let experts = self.uses.iter().map(|&(_, _, expert)| expert).max().map_or(0, |last| last + 1);
        layers.len() as u64 * u64::from(experts)
    }

    /// How many experts a cache of `room` whole experts fetches from the token at `first` on, if it drops the one that was
    /// not used for longest.
    pub fn lru_misses(&self, room: usize, first: usize) -> u64 {
        let mut last_use: HashMap<(u32, u32), usize> = HashMap::new();
        let mut by_age: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
        let mut misses = 0;
        for (time, &(position, layer, expert)) in self.uses.iter().enumerate() {
            let key = (layer, expert);
            match last_use.insert(key, time) {
                Some(before) => {
                    by_age.remove(&before);
                }
                None => misses += u64::from(position >= first),
            }
            by_age.insert(time, key);
            if by_age.len() > room
                && let Some((_, oldest)) = by_age.pop_first()
            {
                last_use.remove(&oldest);
            }
        }
        misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_fetched_once() {
        let trace = Trace::parse("0 0 1 2\n1 0 2 1\n2 0 1 3\n");
        assert_eq!(trace.lru_misses(3, 0), 3);
        assert_eq!(trace.lru_misses(3, 1), 1);
        assert_eq!(trace.experts(), 4);
    }

    #[test]
    fn what_does_not_fit_is_fetched_again_in_the_order_of_use() {
        let trace = Trace::parse("0 0 1\n1 0 2\n2 0 1\n3 0 3\n4 0 2\n");
        assert_eq!(trace.lru_misses(2, 0), 4);
        assert_eq!(trace.lru_misses(1, 0), 5);
    }

    #[test]
    fn the_same_number_in_another_layer_is_another_expert() {
        assert_eq!(Trace::parse("0 0 1\n0 1 1\n").lru_misses(5, 0), 2);
    }
}
