//! What is asked about KV blocks. Reads need no request: they go through the files of `Opened`.

use hinterland_types::Handle;
use serde::{Deserialize, Serialize};

/// The key of a block, 1 to 64 bytes.
pub type KvKey = Vec<u8>;

/// A block that a session wants to write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvBlock {
    /// Its key.
    pub key: KvKey,
    /// Its length, 1 byte to 4 MiB.
    pub bytes: u64,
    /// What it follows on.
    pub parent: KvParent,
}

/// The block before another in a prefix. It is not evicted before what follows on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvParent {
    /// None: the first of its prefix, or a block that stands alone.
    None,
    /// The one before it in the same request.
    Previous,
    /// The one with this key.
    Key(KvKey),
}

/// What became of a wish to write a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvSlot {
    /// Write there, then publish.
    Reserved {
        /// The slot.
        slot: u32,
        /// Where its bytes start in the blocks file.
        offset: u64,
    },
    /// The key is there already.
    Exists,
    /// Another session writes it now.
    Busy,
    /// Everything is reserved.
    NoRoom,
}

/// What a session asks of a node about KV blocks. The comment names the reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvRequest {
    /// Grants a capability to a namespace of the caller's user → `Opened`, with three descriptors: books (read-only),
    /// blocks, touches.
    Open {
        /// blake3 of all that engines must agree on: model, revision, type, layout, block tokens, rank.
        fingerprint: [u8; 32],
        /// The same in words, for people; what is longer than 200 characters is cut.
        label: String,
    },
    /// Slots for blocks, all or some → `Slots`.
    Reserve {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        blocks: Vec<KvBlock>,
    },
    /// The slots are written whole → `Published`.
    Publish {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        slots: Vec<u32>,
    },
    /// The slots are not going to be written → `Count`.
    Abort {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        slots: Vec<u32>,
    },
    /// → `Count` of blocks that were there.
    Remove {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        keys: Vec<KvKey>,
    },
    /// Removes all blocks of the namespace → `Count`.
    Clear {
        /// From `Opened`.
        handle: Handle,
    },
    /// → `Status`.
    Status,
}

/// One namespace of a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvNamespaceStatus {
    /// Its number, the first 8 bytes of the fingerprint.
    pub namespace: u64,
    /// What the first session that opened it called it.
    pub label: String,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What the store of one user holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvStatus {
    /// User id of its sessions.
    pub user: u32,
    /// Pages of the blocks file.
    pub pages: String,
    /// Bytes for blocks.
    pub capacity_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Slots that are being written.
    pub reserved: u64,
    /// Blocks that were evicted.
    pub evictions: u64,
    /// Each namespace, by its number.
    pub namespaces: Vec<KvNamespaceStatus>,
}

/// What a node answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvReply {
    /// See [`KvRequest::Open`].
    Opened {
        /// Index into the session's table.
        handle: Handle,
        /// The namespace's number in headers.
        namespace: u64,
    },
    /// One for each block, in their order.
    Slots(Vec<KvSlot>),
    /// One for each slot: false if the index had no room, and the block was given up.
    Published(Vec<bool>),
    /// How many.
    Count(u64),
    /// The stores, by user.
    Status(Vec<KvStatus>),
}
