//! What a fetch takes in and gives out.

use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, NodeId, ObjectId};
use std::fmt;

/// What to fetch and from where.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The object, which must be sealed: all replicas hold the same bytes for ever.
    pub object: ObjectId,
    /// Size of the object in bytes.
    pub object_bytes: u64,
    /// The range; it starts and ends at checksum blocks, or ends with the object.
    pub range: ByteRange,
    /// Replicas, the preferred one first, each once.
    pub replicas: Vec<NodeId>,
    /// Checksum of each block of the range, in order.
    pub checksums: Vec<u32>,
    /// The function that computes such a checksum.
    pub checksum: fn(&[u8]) -> u32,
}

/// How a fetch is cut and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// Bytes of one request: whole checksum blocks, at most a frame's body.
    pub piece_bytes: u64,
    /// Requests under way at once.
    pub window: usize,
    /// Milliseconds after which a request counts as lost.
    pub timeout_ms: u64,
    /// How often one piece is asked of one replica.
    pub rounds: u32,
}

impl Default for FetchLimits {
    /// 1 MiB pieces: four streams have one each of a 4 MiB unit. A second is far above any queue of a
    /// healthy node and short enough that a program waits only once for a dead one. Two rounds, because
    /// what was lost on the way may pass the second time.
    fn default() -> Self {
        Self { piece_bytes: 1 << 20, window: 8, timeout_ms: 1000, rounds: 2 }
    }
}

impl Fetch {
    /// The smallest range of whole checksum blocks around `range`, cut at the end of the object.
    pub fn whole_blocks(range: ByteRange, object_bytes: u64) -> ByteRange {
        let start = range.offset() / CHECKSUM_BLOCK_BYTES * CHECKSUM_BLOCK_BYTES;
        let end = range.end().div_ceil(CHECKSUM_BLOCK_BYTES).saturating_mul(CHECKSUM_BLOCK_BYTES);
        let end = end.min(object_bytes).max(start);
        ByteRange::new(start, end - start).unwrap_or(range)
    }
}

/// A fetch that cannot be begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The range ends behind the object or is not made of whole blocks.
    #[error(
        "bytes {}..{} are not whole checksum blocks of an object of {object_bytes} bytes (hint: widen with Fetch::whole_blocks)",
        range.offset(), range.end()
    )]
    NotWholeBlocks {
        /// What was asked for.
        range: ByteRange,
        /// Size of the object.
        object_bytes: u64,
    },
    /// Another number of checksums than the range has blocks.
    #[error("{found} checksums for {expected} blocks (hint: read the object's checksums again)")]
    ChecksumCount {
        /// Blocks of the range.
        expected: u64,
        /// Checksums given.
        found: u64,
    },
    /// No replica, or one named twice.
    #[error("{object} has no replica to ask, or one twice (hint: look the object up again)")]
    Replicas {
        /// The object.
        object: ObjectId,
    },
    /// Limits that no fetch can keep.
    #[error(
        "limits {limits:?} cannot be kept (hint: pieces of whole blocks up to a frame, everything else above 0)"
    )]
    Limits {
        /// What was given.
        limits: FetchLimits,
    },
}

/// Why one try at one replica failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TryError {
    /// No answer in time.
    #[error("no answer within {after_ms} ms")]
    TimedOut {
        /// The limit.
        after_ms: u64,
    },
    /// The node cannot be reached.
    #[error("down: {0}")]
    Down(String),
    /// The node answered with an error.
    #[error("{0}")]
    Refused(String),
    /// More or fewer bytes than asked for.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes asked for.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// Bytes that are not the object's.
    #[error("wrong checksum in block {block}")]
    Checksum {
        /// Index of the block in the object.
        block: u64,
    },
}

/// One replica that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The replica.
    pub node: NodeId,
    /// How many tries failed there.
    pub failures: u32,
    /// Why the last of them did.
    pub last: TryError,
}

/// Why a fetch gave up: every replica was tried as often as allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FetchFailure {
    /// The object.
    pub object: ObjectId,
    /// The piece that no replica gave.
    pub range: ByteRange,
    /// What was tried in this fetch, in the order of the replicas.
    pub tried: Vec<Tried>,
}

impl fmt::Display for FetchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (self.range.offset(), self.range.end());
        write!(f, "bytes {start}..{end} of {} cannot be read", self.object)?;
        for tried in &self.tried {
            write!(f, "; {}: {} ({} failed)", tried.node, tried.last, tried.failures)?;
        }
        write!(f, " (hint: `hinterland doctor` shows which nodes are down)")
    }
}

/// What an answer brought: the bytes, or what a transport already computed over them while it copied.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// The bytes themselves, in memory that nobody else writes.
    Bytes(&'a [u8]),
    /// Their number and the checksum of each block.
    Sums {
        /// Bytes that came.
        bytes: u64,
        /// Checksum of each block, in order.
        sums: &'a [u32],
    },
}

/// What happened.
#[derive(Clone, Debug)]
pub enum FetchEvent<'a> {
    /// A request was answered.
    Reply {
        /// From [`FetchAction::Send`].
        attempt: u32,
        /// What came.
        body: Body<'a>,
    },
    /// A request was refused.
    Refused {
        /// From [`FetchAction::Send`].
        attempt: u32,
        /// What the node said.
        reason: String,
    },
    /// A replica cannot be reached: nothing more is asked of it.
    Down {
        /// The replica.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Time has passed.
    Timeout,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchAction {
    /// Ask a replica for a range.
    Send {
        /// Goes with the request and comes back with its answer.
        attempt: u32,
        /// The replica.
        node: NodeId,
        /// The range of the object.
        range: ByteRange,
    },
    /// A replica gave wrong bytes: it should verify its copy.
    Suspect {
        /// The replica.
        node: NodeId,
        /// Index of the wrong block in the object.
        block: u64,
    },
    /// Every byte is there and checked. The last action.
    Done,
    /// Some bytes cannot be had. The last action.
    Fail(FetchFailure),
}
