//! Threads that read back ends and write to them beside the one that serves faults: what the engine and its model have to agree on.
//!
//! How many there are is the *width*: so many read at once, and as many write. The idea is the I/O width of multi-path far memory (paper 002, section IV.B).

/// The width unless another is asked for.
pub const WIDTH: usize = 2;
/// The largest: a disk that takes more at once gets it from batches, which one thread brings.
pub const WIDTH_MAX: usize = 16;

/// Bytes of content up to which what is read ahead is read by the thread that serves faults.
pub const BESIDE_BYTES_MIN: u64 = 16 << 10;
/// Most bytes that this thread reads for a fault: to hand less to another thread takes longer than to read it.
pub const HERE_BYTES_MAX: u64 = 64 << 10;
/// Most bytes that have been read ahead, or are about to be.
pub const READ_BYTES_MAX: u64 = 16 << 20;

/// Most bytes that one thread writes at once: a disk takes many in the time of one.
pub const WRITE_BYTES_MAX: u64 = 512 << 10;
/// Of what waits to be written, the part that one thread takes: the others are to have some, too.
pub const WRITE_SHARE: u64 = 4;
/// Most bytes that wait to be written: whoever brings more helps.
pub const UNWRITTEN_BYTES_MAX: u64 = 8 << 20;
