//! KV blocks of this host's sessions: a store for each user, made when it is first opened.
//!
//! See `docs/decisions/2026-11-22-kv-blocks.md`.

mod disk;
mod keeping;
mod racks;
mod replace;

pub use disk::KvDisk;
pub use racks::{KvRacks, KvRemote};

use crate::options::NodeOptions;
use crate::refused::{Refused, errno};
use disk::DiskTier;
use hinterland_kv::{
    BlockKey, COUNTED_MAX, Counts, Namespace, Owned, Point, Reserved, Store, StoreError, StoreStatus, View,
    Wish, settle, take_touch,
};
use hinterland_os::{Coherence, MapOptions, MemoryFile, OsError, PageKind, Seals, SharedSlice};
use hinterland_policy::EvictionKind;
use hinterland_proto::control::{KvBlock, KvDiskStatus, KvNamespaceStatus, KvParent, KvSlot, KvStatus};
use hinterland_types::SessionId;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest label that is kept.
const LABEL_CHARS_MAX: usize = 200;

/// The stores of a node.
pub struct KvStores {
    capacity_bytes: u64,
    order: EvictionKind,
    disk: Option<KvDisk>,
    coherence: Coherence,
    by_user: Mutex<HashMap<u32, Arc<UserStore>>>,
}

/// The store of one user's sessions.
pub struct UserStore {
    user: u32,
    pages: PageKind,
    books: MemoryFile,
    blocks: MemoryFile,
    touches: MemoryFile,
    touched: Owned,
    view: Arc<View>,
    tally: racks::Tally,
    disk: Option<Arc<DiskTier>>,
    /// Why there is no disk tier though there was to be one.
    disk_refusal: Option<String>,
    state: Mutex<State>,
}

struct State {
    store: Store<Owned>,
    namespaces: BTreeMap<u64, Known>,
}

/// A namespace that was opened.
struct Known {
    fingerprint: [u8; 32],
    label: String,
    /// Its number among the counters.
    counters: u32,
}

impl KvStores {
    /// Stores as a node is told to have.
    pub fn new(options: &NodeOptions) -> Self {
        Self {
            capacity_bytes: options.kv_capacity_bytes,
            order: options.eviction,
            disk: options.kv_disk.clone(),
            coherence: options.coherence,
            by_user: Mutex::default(),
        }
    }

    /// Writes to the disk what is in memory, and ends what goes on there.
    pub fn stop(&self) {
        let stores: Vec<Arc<UserStore>> =
            self.by_user.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for store in stores {
            if let Some(disk) = &store.disk {
                let mut blocks = Vec::new();
                store.lock().store.each_block(&mut |block| blocks.push(*block));
                disk.stop(&store.view, &blocks);
            }
        }
    }

    /// The store of a user, made if there is none.
    ///
    /// # Errors
    /// [`Refused`] if the node lends no memory for blocks, or has none.
    pub fn of_user(&self, user: u32) -> Result<Arc<UserStore>, Refused> {
        let mut stores = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&user) {
            return Ok(Arc::clone(store));
        }
        let store =
            UserStore::new(user, self.capacity_bytes, self.order, self.disk.as_ref(), self.coherence)?;
        let store = Arc::new(store);
        stores.insert(user, Arc::clone(&store));
        Ok(store)
    }

    /// The store of a user, if there is one.
    pub fn existing(&self, user: u32) -> Option<Arc<UserStore>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner).get(&user).cloned()
    }

    /// Gives back what a session of a user has reserved; it has ended.
    pub fn release(&self, user: u32, session: SessionId) {
        if let Some(store) = self.existing(user) {
            store.lock().store.release(session.0);
        }
    }

    /// What all stores hold.
    pub fn status(&self) -> Vec<KvStatus> {
        let stores = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<KvStatus> = stores.values().map(|store| store.status()).collect();
        all.sort_by_key(|status| status.user);
        all
    }
}

impl UserStore {
    fn new(
        user: u32,
        capacity_bytes: u64,
        order: EvictionKind,
        disk: Option<&KvDisk>,
        coherence: Coherence,
    ) -> Result<Self, Refused> {
        let geometry = Store::<Owned>::geometry_for(capacity_bytes).with_coherence(coherence);
        if geometry.blocks_bytes() == 0 {
            let text = format!(
                "this node lends {capacity_bytes} bytes for KV blocks, less than one chunk (hint: start it with --kv-capacity 1G)"
            );
            return Err(Refused::new(errno::ENOSPC, text));
        }
        let blocks = make_blocks(geometry.blocks_bytes())?;
        let books = MemoryFile::anonymous("hinterland-kv-books", geometry.books_bytes(), PageKind::Base4K)?;
        let touches =
            MemoryFile::anonymous("hinterland-kv-touches", geometry.touches_bytes(), PageKind::Base4K)?;
        let touched = Owned::new(mapped(&touches)?, coherence)?;
        settle(&touched, Point::NewTouches);
        settle(&Owned::new(mapped(&blocks)?, coherence)?, Point::NewBlocks);
        let mut store = Store::new(Owned::new(mapped(&books)?, coherence)?, geometry, order);
        let view = View::map(&books, &blocks, &touches)
            .map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
        let view = Arc::new(view);
        // A disk that cannot be used makes misses of hits, and nothing else.
        let (disk, disk_refusal) = match disk.map(|disk| DiskTier::open(disk, user)).transpose() {
            Ok(disk) => (disk, None),
            Err(refused) => {
                tracing::error!(%refused, "KV blocks that leave the memory are lost");
                (None, Some(refused.text))
            }
        };
        if let Some(tier) = &disk {
            let (tier, view) = (Arc::clone(tier), Arc::clone(&view));
            store.set_keeper(Box::new(move |leaving| tier.stage(&view, leaving)));
        }
        // Clients hold these files: none may cut off what others and the node have mapped. Read-only descriptors can be
        // opened anew for writing, so the books take no writer but the mapping that is there.
        books.add_seals(Seals { future_write: true, ..Seals::FIXED_LENGTH })?;
        blocks.add_seals(Seals::FIXED_LENGTH)?;
        touches.add_seals(Seals::FIXED_LENGTH)?;
        let state = Mutex::new(State { store, namespaces: BTreeMap::new() });
        let tally = racks::Tally::default();
        Ok(Self {
            user,
            pages: blocks.kind(),
            books,
            blocks,
            touches,
            touched,
            view,
            tally,
            disk,
            disk_refusal,
            state,
        })
    }

    /// The namespace of a fingerprint, and its number among the counters.
    ///
    /// # Errors
    /// [`Refused`] if another fingerprint has its number.
    pub fn namespace(&self, fingerprint: [u8; 32], label: &str) -> Result<(Namespace, u32), Refused> {
        let number = racks::number_of(&fingerprint);
        let label = || label.chars().take(LABEL_CHARS_MAX).collect();
        let mut state = self.lock();
        // The last counters are those of all that come late.
        let counters = (state.namespaces.len() as u32).min(COUNTED_MAX - 1);
        let make = || Known { fingerprint, label: label(), counters };
        let known = state.namespaces.entry(number).or_insert_with(make);
        if known.fingerprint == fingerprint {
            if let Some(disk) = &self.disk {
                disk.know(number, fingerprint);
            }
            return Ok((Namespace(number), known.counters));
        }
        let text =
            format!("namespace {number:016x} has another fingerprint (hint: add anything to the name)");
        Err(Refused::new(errno::EEXIST, text))
    }

    /// A namespace that was opened before, by its number.
    ///
    /// # Errors
    /// [`Refused`] if there is none.
    pub fn known_namespace(&self, number: u64) -> Result<(Namespace, u32), Refused> {
        let known = self.lock().namespaces.get(&number).map(|known| (Namespace(number), known.counters));
        known.ok_or_else(|| {
            let text =
                format!("nobody has opened namespace {number:016x} (hint: `hinterland kv stat` lists them)");
            Refused::new(errno::ENOENT, text)
        })
    }

    /// The fingerprint of a namespace that was opened.
    fn fingerprint(&self, namespace: Namespace) -> Option<[u8; 32]> {
        self.lock().namespaces.get(&namespace.0).map(|known| known.fingerprint)
    }

    /// What a client maps: books, blocks, touches.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>, OsError> {
        Ok(vec![self.books.reopen_read_only()?, self.blocks.duplicate()?, self.touches.duplicate()?])
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
        let mut state = self.lock();
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
        Ok(slots)
    }

    /// Makes blocks visible; one answer each.
    ///
    /// # Errors
    /// [`Refused`] at the first slot that the session has not reserved; those before it are visible.
    pub fn publish(&self, session: SessionId, slots: &[u32]) -> Result<Vec<bool>, Refused> {
        let mut state = self.lock();
        let mut was_touched = |slot| self.was_touched(slot);
        let mut publish = |&slot: &u32| state.store.publish(session.0, slot, &mut was_touched);
        slots.iter().map(|slot| publish(slot).map_err(|error| refused(&error))).collect()
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

    /// Removes blocks; returns how many were there.
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
            removed += u64::from(was_here || was_there);
        }
        Ok(removed)
    }

    /// Removes all blocks of a namespace; returns how many there were.
    pub fn clear(&self, namespace: Namespace) -> u64 {
        let mut state = self.lock();
        if let Some(disk) = &self.disk {
            disk.cleared(namespace.0);
        }
        state.store.clear(namespace)
    }

    fn status(&self) -> KvStatus {
        let state = self.lock();
        let StoreStatus { capacity_bytes, blocks, bytes, reserved, evictions, pinned_bytes } =
            state.store.status();
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
        let namespaces = state.namespaces.iter().map(count).collect();
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

/// All pages are made here, so that no touch of a block can fail later: huge ones if there are enough.
fn make_blocks(bytes: u64) -> Result<MemoryFile, Refused> {
    let make = |kind| {
        let file = MemoryFile::anonymous("hinterland-kv-blocks", bytes, kind)?;
        file.allocate(0, bytes)?;
        Ok::<_, OsError>(file)
    };
    let made = [PageKind::Huge2M, PageKind::TransparentHuge].into_iter().find_map(|kind| make(kind).ok());
    match made {
        Some(file) => Ok(file),
        None => make(PageKind::Base4K).map_err(|error| {
            let text =
                format!("no memory for {bytes} bytes of KV blocks: {error} (hint: a smaller --kv-capacity)");
            Refused::new(errno::ENOMEM, text)
        }),
    }
}

fn mapped(file: &MemoryFile) -> Result<SharedSlice, OsError> {
    let options = MapOptions { write: true, ..MapOptions::default() };
    Ok(Arc::new(file.map(0, file.len() as usize, options)?).slice())
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
