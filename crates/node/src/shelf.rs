//! Sealed objects of this node in memory that the hosts of its rack share, and those of the other hosts.
//!
//! The objects that this node holds stay in their own files; the shelf has one more copy of each that fits, for nodes of other
//! hosts to load from in place of asking over the network. What they load they compare with the checksums of the home.

use crate::holdings::Holding;
use hinterland_os::{FlushedSlice, MapOptions, MemoryFile, SharedSlice};
use hinterland_shelf::{Shape, Shelf, ShelfError};
use hinterland_types::{ByteRange, NodeId, ObjectId};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which memory, and which part of it is this node's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShelfChoice {
    /// A file or device that is the same memory on all hosts of the rack.
    pub path: PathBuf,
    /// This node's part, from 1.
    pub part: u32,
    /// Nodes that share it.
    pub parts: u32,
}

impl FromStr for ShelfChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} names no memory (hint: PART/PARTS:PATH, such as 1/2:/dev/dax0.0)");
        let (numbers, path) = text.split_once(':').ok_or_else(wrong)?;
        let (part, parts) = numbers.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (part, parts) = (number(part)?, number(parts)?);
        if part == 0 || part > parts || !(2..=PARTS_MAX).contains(&parts) || path.is_empty() {
            return Err(wrong());
        }
        Ok(Self { path: path.into(), part, parts })
    }
}

/// More hosts than one switch joins.
const PARTS_MAX: u32 = 64;

/// The memory, and what became of it.
pub struct NodeShelf {
    shelf: Shelf<FlushedSlice>,
    loaded_bytes: AtomicU64,
}

impl NodeShelf {
    /// Maps the memory and takes this node's part.
    ///
    /// # Errors
    /// [`ShelfError`] if it is not there, too small, or another's.
    pub fn open(choice: &ShelfChoice, own: NodeId) -> Result<Self, ShelfError> {
        let file = MemoryFile::open(&choice.path, true)?;
        let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
        let memory = Arc::new(file.map(0, file.len() as usize, options)?).slice();
        let (memory, shape) = (FlushedSlice::new(memory)?, Shape::of(choice.parts));
        if !Shelf::is_free_to_use(&memory, shape, choice.part) {
            return Err(ShelfError::Occupied { part: choice.part });
        }
        let shelf = Shelf::open(memory, shape, choice.part, own.0)?;
        Ok(Self { shelf, loaded_bytes: AtomicU64::new(0) })
    }

    /// Gives the other hosts a sealed object, if there is room; when this returns they find it.
    pub fn show(&self, holding: &Holding) {
        let read = |offset, into: &mut [u8]| {
            // What a program has cut off is given to nobody.
            let memory = holding.slice(offset, into.len() as u64).map_err(|_| ShelfError::Outside {
                offset,
                bytes: into.len() as u64,
                length: 0,
            })?;
            Ok(memory.read_at(0, into)?)
        };
        match self.shelf.put(holding.object.0, holding.bytes(), read) {
            Ok(()) | Err(ShelfError::Exists) => {}
            Err(error) => {
                tracing::warn!(object = %holding.name(), %error, "other hosts of the rack read it over the network");
            }
        }
        // Who let go of it meanwhile did not find it here.
        if holding.is_let_go() {
            self.hide(holding.object);
        }
    }

    /// Takes an object back; when this returns nobody finds it.
    pub fn hide(&self, object: ObjectId) {
        if let Err(error) = self.shelf.remove(object.0) {
            tracing::warn!(%object, %error, "it stays on the shelf");
        }
    }

    /// Loads a range of another host's object with `load`, which is given the memory and says whether it is right. Whether
    /// there was one.
    pub fn load(&self, object: ObjectId, range: ByteRange, load: impl FnOnce(&SharedSlice) -> bool) -> bool {
        let Some(held) = self.shelf.hold(object.0) else { return false };
        let Ok(memory) = held.slice(range.offset(), range.bytes()) else { return false };
        let is_right = load(&memory);
        if is_right {
            // Relaxed: a counter that nothing is ordered by.
            self.loaded_bytes.fetch_add(range.bytes(), Ordering::Relaxed);
        }
        is_right
    }

    /// Bytes that came from other hosts by loads.
    pub fn loaded_bytes(&self) -> u64 {
        // Relaxed: as above.
        self.loaded_bytes.load(Ordering::Relaxed)
    }
}
