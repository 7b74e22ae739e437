//! The lock home: who holds and who waits, in which order, under which fences.

use super::message::{
    Fence, LockAnswer, LockAsk, LockClaim, LockMode, LockRefusal, LockRequest, LockRow, LockWaiter,
};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a lock home is configured with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockSettings {
    /// Milliseconds for which a node that is not heard of keeps what it holds.
    pub lease_ms: u64,
    /// The longest lease in which somebody may still believe from lives before, in milliseconds.
    pub lease_before_ms: u64,
    /// Fences that are made durable at once.
    pub fence_step: u64,
    /// Most wishes of one node: all of them fit in the answer to a renewal.
    pub claims_per_node_max: u32,
    /// Most locks that nobody wants but whose fence a page home remembers.
    pub idle_max: usize,
}

impl Default for LockSettings {
    fn default() -> Self {
        Self {
            lease_ms: 3000,
            lease_before_ms: 0,
            fence_step: 1 << 16,
            claims_per_node_max: 16 << 10,
            idle_max: 64 << 10,
        }
    }
}

/// What the one who runs a lock home has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HomeAction {
    /// Make durable that fences below this one may have been given, then call [`LockHome::persisted`]. Until then it comes with each
    /// [`LockHome::tick`].
    Persist(Fence),
    /// Have a page home forget what it knows of a lock, then call [`LockHome::told`] with the same number.
    Tell(NodeId, GlobalAddress, u64),
    /// Something changed for a node's wishes: it may want to renew.
    Changed(NodeId),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    node: NodeId,
    request: LockRequest,
}

#[derive(Clone, Debug)]
struct Claim {
    key: Key,
    /// What lay at the address when it was asked for.
    object: ObjectId,
    session: SessionId,
    pid: u32,
    bytes: u64,
    mode: LockMode,
    replaces: Option<LockRequest>,
    /// What a granted upgrade has replaced, and the fence under which that was held: it is back if nobody has heard of the grant.
    before: Option<Box<(Claim, Fence)>>,
    since_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    holders: Vec<Claim>,
    queue: VecDeque<Claim>,
    /// Of the last grant.
    fence: Fence,
    /// A writer ended without saying that all had arrived: the next grant, also one to a reader, has a fence of its own.
    is_dirty: bool,
    /// Page homes that know a fence of it.
    informed: BTreeSet<NodeId>,
    /// Those of them that must forget it before the next grant, and the number of what they are told.
    telling: BTreeMap<NodeId, u64>,
}

#[derive(Clone, Debug)]
struct Member {
    life: u64,
    heard_ms: u64,
    claims: BTreeMap<LockRequest, GlobalAddress>,
    /// Wishes that ended lately, when and how, so that a late copy of the question does not bring them back.
    ended: BTreeMap<LockRequest, (u64, LockRefusal)>,
    /// Read locks that upgrades have replaced, as long as those are held.
    replaced: BTreeMap<LockRequest, GlobalAddress>,
}

/// Wishes of one node that ended lately and are remembered: programs that take and give back a lock all the time end thousands in a second.
/// What a late copy of an older question brings back, its node gives back when it hears of it.
const ENDED_MAX: usize = 64 << 10;

impl Member {
    fn note_end(&mut self, now_ms: u64, request: LockRequest, refusal: LockRefusal) {
        self.ended.insert(request, (now_ms, refusal));
        if self.ended.len() > ENDED_MAX {
            // A node counts its wishes upwards: this one is the oldest.
            self.ended.pop_first();
        }
    }
}

/// The locks of all addresses whose home a node is.
#[derive(Clone, Debug)]
pub struct LockHome {
    own: NodeId,
    settings: LockSettings,
    locks: BTreeMap<GlobalAddress, Lock>,
    members: BTreeMap<NodeId, Member>,
    next_fence: u64,
    durable: u64,
    asked: u64,
    tells: u64,
    /// Nothing is granted before: holders from a life before may still believe in what they hold.
    quiet_until_ms: u64,
    /// Whether what waits since then has to be looked at yet.
    is_quiet: bool,
    is_cut_off: bool,
    last_ms: u64,
    actions: Vec<HomeAction>,
}

impl LockHome {
    /// A lock home that knows of nobody. `given` is what was last made durable, none if there was no life before.
    pub fn new(own: NodeId, settings: LockSettings, given: Option<Fence>, now_ms: u64) -> Self {
        let next_fence = given.map_or(1, |fence| fence.0.max(1));
        let quiet_until_ms =
            if given.is_some() { now_ms + settings.lease_ms.max(settings.lease_before_ms) } else { now_ms };
        let mut home = Self {
            own,
            settings,
            locks: BTreeMap::new(),
            members: BTreeMap::new(),
            next_fence,
            durable: next_fence,
            asked: next_fence,
            tells: 0,
            quiet_until_ms,
            is_quiet: given.is_some(),
            is_cut_off: false,
            last_ms: now_ms,
            actions: Vec::new(),
        };
        home.reserve_fences();
        home
    }

    /// What has to be done since the last call.
    pub fn take_actions(&mut self) -> Vec<HomeAction> {
        std::mem::take(&mut self.actions)
    }

    /// Answers a node in one of its lives; a life is higher than every one before.
    pub fn answer(&mut self, now_ms: u64, node: NodeId, life: u64, ask: &LockAsk) -> LockAnswer {
        self.pass(now_ms);
        if !self.hear(node, life) {
            return LockAnswer::Refused(LockRefusal::Stranger);
        }
        match ask {
            LockAsk::Acquire { request, session, pid, address, object, bytes, mode, replaces, wait } => {
                let key = Key { node, request: *request };
                let (mode, replaces, since_ms) = (*mode, *replaces, self.last_ms);
                let (object, session, pid, bytes) = (*object, *session, *pid, *bytes);
                let claim =
                    Claim { key, object, session, pid, bytes, mode, replaces, before: None, since_ms };
                self.acquire(*address, claim, *wait)
            }
            LockAsk::Release { request, clean } => {
                self.release(Key { node, request: *request }, *clean);
                LockAnswer::Released
            }
            LockAsk::Renew => LockAnswer::Claims(self.claims(node)),
            LockAsk::Check { address, fence } => self.check(node, *address, *fence),
            LockAsk::List => LockAnswer::Rows(self.rows()),
            LockAsk::Withdraw { request } => self.withdraw(Key { node, request: *request }),
            LockAsk::TakeBack { request } => self.take_back(Key { node, request: *request }),
        }
    }

    /// A page home has forgotten the lock.
    pub fn told(&mut self, now_ms: u64, node: NodeId, address: GlobalAddress, number: u64) {
        self.pass(now_ms);
        if let Some(lock) = self.locks.get_mut(&address)
            && lock.telling.get(&node) == Some(&number)
        {
            lock.telling.remove(&node);
            lock.informed.remove(&node);
            self.pump(address);
        }
    }

    /// Page homes are told again: what was sent to them may be lost.
    pub fn tell_again(&mut self) {
        for (address, lock) in &self.locks {
            let tell = |(node, number): (&NodeId, &u64)| HomeAction::Tell(*node, *address, *number);
            self.actions.extend(lock.telling.iter().map(tell));
        }
    }

    /// Fences below this one may be given.
    pub fn persisted(&mut self, fence: Fence) {
        self.durable = self.durable.max(fence.0);
        self.pump_all();
    }

    /// Whether it may grant: not while its own lease is over.
    pub fn set_cut_off(&mut self, is_cut_off: bool) {
        if self.is_cut_off != is_cut_off {
            self.is_cut_off = is_cut_off;
            self.pump_all();
        }
    }

    /// Lets time pass: leases run out. At most a quarter of a lease should lie between two calls.
    pub fn tick(&mut self, now_ms: u64) {
        self.pass(now_ms);
        let lease_ms = self.settings.lease_ms;
        let is_over = |(node, member): (&NodeId, &Member)| {
            (*node != self.own && member.heard_ms + lease_ms <= self.last_ms).then_some(*node)
        };
        let late: Vec<_> = self.members.iter().filter_map(is_over).collect();
        self.drop_members(&late.into_iter().collect());
        // What could not be made durable, for want of room on a disk say, is tried again: without it nothing is granted some day.
        let mut is_due = self.asked > self.durable;
        if self.is_quiet && self.last_ms >= self.quiet_until_ms {
            self.is_quiet = false;
            if self.settings.lease_before_ms > lease_ms {
                // Nobody believes in the longer lease any more.
                self.settings.lease_before_ms = 0;
                is_due = true;
            }
            self.pump_all();
        }
        if is_due {
            self.actions.push(HomeAction::Persist(Fence(self.asked)));
        }
        let keep_ms = 40 * lease_ms;
        for member in self.members.values_mut() {
            member.ended.retain(|_, (ended_ms, _)| *ended_ms + keep_ms > now_ms);
        }
    }

    /// How long a lease is, in milliseconds.
    pub const fn lease_ms(&self) -> u64 {
        self.settings.lease_ms
    }

    /// The longest lease in which somebody may believe, in milliseconds: it is made durable with the fence.
    pub fn lease_owed_ms(&self) -> u64 {
        self.settings.lease_ms.max(self.settings.lease_before_ms)
    }

    /// Whether every rule that must always hold does; for tests.
    ///
    /// # Errors
    /// The rule that does not.
    pub fn verify(&self) -> Result<(), String> {
        for (address, lock) in &self.locks {
            let writers = lock.holders.iter().filter(|claim| claim.mode == LockMode::Write).count();
            if writers > 1 || (writers == 1 && lock.holders.len() > 1) {
                return Err(format!("{address} has a writer and somebody else"));
            }
            if lock.fence.0 >= self.next_fence {
                return Err(format!("{address} has a fence that was not given"));
            }
            if !lock.telling.keys().all(|node| lock.informed.contains(node)) {
                return Err(format!("{address} tells homes that know nothing"));
            }
            for claim in lock.holders.iter().chain(&lock.queue) {
                let known = self.members.get(&claim.key.node).and_then(|m| m.claims.get(&claim.key.request));
                if known != Some(address) {
                    return Err(format!("{address} has a claim that its node has not"));
                }
            }
        }
        if self.next_fence > self.durable {
            return Err("a fence was given before it was durable".to_owned());
        }
        Ok(())
    }

    /// Time never goes back, and what the home slept through counts for nobody's lease.
    fn pass(&mut self, now_ms: u64) {
        let now_ms = now_ms.max(self.last_ms);
        let gap_ms = now_ms - self.last_ms;
        if gap_ms > self.settings.lease_ms / 2 {
            for member in self.members.values_mut() {
                member.heard_ms += gap_ms;
            }
        }
        self.last_ms = now_ms;
    }

    /// Notes that a node lives; false if this life of it is over.
    fn hear(&mut self, node: NodeId, life: u64) -> bool {
        if let Some(known) = self.members.get(&node).map(|member| member.life) {
            if known > life {
                return false;
            }
            if known < life {
                self.drop_members(&BTreeSet::from([node]));
            }
        }
        let now_ms = self.last_ms;
        let fresh = Member {
            life,
            heard_ms: now_ms,
            claims: BTreeMap::new(),
            ended: BTreeMap::new(),
            replaced: BTreeMap::new(),
        };
        let member = self.members.entry(node).or_insert(fresh);
        member.heard_ms = member.heard_ms.max(now_ms);
        true
    }

    fn acquire(&mut self, address: GlobalAddress, claim: Claim, wait: bool) -> LockAnswer {
        let key = claim.key;
        let Some(member) = self.members.get(&key.node) else {
            return LockAnswer::Refused(LockRefusal::Stranger);
        };
        if member.claims.contains_key(&key.request) {
            return self.state_of(key, address);
        }
        if let Some((_, refusal)) = member.ended.get(&key.request) {
            return LockAnswer::Refused(*refusal);
        }
        self.end_of_others(address, claim.object);
        if let Err(refusal) = self.may_want(address, &claim) {
            self.note_end(key, refusal);
            return LockAnswer::Refused(refusal);
        }
        let lock = self.locks.entry(address).or_default();
        if claim.replaces.is_some() {
            lock.queue.push_front(claim);
        } else {
            lock.queue.push_back(claim);
        }
        if let Some(member) = self.members.get_mut(&key.node) {
            member.claims.insert(key.request, address);
        }
        self.pump(address);
        match self.state_of(key, address) {
            LockAnswer::Waiting if !wait => {
                self.end(key, true, LockRefusal::Busy);
                LockAnswer::Refused(LockRefusal::Busy)
            }
            answer => answer,
        }
    }

    /// Ends what is held and wanted at an address of what lay there before: it was removed, and nothing can be done under such a lock. What was
    /// written under it may still be on its way.
    fn end_of_others(&mut self, address: GlobalAddress, object: ObjectId) {
        let Some(lock) = self.locks.get(&address) else { return };
        // Those that wait go first, so that none of them gets what the others had.
        let claims = lock.queue.iter().chain(&lock.holders);
        let others: Vec<Key> = claims.filter(|claim| claim.object != object).map(|claim| claim.key).collect();
        for key in others {
            self.actions.push(HomeAction::Changed(key.node));
            self.end(key, false, LockRefusal::Elsewhere);
        }
    }

    fn may_want(&self, address: GlobalAddress, claim: &Claim) -> Result<(), LockRefusal> {
        if self.is_cut_off {
            return Err(LockRefusal::CutOff);
        }
        let most = self.settings.claims_per_node_max;
        if self.members.get(&claim.key.node).is_some_and(|member| member.claims.len() >= most as usize) {
            return Err(LockRefusal::Full(most));
        }
        self.locks.get(&address).map_or_else(|| Lock::default().admits(claim), |lock| lock.admits(claim))
    }

    fn state_of(&self, key: Key, address: GlobalAddress) -> LockAnswer {
        match self.locks.get(&address).and_then(|lock| lock.fence_of(key)) {
            Some(Some(fence)) => LockAnswer::Granted { fence },
            Some(None) => LockAnswer::Waiting,
            None => LockAnswer::Refused(LockRefusal::Lost),
        }
    }

    /// Takes back a wish that waits. What was granted is not taken back: with an upgrade, its read lock would go too.
    fn withdraw(&mut self, key: Key) -> LockAnswer {
        let address = self.members.get(&key.node).and_then(|member| member.claims.get(&key.request));
        if let Some(address) = address
            && let granted @ LockAnswer::Granted { .. } = self.state_of(key, *address)
        {
            return granted;
        }
        self.end(key, true, LockRefusal::Busy);
        LockAnswer::Released
    }

    /// An upgrade is given up, and nobody has heard that it was granted, if it was: then its read lock is held as before, under the same fence, as no
    /// access was made under the other one.
    fn take_back(&mut self, key: Key) -> LockAnswer {
        let member = self.members.get_mut(&key.node);
        let granted = member.and_then(|member| {
            let address = *member.claims.get(&key.request)?;
            let lock = self.locks.get_mut(&address)?;
            let holder = lock.holders.iter_mut().find(|claim| claim.key == key)?;
            let (old, fence) = *holder.before.take()?;
            member.replaced.remove(&old.key.request);
            member.ended.remove(&old.key.request);
            member.claims.insert(old.key.request, address);
            member.claims.remove(&key.request);
            (*holder, lock.fence) = (old, fence);
            Some(address)
        });
        match granted {
            Some(address) => {
                self.note_end(key, LockRefusal::Busy);
                self.pump(address);
            }
            None => self.end(key, true, LockRefusal::Busy),
        }
        LockAnswer::Released
    }

    fn release(&mut self, key: Key, clean: bool) {
        self.end(key, clean, LockRefusal::Lost);
    }

    /// A wish is over, and a late copy of the question is refused with this.
    fn end(&mut self, key: Key, clean: bool, refusal: LockRefusal) {
        self.note_end(key, refusal);
        let Some(member) = self.members.get_mut(&key.node) else { return };
        if let Some(address) = member.claims.remove(&key.request) {
            self.take_from(address, key, clean);
        } else if let Some(address) = member.replaced.remove(&key.request)
            && let Some(lock) = self.locks.get_mut(&address)
        {
            // It does not come back with the end of the upgrade that has replaced it.
            let is_it = |before: &(Claim, Fence)| before.0.key == key;
            lock.holders.iter_mut().for_each(|claim| drop(claim.before.take_if(|before| is_it(before))));
        }
    }

    fn note_end(&mut self, key: Key, refusal: LockRefusal) {
        let now_ms = self.last_ms;
        if let Some(member) = self.members.get_mut(&key.node) {
            member.note_end(now_ms, key.request, refusal);
        }
    }

    fn take_from(&mut self, address: GlobalAddress, key: Key, clean: bool) {
        let Some(lock) = self.locks.get_mut(&address) else { return };
        lock.queue.retain(|claim| claim.key != key);
        let is_writer = |claim: &Claim| claim.key == key && claim.mode == LockMode::Write;
        let was_writing = lock.holders.iter().any(is_writer);
        for (old, _) in
            lock.holders.extract_if(.., |claim| claim.key == key).filter_map(|claim| Some(*claim.before?))
        {
            self.members.get_mut(&key.node).map(|member| member.replaced.remove(&old.key.request));
        }
        if was_writing && !clean {
            lock.is_dirty = true;
            self.tell(address);
        }
        // Whose read lock is gone has nothing to upgrade.
        let orphan = self.locks.get(&address).and_then(|lock| {
            lock.queue
                .iter()
                .find(|claim| claim.key.node == key.node && claim.replaces == Some(key.request))
                .map(|claim| claim.key)
        });
        if let Some(orphan) = orphan {
            self.actions.push(HomeAction::Changed(orphan.node));
            self.release(orphan, true);
        }
        self.pump(address);
    }

    /// Has every page home that knows the lock forget it before anybody gets it.
    fn tell(&mut self, address: GlobalAddress) {
        let Some(lock) = self.locks.get_mut(&address) else { return };
        self.tells += 1;
        let number = self.tells;
        lock.telling = lock.informed.iter().map(|node| (*node, number)).collect();
        self.actions.extend(lock.informed.iter().map(|node| HomeAction::Tell(*node, address, number)));
    }

    fn check(&mut self, node: NodeId, address: GlobalAddress, fence: Fence) -> LockAnswer {
        if self.is_cut_off {
            return LockAnswer::Refused(LockRefusal::CutOff);
        }
        let Some(lock) = self.locks.get_mut(&address) else {
            return LockAnswer::Refused(LockRefusal::Lost);
        };
        if lock.is_dirty || lock.fence != fence || lock.holders.is_empty() {
            return LockAnswer::Refused(LockRefusal::Lost);
        }
        lock.informed.insert(node);
        LockAnswer::Current
    }

    fn claims(&self, node: NodeId) -> Vec<LockClaim> {
        let Some(member) = self.members.get(&node) else { return Vec::new() };
        let claim = |(request, address): (&LockRequest, &GlobalAddress)| {
            let fence = self.locks.get(address)?.fence_of(Key { node, request: *request })?;
            Some(LockClaim { request: *request, fence })
        };
        member.claims.iter().filter_map(claim).collect()
    }

    /// What is left of a node's lease.
    fn left_ms(&self, node: NodeId) -> u64 {
        let heard_ms = self.members.get(&node).map_or(0, |member| member.heard_ms);
        if node == self.own {
            return self.settings.lease_ms;
        }
        (heard_ms + self.settings.lease_ms).saturating_sub(self.last_ms)
    }

    fn rows(&self) -> Vec<LockRow> {
        /// So many fit in a message.
        const ROWS_MAX: usize = 4096;
        const WAITERS_MAX: usize = 16;
        let person = |claim: &Claim| LockWaiter {
            node: claim.key.node,
            session: claim.session,
            pid: claim.pid,
            mode: claim.mode,
            bytes: claim.bytes,
            for_ms: self.last_ms.saturating_sub(claim.since_ms),
            left_ms: self.left_ms(claim.key.node),
        };
        let wanted = self.locks.iter().filter(|(_, lock)| {
            !(lock.holders.is_empty() && lock.queue.is_empty() && lock.telling.is_empty())
        });
        wanted
            .take(ROWS_MAX)
            .map(|(address, lock)| LockRow {
                address: *address,
                fence: lock.fence,
                holders: lock.holders.iter().take(WAITERS_MAX).map(person).collect(),
                waiters: lock.queue.iter().take(WAITERS_MAX).map(person).collect(),
                // At most as many as nodes.
                telling: lock.telling.len() as u32,
            })
            .collect()
    }

    /// The leases of nodes are over, or one lives anew: what they held is free, and what they knew as page homes counts no
    /// more. All of it goes before anything is granted, so that nothing goes to another wish of theirs.
    fn drop_members(&mut self, gone: &BTreeSet<NodeId>) {
        if gone.is_empty() {
            return;
        }
        gone.iter().for_each(|node| drop(self.members.remove(node)));
        let is_gone = |claim: &Claim| gone.contains(&claim.key.node);
        let mut changed = Vec::new();
        for (address, lock) in &mut self.locks {
            let was_writing =
                lock.holders.iter().any(|claim| is_gone(claim) && claim.mode == LockMode::Write);
            let before = (lock.holders.len(), lock.queue.len(), lock.informed.len());
            lock.queue.retain(|claim| !is_gone(claim));
            lock.holders.retain(|claim| !is_gone(claim));
            lock.informed.retain(|node| !gone.contains(node));
            lock.telling.retain(|node, _| !gone.contains(node));
            if before != (lock.holders.len(), lock.queue.len(), lock.informed.len()) {
                changed.push((*address, was_writing));
            }
        }
        for (address, was_writing) in changed {
            if was_writing {
                if let Some(lock) = self.locks.get_mut(&address) {
                    lock.is_dirty = true;
                }
                self.tell(address);
            }
            self.pump(address);
        }
    }

    fn pump_all(&mut self) {
        let addresses: Vec<_> = self.locks.keys().copied().collect();
        for address in addresses {
            self.pump(address);
        }
    }

    /// Grants what can be granted, in the order of the queue.
    fn pump(&mut self, address: GlobalAddress) {
        while let Some(lock) = self.locks.get(&address) {
            let is_free = lock.queue.front().is_some_and(|claim| lock.is_free_for(claim));
            if !is_free || self.is_cut_off || self.last_ms < self.quiet_until_ms || !lock.telling.is_empty() {
                break;
            }
            let needs_fence = lock.needs_fence();
            let fence = match needs_fence {
                true => match self.take_fence() {
                    Some(fence) => fence,
                    None => break,
                },
                false => lock.fence,
            };
            let now_ms = self.last_ms;
            let Some(lock) = self.locks.get_mut(&address) else { break };
            let Some(mut claim) = lock.queue.pop_front() else { break };
            let fence_before = std::mem::replace(&mut lock.fence, fence);
            lock.is_dirty = false;
            claim.since_ms = now_ms;
            let replaced = claim.replaces.take();
            let node = claim.key.node;
            if let Some(request) = replaced {
                let mut old = lock.holders.extract_if(.., |other| other.key == Key { node, request });
                claim.before = old.next().map(|old| Box::new((old, fence_before)));
            }
            lock.holders.push(claim);
            self.actions.push(HomeAction::Changed(node));
            if let (Some(request), Some(member)) = (replaced, self.members.get_mut(&node)) {
                member.claims.remove(&request);
                member.replaced.insert(request, address);
                member.note_end(now_ms, request, LockRefusal::Lost);
            }
        }
        self.forget_if_idle(address);
    }

    fn take_fence(&mut self) -> Option<Fence> {
        let fence = self.next_fence;
        if fence >= self.durable {
            self.reserve_fences();
            return None;
        }
        self.next_fence += 1;
        if self.durable - self.next_fence <= self.settings.fence_step / 2 {
            self.reserve_fences();
        }
        Some(Fence(fence))
    }

    /// Asks for more durable fences, once for each step.
    fn reserve_fences(&mut self) {
        let wanted = self.next_fence + self.settings.fence_step;
        if self.asked <= self.durable {
            self.asked = wanted;
            self.actions.push(HomeAction::Persist(Fence(wanted)));
        }
    }

    fn forget_if_idle(&mut self, address: GlobalAddress) {
        let Some(lock) = self.locks.get(&address) else { return };
        if !(lock.holders.is_empty() && lock.queue.is_empty()) {
            return;
        }
        if lock.informed.is_empty() {
            self.locks.remove(&address);
        } else if lock.telling.is_empty() && self.locks.len() > self.settings.idle_max {
            // Too many to remember who remembers: this one's page homes forget it, and then so does this home.
            self.tell(address);
        }
    }
}

impl Lock {
    /// Whether a wish makes sense beside those that there are.
    fn admits(&self, claim: &Claim) -> Result<(), LockRefusal> {
        let is_own = |other: &&Claim| other.key.node == claim.key.node && other.session == claim.session;
        let Some(replaced) = claim.replaces else {
            let has_one = self.holders.iter().chain(&self.queue).any(|other| is_own(&other));
            return if has_one { Err(LockRefusal::Held) } else { Ok(()) };
        };
        if claim.mode != LockMode::Write
            || !self.holders.iter().any(|other| is_own(&other) && other.key.request == replaced)
        {
            return Err(LockRefusal::NotHeld);
        }
        if self.queue.iter().any(|other| other.replaces.is_some()) {
            return Err(LockRefusal::UpgradeConflict);
        }
        Ok(())
    }

    fn is_free_for(&self, claim: &Claim) -> bool {
        let replaced = claim.replaces.map(|request| Key { node: claim.key.node, request });
        match claim.mode {
            LockMode::Read => self.holders.iter().all(|other| other.mode == LockMode::Read),
            LockMode::Write => self.holders.iter().all(|other| Some(other.key) == replaced),
        }
    }

    /// Whether the grant that comes next has a fence of its own.
    fn needs_fence(&self) -> bool {
        let is_write = self.queue.front().is_some_and(|claim| claim.mode == LockMode::Write);
        is_write || self.is_dirty || self.fence == Fence(0)
    }

    /// Of a wish that it knows: its fence, or none while it waits.
    fn fence_of(&self, key: Key) -> Option<Option<Fence>> {
        if self.holders.iter().any(|claim| claim.key == key) {
            return Some(Some(self.fence));
        }
        self.queue.iter().any(|claim| claim.key == key).then_some(None)
    }
}
