//! What a put takes in and gives out.

use hinterland_types::{ByteRange, Epoch, NodeId, ObjectId};

/// What to put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Bytes, or `None` for a stream: its room then grows with it.
    pub size: Option<u64>,
}

/// How a put is cut and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutLimits {
    /// Bytes of one write: at most a frame's body.
    pub chunk_bytes: u64,
    /// Writes under way at each home; so many chunks the source must keep.
    pub window: u64,
    /// Milliseconds after which a request is sent again.
    pub timeout_ms: u64,
    /// How often a request is sent before it counts as refused.
    pub tries: u32,
    /// Room that a stream asks for at once, in bytes.
    pub grow_bytes: u64,
}

impl Default for PutLimits {
    /// 1 MiB chunks, 8 under way at each home fill a fast network and bound the source's buffers to 8 MiB.
    /// Five tries of a second outlast a directory's restart. A stream grows by 64 MiB, one durable commit
    /// at the directory for at least 10 ms of writing.
    fn default() -> Self {
        Self { chunk_bytes: 1 << 20, window: 8, timeout_ms: 1000, tries: 5, grow_bytes: 64 << 20 }
    }
}

/// A home of the object that is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PutHome {
    /// The node.
    pub node: NodeId,
    /// The epoch of the copy, which the home keeps with it.
    pub epoch: Epoch,
}

/// A put that cannot be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Limits that no put can keep.
    #[error("limits {limits:?} cannot be kept (hint: chunks up to a frame's body, everything else above 0)")]
    Limits {
        /// What was given.
        limits: PutLimits,
    },
}

/// A step of a put at which it can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PutStep {
    /// Taking the name and room for it.
    Reserve,
    /// More room for a stream.
    Grow,
    /// Making the object at a home.
    Open,
    /// Writing at a home.
    Write,
    /// Sealing at a home.
    SealHome,
    /// Sealing at the directory.
    Commit,
    /// Undoing the put at the directory.
    Abort,
    /// The source gave up.
    Cancel,
}

/// How far a put that failed got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Nothing is visible, and nothing will be.
    Undone,
    /// The directory did not answer: it undoes what is left when it misses the writer, unless it had committed.
    Unknown,
}

/// Why a put failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step:?} failed{}: {reason} ({})", at(*node), said(*outcome))]
pub struct PutFailure {
    /// What was being done.
    pub step: PutStep,
    /// At which home, if at one.
    pub node: Option<NodeId>,
    /// What was said.
    pub reason: String,
    /// What has become of the object.
    pub outcome: PutOutcome,
}

/// What happened. Answers that nobody waits for (repeated or late) are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutEvent {
    /// The directory gave a name and room.
    Reserved {
        /// The object.
        object: ObjectId,
        /// Its homes.
        homes: Vec<PutHome>,
    },
    /// The directory gave more room.
    Grown {
        /// Bytes in all.
        bytes: u64,
    },
    /// The source has bytes up to here.
    Data {
        /// Bytes from the start of the object.
        end: u64,
    },
    /// The source has no more bytes than it said.
    Finish {
        /// Digest of all of them.
        digest: [u8; 32],
    },
    /// A home made the object.
    Opened {
        /// The home.
        node: NodeId,
    },
    /// A home holds a chunk.
    Wrote {
        /// The home.
        node: NodeId,
        /// Offset of the chunk.
        offset: u64,
    },
    /// A home has sealed what it holds.
    HomeSealed {
        /// The home.
        node: NodeId,
        /// Digest of what it holds.
        digest: [u8; 32],
    },
    /// A home let go of the object.
    HomeAborted {
        /// The home.
        node: NodeId,
    },
    /// A home refused something, or cannot be reached any more.
    HomeRefused {
        /// The home.
        node: NodeId,
        /// What it said.
        reason: String,
    },
    /// The directory refused something.
    Refused {
        /// What: `Reserve`, `Grow`, `Commit` or `Abort`.
        step: PutStep,
        /// What it said.
        reason: String,
    },
    /// The directory has durably sealed the object.
    Committed,
    /// The directory has durably undone the put.
    Aborted,
    /// The directory cannot undo the put: it had sealed the object.
    AlreadySealed,
    /// The source gives up.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Time has passed.
    Timeout,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutAction {
    /// Ask the directory for a name and room.
    Reserve,
    /// Ask the directory for room up to here.
    Grow {
        /// The object.
        object: ObjectId,
        /// Bytes in all.
        bytes: u64,
    },
    /// Make the object at a home.
    Open {
        /// The object.
        object: ObjectId,
        /// The home.
        home: PutHome,
    },
    /// Write a chunk at a home.
    Write {
        /// The object.
        object: ObjectId,
        /// The home.
        home: PutHome,
        /// The chunk.
        chunk: ByteRange,
    },
    /// The source may forget its bytes up to here: every home holds them.
    Release {
        /// Bytes from the start of the object.
        end: u64,
    },
    /// Seal the object at a home.
    SealHome {
        /// The object.
        object: ObjectId,
        /// The home.
        home: PutHome,
        /// Its size in bytes.
        size: u64,
    },
    /// Seal the object at the directory.
    Commit {
        /// The object.
        object: ObjectId,
        /// Its size in bytes.
        size: u64,
        /// Its digest, on which all agree.
        digest: [u8; 32],
        /// All homes.
        homes: Vec<NodeId>,
    },
    /// Tell a home that the object is visible. Sent once: a home that misses it learns it when it asks.
    CommitHome {
        /// The object.
        object: ObjectId,
        /// The home.
        home: PutHome,
    },
    /// Undo the put at the directory.
    Abort {
        /// The object.
        object: ObjectId,
    },
    /// Undo the put at a home. Homes that miss it hear it from the directory.
    AbortHome {
        /// The object.
        object: ObjectId,
        /// The home.
        home: PutHome,
    },
    /// The object is durably there: tell the user. Nothing follows.
    Done {
        /// The object.
        object: ObjectId,
        /// Its size in bytes.
        size: u64,
    },
    /// The put failed: tell the user. Only `AbortHome` follows.
    Fail(PutFailure),
}

fn at(node: Option<NodeId>) -> String {
    node.map_or_else(String::new, |node| format!(" at {node}"))
}

fn said(outcome: PutOutcome) -> &'static str {
    match outcome {
        PutOutcome::Undone => "the put is undone (hint: put it again)",
        PutOutcome::Unknown => "whether it is there is not known (hint: look with `hinterland stat`)",
    }
}
