//! Heat copies among the objects that a node holds: which they are, who uses them, and that they make way.

use super::{Holding, HoldingError, Holdings, State, room_of};
use hinterland_types::{Epoch, ObjectId, ObjectName};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often heat copies are dropped for one need of room: others may take what was made free.
const TRIES_MAX: usize = 8;

/// Drops heat copies of at least so many bytes if it can; whether any went.
pub type MakeWay = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Kept by a program that has a heat copy open.
pub type OpenHeatCopy = Arc<()>;

/// What is known of a holding as a heat copy.
#[derive(Default)]
pub struct HeatMark {
    is_one: AtomicBool,
    uses: AtomicU64,
    open: OpenHeatCopy,
}

impl Holding {
    /// Whether it is here only because it is read a lot.
    pub fn is_heat_copy(&self) -> bool {
        // Relaxed: who sees it late counts a use less.
        self.heat.is_one.load(Ordering::Relaxed)
    }

    /// Says what it is.
    pub fn set_heat_copy(&self, is_one: bool) {
        // Relaxed: as above.
        self.heat.is_one.store(is_one, Ordering::Relaxed);
    }

    /// Takes the mark away; whether it was there, for one of all who do so at once.
    pub fn take_heat_mark(&self) -> bool {
        self.heat.is_one.swap(false, Ordering::AcqRel)
    }

    /// Somebody reads it.
    pub fn note_use(&self) {
        if self.is_heat_copy() {
            // Relaxed: a counter that nothing is ordered by.
            self.heat.uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A program opens it: what to keep until it is closed, since nobody sees how mapped memory is read.
    pub fn open_heat_copy(&self) -> Option<OpenHeatCopy> {
        self.note_use();
        self.is_heat_copy().then(|| Arc::clone(&self.heat.open))
    }

    /// How often it was used, and whether a program has it open.
    pub fn heat_uses(&self) -> (u64, bool) {
        // Relaxed: as above.
        (self.heat.uses.load(Ordering::Relaxed), Arc::strong_count(&self.heat.open) > 1)
    }
}

impl Holdings {
    /// From here on heat copies make way: `make_way` is called where room is needed and not there.
    pub fn when_full(&self, make_way: MakeWay) {
        // It is set once, when the node is built.
        let _ = self.make_way.set(make_way);
    }

    /// Makes room for a heat copy that is about to be fetched. Nothing makes way for it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_heat_copy(
        &self,
        object: ObjectId,
        epoch: Epoch,
        name: ObjectName,
        bytes: u64,
        ticket: [u8; 16],
    ) -> Result<Arc<Holding>, HoldingError> {
        let _alone = self.making.alone(object);
        if self.find(object).is_ok() {
            return Err(HoldingError::Exists(object));
        }
        self.take_free_room(room_of(bytes))?;
        let holding = self.insert_in_room(object, epoch, name, bytes, ticket, State::Writing)?;
        holding.set_heat_copy(true);
        Ok(holding)
    }

    /// Bytes of the node's room that a copy takes, if it is one for heat.
    pub fn heat_room(&self, object: ObjectId) -> Option<u64> {
        self.find(object).ok().filter(|holding| holding.is_heat_copy()).map(|holding| holding.room())
    }

    /// Takes room; heat copies go for it if there is too little.
    pub(super) fn take_room(&self, bytes: u64) -> Result<(), HoldingError> {
        for _ in 0..TRIES_MAX {
            let Err(full) = self.take_free_room(bytes) else { return Ok(()) };
            let missing = self.used_bytes().saturating_add(bytes).saturating_sub(self.capacity_bytes);
            if bytes > self.capacity_bytes || !self.make_way.get().is_some_and(|make_way| make_way(missing)) {
                return Err(full);
            }
        }
        self.take_free_room(bytes)
    }
}
