//! Pools of memory: what a program sets of them and asks of them. Memory of all pools of a device comes from one place, where what is freed is anybody's again at
//! once, so a pool keeps nothing, whatever its threshold says.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::context::Owner;
use super::graph_memory::Held;
use super::handle::NumberMap;
use super::session::Session;
use super::stream::Stream;
use crate::code::{Code, INVALID_VALUE};

/// A pool.
#[derive(Debug, Clone, Copy)]
pub struct Pool {
    /// Its device.
    pub device: u32,
    /// Whether each of the three ways of using memory again is allowed.
    pub reuse: [i32; 3],
    /// Bytes from which on memory is given back.
    pub threshold: u64,
    /// Bytes that are allocated from it.
    pub used: u64,
    /// The most there were since it was last set to zero.
    pub used_max: u64,
}

impl Pool {
    fn of(device: u32) -> Self {
        Self { device, reuse: [1; 3], threshold: 0, used: 0, used_max: 0 }
    }
}

/// The pools of a session. Pool `n` is the default pool of device `n`.
#[derive(Debug)]
pub struct Pools(Mutex<State>);

#[derive(Debug)]
pub(super) struct State {
    pools: BTreeMap<u32, Pool>,
    next: u32,
    /// The pool that each device allocates from.
    current: Vec<u32>,
    /// Pool and bytes of what was allocated.
    pub(super) owners: NumberMap<u64, (u32, u64)>,
    /// What graphs allocate, which is in no pool.
    pub(super) held: NumberMap<u64, Held>,
    /// The most bytes of each device that graphs had since that was last forgotten.
    held_max: Vec<u64>,
}

impl State {
    /// Bytes that graphs have of a device, and the most there were.
    pub(super) fn bytes_held(&self, device: u32) -> (u64, u64) {
        let bytes = self.held.values().filter(|held| held.device == device).map(Held::bytes).sum();
        (bytes, bytes.max(self.held_max[device as usize]))
    }

    /// Notes what graphs have of a device now: the most there were, or all that counts (`is_forgotten`).
    pub(super) fn note_held(&mut self, device: u32, is_forgotten: bool) {
        let (bytes, most) = self.bytes_held(device);
        self.held_max[device as usize] = if is_forgotten { bytes } else { most };
    }
}

impl Pools {
    pub(super) fn new(devices: u32) -> Self {
        Self(Mutex::new(State {
            pools: (0..devices).map(|device| (device, Pool::of(device))).collect(),
            next: devices,
            current: (0..devices).collect(),
            owners: NumberMap::default(),
            held: NumberMap::default(),
            held_max: (0..devices).map(|_| 0).collect(),
        }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Makes a pool of a device.
    ///
    /// # Errors
    /// There is no such device.
    pub fn create_pool(&self, device: u32) -> Result<u32, Code> {
        self.device(device)?;
        let mut state = self.pools.state();
        let number = state.next;
        state.next += 1;
        state.pools.insert(number, Pool::of(device));
        Ok(number)
    }

    /// Ends a pool; what was allocated from it stays. A device that allocated from it allocates from its default pool again.
    ///
    /// # Errors
    /// It is a default pool, or there is none.
    pub fn destroy_pool(&self, pool: u32) -> Result<(), Code> {
        let mut state = self.pools.state();
        if (pool as usize) < state.current.len() {
            return Err(INVALID_VALUE);
        }
        state.pools.remove(&pool).ok_or(INVALID_VALUE)?;
        for (device, current) in state.current.iter_mut().enumerate().filter(|(_, of)| **of == pool) {
            // At most sixteen devices.
            *current = device as u32;
        }
        Ok(())
    }

    /// Calls `work` with a pool.
    ///
    /// # Errors
    /// There is none, or what `work` says.
    pub fn with_pool<T>(
        &self,
        pool: u32,
        work: impl FnOnce(&mut Pool) -> Result<T, Code>,
    ) -> Result<T, Code> {
        work(self.pools.state().pools.get_mut(&pool).ok_or(INVALID_VALUE)?)
    }

    /// The pool that a device allocates from.
    ///
    /// # Errors
    /// There is no such device.
    pub fn current_pool(&self, device: u32) -> Result<u32, Code> {
        self.device(device)?;
        Ok(self.pools.state().current[device as usize])
    }

    /// Has a device allocate from a pool of its own.
    ///
    /// # Errors
    /// There is no such pool, or it is of another device.
    pub fn set_current_pool(&self, device: u32, pool: u32) -> Result<(), Code> {
        self.device(device)?;
        let mut state = self.pools.state();
        if state.pools.get(&pool).is_none_or(|pool| pool.device != device) {
            return Err(INVALID_VALUE);
        }
        state.current[device as usize] = pool;
        Ok(())
    }

    /// Allocates from a pool in the order of calls, which is stricter than that of a stream.
    ///
    /// # Errors
    /// There is no such pool, or no memory is left.
    pub fn allocate_from(&self, pool: u32, bytes: u64) -> Result<u64, Code> {
        let device = self.with_pool(pool, |pool| Ok(pool.device))?;
        // As CUDA has it, a pool and what is allocated from it outlive contexts.
        let address = self.allocate(Owner::device_alone(device), bytes)?;
        let mut state = self.pools.state();
        if address != 0 {
            state.owners.insert(address, (pool, bytes));
        }
        if let Some(pool) = state.pools.get_mut(&pool) {
            pool.used += bytes;
            pool.used_max = pool.used_max.max(pool.used);
        }
        Ok(address)
    }

    /// Frees in the order of a stream; in a capture each launch of the graph does.
    ///
    /// # Errors
    /// Nothing was allocated at this address, or, in a capture, not by a graph.
    pub fn free_in(&self, stream: &Stream, address: u64) -> Result<(), Code> {
        if address == 0 {
            return Ok(());
        }
        if stream.is_captured() {
            return self.free_captured(stream, address);
        }
        self.free(address)
    }

    /// The handle of the pool that memory is of which begins there, or null.
    #[must_use]
    pub fn pool_around(&self, start: u64) -> *mut std::ffi::c_void {
        let found = self.pools.state().owners.get(&start).map(|(pool, _)| *pool);
        found.map_or(std::ptr::null_mut(), |pool| super::handle::Kind::Pool.handle(pool))
    }

    /// Ends the pools of a device but for its default pool, which is as at the start.
    pub(super) fn reset_pools(&self, device: u32) {
        let mut state = self.pools.state();
        let of_device: Vec<u32> =
            state.pools.iter().filter(|(_, pool)| pool.device == device).map(|(number, _)| *number).collect();
        state.owners.retain(|_, (pool, _)| !of_device.contains(pool));
        state.held.retain(|_, held| held.device != device);
        state.pools.retain(|number, _| !of_device.contains(number));
        state.pools.insert(device, Pool::of(device));
        state.current[device as usize] = device;
    }

    /// Memory is to be freed, which may be of a pool: from here on it is not. Returns the pool, and its bytes.
    pub(super) fn take_pool_of(&self, address: u64) -> Option<(u32, u64)> {
        let mut state = self.pools.state();
        let owner = state.owners.remove(&address)?;
        if let Some(pool) = state.pools.get_mut(&owner.0) {
            pool.used = pool.used.saturating_sub(owner.1);
        }
        Some(owner)
    }

    /// Memory was not freed after all.
    pub(super) fn put_pool_of(&self, address: u64, owner: Option<(u32, u64)>) {
        let Some((number, bytes)) = owner else { return };
        let mut state = self.pools.state();
        state.owners.insert(address, (number, bytes));
        if let Some(pool) = state.pools.get_mut(&number) {
            pool.used += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::hostile::with_honest_node;
    use crate::code::INVALID_VALUE;

    #[test]
    fn what_threads_free_at_once_is_counted_once_by_its_pool() {
        const TIMES: usize = 3000;
        with_honest_node(|session| {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..TIMES {
                            let address = session.allocate_from(0, 512).unwrap();
                            session.free(address).unwrap();
                        }
                    });
                }
            });
            assert_eq!(session.with_pool(0, |pool| Ok(pool.used)), Ok(0));
            assert!(session.pools.state().owners.is_empty());
            assert_eq!(session.free(4096), Err(INVALID_VALUE));
        });
    }
}
