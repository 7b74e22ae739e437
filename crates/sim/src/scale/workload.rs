//! Which page an operation is about: even and skewed draws in constant time.

use crate::random::Random;

/// Draws places 0 to n by their weights, by the alias method (Walker, 1977): one random number, one look.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// For each place: the share of draws that stay, of 2^32, and where the others go.
    cells: Vec<(u32, u32)>,
}

impl Draw {
    /// Place k with a weight of 1 / (k + 1)^skew.
    pub(super) fn zipfian(count: u32, skew: f64) -> Self {
        Self::by((0..count).map(|place| (f64::from(place) + 1.0).powf(-skew)).collect())
    }

    /// Every place alike.
    pub(super) fn uniform(count: u32) -> Self {
        Self { cells: (0..count).map(|place| (u32::MAX, place)).collect() }
    }

    fn by(mut weights: Vec<f64>) -> Self {
        let sum: f64 = weights.iter().sum();
        let count = weights.len();
        weights.iter_mut().for_each(|weight| *weight *= count as f64 / sum);
        // Places fit in 32 bits: the plan was checked.
        let mut cells: Vec<(u32, u32)> = (0..count as u32).map(|place| (u32::MAX, place)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&place| weights[place] < 1.0);
        while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
            // Below 1: the product fits.
            cells[less] = ((weights[less] * f64::from(u32::MAX)) as u32, more as u32);
            weights[more] -= 1.0 - weights[less];
            if weights[more] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Self { cells }
    }

    /// A place.
    pub(super) fn next(&self, random: &mut Random) -> u32 {
        let number = random.next();
        // The high half chooses the place, the low half whether it stays.
        let place = ((number >> 32) * self.cells.len() as u64) >> 32;
        let (stays, other) = self.cells[place as usize];
        if (number as u32) <= stays { place as u32 } else { other }
    }
}

/// The numbers below `count` in an order of the seed.
pub(super) fn shuffled(count: u32, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, random.below(place as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_come_by_their_weights() {
        let mut random = Random::new(3);
        let draw = Draw::zipfian(8, 0.99);
        let mut counts = [0u32; 8];
        (0..100_000).for_each(|_| counts[draw.next(&mut random) as usize] += 1);
        let sum: f64 = (1..=8).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for (place, count) in counts.iter().enumerate() {
            let expected = (place as f64 + 1.0).powf(-0.99) / sum * 100_000.0;
            assert!((f64::from(*count) - expected).abs() < expected * 0.1, "{counts:?}");
        }
        let even = Draw::uniform(3);
        let mut seen = [false; 3];
        (0..100).for_each(|_| seen[even.next(&mut random) as usize] = true);
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn an_order_has_every_number_once() {
        let mut order = shuffled(100, &mut Random::new(1));
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
