//! A network that exists only in memory: seeded, in virtual time, with every fault that a real one has.
//!
//! | item | subject |
//! | --- | --- |
//! | [`SimNetwork`] | messages between nodes, one delivery a step |
//! | [`SimEndpoint`] | an [`Endpoint`](crate::Endpoint) to a service in the same process, with faults |
//! | [`SimRandom`] | the only source of chance: the same seed gives the same run |

mod endpoint;
mod network;
mod random;
#[cfg(test)]
mod tests;

pub use endpoint::{EndpointFaults, SimEndpoint};
pub use network::{Delivery, NetworkFaults, SimNetwork, TrafficCounts};
pub use random::SimRandom;
