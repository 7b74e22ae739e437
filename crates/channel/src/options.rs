//! What can be chosen about a channel.

use crate::memory::Rings;
use std::time::Duration;

/// Options of a channel and of making it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelOptions {
    /// The rings. The GPU node's choice holds: in shared memory for all of it, over a network for the longest body.
    pub rings: Rings,
    /// Time for connecting and for the handshake, together.
    pub greeting_max: Duration,
    /// Over a network: a peer that acknowledges nothing for this long is given up.
    pub silence_max: Duration,
    /// Over a network, for experiments: how much later than it would come, each parcel that this side sends is seen by
    /// the other. At most a second. Throughput stays what it is, as long as a ring holds what is under way.
    pub delay_out: Duration,
    /// The same for parcels that this side receives.
    pub delay_in: Duration,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            rings: Rings::default(),
            greeting_max: Duration::from_secs(5),
            silence_max: Duration::from_secs(10),
            delay_out: Duration::ZERO,
            delay_in: Duration::ZERO,
        }
    }
}
