//! One back end in use: how it fares, and what it has moved.

use super::meter::{Kind, Meter};
use super::{Place, ResizeError, Store, StoreError};
use crate::board;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two tries of a back end that failed: a node that is gone may take seconds to say so.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long one that had no room is asked last: it may have some again although nothing of it was freed, as when the host has.
const FULL_TIME: Duration = Duration::from_secs(1);

/// How a back end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It takes content.
    Active,
    /// It was retired: its content moves to the others.
    Retired,
    /// It failed: what it still gives back moves to the others.
    Failed,
    /// It has no content any more, and was closed.
    Gone,
}

/// What is known of a back end. Bytes, bytes a second and seconds.
#[derive(Clone, Debug)]
pub struct MemberState {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub life: Life,
    /// Bytes of content that went in.
    pub put_bytes: u64,
    /// Bytes of content that came back.
    pub got_bytes: u64,
    /// Bytes of content that are there.
    pub held_bytes: u64,
    /// Bytes a second of late, puts and gets together.
    pub speed_bytes_s: f64,
    /// What a put takes of late.
    pub put_s: f64,
    /// What a get takes of late.
    pub get_s: f64,
    /// Bytes of this host's memory that it takes.
    pub memory_bytes: u64,
    /// Most that it took at once, and the bytes of content that were there then.
    pub most: (u64, u64),
    /// Most bytes that it takes, as it counts them; `u64::MAX / 2` or more is no limit.
    pub limit_bytes: u64,
}

/// Who has content, and where.
/// Nearly all has one place, which needs no memory of its own.
pub(super) type Held = SmallVec<[(Arc<Member>, Place); 1]>;

/// A back end in use.
pub(super) struct Member {
    store: Box<dyn Store>,
    pub(super) meter: Meter,
    put_bytes: AtomicU64,
    got_bytes: AtomicU64,
    /// Content that is there, or on its way in.
    held_bytes: AtomicU64,
    life: AtomicU8,
    /// It had no room, and nothing was freed since.
    is_full: AtomicBool,
    /// Until then, in milliseconds since it began.
    full_ms: AtomicU64,
    /// Most bytes of memory that it took, and the content that was there then.
    memory_bytes_max: AtomicU64,
    packed_bytes: AtomicU64,
    begun: Instant,
    /// When it was last tried after it had failed: milliseconds since it began.
    probed_ms: AtomicU64,
}

impl Member {
    pub(super) fn new(store: Box<dyn Store>) -> Self {
        let begun = Instant::now();
        Self {
            store,
            meter: Meter::new(begun),
            put_bytes: AtomicU64::new(0),
            got_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            life: AtomicU8::new(Life::Active as u8),
            is_full: AtomicBool::new(false),
            full_ms: AtomicU64::new(0),
            memory_bytes_max: AtomicU64::new(0),
            packed_bytes: AtomicU64::new(0),
            begun,
            probed_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.store.name()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.store.memory_bytes()
    }

    pub(super) fn is_exact(&self) -> bool {
        self.store.is_exact()
    }

    pub(super) fn device(&self) -> Option<u64> {
        self.store.device()
    }

    /// Moves bytes to or from the store, counted for the run that the calling thread works for.
    fn counted<T>(&self, bytes: usize, act: impl FnOnce() -> T) -> T {
        match self.device() {
            Some(device) => board::with(|board| match board {
                Some(board) => board.count(device, bytes, act),
                None => act(),
            }),
            None => act(),
        }
    }

    pub(super) fn sleeps(&self) -> bool {
        self.store.sleeps()
    }

    pub(super) fn content_bytes_max(&self) -> usize {
        self.store.content_bytes_max()
    }

    pub(super) fn life(&self) -> Life {
        // SeqCst: pairs with the counting in `put`: whoever puts sees the new life, or whoever moves sees the bytes.
        match self.life.load(Ordering::SeqCst) {
            0 => Life::Active,
            1 => Life::Retired,
            2 => Life::Failed,
            _ => Life::Gone,
        }
    }

    /// Ends its time; returns whether it was active.
    pub(super) fn leave(&self, life: Life) -> bool {
        let (active, life) = (Life::Active as u8, life as u8);
        // SeqCst: as in `life`.
        self.life.compare_exchange(active, life, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::SeqCst) // SeqCst: as in `life`.
    }

    pub(super) fn is_full(&self) -> bool {
        // Relaxed: a hint.
        self.is_full.load(Ordering::Relaxed) && self.now_ms() < self.full_ms.load(Ordering::Relaxed)
    }

    fn set_full(&self) {
        let until = self.now_ms() + FULL_TIME.as_millis() as u64; // a small constant
        self.full_ms.store(until, Ordering::Relaxed); // Relaxed: a hint.
        self.is_full.store(true, Ordering::Relaxed); // Relaxed: a hint.
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes so many bytes at most from here on.
    pub(super) fn resize(&self, bytes: u64) -> Result<(), ResizeError> {
        self.store.resize(bytes)?;
        self.is_full.store(false, Ordering::Relaxed); // Relaxed: a hint.
        Ok(())
    }

    /// Whether it is time to try a back end that failed once more.
    pub(super) fn is_probed(&self) -> bool {
        let now = self.now_ms();
        let next = now + PROBE_INTERVAL.as_millis() as u64; // a small constant
        // Relaxed: only the one who changes it tries.
        let before = self.probed_ms.load(Ordering::Relaxed);
        now >= before
            && self.probed_ms.compare_exchange(before, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Keeps content. Whoever chose this back end has told the meter that so many bytes begin. One result each, in their order.
    pub(super) fn put_all(&self, contents: &[&[u8]], wanted: Life) -> Vec<Result<Place, StoreError>> {
        let begun = Instant::now();
        let bytes: usize = contents.iter().map(|content| content.len()).sum();
        // SeqCst: as in `life`.
        self.held_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        let mut results = self.counted(bytes, || self.store.put_all(contents));
        let is_wanted = self.life() == wanted;
        let mut put = 0;
        for (content, result) in contents.iter().zip(&mut results) {
            if let (Ok(place), false) = (&result, is_wanted) {
                self.store.free(*place);
                let reason = "it was retired meanwhile".to_owned();
                *result = Err(StoreError::Failed { name: self.name().to_owned(), reason });
            }
            put += if result.is_ok() { content.len() } else { 0 };
        }
        self.end(Kind::Put, contents.len(), bytes, begun, put == bytes);
        self.put_bytes.fetch_add(put as u64, Ordering::Relaxed); // Relaxed: a counter for people.
        self.note_memory();
        if put < bytes {
            self.held_bytes.fetch_sub((bytes - put) as u64, Ordering::SeqCst); // SeqCst: as in `life`.
            let has_no_room = |result: &Result<Place, StoreError>| {
                matches!(result, Err(StoreError::Full { .. } | StoreError::Short { .. }))
            };
            if results.iter().any(has_no_room) {
                self.set_full();
            }
        }
        results
    }

    /// Notes the most memory that it took.
    fn note_memory(&self) {
        let bytes = self.memory_bytes();
        // Relaxed: numbers for people, of about the same moment.
        if bytes > self.memory_bytes_max.fetch_max(bytes, Ordering::Relaxed) {
            self.packed_bytes.store(self.held_bytes(), Ordering::Relaxed);
        }
    }

    /// Keeps one content, as [`put_all`](Self::put_all) does.
    pub(super) fn put(&self, content: &[u8], wanted: Life) -> Result<Place, StoreError> {
        let result = self.put_all(&[content], wanted).pop();
        result.unwrap_or_else(|| Err(StoreError::Full { name: self.name().to_owned() }))
    }

    /// Reads content back. One result each, in their order.
    pub(super) fn get_all(&self, wanted: &mut [(Place, &mut [u8])]) -> Vec<Result<(), StoreError>> {
        let begun = Instant::now();
        let bytes = wanted.iter().map(|(_, content)| content.len()).sum();
        self.meter.begin(bytes, begun);
        let results = self.counted(bytes, || self.store.get_all(wanted));
        self.end(Kind::Get, wanted.len(), bytes, begun, results.iter().all(Result::is_ok));
        results
    }

    /// Reads one content back.
    pub(super) fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        let begun = Instant::now();
        self.meter.begin(content.len(), begun);
        let bytes = content.len();
        let result = self.counted(bytes, || self.store.get(place, content));
        self.end(Kind::Get, 1, content.len(), begun, result.is_ok());
        result
    }

    /// So many contents are done: each took its part of the time.
    fn end(&self, kind: Kind, count: usize, bytes: usize, begun: Instant, moved: bool) {
        let now = Instant::now();
        let each = now.saturating_duration_since(begun) / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        self.meter.end(kind, bytes, now - each, now, moved);
    }

    /// Content came back right.
    pub(super) fn count_got(&self, bytes: usize) {
        self.got_bytes.fetch_add(bytes as u64, Ordering::Relaxed); // Relaxed: a counter for people.
    }

    /// Forgets content.
    pub(super) fn free(&self, place: Place, bytes: usize) {
        self.store.free(place);
        self.held_bytes.fetch_sub(bytes as u64, Ordering::SeqCst); // SeqCst: as in `life`.
        self.is_full.store(false, Ordering::Relaxed); // Relaxed: a hint.
    }

    /// Puts and gets content of its own for a few milliseconds, so that the first choice is a good one.
    pub(super) fn measure(&self, sample: &[u8], time: Duration) -> Result<(), StoreError> {
        let begun = Instant::now();
        let mut back = vec![0; sample.len()];
        // What is made at the first put would count as slowness.
        self.store.free(self.store.put(sample)?);
        for _ in 0..SAMPLES_MAX {
            let (start, bytes) = (Instant::now(), sample.len());
            self.meter.begin(bytes, start);
            let put = self.store.put(sample);
            self.meter.end(Kind::Put, bytes, start, Instant::now(), put.is_ok());
            let place = put?;
            let got = self.get(place, &mut back);
            self.store.free(place);
            got?;
            if back != sample {
                let reason = "the bytes that came back are not those that were put".to_owned();
                return Err(StoreError::Failed { name: self.name().to_owned(), reason });
            }
            if begun.elapsed() > time {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> MemberState {
        let (put_s, get_s) = self.meter.latencies_s();
        // Relaxed: counters for people.
        MemberState {
            name: self.name().to_owned(),
            life: self.life(),
            put_bytes: self.put_bytes.load(Ordering::Relaxed),
            got_bytes: self.got_bytes.load(Ordering::Relaxed),
            held_bytes: self.held_bytes(),
            speed_bytes_s: self.meter.speed(Instant::now()),
            put_s,
            get_s,
            memory_bytes: self.memory_bytes(),
            // Relaxed: as above.
            most: (self.memory_bytes_max.load(Ordering::Relaxed), self.packed_bytes.load(Ordering::Relaxed)),
            limit_bytes: self.store.limit_bytes(),
        }
    }
}

/// Most samples of a measurement.
const SAMPLES_MAX: usize = 16;
