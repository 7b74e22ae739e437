//! What each command does.

mod about;
mod bits;
mod keys;
mod session;
mod several;
mod values;

use crate::connection::{Caller, FREE_BYTES};
use crate::head::Head;
use crate::keyspace::{KeyError, Keyspace};
use crate::shared::{Counters, Shared};
use crate::transaction::Pending;
use hinterland_os::socket::UnixStream;
use hinterland_pool::{Pool, PoolError, Silence};
use hinterland_resp::command::{self, Command, Spec};
use hinterland_resp::options::OptionError;
use hinterland_resp::subcommand::{self, SubcommandError};
use hinterland_resp::{Arguments, Replies, number};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the server follows: clients choose by it what they send.
pub const REDIS_VERSION: &str = "7.0.15";
/// Values up to this many bytes are appended before it is said that they are: of each thread one may be beyond the buffers.
const LARGE_BYTES: usize = 1 << 20;

/// Why a command is refused: the text of the error reply.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The key or the store.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Options.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The second word.
    #[error(transparent)]
    Subcommand(#[from] SubcommandError),
    /// Anything else, in words.
    #[error("{0}")]
    Text(String),
}

impl Refusal {
    fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn syntax() -> Self {
        OptionError::Syntax.into()
    }

    fn integer() -> Self {
        OptionError::Integer.into()
    }

    fn arity(name: &str) -> Self {
        Self::Text(format!("ERR wrong number of arguments for '{name}' command"))
    }
}

type Outcome = Result<(), Refusal>;

/// What a thread needs to run commands: databases that it has opened, and the time of its turn.
pub struct Context {
    shared: Arc<Shared>,
    now_ms: u64,
    keyspaces: Vec<Option<Keyspace>>,
    /// How often each database was opened.
    openings: Vec<u64>,
    opened: Vec<(usize, UnixStream)>,
    /// Bytes of replies that are in the shared sum before their connection has counted them.
    ahead: usize,
    /// The node was waited for in this turn, in vain: who waited meanwhile is told the same, and does not wait for as long once more.
    silent: Option<Silence>,
}

impl Context {
    /// Nothing is opened yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        let databases = shared.options.databases;
        let keyspaces = (0..databases).map(|_| None).collect();
        let openings = vec![0; databases];
        let mut context =
            Self { shared, now_ms: 0, keyspaces, openings, opened: Vec::new(), ahead: 0, silent: None };
        context.look_at_clock();
        context
    }

    /// Begins a turn: takes the time.
    pub fn look_at_clock(&mut self) {
        self.silent = None;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    }

    /// Milliseconds since 1970 at the start of the turn.
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// A command ran.
    pub fn count_command(&self) {
        Counters::add(&self.shared.counters.commands, 1);
    }

    /// Bytes that replies may grow by; some always find room.
    pub fn room(&self, replies: &Replies) -> usize {
        // What a command or its transaction has appended is not in the shared sum yet.
        (self.shared.room() + self.ahead).max(FREE_BYTES).saturating_sub(replies.unsent().len())
    }

    /// Room for a reply, or for memory that a command works in, none of which is taken yet.
    fn room_of(&self, replies: &Replies) -> Room {
        let uncounted = replies.unsent().len().saturating_sub(self.ahead);
        Room { shared: Arc::clone(&self.shared), most: self.room(replies), uncounted, taken: 0 }
    }

    /// The reply that room was taken for is appended, and counted with its connection.
    fn is_appended(&mut self, mut room: Room) {
        self.ahead += std::mem::take(&mut room.taken);
    }

    /// What was taken for replies since there were so many bytes is free: they are taken back.
    fn take_back(&mut self, ahead: usize) {
        self.shared.buffer(self.ahead - ahead, 0);
        self.ahead = ahead;
    }

    /// The connection that was served has counted what it took.
    pub fn is_counted(&mut self) {
        self.shared.buffer(std::mem::take(&mut self.ahead), 0);
    }

    /// A database, opened if it is not.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn keyspace(&mut self, database: usize) -> Result<&mut Keyspace, KeyError> {
        if let Some(silence) = self.silent {
            return Err(PoolError::Silent(silence).into());
        }
        let place = &mut self.keyspaces[database];
        match place {
            Some(keyspace) => Ok(keyspace),
            None => {
                let pool = Pool::connect(Some(&self.shared.options.socket))?;
                let keyspace = Keyspace::open(&pool, &self.shared.options.namespace, database)?;
                self.opened.push((database, keyspace.store().watch()?));
                self.openings[database] += 1;
                Ok(place.insert(keyspace))
            }
        }
    }

    /// The number of the session by which a database is open, among those that there were.
    pub fn opening(&self, database: usize) -> u64 {
        self.openings[database]
    }

    /// Closes a database, because its session is of no use any more.
    pub fn lose(&mut self, database: usize) {
        self.keyspaces[database] = None;
    }

    /// Closes a database after a failure of the node.
    pub fn fail(&mut self, database: usize, error: &KeyError) {
        match error {
            KeyError::Pool(PoolError::Silent(silence)) => self.silent = Some(*silence),
            KeyError::Pool(_) => {}
            _ => return,
        }
        self.lose(database);
    }

    /// Sockets of sessions that were opened since this was asked last, by database.
    pub fn take_opened(&mut self) -> Vec<(usize, UnixStream)> {
        std::mem::take(&mut self.opened)
    }

    /// Gives back what is kept for the next writes.
    pub fn rest(&mut self) {
        for database in 0..self.keyspaces.len() {
            let Some(Err(error)) = self.keyspaces[database].as_mut().map(Keyspace::rest) else { continue };
            self.fail(database, &error);
            if self.silent.is_some() {
                // The others are looked at when it answers again.
                return;
            }
        }
    }
}

/// Room among the buffers that is taken where the context is in use. It is free again when this is dropped.
struct Room {
    shared: Arc<Shared>,
    /// Bytes that there are.
    most: usize,
    /// Bytes that replies have taken and that are not in the shared sum.
    uncounted: usize,
    taken: usize,
}

impl Room {
    /// Takes so many bytes in all. Other threads find room at the same moment: what is large is in the shared sum before it is copied.
    ///
    /// # Errors
    /// [`KeyError::Buffers`] if there are not as many.
    fn take(&mut self, bytes: usize) -> Result<(), KeyError> {
        let more = if bytes > LARGE_BYTES { bytes.saturating_sub(self.taken) } else { 0 };
        if bytes > self.most || more > 0 && !self.shared.reserve(more, self.uncounted) {
            return Err(KeyError::Buffers(bytes));
        }
        self.taken += more;
        Ok(())
    }

    /// The same for the old value of a key, which is the reply: before it is changed, as it is lost then.
    fn take_for(&mut self, old: Option<&(&Head, Vec<u8>)>) -> Result<(), KeyError> {
        old.map_or(Ok(()), |(_, value)| self.take(value.len()))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.buffer(self.taken, 0);
    }
}

/// One command on its way.
struct Call<'call> {
    context: &'call mut Context,
    caller: &'call mut Caller,
    words: Arguments<'call>,
    replies: &'call mut Replies,
}

/// Runs a request and appends its reply. A request without words has none.
pub fn run(context: &mut Context, caller: &mut Caller, words: Arguments<'_>, replies: &mut Replies) {
    if words.is_empty() {
        return;
    }
    context.count_command();
    let (mark, ahead) = (replies.mark(), context.ahead);
    let database = caller.database;
    caller.silence.begin();
    let mut call = Call { context, caller, words, replies };
    if let Err(refusal) = call.dispatch() {
        call.replies.back_to(mark);
        call.context.take_back(ahead);
        call.replies.error(&refusal.to_string());
        if let Refusal::Key(error) = &refusal {
            call.context.fail(database, error);
        }
    }
    caller.silence.end(replies, mark);
}

impl Call<'_> {
    fn dispatch(&mut self) -> Outcome {
        let Some(spec) = command::find(self.words.get(0)) else { return self.unknown() };
        if !spec.takes(self.words.len()) {
            return Err(self.arity_of(spec));
        }
        subcommand::check(spec, self.words)?;
        if !self.caller.is_known && !spec.flags.ends_with("no_auth") {
            return Err(Refusal::text("NOAUTH Authentication required."));
        }
        self.act(spec)
    }

    fn act(&mut self, spec: &Spec) -> Outcome {
        match spec.command {
            Command::Get => self.get(),
            Command::Set => self.set(),
            Command::SetNx => self.set_nx(),
            Command::SetEx | Command::PSetEx => self.set_ex(spec),
            Command::MGet => self.mget(),
            Command::MSet => self.mset(),
            Command::GetSet => self.get_set(),
            Command::GetDel => self.get_del(),
            Command::GetEx => self.get_ex(),
            Command::GetRange | Command::SubStr => self.get_range(),
            Command::StrLen => self.str_len(),
            Command::Append => self.append(),
            Command::Incr => self.add(Some(1)),
            Command::Decr => self.add(Some(-1)),
            Command::IncrBy => self.add(number::parse(self.words.get(2))),
            Command::DecrBy => self.decrement(),
            Command::IncrByFloat => self.add_float(),
            Command::SetRange => self.set_range(),
            Command::GetBit => self.get_bit(),
            Command::SetBit => self.set_bit(),
            Command::BitOp => self.bit_op(),
            Command::Lcs => self.lcs(),
            Command::BitCount => self.bit_count(),
            Command::BitPos => self.bit_pos(),
            Command::MSetNx => self.mset_nx(),
            Command::Rename => self.rename(true),
            Command::RenameNx => self.rename(false),
            Command::Copy => self.copy(),
            Command::RandomKey => self.random_key(),
            Command::Del | Command::Unlink => self.delete(),
            Command::Exists | Command::Touch => self.exists(),
            Command::Type => self.kind(),
            Command::Ttl | Command::PTtl | Command::ExpireTime | Command::PExpireTime => {
                self.ttl(spec.command)
            }
            Command::Expire | Command::PExpire | Command::ExpireAt | Command::PExpireAt => self.expire(spec),
            Command::Persist => self.persist(),
            Command::Scan => self.scan(),
            Command::Keys => self.keys(),
            Command::DbSize => self.db_size(),
            Command::FlushDb => self.flush(false),
            Command::FlushAll => self.flush(true),
            Command::Object => self.object(),
            Command::Memory => self.memory(),
            Command::Ping => self.ping(),
            Command::Echo => self.echo(),
            Command::Select => self.select(),
            Command::Auth => self.auth(),
            Command::Hello => self.hello(),
            Command::Client => self.client(),
            Command::Quit => self.quit(),
            Command::Reset => self.reset(),
            Command::Info => self.info(),
            Command::Config => self.config(),
            Command::Command => self.command(),
            Command::Time => self.time(),
            Command::Role => self.role(),
            Command::Multi => self.multi(),
            Command::Exec => Err(Refusal::text("ERR EXEC without MULTI")),
            Command::Discard => self.discard(),
            Command::Watch => self.watch(),
            Command::Unwatch => self.unwatch(),
        }
    }

    /// The refusal of a command with too many or too few words. With `EXEC` its transaction goes, as with Redis.
    fn arity_of(&mut self, spec: &Spec) -> Refusal {
        if spec.command != Command::Exec {
            return Refusal::arity(spec.name);
        }
        self.caller.pending = Pending::default();
        Refusal::text(
            "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
        )
    }

    fn unknown(&mut self) -> Outcome {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned();
        let name = shown(self.words.get(0));
        // A browser that was made to send its request here must not have the rest of it run as commands.
        if name.eq_ignore_ascii_case("post") || name.eq_ignore_ascii_case("host:") {
            self.caller.end = Some(crate::connection::End::AfterReplies);
            return Err(Refusal::text("ERR this is no web server"));
        }
        let mut words = String::new();
        for word in self.words.from(1) {
            if words.len() >= 128 {
                break;
            }
            words.push_str(&format!("'{}' ", shown(word)));
        }
        Err(Refusal::Text(format!("ERR unknown command '{name}', with args beginning with: {words}")))
    }

    /// The second word in capitals.
    fn subcommand(&self) -> Vec<u8> {
        self.words.get(1).to_ascii_uppercase()
    }

    /// The word at `index` as an integer.
    fn integer_at(&self, index: usize) -> Result<i64, Refusal> {
        number::parse(self.words.get(index)).ok_or_else(Refusal::integer)
    }

    fn ok(&mut self) -> Outcome {
        self.replies.simple("OK");
        Ok(())
    }

    fn keyspace(&mut self) -> Result<&mut Keyspace, Refusal> {
        Ok(self.context.keyspace(self.caller.database)?)
    }

    const fn now_ms(&self) -> u64 {
        self.context.now_ms
    }
}
