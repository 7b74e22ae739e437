//! Memory that was told of and is not under service yet: the kernel does not tell what becomes of it, the program does.

/// Ranges of addresses that do not overlap, and those that are being moved.
#[derive(Clone, Debug, Default)]
pub struct Loose {
    ranges: Vec<(u64, u64)>,
    lifted: Option<Lifted>,
}

#[derive(Clone, Debug)]
struct Lifted {
    start: u64,
    end: u64,
    ranges: Vec<(u64, u64)>,
}

impl Loose {
    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether there is no range.
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, in no order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Adds a range. What it overlaps was replaced.
    pub fn add(&mut self, start: u64, end: u64) {
        drop(self.cut(start, end));
        if start >= end {
            return;
        }
        // What lies beside each other is one range: a program may ask for its memory in many small parts.
        let (mut first, mut last) = (start, end);
        self.ranges.retain(|(from, to)| {
            let is_beside = *to == first || *from == last;
            if is_beside {
                (first, last) = (first.min(*from), last.max(*to));
            }
            !is_beside
        });
        self.ranges.push((first, last));
    }

    /// A range is the kernel's alone from here on.
    pub fn release(&mut self, start: u64, end: u64) {
        drop(self.cut(start, end));
    }

    /// Takes all ranges out; they are under service from here on. What is on its way lands later.
    pub fn take(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.ranges)
    }

    /// A range is about to be unmapped, replaced or moved. Only the last one that was lifted can land.
    pub fn lift(&mut self, start: u64, end: u64) {
        let ranges = self.cut(start, end);
        self.lifted = Some(Lifted { start, end, ranges });
    }

    /// What was lifted from `before` is at `start` now, `bytes` long. Returns its ranges there; they are in the list no longer. The last
    /// one grows with the mapping if it reached to its end.
    pub fn land(&mut self, before: u64, start: u64, bytes: u64) -> Vec<(u64, u64)> {
        let Some(lifted) = self.lifted.take().filter(|lifted| lifted.start == before) else {
            return Vec::new();
        };
        let end = start.saturating_add(bytes);
        let place = |address: u64| (address - lifted.start).saturating_add(start).min(end);
        let moved =
            |(from, to): &(u64, u64)| (place(*from), if *to == lifted.end { end } else { place(*to) });
        let landed: Vec<_> = lifted.ranges.iter().map(moved).filter(|(from, to)| from < to).collect();
        for (from, to) in &landed {
            drop(self.cut(*from, *to));
        }
        landed
    }

    /// Takes what lies in a range out of the list, in the order of addresses.
    fn cut(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        let mut rest = Vec::with_capacity(self.ranges.len());
        for (from, to) in std::mem::take(&mut self.ranges) {
            let (first, last) = (from.max(start), to.min(end));
            if first >= last {
                rest.push((from, to));
                continue;
            }
            taken.push((first, last));
            rest.extend([(from, first), (last, to)].into_iter().filter(|(from, to)| from < to));
        }
        self.ranges = rest;
        taken.sort_unstable();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const PAGES: u64 = 40;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64, u64),
        Unmap(u64, u64),
        Move(u64, u64, u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (page, length) = (0..PAGES, 1..9u64);
        prop_oneof![
            (page.clone(), length.clone()).prop_map(|(at, count)| Step::Add(at, count)),
            (page.clone(), length.clone()).prop_map(|(at, count)| Step::Unmap(at, count)),
            (page.clone(), length.clone(), page, length)
                .prop_map(|(at, old, to, new)| Step::Move(at, old, to, new)),
        ]
    }

    fn pages(loose: &Loose) -> BTreeSet<u64> {
        let all: Vec<u64> = loose.ranges.iter().flat_map(|(start, end)| *start..*end).collect();
        let set: BTreeSet<u64> = all.iter().copied().collect();
        assert_eq!(set.len(), all.len(), "no page twice");
        set
    }

    proptest! {
        #[test]
        fn what_is_loose_follows_the_mappings(steps in prop::collection::vec(step(), 1..60)) {
            let mut loose = Loose::default();
            let mut model = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Add(at, count) => {
                        loose.add(at, at + count);
                        model.extend(at..at + count);
                    }
                    Step::Unmap(at, count) => {
                        loose.lift(at, at + count);
                        model.retain(|page| !(at..at + count).contains(page));
                    }
                    Step::Move(at, old, to, new) => {
                        loose.lift(to, to + new);
                        model.retain(|page| !(to..to + new).contains(page));
                        let there: Vec<u64> = (at..at + old).filter(|page| model.remove(page)).collect();
                        loose.lift(at, at + old);
                        for (from, to) in loose.land(at, to, new) {
                            loose.add(from, to);
                        }
                        model.extend(there.iter().map(|page| page - at).filter(|page| *page < new).map(|page| page + to));
                        if there.last() == Some(&(at + old - 1)) {
                            model.extend(to + old.min(new)..to + new);
                        }
                    }
                }
                prop_assert_eq!(pages(&loose), model.clone());
            }
        }
    }

    #[test]
    fn what_is_on_its_way_lands_behind_a_take() {
        let mut loose = Loose::default();
        loose.add(10, 20);
        loose.add(30, 40);
        loose.lift(10, 20);
        assert_eq!(loose.take(), [(30, 40)]);
        assert_eq!(loose.land(10, 50, 15), [(50, 65)]);
        assert_eq!(loose.land(10, 50, 15), []);
    }
}
