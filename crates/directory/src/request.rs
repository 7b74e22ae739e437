//! Numbers of requests, so that one that is asked again is not carried out again.
//!
//! Where several hosts may lead, a request can be carried out and its answer lost with the host. The node that asked asks
//! again, somebody else, under the same number, and gets the answer that was stored together with the changes.

use crate::Command;
use hinterland_types::NodeId;
use serde::{Deserialize, Serialize};

/// Slots of one node: requests that it may have under way at once.
pub const SLOTS: u16 = 64;

/// The number of a request. A slot is used for the next request only when the one before it was answered or given up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId {
    /// Who asks.
    pub node: NodeId,
    /// Below [`SLOTS`].
    pub slot: u16,
    /// The life of the node; in a later life numbers begin again.
    pub incarnation: u64,
    /// Larger for each request of the slot.
    pub number: u64,
}

impl Command {
    /// Whether the command must not be carried out twice, and so is asked under a number.
    ///
    /// The others change nothing, or only say again what is so.
    pub const fn is_asked_once(&self) -> bool {
        matches!(
            self,
            Self::Reserve { .. }
                | Self::Grow { .. }
                | Self::Seal { .. }
                | Self::Abort { .. }
                | Self::CreateRegion { .. }
                | Self::Remove { .. }
                | Self::AddReplica { .. }
                | Self::ReplicaAdded { .. }
                | Self::BeginMove { .. }
                | Self::CommitMove { .. }
                | Self::CancelMove { .. }
                | Self::Rename { .. }
                | Self::RenameFolder { .. }
                | Self::Publish { .. }
                | Self::MakeRegion { .. }
                | Self::ShowRegion { .. }
                | Self::AddHeatCopy { .. }
        )
    }
}
