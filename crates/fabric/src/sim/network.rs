//! Messages between simulated nodes in virtual time.

use super::random::SimRandom;
use hinterland_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How bad the network is. Chances are per million messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkFaults {
    /// Messages that are lost.
    pub drop_per_million: u32,
    /// Messages that arrive twice, each copy with a delay of its own.
    pub duplicate_per_million: u32,
    /// Messages that take [`slow_max`](Self::slow_max) at most instead of [`delay_max`](Self::delay_max).
    pub slow_per_million: u32,
    /// Shortest time on the way.
    pub delay_min: Duration,
    /// Longest time on the way; messages overtake each other within it.
    pub delay_max: Duration,
    /// Longest time of a slow message.
    pub slow_max: Duration,
}

impl NetworkFaults {
    /// Every message arrives once, after 10 us, in the order of sending.
    pub const NONE: Self = Self {
        drop_per_million: 0,
        duplicate_per_million: 0,
        slow_per_million: 0,
        delay_min: Duration::from_micros(10),
        delay_max: Duration::from_micros(10),
        slow_max: Duration::from_micros(10),
    };

    /// A network on a bad day: 2 % lost, 1 % twice, 1 % up to a second late, the rest reordered within 500 us.
    pub const BAD: Self = Self {
        drop_per_million: 20_000,
        duplicate_per_million: 10_000,
        slow_per_million: 10_000,
        delay_min: Duration::from_micros(10),
        delay_max: Duration::from_micros(500),
        slow_max: Duration::from_secs(1),
    };
}

/// A message that arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery<M> {
    /// When, since the start of the simulation.
    pub at: Duration,
    /// Who sent it; the receiver itself for a timer.
    pub from: NodeId,
    /// Who gets it.
    pub to: NodeId,
    /// What it is.
    pub message: M,
}

/// What became of the messages so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TrafficCounts {
    /// Messages sent, timers not counted.
    pub sent: u64,
    /// Messages and copies delivered.
    pub delivered: u64,
    /// Messages lost by chance.
    pub dropped: u64,
    /// Messages that were given a copy.
    pub duplicated: u64,
    /// Messages and copies lost to a partition.
    pub cut: u64,
    /// Messages, copies and timers lost because their receiver had crashed.
    pub unheard: u64,
}

/// A message on its way, or a timer.
struct InFlight<M> {
    from: NodeId,
    to: NodeId,
    /// The life of the receiver that it is meant for: a restarted node does not hear what was said to the old one.
    life: u64,
    timer: bool,
    message: M,
}

/// What the network knows of a node.
#[derive(Clone, Copy, Default)]
struct Life {
    number: u64,
    crashed: bool,
}

/// A simulated network: the same seed and the same calls give the same deliveries.
///
/// Nodes need not be announced: one that was never crashed is up. Time moves only in [`step`](Self::step).
pub struct SimNetwork<M> {
    now: Duration,
    random: SimRandom,
    faults: NetworkFaults,
    /// Ordered by time, then by the order of sending.
    in_flight: BTreeMap<(Duration, u64), InFlight<M>>,
    number_next: u64,
    lives: BTreeMap<NodeId, Life>,
    /// Directions that nothing passes.
    cut: BTreeSet<(NodeId, NodeId)>,
    counts: TrafficCounts,
}

impl<M: Clone> SimNetwork<M> {
    /// A network at time zero with nothing on its way.
    pub fn new(seed: u64, faults: NetworkFaults) -> Self {
        Self {
            now: Duration::ZERO,
            random: SimRandom::new(seed),
            faults,
            in_flight: BTreeMap::new(),
            number_next: 0,
            lives: BTreeMap::new(),
            cut: BTreeSet::new(),
            counts: TrafficCounts::default(),
        }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The network's chance, for the rest of the simulation to draw from.
    pub fn random(&mut self) -> &mut SimRandom {
        &mut self.random
    }

    /// What became of the messages so far.
    pub fn counts(&self) -> TrafficCounts {
        self.counts
    }

    /// Messages and timers on their way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Changes how bad the network is, for messages sent from now on.
    pub fn set_faults(&mut self, faults: NetworkFaults) {
        self.faults = faults;
    }

    /// Sends a message. A crashed node sends nothing; whether a partition stops it is decided when it arrives, as
    /// with a packet that is on its way when the cable is cut.
    pub fn send(&mut self, from: NodeId, to: NodeId, message: M) {
        if self.is_crashed(from) {
            return;
        }
        self.counts.sent += 1;
        // Every message makes the same draws whatever becomes of it, so that a change of one chance does not move
        // all others.
        let dropped = self.random.chance(self.faults.drop_per_million);
        let duplicated = self.random.chance(self.faults.duplicate_per_million);
        let (first, second) = (self.delay(), self.delay());
        if dropped {
            self.counts.dropped += 1;
            return;
        }
        if duplicated {
            self.counts.duplicated += 1;
            self.enqueue(second, from, to, false, message.clone());
        }
        self.enqueue(first, from, to, false, message);
    }

    /// Delivers `message` to `node` itself after `after`, by no network: never lost, unless the node crashes.
    pub fn set_timer(&mut self, node: NodeId, after: Duration, message: M) {
        if !self.is_crashed(node) {
            self.enqueue(after, node, node, true, message);
        }
    }

    /// Moves time to the next delivery and returns it; `None` if nothing is on its way.
    pub fn step(&mut self) -> Option<Delivery<M>> {
        while let Some(((at, _), flight)) = self.in_flight.pop_first() {
            self.now = at;
            let life = self.lives.get(&flight.to).copied().unwrap_or_default();
            if life.crashed || life.number != flight.life {
                self.counts.unheard += 1;
            } else if !flight.timer && self.cut.contains(&(flight.from, flight.to)) {
                self.counts.cut += 1;
            } else {
                self.counts.delivered += u64::from(!flight.timer);
                return Some(Delivery { at, from: flight.from, to: flight.to, message: flight.message });
            }
        }
        None
    }

    /// Stops all messages between the two groups, in both directions.
    pub fn partition(&mut self, one: &[NodeId], other: &[NodeId]) {
        for a in one {
            for b in other {
                self.cut_one_way(*a, *b);
                self.cut_one_way(*b, *a);
            }
        }
    }

    /// Stops messages in one direction only.
    pub fn cut_one_way(&mut self, from: NodeId, to: NodeId) {
        self.cut.insert((from, to));
    }

    /// Lets messages between the two groups pass again.
    pub fn heal(&mut self, one: &[NodeId], other: &[NodeId]) {
        self.cut.retain(|(from, to)| {
            let across = |a: &[NodeId], b: &[NodeId]| a.contains(from) && b.contains(to);
            !across(one, other) && !across(other, one)
        });
    }

    /// Lets all messages pass again.
    pub fn heal_all(&mut self) {
        self.cut.clear();
    }

    /// Takes a node down: it sends nothing, and what is on its way to it is lost, timers too. What it sent before
    /// still arrives.
    pub fn crash(&mut self, node: NodeId) {
        self.lives.entry(node).or_default().crashed = true;
    }

    /// Brings a node up again, as a new life that hears nothing of what was meant for the old one.
    pub fn restart(&mut self, node: NodeId) {
        let life = self.lives.entry(node).or_default();
        life.crashed = false;
        life.number += 1;
    }

    /// Whether a node is down.
    pub fn is_crashed(&self, node: NodeId) -> bool {
        self.lives.get(&node).is_some_and(|life| life.crashed)
    }

    fn enqueue(&mut self, after: Duration, from: NodeId, to: NodeId, timer: bool, message: M) {
        let life = self.lives.get(&to).map_or(0, |life| life.number);
        let key = (self.now.saturating_add(after), self.number_next);
        self.number_next += 1;
        self.in_flight.insert(key, InFlight { from, to, life, timer, message });
    }

    fn delay(&mut self) -> Duration {
        let faults = self.faults;
        let slow = self.random.chance(faults.slow_per_million);
        let longest = if slow { faults.slow_max } else { faults.delay_max };
        let nanoseconds = |delay: Duration| u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let drawn = self.random.between(nanoseconds(faults.delay_min), nanoseconds(longest));
        Duration::from_nanos(drawn)
    }
}
