//! The network: it loses, delays, repeats and reorders messages, and falls apart for a while.

use crate::message::Address;
use crate::random::Random;

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Messages of 100 that are lost.
    pub lost_percent: u64,
    /// Messages of 100 that come twice.
    pub repeated_percent: u64,
    /// Messages of 100 that come late.
    pub late_percent: u64,
    /// How late these are at the most, in milliseconds.
    pub late_ms: u64,
}

impl Weather {
    /// Every message comes once, after 1 to 3 ms.
    pub const CALM: Self = Self { lost_percent: 0, repeated_percent: 0, late_percent: 0, late_ms: 1 };
}

/// Some are cut off from all others.
#[derive(Clone, Debug)]
struct Partition {
    inside: Vec<Address>,
    lost: Lost,
    until_ms: u64,
}

/// Which messages over the line that a partition draws are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    All,
    /// Those that leave the inside.
    Outward,
    /// Those that go there.
    Inward,
}

impl Partition {
    fn loses(&self, from: Address, to: Address) -> bool {
        match (self.inside.contains(&from), self.inside.contains(&to)) {
            (true, false) => self.lost != Lost::Inward,
            (false, true) => self.lost != Lost::Outward,
            _ => false,
        }
    }
}

/// The network between all addresses.
#[derive(Debug)]
pub struct Network {
    weather: Weather,
    partitions: Vec<Partition>,
}

impl Network {
    pub(crate) fn new(weather: Weather) -> Self {
        Self { weather, partitions: Vec::new() }
    }

    /// Cuts these off from all others until a time.
    pub(crate) fn cut(&mut self, inside: Vec<Address>, until_ms: u64) {
        self.partitions.push(Partition { inside, lost: Lost::All, until_ms });
    }

    /// Loses what these send to all others until a time, or what those send to these.
    pub(crate) fn cut_one_way(&mut self, inside: Vec<Address>, is_outward: bool, until_ms: u64) {
        let lost = if is_outward { Lost::Outward } else { Lost::Inward };
        self.partitions.push(Partition { inside, lost, until_ms });
    }

    /// No more faults, from here on.
    pub(crate) fn calm(&mut self) {
        self.weather = Weather::CALM;
        self.partitions.clear();
    }

    /// When the message arrives: never, once or twice.
    pub(crate) fn arrivals(
        &mut self,
        now_ms: u64,
        from: Address,
        to: Address,
        random: &mut Random,
    ) -> Vec<u64> {
        self.partitions.retain(|partition| partition.until_ms > now_ms);
        // A node reaches itself without the network.
        if from == to {
            return vec![now_ms];
        }
        let apart = self.partitions.iter().any(|partition| partition.loses(from, to));
        if apart || random.percent(self.weather.lost_percent) {
            return Vec::new();
        }
        let copies = if random.percent(self.weather.repeated_percent) { 2 } else { 1 };
        let mut arrival = || {
            let late = random.percent(self.weather.late_percent);
            now_ms + random.between(1, 4) + if late { random.below(self.weather.late_ms) } else { 0 }
        };
        (0..copies).map(|_| arrival()).collect()
    }
}
