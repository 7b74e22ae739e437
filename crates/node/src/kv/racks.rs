//! KV blocks of other nodes: asked for in one batch, fetched once, and then blocks of this host.
//!
//! See `docs/decisions/2026-11-22-kv-other-racks.md`.
//!
//! | file | subject |
//! | --- | --- |
//! | `home` | answers other nodes |
//! | `links`, `link` | connections to other nodes, and the one question to all of them |
//! | `transfer` | blocks of one other node, from the reads to publishing |
//! | `places` | what a question found, for the fetch after it |
//! | `checksum` | of blocks that went over a wire |

mod checksum;
mod home;
mod link;
mod links;
mod places;
mod transfer;

pub(super) use home::check_count;

use super::UserStore;
use super::claims::Claim;
use crate::directory_link::DirectoryLink;
use crate::peers::PeerIdentity;
use crate::refused::{Refused, errno};
use hinterland_kv::{BlockKey, Namespace};
use hinterland_os::process;
use hinterland_proto::control::{KvRacksStatus, KvStatus};
use hinterland_types::Handle;
use link::Lane;
use links::{Links, Spot, Way};
use places::Places;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transfer::{Wanted, transfer};

/// Writers of this kind have numbers that no session reaches.
const WRITER_FIRST: u64 = 1 << 63;
/// Homes of one block that are tried.
const TRIES_MAX: usize = 3;

/// Bytes and blocks that another node brings from its disk at once: well within the time after which it counts as silent.
const STAGE_BYTES: u64 = 8 << 20;
const STAGE_BLOCKS: usize = 256;
/// Parts of it that are under way, or travel.
const STAGES: usize = 3;

/// How a node deals with KV blocks of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvRemote {
    /// Whether it asks others and answers them.
    pub is_on: bool,
    /// How long others are waited for that are asked where blocks are.
    pub find_within: Duration,
    /// How long a node that sends blocks may be silent, and how long connecting may take.
    pub stall_after: Duration,
    /// How long a node that was silent is left alone.
    pub rest: Duration,
    /// How often members are looked up, and connections that are lost are made anew.
    pub refresh: Duration,
}

impl Default for KvRemote {
    fn default() -> Self {
        Self {
            is_on: true,
            find_within: Duration::from_millis(100),
            stall_after: Duration::from_secs(1),
            rest: Duration::from_secs(10),
            refresh: Duration::from_secs(1),
        }
    }
}

/// What a store has had to do with others; see [`KvRacksStatus`].
#[derive(Default)]
pub(super) struct Tally {
    hits: AtomicU64,
    misses: AtomicU64,
    bytes: AtomicU64,
    checksum_failures: AtomicU64,
    sent_blocks: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Tally {
    pub(super) fn status(&self) -> KvRacksStatus {
        // Relaxed: counters that nothing is ordered by.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KvRacksStatus {
            nodes: 0,
            resting: 0,
            hits: read(&self.hits),
            misses: read(&self.misses),
            bytes: read(&self.bytes),
            checksum_failures: read(&self.checksum_failures),
            sent_blocks: read(&self.sent_blocks),
            sent_bytes: read(&self.sent_bytes),
        }
    }
}

/// A namespace of a user, as all nodes know it.
pub(super) struct Space {
    pub(super) user: u32,
    pub(super) namespace: Namespace,
    pub(super) fingerprint: [u8; 32],
}

impl Space {
    /// What is claimed to fetch a block.
    pub(super) const fn claim(&self, key: BlockKey) -> Claim {
        (self.user, self.namespace, key)
    }
}

/// KV blocks of other nodes.
pub struct KvRacks {
    options: KvRemote,
    links: Links,
    places: Places,
    writer_next: AtomicU64,
}

impl KvRacks {
    /// Asks nobody yet.
    pub fn new(options: KvRemote, identity: PeerIdentity, directory: Arc<DirectoryLink>) -> Self {
        Self {
            options,
            links: Links::new(identity, directory, options),
            places: Places::default(),
            writer_next: AtomicU64::new(WRITER_FIRST),
        }
    }

    /// Starts the thread that keeps connections; it ends with [`stop`](Self::stop).
    ///
    /// # Errors
    /// [`Refused`] if there is no thread to be had.
    pub fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, Refused> {
        let racks = Arc::clone(self);
        let keep = move || {
            process::name_thread("kv-racks");
            racks.links.keep();
        };
        let thread = std::thread::Builder::new().name("kv-racks".to_owned()).spawn(keep);
        thread.map_err(|error| Refused::new(errno::EIO, error.to_string()))
    }

    /// Ends that thread.
    pub fn stop(&self) {
        self.links.stop();
    }

    /// Whether it asks others and answers them.
    pub const fn is_on(&self) -> bool {
        self.options.is_on
    }

    /// A program has opened KV blocks: others are connected to. Waits for the first attempt, a second at most.
    pub fn want(&self) {
        if self.options.is_on {
            self.links.want();
        }
    }

    /// Adds what is known of all stores alike.
    pub fn describe(&self, stores: &mut [KvStatus]) {
        let (nodes, resting) = self.links.counts();
        for store in stores {
            (store.racks.nodes, store.racks.resting) = (nodes, resting);
        }
    }

    /// How long a fetch may take in which bytes move: no node may be silent for long.
    pub(super) fn longest_fetch(&self) -> Duration {
        self.options.stall_after * 30
    }

    /// For each of these keys, the length of its block if another node has it. Where they lie is remembered for a fetch.
    pub(super) fn lengths(&self, space: &Space, keys: &[BlockKey]) -> Vec<Option<u32>> {
        let spots = self.find(space, keys);
        let lengths = spots.iter().map(|spots| spots.first().map(|spot| spot.bytes)).collect();
        let known = keys.iter().map(|key| space.claim(*key)).zip(spots);
        self.places.put(known.filter(|(_, spots)| !spots.is_empty()));
        lengths
    }

    fn find(&self, space: &Space, keys: &[BlockKey]) -> Vec<Vec<Spot>> {
        if !self.options.is_on {
            return vec![Vec::new(); keys.len()];
        }
        let keys: Vec<Vec<u8>> = keys.iter().map(BlockKey::to_vec).collect();
        self.links.find(space.user, space.fingerprint, &keys)
    }

    /// Fetches claimed blocks that are not here: first from places that are known, then from those that are found.
    pub(super) fn bring(&self, store: &UserStore, space: &Space, claims: &[Claim]) {
        let is_here = |claim: &Claim| store.view.find(space.namespace, &claim.2).is_some();
        if !self.options.is_on || claims.iter().all(is_here) {
            return;
        }
        let known: Vec<_> = claims.iter().map(|claim| (claim.2, self.places.take(claim))).collect();
        self.bring_from(store, space, known);
        let left: Vec<BlockKey> = claims
            .iter()
            .map(|(_, _, key)| *key)
            .filter(|key| store.view.find(space.namespace, key).is_none())
            .collect();
        if !left.is_empty() {
            let found = self.find(space, &left);
            self.bring_from(store, space, left.into_iter().zip(found).collect());
        }
        let misses = claims.iter().filter(|claim| !is_here(claim)).count();
        // Relaxed: a counter that nothing is ordered by.
        store.tally.misses.fetch_add(misses as u64, Ordering::Relaxed);
    }

    /// Fetches blocks from the first node that has each; those that it does not give, from the next.
    fn bring_from(&self, store: &UserStore, space: &Space, mut found: Vec<(BlockKey, Vec<Spot>)>) {
        for _ in 0..TRIES_MAX {
            let mut groups: Vec<Group> = Vec::new();
            for (key, spots) in &mut found {
                if spots.is_empty() || store.view.find(space.namespace, key).is_some() {
                    continue;
                }
                let spot = spots.remove(0);
                let place = groups.iter().position(|group| group.way.is(&spot.way)).unwrap_or_else(|| {
                    groups.push(Group::of(spot.way.clone()));
                    groups.len() - 1
                });
                match spot.place {
                    Some(place_there) => {
                        groups[place].in_memory.push(Wanted { key: *key, place: place_there })
                    }
                    None => groups[place].on_disk.push((*key, spot.bytes)),
                }
            }
            let Some((own, others)) = groups.split_first() else { return };
            std::thread::scope(|scope| {
                for group in others {
                    let bring = || self.bring_group(store, space, group);
                    // Without a thread its blocks are looked for elsewhere.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, bring);
                }
                self.bring_group(store, space, own);
            });
        }
    }

    /// Fetches blocks of one node. Those on its disk come into its memory in parts, some of which are read while one travels. Nobody waits for a
    /// lane who holds one: a part travels over the one by which it was asked for, and more are used only if they are free.
    fn bring_group(&self, store: &UserStore, space: &Space, group: &Group) {
        self.bring_over(store, space, &group.way, &group.in_memory);
        let mut parts = parts_of(&group.on_disk).into_iter();
        let mut staging = VecDeque::new();
        loop {
            while staging.len() < STAGES && !parts.as_slice().is_empty() {
                let link = &group.way.link;
                let lane = match staging.is_empty() {
                    true => link.lane(Instant::now() + self.options.find_within),
                    false => link.spare_lane(),
                };
                let Some(lane) = lane else { break };
                let Some(part) = parts.next() else { break };
                let keys = part.iter().map(|(key, _)| key.to_vec()).collect();
                if let Some(asked) = self.links.stage(lane, space.user, space.fingerprint, keys) {
                    staging.push_back((part, asked));
                }
            }
            let Some((part, asked)) = staging.pop_front() else { return };
            // A disk that was silent once is not waited for again and again.
            let Some((lane, staged)) = self.links.staged(asked) else { return };
            let there = part.iter().zip(&staged.places).filter_map(|((key, _), place)| {
                let place = place.clone()?;
                Some(Wanted { key: *key, place })
            });
            self.bring_by(store, space, (lane, staged.handle), &there.collect::<Vec<_>>());
        }
    }

    /// Fetches blocks that were found over one connection.
    fn bring_over(&self, store: &UserStore, space: &Space, way: &Way, wanted: &[Wanted]) {
        if wanted.is_empty() {
            return;
        }
        let Some(lane) = way.link.lane(Instant::now() + self.options.find_within) else { return };
        if lane.life != way.life {
            // The connection was made anew, and the handle means nothing on it.
            return lane.give_back();
        }
        self.bring_by(store, space, (lane, way.handle), wanted);
    }

    /// Fetches blocks over a lane, by a handle of its connection.
    fn bring_by(&self, store: &UserStore, space: &Space, lane: (Lane, Handle), wanted: &[Wanted]) {
        let number = self.writer_next.fetch_add(1, Ordering::AcqRel);
        if let Err((lane, error)) = transfer(store, number, space, lane, wanted, self.options.stall_after) {
            self.links.give_up(&lane, &error);
        }
    }
}

/// Blocks of one node that are wanted.
struct Group {
    way: Way,
    in_memory: Vec<Wanted>,
    /// With their lengths.
    on_disk: Vec<(BlockKey, u32)>,
}

impl Group {
    const fn of(way: Way) -> Self {
        Self { way, in_memory: Vec::new(), on_disk: Vec::new() }
    }
}

/// Blocks of a disk in parts that are asked for together.
fn parts_of(blocks: &[(BlockKey, u32)]) -> Vec<&[(BlockKey, u32)]> {
    let (mut parts, mut rest) = (Vec::new(), blocks);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, length): &&(BlockKey, u32)| {
            bytes += u64::from(*length);
            bytes <= STAGE_BYTES
        };
        let count = rest.iter().take(STAGE_BLOCKS).take_while(fits).count().max(1);
        let (part, behind) = rest.split_at(count);
        parts.push(part);
        rest = behind;
    }
    parts
}
