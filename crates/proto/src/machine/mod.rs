//! State machines of the protocols between nodes, without I/O and without a clock.
//!
//! Each is driven alike: `handle(now_ms, event)` takes what happened, `poll_action()` gives what to do until
//! it gives `None`, and `deadline_ms()` says when to hand in a `Timeout` if nothing happens before. The
//! node drives them over the fabric, the simulator over a network that loses, delays and repeats.

mod fetch;
mod put;

pub use fetch::{
    Body, Fetch, FetchAction, FetchError, FetchEvent, FetchFailure, FetchLimits, FetchMachine, Tried,
    TryError,
};
pub use put::{
    Put, PutAction, PutError, PutEvent, PutFailure, PutHome, PutLimits, PutMachine, PutOutcome, PutStep,
};
