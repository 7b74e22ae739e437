//! Programs of the simulation that make a write lock of a read lock, and give that up when it takes too long.
//!
//! Whoever is told that the read lock is held as before must have it, unless the lease with the lock home ends.

use super::BrokenLockRule;
use super::node::Echo;
use super::program::Doing;
use super::world::{SETTINGS, World, lock, lock_home};
use hinterland_directory::locks::{ClaimState, Fence, LockMode, LockRefusal, LockRequest, LockWish};
use hinterland_types::{NodeId, ObjectId, SessionId};

/// How long a program waits for an upgrade, at the most.
const UPGRADE_MS: u64 = 400;

impl World {
    /// Asks to become the writer.
    pub(super) fn begin_upgrade(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let until_ms = clock_ms + self.random.below(UPGRADE_MS);
        let Some(running) = &mut self.node(id).running else { return };
        let program = &mut running.programs[index];
        let (register, old) = (program.register, program.request);
        let (session, mode) = (SessionId(index as u64), LockMode::Write);
        let wish = LockWish { session, pid: 1, address: lock(register), object: ObjectId(1), bytes: 8, mode };
        let home = lock_home(register);
        let (request, ask) = running.holder.begin(wish, home, Some(old), true);
        running.programs[index].doing = Doing::Upgrading { request, until_ms };
        self.ask(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
    }

    /// It is asked whether the wish has got further; `is_leaving` once it was withdrawn.
    pub(super) fn upgrade(
        &mut self,
        id: NodeId,
        index: usize,
        (request, until_ms): (LockRequest, u64),
        is_leaving: bool,
    ) {
        let (clock_ms, broken) = (self.clock_ms(id), self.broken);
        let Some(running) = &mut self.node(id).running else { return };
        let is_over = clock_ms >= until_ms;
        match running.holder.state(request) {
            Some(ClaimState::Held { fence, .. }) => self.upgraded(id, index, request, fence),
            Some(ClaimState::Waiting) if !is_over => {}
            Some(ClaimState::Waiting) if is_leaving => self.leave(id, index, request, true),
            Some(ClaimState::Waiting) if broken == Some(BrokenLockRule::ReleasesUpgrades) => {
                self.leave(id, index, request, true);
                self.keep(id, index);
            }
            Some(ClaimState::Waiting) => {
                let home = lock_home(running.programs[index].register);
                let Some(ask) = running.holder.withdraw(request) else { return };
                let until_ms = clock_ms + SETTINGS.lease_ms;
                running.programs[index].doing = Doing::Withdrawing { request, until_ms };
                self.ask(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
            }
            Some(ClaimState::Refused(refusal)) => {
                self.leave(id, index, request, false);
                if refusal == LockRefusal::Busy {
                    self.keep(id, index);
                }
            }
            None => self.leave(id, index, request, false),
        }
    }

    fn upgraded(&mut self, id: NodeId, index: usize, request: LockRequest, fence: Fence) {
        self.report.upgraded += 1;
        let Some(running) = &mut self.node(id).running else { return };
        let program = &mut running.programs[index];
        (program.request, program.fence, program.mode) = (request, fence, LockMode::Write);
        (program.cached, program.kept, program.doing) = (None, None, Doing::Holding);
    }

    /// The wish is over for the program, which goes on with its read lock, if it has it yet.
    fn leave(&mut self, id: NodeId, index: usize, request: LockRequest, is_told: bool) {
        let (clock_ms, broken) = (self.clock_ms(id), self.broken);
        let Some(running) = &mut self.node(id).running else { return };
        let home = lock_home(running.programs[index].register);
        running.programs[index].doing = Doing::Holding;
        let ask = match broken {
            Some(BrokenLockRule::ReleasesUpgrades) => running.holder.release(request, true),
            _ => running.holder.take_back(request),
        };
        if let Some(ask) = ask
            && is_told
        {
            self.ask(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
        }
    }

    /// The program is told that its read lock is held as before.
    fn keep(&mut self, id: NodeId, index: usize) {
        let Some(running) = &mut self.node(id).running else { return };
        let program = &mut running.programs[index];
        let home = lock_home(program.register);
        let is_held = |state| matches!(state, Some(ClaimState::Held { until_ms, .. }) if until_ms > 0);
        if is_held(running.holder.state(program.request)) {
            program.kept = running.holder.term(home).map(|(term, _)| term);
            self.report.kept += 1;
        }
    }

    /// A program finds that it has its lock no more: whether that may be.
    pub(super) fn judge_loss(&mut self, id: NodeId, index: usize) {
        let Some(running) = &mut self.node(id).running else { return };
        let program = &running.programs[index];
        let term = running.holder.term(lock_home(program.register)).map(|(term, _)| term);
        if program.kept.is_some() && program.kept == term {
            let text = format!(
                "node {} was told that it holds register {} as before, and lost it within one lease",
                id.0, program.register
            );
            self.unkept.get_or_insert(text);
        }
    }
}
