//! What a read or a write by address costs over a plain copy of the same bytes, in this rack.
//!
//! usage: `cargo run --release -p hinterland-pool --example address_figures [MIB]`, with a node on the default socket
//! that lends more than MIB (256) MiB. Rounds of the two are taken in turn; medians are printed.

use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, ObjectName, Rights};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = std::env::args().nth(1).map_or(Ok(256), |text| text.parse::<u64>())? << 20;
    let pool = Pool::connect(None)?;
    let name = ObjectName::parse(&format!("figures/{}", std::process::id()))?;
    let address = pool.create_region(&name, bytes, None)?.address.ok_or("the region has no address")?;
    let result = measure(&pool, &name, address, bytes);
    pool.remove(&name)?;
    result
}

fn measure(pool: &Pool, name: &ObjectName, address: GlobalAddress, bytes: u64) -> Result<(), Box<dyn Error>> {
    let object = pool.open(name, Rights::READ | Rights::WRITE)?;
    let memory = object.memory()?;
    // Touched once, so that no page is new to anybody.
    memory.fill(0, memory.len(), 1)?;
    for (length, count) in [(64, 200_000), (4096, 20_000), (1 << 20, 200)] {
        let offsets: Vec<u64> = offsets(count, bytes - length).collect();
        let mut buffer = vec![0u8; usize::try_from(length)?];
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(timed(&offsets, |offset| {
                // SAFETY: every offset is at most the region's size less the length; the buffer is its own memory.
                unsafe {
                    let from = memory.as_ptr().add(offset as usize);
                    std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len());
                }
                black_box(&mut buffer);
                Ok(())
            })?);
            times[1].push(timed(&offsets, |offset| {
                pool.read(address.checked_add(offset).ok_or("no such address")?, black_box(&mut buffer))?;
                Ok(())
            })?);
            times[2].push(timed(&offsets, |offset| {
                pool.write(address.checked_add(offset).ok_or("no such address")?, black_box(&buffer))?;
                Ok(())
            })?);
        }
        let [plain, read, write] = times.map(median);
        println!("{length:>8} bytes: plain copy {plain:.1} ns, read {read:.1} ns, write {write:.1} ns");
    }
    Ok(())
}

fn timed(
    offsets: &[u64],
    mut operation: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for offset in offsets {
        operation(*offset)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / offsets.len() as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Offsets that look random and are the same in every run, at multiples of 64.
fn offsets(count: usize, most: u64) -> impl Iterator<Item = u64> {
    let mut state = 1u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % (most + 1) / 64 * 64
    })
}
