//! KV blocks of other nodes: asked for in one batch, fetched once, and then blocks of this host.
//!
//! See `docs/decisions/2026-11-22-kv-other-racks.md`.
//!
//! | file | subject |
//! | --- | --- |
//! | `home` | answers other nodes |
//! | `links`, `link` | connections to other nodes, and the one question to all of them |
//! | `transfer` | blocks of one other node, from the reads to publishing |
//! | `claims` | one fetch for all who want the same block |
//! | `places` | what a question found, for the fetch after it |
//! | `checksum` | of blocks that went over a wire |

mod checksum;
mod claims;
mod home;
mod link;
mod links;
mod places;
mod transfer;

use super::{UserStore, key};
use crate::directory_link::DirectoryLink;
use crate::peers::PeerIdentity;
use crate::refused::{Refused, errno};
use claims::{Claim, Claims};
use hinterland_kv::{BlockKey, Namespace};
use hinterland_os::process;
use hinterland_proto::control::{KvRacksStatus, KvStatus};
use links::{Links, Spot};
use places::Places;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transfer::{Wanted, transfer};

/// Writers of this kind have numbers that no session reaches.
const WRITER_FIRST: u64 = 1 << 63;
/// Fetches that nobody waits for: each has a thread, and more of them would not move more bytes.
const PREFETCHES_MAX: usize = 4;
/// Homes of one block that are tried.
const TRIES_MAX: usize = 3;

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
struct Space {
    user: u32,
    namespace: Namespace,
    fingerprint: [u8; 32],
}

/// The number that stands for a fingerprint in headers.
pub(super) fn number_of(fingerprint: &[u8; 32]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&fingerprint[..8]);
    u64::from_le_bytes(number)
}

/// KV blocks of other nodes.
pub struct KvRacks {
    options: KvRemote,
    links: Links,
    claims: Claims,
    places: Places,
    writer_next: AtomicU64,
    prefetches: AtomicUsize,
}

impl KvRacks {
    /// Asks nobody yet.
    pub fn new(options: KvRemote, identity: PeerIdentity, directory: Arc<DirectoryLink>) -> Self {
        Self {
            options,
            links: Links::new(identity, directory, options),
            claims: Claims::default(),
            places: Places::default(),
            writer_next: AtomicU64::new(WRITER_FIRST),
            prefetches: AtomicUsize::new(0),
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

    /// How many of the keys, from the first on, are here or at other nodes.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have, or too many.
    pub fn match_prefix(
        &self,
        store: &UserStore,
        namespace: Namespace,
        keys: &[Vec<u8>],
    ) -> Result<u64, Refused> {
        let (space, keys) = self.ask(store, namespace, keys)?;
        let far: Vec<BlockKey> =
            keys.iter().filter(|key| !store.is_near(namespace, &space.fingerprint, key)).copied().collect();
        if far.is_empty() {
            return Ok(keys.len() as u64);
        }
        let mut spots = self.find(&space, &far).into_iter();
        let (mut count, mut is_whole) = (0, true);
        let mut known = Vec::new();
        let mut rest = far.iter().peekable();
        for key in &keys {
            if rest.next_if_eq(&key).is_some() {
                let spots = spots.next().unwrap_or_default();
                is_whole &= !spots.is_empty();
                known.push((claim(&space, *key), spots));
            }
            count += u64::from(is_whole);
        }
        self.places.put(known.into_iter().filter(|(_, spots)| !spots.is_empty()));
        Ok(count)
    }

    /// Brings blocks here; for each key, whether its block is here at the end.
    ///
    /// # Errors
    /// As [`match_prefix`](Self::match_prefix).
    pub fn fetch(
        &self,
        store: &UserStore,
        namespace: Namespace,
        keys: &[Vec<u8>],
    ) -> Result<Vec<bool>, Refused> {
        let (space, keys) = self.ask(store, namespace, keys)?;
        let is_here = |key: &BlockKey| store.view.find(namespace, key).is_some();
        let wanted = keys.iter().filter(|key| !is_here(key)).map(|key| claim(&space, *key));
        let (mine, others) = self.claims.claim(wanted);
        if !mine.blocks.is_empty() {
            store.bring_from_disk(namespace, &space.fingerprint, mine.blocks.iter().map(|(_, _, key)| *key));
        }
        if self.options.is_on && mine.blocks.iter().any(|(_, _, key)| !is_here(key)) {
            self.bring(store, &space, &mine.blocks);
            let misses = mine.blocks.iter().filter(|(_, _, key)| !is_here(key)).count();
            // Relaxed: a counter that nothing is ordered by.
            store.tally.misses.fetch_add(misses as u64, Ordering::Relaxed);
        }
        drop(mine);
        // As long as a fetch goes on it moves bytes, and no node may be silent for long: this ends.
        self.claims.wait(&others, Instant::now() + self.options.stall_after * 30);
        Ok(keys.iter().map(is_here).collect())
    }

    /// Begins to bring blocks here; false if as many fetches as may go on already.
    ///
    /// # Errors
    /// As [`match_prefix`](Self::match_prefix); also if there is no thread to be had.
    pub fn prefetch(
        self: &Arc<Self>,
        store: &Arc<UserStore>,
        namespace: Namespace,
        keys: Vec<Vec<u8>>,
    ) -> Result<bool, Refused> {
        self.ask(store, namespace, &keys)?;
        // Relaxed: a count that limits threads; nothing is published through it.
        if self.prefetches.fetch_add(1, Ordering::Relaxed) >= PREFETCHES_MAX {
            // Relaxed: as above.
            self.prefetches.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        let (racks, store) = (Arc::clone(self), Arc::clone(store));
        let bring = move || {
            process::name_thread("kv-prefetch");
            let counted = Counted(racks);
            if let Err(refused) = counted.0.fetch(&store, namespace, &keys) {
                tracing::debug!(%refused, "a prefetch of KV blocks");
            }
        };
        let spawned = std::thread::Builder::new().name("kv-prefetch".to_owned()).spawn(bring);
        spawned.map(|_| true).map_err(|error| {
            // Relaxed: as above.
            self.prefetches.fetch_sub(1, Ordering::Relaxed);
            Refused::new(errno::EIO, error.to_string())
        })
    }

    /// The namespace and the keys of a request that makes sense.
    fn ask(
        &self,
        store: &UserStore,
        namespace: Namespace,
        keys: &[Vec<u8>],
    ) -> Result<(Space, Vec<BlockKey>), Refused> {
        home::check_count(keys.len())?;
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let fingerprint = store.fingerprint(namespace).ok_or_else(|| {
            Refused::new(errno::EINVAL, format!("no namespace {:016x} is open (hint: open it)", namespace.0))
        })?;
        Ok((Space { user: store.user, namespace, fingerprint }, keys))
    }

    fn find(&self, space: &Space, keys: &[BlockKey]) -> Vec<Vec<Spot>> {
        if !self.options.is_on {
            return vec![Vec::new(); keys.len()];
        }
        let keys: Vec<Vec<u8>> = keys.iter().map(BlockKey::to_vec).collect();
        self.links.find(space.user, space.fingerprint, &keys)
    }

    /// Fetches claimed blocks: first from places that are known, then from those that are found.
    fn bring(&self, store: &UserStore, space: &Space, claims: &[Claim]) {
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
    }

    /// Fetches blocks from the first node that has each; those that it does not give, from the next.
    fn bring_from(&self, store: &UserStore, space: &Space, mut found: Vec<(BlockKey, Vec<Spot>)>) {
        for _ in 0..TRIES_MAX {
            let mut by_link: Vec<Vec<Wanted>> = Vec::new();
            for (key, spots) in &mut found {
                if spots.is_empty() || store.view.find(space.namespace, key).is_some() {
                    continue;
                }
                let wanted = Wanted { key: *key, spot: spots.remove(0) };
                let same = |group: &&mut Vec<Wanted>| {
                    let spot = &group[0].spot;
                    Arc::ptr_eq(&spot.link, &wanted.spot.link)
                        && (spot.life, spot.handle) == (wanted.spot.life, wanted.spot.handle)
                };
                match by_link.iter_mut().find(same) {
                    Some(group) => group.push(wanted),
                    None => by_link.push(vec![wanted]),
                }
            }
            let Some((own, others)) = by_link.split_first() else { return };
            std::thread::scope(|scope| {
                for group in others {
                    let bring = || self.bring_over(store, space, group);
                    // Without a thread its blocks are looked for elsewhere.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, bring);
                }
                self.bring_over(store, space, own);
            });
        }
    }

    /// Fetches blocks that were found over one connection.
    fn bring_over(&self, store: &UserStore, space: &Space, wanted: &[Wanted]) {
        let Some(Wanted { spot, .. }) = wanted.first() else { return };
        let Some(lane) = spot.link.lane(Instant::now() + self.options.find_within) else { return };
        if lane.life != spot.life {
            // The connection was made anew, and the handle means nothing on it.
            return lane.give_back();
        }
        let number = self.writer_next.fetch_add(1, Ordering::AcqRel);
        if let Err((lane, error)) = transfer(store, number, space, lane, wanted, self.options.stall_after) {
            self.links.give_up(&lane, &error);
        }
    }
}

/// One of the fetches that nobody waits for; counted off when it ends, in whatever way.
struct Counted(Arc<KvRacks>);

impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: a count that limits threads; nothing is published through it.
        self.0.prefetches.fetch_sub(1, Ordering::Relaxed);
    }
}

const fn claim(space: &Space, key: BlockKey) -> Claim {
    (space.user, space.namespace, key)
}
