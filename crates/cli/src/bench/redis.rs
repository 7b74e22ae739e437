//! Redis as a peer: a server of the bench's own and as much of its protocol as figures need.

use super::ground::Ground;
use crate::failure::Failure;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to listen.
const START: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Keys of each size: enough that a value is not always in the processor's cache.
const KEYS: u64 = 64;

/// A running server.
pub struct Redis {
    child: Child,
    socket: std::path::PathBuf,
    port: u16,
}

/// A connection to it.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    next: u64,
    command: Vec<u8>,
    value: Vec<u8>,
}

trait Stream: Read + Write {}
impl<Any: Read + Write> Stream for Any {}

impl Redis {
    /// The process of the server.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Starts a server that keeps nothing on disk.
    ///
    /// # Errors
    /// [`Failure`] if Redis is not installed.
    pub fn start(ground: &Ground) -> Result<Self, Failure> {
        // The port is free again at once; nobody else asks for one of the bench's.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| broken(&error))?.port();
        let socket = ground.folder().join(format!("redis-{port}.sock"));
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--unixsocket").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| {
            Failure::new(format!("Redis cannot be started: {error}"), "apt-get install redis-server")
        })?;
        let redis = Self { child, socket, port };
        let begin = Instant::now();
        while redis.over_unix().is_err() {
            if begin.elapsed() > START {
                return Err(Failure::new(
                    "Redis did not start in time",
                    "start redis-server by hand and look",
                ));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(redis)
    }

    /// Its port on this host.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its unix socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// A connection over its unix socket.
    ///
    /// # Errors
    /// [`Failure`] if it does not answer.
    pub fn over_unix(&self) -> Result<Connection, Failure> {
        let stream = UnixStream::connect(&self.socket).map_err(|error| broken(&error))?;
        Ok(Connection::new(Box::new(stream)))
    }

    /// A connection over TCP.
    ///
    /// # Errors
    /// [`Failure`] if it does not answer.
    pub fn over_tcp(&self) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| broken(&error))?;
        stream.set_nodelay(true).map_err(|error| broken(&error))?;
        Ok(Connection::new(Box::new(stream)))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It holds nothing that anybody needs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Connection {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream: BufReader::new(stream), next: 0, command: Vec::new(), value: Vec::new() }
    }

    /// Nanoseconds of a PING with `depth` of them sent at once.
    ///
    /// # Errors
    /// [`Failure`] if the server goes away.
    pub fn ping(&mut self, count: usize, depth: usize) -> Result<f64, Failure> {
        let batch = b"*1\r\n$4\r\nPING\r\n".repeat(depth);
        let begin = Instant::now();
        for _ in 0..count / depth {
            self.stream.get_mut().write_all(&batch).map_err(|error| broken(&error))?;
            for _ in 0..depth {
                self.line()?;
            }
        }
        Ok(begin.elapsed().as_nanos() as f64 / (count / depth * depth) as f64)
    }

    /// Stores the values that [`read`](Self::read) asks for.
    ///
    /// # Errors
    /// As [`ping`](Self::ping).
    pub fn prepare(&mut self, bytes: usize) -> Result<(), Failure> {
        self.write(bytes, KEYS as usize).map(drop)
    }

    /// Median microseconds of a GET.
    ///
    /// # Errors
    /// As [`ping`](Self::ping).
    pub fn read(&mut self, bytes: usize, count: usize) -> Result<f64, Failure> {
        self.value.resize(bytes + 2, 0);
        self.timed(count, |connection, key| {
            connection.send(&format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()), 0)?;
            if connection.line()? != format!("${bytes}") {
                return Err(Failure::new("Redis has another value", "report this"));
            }
            let Self { stream, value, .. } = connection;
            stream.read_exact(value).map_err(|error| broken(&error))
        })
    }

    /// Median microseconds of a SET.
    ///
    /// # Errors
    /// As [`ping`](Self::ping).
    pub fn write(&mut self, bytes: usize, count: usize) -> Result<f64, Failure> {
        self.timed(count, |connection, key| {
            connection.send(&format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len()), bytes)?;
            connection.line().map(drop)
        })
    }

    fn timed(
        &mut self,
        count: usize,
        operation: impl Fn(&mut Self, &str) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let mut times = super::rounds::Samples::default();
        for _ in 0..count {
            self.next += 1;
            let key = format!("key{}", self.next % KEYS);
            let begin = Instant::now();
            operation(self, &key)?;
            times.add(begin.elapsed().as_nanos() as f64 / 1e3);
        }
        times.median().ok_or_else(|| Failure::new("no time was taken", "report this"))
    }

    /// Sends words, and a value of `bytes` bytes behind them if that is not 0.
    fn send(&mut self, words: &str, bytes: usize) -> Result<(), Failure> {
        self.command.clear();
        self.command.extend_from_slice(words.as_bytes());
        if bytes > 0 {
            self.command.resize(self.command.len() + bytes, b'x');
            self.command.extend_from_slice(b"\r\n");
        }
        let Self { stream, command, .. } = self;
        stream.get_mut().write_all(command).map_err(|error| broken(&error))
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        let bytes = self.stream.read_line(&mut line).map_err(|error| broken(&error))?;
        match line.trim_end() {
            "" => Err(Failure::new(format!("Redis answered {bytes} bytes"), "report this")),
            error if error.starts_with('-') => {
                Err(Failure::new(format!("Redis refuses: {error}"), "report this"))
            }
            answer => Ok(answer.to_owned()),
        }
    }
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::new(format!("talking to Redis failed: {error}"), "try again")
}
