//! Commands on bits of values, and on what two values have in common.

use super::{Call, Outcome, Refusal};
use crate::head::VALUE_BYTES_MAX;
use crate::keyspace::{Change, KeyError};
use hinterland_pool::Expects;
use hinterland_resp::bits::{self, Measure, Operation};
use hinterland_resp::lcs::{self, LcsOptions};
use hinterland_resp::number;
use std::ops::RangeInclusive;

impl Call<'_> {
    pub(super) fn get_bit(&mut self) -> Outcome {
        let (bit, value) = (self.bit_at(2)?, self.value_of(1)?.unwrap_or_default());
        self.replies.integer(i64::from(bits::is_set(&value, bit)));
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
        // As Redis 7.0 does, which looks at the range only if there is a value.
        let Some(value) = self.value_of(1)? else {
            self.replies.integer(0);
            return Ok(());
        };
        let range = match self.words.len() {
            2 => Measure::Bytes.range(0, -1, value.len()),
            4 | 5 => {
                let (start, end) = (self.integer_at(2)?, self.integer_at(3)?);
                if start < 0 && end < 0 && start > end {
                    self.replies.integer(0);
                    return Ok(());
                }
                self.measure_at(4)?.range(start, end, value.len())
            }
            _ => return Err(Refusal::syntax()),
        };
        let count = range.map_or(0, |range| bits::count(&value, range));
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
        let Some(value) = self.value_of(1)? else {
            self.replies.integer(if on { -1 } else { 0 });
            return Ok(());
        };
        let words = self.words.len();
        if words > 6 {
            return Err(Refusal::syntax());
        }
        let start = if words > 3 { self.integer_at(3)? } else { 0 };
        let measure = self.measure_at(5)?;
        let end = if words > 4 { self.integer_at(4)? } else { -1 };
        let found = measure.range(start, end, value.len()).and_then(|range| {
            // Behind a value that has no other end than its own, zeros go on.
            let behind = (!on && words < 5).then_some(value.len() * 8);
            bits::first(&value, range, on).or(behind)
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

    /// What a range counts, if a word says so.
    fn measure_at(&self, index: usize) -> Result<Measure, Refusal> {
        if self.words.len() <= index {
            return Ok(Measure::default());
        }
        Measure::parse(self.words.get(index)).ok_or_else(Refusal::syntax)
    }
}
