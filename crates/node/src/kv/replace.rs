//! Requests about values: blocks that are replaced, and the listing of their keys.

use super::{UserStore, key, refused};
use crate::refused::Refused;
use hinterland_kv::{Expects, Namespace, Seen, Swapped};
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
        let keys = blocks.iter().map(|block| key(&block.key)).collect::<Result<Vec<_>, _>>()?;
        self.check_kept()?;
        let mut state = self.lock();
        if !on_disk {
            self.keep_in_memory(&mut state, namespace.0);
        }
        let mut outcomes = Vec::with_capacity(blocks.len());
        for (key, block) in keys.into_iter().zip(blocks) {
            if let Some(sum) = block.sum {
                let noted = state.store.sum_of_written(session.0, block.slot, sum);
                noted.map_err(|error| refused(&error))?;
            }
            let swapped = state
                .store
                .swap(session.0, block.slot, (namespace, key), block.bytes, expects(block.expects))
                .map_err(|error| refused(&error))?;
            if let Some(disk) = self.disk.as_ref().filter(|_| on_disk && swapped == Swapped::Done) {
                // Who is reading the old one there puts it nowhere: it looks for removals with both locks held.
                disk.removed(namespace.0, &key);
            }
            outcomes.push(match swapped {
                Swapped::Done => KvSwapped::Done,
                Swapped::Changed => KvSwapped::Changed,
                Swapped::NoRoom => KvSwapped::NoRoom,
            });
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

pub(super) const fn seen(block: KvSeen) -> Seen {
    Seen { slot: block.slot, generation: block.generation }
}

const fn expects(expects: KvExpects) -> Expects {
    match expects {
        KvExpects::Anything => Expects::Anything,
        KvExpects::Nothing => Expects::Nothing,
        KvExpects::Block(block) => Expects::Block(seen(block)),
    }
}
