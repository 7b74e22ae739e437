//! Guards: a lock on a range of a region, with reads and writes that nobody makes any more who has lost it.
//!
//! The lock is on the address at which the range starts, in any rack: ranges that overlap and start elsewhere do not exclude each
//! other. Each access carries the lock's fence to the home of its page; memory of the host is used by loads and stores while
//! the guard is believed. Small writes under a write lock to other nodes are buffered, small reads under a read lock are kept (paper
//! 004, section 5.2). What is promised, and what not, stands in the decision on locked regions.

mod buffer;
mod cache;
mod held;
mod lane;
mod pending;

pub(crate) use lane::Guards;

use crate::{Pool, PoolError};
use buffer::{Buffer, WRITE_BYTES_MAX};
use cache::READ_BYTES_MAX;
use held::Held;
use hinterland_os::fault_point;
use hinterland_proto::control::LockMode;
use hinterland_types::{GlobalAddress, Rights};
use lane::Taking;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

const EINVAL: i32 = 22;
const ETIMEDOUT: i32 = 110;

/// How a guard is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardOptions {
    /// Longest wait for the lock; zero only tries.
    pub wait: Duration,
    /// Whether writes of up to 256 bytes to other nodes are buffered.
    pub write_buffer: bool,
    /// Whether what was read of other nodes under a read lock is kept.
    pub read_cache: bool,
}

impl Default for GuardOptions {
    /// 30 s; the buffer and the cache unless `HINTERLAND_NO_WRITE_BUFFER=1` and `HINTERLAND_NO_READ_CACHE=1`.
    fn default() -> Self {
        let is_on = |name: &str| std::env::var_os(name).is_none_or(|value| value != "1");
        Self {
            wait: Duration::from_secs(30),
            write_buffer: is_on("HINTERLAND_NO_WRITE_BUFFER"),
            read_cache: is_on("HINTERLAND_NO_READ_CACHE"),
        }
    }
}

/// A read lock and its range. Dropping it gives the lock back.
pub struct ReadGuard {
    lock: Locked,
    options: GuardOptions,
}

/// A write lock and its range. Dropping it writes what is buffered and gives the lock back; what was lost is then said on standard
/// error, so [`unlock`](Self::unlock) is better.
pub struct WriteGuard {
    lock: Locked,
    buffer: Option<Buffer>,
}

/// A read lock did not become a write lock. It is held as before, unless it is lost.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotUpgraded {
    /// The read lock.
    pub guard: Box<ReadGuard>,
    /// `EDEADLK` if another reader waits for the same, `ETIMEDOUT`, `EOWNERDEAD` if it is lost.
    #[source]
    pub error: PoolError,
}

/// A lock that is given back once.
struct Locked {
    held: Arc<Held>,
    is_over: bool,
}

impl Pool {
    /// Locks an address for reading with others; the guard covers `bytes` bytes from there on, in one region.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `ETIMEDOUT` if it was not free in time, `EINVAL` for a range that is not in one region, `EHOSTUNREACH` if
    /// the node that keeps the lock is down or cut off.
    ///
    /// ```no_run
    /// # use hinterland_pool::{GuardOptions, Pool};
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let region = pool.create_region(&ObjectName::parse("records")?, 4 << 20, None)?;
    /// # let address = region.address.ok_or("a region has an address")?;
    /// let guard = pool.rlock(address, 4096, &GuardOptions::default())?;
    /// let mut record = [0; 64];
    /// guard.read(128, &mut record)?;
    /// guard.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rlock(
        &self,
        address: GlobalAddress,
        bytes: u64,
        options: &GuardOptions,
    ) -> Result<ReadGuard, PoolError> {
        let lock = self.guarded(address, bytes, LockMode::Read, options)?;
        Ok(ReadGuard { lock, options: *options })
    }

    /// Locks an address for writing, alone; the guard covers `bytes` bytes from there on, in one region.
    ///
    /// # Errors
    /// As [`rlock`](Self::rlock).
    ///
    /// ```no_run
    /// # use hinterland_pool::{GuardOptions, Pool};
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let region = pool.create_region(&ObjectName::parse("accounts")?, 4 << 20, None)?;
    /// # let address = region.address.ok_or("a region has an address")?;
    /// let guard = pool.wlock(address, 4096, &GuardOptions::default())?;
    /// guard.write(0, &7_u64.to_le_bytes())?;
    /// guard.write(8, &9_u64.to_le_bytes())?;
    /// // Says whether both have arrived; dropping the guard could not.
    /// guard.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wlock(
        &self,
        address: GlobalAddress,
        bytes: u64,
        options: &GuardOptions,
    ) -> Result<WriteGuard, PoolError> {
        let lock = self.guarded(address, bytes, LockMode::Write, options)?;
        Ok(WriteGuard::new(lock, options))
    }

    /// As [`rlock`](Self::rlock), but `None` at once if it is not free.
    ///
    /// # Errors
    /// As [`rlock`](Self::rlock), without `ETIMEDOUT`.
    pub fn try_rlock(&self, address: GlobalAddress, bytes: u64) -> Result<Option<ReadGuard>, PoolError> {
        let options = GuardOptions { wait: Duration::ZERO, ..GuardOptions::default() };
        free(self.rlock(address, bytes, &options))
    }

    /// As [`wlock`](Self::wlock), but `None` at once if it is not free.
    ///
    /// # Errors
    /// As [`wlock`](Self::wlock), without `ETIMEDOUT`.
    pub fn try_wlock(&self, address: GlobalAddress, bytes: u64) -> Result<Option<WriteGuard>, PoolError> {
        let options = GuardOptions { wait: Duration::ZERO, ..GuardOptions::default() };
        free(self.wlock(address, bytes, &options))
    }

    fn guarded(
        &self,
        address: GlobalAddress,
        bytes: u64,
        mode: LockMode,
        options: &GuardOptions,
    ) -> Result<Locked, PoolError> {
        let rights = if mode == LockMode::Write { Rights::WRITE } else { Rights::READ };
        let entry = self.entry(address.raw(), rights)?;
        // A guard may be content with what earlier ones have read: no home says then that the region is another by now.
        let entry = if self.is_confirmed(&entry)? { entry } else { self.entry(address.raw(), rights)? };
        let left = entry.bytes - (address.raw() - entry.first);
        if bytes == 0 || bytes > left {
            let text = format!(
                "a guard of {bytes} bytes at {address}: it needs 1 to {left}, which is what is left of {} (hint: a guard covers a range of one region)",
                entry.object.info().name
            );
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        let mut taking = self.guards().lane(address)?;
        let granted = taking.take(bytes, mode, false, options.wait)?;
        let parts = (self.clone(), Arc::clone(&taking.lane), entry);
        let held = Arc::new(Held::new(parts, (address, bytes), granted));
        let locked = Locked { held, is_over: false };
        locked.held.pages()?;
        self.guards().keep(&locked.held)?;
        Ok(locked)
    }
}

fn free<T>(locked: Result<T, PoolError>) -> Result<Option<T>, PoolError> {
    match locked {
        Ok(guard) => Ok(Some(guard)),
        Err(PoolError::Refused { code: ETIMEDOUT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl ReadGuard {
    /// Reads bytes at an offset of the guard's range.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `EOWNERDEAD` if the lock is lost (nothing that was read counts), `EINVAL` outside the range; else
    /// what became of the home.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        let held = &self.lock.held;
        held.check_broken()?;
        let at = held.place(offset, into.len())?;
        let is_kept = self.options.read_cache && into.len() <= READ_BYTES_MAX;
        if into.is_empty() {
            return Ok(());
        }
        if !is_kept || held.pages()?.lies_here(at, into.len(), false) {
            return held.read_home(at, into);
        }
        let range = held.start()..held.start() + held.bytes;
        let key = (held.lock, (held.entry.object.info().object, held.fence));
        let asked = held
            .pool
            .guards()
            .cache
            .read(key, &range, at, into, |start, bytes| held.read_home(start, bytes))?;
        if asked || held.is_believed() { Ok(()) } else { held.confirm() }
    }

    /// Makes a write lock of it, once the other readers have left.
    ///
    /// # Errors
    /// [`NotUpgraded`] with this guard.
    pub fn upgrade(mut self, wait: Duration) -> Result<WriteGuard, NotUpgraded> {
        let held = &self.lock.held;
        let options = GuardOptions { wait, ..self.options };
        let mut taking = Taking::again(&held.lane, held.lock);
        let granted = match held.check_broken() {
            Ok(()) => taking.take(held.bytes, LockMode::Write, true, wait),
            Err(error) => Err(error),
        };
        drop(taking);
        let granted = match granted {
            Ok(granted) => granted,
            Err(error) => return Err(NotUpgraded { guard: Box::new(self), error }),
        };
        let parts = (held.pool.clone(), Arc::clone(&held.lane), Arc::clone(&held.entry));
        let fresh = Arc::new(Held::new(parts, (held.lock, held.bytes), granted));
        let locked = Locked { held: fresh, is_over: false };
        // From here on the lock is that of the write guard.
        self.lock.is_over = true;
        match locked.held.pool.guards().keep(&locked.held) {
            Ok(()) => Ok(WriteGuard::new(locked, &options)),
            // The thread that keeps locks runs: it was started for the read lock.
            Err(error) => Err(NotUpgraded { guard: Box::new(self), error }),
        }
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `EOWNERDEAD` if it was lost before.
    pub fn unlock(mut self) -> Result<(), PoolError> {
        self.lock.unlock()
    }

    /// The lock's fence: the number of the last grant to a writer.
    pub fn fence(&self) -> u64 {
        self.lock.held.fence
    }
}

impl WriteGuard {
    fn new(lock: Locked, options: &GuardOptions) -> Self {
        let buffer = options.write_buffer.then(|| Buffer::new(Arc::clone(&lock.held)));
        Self { lock, buffer }
    }

    /// Reads bytes at an offset of the guard's range, also those that this guard has written and that are on their way.
    ///
    /// # Errors
    /// As [`ReadGuard::read`], and what broke the guard before.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        let held = &self.lock.held;
        held.check_broken()?;
        let at = held.place(offset, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        match &self.buffer {
            Some(buffer) => buffer.read(at, into, |into| held.read_home(at, into))?,
            None => held.read_home(at, into)?,
        }
        // What was pending may have been lost meanwhile.
        held.check_broken()
    }

    /// Writes bytes at an offset of the guard's range. A write of up to 256 bytes to another node is known to have arrived when
    /// [`flush`](Self::flush) or [`unlock`](Self::unlock) says so; any other when this returns.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `EOWNERDEAD` if the lock is lost, `EINVAL` outside the range; else what became of the home. After an
    /// error nothing more can be done with the guard than to unlock it, and nobody knows what arrived of the writes that were not flushed.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        let held = &self.lock.held;
        held.check_broken()?;
        let at = held.place(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        match &self.buffer {
            Some(buffer)
                if from.len() <= WRITE_BYTES_MAX && !held.pages()?.lies_here(at, from.len(), true) =>
            {
                if !held.is_believed() {
                    held.confirm()?;
                }
                buffer.put(at, from)
            }
            buffer => {
                // What goes straight must not be overtaken by what was written before.
                buffer.as_ref().map_or(Ok(()), |buffer| buffer.settle(at, from.len()))?;
                held.write_home(&[(at, from)], 1)
            }
        }
    }

    /// Returns when all that was written has arrived.
    ///
    /// # Errors
    /// As [`write`](Self::write), with how much is not known to have arrived.
    pub fn flush(&self) -> Result<(), PoolError> {
        self.lock.held.check_broken()?;
        self.buffer.as_ref().map_or(Ok(()), Buffer::flush)
    }

    /// Flushes, and gives the lock back.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), and what broke the guard before; the lock is given back all the same.
    pub fn unlock(mut self) -> Result<(), PoolError> {
        self.end()
    }

    /// The lock's fence, which goes with every write.
    pub fn fence(&self) -> u64 {
        self.lock.held.fence
    }

    fn end(&mut self) -> Result<(), PoolError> {
        if self.lock.held.pool.guards().is_forked() {
            // The lock, its session and its thread are the parent's.
            self.lock.is_over = true;
            std::mem::forget(self.buffer.take());
            return Ok(());
        }
        let flushed = self.flush();
        if let Err(error) = &flushed {
            let (writes, bytes) = self.buffer.as_ref().map_or((0, 0), Buffer::left);
            self.buffer = None;
            // The error that the caller gets names those that were sent; these never were.
            let unlocked = self.lock.unlock();
            return Err(with_unsent(error, (writes, bytes), unlocked.err().as_ref()));
        }
        self.buffer = None;
        self.lock.unlock()
    }
}

/// What broke a guard, and what it had in its buffer besides.
fn with_unsent(
    error: &PoolError,
    (writes, bytes): (usize, usize),
    unlocked: Option<&PoolError>,
) -> PoolError {
    let mut text = error.to_string();
    if writes > 0 {
        text.push_str(&format!("; {writes} more writes of {bytes} bytes were not sent"));
    }
    if let Some(unlocked) = unlocked.filter(|unlocked| !text.contains(&unlocked.to_string())) {
        text.push_str(&format!("; unlock: {unlocked}"));
    }
    PoolError::Refused { code: error.code(), text }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        if self.lock.is_over {
            return;
        }
        if let Err(error) = self.end() {
            // Nothing else is left to say it with.
            let _ = writeln!(std::io::stderr().lock(), "hinterland: a write lock ended in an error: {error}");
        }
    }
}

impl Locked {
    fn unlock(&mut self) -> Result<(), PoolError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let held = &self.held;
        if held.pool.guards().is_forked() {
            return Ok(());
        }
        fault_point::reach("lock-unlocking");
        let unlocked = held.lane.unlock(held.lock, !held.is_broken());
        fault_point::reach("lock-unlocked");
        if unlocked.as_ref().is_err_and(|error| matches!(error, PoolError::Closed)) {
            // The node takes it back with the session.
            return held.check_broken();
        }
        unlocked
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A guard that was lost has said so at its last access, and whoever wants to know unlocks.
        let _ = self.unlock();
    }
}

impl std::fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = &self.lock.held;
        write!(f, "ReadGuard({}, {} bytes, fence {})", held.lock, held.bytes, held.fence)
    }
}

impl std::fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = &self.lock.held;
        write!(f, "WriteGuard({}, {} bytes, fence {})", held.lock, held.bytes, held.fence)
    }
}
