//! Memory that graphs allocate. It is there as long as a graph or an instance has the node that allocates it, as each launch uses it anew; and it is the
//! program's from a launch until the program or a graph frees it, also when no graph has it any more.

use std::collections::BTreeSet;

use super::context::Owner;
use super::graph::Graph;
use super::session::Session;
use super::stream::Stream;
use crate::code::{CAPTURE_UNSUPPORTED, Code, INVALID_VALUE};

/// What a graph does to memory.
#[derive(Debug, Default, Clone)]
pub struct GraphMemory {
    /// Addresses of what its nodes allocate.
    allocated: BTreeSet<u64>,
    /// Addresses of what its nodes free, its own or another graph's.
    freed: BTreeSet<u64>,
    /// What of its own was freed while it was captured, for what the same stream allocates next: stream and device, bytes, and address.
    free: BTreeSet<(u32, u32, u64, u64)>,
}

impl GraphMemory {
    /// What the program has after a launch.
    fn kept(&self) -> impl Iterator<Item = &u64> {
        self.allocated.difference(&self.freed)
    }

    /// What of other graphs' the program has no more after a launch.
    fn taken(&self) -> impl Iterator<Item = &u64> {
        self.freed.difference(&self.allocated)
    }

    /// Whether a launch changes nothing in what the program has.
    pub(super) fn is_none(&self) -> bool {
        self.allocated.is_empty() && self.freed.is_empty()
    }

    /// What the same stream freed last need not be in front of what it does next.
    pub(super) fn forget_free(&mut self, stream: u32) {
        self.free.retain(|(of, ..)| *of != stream);
    }

    /// Has all that another one has, too, which nothing holds for it.
    pub(super) fn extend(&mut self, other: &Self) {
        self.allocated.extend(&other.allocated);
        self.freed.extend(&other.freed);
    }

    /// The smallest free piece for a stream that is long enough.
    fn take_free(&mut self, stream: u32, device: u32, bytes: u64) -> Option<u64> {
        let from = (stream, device, bytes, 0);
        let found = *self.free.range(from..=(stream, device, u64::MAX, u64::MAX)).next()?;
        self.free.remove(&found);
        self.freed.remove(&found.3);
        Some(found.3)
    }
}

/// What is known of memory that a graph allocates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Its device.
    pub(super) device: u32,
    bytes: u64,
    /// Graphs and instances that have it.
    holders: u32,
    /// Whether the program has it, or may have it: it has the address from the capture on.
    is_live: bool,
}

impl Held {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Session {
    /// Bytes that graphs have of a device, and the most they had since that was last forgotten.
    ///
    /// # Errors
    /// There is no such device.
    pub fn graph_bytes(&self, device: u32) -> Result<(u64, u64), Code> {
        self.device(device)?;
        Ok(self.pools.state().bytes_held(device))
    }

    /// Forgets how many bytes of a device graphs had before.
    ///
    /// # Errors
    /// There is no such device.
    pub fn forget_graph_bytes(&self, device: u32) -> Result<(), Code> {
        self.device(device)?;
        self.pools.state().note_held(device, true);
        Ok(())
    }

    /// Allocates from a pool in the order of a stream: for the graph that it is being captured into, if it is.
    ///
    /// # Errors
    /// The capture has failed, there is no such pool, or no memory is left.
    pub fn allocate_in(&self, stream: &Stream, pool: u32, bytes: u64) -> Result<u64, Code> {
        if !stream.is_captured() {
            return self.allocate_from(pool, bytes);
        }
        match self.captured_graph(stream)? {
            Some(graph) => self.allocate_for(&graph, stream.number, pool, bytes),
            None => self.allocate_from(pool, bytes),
        }
    }

    fn allocate_for(&self, graph: &Graph, stream: u32, pool: u32, bytes: u64) -> Result<u64, Code> {
        let device = self.with_pool(pool, |pool| Ok(pool.device))?;
        if bytes == 0 {
            return Ok(0);
        }
        let mut state = graph.state();
        if let Some(address) = state.memory.take_free(stream, device, bytes) {
            self.with_held(address, |held| held.is_live = true);
            return Ok(address);
        }
        let address = self.allocate(Owner::device_alone(device), bytes)?;
        {
            let mut state = self.pools.state();
            state.held.insert(address, Held { device, bytes, holders: 1, is_live: true });
            state.note_held(device, false);
        }
        state.memory.allocated.insert(address);
        Ok(address)
    }

    fn with_held<T>(&self, address: u64, work: impl FnOnce(&mut Held) -> T) -> Option<T> {
        self.pools.state().held.get_mut(&address).map(work)
    }

    /// Notes in the graph that a stream is being captured into that memory is freed there.
    ///
    /// # Errors
    /// The capture has failed, it was freed there before, or no graph allocates it: only that can a graph free.
    pub(super) fn free_captured(&self, stream: &Stream, address: u64) -> Result<(), Code> {
        let Some(held) = self.with_held(address, |held| *held) else {
            let is_of_pool = self.pools.state().owners.contains_key(&address);
            return Err(if is_of_pool { INVALID_VALUE } else { CAPTURE_UNSUPPORTED });
        };
        let graph = self.captured_graph(stream)?.ok_or(INVALID_VALUE)?;
        let mut state = graph.state();
        let memory = &mut state.memory;
        if !memory.freed.insert(address) {
            return Err(INVALID_VALUE);
        }
        if memory.allocated.contains(&address) {
            memory.free.insert((stream.number, held.device, held.bytes, address));
            self.with_held(address, |held| held.is_live = false);
        }
        Ok(())
    }

    /// The program frees memory: whether it is a graph's.
    ///
    /// # Errors
    /// It is, and was freed before.
    pub(super) fn free_held(&self, address: u64) -> Result<bool, Code> {
        match self.with_held(address, |held| std::mem::replace(&mut held.is_live, false)) {
            None => Ok(false),
            Some(false) => Err(INVALID_VALUE),
            Some(true) => self.free_unheld([address]).map(|()| true),
        }
    }

    /// Gives back what of this neither a graph nor the program has.
    fn free_unheld(&self, addresses: impl IntoIterator<Item = u64>) -> Result<(), Code> {
        for address in addresses {
            {
                let mut state = self.pools.state();
                let is_unheld = |held: &Held| held.holders == 0 && !held.is_live;
                if !state.held.get(&address).is_some_and(is_unheld) {
                    continue;
                }
                state.held.remove(&address);
            }
            self.free_range(address)?;
        }
        Ok(())
    }

    /// Another graph or instance has all that one has.
    pub(super) fn hold(&self, memory: &GraphMemory) {
        for address in &memory.allocated {
            self.with_held(*address, |held| held.holders += 1);
        }
    }

    /// A graph or an instance has gone, or does something else.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn release(&self, memory: &GraphMemory) -> Result<(), Code> {
        for address in &memory.allocated {
            self.with_held(*address, |held| held.holders = held.holders.saturating_sub(1));
        }
        self.free_unheld(memory.allocated.iter().copied())
    }

    /// A graph has the memory of another one, which is a node of it.
    pub(super) fn adopt(&self, to: &mut GraphMemory, child: &GraphMemory) {
        for address in &child.allocated {
            if to.allocated.insert(*address) {
                self.with_held(*address, |held| held.holders += 1);
            }
        }
        to.freed.extend(&child.freed);
    }

    /// An instance was launched: the program has what it allocates and does not free, and no more what it frees of others.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn note_launched(&self, memory: &GraphMemory) -> Result<(), Code> {
        for address in memory.kept() {
            self.with_held(*address, |held| held.is_live = true);
        }
        for address in memory.taken() {
            self.with_held(*address, |held| held.is_live = false);
        }
        self.free_unheld(memory.taken().copied())
    }
}
