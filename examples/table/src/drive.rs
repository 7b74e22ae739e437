//! Drives a table, or Redis servers, with a workload for some time, and counts.

use crate::memory::Memory;
use crate::table::{Table, TableError};
use crate::values::Values;
use crate::workload::{Operation, Operations};
use hinterland_resp::Value;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Operations between two looks at the clock.
const BATCH: u32 = 64;

/// What is shown each value that was found: the place of its key among those that were asked for.
pub type Found<'drive> = dyn FnMut(usize, &[u8]) -> Result<(), DriveError> + 'drive;

/// Something that keeps records.
pub trait Records {
    /// Reads a record in place of what is in `into`; whether it is there.
    ///
    /// # Errors
    /// [`DriveError`].
    fn read(&mut self, key: &str, into: &mut Vec<u8>) -> Result<bool, DriveError>;

    /// Reads several records, and shows the value of each that is there with the place of its key.
    ///
    /// # Errors
    /// [`DriveError`], also of `found`.
    fn read_all(&mut self, keys: &[String], found: &mut Found<'_>) -> Result<(), DriveError> {
        let mut value = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            if self.read(key, &mut value)? {
                found(place, &value)?;
            }
        }
        Ok(())
    }

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
    /// A value that nobody wrote under this key, or one older than another that was read or written before.
    #[error("record {0} has a value that is not its own, or an old one (hint: report this)")]
    Wrong(u64),
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

/// Writes the records of the part that the values are of.
///
/// # Errors
/// [`DriveError`].
pub fn load(into: &mut impl Records, records: u64, values: &mut Values) -> Result<(), DriveError> {
    let (part, parts) = values.part;
    (part..records)
        .step_by(parts as usize)
        .try_for_each(|number| into.write(&key(number), values.next(number)))
}

/// Runs operations for `time`.
///
/// # Errors
/// [`DriveError`], and [`DriveError::Wrong`] for the first value that is read and is not right.
pub fn drive(
    on: &mut impl Records,
    operations: &mut Operations,
    values: &mut Values,
    time: Duration,
) -> Result<Driven, DriveError> {
    let begun = Instant::now();
    let (mut count, mut value) = (0, Vec::new());
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            run(on, operations.draw(), values, &mut value)?;
        }
        count += u64::from(BATCH);
    }
    Ok(Driven { operations: count, taken: begun.elapsed() })
}

fn run(
    on: &mut impl Records,
    operation: Operation,
    values: &mut Values,
    value: &mut Vec<u8>,
) -> Result<(), DriveError> {
    let mut read = |number: u64, values: &mut Values| {
        let key = key(number);
        if on.read(&key, value)? { values.check(number, value) } else { Err(DriveError::Missing(key)) }
    };
    match operation {
        Operation::Read(number) => read(number, values),
        Operation::Modify(number) => {
            read(number, values)?;
            on.write(&key(number), values.next(number))
        }
        // Behind the last record there is nothing to read.
        Operation::Scan(first, count) => {
            let keys: Vec<String> = (first..first + count).map(key).collect();
            on.read_all(&keys, &mut |place, value| values.check(first + place as u64, value))
        }
        Operation::Update(number) | Operation::Insert(number) => on.write(&key(number), values.next(number)),
    }
}

/// A table as this process uses it.
pub struct OfTable<'table, M>(pub &'table Table<M>);

impl<M: Memory> Records for OfTable<'_, M> {
    fn read(&mut self, key: &str, into: &mut Vec<u8>) -> Result<bool, DriveError> {
        into.clear();
        Ok(self.0.get(key.as_bytes(), into)?)
    }

    fn read_all(&mut self, keys: &[String], found: &mut Found<'_>) -> Result<(), DriveError> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let values = self.0.get_many(&keys)?;
        values.iter().enumerate().try_for_each(|(place, value)| match value {
            Some(value) => found(place, value),
            None => Ok(()),
        })
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

    fn place(&self, key: &[u8]) -> usize {
        (xxhash_rust::xxh3::xxh3_64(key) % self.servers.len() as u64) as usize
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Value, DriveError> {
        let place = self.place(words[1]);
        self.send(place, words)?;
        self.receive(place)
    }

    fn send(&mut self, place: usize, words: &[&[u8]]) -> Result<(), DriveError> {
        self.request.clear();
        self.request.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        Ok(self.servers[place].write_all(&self.request)?)
    }

    fn receive(&mut self, place: usize) -> Result<Value, DriveError> {
        let server = &mut self.servers[place];
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
    fn read(&mut self, key: &str, into: &mut Vec<u8>) -> Result<bool, DriveError> {
        match self.ask(&[b"GET", key.as_bytes()])? {
            Value::Bulk(value) => {
                into.clear();
                into.extend_from_slice(&value);
                Ok(true)
            }
            Value::Nil => Ok(false),
            other => Err(DriveError::Answer(format!("{other:?}"))),
        }
    }

    // As clients of a cluster do: one request to each server, and all of them under way at once.
    fn read_all(&mut self, keys: &[String], found: &mut Found<'_>) -> Result<(), DriveError> {
        let mut shares = vec![Vec::new(); self.servers.len()];
        for (place, key) in keys.iter().enumerate() {
            shares[self.place(key.as_bytes())].push(place);
        }
        let asked: Vec<usize> = (0..shares.len()).filter(|&server| !shares[server].is_empty()).collect();
        for &server in &asked {
            let keys = shares[server].iter().map(|&place| keys[place].as_bytes());
            let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys).collect();
            self.send(server, &words)?;
        }
        for &server in &asked {
            let values = match self.receive(server)? {
                Value::Array(values) if values.len() == shares[server].len() => values,
                other => return Err(DriveError::Answer(format!("{other:?}"))),
            };
            for (&place, value) in shares[server].iter().zip(values) {
                match value {
                    Value::Bulk(value) => found(place, &value)?,
                    Value::Nil => {}
                    other => return Err(DriveError::Answer(format!("{other:?}"))),
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), DriveError> {
        match self.ask(&[b"SET", key.as_bytes(), value])? {
            Value::Simple(_) => Ok(()),
            other => Err(DriveError::Answer(format!("{other:?}"))),
        }
    }
}
