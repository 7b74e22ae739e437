//! Fill workers: take units from the queue, make room, fetch, check, write, wake.
//!
//! Units that a program waits for go first. A unit is fetched in pieces of at most [`PIECE_BYTES`], so that
//! a staging buffer stays in the processor's cache between the socket and the file.

use super::Cache;
use super::evict;
use super::file::CacheFile;
use crate::fault_point;
use crate::refused::Refused;
use hinterland_os::filler::Staging;
use hinterland_policy::Eviction;
use hinterland_types::ByteRange;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Largest piece that is fetched and written at once: what a worker needs to receive it.
pub const PIECE_BYTES: u64 = 2 << 20;

/// One unit to fill.
pub struct Task {
    /// Which file.
    pub file: Arc<CacheFile>,
    /// Which unit.
    pub unit: u32,
}

#[derive(Default)]
struct Queues {
    demand: VecDeque<Task>,
    ahead: VecDeque<Task>,
    stopping: bool,
}

/// Units that wait to be filled, those that programs wait for first.
#[derive(Default)]
pub struct FillQueue {
    queues: Mutex<Queues>,
    filled: Condvar,
}

impl FillQueue {
    /// Adds units of one file; the flag says that a program waits.
    pub fn push(&self, file: &Arc<CacheFile>, units: &[(u32, bool)]) {
        if units.is_empty() {
            return;
        }
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for &(unit, waits) in units {
            let task = Task { file: Arc::clone(file), unit };
            if waits { queues.demand.push_back(task) } else { queues.ahead.push_back(task) }
        }
        drop(queues);
        if units.len() == 1 { self.filled.notify_one() } else { self.filled.notify_all() }
    }

    /// Lets every worker end.
    pub fn stop(&self) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.filled.notify_all();
    }

    fn pop(&self) -> Option<Task> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if queues.stopping {
                return None;
            }
            let next = queues.demand.pop_front().or_else(|| queues.ahead.pop_front());
            if next.is_some() {
                return next;
            }
            queues = self.filled.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One worker: runs until the queue is stopped.
pub fn work(cache: &Cache, mut staging: Staging) {
    while let Some(task) = cache.queue.pop() {
        let begun = task.file.lock().units.begin(task.unit);
        if let Some(demanded) = begun {
            fill_unit(cache, &mut staging, &task, demanded);
        }
    }
}

fn fill_unit(cache: &Cache, staging: &mut Staging, task: &Task, demanded: bool) {
    let started = Instant::now();
    let memory = task.file.unit_memory(task.unit);
    if !cache.make_room(&task.file, memory, demanded) && !demanded {
        // A prefetch that finds no room is given up; a touch that came meanwhile is queued again.
        let waiters = task.file.lock().units.fail(task.unit);
        retry(cache, task, waiters);
        return;
    }
    fault_point::reach("fill-begun");
    match fetch_unit(cache, staging, task) {
        Ok(()) => {
            fault_point::reach("fill-written");
            let (waiters, demanded) = {
                let mut state = task.file.lock();
                state.probation.insert(evict::key(task.unit), memory);
                state.loops.filled(task.unit);
                state.units.complete(task.unit)
            };
            fault_point::reach("fill-completed");
            task.file.resolve(task.unit, &waiters);
            cache.count_fill(memory, demanded, started.elapsed());
        }
        Err(refused) => {
            // Half a unit leaves before anybody may fill it again.
            task.file.free_pages(task.unit);
            let waiters = task.file.lock().units.fail(task.unit);
            if !waiters.is_empty() {
                let name = task.file.source.info().name;
                let range = task.file.units.range(task.unit);
                let text =
                    format!("bytes {} to {} of {name} are lost: {refused}", range.offset(), range.end());
                cache.problem(&text);
                // Relaxed: a counter that nothing is ordered by.
                cache.tallies.poisoned_faults.fetch_add(waiters.len() as u64, Ordering::Relaxed);
                task.file.poison(task.unit, &waiters, &text);
            }
        }
    }
}

/// Programs that began to wait for a prefetch that was given up: their faults are asked for again.
fn retry(cache: &Cache, task: &Task, waiters: Vec<super::units::Waiter>) {
    let mut fetch = Vec::new();
    {
        let mut state = task.file.lock();
        for waiter in waiters {
            if state.units.touch(task.unit, waiter) == super::units::Touch::Fetch {
                fetch.push((task.unit, true));
            }
        }
    }
    cache.queue.push(&task.file, &fetch);
}

fn fetch_unit(cache: &Cache, staging: &mut Staging, task: &Task) -> Result<(), Refused> {
    let unit = task.file.units.range(task.unit);
    let mut offset = unit.offset();
    while offset < unit.end() {
        let bytes = PIECE_BYTES.min(unit.end() - offset);
        // The piece lies inside the unit, which fits.
        let piece = ByteRange::new(offset, bytes).unwrap_or_default();
        fill_piece(cache, staging, task, piece)?;
        offset += bytes;
    }
    Ok(())
}

fn fill_piece(cache: &Cache, staging: &mut Staging, task: &Task, piece: ByteRange) -> Result<(), Refused> {
    let bytes = piece.bytes() as usize;
    let page_bytes = task.file.page_kind().page_bytes() as usize;
    let whole = bytes.next_multiple_of(page_bytes);
    let buffer = &mut staging.bytes()[..whole];
    task.file.source.fetch(piece, &mut buffer[..bytes])?;
    fault_point::reach("fill-fetched");
    // The file ends with a whole page; what lies behind the object reads as zeros.
    buffer[bytes..].fill(0);
    cache.copy(&task.file, piece.offset(), buffer)
}
