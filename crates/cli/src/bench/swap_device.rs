//! `swap-device`: pages read from and written to `hinterland swap serve` over a unix socket, beside a bare socket and qemu-nbd.

use super::case::Case;
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_far::store::{Packed, Stores};
use hinterland_farblock::wire::{REPLY_BYTES, REQUEST_BYTES};
use hinterland_farblock::{Address, BLOCK_BYTES, Blocks, Client, Server, ServerOptions, Shape};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the device, all written before.
const DEVICE_BYTES: u64 = 256 << 20;
/// The same when there is no figure to quote.
const QUICK_BYTES: u64 = 8 << 20;
/// Bytes that are moved for a figure.
const MOVED_BYTES: u64 = 64 << 20;
/// The unit that is the default, and others beside it.
const UNITS: [(&str, usize); 4] =
    [("4K", 4 << 10), ("32K", 32 << 10), ("128K", 128 << 10), ("512K", 512 << 10)];
const DEFAULT_UNIT: &str = "32K";
/// What is compared with: a server of another project, on a file in memory.
const PEER: &str = "qemu-nbd on a tmpfs";
const LIMIT: &str = "the same bytes over a bare unix socket";
/// Time in which the peer begins to listen.
const PEER_TIME: Duration = Duration::from_secs(10);

/// The bench.
pub struct SwapDevice;

/// One way of using a device.
#[derive(Clone, Copy)]
struct Way {
    case: &'static str,
    bytes: usize,
    is_write: bool,
    is_random: bool,
}

const WAYS: [Way; 5] = [
    // What a fault without readahead asks for, what one with readahead asks for, and what reclaim writes.
    Way { case: "read-4KiB-random", bytes: BLOCK_BYTES, is_write: false, is_random: true },
    Way { case: "read-32KiB-random", bytes: 32 << 10, is_write: false, is_random: true },
    Way { case: "read-4KiB-in-order", bytes: BLOCK_BYTES, is_write: false, is_random: false },
    Way { case: "write-4KiB-random", bytes: BLOCK_BYTES, is_write: true, is_random: true },
    Way { case: "write-256KiB-in-order", bytes: 256 << 10, is_write: true, is_random: false },
];

impl Bench for SwapDevice {
    fn name(&self) -> &'static str {
        "swap-device"
    }

    fn subject(&self) -> &'static str {
        "pages read from and written to the swap device, compressed memory behind it, by size of the unit"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let device_bytes = if setting.quick { QUICK_BYTES } else { DEVICE_BYTES };
        let folder = Folder::make()?;
        let peer = Peer::start(&folder.path, device_bytes);
        let mut rows = Vec::new();
        for (unit, unit_bytes) in UNITS {
            let ours = Served::start(&folder.path, unit, unit_bytes, device_bytes)?;
            for way in WAYS {
                (setting.say)(&format!("swap-device: {} in units of {unit}", way.case));
                let name =
                    if unit == DEFAULT_UNIT { way.case.to_owned() } else { format!("{}-{unit}", way.case) };
                let mut client = ours.client()?;
                let case =
                    Case::new(name, "us", Better::Lower, move || drive(&mut client, way, device_bytes));
                let row = if unit == DEFAULT_UNIT {
                    let mut bare = Bare::start(way)?;
                    let peer = peer.as_ref().map(|peer| {
                        let path = peer.socket.clone();
                        move || drive(&mut Client::connect(&Address::Unix(path.clone()))?, way, device_bytes)
                    });
                    case.limit(LIMIT, move || bare.time(device_bytes)).peer_or_why(PEER, peer)
                } else {
                    case
                };
                rows.push(row.measure(setting.rounds));
            }
        }
        Ok(rows)
    }
}

/// Microseconds of a request, over as many as move the bytes of a figure.
fn drive(client: &mut Client, way: Way, device_bytes: u64) -> Result<f64, Failure> {
    let count = requests(way, device_bytes);
    let mut pages = pages(way.bytes);
    let places = device_bytes / way.bytes as u64;
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let begun = Instant::now();
    for number in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = if way.is_random { (state >> 33) % places } else { number % places };
        if way.is_write {
            client.write(place * way.bytes as u64, &pages)?;
        } else {
            client.read(place * way.bytes as u64, &mut pages)?;
        }
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / count as f64)
}

fn requests(way: Way, device_bytes: u64) -> u64 {
    (MOVED_BYTES.min(device_bytes) / way.bytes as u64).min(10_000)
}

/// Pages that compress to about half.
fn pages(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let mut pages = vec![7; bytes];
    for part in pages.chunks_mut(16) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        part[..8].copy_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    pages
}

/// A server of ours whose device is full.
struct Served {
    server: Option<Server>,
    address: Address,
}

impl Served {
    fn start(folder: &Path, unit: &str, unit_bytes: usize, bytes: u64) -> Result<Self, Failure> {
        let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(u64::MAX / 2))], 1));
        let device = Arc::new(Blocks::new(stores, Shape { bytes, unit_bytes, keeps_recent: true }));
        let address = Address::Unix(folder.join(format!("{unit}.sock")));
        let listen = vec![address.clone()];
        let options = ServerOptions { listen, serves_other_hosts: false, clients_max: 64 };
        let server = Server::start(device, &options)?;
        let served = Self { server: Some(server), address };
        fill(&mut served.client()?, bytes)?;
        Ok(served)
    }

    fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.address)?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.finish();
        }
    }
}

fn fill(client: &mut Client, bytes: u64) -> Result<(), Failure> {
    let part = pages(1 << 20);
    for at in (0..bytes).step_by(part.len()) {
        client.write(at, &part)?;
    }
    Ok(())
}

/// Two ends that only send as many bytes to and fro.
struct Bare {
    way: Way,
    stream: UnixStream,
    asked: Vec<u8>,
    answered: Vec<u8>,
}

impl Bare {
    fn start(way: Way) -> Result<Self, Failure> {
        let (there, back) = if way.is_write { (way.bytes, 0) } else { (0, way.bytes) };
        let (asked, answered) = (vec![1; REQUEST_BYTES + there], vec![1; REPLY_BYTES + back]);
        let failed = |error| Failure::new(format!("a pair of sockets failed: {error}"), "look at ulimit -n");
        let (stream, mut other) = UnixStream::pair().map_err(failed)?;
        let (mut read, write) = (asked.clone(), answered.clone());
        // It ends when the other end is closed.
        std::thread::spawn(move || {
            while other.read_exact(&mut read).and_then(|()| other.write_all(&write)).is_ok() {}
        });
        Ok(Self { way, stream, asked, answered })
    }

    fn time(&mut self, device_bytes: u64) -> Result<f64, Failure> {
        let count = requests(self.way, device_bytes);
        let begun = Instant::now();
        for _ in 0..count {
            let done =
                self.stream.write_all(&self.asked).and_then(|()| self.stream.read_exact(&mut self.answered));
            done.map_err(|error| Failure::new(format!("a socket failed: {error}"), "try again"))?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / count as f64)
    }
}

/// A server of another project on a file in memory.
struct Peer {
    process: Child,
    socket: PathBuf,
    file: PathBuf,
}

impl Peer {
    fn start(folder: &Path, bytes: u64) -> Result<Self, Failure> {
        let file = PathBuf::from(format!("/dev/shm/hinterland-swap-device-{}", std::process::id()));
        let made = fs::File::create(&file).and_then(|made| made.set_len(bytes));
        made.map_err(|error| Failure::file("making", &file, &error))?;
        let socket = folder.join("peer.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--shared=0", "--format=raw", "--cache=writeback", "--socket"]);
        command.arg(&socket).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|error| {
            // Nothing is in it.
            let _ = fs::remove_file(&file);
            Failure::new(format!("starting it failed: {error}"), "apt-get install qemu-utils")
        })?;
        let peer = Self { process, socket, file };
        let begun = Instant::now();
        let mut client = loop {
            match Client::connect(&Address::Unix(peer.socket.clone())) {
                Ok(client) => break client,
                Err(error) if begun.elapsed() > PEER_TIME => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        fill(&mut client, bytes)?;
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Whatever became of it, it and its file go.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.file);
    }
}

struct Folder {
    path: PathBuf,
}

impl Folder {
    fn make() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("hinterland-swap-device-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| Failure::file("making", &path, &error))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is told by whoever looks there.
        let _ = fs::remove_dir_all(&self.path);
    }
}
