//! Copies from objects of a pool: which objects a session has named, and what it copies of them.

use super::Executor;
use crate::device::{At, Device};
use crate::failure::Failure;
use crate::pooled::{NoPool, OBJECTS_MAX, ObjectBytes, ObjectStore};
use crate::work::Rows;
use hinterland_proto::gpu::command::{AskPooled, CopyPooled};
use std::collections::HashMap;
use std::sync::Arc;

/// Flag of [`AskPooled`]: all of it will be wanted soon.
const ALL_SOON: u32 = 1;

/// The objects of a session, and who finds more.
pub(super) struct Pooled {
    store: Box<dyn ObjectStore>,
    objects: HashMap<u32, Arc<dyn ObjectBytes>>,
}

impl Default for Pooled {
    fn default() -> Self {
        Self { store: Box::new(NoPool), objects: HashMap::new() }
    }
}

impl<D: Device> Executor<D> {
    /// Where objects of a pool are found; before this, nowhere.
    #[must_use]
    pub fn with_objects(mut self, store: Box<dyn ObjectStore>) -> Self {
        self.pooled.store = store;
        self
    }

    pub(super) fn ask_pooled(&mut self, ask: &AskPooled) -> Result<(), Failure> {
        let found = self.open_pooled(ask);
        if let Err(failure) = &found {
            tracing::info!("{failure}");
        }
        self.outbox.answer(ask.question, found.map(|()| Vec::new()).map_err(|failure| failure.error));
        Ok(())
    }

    fn open_pooled(&mut self, ask: &AskPooled) -> Result<(), Failure> {
        let objects = &mut self.pooled.objects;
        if objects.contains_key(&ask.pooled) {
            return Err(Failure::twice("object", ask.pooled));
        }
        if objects.len() >= OBJECTS_MAX {
            return Err(Failure::too_many("objects", OBJECTS_MAX));
        }
        let found = self.pooled.store.open(ask)?;
        if ask.flags & ALL_SOON != 0 {
            found.will_need(0, found.bytes());
        }
        objects.insert(ask.pooled, found);
        Ok(())
    }

    pub(super) fn copy_pooled(&mut self, copy: &CopyPooled) -> Result<(), Failure> {
        let object = self.pooled.objects.get(&copy.pooled);
        let object = Arc::clone(object.ok_or_else(|| Failure::unknown("object", copy.pooled))?);
        self.streams.known(copy.stream)?;
        let to = Rows::new(copy.address, 0, copy.bytes, 1)?;
        self.memory.check(&to)?;
        if copy.offset.checked_add(copy.bytes).is_none_or(|end| end > object.bytes()) {
            let words =
                format!("{} bytes at {} lie beyond an object of {}", copy.bytes, copy.offset, object.bytes());
            return Err(Failure::value(words));
        }
        let at = At { stream: copy.stream, command: self.count };
        self.device.copy_pooled(at, to, object, copy.offset)
    }
}
