//! What travels between the directory and the nodes.

use hinterland_directory::{Command, DirectoryError, Reply};
use hinterland_types::{ByteRange, Epoch, NodeId, ObjectId};

/// Who can send and receive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// The directory.
    Directory,
    /// A node.
    Node(NodeId),
}

/// Which task of which life of a node an answer is for: a connection ends with the process that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The life of the process that asks.
    pub life: u64,
    /// Its task.
    pub task: u64,
    /// Part of the task: the attempt of a fetch.
    pub part: u32,
}

/// What is asked of a home. Content is one number for each checksum block, which is its checksum too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HomeRequest {
    /// Make the object.
    Open(ObjectId, Epoch),
    /// Keep these blocks.
    Write(ObjectId, Epoch, ByteRange, Vec<u32>),
    /// Seal what is there, of so many bytes.
    Seal(ObjectId, Epoch, u64),
    /// Let go of an object whose put was given up.
    Abort(ObjectId, Epoch),
    /// The checksums of a sealed object.
    Sums(ObjectId),
    /// Blocks of a sealed object.
    Read(ObjectId, ByteRange),
    /// Compare a copy with its checksums.
    Verify(ObjectId),
}

/// What a home answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HomeAnswer {
    /// The object is there.
    Opened,
    /// The chunk at this offset is there.
    Wrote(u64),
    /// The object is sealed with this digest.
    Sealed([u8; 32]),
    /// The object is gone.
    Aborted,
    /// Checksums.
    Sums(Vec<u32>),
    /// Blocks.
    Blocks(Vec<u32>),
    /// No, and why.
    Refused(String),
}

/// A message.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// To the directory.
    Ask(Ticket, Command),
    /// From the directory.
    Answer(Ticket, Result<Reply, DirectoryError>),
    /// To a home.
    Home(Ticket, HomeRequest),
    /// From a home.
    HomeAnswer(Ticket, HomeAnswer),
}
