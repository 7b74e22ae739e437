//! One client process of `kv-trace`: takes the next request, finds and reads its prefix, and puts the rest.
//!
//! Numbers of requests come over a pipe that all clients read, so that each is taken once, by whoever is free.

use super::content;
use super::requests::Trace;
use crate::bench::report::Row;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::{KvCache, Pool, Stored};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The process is started as this bench, which no list shows.
pub const NAME: &str = "kv-trace-client";
/// Holds the orders of a client.
pub const ORDERS_VARIABLE: &str = "HINTERLAND_BENCH_TRACE";
/// What engines call themselves here.
pub const FINGERPRINT: &str = "bench kv-trace";
/// Bytes that are read or put by one call at most.
pub const WINDOW_BYTES: u64 = 64 << 20;

/// What a client is to do, as JSON.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Orders {
    /// The file with the words of the trace.
    pub requests: PathBuf,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks that it puts before it is ready, so that memory was touched once.
    pub fill_blocks: u64,
}

/// What clients have done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Blocks that they asked for.
    pub asked: u64,
    /// Blocks that were there, from the first of a request on, and read.
    pub found: u64,
    /// Blocks that were put and are there now.
    pub stored: u64,
    /// Blocks that there was no room for.
    pub refused: u64,
    /// Seconds in calls of the store, added up over all clients.
    pub busy_s: f64,
}

impl Tally {
    /// As a client writes it.
    pub fn line(&self) -> String {
        let Self { requests, asked, found, stored, refused, busy_s } = self;
        format!("{requests} {asked} {found} {stored} {refused} {busy_s}")
    }

    /// What a client wrote.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [counts @ .., busy_s] = words.as_slice() else { return None };
        let counts: Vec<u64> = counts.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let &[requests, asked, found, stored, refused] = counts.as_slice() else { return None };
        Some(Self { requests, asked, found, stored, refused, busy_s: busy_s.parse().ok()? })
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            asked: self.asked + other.asked,
            found: self.found + other.found,
            stored: self.stored + other.stored,
            refused: self.refused + other.refused,
            busy_s: self.busy_s + other.busy_s,
        }
    }
}

/// The process.
pub struct Client;

impl Bench for Client {
    fn name(&self) -> &'static str {
        NAME
    }

    fn subject(&self) -> &'static str {
        "what `kv-trace` replays with"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        let mut cursor = File::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(lost)?);
        let done = replay(&mut cursor);
        if done.is_err() {
            // The others get no more either.
            let _ = std::io::copy(&mut cursor, &mut std::io::sink());
        }
        say(&done.map_or_else(
            |failure| format!("error {}", failure.text.replace('\n', " ")),
            |tally| tally.line(),
        ))?;
        Err(Failure { silent: true, ..Failure::new("a client has no rows", "") })
    }
}

fn replay(cursor: &mut File) -> Result<Tally, Failure> {
    let orders = std::env::var(ORDERS_VARIABLE).ok().and_then(|text| serde_json::from_str(&text).ok());
    let orders: Orders =
        orders.ok_or_else(|| Failure::usage("this is a part of `hinterland bench kv-trace`", "run that"))?;
    let path = &orders.requests;
    let words = std::fs::read(path).map_err(|error| Failure::file("reading", path, &error))?;
    let trace = Trace::of_words(&words).ok_or_else(|| Failure::new("the trace is cut off", "report this"))?;
    let mut engine = Engine::new(Pool::connect(None)?.kv(FINGERPRINT)?, orders.block_bytes);
    engine.fill(orders.fill_blocks)?;
    say("ready")?;
    let mut number = [0; 4];
    loop {
        match cursor.read_exact(&mut number) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(engine.tally),
            read => read.map_err(lost)?,
        }
        let request = trace.requests.get(u32::from_le_bytes(number) as usize);
        let request = request.ok_or_else(|| Failure::new("there is no such request", "report this"))?;
        engine.serve(&request.blocks)?;
    }
}

/// What an engine does with its store.
struct Engine {
    store: KvCache,
    buffer: Vec<u8>,
    block_bytes: usize,
    tally: Tally,
}

impl Engine {
    fn new(store: KvCache, block_bytes: u64) -> Self {
        let window = (WINDOW_BYTES / block_bytes).max(1) * block_bytes;
        // At most 64 MiB, blocks at most 4 MiB: the casts lose nothing.
        let (buffer, block_bytes) = (vec![0; window as usize], block_bytes as usize);
        Self { store, buffer, block_bytes, tally: Tally::default() }
    }

    /// Puts blocks that no request asks for.
    fn fill(&mut self, blocks: u64) -> Result<(), Failure> {
        // Requests count from 0; 2^26 is the most that a trace has, and clients differ by their process.
        let first = 1 << 31 | (std::process::id() % 1024) << 21;
        let blocks: Vec<u32> = (first..).take(blocks.min(1 << 21) as usize).collect();
        self.put(&blocks, None)?;
        self.tally = Tally::default();
        Ok(())
    }

    /// One request: what is there of its prefix is read and checked, the rest is put in the order of the prompt.
    fn serve(&mut self, blocks: &[u32]) -> Result<(), Failure> {
        let keys: Vec<[u8; 32]> = blocks.iter().map(|block| content::key(*block)).collect();
        let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let begin = Instant::now();
        let matched = self.store.match_prefix(&names)?;
        let mut busy = begin.elapsed();
        let mut found = 0;
        for first in (0..matched).step_by(self.window()) {
            let wanted = first..matched.min(first + self.window());
            let begin = Instant::now();
            let mut got = 0;
            for (name, into) in names[wanted.clone()].iter().zip(self.buffer.chunks_mut(self.block_bytes)) {
                // One that was evicted meanwhile ends the prefix.
                let Some(bytes) = self.store.get(name, &mut [into])? else { break };
                if bytes as usize != self.block_bytes {
                    return Err(wrong(blocks[first + got], &format!("has {bytes} bytes")));
                }
                got += 1;
            }
            busy += begin.elapsed();
            self.check(&blocks[wanted.start..wanted.start + got])?;
            found += got;
            if got < wanted.len() {
                break;
            }
        }
        self.tally.requests += 1;
        self.tally.asked += blocks.len() as u64;
        self.tally.found += found as u64;
        self.tally.busy_s += busy.as_secs_f64();
        self.put(&blocks[found..], found.checked_sub(1).map(|last| blocks[last]))
    }

    /// Looks at every byte that was read.
    fn check(&self, blocks: &[u32]) -> Result<(), Failure> {
        for (block, bytes) in blocks.iter().zip(self.buffer.chunks(self.block_bytes)) {
            if let Some(at) = content::wrong_at(*block, bytes) {
                return Err(wrong(*block, &format!("is wrong at byte {at}")));
            }
        }
        Ok(())
    }

    /// Puts blocks in their order, in one call if they are not too many. The first one follows on `parent`.
    fn put(&mut self, blocks: &[u32], mut parent: Option<u32>) -> Result<(), Failure> {
        let mut busy = Duration::ZERO;
        for blocks in blocks.chunks(self.window()) {
            for (block, into) in blocks.iter().zip(self.buffer.chunks_mut(self.block_bytes)) {
                content::write(*block, into);
            }
            let keys: Vec<[u8; 32]> = blocks.iter().map(|block| content::key(*block)).collect();
            let pieces: Vec<[&[u8]; 1]> = self.buffer.chunks(self.block_bytes).map(|piece| [piece]).collect();
            let gathered: Vec<(&[u8], &[&[u8]])> =
                keys.iter().zip(&pieces).map(|(key, piece)| (&key[..], &piece[..])).collect();
            let after = parent.map(content::key);
            let begin = Instant::now();
            let outcomes = self.store.put_prefix(&gathered, after.as_ref().map(|key| &key[..]))?;
            busy += begin.elapsed();
            parent = blocks.last().copied();
            let count = |wanted: Stored| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
            self.tally.stored += count(Stored::Written);
            self.tally.refused += count(Stored::NoRoom);
        }
        self.tally.busy_s += busy.as_secs_f64();
        Ok(())
    }

    const fn window(&self) -> usize {
        self.buffer.len() / self.block_bytes
    }
}

fn wrong(block: u32, what: &str) -> Failure {
    Failure::new(format!("block {block} {what}"), "report this: no reader may ever see it")
}

fn lost(error: std::io::Error) -> Failure {
    Failure::new(format!("the next request cannot be taken: {error}"), "run `hinterland bench kv-trace`")
}

fn say(line: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| Failure::output(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_node::{BackingChoice, Node, NodeOptions};
    use hinterland_types::RackName;

    const BLOCK_BYTES: u64 = 4096;

    /// An engine on a node of its own with room for 1024 blocks.
    fn with_engine(name: &str, work: impl FnOnce(&mut Engine)) {
        let root = std::env::temp_dir().join(format!("hl-trace-{name}-{}", std::process::id()));
        let (rack, address) = (RackName::parse("one").unwrap(), "127.0.0.1:0".parse().unwrap());
        let mut options =
            NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
        options.capacity_bytes = 16 << 20;
        options.kv_capacity_bytes = 4 << 20;
        options.backing = BackingChoice::Folder(root.join("memory"));
        let node = Node::start(options).unwrap();
        let pool = Pool::connect(Some(&root.join("socket"))).unwrap();
        let mut engine = Engine::new(pool.kv(FINGERPRINT).unwrap(), BLOCK_BYTES);
        work(&mut engine);
        drop((engine, pool));
        node.stop();
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_one_request_put_is_the_prefix_of_the_next() {
        with_engine("prefix", |engine| {
            engine.serve(&[1, 2, 3]).unwrap();
            engine.serve(&[1, 2, 9, 3]).unwrap();
            let Tally { requests, asked, found, stored, refused, .. } = engine.tally;
            assert_eq!((requests, asked, found, stored, refused), (2, 7, 2, 4, 0));
        });
    }

    #[test]
    fn a_block_with_a_wrong_byte_ends_the_replay() {
        with_engine("wrong", |engine| {
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            content::write(5, &mut bytes);
            bytes[4000] ^= 64;
            engine.store.put(&[(&content::key(5), &[&bytes])]).unwrap();
            engine.serve(&[4]).unwrap();
            assert_eq!(engine.serve(&[4, 5, 6]).unwrap_err().text, "block 5 is wrong at byte 4000");
            engine.store.put(&[(&content::key(6), &[&bytes[..8]])]).unwrap();
            assert_eq!(engine.serve(&[6]).unwrap_err().text, "block 6 has 8 bytes");
        });
    }

    #[test]
    fn filling_leaves_no_trace_but_in_the_memory() {
        with_engine("fill", |engine| {
            engine.fill(100).unwrap();
            assert_eq!(engine.tally, Tally::default());
            assert_eq!(engine.store.clear().unwrap(), 100);
        });
    }

    #[test]
    fn a_tally_is_read_as_it_was_written() {
        let tally = Tally { requests: 1, asked: 2, found: 3, stored: 4, refused: 5, busy_s: 0.25 };
        assert_eq!(Tally::parse(&tally.line()), Some(tally));
        assert_eq!(tally.and(&tally).busy_s, 0.5);
        assert_eq!(Tally::parse("1 2 3 4 5"), None);
        assert_eq!(Tally::parse("ready"), None);
    }
}
