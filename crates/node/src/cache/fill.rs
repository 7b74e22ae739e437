//! Fill workers: take units from the queue, make room, fetch, check, write, wake.
//!
//! Units that a program waits for go first.

use super::Cache;
use super::evict;
use super::file::CacheFile;
use crate::fault_point;
use crate::refused::{Refused, errno};
use hinterland_fabric::Intake;
use hinterland_policy::Eviction;
use hinterland_types::ByteRange;
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Most bytes that a worker fetches at once: a huge page, little enough to stay in the processor's cache between the
/// socket and the file.
pub const PART_BYTES: u64 = 2 << 20;

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
pub fn work(cache: &Cache, mut intake: Intake) {
    while let Some(task) = cache.queue.pop() {
        let begun = task.file.lock().units.begin(task.unit);
        if let Some(demanded) = begun {
            fill_unit(cache, &mut intake, &task, demanded);
        }
    }
}

fn fill_unit(cache: &Cache, intake: &mut Intake, task: &Task, demanded: bool) {
    let started = Instant::now();
    let memory = task.file.unit_memory(task.unit);
    if !cache.make_room(&task.file, memory, demanded) && !demanded {
        // A prefetch that finds no room is given up; a touch that came meanwhile is queued again.
        let waiters = task.file.lock().units.fail(task.unit);
        retry(cache, task, waiters);
        return;
    }
    fault_point::reach("fill-begun");
    match fetch_unit(cache, intake, task) {
        Ok(()) => {
            fault_point::reach("fill-written");
            let (waiters, demanded) = {
                let mut state = task.file.lock();
                state.probation.insert(evict::key(task.unit), memory);
                state.loops.filled(task.unit);
                // What is known of an earlier life says nothing.
                state.used.take(task.unit);
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
                let what = if refused.code == errno::ENOMEM { "find no memory here" } else { "are lost" };
                let text = format!("bytes {} to {} of {name} {what}: {refused}", range.offset(), range.end());
                cache.problem(&text);
                // Relaxed: a counter that nothing is ordered by.
                let faults = waiters.iter().filter(|waiter| waiter.is_fault()).count();
                cache.tallies.poisoned_faults.fetch_add(faults as u64, Ordering::Relaxed);
                task.file.poison(task.unit, &waiters, &Refused::new(refused.code, text));
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

fn fetch_unit(cache: &Cache, intake: &mut Intake, task: &Task) -> Result<(), Refused> {
    let unit = task.file.units.range(task.unit);
    let mut offset = unit.offset();
    while offset < unit.end() {
        let bytes = PART_BYTES.min(unit.end() - offset);
        // The part lies inside the unit, which fits.
        let part = ByteRange::new(offset, bytes).unwrap_or_default();
        fill_part(cache, intake, task, part)?;
        offset += bytes;
    }
    Ok(())
}

/// Fills a part: pages of 4 KiB as the pieces arrive, a huge page when all of it is there.
fn fill_part(cache: &Cache, intake: &mut Intake, task: &Task, part: ByteRange) -> Result<(), Refused> {
    let page_bytes = task.file.page_kind().page_bytes();
    let by_piece = page_bytes <= CHECKSUM_BLOCK_BYTES;
    let mut deliver = |intake: &mut Intake, piece: ByteRange| {
        let at = (piece.offset() - part.offset()) as usize;
        if by_piece { write(cache, intake, task, piece, at) } else { Ok(()) }
    };
    task.file.source.fetch(part, intake, &mut deliver)?;
    fault_point::reach("fill-fetched");
    if by_piece { Ok(()) } else { write(cache, intake, task, part, 0) }
}

/// Writes what lies in the intake from `at` on.
fn write(
    cache: &Cache,
    intake: &mut Intake,
    task: &Task,
    range: ByteRange,
    at: usize,
) -> Result<(), Refused> {
    let bytes = range.bytes() as usize;
    let whole = bytes.next_multiple_of(task.file.page_kind().page_bytes() as usize);
    // The file ends with a whole page; what lies behind the object reads as zeros.
    intake.zero(at + bytes, whole - bytes);
    cache.copy(&task.file, range.offset(), intake.bytes(at, whole))
}
