//! Names over several directories by consistent hashing: which one keeps a name, and what moves when one comes or goes.
//!
//! Logic only: no node asks it. Each directory stands at many points of a circle of 2^64, and keeps the names whose hash lies between the point
//! before and its own. So a directory that comes takes names from all others and nobody else gets any, and one that goes leaves its names to all.
//! (Karger and others, "Consistent hashing and random trees", 1997.)
//!
//! ```
//! use hinterland_sim::scale::shards::{Ring, Shard};
//!
//! let mut ring = Ring::new(64);
//! ring.join(Shard(1));
//! ring.join(Shard(2));
//! let owner = ring.owner("models/llama/part-7").unwrap();
//! ring.leave(Shard(3 - owner.0));
//! assert_eq!(ring.owner("models/llama/part-7"), Some(owner));
//! ```

use crate::random::mix;
use serde::Serialize;
use std::collections::BTreeMap;

/// A directory among several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shard(pub u32);

/// The circle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    points_per_shard: u32,
    points: BTreeMap<u64, Shard>,
}

impl Ring {
    /// A circle without directories; each will stand at `points_per_shard` points, at least one.
    pub fn new(points_per_shard: u32) -> Self {
        Self { points_per_shard: points_per_shard.max(1), points: BTreeMap::new() }
    }

    /// A directory comes. Nothing happens if it is there.
    pub fn join(&mut self, shard: Shard) {
        for number in 0..self.points_per_shard {
            // Of two directories on one point the lower keeps it, whoever came first; so the order of coming does not matter.
            let there = self.points.entry(point(shard, number)).or_insert(shard);
            *there = shard.min(*there);
        }
    }

    /// A directory goes. Nothing happens if it is not there.
    pub fn leave(&mut self, shard: Shard) {
        let others: Vec<Shard> = self.shards().into_iter().filter(|other| *other != shard).collect();
        self.points.clear();
        others.into_iter().for_each(|other| self.join(other));
    }

    /// Every directory, ascending.
    pub fn shards(&self) -> Vec<Shard> {
        let mut shards: Vec<Shard> = self.points.values().copied().collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    /// The directory that keeps a name; `None` without any.
    pub fn owner(&self, name: &str) -> Option<Shard> {
        let place = hash(name);
        let behind = self.points.range(place..).next();
        behind.or_else(|| self.points.first_key_value()).map(|(_, shard)| *shard)
    }
}

/// What a circle gives for many names.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ShardFigures {
    /// Directories.
    pub shards: u32,
    /// Points of each.
    pub points: u32,
    /// Names that were tried.
    pub names: u64,
    /// Names of the fullest directory, of what each would have if all had the same.
    pub fullest: f64,
    /// Names of the emptiest.
    pub emptiest: f64,
    /// Share of the names that move when another directory comes; 1 / (shards + 1) is the least that can be.
    pub moved_by_join: f64,
    /// Share of the names that move when one goes; 1 / shards is the least.
    pub moved_by_leave: f64,
    /// Share of renames from one name to another of the same folder that leave their directory: each needs two.
    pub renames_across: f64,
    /// Directories that a listing of one folder of a hundred names has to ask.
    pub asked_by_listing: f64,
}

/// Tries names of folders with a hundred names each.
pub fn try_names(shards: u32, points: u32, names: u64) -> ShardFigures {
    let mut ring = Ring::new(points);
    (0..shards.max(1)).for_each(|shard| ring.join(Shard(shard)));
    let (mut larger, mut smaller) = (ring.clone(), ring.clone());
    larger.join(Shard(shards.max(1)));
    smaller.leave(Shard(0));
    let mut kept: BTreeMap<Shard, u64> = ring.shards().into_iter().map(|shard| (shard, 0)).collect();
    let (mut by_join, mut by_leave, mut across, mut asked) = (0u64, 0u64, 0u64, 0u64);
    let mut folder: Vec<Option<Shard>> = Vec::new();
    for number in 0..names {
        let name = format!("models/{}/part-{}", number / 100, number % 100);
        let owner = ring.owner(&name);
        if let Some(owner) = owner {
            *kept.entry(owner).or_default() += 1;
        }
        by_join += u64::from(larger.owner(&name) != owner);
        by_leave += u64::from(smaller.owner(&name) != owner);
        across += u64::from(ring.owner(&format!("models/{}/new-{}", number / 100, number % 100)) != owner);
        folder.push(owner);
        if folder.len() == 100 {
            folder.sort_unstable();
            folder.dedup();
            asked += folder.len() as u64;
            folder.clear();
        }
    }
    let share = |count: u64| count as f64 / names.max(1) as f64;
    let even = names.max(1) as f64 / f64::from(shards.max(1));
    ShardFigures {
        shards: shards.max(1),
        points: points.max(1),
        names,
        fullest: kept.values().max().copied().unwrap_or(0) as f64 / even,
        emptiest: kept.values().min().copied().unwrap_or(0) as f64 / even,
        moved_by_join: share(by_join),
        moved_by_leave: share(by_leave),
        renames_across: share(across),
        asked_by_listing: asked as f64 / (names / 100).max(1) as f64,
    }
}

fn point(shard: Shard, number: u32) -> u64 {
    mix(mix(u64::from(shard.0) << 32 | u64::from(number)).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// FNV-1a over the bytes, and then the mixer, because neighbours of FNV lie near each other.
fn hash(name: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    mix(name.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(shards: u32) -> Ring {
        let mut ring = Ring::new(64);
        (0..shards).for_each(|shard| ring.join(Shard(shard)));
        ring
    }

    fn names() -> impl Iterator<Item = String> {
        (0..20_000).map(|number| format!("objects/{}/{number}", number % 71))
    }

    #[test]
    fn a_directory_that_comes_takes_names_and_nobody_else_gets_any() {
        let (before, mut after) = (ring(8), ring(8));
        after.join(Shard(8));
        let mut moved = 0;
        for name in names() {
            let (old, new) = (before.owner(&name), after.owner(&name));
            if old != new {
                assert_eq!(new, Some(Shard(8)), "{name} moved between directories that were there");
                moved += 1;
            }
        }
        // A ninth would be even; points are random, so allow half as much again.
        assert!(moved > 20_000 / 9 / 2 && moved < 20_000 / 6, "{moved} names moved");
    }

    #[test]
    fn a_directory_that_goes_loses_its_names_and_nobody_else_any() {
        let (before, mut after) = (ring(8), ring(8));
        after.leave(Shard(3));
        for name in names() {
            let (old, new) = (before.owner(&name), after.owner(&name));
            assert_eq!(old != new, old == Some(Shard(3)), "{name}");
        }
        assert_eq!(after.shards().len(), 7);
        after.join(Shard(3));
        assert_eq!(after, before, "coming back takes the same names");
    }

    #[test]
    fn the_order_of_coming_does_not_matter_and_none_keeps_much_more_than_its_share() {
        let forward = ring(16);
        let mut backward = Ring::new(64);
        (0..16).rev().for_each(|shard| backward.join(Shard(shard)));
        assert_eq!(forward, backward);
        let figures = try_names(16, 64, 20_000);
        assert!(figures.fullest < 1.5 && figures.emptiest > 0.5, "{figures:?}");
        assert!(figures.moved_by_leave < 1.5 / 16.0, "{figures:?}");
        assert!(figures.asked_by_listing > 15.0, "a folder lies on all of them: {figures:?}");
    }

    #[test]
    fn without_directories_nobody_keeps_a_name() {
        let mut ring = Ring::new(0);
        assert_eq!(ring.owner("a"), None);
        ring.join(Shard(5));
        assert_eq!(ring.owner("a"), Some(Shard(5)));
        ring.leave(Shard(6));
        ring.leave(Shard(5));
        assert_eq!(ring.owner("a"), None);
    }
}
