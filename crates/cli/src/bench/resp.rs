//! `resp`: values of Redis clients, beside a Redis server and a unix socket with nothing behind it.

use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::redis::Redis;
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Bytes of all values of a size: beyond the processor's caches.
const SET_BYTES: usize = 64 << 20;
/// Most values of a size.
const VALUES_MAX: usize = 20_000;
/// Sizes of values and their names.
const SIZES: [(&str, usize); 4] = [("64B", 64), ("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)];
/// Requests that are sent before their replies are read.
const DEPTHS: [usize; 2] = [1, 32];
/// What answers a `SET`.
const STORED: &[u8] = b"+OK\r\n";

/// The bench.
pub struct Resp;

/// `hinterland resp` as a process of its own.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(ground: &Ground, setting: &Setting, node: &BenchNode) -> Result<Self, Failure> {
        let socket = ground.folder().join("resp.sock");
        let mut command = Command::new(&setting.program);
        // It must not outlive a bench that is killed.
        command.arg("become").arg("--parent").arg(std::process::id().to_string()).arg("--");
        command.arg(&setting.program).arg("--json").arg("--socket").arg(&node.socket).arg("resp");
        command.arg("--listen").arg(format!("unix:{}", socket.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let failed = |why: String| Failure::new(format!("the server did not start: {why}"), "run it by hand");
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // What cannot be read is no ready line.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let server = Self { child, socket };
        if line.contains("\"ready\":true") { Ok(server) } else { Err(failed(format!("it said {line:?}"))) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It holds nothing that anybody needs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that knows how long every reply is.
struct Client {
    stream: UnixStream,
    /// What is sent at once, and what comes back.
    sent: Vec<u8>,
    received: Vec<u8>,
    next: usize,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    Get,
    Set,
}

impl Client {
    fn connect(socket: &Path) -> Result<Self, Failure> {
        let stream = UnixStream::connect(socket).map_err(|error| broken(&error))?;
        Ok(Self { stream, sent: Vec::new(), received: Vec::new(), next: 0 })
    }

    /// Microseconds of one of `count` requests about values of `bytes` bytes, `depth` at once.
    fn time(&mut self, ask: Ask, bytes: usize, depth: usize, count: usize) -> Result<f64, Failure> {
        let head = format!("${bytes}\r\n");
        let reply = if ask == Ask::Get { head.len() + bytes + 2 } else { STORED.len() };
        let turns = count.div_ceil(depth);
        let mut taken = 0.0;
        for _ in 0..turns {
            self.write_requests(ask, bytes, depth);
            self.received.resize(reply * depth, 0);
            let begin = Instant::now();
            self.stream.write_all(&self.sent).map_err(|error| broken(&error))?;
            self.stream.read_exact(&mut self.received).map_err(|error| broken(&error))?;
            taken += begin.elapsed().as_secs_f64();
            let expected = if ask == Ask::Get { head.as_bytes() } else { STORED };
            if !self.received.chunks(reply).all(|reply| reply.starts_with(expected)) {
                let shown = String::from_utf8_lossy(&self.received[..reply.min(100)]).into_owned();
                return Err(Failure::new(format!("the server answered {shown:?}"), "report this"));
            }
        }
        Ok(taken * 1e6 / (turns * depth) as f64)
    }

    fn write_requests(&mut self, ask: Ask, bytes: usize, depth: usize) {
        self.sent.clear();
        for _ in 0..depth {
            self.next += 1;
            // Steps of a prime, so that neighbours are not asked for one after the other.
            let key = format!("{bytes}:{:07}", self.next.wrapping_mul(7919) % values(bytes));
            let words = if ask == Ask::Get { "*2\r\n$3\r\nGET" } else { "*3\r\n$3\r\nSET" };
            self.sent.extend_from_slice(format!("{words}\r\n${}\r\n{key}\r\n", key.len()).as_bytes());
            if ask == Ask::Set {
                self.sent.extend_from_slice(format!("${bytes}\r\n").as_bytes());
                self.sent.resize(self.sent.len() + bytes, b'x');
                self.sent.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Stores all values of a size.
    fn fill(&mut self, bytes: usize) -> Result<(), Failure> {
        self.next = 0;
        self.time(Ask::Set, bytes, 8, values(bytes)).map(drop)
    }
}

const fn values(bytes: usize) -> usize {
    let fitting = SET_BYTES / bytes;
    if fitting < VALUES_MAX { fitting } else { VALUES_MAX }
}

/// Microseconds for the bytes of a request and its reply through a unix socket to a thread that does nothing with them.
fn bare(ask: Ask, bytes: usize, depth: usize, count: usize) -> Result<f64, Failure> {
    let (small, large) = (40 * depth, (bytes + 40) * depth);
    let (there, back) = if ask == Ask::Get { (small, large) } else { (large, STORED.len() * depth) };
    let (mut near, mut far) = UnixStream::pair().map_err(|error| broken(&error))?;
    let turns = count.div_ceil(depth);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut request, reply) = (vec![0; there], vec![0; back]);
            for _ in 0..turns {
                if far.read_exact(&mut request).and_then(|()| far.write_all(&reply)).is_err() {
                    // The other end finds it closed.
                    return;
                }
            }
        });
        let (request, mut reply) = (vec![0; there], vec![0; back]);
        let begin = Instant::now();
        for _ in 0..turns {
            let asked = near.write_all(&request).and_then(|()| near.read_exact(&mut reply));
            asked.map_err(|error| broken(&error))?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / (turns * depth) as f64)
    })
}

impl Bench for Resp {
    fn name(&self) -> &'static str {
        "resp"
    }

    fn subject(&self) -> &'static str {
        "values of Redis clients, one at a time and 32 at once, over a unix socket"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 1 << 30)?;
        let node = ground.node(NodePlan {
            name: "bench",
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", "768M"],
            ..NodePlan::default()
        })?;
        let server = Server::start(&ground, setting, &node)?;
        let ours = RefCell::new(Client::connect(&server.socket)?);
        let redis = Redis::start(&ground);
        let peer = redis.as_ref().map_err(Clone::clone);
        let peer = peer.and_then(|redis| Client::connect(redis.socket())).map(RefCell::new);
        let mut rows = Vec::new();
        for (name, bytes) in SIZES {
            (setting.say)(&format!("resp: {name}"));
            ours.borrow_mut().fill(bytes)?;
            if let Ok(peer) = &peer {
                peer.borrow_mut().fill(bytes)?;
            }
            for (ask, word) in [(Ask::Get, "get"), (Ask::Set, "set")] {
                for depth in DEPTHS {
                    let moved = if setting.quick { 8 << 20 } else { 256 << 20 };
                    let count = (moved / bytes).clamp(64, if setting.quick { 2000 } else { 40_000 });
                    let case = Case::new(format!("{word}-{name}-{depth}"), "us", Better::Lower, || {
                        ours.borrow_mut().time(ask, bytes, depth, count)
                    })
                    .limit("the same bytes through a unix socket, to a thread", || {
                        bare(ask, bytes, depth, count)
                    })
                    .peer_or_why(
                        "Redis, unix socket",
                        peer.as_ref().map(|peer| || peer.borrow_mut().time(ask, bytes, depth, count)),
                    );
                    rows.push(case.measure(setting.rounds));
                }
            }
        }
        Ok(rows)
    }
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::new(format!("talking to the server failed: {error}"), "try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_values_enough_to_take_turns() {
        for (_, bytes) in SIZES {
            assert!(values(bytes) >= 64 && values(bytes) * bytes <= SET_BYTES);
            // The steps reach all of them.
            assert_ne!(values(bytes) % 7919, 0);
        }
    }

    #[test]
    fn requests_are_those_of_the_protocol() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let mut client = Client { stream, sent: Vec::new(), received: Vec::new(), next: 0 };
        client.write_requests(Ask::Set, 64, 1);
        let text = String::from_utf8(client.sent.clone()).unwrap();
        assert!(text.starts_with("*3\r\n$3\r\nSET\r\n$10\r\n64:0007919\r\n$64\r\nxxx"), "{text}");
        assert!(text.ends_with("xx\r\n"));
        client.write_requests(Ask::Get, 64, 2);
        assert_eq!(client.sent.iter().filter(|byte| **byte == b'*').count(), 2);
    }
}
