//! What lanes of a warp do together: shuffles, votes, matches, reductions.

use super::flow::{Next, Runner, first};
use super::warp::{Group, State};
use super::{LANES, Lanes, Stop, lanes};
use crate::code::{Exchange, Op, Program, Shuffle, Together};
use crate::types::Type;

impl Together {
    /// The same for those who may do it together from different places.
    fn key(&self) -> u64 {
        match self {
            Self::Wait => 0,
            Self::Shuffle(Shuffle::Up) => 1,
            Self::Shuffle(Shuffle::Down) => 2,
            Self::Shuffle(Shuffle::Butterfly) => 3,
            Self::Shuffle(Shuffle::Index) => 4,
            Self::VoteAll => 5,
            Self::VoteAny => 6,
            Self::VoteUniform => 7,
            Self::Ballot => 8,
            Self::MatchAny(kind) => 16 + u64::from(kind.bits()),
            Self::MatchAll(kind) => 128 + u64::from(kind.bits()),
            Self::Elect => 9,
            // Functions lie at addresses of their own.
            Self::Reduce(compute) => *compute as usize as u64,
        }
    }
}

impl<'m> Runner<'_, 'm> {
    /// Does it if all members are there; else the group waits.
    pub fn exchange(
        &mut self,
        group: &mut Group,
        program: &'m Program,
        exchange: &Exchange,
    ) -> Result<Next, Stop> {
        let members = self.fetch(group, exchange.members);
        let members = self.keep_equal(group, &members) as u32;
        let sources = exchange.sources.map(|source| self.fetch(group, source));
        let truths = self.truth(group, exchange.truth);
        for lane in lanes(group.lanes) {
            self.warp.inputs[lane] = [sources[0][lane], sources[1][lane], sources[2][lane]];
        }
        self.warp.truths = (self.warp.truths & !group.lanes) | (truths & group.lanes);
        let state = State::Together { key: exchange.together.key(), members };
        let waiting = self.warp.groups.iter().filter(|other| other.state == state);
        let here = waiting.fold(group.lanes, |mask, other| mask | other.lanes);
        if members & self.warp.alive & !here != 0 {
            group.state = state;
            self.warp.groups.push(group.clone());
            return Ok(Next::Gone);
        }
        self.finish(group, exchange, here);
        if here == group.lanes {
            return Ok(Next::On);
        }
        self.finish_waiting(program, state, here);
        Ok(Next::Choose)
    }

    /// Lets those go on whose partners have all come or ended.
    pub fn complete_any(&mut self, program: &'m Program) {
        let states: Vec<_> = self.warp.groups.iter().map(|group| group.state).collect();
        for state in states {
            let State::Together { members, .. } = state else { continue };
            let waiting = self.warp.groups.iter().filter(|other| other.state == state);
            let here = waiting.fold(0, |mask, other| mask | other.lanes);
            if here != 0 && members & self.warp.alive & !here == 0 {
                self.finish_waiting(program, state, here);
            }
        }
    }

    /// Finishes all groups that wait in a state.
    fn finish_waiting(&mut self, program: &'m Program, state: State, here: u32) {
        let mut groups = std::mem::take(&mut self.warp.groups);
        for group in groups.iter_mut().filter(|group| group.state == state) {
            group.state = State::Ready;
            // What a whole warp does to matrices is done when its groups are joined.
            if let Op::Exchange(exchange) = &program.functions[group.function].code[group.at].op {
                self.finish(group, exchange, here);
            }
        }
        self.warp.groups = groups;
    }

    /// Writes the results of one group's lanes, when the lanes of `here` have brought their values.
    fn finish(&mut self, group: &mut Group, exchange: &Exchange, here: u32) {
        let (values, bits) = self.results(&exchange.together, here);
        if let Some(target) = exchange.target {
            self.write(group, target, group.lanes, &values);
        }
        if let Some(predicate) = exchange.predicate {
            self.write_predicate(group, predicate, group.lanes, bits);
        }
        group.at += 1;
    }

    fn results(&self, together: &Together, here: u32) -> (Lanes, u32) {
        let (inputs, truths) = (&self.warp.inputs, self.warp.truths & here);
        let everybody = |condition: bool| ([0; LANES], if condition { u32::MAX } else { 0 });
        match together {
            Together::Wait => everybody(true),
            Together::Shuffle(mode) => shuffle(*mode, inputs, here),
            Together::VoteAll => everybody(truths == here),
            Together::VoteAny => everybody(truths != 0),
            Together::VoteUniform => everybody(truths == 0 || truths == here),
            Together::Ballot => ([u64::from(truths); LANES], 0),
            Together::MatchAny(kind) => (std::array::from_fn(|lane| equal(inputs, here, lane, *kind)), 0),
            Together::MatchAll(kind) => {
                let is_one = equal(inputs, here, first(here), *kind) == u64::from(here);
                let (_, bits) = everybody(is_one);
                ([if is_one { u64::from(here) } else { 0 }; LANES], bits)
            }
            Together::Reduce(compute) => {
                let folded = lanes(here).map(|lane| inputs[lane][0]).reduce(|a, b| compute(a, b, 0, 0));
                ([folded.unwrap_or(0); LANES], 0)
            }
            Together::Elect => ([first(here) as u64; LANES], 1 << first(here)),
        }
    }
}

/// The lanes whose value is that of one lane.
fn equal(inputs: &[[u64; 3]; LANES], here: u32, lane: usize, kind: Type) -> u64 {
    let same = |other: usize| (inputs[other][0] ^ inputs[lane][0]) & kind.mask() == 0;
    lanes(here).filter(|&other| same(other)).fold(0, |mask, other| mask | 1 << other)
}

/// Each lane's value from another lane of its segment, or its own if there is none, and whether there was one.
fn shuffle(mode: Shuffle, inputs: &[[u64; 3]; LANES], here: u32) -> (Lanes, u32) {
    let (mut values, mut found) = ([0; LANES], 0);
    for lane in lanes(here) {
        let [own, by, clamp] = inputs[lane];
        let (by, clamp, segment) = (by as u32 & 31, clamp as u32 & 31, clamp as u32 >> 8 & 31);
        let this = lane as u32;
        let (least, most) = (this & segment, (this & segment) | (clamp & !segment));
        let (from, is_there) = match mode {
            Shuffle::Up => (this.wrapping_sub(by), this as i32 - by as i32 >= most as i32),
            Shuffle::Down => (this + by, this + by <= most),
            Shuffle::Butterfly => (this ^ by, this ^ by <= most),
            Shuffle::Index => {
                let from = least | (by & !segment);
                (from, from <= most)
            }
        };
        let from = if is_there { from as usize % LANES } else { lane };
        // What a lane reads that does not take part is undefined; here it is its own value.
        values[lane] = if here >> from & 1 == 1 { inputs[from][0] } else { own };
        found |= u32::from(is_there) << lane;
    }
    (values, found)
}
