//! Locks across racks: this node as the home of some, as the asker for its programs, and as a home of pages.
//!
//! The rules are those of [`hinterland_directory::locks`]; here are the clock, the threads, the messages and the disk. A thread looks
//! at the clock for all of it. Each lock home that something is wanted of has a thread that sends it, one message after the
//! other, so that a home that hangs holds up nobody else.

mod gate;
mod guards;
mod kept;
mod leaving;
mod link;
mod list;
mod turns;

use crate::core::Core;
use crate::fault_point;
use crate::refused::{Refused, errno};
use gate::Gates;
use guards::Guards;
use hinterland_directory::locks::{
    ClaimState, HomeAction, LockAnswer, LockAsk, LockHolder, LockHome, LockMode, LockRefusal, LockRequest,
    LockSettings, LockWish,
};
use hinterland_directory::{Command, HomeInfo, ObjectInfo, Reply as DirectoryReply, spread};
use hinterland_os::{clock, process};
use hinterland_proto::control::Reply;
use hinterland_types::{GlobalAddress, NodeId, ObjectId, PageNumber, SessionId};
pub use kept::KeptFences;
use link::{Links, Out};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a request that waits looks whether its client is still there.
const CLIENT_PAUSE: Duration = Duration::from_millis(100);
/// How long it is believed where the lock of an address is kept.
const PLACE_BELIEF: Duration = Duration::from_secs(1);
/// Nodes that are asked for a lock: the one that was believed to keep it, and the one that the directory names then.
const PLACE_TRIES: usize = 2;
/// Pages whose lock homes are remembered.
const PLACES_MAX: usize = 4096;

/// What a program wants.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Its session.
    pub session: SessionId,
    /// Its process; 0 if that is not known.
    pub pid: u32,
    /// On what.
    pub address: GlobalAddress,
    /// Length of a guard's range, else 0.
    pub bytes: u64,
    /// How.
    pub mode: LockMode,
    /// Whether a read lock becomes it.
    pub upgrade: bool,
    /// Whether to stand in the queue.
    pub queue: bool,
    /// Whether to stay there when the wait is over.
    pub stay: bool,
}

/// Where a lock is kept.
#[derive(Clone, Debug)]
struct Place {
    object: ObjectId,
    home: NodeId,
    address: String,
    since: Instant,
}

/// All that a node has to do with locks.
pub struct Locks {
    own: NodeId,
    lease_ms: u64,
    kept: KeptFences,
    home: Mutex<LockHome>,
    wants: Mutex<Wants>,
    /// A wish has got further.
    changed: Condvar,
    gates: Gates,
    guards: Guards,
    places: Mutex<HashMap<PageNumber, Place>>,
    links: Links,
    /// It was said that fences cannot be kept; they are tried to be kept again and again.
    is_unkept: AtomicBool,
    is_stopping: AtomicBool,
}

struct Wants {
    holder: LockHolder,
    /// The wish of a session for an address.
    requests: HashMap<(SessionId, GlobalAddress), LockRequest>,
    /// Wishes that stay in the queue between two questions of their program, which has not heard yet what came of them.
    unheard: HashSet<LockRequest>,
    /// Upgrades that are taken back, and until when the lock home's word is waited for.
    withdrawn: HashMap<LockRequest, Instant>,
    /// Wishes that a thread is busy with.
    busy: HashSet<(SessionId, GlobalAddress)>,
    /// Threads that wait for one of those.
    for_turns: usize,
}

impl Locks {
    /// Nothing is held; what `kept` says was given before is never given again.
    ///
    /// # Errors
    /// [`std::io::Error`] if a new life cannot be noted on the disk.
    pub fn new(own: NodeId, lease: Duration, kept: KeptFences) -> std::io::Result<Self> {
        // A lease is seconds: the cast loses nothing.
        let lease_ms = (lease.as_millis() as u64).max(8);
        let lease_before_ms = kept.lease_before_ms();
        let settings = LockSettings { lease_ms, lease_before_ms, ..LockSettings::default() };
        let mut home = LockHome::new(own, settings, kept.given(), now_ms());
        for action in home.take_actions() {
            if let HomeAction::Persist(fence) = action {
                kept.keep(fence, home.lease_owed_ms())?;
                home.persisted(fence);
            }
        }
        Ok(Self {
            own,
            lease_ms,
            kept,
            home: Mutex::new(home),
            wants: Mutex::new(Wants {
                holder: LockHolder::new(lease_ms),
                requests: HashMap::new(),
                unheard: HashSet::new(),
                withdrawn: HashMap::new(),
                busy: HashSet::new(),
                for_turns: 0,
            }),
            changed: Condvar::new(),
            gates: Gates::default(),
            guards: Guards::default(),
            places: Mutex::default(),
            links: Links::default(),
            is_unkept: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Looks at the clock from here on; the thread ends with [`stop`](Self::stop).
    ///
    /// # Errors
    /// [`Refused`] if no thread can be started.
    pub fn start(core: &Arc<Core>) -> Result<JoinHandle<()>, Refused> {
        let core = Arc::clone(core);
        std::thread::Builder::new()
            .name("locks".to_owned())
            .spawn(move || core.locks.keep_time(&core))
            .map_err(|error| Refused::new(errno::EIO, error.to_string()))
    }

    /// Ends its threads.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.links.wake_all();
        self.changed.notify_all();
    }

    /// Takes a lock, waiting up to `wait_ms` milliseconds, but no longer than `is_wanted`: a client that has died must not keep
    /// its session, and with it other locks, for as long as it meant to wait. Gives `Locked` or, to one who stays in the queue or who
    /// has to ask again until an upgrade is taken back, `LockWaiting`.
    ///
    /// # Errors
    /// [`Refused`] with `ETIMEDOUT`, or what the lock home said.
    pub fn lock(
        &self,
        core: &Core,
        wish: &Wish,
        wait_ms: u32,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Reply, Refused> {
        let deadline = Instant::now() + Duration::from_millis(u64::from(wait_ms));
        let Some(_turn) = self.turn(wish, deadline, is_wanted) else {
            return if wish.stay {
                Ok(Reply::LockWaiting)
            } else {
                Err(self.timed_out(None, wish.address, wait_ms))
            };
        };
        for _ in 0..PLACE_TRIES {
            if let Some(reply) = self.lock_at(core, wish, (deadline, wait_ms), is_wanted)? {
                return Ok(reply);
            }
            self.forget_place(wish.address);
        }
        Err(refused(LockRefusal::Elsewhere, wish.address, wait_ms))
    }

    /// As [`lock`](Self::lock) in its turn; none if another node keeps the lock than the one that was asked.
    fn lock_at(
        &self,
        core: &Core,
        wish: &Wish,
        (deadline, wait_ms): (Instant, u32),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Reply>, Refused> {
        let (request, is_new) = self.begin(core, wish)?;
        // One who only tries waits for the lock home's word, which a silent home never gives.
        let asks_once = is_new && !wish.queue;
        let patience = match asks_once {
            true if wish.upgrade => deadline + leaving::WORD_SLICE,
            true => deadline + Duration::from_millis(self.lease_ms),
            false => deadline,
        };
        let mut wants = self.wants();
        loop {
            match wants.holder.state(request) {
                Some(ClaimState::Held { fence, until_ms }) => {
                    wants.settle(request);
                    return Ok(Some(Reply::Locked { fence: fence.0, until_ms }));
                }
                Some(ClaimState::Waiting) => {}
                Some(ClaimState::Refused(refusal)) => {
                    wants.forget(wish, request);
                    drop(wants);
                    return match refusal {
                        LockRefusal::Busy => Err(self.timed_out(None, wish.address, wait_ms)),
                        LockRefusal::Elsewhere if !wish.upgrade => Ok(None),
                        refusal => Err(refused(refusal, wish.address, wait_ms)),
                    };
                }
                None => return Err(LockRefusal::Lost.into()),
            }
            let left = patience.saturating_duration_since(Instant::now());
            let is_wanted = is_wanted() && !self.is_stopping.load(Ordering::Acquire);
            if is_wanted && left.is_zero() && wish.stay {
                wants.unheard.insert(request);
                return Ok(Some(Reply::LockWaiting));
            }
            if left.is_zero() || !is_wanted {
                if is_wanted && wish.upgrade {
                    if self.withdraw(core, wants, request) {
                        return Ok(Some(Reply::LockWaiting));
                    }
                    wants = self.wants();
                    if wants.holder.state(request) != Some(ClaimState::Waiting) {
                        continue;
                    }
                }
                return Err(self.leave(core, wants, (wish, request), wait_ms));
            }
            wants = self
                .changed
                .wait_timeout(wants, left.min(CLIENT_PAUSE))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// What became of a lock.
    ///
    /// # Errors
    /// [`Refused`] if the session has none, or has lost it.
    pub fn state(&self, session: SessionId, address: GlobalAddress) -> Result<Reply, Refused> {
        if let Some(lost) = self.guards.why_lost(session, address) {
            return Err(lost);
        }
        let wants = self.wants();
        let request = wants.requests.get(&(session, address)).ok_or_else(|| not_held(address))?;
        match wants.holder.state(*request) {
            Some(ClaimState::Held { fence, until_ms }) => Ok(Reply::Locked { fence: fence.0, until_ms }),
            Some(ClaimState::Waiting) => Ok(Reply::LockWaiting),
            Some(ClaimState::Refused(refusal)) => Err(refusal.into()),
            None => Err(LockRefusal::Lost.into()),
        }
    }

    /// Gives a lock back, or leaves the queue.
    ///
    /// # Errors
    /// [`Refused`] if the session has none, or had lost it.
    pub fn unlock(
        &self,
        core: &Core,
        session: SessionId,
        address: GlobalAddress,
        clean: bool,
    ) -> Result<(), Refused> {
        let clean = self.guards.end(session, address)? && clean;
        self.unlock_as(core, session, address, clean)
    }

    /// As [`unlock`](Self::unlock) for a program that cannot be asked whether all has arrived.
    fn give_back(&self, core: &Core, session: SessionId, address: GlobalAddress) {
        // It may have been lost meanwhile, which is as good.
        drop(self.unlock_as(core, session, address, false));
    }

    fn unlock_as(
        &self,
        core: &Core,
        session: SessionId,
        address: GlobalAddress,
        clean: bool,
    ) -> Result<(), Refused> {
        let mut wants = self.wants();
        let request = wants.requests.remove(&(session, address)).ok_or_else(|| not_held(address))?;
        let state = wants.holder.state(request);
        let mut asks = Vec::new();
        for request in wants.holder.replaced(request).into_iter().chain([request]) {
            let place = wants.holder.place(request);
            let ask = wants.holder.release(request, clean);
            wants.settle(request);
            asks.extend(ask.zip(place).map(|(ask, (home, _))| (home, request, ask)));
        }
        drop(wants);
        for (home, request, ask) in asks {
            self.send(core, home, request, ask);
        }
        match state {
            Some(ClaimState::Refused(refusal)) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Gives back everything that a session held or wanted. What it wrote may still be on its way.
    pub fn release_all(&self, core: &Core, session: SessionId) {
        if self.guards.orphan(session) {
            // The thread that looks at the clock does it when no store can come any more.
            self.links.own_changed();
        } else {
            self.release_now(core, session);
        }
    }

    fn release_now(&self, core: &Core, session: SessionId) {
        let mut wants = self.wants();
        wants.requests.retain(|(owner, _), _| *owner != session);
        let asks = wants.holder.end_session(session);
        for (_, request, _) in &asks {
            wants.settle(*request);
        }
        drop(wants);
        for (home, request, ask) in asks {
            self.send(core, home, request, ask);
        }
    }

    /// Answers another node's question about locks of this one; both are encoded.
    ///
    /// # Errors
    /// [`Refused`] for what is no question.
    pub fn answer(&self, core: &Core, peer: NodeId, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let (life, ask): (u64, LockAsk) = hinterland_proto::control::decode(body)?;
        fault_point::reach(if matches!(ask, LockAsk::Renew) {
            "lock-home-renewing"
        } else {
            "lock-home-asked"
        });
        let answer = self.ask_own_home(core, peer, life, &ask);
        fault_point::reach(match (&ask, &answer) {
            (LockAsk::Renew, _) => "lock-home-renewed",
            (LockAsk::Release { .. }, _) => "lock-home-released",
            (LockAsk::Check { .. }, _) => "lock-home-checked",
            (_, LockAnswer::Granted { .. }) => "lock-home-granted",
            _ => "lock-home-answered",
        });
        Ok(hinterland_proto::control::encode(&(self.kept.life(), self.lease_ms, answer))?)
    }

    /// A lock home says that something changed for wishes of this node.
    pub fn news(&self, core: &Core, home: NodeId) {
        self.links.hurry(home);
        self.links.run(core, home);
    }

    /// Forgets a lock as a page home: when it returns, no access under an older fence happens any more.
    pub fn forget(&self, address: GlobalAddress) {
        fault_point::reach("lock-told-to-forget");
        self.gates.forget(address);
        fault_point::reach("lock-forgotten");
    }

    fn ask_own_home(&self, core: &Core, node: NodeId, life: u64, ask: &LockAsk) -> LockAnswer {
        // Addresses are given to nobody else before this node has let go of what lies there.
        if let LockAsk::Acquire { object, .. } = ask
            && core.holdings.find(*object).is_err()
        {
            return LockAnswer::Refused(LockRefusal::Elsewhere);
        }
        let (answer, mut actions) = {
            let mut home = self.home();
            home.set_cut_off(!self.holds_lease(core));
            let answer = home.answer(now_ms(), node, life, ask);
            (answer, home.take_actions())
        };
        if matches!(answer, LockAnswer::Granted { .. }) && node != self.own {
            // The answer says it.
            actions.retain(|action| *action != HomeAction::Changed(node));
        }
        self.perform(core, actions);
        self.act(core);
        answer
    }

    /// Whether the directory keeps this node's place; it does if this node is the directory.
    fn holds_lease(&self, core: &Core) -> bool {
        core.directory.is_embedded() || core.membership.lease.is_held()
    }

    /// Does what the lock home wants done.
    fn act(&self, core: &Core) {
        loop {
            let actions = self.home().take_actions();
            if actions.is_empty() {
                return;
            }
            self.perform(core, actions);
        }
    }

    fn perform(&self, core: &Core, actions: Vec<HomeAction>) {
        for action in actions {
            match action {
                HomeAction::Persist(fence) => {
                    let lease_ms = self.home().lease_owed_ms();
                    match self.kept.keep(fence, lease_ms) {
                        Ok(()) => {
                            self.is_unkept.store(false, Ordering::Release);
                            self.home().persisted(fence);
                        }
                        Err(_) if self.is_unkept.swap(true, Ordering::AcqRel) => {}
                        Err(error) => core.cache.problem(&format!(
                            "locks cannot be given once the fences that are kept are used up: no others can be kept: {error} (hint: is the disk of --state full? It is tried again until it has room)"
                        )),
                    }
                }
                HomeAction::Tell(node, address, number) if node == self.own => {
                    self.gates.forget(address);
                    self.home().told(now_ms(), node, address, number);
                }
                HomeAction::Tell(node, address, number) => {
                    self.links.push(core, node, Out::Tell(address, number));
                }
                HomeAction::Changed(node) if node == self.own => self.links.own_changed(),
                HomeAction::Changed(node) => self.links.push(core, node, Out::News),
            }
        }
    }

    /// The wish of a session for an address: the one that stands, or a new one, and whether it is new.
    fn begin(&self, core: &Core, wish: &Wish) -> Result<(LockRequest, bool), Refused> {
        let key = (wish.session, wish.address);
        let place = self.place_for(core, wish)?;
        self.links.know(place.home, &place.address);
        self.give_up_removed(core, key, place.object);
        let mut wants = self.wants();
        let mut replaces = None;
        if let Some(request) = wants.requests.get(&key).copied() {
            match wants.holder.state(request) {
                Some(ClaimState::Waiting) => return Ok((request, false)),
                Some(ClaimState::Held { .. }) if wants.unheard.contains(&request) => {
                    return Ok((request, false));
                }
                Some(ClaimState::Held { .. }) if wish.upgrade => replaces = Some(request),
                Some(ClaimState::Held { .. }) => return Err(held(wish.address)),
                Some(ClaimState::Refused(refusal)) => {
                    wants.forget(wish, request);
                    return Err(refused(refusal, wish.address, 0));
                }
                None => {}
            }
        } else if wish.upgrade {
            return Err(not_held(wish.address));
        }
        let asked = LockWish {
            session: wish.session,
            pid: wish.pid,
            address: wish.address,
            object: place.object,
            bytes: wish.bytes,
            mode: wish.mode,
        };
        let (request, ask) = wants.holder.begin(asked, place.home, replaces, wish.queue);
        wants.requests.insert(key, request);
        drop(wants);
        self.send(core, place.home, request, ask);
        Ok((request, true))
    }

    /// Where the lock of a wish is kept. Of one that its session has, or has lost, it is not believed but asked: what it was on may have been removed,
    /// and something else lie there.
    fn place_for(&self, core: &Core, wish: &Wish) -> Result<Place, Refused> {
        let has_one = {
            let wants = self.wants();
            let request = wants.requests.get(&(wish.session, wish.address)).copied();
            request.filter(|request| !wants.unheard.contains(request)).is_some_and(|request| {
                matches!(wants.holder.state(request), Some(ClaimState::Held { .. } | ClaimState::Refused(_)))
            })
        };
        if has_one && !wish.upgrade {
            self.forget_place(wish.address);
        }
        self.place(core, wish.address)
    }

    /// Gives up what a session has of a lock on something that lay where another object lies by now.
    fn give_up_removed(&self, core: &Core, key: (SessionId, GlobalAddress), object: ObjectId) {
        let mut wants = self.wants();
        let Some(request) = wants.requests.get(&key).copied() else { return };
        if wants.holder.object(request).is_none_or(|known| known == object) {
            return;
        }
        wants.requests.remove(&key);
        let mut asks = Vec::new();
        for request in wants.holder.replaced(request).into_iter().chain([request]) {
            let place = wants.holder.place(request);
            let ask = wants.holder.release(request, false);
            wants.settle(request);
            asks.extend(ask.zip(place).map(|(ask, (home, _))| (home, request, ask)));
        }
        drop(wants);
        // A guard of it must not be taken for one of what is locked now.
        drop(self.guards.end(key.0, key.1));
        for (home, request, ask) in asks {
            self.send(core, home, request, ask);
        }
    }

    fn send(&self, core: &Core, home: NodeId, request: LockRequest, ask: LockAsk) {
        if home != self.own {
            self.links.push(core, home, Out::Ask(request, ask));
            return;
        }
        let sent_ms = believed_ms();
        let life = self.kept.life();
        let answer = self.ask_own_home(core, self.own, life, &ask);
        self.wants().holder.answered(request, (self.own, life), (sent_ms, believed_ms()), &answer);
        self.renew_own(core);
    }

    /// Hears from this node's own lock home what became of its own wishes.
    fn renew_own(&self, core: &Core) {
        while self.links.take_own_changed() {
            let life = self.kept.life();
            let number = self.wants().holder.renewal(self.own);
            let sent_ms = believed_ms();
            let answer = self.ask_own_home(core, self.own, life, &LockAsk::Renew);
            let LockAnswer::Claims(claims) = answer else { return };
            let heard = (sent_ms, believed_ms());
            let asks = self.wants().holder.renewed((self.own, life), number, heard, &claims);
            self.changed.notify_all();
            for (request, ask) in asks {
                let answer = self.ask_own_home(core, self.own, life, &ask);
                self.wants().holder.answered(request, (self.own, life), (sent_ms, believed_ms()), &answer);
            }
        }
        self.changed.notify_all();
    }

    fn keep_time(&self, core: &Core) {
        process::name_thread("locks");
        let pause = Duration::from_millis((self.lease_ms / 8).clamp(5, 500));
        while !self.is_stopping.load(Ordering::Acquire) {
            {
                let mut home = self.home();
                home.set_cut_off(!self.holds_lease(core));
                home.tick(now_ms());
                home.tell_again();
            }
            self.act(core);
            self.links.own_changed();
            self.renew_own(core);
            let homes = self.wants().holder.homes();
            for home in homes.into_iter().filter(|home| *home != self.own) {
                self.links.run(core, home);
            }
            let waits = self.tend_guards(core);
            self.links.wait_own(if waits { guards::TEND_PAUSE } else { pause });
        }
    }

    /// Where the lock of an address is kept: at the base home of its page.
    fn place(&self, core: &Core, address: GlobalAddress) -> Result<Place, Refused> {
        let page = address.page();
        let known = self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&page).cloned();
        if let Some(place) = known.as_ref().filter(|place| place.since.elapsed() < PLACE_BELIEF) {
            return Ok(place.clone());
        }
        let info = match core.directory.lookup_page(page) {
            Ok(info) => info,
            // The directory cannot be asked: what was known goes on being used.
            Err(refused) if refused.code == errno::EHOSTUNREACH => return known.ok_or(refused),
            Err(refused) => return Err(refused),
        };
        let Some(home) = base_home(core, &info, page)? else {
            let text = format!(
                "the node that keeps the lock on {address} is down (hint: start it again; `hinterland stat {}` says which)",
                info.name
            );
            return known.ok_or_else(|| Refused::new(errno::EHOSTUNREACH, text));
        };
        let (object, since) = (info.object, Instant::now());
        let place = Place { object, home: home.node, address: home.address.clone(), since };
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        places.insert(page, place.clone());
        Ok(place)
    }

    /// As [`place`](Self::place) for a page of this node: what is believed of what it has let go of counts no more.
    fn place_of_own(&self, core: &Core, address: GlobalAddress) -> Result<Place, Refused> {
        let place = self.place(core, address)?;
        if core.holdings.find(place.object).is_ok() {
            return Ok(place);
        }
        self.forget_place(address);
        self.place(core, address)
    }

    fn forget_place(&self, address: GlobalAddress) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).remove(&address.page());
    }

    fn timed_out(&self, home: Option<NodeId>, address: GlobalAddress, wait_ms: u32) -> Refused {
        if let Some(pid) = self.guards.stuck(address) {
            let why = guards::stopped_in_a_store(address, pid);
            let text = format!("the lock on {address} was not given within {wait_ms} ms: {why}");
            return Refused::new(errno::ETIMEDOUT, text);
        }
        match home {
            Some(home) if home != self.own && !self.links.is_heard(home, self.lease_ms) => {
                let text = format!(
                    "the lock on {address} was not given within {wait_ms} ms: {home}, which keeps it, does not answer (hint: it is down or cut off; see `hinterland status`)"
                );
                Refused::new(errno::ETIMEDOUT, text)
            }
            _ => refused(LockRefusal::Busy, address, wait_ms),
        }
    }

    fn home(&self) -> MutexGuard<'_, LockHome> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wants(&self) -> MutexGuard<'_, Wants> {
        self.wants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wants {
    /// Its program has heard what came of a wish.
    fn settle(&mut self, request: LockRequest) {
        self.unheard.remove(&request);
        self.withdrawn.remove(&request);
    }

    /// A wish came to nothing. What it would have replaced is held as before.
    fn forget(&mut self, wish: &Wish, request: LockRequest) {
        let replaced = self.holder.replaced(request);
        self.settle(request);
        self.holder.release(request, true);
        match replaced {
            Some(old) => self.requests.insert((wish.session, wish.address), old),
            None => self.requests.remove(&(wish.session, wish.address)),
        };
    }
}

/// The base home of a page, which keeps its locks wherever the page has moved; none if it is down.
fn base_home(core: &Core, info: &ObjectInfo, page: PageNumber) -> Result<Option<HomeInfo>, Refused> {
    if info.homes.len() + info.homes_down.len() <= 1 {
        return Ok(info.homes.first().cloned());
    }
    let command = Command::PageHomes { object: info.object, after: Some(page) };
    let DirectoryReply::Pages { base, .. } = core.directory.apply(&command)? else {
        return Err(Refused::new(errno::EIO, "the directory did not say how the region lies"));
    };
    let node = spread(page, base.len()).map(|place| base[place].0);
    Ok(info.homes.iter().find(|home| Some(home.node) == node).cloned())
}

/// The mode of a control message.
pub const fn mode(mode: hinterland_proto::control::LockMode) -> LockMode {
    match mode {
        hinterland_proto::control::LockMode::Read => LockMode::Read,
        hinterland_proto::control::LockMode::Write => LockMode::Write,
    }
}

/// Milliseconds by which this node, as a lock home, waits for those who hold locks: while it is suspended it hears of nobody, so those
/// are not counted.
fn now_ms() -> u64 {
    clock::monotonic_ns() / 1_000_000
}

/// Milliseconds by which a lock is believed here: a lock home elsewhere gives it to others while this machine is suspended.
fn believed_ms() -> u64 {
    clock::boot_ms()
}

fn refused(refusal: LockRefusal, address: GlobalAddress, wait_ms: u32) -> Refused {
    if refusal == LockRefusal::Busy {
        let text = format!(
            "the lock on {address} was not free within {wait_ms} ms (hint: wait longer; it is free at the latest when its holder ends)"
        );
        return Refused::new(errno::ETIMEDOUT, text);
    }
    let Refused { code, text } = refusal.into();
    Refused::new(code, format!("the lock on {address}: {text}"))
}

fn held(address: GlobalAddress) -> Refused {
    refused(LockRefusal::Held, address, 0)
}

fn not_held(address: GlobalAddress) -> Refused {
    refused(LockRefusal::NotHeld, address, 0)
}
