//! Reads of blocks by a process of their own, which is asked line by line.

use super::{Chance, FINGERPRINT, key};
use crate::bench::ground::BenchNode;
use crate::bench::report::Row;
use crate::bench::worker::Worker;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::{KvCache, Pool};
use std::io::{BufRead, Write};
use std::process::Command;

/// The process is started as this bench, which no list shows.
const NAME: &str = "kv-reader";

/// The process. `get BYTES COUNT BLOCKS` answers with microseconds of a block at random and how many were not there,
/// `batch BYTES BATCH COUNT BLOCKS` with microseconds of so many that follow each other.
pub struct KvReader;

/// Starts it.
///
/// # Errors
/// [`Failure`] if that cannot be.
pub fn start(setting: &Setting, node: &BenchNode) -> Result<Worker, Failure> {
    let mut command = Command::new(&setting.program);
    command.args(["bench", NAME]).env("HINTERLAND_SOCKET", &node.socket);
    Worker::start("a reader of blocks", command)
}

impl Bench for KvReader {
    fn name(&self) -> &'static str {
        NAME
    }

    fn subject(&self) -> &'static str {
        "what `kv-get` and `kv-batch` read with"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        let store = Pool::connect(None)?.kv(FINGERPRINT)?;
        let mut state = State { store, chance: Chance(3), buffer: Vec::new() };
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let answer = state.answer(&line).map_or_else(
                |failure| format!("error {}", failure.text.replace('\n', " ")),
                |(microseconds, missed)| format!("{microseconds} {missed}"),
            );
            let mut output = std::io::stdout();
            if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
                break;
            }
        }
        Err(Failure { silent: true, ..Failure::new("nobody asks any more", "") })
    }
}

struct State {
    store: KvCache,
    chance: Chance,
    buffer: Vec<u8>,
}

impl State {
    fn answer(&mut self, line: &str) -> Result<(f64, u64), Failure> {
        let mut words = line.split_whitespace();
        let what = words.next();
        let numbers: Vec<usize> = words.map_while(|word| word.parse().ok()).collect();
        match (what, numbers.as_slice()) {
            (Some("get"), &[bytes, count, blocks]) => self.time(bytes, 1, count, blocks),
            (Some("batch"), &[bytes, batch, count, blocks]) => self.time(bytes, batch, count, blocks),
            _ => Err(Failure::usage(format!("{line:?} is no question"), "report this")),
        }
    }

    fn time(
        &mut self,
        bytes: usize,
        batch: usize,
        count: usize,
        blocks: usize,
    ) -> Result<(f64, u64), Failure> {
        self.buffer.resize((batch * bytes).max(self.buffer.len()), 1);
        let (store, buffer) = (&self.store, &mut self.buffer);
        let mut missed = 0;
        let took = self.chance.time(count, blocks + 1 - batch, |first| {
            for (number, into) in (first..).zip(buffer[..batch * bytes].chunks_mut(bytes)) {
                missed += u64::from(store.get(&key(number), &mut [into])?.is_none());
            }
            Ok(())
        })?;
        Ok((took, missed))
    }
}
