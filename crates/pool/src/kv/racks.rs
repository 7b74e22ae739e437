//! KV blocks of other nodes: how long a prefix is anywhere, and bringing blocks here.

use super::read::{Scattered, streams};
use super::{KvCache, Waits, block_key};
use crate::session::unexpected;
use crate::{PoolError, Session};
use hinterland_proto::control::{KV_KEYS_MAX, KvReply, KvRequest, Reply, Request};
use hinterland_types::Handle;
use std::sync::atomic::Ordering;

/// Bytes of the blocks that are asked for in one message, where some are used while others come.
const PART_BYTES: u64 = 4 << 20;
/// Most blocks of such a message.
const PART_BLOCKS: usize = 256;
/// Messages that are under way at once: one is worked on, one waits.
const PARTS: usize = 2;

/// A session of its own: what waits for other nodes must not hold up a put.
pub(super) struct Waiting {
    session: Session,
    handle: Handle,
}

impl Waiting {
    /// Whether it has ended, as after a silence that was too long: it may be alone in that.
    pub(super) fn is_lost(&self) -> bool {
        self.session.is_lost()
    }
}

impl KvCache {
    /// How many of the keys, from the first on, are here or at other nodes. One message to the node of this host for those
    /// that are not here, and none if all are.
    ///
    /// # Errors
    /// As [`length`](Self::length), or if the node does not answer.
    pub fn match_prefix_everywhere(&self, keys: &[&[u8]]) -> Result<usize, PoolError> {
        let mut found = self.match_prefix(keys)?;
        for keys in keys[found..].chunks(KV_KEYS_MAX) {
            let request = |handle| KvRequest::Match { handle, keys: copied(keys) };
            let count = match self.ask_racks(request)? {
                KvReply::Count(count) => usize::try_from(count).unwrap_or(usize::MAX).min(keys.len()),
                other => return Err(unexpected("Count", &other)),
            };
            found += count;
            if count < keys.len() {
                break;
            }
        }
        Ok(found)
    }

    /// The length of the block of each key, if there is one here, on the node's disk or at another node; none is brought here. One message
    /// to the node of this host for those that are not here, and none if all are.
    ///
    /// # Errors
    /// As [`match_prefix_everywhere`](Self::match_prefix_everywhere).
    pub fn lengths_everywhere(&self, keys: &[&[u8]]) -> Result<Vec<Option<u32>>, PoolError> {
        let mut lengths = keys.iter().map(|key| self.length(key)).collect::<Result<Vec<_>, _>>()?;
        let missing: Vec<usize> = (0..keys.len()).filter(|&index| lengths[index].is_none()).collect();
        for indexes in missing.chunks(KV_KEYS_MAX) {
            let wanted: Vec<Vec<u8>> = indexes.iter().map(|&index| keys[index].to_vec()).collect();
            match self.ask_racks(|handle| KvRequest::Lengths { handle, keys: wanted.clone() })? {
                KvReply::Lengths(found) if found.len() == indexes.len() => {
                    indexes.iter().zip(found).for_each(|(&index, length)| lengths[index] = length);
                }
                other => return Err(unexpected("Lengths", &other)),
            }
        }
        Ok(lengths)
    }

    /// Brings blocks here from other nodes, and waits for them; for each key, whether its block is here then. No message if all
    /// are. A block that two processes want moves once.
    ///
    /// # Errors
    /// As [`match_prefix_everywhere`](Self::match_prefix_everywhere).
    pub fn fetch(&self, keys: &[&[u8]]) -> Result<Vec<bool>, PoolError> {
        let mut here = keys.iter().map(|key| self.is_here(key)).collect::<Result<Vec<_>, _>>()?;
        let missing: Vec<usize> = (0..keys.len()).filter(|&index| !here[index]).collect();
        for indexes in missing.chunks(KV_KEYS_MAX) {
            let wanted: Vec<Vec<u8>> = indexes.iter().map(|&index| keys[index].to_vec()).collect();
            match self.ask_racks(|handle| KvRequest::Fetch { handle, keys: wanted.clone() })? {
                KvReply::Fetched(fetched) if fetched.len() == indexes.len() => {
                    indexes.iter().zip(fetched).for_each(|(&index, is_here)| here[index] = is_here);
                }
                other => return Err(unexpected("Fetched", &other)),
            }
        }
        Ok(here)
    }

    /// Begins to bring blocks here and does not wait; returns how many are looked for: fewer than were named if some are here, or
    /// if the node is busy with as much already. What has arrived is found by [`length`](Self::length) and its like; a
    /// [`fetch`](Self::fetch) of the same keys waits for them.
    ///
    /// # Errors
    /// As [`match_prefix_everywhere`](Self::match_prefix_everywhere).
    pub fn prefetch(&self, keys: &[&[u8]]) -> Result<usize, PoolError> {
        let mut wanted = Vec::new();
        for key in keys {
            if !self.is_here(key)? {
                wanted.push(*key);
            }
        }
        let mut begun = 0;
        for keys in wanted.chunks(KV_KEYS_MAX) {
            match self.ask_racks(|handle| KvRequest::Prefetch { handle, keys: copied(keys) })? {
                KvReply::Count(count) => {
                    begun += usize::try_from(count).unwrap_or(usize::MAX).min(keys.len())
                }
                other => return Err(unexpected("Count", &other)),
            }
        }
        Ok(begun)
    }

    /// Removes blocks at every node of the pool, also from their disks; returns how many there were. What is on its way between nodes
    /// meanwhile does not count.
    ///
    /// # Errors
    /// As [`clear_everywhere`](Self::clear_everywhere).
    pub fn remove_everywhere(&self, keys: &[&[u8]]) -> Result<u64, PoolError> {
        self.remove_at_others(keys, true)
    }

    /// The same at every other node: for blocks that were replaced here, of which others may have old ones. Of this one it removes what came
    /// from others.
    ///
    /// # Errors
    /// As [`clear_everywhere`](Self::clear_everywhere).
    pub fn remove_elsewhere(&self, keys: &[&[u8]]) -> Result<u64, PoolError> {
        self.remove_at_others(keys, false)
    }

    fn remove_at_others(&self, keys: &[&[u8]], is_here_too: bool) -> Result<u64, PoolError> {
        let mut removed = 0;
        for keys in keys.chunks(KV_KEYS_MAX) {
            let request = |handle| KvRequest::RemoveEverywhere { handle, keys: copied(keys), is_here_too };
            match self.ask_racks(request)? {
                KvReply::Count(count) => removed += count,
                other => return Err(unexpected("Count", &other)),
            }
        }
        Ok(removed)
    }

    /// Brings blocks here in parts, and hands out the number of each, in order, when it has come or is known not to: blocks are used
    /// while others are on their way. `bytes` says how long a block is about, by its number; it only decides how
    /// many travel together.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch), or what `each` says.
    pub fn fetch_each<E: From<PoolError>>(
        &self,
        keys: &[&[u8]],
        bytes: &dyn Fn(usize) -> u64,
        each: &mut dyn FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut missing = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            if !self.is_here(key)? {
                missing.push(index);
            }
        }
        let mut used = 0;
        if !missing.is_empty() {
            let waiting = self.waiting()?;
            let mut line = waiting.session.line();
            let parts = cut(&missing, bytes);
            let request = |part: &[usize]| {
                let keys = part.iter().map(|&index| keys[index].to_vec()).collect();
                Request::Kv(KvRequest::Fetch { handle: waiting.handle, keys })
            };
            for part in parts.iter().take(PARTS) {
                line.send(&[request(part)])?;
            }
            for (number, part) in parts.iter().enumerate() {
                // A part has an index at the least.
                for index in used..part[0] {
                    each(index)?;
                }
                match line.receive()? {
                    Reply::Kv(KvReply::Fetched(fetched)) if fetched.len() == part.len() => {}
                    other => return Err(unexpected("Fetched", &other).into()),
                }
                if let Some(part) = parts.get(number + PARTS) {
                    line.send(&[request(part)])?;
                }
                for index in part[0]..=part[part.len() - 1] {
                    each(index)?;
                }
                used = part[part.len() - 1] + 1;
            }
        }
        (used..keys.len()).try_for_each(each)
    }

    /// Copies blocks into pieces, wherever they are; for each what [`get`](Self::get) says of it. Those that have come are copied
    /// while others are on their way.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub fn get_everywhere(&self, blocks: &mut [Scattered<'_, '_>]) -> Result<Vec<Option<u32>>, PoolError> {
        let keys: Vec<&[u8]> = blocks.iter().map(|(key, _)| *key).collect();
        let lengths: Vec<u64> =
            blocks.iter().map(|(_, pieces)| pieces.iter().map(|piece| piece.len() as u64).sum()).collect();
        let mut found = Vec::with_capacity(blocks.len());
        let streams = streams(lengths.iter().sum());
        self.fetch_each(&keys, &|index| lengths[index], &mut |index| {
            let (key, pieces) = &mut blocks[index];
            found.push(self.get_one_of(key, streams, pieces)?);
            Ok::<_, PoolError>(())
        })?;
        Ok(found)
    }

    fn is_here(&self, key: &[u8]) -> Result<bool, PoolError> {
        Ok(self.find(&block_key(key)?).is_some())
    }

    fn ask_racks(&self, request: impl Fn(Handle) -> KvRequest) -> Result<KvReply, PoolError> {
        let waiting = self.waiting()?;
        match waiting.session.call(&Request::Kv(request(waiting.handle)))? {
            Reply::Kv(reply) => Ok(reply),
            other => Err(unexpected("Kv", &other)),
        }
    }

    /// The session for such requests, opened when it is first needed.
    fn waiting(&self) -> Result<&Waiting, PoolError> {
        self.check_own()?;
        if let Some(waiting) = self.racks.get() {
            return Ok(waiting);
        }
        let waiting = self.open_waiting().inspect_err(|error| {
            // Who must not be kept waiting would be by each call.
            if matches!((&self.waits, error), (Waits::Within(_), PoolError::Silent(_))) {
                // Relaxed: it says nothing of other memory.
                self.is_silent.store(true, Ordering::Relaxed);
            }
        })?;
        // Of two threads that come here at once, one session is closed again.
        Ok(self.racks.get_or_init(|| waiting))
    }

    fn open_waiting(&self) -> Result<Waiting, PoolError> {
        let session = Session::connect(Some(self.session.socket()))?;
        self.waits.apply(&session)?;
        // The files are mapped already: their descriptors close again here.
        match session.call(&self.request)? {
            Reply::Kv(KvReply::Opened { handle, .. }) => Ok(Waiting { session, handle }),
            other => Err(unexpected("Opened", &other)),
        }
    }
}

/// Cuts the numbers of missing blocks into parts of some MiB.
fn cut<'missing>(mut missing: &'missing [usize], bytes: &dyn Fn(usize) -> u64) -> Vec<&'missing [usize]> {
    let mut parts = Vec::new();
    while !missing.is_empty() {
        let (mut count, mut sum) = (0, 0);
        while count < missing.len().min(PART_BLOCKS) && sum < PART_BYTES {
            sum = sum.saturating_add(bytes(missing[count]));
            count += 1;
        }
        let (part, rest) = missing.split_at(count);
        parts.push(part);
        missing = rest;
    }
    parts
}

fn copied(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_every_block_once_and_end_at_their_bytes_or_their_number() {
        let missing: Vec<usize> = (3..1000).collect();
        for (bytes, parts) in [(1, 4), (4 << 20, 997), (1 << 20, 250), (u64::MAX, 997), (0, 4)] {
            let cut = cut(&missing, &|_| bytes);
            assert_eq!(cut.concat(), missing);
            assert_eq!(cut.len(), parts, "{bytes}");
        }
        assert!(cut(&[], &|_| 1).is_empty());
    }
}
