//! `write-buffer`: small writes under a write lock to a region in another rack, buffered and one by one, beside a bare socket.

use super::case::Case;
use super::ground::{Ground, NodePlan};
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::{GuardOptions, Pool};
use hinterland_types::{GlobalAddress, ObjectName};
use std::cell::RefCell;
use std::time::Instant;

/// Bytes of the region that a guard covers.
const REGION_BYTES: u64 = 2 << 20;
/// Sizes of a write.
const SIZES: [usize; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];
/// Longest write that is buffered, and what one half of the buffer holds: bytes and ranges.
const BUFFERED_BYTES_MAX: usize = 256;
const HALF: (usize, usize) = (16 << 10, 256);

/// The bench.
pub struct WriteBuffer;

impl Bench for WriteBuffer {
    fn name(&self) -> &'static str {
        "write-buffer"
    }

    fn subject(&self) -> &'static str {
        "writes under a write lock to a region in another rack, buffered and one by one"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 64 << 20)?;
        let plan = NodePlan {
            capacity_bytes: 64 << 20,
            cache_bytes: 4 << 20,
            more: &["--hot", "off"],
            ..NodePlan::default()
        };
        let home = ground.node(NodePlan { name: "home", ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
        let name = ObjectName::parse("bench/write-buffer").map_err(|error| Failure::of(&error))?;
        let first = home.pool()?.create_region(&name, REGION_BYTES, None)?.address.unwrap_or_default();
        let pool = near.pool()?;
        let wire = RefCell::new(ground.machine()?);
        wire.borrow_mut().ask(&format!("serve {REGION_BYTES}"))?;
        let count = if setting.quick { 600 } else { 6_000 };
        let mut rows = Vec::new();
        for bytes in SIZES {
            (setting.say)(&format!("write-buffer: {bytes} B"));
            // As many writes as go in one message, and their bytes.
            let together = if bytes > BUFFERED_BYTES_MAX { 1 } else { HALF.1.min(HALF.0 / bytes) };
            let case = Case::new(format!("write-{bytes}B"), "us", Better::Lower, || {
                write_us(&pool, first, bytes, count, true)
            })
            .limit("the same bytes in messages of a bare TCP socket, as many together", || {
                let trips = (count / together).clamp(20, 2_000);
                let trip_us =
                    wire.borrow_mut().figure(&format!("latency {} {trips} 0 0", bytes * together))?;
                Ok(trip_us / together as f64)
            })
            .peer("HINTERLAND_NO_WRITE_BUFFER=1", || write_us(&pool, first, bytes, count, false));
            rows.push(case.measure(setting.rounds));
        }
        Ok(rows)
    }
}

/// What one of `count` writes costs, all of which have arrived, in microseconds. They go to places all over the region.
fn write_us(
    pool: &Pool,
    first: GlobalAddress,
    bytes: usize,
    count: usize,
    write_buffer: bool,
) -> Result<f64, Failure> {
    let options = GuardOptions { write_buffer, ..GuardOptions::default() };
    let from = vec![7; bytes];
    let places = REGION_BYTES / bytes as u64;
    let guard = pool.wlock(first, REGION_BYTES, &options)?;
    let begin = Instant::now();
    for number in 0..count as u64 {
        guard.write(number.wrapping_mul(7919) % places * bytes as u64, &from)?;
    }
    guard.flush()?;
    let taken_us = begin.elapsed().as_secs_f64() * 1e6;
    guard.unlock()?;
    Ok(taken_us / count as f64)
}
