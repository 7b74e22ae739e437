//! How groups of lanes run: branches, calls, barriers, and where lanes go apart and meet.

use super::block::Block;
use super::warp::{Group, Return, State, Warp};
use super::{Lanes, Machine, Stop, lanes};
use crate::code::{Barrier, Call, Callee, Instruction, Op, Program, Reduction, Source};
use crate::error::{FaultKind, LaunchError};
use crate::module::{FUNCTION_STRIDE, FUNCTION_WINDOW};

/// Instructions of a warp before another one has its turn: long enough to be cheap, short enough for those that wait
/// for a flag in memory.
const TURN: u64 = 20_000;
/// Calls within calls.
const DEPTH_MAX: usize = 128;
/// Registers of one warp, of all functions that are being called.
const WARP_REGISTERS_MAX: usize = 1 << 17;
/// Bytes of one thread's memory.
const THREAD_BYTES_MAX: u64 = 512 << 10;

/// What became of a group that ran.
pub(super) enum Next {
    /// It goes on at its place.
    On,
    /// It is one of several, and another may come first.
    Choose,
    /// It waits, or has ended.
    Gone,
}

/// One warp that runs.
pub(super) struct Runner<'r, 'm> {
    pub machine: &'r mut Machine<'m>,
    pub block: &'r mut Block,
    pub warp: &'r mut Warp,
}

impl<'m> Runner<'_, 'm> {
    /// Runs the warp until it has to wait or its turn is over; false if it could not move.
    pub fn run(mut self) -> Result<bool, LaunchError> {
        let program = self.machine.program;
        let start = self.machine.executed;
        let mut has_moved = false;
        while self.machine.executed - start < TURN {
            self.wake(program);
            // Once in a while it is the turn of whoever waited longest, so that lanes can wait for each other.
            let is_fair = self.machine.executed - self.warp.was_fair >= TURN;
            let Some(mut group) = self.warp.next(is_fair) else { break };
            has_moved = true;
            let result = self.run_group(&mut group, program, is_fair);
            group.ran = self.machine.executed;
            if is_fair {
                self.warp.was_fair = self.machine.executed;
            }
            match result {
                Ok(Next::Gone) => {}
                Ok(Next::On | Next::Choose) => self.warp.groups.push(group),
                Err(stop) => return Err(self.fault(program, &group, stop)),
            }
        }
        Ok(has_moved)
    }

    fn fault(&self, program: &Program, group: &Group, stop: Stop) -> LaunchError {
        let line =
            program.functions[group.function].code.get(group.at).map_or(0, |instruction| instruction.line);
        let (block, thread) = (self.block.index, self.warp.threads[stop.lane]);
        LaunchError::Fault { kind: stop.kind, line, block, thread }
    }

    /// Makes groups ready whose barrier has opened, and those whose partners have ended.
    fn wake(&mut self, program: &'m Program) {
        let mut is_waiting_together = false;
        for index in 0..self.warp.groups.len() {
            match self.warp.groups[index].state {
                State::Barrier { number, opened } if self.block.barriers[number].opened != opened => {
                    let mut group = self.warp.groups.swap_remove(index);
                    self.leave_barrier(&mut group, program, number);
                    self.warp.groups.push(group);
                    // What was last took the place of what was removed; it is looked at in the next round.
                }
                State::Together { .. } => is_waiting_together = true,
                _ => {}
            }
        }
        let has_ended = std::mem::take(&mut self.warp.has_ended);
        let is_stuck = self.warp.groups.iter().all(|group| group.state != State::Ready);
        // Others may be ready for ever: those that wait for what comes behind.
        if is_waiting_together && (is_stuck || has_ended) {
            self.complete_any(program);
        }
    }

    fn leave_barrier(&mut self, group: &mut Group, program: &Program, number: usize) {
        if let Op::Barrier(barrier) = &program.functions[group.function].code[group.at].op
            && let Some((reduction, _)) = &barrier.reduction
        {
            let answer = self.block.barriers[number].answer(reduction);
            match reduction {
                Reduction::Count(target) => {
                    let register = &mut self.warp.registers[group.registers + target.register as usize];
                    lanes(group.lanes).for_each(|lane| register[lane] = answer & target.mask);
                }
                Reduction::All(predicate) | Reduction::Any(predicate) => {
                    let bits = if answer != 0 { u32::MAX } else { 0 };
                    self.write_predicate(group, *predicate, group.lanes, bits);
                }
            }
        }
        group.state = State::Ready;
        group.at += 1;
    }

    /// Runs a group until it has to wait, meets others, or has run for long while others are ready.
    fn run_group(&mut self, group: &mut Group, program: &'m Program, is_forced: bool) -> Result<Next, Stop> {
        let meeting = if is_forced { usize::MAX } else { self.warp.meeting_point(group) };
        let end = self.machine.executed + TURN;
        let code = &program.functions[group.function].code;
        loop {
            if self.machine.executed >= self.machine.budget {
                return Err(Stop { kind: FaultKind::Budget(self.machine.budget), lane: first(group.lanes) });
            }
            self.machine.executed += 1;
            let instruction = &code[group.at];
            let active = match instruction.guard {
                None => group.lanes,
                Some(guard) => group.lanes & self.guard(group, guard),
            };
            if is_flow(&instruction.op) {
                if active == 0 {
                    group.at += 1;
                } else {
                    let before = self.warp.groups.len();
                    match self.flow(group, program, instruction, active)? {
                        Next::On if self.warp.groups.len() != before => return Ok(Next::Choose),
                        Next::On => {}
                        other => return Ok(other),
                    }
                }
            } else {
                if active != 0 {
                    self.execute(group, &instruction.op, active)?;
                }
                group.at += 1;
            }
            if group.at >= meeting {
                return Ok(Next::Choose);
            }
            if self.machine.executed >= end {
                return Ok(Next::Choose);
            }
        }
    }

    /// Splits off the lanes that do not take part: they go on behind the instruction.
    fn leave_others(&mut self, group: &mut Group, active: u32) {
        let rest = group.lanes & !active;
        if rest != 0 {
            let other = Group { lanes: rest, at: group.at + 1, ..group.clone() };
            self.warp.groups.push(other);
            group.lanes = active;
        }
    }

    /// Keeps the lanes with the first lane's value; the others come again.
    pub(super) fn keep_equal(&mut self, group: &mut Group, values: &Lanes) -> u64 {
        let value = values[first(group.lanes)];
        let equal =
            lanes(group.lanes).filter(|&lane| values[lane] == value).fold(0, |mask, lane| mask | 1 << lane);
        let rest = group.lanes & !equal;
        if rest != 0 {
            self.warp.groups.push(Group { lanes: rest, ..group.clone() });
            group.lanes = equal;
        }
        value
    }

    fn flow(
        &mut self,
        group: &mut Group,
        program: &'m Program,
        instruction: &'m Instruction,
        active: u32,
    ) -> Result<Next, Stop> {
        if let Op::Branch(target) = instruction.op {
            let has_split = active != group.lanes;
            self.leave_others(group, active);
            group.at = target as usize;
            return Ok(if has_split { Next::Choose } else { Next::On });
        }
        self.leave_others(group, active);
        match &instruction.op {
            Op::Jump { targets, index } => {
                let indices = self.fetch(group, *index);
                let index = self.keep_equal(group, &indices) & 0xffff_ffff;
                let target = usize::try_from(index).ok().and_then(|index| targets.get(index));
                group.at =
                    *target.ok_or_else(|| stop(group, "a branch beyond the end of its table"))? as usize;
                Ok(Next::Choose)
            }
            Op::Call(call) => self.call(group, program, call),
            Op::Return => self.leave(group, program),
            Op::Exit => Ok(self.end(group)),
            Op::Trap => Err(Stop { kind: FaultKind::Trap, lane: first(group.lanes) }),
            Op::Barrier(barrier) => self.barrier(group, barrier),
            Op::Exchange(exchange) => self.exchange(group, program, exchange),
            Op::Matrix(matrix) => self.matrix(group, matrix),
            _ => Ok(Next::On),
        }
    }

    fn end(&mut self, group: &Group) -> Next {
        self.warp.alive &= !group.lanes;
        self.warp.has_ended = true;
        self.block.alive -= u64::from(group.lanes.count_ones());
        Next::Gone
    }

    fn call(&mut self, group: &mut Group, program: &'m Program, call: &Call) -> Result<Next, Stop> {
        let Some(place) = self.callee(group, program, call)? else {
            group.at += 1;
            return Ok(Next::On);
        };
        let (caller, callee) = (&program.functions[group.function], &program.functions[place]);
        let sizes = |places: &[(u64, u64)]| places.iter().map(|place| place.1).collect::<Vec<_>>();
        if sizes(&call.arguments) != sizes(&callee.parameters)
            || sizes(&call.results) != sizes(&callee.results)
        {
            return Err(stop(group, "a function is called with other parameters than it has"));
        }
        let below = Return {
            function: group.function,
            at: group.at + 1,
            registers: group.registers,
            predicates: group.predicates,
            frame: group.frame,
        };
        group.returns.push(below);
        group.function = place;
        group.registers += caller.registers as usize;
        group.predicates += caller.predicates as usize;
        group.frame += caller.frame_bytes;
        group.at = 0;
        let (registers, bytes) =
            (group.registers + callee.registers as usize, group.frame + callee.frame_bytes);
        if group.returns.len() > DEPTH_MAX || registers > WARP_REGISTERS_MAX || bytes > THREAD_BYTES_MAX {
            return Err(Stop { kind: FaultKind::Stack, lane: first(group.lanes) });
        }
        let predicates = group.predicates + callee.predicates as usize;
        let warp = &mut self.warp;
        warp.registers.resize(warp.registers.len().max(registers), [0; super::LANES]);
        warp.predicates.resize(warp.predicates.len().max(predicates), 0);
        let from = group.frame - caller.frame_bytes;
        for lane in lanes(group.lanes) {
            let frame = &mut warp.frames[lane];
            frame.resize(frame.len().max(bytes as usize), 0);
            for (&(at, size), &(to, _)) in call.arguments.iter().zip(&callee.parameters) {
                let start = (from + at) as usize;
                frame.copy_within(start..start + size as usize, (group.frame + to) as usize);
            }
        }
        Ok(Next::Choose)
    }

    /// The place of the function that is called; nothing if the call is done already.
    fn callee(&mut self, group: &mut Group, program: &Program, call: &Call) -> Result<Option<usize>, Stop> {
        match &call.callee {
            Callee::Function(place) => Ok(Some(*place)),
            Callee::Address(source) => {
                let addresses = self.fetch(group, *source);
                let address = self.keep_equal(group, &addresses);
                let number = address.wrapping_sub(FUNCTION_WINDOW) / FUNCTION_STRIDE;
                let found = usize::try_from(number).ok().and_then(|number| program.by_number.get(&number));
                match found {
                    Some(Ok(place)) if address.is_multiple_of(FUNCTION_STRIDE) => Ok(Some(*place)),
                    Some(Err(error)) => Err(stop(group, &error.to_string())),
                    _ => Err(Stop { kind: FaultKind::IllegalAddress(address), lane: first(group.lanes) }),
                }
            }
            Callee::Unknown(name) => Err(stop(group, &format!("{name} is not in this module"))),
            Callee::Assertion => Err(self.assertion(group, call)),
            Callee::Print => {
                self.print(group, call)?;
                Ok(None)
            }
        }
    }

    fn leave(&mut self, group: &mut Group, program: &'m Program) -> Result<Next, Stop> {
        let Some(below) = group.returns.pop() else { return Ok(self.end(group)) };
        let callee = &program.functions[group.function];
        if let Op::Call(call) = &program.functions[below.function].code[below.at - 1].op {
            for lane in lanes(group.lanes) {
                let frame = &mut self.warp.frames[lane];
                for (&(at, size), &(to, _)) in callee.results.iter().zip(&call.results) {
                    let start = (group.frame + at) as usize;
                    frame.copy_within(start..start + size as usize, (below.frame + to) as usize);
                }
            }
        }
        group.function = below.function;
        group.at = below.at;
        group.registers = below.registers;
        group.predicates = below.predicates;
        group.frame = below.frame;
        Ok(Next::Choose)
    }

    fn barrier(&mut self, group: &mut Group, barrier: &Barrier) -> Result<Next, Stop> {
        let numbers = self.fetch(group, barrier.number);
        let number = self.keep_equal(group, &numbers) as usize;
        let is_named = number < 16 || barrier.number == Source::Constant(16);
        if !is_named {
            return Err(stop(group, &format!("barrier {number}: they end at 15")));
        }
        let wanted = match barrier.threads {
            Some(threads) => {
                let counts = self.fetch(group, threads);
                Some(self.keep_equal(group, &counts) & 0xffff_ffff)
            }
            None => None,
        };
        let yes = match &barrier.reduction {
            Some((_, truth)) => u64::from((self.truth(group, *truth) & group.lanes).count_ones()),
            None => 0,
        };
        let count = u64::from(group.lanes.count_ones());
        let is_whole = barrier.is_aligned && group.lanes == self.warp.alive;
        let state = &mut self.block.barriers[number];
        state.tell(yes, count - yes);
        state.arrived += if is_whole { super::LANES as u64 } else { count };
        state.waiting_for_all += count;
        if wanted.is_some() {
            state.wanted = wanted;
        }
        let opened = state.opened;
        state.open_if_complete(self.block.alive);
        if !barrier.waits {
            group.at += 1;
            return Ok(Next::On);
        }
        group.state = State::Barrier { number, opened };
        self.warp.groups.push(group.clone());
        Ok(Next::Gone)
    }
}

/// Whether an instruction may send lanes to different places or make them wait.
fn is_flow(op: &Op) -> bool {
    matches!(
        op,
        Op::Branch(_)
            | Op::Jump { .. }
            | Op::Call(_)
            | Op::Return
            | Op::Exit
            | Op::Trap
            | Op::Barrier(_)
            | Op::Exchange(_)
            | Op::Matrix(_)
    )
}

pub(super) fn first(mask: u32) -> usize {
    mask.trailing_zeros() as usize % super::LANES
}

pub(super) fn stop(group: &Group, what: &str) -> Stop {
    Stop { kind: FaultKind::Unsupported(what.to_string()), lane: first(group.lanes) }
}
