//! How long things take, each number with where it is from.

use std::time::Duration;

/// Costs of the model. Where a file is named, the default was measured, on one machine with two processors, its nodes joined by loopback TCP: a real network adds
/// [`wire`](Self::wire) to each message, and its bandwidth is another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Reading 64 bytes of a page that is here: `read.json`, `rack-64B`.
    pub here_read: Duration,
    /// Writing them: `read.json`, `rack-64B-write`.
    pub here_write: Duration,
    /// Reading 64 bytes of a page of another node: `rack-rw.json`, `read-64B`. Any other small request to a node, and the way to the directory and
    /// back, count as much.
    pub away_read: Duration,
    /// Writing them: `rack-rw.json`, `write-64B`.
    pub away_write: Duration,
    /// What a network adds to each message, one way. Loopback has none; not measured.
    pub wire: Duration,
    /// From a request to freeze a page to its answer: one pause between two looks at the slots (`LOOK_PAUSE` of the node); not measured.
    pub freeze: Duration,
    /// Bytes a second that leave one node: `read.json`, `tcp-stream-read`.
    pub network_bytes_per_s: f64,
    /// The directory's time for a command that changes nothing durable; assumed, `hinterland bench directory` measures it.
    pub volatile: Duration,
    /// More for each node of the pool, for an answer to `RepairList` that names a copy; assumed, as above.
    pub look: Duration,
    /// For one that does, with its transaction; assumed, as above.
    pub durable: Duration,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            here_read: Duration::from_nanos(85),
            here_write: Duration::from_nanos(66),
            away_read: Duration::from_nanos(6721),
            away_write: Duration::from_nanos(6724),
            wire: Duration::ZERO,
            freeze: Duration::from_micros(200),
            network_bytes_per_s: 4.42e9,
            volatile: Duration::from_micros(5),
            look: Duration::from_nanos(100),
            durable: Duration::from_micros(1000),
        }
    }
}

impl Costs {
    /// One way of a small message.
    pub(super) fn way(&self) -> Duration {
        self.away_read / 2 + self.wire
    }

    /// How long so many bytes take to leave a node.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.network_bytes_per_s)
    }
}
