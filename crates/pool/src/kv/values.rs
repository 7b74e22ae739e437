//! Values: KV blocks that are replaced, removed if they are still those that were read, and listed.

use super::replace::{Outcomes, TOGETHER_BYTES_MAX, TOGETHER_MAX, batches, check};
use super::{EINVAL, KvCache, block_key, broken, opening};
use crate::session::unexpected;
use crate::{Pool, PoolError, Session};
use hinterland_kv::{Found, class_bytes};
use hinterland_os::socket::UnixStream;
use hinterland_proto::control::{
    KvExpects, KvKey, KvReply, KvRequest, KvSeen, KvSlot, KvStatus, KvSwap, KvSwapped,
};
use std::time::Duration;

/// Slots that are kept for the next blocks, so that a write costs one message and not two.
const STOCK_MAX: usize = TOGETHER_MAX;
/// Bytes of slots that are kept: what is kept serves nobody else.
const STOCK_BYTES_MAX: u64 = 4 << 20;
/// Sizes of slots that are kept: each may hold a chunk that blocks of other sizes would need.
const STOCK_SIZES_MAX: usize = 4;

/// A namespace of blocks that may be replaced. A reader finds the old or the new one at any moment, whole.
pub struct KvValues {
    cache: KvCache,
    stock: Vec<Slot>,
    /// Sizes of slots that were written last, the latest first.
    recent: Vec<u64>,
}

/// A block to write.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'bytes> {
    /// Its key, 1 to 64 bytes.
    pub key: &'bytes [u8],
    /// The pieces of which it is gathered, 1 byte to 4 MiB together.
    pub pieces: &'bytes [&'bytes [u8]],
    /// When it is to be written.
    pub expects: Expects,
}

/// What must be true of a key for its block to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expects {
    /// Nothing in particular.
    Anything,
    /// It has no block.
    Nothing,
    /// It still has this block.
    Block(Found),
    /// It has no block of so many bytes: one that must be looked into before it is replaced.
    NoneOf(u32),
}

/// What became of a block to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replaced {
    /// It is there.
    Done,
    /// The key was not as expected.
    Changed,
    /// There is no room: everything else is being written.
    NoRoom,
}

/// Keys of a listing, and where to go on; `None` at the end.
pub type Listed = (Vec<KvKey>, Option<u64>);

#[derive(Clone, Copy)]
struct Slot {
    class: u64,
    slot: u32,
    offset: u64,
}

impl Pool {
    /// Opens the values of a namespace; `fingerprint` is all that those who share it must agree on.
    ///
    /// # Errors
    /// As [`kv`](Self::kv).
    pub fn kv_values(&self, fingerprint: &str) -> Result<KvValues, PoolError> {
        Ok(KvValues::of(self.kv(fingerprint)?))
    }

    /// The same for those who must not be kept waiting: what the node does not answer within so long, this among it, ends with
    /// [`PoolError::Silent`], and the namespace is to be opened again. What was asked last may still be done then.
    ///
    /// # Errors
    /// As [`kv`](Self::kv).
    pub fn kv_values_within(&self, fingerprint: &str, within: Duration) -> Result<KvValues, PoolError> {
        let session = Session::connect(Some(self.session().socket()))?;
        session.on_silence(within, |_| false)?;
        Ok(KvValues::of(KvCache::over(session, opening(fingerprint))?))
    }
}

impl KvValues {
    const fn of(cache: KvCache) -> Self {
        Self { cache, stock: Vec::new(), recent: Vec::new() }
    }

    /// The block of a key, if there is one now. No message to anybody.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Result<Option<Found>, PoolError> {
        Ok(self.cache.find(&block_key(key)?))
    }

    /// The blocks of many keys, in their order, with less waiting for memory than one by one. No message to anybody.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Found>>, PoolError> {
        let keys = keys.iter().map(|key| block_key(key)).collect::<Result<Vec<_>, _>>()?;
        let mut all = Vec::with_capacity(keys.len());
        self.cache.find_many(&keys, |found| {
            all.push(found);
            true
        });
        Ok(all)
    }

    /// Copies a block that was found into pieces, in their order, as much as they hold; false if it is not there any more:
    /// look for it again, it may have been replaced. No message to anybody.
    #[inline]
    pub fn read(&self, found: &Found, into: &mut [&mut [u8]]) -> bool {
        self.cache.counts(self.cache.view.read(found, into))
    }

    /// Copies a block that was found from its byte `from` on, as much as the memory holds; else as [`read`](Self::read).
    pub fn read_from(&self, found: &Found, from: u32, into: &mut [u8]) -> bool {
        let mut reading = self.cache.view.reading(found, from);
        reading.copy(into);
        self.cache.counts(reading.is_right())
    }

    /// Counts, for the node's status, a value that was to be read, and was if it has a length.
    #[inline]
    pub fn count_get(&self, bytes: Option<usize>) {
        // What is longer than 4 GiB is no value.
        self.cache.count_get(bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Writes blocks, in place of those that their keys have; one answer each, in order. Up to 512 blocks of up to 32 MiB
    /// together appear with no other write in between.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes, or a block of none or more than 4 MiB; nothing is written
    /// then. What else a node that fails can say; some may be written then.
    pub fn replace(&mut self, blocks: &[Replacement<'_>]) -> Result<Vec<Replaced>, PoolError> {
        for block in blocks {
            check(block.key, length(block.pieces))?;
        }
        let mut all = Vec::with_capacity(blocks.len());
        for some in batches(blocks, |block| length(block.pieces)) {
            all.extend(self.replace_some(some)?);
        }
        Ok(all)
    }

    /// Writes blocks of different keys, if they and the blocks of `found`, of other keys, are all as expected; then those of `found`
    /// are removed, if they are to be. All of it or nothing, with no other write in between: the answer is for all. A
    /// reader may see one of the blocks before another.
    ///
    /// # Errors
    /// As [`replace`](Self::replace), and [`PoolError::Refused`] for more than [`TOGETHER_MAX`] blocks, or [`TOGETHER_BYTES_MAX`] bytes.
    pub fn replace_all(
        &mut self,
        blocks: &[Replacement<'_>],
        found: &[(&[u8], Found)],
        removes: bool,
    ) -> Result<Replaced, PoolError> {
        for block in blocks {
            check(block.key, length(block.pieces))?;
        }
        let bytes: u64 = blocks.iter().map(|block| length(block.pieces)).sum();
        if blocks.len() > TOGETHER_MAX || bytes > TOGETHER_BYTES_MAX {
            let text =
                format!("{} blocks of {bytes} bytes are too many to write all or none of them", blocks.len());
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        let classes: Vec<u64> = blocks.iter().map(|block| class_bytes(length(block.pieces))).collect();
        let slots = self.slots_for(&classes)?;
        if slots.iter().any(Option::is_none) {
            self.stock.extend(slots.into_iter().flatten());
            return Ok(Replaced::NoRoom);
        }
        let swaps = self.written(blocks, &slots)?;
        let seen = found.iter().map(|(key, found)| (key.to_vec(), seen(found))).collect();
        let handle = self.cache.handle;
        match self.cache.ask(KvRequest::SwapAll { handle, blocks: swaps, seen, removes })? {
            KvReply::Swapped { outcomes, .. } if outcomes.len() == blocks.len() => {
                Ok(outcomes.first().map_or(Replaced::Done, |outcome| replaced(*outcome)))
            }
            other => Err(unexpected("Swapped", &other)),
        }
    }

    /// Removes blocks that are still those that were found; returns how many were.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn remove_found(&self, blocks: &[(&[u8], Found)]) -> Result<u64, PoolError> {
        let blocks = blocks.iter().map(|(key, found)| (key.to_vec(), seen(found))).collect();
        self.cache.count(KvRequest::RemoveSeen { handle: self.cache.handle, blocks })
    }

    /// Removes blocks; returns how many were there.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn remove(&self, keys: &[&[u8]]) -> Result<u64, PoolError> {
        self.cache.remove(keys)
    }

    /// Removes all; returns how many there were.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn clear(&self) -> Result<u64, PoolError> {
        self.cache.clear()
    }

    /// About `limit` keys (4096 at most), and where to go on. Who goes on to the end, from 0 at first, has been given every
    /// key that was there all the time; one that came or went meanwhile may be among them or not.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn list(&self, cursor: u64, limit: u32) -> Result<Listed, PoolError> {
        match self.cache.ask(KvRequest::List { handle: self.cache.handle, cursor, limit })? {
            KvReply::Listed { keys, next } => Ok((keys, next)),
            other => Err(unexpected("Listed", &other)),
        }
    }

    /// What cursors of [`list`](Self::list) are below: who begins at any of them and goes on to here is given the keys behind it.
    pub const fn list_end(&self) -> u64 {
        self.cache.view.geometry().buckets()
    }

    /// How many blocks there are.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn count(&self) -> Result<u64, PoolError> {
        self.cache.count(KvRequest::Blocks { handle: self.cache.handle })
    }

    /// What the stores of the node hold.
    ///
    /// # Errors
    /// [`PoolError`] if it does not answer.
    pub fn status(&self) -> Result<Vec<KvStatus>, PoolError> {
        super::status(|request| self.cache.ask(request))
    }

    /// Bytes that all blocks of the store have together, those of other namespaces among them.
    pub const fn capacity_bytes(&self) -> u64 {
        self.cache.view.geometry().blocks_bytes()
    }

    /// Gives back the slots that are kept for the next writes. To be called by who writes nothing for a while.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn rest(&mut self) -> Result<(), PoolError> {
        if self.stock.is_empty() {
            return Ok(());
        }
        let give = std::mem::take(&mut self.stock).iter().map(|slot| slot.slot).collect();
        self.swap(Vec::new(), give, Vec::new()).map(drop)
    }

    /// Becomes readable when the node ends, and only then as long as no call is going on.
    ///
    /// # Errors
    /// [`PoolError::Os`] without descriptors left.
    pub fn watch(&self) -> Result<UnixStream, PoolError> {
        self.cache.session.watch()
    }

    fn replace_some(&mut self, blocks: &[Replacement<'_>]) -> Result<Vec<Replaced>, PoolError> {
        let classes: Vec<u64> = blocks.iter().map(|block| class_bytes(length(block.pieces))).collect();
        let slots = self.slots_for(&classes)?;
        let swaps = self.written(blocks, &slots)?;
        let (give, take) = self.restock(&classes);
        let (outcomes, taken) = self.swap(swaps, give, take.clone())?;
        self.store(&take, &taken);
        let mut outcomes = outcomes.into_iter();
        let outcome = |slot: &Option<Slot>| match slot.and_then(|_| outcomes.next()) {
            Some(outcome) => replaced(outcome),
            None => Replaced::NoRoom,
        };
        Ok(slots.iter().map(outcome).collect())
    }

    /// Writes blocks into those of their slots that there are; a failure puts these into the stock.
    fn written(
        &mut self,
        blocks: &[Replacement<'_>],
        slots: &[Option<Slot>],
    ) -> Result<Vec<KvSwap>, PoolError> {
        let mut swaps = Vec::with_capacity(blocks.len());
        for (block, slot) in blocks.iter().zip(slots) {
            let Some(slot) = slot else { continue };
            let bytes = length(block.pieces);
            let sum = match self.cache.view.write(slot.offset, bytes, block.pieces) {
                Ok(sum) => sum,
                Err(error) => {
                    self.stock.extend(slots.iter().flatten());
                    return Err(broken(error));
                }
            };
            let expects = match block.expects {
                Expects::Anything => KvExpects::Anything,
                Expects::Nothing => KvExpects::Nothing,
                Expects::Block(found) => KvExpects::Block(seen(&found)),
                Expects::NoneOf(bytes) => KvExpects::NoneOf(bytes),
            };
            swaps.push(KvSwap {
                slot: slot.slot,
                key: block.key.to_vec(),
                bytes,
                parent: None,
                expects,
                sum,
            });
        }
        Ok(swaps)
    }

    /// What was replaced must never come back, so nothing goes to a disk.
    fn swap(&self, blocks: Vec<KvSwap>, give: Vec<u32>, take: Vec<u64>) -> Result<Outcomes, PoolError> {
        self.cache.swap(blocks, give, take, false)
    }

    /// A slot of each class, out of the stock or of the node; `None` where there is no room.
    fn slots_for(&mut self, classes: &[u64]) -> Result<Vec<Option<Slot>>, PoolError> {
        self.cache.check_own()?;
        if !self.stock.is_empty() && self.cache.is_lost() {
            // They went back to the node with the session, and others write there by now.
            self.stock.clear();
        }
        let mut slots: Vec<Option<Slot>> = Vec::with_capacity(classes.len());
        for &class in classes {
            let at = self.stock.iter().rposition(|slot| slot.class == class);
            slots.push(at.map(|at| self.stock.swap_remove(at)));
        }
        let missing: Vec<u64> =
            classes.iter().zip(&slots).filter(|(_, slot)| slot.is_none()).map(|(class, _)| *class).collect();
        if missing.is_empty() {
            return Ok(slots);
        }
        let taken = match self.swap(Vec::new(), Vec::new(), missing.clone()) {
            Ok((_, taken)) => taken,
            Err(error) => {
                self.stock.extend(slots.into_iter().flatten());
                return Err(error);
            }
        };
        let mut taken = missing.iter().zip(&taken).map(|(&class, taken)| slot_of(class, taken));
        for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
            *slot = taken.next().flatten();
        }
        Ok(slots)
    }

    /// What to give back and what to take, so that as many blocks of these classes find a slot the next time, and one of each size
    /// that was written before.
    fn restock(&mut self, classes: &[u64]) -> (Vec<u32>, Vec<u64>) {
        let most = STOCK_BYTES_MAX.min(self.capacity_bytes() / 64);
        let mut wanted = wanted(classes, &mut self.recent, most);
        let mut give = Vec::new();
        self.stock.retain(|slot| {
            let at = wanted.iter().position(|class| *class == slot.class);
            match at {
                Some(at) => drop(wanted.swap_remove(at)),
                None => give.push(slot.slot),
            }
            at.is_some()
        });
        (give, wanted)
    }

    fn store(&mut self, classes: &[u64], taken: &[KvSlot]) {
        let kept = classes.iter().zip(taken).filter_map(|(&class, taken)| slot_of(class, taken));
        self.stock.extend(kept);
    }
}

/// The slots to keep after blocks of these classes were written, of `most` bytes together; `recent` are the classes before them.
fn wanted(classes: &[u64], recent: &mut Vec<u64>, most: u64) -> Vec<u64> {
    let before = std::mem::take(recent);
    let (mut wanted, mut bytes) = (Vec::new(), 0);
    let mut want = |class: u64| {
        if wanted.len() < STOCK_MAX && bytes + class <= most {
            bytes += class;
            wanted.push(class);
        }
    };
    for &class in classes {
        if !recent.contains(&class) && recent.len() < STOCK_SIZES_MAX {
            recent.push(class);
        }
        if recent.contains(&class) {
            want(class);
        }
    }
    for class in before {
        if !recent.contains(&class) && recent.len() < STOCK_SIZES_MAX {
            recent.push(class);
            want(class);
        }
    }
    wanted
}

const fn replaced(swapped: KvSwapped) -> Replaced {
    match swapped {
        KvSwapped::Done => Replaced::Done,
        KvSwapped::Changed => Replaced::Changed,
        KvSwapped::NoRoom => Replaced::NoRoom,
    }
}

fn length(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

fn seen(found: &Found) -> KvSeen {
    KvSeen { slot: found.block().slot, generation: found.block().generation }
}

const fn slot_of(class: u64, taken: &KvSlot) -> Option<Slot> {
    match *taken {
        KvSlot::Reserved { slot, offset } => Some(Slot { class, slot, offset }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_few_sizes_in_turn_find_a_slot_each() {
        let (mut recent, mut stock) = (Vec::new(), Vec::new());
        for round in 0..20 {
            for class in [64, 4096, 65_536] {
                assert!(round == 0 || stock.contains(&class), "{class} would cost a message more: {stock:?}");
                stock = wanted(&[class], &mut recent, 1 << 20);
                assert_eq!(stock[0], class);
            }
        }
        assert_eq!(wanted(&[1; STOCK_MAX + 1], &mut recent, 1 << 20), [1; STOCK_MAX]);
        assert_eq!(wanted(&[2, 2, 3, 4, 5, 6], &mut recent, 1 << 20), [2, 2, 3, 4, 5], "of so many sizes");
        assert_eq!(wanted(&[7], &mut recent, 1 << 20), [7, 2, 3, 4]);
        assert_eq!(wanted(&[900, 900], &mut recent, 1000), [900, 7, 2, 3], "of so many bytes");
    }
}
