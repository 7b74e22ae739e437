//! Commands on bits of values, and on what two values have in common.

use super::{Call, Outcome, Refusal};
use crate::head::VALUE_BYTES_MAX;
use crate::keyspace::{Change, KeyError};
use hinterland_pool::Expects;
use hinterland_resp::bits::{self, Measure, Operation};
use hinterland_resp::lcs::{self, LcsOptions};
use hinterland_resp::{Arguments, number};
use std::ops::{Range, RangeInclusive};

impl Call<'_> {
    pub(super) fn get_bit(&mut self) -> Outcome {
        let bit = self.bit_at(2)?;
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let byte = self.keyspace()?.part::<Refusal>(key, now_ms, |_| Ok(bit / 8..bit / 8 + 1))?;
        let is_set = byte.is_some_and(|(_, byte)| bits::is_set(&byte, bit % 8));
        self.replies.integer(i64::from(is_set));
        Ok(())
    }

    pub(super) fn set_bit(&mut self) -> Outcome {
        let bit = self.bit_at(2)?;
        let on = match number::parse(self.words.get(3)) {
            Some(0) => false,
            Some(1) => true,
            _ => return Err(Refusal::text("ERR bit is not an integer or out of range")),
        };
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let keyspace = self.keyspace()?;
        if bit as u64 / 8 >= keyspace.store().capacity_bytes() {
            return Err(KeyError::NoRoom.into());
        }
        let old = keyspace.change::<_, Refusal>(key, now_ms, |old| {
            let (ends_ms, mut value) = old.map_or((None, Vec::new()), |(head, value)| (head.ends_ms, value));
            let old = bits::is_set(&value, bit);
            if old == on && bit / 8 < value.len() {
                return Ok(Change::Leave(old));
            }
            value.resize(value.len().max(bit / 8 + 1), 0);
            bits::set(&mut value, bit, on);
            Ok(Change::Set(value, ends_ms, old))
        })?;
        self.replies.integer(i64::from(old));
        Ok(())
    }

    pub(super) fn bit_count(&mut self) -> Outcome {
        let (words, now_ms, mut range) = (self.words, self.now_ms(), None);
        // As Redis 7.0 does, which looks at the range only if there is a value.
        let value = self.keyspace()?.part::<Refusal>(words.get(1), now_ms, |length| {
            range = count_range(words, length)?;
            Ok(range.as_ref().map_or(0..0, bytes_of))
        })?;
        let count = match (value, range) {
            (Some((_, bytes)), Some(range)) => bits::count(&bytes, within(&range)),
            _ => 0,
        };
        // At most 512 MiB have 2^32 bits: the cast loses nothing.
        self.replies.integer(count as i64);
        Ok(())
    }

    pub(super) fn bit_pos(&mut self) -> Outcome {
        let on = match self.integer_at(2)? {
            0 => false,
            1 => true,
            _ => return Err(Refusal::text("ERR The bit argument must be 1 or 0.")),
        };
        let (words, now_ms, mut range) = (self.words, self.now_ms(), None);
        let value = self.keyspace()?.part::<Refusal>(words.get(1), now_ms, |length| {
            range = search_range(words, length)?;
            Ok(range.as_ref().map_or(0..0, bytes_of))
        })?;
        let Some((length, bytes)) = value else {
            self.replies.integer(if on { -1 } else { 0 });
            return Ok(());
        };
        let found = range.and_then(|range| {
            // Behind a value that has no other end than its own, zeros go on.
            let behind = (!on && words.len() < 5).then_some(length * 8);
            let first = bits::first(&bytes, within(&range), on);
            first.map(|bit| bit + bytes_of(&range).start * 8).or(behind)
        });
        // As above.
        self.replies.integer(found.map_or(-1, |bit| bit as i64));
        Ok(())
    }

    pub(super) fn bit_op(&mut self) -> Outcome {
        let operation = Operation::parse(self.words.get(1)).ok_or_else(Refusal::syntax)?;
        if operation == Operation::Not && self.words.len() != 4 {
            return Err(Refusal::text("ERR BITOP NOT must be called with a single source key."));
        }
        let mut joined = None;
        for index in 3..self.words.len() {
            let value = self.value_of(index)?.unwrap_or_default();
            joined = Some(operation.join(joined, value));
        }
        let (value, target, now_ms) = (joined.unwrap_or_default(), self.words.get(2), self.now_ms());
        let keyspace = self.keyspace()?;
        if value.is_empty() {
            keyspace.remove(&[target], now_ms)?;
        } else if !keyspace.set_if(target, &value, None, Expects::Anything)? {
            return Err(KeyError::Contended.into());
        }
        // At most 512 MiB: the cast loses nothing.
        self.replies.integer(value.len() as i64);
        Ok(())
    }

    pub(super) fn lcs(&mut self) -> Outcome {
        let (one, two) = (self.value_of(1)?.unwrap_or_default(), self.value_of(2)?.unwrap_or_default());
        let options = LcsOptions::parse(self.words.from(3))?;
        let bytes = lcs::table_bytes(&one, &two).filter(|bytes| *bytes <= VALUE_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| {
            Refusal::text("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len")
        })?;
        let mut table = self.room();
        table.take(bytes)?;
        let common = lcs::common(&one, &two);
        drop(table);
        // Less than the table that they were counted in: the casts lose nothing.
        let length = common.text.len() as i64;
        if options.length {
            self.replies.integer(length);
            return Ok(());
        }
        if !options.places {
            self.replies.bulk(&common.text);
            return Ok(());
        }
        let bytes_of = |range: &RangeInclusive<usize>| (range.end() - range.start() + 1) as i64;
        let pieces = common.pieces.iter().filter(|piece| bytes_of(&piece.0) >= options.piece_bytes_min);
        self.replies.map(2);
        self.replies.bulk(b"matches");
        self.replies.array(pieces.clone().count());
        for (first, second) in pieces {
            self.replies.array(2 + usize::from(options.with_lengths));
            for range in [first, second] {
                self.replies.array(2);
                self.replies.integer(*range.start() as i64);
                self.replies.integer(*range.end() as i64);
            }
            if options.with_lengths {
                self.replies.integer(bytes_of(first));
            }
        }
        self.replies.bulk(b"len");
        self.replies.integer(length);
        Ok(())
    }

    /// The value of the key at a word.
    fn value_of(&mut self, index: usize) -> Result<Option<Vec<u8>>, Refusal> {
        let (key, now_ms) = (self.words.get(index), self.now_ms());
        Ok(self.keyspace()?.value(key, now_ms)?.map(|(_, value)| value))
    }

    /// The number of a bit at a word.
    fn bit_at(&self, index: usize) -> Result<usize, Refusal> {
        let bit = number::parse(self.words.get(index)).and_then(|bit| usize::try_from(bit).ok());
        bit.filter(|bit| bit / 8 < VALUE_BYTES_MAX)
            .ok_or_else(|| Refusal::text("ERR bit offset is not an integer or out of range"))
    }
}

/// The bits of a value of so many bytes that `BITCOUNT` is asked for; `None` if there are none.
fn count_range(words: Arguments<'_>, length: usize) -> Result<Option<RangeInclusive<usize>>, Refusal> {
    match words.len() {
        2 => Ok(Measure::Bytes.range(0, -1, length)),
        4 | 5 => {
            let (start, end) = (integer_at(words, 2)?, integer_at(words, 3)?);
            if start < 0 && end < 0 && start > end {
                return Ok(None);
            }
            Ok(measure_at(words, 4)?.range(start, end, length))
        }
        _ => Err(Refusal::syntax()),
    }
}

/// The same of `BITPOS`.
fn search_range(words: Arguments<'_>, length: usize) -> Result<Option<RangeInclusive<usize>>, Refusal> {
    let count = words.len();
    if count > 6 {
        return Err(Refusal::syntax());
    }
    let start = if count > 3 { integer_at(words, 3)? } else { 0 };
    let measure = measure_at(words, 5)?;
    let end = if count > 4 { integer_at(words, 4)? } else { -1 };
    Ok(measure.range(start, end, length))
}

/// The bytes in which bits of a value lie.
const fn bytes_of(bits: &RangeInclusive<usize>) -> Range<usize> {
    *bits.start() / 8..*bits.end() / 8 + 1
}

/// The same bits, counted from the first of these bytes on.
const fn within(bits: &RangeInclusive<usize>) -> RangeInclusive<usize> {
    let before = bytes_of(bits).start * 8;
    *bits.start() - before..=*bits.end() - before
}

/// The word at `index` as an integer.
fn integer_at(words: Arguments<'_>, index: usize) -> Result<i64, Refusal> {
    number::parse(words.get(index)).ok_or_else(Refusal::integer)
}

/// What a range counts, if a word says so.
fn measure_at(words: Arguments<'_>, index: usize) -> Result<Measure, Refusal> {
    if words.len() <= index {
        return Ok(Measure::default());
    }
    Measure::parse(words.get(index)).ok_or_else(Refusal::syntax)
}
