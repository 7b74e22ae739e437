//! Writing blocks: slots are reserved, filled and published, part by part of a batch.

use super::runs::Gather;
use super::{KvCache, broken};
use crate::session::unexpected;
use crate::{Line, PoolError};
use hinterland_os::fault_point::reach;
use hinterland_proto::control::{KvBlock, KvParent, KvReply, KvRequest, KvSlot, Reply, Request};
use std::collections::VecDeque;

/// Parts of a large put, in sixteenths of its blocks: what the node does for one is hidden by the copies of another. The first
/// and the last are short, because nothing hides the reservation of the one and the publication of the other: of 128 blocks
/// of 64 KiB four equal parts reach 0.89 of the speed of plain copies, these six 0.98 (`hinterland bench kv-batch`).
const PUT_SHARES: [usize; 6] = [1, 3, 4, 4, 3, 1];
/// Fewest blocks that are cut by shares.
const PUT_SHARED_MIN: usize = 64;
/// Blocks of a part of a smaller put: below that a message costs more than it hides.
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
    /// It is there, written by another process: before, or while this one waited for it.
    Known,
    /// There is no room: everything else is being written or pinned, or the prefix that it follows on has blocks in every
    /// part of the memory, and none of these may leave before it.
    NoRoom,
}

/// Whether blocks follow on each other.
pub(super) enum Chain<'key> {
    None,
    /// The first one follows on this, if on anything.
    After(Option<&'key [u8]>),
}

impl Chain<'_> {
    /// What the first block of a part follows on; `before` is the last one of the part before.
    pub(super) fn parent(&self, before: Option<&[u8]>) -> Option<KvParent> {
        let Self::After(after) = self else { return None };
        let key = before.or(*after);
        Some(key.map_or(KvParent::None, |key| KvParent::Key(key.to_vec())))
    }
}

/// A block in whatever form the caller has it.
pub(super) trait Source {
    fn key(&self) -> &[u8];
    fn bytes(&self) -> u64;
    fn pieces(&self) -> impl Iterator<Item = &[u8]>;
    /// What it follows on, where it says so itself and not the chain that it is put in.
    fn parent(&self) -> Option<KvParent> {
        None
    }
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
    /// A block that another process is writing at this moment is waited for. If that one gives up or dies, it is written here; if it has
    /// not published the block after half a second, this process writes a copy of its own.
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
    /// What follows on a block that another process is writing meanwhile may be published before that is: it follows on it as soon as it is
    /// there, whoever put it, and begins a prefix of its own if that process gives up or dies.
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
        let outcomes = self.put_once(blocks, chain)?;
        self.settle(blocks, chain, outcomes)
    }

    /// Writes those blocks that no other process is writing; `None` for the others.
    pub(super) fn put_once<S: Source>(
        &self,
        blocks: &[S],
        chain: &Chain<'_>,
    ) -> Result<Vec<Option<Stored>>, PoolError> {
        self.check_own()?;
        let parts = parts(blocks);
        let outcomes = Vec::with_capacity(blocks.len());
        let line = self.session.line();
        let mut putting = Putting {
            cache: self,
            line,
            due: VecDeque::new(),
            held: VecDeque::new(),
            publications: Vec::new(),
            outcomes,
        };
        match putting.run(&parts, chain) {
            Ok(()) => Ok(putting.outcomes),
            Err(error) => {
                putting.give_back();
                Err(error)
            }
        }
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
            parent: block.parent().unwrap_or_else(|| std::mem::replace(&mut parent, others.clone())),
        });
        Request::Kv(KvRequest::Reserve { handle: self.handle, blocks: wanted.collect() })
    }

    /// Copies blocks into the slots that were reserved for them; the checksums of all that are written, or none.
    fn write<S: Source>(&self, slots: &[KvSlot], blocks: &[S]) -> Result<Vec<u32>, PoolError> {
        let mut sums = Vec::new();
        for (slot, block) in slots.iter().zip(blocks) {
            if let KvSlot::Reserved { offset, .. } = *slot {
                let pieces = block.pieces().inspect(|_| reach("kv-put-piece"));
                sums.extend(self.view.write_pieces(offset, block.bytes(), pieces).map_err(broken)?);
                reach("kv-put-written");
            }
        }
        Ok(sums)
    }
}

/// A put under way.
///
/// A message that finds its receiver asleep costs the sender about 50 us, and so does each answer: the reservations of the
/// first two parts go out as one message, and after that each part's publication with the reservation of the next but one.
struct Putting<'cache> {
    cache: &'cache KvCache,
    line: Line<'cache>,
    /// What was asked and is not answered.
    due: VecDeque<Due>,
    /// Of each part the slots that are reserved, and not asked to be published.
    held: VecDeque<Vec<u32>>,
    /// Of parts that are written, what is to be sent with the next message.
    publications: Vec<(Request, Due)>,
    outcomes: Vec<Option<Stored>>,
}

/// An answer that is due.
enum Due {
    Slots,
    Published(Vec<KvSlot>),
}

impl Putting<'_> {
    fn run<S: Source>(&mut self, parts: &[&[S]], chain: &Chain<'_>) -> Result<(), PoolError> {
        let reserve = |index: usize| {
            let part = parts.get(index)?;
            let before = index.checked_sub(1).and_then(|before| parts[before].last()).map(Source::key);
            Some((self.cache.reserve(part, chain.parent(before)), Due::Slots))
        };
        self.ask((0..2).filter_map(reserve).collect())?;
        for (index, part) in parts.iter().enumerate() {
            // The publication before the last one goes with that.
            if let Some(next) = (index > 0).then(|| reserve(index + 1)).flatten() {
                self.ask(vec![next])?;
            }
            let slots = self.slots(part.len())?;
            let sums = self.cache.write(&slots, part)?;
            let (handle, written) = (self.cache.handle, reserved_slots(&slots));
            let publish = KvRequest::Publish { handle, slots: written, sums };
            self.publications.push((Request::Kv(publish), Due::Published(slots)));
        }
        self.ask(Vec::new())?;
        while !self.due.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    /// Publishes what is written and gives back what else is reserved: it would be free again only when the session ends.
    fn give_back(&mut self) {
        if self.ask(Vec::new()).is_err() {
            return;
        }
        while !self.due.is_empty() {
            if matches!(self.receive(), Err(PoolError::Closed | PoolError::Os(_))) {
                return;
            }
        }
        let slots: Vec<u32> = self.held.drain(..).flatten().collect();
        if !slots.is_empty() {
            // If it does not arrive, the session has ended.
            let _ = self.line.send(&[Request::Kv(KvRequest::Abort { handle: self.cache.handle, slots })]);
        }
    }

    /// Waits for the slots of the next part.
    fn slots(&mut self, blocks: usize) -> Result<Vec<KvSlot>, PoolError> {
        loop {
            if let Some(slots) = self.receive()? {
                return if slots.len() == blocks {
                    Ok(slots)
                } else {
                    Err(unexpected("as many Slots as blocks", &slots))
                };
            }
        }
    }

    /// Waits for the next answer; the slots, if it is some.
    fn receive(&mut self) -> Result<Option<Vec<KvSlot>>, PoolError> {
        let due = self.due.pop_front().ok_or(PoolError::Closed)?;
        match (due, answer(&mut self.line)?) {
            (Due::Slots, KvReply::Slots(slots)) => {
                reach("kv-put-reserved");
                self.held.push_back(reserved_slots(&slots));
                Ok(Some(slots))
            }
            (Due::Published(slots), KvReply::Published(answers)) => {
                reach("kv-put-published");
                self.outcomes.extend(outcomes(&slots, answers));
                Ok(None)
            }
            (_, other) => Err(unexpected("Slots or Published", &other)),
        }
    }

    /// Sends all publications, and more.
    fn ask(&mut self, more: Vec<(Request, Due)>) -> Result<(), PoolError> {
        let (requests, due): (Vec<_>, Vec<_>) = self.publications.drain(..).chain(more).unzip();
        self.line.send(&requests)?;
        reach("kv-put-asked");
        // Parts are published in the order in which they were reserved.
        let published = due.iter().filter(|due| matches!(due, Due::Published(_))).count();
        self.held.drain(..published);
        self.due.extend(due);
        Ok(())
    }
}

/// What became of the blocks of a part, given the answers for those that had been reserved.
fn outcomes(slots: &[KvSlot], answers: Vec<bool>) -> impl Iterator<Item = Option<Stored>> {
    let mut answers = answers.into_iter();
    slots.iter().map(move |slot| match slot {
        KvSlot::Reserved { .. } if answers.next() == Some(true) => Some(Stored::Written),
        KvSlot::Reserved { .. } | KvSlot::NoRoom => Some(Stored::NoRoom),
        KvSlot::Exists => Some(Stored::Known),
        KvSlot::Busy => None,
    })
}

/// The parts of a put, in order.
fn parts<S>(blocks: &[S]) -> Vec<&[S]> {
    if blocks.len() < PUT_SHARED_MIN {
        return blocks.chunks(PUT_PART_MIN).collect();
    }
    let whole: usize = PUT_SHARES.iter().sum();
    let (mut rest, mut upto, mut parts) = (blocks, 0, Vec::new());
    for share in PUT_SHARES {
        upto += share;
        let (part, others) = rest.split_at(blocks.len() * upto / whole - (blocks.len() - rest.len()));
        parts.extend(part.chunks(PUT_PART_MAX));
        rest = others;
    }
    parts
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_every_block_once_and_are_short_at_both_ends() {
        for count in [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 40_000] {
            let blocks: Vec<usize> = (0..count).collect();
            let parts = parts(&blocks);
            assert_eq!(parts.concat(), blocks);
            assert!(parts.iter().all(|part| (1..=PUT_PART_MAX).contains(&part.len())), "{count}");
        }
        let blocks = [(); 128];
        assert_eq!(parts(&blocks).iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 24, 32, 32, 24, 8]);
    }
}
