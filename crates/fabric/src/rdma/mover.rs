//! Cuts reads and writes into chunks and moves these over all links that work; what a link leaves undone goes over another.

use super::abi;
use super::link::{CHUNK_BYTES, Fate, Link, Order, RUNS_MAX};
use super::links::{Granted, Links};
use crate::part::Part;
use hinterland_types::{ByteRange, Handle, whole_words};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest sleep before links are looked at again: another thread may have taken what the descriptor told.
const SLEEP: Duration = Duration::from_millis(2);

/// One read or write.
pub(super) struct Job {
    pub tag: u64,
    pub handle: Handle,
    pub write: bool,
    parts: Vec<Part>,
    chunks: Vec<Chunk>,
    next: usize,
    done: usize,
    /// The peer refuses, or no link is left.
    broken: bool,
}

/// A piece of a job that fits into a chunk of a link.
struct Chunk {
    runs: Vec<(u64, usize, Granted)>,
    /// Where in the job's memory.
    at: u64,
    bytes: usize,
}

/// What came of a job.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Done,
    /// To be done again, by messages.
    ByMessage,
}

impl Job {
    /// Cuts a read or write; `None` if not all of it was granted. The lengths are equal.
    ///
    /// # Safety
    /// The parts must be memory to read (of a write) or to fill (of a read) until the job has ended or is dropped.
    pub unsafe fn cut(
        links: &Links,
        (tag, handle, write): (u64, Handle, bool),
        runs: &[ByteRange],
        parts: &[Part],
    ) -> Option<Self> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut at = 0;
        for run in runs {
            let mut offset = run.offset();
            while offset < run.end() {
                let room = chunks.last().filter(|chunk| chunk.runs.len() < RUNS_MAX);
                let room = room.map_or(0, |chunk| CHUNK_BYTES - chunk.bytes);
                // At most a chunk, of which something is always a whole word.
                let bytes = whole_words(offset, run.end(), room as u64) as usize;
                if bytes == 0 {
                    chunks.push(Chunk { runs: Vec::new(), at, bytes: 0 });
                    continue;
                }
                let range = ByteRange::new(offset, bytes as u64).ok()?;
                let granted = links.grant(handle, range, write)?;
                if let Some(chunk) = chunks.last_mut() {
                    chunk.runs.push((offset, bytes, granted));
                    chunk.bytes += bytes;
                }
                offset += bytes as u64;
                at += bytes as u64;
            }
        }
        let parts = parts.to_vec();
        Some(Self { tag, handle, write, parts, chunks, next: 0, done: 0, broken: false })
    }
}

impl Chunk {
    /// Whether a link opens all of it.
    fn fits(&self, link: &Link) -> bool {
        self.runs.iter().all(|(_, _, granted)| granted.key(link).is_some())
    }
}

/// Where a chunk may go.
enum Room {
    At(Arc<Link>, usize),
    /// The links that open it have no slot that is free.
    Full,
    /// No link opens it.
    Nowhere,
}

/// A chunk that is under way.
struct Flying {
    job: usize,
    chunk: usize,
    link: Arc<Link>,
    slot: usize,
    begun: Instant,
}

/// Moves the chunks of several jobs.
pub(super) struct Mover {
    links: Arc<Links>,
    jobs: Vec<Option<Job>>,
    order: VecDeque<usize>,
    again: Vec<(usize, usize)>,
    flying: Vec<Flying>,
    turn: usize,
}

impl Mover {
    pub fn new(links: &Arc<Links>) -> Self {
        let (jobs, order, again, flying) = (Vec::new(), VecDeque::new(), Vec::new(), Vec::new());
        Self { links: Arc::clone(links), jobs, order, again, flying, turn: 0 }
    }

    pub fn add(&mut self, job: Job) {
        let free = self.jobs.iter().position(Option::is_none);
        let place = free.unwrap_or(self.jobs.len());
        match free {
            Some(place) => self.jobs[place] = Some(job),
            None => self.jobs.push(Some(job)),
        }
        self.order.push_back(place);
        self.feed();
    }

    /// Jobs that have not ended.
    pub fn busy(&self) -> usize {
        self.jobs.iter().flatten().count()
    }

    /// When the oldest chunk that is under way began. A job says nothing: it may be long, or wait behind others that are.
    pub fn oldest(&self) -> Option<Instant> {
        self.flying.iter().map(|flight| flight.begun).min()
    }

    /// Moves what can be moved and appends what has ended; returns whether anything came.
    pub fn step(&mut self, ended: &mut Vec<(Job, Ending)>) -> bool {
        for flight in &self.flying {
            flight.link.poll();
        }
        let before = self.flying.len();
        let mut index = 0;
        while index < self.flying.len() {
            let fate = self.flying[index].link.take(self.flying[index].slot);
            match fate {
                Some(fate) => {
                    let flight = self.flying.swap_remove(index);
                    self.land(&flight, fate);
                }
                None => index += 1,
            }
        }
        let came = self.flying.len() < before;
        self.feed();
        let count = ended.len();
        self.collect(ended);
        came || ended.len() > count
    }

    fn land(&mut self, flight: &Flying, fate: Fate) {
        let Some(job) = &mut self.jobs[flight.job] else { return };
        match fate {
            Fate::Done => {
                let chunk = &job.chunks[flight.chunk];
                if !job.write {
                    // SAFETY: the chunk's memory is ours until it is released below; whoever made the job vouches for its parts.
                    unsafe { scatter(flight.link.chunk(flight.slot), chunk.bytes, &job.parts, chunk.at) };
                }
                job.done += 1;
                flight.link.release(flight.slot);
            }
            Fate::Failed { refused } => {
                if refused {
                    self.links.forget(job.handle);
                }
                // A late packet of this link must not write after somebody wrote the same place in another way.
                if job.write && !self.links.disconnect(&flight.link) {
                    job.broken = true;
                }
                job.broken |= refused;
                self.again.push((flight.job, flight.chunk));
            }
        }
    }

    /// Begins as many chunks as links have room for.
    fn feed(&mut self) {
        if self.again.is_empty() && self.order.is_empty() {
            return;
        }
        let links = self.links.healthy();
        if links.is_empty() {
            self.jobs.iter_mut().flatten().for_each(|job| job.broken = true);
        }
        while let Some((place, chunk)) = self.due() {
            match self.room(&links, place, chunk) {
                Room::At(link, slot) => self.begin(place, chunk, link, slot),
                Room::Full => {
                    // To be first when there is room.
                    self.again.push((place, chunk));
                    return;
                }
                Room::Nowhere => self.jobs[place].iter_mut().for_each(|job| job.broken = true),
            }
        }
    }

    fn due(&mut self) -> Option<(usize, usize)> {
        while let Some((place, chunk)) = self.again.pop() {
            if self.jobs[place].as_ref().is_some_and(|job| !job.broken) {
                return Some((place, chunk));
            }
        }
        while let Some(&place) = self.order.front() {
            match &mut self.jobs[place] {
                Some(job) if !job.broken && job.next < job.chunks.len() => {
                    job.next += 1;
                    return Some((place, job.next - 1));
                }
                _ => {
                    self.order.pop_front();
                }
            }
        }
        None
    }

    fn room(&mut self, links: &[Arc<Link>], place: usize, chunk: usize) -> Room {
        let mut room = Room::Nowhere;
        let Some(job) = &self.jobs[place] else { return room };
        for _ in 0..links.len() {
            self.turn = (self.turn + 1) % links.len();
            let link = &links[self.turn];
            if !job.chunks[chunk].fits(link) {
                continue;
            }
            room = Room::Full;
            if let Some(slot) = link.reserve() {
                return Room::At(Arc::clone(link), slot);
            }
        }
        room
    }

    fn begin(&mut self, place: usize, index: usize, link: Arc<Link>, slot: usize) {
        let Some(job) = &mut self.jobs[place] else { return };
        let chunk = &job.chunks[index];
        let mut orders = Vec::with_capacity(chunk.runs.len());
        let mut offset = 0;
        for (remote, bytes, granted) in &chunk.runs {
            let Some(key) = granted.key(&link) else {
                job.broken = true;
                link.release(slot);
                return;
            };
            orders.push(Order {
                operation: if job.write { abi::RDMA_WRITE } else { abi::RDMA_READ },
                remote: key.address.wrapping_add(remote - granted.range.offset()),
                key: key.key,
                offset,
                bytes: *bytes,
                operands: [0; 2],
            });
            offset += bytes;
        }
        if job.write {
            // SAFETY: the chunk was reserved for us; whoever made the job vouches for its parts.
            unsafe { gather(&job.parts, chunk.at, link.chunk(slot), chunk.bytes) };
        }
        link.begin(slot, &orders);
        // Relaxed: counts.
        self.links.one_sided.fetch_add(1, Ordering::Relaxed);
        self.links.requests.fetch_add(orders.len() as u64, Ordering::Relaxed);
        self.flying.push(Flying { job: place, chunk: index, link, slot, begun: Instant::now() });
    }

    fn collect(&mut self, ended: &mut Vec<(Job, Ending)>) {
        for place in 0..self.jobs.len() {
            let over = self.jobs[place].as_ref().is_some_and(|job| {
                let flying = || self.flying.iter().any(|flight| flight.job == place);
                job.done == job.chunks.len() || (job.broken && !flying())
            });
            if over && let Some(job) = self.jobs[place].take() {
                self.order.retain(|other| *other != place);
                self.again.retain(|(other, _)| *other != place);
                let ending = if job.done == job.chunks.len() { Ending::Done } else { Ending::ByMessage };
                ended.push((job, ending));
            }
        }
    }

    /// Sleeps until a link tells of something, at most `within`.
    pub fn sleep(&self, within: Duration) {
        let mut links: Vec<&Arc<Link>> = Vec::new();
        for flight in &self.flying {
            if !links.iter().any(|link| Arc::ptr_eq(link, &flight.link)) {
                links.push(&flight.link);
            }
        }
        sleep_on(&links, within);
    }

    /// Fails the links that something is under way on: it took too long.
    pub fn give_up(&mut self) {
        for flight in &self.flying {
            flight.link.fail();
        }
        self.jobs.iter_mut().flatten().for_each(|job| job.broken = true);
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // What is still under way keeps its chunk; a link that loses chunks so is made again when it has none.
        for flight in &self.flying {
            flight.link.fail();
        }
    }
}

/// Sleeps until one of the links tells of something, at most `within` and a short while.
pub(super) fn sleep_on(links: &[&Arc<Link>], within: Duration) {
    let mut ready: Vec<libc::pollfd> = Vec::with_capacity(links.len());
    for link in links {
        link.arm();
        if link.poll() {
            return;
        }
        ready.push(libc::pollfd { fd: link.descriptor(), events: libc::POLLIN, revents: 0 });
    }
    let milliseconds = i32::try_from(within.min(SLEEP).as_millis().max(1)).unwrap_or(1);
    // SAFETY: the slice lives during the call.
    unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, milliseconds) };
    for (link, ready) in links.iter().zip(&ready) {
        if ready.revents != 0 {
            link.woken();
        }
    }
}

/// Copies `bytes` bytes into the parts from their byte `at` on.
///
/// # Safety
/// Both must be memory of that length, apart from each other.
pub(super) unsafe fn scatter(from: *const u8, bytes: usize, parts: &[Part], at: u64) {
    let mut copied = 0;
    each_piece(parts, at, bytes, |start, bytes| {
        // SAFETY: the caller vouches for both, and the pieces add up to `bytes`.
        unsafe { start.copy_from_nonoverlapping(from.add(copied), bytes) };
        copied += bytes;
    });
}

/// Copies `bytes` bytes of the parts from their byte `at` on.
///
/// # Safety
/// As for [`scatter`].
pub(super) unsafe fn gather(parts: &[Part], at: u64, into: *mut u8, bytes: usize) {
    let mut copied = 0;
    each_piece(parts, at, bytes, |start, bytes| {
        // SAFETY: the caller vouches for both, and the pieces add up to `bytes`.
        unsafe { start.copy_to_nonoverlapping(into.add(copied), bytes) };
        copied += bytes;
    });
}

fn each_piece(parts: &[Part], at: u64, bytes: usize, mut each: impl FnMut(*mut u8, usize)) {
    let mut skip = usize::try_from(at).unwrap_or(usize::MAX);
    let mut left = bytes;
    for part in parts {
        if skip >= part.bytes() {
            skip -= part.bytes();
            continue;
        }
        if left == 0 {
            return;
        }
        let piece = part.skip(skip);
        let now = piece.bytes().min(left);
        each(piece.start(), now);
        (skip, left) = (0, left - now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_found_from_any_byte_on() {
        let mut memory = [[0u8; 5], [1; 5], [2; 5]];
        let parts: Vec<Part> = memory.iter_mut().map(|piece| Part::of_mut(piece)).collect();
        for at in 0..15 {
            for bytes in 0..=15 - at {
                let from: Vec<u8> = (0..bytes as u8).map(|byte| byte + 100).collect();
                let mut back = vec![0; bytes];
                // SAFETY: the parts are live arrays that nothing else uses.
                unsafe {
                    scatter(from.as_ptr(), bytes, &parts, at as u64);
                    gather(&parts, at as u64, back.as_mut_ptr(), bytes);
                }
                assert_eq!(back, from, "{bytes} at {at}");
            }
        }
    }
}
