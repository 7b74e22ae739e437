//! Values of more than a block: parts under keys that no other value ever has.

use super::KeyError;
use crate::head::{BLOCK_BYTES_MAX, Form, Generation, Head};
use hinterland_pool::local::random;
use hinterland_pool::{Expects, KvValues, Replaced, Replacement};

/// Parts that are written with one message: 32 MiB that nothing else can use meanwhile.
const BATCH: usize = 8;

/// The parts of a database's values.
pub struct Parts {
    values: KvValues,
    /// Random once, then counted: no other process has the same.
    generation: Generation,
}

impl Parts {
    /// Parts in a namespace of their own.
    ///
    /// # Errors
    /// [`KeyError::Pool`] without random numbers.
    pub fn new(values: KvValues) -> Result<Self, KeyError> {
        let mut generation = [0; 24];
        generation[..16].copy_from_slice(&random::<16>()?);
        Ok(Self { values, generation })
    }

    /// Writes a value as parts; `None` if there is no room for all of them.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn write(&mut self, value: &[u8]) -> Result<Option<Generation>, KeyError> {
        let mut count = [0; 8];
        count.copy_from_slice(&self.generation[16..]);
        self.generation[16..].copy_from_slice(&(u64::from_le_bytes(count) + 1).to_le_bytes());
        let form = Form::InParts(self.generation);
        let head = Head { ends_ms: None, value_bytes: value.len(), key_bytes: 0, form };
        let parts: Vec<_> = head.parts().zip(value.chunks(BLOCK_BYTES_MAX)).collect();
        let mut has_room = value.len() as u64 <= self.values.capacity_bytes();
        for batch in parts.chunks(BATCH) {
            if !has_room {
                break;
            }
            let pieces: Vec<[&[u8]; 1]> = batch.iter().map(|(_, bytes)| [*bytes]).collect();
            let blocks: Vec<Replacement<'_>> = batch
                .iter()
                .zip(&pieces)
                .map(|(((key, _), _), pieces)| Replacement { key, pieces, expects: Expects::Anything })
                .collect();
            has_room = self.values.replace(&blocks)?.iter().all(|outcome| *outcome == Replaced::Done);
        }
        // A value as large as the store makes its own first parts leave.
        for ((key, bytes), _) in &parts {
            has_room =
                has_room && self.values.find(key)?.is_some_and(|found| found.bytes() as usize == *bytes);
        }
        if !has_room {
            self.remove(&head)?;
        }
        Ok(has_room.then_some(self.generation))
    }

    /// Copies a value out of its parts; false if one of them is lost.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn read(&self, head: &Head, into: &mut [u8]) -> Result<bool, KeyError> {
        if into.len() != head.value_bytes {
            return Ok(false);
        }
        for ((key, bytes), piece) in head.parts().zip(into.chunks_mut(BLOCK_BYTES_MAX)) {
            let found = self.values.find(&key)?.filter(|found| found.bytes() as usize == bytes);
            if !found.is_some_and(|found| self.values.read(&found, &mut [piece])) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies bytes of a value, from its byte `start` on, out of those parts that have them; false if one of all its parts is lost.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn read_range(&self, head: &Head, start: usize, into: &mut [u8]) -> Result<bool, KeyError> {
        let end = start + into.len();
        let mut into = into;
        for (number, (key, bytes)) in head.parts().enumerate() {
            let found = self.values.find(&key)?.filter(|found| found.bytes() as usize == bytes);
            let Some(found) = found else { return Ok(false) };
            let first = number * BLOCK_BYTES_MAX;
            let (from, to) = (start.max(first), end.min(first + bytes));
            if from >= to {
                continue;
            }
            let (piece, rest) = into.split_at_mut(to - from);
            // Within a block: the cast loses nothing.
            if !self.values.read_from(&found, (from - first) as u32, piece) {
                return Ok(false);
            }
            into = rest;
        }
        Ok(true)
    }

    /// Removes the parts of a value, if it has any.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn remove(&self, head: &Head) -> Result<(), KeyError> {
        let keys: Vec<_> = head.parts().map(|(key, _)| key).collect();
        if !keys.is_empty() {
            self.values.remove(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Removes all parts of all values.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn clear(&mut self) -> Result<(), KeyError> {
        self.values.clear()?;
        Ok(())
    }

    /// Gives back what is kept for the next writes.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn rest(&mut self) -> Result<(), KeyError> {
        Ok(self.values.rest()?)
    }
}
