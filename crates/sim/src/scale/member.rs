//! A node as the simulation knows it: its words, its heat, the page that it pulls, the copies that it holds.

use super::repairing::Repairing;
use crate::random::Random;
use hinterland_directory::ContentDigest;
use hinterland_policy::heat::{Heat, HeatRules, HeatTable, Moves};
use hinterland_types::{Epoch, NodeId, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Samples that one thread keeps until its node looks: `SAMPLES` of the slots.
const SAMPLES: usize = 118;
/// Samples that one stands for at the most: `STANDS_FOR_MAX` of the slots.
const STANDS_FOR_MAX: u64 = 256;
/// Of accesses to pages that are here one in so many is a sample, and stands for all of them.
const LOCAL_WEIGHT: u32 = 64;

/// An access that its program has noted.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) page: u32,
    is_write: bool,
    weight: u32,
}

/// A page on its way to a node.
#[derive(Clone, Copy)]
pub(super) struct Pull {
    pub(super) page: u32,
    pub(super) heat: Heat,
    /// The epoch that it will have, once the directory has begun the move.
    pub(super) epoch: Option<Epoch>,
    /// Place of the node that it comes from.
    pub(super) from: usize,
}

/// A node.
pub(super) struct Member {
    pub(super) id: NodeId,
    pub(super) rack: u32,
    pub(super) alive: bool,
    /// Whether the directory takes it to be up, as it knows itself.
    pub(super) is_up: bool,
    pub(super) incarnation: u64,
    pub(super) table: HeatTable,
    pub(super) moves: Moves,
    /// For each page, of how many moves its word knows.
    pub(super) known: Vec<u32>,
    /// Regions whose words it has.
    pub(super) opened: Vec<bool>,
    samples: Vec<Sample>,
    samples_max: usize,
    /// Overwritten in all, and since the last look.
    pub(super) samples_lost: u64,
    overwritten: u64,
    here_count: u32,
    /// Threads that wait for a frozen page.
    pub(super) blocked: u32,
    /// Parts of an operation that the last round left.
    pub(super) left: f64,
    pub(super) wanted: VecDeque<(u32, Heat)>,
    pub(super) pull: Option<Pull>,
    /// When its network has sent all that was asked for.
    pub(super) network_free_at: Duration,
    pub(super) held: BTreeMap<ObjectId, (Epoch, Option<ContentDigest>)>,
    pub(super) repairing: Repairing,
    pub(super) random: Random,
}

impl Member {
    pub(super) fn new(id: NodeId, rack: u32, rules: HeatRules, threads: u32, seed: u64) -> Self {
        Self {
            id,
            rack,
            alive: true,
            is_up: true,
            incarnation: 1,
            table: HeatTable::new(rules),
            moves: Moves::new(rules),
            known: Vec::new(),
            opened: Vec::new(),
            samples: Vec::new(),
            samples_max: SAMPLES * threads as usize,
            samples_lost: 0,
            overwritten: 0,
            here_count: 0,
            blocked: 0,
            left: 0.0,
            wanted: VecDeque::new(),
            pull: None,
            network_free_at: Duration::ZERO,
            held: BTreeMap::new(),
            repairing: Repairing::default(),
            random: Random::new(seed ^ id.0.rotate_left(32)),
        }
    }

    /// Notes an access as a program does.
    pub(super) fn note(&mut self, page: u32, is_write: bool, is_here: bool) {
        let weight = if is_here { LOCAL_WEIGHT } else { 1 };
        if is_here {
            self.here_count += 1;
            if !self.here_count.is_multiple_of(LOCAL_WEIGHT) {
                return;
            }
        }
        self.samples.push(Sample { page, is_write, weight });
    }

    /// Sums of what was noted since the last look, ascending by page: reads and writes. The oldest samples are gone if there were too many, and the
    /// others stand for them.
    pub(super) fn drain(&mut self) -> Vec<(u32, u64, u64)> {
        let surplus = self.samples.len().saturating_sub(self.samples_max);
        self.samples_lost += surplus as u64;
        let written = std::mem::take(&mut self.overwritten) + self.samples.len() as u64;
        let stands_for = written.div_ceil(self.samples_max as u64).clamp(1, STANDS_FOR_MAX);
        let mut samples = self.samples.split_off(surplus);
        self.samples.clear();
        samples.sort_unstable_by_key(|sample| sample.page);
        let sums = samples.chunk_by(|one, other| one.page == other.page).map(|of_page| {
            let sum = |writes: bool| {
                let counted = of_page.iter().filter(|sample| sample.is_write == writes);
                counted.map(|sample| u64::from(sample.weight) * stands_for).sum::<u64>()
            };
            (of_page[0].page, sum(false), sum(true))
        });
        sums.collect()
    }

    /// Forgets samples beyond those that slots would keep, while nobody looks.
    pub(super) fn overwrite(&mut self) {
        if self.samples.len() > 4 * self.samples_max {
            let surplus = self.samples.len() - self.samples_max;
            self.samples_lost += surplus as u64;
            self.overwritten += surplus as u64;
            self.samples.drain(..surplus);
        }
    }
}
