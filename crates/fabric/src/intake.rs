//! Many reads at once into memory of its own, for one thread that uses the bytes while more are on their way.

use crate::endpoint::{Completion, Endpoint, Outcome, Queue};
use crate::error::FabricError;
use crate::slice::Slice;
use hinterland_os::{Mapping, OsError, SharedSlice};
use hinterland_types::{ByteRange, Handle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for one of several peers before the next one is looked at.
const TURN: Duration = Duration::from_millis(5);

/// Memory, and the queues that read into it.
///
/// What lies in the memory is seen through [`bytes`](Self::bytes) only: nothing moves while the borrow lasts, because
/// everything that moves bytes needs the intake to itself.
pub struct Intake {
    memory: Arc<Mapping>,
    streams: usize,
    sources: Vec<(Arc<dyn Endpoint>, Box<dyn Queue>)>,
    /// What was read without a queue, and is to be told.
    done: Vec<(Arc<dyn Endpoint>, Completion)>,
}

impl Intake {
    /// Takes `bytes` bytes of memory, on huge pages if it can. Each peer is read over `streams` streams of its own; 0: as
    /// many as its endpoint has.
    ///
    /// # Errors
    /// [`OsError`] without memory.
    pub fn new(bytes: usize, streams: usize) -> Result<Self, OsError> {
        let memory = Arc::new(Mapping::anonymous(bytes, true)?);
        Ok(Self { memory, streams, sources: Vec::new(), done: Vec::new() })
    }

    /// Starts to read a range into the memory from `at` on. Where the peer has as many streams as it may, it is read at once over those of the
    /// endpoint.
    ///
    /// # Errors
    /// [`FabricError`] if it could not be posted, no completion follows then: [`FabricError::Limit`] if the bytes do not
    /// fit, else what [`Endpoint::queue`] and [`Queue::post_read`] say.
    pub fn post(
        &mut self,
        endpoint: &Arc<dyn Endpoint>,
        tag: u64,
        handle: Handle,
        from: ByteRange,
        at: usize,
    ) -> Result<(), FabricError> {
        let bytes = usize::try_from(from.bytes()).unwrap_or(usize::MAX);
        let whole = Slice::from(self.memory.slice());
        let into = whole.sub(at, bytes).ok_or_else(|| FabricError::Limit {
            what: "end of a read into an intake",
            value: (at as u64).saturating_add(from.bytes()),
            limit: self.memory.len() as u64,
        })?;
        let known = self.sources.iter().position(|(known, _)| Arc::ptr_eq(known, endpoint));
        if known.is_none() {
            // Nobody reads from a peer that is gone, whose sockets would be kept.
            self.sources.retain(|(known, queue)| queue.in_flight() > 0 || !known.has_ended());
        }
        let place = match known {
            Some(place) => place,
            None => match endpoint.queue(self.streams) {
                Ok(queue) => {
                    self.sources.push((Arc::clone(endpoint), queue));
                    self.sources.len() - 1
                }
                // The streams that all threads share are there.
                Err(error) if error.is_full() => {
                    let result = endpoint.read_shared(handle, &[from], &into).map(|()| Outcome::Done);
                    self.done.push((Arc::clone(endpoint), Completion { tag, result }));
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        self.sources[place].1.post_read(tag, handle, &[from], &[into])
    }

    /// Moves bytes and appends what is complete; waits at most `wait` for the first. Returns how many were appended; 0 at
    /// once if nothing is in flight.
    ///
    /// # Errors
    /// As [`Queue::poll`].
    pub fn poll(&mut self, completions: &mut Vec<Completion>, wait: Duration) -> Result<usize, FabricError> {
        let begun = Instant::now();
        if !self.done.is_empty() {
            let before = completions.len();
            completions.extend(self.done.drain(..).map(|(_, completion)| completion));
            return Ok(completions.len() - before);
        }
        loop {
            let busy = self.sources.iter().filter(|(_, queue)| queue.in_flight() > 0).count();
            let mut count = 0;
            // Also of queues with nothing in flight: what failed at once waits to be told.
            for (_, queue) in &mut self.sources {
                let left = wait.saturating_sub(begun.elapsed());
                let turn = match (count, busy) {
                    (0, 1) => left,
                    (0, _) => left.min(TURN),
                    _ => Duration::ZERO,
                };
                count += queue.poll(completions, turn)?;
            }
            if count > 0 || busy == 0 || begun.elapsed() >= wait {
                return Ok(count);
            }
        }
    }

    /// Part of the memory.
    ///
    /// # Panics
    /// If it does not lie inside: that is a bug of the caller.
    pub fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at <= self.memory.len() && bytes <= self.memory.len() - at, "{bytes} bytes at {at}");
        // SAFETY: inside the mapping, by the line above. Nobody else knows of it but the queues, and they move bytes only
        // in methods that need `&mut self`, directly or by our own.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().add(at), bytes) }
    }

    /// Copies memory of this process into it, from `at` on.
    ///
    /// # Errors
    /// [`OsError`] if the bytes do not fit, or are lost while they are copied.
    pub fn copy(&mut self, at: usize, from: &SharedSlice) -> Result<(), OsError> {
        from.copy_to(0, &self.memory.slice(), at, from.len())
    }

    /// Fills part of the memory with zeros.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    pub fn zero(&mut self, at: usize, bytes: usize) {
        assert!(at <= self.memory.len() && bytes <= self.memory.len() - at, "{bytes} bytes at {at}");
        // SAFETY: as in `bytes`, and writable.
        unsafe { self.memory.start().as_ptr().add(at).write_bytes(0, bytes) };
    }

    /// Ends every read that is in flight, with the queues that hold them; later reads open new ones.
    pub fn abandon(&mut self) {
        self.sources.retain(|(_, queue)| queue.in_flight() == 0);
        self.done.clear();
    }

    /// Lets go of a peer: reads of it that are in flight never complete.
    pub fn forget(&mut self, endpoint: &Arc<dyn Endpoint>) {
        self.sources.retain(|(known, _)| !Arc::ptr_eq(known, endpoint));
        self.done.retain(|(known, _)| !Arc::ptr_eq(known, endpoint));
    }

    /// Reads posted and not completed.
    pub fn in_flight(&self) -> usize {
        self.done.len() + self.sources.iter().map(|(_, queue)| queue.in_flight()).sum::<usize>()
    }
}
