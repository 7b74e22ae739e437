//! Prints what the TCP fabric costs beside bare sockets: latency in both modes, and throughput by streams.
//!
//! Ours and the bare peer take turns in one process on the same buffers; each figure is the median of the rounds.
//! Arguments: rounds (default 5), gibibytes of the buffers (default 1), and optionally the part to run (`latency`,
//! `throughput`,
//! `tuning`).

use hinterland_fabric::tcp::{ClientOptions, Mode, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, MemoryService, Slice};
use hinterland_types::{ByteRange, Rights};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const REQUEST_BYTES: usize = 64;

/// Memory of huge pages, where the system gives any, touched once.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is a plain range of memory; whoever uses it says how.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize, seed: u64) -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "no {bytes} bytes of memory");
        // SAFETY: advice on the mapping that was just made.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        let memory = Self { start: NonNull::new(start.cast()).expect("a mapping is not at zero"), bytes };
        let mut state = seed;
        for word in memory.all().as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *word = state.to_le_bytes();
        }
        memory
    }

    /// All bytes. Each caller uses a part that no other uses at the same time.
    #[allow(clippy::mut_from_ref)]
    fn all(&self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as the program; the measurements keep their parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(5, |text| text.parse().expect("rounds is a number"));
    let gibibytes: usize = arguments.next().map_or(1, |text| text.parse().expect("gibibytes is a number"));
    let part = arguments.next().unwrap_or_default();
    let source = Arc::new(Memory::new(gibibytes << 30, 1));
    let target = Arc::new(Memory::new(gibibytes << 30, 2));
    println!("{:<34} {:>10} {:>10} {:>7}  (median of {rounds})", "case", "ours", "raw", "ratio");
    if part != "throughput" && part != "tuning" {
        for mode in [Mode::Blocking, Mode::Polling] {
            latency(mode, &source, &target, rounds);
        }
    }
    if part == "tuning" {
        for streams in [1, 2, 4] {
            for buffer_bytes in [256 << 10, 512 << 10, 1 << 20, 2 << 20] {
                for chunk_bytes in [128 << 10, 256 << 10, 512 << 10, 1 << 20] {
                    tuning(streams, buffer_bytes, chunk_bytes, &source, &target, rounds);
                }
            }
        }
    }
    if part != "latency" && part != "tuning" {
        for streams in [1, 2, 4] {
            throughput(streams, &source, &target, rounds);
        }
    }
}

fn serve(memory: &Arc<Memory>, mode: Mode) -> Server {
    let spin = if mode == Mode::Polling { Duration::from_millis(50) } else { Duration::ZERO };
    serve_with(memory, ServerOptions { spin, ..ServerOptions::default() })
}

fn serve_with(memory: &Arc<Memory>, options: ServerOptions) -> Server {
    let guard = Arc::clone(memory);
    // SAFETY: the mapping lives as long as the program; it is only read and written by copies of the kernel.
    let slice = unsafe { Slice::from_raw(memory.start, memory.bytes, true, guard) };
    let service = Arc::new(MemoryService::new(slice, Rights::ALL));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    Server::start(listener, service, options).expect("a server")
}

fn connect(address: SocketAddr, mode: Mode, streams: usize) -> TcpEndpoint {
    TcpEndpoint::connect(address, ClientOptions { mode, streams, ..ClientOptions::default() })
        .expect("a connection")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of processor time that this process has used, both ends of every connection included.
fn processor_seconds() -> f64 {
    // SAFETY: all zeroes is a valid rusage, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Gigabytes a second, and processor seconds a gigabyte: the second hardly depends on who else is busy.
fn measured(bytes: usize, operation: impl FnOnce()) -> (f64, f64) {
    let (used, started) = (processor_seconds(), Instant::now());
    operation();
    let gigabytes = bytes as f64 / 1e9;
    (gigabytes / started.elapsed().as_secs_f64(), (processor_seconds() - used) / gigabytes)
}

fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) as usize) % below
}

/// Median microseconds of `count` repetitions.
fn timed(count: usize, mut operation: impl FnMut(usize)) -> f64 {
    let mut times = Vec::with_capacity(count);
    for index in 0..count {
        let started = Instant::now();
        operation(index);
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    median(&mut times)
}

fn latency(mode: Mode, source: &Arc<Memory>, target: &Arc<Memory>, rounds: usize) {
    let server = serve(source, mode);
    let endpoint = connect(server.address(), mode, 1);
    for (name, size, count) in [("64 B", 64, 4000), ("4 KiB", 4096, 4000), ("1 MiB", 1 << 20, 300)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut raw = RawPeer::start(Arc::clone(source), size, mode);
        let mut seed = 7;
        for _ in 0..rounds {
            let span = source.bytes - size;
            ours.push(timed(count, |_| {
                let offset = random(&mut seed, span);
                let run = ByteRange::new(offset as u64, size as u64).expect("a range");
                let place = random(&mut seed, span);
                let into = &mut target.all()[place..place + size];
                endpoint.read(MemoryService::HANDLE, &[run], into).expect("a read");
            }));
            theirs.push(timed(count, |_| {
                let offset = random(&mut seed, span);
                let place = random(&mut seed, span);
                raw.fetch(offset, &mut target.all()[place..place + size]);
            }));
        }
        let (ours, theirs) = (median(&mut ours), median(&mut theirs));
        let name = format!("latency {mode:?} {name} (us)");
        println!("{name:<34} {ours:>10.2} {theirs:>10.2} {:>7.2}", ours / theirs);
    }
}

/// A bare socket pair: the request says where, the answer is the bytes.
struct RawPeer {
    stream: TcpStream,
    mode: Mode,
}

impl RawPeer {
    fn start(source: Arc<Memory>, size: usize, mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let mut request = [0; REQUEST_BYTES];
            while receive(&mut stream, &mut request, mode) {
                let offset = u64::from_le_bytes(*request.first_chunk().expect("8 bytes")) as usize;
                send(&mut stream, &source.all()[offset..offset + size]);
            }
        });
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        Self { stream, mode }
    }

    fn fetch(&mut self, offset: usize, into: &mut [u8]) {
        let mut request = [0; REQUEST_BYTES];
        request[..8].copy_from_slice(&(offset as u64).to_le_bytes());
        send(&mut self.stream, &request);
        assert!(receive(&mut self.stream, into, self.mode), "the bare peer is gone");
    }
}

fn receive(stream: &mut TcpStream, mut into: &mut [u8], mode: Mode) -> bool {
    let flags = if mode == Mode::Polling { libc::MSG_DONTWAIT } else { 0 };
    while !into.is_empty() {
        // SAFETY: the buffer is live and its length is given.
        let got = unsafe { libc::recv(stream.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
        match usize::try_from(got) {
            Ok(0) => return false,
            Ok(got) => into = &mut into[got..],
            Err(_) if std::io::Error::last_os_error().kind() == ErrorKind::WouldBlock => {
                std::hint::spin_loop()
            }
            Err(_) => return false,
        }
    }
    true
}

fn send(stream: &mut TcpStream, bytes: &[u8]) {
    // The peer may be gone at the end of a measurement.
    stream.write_all(bytes).ok();
}

fn throughput(streams: usize, source: &Arc<Memory>, target: &Arc<Memory>, rounds: usize) {
    let server = serve(source, Mode::Blocking);
    let endpoint = connect(server.address(), Mode::Blocking, streams);
    let bytes = source.bytes;
    let run = [ByteRange::new(0, bytes as u64).expect("a range")];
    let (mut one, mut many, mut write) = (Vec::new(), Vec::new(), Vec::new());
    let (mut theirs, mut like) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        one.push(measured(bytes, || {
            endpoint.read(MemoryService::HANDLE, &run, target.all()).expect("a read");
        }));
        theirs.push(measured(bytes, || raw_stream(streams, source, target, None)));
        write.push(measured(bytes, || {
            endpoint.write(MemoryService::HANDLE, &run, target.all()).expect("a write");
        }));
        like.push(measured(bytes, || raw_stream(streams, source, target, Some(1 << 20))));
        many.push(measured(bytes, || read_by_threads(&endpoint, streams, target)));
    }
    let raw = medians(&theirs);
    for (name, values) in
        [("read", one), ("read 2 MiB a thread", many), ("write", write), ("raw, our buffers", like)]
    {
        let ours = medians(&values);
        let rate = format!("{streams} streams {name} (GB/s)");
        println!("{rate:<34} {:>10.2} {:>10.2} {:>7.2}", ours.0, raw.0, ours.0 / raw.0);
        let cost = format!("{streams} streams {name} (cpu s/GB)");
        println!("{cost:<34} {:>10.3} {:>10.3} {:>7.2}", ours.1, raw.1, ours.1 / raw.1);
    }
}

fn medians(values: &[(f64, f64)]) -> (f64, f64) {
    let mut rates: Vec<f64> = values.iter().map(|value| value.0).collect();
    let mut costs: Vec<f64> = values.iter().map(|value| value.1).collect();
    (median(&mut rates), median(&mut costs))
}

/// As many threads as streams, each reading its share in pieces of a page.
fn read_by_threads(endpoint: &TcpEndpoint, streams: usize, target: &Arc<Memory>) {
    let share_bytes = target.bytes / streams;
    std::thread::scope(|scope| {
        for (index, share) in target.all().chunks_mut(share_bytes).enumerate() {
            scope.spawn(move || {
                for (number, piece) in share.chunks_mut(2 << 20).enumerate() {
                    let at = (index * share_bytes + number * (2 << 20)) as u64;
                    let run = ByteRange::new(at, piece.len() as u64).expect("a range");
                    endpoint.read(MemoryService::HANDLE, &[run], piece).expect("a read");
                }
            });
        }
    });
}

/// One combination of socket buffer and frame size.
fn tuning(
    streams: usize,
    buffer_bytes: usize,
    chunk_bytes: u32,
    source: &Arc<Memory>,
    target: &Arc<Memory>,
    rounds: usize,
) {
    let server =
        serve_with(source, ServerOptions { buffer_bytes: Some(buffer_bytes), ..ServerOptions::default() });
    let options =
        ClientOptions { streams, buffer_bytes: Some(buffer_bytes), chunk_bytes, ..ClientOptions::default() };
    let endpoint = TcpEndpoint::connect(server.address(), options).expect("a connection");
    let run = [ByteRange::new(0, source.bytes as u64).expect("a range")];
    let name = format!("{streams} streams, {} KiB, {} KiB frames", buffer_bytes >> 10, chunk_bytes >> 10);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(measured(source.bytes, || {
            endpoint.read(MemoryService::HANDLE, &run, target.all()).expect("a read");
        }));
        theirs.push(measured(source.bytes, || raw_stream(streams, source, target, None)));
    }
    let (ours, raw) = (medians(&ours), medians(&theirs));
    println!("{name:<34} {:>10.2} {:>10.2} {:>7.2}", ours.0, raw.0, ours.0 / raw.0);
    println!("{:<34} {:>10.3} {:>10.3} {:>7.2}", "  cpu s/GB", ours.1, raw.1, ours.1 / raw.1);
}

fn set_buffers(stream: &TcpStream, bytes: i32) {
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let length = size_of_val(&bytes) as libc::socklen_t;
        // SAFETY: the option's value is live and its length is given.
        unsafe {
            libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const bytes).cast(), length)
        };
    }
}

/// Bare streams with a thread at each end, memory to memory.
fn raw_stream(streams: usize, source: &Arc<Memory>, target: &Arc<Memory>, buffer_bytes: Option<i32>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let address = listener.local_addr().expect("an address");
    let share = source.bytes / streams;
    let barrier = Barrier::new(2 * streams + 1);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for index in 0..streams {
            let mut reading = TcpStream::connect(address).expect("a connection");
            let (mut writing, _) = listener.accept().expect("a connection");
            if let Some(bytes) = buffer_bytes {
                set_buffers(&reading, bytes);
                set_buffers(&writing, bytes);
            }
            let part = index * share..(index + 1) * share;
            let (barrier, from, into) = (&barrier, &source.all()[part.clone()], &mut target.all()[part]);
            scope.spawn(move || {
                barrier.wait();
                for piece in from.chunks(1 << 20) {
                    writing.write_all(piece).expect("sending");
                }
            });
            readers.push(scope.spawn(move || {
                barrier.wait();
                for piece in into.chunks_mut(1 << 20) {
                    reading.read_exact(piece).expect("receiving");
                }
            }));
        }
        barrier.wait();
        for reader in readers {
            reader.join().expect("a reader");
        }
    });
}
