//! `rack-rw`: reads and writes by address of a region in another rack, beside a bare socket; between two hosts over RDMA.

pub mod rdma;

use super::apart::Apart;
use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, ObjectName, Rights};
use std::cell::RefCell;
use std::time::Instant;

/// Bytes of the region.
const REGION_BYTES: u64 = 16 << 20;
/// Sizes of an access.
const SIZES: [(&str, usize); 4] = [("64B", 64), ("256B", 256), ("1KiB", 1 << 10), ("4KiB", 4 << 10)];

/// Bytes of an access inside the rack.
const LOCAL_BYTES: usize = 64;
/// Where those go: a part that the processor's second cache has, so that what is measured is the way there and not the memory.
const LOCAL_SPAN: u64 = 256 << 10;

/// The bench.
pub struct RackRw;

impl Bench for RackRw {
    fn name(&self) -> &'static str {
        "rack-rw"
    }

    fn subject(&self) -> &'static str {
        "reads and writes by address of a region in another rack over TCP"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        if let Ok(peer) = std::env::var(rdma::PEER_VARIABLE) {
            return rdma::rows(setting, &peer);
        }
        let ground = Ground::new(setting, 64 << 20)?;
        let plan = NodePlan {
            capacity_bytes: 64 << 20,
            cache_bytes: 4 << 20,
            more: &["--hot", "off"],
            ..NodePlan::default()
        };
        let home = ground.node(NodePlan { name: "home", ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
        let name = ObjectName::parse("bench/rack-rw").map_err(|error| Failure::of(&error))?;
        let first = home.pool()?.create_region(&name, REGION_BYTES, None)?.address.unwrap_or_default();
        let pool = near.pool()?;
        let wire = RefCell::new(ground.machine()?);
        // The number of a process.
        let far = wire.borrow_mut().figure(&format!("serve {REGION_BYTES}"))? as u32;
        let count = if setting.quick { 200 } else { 5_000 };
        let mut rows = Vec::new();
        for (words, is_write) in [("read", false), ("write", true)] {
            for (size, bytes) in SIZES {
                (setting.say)(&format!("rack-rw: {words} of {size}"));
                let case = Case::new(format!("{words}-{size}"), "us", Better::Lower, || {
                    let _apart = Apart::keep(std::process::id(), home.process());
                    latency_us(&pool, first, bytes, count, is_write)
                })
                .limit("bare TCP socket, both ends sleeping", || {
                    let mut wire = wire.borrow_mut();
                    let _apart = Apart::keep(wire.process(), far);
                    wire.figure(&format!("latency {bytes} {count} 0 0"))
                });
                rows.push(case.measure(setting.rounds));
            }
        }
        rows.extend(local_rows(setting, &home)?);
        Ok(rows)
    }
}

/// Rows of accesses inside the rack: by address, through the words of pages, and as bare copies from the same memory.
fn local_rows(setting: &Setting, home: &BenchNode) -> Result<Vec<Row>, Failure> {
    let pool = home.pool()?;
    let name = ObjectName::parse("bench/rack-rw-local").map_err(|error| Failure::of(&error))?;
    let first = pool.create_region(&name, REGION_BYTES, None)?.address.unwrap_or_default();
    let object = pool.open(&name, Rights::READ | Rights::WRITE)?;
    // Plain pointers to the same pages: they do not move here anyway.
    let memory = object.memory()?.clone();
    let count = if setting.quick { 100_000 } else { 2_000_000 };
    let mut rows = Vec::new();
    for (words, is_write) in [("read", false), ("write", true)] {
        (setting.say)(&format!("rack-rw: local {words} of 64B"));
        let case = Case::new(format!("local-{words}-64B"), "ns", Better::Lower, || {
            let mut buffer = [7; LOCAL_BYTES];
            mean_ns(count, |offset| {
                let address = first.checked_add(offset).unwrap_or_default();
                let done =
                    if is_write { pool.write(address, &buffer) } else { pool.read(address, &mut buffer) };
                Ok(done?)
            })
        })
        .limit("bare copies from and to the same memory", || {
            let mut buffer = [7; LOCAL_BYTES];
            mean_ns(count, |offset| {
                // The region is smaller than the address space.
                let at = offset as usize;
                let done =
                    if is_write { memory.write_at(at, &buffer) } else { memory.read_at(at, &mut buffer) };
                done.map_err(|error| Failure::of(&error))
            })
        });
        rows.push(case.measure(setting.rounds));
    }
    Ok(rows)
}

/// Nanoseconds of an access, over `count` of them at places of cache lines all over [`LOCAL_SPAN`].
fn mean_ns(count: u64, mut access: impl FnMut(u64) -> Result<(), Failure>) -> Result<f64, Failure> {
    let begin = Instant::now();
    for number in 0..count {
        access(number.wrapping_mul(7919) * LOCAL_BYTES as u64 % LOCAL_SPAN)?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e9 / count as f64)
}

/// The median of `count` accesses at places all over the region, in microseconds.
fn latency_us(
    pool: &Pool,
    first: GlobalAddress,
    bytes: usize,
    count: usize,
    is_write: bool,
) -> Result<f64, Failure> {
    let mut buffer = vec![7; bytes];
    let mut times = Vec::with_capacity(count);
    let places = REGION_BYTES / bytes as u64;
    for number in 0..count as u64 {
        let offset = number.wrapping_mul(7919) % places * bytes as u64;
        let address = first.checked_add(offset).unwrap_or_default();
        let begin = Instant::now();
        if is_write {
            pool.write(address, &buffer)?;
        } else {
            pool.read(address, &mut buffer)?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[count / 2])
}
