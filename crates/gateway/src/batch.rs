//! Plain writes of all connections, gathered for one message to the node.

use crate::commands::Context;
use crate::connection::{Connection, Silence};
use crate::head::{BLOCK_BYTES_MAX, HEAD_BYTES};
use crate::keyspace::{Item, KeyError};
use hinterland_pool::{Expects, Replaced};
use hinterland_resp::command::{self, Command};
use hinterland_resp::options::{Condition, Ends, SetOptions, Unit};
use std::ops::Range;

/// Writes that one message takes.
const WRITES_MAX: usize = 512;
/// Bytes of them: while they are written, their slots serve nobody else.
const BYTES_MAX: usize = 8 << 20;

/// A write whose key and value lie in the input of its connection until it is done.
#[derive(Clone, Debug)]
struct Write {
    connection: usize,
    database: usize,
    key: Range<usize>,
    value: Range<usize>,
    ends_ms: Option<u64>,
}

/// Writes that wait.
#[derive(Debug, Default)]
pub struct Batch {
    writes: Vec<Write>,
    bytes: usize,
}

impl Batch {
    /// Takes the request that a connection has just parsed, if it is a write that needs to know nothing of what is there:
    /// `SET` without conditions, `SETEX`, `PSETEX`.
    pub fn takes(&mut self, index: usize, connection: &Connection, now_ms: u64) -> bool {
        let words = connection.words();
        let caller = &connection.caller;
        if words.len() < 3 || !caller.is_known || caller.pending.transaction.is_some() {
            return false;
        }
        // Whose reply is left out is known when it is run.
        if matches!(caller.silence, Silence::Next | Silence::This) {
            return false;
        }
        let (value, ends_ms) = match command::find(words.get(0)).map(|spec| spec.command) {
            Some(Command::Set) if words.len() == 3 => (2, None),
            Some(Command::Set) => match SetOptions::parse(words.from(3), now_ms) {
                Ok(SetOptions { condition: Condition::Always, get: false, ends: Ends::At(end) }) => {
                    (2, Some(end))
                }
                _ => return false,
            },
            Some(Command::SetEx) if words.len() == 4 => {
                (3, Unit::Seconds.end("setex", words.get(2), now_ms).ok())
            }
            Some(Command::PSetEx) if words.len() == 4 => {
                (3, Unit::Milliseconds.end("psetex", words.get(2), now_ms).ok())
            }
            _ => return false,
        };
        // A time that cannot be is the command's to refuse, and one that is past removes the key.
        if value == 3 && ends_ms.is_none() || ends_ms.is_some_and(|end| end <= now_ms) {
            return false;
        }
        let (Some(key), Some(value)) = (words.place(1), words.place(value)) else { return false };
        if HEAD_BYTES + key.len() + value.len() > BLOCK_BYTES_MAX || key.len() > crate::head::KEY_BYTES_MAX {
            return false;
        }
        self.bytes += value.len();
        let (key, value) = (connection.input.place(key), connection.input.place(value));
        self.writes.push(Write {
            connection: index,
            database: connection.caller.database,
            key,
            value,
            ends_ms,
        });
        true
    }

    /// Whether it is time to write.
    pub const fn is_full(&self) -> bool {
        self.writes.len() >= WRITES_MAX || self.bytes >= BYTES_MAX
    }

    /// Writes all that wait, and answers.
    pub fn write(&mut self, context: &mut Context, connections: &mut [Option<Box<Connection>>]) {
        for writes in self.writes.chunk_by(|one, next| one.database == next.database) {
            let items: Vec<Item<'_>> = writes.iter().filter_map(|write| item(write, connections)).collect();
            let database = writes.first().map_or(0, |write| write.database);
            let outcome = context.keyspace(database).and_then(|keyspace| keyspace.set(&items));
            if let Err(error) = &outcome {
                context.fail(database, error);
            }
            let mut outcomes = outcome.as_deref().unwrap_or_default().iter();
            for write in writes {
                let Some(Some(connection)) = connections.get_mut(write.connection) else { continue };
                connection.pending -= 1;
                let outcome_of_it = outcomes.next();
                if connection.caller.silence == Silence::All {
                    continue;
                }
                match (&outcome, outcome_of_it) {
                    (Err(error), _) => connection.replies.error(&error.to_string()),
                    (Ok(_), Some(Replaced::Done)) => connection.replies.simple("OK"),
                    (Ok(_), _) => connection.replies.error(&KeyError::NoRoom.to_string()),
                }
            }
        }
        self.writes.clear();
        self.bytes = 0;
    }
}

fn item<'input>(write: &Write, connections: &'input [Option<Box<Connection>>]) -> Option<Item<'input>> {
    let input = &connections.get(write.connection)?.as_ref()?.input;
    let (key, value) = (input.at(write.key.clone()), input.at(write.value.clone()));
    Some(Item { key, value, ends_ms: write.ends_ms, expects: Expects::Anything })
}
