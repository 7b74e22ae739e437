//! Sessions for guards: a thread tells the node that the program lives, undelayed by what else the program does.
//!
//! A session has at most one wish for a lock, so two threads that want the same one use two *lanes*, and the node queues them like
//! two programs.

use super::cache::ReadCache;
use super::held::Held;
use crate::session::unexpected;
use crate::waiting::take_lock;
use crate::{PoolError, Session};
use hinterland_os::{fault_point, fork_mark, process};
use hinterland_proto::control::{LOCKS_KEPT_MAX, LockMode, Reply, Request};
use hinterland_types::GlobalAddress;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Lanes of one pool: so many threads may wait for locks at once.
const LANES_MAX: usize = 256;
/// Rounds without a guard after which the thread sleeps until there is one.
const IDLE_ROUNDS: u32 = 8;

const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const EOWNERDEAD: i32 = 130;

/// Until when each lock counts, if it does, and how long a lease is, in milliseconds.
type Kept = (Vec<Option<u64>>, u64);

/// What the guards of a pool share.
pub(crate) struct Guards {
    socket: PathBuf,
    shared: Arc<Shared>,
    pub(super) cache: ReadCache,
    /// 1 in this process, 0 in a child of it.
    mark: Option<&'static AtomicU32>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lanes: Vec<Arc<Lane>>,
    has_thread: bool,
    is_asleep: bool,
    is_over: bool,
    lease_ms: u64,
}

/// A session, and the locks that guards hold in it.
pub(super) struct Lane {
    session: Session,
    /// Guards, and locks that are being taken.
    held: Mutex<BTreeMap<GlobalAddress, Weak<Held>>>,
    /// Whether a thread waits for a lock in it.
    busy: Mutex<bool>,
}

/// A lane in which a lock is being taken.
pub(super) struct Taking {
    pub lane: Arc<Lane>,
    lock: GlobalAddress,
    is_done: bool,
}

impl Guards {
    /// No guards yet.
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            shared: Arc::default(),
            cache: ReadCache::default(),
            mark: fork_mark::mark(),
        }
    }

    /// Whether this process is a child that was forked: the sessions are its parent's.
    pub(super) fn is_forked(&self) -> bool {
        // Relaxed: a process is a child from its first instruction on.
        self.mark.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
    }

    /// A lane in which nobody has this lock or waits.
    pub(super) fn lane(&self, lock: GlobalAddress) -> Result<Taking, PoolError> {
        if self.is_forked() {
            let text =
                "this process was forked from one that has the pool open (hint: connect to the pool anew)";
            return Err(PoolError::Refused { code: EINVAL, text: text.to_owned() });
        }
        let mut state = self.shared.lock();
        // One whose node has ended it is of no use to anybody.
        state.lanes.retain(|lane| !lane.session.is_lost() || !lane.lock().is_empty());
        let free = state.lanes.iter().find(|lane| lane.take(lock)).cloned();
        let lane = match free {
            Some(lane) => lane,
            None if state.lanes.len() >= LANES_MAX => {
                let text = format!(
                    "{LANES_MAX} threads of this pool wait for locks, the most there may be (hint: connect once more, or use fewer threads)"
                );
                return Err(PoolError::Refused { code: EAGAIN, text });
            }
            None => {
                let session = Session::connect(Some(&self.socket))?;
                let lane = Arc::new(Lane { session, held: Mutex::default(), busy: Mutex::default() });
                if state.lease_ms == 0 {
                    state.lease_ms = lane.keep(&[])?.1.max(4);
                }
                lane.take(lock);
                state.lanes.push(Arc::clone(&lane));
                lane
            }
        };
        drop(state);
        Ok(Taking { lane, lock, is_done: false })
    }

    /// From here on the guard is kept.
    pub(super) fn keep(&self, held: &Arc<Held>) -> Result<(), PoolError> {
        held.lane.lock().insert(held.lock, Arc::downgrade(held));
        let mut state = self.shared.lock();
        if !state.has_thread {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new()
                .name("lock-keeper".to_owned())
                .stack_size(256 << 10)
                .spawn(move || shared.serve())
                .map_err(|source| PoolError::Stream {
                    what: "starting the thread that keeps locks".to_owned(),
                    source,
                })?;
            state.has_thread = true;
        }
        if state.is_asleep {
            drop(state);
            self.shared.changed.notify_all();
        }
        Ok(())
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        *self.lane.busy() = false;
        if !self.is_done {
            self.lane.lock().remove(&self.lock);
        }
    }
}

impl Taking {
    /// Goes on with a lane in which the lock is held already, to make more of it.
    pub fn again(lane: &Arc<Lane>, lock: GlobalAddress) -> Self {
        Self { lane: Arc::clone(lane), lock, is_done: true }
    }

    /// Takes the lock; gives its fence and until when it is believed.
    pub fn take(
        &mut self,
        bytes: u64,
        mode: LockMode,
        upgrade: bool,
        wait: Duration,
    ) -> Result<(u64, u64), PoolError> {
        let address = self.lock;
        let ask = |queue, wait_ms| Request::GuardLock { address, bytes, mode, upgrade, queue, wait_ms };
        // Of a guard for reading that was to be one for writing, nothing is given back: whoever has it unlocks it.
        let lane = Arc::clone(&self.lane);
        let give_back = || {
            if !upgrade {
                drop(lane.unlock(address, true))
            }
        };
        let taken = take_lock(&self.lane.session, wait, ask, give_back)?;
        fault_point::reach("lock-taken");
        self.is_done = true;
        Ok(taken)
    }
}

impl Lane {
    /// Gives a lock back.
    pub fn unlock(&self, lock: GlobalAddress, clean: bool) -> Result<(), PoolError> {
        self.lock().remove(&lock);
        match self.session.call(&Request::UnlockAs { address: lock, clean })? {
            Reply::Done => Ok(()),
            other => Err(unexpected("Done", &other)),
        }
    }

    /// Tells the node that the program lives, and hears until when its locks count.
    pub fn keep(&self, locks: &[GlobalAddress]) -> Result<Kept, PoolError> {
        match self.session.call(&Request::KeepLocks { locks: locks.to_vec() })? {
            Reply::LocksKept { until_ms, lease_ms } if until_ms.len() == locks.len() => {
                Ok((until_ms, lease_ms))
            }
            other => Err(unexpected("LocksKept", &other)),
        }
    }

    /// What the node says of a lock that it does not keep any more.
    pub fn why_lost(&self, lock: GlobalAddress) -> PoolError {
        let lost = |text: String| PoolError::Refused { code: EOWNERDEAD, text };
        match self.session.call(&Request::LockState { address: lock }) {
            Err(error @ PoolError::Refused { code: EOWNERDEAD, .. }) => error,
            Err(error) => lost(format!("the lock on {lock} is no longer held: {error}")),
            Ok(_) => lost(format!(
                "the lock on {lock} is not believed any more: its node has not heard of the lock's home for a lease (hint: that is down or cut off; lock again and read what others wrote)"
            )),
        }
    }

    /// Whether the lane was free for a lock; then it is taken.
    fn take(&self, lock: GlobalAddress) -> bool {
        let mut busy = self.busy();
        let mut held = self.lock();
        if *busy || held.contains_key(&lock) || held.len() >= LOCKS_KEPT_MAX || self.session.is_lost() {
            return false;
        }
        *busy = true;
        held.insert(lock, Weak::new());
        true
    }

    /// Keeps all guards; says whether there are any.
    fn keep_all(&self) -> bool {
        let held: Vec<Arc<Held>> = self.lock().values().filter_map(Weak::upgrade).collect();
        if held.is_empty() {
            return false;
        }
        let locks: Vec<GlobalAddress> = held.iter().map(|held| held.lock).collect();
        match self.keep(&locks) {
            Ok((until_ms, _)) => {
                for (held, until_ms) in held.iter().zip(until_ms) {
                    // Who is lost hears why when it asks, at its next access.
                    until_ms.into_iter().for_each(|until_ms| held.believe(until_ms));
                }
            }
            // What was believed is believed to its end, and then the access hears the same.
            Err(_) => return true,
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GlobalAddress, Weak<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> MutexGuard<'_, bool> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Keeps all guards of all lanes, every quarter of a lease.
    fn serve(&self) {
        process::name_thread("lock-keeper");
        let mut idle = 0;
        loop {
            let mut state = self.lock();
            let pause = Duration::from_millis((state.lease_ms / 4).max(1));
            if idle < IDLE_ROUNDS {
                state = self
                    .changed
                    .wait_timeout_while(state, pause, |state| !state.is_over)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            } else {
                state.is_asleep = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.is_asleep = false;
            }
            if state.is_over {
                return;
            }
            let lanes = state.lanes.clone();
            drop(state);
            let mut kept = 0;
            for lane in lanes {
                kept += u32::from(lane.keep_all());
            }
            idle = if kept > 0 { 0 } else { idle + 1 };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
