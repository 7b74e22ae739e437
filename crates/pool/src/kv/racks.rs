//! KV blocks of other nodes: how long a prefix is anywhere, and bringing blocks here.

use super::{KvCache, block_key};
use crate::session::unexpected;
use crate::{PoolError, Session};
use hinterland_proto::control::{KV_KEYS_MAX, KvReply, KvRequest, Reply, Request};
use hinterland_types::Handle;

/// A session of its own: what waits for other nodes must not hold up a put.
pub(super) struct Waiting {
    session: Session,
    handle: Handle,
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
        if let Some(waiting) = self.racks.get() {
            return Ok(waiting);
        }
        let session = Session::connect(Some(self.session.socket()))?;
        // The files are mapped already: their descriptors close again here.
        match session.call(&self.request)? {
            Reply::Kv(KvReply::Opened { handle, .. }) => {
                // Of two threads that come here at once, one session is closed again.
                Ok(self.racks.get_or_init(|| Waiting { session, handle }))
            }
            other => Err(unexpected("Opened", &other)),
        }
    }
}

fn copied(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}
