//! `scan`: sequential scans of a mapped object, in the rack and from another rack, beside memory, bare TCP and the page
//! cache. One program scans all of them: it maps a file, and the file is an object or not.

use super::case::{Case, row};
use super::content::{name, put, write_file};
use super::ground::{BenchNode, Ground, NodePlan};
use super::link::Link;
use super::report::{Better, Row};
use super::rounds::Samples;
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_proto::control::Request;
use std::cell::RefCell;

const OBJECT: &str = "bench/scanned";
/// Memory that is scanned in place of an object, again and again: far beyond every cache of the processor.
const MEMORY_BYTES: u64 = 1 << 30;
/// Streams between nodes, and of the bare transfer.
const STREAMS: usize = 4;
/// The rate of the link between racks that stands beside the loopback: a common network, which leaves the processors of this
/// machine time for what is done with the bytes.
const LINK_GIGABITS: u32 = 10;

/// The bench.
pub struct Scan;

struct Scene<'bench> {
    near: &'bench BenchNode,
    home_reader: RefCell<Worker>,
    near_reader: RefCell<Worker>,
    file_reader: RefCell<Worker>,
    memory: RefCell<Worker>,
    wire: RefCell<Worker>,
    path: String,
    bytes: u64,
}

impl Bench for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn subject(&self) -> &'static str {
        "first and second sequential scan of a mapped object, in the rack and over TCP"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["sequential-prefetch", "pipeline", "huge-pages"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes: u64 = if setting.quick { 1 << 30 } else { 4 << 30 };
        let ground = Ground::new(setting, 2 * bytes + 3 * MEMORY_BYTES + (256 << 20))?;
        let plan =
            NodePlan { capacity_bytes: 64 << 20, cache_bytes: bytes + (64 << 20), ..NodePlan::default() };
        let home = ground.node(NodePlan { name: "home", capacity_bytes: bytes + (128 << 20), ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
        (setting.say)("scan: putting the object");
        put(&home.pool()?, OBJECT, bytes)?;
        let file = ground.folder().join("scanned");
        write_file(&file, bytes)?;
        let scene = Scene {
            near: &near,
            home_reader: RefCell::new(ground.machine_on(&home, &[])?),
            near_reader: RefCell::new(ground.machine_on(&near, &[])?),
            file_reader: RefCell::new(ground.machine()?),
            memory: RefCell::new(ground.machine()?),
            wire: RefCell::new(ground.machine()?),
            path: ground.mount().join(OBJECT).display().to_string(),
            bytes,
        };
        scene.memory.borrow_mut().ask(&format!("anonymous {MEMORY_BYTES}"))?;
        scene.wire.borrow_mut().ask(&format!("serve {MEMORY_BYTES}"))?;
        scene.file_reader.borrow_mut().ask(&format!("map {}", file.display()))?;
        let mut rows = scene.in_rack(setting)?;
        rows.extend(scene.over_tcp(setting)?);
        rows.extend(scene.checked()?);
        drop(scene);
        drop((near, home));
        (setting.say)(&format!("scan: over a link of {LINK_GIGABITS} Gbit/s"));
        rows.push(over_link(setting, &ground, bytes));
        Ok(rows)
    }
}

/// The first scan over a link of a known rate.
fn over_link(setting: &Setting, ground: &Ground, bytes: u64) -> Row {
    let case = format!("{LINK_GIGABITS}gbit-first");
    match link_scans(setting, ground, bytes) {
        Ok(samples) => {
            let words = [Some(format!("bare TCP over the same link, {STREAMS} streams")), None];
            row(case, "GB/s", Better::Higher, &samples, words, None)
        }
        Err(failure) => Row::absent(case, "GB/s", Better::Higher, failure.text),
    }
}

fn link_scans(setting: &Setting, ground: &Ground, bytes: u64) -> Result<[Samples; 2], Failure> {
    let link = Link::new(LINK_GIGABITS)?;
    let plan = NodePlan { capacity_bytes: 64 << 20, cache_bytes: bytes + (64 << 20), ..NodePlan::default() };
    let far = NodePlan { name: "far", capacity_bytes: bytes + (128 << 20), end: Some(link.end(0)), ..plan };
    let home = ground.node(far)?;
    let here = NodePlan { name: "here", join: Some(&home.address), end: Some(link.end(1)), ..plan };
    let near = ground.node(here)?;
    put(&home.pool()?, OBJECT, bytes)?;
    let mut reader = ground.machine_on(&near, &[])?;
    let mut wire = ground.machine_at(link.end(1))?;
    wire.ask(&format!("serve {MEMORY_BYTES} {}", link.end(0).words()))?;
    let path = ground.mount().join(OBJECT).display().to_string();
    let mut samples: [Samples; 2] = Default::default();
    for round in 0..=setting.rounds {
        near.pool()?.session().call(&Request::DropCache { name: name(OBJECT)? })?;
        reader.ask("unmap")?;
        reader.ask(&format!("map {path}"))?;
        let figures = [reader.figure("scan")?, wire.figure(&format!("stream {STREAMS} {bytes} 0"))?];
        // The first round warms all of them up.
        if round > 0 {
            samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.add(figure));
        }
    }
    Ok(samples)
}

impl Scene<'_> {
    fn memory_scan(&self) -> Result<f64, Failure> {
        self.memory.borrow_mut().figure(&format!("scan 0 {}", self.bytes / MEMORY_BYTES))
    }

    fn file_scan(&self, is_cold: bool) -> Result<f64, Failure> {
        let mut reader = self.file_reader.borrow_mut();
        reader.ask(if is_cold { "cold" } else { "remap" })?;
        reader.figure("scan")
    }

    /// Maps the object anew and scans it twice.
    fn twice(&self, reader: &RefCell<Worker>) -> Result<[f64; 2], Failure> {
        let mut reader = reader.borrow_mut();
        reader.ask("unmap")?;
        reader.ask(&format!("map {}", self.path))?;
        Ok([reader.figure("scan")?, reader.figure("scan")?])
    }

    fn in_rack(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        (setting.say)("scan: in the rack");
        let ours = |index: usize| move || self.twice(&self.home_reader).map(|both| both[index]);
        let case = |name: &str, index: usize, is_cold: bool| {
            let words =
                if is_cold { "mmap of a file, from disk" } else { "mmap of a file, from the page cache" };
            Case::new(name, "GB/s", Better::Higher, ours(index))
                .limit("anonymous huge pages", || self.memory_scan())
                .peer(words, move || self.file_scan(is_cold))
                .measure(setting.rounds)
        };
        Ok(vec![case("rack-first", 0, true), case("rack-second", 1, false)])
    }

    /// Both scans of a round are taken of one mapping: the cache is emptied before the first.
    fn over_tcp(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        (setting.say)("scan: over TCP");
        let mut samples: [[Samples; 3]; 2] = Default::default();
        let mut used: [Samples; 3] = Default::default();
        for round in 0..=setting.rounds {
            self.near.pool()?.session().call(&Request::DropCache { name: name(OBJECT)? })?;
            let ours = self.twice(&self.near_reader)?;
            let limits = [
                self.wire.borrow_mut().figure(&format!("stream {STREAMS} {} 0", self.bytes))?,
                self.memory_scan()?,
            ];
            let peers = [self.file_scan(true)?, self.file_scan(false)?];
            let work = self.wire.borrow_mut().figure(&format!("stream {STREAMS} {} 0 1", self.bytes))?;
            // The first round warms all of them up.
            if round > 0 {
                used[0].add(ours[0]);
                used[1].add(work);
                for index in 0..2 {
                    for (place, value) in [ours[index], limits[index], peers[index]].into_iter().enumerate() {
                        samples[index][place].add(value);
                    }
                }
            }
        }
        let names = [
            ["bare TCP, 4 streams, memory to memory", "mmap of a file, from disk"],
            ["anonymous huge pages", "mmap of a file, from the page cache"],
        ];
        let cases = ["tcp-first", "tcp-second"];
        let mut rows: Vec<Row> = (0..2)
            .map(|index| {
                let words = names[index].map(|words| Some(words.to_owned()));
                row(cases[index], "GB/s", Better::Higher, &samples[index], words, None)
            })
            .collect();
        let words = [Some("bare TCP, 4 streams, every piece checksummed and read once".to_owned()), None];
        rows.push(row("tcp-first-used", "GB/s", Better::Higher, &used, words, None));
        Ok(rows)
    }

    /// All three have read the same bytes, or the figures mean nothing.
    fn checked(&self) -> Result<Vec<Row>, Failure> {
        let sum = |reader: &RefCell<Worker>| -> Result<f64, Failure> {
            let figures = reader.borrow_mut().ask("scan")?;
            Ok(figures.get(1).copied().unwrap_or(-1.0))
        };
        let sums = [sum(&self.home_reader)?, sum(&self.near_reader)?, sum(&self.file_reader)?];
        if sums[0] == sums[2] && sums[1] == sums[2] {
            return Ok(Vec::new());
        }
        Err(Failure::new(
            format!("the scans read different bytes: sums {sums:?}"),
            "this is a defect: report it with `hinterland verify`",
        ))
    }
}
