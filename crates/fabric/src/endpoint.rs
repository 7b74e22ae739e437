//! The trait that every fabric implements: operations on the memory and the service of one peer.

use crate::error::FabricError;
use crate::part::{Destination, Part, Source};
use crate::slice::Slice;
use hinterland_types::{ByteRange, Handle};
use std::time::Duration;

/// What a fabric can do, so that callers choose and do not guess.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Reads and writes do not need the peer's processor.
    pub one_sided: bool,
    /// Largest word for compare-and-swap and fetch-and-add; 0 if there are none.
    pub atomic_bytes: u32,
    /// Up to this size a message costs no copy of its own.
    pub inline_bytes: u32,
    /// Longest body of a call.
    pub message_bytes_max: u32,
    /// Most runs that travel in one request; longer lists are split.
    pub gather_runs_max: u32,
    /// The peer can place bytes in the memory of a GPU.
    pub gpu_memory: bool,
}

/// One peer. All operations may be used from several threads at once; each has a deadline and never hangs.
///
/// Runs are ranges of what the handle names; their bytes follow each other in the buffer. Bytes arrive as they were
/// at some moment during the operation; only 8-byte words that are aligned, lie in a run whole and are of memory that the service
/// calls [changing](crate::Slice::changing) are never torn.
pub trait Endpoint: Send + Sync {
    /// What this fabric can do.
    fn capabilities(&self) -> Capabilities;

    /// Fills `into` with the bytes of all runs.
    ///
    /// # Errors
    /// [`FabricError`]; the content of `into` is then undefined.
    fn read_to(&self, handle: Handle, runs: &[ByteRange], into: Destination<'_>) -> Result<(), FabricError>;

    /// Writes the bytes of `from` to all runs; when it returns they are in the peer's memory.
    ///
    /// # Errors
    /// [`FabricError`]; any part of the bytes may then have been written.
    fn write_from(&self, handle: Handle, runs: &[ByteRange], from: Source<'_>) -> Result<(), FabricError>;

    /// Replaces the word at `offset` (a multiple of 8) if it is `expected`; returns what it was.
    ///
    /// # Errors
    /// [`FabricError`]; after a lost connection the swap may or may not have happened.
    fn compare_and_swap(
        &self,
        handle: Handle,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, FabricError>;

    /// Adds to the word at `offset` (a multiple of 8), wrapping; returns what it was.
    ///
    /// # Errors
    /// [`FabricError`]; after a lost connection the addition may or may not have happened.
    fn fetch_and_add(&self, handle: Handle, offset: u64, addend: u64) -> Result<u64, FabricError>;

    /// Sends a message to the peer's service and returns its answer, waiting at most `within`.
    ///
    /// # Errors
    /// [`FabricError`]; after a lost connection the call may or may not have been served.
    fn call_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError>;

    /// Sends a message to the peer's service and returns its answer, waiting as long as for any operation.
    ///
    /// # Errors
    /// As [`call_within`](Self::call_within).
    fn call(&self, body: &[u8]) -> Result<Vec<u8>, FabricError>;

    /// Asks the peer's service a question that bytes of unknown number answer. As many of them as fit are placed in `into`,
    /// in one round trip and without a copy in between where the fabric can.
    ///
    /// # Errors
    /// [`FabricError`]; the content of `into` is then undefined. [`FabricError::Unsupported`] on fabrics without it.
    fn fetch(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        let _ = (question, into);
        Err(FabricError::Unsupported { what: "fetch" })
    }

    /// Bytes from which on a read is carried by several streams at once, and so is quicker than an answer of as many bytes, which one
    /// stream carries. The greatest number on fabrics where it makes no difference.
    fn parallel_from(&self) -> usize {
        usize::MAX
    }

    /// Whether the peer has ended every stream, as when its process is over: it is reached by connecting anew. One that is in use counts as one that
    /// goes on.
    fn has_ended(&self) -> bool {
        false
    }

    /// Opens a queue for many operations at once. A queue belongs to one thread at a time and has `streams` streams of its
    /// own; 0: as many as the endpoint. Fabrics without streams take no notice.
    ///
    /// # Errors
    /// [`FabricError`] if the peer gives no further stream.
    fn queue(&self, streams: usize) -> Result<Box<dyn Queue>, FabricError>;

    /// Fills one buffer with the bytes of all runs.
    ///
    /// # Errors
    /// As [`read_to`](Self::read_to).
    fn read(&self, handle: Handle, runs: &[ByteRange], into: &mut [u8]) -> Result<(), FabricError> {
        let parts = [Part::of_mut(into)];
        // SAFETY: the part is an exclusive borrow that outlives the call.
        self.read_to(handle, runs, unsafe { Destination::from_parts(&parts) })
    }

    /// Fills shared memory with the bytes of all runs.
    ///
    /// # Errors
    /// As [`read_to`](Self::read_to); [`FabricError::Unsupported`] for memory that cannot be written.
    fn read_shared(&self, handle: Handle, runs: &[ByteRange], into: &Slice) -> Result<(), FabricError> {
        if !into.is_writable() {
            return Err(FabricError::Unsupported { what: "read into memory that is not writable" });
        }
        let parts = [Part::of_slice(into)];
        // SAFETY: the borrow of the slice keeps its memory alive, and it is writable.
        self.read_to(handle, runs, unsafe { Destination::from_parts(&parts) })
    }

    /// Writes the bytes of one buffer to all runs.
    ///
    /// # Errors
    /// As [`write_from`](Self::write_from).
    fn write(&self, handle: Handle, runs: &[ByteRange], from: &[u8]) -> Result<(), FabricError> {
        let parts = [Part::of(from)];
        // SAFETY: the part is a borrow that outlives the call.
        self.write_from(handle, runs, unsafe { Source::from_parts(&parts) })
    }

    /// Writes the bytes of shared memory to all runs.
    ///
    /// # Errors
    /// As [`write_from`](Self::write_from).
    fn write_shared(&self, handle: Handle, runs: &[ByteRange], from: &Slice) -> Result<(), FabricError> {
        let parts = [Part::of_slice(from)];
        // SAFETY: the borrow of the slice keeps its memory alive.
        self.write_from(handle, runs, unsafe { Source::from_parts(&parts) })
    }
}

/// What a question was answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Reaches all bytes, from offset 0 on, if the service gave one.
    pub handle: Option<Handle>,
    /// Bytes that there are.
    pub bytes: u64,
    /// Of those, bytes that were placed.
    pub placed: usize,
}

/// The result of one posted operation.
#[derive(Debug)]
pub struct Completion {
    /// What the poster called it.
    pub tag: u64,
    /// What came of it.
    pub result: Result<Outcome, FabricError>,
}

/// What a posted operation gives back.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Outcome {
    /// A read or write is done; the bytes are in memory.
    Done,
    /// The word as it was before an atomic operation.
    Word(u64),
    /// The answer to a call.
    Reply(Vec<u8>),
}

/// Many operations in flight at once, from one thread.
///
/// Nothing moves but in [`post_read`](Self::post_read) and its like and in [`poll`](Self::poll). Completions come in
/// any order. When a stream breaks, every operation on it completes with the error.
pub trait Queue: Send {
    /// Starts to fill `into` (one slice after the other) with the bytes of all runs.
    ///
    /// # Errors
    /// [`FabricError`] if it could not be posted; then no completion follows.
    fn post_read(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        into: &[Slice],
    ) -> Result<(), FabricError>;

    /// Starts to write the bytes of `from` (one slice after the other) to all runs.
    ///
    /// # Errors
    /// [`FabricError`] if it could not be posted; then no completion follows.
    fn post_write(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        from: &[Slice],
    ) -> Result<(), FabricError>;

    /// Starts a call.
    ///
    /// # Errors
    /// [`FabricError`] if it could not be posted; then no completion follows.
    fn post_call(&mut self, tag: u64, body: &[u8]) -> Result<(), FabricError>;

    /// Moves bytes and appends what is complete to `completions`; waits at most `wait` for the first. Returns how many
    /// were appended; 0 at once if nothing is in flight.
    ///
    /// # Errors
    /// [`FabricError::System`] if waiting itself fails; failures of operations are in their completions.
    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Duration) -> Result<usize, FabricError>;

    /// Operations posted and not completed.
    fn in_flight(&self) -> usize;

    /// Whether operations are served, and complete, in the order in which they were posted.
    fn keeps_order(&self) -> bool {
        false
    }
}
