//! The units of a region: those that nobody has touched take no memory, a part of a thousand at a time.

use super::State;

/// Units of a part.
const PART: usize = 1024;

/// States by number, all of them untouched in the beginning.
#[derive(Clone, Debug)]
pub(super) struct Units<C> {
    /// Places of the first part that are before the first unit.
    skip: usize,
    len: usize,
    /// Of each part the units up to the last that was touched.
    parts: Vec<Vec<State<C>>>,
}

impl<C: Clone> Units<C> {
    pub(super) fn new(len: usize) -> Self {
        Self { skip: 0, len, parts: vec![Vec::new(); len.div_ceil(PART)] }
    }

    fn place(&self, index: usize) -> Option<(usize, usize)> {
        (index < self.len).then(|| ((self.skip + index) / PART, (self.skip + index) % PART))
    }

    pub(super) fn get(&self, index: usize) -> Option<&State<C>> {
        let (part, place) = self.place(index)?;
        Some(self.parts[part].get(place).unwrap_or(&State::Untouched))
    }

    /// Puts a state in the place of another, which it gives; `None` if there is no such unit.
    pub(super) fn replace(&mut self, index: usize, state: State<C>) -> Option<State<C>> {
        let (part, place) = self.place(index)?;
        if matches!(state, State::Untouched) && self.parts[part].len() <= place {
            return Some(State::Untouched);
        }
        Some(std::mem::replace(self.get_mut(index)?, state))
    }

    /// A state that may be changed; `None` if there is no such unit.
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut State<C>> {
        let (part, place) = self.place(index)?;
        let end = (self.skip + self.len - part * PART).min(PART);
        let states = &mut self.parts[part];
        if states.len() <= place {
            // The next ones are likely to follow.
            states.reserve_exact(end - states.len());
            states.resize(place + 1, State::Untouched);
        }
        states.get_mut(place)
    }

    /// The units from a number on that may not be untouched, in order.
    pub(super) fn touched(&self, first: usize) -> impl Iterator<Item = (usize, &State<C>)> {
        let begin = self.skip + first;
        let parts = self.parts.iter().enumerate().skip(begin / PART);
        let states = parts.flat_map(|(part, states)| {
            states.iter().enumerate().map(move |(place, state)| (part * PART + place, state))
        });
        // What is left of the first part, and behind the last unit, is no unit of this region.
        states
            .skip_while(move |(at, _)| *at < begin)
            .map(|(at, state)| (at - self.skip, state))
            .take_while(|(index, _)| *index < self.len)
    }

    /// Changes the units that may not be untouched. A part of which nothing is left takes no memory any more.
    pub(super) fn change(&mut self, mut change: impl FnMut(&mut State<C>)) {
        let (first, end) = (self.skip, self.skip + self.len);
        for (part, states) in self.parts.iter_mut().enumerate() {
            let range = first.saturating_sub(part * PART)..end.saturating_sub(part * PART);
            let range = range.start.min(states.len())..range.end.min(states.len());
            states[range].iter_mut().for_each(&mut change);
            if states.iter().all(|state| matches!(state, State::Untouched)) {
                *states = Vec::new();
            }
        }
    }

    /// Takes the units from a number on away.
    pub(super) fn split_off(&mut self, index: usize) -> Self {
        let index = index.min(self.len);
        let at = self.skip + index;
        let mut right = Self { skip: at % PART, len: self.len - index, parts: Vec::new() };
        if at / PART < self.parts.len() {
            right.parts = self.parts.split_off(at / PART);
        }
        self.len = index;
        // A part of both.
        if right.skip > 0
            && let Some(first) = right.parts.first_mut()
        {
            let mut behind = Vec::with_capacity(first.len());
            behind.resize(right.skip.min(first.len()), State::Untouched);
            behind.extend(first.drain(right.skip.min(first.len())..));
            self.parts.push(std::mem::replace(first, behind));
        }
        self.shrink();
        right.shrink();
        right
    }

    /// A small piece keeps no place for what is not its own.
    fn shrink(&mut self) {
        if let [states] = &mut self.parts[..] {
            states.drain(..self.skip.min(states.len()));
            states.shrink_to_fit();
            self.skip = 0;
        }
    }

    /// One more at the end.
    pub(super) fn push(&mut self, state: State<C>) {
        self.len += 1;
        if (self.skip + self.len).div_ceil(PART) > self.parts.len() {
            self.parts.push(Vec::new());
        }
        let _ = self.replace(self.len - 1, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(stamp: u64) -> State<()> {
        State::Resident { clean: None, stamp }
    }

    /// The stamps of all units; `None` for those that are untouched.
    fn stamps(units: &Units<()>) -> Vec<Option<u64>> {
        let mut stamps = vec![None; units.len];
        for (index, state) in units.touched(0) {
            assert_eq!(units.get(index), Some(state));
            if let State::Resident { stamp, .. } = state {
                stamps[index] = Some(*stamp);
            }
        }
        assert_eq!(units.get(units.len), None);
        stamps
    }

    #[test]
    fn they_are_as_a_plain_list_whatever_is_cut_and_take_memory_only_where_touched() {
        let mut random = 7u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let mut lists: Vec<(Units<()>, Vec<Option<u64>>)> =
            vec![(Units::new(9 * PART + 5), vec![None; 9 * PART + 5])];
        for stamp in 0..3000 {
            let which = next(lists.len());
            let (units, plain) = &mut lists[which];
            match next(20) {
                0 if plain.len() > 1 => {
                    let at = next(plain.len());
                    let (right, rest) = (units.split_off(at), plain.split_off(at));
                    lists.push((right, rest));
                }
                1 => {
                    units.push(resident(stamp));
                    plain.push(Some(stamp));
                }
                2 => {
                    units.change(|state| *state = State::Untouched);
                    plain.fill(None);
                    assert!(units.parts.iter().all(Vec::is_empty));
                }
                _ if plain.is_empty() => assert_eq!(units.replace(0, resident(1)), None),
                _ => {
                    let at = next(plain.len());
                    let before = units.replace(at, resident(stamp)).unwrap();
                    assert_eq!(before == State::Untouched, plain[at].is_none());
                    plain[at] = Some(stamp);
                }
            }
        }
        for (units, plain) in &lists {
            assert_eq!(&stamps(units), plain);
            let from = plain.len() / 3;
            assert!(units.touched(from).all(|(index, _)| index >= from && index < plain.len()));
        }
        // As much as is needed, also where regions are small, or were cut out of others.
        for (units, plain) in lists {
            let capacity: usize = units.parts.iter().map(Vec::capacity).sum();
            assert!(
                capacity <= plain.len().max(1) + if units.parts.len() > 1 { 2 * PART } else { 0 },
                "{capacity} for {}",
                plain.len()
            );
        }
        let whole = Units::<()>::new(1 << 30);
        assert!(whole.parts.len() == 1 << 20 && whole.touched(5).next().is_none());
    }
}
