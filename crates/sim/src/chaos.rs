//! What goes wrong and what users do in a run: drawn from the seed before the run begins.

use crate::directory_host::StoreFault;
use crate::message::Address;
use crate::network::Weather;
use crate::random::Random;
use hinterland_types::NodeId;

/// When faults and users stop, in milliseconds.
pub(crate) const CHAOS_MS: u64 = 20_000;
/// When the run ends: everything has then had time to settle.
pub(crate) const END_MS: u64 = 48_000;
/// A pause that outlives every lease.
pub(crate) const LONG_PAUSE_MS: u64 = 30_000;
/// Names that users put, so few that they often meet.
pub(crate) const NAMES: [&str; 5] = ["a", "b", "models/c", "models/d", "e"];

/// Something that happens at a given time.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A user at this node puts this name: choice, blocks, stream, copies, rack.
    Put {
        node: NodeId,
        name: usize,
        blocks: u64,
        tail: u64,
        stream: bool,
        copies: u8,
        rack: Option<usize>,
    },
    Cancel {
        node: NodeId,
    },
    Get {
        node: NodeId,
        name: usize,
    },
    Remove {
        node: NodeId,
        name: usize,
    },
    /// The process dies, perhaps with the memory; it comes back later.
    Crash {
        node: NodeId,
        loses_memory: bool,
        back_ms: u64,
    },
    /// The node is gone with its memory and never comes back.
    Die {
        node: NodeId,
    },
    /// The process stops in good order.
    Stop {
        node: NodeId,
        back_ms: u64,
    },
    Cut {
        inside: Vec<Address>,
        /// Only what these send is lost, or only what is sent to them.
        outward: Option<bool>,
        until_ms: u64,
    },
    /// The host stops, and goes on later as if nothing had been.
    Pause {
        node: NodeId,
        until_ms: u64,
    },
    CrashDirectory {
        back_ms: u64,
    },
    ArmStore(StoreFault),
    /// The directory's process is stopped, for example by a debugger: messages wait.
    SleepDirectory {
        until_ms: u64,
    },
    Rot {
        node: NodeId,
        choice: u64,
    },
    /// The next chunk that is written there is stored wrong.
    Spoil {
        node: NodeId,
    },
}

/// A whole run, but for the delays of single messages.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) node_count: u64,
    pub(crate) rack_count: u64,
    pub(crate) capacity_bytes: Vec<u64>,
    pub(crate) weather: Weather,
    /// Thousandths of the speed of time at which each node's clock runs, and where it began; the first is the directory's.
    pub(crate) clocks: Vec<(u64, u64)>,
    /// By how much everything ends later, because a host stops for longer than all else takes.
    pub(crate) later_ms: u64,
    pub(crate) events: Vec<(u64, Event)>,
}

impl Plan {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let node_count = random.between(2, 5);
        let rack_count = random.between(1, node_count + 1);
        let capacity = |random: &mut Random| if random.percent(30) { 700_000 } else { 4_000_000 };
        let mut plan = Self {
            node_count,
            rack_count,
            capacity_bytes: (0..node_count).map(|_| capacity(random)).collect(),
            weather: weather(random),
            // Within an eighth of each other, as far as leases allow.
            clocks: (0..=node_count).map(|_| (random.between(945, 1055), random.below(1 << 40))).collect(),
            later_ms: 0,
            events: Vec::new(),
        };
        for _ in 0..random.between(15, 40) {
            let at_ms = random.between(500, CHAOS_MS);
            let event = plan.use_of(random);
            plan.events.push((at_ms, event));
        }
        // Some runs are nearly calm: there, promises must hold without any excuse.
        let faults = if random.percent(20) { 0 } else { random.between(1, 18) };
        for _ in 0..faults {
            let at_ms = random.between(500, CHAOS_MS);
            let event = plan.fault(at_ms, random);
            plan.events.push((at_ms, event));
        }
        if random.percent(15) {
            let node = plan.node(random);
            plan.events.push((random.between(500, CHAOS_MS), Event::Die { node }));
        }
        if random.percent(10) {
            let (node, at_ms) = (plan.node(random), random.between(500, CHAOS_MS));
            plan.later_ms = LONG_PAUSE_MS;
            plan.events.push((at_ms, Event::Pause { node, until_ms: at_ms + LONG_PAUSE_MS }));
        }
        plan
    }

    fn node(&self, random: &mut Random) -> NodeId {
        NodeId(random.below(self.node_count) + 1)
    }

    fn use_of(&self, random: &mut Random) -> Event {
        let (node, name) = (self.node(random), random.below(NAMES.len() as u64) as usize);
        match random.below(100) {
            0..50 => Event::Put {
                node,
                name,
                blocks: random.below(7),
                tail: random.below(2),
                stream: random.percent(30),
                copies: random.between(1, 4).min(self.node_count) as u8,
                rack: random.percent(20).then(|| random.below(self.rack_count) as usize),
            },
            50..55 => Event::Cancel { node },
            55..85 => Event::Get { node, name },
            _ => Event::Remove { node, name },
        }
    }

    fn fault(&self, at_ms: u64, random: &mut Random) -> Event {
        let node = self.node(random);
        match random.below(100) {
            0..30 => {
                let loses_memory = random.percent(60);
                // A quick restart meets the messages of the life before it.
                let away_ms =
                    if random.percent(50) { random.between(5, 300) } else { random.between(300, 7000) };
                Event::Crash { node, loses_memory, back_ms: at_ms + away_ms }
            }
            30..36 => Event::Stop { node, back_ms: at_ms + random.between(100, 5000) },
            36..53 => {
                // Every set of nodes, with the directory or without.
                let ids: Vec<_> = (1..=self.node_count).map(|id| Address::Node(NodeId(id))).collect();
                let mask = random.between(1, 1 << self.node_count);
                let chosen = |(place, id): (usize, &Address)| (mask & 1 << place != 0).then_some(*id);
                let mut inside: Vec<_> = ids.iter().enumerate().filter_map(chosen).collect();
                if random.percent(20) {
                    inside.push(Address::Directory);
                }
                let outward = random.percent(30).then(|| random.percent(50));
                Event::Cut { inside, outward, until_ms: at_ms + random.between(300, 6000) }
            }
            53..68 => Event::CrashDirectory { back_ms: at_ms + random.between(50, 3000) },
            68..88 => {
                let faults = [StoreFault::CrashBefore, StoreFault::CrashAfter, StoreFault::WriteFails];
                Event::ArmStore(faults[random.below(3) as usize])
            }
            88..90 => Event::Spoil { node },
            90..93 => Event::SleepDirectory { until_ms: at_ms + random.between(500, 8000) },
            93..96 => Event::Pause { node, until_ms: at_ms + random.between(100, 8000) },
            _ => Event::Rot { node, choice: random.next() },
        }
    }
}

fn weather(random: &mut Random) -> Weather {
    if random.percent(25) {
        return Weather::CALM;
    }
    Weather {
        lost_percent: random.below(15),
        repeated_percent: random.below(15),
        late_percent: random.below(50),
        late_ms: if random.percent(60) { random.between(10, 600) } else { random.between(600, 5000) },
    }
}
