//! `tls`: reads of another node's memory under mutual TLS, beside the same reads over plain TCP.

use super::case::Case;
use super::ground::Ground;
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_fabric::tcp::{ClientOptions, Mode, Server, ServerOptions, TcpEndpoint, Tls};
use hinterland_fabric::{Endpoint, MemoryService, Slice};
use hinterland_types::{ByteRange, Rights};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the memory that is read.
const MEMORY_BYTES: usize = 64 << 20;
/// Sizes of single reads, and how many are timed together.
const SIZES: [(&str, usize, u32); 3] = [("64B", 64, 2000), ("4KiB", 4 << 10, 2000), ("1MiB", 1 << 20, 100)];
/// How long a server of openssl may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// An authority and a certificate of it, in a folder of the names that `--tls` wants.
const SCRIPT: &str = "set -e; new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc'
openssl req -x509 $new -days 2 -subj /CN=authority -keyout authority.key -out ca.crt
openssl req $new -subj /CN=node -addext subjectAltName=DNS:node -keyout tls.key -out request
openssl x509 -req -in request -CA ca.crt -CAkey authority.key -days 2 -copy_extensions copy -out tls.crt";

/// The bench.
pub struct UnderTls;

impl Bench for UnderTls {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn subject(&self) -> &'static str {
        "reads of another node's memory under mutual TLS, to the same over plain TCP"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 0)?;
        rows(setting, made(ground.folder())?, ground.folder())
    }
}

/// The certificates.
fn made(folder: &Path) -> Result<Tls, Failure> {
    let hint = "install the package openssl";
    let made = Command::new("sh").args(["-c", SCRIPT]).current_dir(folder).stderr(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => Tls::open(folder).map_err(|error| Failure::of(&error)),
        _ => Err(Failure::new("certificates could not be made with openssl", hint)),
    }
}

/// A server, and clients of it.
struct Side {
    server: Server,
    tls: Option<Tls>,
}

impl Side {
    fn new(memory: &Slice, tls: Option<Tls>) -> Result<Self, Failure> {
        let service = Arc::new(MemoryService::new(memory.clone(), Rights::READ));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| Failure::of(&error))?;
        let options = ServerOptions { tls: tls.clone(), ..ServerOptions::default() };
        Ok(Self { server: Server::start(listener, service, options)?, tls })
    }

    fn client(&self, streams: usize, mode: Mode) -> Result<TcpEndpoint, Failure> {
        let tls = self.tls.clone();
        let options = ClientOptions { streams, mode, tls, ..ClientOptions::default() };
        Ok(TcpEndpoint::connect(self.server.address(), options)?)
    }
}

fn rows(setting: &Setting, tls: Tls, folder: &Path) -> Result<Vec<Row>, Failure> {
    let memory = Slice::copied(&vec![7; MEMORY_BYTES]);
    let sides = [Side::new(&memory, Some(tls))?, Side::new(&memory, None)?];
    let mut rows = Vec::new();
    for (suffix, mode) in [("", Mode::Polling), ("-sleeping", Mode::Blocking)] {
        let [ours, plain] = [sides[0].client(1, mode)?, sides[1].client(1, mode)?];
        for (name, bytes, count) in SIZES {
            let count = if setting.quick { count / 20 } else { count };
            let case =
                Case::new(format!("{name}{suffix}"), "us", Better::Lower, || latency_us(&ours, bytes, count));
            rows.push(
                case.limit("the same over plain TCP", || latency_us(&plain, bytes, count))
                    .measure(setting.rounds),
            );
        }
    }
    let passes = if setting.quick { 1 } else { 16 };
    let openssl = Openssl::start(folder, passes as usize * MEMORY_BYTES / 2)?;
    for streams in [1, 4] {
        let [ours, plain] =
            [sides[0].client(streams, Mode::Blocking)?, sides[1].client(streams, Mode::Blocking)?];
        let mut into = vec![0; MEMORY_BYTES];
        let into = std::cell::RefCell::new(&mut into);
        let case = Case::new(format!("streams-{streams}"), "GB/s", Better::Higher, || {
            gigabytes_per_second(&ours, &mut into.borrow_mut(), passes)
        });
        let limit = || gigabytes_per_second(&plain, &mut into.borrow_mut(), passes);
        let case = case.limit("the same over plain TCP", limit);
        let peer = "s_client gets a file of the page cache from s_server, both of openssl and begun for it";
        let case = if streams == 1 { case.peer(peer, || openssl.get(false)) } else { case };
        rows.push(case.measure(setting.rounds));
    }
    let [ours, plain] = &sides;
    let count = if setting.quick { 5 } else { 100 };
    let case = Case::new("connect", "us", Better::Lower, || connect_us(ours, count));
    rows.push(case.limit("the same over plain TCP", || connect_us(plain, count)).measure(setting.rounds));
    Ok(rows)
}

/// A server of openssl that sends a file under mutual TLS.
struct Openssl {
    server: Child,
    folder: PathBuf,
    address: String,
    bytes: usize,
}

impl Openssl {
    fn start(folder: &Path, bytes: usize) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::of(&error);
        std::fs::write(folder.join("memory"), vec![7; bytes]).map_err(failed)?;
        let address =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).map_err(failed)?.to_string();
        let server = openssl(folder, &["s_server", "-WWW", "-quiet", "-Verify", "1", "-accept", &address])
            .spawn()
            .map_err(failed)?;
        let begun = Self { server, folder: folder.to_owned(), address, bytes };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(&begun.address).is_err() {
            if Instant::now() > until {
                return Err(Failure::new("openssl s_server does not listen", "is its package whole?"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        begun.get(true)?;
        Ok(begun)
    }

    /// Gets the file; what comes is counted, which takes time, or thrown away.
    fn get(&self, is_counted: bool) -> Result<f64, Failure> {
        let failed = |error: std::io::Error| Failure::of(&error);
        let begun = Instant::now();
        let mut client = openssl(&self.folder, &["s_client", "-quiet", "-connect", &self.address]);
        client.stdin(Stdio::piped()).stdout(if is_counted { Stdio::piped() } else { Stdio::null() });
        let mut client = client.spawn().map_err(failed)?;
        if let Some(mut asking) = client.stdin.take() {
            asking.write_all(b"GET /memory HTTP/1.0\r\n\r\n").map_err(failed)?;
        }
        let mut came = self.bytes as u64;
        if let Some(mut answer) = client.stdout.take() {
            came = std::io::copy(&mut answer, &mut std::io::sink()).map_err(failed)?;
        }
        let status = client.wait().map_err(failed)?;
        if came < self.bytes as u64 || !status.success() {
            let text = format!("openssl s_client got {came} of {} bytes ({status})", self.bytes);
            return Err(Failure::new(text, "is the package openssl of version 3?"));
        }
        Ok(self.bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn openssl(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(words).args(["-tls1_3", "-cert", "tls.crt", "-key", "tls.key", "-CAfile", "ca.crt"]);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// One read after the other, at offsets far apart.
fn latency_us(endpoint: &TcpEndpoint, bytes: usize, count: u32) -> Result<f64, Failure> {
    let mut into = vec![0; bytes];
    let begun = Instant::now();
    for index in 0..count as usize {
        let offset = (index * 7919 * 4096) % (MEMORY_BYTES - bytes);
        let run = ByteRange::new((offset & !63) as u64, bytes as u64).unwrap_or_default();
        endpoint.read(MemoryService::HANDLE, &[run], &mut into)?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

fn gigabytes_per_second(endpoint: &TcpEndpoint, into: &mut [u8], passes: u32) -> Result<f64, Failure> {
    let run = ByteRange::new(0, into.len() as u64).unwrap_or_default();
    let begun = Instant::now();
    for _ in 0..passes {
        endpoint.read(MemoryService::HANDLE, &[run], into)?;
    }
    Ok(into.len() as f64 * f64::from(passes) / begun.elapsed().as_secs_f64() / 1e9)
}

/// Connecting, with all handshakes.
fn connect_us(side: &Side, count: u32) -> Result<f64, Failure> {
    let begun = Instant::now();
    for _ in 0..count {
        side.client(1, Mode::Blocking)?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}
