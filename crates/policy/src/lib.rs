//! What to fetch, in which units, and what to evict: pure policies without I/O, clock or randomness.
//!
//! A node caches sealed objects of other racks in sparse files. Four questions arise, one module each:
//!
//! - [`unit`]: into which fault units is an object divided? [`layout`] reads the header of a model file,
//!   so that an expert is a unit and a unit is an expert; [`tuner`] answers from the trace for the rest.
//! - [`prefetch`]: what is fetched together with a unit that faulted?
//! - [`eviction`]: which units leave when the byte budget is spent, if every touch is seen?
//! - [`probation`]: the same when touches are not seen, because the kernel serves a mapped unit by itself.
//!
//! A fifth is of pages that are written: [`heat`] says which move to the rack that uses them. A sixth of whole objects: [`copies`]
//! says of which a rack gets a copy of its own.
//!
//! Everything is deterministic: time comes in as ticks that the caller counts.
#![forbid(unsafe_code)]

pub mod copies;
pub mod eviction;
pub mod heat;
pub mod layout;
pub mod looping;
pub mod prefetch;
pub mod probation;
pub mod tuner;
pub mod unit;

pub use eviction::{Eviction, EvictionKind, UnitKey};
pub use layout::{Layout, Parsed, Preference, parse_prefix, plan};
pub use looping::LoopWatch;
pub use prefetch::{Advice, PrefetchConfig, PrefetchSwitches, Prefetcher, Tick};
pub use probation::{Probation, ProbationConfig};
pub use tuner::{Tuner, TunerConfig};
pub use unit::{Edge, Group, GroupId, UnitBytes, UnitMap, UnitMapError};
