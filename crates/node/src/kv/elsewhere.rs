//! Blocks that are not in the memory of this host: looked for on its disk and at other nodes, and brought here once for all who want them.

use super::claims::Claims;
use super::racks::{KvRacks, Space, check_count};
use super::{UserStore, key};
use crate::refused::{Refused, errno};
use hinterland_kv::{BlockKey, Namespace};
use hinterland_os::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Fetches that nobody waits for: each has a thread, and more of them would not move more bytes.
const PREFETCHES_MAX: usize = 4;

/// How long another node waits here for what this one is fetching itself: less than it takes for a node that is silent.
const STAGE_WAIT: Duration = Duration::from_millis(200);

/// The way to all blocks that are not in memory.
pub struct KvElsewhere {
    racks: Arc<KvRacks>,
    claims: Claims,
    prefetches: AtomicUsize,
}

impl KvElsewhere {
    /// Asks other nodes by these connections.
    pub fn new(racks: Arc<KvRacks>) -> Self {
        Self { racks, claims: Claims::default(), prefetches: AtomicUsize::new(0) }
    }

    /// How many of the keys, from the first on, are here, on the disk or at other nodes.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have, or too many.
    pub fn match_prefix(
        &self,
        store: &UserStore,
        namespace: Namespace,
        keys: &[Vec<u8>],
    ) -> Result<u64, Refused> {
        let lengths = self.lengths(store, namespace, keys)?;
        Ok(lengths.iter().take_while(|length| length.is_some()).count() as u64)
    }

    /// For each key, the length of its block if it is here, on the disk or at another node. It is not brought here.
    ///
    /// # Errors
    /// As [`match_prefix`](Self::match_prefix).
    pub fn lengths(
        &self,
        store: &UserStore,
        namespace: Namespace,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<u32>>, Refused> {
        let (space, keys) = ask(store, namespace, keys)?;
        let mut lengths = store.lengths_near(namespace, &space.fingerprint, &keys);
        let missing: Vec<usize> = (0..keys.len()).filter(|&index| lengths[index].is_none()).collect();
        if !missing.is_empty() && !store.is_closed(namespace) {
            let far: Vec<BlockKey> = missing.iter().map(|&index| keys[index]).collect();
            let found = self.racks.lengths(&space, &far);
            missing.into_iter().zip(found).for_each(|(index, length)| lengths[index] = length);
        }
        Ok(lengths)
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
        let (space, keys) = ask(store, namespace, keys)?;
        store.check_those_of_before(namespace, &keys);
        let is_here = |key: &BlockKey| store.view.find(namespace, key).is_some();
        let wanted = keys.iter().filter(|key| !is_here(key)).map(|key| space.claim(*key));
        let (mine, others) = self.claims.claim(wanted);
        if !mine.blocks.is_empty() {
            store.bring_from_disk(namespace, &space.fingerprint, mine.blocks.iter().map(|(_, _, key)| *key));
            self.racks.bring(store, &space, &mine.blocks);
        }
        drop(mine);
        // As long as a fetch goes on it moves bytes: this ends.
        self.claims.wait(&others, Instant::now() + self.racks.longest_fetch());
        Ok(keys.iter().map(is_here).collect())
    }

    /// Brings blocks from the disk into memory because another node asked for them, and waits for those that are on their way here anyway, a moment.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have, or too many.
    pub fn stage(&self, store: &UserStore, fingerprint: &[u8; 32], keys: &[Vec<u8>]) -> Result<(), Refused> {
        check_count(keys.len())?;
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let Some(namespace) = store.namespace_of(fingerprint) else { return Ok(()) };
        store.check_those_of_before(namespace, &keys);
        let space = Space { user: store.user, namespace, fingerprint: *fingerprint };
        let wanted = keys.iter().filter(|key| store.view.find(namespace, key).is_none());
        let (mine, others) = self.claims.claim(wanted.map(|key| space.claim(*key)));
        store.bring_from_disk(namespace, fingerprint, mine.blocks.iter().map(|(_, _, key)| *key));
        drop(mine);
        self.claims.wait(&others, Instant::now() + STAGE_WAIT);
        Ok(())
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
        ask(store, namespace, &keys)?;
        // Relaxed: a count that limits threads; nothing is published through it.
        if self.prefetches.fetch_add(1, Ordering::Relaxed) >= PREFETCHES_MAX {
            // Relaxed: as above.
            self.prefetches.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        let (elsewhere, store) = (Arc::clone(self), Arc::clone(store));
        let bring = move || {
            process::name_thread("kv-prefetch");
            let counted = Counted(elsewhere);
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
}

/// The namespace and the keys of a request that makes sense.
fn ask(store: &UserStore, namespace: Namespace, keys: &[Vec<u8>]) -> Result<(Space, Vec<BlockKey>), Refused> {
    check_count(keys.len())?;
    let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
    let fingerprint = store.fingerprint(namespace).ok_or_else(|| {
        Refused::new(errno::EINVAL, format!("no namespace {:016x} is open (hint: open it)", namespace.0))
    })?;
    Ok((Space { user: store.user, namespace, fingerprint }, keys))
}

/// One of the fetches that nobody waits for; counted off when it ends, in whatever way.
struct Counted(Arc<KvElsewhere>);

impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: a count that limits threads; nothing is published through it.
        self.0.prefetches.fetch_sub(1, Ordering::Relaxed);
    }
}
