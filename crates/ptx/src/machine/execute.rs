//! Instructions that stay within registers.

use super::flow::Runner;
use super::warp::Group;
use super::{GRID_WINDOW, LANES, LOCAL_WINDOW, Lanes, PARAMETER_WINDOW, SHARED_WINDOW, Stop, lanes};
use crate::code::{Carry, Comparison, Guard, Op, Scalar, Source, Space, Special, Target, Truth};

static ZEROS: Lanes = [0; LANES];

/// Points to the lanes of a source: to the register itself, or to a copy in `$room`.
macro_rules! view {
    ($runner:expr, $group:expr, $source:expr, $room:ident) => {
        match $source {
            Source::Register(register) => &$runner.warp.registers[$group.registers + register as usize],
            Source::Constant(0) => &ZEROS,
            source => {
                $room = $runner.fetch($group, source);
                &$room
            }
        }
    };
}

impl Runner<'_, '_> {
    /// The value of a source in each lane.
    pub fn fetch(&self, group: &Group, source: Source) -> Lanes {
        match source {
            Source::Register(register) => self.warp.registers[group.registers + register as usize],
            Source::Constant(value) => [value; LANES],
            Source::Data(at) => [self.machine.data.wrapping_add(at); LANES],
            Source::Frame(at) => [group.frame.wrapping_add(at); LANES],
            Source::Special(special) => self.special(special),
            Source::Predicate(guard) => {
                let bits = self.guard(group, guard);
                std::array::from_fn(|lane| u64::from(bits >> lane & 1))
            }
        }
    }

    fn special(&self, special: Special) -> Lanes {
        let geometry = &self.machine.geometry;
        let all = |value: u32| [u64::from(value); LANES];
        let masks = |mask: fn(u32) -> u32| std::array::from_fn(|lane| u64::from(mask(lane as u32)));
        match special {
            Special::Thread(axis) => {
                std::array::from_fn(|lane| u64::from(self.warp.threads[lane][usize::from(axis)]))
            }
            Special::Threads(axis) => all(geometry.block[usize::from(axis)]),
            Special::Block(axis) => all(self.block.index[usize::from(axis)]),
            Special::Blocks(axis) => all(geometry.grid[usize::from(axis)]),
            Special::Lane => std::array::from_fn(|lane| lane as u64),
            Special::LanesEqual => masks(|lane| 1 << lane),
            Special::LanesBelow => masks(|lane| (1 << lane) - 1),
            Special::LanesUpTo => masks(|lane| u32::MAX >> (31 - lane)),
            Special::LanesAbove => masks(|lane| !(u32::MAX >> (31 - lane))),
            Special::LanesFrom => masks(|lane| u32::MAX << lane),
            Special::Warp => [self.warp.number as u64; LANES],
            Special::Warps => [self.block.warps; LANES],
            Special::Clock => [self.machine.executed; LANES],
            Special::GridLow => [GRID_WINDOW & 0xffff_ffff; LANES],
            Special::GridHigh => [GRID_WINDOW >> 32; LANES],
            Special::DynamicShared => all(geometry.dynamic_shared),
            Special::AllShared => {
                [self.machine.program.shared_bytes + u64::from(geometry.dynamic_shared); LANES]
            }
        }
    }

    /// The lanes for which a predicate, or its opposite, holds.
    pub fn guard(&self, group: &Group, guard: Guard) -> u32 {
        let bits = self.warp.predicates[group.predicates + guard.predicate as usize];
        if guard.is_negated { !bits } else { bits }
    }

    pub fn truth(&self, group: &Group, truth: Truth) -> u32 {
        match truth {
            Truth::Predicate(guard) => self.guard(group, guard),
            Truth::Constant(true) => u32::MAX,
            Truth::Constant(false) => 0,
        }
    }

    pub fn write(&mut self, group: &Group, target: Target, active: u32, values: &Lanes) {
        let register = &mut self.warp.registers[group.registers + target.register as usize];
        if active == u32::MAX {
            for (to, from) in register.iter_mut().zip(values) {
                *to = from & target.mask;
            }
        } else {
            lanes(active).for_each(|lane| register[lane] = values[lane] & target.mask);
        }
    }

    pub fn write_predicate(&mut self, group: &Group, predicate: u32, active: u32, bits: u32) {
        let kept = &mut self.warp.predicates[group.predicates + predicate as usize];
        *kept = (*kept & !active) | (bits & active);
    }

    /// Does what an instruction says for the lanes of the mask.
    pub fn execute(&mut self, group: &Group, op: &Op, active: u32) -> Result<(), Stop> {
        match op {
            Op::Scalar { compute, target, sources } => self.scalar(group, *compute, *target, sources, active),
            Op::Move { target, source } => {
                let values = self.fetch(group, *source);
                self.write(group, *target, active, &values);
            }
            Op::Convert { conversion, target, sources } => {
                let (room, room2);
                let value = view!(self, group, sources[0], room);
                let second = view!(self, group, sources[1], room2);
                let mut result = ZEROS;
                for lane in lanes(active) {
                    result[lane] = conversion.apply(value[lane], second[lane]);
                }
                self.write(group, *target, active, &result);
            }
            Op::Carry { compute, target, sources, carry, writes } => {
                let [a, b, c] = sources.map(|source| self.fetch(group, source));
                let mut result = ZEROS;
                for lane in lanes(active) {
                    let before = match carry {
                        Carry::Fixed(carry) => *carry,
                        Carry::Kept => self.warp.carry >> lane & 1 == 1,
                    };
                    let (value, after) = compute(a[lane], b[lane], c[lane], before);
                    result[lane] = value;
                    if *writes {
                        self.warp.carry = (self.warp.carry & !(1 << lane)) | u32::from(after) << lane;
                    }
                }
                self.write(group, *target, active, &result);
            }
            Op::Compare(comparison) => self.compare(group, comparison, active),
            Op::Set { comparison, target, yes } => {
                let [low, high] = self.answers(group, comparison, active);
                let number = |bits: u32, lane: usize| if bits >> lane & 1 == 1 { *yes } else { 0 };
                let second = |lane: usize| if comparison.is_pair { number(high, lane) << 16 } else { 0 };
                let values = std::array::from_fn(|lane| number(low, lane) | second(lane));
                self.write(group, *target, active, &values);
            }
            Op::Logic { logic, target, truths: [a, b] } => {
                let bits = logic(self.truth(group, *a), self.truth(group, *b));
                self.write_predicate(group, *target, active, bits);
            }
            Op::Choose { target, truths: [a, b], by } => {
                let by = self.guard(group, *by);
                let bits = (self.truth(group, *a) & by) | (self.truth(group, *b) & !by);
                self.write_predicate(group, *target, active, bits);
            }
            Op::Load(_) | Op::Store(_) | Op::Atomic(_) | Op::Transfer(_) => {
                return self.access(group, op, active);
            }
            _ => self.rare(group, op, active),
        }
        Ok(())
    }

    fn scalar(&mut self, group: &Group, compute: Scalar, target: Target, sources: &[Source; 4], active: u32) {
        let (room_a, room_b, room_c, room_d);
        let a = view!(self, group, sources[0], room_a);
        let b = view!(self, group, sources[1], room_b);
        let c = view!(self, group, sources[2], room_c);
        let d = view!(self, group, sources[3], room_d);
        let mut result = ZEROS;
        if active == u32::MAX {
            for lane in 0..LANES {
                result[lane] = compute(a[lane], b[lane], c[lane], d[lane]);
            }
        } else {
            for lane in lanes(active) {
                result[lane] = compute(a[lane], b[lane], c[lane], d[lane]);
            }
        }
        self.write(group, target, active, &result);
    }

    fn rare(&mut self, group: &Group, op: &Op, active: u32) {
        match op {
            Op::Pack { target, sources, bits } => {
                let mut values = ZEROS;
                for (index, source) in sources.iter().enumerate() {
                    let part = self.fetch(group, *source);
                    for lane in 0..LANES {
                        values[lane] |= (part[lane] & ((1 << bits) - 1)) << (bits * index as u32);
                    }
                }
                self.write(group, *target, active, &values);
            }
            Op::Unpack { targets, source, bits } => {
                let values = self.fetch(group, *source);
                for (index, target) in targets.iter().enumerate() {
                    if let Some(target) = target {
                        let part = values.map(|value| value >> (bits * index as u32) & ((1 << bits) - 1));
                        self.write(group, *target, active, &part);
                    }
                }
            }
            Op::IsSpace { target, address, space } => {
                let addresses = self.fetch(group, *address);
                let found = |address: u64| match address & !0xffff_ffff {
                    SHARED_WINDOW => Space::Shared,
                    LOCAL_WINDOW => Space::Local,
                    PARAMETER_WINDOW => Space::Parameter,
                    _ => Space::Global,
                };
                let bits = (0..LANES)
                    .fold(0, |bits, lane| bits | u32::from(found(addresses[lane]) == *space) << lane);
                self.write_predicate(group, *target, active, bits);
            }
            Op::ActiveLanes(target) => self.write(group, *target, active, &[u64::from(active); LANES]),
            _ => {}
        }
    }

    /// The answers of a comparison, joined with what it is joined with: of the value or lower half, and its
    /// opposite or the upper half.
    fn answers(&self, group: &Group, comparison: &Comparison, active: u32) -> [u32; 2] {
        let (room_a, room_b);
        let a = view!(self, group, comparison.sources[0], room_a);
        let b = view!(self, group, comparison.sources[1], room_b);
        let (mut first, mut second) = (0, 0);
        for lane in lanes(active) {
            if comparison.is_pair {
                first |= u32::from((comparison.compare)(a[lane] & 0xffff, b[lane] & 0xffff)) << lane;
                second |=
                    u32::from((comparison.compare)(a[lane] >> 16 & 0xffff, b[lane] >> 16 & 0xffff)) << lane;
            } else {
                first |= u32::from((comparison.compare)(a[lane], b[lane])) << lane;
            }
        }
        if !comparison.is_pair {
            second = !first;
        }
        match &comparison.joined {
            Some(joined) => {
                let with = self.truth(group, joined.with);
                [(joined.logic)(first, with), (joined.logic)(second, with)]
            }
            None => [first, second],
        }
    }

    fn compare(&mut self, group: &Group, comparison: &Comparison, active: u32) {
        let answers = self.answers(group, comparison, active);
        for (target, bits) in comparison.targets.iter().zip(answers) {
            if let Some(predicate) = target {
                self.write_predicate(group, *predicate, active, bits);
            }
        }
    }
}
