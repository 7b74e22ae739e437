//! One peer: what it granted is read and written one-sidedly, everything else goes over TCP, and so does what RDMA fails to do.

use super::abi;
use super::link::{Answer, CHUNK_BYTES, Fate, Link, Order, RUNS_MAX};
use super::links::{Counts, Links};
use super::mover::{Ending, Job, Mover, gather, scatter, sleep_on};
use super::queue::RdmaQueue;
use crate::endpoint::{Capabilities, Endpoint, Found, Queue};
use crate::error::FabricError;
use crate::part::{Destination, Part, Source};
use crate::tcp::{ClientOptions, Mode, TcpEndpoint};
use hinterland_types::{ByteRange, Handle, NodeId};
use std::fmt::Display;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Looks at a link before a thread that may sleep does.
const POLLS: u32 = 256;

/// How RDMA is used towards a peer.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// Whether it is used at all.
    pub enabled: bool,
    /// Names of the devices; empty for all.
    pub devices: Vec<String>,
    /// Whether granted memory is asked for to write it; if not, writes go by message at once.
    pub writes: bool,
    /// Whether calls go by messages of a queue pair, if they are short and the pair has none under way.
    pub calls: bool,
    /// Whether devices swap words. All who swap the same word must then do it so: a device and a processor do not see each
    /// other's swaps as one.
    pub device_atomics: bool,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { enabled: true, devices: Vec::new(), writes: true, calls: true, device_atomics: false }
    }
}

/// A peer, reached by RDMA and TCP. Queue pairs are connected when they are first needed.
pub struct RdmaEndpoint {
    links: Arc<Links>,
    /// Short operations take the links in turns.
    turn: AtomicUsize,
}

impl RdmaEndpoint {
    /// Connects over TCP and opens a session; the first use that needs them connects queue pairs, if both sides have devices.
    ///
    /// # Errors
    /// As [`TcpEndpoint::connect`]. That there is no RDMA is no error: see [`why_not`](Self::why_not).
    pub fn connect(
        address: impl ToSocketAddrs + Display,
        mut options: ClientOptions,
        rdma: RdmaOptions,
    ) -> Result<Self, FabricError> {
        options.rdma = rdma.enabled && !super::devices().is_empty() && super::loadable().is_ok();
        let tcp = TcpEndpoint::connect(address, options)?;
        Ok(Self { links: Arc::new(Links::new(tcp, rdma)), turn: AtomicUsize::new(0) })
    }

    /// The session beside it.
    pub fn tcp(&self) -> &TcpEndpoint {
        &self.links.tcp
    }

    /// The node at the other end.
    pub fn node(&self) -> NodeId {
        self.links.tcp.node()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.links.counts()
    }

    /// Why no queue pair is connected, in words.
    pub fn why_not(&self) -> Option<String> {
        self.links.why_not()
    }

    #[cfg(test)]
    pub(super) fn inside_for_test(&self) -> &Links {
        &self.links
    }

    fn polls(&self) -> bool {
        self.links.tcp.options().mode == Mode::Polling
    }

    /// Moves by RDMA; `false` if it has to go by TCP.
    fn transfer(
        &self,
        write: bool,
        handle: Handle,
        runs: &[ByteRange],
        parts: &[Part],
    ) -> Result<bool, FabricError> {
        let bytes = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.bytes()));
        let buffer_bytes: u64 = parts.iter().map(|part| part.bytes() as u64).sum();
        if bytes != buffer_bytes || bytes == 0 || (write && !self.links.options.writes) {
            return Ok(false);
        }
        let links = self.links.healthy();
        if links.is_empty() {
            return Ok(false);
        }
        if bytes <= CHUNK_BYTES as u64
            && runs.len() <= RUNS_MAX
            && let Some(ending) = self.short(&links, (write, handle), runs, parts)?
        {
            return Ok(ending == Ending::Done);
        }
        // SAFETY: the parts are borrowed by our caller until we return; the mover is gone by then, and with it the job.
        let job = unsafe { Job::cut(&self.links, (0, handle, write), runs, parts) };
        let Some(job) = job else {
            // Relaxed: a count.
            self.links.by_message.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        };
        let mut mover = Mover::new(&self.links);
        mover.add(job);
        let (mut ended, mut polls, mut progressed) = (Vec::new(), 0u32, Instant::now());
        loop {
            if mover.step(&mut ended) {
                (polls, progressed) = (0, Instant::now());
            }
            if let Some((_, ending)) = ended.pop() {
                if ending == Ending::ByMessage {
                    // Relaxed: a count.
                    self.links.by_message.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(ending == Ending::Done);
            }
            polls = polls.saturating_add(1);
            self.pause(polls, || mover.sleep(Duration::from_millis(2)));
            let after = self.links.tcp.options().timeout;
            if polls.is_multiple_of(POLLS) && progressed.elapsed() >= after {
                let during = if write { "a one-sided write" } else { "a one-sided read" };
                return Err(FabricError::Timeout { peer: self.node(), during, after });
            }
        }
    }

    /// Moves what fits into one chunk: no job is made and nothing is allocated, since on real devices that would take as long
    /// as the way there and back. `None` if it has to be moved as longer ones are.
    fn short(
        &self,
        links: &[Arc<Link>],
        (write, handle): (bool, Handle),
        runs: &[ByteRange],
        parts: &[Part],
    ) -> Result<Option<Ending>, FabricError> {
        // Relaxed: any link is as good.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let operation = if write { abi::RDMA_WRITE } else { abi::RDMA_READ };
        let unused = Order { operation, remote: 0, key: 0, offset: 0, bytes: 0, operands: [0; 2] };
        let mut orders = [unused; RUNS_MAX];
        let mut filled = None;
        // Those after the first are looked at only if it does not reach this memory.
        for place in 0..links.len() {
            let link = &links[(turn + place) % links.len()];
            filled = self
                .fill((link, write, handle), runs, &mut orders)
                .map(|(count, bytes)| (link, count, bytes));
            if filled.is_some() {
                break;
            }
        }
        let Some((link, count, bytes)) = filled else {
            // Relaxed: a count.
            self.links.by_message.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(Ending::ByMessage));
        };
        let Some(slot) = link.reserve() else { return Ok(None) };
        if write {
            // SAFETY: the chunk was reserved for us; our caller vouches for the parts, which have `bytes` bytes.
            unsafe { gather(parts, 0, link.chunk(slot), bytes) };
        }
        link.begin(slot, &orders[..count]);
        // Relaxed: counts.
        self.links.one_sided.fetch_add(1, Ordering::Relaxed);
        self.links.requests.fetch_add(count as u64, Ordering::Relaxed);
        let during = if write { "a one-sided write" } else { "a one-sided read" };
        match self.wait(link, self.links.tcp.options().timeout, during, || Ok(link.take(slot)))? {
            Fate::Done => {
                if !write {
                    // SAFETY: as above; the chunk's memory is ours until it is released.
                    unsafe { scatter(link.chunk(slot), bytes, parts, 0) };
                }
                link.release(slot);
                Ok(Some(Ending::Done))
            }
            Fate::Failed { refused } => {
                if refused {
                    self.links.forget(handle);
                }
                // A late packet of this link must not write after somebody wrote the same place in another way.
                let closed = !write || self.links.disconnect(link);
                if refused || !closed {
                    // Relaxed: a count.
                    self.links.by_message.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(Ending::ByMessage));
                }
                Ok(None)
            }
        }
    }

    /// Fills in the orders of short runs over one link; `None` if not all of it may be reached so.
    fn fill(
        &self,
        (link, write, handle): (&Link, bool, Handle),
        runs: &[ByteRange],
        orders: &mut [Order; RUNS_MAX],
    ) -> Option<(usize, usize)> {
        let (mut count, mut bytes) = (0, 0);
        for run in runs.iter().filter(|run| run.bytes() > 0) {
            let granted = self.links.grant(handle, *run, write)?;
            let key = granted.key(link)?;
            // All runs together are at most a chunk.
            let run_bytes = run.bytes() as usize;
            let order = orders.get_mut(count)?;
            order.remote = key.address.wrapping_add(run.offset() - granted.range.offset());
            (order.key, order.offset, order.bytes) = (key.key, bytes, run_bytes);
            (count, bytes) = (count + 1, bytes + run_bytes);
        }
        Some((count, bytes))
    }

    fn pause(&self, polls: u32, sleep: impl FnOnce()) {
        if polls < POLLS || self.polls() {
            std::hint::spin_loop();
        } else {
            sleep();
        }
    }

    /// Waits for one link until `done`; a link that takes too long is given up.
    fn wait<T>(
        &self,
        link: &Arc<Link>,
        within: Duration,
        during: &'static str,
        mut done: impl FnMut() -> Result<Option<T>, FabricError>,
    ) -> Result<T, FabricError> {
        let (started, mut polls) = (Instant::now(), 0u32);
        loop {
            link.poll();
            if let Some(found) = done()? {
                return Ok(found);
            }
            polls = polls.saturating_add(1);
            self.pause(polls, || sleep_on(&[link], Duration::from_millis(2)));
            if polls.is_multiple_of(POLLS) && started.elapsed() >= within {
                link.fail();
                return Err(FabricError::Timeout { peer: self.node(), during, after: within });
            }
        }
    }

    /// A swap or an addition by the peer's device.
    fn device_atomic(
        &self,
        operation: i32,
        handle: Handle,
        offset: u64,
        operands: [u64; 2],
    ) -> Result<u64, FabricError> {
        let refused =
            FabricError::Unsupported { what: "swap this word by a device, and must not by a processor" };
        if !offset.is_multiple_of(8) {
            return Err(FabricError::Unsupported { what: "swap a word that is not aligned to 8 bytes" });
        }
        let range = ByteRange::new(offset, 8).map_err(|_| refused.clone())?;
        let links = self.links.healthy();
        let granted = self.links.grant(handle, range, true).ok_or_else(|| refused.clone())?;
        let room = links.iter().find_map(|link| {
            let key = granted.key(link)?;
            link.reserve().map(|slot| (link, key, slot))
        });
        let (link, key, slot) = room.ok_or(refused)?;
        let remote = key.address.wrapping_add(offset - granted.range.offset());
        link.begin(slot, &[Order { operation, remote, key: key.key, offset: 0, bytes: 8, operands }]);
        // Relaxed: counts.
        self.links.one_sided.fetch_add(1, Ordering::Relaxed);
        self.links.requests.fetch_add(1, Ordering::Relaxed);
        let during = "an atomic operation";
        let fate = self.wait(link, self.links.tcp.options().timeout, during, || Ok(link.take(slot)))?;
        match fate {
            Fate::Done => {
                // SAFETY: the chunk is ours until it is released, and aligned: chunks are multiples of 8 in memory that is.
                let word = unsafe { link.chunk(slot).cast::<u64>().read_volatile() };
                link.release(slot);
                Ok(word)
            }
            Fate::Failed { .. } => Err(FabricError::Closed { peer: self.node(), during }),
        }
    }

    /// A call by messages; `None` if it has to go by TCP.
    fn message_call(&self, body: &[u8], within: Duration) -> Option<Result<Vec<u8>, FabricError>> {
        if !self.links.options.calls {
            return None;
        }
        let links = self.links.made();
        let link = links.iter().find(|link| link.call(body))?;
        // Relaxed: a count.
        self.links.calls.fetch_add(1, Ordering::Relaxed);
        let (peer, during) = (self.node(), "a call");
        let answer = self.wait(link, within, during, || {
            link.answer().map_err(|what| match link.has_failed() {
                true => FabricError::Closed { peer, during },
                false => FabricError::WrongAnswer { peer, during, what },
            })
        });
        Some(match answer {
            Ok(Answer::Reply(body)) => Ok(body),
            Ok(Answer::Error(error)) => Err(FabricError::Remote { peer, error }),
            Err(error) => Err(error),
        })
    }
}

impl Endpoint for RdmaEndpoint {
    fn capabilities(&self) -> Capabilities {
        let over_tcp = self.links.tcp.capabilities();
        if self.links.healthy().is_empty() {
            return over_tcp;
        }
        Capabilities { one_sided: true, inline_bytes: super::INLINE_BYTES, ..over_tcp }
    }

    fn read_to(&self, handle: Handle, runs: &[ByteRange], into: Destination<'_>) -> Result<(), FabricError> {
        if self.transfer(false, handle, runs, into.parts())? {
            return Ok(());
        }
        self.links.tcp.read_to(handle, runs, into)
    }

    fn write_from(&self, handle: Handle, runs: &[ByteRange], from: Source<'_>) -> Result<(), FabricError> {
        if self.transfer(true, handle, runs, from.parts())? {
            return Ok(());
        }
        self.links.tcp.write_from(handle, runs, from)
    }

    fn compare_and_swap(
        &self,
        handle: Handle,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, FabricError> {
        if self.links.options.device_atomics {
            return self.device_atomic(abi::COMPARE_SWAP, handle, offset, [expected, desired]);
        }
        self.links.tcp.compare_and_swap(handle, offset, expected, desired)
    }

    fn fetch_and_add(&self, handle: Handle, offset: u64, addend: u64) -> Result<u64, FabricError> {
        if self.links.options.device_atomics {
            return self.device_atomic(abi::FETCH_ADD, handle, offset, [addend, 0]);
        }
        self.links.tcp.fetch_and_add(handle, offset, addend)
    }

    fn fetch(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        self.links.tcp.fetch(question, into)
    }

    fn parallel_from(&self) -> usize {
        // A device carries a read of any length as quickly as several.
        if self.links.healthy().is_empty() { self.links.tcp.parallel_from() } else { usize::MAX }
    }

    fn has_ended(&self) -> bool {
        self.links.tcp.has_ended()
    }

    fn call_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        match self.message_call(body, within) {
            Some(answer) => answer,
            None => self.links.tcp.call_within(body, within),
        }
    }

    fn call(&self, body: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.call_within(body, self.links.tcp.options().timeout)
    }

    fn queue(&self, streams: usize) -> Result<Box<dyn Queue>, FabricError> {
        if self.links.healthy().is_empty() {
            return self.links.tcp.queue(streams);
        }
        Ok(Box::new(RdmaQueue::open(&self.links, streams)))
    }
}
