//! The log of a disk tier: which record lies where, and what makes room. No input or output: the node does that.
//!
//! See `docs/decisions/2026-11-22-kv-disk-tier.md`. All numbers are little-endian. A record starts at a multiple of 4096 and ends at
//! one:
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 8 | magic `HLKVDR01` |
//! | 8 | 8 | sequence number of the record, from 1 on |
//! | 16 | 8 | sequence number of its region: that of its first record |
//! | 24 | 4 | kind: 1 a block, 2 a removal, 3 the end of all blocks of a namespace |
//! | 28 | 4 | length of the bytes |
//! | 32 | 32 | fingerprint of the namespace |
//! | 64 | 64 | key, filled up with zeros |
//! | 128 | 64 | key of the block that it follows on, filled up with zeros |
//! | 192 | 1 | length of the key |
//! | 193 | 1 | length of the other key; 0 without one |
//! | 194 | 6 | zero |
//! | 200 | 8 | XXH3 of the bytes |
//! | 208 | 40 | zero |
//! | 248 | 8 | XXH3 of the 248 bytes before |
//! | 256 | | the bytes, and zeros up to the end |

mod log;
mod record;

pub use log::{Place, RegionScan, TierLog};
pub use record::{
    RECORD_ALIGN, RECORD_HEADER_BYTES, Record, RecordError, RecordKind, checksum, record_bytes,
};
