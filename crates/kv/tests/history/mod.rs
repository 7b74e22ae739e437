//! What was published under each key from when to when, and whether an answer fits.

use std::collections::HashMap;

/// Slot and generation.
pub type Place = (u32, u64);

/// One block under one key.
struct Version {
    id: u64,
    place: Option<Place>,
    published: [u64; 2],
    /// When it was taken away, if it was.
    retired: Option<[u64; 2]>,
}

/// All blocks, with the moments at which they came and went.
#[derive(Default)]
pub struct History {
    now: u64,
    /// The node is at work, and may be taking any block away.
    pub node_works: bool,
    /// The node is at work, be it on a block that replaces another.
    pub node_is_asked: bool,
    /// Since when each key has a block, be it one or another.
    there_since: HashMap<u8, u64>,
    versions: HashMap<u8, Vec<Version>>,
}

/// Bytes of a block: no two have the same.
pub fn bytes_of(id: u64, number: u8) -> Vec<u8> {
    let mix = |at: u64| (id * 31 + u64::from(number) * 7 + at * at * 13 + at / 64) as u8;
    let mut bytes: Vec<u8> = (0..u64::from(length_of(id))).map(mix).collect();
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8] = number;
    bytes
}

/// Length of a block: up to a few lines, and rarely that of another.
pub const fn length_of(id: u64) -> u32 {
    (16 + id * 37 % 400) as u32
}

impl History {
    /// The next moment.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A block is published from now on.
    pub fn publishing(&mut self, number: u8, id: u64) {
        let version = Version { id, place: None, published: [self.tick(), u64::MAX], retired: None };
        self.versions.entry(number).or_default().push(version);
    }

    /// It is published.
    pub fn published(&mut self, number: u8, place: Place) {
        let now = self.tick();
        if let Some(last) = self.versions.get_mut(&number).and_then(|versions| versions.last_mut()) {
            (last.place, last.published[1]) = (Some(place), now);
        }
        self.there_since.entry(number).or_insert(now);
    }

    /// It is not going to be published.
    pub fn given_up(&mut self, number: u8) {
        self.versions.get_mut(&number).and_then(Vec::pop);
    }

    /// A key has its block there after something that happened in `during`.
    pub fn note(&mut self, number: u8, place: Option<Place>, during: [u64; 2]) {
        for version in self.versions.get_mut(&number).into_iter().flatten() {
            if version.retired.is_none() && place != version.place {
                version.retired = Some(during);
            }
        }
        if place.is_none() {
            self.there_since.remove(&number);
        }
    }

    fn visible(&self, number: u8, [begin, end]: [u64; 2]) -> impl Iterator<Item = &Version> {
        let versions = self.versions.get(&number).map_or(&[][..], |versions| &versions[..]);
        versions.iter().filter(move |version| {
            version.published[0] <= end && version.retired.is_none_or(|retired| retired[1] >= begin)
        })
    }

    /// A length that was found between two moments.
    pub fn check_length(&self, number: u8, length: u32, during: [u64; 2]) -> Result<(), String> {
        let fits = self.visible(number, during).any(|version| length_of(version.id) == length);
        if fits {
            Ok(())
        } else {
            Err(format!("key {number} has length {length}, of no block that was there"))
        }
    }

    /// Bytes that were read between two moments.
    pub fn check_bytes(&self, number: u8, bytes: &[u8], during: [u64; 2]) -> Result<(), String> {
        if self.visible(number, during).any(|version| bytes_of(version.id, number) == bytes) {
            return Ok(());
        }
        let all = self
            .versions
            .iter()
            .flat_map(|(key, versions)| versions.iter().map(move |version| (key, version)));
        let of = all.filter(|(key, version)| bytes_of(version.id, **key) == bytes).map(|(key, _)| key).next();
        Err(match of {
            Some(key) if *key == number => format!("key {number} is read after it was removed"),
            Some(key) => format!("key {number} has the bytes of key {key}"),
            None => format!("key {number} has bytes that nobody put"),
        })
    }

    /// A block was found, and then not there any more, between two moments.
    pub fn check_interrupted(&self, number: u8, during: [u64; 2]) -> Result<(), String> {
        let left = |version: &Version| version.retired.is_some() || self.node_is_asked;
        let fits = self.visible(number, during).any(left);
        if fits { Ok(()) } else { Err(format!("key {number} is said to have left, but none has")) }
    }

    /// Nothing was found between two moments.
    pub fn check_miss(&self, number: u8, during: [u64; 2]) -> Result<(), String> {
        let stayed =
            !self.node_works && self.there_since.get(&number).is_some_and(|since| *since < during[0]);
        if stayed { Err(format!("key {number} is missed though it was there all the time")) } else { Ok(()) }
    }
}
