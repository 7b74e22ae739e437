//! What frames cost in shared memory and over TCP on this host:
//! `cargo run --release -p hinterland-channel --example channel_figures [ROUNDS]`.

use hinterland_channel::{
    Channel, ChannelError, ChannelOptions, Listener, Receiver, Rings, Sender, connect, pair,
};
use hinterland_proto::{ClientIdentity, Features, PeerLimits, PoolId, Role, ServerIdentity};
use hinterland_types::NodeId;
use std::error::Error;
use std::time::{Duration, Instant};

const FRAMES: u32 = 2_000_000;
/// Frames of a burst that fits into the ring: then the writer never waits for the reader.
const BURST: u32 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    println!("medians of {rounds}");
    println!("body bytes, stream ns/frame, burst ns/frame, bytes alone ns, TCP stream ns/frame");
    for bytes in [64, 256] {
        let text = vec![7; bytes];
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            figures[0].push(stream(pair(Rings::default())?, &text, FRAMES)?);
            figures[1].push(bursts(&text)?);
            figures[2].push(bare(&text));
            figures[3].push(stream(network()?, &text, FRAMES / 4)?);
        }
        let medians = figures.map(median);
        println!("{bytes}, {:.1}, {:.1}, {:.1}, {:.1}", medians[0], medians[1], medians[2], medians[3]);
    }
    println!("round trip of 64 bytes: shared memory ns, TCP ns");
    let (mut shared, mut over_tcp) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        shared.push(round_trips(pair(Rings::default())?, 200_000)?);
        over_tcp.push(round_trips(network()?, 20_000)?);
    }
    println!("{:.0}, {:.0}", median(shared), median(over_tcp));
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Both ends of a connection within this host.
fn network() -> Result<(Channel, Channel), Box<dyn Error>> {
    let limits = PeerLimits { body_bytes_max: 1, runs_max: 1, streams_max: 1 };
    let (key, features) = (None, Features(0));
    let node = ServerIdentity { node: NodeId(1), pool: PoolId(1), key: key.clone(), features, limits };
    let client =
        ClientIdentity { role: Role::Client, node: NodeId(0), pool: PoolId::ANY, key, features, join: None };
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse()?, node, ChannelOptions::default())?;
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| match listener.accept(None)? {
            Some(caller) => Ok(caller.admit()?.0),
            None => Err(ChannelError::Closed),
        });
        let ours = connect(&listener.address(), &client, ChannelOptions::default())?;
        Ok((ours, admitted.join().map_err(|_| "the node's side panicked")??))
    })
}

/// One frame there and one back at a time.
fn round_trips((one, other): (Channel, Channel), count: u32) -> Result<f64, ChannelError> {
    let ((mut ask, mut hear), (mut answer, mut listen)) = (one.split()?, other.split()?);
    let text = [7; 64];
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            for _ in 0..count {
                take(&mut listen, 1)?;
                send(&mut answer, &text)?;
                answer.flush()?;
            }
            Ok::<_, ChannelError>((listen, answer))
        });
        let start = Instant::now();
        for _ in 0..count {
            send(&mut ask, &text)?;
            ask.flush()?;
            take(&mut hear, 1)?;
        }
        let spent = start.elapsed();
        server.join().map_err(|_| ChannelError::Closed)??;
        Ok(per_frame(spent, count))
    })
}

fn send(sender: &mut Sender, text: &[u8]) -> Result<(), ChannelError> {
    loop {
        if let Some(mut room) = sender.room(1, text.len())? {
            room.append(text)?;
            room.commit();
            return Ok(());
        }
        sender.wait_room(text.len(), None)?;
    }
}

/// Writer and reader go on all the time: the slower of both sets the pace.
fn stream((one, other): (Channel, Channel), text: &[u8], frames: u32) -> Result<f64, ChannelError> {
    let ((mut sender, _hear), (_answer, mut receiver)) = (one.split()?, other.split()?);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || take(&mut receiver, frames));
        let start = Instant::now();
        for _ in 0..frames {
            send(&mut sender, text)?;
        }
        let spent = start.elapsed();
        reader.join().map_err(|_| ChannelError::Closed)??;
        Ok(per_frame(spent, frames))
    })
}

/// The writer alone is timed, while a reader spins that takes what comes, as in a burst of launches.
fn bursts(text: &[u8]) -> Result<f64, ChannelError> {
    let (one, other) = pair(Rings::default())?;
    let ((mut sender, _hear), (_answer, mut receiver)) = (one.split()?, other.split()?);
    std::thread::scope(|scope| {
        let count = 100 * BURST;
        let reader = scope.spawn(move || take(&mut receiver, count));
        let mut spent = Duration::ZERO;
        for _ in 0..100 {
            let start = Instant::now();
            for _ in 0..BURST {
                send(&mut sender, text)?;
            }
            spent += start.elapsed();
            // The whole ring is free again: the reader has caught up.
            sender.wait_room(sender.body_max(), None)?;
            std::thread::sleep(Duration::from_micros(500));
        }
        reader.join().map_err(|_| ChannelError::Closed)??;
        Ok(per_frame(spent, count))
    })
}

fn take(receiver: &mut Receiver, count: u32) -> Result<(), ChannelError> {
    let mut taken = 0;
    let mut sum = 0u64;
    while taken < count {
        if let Some(frame) = receiver.next()? {
            sum += u64::from(frame.head()[0]);
            taken += 1;
            continue;
        }
        receiver.wait(None)?;
    }
    std::hint::black_box(sum);
    Ok(())
}

/// Copies of the same bytes to memory that nobody reads, laid out as a ring lays them out.
fn bare(text: &[u8]) -> f64 {
    let bytes = hinterland_channel::frame_bytes(text.len());
    let mut ring = vec![0u8; 8 << 20];
    let count = FRAMES;
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..count {
        if at + bytes > ring.len() {
            at = 0;
        }
        ring[at + 8..at + 8 + text.len()].copy_from_slice(std::hint::black_box(text));
        at += bytes;
    }
    let spent = start.elapsed();
    std::hint::black_box(&ring);
    per_frame(spent, count)
}

fn per_frame(spent: Duration, frames: u32) -> f64 {
    spent.as_nanos() as f64 / f64::from(frames)
}
