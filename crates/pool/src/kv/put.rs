//! Writing blocks: slots are reserved, filled and published, part by part of a batch.

use super::runs::Gather;
use super::{KvCache, broken};
use crate::session::unexpected;
use crate::{Line, PoolError};
use hinterland_proto::control::{KvBlock, KvParent, KvReply, KvRequest, KvSlot, Reply, Request};

/// Parts of a large put: what the node does for one is hidden by the copies of another.
const PUT_PARTS: usize = 4;
/// Fewest blocks of a part: below that a message costs more than it hides.
const PUT_PART_MIN: usize = 16;
/// Most blocks of a part: what a message of 1 MiB has room for.
const PUT_PART_MAX: usize = 4096;

/// A block to put: its key, and the pieces of which it is gathered.
pub type Gathered<'bytes> = (&'bytes [u8], &'bytes [&'bytes [u8]]);

/// A block to put: its key, and the runs of fragments of which it is gathered.
pub type GatheredRuns<'bytes> = (&'bytes [u8], Gather<'bytes>);

/// What became of one block of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// It is there now.
    Written,
    /// It was there before, or another process is writing it.
    Known,
    /// There is no room: everything else is being written.
    NoRoom,
}

/// Whether blocks follow on each other.
enum Chain<'key> {
    None,
    /// The first one follows on this, if on anything.
    After(Option<&'key [u8]>),
}

impl Chain<'_> {
    /// What the first block of a part follows on; `before` is the last one of the part before.
    fn parent(&self, before: Option<&[u8]>) -> Option<KvParent> {
        let Self::After(after) = self else { return None };
        let key = before.or(*after);
        Some(key.map_or(KvParent::None, |key| KvParent::Key(key.to_vec())))
    }
}

/// A block in whatever form the caller has it.
trait Source {
    fn key(&self) -> &[u8];
    fn bytes(&self) -> u64;
    fn pieces(&self) -> impl Iterator<Item = &[u8]>;
}

impl Source for Gathered<'_> {
    fn key(&self) -> &[u8] {
        self.0
    }

    fn bytes(&self) -> u64 {
        self.1.iter().map(|piece| piece.len() as u64).sum()
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.1.iter().copied()
    }
}

impl Source for GatheredRuns<'_> {
    fn key(&self) -> &[u8] {
        self.0
    }

    fn bytes(&self) -> u64 {
        self.1.bytes()
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.1.pieces()
    }
}

impl KvCache {
    /// Writes blocks, each gathered from pieces; one answer each. A block is visible whole or not at all.
    ///
    /// A large batch goes in parts: the node reserves the next part and publishes the last one while this one is copied.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes, or a block of none or more than 4 MiB: the parts
    /// before it are written then.
    pub fn put(&self, blocks: &[Gathered<'_>]) -> Result<Vec<Stored>, PoolError> {
        self.put_all(blocks, &Chain::None)
    }

    /// Writes blocks each of which is of no use without the one before it: the next blocks of a prefix, whose last block so
    /// far is `after`, if it has one. No block of a prefix is evicted before those that follow on it.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_prefix(
        &self,
        blocks: &[Gathered<'_>],
        after: Option<&[u8]>,
    ) -> Result<Vec<Stored>, PoolError> {
        self.put_all(blocks, &Chain::After(after))
    }

    /// Writes blocks that are gathered from runs of fragments; as [`put`](Self::put), without a list of all fragments.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_runs(&self, blocks: &[GatheredRuns<'_>]) -> Result<Vec<Stored>, PoolError> {
        self.put_all(blocks, &Chain::None)
    }

    /// As [`put_prefix`](Self::put_prefix), gathered from runs of fragments.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_runs_prefix(
        &self,
        blocks: &[GatheredRuns<'_>],
        after: Option<&[u8]>,
    ) -> Result<Vec<Stored>, PoolError> {
        self.put_all(blocks, &Chain::After(after))
    }

    fn put_all<S: Source>(&self, blocks: &[S], chain: &Chain<'_>) -> Result<Vec<Stored>, PoolError> {
        let part = blocks.len().div_ceil(PUT_PARTS).clamp(PUT_PART_MIN, PUT_PART_MAX);
        let parts: Vec<&[S]> = blocks.chunks(part).collect();
        let mut line = self.session.line();
        let mut outcomes = Vec::with_capacity(blocks.len());
        if let Some(first) = parts.first() {
            line.send(&self.reserve(first, chain.parent(None)))?;
        }
        // The slots of the part that is being published.
        let mut publishing: Option<Vec<KvSlot>> = None;
        for (index, part) in parts.iter().enumerate() {
            let slots = match answer(&mut line)? {
                KvReply::Slots(slots) if slots.len() == part.len() => slots,
                other => return Err(unexpected("Slots", &other)),
            };
            if let Some(next) = parts.get(index + 1) {
                line.send(&self.reserve(next, chain.parent(part.last().map(Source::key))))?;
            }
            let reserved = reserved_slots(&slots);
            if let Err(error) = self.write(&slots, part) {
                // The session holds them: they would be free again only when it ends.
                line.send(&Request::Kv(KvRequest::Abort { handle: self.handle, slots: reserved }))?;
                return Err(error);
            }
            if let Some(slots) = publishing.take() {
                outcomes.extend(published(&mut line, &slots)?);
            }
            line.send(&Request::Kv(KvRequest::Publish { handle: self.handle, slots: reserved }))?;
            publishing = Some(slots);
        }
        if let Some(slots) = publishing {
            outcomes.extend(published(&mut line, &slots)?);
        }
        Ok(outcomes)
    }

    /// `first` is what the first block follows on, if they are a prefix.
    fn reserve<S: Source>(&self, blocks: &[S], first: Option<KvParent>) -> Request {
        let (mut parent, others) = match first {
            Some(first) => (first, KvParent::Previous),
            None => (KvParent::None, KvParent::None),
        };
        let wanted = blocks.iter().map(|block| KvBlock {
            key: block.key().to_vec(),
            bytes: block.bytes(),
            parent: std::mem::replace(&mut parent, others.clone()),
        });
        Request::Kv(KvRequest::Reserve { handle: self.handle, blocks: wanted.collect() })
    }

    /// Copies blocks into the slots that were reserved for them.
    fn write<S: Source>(&self, slots: &[KvSlot], blocks: &[S]) -> Result<(), PoolError> {
        for (slot, block) in slots.iter().zip(blocks) {
            if let KvSlot::Reserved { offset, .. } = *slot {
                self.view.write_pieces(offset, block.bytes(), block.pieces()).map_err(broken)?;
            }
        }
        Ok(())
    }
}

/// What became of the blocks of a part, whose answer is next.
fn published(line: &mut Line<'_>, slots: &[KvSlot]) -> Result<Vec<Stored>, PoolError> {
    let KvReply::Published(answers) = answer(line)? else {
        return Err(PoolError::Unexpected { expected: "Published", answer: "another".to_owned() });
    };
    let mut answers = answers.into_iter();
    let outcome = |slot: &KvSlot| match slot {
        KvSlot::Reserved { .. } if answers.next() == Some(true) => Stored::Written,
        KvSlot::Reserved { .. } | KvSlot::NoRoom => Stored::NoRoom,
        KvSlot::Exists | KvSlot::Busy => Stored::Known,
    };
    Ok(slots.iter().map(outcome).collect())
}

fn answer(line: &mut Line<'_>) -> Result<KvReply, PoolError> {
    match line.receive()? {
        Reply::Kv(reply) => Ok(reply),
        other => Err(unexpected("Kv", &other)),
    }
}

fn reserved_slots(slots: &[KvSlot]) -> Vec<u32> {
    let slot = |slot: &KvSlot| match *slot {
        KvSlot::Reserved { slot, .. } => Some(slot),
        _ => None,
    };
    slots.iter().filter_map(slot).collect()
}
