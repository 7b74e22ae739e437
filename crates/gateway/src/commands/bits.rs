//! Commands on single bits of a value.

use super::{Call, Outcome, Refusal};
use crate::head::VALUE_BYTES_MAX;
use crate::keyspace::{Change, KeyError};
use hinterland_resp::bits::{self, Measure};
use hinterland_resp::number;

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
