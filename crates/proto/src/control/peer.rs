//! What a node asks of another, and the answers.

use super::{KvHeld, KvKey, KvPlace, PageHeat};
use hinterland_types::{Epoch, GlobalAddress, Handle, ObjectId, ObjectName};
use serde::{Deserialize, Serialize};

/// What a node asks of another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerRequest {
    /// An encoded directory command → `Directory`.
    Directory(Vec<u8>),
    /// Room for an object that is about to be written → `Done`.
    HomeCreate {
        /// Object.
        object: ObjectId,
        /// Epoch of the copy, from the directory.
        epoch: Epoch,
        /// Name, kept beside the bytes.
        name: ObjectName,
        /// Size if known.
        bytes: Option<u64>,
        /// Who may attach.
        ticket: [u8; 16],
    },
    /// More room → `Done`.
    HomeGrow {
        /// Object.
        object: ObjectId,
        /// Size up to now.
        bytes: u64,
    },
    /// Compute checksums over what is held and keep them → `Sealed`.
    HomeSeal {
        /// Object.
        object: ObjectId,
        /// Size.
        bytes: u64,
    },
    /// Forget the object, sealed or not → `Done`.
    HomeDrop {
        /// Object.
        object: ObjectId,
    },
    /// A region of zeros → `Done`.
    HomeRegion {
        /// Object.
        object: ObjectId,
        /// Epoch of the copy, from the directory.
        epoch: Epoch,
        /// Name.
        name: ObjectName,
        /// Size.
        bytes: u64,
    },
    /// The crc32c of each 64 KiB block from `first` on, as many as fit → `Checksums`.
    Checksums {
        /// Object.
        object: ObjectId,
        /// Index of the first block.
        first: u64,
    },
    /// Reads the copy and compares it with its checksums → `Verified`.
    HomeVerify {
        /// Object.
        object: ObjectId,
    },
    /// A capability for one-sided reads of a sealed object → `Granted`.
    Attach {
        /// Object.
        object: ObjectId,
    },
    /// Where KV blocks lie → `KvFound`.
    KvFind {
        /// User id whose store is asked.
        user: u32,
        /// The whole fingerprint of the namespace.
        fingerprint: [u8; 32],
        /// Which, at most [`KV_KEYS_MAX`](super::KV_KEYS_MAX).
        keys: Vec<KvKey>,
    },
    /// A part of a region that is spread: the pages that the rule gives to this node → `Done`.
    HomePart {
        /// Object.
        object: ObjectId,
        /// Epoch of the part, from the directory.
        epoch: Epoch,
        /// Name.
        name: ObjectName,
        /// Size of the whole region.
        bytes: u64,
    },
    /// Nobody may touch a page from here on, until the directory says where it lies → `PageFrozen`, or it is refused and
    /// stays as it is.
    PageFreeze {
        /// The region.
        object: ObjectId,
        /// Which page of it, from 0.
        index: u32,
        /// The epoch of the move.
        epoch: Epoch,
        /// Heat of the page in the rack that wants it; none if it comes by order.
        heat: Option<PageHeat>,
    },
    /// Whether the home would let a page go that has this heat → `Done`, or `PageMayBeCopied`, or it is refused.
    PageWanted {
        /// The region.
        object: ObjectId,
        /// Which page of it.
        index: u32,
        /// Its heat in the rack that wants it.
        heat: PageHeat,
    },
    /// The move is committed: let go of the page → `Done`.
    PageMoved {
        /// The region.
        object: ObjectId,
        /// Which page of it.
        index: u32,
        /// The epoch of the move.
        epoch: Epoch,
    },
    /// A copy of a page is wanted, to be read by programs of the asking node → `PageShared`.
    PageShare {
        /// The region.
        object: ObjectId,
        /// Which page of it.
        index: u32,
        /// Where the asking node is told that the page will be written.
        address: String,
    },
    /// The page will be written: nobody may read the copy any more → `Done`, once nobody does.
    PageUnshare {
        /// The region.
        object: ObjectId,
        /// Which page of it.
        index: u32,
    },
    /// Somebody wants to write a page of which others have copies → `Done`, once nobody has.
    PageWrite {
        /// The region.
        object: ObjectId,
        /// Which page of it.
        index: u32,
    },
    /// Copies that were given under this term are still read → `Done`, or they are to be dropped.
    PageKeep {
        /// The term of the last [`PeerReply::PageShared`].
        term: u64,
    },
    /// Please take this page → `Done`.
    PageTake {
        /// The region.
        object: ObjectId,
        /// Which page of it.
        index: u32,
    },
    /// Whether blocks that were read are still what they were, and their checksums → `KvChecked`.
    KvCheck {
        /// User id whose store is asked.
        user: u32,
        /// The whole fingerprint of the namespace.
        fingerprint: [u8; 32],
        /// Which, at most [`KV_KEYS_MAX`](super::KV_KEYS_MAX).
        blocks: Vec<KvHeld>,
    },
    /// About locks, encoded as the `directory` crate has it: the life of the node that asks, and what → `Locks`.
    Locks(Vec<u8>),
    /// Forget what is known of a lock, and let no access under an older fence finish later → `Done`.
    LockForget {
        /// The lock.
        address: GlobalAddress,
    },
    /// An encoded pair of a request's number and a directory command, which is carried out once → `Directory`.
    DirectoryOnce(Vec<u8>),
    /// Something changed for locks of the sender that your programs wait for: renew there → `Done`.
    LockNews,
    /// Remove all KV blocks of a namespace, and fetch none from other nodes for ten seconds → `KvCleared`.
    KvClear {
        /// User id whose store is meant.
        user: u32,
        /// The whole fingerprint of the namespace.
        fingerprint: [u8; 32],
    },
    /// Remove KV blocks, and fetch them from no other node until the end of it, ten seconds at most → `KvCleared`.
    KvRemove {
        /// User id whose store is meant.
        user: u32,
        /// The whole fingerprint of the namespace.
        fingerprint: [u8; 32],
        /// Which, at most [`KV_KEYS_MAX`](super::KV_KEYS_MAX).
        keys: Vec<KvKey>,
        /// Whether this is the end: all nodes have removed them.
        is_end: bool,
    },
    /// Brings KV blocks from the node's disk into its memory → `KvFound`.
    KvStage {
        /// User id whose store is asked.
        user: u32,
        /// The whole fingerprint of the namespace.
        fingerprint: [u8; 32],
        /// Which, at most [`KV_KEYS_MAX`](super::KV_KEYS_MAX).
        keys: Vec<KvKey>,
    },
    /// A handle that was given with `Attach` is not needed any more → `Done`.
    Detach {
        /// Handle.
        handle: Handle,
    },
    /// Forget a copy of a sealed object whose bytes are wrong: nobody reads it by any handle from then on → `Done`.
    HomeDistrust {
        /// Object.
        object: ObjectId,
        /// The epoch of the copy that was read: one that was made anew since stays.
        epoch: Epoch,
    },
    /// Write the wrong blocks of a copy of a sealed object anew, from other homes → `Verified` without wrong ones.
    HomeMend {
        /// Object.
        object: ObjectId,
    },
    /// As [`HomeSeal`](Self::HomeSeal), under a name that may be another than the one of [`HomeCreate`](Self::HomeCreate) → `Sealed`.
    HomeSealAs {
        /// Object.
        object: ObjectId,
        /// Size.
        bytes: u64,
        /// Name, kept beside the bytes.
        name: ObjectName,
    },
}

/// What a node answers to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerReply {
    /// It is so.
    Done,
    /// It is not so.
    Error {
        /// An `errno` value that fits.
        code: i32,
        /// For people.
        text: String,
    },
    /// An encoded directory reply.
    Directory(Vec<u8>),
    /// See [`PeerRequest::HomeSeal`].
    Sealed {
        /// As in `PutSeal`, over what the home holds.
        digest: [u8; 32],
    },
    /// See [`PeerRequest::Checksums`].
    Checksums {
        /// crc32c values in order.
        blocks: Vec<u32>,
    },
    /// See [`PeerRequest::HomeVerify`].
    Verified {
        /// Blocks compared.
        blocks: u64,
        /// Indexes of wrong blocks, the first 100.
        wrong: Vec<u64>,
    },
    /// A handle in this connection's session.
    Granted {
        /// Handle.
        handle: Handle,
    },
    /// See [`PeerRequest::PageFreeze`].
    PageFrozen {
        /// For reading the region's frozen pages, in this connection's session.
        handle: Handle,
        /// crc32c of the page.
        crc: u32,
    },
    /// See [`PeerRequest::PageShare`].
    PageShared {
        /// For reading the page, in this connection's session.
        handle: Handle,
        /// crc32c of the page.
        crc: u32,
        /// Names the time during which the home knows of every copy that the asking node has: copies of another term are void.
        term: u64,
    },
    /// See [`PeerRequest::PageWanted`]: the page stays, but may be copied.
    PageMayBeCopied,
    /// See [`PeerRequest::KvFind`] and [`PeerRequest::KvStage`].
    KvFound {
        /// For reads of the blocks file, in this connection's session; none without a store of this user.
        handle: Option<Handle>,
        /// One for each key: where it lies in memory.
        places: Vec<Option<KvPlace>>,
        /// One for each key without a place: how long its block is, if the node's disk has it; empty if it has none of them.
        on_disk: Vec<Option<u32>>,
    },
    /// See [`PeerRequest::KvCheck`].
    KvChecked {
        /// One for each block: crc32c over fingerprint (32 bytes), length of the key (1), key, length of the block (4),
        /// and the crc32c of its bytes (4); none if another block lies there by now.
        sums: Vec<Option<u32>>,
    },
    /// See [`PeerRequest::Locks`]: the life of the lock home, and its answer.
    Locks(Vec<u8>),
    /// See [`PeerRequest::KvClear`] and [`PeerRequest::KvRemove`].
    KvCleared {
        /// Blocks that were removed from memory.
        removed: u64,
        /// Those that are pinned, and stay.
        pinned: u64,
    },
}
