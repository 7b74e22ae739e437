//! Fetching bytes that a peer's service finds, in the way that costs least for their size and fabric.
//!
//! Paper 004 (section 5.5) has three ways, and so has this:
//!
//! | way | round trips | copies of the bytes at the asker |
//! | --- | --- | --- |
//! | [`Way::Message`]: they come with the answer, into memory of the fabric's side | 1 | 1 |
//! | [`Way::Read`]: the answer says where they are; memory is made for them; a one-sided read | 2 | 0 |
//! | [`Way::Direct`]: they come with the answer, straight into the caller's memory | 1 | 0 |
//!
//! The last needs memory before the answer, so it needs to know how much. What fits into memory that costs nothing to guess is
//! fetched directly; of what is longer, the rest is read. The guess is *calibrated* when a connection is made: as many bytes as could be
//! copied in the time of a round trip. Where reads do not need the peer's processor, what is longer than that is read even
//! if there is memory for all of it. So is what the fabric reads over several streams at once ([`Endpoint::parallel_from`]): an answer
//! comes over one.
//!
//! The address that an answer tells is *learned*: the next fetch of the same question is one one-sided read. So questions
//! should name what never changes; a handle that the peer has taken back is forgotten, and the question asked again.
//!
//! Two use this choice ([`choose`]): [`Adaptive`], for the questions of any service, and `Object::read_at` of the crate `pool`, for
//! the first read of an object of another rack, whose length is known and whose handles are shared by all who open it.

use crate::endpoint::{Endpoint, Found};
use crate::error::FabricError;
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use hinterland_types::{ByteRange, Handle};
use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Addresses that are remembered; the oldest is forgotten first.
pub const LEARNED_MAX: usize = 4096;
/// The least and the most that a calibration finds: a cache line's worth of messages, and what nobody misses as a guess.
const GUESS_BYTES_MIN: usize = 512;
const GUESS_BYTES_MAX: usize = 256 << 10;
/// The guess of an endpoint that was not calibrated.
const GUESS_BYTES: usize = 16 << 10;
/// Round trips and copies of a calibration.
const CALIBRATION_ROUNDS: usize = 8;
/// No further round trip is begun later: over a long way one says enough.
const CALIBRATION_WITHIN: Duration = Duration::from_millis(2);

/// One of the three ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// With the answer, then a copy.
    Message,
    /// The address, then a one-sided read.
    Read,
    /// With the answer, into the caller's memory.
    Direct,
}

impl Way {
    /// The way of this name: `message`, `read` or `direct`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "message" => Some(Self::Message),
            "read" => Some(Self::Read),
            "direct" => Some(Self::Direct),
            _ => None,
        }
    }
}

/// What a calibration measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calibration {
    /// The quickest of some round trips.
    pub round_trip_ns: u64,
    /// Bytes that are copied in that time, a power of two within limits: the guess.
    pub guess_bytes: usize,
}

impl Calibration {
    /// Measures an endpoint with some calls of `ping`, which the service answers at once: a few hundred microseconds.
    ///
    /// # Errors
    /// [`FabricError`] if the calls fail.
    pub fn of(endpoint: &dyn Endpoint, ping: &[u8]) -> Result<Self, FabricError> {
        let (mut round_trip_ns, begun) = (u64::MAX, Instant::now());
        for round in 0..CALIBRATION_ROUNDS {
            if round > 0 && begun.elapsed() > CALIBRATION_WITHIN {
                break;
            }
            let begin = Instant::now();
            endpoint.call(ping)?;
            round_trip_ns = round_trip_ns.min(elapsed_ns(begin));
        }
        Ok(Self { round_trip_ns, guess_bytes: guess(round_trip_ns, copy_ns_of_64k()) })
    }
}

/// The way in which so many bytes cost least that a service has to be asked for, by somebody who has memory for all of them. `guess` is
/// what a calibration found: it is asked for only where it matters, so that nothing is measured on fabrics where it does not.
///
/// # Errors
/// What `guess` says.
pub fn choose<E>(
    endpoint: &dyn Endpoint,
    bytes: usize,
    guess: impl FnOnce() -> Result<usize, E>,
) -> Result<Way, E> {
    // An answer carries no more than a frame does.
    let is_read = bytes >= endpoint.parallel_from()
        || bytes > FRAME_BODY_BYTES_MAX as usize
        || endpoint.capabilities().one_sided && bytes > guess()?;
    Ok(if is_read { Way::Read } else { Way::Direct })
}

/// Counts of fetches while they go on.
#[derive(Default, Debug)]
pub struct Tallies {
    questions: AtomicU64,
    reads: AtomicU64,
    learned: AtomicU64,
}

impl Tallies {
    /// Counts a question.
    pub fn asked(&self) {
        // Relaxed, here and below: counters that nothing is ordered by.
        self.questions.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read.
    pub fn read(&self) {
        // Relaxed: as above.
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a fetch that needed no question.
    pub fn knew(&self) {
        // Relaxed: as above.
        self.learned.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        // Relaxed: as above.
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts { questions: load(&self.questions), reads: load(&self.reads), learned: load(&self.learned) }
    }
}

/// How often each way was gone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Questions that were asked.
    pub questions: u64,
    /// Reads of what a question was answered with, or of what was learned.
    pub reads: u64,
    /// Fetches that needed no question.
    pub learned: u64,
}

/// An endpoint whose service is asked for bytes.
pub struct Adaptive {
    endpoint: Arc<dyn Endpoint>,
    calibration: Option<Calibration>,
    forced: Option<Way>,
    learned: Mutex<Learned<Vec<u8>, (Handle, u64)>>,
    tallies: Tallies,
}

/// What answers have told, by question, the oldest first.
#[derive(Debug)]
pub struct Learned<K, V> {
    places: HashMap<K, V>,
    order: VecDeque<K>,
}

impl Adaptive {
    /// Not calibrated; `forced` turns the choice off.
    pub fn new(endpoint: Arc<dyn Endpoint>, forced: Option<Way>) -> Self {
        Self { endpoint, calibration: None, forced, learned: Mutex::default(), tallies: Tallies::default() }
    }

    /// The same, calibrated with some calls of `ping`, which the service answers at once.
    ///
    /// # Errors
    /// As [`Calibration::of`].
    pub fn calibrated(
        endpoint: Arc<dyn Endpoint>,
        forced: Option<Way>,
        ping: &[u8],
    ) -> Result<Self, FabricError> {
        let calibration = Some(Calibration::of(&*endpoint, ping)?);
        Ok(Self { calibration, ..Self::new(endpoint, forced) })
    }

    /// What was measured.
    pub fn calibration(&self) -> Option<Calibration> {
        self.calibration
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// How often each way was gone.
    pub fn counts(&self) -> Counts {
        self.tallies.counts()
    }

    /// All bytes that answer a question, however many, at most `bytes_max`.
    ///
    /// # Errors
    /// [`FabricError::Limit`] if there are more; else as [`Endpoint::fetch`] and [`Endpoint::read`].
    pub fn fetch(&self, question: &[u8], bytes_max: u64) -> Result<Vec<u8>, FabricError> {
        if let Some((handle, bytes)) = self.known(question) {
            let mut all = room(bytes, bytes_max)?;
            if self.read_learned(question, handle, &mut all) {
                return Ok(all);
            }
        }
        let guess = self.calibration.map_or(GUESS_BYTES, |found| found.guess_bytes);
        let mut first = match self.forced {
            Some(Way::Read) => Vec::new(),
            // With the whole answer or none: a message has no rest.
            Some(Way::Message) => vec![0; FRAME_BODY_BYTES_MAX as usize],
            _ => vec![0; guess],
        };
        let found = self.ask(question, &mut first)?;
        let mut all = room(found.bytes, bytes_max)?;
        if found.placed == all.len() {
            first.truncate(found.placed);
            if self.forced == Some(Way::Message) {
                all.copy_from_slice(&first);
                return Ok(all);
            }
            return Ok(first);
        }
        all[..found.placed].copy_from_slice(&first[..found.placed]);
        self.read_rest(found, &mut all)?;
        Ok(all)
    }

    /// Fills `into` with the bytes that answer a question, of which the caller knows that there are so many.
    ///
    /// # Errors
    /// [`FabricError::Lengths`] if there are not; else as [`fetch`](Self::fetch).
    pub fn fetch_into(&self, question: &[u8], into: &mut [u8]) -> Result<(), FabricError> {
        if let Some((handle, bytes)) = self.known(question)
            && bytes == into.len() as u64
            && self.read_learned(question, handle, into)
        {
            return Ok(());
        }
        let guess = self.calibration.map_or(GUESS_BYTES, |found| found.guess_bytes);
        let way = match self.forced {
            Some(way) => way,
            None => choose(&*self.endpoint, into.len(), || Ok::<_, FabricError>(guess))?,
        };
        let found = match way {
            Way::Message => {
                let mut message = vec![0; into.len()];
                let found = self.ask(question, &mut message)?;
                check_length(found, into.len())?;
                into.copy_from_slice(&message);
                found
            }
            Way::Read => match self.ask(question, &mut [])? {
                // It cannot be read: it comes with an answer after all.
                found if found.handle.is_none() && self.forced.is_none() => self.ask(question, into)?,
                found => found,
            },
            Way::Direct => self.ask(question, into)?,
        };
        check_length(found, into.len())?;
        if found.placed < into.len() { self.read_rest(found, into) } else { Ok(()) }
    }

    /// Forgets what was learned of a question.
    pub fn forget(&self, question: &[u8]) {
        self.lock().forget(question);
    }

    fn ask(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        self.tallies.asked();
        let found = self.endpoint.fetch(question, into)?;
        if let Some(handle) = found.handle {
            self.lock().learn(question.to_vec(), (handle, found.bytes), LEARNED_MAX);
        }
        Ok(found)
    }

    /// Reads what did not come with the answer.
    fn read_rest(&self, found: Found, all: &mut [u8]) -> Result<(), FabricError> {
        let handle = found.handle.ok_or(FabricError::Unsupported {
            what: "reading the rest of an answer whose service gave no handle",
        })?;
        self.read(handle, found.placed, &mut all[found.placed..])
    }

    /// Reads what was learned; `false` if the peer does not know it any more, which is forgotten.
    fn read_learned(&self, question: &[u8], handle: Handle, into: &mut [u8]) -> bool {
        let is_read = self.read(handle, 0, into).is_ok();
        if is_read {
            self.tallies.knew();
        } else {
            self.forget(question);
        }
        is_read
    }

    fn read(&self, handle: Handle, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.tallies.read();
        let (at, bytes) = (offset as u64, into.len() as u64);
        let run = ByteRange::new(at, bytes).map_err(|_| FabricError::Limit {
            what: "end of a read",
            value: at.saturating_add(bytes),
            limit: at,
        })?;
        self.endpoint.read(handle, &[run], into)
    }

    fn known(&self, question: &[u8]) -> Option<(Handle, u64)> {
        self.lock().get(question).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Learned<Vec<u8>, (Handle, u64)>> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Default for Learned<K, V> {
    fn default() -> Self {
        Self { places: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Eq + Hash + Clone, V> Learned<K, V> {
    /// Remembers what a question was answered with; of a question that was asked before, the last answer. The oldest are forgotten while
    /// there are more than `room`.
    pub fn learn(&mut self, question: K, answer: V, room: usize) {
        if self.places.insert(question.clone(), answer).is_none() {
            self.order.push_back(question);
        }
        while self.order.len() > room {
            if let Some(oldest) = self.order.pop_front() {
                self.places.remove(&oldest);
            }
        }
    }

    /// What is remembered of a question.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, question: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.places.get(question)
    }

    /// The same, to be changed.
    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, question: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.places.get_mut(question)
    }

    /// Forgets what was learned of a question.
    pub fn forget<Q: Eq + Hash + ?Sized>(&mut self, question: &Q)
    where
        K: Borrow<Q>,
    {
        if self.places.remove(question).is_some() {
            self.order.retain(|other| other.borrow() != question);
        }
    }

    /// Keeps only what `is_good`.
    pub fn retain(&mut self, is_good: impl Fn(&V) -> bool) {
        self.places.retain(|_, answer| is_good(answer));
        self.order.retain(|question| self.places.contains_key(question));
    }
}

/// Memory for all bytes, if they are not too many.
fn room(bytes: u64, bytes_max: u64) -> Result<Vec<u8>, FabricError> {
    let limit = FabricError::Limit { what: "bytes of a fetch", value: bytes, limit: bytes_max };
    let length = usize::try_from(bytes).ok().filter(|_| bytes <= bytes_max).ok_or_else(|| limit.clone())?;
    let mut all = Vec::new();
    all.try_reserve_exact(length).map_err(|_| limit)?;
    all.resize(length, 0);
    Ok(all)
}

fn check_length(found: Found, buffer: usize) -> Result<(), FabricError> {
    let (runs_bytes, buffer_bytes) = (found.bytes, buffer as u64);
    if runs_bytes == buffer_bytes { Ok(()) } else { Err(FabricError::Lengths { runs_bytes, buffer_bytes }) }
}

/// Bytes that are copied in the time of a round trip, as a power of two.
fn guess(round_trip_ns: u64, copy_ns_of_64k: u64) -> usize {
    let bytes = (round_trip_ns.saturating_mul(64 << 10) / copy_ns_of_64k.max(1)).max(1);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(GUESS_BYTES_MIN, GUESS_BYTES_MAX);
    1 << bytes.ilog2()
}

fn copy_ns_of_64k() -> u64 {
    let (from, mut into) = (vec![1u8; 64 << 10], vec![0u8; 64 << 10]);
    let mut best = u64::MAX;
    for _ in 0..CALIBRATION_ROUNDS {
        let begin = Instant::now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut into);
        best = best.min(elapsed_ns(begin));
    }
    best
}

fn elapsed_ns(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_what_is_copied_in_a_round_trip_within_limits() {
        assert_eq!(guess(7_000, 7_000), 64 << 10);
        assert_eq!(guess(35_000, 14_000), 128 << 10);
        assert_eq!(guess(0, 7_000), GUESS_BYTES_MIN);
        assert_eq!(guess(u64::MAX, 0), GUESS_BYTES_MAX);
    }

    #[test]
    fn as_many_addresses_are_learned_as_there_is_room_for() {
        let mut learned = Learned::default();
        for number in 0..LEARNED_MAX as u64 + 10 {
            learned.learn(number, 1, LEARNED_MAX);
            learned.learn(number, 2, LEARNED_MAX);
        }
        assert_eq!((learned.places.len(), learned.order.len()), (LEARNED_MAX, LEARNED_MAX));
        assert_eq!((learned.get(&(LEARNED_MAX as u64)), learned.get(&9)), (Some(&2), None));
        // What was forgotten and is learned again is the youngest, and takes one place.
        learned.forget(&10);
        learned.learn(10, 3, LEARNED_MAX);
        learned.learn(u64::MAX, 4, LEARNED_MAX);
        assert_eq!((learned.places.len(), learned.order.len()), (LEARNED_MAX, LEARNED_MAX));
        assert_eq!((learned.get(&10), learned.get(&11)), (Some(&3), None));
        learned.retain(|answer| *answer > 2);
        assert_eq!((learned.places.len(), learned.order.len()), (2, 2));
    }
}
