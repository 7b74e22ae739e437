//! Prints what io_uring would give the TCP fabric: why its streams use plain system calls.
//!
//! Two questions, each answered against plain calls in the same run: does a linked send and receive in one system call
//! shorten a blocking 64-byte round trip, and does one thread receive from four streams faster with a ring than with
//! `poll` and `recv`? Argument: rounds (default 5).

use io_uring::{IoUring, opcode, types};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

const MESSAGE_BYTES: usize = 64;
const ROUND_TRIPS: usize = 5000;
const STREAMS: usize = 4;
const STREAM_BYTES: usize = 512 << 20;
const BUFFER_BYTES: usize = 256 << 10;

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(5, |text| text.parse().expect("rounds is a number"));
    let [mut plain, mut linked, mut polled, mut ringed] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        plain.push(round_trips(plain_round_trip));
        let mut ring = IoUring::new(8).expect("a ring");
        linked.push(round_trips(|stream, message| linked_round_trip(&mut ring, stream, message)));
        polled.push(receive_all(receive_polled));
        ringed.push(receive_all(receive_ringed));
    }
    println!("{:<38} {:>8} {:>8}  (median of {rounds})", "case", "plain", "io_uring");
    println!("{:<38} {:>8.2} {:>8.2}", "64 B round trip (us)", median(&mut plain), median(&mut linked));
    println!(
        "{:<38} {:>8.2} {:>8.2}",
        "4 streams, 1 thread (GB/s)",
        median(&mut polled),
        median(&mut ringed)
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().expect("an address");
    let near = TcpStream::connect(address).expect("a connection");
    let (far, _) = listener.accept().expect("a connection");
    near.set_nodelay(true).expect("an option");
    far.set_nodelay(true).expect("an option");
    (near, far)
}

/// Median microseconds of a round trip with a peer that echoes.
fn round_trips(mut round_trip: impl FnMut(&mut TcpStream, &mut [u8; MESSAGE_BYTES])) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let (mut near, mut far) = pair(&listener);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = [0; MESSAGE_BYTES];
            while far.read_exact(&mut message).is_ok() && far.write_all(&message).is_ok() {}
        });
        let mut message = [7; MESSAGE_BYTES];
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let started = Instant::now();
            round_trip(&mut near, &mut message);
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        drop(near);
        median(&mut times)
    })
}

fn plain_round_trip(stream: &mut TcpStream, message: &mut [u8; MESSAGE_BYTES]) {
    stream.write_all(message).expect("sending");
    stream.read_exact(message).expect("receiving");
}

fn linked_round_trip(ring: &mut IoUring, stream: &mut TcpStream, message: &mut [u8; MESSAGE_BYTES]) {
    let descriptor = types::Fd(stream.as_raw_fd());
    let send = opcode::Send::new(descriptor, message.as_ptr(), MESSAGE_BYTES as u32).build();
    let receive = opcode::Recv::new(descriptor, message.as_mut_ptr(), MESSAGE_BYTES as u32).build();
    let send = send.flags(io_uring::squeue::Flags::IO_LINK);
    // SAFETY: the message lives until both are complete, which is waited for below.
    unsafe { ring.submission().push_multiple(&[send, receive]).expect("room in the ring") };
    ring.submit_and_wait(2).expect("a round trip");
    for completion in ring.completion() {
        assert_eq!(completion.result(), MESSAGE_BYTES as i32);
    }
}

/// Gigabytes a second that one thread takes from streams that are all sent at once.
fn receive_all(receive: impl FnOnce(&mut [TcpStream], &mut [Vec<u8>])) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let (mut near, far): (Vec<_>, Vec<_>) = (0..STREAMS).map(|_| pair(&listener)).unzip();
    let mut buffers = vec![vec![0; BUFFER_BYTES]; STREAMS];
    std::thread::scope(|scope| {
        for mut stream in far {
            scope.spawn(move || {
                let bytes = vec![1; BUFFER_BYTES];
                for _ in 0..STREAM_BYTES / BUFFER_BYTES {
                    stream.write_all(&bytes).expect("sending");
                }
            });
        }
        let started = Instant::now();
        receive(&mut near, &mut buffers);
        (STREAMS * STREAM_BYTES) as f64 / started.elapsed().as_secs_f64() / 1e9
    })
}

fn receive_polled(streams: &mut [TcpStream], buffers: &mut [Vec<u8>]) {
    let mut left = STREAMS * STREAM_BYTES;
    while left > 0 {
        let mut interests: Vec<_> = streams
            .iter()
            .map(|stream| libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: the list is live and its length is given.
        unsafe { libc::poll(interests.as_mut_ptr(), interests.len() as libc::nfds_t, -1) };
        for (interest, buffer) in interests.iter().zip(&mut *buffers) {
            if interest.revents != 0 {
                let (start, bytes) = (buffer.as_mut_ptr().cast(), buffer.len());
                // SAFETY: the buffer is live and its length is given.
                let got = unsafe { libc::recv(interest.fd, start, bytes, libc::MSG_DONTWAIT) };
                left -= usize::try_from(got).unwrap_or(0);
            }
        }
    }
}

fn receive_ringed(streams: &mut [TcpStream], buffers: &mut [Vec<u8>]) {
    let mut ring = IoUring::new(8).expect("a ring");
    let mut left = [STREAM_BYTES; STREAMS];
    let mut idle: Vec<usize> = (0..STREAMS).collect();
    while left.iter().any(|left| *left > 0) {
        for index in idle.drain(..).filter(|index| left[*index] > 0) {
            let (start, bytes) = (buffers[index].as_mut_ptr(), buffers[index].len() as u32);
            let receive = opcode::Recv::new(types::Fd(streams[index].as_raw_fd()), start, bytes);
            // SAFETY: the buffer lives until its completion was seen.
            unsafe { ring.submission().push(&receive.build().user_data(index as u64)).expect("room") };
        }
        ring.submit_and_wait(1).expect("a completion");
        for completion in ring.completion() {
            let index = completion.user_data() as usize;
            left[index] -= usize::try_from(completion.result()).expect("bytes");
            idle.push(index);
        }
    }
}
