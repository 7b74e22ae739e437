//! Parts of regions: sparse files with the region's own offsets, which gain and lose pages.

use super::{Holding, HoldingError, Holdings, State};
use crate::fault_point;
use crate::regions::Region;
use crate::shelf::NodeShelf;
use hinterland_os::file_lock::{ByteLock, is_byte_locked, lock_byte};
use hinterland_os::{MemoryFile, OsError};
use hinterland_proto::object_header::{HeaderContent, ObjectHeader};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{Epoch, ObjectId, ObjectName};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

/// The byte that is locked in files that programs have mapped by plain pointers.
const PINNED: u64 = 1 << 40;
/// The first of the bytes that are locked in files whose programs ask the words of one life of the node; one a life.
const LIVES: u64 = (1 << 40) + 1;
/// Lives of a node that programs may have files of at once; those of longer ago are taken to be there.
const LIVES_MAX: u64 = 16;

/// What is told when a region has gone.
pub type RegionGone = Box<dyn Fn() + Send + Sync>;

impl Holdings {
    /// From here on `tell` is called when a region was dropped, whoever drops it: by a removal, by a put that was given up, by what
    /// the directory says of a node that was away.
    pub fn when_region_goes(&self, tell: RegionGone) {
        // Set once, when the node starts.
        let _ = self.region_gone.set(tell);
    }

    /// Sealed objects, those that are there and those to come, are given to other hosts on this shelf too.
    pub fn show_on(&self, shelf: &Arc<NodeShelf>) {
        // Set once, when the node starts.
        let _ = self.shelf.set(Arc::clone(shelf));
        self.all().iter().filter(|holding| holding.is_sealed()).for_each(|holding| shelf.show(holding));
    }

    /// The memory that the hosts of this rack share, if they do.
    pub fn shelf(&self) -> Option<&Arc<NodeShelf>> {
        self.shelf.get()
    }

    /// Makes a part of a region: a file without pages, and its header. What is there already under this epoch is taken.
    ///
    /// # Errors
    /// As [`create_region`](Self::create_region); [`HoldingError::Exists`] under another epoch.
    pub fn create_part(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
    ) -> Result<Arc<Holding>, HoldingError> {
        let _alone = self.making.alone(object);
        if let Ok(holding) = self.find(object) {
            return if holding.epoch() == epoch { Ok(holding) } else { Err(HoldingError::Exists(object)) };
        }
        let file = self.make_sparse_file(object, bytes)?;
        fault_point::reach("part-file-made");
        let holding =
            self.insert_file(object, epoch, name.clone(), bytes, [0; 16], State::Region, (file, 0))?;
        let header = ObjectHeader { object, epoch, name, bytes, content: HeaderContent::Region };
        self.write_header(&header).inspect_err(|_| self.drop_alone(object))?;
        Ok(holding)
    }

    /// Sets room aside for a page and makes it, zeroed where it is a hole.
    ///
    /// # Errors
    /// [`HoldingError::Full`]; [`HoldingError::Os`] without memory; [`HoldingError::Absent`] once the node has let go of the region.
    pub fn add_page(&self, holding: &Holding, index: u32) -> Result<(), HoldingError> {
        self.take_room(PAGE_BYTES)?;
        let mut memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
        if holding.is_let_go() {
            self.give_room(PAGE_BYTES);
            return Err(HoldingError::Absent(holding.object));
        }
        let offset = u64::from(index) * PAGE_BYTES;
        if let Err(error) = memory.file.allocate(offset, PAGE_BYTES) {
            // What was made in part goes again; the error that matters is the lack of memory.
            let _ = memory.file.punch(offset, PAGE_BYTES);
            self.give_room(PAGE_BYTES);
            return Err(error.into());
        }
        memory.room += PAGE_BYTES;
        Ok(())
    }

    /// Gives the memory and the room of a page back.
    ///
    /// # Errors
    /// [`HoldingError::Os`]; the room counts as given back all the same.
    pub fn drop_page(&self, holding: &Holding, index: u32) -> Result<(), HoldingError> {
        let mut memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
        let given = PAGE_BYTES.min(memory.room);
        memory.room -= given;
        self.give_room(given);
        Ok(memory.file.punch(u64::from(index) * PAGE_BYTES, PAGE_BYTES)?)
    }

    /// Makes the memory of a page for a copy of it, which does not count as used: copies go before anything is short of room.
    ///
    /// # Errors
    /// [`HoldingError::Os`] without memory.
    pub fn lend_page(&self, holding: &Holding, index: u32) -> Result<(), HoldingError> {
        let memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
        let offset = u64::from(index) * PAGE_BYTES;
        if let Err(error) = memory.file.allocate(offset, PAGE_BYTES) {
            // As in `add_page`.
            let _ = memory.file.punch(offset, PAGE_BYTES);
            return Err(error.into());
        }
        Ok(())
    }

    /// Gives the memory of a copy back.
    ///
    /// # Errors
    /// [`HoldingError::Os`].
    pub fn return_page(&self, holding: &Holding, index: u32) -> Result<(), HoldingError> {
        let memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
        Ok(memory.file.punch(u64::from(index) * PAGE_BYTES, PAGE_BYTES)?)
    }

    /// Makes the file of a part hold exactly these pages, which are named by `is_ours`, and its room what they take.
    ///
    /// # Errors
    /// As [`add_page`](Self::add_page).
    pub fn settle_pages(
        &self,
        holding: &Holding,
        count: u32,
        is_ours: impl Fn(u32) -> bool,
    ) -> Result<(), HoldingError> {
        if holding.bytes() < PAGE_BYTES {
            return Ok(());
        }
        let mut memory = holding.memory.write().unwrap_or_else(PoisonError::into_inner);
        if holding.is_let_go() {
            return Err(HoldingError::Absent(holding.object));
        }
        let ours = (0..count).filter(|index| is_ours(*index)).count() as u64;
        let room = ours * PAGE_BYTES;
        if room > memory.room {
            self.take_room(room - memory.room)?;
        } else {
            self.give_room(memory.room - room);
        }
        memory.room = room;
        let mut first = 0;
        while first < count {
            let kept = is_ours(first);
            let end = (first..count).find(|index| is_ours(*index) != kept).unwrap_or(count);
            let (offset, bytes) = (u64::from(first) * PAGE_BYTES, u64::from(end - first) * PAGE_BYTES);
            if kept {
                memory.file.allocate(offset, bytes)?;
            } else {
                memory.file.punch(offset, bytes)?;
            }
            first = end;
        }
        Ok(())
    }

    fn make_sparse_file(&self, object: ObjectId, bytes: u64) -> Result<MemoryFile, HoldingError> {
        let mut refusal = None;
        for folder in [Some(&self.folder), self.fallback.as_ref()].into_iter().flatten() {
            let path = folder.join(format!("{:016x}.bytes", object.0));
            // What is in the way belongs to an object that nobody knows any more.
            let _ = fs::remove_file(&path);
            match MemoryFile::create(&path, super::room_of(bytes)) {
                Ok(file) => return Ok(file),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.map_or(HoldingError::Absent(object), HoldingError::Os))
    }
}

impl Holding {
    /// Whether it is a region that is written in place.
    pub fn is_region(&self) -> bool {
        self.state() == State::Region
    }

    /// Tells who is to hear of the region's end: the latest, for one that was taken for removed is made anew when it is found again.
    pub fn attach(&self, region: &Arc<Region>) {
        *self.region.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(region);
    }

    /// A descriptor for plain pointers: as long as anybody has it or a mapping of it, pages do not move.
    ///
    /// # Errors
    /// [`HoldingError::Os`] without descriptors left.
    pub fn pinning_descriptor(&self, write: bool) -> Result<OwnedFd, HoldingError> {
        self.locked_descriptor(PINNED, write)
    }

    /// A descriptor for accesses that ask the words of this life of the node.
    ///
    /// # Errors
    /// [`HoldingError::Os`] without descriptors left.
    pub fn sharing_descriptor(&self, life: Life, write: bool) -> Result<OwnedFd, HoldingError> {
        self.locked_descriptor(LIVES + life.0, write)
    }

    fn locked_descriptor(&self, byte: u64, write: bool) -> Result<OwnedFd, HoldingError> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        let file = if write { memory.file.reopen()? } else { memory.file.reopen_read_only()? };
        if lock_byte(&file, byte, ByteLock::Shared)? {
            return Ok(file);
        }
        let reason = "somebody has locked it".to_owned();
        let hint = "only programs of this pool should open its files".into();
        Err(OsError::Unsupported { operation: "sharing the file of a region", reason, hint }.into())
    }

    /// The number of this life of the node: one under which no program has the file.
    ///
    /// # Errors
    /// [`HoldingError::Os`].
    pub fn new_life(&self) -> Result<Life, HoldingError> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        for life in 0..LIVES_MAX {
            if !is_byte_locked(&memory.file, LIVES + life)? {
                return Ok(Life(life));
            }
        }
        // Programs of so many lives: this one can tell nothing apart, and its pages stay where they are.
        Ok(Life(LIVES_MAX))
    }

    /// Whether somebody may store into its pages without asking the words of this life.
    ///
    /// # Errors
    /// [`HoldingError::Os`].
    pub fn is_pinned(&self, life: Life) -> Result<bool, HoldingError> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        let mut others = (0..LIVES_MAX).filter(|other| *other != life.0).map(|other| LIVES + other);
        let is_any = others
            .try_fold(false, |any, byte| Ok::<_, OsError>(any || is_byte_locked(&memory.file, byte)?))?;
        Ok(is_any || life.0 == LIVES_MAX || is_byte_locked(&memory.file, PINNED)?)
    }
}

/// Tells the lives of a node apart, for one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life(u64);
