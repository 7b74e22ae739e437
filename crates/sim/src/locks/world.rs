//! The event loop of the lock simulation: deliveries, wakes, and faults at any step.

use super::node::{Echo, Letter, Node, Pending};
use super::program::{Doing, Seen};
use super::{BrokenLockRule, LockReport};
use crate::history::{Act, linearizable};
use crate::message::Address;
use crate::network::{Network, Weather};
use crate::random::Random;
use hinterland_directory::locks::{
    ClaimState, Fence, Gate, HomeAction, LockAnswer, LockAsk, LockMode, LockSettings, LockWish,
};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

const NODES: u64 = 4;
const REGISTERS: usize = 4;
const PROGRAMS: usize = 2;
/// When faults end, and when the run does, in milliseconds.
const CHAOS_MS: u64 = 60_000;
const END_MS: u64 = 75_000;
/// How often a node looks at its clock.
const WAKE_MS: u64 = 20;
/// How long a program waits for an access.
const ACCESS_MS: u64 = 400;
pub(super) const SETTINGS: LockSettings =
    LockSettings { lease_ms: 1200, lease_before_ms: 0, fence_step: 8, claims_per_node_max: 64, idle_max: 2 };

enum Step {
    Deliver(NodeId, NodeId, Letter),
    Wake(NodeId),
    Start(NodeId),
    Fault,
    Calm,
}

pub(super) struct World {
    now_ms: u64,
    queue: BTreeMap<(u64, u64), Step>,
    stamp: u64,
    pub(super) random: Random,
    network: Network,
    nodes: Vec<Node>,
    seen: Vec<Seen>,
    pub(super) report: LockReport,
    pub(super) broken: Option<BrokenLockRule>,
    /// Whether programs look at the clock before they write.
    is_careful: bool,
    next_value: u64,
    next_access: u64,
    is_calm: bool,
    last_locked: [u64; NODES as usize],
    /// What somebody was told and was not so.
    pub(super) unkept: Option<String>,
}

impl World {
    pub fn new(seed: u64, broken: Option<BrokenLockRule>) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather {
            lost_percent: random.below(12),
            repeated_percent: random.below(12),
            late_percent: random.below(25),
            late_ms: 1 + random.below(3000),
        };
        let node = |id, random: &mut Random| Node {
            id: NodeId(id),
            running: None,
            // At most an eighth apart, as far as leases allow.
            speed: random.between(945, 1055),
            offset_ms: random.below(1_000_000),
            stopped_until_ms: 0,
            durable: None,
            lives: 0,
            registers: BTreeMap::new(),
        };
        let nodes = (1..=NODES).map(|id| node(id, &mut random)).collect();
        let is_careful = random.percent(50);
        let mut world = Self {
            now_ms: 0,
            queue: BTreeMap::new(),
            stamp: 0,
            random,
            network: Network::new(weather),
            nodes,
            seen: vec![Seen::default(); REGISTERS],
            report: LockReport::default(),
            broken,
            is_careful,
            next_value: 1,
            next_access: 1,
            is_calm: false,
            last_locked: [0; NODES as usize],
            unkept: None,
        };
        for id in (1..=NODES).map(NodeId) {
            world.schedule(0, Step::Start(id));
            world.schedule(1, Step::Wake(id));
        }
        let mut at_ms = 0;
        while at_ms < CHAOS_MS {
            at_ms += world.random.between(300, 4000);
            world.schedule(at_ms, Step::Fault);
        }
        world.schedule(CHAOS_MS, Step::Calm);
        world
    }

    pub fn run(&mut self) -> Result<LockReport, String> {
        while let Some(((at_ms, _), step)) = self.queue.pop_first() {
            if at_ms > END_MS {
                break;
            }
            self.now_ms = at_ms;
            self.step(step)?;
        }
        for (register, seen) in self.seen.iter().enumerate() {
            linearizable(&seen.history()).map_err(|reason| format!("register {register}: {reason}"))?;
        }
        for (index, locked_ms) in self.last_locked.iter().enumerate() {
            // When all is calm, everybody gets locks again: nothing hangs.
            if *locked_ms < CHAOS_MS + 3000 {
                return Err(format!("node {} got no lock after all was calm", index + 1));
            }
        }
        Ok(self.report)
    }

    fn schedule(&mut self, at_ms: u64, step: Step) {
        self.stamp += 1;
        self.queue.insert((at_ms, self.stamp), step);
    }

    pub(super) fn node(&mut self, id: NodeId) -> &mut Node {
        // Ids are 1 to 4.
        &mut self.nodes[id.0 as usize - 1]
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Start(id) => {
                let (now_ms, forgetful) = (self.now_ms, self.broken == Some(BrokenLockRule::ForgetfulHome));
                if self.node(id).running.is_none() {
                    self.node(id).start(now_ms, SETTINGS, PROGRAMS, forgetful);
                    self.act(id);
                }
            }
            Step::Wake(id) => {
                let until_ms = self.node(id).stopped_until_ms;
                if until_ms > self.now_ms {
                    self.schedule(until_ms + 1, Step::Wake(id));
                    return Ok(());
                }
                self.schedule(self.now_ms + WAKE_MS, Step::Wake(id));
                if self.lives_on(id) {
                    self.wake(id);
                }
            }
            Step::Deliver(from, to, letter) => {
                let until_ms = self.node(to).stopped_until_ms;
                if until_ms > self.now_ms {
                    let jitter = self.random.below(5);
                    self.schedule(until_ms + jitter, Step::Deliver(from, to, letter));
                } else if self.lives_on(to) {
                    self.deliver(from, to, letter);
                }
            }
            Step::Fault => self.fault(),
            Step::Calm => {
                self.network.calm();
                self.is_calm = true;
                for id in (1..=NODES).map(NodeId) {
                    self.node(id).stopped_until_ms = 0;
                    if let Some(running) = &mut self.node(id).running {
                        running.fuse = None;
                    }
                    self.schedule(self.now_ms + 1, Step::Start(id));
                }
            }
        }
        for node in &self.nodes {
            if let Some(running) = &node.running {
                running.home.verify()?;
            }
        }
        self.unkept.take().map_or(Ok(()), Err)
    }

    /// Whether the node runs; its fuse burns a little.
    fn lives_on(&mut self, id: NodeId) -> bool {
        let Some(running) = &mut self.node(id).running else { return false };
        match &mut running.fuse {
            Some(0) => {
                let died = self.node(id).running.take();
                for program in died.into_iter().flat_map(|running| running.programs) {
                    // What its programs had sent may arrive yet.
                    if let Doing::Asking { begin, act: Act::Write(value), .. } = program.doing {
                        for (value, begin) in program.flying.iter().copied().chain([(value, begin)]) {
                            self.seen[program.register].unknown(program.fence, begin, value);
                        }
                    }
                }
                let back_ms = self.now_ms + self.random.between(1, 4000);
                self.schedule(back_ms, Step::Start(id));
                return false;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        true
    }

    fn fault(&mut self) {
        self.report.faults += 1;
        let id = NodeId(self.random.between(1, NODES + 1));
        match self.random.below(4) {
            0 => {
                // Every way in which four nodes fall apart: each draws its side, and each side is cut off from the rest.
                let until_ms = self.now_ms + self.random.between(100, 6000);
                let sides: Vec<_> = (0..NODES).map(|_| self.random.below(NODES)).collect();
                for side in 0..NODES {
                    let inside = |(index, drawn): (usize, &u64)| {
                        (*drawn == side).then_some(Address::Node(NodeId(index as u64 + 1)))
                    };
                    let inside: Vec<_> = sides.iter().enumerate().filter_map(inside).collect();
                    self.network.cut(inside, until_ms);
                }
            }
            1 => {
                let stop_ms = if self.random.percent(20) { 30_000 } else { self.random.between(50, 5000) };
                self.node(id).stopped_until_ms = (self.now_ms + stop_ms).min(CHAOS_MS);
            }
            _ => {
                let steps = self.random.below(40);
                if let Some(running) = &mut self.node(id).running {
                    running.fuse = Some(steps);
                }
            }
        }
    }

    fn post(&mut self, from: NodeId, to: NodeId, letter: Letter) {
        let (source, target) = (Address::Node(from), Address::Node(to));
        let mut arrivals = self.network.arrivals(self.now_ms, source, target, &mut self.random);
        if matches!(letter, Letter::Access { .. } | Letter::Done { .. }) {
            // A connection delivers once or breaks.
            arrivals.truncate(1);
        }
        for at_ms in arrivals {
            self.schedule(at_ms.max(self.now_ms), Step::Deliver(from, to, letter.clone()));
        }
    }

    /// Does what a node's lock home wants done; the node may die between any two of them.
    fn act(&mut self, id: NodeId) {
        loop {
            let Some(running) = &mut self.node(id).running else { return };
            let actions = running.home.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                if !self.lives_on(id) {
                    return;
                }
                match action {
                    HomeAction::Persist(fence) => {
                        self.node(id).durable = Some(fence);
                        if !self.lives_on(id) {
                            return;
                        }
                        if let Some(running) = &mut self.node(id).running {
                            running.home.persisted(fence);
                        }
                    }
                    HomeAction::Tell(node, address, number) => {
                        let life = self.node(id).lives;
                        self.post(id, node, Letter::Tell { address, number, life });
                        if self.broken == Some(BrokenLockRule::NobodyIsTold) {
                            let clock_ms = self.clock_ms(id);
                            if let Some(running) = &mut self.node(id).running {
                                running.home.told(clock_ms, node, address, number);
                            }
                        }
                    }
                    HomeAction::Changed(_) => {}
                }
            }
        }
    }

    pub(super) fn clock_ms(&mut self, id: NodeId) -> u64 {
        let now_ms = self.now_ms;
        self.node(id).clock_ms(now_ms)
    }

    pub(super) fn ask(&mut self, from: NodeId, to: NodeId, ask: LockAsk, echo: Echo) {
        let life = self.node(from).lives;
        self.post(from, to, Letter::Ask { life, ask, echo });
    }

    fn wake(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        if let Some(running) = &mut self.node(id).running {
            running.home.tick(clock_ms);
            running.home.tell_again();
        }
        self.act(id);
        for index in 0..PROGRAMS {
            self.program(id, index);
        }
        let Some(running) = &mut self.node(id).running else { return };
        let is_urgent = running.holder.homes().into_iter().any(|home| running.holder.waits_for(home));
        let pause_ms = if is_urgent { 60 } else { SETTINGS.lease_ms / 4 };
        if clock_ms < running.renewed_ms + pause_ms {
            return;
        }
        running.renewed_ms = clock_ms;
        let mut homes: BTreeSet<_> = running.holder.homes().into_iter().collect();
        homes.extend((0..REGISTERS).filter(|register| page_home(*register) == id).map(lock_home));
        for home in homes {
            let Some(running) = &mut self.node(id).running else { return };
            let number = running.holder.renewal(home);
            self.ask(id, home, LockAsk::Renew, Echo::Renewal { number, sent_ms: clock_ms });
        }
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, letter: Letter) {
        let clock_ms = self.clock_ms(to);
        let own_life = self.node(to).lives;
        let Some(running) = &mut self.node(to).running else { return };
        match letter {
            Letter::Ask { life, ask, echo } => {
                let answer = running.home.answer(clock_ms, from, life, &ask);
                self.act(to);
                if self.lives_on(to) && self.node(from).lives == life {
                    self.post(to, from, Letter::Answer { life: own_life, answer, echo });
                }
            }
            Letter::Answer { life, answer, echo } => self.answered(from, to, life, &answer, echo),
            Letter::Tell { address, number, life } => {
                running.fences.forget(address);
                self.post(to, from, Letter::Told { address, number, life });
            }
            Letter::Told { address, number, life } if life == own_life => {
                running.home.told(clock_ms, from, address, number);
                self.act(to);
            }
            Letter::Access { access, register, fence, write } => {
                self.access(to, Pending { from, access, register, fence, write });
            }
            Letter::Done { access, value } => self.done(to, access, value),
            Letter::Told { .. } => {}
        }
    }

    fn answered(&mut self, from: NodeId, to: NodeId, life: u64, answer: &LockAnswer, echo: Echo) {
        let clock_ms = self.clock_ms(to);
        let Some(running) = &mut self.node(to).running else { return };
        match echo {
            Echo::Wish { request, sent_ms } => {
                running.holder.answered(request, (from, life), (sent_ms, clock_ms), answer);
            }
            Echo::Renewal { number, sent_ms } => {
                let LockAnswer::Claims(claims) = answer else { return };
                let asks = running.holder.renewed((from, life), number, (sent_ms, clock_ms), claims);
                for (request, ask) in asks {
                    self.ask(to, from, ask, Echo::Wish { request, sent_ms: clock_ms });
                }
            }
            Echo::Check { number, sent_ms } => {
                let is_heard = running.holder.heard(from, life, sent_ms, clock_ms);
                let Some(pending) = running.pending.remove(&number) else { return };
                let address = lock(pending.register);
                match answer {
                    LockAnswer::Current => {
                        let term = running.holder.term(from).map_or(0, |(term, _)| term);
                        if is_heard {
                            running.fences.learned(number, from, address, pending.fence, term);
                        } else {
                            running.fences.gave_up(number, address);
                        }
                        self.access(to, pending);
                    }
                    _ => {
                        running.fences.gave_up(number, address);
                        self.refuse(to, pending);
                    }
                }
            }
        }
    }

    fn refuse(&mut self, id: NodeId, pending: Pending) {
        self.report.refused += 1;
        self.post(id, pending.from, Letter::Done { access: pending.access, value: None });
    }

    /// A page home is asked for an access under a lock.
    fn access(&mut self, id: NodeId, pending: Pending) {
        let clock_ms = self.clock_ms(id);
        let broken = self.broken;
        let home = lock_home(pending.register);
        let address = lock(pending.register);
        let Some(running) = &mut self.node(id).running else { return };
        let term = running.holder.term(home);
        let gate = match broken {
            Some(BrokenLockRule::NoFences) => Gate::Open,
            _ => running.fences.gate(clock_ms, home, address, pending.fence, term),
        };
        match gate {
            Gate::Open => {
                let node = self.node(id);
                let value = match pending.write {
                    Some(value) => {
                        node.registers.insert(pending.register, value);
                        value
                    }
                    None => node.registers.get(&pending.register).copied().unwrap_or_default(),
                };
                self.post(id, pending.from, Letter::Done { access: pending.access, value: Some(value) });
            }
            Gate::Old => self.refuse(id, pending),
            Gate::Ask(number) => {
                running.pending.insert(number, pending);
                let ask = LockAsk::Check { address, fence: pending.fence };
                self.ask(id, home, ask, Echo::Check { number, sent_ms: clock_ms });
            }
        }
    }

    fn done(&mut self, id: NodeId, access: u64, value: Option<u64>) {
        let stamp = self.stamp;
        let Some(running) = &mut self.node(id).running else { return };
        let is_it = |doing: &Doing| matches!(doing, Doing::Asking { access: own, .. } if *own == access);
        let Some(index) = running.programs.iter().position(|program| is_it(&program.doing)) else { return };
        let program = &mut running.programs[index];
        let Doing::Asking { begin, act, .. } = program.doing else { return };
        let Some(value) = value else {
            self.give_up(id, index);
            return;
        };
        program.doing = Doing::Holding;
        let (register, fence) = (program.register, program.fence);
        let flying = std::mem::take(&mut program.flying);
        let act = match act {
            Act::Read(_) => {
                if program.mode == LockMode::Read {
                    program.cached = Some(value);
                }
                self.report.reads += 1;
                Act::Read(value)
            }
            Act::Write(_) => {
                self.report.writes += 1 + flying.len() as u64;
                for (value, begin) in flying {
                    self.report.flushed += 1;
                    self.seen[register].done(fence, begin, stamp, Act::Write(value));
                }
                act
            }
        };
        self.seen[register].done(fence, begin, stamp, act);
    }

    /// An access failed: nobody knows what became of it, and the lock is given back as not clean.
    fn give_up(&mut self, id: NodeId, index: usize) {
        let Some(running) = &mut self.node(id).running else { return };
        let program = &mut running.programs[index];
        if let Doing::Asking { begin, act: Act::Write(value), .. } = program.doing {
            program.is_clean = false;
            let (register, fence) = (program.register, program.fence);
            for (value, begin) in std::mem::take(&mut program.flying).into_iter().chain([(value, begin)]) {
                self.seen[register].unknown(fence, begin, value);
            }
        }
        self.unlock(id, index);
    }

    fn unlock(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let rest_ms = self.random.below(300);
        let Some(running) = &mut self.node(id).running else { return };
        let program = &mut running.programs[index];
        let (request, clean) = (program.request, program.is_clean);
        // What was never sent never happens.
        program.pending.clear();
        program.doing = Doing::Resting { until_ms: clock_ms + rest_ms };
        let Some((home, _)) = running.holder.place(request) else { return };
        if let Some(ask) = running.holder.release(request, clean) {
            self.ask(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
        }
    }

    fn program(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let Some(running) = &mut self.node(id).running else { return };
        match running.programs[index].doing {
            Doing::Resting { until_ms } if clock_ms >= until_ms => self.begin(id, index),
            Doing::Resting { .. } => {}
            Doing::Locking { request, until_ms } => match running.holder.state(request) {
                Some(ClaimState::Held { fence, .. }) => {
                    let left = self.random.between(1, 5);
                    let now_ms = self.now_ms;
                    self.report.locked += 1;
                    self.last_locked[id.0 as usize - 1] = now_ms;
                    let Some(running) = &mut self.node(id).running else { return };
                    let program = &mut running.programs[index];
                    (program.fence, program.left, program.doing) = (fence, left, Doing::Holding);
                    (program.is_clean, program.cached, program.kept) = (true, None, None);
                }
                Some(ClaimState::Waiting) if clock_ms < until_ms => {}
                _ => self.unlock(id, index),
            },
            Doing::Upgrading { request, until_ms } => self.upgrade(id, index, (request, until_ms), false),
            Doing::Withdrawing { request, until_ms } => self.upgrade(id, index, (request, until_ms), true),
            Doing::Asking { until_ms, .. } if clock_ms >= until_ms => self.give_up(id, index),
            Doing::Asking { .. } => {}
            Doing::Holding => self.hold(id, index),
        }
    }

    fn begin(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        // The index of a register and of a program are small.
        let register = self.random.below(REGISTERS as u64) as usize;
        let mode = if self.random.percent(50) { LockMode::Read } else { LockMode::Write };
        let home = lock_home(register);
        let Some(running) = &mut self.node(id).running else { return };
        let session = SessionId(index as u64);
        let wish = LockWish { session, pid: 1, address: lock(register), object: ObjectId(1), bytes: 8, mode };
        let (request, ask) = running.holder.begin(wish, home, None, true);
        let program = &mut running.programs[index];
        (program.register, program.mode, program.request) = (register, mode, request);
        program.is_clean = true;
        program.doing = Doing::Locking { request, until_ms: clock_ms + 3000 };
        self.ask(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
    }

    fn hold(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let (stamp, is_careful, broken) = (self.stamp, self.is_careful, self.broken);
        let (wants_write, access, value) = (self.random.percent(60), self.next_access, self.next_value);
        let (wants_buffer, wants_upgrade) = (self.random.percent(40), self.random.percent(15));
        let Some(running) = &mut self.node(id).running else { return };
        let program = &running.programs[index];
        let until_ms = match running.holder.state(program.request) {
            Some(ClaimState::Held { until_ms, .. }) => until_ms,
            _ => {
                self.report.lost += 1;
                self.judge_loss(id, index);
                self.unlock(id, index);
                return;
            }
        };
        if program.mode == LockMode::Read && wants_upgrade {
            self.begin_upgrade(id, index);
            return;
        }
        if program.left == 0 || program.pending.len() > 2 {
            match program.pending.is_empty() {
                true => self.unlock(id, index),
                false if is_careful && clock_ms > until_ms => {}
                false => self.flush(id, index),
            }
            return;
        }
        let buffers = program.mode == LockMode::Write && (wants_buffer || !program.pending.is_empty());
        let (register, fence) = (program.register, program.fence);
        let program = &mut running.programs[index];
        program.left -= 1;
        let is_believed = clock_ms <= until_ms || broken == Some(BrokenLockRule::CachesForEver);
        if let Some(cached) = program.cached
            && is_believed
        {
            (self.report.reads, self.report.cached) = (self.report.reads + 1, self.report.cached + 1);
            self.seen[register].done(fence, stamp, stamp, Act::Read(cached));
            return;
        }
        let is_here = page_home(register) == id;
        if (is_careful || is_here) && !is_believed {
            return;
        }
        let write = (program.mode == LockMode::Write && wants_write).then_some(value);
        let act = write.map_or(Act::Read(0), Act::Write);
        if is_here {
            self.access_here(id, register, fence, write);
            return;
        }
        if buffers && let Some(value) = write {
            program.pending.push((value, stamp));
            self.next_value += 1;
            return;
        }
        if !program.pending.is_empty() {
            // It would see what it has itself, which nobody else may ever see.
            return;
        }
        program.doing = Doing::Asking { access, begin: stamp, act, until_ms: clock_ms + ACCESS_MS };
        self.next_access += 1;
        self.next_value += 1;
        self.post(id, page_home(register), Letter::Access { access, register, fence, write });
    }

    /// Loads and stores: no page home looks at a fence.
    fn access_here(&mut self, id: NodeId, register: usize, fence: Fence, write: Option<u64>) {
        let stamp = self.stamp;
        self.next_value += 1;
        let registers = &mut self.node(id).registers;
        let act = match write {
            Some(value) => {
                registers.insert(register, value);
                Act::Write(value)
            }
            None => Act::Read(registers.get(&register).copied().unwrap_or_default()),
        };
        self.seen[register].done(fence, stamp, stamp, act);
    }

    /// Sends what is kept, as one message: the last value is what is there when it has arrived.
    fn flush(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let (access, stamp, broken) = (self.next_access, self.stamp, self.broken);
        let Some(running) = &mut self.node(id).running else { return };
        let program = &mut running.programs[index];
        let Some((value, begin)) = program.pending.pop() else { return };
        program.flying = std::mem::take(&mut program.pending);
        let (register, fence) = (program.register, program.fence);
        if broken == Some(BrokenLockRule::UnlocksBeforeFlushed) {
            program.flying.clear();
            self.seen[register].done(fence, begin, stamp, Act::Write(value));
            self.unlock(id, index);
        } else {
            let until_ms = clock_ms + ACCESS_MS;
            program.doing = Doing::Asking { access, begin, act: Act::Write(value), until_ms };
        }
        self.next_access += 1;
        self.post(id, page_home(register), Letter::Access { access, register, fence, write: Some(value) });
    }
}

pub(super) fn lock(register: usize) -> GlobalAddress {
    // A few registers from the start of the pool on: never behind its end.
    GlobalAddress::new(4096 + 8 * register as u64).unwrap_or_default()
}

pub(super) const fn lock_home(register: usize) -> NodeId {
    NodeId(register as u64 + 1)
}

/// Half of the registers lie where their lock is kept, half elsewhere.
const fn page_home(register: usize) -> NodeId {
    NodeId(if register < 2 { register as u64 + 3 } else { register as u64 + 1 })
}
