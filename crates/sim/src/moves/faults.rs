//! What goes wrong: crashes at any step, pauses, pieces of the network, and what a crash leaves of what programs were doing.

use super::Victim;
use super::node::Word;
use super::program::{Doing, Phase};
use super::world::{NODES, PAGES, PROGRAMS, Step, WORDS, World};
use crate::directory_host::StoreFault;
use crate::history::Act;
use crate::message::Address;
use hinterland_types::NodeId;

/// A pause that outlives every lease.
const LONG_PAUSE_MS: u64 = 30_000;
/// Steps within which a process that is to die dies.
const FUSE_STEPS: u64 = 60;

impl World {
    /// A process is at a step, which is counted; whether it goes on. `other` is the process on the other side.
    pub(super) fn reach(&mut self, id: NodeId, other: Option<NodeId>, step: &'static str) -> bool {
        if self.node(id).running.is_none() {
            return false;
        }
        self.note(|| format!("node {} is at {step}", id.0));
        if let Some(victim) = self.crash_here(step) {
            match victim {
                Victim::Itself => self.kill(id),
                Victim::Other => self.kill(other.unwrap_or(id)),
                Victim::Directory => self.kill_directory(),
            }
        }
        if let Some(running) = &mut self.node(id).running {
            match &mut running.fuse {
                Some(0) => self.kill(id),
                Some(left) => *left -= 1,
                None => {}
            }
        }
        self.node(id).running.is_some()
    }

    /// The directory is at a step of what a node has asked; whether it goes on.
    pub(super) fn reach_directory(&mut self, from: NodeId, step: &'static str) -> bool {
        self.note(|| format!("the directory is at {step} for node {}", from.0));
        match self.crash_here(step) {
            Some(Victim::Itself | Victim::Directory) => self.kill_directory(),
            Some(Victim::Other) => self.kill(from),
            None => {}
        }
        self.directory.is_running()
    }

    fn crash_here(&mut self, step: &'static str) -> Option<Victim> {
        *self.report.steps.entry(step).or_default() += 1;
        self.step_count += 1;
        if self.is_calm && self.now_ms < self.times.calm_ms {
            self.report.order.push(step);
        }
        let crash = self.crash.filter(|crash| crash.step == self.step_count)?;
        self.report.crashed_at = Some(step);
        self.report.faults += 1;
        Some(crash.victim)
    }

    /// The directory's process dies, and the node with it that it is a part of.
    fn kill_directory(&mut self) {
        match self.directory_at {
            Some(id) => self.kill(id),
            None => self.directory_down(),
        }
    }

    /// A node's process dies. Its programs go on with the words that they have, and lose their locks.
    pub(super) fn kill(&mut self, id: NodeId) {
        let Some(died) = self.node(id).running.take() else { return };
        self.note(|| format!("node {} dies", id.0));
        self.node(id).stale_words = died.table.map(|table| table.words);
        self.node(id).stale_shares = died.copies.shared_pages();
        for index in 0..PROGRAMS {
            self.lose_node(id, index);
        }
        if self.directory_at == Some(id) && self.directory.is_running() {
            self.directory_down();
        }
        let back_ms = if self.random.percent(50) { 50 } else { 4000 };
        let at_ms = self.now_ms + self.random.between(1, back_ms);
        self.schedule(at_ms, Step::Start(id));
    }

    /// What becomes of what a program of a dead node did under its lock.
    fn lose_node(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let has_stored = self.random.percent(50);
        let (stamp, program) = (self.stamp, &mut self.node(id).programs[index]);
        if !matches!(program.doing, Doing::Holding | Doing::Locking { .. }) {
            return;
        }
        let (page, fence) = (program.page, program.fence);
        program.pending.clear();
        program.doing = Doing::Resting { until_ms: clock_ms + 100 };
        let flying = std::mem::take(&mut program.flying);
        let Some(going) = program.going.take() else { return };
        let Act::Write(value) = going.act else { return };
        let register = page * WORDS + going.word;
        let is_sent = match going.phase {
            // A store that was stopped where nobody can know of it any more is what the decision on locked regions leaves out.
            Phase::Inside => has_stored,
            Phase::Asking { .. } => true,
            Phase::Looking { .. } => false,
        };
        if !is_sent {
            return;
        }
        if going.phase == Phase::Inside
            && let Some(content) = self.node(id).memory.get_mut(&page)
        {
            content[going.word] = value;
            self.books[register].landed(value, stamp);
        }
        for (value, begin) in flying.into_iter().chain([(value, going.begin)]) {
            self.books[register].unknown(fence, begin, value);
        }
    }

    pub(super) fn fault(&mut self) {
        self.report.faults += 1;
        let id = NodeId(self.random.between(1, NODES + 1));
        match self.random.below(10) {
            0..3 => self.cut_off(),
            3..5 => {
                let is_long = self.random.percent(30) && self.now_ms + LONG_PAUSE_MS < self.times.calm_ms;
                let stop_ms = if is_long { LONG_PAUSE_MS } else { self.random.between(50, 6000) };
                self.report.long_pauses += u64::from(is_long);
                let until_ms = self.now_ms + stop_ms;
                self.note(|| format!("host {} stops until {until_ms} ms", id.0));
                let calm_ms = self.times.calm_ms;
                let node = self.node(id);
                node.stopped_until_ms = node.stopped_until_ms.max(until_ms).min(calm_ms);
            }
            5..8 => {
                let steps = self.random.below(FUSE_STEPS);
                if let Some(running) = &mut self.node(id).running {
                    running.fuse = Some(steps);
                }
            }
            8 => {
                let faults = [StoreFault::CrashBefore, StoreFault::CrashAfter, StoreFault::WriteFails];
                self.directory.arm(faults[self.random.below(3) as usize]);
            }
            _ => {
                let until_ms = (self.now_ms + self.random.between(100, 6000)).min(self.times.calm_ms);
                // A directory that is a part of a node stops with that.
                let stops = match self.directory_at {
                    Some(id) => &mut self.node(id).stopped_until_ms,
                    None => &mut self.directory_sleeps_ms,
                };
                *stops = until_ms.max(*stops);
            }
        }
    }

    /// Some nodes are cut off from the others and the directory, or those from it that is a part of one of them.
    fn cut_off(&mut self) {
        let until_ms = self.now_ms + self.random.between(300, 7000);
        let mask = self.random.between(1, (1 << NODES) - 1);
        let is_inside = |id: &NodeId| mask & 1 << (id.0 - 1) != 0;
        let mut inside: Vec<_> = Self::ids().filter(is_inside).map(Address::Node).collect();
        let has_directory = self.directory_at.is_some_and(|id| is_inside(&id));
        if has_directory {
            inside.push(Address::Directory);
        }
        let outward = match self.random.below(10) {
            0..2 => Some(true),
            2..4 => Some(false),
            _ => None,
        };
        self.note(|| format!("{inside:?} are cut off until {until_ms} ms, outward only: {outward:?}"));
        match outward {
            Some(is_outward) => {
                self.report.one_way_cuts |= 1 << mask;
                self.network.cut_one_way(inside, is_outward, until_ms);
            }
            None => {
                self.report.cuts |= 1 << mask;
                let away = if has_directory { !mask & ((1 << NODES) - 1) } else { mask };
                self.cut = Some((away, until_ms));
                self.network.cut(inside, until_ms);
            }
        }
    }

    /// No more faults: all come back.
    pub(super) fn end_faults(&mut self) {
        self.note(|| "all faults end".to_owned());
        self.network.calm();
        self.directory.disarm();
        self.directory_sleeps_ms = 0;
        self.cut = None;
        self.hurry_held();
        self.schedule(self.now_ms + 1, Step::StartDirectory);
        for id in Self::ids() {
            self.node(id).stopped_until_ms = 0;
            if let Some(running) = &mut self.node(id).running {
                running.fuse = None;
            }
            self.schedule(self.now_ms + 2, Step::Start(id));
        }
    }

    /// Whether programs of a dead life still use a page of it.
    pub(super) fn is_served_by_the_dead(&self, id: NodeId, page: usize) -> bool {
        let node = &self.nodes[id.0 as usize - 1];
        node.running.is_none()
            && matches!(node.stale_words, Some(words) if matches!(words[page % PAGES], Word::Here(_)))
    }
}
