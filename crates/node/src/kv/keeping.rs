//! What stays and what leaves: pins, quotas and priorities; and what people and routers ask about blocks.

use super::{UserStore, key};
use crate::refused::Refused;
use hinterland_kv::{BlockKey, Event, Limits, Namespace};
use hinterland_proto::control::{KvEvent, KvInspected, KvKey, KvReply, KvSeen};
use hinterland_types::SessionId;

/// Most events of a reply.
const EVENTS_MAX: u32 = 4096;

/// Most children that people are told of.
const CHILDREN_MAX: usize = 100;

impl UserStore {
    /// Keeps blocks from leaving until the session unpins them or ends; one answer each.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have; nothing is pinned then.
    pub fn pin(
        &self,
        session: SessionId,
        namespace: Namespace,
        keys: &[KvKey],
    ) -> Result<Vec<bool>, Refused> {
        let keys = all(keys)?;
        let mut state = self.lock_checked(namespace, &keys);
        Ok(keys.iter().map(|key| state.store.pin(session.0, namespace, key)).collect())
    }

    /// Takes pins of the session back; one answer each.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn unpin(
        &self,
        session: SessionId,
        namespace: Namespace,
        keys: &[KvKey],
    ) -> Result<Vec<bool>, Refused> {
        let keys = all(keys)?;
        let mut state = self.lock();
        Ok(keys.iter().map(|key| state.store.unpin(session.0, namespace, key)).collect())
    }

    /// The lengths of blocks that are in memory or on the disk. Those of before that are not checked count: they are checked when they are
    /// fetched, as those of the disk are.
    pub(super) fn lengths_near(
        &self,
        namespace: Namespace,
        fingerprint: &[u8; 32],
        keys: &[BlockKey],
    ) -> Vec<Option<u32>> {
        // Before the look at what is found: one that is checked meanwhile is missed by neither.
        let has_unchecked = self.lock().store.status().unchecked > 0;
        let here = |key: &BlockKey| self.view.find(namespace, key).map(|found| found.bytes());
        let mut lengths: Vec<Option<u32>> = keys.iter().map(here).collect();
        let missing = |lengths: &[Option<u32>]| -> Vec<usize> {
            (0..keys.len()).filter(|&index| lengths[index].is_none()).collect()
        };
        if has_unchecked {
            let state = self.lock();
            for index in missing(&lengths) {
                lengths[index] = state.store.length(namespace, &keys[index]);
            }
        }
        if let Some(disk) = &self.disk {
            for index in missing(&lengths) {
                lengths[index] = disk.length(fingerprint, &keys[index]);
            }
        }
        lengths
    }

    /// Brings blocks that are not in memory from the disk, if there is one.
    pub(super) fn bring_from_disk(
        &self,
        namespace: Namespace,
        fingerprint: &[u8; 32],
        keys: impl Iterator<Item = BlockKey>,
    ) {
        if let Some(disk) = &self.disk {
            let missing: Vec<BlockKey> =
                keys.filter(|key| self.view.find(namespace, key).is_none()).collect();
            disk.bring(self, namespace, fingerprint, &missing);
        }
    }

    /// Sets what a namespace may have; returns the bytes of its slots.
    pub fn limit(&self, namespace: Namespace, quota_bytes: Option<u64>, priority: u8) -> u64 {
        let mut state = self.lock();
        let limits = Limits { quota_bytes, priority };
        state.store.set_limits(namespace, limits);
        if let Some(known) = state.namespaces.get_mut(&namespace.0) {
            known.limits = limits;
        }
        self.save_spaces(&state.namespaces);
        state.store.space(namespace).slot_bytes
    }

    /// Looks at blocks that a reader found damaged; returns how many were, and are dropped.
    pub fn doubt(&self, namespace: Namespace, blocks: &[KvSeen]) -> u64 {
        let mut dropped = 0;
        for block in blocks {
            let doubted = self.lock().store.doubted(namespace, super::replace::seen(*block));
            let Some(block) = doubted else { continue };
            let sum = self.sum(block.offset, block.bytes);
            if self.lock().store.drop_damaged(&block, sum) {
                tracing::error!(slot = block.slot, "a KV block in memory is not what was published: dropped");
                dropped += 1;
            }
        }
        dropped
    }

    /// One block, if it is there.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have.
    pub fn inspect(&self, namespace: Namespace, bytes: &KvKey) -> Result<Option<KvInspected>, Refused> {
        let found = self.lock().store.inspect(namespace, &key(bytes)?);
        Ok(found.map(|block| KvInspected {
            slot: block.slot,
            offset: block.offset,
            bytes: block.bytes,
            slot_bytes: block.slot_bytes,
            generation: block.generation,
            pins: block.pins,
            parent: block.parent.map(|key| key.to_vec()),
            children: block.children.iter().take(CHILDREN_MAX).map(BlockKey::to_vec).collect(),
        }))
    }

    /// What came and went in a namespace after an event.
    pub fn events(&self, namespace: Namespace, after: u64, limit: u32) -> KvReply {
        // At most 4096.
        let some = self.lock().store.events(after, limit.min(EVENTS_MAX) as usize);
        let next = some.first.saturating_sub(1) + some.events.len() as u64;
        let told = |event: &Event| match *event {
            Event::Stored { namespace: its, key, parent, bytes } if its == namespace => {
                let parent = parent.map(|parent| parent.to_vec());
                Some(KvEvent::Stored { key: key.to_vec(), parent, bytes })
            }
            Event::Removed { namespace: its, key } if its == namespace => {
                Some(KvEvent::Removed { key: key.to_vec() })
            }
            _ => None,
        };
        KvReply::Events { next, events: some.events.iter().filter_map(told).collect(), lost: some.lost }
    }
}

fn all(keys: &[KvKey]) -> Result<Vec<BlockKey>, Refused> {
    keys.iter().map(|bytes| key(bytes)).collect()
}
