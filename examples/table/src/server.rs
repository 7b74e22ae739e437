//! A table for Redis clients: one thread a connection, strings only.

use crate::memory::Memory;
use crate::table::{Table, TableError};
use hinterland_resp::{Arguments, Limits, Parsed, Replies, RequestParser, Version};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// A request that is longer than any that a table can take.
const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Replies that are sent before the next request of the connection is answered.
const REPLIES_BYTES_MAX: usize = 1 << 20;
/// Most that one `MGET` answers: a request may name a million keys.
const VALUES_BYTES_MAX: usize = 64 << 20;
/// Keys of it that are read together.
const TOGETHER_MAX: usize = 256;

/// Pause after a connection that could not be taken: descriptors and threads come back as clients leave.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// Serves connections for as long as the program runs. One that cannot be taken, for want of descriptors or of a thread, harms no other.
pub fn serve<M: Memory + Send + Sync + 'static>(listener: &TcpListener, table: &Arc<Table<M>>) -> ! {
    let mut is_said = false;
    loop {
        let taken = listener.accept().and_then(|(stream, _)| {
            let table = Arc::clone(table);
            std::thread::Builder::new().spawn(move || {
                // A client that goes away is no news.
                let _ = converse(stream, &table);
            })
        });
        let Err(error) = taken else {
            is_said = false;
            continue;
        };
        if !std::mem::replace(&mut is_said, true) {
            // Whoever reads that may have gone.
            let _ = writeln!(io::stderr(), "a client could not be taken: {error} (hint: raise `ulimit -n`)");
        }
        std::thread::sleep(REFUSAL_PAUSE);
    }
}

fn converse<M: Memory>(mut stream: TcpStream, table: &Table<M>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut replies) = (Vec::new(), Replies::default());
    let (mut parser, mut piece) = (RequestParser::default(), vec![0; READ_BYTES]);
    let limits = Limits {
        request_bytes_max: REQUEST_BYTES_MAX,
        argument_bytes_max: REQUEST_BYTES_MAX,
        ..Limits::KNOWN
    };
    loop {
        let mut used = 0;
        let mut is_over = false;
        while used < input.len() && !is_over {
            match parser.parse(&input[used..], &limits) {
                Ok(Parsed::Request(bytes)) => {
                    is_over = answer(table, parser.arguments(&input[used..]), &mut replies);
                    used += bytes;
                    if replies.unsent().len() >= REPLIES_BYTES_MAX {
                        send(&mut stream, &mut replies)?;
                    }
                }
                Ok(Parsed::More(_)) => break,
                Err(error) => {
                    replies.error(&format!("ERR {error}"));
                    is_over = true;
                }
            }
        }
        input.drain(..used);
        send(&mut stream, &mut replies)?;
        if is_over {
            return Ok(());
        }
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            count => input.extend_from_slice(&piece[..count]),
        }
    }
}

fn send(stream: &mut TcpStream, replies: &mut Replies) -> io::Result<()> {
    stream.write_all(replies.unsent())?;
    replies.sent(replies.unsent().len());
    Ok(())
}

/// Answers a request; whether it was the last.
fn answer<M: Memory>(table: &Table<M>, words: Arguments<'_>, replies: &mut Replies) -> bool {
    if words.is_empty() {
        return false;
    }
    let name = words.get(0).to_ascii_uppercase();
    let outcome = match (&name[..], words.len()) {
        (b"GET", 2) => get(table, words.get(1), replies),
        (b"MGET", 2..) => get_many(table, words, replies),
        (b"SET", 3) => table.set(words.get(1), words.get(2)).map(|()| replies.simple("OK")),
        (b"DEL" | b"UNLINK", 2..) => {
            let removed = words.from(1).map(|key| table.remove(key)).collect::<Result<Vec<_>, _>>();
            removed.map(|all| replies.integer(all.into_iter().filter(|is_gone| *is_gone).count() as i64))
        }
        (b"EXISTS", 2..) => {
            let there =
                words.from(1).map(|key| table.get(key, &mut Vec::new())).collect::<Result<Vec<_>, _>>();
            there.map(|all| replies.integer(all.into_iter().filter(|is_there| *is_there).count() as i64))
        }
        (b"PING", 1) => {
            replies.simple("PONG");
            Ok(())
        }
        // What clients say and ask when they connect.
        (b"HELLO", _) => {
            hello(words, replies);
            Ok(())
        }
        (b"SELECT" | b"CLIENT", _) => {
            replies.simple("OK");
            Ok(())
        }
        (b"COMMAND" | b"CONFIG", _) => {
            replies.array(0);
            Ok(())
        }
        (b"INFO", _) => {
            replies.bulk(info(table).as_bytes());
            Ok(())
        }
        (b"QUIT", _) => {
            replies.simple("OK");
            return true;
        }
        _ => {
            let name = String::from_utf8_lossy(&name).into_owned();
            replies.error(&format!(
                "ERR '{name}' with {} words is nothing that a table does (hint: GET, SET, MGET, DEL, EXISTS)",
                words.len()
            ));
            Ok(())
        }
    };
    if let Err(error) = outcome {
        replies.error(&format!("ERR {error}"));
    }
    false
}

/// Chooses the version of the protocol.
fn hello(words: Arguments<'_>, replies: &mut Replies) {
    let (version, number) = match words.len() {
        1 => (replies.version, if replies.version == Version::Three { 3 } else { 2 }),
        _ => match words.get(1) {
            b"2" => (Version::Two, 2),
            b"3" => (Version::Three, 3),
            _ => return replies.error("NOPROTO unsupported protocol version"),
        },
    };
    replies.version = version;
    replies.map(3);
    for (name, text) in [("server", "hinterland-table"), ("version", "7.0.15")] {
        replies.bulk(name.as_bytes());
        replies.bulk(text.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(number);
}

fn get<M: Memory>(table: &Table<M>, key: &[u8], replies: &mut Replies) -> Result<(), TableError> {
    let mut value = Vec::new();
    let is_there = table.get(key, &mut value)?;
    say(is_there.then_some(&value), replies);
    Ok(())
}

fn get_many<M: Memory>(
    table: &Table<M>,
    words: Arguments<'_>,
    replies: &mut Replies,
) -> Result<(), TableError> {
    let keys: Vec<&[u8]> = words.from(1).collect();
    let (mark, mut bytes) = (replies.mark(), 0);
    replies.array(keys.len());
    for keys in keys.chunks(TOGETHER_MAX) {
        let values = table.get_many(keys).inspect_err(|_| replies.back_to(mark))?;
        bytes += values.iter().flatten().map(Vec::len).sum::<usize>();
        if bytes > VALUES_BYTES_MAX {
            replies.back_to(mark);
            replies.error(&format!(
                "ERR the values have more than {} MiB together (hint: ask for fewer at once)",
                VALUES_BYTES_MAX >> 20
            ));
            return Ok(());
        }
        values.iter().for_each(|value| say(value.as_deref(), replies));
    }
    Ok(())
}

fn say(value: Option<&[u8]>, replies: &mut Replies) {
    match value {
        Some(value) => replies.bulk(value),
        None => replies.nil(),
    }
}

fn info<M: Memory>(table: &Table<M>) -> String {
    // Relaxed: counters that nothing is ordered by.
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counts = &table.counts;
    format!(
        "# Table\r\nredis_version:7.0.15\r\nremembered:{}\r\nlooked_up:{}\r\novertaken:{}\r\n",
        read(&counts.remembered),
        read(&counts.looked_up),
        read(&counts.overtaken)
    )
}
