//! Commands that read and write values.

use super::{Call, LARGE_BYTES, Outcome, Refusal, Room};
use crate::head::VALUE_BYTES_MAX;
use crate::keyspace::{Change, Item, KeyError, State};
use crate::shared::Counters;
use hinterland_pool::{Expects, Replaced};
use hinterland_resp::command::{Command, Spec};
use hinterland_resp::float::Float;
use hinterland_resp::number;
use hinterland_resp::options::{Condition, Ends, OptionError, SetOptions, Unit, getex};
use std::collections::BTreeMap;

/// How often a conditional write is tried again that another client came before.
const TRIES_MAX: usize = 1000;

impl Call<'_> {
    pub(super) fn get(&mut self) -> Outcome {
        if !self.reply_value(1)? {
            self.replies.nil();
        }
        Ok(())
    }

    pub(super) fn mget(&mut self) -> Outcome {
        self.replies.array(self.words.len() - 1);
        for index in 1..self.words.len() {
            if !self.reply_value(index)? {
                self.replies.nil();
            }
        }
        Ok(())
    }

    /// Appends the value of the key at a word, if there is one; whether there is.
    #[inline]
    fn reply_value(&mut self, index: usize) -> Result<bool, Refusal> {
        let room = self.context.room(self.replies);
        let is_there = match self.append_value(index, room.min(LARGE_BYTES)) {
            Err(KeyError::Buffers(bytes)) if bytes <= room => {
                self.take_room(bytes)?;
                self.append_value(index, bytes)
            }
            other => other,
        }?;
        let counters = &self.context.shared.counters;
        Counters::add(if is_there { &counters.hits } else { &counters.misses }, 1);
        Ok(is_there)
    }

    #[inline]
    fn append_value(&mut self, index: usize, room: usize) -> Result<bool, KeyError> {
        let now_ms = self.context.now_ms;
        let keyspace = self.context.keyspace(self.caller.database)?;
        keyspace.reply(self.words.get(index), now_ms, room, self.replies)
    }

    /// Room for the reply of a command, or for memory that it works in.
    pub(super) fn room(&self) -> Room {
        self.context.room_of(self.replies)
    }

    /// Takes room for so many bytes that are appended to the replies next.
    ///
    /// # Errors
    /// [`KeyError::Buffers`].
    pub(super) fn take_room(&mut self, bytes: usize) -> Result<(), KeyError> {
        let mut room = self.room();
        room.take(bytes)?;
        self.context.is_appended(room);
        Ok(())
    }

    pub(super) fn set(&mut self) -> Outcome {
        let options = SetOptions::parse(self.words.from(3), self.now_ms())?;
        if options.get || options.ends == Ends::Kept {
            return self.set_knowing(options);
        }
        let ends_ms = end(options.ends, None);
        if self.set_when(options.condition, ends_ms)? {
            return self.ok();
        }
        self.replies.nil();
        Ok(())
    }

    /// Sets the second word to the third, if the condition holds; whether it does.
    fn set_when(&mut self, condition: Condition, ends_ms: Option<u64>) -> Result<bool, Refusal> {
        let (key, value, now_ms) = (self.words.get(1), self.words.get(2), self.now_ms());
        let keyspace = self.keyspace()?;
        for _ in 0..TRIES_MAX {
            let expects = match condition {
                Condition::Always => Expects::Anything,
                Condition::Absent | Condition::Present => {
                    let state = keyspace.state(key, now_ms)?;
                    if matches!(state, State::There(_)) != (condition == Condition::Present) {
                        return Ok(false);
                    }
                    state.expected()
                }
            };
            if ends_ms.is_some_and(|end| end <= now_ms) {
                // It is set and has ended at once.
                keyspace.remove(&[key], now_ms)?;
                return Ok(true);
            }
            if keyspace.set_if(key, value, ends_ms, expects)? {
                return Ok(true);
            }
        }
        Err(KeyError::Contended.into())
    }

    /// `SET` that needs the old value or its end.
    fn set_knowing(&mut self, options: SetOptions) -> Outcome {
        let (key, value, now_ms) = (self.words.get(1), self.words.get(2), self.now_ms());
        let mut room = self.room();
        let (old, is_set) = self.keyspace()?.change::<_, Refusal>(key, now_ms, |old| {
            if options.get {
                room.take_for(old.as_ref())?;
            }
            let holds = match options.condition {
                Condition::Always => true,
                Condition::Absent => old.is_none(),
                Condition::Present => old.is_some(),
            };
            let ends_ms = end(options.ends, old.as_ref().and_then(|(head, _)| head.ends_ms));
            let old = old.map(|(_, value)| value);
            if !holds {
                return Ok(Change::Leave((old, false)));
            }
            if ends_ms.is_some_and(|end| end <= now_ms) {
                return Ok(Change::Remove((old, true)));
            }
            Ok(Change::Set(value.to_vec(), ends_ms, (old, true)))
        })?;
        self.context.is_appended(room);
        match old {
            Some(old) if options.get => self.replies.bulk(&old),
            None if is_set && !options.get => self.replies.simple("OK"),
            Some(_) if is_set => self.replies.simple("OK"),
            _ => self.replies.nil(),
        }
        Ok(())
    }

    pub(super) fn set_nx(&mut self) -> Outcome {
        let is_set = self.set_when(Condition::Absent, None)?;
        self.replies.integer(i64::from(is_set));
        Ok(())
    }

    pub(super) fn set_ex(&mut self, spec: &Spec) -> Outcome {
        let unit = if spec.command == Command::SetEx { Unit::Seconds } else { Unit::Milliseconds };
        let ends_ms = unit.end(spec.name, self.words.get(2), self.now_ms())?;
        let (key, value) = (self.words.get(1), self.words.get(3));
        if !self.keyspace()?.set_if(key, value, Some(ends_ms), Expects::Anything)? {
            return Err(KeyError::Contended.into());
        }
        self.ok()
    }

    pub(super) fn mset(&mut self) -> Outcome {
        if self.words.len().is_multiple_of(2) {
            return Err(Refusal::arity("mset"));
        }
        // Of a key that is given twice the last value counts; parts of the first would stay.
        let pairs: BTreeMap<&[u8], &[u8]> = (1..self.words.len())
            .step_by(2)
            .map(|index| (self.words.get(index), self.words.get(index + 1)))
            .collect();
        let items: Vec<Item<'_>> = pairs
            .into_iter()
            .map(|(key, value)| Item { key, value, ends_ms: None, expects: Expects::Anything })
            .collect();
        let outcomes = self.keyspace()?.set(&items)?;
        if outcomes.iter().any(|outcome| *outcome != Replaced::Done) {
            return Err(KeyError::NoRoom.into());
        }
        self.ok()
    }

    pub(super) fn get_set(&mut self) -> Outcome {
        self.set_knowing(SetOptions { get: true, ..SetOptions::default() })
    }

    pub(super) fn get_del(&mut self) -> Outcome {
        let (key, now_ms, mut room) = (self.words.get(1), self.now_ms(), self.room());
        let old = self.keyspace()?.change::<_, Refusal>(key, now_ms, |old| {
            room.take_for(old.as_ref())?;
            Ok(old.map_or(Change::Leave(None), |(_, value)| Change::Remove(Some(value))))
        })?;
        self.context.is_appended(room);
        self.bulk_or_nil(old);
        Ok(())
    }

    pub(super) fn get_ex(&mut self) -> Outcome {
        let now_ms = self.now_ms();
        let key = self.words.get(1);
        let ends = match getex(self.words.from(2), now_ms) {
            // A time is looked at for a key that is there.
            Err(error)
                if error != OptionError::Syntax && self.keyspace()?.entry_of(key, now_ms)?.is_none() =>
            {
                self.bulk_or_nil(None);
                return Ok(());
            }
            ends => ends?,
        };
        if ends == Ends::Kept {
            return self.get();
        }
        let (ends_ms, mut room) = (end(ends, None), self.room());
        let old = self.keyspace()?.change::<_, Refusal>(key, now_ms, |old| {
            room.take_for(old.as_ref())?;
            Ok(match old {
                None => Change::Leave(None),
                Some((_, value)) if ends_ms.is_some_and(|end| end <= now_ms) => Change::Remove(Some(value)),
                Some((head, value)) if head.ends_ms == ends_ms => Change::Leave(Some(value)),
                Some((_, value)) => Change::Set(value.clone(), ends_ms, Some(value)),
            })
        })?;
        self.context.is_appended(room);
        self.bulk_or_nil(old);
        Ok(())
    }

    pub(super) fn get_range(&mut self) -> Outcome {
        let (start, end) = (self.integer_at(2)?, self.integer_at(3)?);
        let (key, now_ms, mut room) = (self.words.get(1), self.now_ms(), self.room());
        let piece = self.keyspace()?.part::<Refusal>(key, now_ms, |length| {
            // At most 512 MiB: the cast loses nothing.
            let length = length as i64;
            let from_end = |place: i64| if place < 0 { place.saturating_add(length).max(0) } else { place };
            let is_none = start < 0 && end < 0 && start > end;
            let (start, end) = (from_end(start), from_end(end).min(length - 1));
            let range = if is_none || start > end { 0..0 } else { start as usize..end as usize + 1 };
            room.take(range.len())?;
            Ok(range)
        })?;
        self.context.is_appended(room);
        self.replies.bulk(&piece.map(|(_, piece)| piece).unwrap_or_default());
        Ok(())
    }

    pub(super) fn str_len(&mut self) -> Outcome {
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let entry = self.keyspace()?.entry_of(key, now_ms)?;
        // At most 512 MiB: the cast loses nothing.
        self.replies.integer(entry.map_or(0, |entry| entry.head.value_bytes as i64));
        Ok(())
    }

    pub(super) fn append(&mut self) -> Outcome {
        let (key, more, now_ms) = (self.words.get(1), self.words.get(2), self.now_ms());
        let length = self.keyspace()?.change(key, now_ms, |old| {
            let (ends_ms, mut value) = old.map_or((None, Vec::new()), |(head, value)| (head.ends_ms, value));
            if value.len() + more.len() > VALUE_BYTES_MAX {
                return Err(Refusal::from(KeyError::Value));
            }
            value.extend_from_slice(more);
            let length = value.len() as i64;
            Ok(Change::Set(value, ends_ms, length))
        })?;
        self.replies.integer(length);
        Ok(())
    }

    pub(super) fn set_range(&mut self) -> Outcome {
        let offset = self.integer_at(2)?;
        let offset = usize::try_from(offset).map_err(|_| Refusal::text("ERR offset is out of range"))?;
        let (key, piece, now_ms) = (self.words.get(1), self.words.get(3), self.now_ms());
        if piece.is_empty() {
            return self.str_len();
        }
        let end = offset.checked_add(piece.len()).filter(|end| *end <= VALUE_BYTES_MAX);
        let end = end.ok_or(KeyError::Value)?;
        let keyspace = self.keyspace()?;
        if end as u64 > keyspace.store().capacity_bytes() {
            return Err(KeyError::NoRoom.into());
        }
        let length = keyspace.change::<_, Refusal>(key, now_ms, |old| {
            let (ends_ms, mut value) = old.map_or((None, Vec::new()), |(head, value)| (head.ends_ms, value));
            value.resize(value.len().max(end), 0);
            value[offset..end].copy_from_slice(piece);
            // At most 512 MiB: the cast loses nothing.
            let length = value.len() as i64;
            Ok(Change::Set(value, ends_ms, length))
        })?;
        self.replies.integer(length);
        Ok(())
    }

    pub(super) fn decrement(&mut self) -> Outcome {
        match self.integer_at(2)?.checked_neg() {
            Some(by) => self.add(Some(by)),
            None => Err(Refusal::text("ERR decrement would overflow")),
        }
    }

    pub(super) fn add(&mut self, by: Option<i64>) -> Outcome {
        let by = by.ok_or_else(Refusal::integer)?;
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let sum = self.keyspace()?.change(key, now_ms, |old| {
            let (ends_ms, value) = match old {
                None => (None, 0),
                Some((head, value)) => (head.ends_ms, number::parse(&value).ok_or_else(Refusal::integer)?),
            };
            let overflow = || Refusal::text("ERR increment or decrement would overflow");
            let sum = value.checked_add(by).ok_or_else(overflow)?;
            Ok::<_, Refusal>(Change::Set(sum.to_string().into_bytes(), ends_ms, sum))
        })?;
        self.replies.integer(sum);
        Ok(())
    }

    pub(super) fn add_float(&mut self) -> Outcome {
        let parsed =
            |text: &[u8]| Float::parse(text).ok_or_else(|| Refusal::text("ERR value is not a valid float"));
        let (key, by, now_ms) = (self.words.get(1), parsed(self.words.get(2))?, self.now_ms());
        let sum = self.keyspace()?.change(key, now_ms, |old| {
            let (ends_ms, value) = match old {
                None => (None, Float::ZERO),
                Some((head, value)) => (head.ends_ms, parsed(&value)?),
            };
            let sum = value.plus(by);
            let sum = sum.ok_or_else(|| Refusal::text("ERR increment would produce NaN or Infinity"))?;
            let mut text = Vec::new();
            sum.push(&mut text);
            Ok::<_, Refusal>(Change::Set(text.clone(), ends_ms, text))
        })?;
        self.replies.bulk(&sum);
        Ok(())
    }

    fn bulk_or_nil(&mut self, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.replies.bulk(&value),
            None => self.replies.nil(),
        }
    }
}

const fn end(ends: Ends, old: Option<u64>) -> Option<u64> {
    match ends {
        Ends::Never => None,
        Ends::Kept => old,
        Ends::At(end) => Some(end),
    }
}
