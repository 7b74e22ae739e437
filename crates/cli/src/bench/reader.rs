//! A program of the pool that reads and writes by the client library; `read` asks it line by line.
//!
//! A process of its own, so that it can spin for answers while another one sleeps: the environment decides that once.

use super::content::{Offsets, name};
use super::report::Row;
use super::rounds::Samples;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::SharedSlice;
use hinterland_pool::{Object, Pool};
use hinterland_types::{GlobalAddress, Rights};
use std::io::{BufRead, Write};
use std::time::Instant;

/// Names the region.
pub const REGION_VARIABLE: &str = "HINTERLAND_BENCH_REGION";
/// Accesses between two looks at the clock, where one takes less time than the look.
const BATCH: usize = 64;
/// Accesses up to this size are timed in batches, where the memory is of this host.
const BATCHED_BYTES_MAX: usize = 4096;
/// Bytes of one read of a stream.
const STREAM_PIECE_BYTES: usize = 64 << 20;

/// The worker, under a name that no list shows.
pub struct Reader;

struct State {
    pool: Pool,
    object: Object,
    address: GlobalAddress,
    offsets: Offsets,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    PlainRead,
    PlainWrite,
}

impl Bench for Reader {
    fn name(&self) -> &'static str {
        "read-worker"
    }

    fn subject(&self) -> &'static str {
        "what `read` measures with"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        let region = std::env::var(REGION_VARIABLE)
            .map_err(|_| Failure::usage("this is a part of `hinterland bench read`", "run that"))?;
        let mut state = State::new(&region)?;
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let answer = state.answer(&line).map_or_else(
                |failure| format!("error {}", failure.text.replace('\n', " ")),
                |value| value.to_string(),
            );
            let mut output = std::io::stdout();
            if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
                break;
            }
        }
        Err(Failure { silent: true, ..Failure::new("nobody asks any more", "") })
    }
}

impl State {
    fn new(region: &str) -> Result<Self, Failure> {
        let pool = Pool::connect(None)?;
        let object = pool.open(&name(region)?, Rights::READ | Rights::WRITE)?;
        let address = object.info().address;
        let address = address.ok_or_else(|| Failure::new("the region has no address", "report this"))?;
        Ok(Self {
            pool,
            object,
            address,
            offsets: Offsets::new(u64::from(std::process::id())),
            buffer: Vec::new(),
        })
    }

    /// Microseconds of an access, or gigabytes a second of a stream.
    fn answer(&mut self, line: &str) -> Result<f64, Failure> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| {
            let word = words.get(index).and_then(|word| word.parse::<usize>().ok());
            word.ok_or_else(|| Failure::usage(format!("{line:?} is no question"), "report this"))
        };
        let access = match words.first().copied() {
            Some("read") => Access::Read,
            Some("write") => Access::Write,
            Some("plain-read") => Access::PlainRead,
            Some("plain-write") => Access::PlainWrite,
            Some("stream") => return self.stream(number(1)?, number(2)? != 0),
            _ => return Err(Failure::usage(format!("{line:?} is no question"), "report this")),
        };
        self.latency_us(access, number(1)?, number(2)?)
    }

    fn latency_us(&mut self, access: Access, bytes: usize, count: usize) -> Result<f64, Failure> {
        self.buffer.resize(bytes.max(self.buffer.len()), 1);
        let batch = if self.object.is_local() && bytes <= BATCHED_BYTES_MAX { BATCH } else { 1 };
        let limit = self.object.info().bytes - bytes as u64;
        let memory = if self.object.is_local() { Some(self.object.memory()?.clone()) } else { None };
        let mut times = Samples::default();
        for _ in 0..count.div_ceil(batch) {
            let begin = Instant::now();
            for _ in 0..batch {
                let offset = self.offsets.below(limit);
                self.access(access, memory.as_ref(), offset, bytes)?;
            }
            times.add(begin.elapsed().as_nanos() as f64 / 1e3 / batch as f64);
        }
        times.median().ok_or_else(|| Failure::new("no time was taken", "report this"))
    }

    #[inline]
    fn access(
        &mut self,
        access: Access,
        memory: Option<&SharedSlice>,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Failure> {
        let buffer = &mut self.buffer[..bytes];
        let address = || GlobalAddress::new(self.address.raw() + offset).map_err(|error| Failure::of(&error));
        match (access, memory) {
            (Access::Read, _) => self.pool.read(address()?, buffer)?,
            (Access::Write, _) => self.pool.write(address()?, buffer)?,
            // The offset lies in the region, which is in memory.
            (Access::PlainRead, Some(memory)) => memory.read_at(offset as usize, buffer)?,
            (Access::PlainWrite, Some(memory)) => memory.write_at(offset as usize, buffer)?,
            (_, None) => return Err(Failure::usage("the region lies in another rack", "report this")),
        }
        Ok(())
    }

    fn stream(&mut self, bytes: usize, is_write: bool) -> Result<f64, Failure> {
        self.buffer.resize(STREAM_PIECE_BYTES, 1);
        let pieces = self.object.info().bytes as usize / STREAM_PIECE_BYTES;
        let begin = Instant::now();
        for number in 0..bytes / STREAM_PIECE_BYTES {
            let offset = (number % pieces * STREAM_PIECE_BYTES) as u64;
            if is_write {
                self.object.write_at(offset, &self.buffer)?;
            } else {
                self.object.read_at(offset, &mut self.buffer)?;
            }
        }
        let moved = bytes / STREAM_PIECE_BYTES * STREAM_PIECE_BYTES;
        Ok(moved as f64 / begin.elapsed().as_nanos() as f64)
    }
}
