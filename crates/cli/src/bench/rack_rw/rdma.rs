//! `rack-rw` between two hosts with RDMA devices: our one-sided reads and writes beside the programs of perftest on the same devices.
//!
//! Both ends spin, ours as theirs. `ib_write_lat` says half of a round trip of two writes, each seen by a processor that spins;
//! a write of ours ends when the peer's device has acknowledged it, as each of `ib_write_bw` with one under way does. So a
//! write has both beside it: the first as the limit, the second as the peer.

use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_fabric::rdma::{self, Host, HostOptions, RdmaEndpoint, RdmaOptions};
use hinterland_fabric::tcp::{ClientOptions, Mode, Server, ServerOptions};
use hinterland_fabric::{Endpoint, MemoryService, Slice};
use hinterland_types::{ByteRange, Rights};
use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `HOST:PORT` of the other host, where `hinterland bench rack-rw-peer` listens.
pub const PEER_VARIABLE: &str = "HINTERLAND_BENCH_PEER";
/// Bytes that are read and written.
const MEMORY_BYTES: u64 = 1 << 20;
/// Sizes of an access.
const SIZES: [(&str, usize); 2] = [("64B", 64), ("4KiB", 4 << 10)];
/// Ports of perftest's programs: another one each time, as the last may linger.
const FIRST_PORT: u16 = 18_600;
/// How long a program of perftest may take to listen, and then to end.
const PATIENCE: Duration = Duration::from_secs(60);

fn part_failed(what: impl std::fmt::Display) -> Failure {
    Failure::new(format!("the other host: {what}"), "run `hinterland bench rack-rw-peer` there first")
}

/// The rows with the host at `peer`.
///
/// # Errors
/// [`Failure`] if the other host cannot be reached or has no device that works.
pub fn rows(setting: &Setting, peer: &str) -> Result<Vec<Row>, Failure> {
    let other = RefCell::new(Other::connect(peer)?);
    let server = other.borrow_mut().ask("serve")?;
    let options = ClientOptions { mode: Mode::Polling, ..ClientOptions::default() };
    let address = format!("{}:{server}", other.borrow().host);
    let endpoint = RdmaEndpoint::connect(&*address, options, RdmaOptions::default())?;
    if !endpoint.capabilities().one_sided {
        let why = endpoint.why_not().unwrap_or_else(|| "one of the hosts has no device".to_owned());
        return Err(Failure::new(format!("no RDMA to {address}: {why}"), "hinterland doctor, on both hosts"));
    }
    let count = if setting.quick { 100 } else { 1_000 };
    let mut rows = Vec::new();
    for (size, bytes) in SIZES {
        (setting.say)(&format!("rack-rw: rdma-read of {size}"));
        let case = Case::new(format!("rdma-read-{size}"), "us", Better::Lower, || {
            latency_us(&endpoint, bytes, count, false)
        });
        let case = case.limit("ib_read_lat, median", || latency_of(&other, "ib_read_lat", bytes, count));
        rows.push(case.measure(setting.rounds));
    }
    for (size, bytes) in SIZES {
        (setting.say)(&format!("rack-rw: rdma-write of {size}"));
        let case = Case::new(format!("rdma-write-{size}"), "us", Better::Lower, || {
            latency_us(&endpoint, bytes, count, true)
        });
        let case = case
            .limit("ib_write_lat, median: half of two writes", || {
                latency_of(&other, "ib_write_lat", bytes, count)
            })
            .peer("ib_write_bw, one under way: a write and its acknowledgement", || {
                latency_of(&other, "ib_write_bw", bytes, count)
            });
        rows.push(case.measure(setting.rounds));
    }
    let counts = endpoint.counts();
    if counts.by_message > 0 || counts.failed > 0 {
        return Err(Failure::new(format!("not all went by RDMA: {counts:?}"), "hinterland doctor"));
    }
    Ok(rows)
}

/// The median of `count` accesses all over the memory, in microseconds.
fn latency_us(endpoint: &RdmaEndpoint, bytes: usize, count: usize, is_write: bool) -> Result<f64, Failure> {
    let mut buffer = vec![7; bytes];
    let mut times = Vec::with_capacity(count);
    let places = MEMORY_BYTES / bytes as u64;
    for number in 0..count as u64 {
        let offset = number.wrapping_mul(7919) % places * bytes as u64;
        let run = ByteRange::new(offset, bytes as u64).map_err(|error| Failure::of(&error))?;
        let begin = Instant::now();
        if is_write {
            endpoint.write(MemoryService::HANDLE, &[run], &buffer)?;
        } else {
            endpoint.read(MemoryService::HANDLE, &[run], &mut buffer)?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[count / 2])
}

/// What a program of perftest says of `count` operations, in microseconds.
fn latency_of(other: &RefCell<Other>, program: &str, bytes: usize, count: usize) -> Result<f64, Failure> {
    let mut other = other.borrow_mut();
    let port = other.ask(&format!("run {program} {bytes} {count}"))?;
    let mut command = perftest(program, bytes, count, &port)?;
    let done = command.arg(&other.host).output().map_err(|error| no_program(program, &error))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let figure = figure(program, &said).ok_or_else(|| {
        let words = String::from_utf8_lossy(&done.stderr).into_owned();
        Failure::new(format!("{program} said no figure: {said}{words}"), "run it by hand on both hosts")
    })?;
    // The other end ends with ours; its port is free again for the next.
    other.ask("ended")?;
    Ok(figure)
}

fn no_program(program: &str, error: &std::io::Error) -> Failure {
    Failure::new(format!("{program} cannot be run: {error}"), "install perftest")
}

/// The figure in what a program of perftest says: its table has one line that begins with the number of bytes.
fn figure(program: &str, said: &str) -> Option<f64> {
    let line = said.lines().rev().find(|line| {
        line.split_whitespace().next().is_some_and(|word| word.parse::<u64>().is_ok())
            && line.split_whitespace().count() > 3
    })?;
    let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    match program {
        // #bytes #iterations BW peak, BW average, million messages a second.
        "ib_write_bw" => numbers.get(4).filter(|rate| **rate > 0.0).map(|rate| 1.0 / rate),
        // #bytes #iterations t_min t_max t_typical, which is the median.
        _ => numbers.get(4).copied(),
    }
}

/// The words of one end: the first device, by its IPv4 address if it has one.
fn perftest(program: &str, bytes: usize, count: usize, port: &str) -> Result<Command, Failure> {
    let devices = rdma::devices();
    let device =
        devices.first().ok_or_else(|| Failure::new("there is no RDMA device", "hinterland doctor"))?;
    let addresses = device.ports.first().map_or(&[][..], |(_, _, addresses)| addresses);
    let index = addresses
        .iter()
        .find(|address| address.contains("::ffff:") && address.ends_with("v2"))
        .or(addresses.first())
        .and_then(|address| address.split(' ').next())
        .unwrap_or("0");
    let mut command = Command::new(program);
    command.args(["-F", "-d", &device.name, "-x", index, "-p", port]);
    command.args(["-s", &bytes.to_string(), "-n", &count.to_string()]);
    if program == "ib_write_bw" {
        // One at a time; the rate is printed with six digits behind the point.
        command.args(["-t", "1", "-Q", "1"]);
    }
    Ok(command)
}

/// The other host, as this end sees it.
struct Other {
    host: String,
    input: BufReader<TcpStream>,
}

impl Other {
    fn connect(peer: &str) -> Result<Self, Failure> {
        let (host, _) = peer
            .rsplit_once(':')
            .ok_or_else(|| Failure::usage(format!("{PEER_VARIABLE} is {peer:?}"), "write HOST:PORT"))?;
        let stream = TcpStream::connect(peer).map_err(part_failed)?;
        stream.set_read_timeout(Some(2 * PATIENCE)).map_err(part_failed)?;
        Ok(Self { host: host.to_owned(), input: BufReader::new(stream) })
    }

    fn ask(&mut self, line: &str) -> Result<String, Failure> {
        writeln!(self.input.get_mut(), "{line}").map_err(part_failed)?;
        let mut answer = String::new();
        self.input.read_line(&mut answer).map_err(part_failed)?;
        match answer.trim().split_once(' ') {
            Some(("ok", words)) => Ok(words.to_owned()),
            Some((_, words)) => Err(part_failed(words)),
            None => Err(part_failed("it went away")),
        }
    }
}

/// The other host's end, under a name that no list shows; it ends with the first who asked it.
pub struct RackRwPeer;

impl Bench for RackRwPeer {
    fn name(&self) -> &'static str {
        "rack-rw-peer"
    }

    fn subject(&self) -> &'static str {
        "the other host of `rack-rw` over RDMA"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let address = std::env::var(PEER_VARIABLE).map_err(|_| {
            Failure::usage("nobody said where to listen", format!("{PEER_VARIABLE}=HOST:PORT, of this host"))
        })?;
        let listener = TcpListener::bind(&*address).map_err(|error| Failure::of(&error))?;
        (setting.say)(&format!("rack-rw-peer: listening on {address}"));
        let (stream, _) = listener.accept().map_err(|error| Failure::of(&error))?;
        let mut peer = Answers { address, server: None, program: None, runs: 0 };
        let mut output = stream.try_clone().map_err(|error| Failure::of(&error))?;
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let answer = peer.answer(&line).map_or_else(
                |failure| format!("error {}", failure.text.replace('\n', " ")),
                |words| format!("ok {words}"),
            );
            if writeln!(output, "{answer}").is_err() {
                break;
            }
        }
        Ok(Vec::new())
    }
}

struct Answers {
    address: String,
    server: Option<Server>,
    program: Option<Child>,
    runs: u16,
}

impl Answers {
    fn answer(&mut self, line: &str) -> Result<String, Failure> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words {
            ["serve"] => self.serve(),
            ["run", program @ ("ib_read_lat" | "ib_write_lat" | "ib_write_bw"), bytes, count] => {
                let number = |text: &str| {
                    text.parse::<usize>().map_err(|_| Failure::usage(format!("{text:?}"), "a number"))
                };
                self.start(program, number(bytes)?, number(count)?)
            }
            ["ended"] => self.end().map(|()| "it did".to_owned()),
            _ => {
                Err(Failure::usage(format!("{line:?} is no question"), "run the same release on both hosts"))
            }
        }
    }

    /// Serves memory; the answer is the port.
    fn serve(&mut self) -> Result<String, Failure> {
        let options = HostOptions { writes: true, ..HostOptions::default() };
        let host = Host::open(options).map_err(|why| Failure::new(why, "hinterland doctor"))?;
        let here = self.address.to_socket_addrs().ok().and_then(|mut all| all.next());
        let here = here.ok_or_else(|| Failure::usage("no address to listen on", "HOST:PORT"))?;
        let listener = TcpListener::bind((here.ip(), 0)).map_err(|error| Failure::of(&error))?;
        let memory = Slice::zeroed(MEMORY_BYTES as usize);
        let service = Arc::new(MemoryService::new(memory, Rights::ALL));
        let options = ServerOptions { rdma: Some(Arc::new(host)), ..ServerOptions::default() };
        let server = Server::start(listener, service, options)?;
        let port = server.address().port().to_string();
        self.server = Some(server);
        Ok(port)
    }

    /// Starts a program of perftest and waits until it listens; the answer is its port.
    fn start(&mut self, program: &str, bytes: usize, count: usize) -> Result<String, Failure> {
        self.end()?;
        let port = FIRST_PORT + self.runs;
        self.runs += 1;
        let mut command = perftest(program, bytes, count, &port.to_string())?;
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.program = Some(child.map_err(|error| no_program(program, &error))?);
        let begun = Instant::now();
        while !listens(port) {
            if begun.elapsed() > PATIENCE {
                return Err(Failure::new(format!("{program} does not listen"), "run it by hand"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(port.to_string())
    }

    fn end(&mut self) -> Result<(), Failure> {
        let Some(mut child) = self.program.take() else { return Ok(()) };
        let begun = Instant::now();
        while child.try_wait().map_err(|error| Failure::of(&error))?.is_none() {
            if begun.elapsed() > PATIENCE {
                child.kill().map_err(|error| Failure::of(&error))?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if let Some(child) = &mut self.program {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether somebody listens on a port, without connecting: a program of perftest takes one connection only.
fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        // Columns: number, local address, remote address, state, which is 0A for a socket that listens.
        text.lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            columns.next().is_some_and(|local| local.ends_with(&wanted)) && columns.nth(1) == Some("0A")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_perftest_are_found_in_what_it_says() {
        let latency = "---\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n 64      200          150.10         900.00       207.25     211.0 5.0 800.0 900.0\n----\n";
        assert_eq!(figure("ib_read_lat", latency), Some(207.25));
        let rate = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 64         200              0.20               0.30                   0.004000\n";
        assert_eq!(figure("ib_write_bw", rate), Some(250.0));
        assert_eq!(figure("ib_read_lat", "Unable to open device\n"), None);
        assert_eq!(figure("ib_write_bw", ""), None);
    }

    #[test]
    fn who_listens_is_seen_without_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        assert!(!listens(port));
    }
}
