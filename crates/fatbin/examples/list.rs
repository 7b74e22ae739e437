//! Lists the fat binaries of a file: `cargo run --release -p hinterland-fatbin --example list PROGRAM` counts entries by kind, GPU and
//! compression, unpacks each, reads its kernels, and compares the layouts of all images of one fat binary.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use hinterland_fatbin::{Containers, Entry, Kernels, Parameter, entries};
use object::{Object, ObjectSection};
use std::collections::BTreeMap;
use std::error::Error;

#[derive(Default)]
struct Sums {
    entries: usize,
    raw_bytes: usize,
    image_bytes: usize,
    kernels: usize,
    parameters: usize,
    variables: usize,
    refused: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: list PROGRAM")?;
    let bytes = std::fs::read(&path)?;
    let section = section(&bytes)?;
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    let (mut containers, mut different) = (0, 0);
    for container in Containers::new(section) {
        let container = container?;
        containers += 1;
        let mut layouts: Vec<Layouts> = Vec::new();
        for entry in entries(container)? {
            let name = format!("{:?} {} {:?}", entry.kind, entry.target, entry.compression);
            let sum = sums.entry(name).or_default();
            match add(sum, &entry) {
                Ok(found) => layouts
                    .push(found.kernels.into_iter().map(|kernel| (kernel.name, kernel.parameters)).collect()),
                Err(error) => {
                    sum.refused += 1;
                    println!("container {containers}: {error}");
                }
            }
        }
        different += layouts.windows(2).map(|pair| differing(&pair[0], &pair[1])).sum::<usize>();
    }
    println!(
        "{containers} fat binaries, {different} kernels with another layout in the next image of theirs"
    );
    for (name, sum) in sums {
        println!(
            "{name}: {} entries, {} bytes packed, {} unpacked, {} kernels, {} parameters, {} variables, {} refused",
            sum.entries,
            sum.raw_bytes,
            sum.image_bytes,
            sum.kernels,
            sum.parameters,
            sum.variables,
            sum.refused
        );
    }
    Ok(())
}

type Layouts = BTreeMap<String, Vec<Parameter>>;

/// Kernels of both images whose parameters lie elsewhere in the other one. Sources may leave kernels out for some GPUs.
fn differing(one: &Layouts, other: &Layouts) -> usize {
    one.iter().filter(|(name, layout)| other.get(*name).is_some_and(|found| found != *layout)).count()
}

/// The section of fat binaries of an ELF file, or all of a file that is one.
fn section(bytes: &[u8]) -> Result<&[u8], Box<dyn Error>> {
    if hinterland_fatbin::container_bytes(bytes).is_ok() {
        return Ok(bytes);
    }
    let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(bytes)?;
    let section = file.section_by_name(".nv_fatbin").ok_or("the file has no section .nv_fatbin")?;
    Ok(section.data()?)
}

fn add(sum: &mut Sums, entry: &Entry<'_>) -> Result<Kernels, Box<dyn Error>> {
    sum.entries += 1;
    sum.raw_bytes += entry.raw.len();
    let image = entry.image()?;
    sum.image_bytes += image.len();
    let found = Kernels::of_image(&image)?;
    sum.kernels += found.kernels.len();
    sum.parameters += found.kernels.iter().map(|kernel| kernel.parameters.len()).sum::<usize>();
    sum.variables += found.variables.len();
    Ok(found)
}
