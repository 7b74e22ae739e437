//! The copies that a node holds for others, and what it answers about them.

use super::Node;
use crate::Outbox;
use crate::message::{Address, HomeAnswer, HomeRequest, Message, Ticket};
use hinterland_directory::{ContentDigest, Held};
use hinterland_proto::checksum::{block_count, digest};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, Epoch, ObjectId};
use std::collections::BTreeMap;

/// Stands where nothing was written.
const HOLE: u32 = 0;

/// A copy of an object, or what has been written of it.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) epoch: Epoch,
    blocks: BTreeMap<u64, u32>,
    sealed: Option<Seal>,
}

/// What a home keeps in the header when it seals.
#[derive(Clone, Debug)]
struct Seal {
    bytes: u64,
    sums: Vec<u32>,
    digest: [u8; 32],
}

impl Copy {
    /// A whole copy that was fetched and checked.
    pub(crate) fn fetched(epoch: Epoch, bytes: u64, blocks: Vec<u32>) -> Self {
        let mut copy = Self { epoch, blocks: (0..).zip(blocks).collect(), sealed: None };
        copy.seal(bytes);
        copy
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    pub(crate) fn is_good(&self, blocks: &[u32]) -> bool {
        self.is_sealed() && self.blocks.values().eq(blocks)
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn rot(&mut self, choice: u64) {
        let place = (choice >> 32) as usize % self.blocks.len().max(1);
        if let Some(block) = self.blocks.values_mut().nth(place) {
            *block ^= 2;
        }
    }

    fn seal(&mut self, bytes: u64) -> [u8; 32] {
        let block = |number| self.blocks.get(&number).copied().unwrap_or(HOLE);
        let sums: Vec<u32> = (0..block_count(bytes)).map(block).collect();
        let digest = digest(bytes, &sums);
        self.sealed = Some(Seal { bytes, sums, digest });
        digest
    }

    fn range(&self, range: ByteRange) -> Vec<u32> {
        let numbers = range.offset() / CHECKSUM_BLOCK_BYTES..range.end().div_ceil(CHECKSUM_BLOCK_BYTES);
        numbers.map(|number| self.blocks.get(&number).copied().unwrap_or(HOLE)).collect()
    }
}

impl Node {
    pub(super) fn serve(&mut self, from: Address, ticket: Ticket, request: HomeRequest, outbox: &mut Outbox) {
        let answer = match request {
            HomeRequest::Open(object, epoch) => self.open(object, epoch),
            HomeRequest::Write(object, epoch, chunk, blocks) => self.write(object, epoch, chunk, &blocks),
            HomeRequest::Seal(object, epoch, bytes) => match self.placed(object, epoch) {
                Ok(copy) => HomeAnswer::Sealed(match &copy.sealed {
                    Some(seal) => seal.digest,
                    None => copy.seal(bytes),
                }),
                Err(refused) => refused,
            },
            HomeRequest::Abort(object, epoch) => {
                self.delete(object, epoch, outbox);
                self.owe(object, epoch, outbox);
                HomeAnswer::Aborted
            }
            HomeRequest::Sums(object) => match self.copies.get(&object).and_then(|copy| copy.sealed.as_ref())
            {
                Some(seal) => HomeAnswer::Sums(seal.sums.clone()),
                None => HomeAnswer::Refused("no such object here".to_owned()),
            },
            HomeRequest::Read(object, range) => {
                match self.copies.get(&object).filter(|copy| copy.is_sealed()) {
                    Some(copy) => HomeAnswer::Blocks(copy.range(range)),
                    None => HomeAnswer::Refused("no such object here".to_owned()),
                }
            }
            HomeRequest::Verify(object) => {
                self.verify(object, outbox);
                return;
            }
        };
        outbox.send(from, Message::HomeAnswer(ticket, answer));
    }

    fn open(&mut self, object: ObjectId, epoch: Epoch) -> HomeAnswer {
        match self.copies.get(&object) {
            Some(copy) if copy.epoch == epoch => HomeAnswer::Opened,
            Some(copy) if copy.epoch > epoch => HomeAnswer::Refused("a later copy is here".to_owned()),
            Some(_) | None => {
                self.copies.insert(object, Copy { epoch, blocks: BTreeMap::new(), sealed: None });
                HomeAnswer::Opened
            }
        }
    }

    /// The memory, or what is before it, damages the next chunk that is written here.
    pub(crate) fn spoil_next_write(&mut self) {
        self.spoils = true;
    }

    fn write(&mut self, object: ObjectId, epoch: Epoch, chunk: ByteRange, blocks: &[u32]) -> HomeAnswer {
        let damage = if std::mem::take(&mut self.spoils) { 4 } else { 0 };
        match self.placed(object, epoch) {
            Ok(copy) => {
                // A repeated write that comes after the seal changes nothing.
                if copy.sealed.is_none() {
                    let first = chunk.offset() / CHECKSUM_BLOCK_BYTES;
                    copy.blocks.extend((first..).zip(blocks.iter().map(|block| block ^ damage)));
                }
                HomeAnswer::Wrote(chunk.offset())
            }
            Err(refused) => refused,
        }
    }

    fn placed(&mut self, object: ObjectId, epoch: Epoch) -> Result<&mut Copy, HomeAnswer> {
        let copy = self.copies.get_mut(&object).filter(|copy| copy.epoch == epoch);
        copy.ok_or_else(|| HomeAnswer::Refused("that copy is not here".to_owned()))
    }

    /// A copy that differs from its checksums is worse than none.
    fn verify(&mut self, object: ObjectId, outbox: &mut Outbox) {
        let Some(copy) = self.copies.get(&object) else { return };
        let Some(seal) = &copy.sealed else { return };
        if !copy.blocks.values().eq(&seal.sums) {
            let epoch = copy.epoch;
            self.copies.remove(&object);
            self.owe(object, epoch, outbox);
        }
    }

    /// Size and digest of a copy that is sealed and of this epoch.
    pub(super) fn complete_copy(&self, object: ObjectId, epoch: Epoch) -> Option<(u64, ContentDigest)> {
        let copy = self.copies.get(&object).filter(|copy| copy.epoch == epoch)?;
        copy.sealed.as_ref().map(|seal| (seal.bytes, ContentDigest(seal.digest)))
    }

    /// The copies as the node lists them to the directory, behind an object.
    pub(super) fn list(&self, after: ObjectId) -> Vec<Held> {
        let behind = self.copies.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        let held = |(object, copy): (&ObjectId, &Copy)| Held {
            object: *object,
            epoch: copy.epoch,
            digest: copy.sealed.as_ref().map(|seal| ContentDigest(seal.digest)),
        };
        behind.map(held).collect()
    }
}
