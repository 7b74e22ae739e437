//! The objects whose bytes this node holds: their files, their headers, room, and what a restart finds.
//!
//! Bytes lie in `FOLDER/ID.bytes` on memory that outlives the process; the header with the checksums lies
//! in `STATE/objects/ID.object`, written whole and renamed into place when the object is sealed. A file
//! of bytes without a header is half a put and goes at the next start.

mod boot;
mod heat;
mod making;
mod parts;
mod writes;

pub use heat::OpenHeatCopy;
pub use parts::{Life, RegionGone};

use crate::fault_point;
use crate::regions::Region;
use crate::shelf::NodeShelf;
use boot::Boot;
use heat::{HeatMark, MakeWay};
use hinterland_fabric::Slice;
use hinterland_fabric::rdma::Host;
use hinterland_kv::sum_over;
use hinterland_os::{MapOptions, Mapping, MemoryFile, OsError, PageKind, SharedSlice};
use hinterland_proto::checksum::digest;
use hinterland_proto::object_header::{HeaderContent, HeaderError, ObjectHeader};
use hinterland_types::limits::{CHECKSUM_BLOCK_BYTES, PAGE_BYTES};
use hinterland_types::size::human;
use hinterland_types::{Epoch, ObjectId, ObjectName};
use making::Making;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;
use writes::Writes;

/// How long a seal waits for writes on their way: longer than any takes whose writer goes on sending, and not as long as a
/// connection that has stalled is kept.
const WRITES_END_WITHIN: Duration = Duration::from_secs(5);

/// Why an object cannot be made, found or sealed here.
#[derive(Debug, thiserror::Error)]
pub enum HoldingError {
    /// The node lends less than that.
    #[error(
        "{needed} bytes do not fit: this node lends {capacity} and {used} are in use (hint: remove objects, or start the node with a larger --capacity)"
    )]
    Full {
        /// Bytes asked for, rounded up to pages.
        needed: u64,
        /// Bytes lent.
        capacity: u64,
        /// Bytes in use.
        used: u64,
    },
    /// The object is not here.
    #[error("{0} is not held here (hint: it may have been removed; look with `hinterland ls`)")]
    Absent(ObjectId),
    /// The object is in another state.
    #[error("{object} is {found}, not {needed}")]
    State {
        /// Which.
        object: ObjectId,
        /// State it is in.
        found: &'static str,
        /// State it should be in.
        needed: &'static str,
    },
    /// A program could change it behind its checksums.
    #[error(
        "{0} cannot be sealed: its file was given to a program for writing, which may write it still (hint: write what is to be sealed through the pool API, and map it when it is sealed)"
    )]
    Lent(ObjectName),
    /// A write of before the seal does not come to its end.
    #[error(
        "{0} cannot be sealed: a write of it has been on its way for {seconds} s (hint: seal when each write is answered, and begin the put anew)",
        seconds = WRITES_END_WITHIN.as_secs()
    )]
    Written(ObjectName),
    /// There is an object of this number.
    #[error("{0} exists here already")]
    Exists(ObjectId),
    /// The operating system said no.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A header, or the note of the machine's start, cannot be read or written.
    #[error("{path}: {source} (hint: {})", crate::state::hint(.source))]
    Header {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Writing,
    Sealed,
    Region,
}

/// One object that is held here.
pub struct Holding {
    /// Identifier.
    pub object: ObjectId,
    /// The name under which its put began, then the one in its header.
    name: RwLock<ObjectName>,
    epoch: AtomicU64,
    bytes: AtomicU64,
    state: Mutex<State>,
    memory: RwLock<Memory>,
    blocks: Mutex<Arc<Vec<u32>>>,
    /// Held while the header of a seal is written.
    header_writing: Mutex<()>,
    /// Whether a program was given the file for writing before the seal, and with that perhaps a mapping for good; held
    /// while the object is sealed.
    is_lent: Mutex<bool>,
    writes: Writes,
    /// The pages of a region, as soon as somebody uses them.
    region: Mutex<Weak<Region>>,
    /// Who may attach as a writer.
    pub ticket: [u8; 16],
    heat: HeatMark,
    /// Whether the node has let go of it.
    is_let_go: AtomicBool,
    /// Its bytes are not those of the object.
    is_wrong: AtomicBool,
}

struct Memory {
    file: MemoryFile,
    mapping: Arc<Mapping>,
    /// Bytes of the node's room that it takes.
    room: u64,
}

impl Memory {
    /// Gives back the pages behind the object that a stream had asked for and did not use; returns their room. The
    /// file keeps whole pages, as whoever maps it expects.
    fn trim(&mut self, bytes: u64) -> Result<u64, HoldingError> {
        let kind = match self.file.kind() {
            PageKind::Device => return Ok(0),
            PageKind::TransparentHuge => PageKind::Base4K,
            kind => kind,
        };
        let length = rounded(bytes.max(1), kind);
        self.file.resize(length)?;
        let unused = self.room.saturating_sub(room_of(bytes));
        self.room -= unused;
        Ok(unused)
    }
}

/// Why a header of before is no object now.
enum Unfit {
    /// It never will be, for this reason.
    Useless(String),
    /// Nobody knows: the system does not show it.
    Unseen(HoldingError),
}

impl Unfit {
    fn useless(reason: &str) -> Self {
        Self::Useless(reason.to_owned())
    }
}

/// All objects of this node.
pub struct Holdings {
    folder: PathBuf,
    fallback: Option<PathBuf>,
    headers: PathBuf,
    capacity_bytes: u64,
    used_bytes: AtomicU64,
    objects: RwLock<HashMap<ObjectId, Arc<Holding>>>,
    making: Making,
    /// What drops heat copies where room is needed.
    make_way: OnceLock<MakeWay>,
    /// What is told when a region has gone, on whatever way.
    region_gone: OnceLock<RegionGone>,
    /// What reads memory for others.
    devices: OnceLock<Arc<Host>>,
    /// Where other hosts load sealed objects from.
    shelf: OnceLock<Arc<NodeShelf>>,
}

impl Holding {
    /// Size in bytes; while it is being written, the room that it has.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// What it was called when the directory was last heard about it.
    pub fn name(&self) -> ObjectName {
        self.name.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_name(&self, name: &ObjectName) {
        self.name.write().unwrap_or_else(PoisonError::into_inner).clone_from(name);
    }

    /// The epoch under which this copy was placed here.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Whether its bytes can never change.
    pub fn is_sealed(&self) -> bool {
        self.state() == State::Sealed
    }

    /// Whether the node has let go of it: it was removed, or goes elsewhere.
    pub fn is_let_go(&self) -> bool {
        // Acquire: pairs with the Release in `drop_object`.
        self.is_let_go.load(Ordering::Acquire)
    }

    /// Its bytes turned out to be wrong: no handle leads to them any more.
    pub fn distrust(&self) {
        // Release: pairs with the Acquire in `is_wrong`.
        self.is_wrong.store(true, Ordering::Release);
    }

    /// Whether its bytes turned out to be wrong.
    pub fn is_wrong(&self) -> bool {
        // Acquire: pairs with the Release in `distrust`.
        self.is_wrong.load(Ordering::Acquire)
    }

    /// Whether it is being written and not yet sealed.
    pub fn is_writing(&self) -> bool {
        self.state() == State::Writing
    }

    /// The memory of a range.
    ///
    /// # Errors
    /// [`HoldingError::Os`] if the range reaches behind the end, or a program has cut the file off.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<SharedSlice, HoldingError> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        if memory.mapping.is_lost() {
            return Err(OsError::Lost { offset, bytes }.into());
        }
        // Ranges are checked by `sub`; 64-bit Linux only.
        Ok(memory.mapping.slice().sub(offset as usize, bytes as usize)?)
    }

    /// The memory of a range of an object that is being put, for a write: the seal waits until it is dropped.
    ///
    /// # Errors
    /// As [`slice`](Self::slice); [`HoldingError::State`] once the seal has begun, whatever comes of it later.
    pub fn slice_for_writing(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Slice, HoldingError> {
        let Some(write) = Writes::begin(self) else {
            let (found, needed) = ("being sealed, or sealed", "being written");
            return Err(HoldingError::State { object: self.object, found, needed });
        };
        Ok(Slice::from(self.slice(offset, bytes)?).guarded(write))
    }

    /// crc32c of each 64 KiB block of a sealed object; empty for a region.
    pub fn blocks(&self) -> Arc<Vec<u32>> {
        Arc::clone(&self.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Digest of a sealed object.
    pub fn digest(&self) -> [u8; 32] {
        digest(self.bytes(), &self.blocks())
    }

    /// A descriptor for a program: read-only for sealed objects, and for who may not write. An object whose file was
    /// given for writing is never sealed.
    ///
    /// # Errors
    /// [`HoldingError::Os`] without descriptors left.
    pub fn descriptor(&self, write: bool) -> Result<std::os::fd::OwnedFd, HoldingError> {
        let mut is_lent = self.is_lent.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_sealed() || !write {
            return Ok(memory.file.reopen_read_only()?);
        }
        let descriptor = memory.file.duplicate()?;
        *is_lent = true;
        Ok(descriptor)
    }

    /// Length of the file and size of its pages.
    pub fn file_shape(&self) -> (u64, PageKind) {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        (memory.file.len(), memory.file.kind())
    }

    /// Computes the checksums of what is in memory now.
    ///
    /// # Errors
    /// [`HoldingError::Os`] if `bytes` reaches behind the end.
    pub fn compute_blocks(&self, bytes: u64) -> Result<Vec<u32>, HoldingError> {
        let slice = self.slice(0, bytes)?;
        let block_bytes = CHECKSUM_BLOCK_BYTES as usize;
        let starts = (0..slice.len()).step_by(block_bytes);
        let sums = starts.map(|start| sum_over(&slice, 0, start, block_bytes.min(slice.len() - start)));
        Ok(sums.collect::<Result<_, _>>()?)
    }

    /// Bytes of the node's room that the object takes.
    fn room(&self) -> u64 {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).room
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn require(&self, needed: State) -> Result<(), HoldingError> {
        let found = self.state();
        if found == needed {
            return Ok(());
        }
        let word = |state| match state {
            State::Writing => "being written",
            State::Sealed => "sealed",
            State::Region => "a region",
        };
        Err(HoldingError::State { object: self.object, found: word(found), needed: word(needed) })
    }
}

impl Holdings {
    /// Opens the store and finds what an earlier process left; returns what was dropped, in words.
    ///
    /// # Errors
    /// [`HoldingError`] if the folders cannot be used.
    pub fn open(
        folder: &Path,
        fallback: Option<&Path>,
        state_folder: &Path,
        capacity_bytes: u64,
    ) -> Result<(Self, Vec<String>), HoldingError> {
        let headers = state_folder.join("objects");
        fs::create_dir_all(&headers)
            .map_err(|source| HoldingError::Header { path: headers.clone(), source })?;
        let holdings = Self {
            folder: folder.to_path_buf(),
            fallback: fallback.map(Path::to_path_buf),
            headers,
            capacity_bytes,
            used_bytes: AtomicU64::new(0),
            objects: RwLock::default(),
            making: Making::default(),
            make_way: OnceLock::new(),
            region_gone: OnceLock::new(),
            devices: OnceLock::new(),
            shelf: OnceLock::new(),
        };
        let boot = Boot::of(state_folder)?;
        let dropped = holdings.recover(boot.is_another())?;
        boot.note()?;
        Ok((holdings, dropped))
    }

    /// Makes room for an object that is about to be written.
    ///
    /// # Errors
    /// [`HoldingError::Full`] before anything is made; [`HoldingError::Exists`].
    pub fn create(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
        ticket: [u8; 16],
    ) -> Result<Arc<Holding>, HoldingError> {
        let _alone = self.making.alone(object);
        self.insert(object, epoch, name, bytes, ticket, State::Writing)
    }

    /// Makes a region of zeros and its header. One that is there already, because it was asked for twice, is taken.
    ///
    /// # Errors
    /// As [`create`](Self::create), and [`HoldingError::Header`]; [`HoldingError::Exists`] under another epoch or of another size.
    pub fn create_region(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
    ) -> Result<Arc<Holding>, HoldingError> {
        let _alone = self.making.alone(object);
        let is_it = |there: &Holding| there.is_region() && there.epoch() == epoch && there.bytes() == bytes;
        if let Some(there) = self.find(object).ok().filter(|there| is_it(there)) {
            return Ok(there);
        }
        let holding = self.insert(object, epoch, name, bytes, [0; 16], State::Region)?;
        let header =
            ObjectHeader { object, epoch, name: holding.name(), bytes, content: HeaderContent::Region };
        self.write_header(&header).inspect_err(|_| self.drop_alone(object))?;
        Ok(holding)
    }

    /// Gives a stream more room.
    ///
    /// # Errors
    /// [`HoldingError`] if it is not being written or there is no room.
    pub fn grow(&self, object: ObjectId, bytes: u64) -> Result<(), HoldingError> {
        let holding = self.find(object)?;
        let mut memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
        // Who drops or seals it does that under the same lock.
        if holding.is_let_go() {
            return Err(HoldingError::Absent(object));
        }
        holding.require(State::Writing)?;
        let before = memory.room;
        // As much as the directory charges for it, in the pages that the file has.
        let after = match memory.file.kind() {
            PageKind::Base4K | PageKind::TransparentHuge if bytes < PAGE_BYTES => {
                rounded(bytes, PageKind::Base4K)
            }
            _ => rounded(bytes, PageKind::Huge2M),
        };
        if after > before {
            self.take_room(after - before)?;
            fault_point::reach("object-grow-counted");
            let grown = memory.file.resize(after).and_then(|()| memory.file.allocate(before, after - before));
            let mapping = grown.and_then(|()| map_whole(&memory.file));
            match mapping {
                Ok(mapping) => {
                    memory.mapping = Arc::new(mapping);
                    memory.room = after;
                }
                Err(error) => {
                    self.give_room(after - before);
                    // The file goes back to its old length; what stays allocated would be counted by nobody.
                    let _ = memory.file.resize(before);
                    return Err(error.into());
                }
            }
        }
        holding.bytes.store(bytes.max(holding.bytes()), Ordering::Release);
        Ok(())
    }

    /// Seals an object: computes its checksums from memory and keeps them in its header, durably.
    ///
    /// # Errors
    /// [`HoldingError`], [`HoldingError::Lent`] and [`HoldingError::Written`] among them; the object stays as it was.
    pub fn seal(&self, object: ObjectId, bytes: u64) -> Result<[u8; 32], HoldingError> {
        self.seal_as(object, bytes, None)
    }

    /// As [`seal`](Self::seal), under a name that may be another than the one under which the put began: it stands in the header.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn seal_as(
        &self,
        object: ObjectId,
        bytes: u64,
        name: Option<&ObjectName>,
    ) -> Result<[u8; 32], HoldingError> {
        let holding = self.find(object)?;
        let is_lent = holding.is_lent.lock().unwrap_or_else(PoisonError::into_inner);
        if holding.is_sealed() && holding.bytes() == bytes {
            return Ok(holding.digest());
        }
        holding.require(State::Writing)?;
        if *is_lent {
            return Err(HoldingError::Lent(holding.name()));
        }
        let Some(quiet) = holding.writes.end(WRITES_END_WITHIN) else {
            return Err(HoldingError::Written(holding.name()));
        };
        let blocks = holding.compute_blocks(bytes)?;
        let sealed = digest(bytes, &blocks);
        // Where memory is a folder on a disk, its header must not outlive bytes that were never written there.
        holding.memory.read().unwrap_or_else(PoisonError::into_inner).file.sync()?;
        fault_point::reach("object-bytes-synced");
        let header = ObjectHeader {
            object,
            epoch: holding.epoch(),
            name: name.cloned().unwrap_or_else(|| holding.name()),
            bytes,
            content: HeaderContent::Sealed { blocks: blocks.clone() },
        };
        {
            let _writing = holding.header_writing.lock().unwrap_or_else(PoisonError::into_inner);
            // Who removes it from here on removes the header behind this.
            self.find(object)?;
            self.write_header(&header)?;
        }
        holding.set_name(&header.name);
        *holding.blocks.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(blocks);
        {
            // A stream that is sealed gets no more room: who asks for some looks at its state under the same lock.
            let mut memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
            self.give_room(memory.trim(bytes)?);
            fault_point::reach("object-trimmed");
            holding.bytes.store(bytes, Ordering::Release);
            *holding.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Sealed;
        }
        quiet.for_good();
        if let Some(shelf) = self.shelf.get() {
            shelf.show(&holding);
        }
        Ok(sealed)
    }

    /// Keeps another name of a sealed object in its header, durably. The name of before, if that was another.
    ///
    /// # Errors
    /// [`HoldingError`]; it has the name of before.
    pub fn rename(&self, object: ObjectId, name: &ObjectName) -> Result<Option<ObjectName>, HoldingError> {
        let holding = self.find(object)?;
        let _writing = holding.header_writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Who removes it from here on removes the header behind this; what was made anew in its place has a header of its own.
        if !Arc::ptr_eq(&self.find(object)?, &holding) {
            return Err(HoldingError::Absent(object));
        }
        holding.require(State::Sealed)?;
        let before = holding.name();
        if before == *name {
            return Ok(None);
        }
        let (epoch, bytes) = (holding.epoch(), holding.bytes());
        let content = HeaderContent::Sealed { blocks: holding.blocks().to_vec() };
        self.write_header(&ObjectHeader { object, epoch, name: name.clone(), bytes, content })?;
        holding.set_name(name);
        Ok(Some(before))
    }

    /// Memory may be read by devices through this host from here on.
    pub fn read_by(&self, host: &Arc<Host>) {
        // Set once, when the node starts.
        let _ = self.devices.set(Arc::clone(host));
    }

    /// Forgets an object; its memory goes when the last program has unmapped it.
    pub fn drop_object(&self, object: ObjectId) {
        let _alone = self.making.alone(object);
        self.drop_alone(object);
    }

    /// As [`drop_object`](Self::drop_object), for who is alone with the object's files.
    fn drop_alone(&self, object: ObjectId) {
        let removed = self.objects.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
        if let Some(holding) = &removed {
            // Release: pairs with the Acquire in `is_let_go`.
            holding.is_let_go.store(true, Ordering::Release);
            self.take_back(holding);
            if let Some(shelf) = self.shelf.get() {
                shelf.hide(object);
            }
            // A header that is being written is finished first.
            drop(holding.header_writing.lock().unwrap_or_else(PoisonError::into_inner));
        }
        // A header that is gone already is what is wanted.
        let _ = fs::remove_file(self.header_path(object));
        fault_point::reach("object-header-removed");
        if let Some(holding) = removed {
            let region = holding.region.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            if let Some(region) = region {
                region.close();
            }
            let mut memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
            // Whoever trims it or lets go of its pages behind this gives no room back again.
            self.give_room(std::mem::take(&mut memory.room));
            if let Err(error) = memory.file.remove() {
                tracing::warn!(%error, "a file of a removed object stays until the next start");
            }
            fault_point::reach("object-file-removed");
            drop(memory);
            if holding.is_region()
                && let Some(tell) = self.region_gone.get()
            {
                tell();
            }
        }
    }

    /// Takes memory back from devices: who has a handle that was lent must not read it any more, nor keep it.
    fn take_back(&self, holding: &Holding) {
        if let (Some(host), Ok(memory)) = (self.devices.get(), holding.slice(0, holding.bytes())) {
            host.revoke(&Slice::from(memory));
        }
    }

    /// The object, if it is held here.
    ///
    /// # Errors
    /// [`HoldingError::Absent`].
    pub fn find(&self, object: ObjectId) -> Result<Arc<Holding>, HoldingError> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&object).cloned().ok_or(HoldingError::Absent(object))
    }

    /// The objects with the largest number and the largest epoch, ascending; of those that are being put none.
    pub fn newest(&self) -> Vec<Arc<Holding>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        let there = || objects.values().filter(|holding| !holding.is_writing());
        let last = there().max_by_key(|holding| holding.object);
        let latest = there().max_by_key(|holding| holding.epoch());
        let mut newest: Vec<_> = last.into_iter().chain(latest).cloned().collect();
        newest.sort_unstable_by_key(|holding| holding.object);
        newest.dedup_by_key(|holding| holding.object);
        newest
    }

    /// Everything that is held, ascending by identifier.
    pub fn all(&self) -> Vec<Arc<Holding>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = objects.values().cloned().collect();
        all.sort_by_key(|holding| holding.object);
        all
    }

    /// What there is to say where more is held than may be.
    pub fn above_capacity(&self) -> Option<String> {
        let (used, capacity) = (self.used_bytes(), self.capacity_bytes);
        (used > capacity).then(|| {
            format!(
                "objects here use {}, and --capacity is {}: no other comes here before so much was removed (hint: start with a larger --capacity)",
                human(used), human(capacity)
            )
        })
    }

    /// Bytes that this node lends.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes in use, rounded up to pages.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Makes an object that is not there, for who is alone with its files.
    fn insert(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
        ticket: [u8; 16],
        state: State,
    ) -> Result<Arc<Holding>, HoldingError> {
        if self.find(object).is_ok() {
            return Err(HoldingError::Exists(object));
        }
        self.take_room(room_of(bytes))?;
        self.insert_in_room(object, epoch, name, bytes, ticket, state)
    }

    /// As [`insert`](Self::insert) in room that was taken before.
    fn insert_in_room(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
        ticket: [u8; 16],
        state: State,
    ) -> Result<Arc<Holding>, HoldingError> {
        let file = self.make_file(object, bytes)?;
        fault_point::reach("object-file-made");
        let room = file.len();
        self.insert_file(object, epoch, name, bytes, ticket, state, (file, room))
    }

    #[allow(clippy::too_many_arguments, reason = "what a holding is made of")]
    fn insert_file(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
        ticket: [u8; 16],
        state: State,
        (file, room): (MemoryFile, u64),
    ) -> Result<Arc<Holding>, HoldingError> {
        let mapping = Arc::new(map_whole(&file).inspect_err(|_| {
            self.give_room(room);
            // The error that matters is the one of mapping.
            let _ = file.remove();
        })?);
        let holding = Arc::new(Holding {
            object,
            name: RwLock::new(name),
            epoch: AtomicU64::new(epoch.0),
            bytes: AtomicU64::new(bytes),
            state: Mutex::new(state),
            memory: RwLock::new(Memory { file, mapping, room }),
            blocks: Mutex::default(),
            header_writing: Mutex::default(),
            region: Mutex::default(),
            ticket,
            is_lent: Mutex::default(),
            writes: Writes::default(),
            heat: HeatMark::default(),
            is_let_go: AtomicBool::new(false),
            is_wrong: AtomicBool::new(false),
        });
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(object, Arc::clone(&holding));
        Ok(holding)
    }

    /// Makes the file with all its pages, whose room was taken: in huge pages if they can be had now, else in the fallback folder,
    /// where small objects go first. Without a file the room is given back.
    fn make_file(&self, object: ObjectId, bytes: u64) -> Result<MemoryFile, HoldingError> {
        let is_small = bytes < PAGE_BYTES;
        let room = room_of(bytes);
        let mut refusal = None;
        let base = self.fallback.as_ref().unwrap_or(&self.folder);
        let folders = if is_small { [base, &self.folder] } else { [&self.folder, base] };
        for folder in folders {
            let path = folder.join(format!("{:016x}.bytes", object.0));
            // What is in the way belongs to an object that nobody knows any more.
            let _ = fs::remove_file(&path);
            match MemoryFile::create(&path, room) {
                Ok(file) => match file.allocate(0, room) {
                    Ok(()) => return Ok(file),
                    Err(error) => {
                        // The error that matters is the lack of memory.
                        let _ = file.remove();
                        refusal = Some(error);
                    }
                },
                Err(error) => refusal = Some(error),
            }
        }
        self.give_room(room);
        Err(refusal.map_or(HoldingError::Absent(object), HoldingError::Os))
    }

    /// Takes room that is there.
    fn take_free_room(&self, bytes: u64) -> Result<(), HoldingError> {
        self.used_bytes
            .try_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&total| total <= self.capacity_bytes)
            })
            .map(drop)
            .map_err(|used| HoldingError::Full { needed: bytes, capacity: self.capacity_bytes, used })
    }

    fn give_room(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn header_path(&self, object: ObjectId) -> PathBuf {
        self.headers.join(format!("{:016x}.object", object.0))
    }

    /// Writes the header beside its place, makes it durable, and renames it into place.
    fn write_header(&self, header: &ObjectHeader) -> Result<(), HoldingError> {
        let path = self.header_path(header.object);
        let draft = path.with_extension("draft");
        let write = || -> io::Result<()> {
            let mut file = File::create(&draft)?;
            file.write_all(&header.to_bytes())?;
            fault_point::reach("object-header-drafted");
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            fault_point::reach("object-header-renamed");
            File::open(&self.headers)?.sync_all()
        };
        write().map_err(|source| {
            // The draft may not exist; the error that matters is the one of writing.
            let _ = fs::remove_file(&draft);
            HoldingError::Header { path: path.clone(), source }
        })
    }

    /// Reads every header, opens its bytes, and drops what does not fit together. Where something cannot be looked at, as without
    /// descriptors, nothing is dropped at all.
    fn recover(&self, is_another_boot: bool) -> Result<Vec<String>, HoldingError> {
        let listing = |source| HoldingError::Header { path: self.headers.clone(), source };
        let mut unfit = Vec::new();
        for entry in fs::read_dir(&self.headers).map_err(listing)? {
            let path = entry.map_err(listing)?.path();
            match self.recover_one(&path, is_another_boot) {
                Ok(holding) => {
                    self.used_bytes.fetch_add(holding.room(), Ordering::AcqRel);
                    let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
                    objects.insert(holding.object, Arc::new(holding));
                }
                Err(Unfit::Useless(reason)) => unfit.push((path, reason)),
                Err(Unfit::Unseen(error)) => return Err(error),
            }
        }
        let mut dropped = Vec::new();
        for (path, reason) in unfit {
            dropped.push(format!("{}: {reason}", path.display()));
            fs::remove_file(&path).map_err(listing)?;
        }
        self.remove_strays(&mut dropped);
        Ok(dropped)
    }

    fn recover_one(&self, path: &Path, is_another_boot: bool) -> Result<Holding, Unfit> {
        if path.extension().is_none_or(|extension| extension != "object") {
            return Err(Unfit::useless("a header that was never finished"));
        }
        let bytes = fs::read(path)
            .map_err(|source| Unfit::Unseen(HoldingError::Header { path: path.to_path_buf(), source }))?;
        let header =
            ObjectHeader::parse(&bytes).map_err(|error: HeaderError| Unfit::Useless(error.to_string()))?;
        let file = self
            .found_bytes(&format!("{:016x}.bytes", header.object.0))?
            .ok_or_else(|| Unfit::useless("its bytes are gone, as after a restart of the machine"))?;
        if file.len() < header.bytes {
            let words = format!("its bytes are {} long, not {}", file.len(), header.bytes);
            return Err(Unfit::Useless(words));
        }
        let mapping = Arc::new(map_whole(&file).map_err(|error| Unfit::Unseen(error.into()))?);
        let (state, blocks) = match header.content {
            HeaderContent::Sealed { blocks } => (State::Sealed, blocks),
            HeaderContent::Region if is_another_boot => {
                return Err(Unfit::useless(
                    "a region whose bytes may be older than what was written last, as the machine was started anew",
                ));
            }
            HeaderContent::Region => (State::Region, Vec::new()),
        };
        Ok(Holding {
            object: header.object,
            name: RwLock::new(header.name),
            epoch: AtomicU64::new(header.epoch.0),
            bytes: AtomicU64::new(header.bytes),
            state: Mutex::new(state),
            memory: RwLock::new(Memory { room: found_room(&file, header.bytes, state), file, mapping }),
            blocks: Mutex::new(Arc::new(blocks)),
            header_writing: Mutex::default(),
            region: Mutex::default(),
            ticket: [0; 16],
            is_lent: Mutex::default(),
            writes: Writes::default(),
            heat: HeatMark::default(),
            is_let_go: AtomicBool::new(false),
            is_wrong: AtomicBool::new(false),
        })
    }

    /// The file of an object's bytes, if there is one.
    fn found_bytes(&self, name: &str) -> Result<Option<MemoryFile>, Unfit> {
        for folder in [Some(&self.folder), self.fallback.as_ref()].into_iter().flatten() {
            match MemoryFile::open(&folder.join(name), true) {
                Ok(file) => return Ok(Some(file)),
                Err(OsError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Unfit::Unseen(error.into())),
            }
        }
        Ok(None)
    }

    /// Removes files of bytes that no header names: puts that were cut short.
    fn remove_strays(&self, dropped: &mut Vec<String>) {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        for folder in [Some(&self.folder), self.fallback.as_ref()].into_iter().flatten() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let is_bytes = path.extension().is_some_and(|extension| extension == "bytes");
                let object = path
                    .file_stem()
                    .and_then(|stem| stem.to_str())
                    .and_then(|stem| u64::from_str_radix(stem, 16).ok());
                if is_bytes && object.is_none_or(|object| !objects.contains_key(&ObjectId(object))) {
                    dropped.push(format!("{}: a put that was cut short", path.display()));
                    // A file that cannot be removed now is found again at the next start.
                    let _ = fs::remove_file(&path);
                }
            }
        }
    }
}

/// Room that an object takes: whole 2 MiB pages, or 4 KiB pages if it is smaller than one.
fn room_of(bytes: u64) -> u64 {
    let unit = if bytes < PAGE_BYTES { PageKind::Base4K } else { PageKind::Huge2M };
    rounded(bytes.max(1), unit)
}

/// Room that a found object takes. A region may have let go of pages: what it has of the file counts until its pages are known.
fn found_room(file: &MemoryFile, bytes: u64, state: State) -> u64 {
    match file.held_bytes() {
        Ok(held) if state == State::Region && bytes >= PAGE_BYTES => rounded(held, PageKind::Huge2M),
        _ => room_of(bytes),
    }
}

/// Whole pages; a size that another node made up and that no memory has stays larger than every capacity.
fn rounded(bytes: u64, kind: PageKind) -> u64 {
    bytes.checked_next_multiple_of(kind.page_bytes()).unwrap_or(u64::MAX)
}

fn map_whole(file: &MemoryFile) -> Result<Mapping, OsError> {
    // Guarded: who writes an object has a descriptor with which it can cut the file off.
    file.map(0, file.len() as usize, MapOptions { write: true, guarded: true, ..MapOptions::default() })
}

#[cfg(test)]
mod tests;
