//! Drives a table, or Redis servers, with a workload for some time, and counts.

use crate::memory::Memory;
use crate::table::{Table, TableError};
use crate::workload::{Operation, Operations};
use hinterland_resp::Value;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Operations between two looks at the clock.
const BATCH: u32 = 64;

/// Something that keeps records.
pub trait Records {
    /// Reads a record; whether it is there.
    ///
    /// # Errors
    /// [`DriveError`].
    fn read(&mut self, key: &str) -> Result<bool, DriveError>;

    /// Writes a record.
    ///
    /// # Errors
    /// [`DriveError`].
    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), DriveError>;
}

/// Why driving ends early.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A connection to Redis.
    #[error("Redis does not answer: {0}")]
    Connection(#[from] io::Error),
    /// What Redis answered.
    #[error("Redis answered {0}")]
    Answer(String),
    /// A record that was loaded is not there.
    #[error("record {0} is not there (hint: load the records first)")]
    Missing(String),
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Driven {
    /// Operations.
    pub operations: u64,
    /// Time.
    pub taken: Duration,
}

/// The name of a record, in the order of its number.
pub fn key(number: u64) -> String {
    format!("user{number:012}")
}

/// Writes the records of `part` of `parts`.
///
/// # Errors
/// [`DriveError`].
pub fn load(
    into: &mut impl Records,
    records: u64,
    value_bytes: usize,
    (part, parts): (u64, u64),
) -> Result<(), DriveError> {
    (part..records)
        .step_by(parts as usize)
        .try_for_each(|number| into.write(&key(number), &value(number, value_bytes)))
}

/// Runs operations for `time`.
///
/// # Errors
/// [`DriveError`].
pub fn drive(
    on: &mut impl Records,
    operations: &mut Operations,
    value_bytes: usize,
    time: Duration,
) -> Result<Driven, DriveError> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            run(on, operations.draw(), value_bytes)?;
        }
        count += u64::from(BATCH);
    }
    Ok(Driven { operations: count, taken: begun.elapsed() })
}

fn run(on: &mut impl Records, operation: Operation, value_bytes: usize) -> Result<(), DriveError> {
    let mut read = |number: u64| {
        let key = key(number);
        if on.read(&key)? { Ok(()) } else { Err(DriveError::Missing(key)) }
    };
    match operation {
        Operation::Read(number) => read(number),
        Operation::Modify(number) => {
            read(number)?;
            on.write(&key(number), &value(number, value_bytes))
        }
        // Behind the last record there is nothing to read.
        Operation::Scan(first, count) => {
            (first..first + count).try_for_each(|number| on.read(&key(number)).map(drop))
        }
        Operation::Update(number) | Operation::Insert(number) => {
            on.write(&key(number), &value(number, value_bytes))
        }
    }
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

/// A table as this process uses it.
pub struct OfTable<'table, M>(pub &'table Table<M>, pub Vec<u8>);

impl<M: Memory> Records for OfTable<'_, M> {
    fn read(&mut self, key: &str) -> Result<bool, DriveError> {
        self.1.clear();
        Ok(self.0.get(key.as_bytes(), &mut self.1)?)
    }

    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), DriveError> {
        Ok(self.0.set(key.as_bytes(), value)?)
    }
}

/// Several servers of Redis, each with the keys that a hash gives it.
pub struct OfRedis {
    servers: Vec<TcpStream>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl OfRedis {
    /// Connects to all of them.
    ///
    /// # Errors
    /// [`DriveError::Connection`].
    pub fn connect(addresses: &[String]) -> Result<Self, DriveError> {
        let connect = |address: &String| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let servers = addresses.iter().map(connect).collect::<io::Result<_>>()?;
        Ok(Self { servers, request: Vec::new(), reply: Vec::new() })
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Value, DriveError> {
        self.request.clear();
        self.request.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        let place = xxhash_rust::xxh3::xxh3_64(words[1]) % self.servers.len() as u64;
        let server = &mut self.servers[place as usize];
        server.write_all(&self.request)?;
        self.reply.clear();
        let mut piece = [0; 16 << 10];
        loop {
            let count = server.read(&mut piece)?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.reply.extend_from_slice(&piece[..count]);
            let parsed = Value::parse(&self.reply);
            if let Some((value, _)) = parsed.map_err(|error| DriveError::Answer(error.to_string()))? {
                return Ok(value);
            }
        }
    }
}

impl Records for OfRedis {
    fn read(&mut self, key: &str) -> Result<bool, DriveError> {
        match self.ask(&[b"GET", key.as_bytes()])? {
            Value::Bulk(_) => Ok(true),
            Value::Nil => Ok(false),
            other => Err(DriveError::Answer(format!("{other:?}"))),
        }
    }

    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), DriveError> {
        match self.ask(&[b"SET", key.as_bytes(), value])? {
            Value::Simple(_) => Ok(()),
            other => Err(DriveError::Answer(format!("{other:?}"))),
        }
    }
}
