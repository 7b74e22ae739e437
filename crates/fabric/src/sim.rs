//! A peer without a network: seeded, in virtual time, with the faults that a real one has. Whole clusters are simulated by the crate `sim`.
//!
//! | item | subject |
//! | --- | --- |
//! | [`SimEndpoint`] | an [`Endpoint`](crate::Endpoint) to a service in the same process, with faults |
//! | [`SimRandom`] | the only source of chance: the same seed gives the same run |

mod endpoint;
mod random;
#[cfg(test)]
mod tests;

pub use endpoint::{EndpointFaults, SimEndpoint};
pub use random::SimRandom;
