//! KV blocks that engines of this host share: found and read in place, written by reservation.

use crate::session::unexpected;
use crate::{Line, Pool, PoolError, Session};
use hinterland_kv::{BlockKey, Found, Namespace, View, ViewError};
use hinterland_os::MemoryFile;
use hinterland_proto::control::{KvBlock, KvParent, KvReply, KvRequest, KvSlot, KvStatus, Reply, Request};
use hinterland_types::Handle;

const EINVAL: i32 = 22;
/// Parts of a large put: what the node does for one is hidden by the copies of another.
const PUT_PARTS: usize = 4;
/// Fewest blocks of a part: below that a message costs more than it hides.
const PUT_PART_MIN: usize = 16;

/// A namespace of KV blocks. Blocks that are put here are found by every process of the user that opens the same one.
pub struct KvCache {
    session: Session,
    view: View,
    handle: Handle,
    namespace: Namespace,
}

/// A block to put: its key, and the pieces of which it is gathered.
pub type Gathered<'bytes> = (&'bytes [u8], &'bytes [&'bytes [u8]]);

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

impl Pool {
    /// Opens the KV blocks of an engine. `fingerprint` is everything that engines must agree on to understand each other's
    /// blocks: model, revision, type, layout, tokens of a block, rank.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the node has no memory for KV blocks.
    pub fn kv(&self, fingerprint: &str) -> Result<KvCache, PoolError> {
        let label = fingerprint.chars().take(200).collect();
        let fingerprint = *blake3::hash(fingerprint.as_bytes()).as_bytes();
        let request = Request::Kv(KvRequest::Open { fingerprint, label });
        // One of its own: a put has it to itself while it copies.
        let session = Session::connect(Some(self.session().socket()))?;
        let (reply, descriptors) = session.call_with(&request, &[])?;
        let files =
            descriptors.into_iter().map(MemoryFile::from_descriptor).collect::<Result<Vec<_>, _>>()?;
        match (reply, files.as_slice()) {
            (Reply::Kv(KvReply::Opened { handle, namespace }), [books, blocks, touches]) => Ok(KvCache {
                session,
                view: View::map(books, blocks, touches).map_err(broken)?,
                handle,
                namespace: Namespace(namespace),
            }),
            (other, _) => Err(unexpected("Opened with three descriptors", &other)),
        }
    }

    /// What the stores of the local node hold.
    ///
    /// # Errors
    /// [`PoolError`] if it does not answer.
    pub fn kv_status(&self) -> Result<Vec<KvStatus>, PoolError> {
        match self.session().call(&Request::Kv(KvRequest::Status))? {
            Reply::Kv(KvReply::Status(stores)) => Ok(stores),
            other => Err(unexpected("Status", &other)),
        }
    }
}

impl KvCache {
    /// The length of the block of a key, if it is there now. No message to anybody.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes.
    pub fn length(&self, key: &[u8]) -> Result<Option<u32>, PoolError> {
        Ok(self.find(key)?.map(|found| found.bytes()))
    }

    /// How many of the keys, from the first on, are there now: the longest prefix that an engine need not compute.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn match_prefix(&self, keys: &[&[u8]]) -> Result<usize, PoolError> {
        for (index, key) in keys.iter().enumerate() {
            if self.find(key)?.is_none() {
                return Ok(index);
            }
        }
        Ok(keys.len())
    }

    /// Copies a block into pieces, in their order; its length, or `None` if it is not there, or was evicted meanwhile: what
    /// the pieces hold then is of no use. Pieces that are shorter than the block get its start.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    #[inline]
    pub fn get(&self, key: &[u8], into: &mut [&mut [u8]]) -> Result<Option<u32>, PoolError> {
        let Some(found) = self.find(key)? else { return Ok(None) };
        Ok(self.view.read(&found, into).then(|| found.bytes()))
    }

    /// Writes blocks, each gathered from pieces; one answer each. A block is visible whole or not at all.
    ///
    /// A large batch goes in parts: the node reserves the next part and publishes the last one while this one is copied.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes, or a block of none or more than 4 MiB: the parts
    /// before it are written then.
    pub fn put(&self, blocks: &[Gathered<'_>]) -> Result<Vec<Stored>, PoolError> {
        let parts: Vec<&[Gathered<'_>]> =
            blocks.chunks(blocks.len().div_ceil(PUT_PARTS).max(PUT_PART_MIN)).collect();
        let mut line = self.session.line();
        let mut outcomes = Vec::with_capacity(blocks.len());
        if let Some(first) = parts.first() {
            line.send(&self.reserve(first))?;
        }
        // The slots of the part that is being published.
        let mut publishing: Option<Vec<KvSlot>> = None;
        for (index, part) in parts.iter().enumerate() {
            let slots = match self.answer(&mut line)? {
                KvReply::Slots(slots) if slots.len() == part.len() => slots,
                other => return Err(unexpected("Slots", &other)),
            };
            if let Some(next) = parts.get(index + 1) {
                line.send(&self.reserve(next))?;
            }
            let reserved = reserved_slots(&slots);
            if let Err(error) = self.write(&slots, part) {
                // The session holds them: they would be free again only when it ends.
                line.send(&Request::Kv(KvRequest::Abort { handle: self.handle, slots: reserved }))?;
                return Err(error);
            }
            if let Some(slots) = publishing.take() {
                outcomes.extend(self.published(&mut line, &slots)?);
            }
            line.send(&Request::Kv(KvRequest::Publish { handle: self.handle, slots: reserved }))?;
            publishing = Some(slots);
        }
        if let Some(slots) = publishing {
            outcomes.extend(self.published(&mut line, &slots)?);
        }
        Ok(outcomes)
    }

    /// Removes blocks; returns how many were there.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn remove(&self, keys: &[&[u8]]) -> Result<u64, PoolError> {
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.count(KvRequest::Remove { handle: self.handle, keys })
    }

    /// Removes all blocks of the namespace; returns how many there were.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn clear(&self) -> Result<u64, PoolError> {
        self.count(KvRequest::Clear { handle: self.handle })
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Result<Option<Found>, PoolError> {
        let key = BlockKey::new(key)
            .map_err(|error| PoolError::Refused { code: EINVAL, text: error.to_string() })?;
        Ok(self.view.find(self.namespace, &key))
    }

    fn reserve(&self, blocks: &[Gathered<'_>]) -> Request {
        let wanted = blocks.iter().map(|(key, pieces)| KvBlock {
            key: key.to_vec(),
            bytes: length(pieces),
            parent: KvParent::None,
        });
        Request::Kv(KvRequest::Reserve { handle: self.handle, blocks: wanted.collect() })
    }

    /// Copies blocks into the slots that were reserved for them.
    fn write(&self, slots: &[KvSlot], blocks: &[Gathered<'_>]) -> Result<(), PoolError> {
        for (slot, (_, pieces)) in slots.iter().zip(blocks) {
            if let KvSlot::Reserved { offset, .. } = *slot {
                self.view.write(offset, length(pieces), pieces).map_err(broken)?;
            }
        }
        Ok(())
    }

    /// What became of the blocks of a part, whose answer is next.
    fn published(&self, line: &mut Line<'_>, slots: &[KvSlot]) -> Result<Vec<Stored>, PoolError> {
        let KvReply::Published(answers) = self.answer(line)? else {
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

    fn answer(&self, line: &mut Line<'_>) -> Result<KvReply, PoolError> {
        match line.receive()? {
            Reply::Kv(reply) => Ok(reply),
            other => Err(unexpected("Kv", &other)),
        }
    }

    fn count(&self, request: KvRequest) -> Result<u64, PoolError> {
        match self.ask(request)? {
            KvReply::Count(count) => Ok(count),
            other => Err(unexpected("Count", &other)),
        }
    }

    fn ask(&self, request: KvRequest) -> Result<KvReply, PoolError> {
        match self.session.call(&Request::Kv(request))? {
            Reply::Kv(reply) => Ok(reply),
            other => Err(unexpected("Kv", &other)),
        }
    }
}

fn length(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

fn reserved_slots(slots: &[KvSlot]) -> Vec<u32> {
    let slot = |slot: &KvSlot| match *slot {
        KvSlot::Reserved { slot, .. } => Some(slot),
        _ => None,
    };
    slots.iter().filter_map(slot).collect()
}

fn broken(error: ViewError) -> PoolError {
    match error {
        ViewError::Os(error) => error.into(),
        other => PoolError::Refused { code: EINVAL, text: other.to_string() },
    }
}
