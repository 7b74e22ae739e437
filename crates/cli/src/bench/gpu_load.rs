//! `gpu-load`: a model goes to a GPU elsewhere, by name from the pool or as bytes through the program's host, beside a plain read of the pool.

use super::case::Case;
use super::content::{name, put};
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_channel::frame_bytes;
use hinterland_proto::control::Request;
use hinterland_proto::gpu::command::CopyPooled;
use std::time::Instant;

/// The program that copies.
const LOADER_SOURCE: &str = include_str!("../../../../bench/gpu/load.c");
const OBJECT: &str = "bench/weights";
/// Bytes of a copy: about what a matrix of a large model has.
const PIECE_BYTES: u64 = 16 << 20;
/// Bytes for each node beside the object.
const SLACK_BYTES: u64 = 64 << 20;
/// What is read of the pool at once, for the limit.
const READ_BYTES: usize = 1 << 20;
/// Turns copies by name off.
const SENT: &str = "HINTERLAND_NO_POOL_COPIES";
const PEER: &str = "bytes through the program's host";

/// The bench.
pub struct GpuLoad;

impl Bench for GpuLoad {
    fn name(&self) -> &'static str {
        "gpu-load"
    }

    fn subject(&self) -> &'static str {
        "an object of the pool copied to a GPU elsewhere, and what passes through the program's host"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes = if setting.quick { 24 << 20 } else { 512 << 20 };
        let ground = Ground::new(setting, 3 * bytes)?;
        let program = ground.compiled("load", LOADER_SOURCE)?;
        let plan =
            NodePlan { capacity_bytes: SLACK_BYTES, cache_bytes: bytes + SLACK_BYTES, ..NodePlan::default() };
        let home = ground.node(NodePlan { name: "home", capacity_bytes: bytes + SLACK_BYTES, ..plan })?;
        let join = Some(home.address.as_str());
        let beside = ground.node(NodePlan { name: "beside", join, ..plan })?;
        let near = ground.node(NodePlan { name: "near", join, ..plan })?;
        put(&home.pool()?, OBJECT, bytes)?;
        let device = format!("software:kernels=none,memory={}", bytes + SLACK_BYTES);
        let scene = Scene {
            gpus: [
                ground.gpu_node_of("gpu-home", &device, Some(&home))?,
                ground.gpu_node_of("gpu-beside", &device, Some(&beside))?,
            ],
            ground,
            program,
            home,
            beside,
            near,
            bytes,
        };
        (setting.say)("gpu-load: times");
        let mut rows: Vec<Row> = [At::Home, At::Warm, At::Cold].map(|at| scene.time_row(at, setting)).into();
        (setting.say)("gpu-load: bytes");
        rows.extend([scene.channel_row(setting), scene.rack_row(setting)]);
        Ok(rows)
    }
}

/// Where the bytes are when the copies begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// On the GPU's host, whose node is their home.
    Home,
    /// In the cache of the GPU's host.
    Warm,
    /// In another rack.
    Cold,
}

struct Scene {
    /// That whose host is the home, and that whose host is not.
    gpus: [BenchNode; 2],
    program: std::path::PathBuf,
    home: BenchNode,
    beside: BenchNode,
    near: BenchNode,
    bytes: u64,
    /// Last: it removes the folder.
    ground: Ground,
}

/// What a load took.
struct Load {
    ms: f64,
    channel_bytes: f64,
    rack_bytes: f64,
}

impl Scene {
    /// Takes the object out of the caches of other racks than its own.
    fn forget(&self) -> Result<(), Failure> {
        for node in [&self.beside, &self.near] {
            node.pool()?.session().call(&Request::DropCache { name: name(OBJECT)? })?;
        }
        Ok(())
    }

    /// Bytes that the program's rack has received so far.
    fn received(&self) -> Result<f64, Failure> {
        Ok(self.near.pool()?.status()?.counters.network_received_bytes as f64)
    }

    /// Copies the object by a program of its own, over TCP, by name or not.
    fn load(&self, at: At, by_name: bool) -> Result<Load, Failure> {
        match at {
            At::Cold => self.forget()?,
            // In both ways the bytes are where they are read.
            At::Warm => self.read(if by_name { At::Warm } else { At::Cold }).map(drop)?,
            At::Home => {}
        }
        let gpu = &self.gpus[usize::from(at != At::Home)].address;
        let mut command = self.ground.run_on(&self.near, &["--gpu", gpu]);
        command.arg(&self.program).env_remove(SENT).env_remove("HINTERLAND_KEY_FILE");
        if !by_name {
            command.env(SENT, "1");
        }
        let before = self.received()?;
        let mut worker = Worker::start("the program that copies", command)?;
        let file = self.ground.mount().join(OBJECT);
        let answer = worker.ask(&format!("load {} {PIECE_BYTES}", file.display()))?;
        drop(worker);
        let rack_bytes = self.received()? - before;
        let [ms, channel_bytes, _, named] = answer[..] else {
            return Err(Failure::new(format!("a load took {answer:?}"), "report this"));
        };
        let wanted = if by_name { self.bytes as f64 } else { 0.0 };
        if named != wanted {
            let text = format!("{named} bytes were copied by name, and {wanted} should have been");
            return Err(Failure::new(text, "HINTERLAND_VERBOSE=1 says why"));
        }
        Ok(Load { ms, channel_bytes, rack_bytes })
    }

    /// Milliseconds of reading the object where the GPU is, through the pool's client.
    fn read(&self, at: At) -> Result<f64, Failure> {
        if at == At::Cold {
            self.forget()?;
        }
        let node = if at == At::Home { &self.home } else { &self.beside };
        let pool = node.pool()?;
        let object = pool.open_object(&name(OBJECT)?)?;
        let mut piece = vec![0; READ_BYTES];
        let begin = Instant::now();
        for offset in (0..self.bytes).step_by(READ_BYTES) {
            if object.is_local() {
                object.read_at(offset, &mut piece)?;
            } else {
                object.read_cached(offset, &mut piece)?;
            }
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }

    fn time_row(&self, at: At, setting: &Setting) -> Row {
        let case = match at {
            At::Home => "home-time",
            At::Warm => "warm-time",
            At::Cold => "cold-time",
        };
        Case::new(case, "ms", Better::Lower, || Ok(self.load(at, true)?.ms))
            .limit("a read of the object where the GPU is", || self.read(at))
            .peer(PEER, || Ok(self.load(at, false)?.ms))
            .measure(setting.rounds)
    }

    fn channel_row(&self, setting: &Setting) -> Row {
        let copies = self.bytes.div_ceil(PIECE_BYTES) as f64;
        Case::new("channel-bytes", "bytes", Better::Lower, || Ok(self.load(At::Warm, true)?.channel_bytes))
            .limit("a command for each copy", || Ok(copies * frame_bytes(CopyPooled::BYTES) as f64))
            .peer(PEER, || Ok(self.load(At::Warm, false)?.channel_bytes))
            .measure(setting.rounds)
    }

    fn rack_row(&self, setting: &Setting) -> Row {
        Case::new("client-rack-bytes", "bytes", Better::Lower, || Ok(self.load(At::Cold, true)?.rack_bytes))
            .limit("none", || Ok(0.0))
            .peer(PEER, || Ok(self.load(At::Cold, false)?.rack_bytes))
            .measure(setting.rounds)
    }
}
