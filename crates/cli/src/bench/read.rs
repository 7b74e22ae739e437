//! `read`: reads and writes at random offsets of a region, in the rack and over TCP, beside plain copies, bare sockets
//! and Redis.

use super::apart::Apart;
use super::case::Case;
use super::content::name;
use super::ground::{BenchNode, Ground, NodePlan};
use super::reader::REGION_VARIABLE;
use super::redis::{Connection, Redis};
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_types::Rights;
use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

const SIZES: [(&str, usize); 3] = [("64B", 64), ("4KiB", 4096), ("1MiB", 1 << 20)];
/// How long the far node spins for the next request: longer than the time between two of them.
const SPIN_US: &str = "20000";
/// After a turn, its far end spins on for [`SPIN_US`]: the next turn begins when it sleeps.
const SETTLE: Duration = Duration::from_millis(60);
/// Streams of a connection between client and node.
const STREAMS: usize = 4;
const REGION: &str = "bench/region";

/// The bench.
pub struct Read;

struct Scene {
    rack: RefCell<Worker>,
    polling: RefCell<Worker>,
    blocking: RefCell<Worker>,
    machine: RefCell<Worker>,
    /// The processes of the far ends that sleep: the node, and the one of the bare socket.
    asleep: u32,
    asleep_bare: u32,
    redis: Option<u32>,
    unix: Result<RefCell<Connection>, Failure>,
    tcp: Result<RefCell<Connection>, Failure>,
    quick: bool,
}

impl Bench for Read {
    fn name(&self) -> &'static str {
        "read"
    }

    fn subject(&self) -> &'static str {
        "reads and writes of 64 B, 4 KiB and 1 MiB at random offsets of a region, in the rack and over TCP"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_NO_STREAMING=1", "HINTERLAND_NO_SPIN=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes: u64 = if setting.quick { 256 << 20 } else { 1 << 30 };
        let ground = Ground::new(setting, 4 * bytes + (512 << 20))?;
        let plan =
            NodePlan { capacity_bytes: bytes + (256 << 20), cache_bytes: 64 << 20, ..NodePlan::default() };
        let home = ground.node(NodePlan { name: "home", more: &["--spin", SPIN_US], ..plan })?;
        let join = Some(home.address.as_str());
        let near = ground.node(NodePlan { name: "near", capacity_bytes: 64 << 20, join, ..plan })?;
        let asleep = ground.node(NodePlan { name: "asleep", join, ..plan })?;
        let regions = [(&home, REGION), (&asleep, "bench/asleep")];
        for (node, region) in regions {
            (setting.say)("read: touching a region");
            touch(node, region, bytes)?;
        }
        let redis = Redis::start(&ground);
        let connect = |how: fn(&Redis) -> Result<Connection, Failure>| {
            redis.as_ref().map_err(Clone::clone).and_then(how).map(RefCell::new)
        };
        let mut machine = ground.machine()?;
        // The number of a process.
        let asleep_bare = machine.figure(&format!("serve {bytes}"))? as u32;
        let scene = Scene {
            rack: RefCell::new(reader(setting, &home, REGION, false)?),
            polling: RefCell::new(reader(setting, &near, REGION, true)?),
            blocking: RefCell::new(reader(setting, &near, "bench/asleep", false)?),
            machine: RefCell::new(machine),
            asleep: asleep.process(),
            asleep_bare,
            redis: redis.as_ref().ok().map(Redis::process),
            unix: connect(Redis::over_unix),
            tcp: connect(Redis::over_tcp),
            quick: setting.quick,
        };
        let mut rows = Vec::new();
        for (word, size) in SIZES {
            (setting.say)(&format!("read: {word}"));
            scene.prepare(size)?;
            for verb in ["read", "write"] {
                let tail = if verb == "read" { String::new() } else { "-write".to_owned() };
                rows.push(scene.in_rack(format!("rack-{word}{tail}"), verb, size).measure(setting.rounds));
                rows.push(
                    scene.over_tcp(format!("tcp-{word}{tail}"), verb, size, true).measure(setting.rounds),
                );
            }
            rows.push(
                scene.over_tcp(format!("tcp-{word}-sleeping"), "read", size, false).measure(setting.rounds),
            );
        }
        (setting.say)("read: streams");
        for verb in ["read", "write"] {
            rows.push(scene.streams(verb).measure(setting.rounds));
        }
        Ok(rows)
    }
}

/// Makes a region and writes all of it.
fn touch(node: &BenchNode, region: &str, bytes: u64) -> Result<(), Failure> {
    let pool = node.pool()?;
    let region = name(region)?;
    pool.create_region(&region, bytes, None)?;
    let object = pool.open(&region, Rights::READ | Rights::WRITE)?;
    let piece = vec![7; 8 << 20];
    for offset in (0..bytes).step_by(piece.len()) {
        object.write_at(offset, &piece)?;
    }
    Ok(())
}

fn reader(setting: &Setting, node: &BenchNode, region: &str, polls: bool) -> Result<Worker, Failure> {
    let mut command = Command::new(&setting.program);
    command.args(["bench", "read-worker"]).env(REGION_VARIABLE, region);
    command.env("HINTERLAND_SOCKET", &node.socket);
    command.env("HINTERLAND_POLLING", if polls { "1" } else { "0" });
    Worker::start("a client of the pool", command)
}

impl Scene {
    fn count(&self, bytes: usize, near: bool) -> usize {
        let count = match (bytes, near) {
            (..=64, true) => 200_000,
            (..=4096, true) => 50_000,
            (..=4096, false) => 4_000,
            _ => 300,
        };
        if self.quick { count / 8 } else { count }
    }

    fn prepare(&self, bytes: usize) -> Result<(), Failure> {
        for connection in [&self.unix, &self.tcp].into_iter().flatten() {
            connection.borrow_mut().prepare(bytes)?;
        }
        Ok(())
    }

    fn in_rack<'scene>(&'scene self, case: String, verb: &'static str, bytes: usize) -> Case<'scene> {
        let count = self.count(bytes, true);
        Case::new(case, "us", Better::Lower, move || {
            self.rack.borrow_mut().figure(&format!("{verb} {bytes} {count}"))
        })
        .limit("plain copy at such offsets", move || {
            self.rack.borrow_mut().figure(&format!("plain-{verb} {bytes} {count}"))
        })
        .peer_or_why("Redis, unix socket", redis(&self.unix, verb, bytes, self.count(bytes, false), None))
    }

    fn over_tcp<'scene>(
        &'scene self,
        case: String,
        verb: &'static str,
        bytes: usize,
        polls: bool,
    ) -> Case<'scene> {
        let count = self.count(bytes, false);
        let worker = if polls { &self.polling } else { &self.blocking };
        let limit =
            if polls { "bare TCP socket, both ends spinning" } else { "bare TCP socket, both ends sleeping" };
        let sleeps = !polls;
        let (is_write, polls) = (u8::from(verb == "write"), u8::from(polls));
        Case::new(case, "us", Better::Lower, move || {
            std::thread::sleep(SETTLE);
            let mut worker = worker.borrow_mut();
            let _apart = sleeps.then(|| Apart::keep(worker.process(), self.asleep));
            worker.figure(&format!("{verb} {bytes} {count}"))
        })
        .limit(limit, move || {
            std::thread::sleep(SETTLE);
            let mut machine = self.machine.borrow_mut();
            let _apart = sleeps.then(|| Apart::keep(machine.process(), self.asleep_bare));
            machine.figure(&format!("latency {bytes} {count} {is_write} {polls}"))
        })
        .peer_or_why("Redis, TCP", redis(&self.tcp, verb, bytes, count, self.redis.filter(|_| sleeps)))
    }

    fn streams<'scene>(&'scene self, verb: &'static str) -> Case<'scene> {
        let bytes: usize = if self.quick { 512 << 20 } else { 2 << 30 };
        let is_write = u8::from(verb == "write");
        Case::new(format!("tcp-stream-{verb}"), "GB/s", Better::Higher, move || {
            self.blocking.borrow_mut().figure(&format!("stream {bytes} {is_write}"))
        })
        .limit(format!("bare TCP, {STREAMS} streams"), move || {
            self.machine.borrow_mut().figure(&format!("stream {STREAMS} {bytes} {is_write}"))
        })
    }
}

/// A figure of Redis, if there is one, with `apart` as the process of the server that is kept from the processor of this one.
fn redis<'scene>(
    connection: &'scene Result<RefCell<Connection>, Failure>,
    verb: &'static str,
    bytes: usize,
    count: usize,
    apart: Option<u32>,
) -> Result<impl FnMut() -> Result<f64, Failure> + 'scene, &'scene Failure> {
    connection.as_ref().map(|connection| {
        move || {
            std::thread::sleep(SETTLE);
            let _apart = apart.map(|server| Apart::keep(std::process::id(), server));
            let mut connection = connection.borrow_mut();
            if verb == "read" { connection.read(bytes, count) } else { connection.write(bytes, count) }
        }
    })
}
