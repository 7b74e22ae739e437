//! `kv-trace`: a recorded trace of requests over a store smaller than what they need, beside Mooncake and an unlimited cache.
//!
//! | module | subject |
//! | --- | --- |
//! | [`requests`] | the trace |
//! | [`synthetic`] | a trace that is made up |
//! | [`options`] | the command line, and what comes of it |
//! | [`content`] | the bytes of a block |
//! | [`client`] | a process that sends requests to a node |
//! | [`replay`] | several processes, and what came of them |
//! | [`simulate`] | orders of eviction without bytes |

pub mod client;
mod content;
pub mod options;
mod replay;
mod requests;
mod simulate;
mod synthetic;

use super::case;
use super::ground::{Ground, NodePlan};
use super::mooncake;
use super::report::{Better, Row};
use super::rounds::Samples;
use super::{Bench, Setting};
use crate::failure::Failure;
use crate::size::human;
use client::{FINGERPRINT, ORDERS_VARIABLE, Orders};
use hinterland_os::probe::Machine;
use hinterland_policy::EvictionKind;
use options::Plan;
use replay::{Clients, Outcome};
use simulate::{Clairvoyant, Seeing, Stored};
use std::path::PathBuf;
use std::process::Command;

/// The bench.
pub struct KvTrace;

/// What the peer is called.
const MOONCAKE: &str = "Mooncake store, as many bytes in memory of the same host";
const UNLIMITED: &str = "unlimited cache, computed";
/// Memory of a bench that is not blocks: processes and their buffers.
const SLACK_BYTES: u64 = 2 << 30;
/// The store is this part of all blocks in a simulation.
const SHARES: [(&str, u64); 3] = [("20th", 20), ("10th", 10), ("4th", 4)];

impl Bench for KvTrace {
    fn name(&self) -> &'static str {
        "kv-trace"
    }

    fn subject(&self) -> &'static str {
        "a trace of requests over a store of KV blocks that is smaller than what they need"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let plan = setting.trace.plan(setting.quick)?;
        (setting.say)(&words(&plan));
        if setting.trace.simulate {
            return Ok(simulated(&plan, setting));
        }
        let free = Machine::probe().memory_available_bytes;
        if plan.capacity_bytes + SLACK_BYTES > free {
            let text =
                format!("{} for blocks are too many: {} are free", human(plan.capacity_bytes), human(free));
            return Err(Failure::new(text, "--capacity 4G, smaller --block-bytes, or fewer --requests"));
        }
        let ground = Ground::new(setting, plan.capacity_bytes + (256 << 20))?;
        let scene = Scene::new(setting, &ground, &plan)?;
        scene.rows()
    }
}

fn words(plan: &Plan) -> String {
    let Plan { trace, block_bytes, capacity_bytes, clients, .. } = plan;
    let unique = trace.unique();
    format!(
        "kv-trace: {}: {} requests, {} blocks of {}, {unique} different ones ({}); {} for blocks, {clients} clients, {}",
        plan.source,
        trace.requests.len(),
        trace.asked(),
        human(*block_bytes),
        human(unique * block_bytes),
        human(*capacity_bytes),
        plan.speed.map_or_else(|| "as fast as it goes".to_owned(), |speed| format!("speed {speed}")),
    )
}

fn unlimited_percent(plan: &Plan) -> f64 {
    100.0 * plan.trace.found_by_unlimited() as f64 / plan.trace.asked().max(1) as f64
}

/// Everything that a replay needs.
struct Scene<'bench> {
    setting: &'bench Setting,
    ground: &'bench Ground,
    plan: &'bench Plan,
    words: PathBuf,
}

/// What the rounds of one system gave.
#[derive(Default)]
struct Rounds(Vec<Outcome>);

impl Rounds {
    fn samples(&self, of: impl Fn(&Outcome) -> f64) -> Samples {
        let mut samples = Samples::default();
        self.0.iter().for_each(|outcome| samples.add(of(outcome)));
        samples
    }

    fn hits(&self) -> f64 {
        self.samples(Outcome::hit_percent).median().unwrap_or(0.0)
    }
}

impl<'bench> Scene<'bench> {
    fn new(setting: &'bench Setting, ground: &'bench Ground, plan: &'bench Plan) -> Result<Self, Failure> {
        let words = ground.folder().join("requests");
        std::fs::write(&words, plan.trace.words())
            .map_err(|error| Failure::file("writing", &words, &error))?;
        Ok(Self { setting, ground, plan, words })
    }

    fn rows(&self) -> Result<Vec<Row>, Failure> {
        let orders = &self.plan.orders;
        let mut ours: Vec<Rounds> = orders.iter().map(|_| Rounds::default()).collect();
        let mut peer = Ok(Rounds::default());
        for round in 1..=self.setting.rounds {
            for (order, rounds) in orders.iter().zip(&mut ours) {
                (self.setting.say)(&format!("kv-trace: round {round}, {order}"));
                rounds.0.push(self.ours(*order)?);
            }
            if let Ok(rounds) = &mut peer {
                (self.setting.say)(&format!("kv-trace: round {round}, Mooncake"));
                match self.peer() {
                    Ok(outcome) => rounds.0.push(outcome),
                    Err(failure) => peer = Err(failure),
                }
            }
        }
        let mut rows: Vec<Row> = orders
            .iter()
            .zip(&ours)
            .map(|(order, rounds)| {
                let row = row(&format!("hit-rate-{order}"), "%", rounds, &peer, Outcome::hit_percent);
                let limit = Some(unlimited_percent(self.plan));
                Row { limit, limit_name: Some(UNLIMITED.to_owned()), ..row }
            })
            .collect();
        let best = orders.iter().zip(&ours).max_by(|one, other| one.1.hits().total_cmp(&other.1.hits()));
        if let Some((order, rounds)) = best {
            rows.extend(self.rates(*order, rounds, &peer));
        }
        Ok(rows)
    }

    /// Rows of the order that found most.
    fn rates(&self, order: EvictionKind, ours: &Rounds, peer: &Result<Rounds, Failure>) -> Vec<Row> {
        let bytes = self.plan.block_bytes as f64;
        let gigabytes = |outcome: &Outcome| outcome.blocks_per_s() * bytes / 1e9;
        let mut rows = vec![
            row("requests-per-second", "requests/s", ours, peer, Outcome::requests_per_s),
            row("requests-per-second-whole", "requests/s", ours, peer, Outcome::requests_per_s_whole),
            row("blocks-per-second", "blocks/s", ours, peer, Outcome::blocks_per_s),
            row("bytes-per-second", "GB/s", ours, peer, gigabytes),
            row("refused", "blocks", ours, peer, |outcome| outcome.tally.refused as f64),
        ];
        if let Some(row) = rows.last_mut() {
            row.better = Better::Lower;
        }
        for row in &mut rows {
            let with = format!("the order is {order}");
            row.why = Some(row.why.take().map_or(with.clone(), |why| format!("{with}; {why}")));
        }
        rows
    }

    fn ours(&self, order: EvictionKind) -> Result<Outcome, Failure> {
        let (capacity, order) = (self.plan.capacity_bytes.to_string(), order.to_string());
        let node = self.ground.node(NodePlan {
            name: "bench",
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", &capacity, "--eviction", &order],
            ..NodePlan::default()
        })?;
        let store = node.pool()?.kv(FINGERPRINT)?;
        let orders = Orders {
            requests: self.words.clone(),
            block_bytes: self.plan.block_bytes,
            fill_blocks: self.fill_blocks(),
        };
        let orders = serde_json::to_string(&orders).map_err(|error| Failure::of(&error))?;
        let clients = Clients::start("a client of the node", self.plan.clients, || {
            let mut command = Command::new(&self.setting.program);
            command.args(["bench", client::NAME]).env("HINTERLAND_SOCKET", &node.socket);
            command.env(ORDERS_VARIABLE, &orders);
            Ok(command)
        })?;
        store.clear()?;
        clients.replay(self.plan)
    }

    /// Blocks that each client puts before it is ready, so that all memory was touched once.
    fn fill_blocks(&self) -> u64 {
        self.plan.capacity_bytes / self.plan.block_bytes / self.plan.clients as u64
    }

    fn peer(&self) -> Result<Outcome, Failure> {
        let peer = mooncake::TracePeer::start(self.ground, self.plan.capacity_bytes)?;
        let clients = Clients::start("a client of Mooncake", self.plan.clients, || {
            Ok(peer.client(&self.words, self.plan.block_bytes, self.fill_blocks()))
        })?;
        peer.clear()?;
        clients.replay(self.plan)
    }
}

fn row(
    case: &str,
    unit: &'static str,
    ours: &Rounds,
    peer: &Result<Rounds, Failure>,
    of: impl Fn(&Outcome) -> f64,
) -> Row {
    let mut samples = vec![ours.samples(&of)];
    let (name, why) = match peer {
        Ok(rounds) => {
            samples.push(rounds.samples(&of));
            (Some(MOONCAKE.to_owned()), None)
        }
        Err(failure) => (None, Some(format!("{MOONCAKE}: {} (hint: {})", failure.text, failure.hint))),
    };
    case::row(case, unit, Better::Higher, &samples, [None, name], why)
}

/// Rows of a size: the node's own store and a policy that sees every touch, for each order, and who knows what comes.
fn simulated(plan: &Plan, setting: &Setting) -> Vec<Row> {
    let asked = plan.trace.asked().max(1) as f64;
    let unlimited = Some(unlimited_percent(plan));
    let row = |name: String, found: u64| {
        let mut samples = Samples::default();
        samples.add(100.0 * found as f64 / asked);
        let row = case::row(name, "%", Better::Higher, &[samples], [None, None], None);
        Row { limit: unlimited, limit_name: Some(UNLIMITED.to_owned()), ..row }
    };
    let mut rows = Vec::new();
    for (share, part) in SHARES {
        let mut room = plan.trace.unique().div_ceil(part);
        for order in &plan.orders {
            (setting.say)(&format!("kv-trace: {order} in a store of a {share}"));
            let mut stored = Stored::new(*order, room);
            // All of a size have as much.
            room = stored.room();
            rows.push(row(format!("{share}-{order}"), simulate::replay(&plan.trace, &mut stored)));
            let found = simulate::replay(&plan.trace, &mut Seeing::new(*order, room));
            rows.push(row(format!("{share}-{order}-seen"), found));
        }
        let found = simulate::replay(&plan.trace, &mut Clairvoyant::new(&plan.trace, room));
        rows.push(Row {
            why: Some(format!("all have {room} blocks")),
            ..row(format!("{share}-clairvoyant"), found)
        });
    }
    rows
}
