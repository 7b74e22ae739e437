//! Which units leave a cache when every touch is seen: LRU, CLOCK, S3-FIFO, FIFO behind one trait.

use std::fmt;
use std::str::FromStr;

mod clock;
mod ghost;
mod lru;
mod queues;
mod s3fifo;
#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use ghost::Ghost;
pub use lru::{Fifo, Lru};
pub use s3fifo::S3Fifo;

pub(crate) use queues::Queues;

/// One fault unit of one cached object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnitKey {
    /// The slot that the caller gave to the object on this host.
    pub object: u32,
    /// The unit, as [`crate::UnitMap`] counts.
    pub unit: u32,
}

/// An order in which cached units leave.
///
/// A policy knows the units that the caller told it of and nothing else. It never allocates more than one
/// entry for each of them, and for those that a ghost list remembers.
pub trait Eviction: Send {
    /// A unit became resident. One that is resident already counts as touched, and keeps its first size.
    fn insert(&mut self, key: UnitKey, bytes: u64);
    /// A resident unit was used; others are ignored.
    fn touch(&mut self, key: UnitKey);
    /// A unit is gone for another reason (object removed); unknown units are ignored.
    fn remove(&mut self, key: UnitKey);
    /// Another unit is resident under the key, in place of the one that was: `remove` and `insert`, in one step.
    fn renew(&mut self, key: UnitKey, bytes: u64) {
        self.remove(key);
        self.insert(key, bytes);
    }
    /// Loads what the next step about a unit looks at, so that who has many to come waits for memory once. What it returns means
    /// nothing, and is there so that the loads are made.
    fn load(&self, _key: UnitKey) -> u64 {
        0
    }
    /// Appends to `out` the units to evict, best first, until their sizes reach `bytes_needed` or no unit
    /// is left for which `is_evictable` holds. What is appended is no longer in the policy; a caller
    /// that keeps such a unit after all inserts it again. Returns the bytes appended.
    fn victims(
        &mut self,
        bytes_needed: u64,
        is_evictable: &mut dyn FnMut(UnitKey) -> bool,
        out: &mut Vec<UnitKey>,
    ) -> u64;
    /// Whether the unit is in the policy.
    fn contains(&self, key: UnitKey) -> bool;
    /// Bytes of all units in the policy.
    fn bytes(&self) -> u64;
    /// Number of units in the policy.
    fn units(&self) -> usize;
}

/// The choice of an order, as configuration names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvictionKind {
    /// Least recently used leaves first.
    #[default]
    Lru,
    /// First in, first out, but what was touched gets a second round.
    Clock,
    /// Three first-in-first-out queues: newcomers prove themselves in a small one.
    S3Fifo,
    /// First in, first out, whatever is touched: the baseline of comparisons.
    Fifo,
}

/// A word that names no order.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error("{0:?} is no eviction policy (hint: lru, clock, s3fifo or fifo)")]
pub struct UnknownEviction(String);

impl EvictionKind {
    /// All kinds, in the order in which comparisons list them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Clock, Self::S3Fifo, Self::Fifo];

    /// An empty policy of this kind.
    pub fn build(self) -> Box<dyn Eviction> {
        match self {
            Self::Lru => Box::new(Lru::new()),
            Self::Clock => Box::new(Clock::new()),
            Self::S3Fifo => Box::new(S3Fifo::new()),
            Self::Fifo => Box::new(Fifo::new()),
        }
    }
}

impl fmt::Display for EvictionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lru => "lru",
            Self::Clock => "clock",
            Self::S3Fifo => "s3fifo",
            Self::Fifo => "fifo",
        })
    }
}

impl FromStr for EvictionKind {
    type Err = UnknownEviction;
    fn from_str(text: &str) -> Result<Self, UnknownEviction> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownEviction(text.chars().take(32).collect()))
    }
}
