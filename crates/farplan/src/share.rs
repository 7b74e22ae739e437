//! Who goes first at a device that several runs use: whoever has had less of it for its share.
//!
//! Each run counts what it has moved over a device in *units of use*: bytes, over its share. A run that writes in the background gives way as long
//! as another one that has used less by more than [`SLACK`] has something under way there. So a device that nobody else waits for is a run's
//! alone, two runs that both have work get it by their shares, and a run that asks for little never waits for one that asks for much. Whoever has used
//! least waits for nobody, so not all can wait at once.
//!
//! A run that comes, or comes back after a pause, begins at what the least of the others has used: it has no claim to time in which it wanted nothing.

/// The share of a run that asked for none.
pub const SHARE: u64 = 100;
/// The largest share; the least is 1.
pub const SHARE_MAX: u64 = 10_000;
/// What one run may be ahead of another: 1 MiB at the usual share.
pub const SLACK: u64 = 1 << 20;
/// A run that did nothing for so long does not count, and has no claim to what it did not use, in nanoseconds.
pub const PAUSE_NS: u64 = 100_000_000;

/// How many times the faults of a quiet run another one has at least.
const QUIET: u64 = 4;

/// What a run has used of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Units of use.
    pub used: u64,
    /// Things that are under way, or wait to be.
    pub under_way: u64,
    /// When it last began or ended something, in nanoseconds of one clock for all runs.
    pub seen_ns: u64,
}

/// What so many bytes use, at a share.
pub const fn units(bytes: u64, share: u64) -> u64 {
    bytes.saturating_mul(SHARE) / if share == 0 { 1 } else { share }
}

/// Whether a run that has used so much gives way to one of the others.
pub fn gives_way(used: u64, others: impl IntoIterator<Item = Use>, now_ns: u64) -> bool {
    others.into_iter().any(|other| {
        other.under_way > 0 && is_recent(&other, now_ns) && other.used.saturating_add(SLACK) < used
    })
}

/// What a run has used, as it counts from here on: after a pause no less than the least of the others that are there.
pub fn caught_up(own: Use, others: impl IntoIterator<Item = Use>, now_ns: u64) -> u64 {
    if is_recent(&own, now_ns) {
        return own.used;
    }
    let least = others.into_iter().filter(|other| is_recent(other, now_ns)).map(|other| other.used).min();
    least.map_or(own.used, |least| own.used.max(least))
}

/// Whether so many runs, each a program and threads that serve it, leave no processor idle.
pub const fn is_crowded(runs: usize, processors: usize) -> bool {
    runs > 1 && runs.saturating_mul(2) > processors
}

/// Whether a run with so many faults a second has few beside one with so many.
pub const fn is_quiet(own: u64, other: u64) -> bool {
    other > 0 && own.saturating_mul(QUIET) <= other
}

const fn is_recent(one: &Use, now_ns: u64) -> bool {
    one.seen_ns != 0 && now_ns.saturating_sub(one.seen_ns) < PAUSE_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1 << 40;

    fn one(used: u64, under_way: u64) -> Use {
        Use { used, under_way, seen_ns: NOW - 1 }
    }

    #[test]
    fn who_used_more_gives_way_to_who_has_something_under_way() {
        assert!(gives_way(SLACK + 2, [one(1, 1)], NOW));
        assert!(!gives_way(SLACK + 1, [one(1, 1)], NOW), "within the slack");
        assert!(!gives_way(SLACK + 2, [one(1, 0)], NOW), "nobody waits");
        assert!(!gives_way(SLACK + 2, [], NOW));
    }

    #[test]
    fn of_two_that_wait_one_goes_on() {
        let (a, b) = (one(7 * SLACK, 1), one(9 * SLACK, 1));
        assert!(gives_way(b.used, [a], NOW) && !gives_way(a.used, [b], NOW));
    }

    #[test]
    fn a_run_that_was_killed_while_it_waited_is_forgotten_after_a_pause() {
        let dead = one(0, 1);
        assert!(gives_way(u64::MAX, [dead], NOW + PAUSE_NS - 2));
        assert!(!gives_way(u64::MAX, [dead], NOW + PAUSE_NS));
    }

    #[test]
    fn a_pause_gives_no_claim() {
        let own = Use { used: 5, under_way: 0, seen_ns: NOW - PAUSE_NS };
        assert_eq!(caught_up(own, [one(900, 0), one(700, 1)], NOW), 700);
        assert_eq!(caught_up(Use { seen_ns: NOW - 1, ..own }, [one(900, 0)], NOW), 5, "no pause");
        assert_eq!(caught_up(own, [Use { used: 900, ..own }], NOW), 5, "nobody else is there");
        assert_eq!(caught_up(Use { used: 5000, ..own }, [one(900, 0)], NOW), 5000, "never less");
    }

    /// Runs that always have something to write take turns; who got how much is told.
    fn taken(shares: &[u64], turns: usize) -> Vec<u64> {
        let mut used = vec![one(0, 1); shares.len()];
        let mut bytes = vec![0; shares.len()];
        for turn in 0..turns {
            let run = turn % shares.len();
            let others = used.iter().enumerate().filter(|(other, _)| *other != run).map(|(_, other)| *other);
            if !gives_way(used[run].used, others, NOW) {
                bytes[run] += 512 << 10;
                used[run].used += units(512 << 10, shares[run]);
            }
        }
        bytes
    }

    #[test]
    fn a_device_is_divided_by_the_shares() {
        let even = taken(&[100, 100], 10_000);
        assert!(even[0].abs_diff(even[1]) <= 4 << 20, "{even:?}");
        let bytes = taken(&[300, 100], 40_000);
        let ratio = bytes[0] as f64 / bytes[1] as f64;
        assert!((2.9..3.1).contains(&ratio), "{bytes:?}");
    }

    #[test]
    fn few_faults_are_few_beside_many() {
        assert!(is_quiet(0, 1) && is_quiet(25, 100));
        assert!(!is_quiet(0, 0) && !is_quiet(26, 100));
    }

    #[test]
    fn two_runs_crowd_two_processors_and_not_sixteen() {
        assert!(is_crowded(2, 2) && is_crowded(2, 3));
        assert!(!is_crowded(1, 1) && !is_crowded(2, 16) && !is_crowded(2, 4));
    }
}
