//! Transactions: commands that are queued, and then run with no other connection of this server in between.
//!
//! `WATCH` remembers which block a key has; a value that was written again, removed or evicted has another one, so
//! nothing is missed, and where the node has gone meanwhile all counts as changed. Connections of other servers and other programs may come in between two commands of a transaction, as nothing
//! stops them; between `WATCH` and `EXEC` their writes are noticed like any.

use crate::commands::{self, Context};
use crate::connection::{Caller, Connection};
use crate::keyspace::{KeyError, State};
use hinterland_pool::Expects;
use hinterland_resp::command::{self, Command};
use hinterland_resp::{Limits, Parsed, Replies, RequestParser, subcommand};

/// Commands that wait for `EXEC`, as they came.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    requests: Vec<u8>,
    ends: Vec<usize>,
    /// Whether one of them could not be queued.
    is_refused: bool,
}

/// A key whose change makes `EXEC` do nothing.
#[derive(Clone, Debug)]
pub struct Watched {
    database: usize,
    key: Vec<u8>,
    seen: Seen,
}

/// What a key had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    /// The session with the node: another node may give another value the same place and number.
    opening: u64,
    block: Expects,
}

/// What a caller has between `MULTI` or `WATCH` and `EXEC`.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// The commands, after `MULTI`.
    pub transaction: Option<Transaction>,
    watched: Vec<Watched>,
}

impl Pending {
    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        let queued = self.transaction.as_ref();
        let queued = queued
            .map_or(0, |queued| queued.requests.capacity() + queued.ends.capacity() * size_of::<usize>());
        self.watched.iter().map(|watched| size_of::<Watched>() + watched.key.capacity()).sum::<usize>()
            + queued
    }

    /// Forgets what was watched.
    pub fn unwatch(&mut self) {
        self.watched = Vec::new();
    }

    /// Remembers what a key has now.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn watch(&mut self, context: &mut Context, database: usize, key: &[u8]) -> Result<(), KeyError> {
        let seen = seen(context, database, key)?;
        let known = self.watched.iter().any(|watched| watched.database == database && watched.key == key);
        if !known {
            self.watched.push(Watched { database, key: key.to_vec(), seen });
        }
        Ok(())
    }
}

/// Whether the request that a connection has just parsed must run alone: it runs its transaction, or is about several keys of
/// which nobody may see the first one changed before the last.
pub fn runs_alone(connection: &Connection) -> bool {
    let words = connection.words();
    let is_queueing = connection.caller.pending.transaction.is_some();
    // `GET` and its like need not be looked up for it: what is about several keys has a word more.
    if !is_queueing && words.len() < 3 {
        return false;
    }
    let spec = command::find(words.get(0)).filter(|spec| spec.takes(words.len()));
    match spec.map(|spec| spec.command) {
        Some(Command::Exec) => is_queueing,
        Some(Command::BitOp | Command::Copy | Command::MSetNx | Command::Rename | Command::RenameNx) => {
            !is_queueing && connection.caller.is_known
        }
        _ => false,
    }
}

/// Queues the request of `bytes` bytes that a connection has just parsed, if it is in a transaction and the request is not
/// about that; what cannot be queued is left to be refused, and the transaction with it.
pub fn queues(connection: &mut Connection, bytes: usize) -> bool {
    if connection.caller.pending.transaction.is_none() || connection.words().is_empty() {
        return false;
    }
    let words = connection.words();
    let spec = command::find(words.get(0)).filter(|spec| spec.takes(words.len()));
    let is_about_it = spec.is_some_and(|spec| {
        use Command::{Discard, Exec, Multi, Quit, Reset, Watch};
        matches!(spec.command, Discard | Exec | Multi | Quit | Reset | Watch)
    });
    let is_fit = spec.is_some_and(|spec| {
        let is_reply = spec.command == Command::Client && words.get(1).eq_ignore_ascii_case(b"reply");
        !is_reply && subcommand::check(spec, words).is_ok()
    });
    let request = connection.input.unread().get(..bytes).unwrap_or_default();
    let Some(queued) = &mut connection.caller.pending.transaction else { return false };
    if !is_fit {
        queued.is_refused = true;
    }
    if !is_fit || is_about_it {
        return false;
    }
    queued.requests.extend_from_slice(request);
    queued.ends.push(queued.requests.len());
    let mark = connection.replies.mark();
    connection.caller.silence.begin();
    connection.replies.simple("QUEUED");
    connection.caller.silence.end(&mut connection.replies, mark);
    true
}

/// Runs what is queued, and answers with all replies in one, or with none if a watched key has changed. The caller sees to
/// it that no other connection is served meanwhile.
pub fn execute(context: &mut Context, caller: &mut Caller, replies: &mut Replies) {
    let mark = replies.mark();
    caller.silence.begin();
    // All answer into one reply, which is wanted or not.
    let silence = std::mem::take(&mut caller.silence);
    run_queued(context, caller, replies);
    caller.silence = silence;
    caller.silence.end(replies, mark);
}

fn run_queued(context: &mut Context, caller: &mut Caller, replies: &mut Replies) {
    context.count_command();
    let pending = std::mem::take(&mut caller.pending);
    let queued = pending.transaction.unwrap_or_default();
    if queued.is_refused {
        return replies.error("EXECABORT Transaction discarded because of previous errors.");
    }
    for watched in &pending.watched {
        match seen(context, watched.database, &watched.key) {
            Ok(now) if now == watched.seen => {}
            Ok(_) => return replies.nil_array(),
            Err(error) => {
                context.fail(watched.database, &error);
                return replies.error(&error.to_string());
            }
        }
    }
    replies.array(queued.ends.len());
    let mut start = 0;
    for end in queued.ends {
        let request = &queued.requests[start..end];
        start = end;
        if context.room(replies) == 0 {
            // All replies are one, which is sent when the last command has run.
            replies.error(&KeyError::Buffers(replies.unsent().len()).to_string());
            continue;
        }
        let mut parser = RequestParser::default();
        match parser.parse(request, &Limits::KNOWN) {
            Ok(Parsed::Request(_)) => commands::run(context, caller, parser.arguments(request), replies),
            // It was whole when it was queued; an array of replies must have as many as it says.
            Ok(Parsed::More(_)) | Err(_) => replies.error("ERR a queued command cannot be read again"),
        }
    }
}

/// The block of a key. A value whose time is over is as none, whether somebody has removed it or not.
fn seen(context: &mut Context, database: usize, key: &[u8]) -> Result<Seen, KeyError> {
    let now_ms = context.now_ms();
    let block = match context.keyspace(database)?.state(key, now_ms)? {
        State::Ended(_) | State::Absent => Expects::Nothing,
        there @ State::There(_) => there.expected(),
    };
    Ok(Seen { opening: context.opening(database), block })
}
