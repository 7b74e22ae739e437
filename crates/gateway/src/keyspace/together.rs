//! Writes about several keys: all of it happens or nothing, whichever server or program writes the same keys.

use super::{CHANGES_MAX, Entry, Item, KeyError, Keyspace, Place, State};
use crate::head::{BLOCK_BYTES_MAX, HEAD_BYTES};
use hinterland_pool::{Expects, Replaced, TOGETHER_BYTES_MAX, TOGETHER_MAX};
use std::collections::BTreeMap;

/// How a value gets another key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Whether it loses its own.
    pub is_move: bool,
    /// Whether a value that the other key has is replaced.
    pub replaces: bool,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// The other key has it.
    Done,
    /// There is none.
    Missing,
    /// The other key has one, which is not to be replaced.
    Taken,
}

impl Keyspace {
    /// Sets values if none of their keys is there; whether they were set. Of a key that is given twice the last value counts.
    ///
    /// # Errors
    /// [`KeyError`]; nothing is set then.
    pub fn set_absent(&mut self, pairs: &[(&[u8], &[u8])], now_ms: u64) -> Result<bool, KeyError> {
        let pairs: BTreeMap<&[u8], &[u8]> = pairs.iter().copied().collect();
        for _ in 0..CHANGES_MAX {
            let (mut items, mut bytes) = (Vec::with_capacity(pairs.len()), 0);
            for (key, value) in &pairs {
                bytes += block_bytes(Place::of(key)?, value);
                let state = self.state(key, now_ms)?;
                if let State::There(_) = state {
                    return Ok(false);
                }
                items.push(Item { key, value, ends_ms: None, expects: state.expected() });
            }
            if items.len() > TOGETHER_MAX || bytes > TOGETHER_BYTES_MAX {
                return Err(KeyError::Together);
            }
            if self.set_all(&items, None)? {
                return Ok(true);
            }
        }
        Err(KeyError::Contended)
    }

    /// Sets a key to the value of another one, and lets it end when that does.
    ///
    /// # Errors
    /// [`KeyError`]; nothing has changed then.
    pub fn transfer(
        &mut self,
        from: &[u8],
        to: &[u8],
        now_ms: u64,
        transfer: Transfer,
    ) -> Result<Moved, KeyError> {
        for _ in 0..CHANGES_MAX {
            if self.entry_of(from, now_ms)?.is_none() {
                return Ok(Moved::Missing);
            }
            let Some(expects) = self.target(to, now_ms, transfer)? else { return Ok(Moved::Taken) };
            let Some((entry, value)) = self.value(from, now_ms)? else { continue };
            let item = Item { key: to, value: &value, ends_ms: entry.head.ends_ms, expects };
            if self.set_all(&[item], Some((from, &entry, transfer.is_move)))? {
                return Ok(Moved::Done);
            }
        }
        Err(KeyError::Contended)
    }

    /// What a key must have to get a value of another one; `None` if it has one that stays.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn target(&self, key: &[u8], now_ms: u64, transfer: Transfer) -> Result<Option<Expects>, KeyError> {
        // One that is replaced is known, too: the parts of another that comes in its place meanwhile would be nobody's.
        Ok(match self.state(key, now_ms)? {
            State::There(_) if !transfer.replaces => None,
            state => Some(state.expected()),
        })
    }

    /// Sets values of different keys, if all of these are as expected, and another one still has the value that was read, which is
    /// removed then if it is to be; whether it was so.
    fn set_all(&mut self, items: &[Item<'_>], read: Option<(&[u8], &Entry, bool)>) -> Result<bool, KeyError> {
        let place = read.map(|(key, ..)| Place::of(key)).transpose()?;
        let found: Vec<_> =
            place.iter().zip(read).map(|(place, (_, entry, _))| (place.block_key(), entry.found)).collect();
        let removed = read.filter(|(.., is_removed)| *is_removed).map(|(_, entry, _)| entry);
        let outcomes = self.write(items, |values, blocks| {
            let outcome = values.replace_all(blocks, &found, removed.is_some())?;
            Ok(vec![outcome; blocks.len()])
        })?;
        match outcomes.first() {
            Some(Replaced::Done) => {
                self.remove_parts(removed.map(|entry| &entry.head))?;
                Ok(true)
            }
            Some(Replaced::Changed) => Ok(false),
            Some(Replaced::NoRoom) | None => Err(KeyError::NoRoom),
        }
    }
}

/// Bytes of the block that a value gets, which has only its head if it lies in parts.
fn block_bytes(place: Place<'_>, value: &[u8]) -> u64 {
    let head = HEAD_BYTES + place.kept();
    // At most 512 MiB: the cast loses nothing.
    (if head + value.len() > BLOCK_BYTES_MAX { head } else { head + value.len() }) as u64
}
