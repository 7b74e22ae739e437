//! Which sealed objects of other racks get a copy here because they are read a lot, and which of these copies go.
//!
//! A copy costs one transfer of the object, and memory that lies idle otherwise. So it is made when as much has crossed the
//! network as another transfer would: the cache of the host has fetched bytes again that it had evicted, or programs read
//! past it. And it goes when nobody has read it for as long as a byte counts that was fetched.
//!
//! ```text
//!  bytes from other racks     FetchHeat::record     FetchHeat::due: fetched more than `readings` sizes, and it fits
//!  ------------------------>  (one per node)  ---->  the copy is made; FetchHeat::forget, or ::rest if it was refused
//!
//!  uses of each copy          CopyUses::observe     CopyUses::cold: not used for `memory`, and not open
//!  ------------------------>  (one per node)  ---->  CopyUses::order: which go first where room is needed
//! ```
//!
//! As in [`heat`](crate::heat), there is no clock: `now` is the time since any fixed moment.

use hinterland_types::ObjectId;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

/// Objects of which is known how much was fetched; beyond, the one of which least counts is forgotten. About 100 bytes each.
const OBJECTS_MAX: usize = 4096;

/// When copies are made, and how much memory they may have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CopySettings {
    /// After so long a byte that was fetched counts 1/e; and a copy goes that nobody used for so long.
    pub memory: Duration,
    /// How many times its size must have been fetched of an object. At 1.5 the first reading, which nothing could have spared, is paid
    /// for, and half of what a copy costs was fetched in vain.
    pub readings: f64,
    /// The share of the memory that nothing else uses that copies may have together.
    pub room_share: f64,
    /// How long an object rests of which a copy could not be made.
    pub rest: Duration,
}

impl Default for CopySettings {
    fn default() -> Self {
        Self {
            memory: Duration::from_secs(600),
            readings: 1.5,
            room_share: 0.25,
            rest: Duration::from_secs(30),
        }
    }
}

/// Memory of a node, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRoom {
    /// That nothing uses.
    pub free_bytes: u64,
    /// That copies have.
    pub copies_bytes: u64,
}

impl CopySettings {
    /// Bytes that one more copy may take. What copies have is free for all others, so it counts as free here, too.
    pub fn room(&self, room: CopyRoom) -> u64 {
        let idle = room.free_bytes.saturating_add(room.copies_bytes);
        // At most the memory of a machine: a float has its first 53 bits.
        let most = (idle as f64 * self.room_share.clamp(0.0, 1.0)) as u64;
        most.saturating_sub(room.copies_bytes).min(room.free_bytes)
    }

    fn share_left(&self, passed: Duration) -> f64 {
        if self.memory.is_zero() { 0.0 } else { (-passed.as_secs_f64() / self.memory.as_secs_f64()).exp() }
    }
}

/// How much a node has fetched of each object of other racks.
#[derive(Debug)]
pub struct FetchHeat {
    settings: CopySettings,
    objects: HashMap<ObjectId, Fetched>,
}

#[derive(Clone, Copy, Debug)]
struct Fetched {
    size: u64,
    /// As it counted at `last`.
    bytes: f64,
    last: Duration,
    /// Nothing is made of it before.
    rests_until: Duration,
}

impl FetchHeat {
    /// Nothing was fetched yet.
    pub fn new(settings: CopySettings) -> Self {
        Self { settings, objects: HashMap::new() }
    }

    /// Counts bytes that came of an object of `size` bytes. A `now` before the last one counts as the last one.
    pub fn record(&mut self, object: ObjectId, size: u64, bytes: u64, now: Duration) {
        if size == 0 || bytes == 0 {
            return;
        }
        if self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&object) {
            self.forget_coldest(now);
        }
        let settings = self.settings;
        let fresh = Fetched { size, bytes: 0.0, last: now, rests_until: Duration::ZERO };
        let fetched = self.objects.entry(object).or_insert(fresh);
        fetched.bytes = fetched.bytes * settings.share_left(now.saturating_sub(fetched.last)) + bytes as f64;
        fetched.last = fetched.last.max(now);
        fetched.size = size;
    }

    /// How many times its size was fetched of an object, as far as that still counts.
    pub fn readings(&self, object: ObjectId, now: Duration) -> f64 {
        self.objects.get(&object).map_or(0.0, |fetched| self.readings_of(fetched, now))
    }

    /// The object of which a copy spares most, if one is due that takes at most `room` bytes. `room_of` says what a size takes.
    pub fn due(&self, room: u64, room_of: impl Fn(u64) -> u64, now: Duration) -> Option<ObjectId> {
        let spared = |fetched: &Fetched| self.readings_of(fetched, now) * fetched.size as f64;
        let is_due = |fetched: &Fetched| {
            fetched.rests_until <= now
                && self.readings_of(fetched, now) > self.settings.readings
                && room_of(fetched.size) <= room
        };
        let due = self.objects.iter().filter(|(_, fetched)| is_due(fetched));
        // Of equals the one with the lower number, so that the same history has the same end.
        let most = due.max_by(|(one, a), (other, b)| {
            spared(a).partial_cmp(&spared(b)).unwrap_or(Ordering::Equal).then(other.cmp(one))
        });
        most.map(|(object, _)| *object)
    }

    /// No copy could be made: it is not tried again for a while.
    pub fn rest(&mut self, object: ObjectId, now: Duration) {
        let until = now.saturating_add(self.settings.rest);
        if let Some(fetched) = self.objects.get_mut(&object) {
            fetched.rests_until = until;
        }
    }

    /// An object has its copy, or is gone.
    pub fn forget(&mut self, object: ObjectId) {
        self.objects.remove(&object);
    }

    fn readings_of(&self, fetched: &Fetched, now: Duration) -> f64 {
        fetched.bytes * self.settings.share_left(now.saturating_sub(fetched.last)) / fetched.size as f64
    }

    fn forget_coldest(&mut self, now: Duration) {
        let readings = |fetched: &Fetched| self.readings_of(fetched, now);
        let coldest = self.objects.iter().min_by(|(one, a), (other, b)| {
            readings(a).partial_cmp(&readings(b)).unwrap_or(Ordering::Equal).then(one.cmp(other))
        });
        if let Some(object) = coldest.map(|(object, _)| *object) {
            self.objects.remove(&object);
        }
    }
}

/// When each of a node's copies was last used.
#[derive(Debug, Default)]
pub struct CopyUses {
    copies: HashMap<ObjectId, Use>,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    count: u64,
    last: Duration,
    is_open: bool,
}

impl CopyUses {
    /// A copy has been used `count` times in its life, and a program has it open or not. The first look at a copy counts as a use.
    pub fn observe(&mut self, object: ObjectId, count: u64, is_open: bool, now: Duration) {
        let known = self.copies.entry(object).or_insert(Use { count, last: now, is_open });
        if known.count != count || is_open {
            known.last = known.last.max(now);
        }
        (known.count, known.is_open) = (count, is_open);
    }

    /// Copies that nobody has used for as long as the settings say.
    pub fn cold(&self, settings: &CopySettings, now: Duration) -> Vec<ObjectId> {
        let is_cold = |known: &Use| !known.is_open && now.saturating_sub(known.last) >= settings.memory;
        let mut cold: Vec<ObjectId> =
            self.copies.iter().filter(|(_, known)| is_cold(known)).map(|(object, _)| *object).collect();
        cold.sort_unstable();
        cold
    }

    /// All copies in the order in which they go where room is needed: those that are open last, else the one first that was not used
    /// for longest.
    pub fn order(&self) -> Vec<ObjectId> {
        let mut all: Vec<_> =
            self.copies.iter().map(|(object, known)| (known.is_open, known.last, *object)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, object)| object).collect()
    }

    /// A copy is gone.
    pub fn forget(&mut self, object: ObjectId) {
        self.copies.remove(&object);
    }

    /// Only these are left.
    pub fn retain(&mut self, is_there: impl Fn(ObjectId) -> bool) {
        self.copies.retain(|object, _| is_there(*object));
    }
}

#[cfg(test)]
mod tests;
