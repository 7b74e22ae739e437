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
//! Nothing of a pool uses this choice: it is here for `hinterland bench rpc-adaptive` and tests. The first read of an object goes
//! [`Way::Direct`] always (`Object::fetch_first` of the crate `pool`), up to 256 KiB; later ones are one-sided reads.

use crate::endpoint::{Endpoint, Found};
use crate::error::FabricError;
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use hinterland_types::{ByteRange, Handle};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Addresses that are remembered; the oldest is forgotten first.
const LEARNED_MAX: usize = 4096;
/// The least and the most that a calibration finds: a cache line's worth of messages, and what nobody misses as a guess.
const GUESS_BYTES_MIN: usize = 512;
const GUESS_BYTES_MAX: usize = 256 << 10;
/// The guess of an endpoint that was not calibrated.
const GUESS_BYTES: usize = 16 << 10;
/// Round trips and copies of a calibration.
const CALIBRATION_ROUNDS: usize = 8;

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
    learned: Mutex<Learned>,
    questions: AtomicU64,
    reads: AtomicU64,
    learned_uses: AtomicU64,
}

#[derive(Default)]
struct Learned {
    places: HashMap<Vec<u8>, (Handle, u64)>,
    order: VecDeque<Vec<u8>>,
}

impl Adaptive {
    /// Not calibrated; `forced` turns the choice off.
    pub fn new(endpoint: Arc<dyn Endpoint>, forced: Option<Way>) -> Self {
        Self {
            endpoint,
            calibration: None,
            forced,
            learned: Mutex::default(),
            questions: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            learned_uses: AtomicU64::new(0),
        }
    }

    /// The same, calibrated with some calls of `ping`, which the service answers at once: a few hundred microseconds.
    ///
    /// # Errors
    /// [`FabricError`] if the calls fail.
    pub fn calibrated(
        endpoint: Arc<dyn Endpoint>,
        forced: Option<Way>,
        ping: &[u8],
    ) -> Result<Self, FabricError> {
        let mut round_trip_ns = u64::MAX;
        for _ in 0..CALIBRATION_ROUNDS {
            let begin = Instant::now();
            endpoint.call(ping)?;
            round_trip_ns = round_trip_ns.min(elapsed_ns(begin));
        }
        let guess_bytes = guess(round_trip_ns, copy_ns_of_64k());
        let calibration = Some(Calibration { round_trip_ns, guess_bytes });
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
        // Relaxed: counters that nothing is ordered by.
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            questions: load(&self.questions),
            reads: load(&self.reads),
            learned: load(&self.learned_uses),
        }
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
        let is_one_sided = self.endpoint.capabilities().one_sided;
        let is_read = is_one_sided && into.len() > guess || into.len() >= self.endpoint.parallel_from();
        let way = self.forced.unwrap_or(if is_read { Way::Read } else { Way::Direct });
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
        self.lock().places.remove(question);
    }

    fn ask(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        // Relaxed: a counter that nothing is ordered by.
        self.questions.fetch_add(1, Ordering::Relaxed);
        let found = self.endpoint.fetch(question, into)?;
        if let Some(handle) = found.handle {
            self.lock().learn(question, handle, found.bytes);
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
            // Relaxed: a counter that nothing is ordered by.
            self.learned_uses.fetch_add(1, Ordering::Relaxed);
        } else {
            self.forget(question);
        }
        is_read
    }

    fn read(&self, handle: Handle, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        // Relaxed: a counter that nothing is ordered by.
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (at, bytes) = (offset as u64, into.len() as u64);
        let run = ByteRange::new(at, bytes).map_err(|_| FabricError::Limit {
            what: "end of a read",
            value: at.saturating_add(bytes),
            limit: at,
        })?;
        self.endpoint.read(handle, &[run], into)
    }

    fn known(&self, question: &[u8]) -> Option<(Handle, u64)> {
        self.lock().places.get(question).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Learned {
    fn learn(&mut self, question: &[u8], handle: Handle, bytes: u64) {
        if self.places.insert(question.to_vec(), (handle, bytes)).is_none() {
            self.order.push_back(question.to_vec());
        }
        while self.order.len() > LEARNED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.places.remove(&oldest);
            }
        }
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
            learned.learn(&number.to_le_bytes(), Handle(1), number);
            learned.learn(&number.to_le_bytes(), Handle(2), number);
        }
        assert_eq!((learned.places.len(), learned.order.len()), (LEARNED_MAX, LEARNED_MAX));
        assert!(learned.places.contains_key(&(LEARNED_MAX as u64).to_le_bytes()[..]));
        assert!(!learned.places.contains_key(&9u64.to_le_bytes()[..]));
    }
}
