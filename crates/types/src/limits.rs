//! Every limit of the pool, each with its reason.

use std::time::Duration;

/// How long a program waits for a dead node to come back, if `HINTERLAND_GRACE_S` does not say: a restart and a half.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(15);
/// Bits of a global address: 64 TiB fit twice under the 128 TiB that a process has.
pub const ADDRESS_BITS: u32 = 46;
/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 21;
/// Bytes of a page, the unit of placement: the size of a huge page, so that one fault maps one page.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// Bytes of a base page of the processor: the smallest thing that can be mapped.
pub const BASE_PAGE_BYTES: u64 = 4096;
/// Bytes that one checksum covers: the smallest fault unit, so that every fill can be checked.
pub const CHECKSUM_BLOCK_BYTES: u64 = 64 << 10;
/// Smallest fault unit: below it the fault costs more than the bytes.
pub const FAULT_UNIT_BYTES_MIN: u64 = 64 << 10;
/// Largest fault unit: above it threads wait long for bytes that they do not need.
pub const FAULT_UNIT_BYTES_MAX: u64 = 64 << 20;
/// Longest object name in bytes: what fits a path below a mount of reasonable depth.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest component of an object name: what a file system allows.
pub const NAME_COMPONENT_BYTES_MAX: usize = 255;
/// Largest object: an eighth of the address space, so that eight of them fit.
pub const OBJECT_BYTES_MAX: u64 = 1 << (ADDRESS_BITS - 3);
/// Largest payload of one frame: large enough to amortise the header, small enough to bound a buffer.
pub const FRAME_BODY_BYTES_MAX: u32 = 4 << 20;
/// Largest control message; a directory listing is paged so that it fits.
pub const CONTROL_BYTES_MAX: u32 = 1 << 20;
/// Capabilities of one session: 64 bytes each, 4 MiB in all.
pub const HANDLES_MAX: u32 = 1 << 16;
/// Sessions of one node: one descriptor and one small stack each.
pub const SESSIONS_MAX: usize = 1024;
/// Copies of one object: a pool has few racks, and each copy costs the whole object.
pub const COPIES_MAX: u8 = 8;
/// Nodes of one pool: what one directory was simulated with, and what fits the answers that name all of them.
pub const NODES_MAX: usize = 1024;
/// Streams between two nodes: four fill two cores on loopback, eight leave room for NICs.
pub const STREAMS_MAX: usize = 8;
