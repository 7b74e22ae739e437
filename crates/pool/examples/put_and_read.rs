//! Puts a file, reads a part of it back, compares every copy with its checksums, and removes it.
//!
//! usage: `cargo run -p hinterland-pool --example put_and_read -- FILE NAME`, with a node on the default socket

use hinterland_pool::{Pool, PutOptions};
use hinterland_types::ObjectName;
use std::error::Error;
use std::fs::File;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, path, name] = words.as_slice() else { return Err("usage: put_and_read FILE NAME".into()) };
    let pool = Pool::connect(None)?;
    let name = ObjectName::parse(name)?;
    let mut file = File::open(path)?;
    // With the size known, lack of room is an error before a byte moves.
    let options = PutOptions { bytes: Some(file.metadata()?.len()), ..PutOptions::default() };
    let info = pool.put(&mut file, &name, &options, &mut |bytes| eprintln!("{bytes} bytes put"))?;
    println!("{name}: {} bytes in {} home(s)", info.bytes, info.homes.len());

    let object = pool.open_object(&name)?;
    // An object has less than 16 bytes or at least 16: the cast loses nothing.
    let mut start = vec![0; info.bytes.min(16) as usize];
    object.read_at(0, &mut start)?;
    println!("begins {start:02x?}");

    let verified = pool.verify(&name)?;
    println!("{} blocks compared, {} wrong copies", verified.blocks, verified.bad.len());
    pool.remove(&name)?;
    Ok(())
}
