//! Back ends: where content is while it is far.
//!
//! A back end is one file in `store/` with one type that implements [`Store`].

mod disk;
mod packed;

pub use disk::Disk;
pub use packed::Packed;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Why a back end did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It has no room.
    #[error("{name} is full (hint: give it more room, or name another back end beside it with --far)")]
    Full {
        /// Which back end.
        name: String,
    },
    /// It failed.
    #[error(
        "{name} failed: {reason} (hint: name another back end with --far, and keep two copies with --copies 2)"
    )]
    Failed {
        /// Which back end.
        name: String,
        /// What it said.
        reason: String,
    },
}

/// Where a back end has something: words of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First word.
    pub at: u64,
    /// Second word.
    pub bytes: u32,
}

/// A back end. Calls come from several threads at once. Content is at most 2 MiB and never changes: it is put once, read any
/// number of times, and freed.
pub trait Store: Send + Sync {
    /// What people call it, as in the report.
    fn name(&self) -> &str;

    /// Keeps content.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is kept then.
    fn put(&self, content: &[u8]) -> Result<Place, StoreError>;

    /// Reads content back, all of it.
    ///
    /// # Errors
    /// [`StoreError::Failed`]; what is in `content` then means nothing.
    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError>;

    /// Forgets content.
    fn free(&self, place: Place);

    /// Bytes of memory of this host that it takes.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// A back end, and what it has moved.
pub struct Member {
    store: Box<dyn Store>,
    /// Bytes of content that went in.
    pub put_bytes: AtomicU64,
    /// Bytes of content that came back.
    pub got_bytes: AtomicU64,
    /// Bytes of content that are there.
    pub held_bytes: AtomicU64,
    /// Nanoseconds that puts of a megabyte took of late, weighted.
    put_cost: AtomicU64,
    failed: AtomicBool,
}

/// All back ends of a run.
pub struct Stores {
    members: Vec<Member>,
    copies: usize,
    turn: AtomicU64,
}

/// Content that one or more back ends have. The last holder of it frees it.
pub struct Copy {
    stores: Arc<Stores>,
    places: Vec<(usize, Place)>,
    /// Content that no back end took.
    kept: Option<Box<[u8]>>,
    bytes: u32,
    check: u64,
}

impl Stores {
    /// These back ends, with each content in `copies` of them.
    pub fn new(stores: Vec<Box<dyn Store>>, copies: usize) -> Self {
        let member = |store| Member {
            store,
            put_bytes: AtomicU64::new(0),
            got_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            put_cost: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        Self { members: stores.into_iter().map(member).collect(), copies, turn: AtomicU64::new(0) }
    }

    /// Their names and what they have moved.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.members.iter().map(|member| (member.store.name(), member))
    }

    /// Bytes of memory of this host that they take.
    pub fn memory_bytes(&self) -> u64 {
        self.members.iter().map(|member| member.store.memory_bytes()).sum()
    }

    /// Keeps content in as many back ends as were asked for. Where none takes it, the copy holds it in memory, so that no byte
    /// is lost; the error tells why, for the caller to act on.
    pub fn put(self: &Arc<Self>, content: &[u8]) -> (Copy, Option<StoreError>) {
        let mut copy = Copy {
            stores: Arc::clone(self),
            places: Vec::new(),
            kept: None,
            bytes: content.len() as u32,
            check: xxh3_64(content),
        };
        let mut refusal = None;
        for index in self.order() {
            if copy.places.len() == self.copies {
                return (copy, None);
            }
            let member = &self.members[index];
            let begun = Instant::now();
            match member.store.put(content) {
                Ok(place) => {
                    let bytes = content.len() as u64;
                    member.learn(begun, bytes);
                    // Relaxed: counters for people.
                    member.put_bytes.fetch_add(bytes, Ordering::Relaxed);
                    member.held_bytes.fetch_add(bytes, Ordering::Relaxed);
                    copy.places.push((index, place));
                }
                Err(error) => {
                    if matches!(error, StoreError::Failed { .. }) {
                        // Relaxed: a hint; content that it has is still asked for.
                        member.failed.store(true, Ordering::Relaxed);
                    }
                    refusal = Some(error);
                }
            }
        }
        if copy.places.len() == self.copies {
            return (copy, None);
        }
        if copy.places.is_empty() {
            copy.kept = Some(content.into());
        }
        (copy, refusal)
    }

    /// Back ends, the one that shall take the next content first: each in proportion to its speed. Those that failed are last.
    fn order(&self) -> Vec<usize> {
        let count = self.members.len();
        let mut order: Vec<usize> = (0..count).collect();
        if count < 2 {
            return order;
        }
        // Relaxed: any turn is as good as another.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let speeds: Vec<u64> = self.members.iter().map(Member::speed).collect();
        let sum: u64 = speeds.iter().sum::<u64>().max(1);
        // A fixed step that is prime to most sums spreads the turns evenly.
        let mut point = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) % sum;
        let first = speeds.iter().position(|speed| {
            let here = point < *speed;
            point = point.saturating_sub(*speed);
            here
        });
        order.sort_by_key(|index| {
            let member = &self.members[*index];
            // Relaxed: a hint.
            (member.failed.load(Ordering::Relaxed), Some(*index) != first, u64::MAX - speeds[*index])
        });
        order
    }
}

impl Member {
    /// Megabytes in a second of late; a start value where it is not known.
    fn speed(&self) -> u64 {
        // Relaxed: a hint.
        match self.put_cost.load(Ordering::Relaxed) {
            0 => 1000,
            cost => (1_000_000_000 / cost).max(1),
        }
    }

    fn learn(&self, begun: Instant, bytes: u64) {
        let taken = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let cost = taken.saturating_mul(1 << 20) / bytes.max(1);
        // Relaxed: a hint; what a race loses is one sample.
        let before = self.put_cost.load(Ordering::Relaxed);
        let after = if before == 0 { cost } else { (before * 7 + cost) / 8 };
        self.put_cost.store(after.max(1), Ordering::Relaxed);
    }
}

impl Copy {
    /// Length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Content of so many bytes that nobody has: reading it is an error.
    pub fn lost(stores: &Arc<Stores>, bytes: usize) -> Self {
        Self { stores: Arc::clone(stores), places: Vec::new(), kept: None, bytes: bytes as u32, check: 0 }
    }

    /// Whether no back end has it.
    pub const fn is_stranded(&self) -> bool {
        self.kept.is_some()
    }

    /// Reads it from a back end that has it whole: bytes that do not check are never returned.
    ///
    /// # Errors
    /// The last refusal if none has it.
    pub fn read(&self, content: &mut [u8]) -> Result<(), StoreError> {
        if let Some(kept) = &self.kept {
            content.copy_from_slice(kept);
            return Ok(());
        }
        let mut refusal = None;
        for (index, place) in &self.places {
            let member = &self.stores.members[*index];
            match member.store.get(*place, content) {
                Ok(()) if xxh3_64(content) == self.check => {
                    // Relaxed: a counter for people.
                    member.got_bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(()) => {
                    let name = member.store.name().to_owned();
                    let reason = "the bytes that came back are not those that were put".to_owned();
                    refusal = Some(StoreError::Failed { name, reason });
                }
                Err(error) => refusal = Some(error),
            }
            // Relaxed: a hint.
            member.failed.store(true, Ordering::Relaxed);
        }
        Err(refusal.unwrap_or_else(|| StoreError::Failed {
            name: "far memory".to_owned(),
            reason: "nobody has the content".to_owned(),
        }))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        for (index, place) in &self.places {
            let member = &self.stores.members[*index];
            member.store.free(*place);
            // Relaxed: a counter for people.
            member.held_bytes.fetch_sub(u64::from(self.bytes), Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copy({} bytes, {:?})", self.bytes, self.places)
    }
}

#[cfg(test)]
mod tests;
