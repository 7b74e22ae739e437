//! What the mechanisms cost on this machine, each beside its bare limit in the same run.
//!
//! `cargo run --release -p hinterland-os --example costs` prints medians of many short rounds: copies out of shared memory
//! against `memcpy` between private buffers, fills of 2 MiB against `pwrite`, and what it takes to know that mapped memory is still
//! its file's against copying it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use hinterland_os::own_files;
use hinterland_os::{HUGE_PAGE_BYTES, MapOptions, Mapping, MemoryFile, PageFiller, PageKind, SharedSlice};

const ROUNDS: usize = 41;
const REGION_BYTES: usize = 64 << 20;

fn main() -> Result<(), hinterland_os::OsError> {
    let shared = Arc::new(Mapping::anonymous(REGION_BYTES, true)?).slice();
    shared.fill(0, REGION_BYTES, 1)?;
    let other = Arc::new(Mapping::anonymous(REGION_BYTES, true)?).slice();
    other.fill(0, REGION_BYTES, 1)?;
    // SAFETY: nobody else knows of this mapping, it is never written again, and it outlives the slice.
    let private = unsafe { std::slice::from_raw_parts(other.as_ptr(), REGION_BYTES) };
    println!(
        "{:>10}  {:>12}  {:>12}  {:>12}  {:>6}",
        "bytes", "read_at ns", "write_at ns", "memcpy ns", "ratio"
    );
    for bytes in [8, 64, 100, 256, 4096, 64 << 10, 1 << 20] {
        copies(&shared, private, bytes)?;
    }
    fills()?;
    looks()
}

/// Asking the kernel which file lies behind memory and whether its pages are the file's, beside copying the memory.
fn looks() -> Result<(), hinterland_os::OsError> {
    let file = MemoryFile::anonymous("looks", REGION_BYTES as u64, PageKind::Base4K)?;
    let view = Arc::new(file.map(0, REGION_BYTES, MapOptions::default())?).slice();
    let mut buffer = vec![0u8; REGION_BYTES];
    view.read_at(0, &mut buffer)?;
    let start = view.as_ptr().expose_provenance() as u64;
    println!("{:>10}  {:>12}  {:>12}", "bytes", "look us", "copy us");
    for bytes in [64 << 10, 256 << 10, 1 << 20, 4 << 20, REGION_BYTES] {
        let (mut look, mut copy) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            look.push(per_call_ns(&[0; 4], |_| {
                black_box(own_files::mapping_at(start)?);
                black_box(own_files::is_all_of_file(start, bytes as u64)?);
                Ok(())
            })?);
            copy.push(per_call_ns(&[0; 4], |offset| view.read_at(offset, black_box(&mut buffer[..bytes])))?);
        }
        println!("{bytes:10}  {:12.1}  {:12.1}", median(look) / 1000.0, median(copy) / 1000.0);
    }
    Ok(())
}

/// Copies of one size at scattered offsets, the three kinds in turn.
fn copies(shared: &SharedSlice, private: &[u8], bytes: usize) -> Result<(), hinterland_os::OsError> {
    let count = ((8 << 20) / bytes).clamp(8, 100_000);
    let offsets = scattered(bytes, count);
    let mut buffer = vec![0u8; bytes];
    let (mut read, mut write, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        read.push(per_call_ns(&offsets, |offset| shared.read_at(offset, black_box(&mut buffer)))?);
        write.push(per_call_ns(&offsets, |offset| shared.write_at(offset, black_box(&buffer)))?);
        plain.push(per_call_ns(&offsets, |offset| {
            let length = black_box(bytes);
            black_box(&mut buffer)[..length].copy_from_slice(&private[offset..offset + length]);
            Ok(())
        })?);
    }
    let (read, write, plain) = (median(read), median(write), median(plain));
    println!("{bytes:10}  {read:12.1}  {write:12.1}  {plain:12.1}  {:6.2}", read / plain);
    Ok(())
}

fn scattered(bytes: usize, count: usize) -> Vec<usize> {
    let mut seed = 7usize;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 24) % (REGION_BYTES - bytes) / 64 * 64
    };
    (0..count).map(|_| next()).collect()
}

fn per_call_ns(
    offsets: &[usize],
    mut call: impl FnMut(usize) -> Result<(), hinterland_os::OsError>,
) -> Result<f64, hinterland_os::OsError> {
    let begin = Instant::now();
    for &offset in offsets {
        call(offset)?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / offsets.len() as f64)
}

/// Fills of 2 MiB of a memfd with 4 KiB pages: by plain writes, and so that every page appears whole.
fn fills() -> Result<(), hinterland_os::OsError> {
    let units = 16;
    let file = MemoryFile::anonymous("costs", (units * HUGE_PAGE_BYTES) as u64, PageKind::Base4K)?;
    let filler = PageFiller::new(&file)?;
    let source = vec![3u8; HUGE_PAGE_BYTES];
    let view = Arc::new(file.map(0, file.len() as usize, MapOptions::default())?).slice();
    let (mut plain, mut whole) = (Vec::new(), Vec::new());
    let offset = |unit: usize| (unit * HUGE_PAGE_BYTES) as u64;
    for _ in 0..ROUNDS / 4 {
        plain.push(per_unit_us(&file, units, || {
            (0..units).try_for_each(|unit| file.write_at(offset(unit), &source))
        })?);
        whole.push(per_unit_us(&file, units, || {
            (0..units).try_for_each(|unit| filler.copy(offset(unit), &source))
        })?);
    }
    black_box(view.load_u64(0)?);
    let (plain, whole) = (median(plain), median(whole));
    println!("fill of 2 MiB (new 4 KiB pages): pwrite {plain:.0} us, pages that appear whole {whole:.0} us");
    Ok(())
}

fn per_unit_us(
    file: &MemoryFile,
    units: usize,
    fill: impl FnOnce() -> Result<(), hinterland_os::OsError>,
) -> Result<f64, hinterland_os::OsError> {
    file.punch(0, file.len())?;
    let begin = Instant::now();
    fill()?;
    Ok(begin.elapsed().as_nanos() as f64 / 1000.0 / units as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
