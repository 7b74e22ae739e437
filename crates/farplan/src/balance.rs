//! Memory balance effectiveness (paper 002, section V.D): what machines with too much to do could lend to from those with little.
//!
//! With thresholds `low <= high`, a part A of the machines is below `low` with mean utilisation a, and a part C above `high`
//! with mean c. The measure is `C * (c - high) - A * (a - low)`: how far the busy ones are above, and the idle ones below.

/// A threshold pair and its measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Below it a machine lends.
    pub low: f64,
    /// Above it a machine borrows.
    pub high: f64,
    /// The measure; hundredths of a machine's memory if utilisation is in hundredths.
    pub effect: f64,
}

/// Utilisations in order, with sums, so that any thresholds are two searches.
#[derive(Clone, Debug, PartialEq)]
pub struct Utilisation {
    sorted: Vec<f64>,
    sums: Vec<f64>,
}

impl Utilisation {
    /// Of these observations, from 0 to 100 each. `None` if there are none, or one is no such number.
    pub fn of(mut observed: Vec<f64>) -> Option<Self> {
        if observed.is_empty() || observed.iter().any(|value| !(0.0..=100.0).contains(value)) {
            return None;
        }
        observed.sort_by(f64::total_cmp);
        let mut sums = vec![0.0];
        let mut sum = 0.0;
        for value in &observed {
            sum += value;
            sums.push(sum);
        }
        Some(Self { sorted: observed, sums })
    }

    /// How many observations.
    pub const fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        self.sums[self.count()] / self.count() as f64
    }

    /// The measure for two thresholds.
    pub fn effect(&self, low: f64, high: f64) -> f64 {
        let count = self.count();
        let below = self.sorted.partition_point(|value| *value < low);
        let above = self.sorted.partition_point(|value| *value <= high);
        let idle = below as f64 * low - self.sums[below];
        let busy = self.sums[count] - self.sums[above] - (count - above) as f64 * high;
        (idle + busy) / count as f64
    }

    /// All pairs of whole hundredths with `low <= high`, `step` apart.
    pub fn grid(&self, step: usize) -> Vec<Point> {
        let step = step.clamp(1, 50);
        let mut points = Vec::new();
        for low in (0..=100).step_by(step) {
            for high in (low..=100).step_by(step) {
                let (low, high) = (low as f64, high as f64);
                points.push(Point { low, high, effect: self.effect(low, high) });
            }
        }
        points
    }

    /// The pair with the highest measure for which as much is lent as is borrowed at most, and the measure of what can be moved.
    ///
    /// The paper's measure is highest at thresholds of 0 and 100 apart from each other in what they ask: it adds what busy
    /// machines have too much and what idle ones have free, also where one is far more than the other. This one counts both
    /// only as far as the other side can take it.
    pub fn best_matched(&self, step: usize) -> Point {
        let matched = |point: Point| {
            let idle = self.effect(point.low, 100.0);
            let busy = self.effect(0.0, point.high);
            Point { effect: 2.0 * idle.min(busy), ..point }
        };
        let none = Point { low: 0.0, high: 100.0, effect: 0.0 };
        let better = |best: Point, point: Point| if point.effect > best.effect { point } else { best };
        self.grid(step).into_iter().map(matched).fold(none, better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_cluster_gives_the_value_of_the_formula() {
        // Half of the machines at 20, a quarter each at 50 and 90; low 30, high 80.
        let utilisation = Utilisation::of(vec![20.0, 20.0, 50.0, 90.0]).unwrap();
        let (a, c) = (0.5, 0.25);
        assert!((utilisation.effect(30.0, 80.0) - (c * (90.0 - 80.0) - a * (20.0 - 30.0))).abs() < 1e-9);
        assert_eq!(utilisation.effect(0.0, 100.0), 0.0);
        assert_eq!(utilisation.mean(), 45.0);
    }

    #[test]
    fn machines_that_are_all_alike_have_nothing_to_lend_each_other() {
        let utilisation = Utilisation::of(vec![60.0; 10]).unwrap();
        assert_eq!(utilisation.best_matched(1).effect, 0.0);
        assert_eq!(utilisation.effect(60.0, 60.0), 0.0);
    }

    #[test]
    fn half_idle_and_half_full_meet_in_the_middle() {
        let utilisation = Utilisation::of(vec![0.0, 100.0]).unwrap();
        let best = utilisation.best_matched(1);
        assert!((best.effect - 50.0).abs() < 1e-9 && best.low <= best.high, "{best:?}");
        assert_eq!(Utilisation::of(Vec::new()), None);
        assert_eq!(Utilisation::of(vec![f64::NAN]), None);
        assert_eq!(Utilisation::of(vec![101.0]), None);
    }

    proptest! {
        #[test]
        fn sums_and_searches_give_what_the_formula_gives(
            observed in proptest::collection::vec(0u32..=100, 1..200),
            low in 0u32..=100,
            more in 0u32..=100,
        ) {
            let observed: Vec<f64> = observed.into_iter().map(f64::from).collect();
            let (low, high) = (f64::from(low), f64::from((low + more).min(100)));
            let count = observed.len() as f64;
            let group = |keep: &dyn Fn(f64) -> bool| {
                let of: Vec<f64> = observed.iter().copied().filter(|value| keep(*value)).collect();
                let mean = if of.is_empty() { 0.0 } else { of.iter().sum::<f64>() / of.len() as f64 };
                (of.len() as f64 / count, mean)
            };
            let (a, a_mean) = group(&|value| value < low);
            let (c, c_mean) = group(&|value| value > high);
            let expected = c * (c_mean - high) - a * (a_mean - low);
            let utilisation = Utilisation::of(observed.clone()).unwrap();
            prop_assert!((utilisation.effect(low, high) - expected).abs() < 1e-6);
            prop_assert!(expected >= -1e-9);
        }
    }
}
