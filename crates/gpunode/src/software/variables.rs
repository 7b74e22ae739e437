//! Memory for variables of modules, at the end of the window.

use super::engine::{Engine, TaskId};
use super::space::{Space, WINDOW_BYTES};
use crate::failure::{Failure, number};
use std::collections::HashMap;

/// The end of the window, where variables of modules lie.
pub(super) const OWN_BYTES: u64 = 16 << 30;
/// What a module's memory is made of: the alignment that PTX may ask for.
const PIECE_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct Range {
    address: u64,
    bytes: u64,
}

/// Which module has which memory.
#[derive(Debug)]
pub(super) struct Variables {
    /// The next address that nobody has had.
    next: u64,
    end: u64,
    /// Bytes that modules have, and the most of them.
    used: u64,
    most: u64,
    of_modules: HashMap<u32, Vec<Range>>,
    /// What is nobody's, once a task has taken its memory away.
    free: Vec<(Range, TaskId)>,
}

impl Variables {
    /// None yet, and at most so many bytes of all modules together.
    pub(super) fn new(space: &Space, most: u64) -> Self {
        let end = space.start() + WINDOW_BYTES;
        let (of_modules, free) = (HashMap::new(), Vec::new());
        Self { next: end - OWN_BYTES, end, used: 0, most, of_modules, free }
    }

    /// Memory for variables of a module.
    pub(super) fn take(
        &mut self,
        space: &Space,
        engine: &Engine,
        module: u32,
        bytes: u64,
    ) -> Result<u64, Failure> {
        let missing = || {
            let words = format!("no memory is left for {bytes} bytes of variables");
            Failure::new(number::OUT_OF_MEMORY, words)
        };
        let whole = bytes.max(1).checked_next_multiple_of(PIECE_BYTES).ok_or_else(missing)?;
        if whole > self.most.saturating_sub(self.used) {
            return Err(missing());
        }
        let address = self.address(engine, whole).ok_or_else(missing)?;
        space.map(address, whole)?;
        self.used += whole;
        self.of_modules.entry(module).or_default().push(Range { address, bytes: whole });
        Ok(address)
    }

    /// Fresh addresses, or else those that modules of as many bytes had.
    fn address(&mut self, engine: &Engine, bytes: u64) -> Option<u64> {
        if bytes <= self.end - self.next {
            self.next += bytes;
            return Some(self.next - bytes);
        }
        let mut open: Vec<TaskId> = self.free.iter().map(|(_, task)| *task).collect();
        engine.retain_open(&mut open);
        let is_fit = |(range, task): &(Range, TaskId)| range.bytes == bytes && !open.contains(task);
        let place = self.free.iter().position(is_fit)?;
        Some(self.free.swap_remove(place).0.address)
    }

    /// A module is gone: `unmap` takes the memory at an address away, and names the task that does it.
    pub(super) fn forget(&mut self, module: u32, mut unmap: impl FnMut(u64) -> TaskId) {
        for range in self.of_modules.remove(&module).unwrap_or_default() {
            self.used -= range.bytes;
            self.free.push((range, unmap(range.address)));
        }
    }
}
