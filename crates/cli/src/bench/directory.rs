//! `directory`: what a command costs the directory, with and without its store, and what many objects cost it.

use super::case::Case;
use super::ground::Ground;
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_directory::{
    Command, ContentDigest, Directory, Placement, REPAIRS_MAX, Record, Reply, Settings, Table, Writer,
};
use hinterland_node::DirectoryHost;
use hinterland_types::{NodeId, ObjectId, ObjectName, PageNumber, RackName};
use std::collections::HashMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

/// Nodes of a large pool, and racks among which they are divided.
const NODES: u64 = 1000;
const RACKS: u64 = 50;
/// Bytes of an object, and of a region: whole pages.
const OBJECT_BYTES: u64 = 4 << 20;
const REGION_PAGES: u64 = 4000;

/// The bench.
pub struct DirectoryBench;

impl Bench for DirectoryBench {
    fn name(&self) -> &'static str {
        "directory"
    }

    fn subject(&self) -> &'static str {
        "commands of the directory with and without its store, in pools of 16 and 1000 nodes, and a million objects"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let objects = if setting.quick { 10_000 } else { 1_000_000 };
        let rounds = setting.rounds.min(3);
        let mut rows = Vec::new();
        for nodes in [16, NODES] {
            (setting.say)(&format!("directory: {nodes} nodes"));
            rows.extend(in_memory(nodes, rounds));
        }
        (setting.say)("directory: transactions");
        let ground = Ground::new(setting, 0)?;
        rows.extend(durable(ground.folder(), rounds, if setting.quick { 20 } else { 300 })?);
        (setting.say)(&format!("directory: {objects} objects"));
        rows.extend(many(objects)?);
        Ok(rows)
    }
}

/// A directory in memory, and how many things it was given.
struct Memory {
    directory: Directory,
    nodes: u64,
    number: u64,
}

impl Memory {
    fn new(nodes: u64) -> Result<Self, Failure> {
        let directory = Directory::recover(Settings::default(), 0, std::iter::empty())
            .map_err(|error| Failure::of(&error))?;
        let mut memory = Self { directory, nodes, number: 0 };
        for id in 1..=nodes {
            for command in arrival(id, nodes)? {
                memory.ask(&command)?;
            }
        }
        Ok(memory)
    }

    fn ask(&mut self, command: &Command) -> Result<Reply, Failure> {
        self.directory.apply(0, command).map(|(reply, _)| reply).map_err(|error| Failure::of(&error))
    }

    /// Reserves and seals an object; returns it.
    fn put(&mut self) -> Result<ObjectId, Failure> {
        self.number += 1;
        let reserve = reserve(self.number, self.nodes, 2)?;
        let Reply::Reserved { object, homes } = self.ask(&reserve)? else { return Err(confused()) };
        let homes = homes.iter().map(|home| home.node).collect();
        self.ask(&Command::Seal { object, size: OBJECT_BYTES, digest: ContentDigest::default(), homes })?;
        Ok(object)
    }

    /// Makes a region; returns its first page.
    fn region(&mut self, name: &str, placement: Placement) -> Result<PageNumber, Failure> {
        let size = REGION_PAGES << 21;
        let name = parse(name)?;
        let command = Command::CreateRegion { name, size, placement, local: NodeId(1) };
        let Reply::Reserved { object, .. } = self.ask(&command)? else { return Err(confused()) };
        let Reply::Object(info) = self.ask(&Command::LookupObject { object })? else {
            return Err(confused());
        };
        info.pages.map(hinterland_directory::PageRun::first).ok_or_else(confused)
    }
}

/// The commands with which a node comes.
fn arrival(id: u64, nodes: u64) -> Result<[Command; 2], Failure> {
    let node = NodeId(id);
    let rack = RackName::parse(&format!("rack-{}", id * RACKS.min(nodes) / (nodes + 1)))
        .map_err(|error| Failure::of(&error))?;
    let address = format!("10.0.{}.{}:7400", id >> 8, id & 255);
    let join = Command::Join { name: None, node, rack, address, capacity_bytes: 16 << 40, incarnation: 1 };
    let (after, objects) = (ObjectId(0), Vec::new());
    Ok([join, Command::NodeObjects { node, incarnation: 1, after, objects, more: false }])
}

fn reserve(number: u64, nodes: u64, copies: u8) -> Result<Command, Failure> {
    let name = parse(&format!("models/{}/part-{number}", number % 977))?;
    let writer = Writer { node: NodeId(number % nodes + 1), incarnation: 1, token: number };
    Ok(Command::Reserve { name, size: Some(OBJECT_BYTES), copies, placement: Placement::Policy, writer })
}

/// Microseconds of each of some commands without a store.
fn in_memory(nodes: u64, rounds: usize) -> Vec<Row> {
    let case = |name: &str, figure: &mut dyn FnMut() -> Result<f64, Failure>| {
        Case::new(format!("{name}-{nodes}-nodes"), "us", Better::Lower, figure).measure(rounds)
    };
    let many = |count: u64, mut act: Box<dyn FnMut(u64) -> Result<(), Failure> + '_>| {
        let begin = Instant::now();
        for number in 0..count {
            act(number)?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    vec![
        case("heartbeat", &mut || {
            let mut memory = Memory::new(nodes)?;
            many(
                10_000,
                Box::new(|number| {
                    let node = NodeId(number % nodes + 1);
                    memory.ask(&Command::Heartbeat { node, incarnation: 1, used_bytes: 0 }).map(drop)
                }),
            )
        }),
        case("reserve-seal", &mut || {
            let mut memory = Memory::new(nodes)?;
            many(500, Box::new(|_| memory.put().map(drop)))
        }),
        case("lookup", &mut || {
            let mut memory = Memory::new(nodes)?;
            let object = memory.put()?;
            many(10_000, Box::new(|_| memory.ask(&Command::LookupObject { object }).map(drop)))
        }),
        case("repair-list", &mut || {
            let mut memory = Memory::new(nodes)?;
            (0..2000).try_for_each(|_| memory.put().map(drop))?;
            memory.ask(&Command::Leave {
                node: NodeId(1),
                incarnation: 1,
                departure: hinterland_directory::Departure::ComesBack,
            })?;
            many(
                50,
                Box::new(|_| {
                    memory.ask(&Command::RepairList { after: ObjectId(0), limit: REPAIRS_MAX }).map(drop)
                }),
            )
        }),
        case("move-region-of-one-home", &mut || moves(nodes, Placement::Policy)),
        case("move-region-over-all", &mut || moves(nodes, Placement::Spread)),
    ]
}

/// Microseconds of a move: the intent and its commit.
fn moves(nodes: u64, placement: Placement) -> Result<f64, Failure> {
    let mut memory = Memory::new(nodes)?;
    let first = memory.region("region", placement)?;
    let begin = Instant::now();
    let mut done = 0u64;
    for number in 0..200 {
        // A region has far fewer pages than 2^32.
        let page = PageNumber::new(first.raw() + number as u32).ok_or_else(confused)?;
        let to = NodeId(number % (nodes - 1) + 2);
        // A page that lies there already does not move.
        let Ok(Reply::Move { epoch, .. }) = memory.ask(&Command::BeginMove { page, to, incarnation: 1 })
        else {
            continue;
        };
        memory.ask(&Command::CommitMove { page, to, incarnation: 1, epoch })?;
        done += 1;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / done.max(1) as f64)
}

/// Microseconds of commands that are answered when they are on the disk.
fn durable(folder: &Path, rounds: usize, count: u64) -> Result<Vec<Row>, Failure> {
    let path = folder.join("directory.redb");
    let host = DirectoryHost::open(&path, Settings::default()).map_err(|error| Failure::of(&error))?;
    let ask = |command: &Command| host.apply(command).map_err(|error| Failure::of(&error));
    for id in 1..=16 {
        for command in arrival(id, 16)? {
            ask(&command)?;
        }
    }
    // Leases run on: each figure begins with a heartbeat of all.
    let beat = || {
        (1..=16).try_for_each(|id| {
            let node = NodeId(id);
            ask(&Command::Heartbeat { node, incarnation: 1, used_bytes: 0 }).map(drop)
        })
    };
    let mut number = 0u64;
    let put = Case::new("reserve-durable", "us", Better::Lower, || {
        let mut spent = 0.0;
        for _ in 0..count {
            beat()?;
            number += 1;
            let reserve = reserve(number, 16, 1)?;
            let begin = Instant::now();
            let Reply::Reserved { object, .. } = ask(&reserve)? else { return Err(confused()) };
            spent += begin.elapsed().as_secs_f64();
            ask(&Command::Abort { object })?;
        }
        Ok(spent * 1e6 / count as f64)
    })
    .limit("4 KiB written and fdatasync", || synced(&folder.join("synced"), count));
    let together = |host: &DirectoryHost| -> Result<f64, Failure> { at_once(host, count / WRITERS + 1) };
    let apart = DirectoryHost::open(&folder.join("apart.redb"), Settings::default())
        .map_err(|error| Failure::of(&error))?
        .one_by_one();
    for command in (1..=16).map(|id| arrival(id, 16)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        apart.apply(&command).map_err(|error| Failure::of(&error))?;
    }
    let many = Case::new("reserve-durable-16-at-once", "1/s", Better::Higher, || together(&host))
        .limit("4 KiB written and fdatasync, one after the other", || {
            Ok(1e6 / synced(&folder.join("synced"), count)?)
        })
        .peer("one transaction for each", || together(&apart));
    Ok(vec![put.measure(rounds), many.measure(rounds)])
}

/// Writers at the same time.
const WRITERS: u64 = 16;

/// Durable commands in a second of that many writers, each of which reserves and gives up `count` objects.
fn at_once(host: &DirectoryHost, count: u64) -> Result<f64, Failure> {
    for id in 1..=16 {
        let beat = Command::Heartbeat { node: NodeId(id), incarnation: 1, used_bytes: 0 };
        host.apply(&beat).map_err(|error| Failure::of(&error))?;
    }
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    (0..count).try_for_each(|turn| {
                        let reserve = reserve((writer + 1) << 32 | turn, 16, 1)?;
                        let reply = host.apply(&reserve).map_err(|error| Failure::of(&error))?;
                        let Reply::Reserved { object, .. } = reply else { return Err(confused()) };
                        host.apply(&Command::Abort { object }).map_err(|error| Failure::of(&error)).map(drop)
                    })
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| confused())?)
    })?;
    Ok((2 * WRITERS * count) as f64 / begin.elapsed().as_secs_f64())
}

/// Microseconds of writing 4 KiB in place and making them durable.
fn synced(path: &Path, count: u64) -> Result<f64, Failure> {
    let work = || {
        let mut file = std::fs::File::create(path)?;
        let begin = Instant::now();
        for _ in 0..count {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    work().map_err(|error| Failure::file("writing", path, &error))
}

/// What many objects take: bytes of memory and of the store for each, and the time to recover.
fn many(objects: u64) -> Result<Vec<Row>, Failure> {
    let mut store: HashMap<(Table, Vec<u8>), Vec<u8>> = HashMap::new();
    let mut keep = |directory: &mut Directory, command: &Command| {
        let (reply, mutations) = directory.apply(0, command).map_err(|error| Failure::of(&error))?;
        for mutation in mutations {
            match mutation.value {
                Some(value) => store.insert((mutation.table, mutation.key), value),
                None => store.remove(&(mutation.table, mutation.key)),
            };
        }
        Ok::<_, Failure>(reply)
    };
    let mut directory = Directory::recover(Settings::default(), 0, std::iter::empty())
        .map_err(|error| Failure::of(&error))?;
    for id in 1..=16 {
        for command in arrival(id, 16)? {
            keep(&mut directory, &command)?;
        }
    }
    for number in 0..objects {
        let Reply::Reserved { object, homes } = keep(&mut directory, &reserve(number, 16, 2)?)? else {
            return Err(confused());
        };
        let homes = homes.iter().map(|home| home.node).collect();
        let digest = ContentDigest::default();
        keep(&mut directory, &Command::Seal { object, size: OBJECT_BYTES, digest, homes })?;
    }
    let begin = Instant::now();
    for number in 0..10_000u64 {
        let name =
            parse(&format!("models/{}/part-{}", number * 7919 % objects % 977, number * 7919 % objects))?;
        directory.apply(0, &Command::Lookup { name }).map_err(|error| Failure::of(&error))?;
    }
    let lookup_us = begin.elapsed().as_secs_f64() * 1e6 / 10_000.0;
    drop(directory);
    let stored: usize = store.iter().map(|((_, key), value)| key.len() + value.len()).sum();
    let records: Vec<Record> =
        store.into_iter().map(|((table, key), value)| Record { table, key, value }).collect();
    let before = resident_bytes();
    let begin = Instant::now();
    let recovered = Directory::recover(Settings::default(), 0, records.iter().cloned())
        .map_err(|error| Failure::of(&error))?;
    let recovery_s = begin.elapsed().as_secs_f64();
    let held = resident_bytes() - before;
    drop(recovered);
    let row = |name: &str, unit: &'static str, figure: f64| Row {
        ours: Some(figure),
        spread: Some([figure, figure]),
        runs: 1,
        ..Row::new(format!("{name}-{objects}-objects"), unit, Better::Lower)
    };
    Ok(vec![
        row("lookup-by-name", "us", lookup_us),
        row("recover-from-memory", "s", recovery_s),
        row("memory-per-object", "bytes", held / objects as f64),
        row("store-per-object", "bytes", stored as f64 / objects as f64),
    ])
}

/// Memory of this process.
fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0.0);
    pages * 4096.0
}

fn parse(name: &str) -> Result<ObjectName, Failure> {
    ObjectName::parse(name).map_err(|error| Failure::of(&error))
}

fn confused() -> Failure {
    Failure::new("the directory gave an answer that does not belong to its command", "report this")
}
