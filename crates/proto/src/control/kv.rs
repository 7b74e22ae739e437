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

/// A block as a reader saw it in the books.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvSeen {
    /// Its slot.
    pub slot: u32,
    /// The slot's generation then.
    pub generation: u64,
}

/// What must be true of a key for a swap to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvExpects {
    /// Nothing in particular.
    Anything,
    /// It has no block.
    Nothing,
    /// It still has the block that was seen.
    Block(KvSeen),
    /// It has no block of so many bytes.
    NoneOf(u32),
}

/// A block to swap in for whatever its key has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvSwap {
    /// A slot that was taken and is written.
    pub slot: u32,
    /// The key.
    pub key: KvKey,
    /// Length of the block, at most what the slot was taken for.
    pub bytes: u64,
    /// The block that it follows on in its prefix, which is not evicted before it; without one, or if that is gone, it stands alone.
    pub parent: Option<KvKey>,
    /// When it is to happen.
    pub expects: KvExpects,
    /// crc32c of the bytes, if the writer has taken it.
    pub sum: Option<u32>,
}

/// What came of a swap; the slot is given back unless it is `Done`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvSwapped {
    /// The key has the new block.
    Done,
    /// The key is not as was expected.
    Changed,
    /// The index has no room near the key's hash.
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
    /// Grants a capability to a namespace that was opened before → `Opened`, as there.
    OpenKnown {
        /// Its number.
        namespace: u64,
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
        /// crc32c of the bytes of each, in their order; or none at all: then the node takes them.
        sums: Vec<u32>,
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
    /// Keeps blocks from being evicted until they are unpinned or the session ends → `Answers`: false for one that is not
    /// there, and when half of the memory is pinned.
    Pin {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        keys: Vec<KvKey>,
    },
    /// Takes pins of the session back → `Answers`: false for a block that it has not pinned.
    Unpin {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        keys: Vec<KvKey>,
    },
    /// Sets what the namespace may have → `Count` of bytes that its slots take now.
    Limit {
        /// From `Opened`.
        handle: Handle,
        /// Most bytes of slots; `None` for as much as there is.
        quota_bytes: Option<u64>,
        /// Blocks of namespaces of a lower priority are evicted before any of a higher one; 100 is usual.
        priority: u8,
    },
    /// → `Inspected`.
    Inspect {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        key: KvKey,
    },
    /// What was stored and removed in the namespace → `Events`. Nothing is recorded before the first request.
    Events {
        /// From `Opened`.
        handle: Handle,
        /// `next` of the last reply; 0 at first.
        after: u64,
        /// Most events, at most 4096.
        limit: u32,
    },
    /// → `Status`, with the first [`KV_SPACES_AT_ONCE`] namespaces of all stores together.
    Status,
    /// Swaps blocks in, in their order and with nobody in between; then gives slots back, and then takes others →
    /// `Swapped`.
    Swap {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        blocks: Vec<KvSwap>,
        /// Slots that are not going to be written.
        give: Vec<u32>,
        /// Lengths of blocks to come, 1 byte to 4 MiB: a slot for each.
        take: Vec<u64>,
        /// Whether blocks of the namespace still go to a disk. What the disk has of a swapped key is removed there, but a node that is
        /// killed before it has written this down finds the old one. If not, none does from here on.
        on_disk: bool,
    },
    /// Removes blocks that are still those that were seen → `Count` of them.
    RemoveSeen {
        /// From `Opened`.
        handle: Handle,
        /// Which.
        blocks: Vec<(KvKey, KvSeen)>,
    },
    /// Some keys of the namespace → `Listed`. Who goes on to the end has been given every key that was there all the time.
    List {
        /// From `Opened`.
        handle: Handle,
        /// Where to go on; 0 at first.
        cursor: u64,
        /// About how many keys, at most 4096; fewer may come, even none.
        limit: u32,
    },
    /// → `Count` of the blocks of the namespace.
    Blocks {
        /// From `Opened`.
        handle: Handle,
    },
    /// How many of the keys, from the first on, are here or at any other node → `Count`.
    Match {
        /// From `Opened`.
        handle: Handle,
        /// Which, at most [`KV_KEYS_MAX`].
        keys: Vec<KvKey>,
    },
    /// Brings blocks of other nodes here and waits for them → `Fetched`.
    Fetch {
        /// From `Opened`.
        handle: Handle,
        /// Which, at most [`KV_KEYS_MAX`].
        keys: Vec<KvKey>,
    },
    /// Begins to bring blocks of other nodes here → `Count` of the keys that are looked for: all, or none if the node is busy
    /// with as much already.
    Prefetch {
        /// From `Opened`.
        handle: Handle,
        /// Which, at most [`KV_KEYS_MAX`].
        keys: Vec<KvKey>,
    },
    /// Blocks whose bytes are not those that were published; the node looks itself → `Count` of those that it has dropped.
    Doubt {
        /// From `Opened`.
        handle: Handle,
        /// What was seen of each.
        blocks: Vec<KvSeen>,
    },
    /// Removes all blocks of the namespace at every node of the pool → `Count` of blocks; refused if one was not reached, or has pinned
    /// ones, and then they are removed at the others all the same.
    ClearEverywhere {
        /// From `Opened`.
        handle: Handle,
    },
    /// Removes blocks at every node of the pool, as `ClearEverywhere` does → `Count`.
    RemoveEverywhere {
        /// From `Opened`.
        handle: Handle,
        /// Which, at most [`KV_KEYS_MAX`].
        keys: Vec<KvKey>,
        /// Whether this node is one of them.
        is_here_too: bool,
    },
    /// Looks for blocks here, on the disk and at other nodes, and brings none here → `Lengths`.
    Lengths {
        /// From `Opened`.
        handle: Handle,
        /// Which, at most [`KV_KEYS_MAX`].
        keys: Vec<KvKey>,
    },
    /// Swaps blocks in if all keys are as expected, and nothing else, with nobody in between → `Swapped`, without slots and with the
    /// same for each block. No block of the namespace goes to a disk from here on.
    SwapAll {
        /// From `Opened`.
        handle: Handle,
        /// Which, of different keys.
        blocks: Vec<KvSwap>,
        /// Blocks of other keys that must still be those that were seen.
        seen: Vec<(KvKey, KvSeen)>,
        /// Whether they are removed then.
        removes: bool,
    },
    /// More namespaces of a store, up to [`KV_SPACES_AT_ONCE`] → `Spaces`.
    Spaces {
        /// The user whose it is.
        user: u32,
        /// Those with higher numbers; without it all.
        after: Option<u64>,
    },
}

/// Most namespaces of one answer: with labels of 200 letters of four bytes each they fill half a control message.
pub const KV_SPACES_AT_ONCE: usize = 512;

/// Most keys of one request that reaches other nodes: with keys of 64 bytes it fills half a control message.
pub const KV_KEYS_MAX: usize = 8192;

/// Where a block lies in the store of another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvPlace {
    /// Its slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u64,
    /// Where its bytes start in the blocks file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u32,
    /// The block that it follows on, so that both leave in order here too.
    pub parent: Option<KvKey>,
}

/// A block that was read from another node, to be looked at again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvHeld {
    /// Its key.
    pub key: KvKey,
    /// The slot that was read.
    pub slot: u32,
    /// The generation that it had.
    pub generation: u64,
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
    /// Bytes of their slots and of those that are being written.
    pub slot_bytes: u64,
    /// Blocks that were evicted.
    pub evictions: u64,
    /// Most bytes of slots, if there is a quota.
    pub quota_bytes: Option<u64>,
    /// Lower ones are evicted first.
    pub priority: u8,
    /// Keys that were looked up without being read.
    pub asked: u64,
    /// Of those, keys whose block was there.
    pub found: u64,
    /// Keys whose block was to be read.
    pub gets: u64,
    /// Of those, keys whose block was.
    pub got: u64,
    /// Bytes of those blocks.
    pub read_bytes: u64,
}

/// One block, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvInspected {
    /// Its slot.
    pub slot: u32,
    /// Where its bytes start in the blocks file.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
    /// Bytes of the slot.
    pub slot_bytes: u64,
    /// The slot's generation.
    pub generation: u64,
    /// Pins of all sessions.
    pub pins: u32,
    /// The block that it follows on, if that is there.
    pub parent: Option<KvKey>,
    /// Blocks that follow on it.
    pub children: Vec<KvKey>,
}

/// A change of what a namespace holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvEvent {
    /// A block became visible.
    Stored {
        /// Its key.
        key: KvKey,
        /// The block that it follows on, if that is there.
        parent: Option<KvKey>,
        /// Its length.
        bytes: u32,
    },
    /// A block was evicted or removed.
    Removed {
        /// Its key.
        key: KvKey,
    },
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
    /// Bytes of slots whose blocks are pinned.
    pub pinned_bytes: u64,
    /// Each namespace, by its number.
    pub namespaces: Vec<KvNamespaceStatus>,
    /// What went to and came from other nodes.
    pub racks: KvRacksStatus,
    /// The disk tier, if there is one.
    pub disk: Option<KvDiskStatus>,
    /// What outlives the node, and what is checked.
    pub kept: KvKeptStatus,
    /// The order in which blocks are evicted, as the node's `--eviction` names it.
    pub eviction: String,
}

/// What of a store outlives the node, what was found at its start, and what was found wrong since.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KvKeptStatus {
    /// The file with the blocks, if they outlive the node.
    pub path: Option<String>,
    /// Blocks that the node before this one had left.
    pub restored_blocks: u64,
    /// Those that it had left and that are not whole, had no checksum yet or belong to nobody.
    pub dropped_blocks: u64,
    /// Blocks of before whose bytes are not checked yet: nobody finds them.
    pub unchecked_blocks: u64,
    /// Slots that programs of before may still write.
    pub abandoned_slots: u64,
    /// Blocks that have no checksum yet: they would be lost if the node were killed now.
    pub unsummed_blocks: u64,
    /// Blocks that were dropped because their bytes are not those that were published.
    pub damaged_blocks: u64,
    /// Whether readers check what they copy.
    pub verifies: bool,
    /// Evictions that nobody waited for; the others are those of programs that wanted room.
    pub evictions_ahead: u64,
}

/// What the disk tier of a store holds, and what it did since the node started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KvDiskStatus {
    /// Its file.
    pub path: String,
    /// What it is doing, in words.
    pub state: String,
    /// Bytes of the file that are used.
    pub capacity_bytes: u64,
    /// Blocks on the disk.
    pub blocks: u64,
    /// Their bytes, with what is written beside them.
    pub bytes: u64,
    /// Bytes that wait to be written.
    pub staged_bytes: u64,
    /// Blocks that were written.
    pub written_blocks: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Blocks that were brought back into memory.
    pub read_blocks: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Evicted blocks that were not written, because the disk did not keep up or was left alone.
    pub lost_blocks: u64,
    /// Transfers that failed.
    pub failures: u64,
    /// Blocks that were read and were not what was written; each was thrown away.
    pub checksum_failures: u64,
    /// What the last failed transfer said.
    pub last_error: Option<String>,
}

/// What a store has had to do with those of other nodes, since the node started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KvRacksStatus {
    /// Other nodes that are asked.
    pub nodes: u32,
    /// Other nodes that are left alone for a while, because they did not answer.
    pub resting: u32,
    /// Blocks that were brought here.
    pub hits: u64,
    /// Blocks that were to be brought here and were not had anywhere, or not in time.
    pub misses: u64,
    /// Bytes of the blocks that were brought here.
    pub bytes: u64,
    /// Blocks that arrived with a wrong checksum; each was thrown away.
    pub checksum_failures: u64,
    /// Blocks that other nodes have read here.
    pub sent_blocks: u64,
    /// Their bytes.
    pub sent_bytes: u64,
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
        /// Its number among the counters of the touches file.
        counters: u32,
    },
    /// One for each block, in their order.
    Slots(Vec<KvSlot>),
    /// One for each slot: false if the index had no room, and the block was given up.
    Published(Vec<bool>),
    /// How many.
    Count(u64),
    /// One for each key, in their order.
    Answers(Vec<bool>),
    /// The block, if it is there.
    Inspected(Option<KvInspected>),
    /// See [`KvRequest::Events`].
    Events {
        /// What to ask for after these.
        next: u64,
        /// In their order.
        events: Vec<KvEvent>,
        /// Whether some before these are not known any more: look at the blocks anew.
        lost: bool,
    },
    /// The stores, by user.
    Status(Vec<KvStatus>),
    /// See [`KvRequest::Swap`].
    Swapped {
        /// One for each block, in their order.
        outcomes: Vec<KvSwapped>,
        /// One for each length, in their order: `Reserved` or `NoRoom`.
        slots: Vec<KvSlot>,
    },
    /// See [`KvRequest::List`].
    Listed {
        /// The keys.
        keys: Vec<KvKey>,
        /// Where to go on; `None` at the end.
        next: Option<u64>,
    },
    /// One for each key: whether its block is here.
    Fetched(Vec<bool>),
    /// One for each key: the length of its block, if there is one anywhere.
    Lengths(Vec<Option<u32>>),
    /// Namespaces, by number.
    Spaces(Vec<KvNamespaceStatus>),
}
