//! Blocks that are being removed at all nodes: meanwhile none is fetched from another node, and what was on its way does not count.
//!
//! Else a node that has removed a block could get it from one that removes it a moment later.

use hinterland_kv::{BlockKey, Namespace};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Blocks that are remembered: those of a few requests that go on at once, and of many that have ended.
const BLOCKS_MAX: usize = 1 << 16;

/// What is being removed, and what was.
#[derive(Default)]
pub(super) struct Removals {
    /// Counts requests.
    last: u64,
    of: HashMap<(Namespace, BlockKey), Removal>,
}

struct Removal {
    /// The last request.
    number: u64,
    /// Requests that go on.
    going: u32,
    /// When they count as ended, whoever asked.
    until: Instant,
}

/// What the beginning of a removal means for blocks on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OnTheirWay {
    /// Those that are named do not count.
    Named,
    /// None counts, as not all removals of before are known any more.
    None,
}

impl Removals {
    /// Blocks are being removed from here on, until [`end`](Self::end), but not for longer than `within`. `None` if too many are.
    pub(super) fn begin(
        &mut self,
        namespace: Namespace,
        keys: &[BlockKey],
        now: Instant,
        within: Duration,
    ) -> Option<OnTheirWay> {
        let mut on_their_way = OnTheirWay::Named;
        if self.of.len() + keys.len() > BLOCKS_MAX {
            self.of.retain(|_, removal| removal.is_going(now));
            on_their_way = OnTheirWay::None;
        }
        if self.of.len() + keys.len() > BLOCKS_MAX {
            return None;
        }
        self.last += 1;
        for key in keys {
            let new = Removal { number: 0, going: 0, until: now };
            let removal = self.of.entry((namespace, *key)).or_insert(new);
            let going = if removal.is_going(now) { removal.going } else { 0 };
            *removal = Removal { number: self.last, going: going + 1, until: now + within };
        }
        Some(on_their_way)
    }

    /// A request has ended: all nodes have removed these blocks.
    pub(super) fn end(&mut self, namespace: Namespace, keys: &[BlockKey]) {
        for key in keys {
            if let Some(removal) = self.of.get_mut(&(namespace, *key)) {
                removal.going = removal.going.saturating_sub(1);
            }
        }
    }

    /// Whether a block may be fetched from other nodes now.
    pub(super) fn may_fetch(&self, namespace: Namespace, key: &BlockKey, now: Instant) -> bool {
        self.of.get(&(namespace, *key)).is_none_or(|removal| !removal.is_going(now))
    }

    /// The number of the last request.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Whether a block counts that was on its way since the request of this number.
    pub(super) fn may_count(&self, namespace: Namespace, key: &BlockKey, since: u64) -> bool {
        self.of.get(&(namespace, *key)).is_none_or(|removal| removal.number <= since)
    }
}

impl Removal {
    fn is_going(&self, now: Instant) -> bool {
        self.going > 0 && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Namespace = Namespace(7);
    const WITHIN: Duration = Duration::from_secs(10);

    fn keys(count: u32, first: u32) -> Vec<BlockKey> {
        (first..first + count).map(|number| BlockKey::new(&number.to_le_bytes()).unwrap()).collect()
    }

    #[test]
    fn a_block_is_fetched_again_when_all_removals_of_it_have_ended_or_their_time_has() {
        let (mut removals, now, key) = (Removals::default(), Instant::now(), keys(1, 0)[0]);
        let later = now + WITHIN / 2;
        assert!(removals.may_fetch(SPACE, &key, now) && removals.may_count(SPACE, &key, 0));
        assert_eq!(removals.begin(SPACE, &[key], now, WITHIN), Some(OnTheirWay::Named));
        assert_eq!(removals.begin(SPACE, &[key], later, WITHIN), Some(OnTheirWay::Named));
        removals.end(SPACE, &[key]);
        assert!(
            !removals.may_fetch(SPACE, &key, now + WITHIN) && removals.may_fetch(Namespace(8), &key, now)
        );
        assert!(removals.may_fetch(SPACE, &key, later + WITHIN), "who asked has died");
        removals.end(SPACE, &[key]);
        assert!(removals.may_fetch(SPACE, &key, now));
        assert!(!removals.may_count(SPACE, &key, 1) && removals.may_count(SPACE, &key, removals.last()));
        removals.end(SPACE, &[key]);
        assert_eq!(removals.begin(SPACE, &[key], now, WITHIN), Some(OnTheirWay::Named));
        assert!(!removals.may_fetch(SPACE, &key, now), "one end too many ends no other");
    }

    #[test]
    fn of_too_many_those_that_go_on_are_kept_and_one_more_is_refused() {
        let (mut removals, now) = (Removals::default(), Instant::now());
        let half = BLOCKS_MAX as u32 / 2;
        let (first, second, third) = (keys(half, 0), keys(half, half), keys(half, 2 * half));
        assert_eq!(removals.begin(SPACE, &first, now, WITHIN), Some(OnTheirWay::Named));
        assert_eq!(removals.begin(SPACE, &second, now, WITHIN), Some(OnTheirWay::Named));
        assert_eq!(removals.begin(SPACE, &third, now, WITHIN), None);
        removals.end(SPACE, &first);
        assert_eq!(removals.begin(SPACE, &third, now, WITHIN), Some(OnTheirWay::None));
        assert!(removals.may_fetch(SPACE, &first[0], now) && !removals.may_fetch(SPACE, &second[0], now));
    }
}
