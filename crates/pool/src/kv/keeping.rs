//! What stays and what leaves of a namespace, and what is known of its blocks.

use super::{KEYS_MAX, KvCache};
use crate::PoolError;
use crate::session::unexpected;
use hinterland_proto::control::{KvEvent, KvInspected, KvKey, KvReply, KvRequest, Reply};
use hinterland_types::Handle;

/// A part of the record of what came and went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvEvents {
    /// What to ask for after these.
    pub next: u64,
    /// In their order.
    pub events: Vec<KvEvent>,
    /// Whether some before these are not known any more: look at the blocks anew.
    pub lost: bool,
}

impl KvCache {
    /// The namespace's number, the first 8 bytes of its fingerprint.
    pub const fn namespace(&self) -> u64 {
        self.namespace.0
    }

    /// Keeps blocks from being evicted until they are unpinned as often as they were pinned, or this value is dropped; for
    /// each, whether it is: not if it is not there, or half of the memory is pinned.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes.
    pub fn pin(&self, keys: &[&[u8]]) -> Result<Vec<bool>, PoolError> {
        self.answers(keys, |handle, keys| KvRequest::Pin { handle, keys })
    }

    /// Takes pins back; for each, whether there was one.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn unpin(&self, keys: &[&[u8]]) -> Result<Vec<bool>, PoolError> {
        self.answers(keys, |handle, keys| KvRequest::Unpin { handle, keys })
    }

    /// Sets how many bytes of memory the namespace may take (`None`: all), and its priority: blocks of namespaces of a lower
    /// one are evicted before any of a higher one, 100 is usual. Holds for all sessions until the node ends. Returns the
    /// bytes that it takes now; what is over the quota leaves when the namespace next wants room.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn limit(&self, quota_bytes: Option<u64>, priority: u8) -> Result<u64, PoolError> {
        self.count(KvRequest::Limit { handle: self.handle, quota_bytes, priority })
    }

    /// What the node knows of a block, if it is there.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn inspect(&self, key: &[u8]) -> Result<Option<KvInspected>, PoolError> {
        match self.ask(KvRequest::Inspect { handle: self.handle, key: key.to_vec() })? {
            KvReply::Inspected(found) => Ok(found),
            other => Err(unexpected("Inspected", &Reply::Kv(other))),
        }
    }

    /// What was stored and removed in the namespace since `after`, which is `next` of the last answer and 0 at first; up to
    /// 4096 events. Nothing is recorded before the first call.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn events(&self, after: u64) -> Result<KvEvents, PoolError> {
        match self.ask(KvRequest::Events { handle: self.handle, after, limit: u32::MAX })? {
            KvReply::Events { next, events, lost } => Ok(KvEvents { next, events, lost }),
            other => Err(unexpected("Events", &Reply::Kv(other))),
        }
    }

    /// The answers for keys, as many of them in a message as it takes.
    fn answers(
        &self,
        keys: &[&[u8]],
        request: impl Fn(Handle, Vec<KvKey>) -> KvRequest,
    ) -> Result<Vec<bool>, PoolError> {
        let mut all = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let keys: Vec<KvKey> = keys.iter().map(|key| key.to_vec()).collect();
            let count = keys.len();
            match self.ask(request(self.handle, keys))? {
                KvReply::Answers(answers) if answers.len() == count => all.extend(answers),
                other => return Err(unexpected("Answers", &Reply::Kv(other))),
            }
        }
        Ok(all)
    }
}
