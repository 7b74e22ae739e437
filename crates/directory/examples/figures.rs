//! What a command costs without a store, and how long a recovery takes: `cargo run --release --example figures`.

use hinterland_directory::{Command, ContentDigest, Directory, Placement, Record, Reply, Settings, Writer};
use hinterland_types::{NodeId, ObjectId, ObjectName, RackName};
use std::collections::BTreeMap;
use std::time::Instant;

const OBJECTS: u64 = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut directory = Directory::recover(Settings::default(), 0, std::iter::empty())?;
    let mut store = BTreeMap::new();
    let mut apply = |directory: &mut Directory, command: Command| {
        let (reply, mutations) = directory.apply(0, &command)?;
        for mutation in mutations {
            match mutation.value {
                Some(value) => store.insert((mutation.table, mutation.key), value),
                None => store.remove(&(mutation.table, mutation.key)),
            };
        }
        Ok::<_, hinterland_directory::DirectoryError>(reply)
    };
    for id in 1..=16 {
        let (node, rack) = (NodeId(id), RackName::parse(&format!("rack-{}", id % 4))?);
        let address = format!("10.0.0.{id}:7400");
        apply(
            &mut directory,
            Command::Join { name: None, node, rack, address, capacity_bytes: 1 << 40, incarnation: 1 },
        )?;
        let (after, objects) = (ObjectId(0), Vec::new());
        apply(&mut directory, Command::NodeObjects { node, incarnation: 1, after, objects, more: false })?;
    }
    let name = |number: u64| ObjectName::parse(&format!("models/{}/part-{number}", number % 97));
    let begin = Instant::now();
    for number in 0..OBJECTS {
        let writer = Writer { node: NodeId(number % 16 + 1), incarnation: 1, token: number };
        let (size, placement) = (Some(4 << 20), Placement::Policy);
        let command = Command::Reserve { name: name(number)?, size, copies: 2, placement, writer };
        let Reply::Reserved { object, homes } = apply(&mut directory, command)? else { continue };
        let homes = homes.iter().map(|home| home.node).collect();
        apply(
            &mut directory,
            Command::Seal { object, size: 4 << 20, digest: ContentDigest::default(), homes },
        )?;
    }
    let put = begin.elapsed();
    let begin = Instant::now();
    for number in 0..OBJECTS {
        apply(&mut directory, Command::Lookup { name: name(number * 7919 % OBJECTS)? })?;
    }
    let lookup = begin.elapsed();
    let begin = Instant::now();
    apply(&mut directory, Command::RepairList { after: ObjectId(0), limit: 64 })?;
    let repair = begin.elapsed();
    let records: Vec<_> =
        store.into_iter().map(|((table, key), value)| Record { table, key, value }).collect();
    let count = records.len();
    let begin = Instant::now();
    Directory::recover(Settings::default(), 0, records)?;
    let recovery = begin.elapsed();
    println!("{OBJECTS} objects with 2 copies on 16 nodes, {count} records");
    println!("reserve and seal: {:.2} us", put.as_secs_f64() * 1e6 / OBJECTS as f64);
    println!("lookup by name:   {:.2} us", lookup.as_secs_f64() * 1e6 / OBJECTS as f64);
    println!(
        "repair list of {} objects: {:.2} ms",
        hinterland_directory::REPAIR_SCAN_MAX,
        repair.as_secs_f64() * 1e3
    );
    println!("recovery: {:.2} s", recovery.as_secs_f64());
    Ok(())
}
