//! KV blocks of this host's sessions: a store for each user, made when it is first opened.
//!
//! See `docs/decisions/2026-11-22-kv-blocks.md`.

mod behind;
mod claims;
mod disk;
mod elsewhere;
mod everywhere;
mod files;
mod keeping;
mod racks;
mod removals;
mod replace;
mod spaces;
mod start;
mod users;

pub use behind::KvWatermarks;
pub use disk::KvDisk;
pub use elsewhere::KvElsewhere;
pub use files::KvFolders;
pub use racks::{KvRacks, KvRemote};

use crate::refused::{Refused, errno};
use behind::Behind;
use disk::DiskTier;
use files::Files;
use hinterland_kv::{
    BlockKey, Counts, Limits, Memory as _, Namespace, Owned, Reserved, Restored, Store, StoreError,
    StoreStatus, View, Wish, take_touch,
};
use hinterland_os::{OsError, PageKind};
use hinterland_policy::EvictionKind;
use hinterland_proto::control::{
    KV_SPACES_AT_ONCE, KvBlock, KvDiskStatus, KvKeptStatus, KvNamespaceStatus, KvParent, KvSlot, KvStatus,
};
use hinterland_types::SessionId;
use removals::Removals;
use spaces::{Known, Spaces};
use start::Plan;
use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{fs, io};
use users::Users;

/// Longest label that is kept.
const LABEL_CHARS_MAX: usize = 200;
/// Namespaces of a user beyond which those that hold nothing are forgotten: what tells of all of them is one message.
const SPACES_MAX: usize = 1024;

/// A namespace that a session opens: its number among the counters, and what keeps it from being forgotten.
pub struct OpenedSpace {
    /// Which.
    pub namespace: Namespace,
    /// Its number among the counters.
    pub counters: u32,
    /// To be kept as long as it is open.
    pub uses: Arc<()>,
}

/// The stores of a node.
pub struct KvStores {
    plan: Plan,
    users: Users<UserStore>,
    /// The node is about to end, and ends its sessions.
    is_ending: AtomicBool,
}

/// The store of one user's sessions.
pub struct UserStore {
    user: u32,
    pages: PageKind,
    files: Files,
    books: Owned,
    touched: Owned,
    view: Arc<View>,
    tally: racks::Tally,
    disk: Option<Arc<DiskTier>>,
    /// Why there is no disk tier though there was to be one.
    disk_refusal: Option<String>,
    /// Where the namespaces are listed, if they outlive the node, or something of them does.
    spaces_path: Option<PathBuf>,
    restored: Restored,
    /// The order in which blocks are evicted.
    order: EvictionKind,
    verifies: bool,
    /// Whether what is known of several blocks is loaded before the first of them is swapped.
    looks_ahead: bool,
    watermarks: Option<KvWatermarks>,
    behind: Behind,
    state: Mutex<State>,
}

struct State {
    store: Store<Owned>,
    namespaces: Spaces,
    /// How often a namespace was cleared: what was on its way from other nodes then does not count.
    clears: u64,
    /// Namespaces that are being cleared at all nodes: until then nothing is fetched from others.
    closed: HashMap<Namespace, Instant>,
    /// Blocks that are being removed at all nodes.
    removals: Removals,
}

impl KvStores {
    /// Sessions end from here on because the node does, not because their programs do: these may go on writing into what they have
    /// reserved, so the next node must know of it.
    pub fn end_sessions(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Writes to the disk what is in memory, finishes checksums, and ends what goes on behind. Files of stores without blocks go.
    pub fn stop(&self) {
        for store in self.users.all_settled() {
            store.behind.stop();
            let is_told = match &store.disk {
                Some(disk) => {
                    let mut blocks = Vec::new();
                    store.lock().store.each_block(&mut |block| blocks.push(*block));
                    disk.stop(&store.view, &blocks)
                }
                // One that could not be used is not told.
                None => store.disk_refusal.is_none(),
            };
            let has_blocks = || !store.is_lost() && store.lock().store.status().blocks > 0;
            if store.spaces_path.is_none() || store.files.are_kept && has_blocks() {
                continue;
            }
            if is_told {
                self.plan.folders.remove(store.user);
            } else {
                self.plan.drop_left(store.user);
            }
        }
    }

    /// Whether there are blocks that the next node will find.
    pub fn keeps_blocks(&self) -> bool {
        self.users
            .all_settled()
            .iter()
            .any(|store| store.files.are_kept && store.lock().store.status().blocks > 0)
    }

    /// The store of a user, made if there is none. Who looks at stores or needs another one does not wait for it.
    ///
    /// # Errors
    /// [`Refused`] if the node lends no memory for blocks, or has none.
    pub fn of_user(&self, user: u32) -> Result<Arc<UserStore>, Refused> {
        self.users.find_or_make(user, UserStore::is_good, |was_there| {
            if was_there {
                tracing::error!(user, "a program has cut off the files of KV blocks: they are made anew");
                self.plan.drop_left(user);
            }
            let (store, messages) = UserStore::new(user, &self.plan)?;
            for message in messages {
                tracing::warn!(user, "{message}");
            }
            let store = Arc::new(store);
            store.start_behind();
            Ok(store)
        })
    }

    /// The store of a user, in which a namespace was opened before, and that namespace as [`namespace`](UserStore::namespace) tells it. No
    /// memory is taken for one that was not.
    ///
    /// # Errors
    /// [`Refused`] if the user has no such namespace.
    pub fn known(&self, user: u32, number: u64) -> Result<(Arc<UserStore>, OpenedSpace), Refused> {
        let store = self.users.find_settled(user).filter(|store| store.is_good());
        let known = store.and_then(|store| {
            let opened = store.lock().namespaces.get(&number)?.opened(number);
            Some((store, opened))
        });
        known.ok_or_else(|| {
            let text = format!(
                "user {user} has no namespace {number:016x} of KV blocks (hint: `hinterland kv stat` lists those of each user; be the user whose it is)"
            );
            Refused::new(errno::ENOENT, text)
        })
    }

    /// The store of a user, if there is one; none while it is being made.
    pub fn existing(&self, user: u32) -> Option<Arc<UserStore>> {
        self.users.find(user)
    }

    /// Gives back what a session of a user has reserved; it has ended.
    pub fn release(&self, user: u32, session: SessionId) {
        if let Some(store) = self.existing(user)
            && !(store.files.are_kept && self.is_ending.load(Ordering::Acquire))
        {
            store.lock().store.release(session.0);
        }
    }

    /// What all stores hold, with as many namespaces as an answer has room for.
    pub fn status(&self) -> Vec<KvStatus> {
        let mut stores = self.users.all();
        stores.sort_by_key(|store| store.user);
        let mut room = KV_SPACES_AT_ONCE;
        let told = stores.iter().map(|store| {
            let status = store.status(room);
            room -= status.namespaces.len();
            status
        });
        told.collect()
    }

    /// The next namespaces of a user's store.
    pub fn spaces(&self, user: u32, after: Option<u64>) -> Vec<KvNamespaceStatus> {
        let store = self.existing(user);
        store.map_or_else(Vec::new, |store| store.told_spaces(&store.lock(), after, KV_SPACES_AT_ONCE))
    }
}

impl UserStore {
    /// The namespace of a fingerprint, and its number among the counters.
    ///
    /// # Errors
    /// [`Refused`] if another fingerprint has its number.
    pub fn namespace(&self, fingerprint: [u8; 32], label: &str) -> Result<OpenedSpace, Refused> {
        let Namespace(number) = Namespace::of(&fingerprint);
        let label = || label.chars().take(LABEL_CHARS_MAX).collect();
        let mut state = self.lock();
        if let Some(known) = state.namespaces.get(&number).filter(|known| known.fingerprint == fingerprint) {
            if let Some(disk) = &self.disk {
                disk.know(number, fingerprint);
            }
            return Ok(known.opened(number));
        }
        if !state.namespaces.contains_key(&number) {
            let State { store, namespaces, .. } = &mut *state;
            if namespaces.len() >= SPACES_MAX {
                namespaces.retain(|&number, known| {
                    known.is_needed() || store.space(Namespace(number)).slot_bytes > 0
                });
            }
            let counters = spaces::free_counter(&state.namespaces);
            let (label, limits) = (label(), Limits::default());
            let uses = Arc::default();
            let known = Known { fingerprint, label, counters, limits, is_memory_only: false, uses };
            let opened = known.opened(number);
            state.namespaces.insert(number, known);
            self.save_spaces(&state.namespaces);
            if let Some(disk) = &self.disk {
                disk.know(number, fingerprint);
            }
            return Ok(opened);
        }
        let text =
            format!("namespace {number:016x} has another fingerprint (hint: add anything to the name)");
        Err(Refused::new(errno::EEXIST, text))
    }

    /// The fingerprint of a namespace that was opened.
    fn fingerprint(&self, namespace: Namespace) -> Option<[u8; 32]> {
        self.lock().namespaces.get(&namespace.0).map(|known| known.fingerprint)
    }

    /// What a client maps: books, blocks, touches. Slots that the session reserves count as being written, also for a node that
    /// comes later, for as long as somebody has these blocks mapped.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn descriptors(&self, session: SessionId) -> Result<Vec<OwnedFd>, OsError> {
        let mark = self.lock().store.mark(session.0);
        let Files { books, touches, .. } = &self.files;
        Ok(vec![books.reopen_read_only()?, self.files.blocks_for(mark)?, touches.duplicate()?])
    }

    /// Writes the list of namespaces, if a node that comes later is to know them.
    fn save_spaces(&self, namespaces: &Spaces) {
        if let Some(path) = &self.spaces_path
            && let Err(error) = self.write_spaces(path, namespaces)
        {
            tracing::error!(path = %path.display(), %error, "the list of namespaces cannot be written: blocks of a new one will not outlive the node, and ones that were replaced may come back from a disk");
        }
    }

    /// Of a store that ends with the node it is enough whose blocks were replaced, of which the disk may have old ones.
    fn write_spaces(&self, path: &Path, namespaces: &Spaces) -> io::Result<()> {
        if self.files.are_kept {
            return spaces::save(path, namespaces);
        }
        let replaced = spaces::replaced(namespaces);
        // Where there is no list, none is what stands in it.
        if replaced.is_empty() && !path.exists() {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        spaces::save(path, &replaced)
    }

    /// Blocks of a namespace are replaced: nothing of it goes to a disk from here on, nor in a later life of the node.
    fn keep_in_memory(&self, state: &mut State, number: u64) {
        let Some(known) = state.namespaces.get_mut(&number).filter(|known| !known.is_memory_only) else {
            return;
        };
        known.is_memory_only = true;
        if let Some(disk) = &self.disk {
            disk.forbid(number, known.fingerprint);
        }
        self.save_spaces(&state.namespaces);
    }

    /// Whether nobody has cut off the files, in memory or by their names.
    fn is_good(&self) -> bool {
        !self.is_lost() && self.files.are_whole()
    }

    /// Whether somebody has cut off the files: nothing in them counts any more.
    fn is_lost(&self) -> bool {
        self.books.is_lost() || self.touched.is_lost() || self.view.is_lost()
    }

    /// Refuses whatever writes into files that were cut off.
    fn check_kept(&self) -> Result<(), Refused> {
        if !self.is_lost() {
            return Ok(());
        }
        let text = "a program has cut off the files of these KV blocks (hint: open the namespace again)";
        Err(Refused::new(errno::EIO, text))
    }

    /// Slots for blocks.
    ///
    /// # Errors
    /// [`Refused`] for a key or length that no block can have; nothing is reserved then.
    pub fn reserve(
        &self,
        session: SessionId,
        namespace: Namespace,
        blocks: &[KvBlock],
    ) -> Result<Vec<KvSlot>, Refused> {
        let wishes = wishes(namespace, blocks)?;
        self.check_kept()?;
        let keys: Vec<BlockKey> = wishes.iter().map(|wish| wish.key).collect();
        let mut state = self.lock_checked(namespace, &keys);
        let mut slots = Vec::with_capacity(blocks.len());
        for wish in &wishes {
            match state.store.reserve(session.0, wish, &mut |slot| self.was_touched(slot)) {
                Ok(reserved) => slots.push(match reserved {
                    Reserved::Slot { slot, offset } => KvSlot::Reserved { slot, offset },
                    Reserved::Exists => KvSlot::Exists,
                    Reserved::Busy => KvSlot::Busy,
                    Reserved::NoRoom => KvSlot::NoRoom,
                }),
                Err(error) => {
                    for slot in &slots {
                        if let KvSlot::Reserved { slot, .. } = slot {
                            // It was reserved a moment ago, by this session.
                            let _ = state.store.abort(session.0, *slot);
                        }
                    }
                    return Err(refused(&error));
                }
            }
        }
        let is_low = self.is_below_low(state.store.free_bytes());
        drop(state);
        if is_low {
            self.behind.ring();
        }
        Ok(slots)
    }

    /// Makes blocks visible; one answer each. `sums` are the checksums that their writer has taken of each, or none: a wrong one
    /// hurts nobody else, as the block is a miss as soon as somebody checks it.
    ///
    /// # Errors
    /// [`Refused`] for another number of checksums, and at the first slot that the session has not reserved; those before it are
    /// visible.
    pub fn publish(&self, session: SessionId, slots: &[u32], sums: &[u32]) -> Result<Vec<bool>, Refused> {
        self.check_kept()?;
        if !sums.is_empty() && sums.len() != slots.len() {
            let text = format!(
                "{} checksums came with {} slots (hint: give one for each, or none)",
                sums.len(),
                slots.len()
            );
            return Err(Refused::new(errno::EINVAL, text));
        }
        let reserved = slots.iter().map(|&slot| (slot, None));
        let taken = if sums.is_empty() { self.sums_before(session, reserved) } else { Vec::new() };
        let mut state = self.lock();
        let mut was_touched = |slot| self.was_touched(slot);
        let mut publish = |(index, &slot): (usize, &u32)| {
            let sum = sums.get(index).copied().or_else(|| taken.get(index).copied().flatten());
            state.store.sum_of_written(session.0, slot, sum)?;
            state.store.publish(session.0, slot, &mut was_touched)
        };
        let published =
            slots.iter().enumerate().map(|each| publish(each).map_err(|error| refused(&error))).collect();
        drop(state);
        if self.files.are_kept && sums.is_empty() {
            self.behind.published();
        }
        published
    }

    /// Checksums of what a session has written, one for each slot, or none at all if readers check none: taken before anybody is locked out.
    /// With a slot stands the length of its block, if that was not said when it was reserved. One that is named again is refused then, and is
    /// summed up once.
    fn sums_before(
        &self,
        session: SessionId,
        slots: impl Iterator<Item = (u32, Option<u64>)>,
    ) -> Vec<Option<u32>> {
        if !self.verifies {
            return Vec::new();
        }
        let mut known = HashSet::new();
        let places: Vec<Option<(u64, u32)>> = {
            let state = self.lock();
            let mut place = |(slot, bytes)| {
                let is_new = known.insert(slot);
                is_new.then(|| state.store.written(session.0, slot, bytes)).flatten()
            };
            slots.map(&mut place).collect()
        };
        places.into_iter().map(|place| place.and_then(|(offset, bytes)| self.sum(offset, bytes))).collect()
    }

    /// Gives slots back unwritten.
    ///
    /// # Errors
    /// [`Refused`] at the first slot that the session has not reserved.
    pub fn abort(&self, session: SessionId, slots: &[u32]) -> Result<u64, Refused> {
        let mut state = self.lock();
        for &slot in slots {
            state.store.abort(session.0, slot).map_err(|error| refused(&error))?;
        }
        Ok(slots.len() as u64)
    }

    /// Removes blocks; returns how many were there and are gone. One that is pinned stays.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have; nothing is removed then.
    pub fn remove(&self, namespace: Namespace, keys: &[Vec<u8>]) -> Result<u64, Refused> {
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.lock();
        let mut removed = 0;
        for key in &keys {
            let was_here = state.store.remove(namespace, key);
            let was_there = self.disk.as_ref().is_some_and(|disk| disk.removed(namespace.0, key));
            let stays = !was_here && state.store.inspect(namespace, key).is_some();
            removed += u64::from(was_here || was_there && !stays);
        }
        Ok(removed)
    }

    /// Removes all blocks of a namespace; returns how many there were.
    pub fn clear(&self, namespace: Namespace) -> u64 {
        let mut state = self.lock();
        state.clears += 1;
        let removed = state.store.clear(namespace);
        // Behind it: what is copied for the disk just now is seen to be gone by who copies it, or is dropped here.
        if let Some(disk) = &self.disk {
            disk.cleared(namespace.0);
        }
        removed
    }

    /// What namespaces hold whose numbers are above that of `after`, `most` of them.
    fn told_spaces(&self, state: &State, after: Option<u64>, most: usize) -> Vec<KvNamespaceStatus> {
        let count = |(&namespace, known): (&u64, &Known)| {
            let space = state.store.space(Namespace(namespace));
            let counts = Counts::load(&self.touched, state.store.geometry(), known.counters);
            KvNamespaceStatus {
                namespace,
                label: known.label.clone(),
                blocks: space.blocks,
                bytes: space.bytes,
                slot_bytes: space.slot_bytes,
                evictions: space.evictions,
                quota_bytes: space.limits.quota_bytes,
                priority: space.limits.priority,
                asked: counts.asked,
                found: counts.found,
                gets: counts.gets,
                got: counts.got,
                read_bytes: counts.read_bytes,
            }
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        state.namespaces.range((from, Bound::Unbounded)).take(most).map(count).collect()
    }

    fn status(&self, spaces_max: usize) -> KvStatus {
        let state = self.lock();
        let StoreStatus { capacity_bytes, blocks, bytes, reserved, evictions, pinned_bytes, .. } =
            state.store.status();
        let namespaces = self.told_spaces(&state, None, spaces_max);
        let pages = self.pages.name().to_owned();
        let (user, racks) = (self.user, self.tally.status());
        KvStatus {
            user,
            pages,
            capacity_bytes,
            blocks,
            bytes,
            reserved,
            evictions,
            pinned_bytes,
            namespaces,
            racks,
            disk: self.disk_status(),
            kept: self.kept_status(&state.store),
            eviction: self.order.to_string(),
        }
    }

    fn kept_status(&self, store: &Store<Owned>) -> KvKeptStatus {
        let StoreStatus { unchecked, damaged, evictions_ahead, .. } = store.status();
        KvKeptStatus {
            path: self.files.path().map(|path| path.display().to_string()),
            restored_blocks: self.restored.blocks,
            dropped_blocks: self.restored.dropped,
            unchecked_blocks: unchecked,
            abandoned_slots: store.abandoned() as u64,
            unsummed_blocks: store.unsummed() as u64,
            damaged_blocks: damaged,
            verifies: self.verifies,
            evictions_ahead,
        }
    }

    fn disk_status(&self) -> Option<KvDiskStatus> {
        let refused = || {
            let state = "not used".to_owned();
            let last_error = self.disk_refusal.clone();
            last_error.is_some().then(|| KvDiskStatus { state, last_error, ..KvDiskStatus::default() })
        };
        self.disk.as_ref().map(|disk| disk.status()).or_else(refused)
    }

    /// Whether a block was read since this was asked last.
    fn was_touched(&self, slot: u32) -> bool {
        take_touch(&self.touched, slot)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks of a request, each with the key of the one that it follows on.
fn wishes(namespace: Namespace, blocks: &[KvBlock]) -> Result<Vec<Wish>, Refused> {
    let mut wishes: Vec<Wish> = Vec::with_capacity(blocks.len());
    for block in blocks {
        let parent = match &block.parent {
            KvParent::None => None,
            KvParent::Previous => wishes.last().map(|wish| wish.key),
            KvParent::Key(parent) => Some(key(parent)?),
        };
        wishes.push(Wish { namespace, key: key(&block.key)?, bytes: block.bytes, parent });
    }
    Ok(wishes)
}

fn key(bytes: &[u8]) -> Result<BlockKey, Refused> {
    BlockKey::new(bytes).map_err(|error| Refused::new(errno::EINVAL, error.to_string()))
}

fn refused(error: &StoreError) -> Refused {
    let code = match error {
        StoreError::Bytes(_) | StoreError::Longer { .. } => errno::EINVAL,
        StoreError::NotReserved(_) => errno::EACCES,
    };
    Refused::new(code, error.to_string())
}
