//! What a run gives. Counts are exact for the seed; times follow from the costs of the plan; `measured` is this machine's clock.

use serde::Serialize;
use std::collections::BTreeMap;

/// All figures of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ScaleFigures {
    /// Nodes.
    pub nodes: u64,
    /// Racks.
    pub racks: u64,
    /// Seconds that programs ran.
    pub seconds: f64,
    /// Operations of all programs.
    pub operations: u64,
    /// Of these: the page was on the node.
    pub here: u64,
    /// The page was on another node of the rack.
    pub rack: u64,
    /// The page was in another rack.
    pub away: u64,
    /// Operations whose word was out of date: refused once, and sent on after a question to the directory.
    pub stale: u64,
    /// Operations that met a page while it was frozen for a move; the thread did nothing else until it was thawed.
    pub met_frozen: u64,
    /// Operations on pages that were lost with a node.
    pub lost: u64,
    /// Of the operations on pages elsewhere, the share whose word was right.
    pub word_hit_rate: f64,
    /// Mean nanoseconds of an operation.
    pub operation_ns: f64,
    /// Messages between nodes and to the directory, for each operation.
    pub messages_per_operation: f64,
    /// Moves of pages.
    pub moves: MoveFigures,
    /// The directory.
    pub directory: DirectoryFigures,
    /// What followed the death of a rack.
    pub recovery: Option<RecoveryFigures>,
}

/// Moves of pages.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct MoveFigures {
    /// Asked for.
    pub asked: u64,
    /// Pages that moved.
    pub taken: u64,
    /// Refused by the page's home.
    pub refused_by_home: u64,
    /// Refused by the directory.
    pub refused_by_directory: u64,
    /// Pages moved in a second.
    pub taken_per_s: f64,
    /// Bytes moved in a second.
    pub bytes_per_s: f64,
    /// Bytes that left one node for another: pages, and 64 for each operation elsewhere.
    pub network_bytes: u64,
    /// Samples that programs overwrote before their node looked; those that were left stood for them.
    pub samples_lost: u64,
}

/// The directory while programs ran.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct DirectoryFigures {
    /// Commands.
    pub commands: u64,
    /// Commands in a second.
    pub commands_per_s: f64,
    /// Of these, with a transaction.
    pub durable_per_s: f64,
    /// Share of the time that it worked, by the costs of the plan.
    pub utilisation: f64,
    /// Mean milliseconds that a command waited for others.
    pub wait_ms: f64,
    /// The longest wait.
    pub wait_ms_max: f64,
    /// Nodes that lost their lease though they lived.
    pub leases_lost: u64,
    /// Records of the store at the end.
    pub records: u64,
    /// Bytes of their keys and values.
    pub record_bytes: u64,
    /// Measured nanoseconds of one processor for a command, without a store; 0 without a clock.
    pub measured_ns: f64,
    /// Share of one processor that its commands took, measured; without a store.
    pub measured_processors: f64,
    /// For each kind of command.
    pub kinds: BTreeMap<&'static str, CommandFigures>,
}

/// Commands of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CommandFigures {
    /// How many.
    pub count: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Of these, with a transaction.
    pub durable: u64,
    /// Bytes of records that were written.
    pub written_bytes: u64,
    /// Measured nanoseconds of all of them.
    pub measured_ns: u64,
}

/// From the death of a rack until all is whole.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RecoveryFigures {
    /// Nodes that died.
    pub nodes: u64,
    /// Copies of objects that died and have another.
    pub copies: u64,
    /// Copies that were made.
    pub copies_made: u64,
    /// Bytes of these.
    pub bytes_made: u64,
    /// Objects without any copy left.
    pub objects_lost: u64,
    /// Seconds until the directory took the nodes to be down.
    pub noticed_s: f64,
    /// Seconds until the first copy was begun.
    pub begun_s: Option<f64>,
    /// Seconds until the last copy was whole; none if it did not come to that.
    pub whole_s: Option<f64>,
    /// Most nodes that made copies at the same time.
    pub making_max: u64,
    /// Commands to the directory meanwhile, in a second.
    pub commands_per_s: f64,
}
