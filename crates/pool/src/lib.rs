//! The client library that every access path uses: sessions, objects, regions, puts.
//!
//! ```no_run
//! use hinterland_pool::{Pool, PutOptions};
//! use hinterland_types::ObjectName;
//!
//! let pool = Pool::connect(None)?;
//! let name = ObjectName::parse("models/a.gguf").unwrap();
//! pool.put(&mut &b"bytes"[..], &name, &PutOptions::default(), &mut |_| {})?;
//! let object = pool.open_object(&name)?;
//! let mut start = [0; 4];
//! object.read_at(0, &mut start)?;
//! # Ok::<(), hinterland_pool::PoolError>(())
//! ```

mod address;
mod atomic;
mod belief;
mod checked;
mod error;
mod guard;
mod kv;
pub mod local;
mod many;
mod object;
mod pool;
mod preference;
mod put;
mod region;
mod remote;
mod rings;
mod scratch;
mod session;
mod silence;
mod slots;
mod waiting;

pub use checked::CheckedReader;
pub use error::PoolError;
pub use guard::{GuardOptions, NotUpgraded, ReadGuard, WriteGuard};
pub use hinterland_kv::{Found, class_bytes as slot_bytes};
pub use kv::{
    Batch, Completion, Expects, Gather, Gathered, GatheredRuns, GpuOptions, KeyOperation, KvCache, KvEvents,
    KvGpu, KvQueue, KvTransfer, KvValues, Listed, Owned, QueueOptions, Refusal, Replaced, Replacement, Run,
    Scatter, Scattered, ScatteredRuns, Stored, TOGETHER_BYTES_MAX, TOGETHER_MAX, WhenFull, kv_namespace,
};
pub use many::PartFailed;
pub use object::Object;
pub use pool::{Pool, PutOptions, Verified};
pub use preference::ReadPreference;
pub use put::PutWriter;
pub use rings::{RingChoice, Rings};
pub use scratch::Scratch;
pub use session::{Line, Session, default_socket, named_socket};
pub use silence::{Patience, Silence};
pub use waiting::end_waits_when;
