//! The capability table of a session: handles, rights, ranges, and revocation with all descendants.
//!
//! A handle is an index (low 16 bits) and a generation (high 16 bits), so that a handle that was given
//! back does not lead to what later took its place: of 2^32 handles none comes again before all others were given.
//! Deny by default: what is not in the table is refused.

use hinterland_types::limits::HANDLES_MAX;
use hinterland_types::{ByteRange, Handle, RangeError, Rights};
use std::collections::VecDeque;

/// Why a request is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum CapabilityError {
    /// The handle is none of this session's.
    #[error(
        "{0} is not held by this session (hint: open the object again; it may have been closed or revoked)"
    )]
    Unknown(Handle),
    /// The capability does not allow this.
    #[error("{handle} allows {held}, the request needs {needed} (hint: open the object with these rights)")]
    Rights {
        /// Which.
        handle: Handle,
        /// What it allows.
        held: Rights,
        /// What would be needed.
        needed: Rights,
    },
    /// The request reaches outside the capability's range.
    #[error("{handle}: {source}")]
    Range {
        /// Which.
        handle: Handle,
        /// How.
        source: RangeError,
    },
    /// The table is full.
    #[error("this session holds {HANDLES_MAX} capabilities, the most there may be (hint: close some)")]
    Full,
}

/// What a handle leads to.
#[derive(Debug, Clone)]
pub struct Capability<R> {
    /// The resource.
    pub resource: R,
    /// What is allowed.
    pub rights: Rights,
    /// Part of the resource that is covered.
    pub range: ByteRange,
    parent: Option<u16>,
}

#[derive(Debug)]
struct Slot<R> {
    generation: u16,
    capability: Option<Capability<R>>,
}

/// All capabilities of one session.
#[derive(Debug)]
pub struct CapabilityTable<R> {
    slots: Vec<Slot<R>>,
    free: Vec<u16>,
    /// Free slots that had every generation, the one first that was used up first: not used again while there is any other.
    worn: VecDeque<u16>,
    /// How many capabilities were diminished from others.
    diminished: usize,
}

impl<R> Default for CapabilityTable<R> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), worn: VecDeque::new(), diminished: 0 }
    }
}

impl<R: Clone> CapabilityTable<R> {
    /// Grants a capability of its own.
    ///
    /// # Errors
    /// [`CapabilityError::Full`].
    pub fn grant(
        &mut self,
        resource: R,
        rights: Rights,
        range: ByteRange,
    ) -> Result<Handle, CapabilityError> {
        self.insert(Capability { resource, rights, range, parent: None })
    }

    /// Grants a capability with at most the rights and range of an existing one.
    ///
    /// # Errors
    /// [`CapabilityError`] if the handle is unknown, the range reaches outside, or the table is full.
    pub fn diminish(
        &mut self,
        handle: Handle,
        rights: Rights,
        range: ByteRange,
    ) -> Result<Handle, CapabilityError> {
        let parent = self.get(handle)?;
        if !parent.range.contains(range) {
            let source = RangeError::OutOfBounds {
                offset: range.offset(),
                bytes: range.bytes(),
                limit: parent.range.end(),
            };
            return Err(CapabilityError::Range { handle, source });
        }
        let child = Capability {
            resource: parent.resource.clone(),
            rights: parent.rights.intersect(rights),
            range,
            parent: Some(index_of(handle)),
        };
        let handle = self.insert(child)?;
        self.diminished += 1;
        Ok(handle)
    }

    /// The capability behind a handle.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`].
    pub fn get(&self, handle: Handle) -> Result<&Capability<R>, CapabilityError> {
        self.slots
            .get(usize::from(index_of(handle)))
            .filter(|slot| slot.generation == generation_of(handle))
            .and_then(|slot| slot.capability.as_ref())
            .ok_or(CapabilityError::Unknown(handle))
    }

    /// Checks a request: the handle must allow `needed` on `bytes` bytes at `offset` of the resource.
    ///
    /// # Errors
    /// [`CapabilityError`] says which of the three is wrong.
    pub fn check(
        &self,
        handle: Handle,
        offset: u64,
        bytes: u64,
        needed: Rights,
    ) -> Result<&R, CapabilityError> {
        let capability = self.get(handle)?;
        if !capability.rights.allows(needed) {
            return Err(CapabilityError::Rights { handle, held: capability.rights, needed });
        }
        let range = ByteRange::within(offset, bytes, capability.range.end())
            .map_err(|source| CapabilityError::Range { handle, source })?;
        if !capability.range.contains(range) {
            let source = RangeError::OutOfBounds { offset, bytes, limit: capability.range.end() };
            return Err(CapabilityError::Range { handle, source });
        }
        Ok(&capability.resource)
    }

    /// The range that a handle reaches.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`].
    pub fn range(&self, handle: Handle) -> Result<ByteRange, CapabilityError> {
        self.get(handle).map(|capability| capability.range)
    }

    /// Lets a capability over the whole resource grow with it (an object that is being written).
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`].
    pub fn widen(&mut self, handle: Handle, range: ByteRange) -> Result<(), CapabilityError> {
        self.get(handle)?;
        if let Some(capability) = &mut self.slots[usize::from(index_of(handle))].capability {
            capability.range = range;
        }
        Ok(())
    }

    /// Lets a handle, and nothing that was diminished from it, lead to something else.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`].
    pub fn replace(&mut self, handle: Handle, resource: R) -> Result<(), CapabilityError> {
        self.get(handle)?;
        if let Some(capability) = &mut self.slots[usize::from(index_of(handle))].capability {
            capability.resource = resource;
        }
        Ok(())
    }

    /// Takes back everything that was diminished from a handle, and what came of that; returns their handles and resources.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`].
    pub fn revoke(&mut self, handle: Handle) -> Result<Vec<(Handle, R)>, CapabilityError> {
        self.get(handle)?;
        let mut taken = Vec::new();
        let mut parents = vec![index_of(handle)];
        while let Some(parent) = parents.pop().filter(|_| self.diminished > 0) {
            for index in 0..self.slots.len() {
                let is_child =
                    self.slots[index].capability.as_ref().is_some_and(|child| child.parent == Some(parent));
                if is_child {
                    // The table holds at most 2^16 slots: the cast loses nothing.
                    parents.push(index as u16);
                    taken.extend(self.take(index as u16));
                }
            }
        }
        Ok(taken)
    }

    /// Gives a capability and its descendants back; returns their handles and resources.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`].
    pub fn close(&mut self, handle: Handle) -> Result<Vec<(Handle, R)>, CapabilityError> {
        let mut taken = self.revoke(handle)?;
        taken.extend(self.take(index_of(handle)));
        Ok(taken)
    }

    /// Every resource that is held, once for each capability.
    pub fn resources(&self) -> impl Iterator<Item = &R> {
        self.slots.iter().filter_map(|slot| slot.capability.as_ref()).map(|capability| &capability.resource)
    }

    /// How many capabilities are held.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.worn.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(&mut self, capability: Capability<R>) -> Result<Handle, CapabilityError> {
        let index = match (self.free.pop(), u16::try_from(self.slots.len())) {
            (Some(index), _) => index,
            (None, Ok(index)) => {
                self.slots.push(Slot { generation: 1, capability: None });
                index
            }
            (None, Err(_)) => self.worn.pop_front().ok_or(CapabilityError::Full)?,
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.capability = Some(capability);
        Ok(handle_of(slot.generation, index))
    }

    fn take(&mut self, index: u16) -> Option<(Handle, R)> {
        let slot = &mut self.slots[usize::from(index)];
        let capability = slot.capability.take()?;
        let handle = handle_of(slot.generation, index);
        self.diminished -= usize::from(capability.parent.is_some());
        match slot.generation.checked_add(1) {
            Some(next) => {
                slot.generation = next;
                self.free.push(index);
            }
            None => {
                slot.generation = 1;
                self.worn.push_back(index);
            }
        }
        Some((handle, capability.resource))
    }
}

const fn handle_of(generation: u16, index: u16) -> Handle {
    Handle((generation as u32) << 16 | index as u32)
}

const fn index_of(handle: Handle) -> u16 {
    // The low 16 bits are the index.
    handle.0 as u16
}

const fn generation_of(handle: Handle) -> u16 {
    (handle.0 >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, bytes: u64) -> ByteRange {
        ByteRange::new(offset, bytes).unwrap()
    }

    #[test]
    fn a_handle_that_was_closed_does_not_lead_to_its_successor() {
        let mut table = CapabilityTable::default();
        let first = table.grant("a", Rights::READ, range(0, 10)).unwrap();
        assert_eq!(table.close(first).unwrap(), [(first, "a")]);
        let second = table.grant("b", Rights::READ, range(0, 10)).unwrap();
        assert_ne!(first, second);
        assert_eq!(table.check(first, 0, 1, Rights::READ), Err(CapabilityError::Unknown(first)));
        assert_eq!(table.check(second, 0, 1, Rights::READ), Ok(&"b"));
    }

    #[test]
    fn a_handle_leads_to_nothing_else_however_often_its_place_is_taken() {
        let mut table = CapabilityTable::default();
        let first = table.grant(0, Rights::READ, range(0, 10)).unwrap();
        table.close(first).unwrap();
        for turn in 1..200_000 {
            let handle = table.grant(turn, Rights::READ, range(0, 10)).unwrap();
            assert_eq!(
                table.check(first, 0, 1, Rights::READ),
                Err(CapabilityError::Unknown(first)),
                "{turn}"
            );
            table.close(handle).unwrap();
        }
        assert!(table.is_empty());
    }

    #[test]
    fn places_that_had_every_handle_are_taken_again_when_no_other_is_left() {
        let mut table = CapabilityTable::default();
        for turn in 0..u32::from(u16::MAX) + 1 {
            let handle = table.grant(turn, Rights::READ, range(0, 1)).unwrap();
            table.close(handle).unwrap();
        }
        for index in 0..HANDLES_MAX {
            table.grant(index, Rights::READ, range(0, 1)).unwrap();
        }
        assert_eq!(table.len(), HANDLES_MAX as usize);
        assert_eq!(table.grant(0, Rights::READ, range(0, 1)), Err(CapabilityError::Full));
    }

    #[test]
    fn rights_and_range_only_shrink() {
        let mut table = CapabilityTable::default();
        let all = table.grant("a", Rights::READ, range(0, 100)).unwrap();
        let less = table.diminish(all, Rights::ALL, range(10, 20)).unwrap();
        assert!(matches!(table.check(less, 10, 1, Rights::WRITE), Err(CapabilityError::Rights { .. })));
        assert!(table.check(less, 10, 20, Rights::READ).is_ok());
        assert!(matches!(table.check(less, 9, 2, Rights::READ), Err(CapabilityError::Range { .. })));
        assert!(matches!(table.check(less, 10, 21, Rights::READ), Err(CapabilityError::Range { .. })));
        assert!(matches!(table.check(less, u64::MAX, 2, Rights::READ), Err(CapabilityError::Range { .. })));
        assert!(table.diminish(less, Rights::READ, range(0, 20)).is_err());
    }

    #[test]
    fn revoke_reaches_every_descendant_and_spares_the_rest() {
        let mut table = CapabilityTable::default();
        let root = table.grant("a", Rights::READ, range(0, 100)).unwrap();
        let other = table.grant("b", Rights::READ, range(0, 100)).unwrap();
        let child = table.diminish(root, Rights::READ, range(0, 50)).unwrap();
        let grandchild = table.diminish(child, Rights::READ, range(0, 5)).unwrap();
        assert_eq!(table.revoke(root).unwrap(), [(child, "a"), (grandchild, "a")]);
        for gone in [child, grandchild] {
            assert_eq!(table.check(gone, 0, 1, Rights::READ), Err(CapabilityError::Unknown(gone)));
        }
        assert!(table.check(root, 0, 1, Rights::READ).is_ok());
        assert!(table.check(other, 0, 1, Rights::READ).is_ok());
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let mut table = CapabilityTable::default();
        let first = table.grant(0, Rights::READ, range(0, 1)).unwrap();
        for index in 1..HANDLES_MAX {
            table.grant(index, Rights::READ, range(0, 1)).unwrap();
        }
        assert_eq!(table.grant(0, Rights::READ, range(0, 1)), Err(CapabilityError::Full));
        table.close(first).unwrap();
        assert!(table.grant(7, Rights::READ, range(0, 1)).is_ok());
    }
}
