//! Locks that guards of this host's programs hold: each counts while its program says that it lives, and goes to nobody else while a
//! store under it may still come.
//!
//! What a program may believe ends at a moment of the host's clock that this node has told it. Behind that moment, a barrier on all
//! processors and a look at the slots show that no thread stores any more; see the decision on locked regions.

use super::{Locks, Wish, believed_ms, now_ms};
use crate::core::Core;
use crate::fault_point;
use crate::refused::{Refused, errno};
use hinterland_directory::locks::{ClaimState, LockMode};
use hinterland_os::process::ProcessHandle;
use hinterland_proto::control::Reply;
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{GlobalAddress, SessionId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a store that may still come is looked for.
pub(super) const TEND_PAUSE: Duration = Duration::from_millis(5);
/// How long whoever has got a lock waits for stores under the one before: they take nanoseconds, or their thread was stopped.
const SHUT_OUT_WAIT: Duration = Duration::from_secs(1);

/// All guards of this host.
#[derive(Default)]
pub(super) struct Guards {
    held: Mutex<BTreeMap<(GlobalAddress, SessionId), Held>>,
}

#[derive(Clone)]
struct Held {
    bytes: u64,
    mode: LockMode,
    fence: u64,
    pid: u32,
    process: Option<Arc<ProcessHandle>>,
    /// Until when the program was told at the latest that it counts, by the clock for what is believed.
    told_ms: u64,
    /// When the program was last heard of, by the clock that stands still for the program, too, while the machine is suspended.
    kept_ms: u64,
    stage: Stage,
    /// It was said that its program was stopped in the middle of a store.
    is_said: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Held,
    /// Its program was not heard of for a lease; it is given back as soon as no store can come.
    Silent,
    /// Its session is over; the same.
    Orphan,
    /// It was given back, and its program does not know yet.
    Lost,
}

impl Guards {
    /// What the node says of a guard that it has given back; none for one that it has not.
    pub fn why_lost(&self, session: SessionId, address: GlobalAddress) -> Option<Refused> {
        let held = self.lock();
        held.get(&(address, session))
            .filter(|held| held.stage == Stage::Lost)
            .map(|held| silent(address, held))
    }

    /// The program says that nothing is done under the guard any more. Whether all was well with it so far.
    ///
    /// # Errors
    /// [`Refused`] with `EOWNERDEAD` if it was given back before.
    pub fn end(&self, session: SessionId, address: GlobalAddress) -> Result<bool, Refused> {
        match self.lock().remove(&(address, session)) {
            Some(held) if held.stage == Stage::Lost => Err(silent(address, &held)),
            Some(held) => Ok(held.stage == Stage::Held),
            None => Ok(true),
        }
    }

    /// The session is over: whether something of it has to be waited for.
    pub fn orphan(&self, session: SessionId) -> bool {
        let mut held = self.lock();
        held.retain(|(_, owner), held| *owner != session || held.stage != Stage::Lost);
        let own = held.iter_mut().filter(|((_, owner), _)| *owner == session);
        own.map(|(_, held)| held.stage = Stage::Orphan).count() > 0
    }

    /// The process that keeps a lock from everybody, for it was stopped in the middle of a store under it.
    pub fn stuck(&self, address: GlobalAddress) -> Option<u32> {
        self.of(address).into_iter().find(|(_, held)| held.stage == Stage::Silent).map(|(_, held)| held.pid)
    }

    fn of(&self, address: GlobalAddress) -> Vec<(SessionId, Held)> {
        let from = (address, SessionId(0))..=(address, SessionId(u64::MAX));
        self.lock().range(from).map(|((_, session), held)| (*session, held.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(GlobalAddress, SessionId), Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    /// Takes a lock for a guard, as [`lock`](Self::lock) does; when this returns, no store of this host comes under a guard of before.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `EBUSY` if a program was stopped in the middle of a store under the lock.
    pub fn guard(
        &self,
        core: &Core,
        wish: &Wish,
        wait_ms: u32,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Reply, Refused> {
        let key = (wish.address, wish.session);
        self.guards.lock().retain(|other, held| *other != key || held.stage != Stage::Lost);
        let Reply::Locked { fence, until_ms } = self.lock(core, wish, wait_ms, is_wanted)? else {
            return Ok(Reply::LockWaiting);
        };
        if let Err(refused) = self.shut_out(core, wish.address, fence) {
            self.unlock(core, wish.session, wish.address, true)?;
            return Err(refused);
        }
        let until_ms = until_ms.min(believed_ms() + self.lease_ms);
        // A process number fits the kernel's own type.
        let process = (wish.pid > 0).then(|| ProcessHandle::open(wish.pid as i32).ok()).flatten();
        let held = Held {
            bytes: wish.bytes,
            mode: wish.mode,
            fence,
            pid: wish.pid,
            process: process.map(Arc::new),
            told_ms: until_ms,
            kept_ms: now_ms(),
            stage: Stage::Held,
            is_said: false,
        };
        self.guards.lock().insert(key, held);
        fault_point::reach("lock-guard-noted");
        Ok(Reply::Locked { fence, until_ms })
    }

    /// A program lives: what each of its guards may believe. None for one that is lost.
    pub fn keep(&self, session: SessionId, locks: &[GlobalAddress]) -> Reply {
        let states: Vec<_> = {
            let wants = self.wants();
            let state = |address: &GlobalAddress| {
                let request = *wants.requests.get(&(session, *address))?;
                let held = |request| match wants.holder.state(request) {
                    Some(ClaimState::Held { fence, until_ms }) => Some((fence.0, until_ms)),
                    _ => None,
                };
                // What waits to become a write lock is a read lock yet.
                held(request).or_else(|| held(wants.holder.replaced(request)?))
            };
            locks.iter().map(state).collect()
        };
        let now_ms = now_ms();
        let mut all = self.guards.lock();
        let until = |(address, state): (&GlobalAddress, Option<(u64, u64)>)| {
            let (fence, until_ms) = state?;
            let held = all.get_mut(&(*address, session))?;
            // A read lock may have become a write lock in this moment.
            if held.stage != Stage::Held || (held.fence != fence && held.mode == LockMode::Write) {
                return None;
            }
            let until_ms = until_ms.min(believed_ms() + self.lease_ms);
            held.kept_ms = now_ms;
            held.told_ms = held.told_ms.max(until_ms);
            Some(until_ms)
        };
        let until_ms = locks.iter().zip(states).map(until).collect();
        Reply::LocksKept { until_ms, lease_ms: self.lease_ms }
    }

    /// Waits until no store of this host comes under a guard of the lock that was before this fence.
    pub(super) fn shut_out(&self, core: &Core, address: GlobalAddress, fence: u64) -> Result<(), Refused> {
        let deadline = Instant::now() + SHUT_OUT_WAIT.max(Duration::from_millis(self.lease_ms));
        loop {
            let mut older = self.guards.of(address);
            older.retain(|(_, held)| {
                held.fence < fence && held.mode == LockMode::Write && held.stage != Stage::Lost
            });
            older.retain(|(_, held)| !is_out(core, address, held));
            let Some((_, held)) = older.first() else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(Refused::new(errno::EBUSY, stopped_in_a_store(address, held.pid)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Gives back what programs that are silent or gone have held, once no store can come. Whether something has to be waited for.
    pub(super) fn tend_guards(&self, core: &Core) -> bool {
        let now_ms = now_ms();
        let due: Vec<((GlobalAddress, SessionId), Held)> = {
            let mut all = self.guards.lock();
            for held in all.values_mut().filter(|held| held.stage == Stage::Held) {
                if held.kept_ms + self.lease_ms < now_ms {
                    held.stage = Stage::Silent;
                }
            }
            let is_due = |held: &Held| matches!(held.stage, Stage::Silent | Stage::Orphan);
            all.iter().filter(|(_, held)| is_due(held)).map(|(key, held)| (*key, held.clone())).collect()
        };
        let mut waits = false;
        for ((address, session), held) in due {
            if !is_out(core, address, &held) {
                waits = true;
                if !held.is_said && held.told_ms + self.lease_ms < believed_ms() {
                    tracing::warn!("{}", stopped_in_a_store(address, held.pid));
                    self.guards.lock().entry((address, session)).and_modify(|held| held.is_said = true);
                }
                continue;
            }
            if held.stage == Stage::Orphan {
                self.guards.lock().remove(&(address, session));
                if !self.guards.lock().keys().any(|(_, other)| *other == session) {
                    self.release_now(core, session);
                }
                continue;
            }
            let still = self.guards.lock().get_mut(&(address, session)).map(|held| {
                held.stage = if held.stage == Stage::Silent { Stage::Lost } else { held.stage };
            });
            if still.is_some() {
                tracing::warn!("process {} is silent: its lock on {address} is given back", held.pid);
                self.give_back(core, session, address);
            }
        }
        waits
    }
}

/// Whether no access under the guard comes any more.
fn is_out(core: &Core, address: GlobalAddress, held: &Held) -> bool {
    if held.process.as_ref().is_some_and(|process| process.has_ended(Duration::ZERO).unwrap_or(false)) {
        return true;
    }
    if believed_ms() <= held.told_ms {
        return false;
    }
    // A reader looks at the clock behind its loads.
    let last = GlobalAddress::new(address.raw() + held.bytes.max(1) - 1).unwrap_or(address);
    debug_assert!(last.raw() - address.raw() < PAGE_BYTES << 25, "a guard covers a region at the most");
    held.mode == LockMode::Read || core.regions.have_left(address.page(), last.page())
}

/// What a node says of a program that cannot lose its lock before it goes on: nobody can take back a store that is under way.
pub(super) fn stopped_in_a_store(address: GlobalAddress, pid: u32) -> String {
    format!(
        "process {pid} was stopped in the middle of a store under its lock on {address}, which nobody else gets before that (hint: let it go on, or end it)"
    )
}

fn silent(address: GlobalAddress, held: &Held) -> Refused {
    let text = format!(
        "the lock on {address} is no longer held: process {} was not heard of for a lease, so it was given back and others may have written since; nothing was written since then (hint: it was stopped or starved; lock again and read what others wrote)",
        held.pid
    );
    Refused::new(errno::EOWNERDEAD, text)
}
