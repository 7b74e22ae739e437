//! Taking figures in turn, so that a slow minute of the machine hits ours, limit and peer alike.

use crate::failure::Failure;

/// What one way of doing it took, round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    values: Vec<f64>,
}

impl Samples {
    /// Adds a figure; one that is no number is left out.
    pub fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.values.push(value);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// The middle one, or the mean of the two middle ones.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(sorted[middle]),
            _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        }
    }

    /// Smallest and largest.
    pub fn spread(&self) -> Option<[f64; 2]> {
        let smallest = self.values.iter().copied().reduce(f64::min)?;
        let largest = self.values.iter().copied().reduce(f64::max)?;
        Some([smallest, largest])
    }
}

/// One way of doing it: each call takes one figure.
pub type Way<'bench> = Box<dyn FnMut() -> Result<f64, Failure> + 'bench>;

/// Takes a figure of each way, `rounds` times over; every other round goes backwards, so that no way always
/// comes behind the same other.
///
/// # Errors
/// The first [`Failure`] of any way.
pub fn in_turn(rounds: usize, ways: &mut [Way<'_>]) -> Result<Vec<Samples>, Failure> {
    let mut samples = vec![Samples::default(); ways.len()];
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            samples[index].add(ways[index]()?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        values.iter().for_each(|value| samples.add(*value));
        samples
    }

    #[test]
    fn a_median_is_in_the_middle_and_a_spread_at_the_ends() {
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(samples(&[3.0, 1.0, 2.0]).spread(), Some([1.0, 3.0]));
        assert_eq!(samples(&[f64::NAN]).median(), None);
    }

    #[test]
    fn ways_take_turns_and_change_their_order() {
        let calls = RefCell::new(String::new());
        let way = |name: char| -> Way<'_> {
            let calls = &calls;
            Box::new(move || {
                calls.borrow_mut().push(name);
                Ok(f64::from(u32::from(name)))
            })
        };
        let found = in_turn(3, &mut [way('a'), way('b')]).unwrap();
        assert_eq!(found.iter().map(Samples::count).collect::<Vec<_>>(), [3, 3]);
        drop(found);
        assert_eq!(*calls.borrow(), "abbaab");
    }

    #[test]
    fn a_way_that_fails_ends_the_rounds() {
        let mut ways: Vec<Way<'_>> = vec![Box::new(|| Err(Failure::new("no", "try")))];
        assert_eq!(in_turn(3, &mut ways).unwrap_err().text, "no");
    }

    proptest! {
        #[test]
        fn a_median_has_as_many_figures_below_as_above(values in proptest::collection::vec(-1e9f64..1e9, 1..50)) {
            let median = samples(&values).median().unwrap();
            let below = values.iter().filter(|value| **value < median).count();
            let above = values.iter().filter(|value| **value > median).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
        }
    }
}
