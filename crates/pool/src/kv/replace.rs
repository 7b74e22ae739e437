//! Blocks that are put in place of others: a reader finds the old or the new one at any moment, whole.

use super::put::{GatheredRuns, Source, Stored};
use super::{EINVAL, KvCache, block_key, broken};
use crate::PoolError;
use crate::session::unexpected;
use hinterland_kv::{BLOCK_BYTES_MAX, StoreError};
use hinterland_proto::control::{KvExpects, KvParent, KvReply, KvRequest, KvSlot, KvSwap, KvSwapped};

/// Blocks of one message: what a node does with its books locked stays below a millisecond.
pub const TOGETHER_MAX: usize = 512;
/// Bytes of them: what is being written serves nobody else.
pub const TOGETHER_BYTES_MAX: u64 = 32 << 20;

/// What became of blocks that were swapped in, and of slots that were asked for.
pub(super) type Outcomes = (Vec<KvSwapped>, Vec<KvSlot>);

impl KvCache {
    /// Writes blocks in place of those that their keys have, if any; one answer each, never [`Stored::Known`]. They follow on nothing
    /// and may leave at any time. Two messages for up to 512 blocks of up to 32 MiB together, which appear with no other write
    /// in between.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes, or a block of none or more than 4 MiB; nothing is written
    /// then. What else a node that fails can say; some may be written then.
    pub fn replace_runs(&self, blocks: &[GatheredRuns<'_>]) -> Result<Vec<Stored>, PoolError> {
        for (key, gather) in blocks {
            check(key, gather.bytes())?;
        }
        let mut all = Vec::with_capacity(blocks.len());
        for some in batches(blocks, |(_, gather)| gather.bytes()) {
            all.extend(self.replace_some(some, KvExpects::Anything)?);
        }
        Ok(all)
    }

    /// Writes blocks of one message into slots that have no key yet, and swaps in those whose keys are as expected; others have a block.
    /// They follow on what they name by its key.
    pub(super) fn replace_some<S: Source>(
        &self,
        blocks: &[S],
        expects: KvExpects,
    ) -> Result<Vec<Stored>, PoolError> {
        let lengths = blocks.iter().map(Source::bytes).collect();
        let (_, slots) = self.swap(Vec::new(), Vec::new(), lengths, true)?;
        let mut swaps = Vec::with_capacity(blocks.len());
        for (block, slot) in blocks.iter().zip(&slots) {
            let KvSlot::Reserved { slot, offset } = *slot else { continue };
            match self.view.write_pieces(offset, block.bytes(), block.pieces()) {
                Ok(sum) => {
                    let (key, bytes) = (block.key().to_vec(), block.bytes());
                    let parent = match block.parent() {
                        Some(KvParent::Key(parent)) => Some(parent),
                        Some(KvParent::None | KvParent::Previous) | None => None,
                    };
                    swaps.push(KvSwap { slot, key, bytes, parent, expects, sum });
                }
                Err(error) => {
                    let slot = |slot: &KvSlot| {
                        if let KvSlot::Reserved { slot, .. } = *slot { Some(slot) } else { None }
                    };
                    let give = slots.iter().filter_map(slot).collect();
                    // If it does not arrive, the session has ended.
                    let _ = self.swap(Vec::new(), give, Vec::new(), true);
                    return Err(broken(error));
                }
            }
        }
        let (outcomes, _) = self.swap(swaps, Vec::new(), Vec::new(), true)?;
        let mut outcomes = outcomes.into_iter();
        let stored = |slot: &KvSlot| match slot {
            KvSlot::Reserved { .. } => match outcomes.next() {
                Some(KvSwapped::Done) => Stored::Written,
                Some(KvSwapped::Changed) => Stored::Known,
                Some(KvSwapped::NoRoom) | None => Stored::NoRoom,
            },
            _ => Stored::NoRoom,
        };
        Ok(slots.iter().map(stored).collect())
    }

    /// Swaps blocks in, gives slots back and takes others; see [`KvRequest::Swap`].
    pub(super) fn swap(
        &self,
        blocks: Vec<KvSwap>,
        give: Vec<u32>,
        take: Vec<u64>,
        on_disk: bool,
    ) -> Result<Outcomes, PoolError> {
        let (asked, wanted) = (blocks.len(), take.len());
        let request = KvRequest::Swap { handle: self.handle, blocks, give, take, on_disk };
        match self.ask(request)? {
            KvReply::Swapped { outcomes, slots } if outcomes.len() == asked && slots.len() == wanted => {
                Ok((outcomes, slots))
            }
            other => Err(unexpected("Swapped", &other)),
        }
    }
}

/// Blocks in as many messages as they need.
pub(super) fn batches<T>(blocks: &[T], bytes_of: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    let mut rest = blocks;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |block: &&T| {
            bytes += bytes_of(block);
            bytes <= TOGETHER_BYTES_MAX
        };
        let count = rest.iter().take(TOGETHER_MAX).take_while(fits).count().max(1);
        let (some, behind) = rest.split_at_checked(count)?;
        rest = behind;
        Some(some)
    })
}

/// Whether there can be such a block.
pub(super) fn check(key: &[u8], bytes: u64) -> Result<(), PoolError> {
    block_key(key)?;
    match bytes {
        1..=BLOCK_BYTES_MAX => Ok(()),
        bytes => Err(PoolError::Refused { code: EINVAL, text: StoreError::Bytes(bytes).to_string() }),
    }
}
