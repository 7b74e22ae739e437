//! One case: ours, the limit and the peer taken in turn, and the row that comes of it.

use super::report::{Better, Row};
use super::rounds::{Samples, Way, in_turn};
use crate::failure::Failure;

/// A way of doing it with the words for it.
type Named<'bench> = (String, Way<'bench>);

/// A case to be measured.
pub struct Case<'bench> {
    name: String,
    unit: &'static str,
    better: Better,
    ours: Way<'bench>,
    limit: Option<Named<'bench>>,
    peer: Option<Named<'bench>>,
    why: Option<String>,
}

impl<'bench> Case<'bench> {
    /// A case with nothing to compare with yet.
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        better: Better,
        ours: impl FnMut() -> Result<f64, Failure> + 'bench,
    ) -> Self {
        Self { name: name.into(), unit, better, ours: Box::new(ours), limit: None, peer: None, why: None }
    }

    /// The best that the machine can do.
    #[must_use]
    pub fn limit(
        mut self,
        name: impl Into<String>,
        way: impl FnMut() -> Result<f64, Failure> + 'bench,
    ) -> Self {
        self.limit = Some((name.into(), Box::new(way)));
        self
    }

    /// Another program that does the same.
    #[must_use]
    pub fn peer(
        mut self,
        name: impl Into<String>,
        way: impl FnMut() -> Result<f64, Failure> + 'bench,
    ) -> Self {
        self.peer = Some((name.into(), Box::new(way)));
        self
    }

    /// A peer if there is one, else the reason why there is none.
    #[must_use]
    pub fn peer_or_why(
        self,
        name: &str,
        way: Result<impl FnMut() -> Result<f64, Failure> + 'bench, &Failure>,
    ) -> Self {
        match way {
            Ok(way) => self.peer(name, way),
            Err(failure) => self.why(format!("{name}: {} (hint: {})", failure.text, failure.hint)),
        }
    }

    /// Why a figure is absent, or what stands for another than its name says.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Takes all figures: one round that is thrown away, then `rounds`. A case that fails is a row that says why.
    pub fn measure(self, rounds: usize) -> Row {
        let Self { name, unit, better, ours, limit, peer, why } = self;
        let mut ways = vec![ours];
        let mut names = [None, None];
        for (place, named) in [limit, peer].into_iter().enumerate() {
            if let Some((words, way)) = named {
                ways.push(way);
                names[place] = Some(words);
            }
        }
        match in_turn(1, &mut ways).and_then(|_| in_turn(rounds, &mut ways)) {
            Ok(samples) => row(name, unit, better, &samples, names, why),
            Err(failure) => {
                Row::absent(name, unit, better, format!("{} (hint: {})", failure.text, failure.hint))
            }
        }
    }
}

/// The row of samples that stand in the order ours, limit, peer, without those that have no name.
pub fn row(
    name: impl Into<String>,
    unit: &'static str,
    better: Better,
    samples: &[Samples],
    names: [Option<String>; 2],
    why: Option<String>,
) -> Row {
    let mut left = samples.iter();
    let ours = left.next();
    let [limit_name, peer_name] = names;
    let limit = limit_name.as_ref().and_then(|_| left.next()?.median());
    let peer = peer_name.as_ref().and_then(|_| left.next()?.median());
    Row {
        ours: ours.and_then(Samples::median),
        spread: ours.and_then(Samples::spread),
        runs: ours.map_or(0, Samples::count),
        limit,
        limit_name,
        peer,
        peer_name,
        why,
        ..Row::new(name, unit, better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_a_limit_stands_in_the_right_place() {
        let row = Case::new("a", "us", Better::Lower, || Ok(2.0)).peer("another", || Ok(3.0)).measure(3);
        assert_eq!((row.ours, row.limit, row.peer), (Some(2.0), None, Some(3.0)));
        assert_eq!((row.runs, row.spread), (3, Some([2.0, 2.0])));
    }

    #[test]
    fn a_case_that_fails_says_why() {
        let failing = Case::new("a", "us", Better::Lower, || Ok(2.0))
            .limit("broken", || Err(Failure::new("it broke", "mend it")));
        let row = failing.measure(3);
        assert_eq!((row.ours, row.why.as_deref()), (None, Some("it broke (hint: mend it)")));
    }

    #[test]
    fn the_first_round_is_thrown_away() {
        let mut value = 0.0;
        let row = Case::new("a", "us", Better::Lower, || {
            value += 1.0;
            Ok(value)
        })
        .measure(3);
        assert_eq!(row.spread, Some([2.0, 4.0]));
    }
}
