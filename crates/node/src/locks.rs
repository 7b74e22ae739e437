//! Read and write locks on addresses, held by sessions and given back when a session ends.

use hinterland_proto::control::LockMode;
use hinterland_types::{GlobalAddress, SessionId};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a request that waits looks whether its client is still there.
const CLIENT_PAUSE: Duration = Duration::from_millis(100);

/// Why a lock was not taken or given back.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum LockError {
    /// Others held it for the whole wait.
    #[error(
        "the lock on {address} was not free within {wait_ms} ms (hint: wait longer, or look at `hinterland top` for who holds it)"
    )]
    Timeout {
        /// What should be locked.
        address: GlobalAddress,
        /// How long the request waited.
        wait_ms: u32,
    },
    /// This session holds it already, in a mode that does not go with the request.
    #[error("this session already holds a lock on {0} (hint: unlock it first; locks are not re-entrant)")]
    Held(GlobalAddress),
    /// The session has no lock there.
    #[error("this session holds no lock on {0}")]
    NotHeld(GlobalAddress),
}

#[derive(Default)]
struct Lock {
    writer: Option<SessionId>,
    readers: Vec<SessionId>,
    /// Writers that wait; readers queue behind them so that no writer starves.
    writers_waiting: u32,
}

/// The lock table of a node.
#[derive(Default)]
pub struct LockTable {
    locks: Mutex<HashMap<GlobalAddress, Lock>>,
    changed: Condvar,
}

impl LockTable {
    /// Takes a lock, waiting up to `wait_ms` milliseconds, but no longer than `is_wanted`: a client that has died must
    /// not keep its session, and with it other locks, for as long as it meant to wait.
    ///
    /// # Errors
    /// [`LockError::Timeout`], or [`LockError::Held`] if the session has the lock already.
    pub fn lock(
        &self,
        session: SessionId,
        address: GlobalAddress,
        mode: LockMode,
        wait_ms: u32,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), LockError> {
        let deadline = Instant::now() + Duration::from_millis(u64::from(wait_ms));
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = locks.entry(address).or_default();
        if lock.writer == Some(session) || lock.readers.contains(&session) {
            return Err(LockError::Held(address));
        }
        if mode == LockMode::Write {
            lock.writers_waiting += 1;
        }
        loop {
            let lock = locks.entry(address).or_default();
            let free = match mode {
                LockMode::Read => lock.writer.is_none() && lock.writers_waiting == 0,
                LockMode::Write => lock.writer.is_none() && lock.readers.is_empty(),
            };
            if free {
                match mode {
                    LockMode::Read => lock.readers.push(session),
                    LockMode::Write => {
                        lock.writers_waiting -= 1;
                        lock.writer = Some(session);
                    }
                }
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !is_wanted() {
                if mode == LockMode::Write {
                    lock.writers_waiting -= 1;
                    self.changed.notify_all();
                }
                forget_if_idle(&mut locks, address);
                return Err(LockError::Timeout { address, wait_ms });
            }
            locks = self
                .changed
                .wait_timeout(locks, left.min(CLIENT_PAUSE))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Gives a lock back.
    ///
    /// # Errors
    /// [`LockError::NotHeld`].
    pub fn unlock(&self, session: SessionId, address: GlobalAddress) -> Result<(), LockError> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = locks.get_mut(&address).ok_or(LockError::NotHeld(address))?;
        if !release(lock, session) {
            return Err(LockError::NotHeld(address));
        }
        forget_if_idle(&mut locks, address);
        self.changed.notify_all();
        Ok(())
    }

    /// Gives back everything that a session held.
    pub fn release_all(&self, session: SessionId) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        for lock in locks.values_mut() {
            release(lock, session);
        }
        locks.retain(|_, lock| !lock.is_idle());
        self.changed.notify_all();
    }
}

impl Lock {
    fn is_idle(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty() && self.writers_waiting == 0
    }
}

fn release(lock: &mut Lock, session: SessionId) -> bool {
    if lock.writer == Some(session) {
        lock.writer = None;
        return true;
    }
    let before = lock.readers.len();
    lock.readers.retain(|&reader| reader != session);
    lock.readers.len() < before
}

fn forget_if_idle(locks: &mut HashMap<GlobalAddress, Lock>, address: GlobalAddress) {
    if locks.get(&address).is_some_and(Lock::is_idle) {
        locks.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn address() -> GlobalAddress {
        GlobalAddress::new(4096).unwrap()
    }

    #[test]
    fn readers_share_and_a_writer_waits_for_all_of_them() {
        let table = LockTable::default();
        table.lock(A, address(), LockMode::Read, 0, &|| true).unwrap();
        table.lock(B, address(), LockMode::Read, 0, &|| true).unwrap();
        let c = SessionId(3);
        assert!(matches!(
            table.lock(c, address(), LockMode::Write, 10, &|| true),
            Err(LockError::Timeout { .. })
        ));
        table.unlock(A, address()).unwrap();
        table.unlock(B, address()).unwrap();
        table.lock(c, address(), LockMode::Write, 0, &|| true).unwrap();
        assert!(matches!(
            table.lock(A, address(), LockMode::Read, 0, &|| true),
            Err(LockError::Timeout { .. })
        ));
    }

    #[test]
    fn a_session_that_ends_gives_its_locks_to_those_who_wait() {
        let table = Arc::new(LockTable::default());
        table.lock(A, address(), LockMode::Write, 0, &|| true).unwrap();
        let waiter = {
            let table = Arc::clone(&table);
            std::thread::spawn(move || table.lock(B, address(), LockMode::Write, 10_000, &|| true))
        };
        table.release_all(A);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(table.unlock(A, address()), Err(LockError::NotHeld(address())));
        table.unlock(B, address()).unwrap();
        assert!(table.locks.lock().unwrap().is_empty());
    }

    #[test]
    fn a_client_that_is_gone_waits_no_longer_and_lets_readers_pass() {
        let table = LockTable::default();
        table.lock(A, address(), LockMode::Read, 0, &|| true).unwrap();
        let asked = std::cell::Cell::new(0);
        let leaves = || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        assert!(table.lock(B, address(), LockMode::Write, u32::MAX, &leaves).is_err());
        table.lock(SessionId(3), address(), LockMode::Read, 0, &|| true).unwrap();
    }

    #[test]
    fn a_lock_is_not_taken_twice_by_one_session() {
        let table = LockTable::default();
        table.lock(A, address(), LockMode::Read, 0, &|| true).unwrap();
        assert_eq!(table.lock(A, address(), LockMode::Write, 0, &|| true), Err(LockError::Held(address())));
    }
}
