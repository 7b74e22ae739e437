//! First reads of objects of another rack as a program does them, in each way and in the chosen one; and those of objects that it had
//! open before.

use super::super::ground::{BenchNode, Ground, NodePlan};
use super::super::report::Row;
use super::super::{Bench, Setting};
use super::{Fetcher, RpcAdaptive, SIZES, WAYS, measure};
use crate::failure::Failure;
use hinterland_pool::{Pool, PutOptions};
use hinterland_types::ObjectName;
use std::time::Instant;

/// Two racks, and a program in the second.
struct Scene {
    _home: BenchNode,
    near: BenchNode,
}

/// The rows of all sizes.
pub fn rows(setting: &Setting, count: u64) -> Result<Vec<Row>, Failure> {
    let ground = Ground::new(setting, 1 << 29)?;
    let scene = Scene::new(&ground)?;
    (setting.say)(&format!("{}: objects of another rack", RpcAdaptive.name()));
    let near = scene.near.pool()?;
    let mut ways = WAYS
        .into_iter()
        .map(|(name, way)| Ok(fetcher(name, near.reading_by(way)?, true)))
        .collect::<Result<Vec<_>, Failure>>()?;
    ways.push(fetcher("again", near.reading_by(None)?, false));
    let mut rows = Vec::new();
    for size in SIZES {
        rows.extend(measure("object-", size, &ways, setting.rounds, count)?);
    }
    Ok(rows)
}

impl Scene {
    /// With an object of every size in the first rack.
    fn new(ground: &Ground) -> Result<Self, Failure> {
        let plan = NodePlan { capacity_bytes: 64 << 20, cache_bytes: 64 << 20, ..NodePlan::default() };
        let home = ground.node(NodePlan { name: "home", ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
        let pool = home.pool()?;
        for (_, size) in SIZES {
            let bytes = vec![7; size];
            pool.put(&mut &bytes[..], &object(size)?, &PutOptions::default(), &mut |_| {})?;
        }
        Ok(Self { _home: home, near })
    }
}

/// Opens an object and reads all of it; only the read is timed.
fn fetcher(name: &'static str, pool: Pool, is_first: bool) -> Fetcher<'static> {
    let counted = pool.clone();
    let fetch = move |size| {
        if is_first {
            pool.forget_learned();
        }
        let opened = pool.open_object(&object(size)?)?;
        let mut into = vec![0; size];
        let begin = Instant::now();
        opened.read_at(0, &mut into)?;
        let time_us = begin.elapsed().as_secs_f64() * 1e6;
        super::checked(&into, time_us)
    };
    let round_trips = move || {
        let counts = counted.read_counts();
        counts.questions + counts.reads
    };
    Fetcher { name, fetch_us: Box::new(fetch), round_trips: Box::new(round_trips) }
}

fn object(size: usize) -> Result<ObjectName, Failure> {
    ObjectName::parse(&format!("bench/{size}")).map_err(|error| Failure::of(&error))
}
