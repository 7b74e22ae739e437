//! Many operations in flight from one thread: granted memory over links, the rest over a queue of TCP that is opened when it is needed.

use super::links::Links;
use super::mover::{Ending, Job, Mover};
use crate::endpoint::{Completion, Endpoint, Outcome, Queue};
use crate::error::FabricError;
use crate::part::Part;
use crate::slice::Slice;
use crate::tcp::Mode;
use hinterland_types::{ByteRange, Handle};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Operations in flight at once.
const OPERATIONS_MAX: usize = 4096;
/// Looks before a thread that may sleep does.
const POLLS: u32 = 256;
/// Longest turn of one of the two sides while both have work.
const TURN: Duration = Duration::from_millis(1);

/// What an operation was asked to do: kept to keep its memory, and to do it again by messages.
struct Asked {
    tag: u64,
    runs: Vec<ByteRange>,
    slices: Vec<Slice>,
}

pub(super) struct RdmaQueue {
    links: Arc<Links>,
    streams: usize,
    mover: Mover,
    asked: HashMap<u64, Asked>,
    next: u64,
    over_tcp: Option<Box<dyn Queue>>,
    completed: Vec<Completion>,
    ended: Vec<(Job, Ending)>,
}

impl RdmaQueue {
    pub fn open(links: &Arc<Links>, streams: usize) -> Self {
        Self {
            links: Arc::clone(links),
            streams,
            mover: Mover::new(links),
            asked: HashMap::new(),
            next: 0,
            over_tcp: None,
            completed: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn tcp(&mut self) -> Result<&mut Box<dyn Queue>, FabricError> {
        match &mut self.over_tcp {
            Some(_) => {}
            none => *none = Some(self.links.tcp.queue(self.streams)?),
        }
        self.over_tcp.as_mut().ok_or(FabricError::Unsupported { what: "open a queue" })
    }

    fn post(
        &mut self,
        (tag, handle, write): (u64, Handle, bool),
        runs: &[ByteRange],
        slices: &[Slice],
    ) -> Result<(), FabricError> {
        if self.in_flight() >= OPERATIONS_MAX {
            let (value, limit) = (OPERATIONS_MAX as u64 + 1, OPERATIONS_MAX as u64);
            return Err(FabricError::Limit { what: "number of operations in flight", value, limit });
        }
        let bytes = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.bytes()));
        let room: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        let writable = write || slices.iter().all(Slice::is_writable);
        let wanted = !write || self.links.options.writes;
        if bytes == room && bytes > 0 && writable && wanted && !self.links.healthy().is_empty() {
            let parts: Vec<Part> = slices.iter().map(Part::of_slice).collect();
            let number = self.next;
            // SAFETY: `asked` keeps the slices until the job has ended; dropped, the mover goes before them.
            let job = unsafe { Job::cut(&self.links, (number, handle, write), runs, &parts) };
            if let Some(job) = job {
                self.next += 1;
                self.asked.insert(number, Asked { tag, runs: runs.to_vec(), slices: slices.to_vec() });
                self.mover.add(job);
                return Ok(());
            }
        }
        self.post_message((tag, handle, write), runs, slices)
    }

    fn post_message(
        &mut self,
        (tag, handle, write): (u64, Handle, bool),
        runs: &[ByteRange],
        slices: &[Slice],
    ) -> Result<(), FabricError> {
        // Relaxed: a count.
        self.links.by_message.fetch_add(1, Ordering::Relaxed);
        let queue = self.tcp()?;
        if write {
            queue.post_write(tag, handle, runs, slices)
        } else {
            queue.post_read(tag, handle, runs, slices)
        }
    }

    /// Turns what the mover ended into completions, or into requests by message.
    fn settle(&mut self) {
        for (job, ending) in std::mem::take(&mut self.ended) {
            let Some(asked) = self.asked.remove(&job.tag) else { continue };
            let (tag, handle, write) = (asked.tag, job.handle, job.write);
            let result = match ending {
                Ending::Done => Ok(()),
                Ending::ByMessage => {
                    match self.post_message((tag, handle, write), &asked.runs, &asked.slices) {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    }
                }
            };
            self.completed.push(Completion { tag, result: result.map(|()| Outcome::Done) });
        }
    }

    fn step(&mut self, completions: &mut Vec<Completion>, wait: Duration) -> Result<usize, FabricError> {
        let before = completions.len();
        self.mover.step(&mut self.ended);
        self.settle();
        completions.append(&mut self.completed);
        if let Some(queue) = &mut self.over_tcp {
            let wait = if completions.len() > before { Duration::ZERO } else { wait };
            queue.poll(completions, wait)?;
        }
        Ok(completions.len() - before)
    }
}

impl Queue for RdmaQueue {
    fn post_read(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        into: &[Slice],
    ) -> Result<(), FabricError> {
        self.post((tag, handle, false), runs, into)
    }

    fn post_write(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        from: &[Slice],
    ) -> Result<(), FabricError> {
        self.post((tag, handle, true), runs, from)
    }

    fn post_call(&mut self, tag: u64, body: &[u8]) -> Result<(), FabricError> {
        self.tcp()?.post_call(tag, body)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Duration) -> Result<usize, FabricError> {
        let (started, mut polls) = (Instant::now(), 0u32);
        let spins = self.links.tcp.options().mode == Mode::Polling;
        loop {
            let messages = self.over_tcp.as_ref().is_some_and(|queue| queue.in_flight() > 0);
            let moving = self.mover.busy() > 0;
            let left = wait.saturating_sub(started.elapsed());
            let turn = match (messages, moving) {
                (true, false) => left,
                (true, true) => left.min(TURN),
                _ => Duration::ZERO,
            };
            let count = self.step(completions, turn)?;
            if count > 0 || self.in_flight() == 0 || started.elapsed() >= wait {
                return Ok(count);
            }
            let after = self.links.tcp.options().timeout;
            if self.mover.oldest().is_some_and(|oldest| oldest.elapsed() >= after) {
                self.mover.give_up();
            }
            polls = polls.saturating_add(1);
            if polls >= POLLS && !spins && !messages {
                self.mover.sleep(left);
            }
        }
    }

    fn in_flight(&self) -> usize {
        let messages = self.over_tcp.as_ref().map_or(0, |queue| queue.in_flight());
        self.asked.len() + messages + self.completed.len()
    }
}
