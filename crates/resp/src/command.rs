//! The commands: their names, how many words each takes, and which of them are keys.

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `APPEND`
    Append,
    /// `AUTH`
    Auth,
    /// `BITCOUNT`
    BitCount,
    /// `BITOP`
    BitOp,
    /// `BITPOS`
    BitPos,
    /// `CLIENT`
    Client,
    /// `COMMAND`
    Command,
    /// `CONFIG`
    Config,
    /// `COPY`
    Copy,
    /// `DBSIZE`
    DbSize,
    /// `DECR`
    Decr,
    /// `DECRBY`
    DecrBy,
    /// `DEL`
    Del,
    /// `DISCARD`
    Discard,
    /// `ECHO`
    Echo,
    /// `EXEC`
    Exec,
    /// `EXISTS`
    Exists,
    /// `EXPIRE`
    Expire,
    /// `EXPIREAT`
    ExpireAt,
    /// `EXPIRETIME`
    ExpireTime,
    /// `FLUSHALL`
    FlushAll,
    /// `FLUSHDB`
    FlushDb,
    /// `GET`
    Get,
    /// `GETBIT`
    GetBit,
    /// `GETDEL`
    GetDel,
    /// `GETEX`
    GetEx,
    /// `GETRANGE`
    GetRange,
    /// `GETSET`
    GetSet,
    /// `HELLO`
    Hello,
    /// `INCR`
    Incr,
    /// `INCRBY`
    IncrBy,
    /// `INCRBYFLOAT`
    IncrByFloat,
    /// `INFO`
    Info,
    /// `KEYS`
    Keys,
    /// `LCS`
    Lcs,
    /// `MEMORY`
    Memory,
    /// `MGET`
    MGet,
    /// `MSET`
    MSet,
    /// `MSETNX`
    MSetNx,
    /// `MULTI`
    Multi,
    /// `OBJECT`
    Object,
    /// `PERSIST`
    Persist,
    /// `PEXPIRE`
    PExpire,
    /// `PEXPIREAT`
    PExpireAt,
    /// `PEXPIRETIME`
    PExpireTime,
    /// `PING`
    Ping,
    /// `PSETEX`
    PSetEx,
    /// `PTTL`
    PTtl,
    /// `QUIT`
    Quit,
    /// `RANDOMKEY`
    RandomKey,
    /// `RENAME`
    Rename,
    /// `RENAMENX`
    RenameNx,
    /// `RESET`
    Reset,
    /// `ROLE`
    Role,
    /// `SCAN`
    Scan,
    /// `SELECT`
    Select,
    /// `SET`
    Set,
    /// `SETBIT`
    SetBit,
    /// `SETEX`
    SetEx,
    /// `SETNX`
    SetNx,
    /// `SETRANGE`
    SetRange,
    /// `STRLEN`
    StrLen,
    /// `SUBSTR`
    SubStr,
    /// `TIME`
    Time,
    /// `TOUCH`
    Touch,
    /// `TTL`
    Ttl,
    /// `TYPE`
    Type,
    /// `UNLINK`
    Unlink,
    /// `UNWATCH`
    Unwatch,
    /// `WATCH`
    Watch,
}

/// What is known of a command before it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Which.
    pub command: Command,
    /// Its name in small letters.
    pub name: &'static str,
    /// Words with the name; negative for that many or more.
    pub arity: i64,
    /// What clients are told of it, as Redis calls it.
    pub flags: &'static str,
    /// First and last key (-1 is the last word), and the words from one to the next; zeros for none.
    pub keys: (i64, i64, i64),
    /// What it is about.
    pub group: &'static str,
    /// The release of Redis that has it first.
    pub since: &'static str,
    /// What it does.
    pub summary: &'static str,
}

impl Spec {
    #[allow(clippy::too_many_arguments, reason = "a row of the table below")]
    const fn new(
        command: Command,
        name: &'static str,
        arity: i64,
        flags: &'static str,
        keys: (i64, i64, i64),
        group: &'static str,
        since: &'static str,
        summary: &'static str,
    ) -> Self {
        Self { command, name, arity, flags, keys, group, since, summary }
    }

    /// Whether a request may have `words` words, the name included.
    pub const fn takes(&self, words: usize) -> bool {
        let words = words as i64;
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }
}

/// Longest name of a command.
const NAME_BYTES_MAX: usize = 16;

/// The command of a name, in letters of either case.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut small = [0; NAME_BYTES_MAX];
    let small = small.get_mut(..name.len())?;
    for (to, from) in small.iter_mut().zip(name) {
        *to = from.to_ascii_lowercase();
    }
    let at = COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(small)).ok()?;
    COMMANDS.get(at)
}

/// All commands, by name.
#[rustfmt::skip]
pub const COMMANDS: &[Spec] = &[
    Spec::new(Command::Append, "append", 3, "write,denyoom,fast", (1, 1, 1), "string", "2.0.0", "Appends bytes to a value, or makes it"),
    Spec::new(Command::Auth, "auth", -2, "noscript,loading,stale,fast,no_auth", (0, 0, 0), "connection", "1.0.0", "Says the password"),
    Spec::new(Command::BitCount, "bitcount", -2, "readonly", (1, 1, 1), "bitmap", "2.6.0", "How many bits of a value are set"),
    Spec::new(Command::BitOp, "bitop", -4, "write,denyoom", (2, -1, 1), "bitmap", "2.6.0", "Puts the bits of several values together: AND, OR, XOR, NOT"),
    Spec::new(Command::BitPos, "bitpos", -3, "readonly", (1, 1, 1), "bitmap", "2.8.7", "The first bit of a value that is set, or not"),
    Spec::new(Command::Client, "client", -2, "noscript,loading,stale", (0, 0, 0), "connection", "2.4.0", "About the connection: ID, INFO, LIST, SETNAME, GETNAME, SETINFO, NO-EVICT, NO-TOUCH, REPLY"),
    Spec::new(Command::Command, "command", -1, "loading,stale", (0, 0, 0), "server", "2.8.13", "Which commands there are: COUNT, DOCS, INFO, LIST"),
    Spec::new(Command::Config, "config", -2, "admin,noscript,loading,stale", (0, 0, 0), "server", "2.0.0", "Shows the configuration: GET, RESETSTAT"),
    Spec::new(Command::Copy, "copy", -3, "write,denyoom", (1, 2, 1), "generic", "6.2.0", "Copies a value and its end to another key"),
    Spec::new(Command::DbSize, "dbsize", 1, "readonly,fast", (0, 0, 0), "server", "1.0.0", "How many keys the database has"),
    Spec::new(Command::Decr, "decr", 2, "write,denyoom,fast", (1, 1, 1), "string", "1.0.0", "Subtracts one from an integer"),
    Spec::new(Command::DecrBy, "decrby", 3, "write,denyoom,fast", (1, 1, 1), "string", "1.0.0", "Subtracts from an integer"),
    Spec::new(Command::Del, "del", -2, "write", (1, -1, 1), "generic", "1.0.0", "Removes keys"),
    Spec::new(Command::Discard, "discard", 1, "noscript,loading,stale,fast", (0, 0, 0), "transactions", "2.0.0", "Forgets the commands since MULTI"),
    Spec::new(Command::Echo, "echo", 2, "loading,stale,fast", (0, 0, 0), "connection", "1.0.0", "Answers with its argument"),
    Spec::new(Command::Exec, "exec", 1, "noscript,loading,stale", (0, 0, 0), "transactions", "1.2.0", "Runs the commands since MULTI"),
    Spec::new(Command::Exists, "exists", -2, "readonly,fast", (1, -1, 1), "generic", "1.0.0", "How many of the keys are there"),
    Spec::new(Command::Expire, "expire", -3, "write,fast", (1, 1, 1), "generic", "1.0.0", "Lets a key end in some seconds"),
    Spec::new(Command::ExpireAt, "expireat", -3, "write,fast", (1, 1, 1), "generic", "1.2.0", "Lets a key end at a second since 1970"),
    Spec::new(Command::ExpireTime, "expiretime", 2, "readonly,fast", (1, 1, 1), "generic", "7.0.0", "The second since 1970 at which a key ends"),
    Spec::new(Command::FlushAll, "flushall", -1, "write", (0, 0, 0), "server", "1.0.0", "Removes all keys of all databases"),
    Spec::new(Command::FlushDb, "flushdb", -1, "write", (0, 0, 0), "server", "1.0.0", "Removes all keys of the database"),
    Spec::new(Command::Get, "get", 2, "readonly,fast", (1, 1, 1), "string", "1.0.0", "The value of a key"),
    Spec::new(Command::GetBit, "getbit", 3, "readonly,fast", (1, 1, 1), "bitmap", "2.2.0", "A bit of a value"),
    Spec::new(Command::GetDel, "getdel", 2, "write,fast", (1, 1, 1), "string", "6.2.0", "The value of a key, which is removed"),
    Spec::new(Command::GetEx, "getex", -2, "write,fast", (1, 1, 1), "string", "6.2.0", "The value of a key, whose end is changed"),
    Spec::new(Command::GetRange, "getrange", 4, "readonly", (1, 1, 1), "string", "2.4.0", "A part of a value"),
    Spec::new(Command::GetSet, "getset", 3, "write,denyoom,fast", (1, 1, 1), "string", "1.0.0", "Sets a value and answers with the old one"),
    Spec::new(Command::Hello, "hello", -1, "noscript,loading,stale,fast,no_auth", (0, 0, 0), "connection", "6.0.0", "Chooses the version of the protocol"),
    Spec::new(Command::Incr, "incr", 2, "write,denyoom,fast", (1, 1, 1), "string", "1.0.0", "Adds one to an integer"),
    Spec::new(Command::IncrBy, "incrby", 3, "write,denyoom,fast", (1, 1, 1), "string", "1.0.0", "Adds to an integer"),
    Spec::new(Command::IncrByFloat, "incrbyfloat", 3, "write,denyoom,fast", (1, 1, 1), "string", "2.6.0", "Adds to a number with a fraction"),
    Spec::new(Command::Info, "info", -1, "loading,stale", (0, 0, 0), "server", "1.0.0", "About the server, in lines"),
    Spec::new(Command::Keys, "keys", 2, "readonly", (0, 0, 0), "generic", "1.0.0", "All keys that fit a pattern"),
    Spec::new(Command::Lcs, "lcs", -3, "readonly", (1, 2, 1), "string", "7.0.0", "The longest text that two values have in common"),
    Spec::new(Command::Memory, "memory", -2, "readonly", (0, 0, 0), "server", "4.0.0", "Memory of a key: USAGE"),
    Spec::new(Command::MGet, "mget", -2, "readonly,fast", (1, -1, 1), "string", "1.0.0", "The values of several keys"),
    Spec::new(Command::MSet, "mset", -3, "write,denyoom", (1, -1, 2), "string", "1.0.1", "Sets several values"),
    Spec::new(Command::MSetNx, "msetnx", -3, "write,denyoom", (1, -1, 2), "string", "1.0.1", "Sets several values if none of the keys is there"),
    Spec::new(Command::Multi, "multi", 1, "noscript,loading,stale,fast", (0, 0, 0), "transactions", "1.2.0", "Keeps the commands that follow for EXEC"),
    Spec::new(Command::Object, "object", -2, "readonly", (0, 0, 0), "generic", "2.2.3", "About the value of a key: ENCODING, FREQ, IDLETIME, REFCOUNT"),
    Spec::new(Command::Persist, "persist", 2, "write,fast", (1, 1, 1), "generic", "2.2.0", "Lets a key not end"),
    Spec::new(Command::PExpire, "pexpire", -3, "write,fast", (1, 1, 1), "generic", "2.6.0", "Lets a key end in some milliseconds"),
    Spec::new(Command::PExpireAt, "pexpireat", -3, "write,fast", (1, 1, 1), "generic", "2.6.0", "Lets a key end at a millisecond since 1970"),
    Spec::new(Command::PExpireTime, "pexpiretime", 2, "readonly,fast", (1, 1, 1), "generic", "7.0.0", "The millisecond since 1970 at which a key ends"),
    Spec::new(Command::Ping, "ping", -1, "fast", (0, 0, 0), "connection", "1.0.0", "Answers"),
    Spec::new(Command::PSetEx, "psetex", 4, "write,denyoom", (1, 1, 1), "string", "2.6.0", "Sets a value that ends in some milliseconds"),
    Spec::new(Command::PTtl, "pttl", 2, "readonly,fast", (1, 1, 1), "generic", "2.6.0", "Milliseconds until a key ends"),
    Spec::new(Command::Quit, "quit", -1, "noscript,loading,stale,fast,no_auth", (0, 0, 0), "connection", "1.0.0", "Ends the connection"),
    Spec::new(Command::RandomKey, "randomkey", 1, "readonly", (0, 0, 0), "generic", "1.0.0", "Any key"),
    Spec::new(Command::Rename, "rename", 3, "write", (1, 2, 1), "generic", "1.0.0", "Gives a value and its end another key"),
    Spec::new(Command::RenameNx, "renamenx", 3, "write,fast", (1, 2, 1), "generic", "1.0.0", "Gives a value another key if that is not there"),
    Spec::new(Command::Reset, "reset", 1, "noscript,loading,stale,fast,no_auth", (0, 0, 0), "connection", "6.2.0", "Makes the connection as it was at first"),
    Spec::new(Command::Role, "role", 1, "noscript,loading,stale,fast", (0, 0, 0), "server", "2.8.12", "That the server has no replicas"),
    Spec::new(Command::Scan, "scan", -2, "readonly", (0, 0, 0), "generic", "2.8.0", "Some keys, and where to go on"),
    Spec::new(Command::Select, "select", 2, "loading,stale,fast", (0, 0, 0), "connection", "1.0.0", "Chooses the database"),
    Spec::new(Command::Set, "set", -3, "write,denyoom", (1, 1, 1), "string", "1.0.0", "Sets a value"),
    Spec::new(Command::SetBit, "setbit", 4, "write,denyoom", (1, 1, 1), "bitmap", "2.2.0", "Sets or clears a bit of a value"),
    Spec::new(Command::SetEx, "setex", 4, "write,denyoom", (1, 1, 1), "string", "2.0.0", "Sets a value that ends in some seconds"),
    Spec::new(Command::SetNx, "setnx", 3, "write,denyoom,fast", (1, 1, 1), "string", "1.0.0", "Sets a value if the key is not there"),
    Spec::new(Command::SetRange, "setrange", 4, "write,denyoom", (1, 1, 1), "string", "2.2.0", "Overwrites a part of a value"),
    Spec::new(Command::StrLen, "strlen", 2, "readonly,fast", (1, 1, 1), "string", "2.2.0", "The length of a value"),
    Spec::new(Command::SubStr, "substr", 4, "readonly", (1, 1, 1), "string", "1.0.0", "A part of a value"),
    Spec::new(Command::Time, "time", 1, "loading,stale,fast", (0, 0, 0), "server", "2.6.0", "The clock of the server"),
    Spec::new(Command::Touch, "touch", -2, "readonly,fast", (1, -1, 1), "generic", "3.2.1", "How many of the keys are there"),
    Spec::new(Command::Ttl, "ttl", 2, "readonly,fast", (1, 1, 1), "generic", "1.0.0", "Seconds until a key ends"),
    Spec::new(Command::Type, "type", 2, "readonly,fast", (1, 1, 1), "generic", "1.0.0", "The type of a value: string, or none"),
    Spec::new(Command::Unlink, "unlink", -2, "write,fast", (1, -1, 1), "generic", "4.0.0", "Removes keys"),
    Spec::new(Command::Unwatch, "unwatch", 1, "noscript,loading,stale,fast", (0, 0, 0), "transactions", "2.2.0", "Forgets what WATCH said"),
    Spec::new(Command::Watch, "watch", -2, "noscript,loading,stale,fast", (1, -1, 1), "transactions", "2.2.0", "Lets EXEC do nothing if a key changes before it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_under_its_name() {
        for spec in COMMANDS {
            assert_eq!(find(spec.name.to_uppercase().as_bytes()), Some(spec));
            assert!(spec.takes(spec.arity.unsigned_abs() as usize) && !spec.takes(0), "{}", spec.name);
        }
        for name in [&b""[..], b"GETS", b"averyverylongnameofacommand", b"\xff"] {
            assert_eq!(find(name), None);
        }
    }

    #[test]
    fn a_command_takes_as_many_words_as_it_says() {
        let takes = |name: &[u8], words| find(name).unwrap().takes(words);
        assert!(
            takes(b"get", 2)
                && !takes(b"get", 3)
                && !takes(b"set", 2)
                && takes(b"set", 3)
                && takes(b"set", 9)
        );
    }
}
