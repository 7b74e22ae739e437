//! Maps an object, says where it lies and what it sums up to: from another rack it comes on touch.
//!
//! usage: `cargo run -p hinterland-region --example map_object -- NAME`, with a node on the default socket

use hinterland_proto::control::Advice;
use hinterland_region::{MapOptions, Options, Regions};
use hinterland_types::{ByteRange, ObjectName};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: map_object NAME")?;
    let regions = Regions::connect(&Options::from_environment())?;
    let region = regions.map(ObjectName::parse(&name)?, MapOptions::default())?;
    region.advise(ByteRange::within(0, region.bytes(), region.bytes())?, Advice::Sequential)?;
    let place = if region.is_symmetric() { "its own place" } else { "any place" };
    let source = if region.is_armed() { "another rack, on touch" } else { "this rack" };
    println!("{name}: {} bytes at {:p}, {place}, from {source}", region.bytes(), region.pointer());

    let length = usize::try_from(region.bytes())?;
    let mut sum = 0u64;
    for index in 0..length {
        // SAFETY: the region is mapped for `length` bytes until it is dropped, and a sealed object never changes.
        sum += u64::from(unsafe { region.pointer().add(index).read() });
    }
    println!("sum {sum}");
    Ok(())
}
