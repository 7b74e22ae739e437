//! Checksums of blocks: taken behind those who publish, compared after a restart, and what is done when one does not fit.

use super::{Seen, Store, StoreError, Used};
use crate::header;
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::words::Words;
use hinterland_os::fault_point::reach;

/// Takes the checksum of bytes of the blocks file: their offset and how many there are.
pub type Summer = Box<dyn FnMut(u64, u32) -> Option<u32> + Send>;

/// A block whose bytes are to be summed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToSum {
    /// Its slot.
    pub slot: u32,
    /// The slot's generation: the block is gone if it has another one by then.
    pub generation: u64,
    /// Where its bytes start in the blocks file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u32,
    /// The checksum that they must have; none if it is not known yet.
    pub expected: Option<u32>,
}

impl<W: Words> Store<W> {
    /// From now on blocks that are published are remembered until they have a checksum: see [`to_sum`](Self::to_sum).
    pub const fn sum_behind(&mut self) {
        self.is_summed = true;
    }

    /// From now on no block is published without a checksum.
    pub fn sum_before(&mut self, summer: Summer) {
        self.summer = Some(summer);
    }

    /// Blocks that have no checksum yet, the oldest first, until they are `bytes` bytes together. None is given twice.
    pub fn to_sum(&mut self, bytes: u64) -> Vec<ToSum> {
        let mut some = Vec::new();
        let mut sum = 0;
        while sum < bytes
            && let Some((slot, generation)) = self.to_sum.pop_front()
        {
            let its = self.of_generation(slot, generation);
            some.extend(its.inspect(|block| sum += u64::from(block.bytes)));
        }
        self.summing += some.len();
        some
    }

    /// How many blocks have no checksum yet; some may be gone.
    pub fn unsummed(&self) -> usize {
        self.to_sum.len() + self.summing
    }

    /// Sets the checksum of a block that was [`to_sum`](Self::to_sum), if it is still there, and there is one.
    pub fn summed(&mut self, block: &ToSum, sum: Option<u32>) {
        self.summing -= 1;
        if let Some(sum) = sum
            && self.of_generation(block.slot, block.generation).is_some()
        {
            header::set_sum(&self.words, &self.geometry, block.slot, sum);
            reach("kv-summed");
        }
    }

    /// Sets the checksum of what `writer` has written, before it is published; `None` if it is not known. What was set before is forgotten: it may be
    /// that of what was refused.
    ///
    /// # Errors
    /// [`StoreError::NotReserved`].
    pub fn sum_of_written(&mut self, writer: u64, slot: u32, sum: Option<u32>) -> Result<(), StoreError> {
        let its = self.chunks.get_mut(slot).filter(|used| used.writer == Some(writer));
        its.ok_or(StoreError::NotReserved(slot))?.sum = sum;
        Ok(())
    }

    /// Where a slot's bytes start that `writer` writes, and how many there are: as many as it says, else as it has said when it reserved the
    /// slot. `None` if it does not write it, or the slot has no room for them.
    pub fn written(&self, writer: u64, slot: u32, bytes: Option<u64>) -> Option<(u64, u32)> {
        let used = self.chunks.get(slot).filter(|used| used.writer == Some(writer))?;
        let bytes = bytes.unwrap_or(u64::from(used.bytes));
        // A slot has at most 4 MiB: the cast loses nothing.
        (bytes <= self.chunks.class(slot)).then_some((self.chunks.offset(slot), bytes as u32))
    }

    /// Blocks of before a restart whose bytes are not checked, the youngest first, until they are `bytes` bytes together. None is
    /// given twice.
    pub fn to_check(&mut self, bytes: u64) -> Vec<ToSum> {
        let mut some = Vec::new();
        let mut sum = 0;
        while sum < bytes
            && let Some((slot, generation)) = self.to_check.pop()
        {
            let its = self.of_generation(slot, generation).filter(|_| self.is_unchecked(slot));
            some.extend(its.inspect(|block| sum += u64::from(block.bytes)));
        }
        some
    }

    /// The block of before that a key has and that is not checked: whether there is one that counts is known when it is
    /// [`checked`](Self::checked).
    pub fn unchecked_block(&self, namespace: Namespace, key: &BlockKey) -> Option<ToSum> {
        let slot = *self.unchecked.get(&(namespace, *key))?;
        self.of_generation(slot, header::generation(&self.words, &self.geometry, slot))
    }

    /// A block of before has these bytes: it can be found from now on, or is dropped.
    pub fn checked(&mut self, block: &ToSum, sum: Option<u32>) {
        let is_there = self.of_generation(block.slot, block.generation).is_some();
        let Some(used) = self.chunks.get(block.slot).copied().filter(|_| is_there) else { return };
        if !self.is_unchecked(block.slot) {
            return;
        }
        let is_right = sum.is_some() && sum == block.expected;
        if !is_right {
            self.status.damaged += 1;
        }
        if is_right && index::insert(&self.words, &self.geometry, used.hash, block.slot) {
            self.is_checked_or_gone(block.slot, &used);
            reach("kv-checked");
        } else {
            self.drop_pins(block.slot);
            self.forget(block.slot);
        }
    }

    /// What is to be summed up of a block that somebody found damaged, if it is still there.
    pub fn doubted(&self, namespace: Namespace, seen: Seen) -> Option<ToSum> {
        let its = self.chunks.get(seen.slot).filter(|used| used.namespace == namespace);
        its.and_then(|_| self.of_generation(seen.slot, seen.generation))
    }

    /// A block has this checksum: it is dropped if that is wrong, also if it is pinned. Whether it was.
    pub fn drop_damaged(&mut self, block: &ToSum, sum: Option<u32>) -> bool {
        let is_there = self.of_generation(block.slot, block.generation).is_some();
        let is_wrong = is_there && block.expected.is_some() && sum != block.expected;
        if is_wrong {
            self.status.damaged += 1;
            self.drop_pins(block.slot);
            self.forget(block.slot);
        }
        is_wrong
    }

    pub(crate) fn is_unchecked(&self, slot: u32) -> bool {
        if self.unchecked.is_empty() {
            return false;
        }
        let used = self.chunks.get(slot);
        used.is_some_and(|used| self.unchecked.get(&(used.namespace, used.key)) == Some(&slot))
    }

    /// The block is checked, or leaves.
    pub(crate) fn is_checked_or_gone(&mut self, slot: u32, used: &Used) {
        if !self.unchecked.is_empty() && self.unchecked.get(&(used.namespace, used.key)) == Some(&slot) {
            self.unchecked.remove(&(used.namespace, used.key));
            self.status.unchecked -= 1;
        }
    }

    /// The block was published: it needs a checksum, if it has none.
    pub(super) fn is_published(&mut self, slot: u32, sum: Option<u32>) {
        if self.is_summed && sum.is_none() {
            let generation = header::generation(&self.words, &self.geometry, slot);
            self.to_sum.push_back((slot, generation));
        }
    }

    /// The block that was published in a slot under a generation.
    fn of_generation(&self, slot: u32, generation: u64) -> Option<ToSum> {
        let used = self.chunks.get(slot).filter(|used| used.writer.is_none())?;
        let is_it = header::generation(&self.words, &self.geometry, slot) == generation;
        let expected = header::sum(&self.words, &self.geometry, slot);
        let offset = self.chunks.offset(slot);
        is_it.then_some(ToSum { slot, generation, offset, bytes: used.bytes, expected })
    }

    /// Nobody has pinned the block any more.
    fn drop_pins(&mut self, slot: u32) {
        let pins = self.chunks.get(slot).map_or(0, |used| used.pins);
        if pins > 0 {
            self.pins.values_mut().for_each(|its| _ = its.remove(&slot));
            self.unpin_slot(slot, pins);
        }
    }
}
