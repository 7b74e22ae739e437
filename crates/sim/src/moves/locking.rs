//! Locks on pages: the real lock home, holder and page home of each node, as in the simulation of locks alone.

use super::node::{Echo, Letter, Outcome, lock_home};
use super::program::Doing;
use super::world::{LOCKS, NODES, PAGES, World};
use hinterland_directory::locks::{ClaimState, HomeAction, LockAnswer, LockAsk, LockMode, LockWish};
use hinterland_types::{NodeId, ObjectId, SessionId};

/// How long a program waits for a lock.
const LOCK_MS: u64 = 3000;

impl World {
    pub(super) fn ask_lock(&mut self, from: NodeId, to: NodeId, ask: LockAsk, echo: Echo) {
        let life = self.node(from).lives;
        self.post(from, to, Letter::LockAsk { life, ask, echo });
    }

    /// Does what a node's lock home wants done; the node may die between any two of them.
    pub(super) fn act(&mut self, id: NodeId) {
        let is_cut_off = !self.holds_lease(id);
        loop {
            let Some(running) = &mut self.node(id).running else { return };
            running.home.set_cut_off(is_cut_off);
            let actions = running.home.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    HomeAction::Persist(fence) => {
                        if !self.reach(id, None, "fence-to-keep") {
                            return;
                        }
                        self.node(id).durable = Some(fence);
                        if !self.reach(id, None, "fence-kept") {
                            return;
                        }
                        if let Some(running) = &mut self.node(id).running {
                            running.home.persisted(fence);
                        }
                    }
                    HomeAction::Tell(node, address, number) => {
                        let page = (0..PAGES).find(|page| self.lock(*page) == address).unwrap_or_default();
                        let life = self.node(id).lives;
                        if !self.reach(id, Some(node), "page-home-told") {
                            return;
                        }
                        self.post(id, node, Letter::Tell { page, number, life });
                    }
                    HomeAction::Changed(_) => {}
                }
            }
        }
    }

    pub(super) fn lock_asked(&mut self, id: NodeId, from: NodeId, life: u64, ask: &LockAsk, echo: Echo) {
        let (clock_ms, own_life) = (self.clock_ms(id), self.node(id).lives);
        let is_cut_off = !self.holds_lease(id);
        let Some(running) = &mut self.node(id).running else { return };
        running.home.set_cut_off(is_cut_off);
        let answer = running.home.answer(clock_ms, from, life, ask);
        self.act(id);
        let step = match answer {
            LockAnswer::Granted { .. } => Some("lock-granted"),
            LockAnswer::Current => Some("fence-confirmed"),
            _ => None,
        };
        if step.is_some_and(|step| !self.reach(id, Some(from), step)) {
            return;
        }
        if self.node(id).running.is_some() && self.node(from).lives == life {
            self.post(id, from, Letter::LockAnswer { life: own_life, answer, echo });
        }
    }

    pub(super) fn lock_answered(
        &mut self,
        id: NodeId,
        from: NodeId,
        life: u64,
        answer: &LockAnswer,
        echo: Echo,
    ) {
        let clock_ms = self.clock_ms(id);
        let Some(running) = &mut self.node(id).running else { return };
        match echo {
            Echo::Wish { request, sent_ms } => {
                running.holder.answered(request, (from, life), (sent_ms, clock_ms), answer);
            }
            Echo::Renewal { number, sent_ms } => {
                let LockAnswer::Claims(claims) = answer else { return };
                let asks = running.holder.renewed((from, life), number, (sent_ms, clock_ms), claims);
                for (request, ask) in asks {
                    self.ask_lock(id, from, ask, Echo::Wish { request, sent_ms: clock_ms });
                }
            }
            Echo::Check { number, sent_ms } => {
                let is_heard = running.holder.heard(from, life, sent_ms, clock_ms);
                let term = running.holder.term(from).map_or(0, |(term, _)| term);
                let Some(access) = running.pending.remove(&number) else { return };
                let address = self.lock(access.page);
                let Some(running) = &mut self.node(id).running else { return };
                match (answer, access.fence) {
                    (LockAnswer::Current, Some(fence)) => {
                        if is_heard {
                            running.fences.learned(number, from, address, fence, term);
                        } else {
                            running.fences.gave_up(number, address);
                        }
                        self.access(id, access);
                    }
                    _ => {
                        running.fences.gave_up(number, address);
                        self.post(
                            id,
                            access.from,
                            Letter::Done { access: access.number, outcome: Outcome::Old },
                        );
                    }
                }
            }
        }
    }

    pub(super) fn forget_lock(&mut self, id: NodeId, from: NodeId, (page, number, life): (usize, u64, u64)) {
        let address = self.lock(page);
        if let Some(running) = &mut self.node(id).running {
            running.fences.forget(address);
        }
        if self.reach(id, Some(from), "lock-forgotten") {
            self.post(id, from, Letter::Told { page, number, life });
        }
    }

    pub(super) fn lock_forgotten(
        &mut self,
        id: NodeId,
        from: NodeId,
        (page, number, life): (usize, u64, u64),
    ) {
        let (clock_ms, address) = (self.clock_ms(id), self.lock(page));
        if self.node(id).lives != life {
            return;
        }
        if let Some(running) = &mut self.node(id).running {
            running.home.told(clock_ms, from, address, number);
        }
        self.act(id);
    }

    /// Leases of locks run out, and are renewed.
    pub(super) fn wake_locks(&mut self, id: NodeId) {
        let clock_ms = self.clock_ms(id);
        if let Some(running) = &mut self.node(id).running {
            running.home.tick(clock_ms);
            running.home.tell_again();
        }
        self.act(id);
        let Some(running) = &mut self.node(id).running else { return };
        let is_urgent = running.holder.homes().into_iter().any(|home| running.holder.waits_for(home));
        let pause_ms = if is_urgent { 60 } else { LOCKS.lease_ms / 4 };
        if clock_ms < running.renewed_ms + pause_ms {
            return;
        }
        running.renewed_ms = clock_ms;
        for home in (1..=NODES).map(NodeId) {
            let Some(running) = &mut self.node(id).running else { return };
            let number = running.holder.renewal(home);
            self.ask_lock(id, home, LockAsk::Renew, Echo::Renewal { number, sent_ms: clock_ms });
        }
    }

    /// Wishes for the lock of a page.
    pub(super) fn begin_lock(&mut self, id: NodeId, index: usize, page: usize) {
        let (clock_ms, address) = (self.clock_ms(id), self.lock(page));
        let mode = if self.random.percent(40) { LockMode::Read } else { LockMode::Write };
        if !self.reach(id, None, "lock-wished") {
            return;
        }
        let node = self.node(id);
        let Some(running) = &mut node.running else { return };
        let wish = LockWish {
            session: SessionId(index as u64),
            pid: 1,
            address,
            object: ObjectId(1),
            bytes: 8,
            mode,
        };
        let home = lock_home(page);
        let (request, ask) = running.holder.begin(wish, home, None, true);
        let program = &mut node.programs[index];
        (program.page, program.mode, program.request, program.is_clean) = (page, mode, request, true);
        program.doing = Doing::Locking { until_ms: clock_ms + LOCK_MS };
        self.ask_lock(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
    }

    /// A program waits for its lock.
    pub(super) fn locking(&mut self, id: NodeId, index: usize, until_ms: u64) {
        let clock_ms = self.clock_ms(id);
        let node = self.node(id);
        let (request, page) = (node.programs[index].request, node.programs[index].page);
        match node.running.as_ref().and_then(|running| running.holder.state(request)) {
            Some(ClaimState::Held { fence, .. }) => {
                // A program of this host may be in a store under an older fence.
                if self.must_wait(id, page, fence) {
                    return;
                }
                let (left, now_ms) = (self.random.between(1, 6), self.now_ms);
                self.last_locked[id.0 as usize - 1] = now_ms;
                if !self.reach(id, Some(lock_home(page)), "lock-held") {
                    return;
                }
                let program = &mut self.node(id).programs[index];
                (program.fence, program.left, program.doing) = (fence, left, Doing::Holding);
            }
            Some(ClaimState::Waiting) if clock_ms < until_ms => {}
            _ => self.unlock(id, index),
        }
    }

    /// Gives a lock, or the wish for one, back.
    pub(super) fn unlock(&mut self, id: NodeId, index: usize) {
        let clock_ms = self.clock_ms(id);
        let rest_ms = self.random.below(300);
        let node = self.node(id);
        let program = &mut node.programs[index];
        let (request, is_clean) = (program.request, program.is_clean);
        // What was never sent never happens.
        program.pending.clear();
        program.doing = Doing::Resting { until_ms: clock_ms + rest_ms };
        let Some(running) = &mut node.running else { return };
        let Some((home, _)) = running.holder.place(request) else { return };
        if !self.reach(id, Some(home), "lock-given-back") {
            return;
        }
        let Some(running) = &mut self.node(id).running else { return };
        if let Some(ask) = running.holder.release(request, is_clean) {
            self.ask_lock(id, home, ask, Echo::Wish { request, sent_ms: clock_ms });
        }
    }
}
