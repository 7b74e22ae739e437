//! A warp: registers of 32 lanes, and the groups of lanes that are at the same place.

use super::{LANES, Lanes};
use crate::code::Program;

/// Where a group goes on when its function returns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Return {
    pub function: usize,
    pub at: usize,
    pub registers: usize,
    pub predicates: usize,
    pub frame: u64,
}

/// What a group waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum State {
    Ready,
    /// The barrier of this number, and how often it had opened before.
    Barrier {
        number: usize,
        opened: u64,
    },
    /// Other lanes that do the same.
    Together {
        key: u64,
        members: u32,
    },
}

/// Lanes that are at the same place and go on together.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub lanes: u32,
    pub function: usize,
    pub at: usize,
    /// Where the function's registers begin in the warp's.
    pub registers: usize,
    pub predicates: usize,
    /// Where the function's frame begins in each lane's memory.
    pub frame: u64,
    pub returns: Vec<Return>,
    pub state: State,
    /// When it ran last.
    pub ran: u64,
}

impl Group {
    /// Whether both are at the same place, called from the same places.
    pub fn is_with(&self, other: &Self) -> bool {
        self.at == other.at
            && self.function == other.function
            && self.state == other.state
            && self.registers == other.registers
            && self.frame == other.frame
            && self.returns == other.returns
    }

    /// Who goes first: the deepest call, then the lowest place, so that lanes meet where branches join.
    pub fn order(&self) -> (std::cmp::Reverse<usize>, usize, usize) {
        (std::cmp::Reverse(self.returns.len()), self.function, self.at)
    }
}

/// A warp of a block.
#[derive(Debug)]
pub(super) struct Warp {
    pub number: usize,
    /// Lanes that have not ended.
    pub alive: u32,
    /// Whether some have ended since those that wait for others were last looked at.
    pub has_ended: bool,
    pub registers: Vec<Lanes>,
    pub predicates: Vec<u32>,
    pub carry: u32,
    /// Memory of each lane.
    pub frames: Vec<Vec<u8>>,
    pub groups: Vec<Group>,
    /// What lanes that wait for others have brought.
    pub inputs: [[u64; 3]; LANES],
    pub truths: u32,
    /// Instructions that had run when whoever waited longest had its turn.
    pub was_fair: u64,
    /// `threadIdx` of each lane.
    pub threads: [[u32; 3]; LANES],
    /// All lanes at the start of the kernel.
    start: Group,
}

impl Warp {
    /// A warp at the start of the kernel.
    pub fn new(number: usize, block: [u32; 3], program: &Program) -> Self {
        let total = block.iter().product::<u32>() as usize;
        let mut threads = [[0; 3]; LANES];
        for (lane, thread) in threads.iter_mut().enumerate() {
            let index = (number * LANES + lane) as u32;
            *thread = [index % block[0], index / block[0] % block[1], index / block[0] / block[1]];
        }
        let count = (total - number * LANES).min(LANES);
        let alive = u32::MAX >> (LANES - count);
        let kernel = &program.functions[0];
        let group = Group {
            lanes: alive,
            function: 0,
            at: 0,
            registers: 0,
            predicates: 0,
            frame: 0,
            returns: Vec::new(),
            state: State::Ready,
            ran: 0,
        };
        Self {
            number,
            alive,
            has_ended: false,
            registers: vec![[0; LANES]; kernel.registers as usize],
            predicates: vec![0; kernel.predicates as usize],
            carry: 0,
            frames: vec![vec![0; kernel.frame_bytes as usize]; LANES],
            groups: vec![group.clone()],
            inputs: [[0; 3]; LANES],
            truths: 0,
            was_fair: 0,
            threads,
            start: group,
        }
    }

    /// Goes back to the start of the kernel, with all registers and variables zero as at first.
    pub fn restart(&mut self) {
        (self.alive, self.has_ended) = (self.start.lanes, false);
        self.registers.fill([0; LANES]);
        self.predicates.fill(0);
        self.frames.iter_mut().for_each(|frame| frame.fill(0));
        (self.carry, self.truths) = (0, 0);
        self.inputs = [[0; 3]; LANES];
        self.groups.clear();
        self.groups.push(self.start.clone());
    }

    /// Takes the ready group whose turn it is, joined with all others at its place; nothing if none is ready.
    /// Whoever waited longest is taken if `is_fair`.
    pub fn next(&mut self, is_fair: bool) -> Option<Group> {
        let ready = self.groups.iter().enumerate().filter(|(_, group)| group.state == State::Ready);
        let (index, _) = if is_fair {
            ready.min_by_key(|(_, group)| group.ran)?
        } else {
            ready.min_by_key(|(_, group)| group.order())?
        };
        let mut group = self.groups.swap_remove(index);
        self.groups.retain(|other| {
            let is_joined = other.is_with(&group);
            if is_joined {
                group.lanes |= other.lanes;
            }
            !is_joined
        });
        Some(group)
    }

    /// The lowest place at which another ready group of the same function waits for this one to come by.
    pub fn meeting_point(&self, group: &Group) -> usize {
        let same = |other: &&Group| {
            other.state == State::Ready
                && other.function == group.function
                && other.returns.len() == group.returns.len()
        };
        self.groups.iter().filter(same).map(|other| other.at).min().unwrap_or(usize::MAX)
    }
}
