//! Requests about values: blocks that are replaced, and the listing of their keys.

use super::{State, UserStore, key, refused};
use crate::refused::Refused;
use hinterland_kv::{BlockKey, Expects, LOOKUPS_AT_ONCE, Namespace, Seen, Swapped, Wish};
use hinterland_proto::control::{KvExpects, KvKey, KvSeen, KvSlot, KvSwap, KvSwapped};
use hinterland_types::SessionId;

/// Keys of one listing: 300 KiB, well below a control message.
const LIST_MAX: usize = 4096;

impl UserStore {
    /// Swaps blocks in, gives slots back and takes others; one answer for each block, one for each length of `take`. `on_disk` says
    /// whether the namespace keeps to the disk.
    ///
    /// # Errors
    /// [`Refused`] for a key or length that no block can have, before anything is done; at the first slot that the session
    /// has not taken or that is too short, and what came before it is done.
    pub fn swap(
        &self,
        session: SessionId,
        namespace: Namespace,
        blocks: &[KvSwap],
        (give, take): (&[u32], &[u64]),
        on_disk: bool,
    ) -> Result<(Vec<KvSwapped>, Vec<KvSlot>), Refused> {
        let keys = keys_of(blocks)?;
        self.check_kept()?;
        let sums = self.sums_of_swaps(session, blocks);
        let mut state = self.lock_checked(namespace, &keys);
        if !on_disk {
            self.keep_in_memory(&mut state, namespace.0);
        }
        let mut outcomes = Vec::with_capacity(blocks.len());
        for (index, ((&key, block), sum)) in keys.iter().zip(blocks).zip(sums).enumerate() {
            if self.looks_ahead && index.is_multiple_of(LOOKUPS_AT_ONCE) {
                state.store.prefetch(namespace, &keys[index..]);
            }
            let swapped = swap_in(&mut state, session, (namespace, key), (block, sum))?;
            if let Some(disk) = self.disk.as_ref().filter(|_| on_disk && swapped == Swapped::Done) {
                // Who is reading the old one there puts it nowhere: it looks for removals with both locks held.
                disk.removed(namespace.0, &key);
            }
            outcomes.push(outcome(swapped));
        }
        for &slot in give {
            state.store.abort(session.0, slot).map_err(|error| refused(&error))?;
        }
        let mut slots = Vec::with_capacity(take.len());
        for &bytes in take {
            let taken = state
                .store
                .take_slot(session.0, namespace, bytes, &mut |slot| self.was_touched(slot))
                .map_err(|error| refused(&error))?;
            slots.push(taken.map_or(KvSlot::NoRoom, |(slot, offset)| KvSlot::Reserved { slot, offset }));
        }
        drop(state);
        if self.files.are_kept && blocks.iter().any(|block| block.sum.is_none()) {
            self.behind.published();
        }
        Ok((outcomes, slots))
    }

    /// Swaps blocks in if all keys are as expected, those of `seen` too, which are removed then if they are to be. One answer for
    /// each block, and all are the same: where the index has no room for one, those before it are removed again.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn swap_all(
        &self,
        session: SessionId,
        namespace: Namespace,
        blocks: &[KvSwap],
        (seen, removes): (&[(KvKey, KvSeen)], bool),
    ) -> Result<Vec<KvSwapped>, Refused> {
        let keys = keys_of(blocks)?;
        let others = seen
            .iter()
            .map(|(bytes, block)| Ok((key(bytes)?, self::seen(*block))))
            .collect::<Result<Vec<_>, Refused>>()?;
        self.check_kept()?;
        let sums = self.sums_of_swaps(session, blocks);
        let mut state = self.lock_checked(namespace, &keys);
        self.keep_in_memory(&mut state, namespace.0);
        let is_so = |key, expects| state.store.is_as_expected(namespace, key, expects);
        let are_all_so = keys.iter().zip(blocks).all(|(key, block)| is_so(key, expects(block.expects)))
            && others.iter().all(|(key, block)| is_so(key, Expects::Block(*block)));
        let mut swapped = if are_all_so { Swapped::Done } else { Swapped::Changed };
        let mut done = Vec::with_capacity(keys.len());
        for ((key, block), sum) in keys.iter().zip(blocks).zip(sums) {
            if swapped != Swapped::Done {
                state.store.abort(session.0, block.slot).map_err(|error| refused(&error))?;
                continue;
            }
            swapped = swap_in(&mut state, session, (namespace, *key), (block, sum))?;
            if swapped == Swapped::Done {
                done.push(key);
            }
        }
        if swapped != Swapped::Done {
            for key in done {
                state.store.remove(namespace, key);
            }
        } else if removes {
            for (key, block) in &others {
                state.store.remove_seen(namespace, key, *block);
            }
        }
        drop(state);
        if self.files.are_kept && blocks.iter().any(|block| block.sum.is_none()) {
            self.behind.published();
        }
        Ok(vec![outcome(swapped); blocks.len()])
    }

    /// The checksum of each block: that of its writer, else, if readers check them, one that is taken before anybody is locked out.
    fn sums_of_swaps(&self, session: SessionId, blocks: &[KvSwap]) -> Vec<Option<u32>> {
        let given = blocks.iter().map(|block| block.sum);
        if given.clone().all(|sum| sum.is_some()) {
            return given.collect();
        }
        let taken = self.sums_before(session, blocks.iter().map(|block| (block.slot, Some(block.bytes))));
        given.enumerate().map(|(index, sum)| sum.or_else(|| taken.get(index).copied().flatten())).collect()
    }

    /// Removes blocks that are still those that were seen; returns how many were.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have; nothing is removed then.
    pub fn remove_seen(&self, namespace: Namespace, blocks: &[(KvKey, KvSeen)]) -> Result<u64, Refused> {
        let keys = blocks.iter().map(|(bytes, _)| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.lock();
        let removed = keys
            .iter()
            .zip(blocks)
            .filter(|(key, (_, block))| state.store.remove_seen(namespace, key, seen(*block)));
        Ok(removed.count() as u64)
    }

    /// About `limit` keys of a namespace, and where to go on.
    pub fn list(&self, namespace: Namespace, cursor: u64, limit: u32) -> (Vec<KvKey>, Option<u64>) {
        let limit = (limit as usize).clamp(1, LIST_MAX);
        let (keys, next) = self.lock().store.list(namespace, cursor, limit);
        (keys.iter().map(hinterland_kv::BlockKey::to_vec).collect(), next)
    }

    /// How many blocks a namespace has.
    pub fn blocks_of(&self, namespace: Namespace) -> u64 {
        self.lock().store.space(namespace).blocks
    }
}

/// Swaps a block in, with the checksum of its bytes, if it is known.
fn swap_in(
    state: &mut State,
    session: SessionId,
    (namespace, key): (Namespace, BlockKey),
    (block, sum): (&KvSwap, Option<u32>),
) -> Result<Swapped, Refused> {
    let wish = Wish { namespace, key, bytes: block.bytes, parent: parent(block)? };
    let noted = state.store.sum_of_written(session.0, block.slot, sum);
    noted.map_err(|error| refused(&error))?;
    let swapped = state.store.swap(session.0, block.slot, &wish, expects(block.expects));
    swapped.map_err(|error| refused(&error))
}

/// The keys of blocks; what they follow on can be keys, too.
fn keys_of(blocks: &[KvSwap]) -> Result<Vec<BlockKey>, Refused> {
    blocks.iter().map(|block| parent(block).and_then(|_| key(&block.key))).collect()
}

/// The block that one follows on.
fn parent(block: &KvSwap) -> Result<Option<BlockKey>, Refused> {
    block.parent.as_deref().map(key).transpose()
}

const fn outcome(swapped: Swapped) -> KvSwapped {
    match swapped {
        Swapped::Done => KvSwapped::Done,
        Swapped::Changed => KvSwapped::Changed,
        Swapped::NoRoom => KvSwapped::NoRoom,
    }
}

pub(super) const fn seen(block: KvSeen) -> Seen {
    Seen { slot: block.slot, generation: block.generation }
}

const fn expects(expects: KvExpects) -> Expects {
    match expects {
        KvExpects::Anything => Expects::Anything,
        KvExpects::Nothing => Expects::Nothing,
        KvExpects::Block(block) => Expects::Block(seen(block)),
        KvExpects::NoneOf(bytes) => Expects::NoneOf(bytes),
    }
}

#[cfg(test)]
mod tests;
