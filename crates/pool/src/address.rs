//! Reads, writes and locks by global address: the addresses that a program uses are resolved once and remembered.
//!
//! What is remembered stands in two places. The table of a pool has every object that was reached by address, open. Each
//! thread has a few pieces of memory of this host at hand, found by comparing, without a lock or an atomic write; a hit
//! costs little beside the copy. What is known of a region is believed as long as the words of its pages say so, which its node
//! keeps. Sealed objects have no words: what is known of them is believed for a second; then the node is asked again, because
//! the object may have been removed and its addresses given to another (paper 004, section 5.1: the client's cached page
//! table).

use crate::belief::{Belief, still_counts};
use crate::region::{RegionPages, has_pages};
use crate::session::unexpected;
use crate::slots::Slots;
use crate::waiting::take_lock;
use crate::{Object, Pool, PoolError};
use hinterland_os::SharedSlice;
use hinterland_os::clock::boot_ns;
use hinterland_os::copying::{load_few_words, load_words, store_few_words, store_words};
use hinterland_proto::control::{LockMode, ObjectInfo, ObjectState, Reply, Request};
use hinterland_proto::pages::{AccessSample, PageWord, SAMPLE_COUNT_AT, SAMPLES, SAMPLES_AT};
use hinterland_types::limits::{PAGE_BYTES, PAGE_SHIFT};
use hinterland_types::{GlobalAddress, PageNumber, Rights};
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::Duration;

/// Objects that a pool keeps open for its addresses: each is a handle, and a mapping if it is of this host.
const OBJECTS_MAX: usize = 4096;
/// Pieces of memory that a thread has at hand: enough for a copy between two objects beside a few others, and still
/// compared in less time than a lock takes.
const PIECES_MAX: usize = 8;
/// One in so many accesses of a thread to memory of this host is told to the node, which multiplies by it. A prime: programs
/// that read and write by turns, or go through pages in steps, are not always caught at the same.
pub(crate) const SAMPLE_EVERY: u32 = 61;

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;

/// The objects of a pool that were reached by address.
#[derive(Default)]
pub(crate) struct Addresses {
    /// Counts what was forgotten: a thread that has seen an older number looks here again.
    forgotten: AtomicU64,
    table: RwLock<Vec<Arc<Entry>>>,
}

/// An open object and the addresses that it covers.
pub(crate) struct Entry {
    pub(crate) first: u64,
    pub(crate) bytes: u64,
    pub(crate) object: Object,
    /// When the node last said that the object is there.
    confirmed_ns: AtomicU64,
}

/// Memory of this host that a thread has at hand. It holds the memory, not the session: a pool that is closed is
/// closed, though an idle thread keeps the pages until it uses a pool again.
struct Piece {
    owner: Weak<Addresses>,
    forgotten: u64,
    first: u64,
    belief: Belief,
    memory: SharedSlice,
    /// Of a region: the words of its pages.
    pages: Option<PagesAtHand>,
}

/// What a thread needs to use the pages of a region without asking.
struct PagesAtHand {
    region: Arc<RegionPages>,
    slots: Arc<Slots>,
}

/// All pieces that a thread has at hand, the latest first.
#[derive(Default)]
struct AtHand(Vec<Piece>);

impl Drop for AtHand {
    fn drop(&mut self) {
        // What a destructor of the thread reads later must not find memory that is gone.
        LATEST.with(|latest| latest.bytes.set(0));
    }
}

/// The first of the pieces once more, as plain words: the fewer instructions between two reads, the more of their cache
/// misses overlap. It is changed with the pieces, which keep its memory and its owner's place from being given away.
struct Latest {
    owner: Cell<*const Addresses>,
    forgotten: Cell<u64>,
    first: Cell<u64>,
    bytes: Cell<u64>,
    start: Cell<*mut u8>,
    is_writable: Cell<bool>,
    belief: Belief,
    /// Of a region, the words of its pages; else null.
    words: Cell<*const AtomicU64>,
    /// The thread's slot.
    slot: Cell<*const AtomicU64>,
    /// 1, but 0 in a child of the process.
    mark: Cell<*const AtomicU32>,
    /// Accesses until the next one that is sampled.
    until_sample: Cell<u32>,
}

thread_local! {
    static AT_HAND: RefCell<AtHand> = const { RefCell::new(AtHand(Vec::new())) };
    static LATEST: Latest = const {
        Latest {
            owner: Cell::new(ptr::null()),
            forgotten: Cell::new(0),
            first: Cell::new(0),
            bytes: Cell::new(0),
            start: Cell::new(ptr::null_mut()),
            is_writable: Cell::new(false),
            belief: Belief::none(),
            words: Cell::new(ptr::null()),
            slot: Cell::new(ptr::null()),
            mark: Cell::new(ptr::null()),
            until_sample: Cell::new(SAMPLE_EVERY),
        }
    };
}

impl Pool {
    /// Reads `into.len()` bytes at an address: by loads if this host holds them, else from a home. It may cross from one
    /// object to the next; nothing is read unless every byte of the range belongs to an object. Of a word of 8 aligned bytes
    /// that a write covers whole, and the read, too, no half is ever seen.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ENOENT` where nobody has the address, with `EINVAL` behind the end of an object;
    /// [`PoolError::Unreachable`] if no home answers.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let name = ObjectName::parse("table")?;
    /// # pool.create_region(&name, 4 << 20, None)?;
    /// let table = pool.stat(&name)?.address.ok_or("a region has an address")?;
    /// let third = table.checked_add(2 * 64).ok_or("beyond the pool")?;
    /// pool.write(third, &[7; 64])?;
    /// let mut record = [0; 64];
    /// pool.read(third, &mut record)?;
    /// assert_eq!(record, [7; 64]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(&self, address: GlobalAddress, into: &mut [u8]) -> Result<(), PoolError> {
        let (start, bytes) = (into.as_mut_ptr(), into.len());
        // SAFETY: `few_words` found the range in live memory; `into` is an exclusive borrow of as many bytes.
        if self.few_words(address, bytes, false, |from| unsafe { load_few_words(from, start, bytes) }) {
            return Ok(());
        }
        self.read_longer(address, into)
    }

    /// Finds out whether every byte of a range belongs to an object, as [`read`](Self::read) does before it reads.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn check_range(&self, address: GlobalAddress, bytes: usize) -> Result<(), PoolError> {
        self.each_part(address.raw(), bytes, Rights::READ, |_, _, _, _| Ok(()))
    }

    #[inline(never)]
    fn read_longer(&self, address: GlobalAddress, into: &mut [u8]) -> Result<(), PoolError> {
        if self.read_at_once(address, into) { Ok(()) } else { self.read_elsewhere(address.raw(), into) }
    }

    /// Reads what this thread has at hand; says whether it did.
    #[inline]
    pub(crate) fn read_at_once(&self, address: GlobalAddress, into: &mut [u8]) -> bool {
        let (start, bytes) = (into.as_mut_ptr(), into.len());
        // SAFETY: `latest` found the range in live memory; `into` is an exclusive borrow of as many bytes.
        if self.latest(address.raw(), bytes, false, |from| unsafe { load_words(from, start, bytes) }) {
            return true;
        }
        self.at_hand(address.raw(), into.len(), false, |memory, offset| {
            // The piece was found to cover the range.
            memory.read_at(offset, into).is_ok()
        })
    }

    /// Writes bytes at an address: by stores if this host holds the region, else to its home. It may cross from one
    /// region to the next; nothing is written unless every byte of the range can be.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`PoolError::Refused`] with `EACCES` for a sealed object.
    pub fn write(&self, address: GlobalAddress, from: &[u8]) -> Result<(), PoolError> {
        let (start, bytes) = (from.as_ptr(), from.len());
        // SAFETY: `few_words` found the range in live, writable memory; nobody holds references into shared memory, so
        // `from` is apart from it.
        if self.few_words(address, bytes, true, |into| unsafe { store_few_words(start, into, bytes) }) {
            return Ok(());
        }
        self.write_longer(address, from)
    }

    #[inline(never)]
    fn write_longer(&self, address: GlobalAddress, from: &[u8]) -> Result<(), PoolError> {
        let (start, bytes) = (from.as_ptr(), from.len());
        // SAFETY: `latest` found the range in live, writable memory; nobody holds references into shared memory, so
        // `from` is apart from it.
        if self.latest(address.raw(), bytes, true, |into| unsafe { store_words(start, into, bytes) }) {
            return Ok(());
        }
        let at_hand = self.at_hand(address.raw(), from.len(), true, |memory, offset| {
            memory.is_writable() && memory.write_at(offset, from).is_ok()
        });
        if at_hand { Ok(()) } else { self.write_elsewhere(address.raw(), from) }
    }

    /// As [`lock`](Self::lock), but other threads may use this pool in the meantime: the node waits in short slices.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ETIMEDOUT`.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_proto::control::{AllocationKind, LockMode};
    /// # use std::time::Duration;
    /// # let pool = Pool::connect(None)?;
    /// let (address, _) = pool.allocate(64, AllocationKind::Session)?;
    /// pool.lock_within(address, LockMode::Write, Duration::from_secs(1))?;
    /// pool.write(address, b"nobody else who takes the lock writes now")?;
    /// pool.unlock(address)?;
    /// # Ok::<(), hinterland_pool::PoolError>(())
    /// ```
    pub fn lock_within(
        &self,
        address: GlobalAddress,
        mode: LockMode,
        wait: Duration,
    ) -> Result<(), PoolError> {
        let ask = |queue, wait_ms| Request::LockWait { address, mode, upgrade: false, queue, wait_ms };
        let give_back = || drop(self.unlock(address));
        take_lock(self.session(), wait, ask, give_back).map(drop)
    }

    /// Forgets an object, so that the next use of its addresses asks the node.
    pub(crate) fn forget_entry(&self, entry: &Arc<Entry>) {
        self.addresses().retain(|other| !Arc::ptr_eq(other, entry));
    }

    /// Forgets every address, so that the next use of each asks the node.
    /// What this thread has at hand goes, too: it may be of what was just removed.
    pub(crate) fn forget_addresses(&self) {
        self.addresses().retain(|_| false);
        let owner = Arc::as_ptr(self.addresses());
        let_go_of_latest();
        // A thread that is ending has nothing at hand.
        let _ = AT_HAND.try_with(|at_hand| {
            if let Ok(mut at_hand) = at_hand.try_borrow_mut() {
                at_hand.0.retain(|piece| piece.owner.as_ptr() != owner);
            }
        });
    }

    // Apart from `read` and `write`, so that those stay short: the fewer instructions between two reads, the more of their
    // cache misses overlap.
    #[cold]
    #[inline(never)]
    fn read_elsewhere(&self, start: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.each_part(start, into.len(), Rights::READ, |object, offset, done, bytes| {
            object.read_at(offset, &mut into[done..done + bytes])
        })
    }

    #[cold]
    #[inline(never)]
    fn write_elsewhere(&self, start: u64, from: &[u8]) -> Result<(), PoolError> {
        self.each_part(start, from.len(), Rights::WRITE, |object, offset, done, bytes| {
            object.write_at(offset, &from[done..done + bytes])
        })
    }

    /// Runs `access` on a range of a region if the thread took its memory in hand last; says whether it was done.
    ///
    /// Nothing here is a call, and little is kept on the stack: a store that waits for its memory holds up all stores behind it, and
    /// a processor has room for some dozens of them.
    #[inline(always)]
    fn few_words(
        &self,
        address: GlobalAddress,
        bytes: usize,
        for_write: bool,
        access: impl FnOnce(*mut u8) -> bool,
    ) -> bool {
        // SAFETY: it is the thread's own and has no destructor, so it is there as long as the thread runs.
        let latest = unsafe { &*LATEST.with(ptr::from_ref) };
        let Some((offset, place)) = latest.place(self.addresses(), address.raw(), bytes, for_write) else {
            return false;
        };
        !latest.words.get().is_null() && latest.in_page(offset, bytes, for_write, || access(place))
    }

    /// Runs `access` on the range if it lies in the memory that this thread took in hand last; says whether it did.
    #[inline]
    fn latest(&self, start: u64, bytes: usize, for_write: bool, access: impl FnOnce(*mut u8)) -> bool {
        LATEST.with(|latest| {
            let Some((offset, place)) = latest.place(self.addresses(), start, bytes, for_write) else {
                return false;
            };
            let access = || {
                access(place);
                true
            };
            if latest.words.get().is_null() {
                return latest.belief.counts() && access();
            }
            latest.in_page(offset, bytes, for_write, access)
        })
    }

    /// Runs `access` on the memory that this thread has at hand for the range, if it has.
    #[inline]
    fn at_hand(
        &self,
        start: u64,
        bytes: usize,
        for_write: bool,
        access: impl FnOnce(&SharedSlice, usize) -> bool,
    ) -> bool {
        let owner = Arc::as_ptr(self.addresses());
        // A thread that is ending has nothing at hand.
        let found = AT_HAND.try_with(|at_hand| {
            let at_hand = at_hand.try_borrow().ok()?;
            let piece = at_hand.0.iter().find(|piece| {
                let offset = start.wrapping_sub(piece.first);
                let len = piece.memory.len() as u64;
                piece.owner.as_ptr() == owner && offset < len && bytes as u64 <= len - offset
            })?;
            // Acquire: pairs with the Release in `take_out`.
            let is_sound = piece.forgotten == self.addresses().forgotten.load(Ordering::Acquire)
                && (piece.pages.is_some() || piece.belief.counts());
            let offset = start - piece.first;
            let on_memory = |memory: &SharedSlice| access(memory, offset as usize);
            match &piece.pages {
                _ if !is_sound => None,
                None => Some(on_memory(&piece.memory)),
                Some(pages) => pages.region.at_once(offset, bytes, for_write, on_memory),
            }
        });
        matches!(found, Ok(Some(true)))
    }

    /// Runs an operation on every part of a range that lies in one object, after all of them were found.
    fn each_part(
        &self,
        start: u64,
        bytes: usize,
        needed: Rights,
        mut operation: impl FnMut(&Object, u64, usize, usize) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        if bytes == 0 {
            return Ok(());
        }
        let first = self.entry(start, needed)?;
        if start - first.first + bytes as u64 <= first.bytes {
            return self.one_part(first, start, needed, |object, offset| operation(object, offset, 0, bytes));
        }
        let mut parts = Vec::new();
        let mut done = 0;
        while done < bytes {
            let address = start + done as u64;
            let entry = self.entry(address, needed)?;
            // At most what is left of a slice: the cast loses nothing.
            let now = (entry.bytes - (address - entry.first)).min((bytes - done) as u64) as usize;
            parts.push((entry, address, done, now));
            done += now;
        }
        for (entry, address, done, now) in parts {
            self.one_part(entry, address, needed, |object, offset| operation(object, offset, done, now))?;
        }
        Ok(())
    }

    /// Runs an operation on an object. If it fails, the object is forgotten, and tried once more if the node knows
    /// something else of it by then.
    fn one_part(
        &self,
        entry: Arc<Entry>,
        address: u64,
        needed: Rights,
        mut operation: impl FnMut(&Object, u64) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let Err(error) = operation(&entry.object, address - entry.first) else {
            self.take_in_hand(&entry);
            return Ok(());
        };
        self.addresses().retain(|other| !Arc::ptr_eq(other, &entry));
        match self.entry(address, needed) {
            Ok(fresh) if fresh.object.info() != entry.object.info() && fresh.covers_as(&entry) => {
                operation(&fresh.object, address - fresh.first).inspect_err(|_| {
                    self.addresses().retain(|other| !Arc::ptr_eq(other, &fresh));
                })
            }
            _ => Err(error),
        }
    }

    /// The open object at an address, known or found out, that allows what is needed.
    pub(crate) fn entry(&self, address: u64, needed: Rights) -> Result<Arc<Entry>, PoolError> {
        let known = self.addresses().find(address);
        let entry = match known {
            Some(entry) if self.is_still_there(&entry)? => entry,
            _ => self.find_out(address)?,
        };
        if needed.allows(Rights::WRITE) && entry.object.info().state == ObjectState::Sealed {
            let name = &entry.object.info().name;
            let text = format!("{name} is sealed: it can be read and nothing else (hint: put a new object)");
            return Err(PoolError::Refused { code: EACCES, text });
        }
        Ok(entry)
    }

    /// Whether an object may be believed to be there; asks the node when it is time.
    fn is_still_there(&self, entry: &Arc<Entry>) -> Result<bool, PoolError> {
        if has_pages(entry.object.info()) {
            // The words of its pages say so.
            return Ok(true);
        }
        self.is_confirmed(entry)
    }

    /// Whether the node says that an object is there, or has said so not long ago. One that is gone is forgotten.
    pub(crate) fn is_confirmed(&self, entry: &Arc<Entry>) -> Result<bool, PoolError> {
        // Relaxed: a time that nothing is ordered by; an old value asks the node once more.
        let confirmed_ns = entry.confirmed_ns.load(Ordering::Relaxed);
        if still_counts(confirmed_ns) {
            return Ok(true);
        }
        let now_ns = boot_ns();
        let is_there = match self.resolve(entry.first) {
            Ok((info, _)) => info.object == entry.object.info().object && info.state != ObjectState::Writing,
            Err(PoolError::Refused { code: ENOENT, .. }) => false,
            // The directory cannot be asked: what is open stays usable, as mapped memory does.
            Err(PoolError::Refused { .. }) => true,
            Err(error) => {
                self.forget_addresses();
                return Err(error);
            }
        };
        if is_there {
            // Relaxed: as above.
            entry.confirmed_ns.store(now_ns, Ordering::Relaxed);
        } else {
            self.addresses().retain(|other| !Arc::ptr_eq(other, entry));
        }
        Ok(is_there)
    }

    /// Asks the node what lies at an address, and opens it.
    fn find_out(&self, address: u64) -> Result<Arc<Entry>, PoolError> {
        let now_ns = boot_ns();
        let (info, offset) = self.resolve(address)?;
        if offset >= info.bytes {
            let text = format!(
                "address {address:#x} lies behind the end of {}, which has {} bytes (hint: ask `stat` for its address and size)",
                info.name, info.bytes
            );
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        let rights = Rights::READ | Rights::WRITE;
        let request = Request::OpenObject { object: info.object, rights };
        let opened = match self.session().call(&request)? {
            Reply::Opened(opened) => opened,
            other => return Err(unexpected("Opened", &other)),
        };
        let bytes = opened.info.bytes;
        // An object that knew this pool's table, which knows the object, would keep both for ever.
        let object = Object::new(self.without_addresses(), opened);
        let confirmed_ns = AtomicU64::new(now_ns);
        let entry = Arc::new(Entry { first: address - offset, bytes, object, confirmed_ns });
        self.addresses().insert(Arc::clone(&entry));
        Ok(entry)
    }

    fn resolve(&self, address: u64) -> Result<(ObjectInfo, u64), PoolError> {
        let address = GlobalAddress::new(address)
            .map_err(|error| PoolError::Refused { code: EINVAL, text: error.to_string() })?;
        match self.session().call(&Request::Resolve { address })? {
            Reply::Resolved { info, offset } if offset <= address.raw() => Ok((info, offset)),
            other => Err(unexpected("Resolved", &other)),
        }
    }

    /// Runs an operation on the word at an address, once: after a failure nobody knows whether it happened.
    pub(crate) fn on_word(
        &self,
        address: u64,
        operation: impl Fn(&Object, u64) -> Result<u64, PoolError>,
    ) -> Result<u64, PoolError> {
        let entry = self.entry(address, Rights::WRITE)?;
        // An object is as long as it was asked to be, which may end within a word.
        if entry.bytes - (address - entry.first) < 8 {
            let text =
                format!("the word at {address:#x} reaches behind the end of {}", entry.object.info().name);
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        match operation(&entry.object, address - entry.first) {
            // The object was removed, and another may have its addresses; nothing was done.
            Err(PoolError::Refused { code: ENOENT, .. }) => {
                self.addresses().retain(|other| !Arc::ptr_eq(other, &entry));
                let entry = self.entry(address, Rights::WRITE)?;
                operation(&entry.object, address - entry.first)
            }
            other => other,
        }
    }

    /// Puts the memory of an object of this host where the thread finds it at once.
    pub(crate) fn take_in_hand(&self, entry: &Arc<Entry>) {
        if self.asks() {
            return;
        }
        let Some((memory, pages)) = at_hand_of(&entry.object) else { return };
        // Acquire: pairs with the Release in `take_out`.
        let forgotten = self.addresses().forgotten.load(Ordering::Acquire);
        if !self.addresses().find(entry.first).is_some_and(|found| Arc::ptr_eq(&found, entry)) {
            return;
        }
        let piece = Piece {
            owner: Arc::downgrade(self.addresses()),
            forgotten,
            first: entry.first,
            // Relaxed: a time that nothing is ordered by.
            belief: Belief::of(entry.confirmed_ns.load(Ordering::Relaxed)),
            memory,
            pages,
        };
        // A thread that is ending, or that is here already, does without.
        let _ = AT_HAND.try_with(|at_hand| {
            let Ok(mut at_hand) = at_hand.try_borrow_mut() else { return };
            at_hand.0.retain(|other| {
                let is_ours = other.owner.ptr_eq(&piece.owner);
                let is_old = is_ours && (other.first == piece.first || other.forgotten != forgotten);
                other.owner.strong_count() > 0 && !is_old
            });
            at_hand.0.truncate(PIECES_MAX - 1);
            LATEST.with(|latest| latest.set(&piece));
            at_hand.0.insert(0, piece);
        });
    }
}

impl Entry {
    /// Whether it has every byte that the other had, at the same addresses.
    fn covers_as(&self, other: &Self) -> bool {
        self.first == other.first && self.bytes >= other.bytes
    }

    /// Whether it has the byte at an address.
    pub(crate) fn covers(&self, address: u64) -> bool {
        address.wrapping_sub(self.first) < self.bytes
    }
}

impl Addresses {
    fn find(&self, address: u64) -> Option<Arc<Entry>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let index = table.partition_point(|entry| entry.first <= address).checked_sub(1)?;
        table.get(index).filter(|entry| entry.covers(address)).cloned()
    }

    /// Puts an entry in, in place of all that it overlaps. A full table lets go of what was not confirmed for longest.
    fn insert(&self, entry: Arc<Entry>) {
        let mut table = self.lock();
        let is_apart = |other: &Arc<Entry>| {
            other.first >= entry.first + entry.bytes || other.first + other.bytes <= entry.first
        };
        let mut gone = self.take_out(&mut table, is_apart);
        if table.len() >= OBJECTS_MAX {
            // Relaxed: a time that nothing is ordered by.
            let confirmed = |other: &Entry| other.confirmed_ns.load(Ordering::Relaxed);
            let oldest = table.iter().map(|other| confirmed(other)).min();
            gone.extend(self.take_out(&mut table, |other| Some(confirmed(other)) != oldest));
        }
        let index = table.partition_point(|other| other.first < entry.first);
        table.insert(index, entry);
        drop(table);
        // Closing an object asks the node: not under the lock.
        drop(gone);
    }

    /// Forgets what `keep` refuses.
    fn retain(&self, keep: impl Fn(&Arc<Entry>) -> bool) {
        let gone = self.take_out(&mut self.lock(), keep);
        // As in `insert`.
        drop(gone);
    }

    /// Takes out what `keep` refuses, and has every thread look here before it believes what it has at hand.
    fn take_out(&self, table: &mut Vec<Arc<Entry>>, keep: impl Fn(&Arc<Entry>) -> bool) -> Vec<Arc<Entry>> {
        let gone: Vec<_> = table.extract_if(.., |entry| !keep(entry)).collect();
        if !gone.is_empty() {
            // Release: pairs with the Acquire of the threads that have memory at hand.
            self.forgotten.fetch_add(1, Ordering::Release);
        }
        gone
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Vec<Arc<Entry>>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Latest {
    fn set(&self, piece: &Piece) {
        self.owner.set(piece.owner.as_ptr());
        self.forgotten.set(piece.forgotten);
        self.first.set(piece.first);
        self.bytes.set(piece.memory.len() as u64);
        self.start.set(piece.memory.as_ptr());
        self.is_writable.set(piece.memory.is_writable());
        self.belief.set(&piece.belief);
        self.words.set(ptr::null());
        let Some(pages) = &piece.pages else { return };
        let slot = pages.slots.with(|slot| slot.word().map(ptr::from_ref)).flatten();
        match slot {
            Some(slot) => {
                self.words.set(pages.region.words().as_ptr().cast_const().cast());
                self.slot.set(slot);
                self.mark.set(pages.slots.mark());
            }
            // More threads than slots: nothing is at hand.
            None => self.bytes.set(0),
        }
    }

    /// Where a range lies, from the start of the piece and in memory, if the piece has it and is still what it was.
    #[inline(always)]
    fn place(
        &self,
        addresses: &Arc<Addresses>,
        start: u64,
        bytes: usize,
        for_write: bool,
    ) -> Option<(u64, *mut u8)> {
        let offset = start.wrapping_sub(self.first.get());
        let len = self.bytes.get();
        let is_sound = offset < len
            && bytes as u64 <= len - offset
            && self.owner.get() == Arc::as_ptr(addresses)
            && (self.is_writable.get() || !for_write)
            // Acquire: pairs with the Release in `take_out`.
            && self.forgotten.get() == addresses.forgotten.load(Ordering::Acquire);
        // SAFETY: the offset lies inside the piece, by the first comparison.
        is_sound.then(|| (offset, unsafe { self.start.get().add(offset as usize) }))
    }

    /// Runs `access` if the range lies in one page that is here, and keeps the page here meanwhile; says whether it was done.
    #[inline(always)]
    fn in_page(&self, offset: u64, bytes: usize, is_write: bool, access: impl FnOnce() -> bool) -> bool {
        let index = offset >> PAGE_SHIFT;
        if (offset & (PAGE_BYTES - 1)) + bytes as u64 > PAGE_BYTES {
            return false;
        }
        let page = (self.first.get() >> PAGE_SHIFT) + index;
        // SAFETY: the piece that was taken in hand last keeps slots and words mapped, and has a word for each page of its
        // memory, inside of which the offset lies; the mark is never unmapped.
        let (slot, word, mark) =
            unsafe { (&*self.slot.get(), &*self.words.get().add(index as usize), &*self.mark.get()) };
        // Relaxed: a process is a child from its first instruction on.
        if mark.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Relaxed: ordered with the load of the word by the barrier that a node runs on all processors before it moves a page.
        slot.store(page + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // Acquire: pairs with the node's Release, which comes after the bytes of a page that has arrived.
        let is_here = PageWord(word.load(Ordering::Acquire)).is_plainly_fit(is_write);
        let is_done = is_here && access();
        // Release: the access comes before, for a mover who loads with Acquire.
        slot.store(0, Ordering::Release);
        // What is not done here is counted where it is.
        if is_done {
            let left = self.until_sample.get();
            if left == 0 {
                self.sample(page, is_write);
            } else {
                self.until_sample.set(left - 1);
            }
        }
        is_done
    }

    /// Tells the node of the accesses since the last time, as if all had been like this one.
    #[cold]
    #[inline(never)]
    fn sample(&self, page: u64, is_write: bool) {
        self.until_sample.set(SAMPLE_EVERY - 1);
        // The number of a page of a live region fits.
        let Some(page) = PageNumber::new(page as u32) else { return };
        // A small constant.
        let sample = AccessSample { page, is_write, weight: SAMPLE_EVERY as u16 };
        let slot = self.slot.get().cast::<u8>();
        // SAFETY: a slot is aligned and has its samples at these offsets; the piece in hand keeps it mapped, and all of it is
        // reached as atomics.
        let (count, samples) = unsafe {
            (&*slot.add(SAMPLE_COUNT_AT).cast::<AtomicU64>(), slot.add(SAMPLES_AT).cast::<AtomicU64>())
        };
        // Relaxed: only this thread writes it.
        let number = count.load(Ordering::Relaxed);
        // SAFETY: below the number of samples that a slot has.
        let place = unsafe { &*samples.add((number % SAMPLES) as usize) };
        // Relaxed: published by the store below.
        place.store(sample.to_word(), Ordering::Relaxed);
        // Release: pairs with the node's Acquire of the count.
        count.store(number.wrapping_add(1), Ordering::Release);
    }
}

/// The memory of an object that can be used without asking, and for a region what that takes.
fn at_hand_of(object: &Object) -> Option<(SharedSlice, Option<PagesAtHand>)> {
    let Some(region) = object.pages().ok()? else {
        return object.is_local().then(|| object.memory().ok().cloned())?.map(|memory| (memory, None));
    };
    // Where threads must fence themselves they take the longer way.
    let slots = region.slots.as_ref().filter(|slots| !slots.fences())?;
    let pages = PagesAtHand { region: Arc::clone(region), slots: Arc::clone(slots) };
    Some((region.part()?.clone(), Some(pages)))
}

/// Counts an access to memory of this host that went another way than through what is at hand; true for one in
/// [`SAMPLE_EVERY`], which is to be told to the node.
pub(crate) fn is_sampled() -> bool {
    // A thread that is ending counts no more.
    let counted = LATEST.try_with(|latest| {
        let left = latest.until_sample.get();
        latest.until_sample.set(left.checked_sub(1).unwrap_or(SAMPLE_EVERY - 1));
        left == 0
    });
    counted.unwrap_or(false)
}

/// The thread has given its slot back: nothing is at hand any more.
pub(crate) fn let_go_of_latest() {
    LATEST.with(|latest| latest.bytes.set(0));
}
