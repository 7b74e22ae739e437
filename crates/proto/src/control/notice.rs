//! What a node tells a program without being asked, and what the program answers.

use serde::{Deserialize, Serialize};

/// One range of a program's memory that the node wants to know about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProbeRange {
    /// Pointer in the program.
    pub pointer: u64,
    /// Length.
    pub bytes: u64,
}

/// What a node tells a program without being asked, over the channel of [`super::Request::Watch`];
/// framed by a little-endian `u32` length.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// Memory is lost: print this on stderr, then answer `Seen`; SIGBUS follows.
    Lost {
        /// What was lost and why.
        text: String,
    },
    /// Drop the page-table entries of these ranges (the data stays) → `Seen`.
    Unmap {
        /// Echoed in the answer.
        id: u64,
        /// Ranges.
        ranges: Vec<ProbeRange>,
    },
    /// Say which of these ranges have been touched since → `Touched`.
    Touched {
        /// Echoed in the answer.
        id: u64,
        /// Ranges.
        ranges: Vec<ProbeRange>,
    },
}

/// A program's answer to a notice, framed alike.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NoticeReply {
    /// It was done.
    Seen {
        /// Echo; 0 for `Lost`.
        id: u64,
    },
    /// One answer a range.
    Touched {
        /// Echo.
        id: u64,
        /// Whether any page of the range is mapped.
        touched: Vec<bool>,
    },
}
