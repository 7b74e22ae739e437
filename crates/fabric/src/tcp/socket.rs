//! Every system call on a TCP socket, under TLS or not.

use super::secured::Secured;
use super::tls::Tls;
use super::{PARTS_MAX, WAIT_SLICE};
use crate::part::Part;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A peer that acknowledges nothing for this long is dead, even if it never says so.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);
/// An idle connection is probed after this time, and then every [`PROBE_INTERVAL_SECONDS`].
const PROBE_AFTER_SECONDS: i32 = 5;
const PROBE_INTERVAL_SECONDS: i32 = 2;
const PROBES_MAX: i32 = 3;

/// Socket buffers of both ends within one machine: what is on its way stays in the cache of the processor, and a sender
/// sleeps neither too often nor too long. The best of 128 KiB to 4 MiB and of what the kernel chooses, together with
/// frames of 256 KiB: `cargo run --release -p hinterland-fabric --example tcp_figures 3 1 tuning`. A small buffer at one
/// end only gains nothing.
const LOCAL_BUFFER_BYTES: usize = 1 << 20;

/// A connected TCP socket, prepared for frames.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    /// TLS, once it was agreed on. One thread at a time sends or receives, so nobody waits for the lock.
    secured: OnceLock<Mutex<Secured>>,
}

/// How long a call may stay in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Until something moves, at most [`WAIT_SLICE`].
    Sleep,
    /// Not at all.
    Never,
}

impl Wait {
    fn flags(self) -> libc::c_int {
        match self {
            Self::Sleep => libc::MSG_NOSIGNAL,
            Self::Never => libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        }
    }
}

impl Socket {
    /// Connects.
    pub fn connect(address: SocketAddr, within: Duration) -> io::Result<Self> {
        Self::prepare(TcpStream::connect_timeout(&address, within)?)
    }

    /// Sets the options of a connected socket that do not depend on the peer.
    pub fn prepare(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_SLICE))?;
        stream.set_write_timeout(Some(WAIT_SLICE))?;
        let socket = Self { stream, secured: OnceLock::new() };
        let silence_ms = i32::try_from(SILENCE_MAX.as_millis()).unwrap_or(i32::MAX);
        socket.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms)?;
        socket.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, PROBE_AFTER_SECONDS)?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, PROBE_INTERVAL_SECONDS)?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES_MAX)?;
        Ok(socket)
    }

    /// Sets the buffers of both directions. Without `bytes` the kernel chooses, unless the peer is on this machine and
    /// does not poll: a peer that polls wants buffers that hold whole answers, so that none of them waits for it.
    pub fn set_buffers(&self, bytes: Option<usize>, polling: bool) -> io::Result<()> {
        let local = self.stream.peer_addr().is_ok_and(|address| address.ip().is_loopback());
        let Some(bytes) = bytes.or((local && !polling).then_some(LOCAL_BUFFER_BYTES)) else { return Ok(()) };
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
    }

    /// Begins TLS with the server at the other end: all that is sent and received from here on is under it.
    pub fn connect_tls(&self, tls: &Tls, deadline: Instant) -> io::Result<()> {
        Secured::connect(tls, self.descriptor(), deadline).map(|secured| self.secure(secured))
    }

    /// Begins TLS with the client at the other end.
    pub fn accept_tls(&self, tls: &Tls, deadline: Instant) -> io::Result<()> {
        Secured::accept(tls, self.descriptor(), deadline).map(|secured| self.secure(secured))
    }

    fn secure(&self, secured: Secured) {
        // Nobody does it twice.
        let _ = self.secured.set(Mutex::new(secured));
    }

    /// Sends from `parts`, at most [`PARTS_MAX`] of them; returns how many bytes left. After an error that [`is_idle`] the same bytes have
    /// to be sent next.
    ///
    /// # Safety
    /// Every part must be readable memory during the call.
    pub unsafe fn send(&self, parts: &[Part], wait: Wait) -> io::Result<usize> {
        match self.secured.get() {
            // SAFETY: the caller vouches for the memory.
            None => unsafe { send_from(self.descriptor(), parts, wait) },
            Some(secured) => {
                let mut secured = secured.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the caller vouches for the memory.
                unsafe { secured.send(self.descriptor(), parts, wait) }
            }
        }
    }

    /// Receives into `parts`, at most [`PARTS_MAX`] of them; returns how many bytes came, 0 at the end. More may have come already, which
    /// `poll` does not know of: only after an error that [`is_idle`] is there nothing more.
    ///
    /// # Safety
    /// Every part must be memory that may be written during the call.
    pub unsafe fn receive(&self, parts: &[Part], wait: Wait) -> io::Result<usize> {
        match self.secured.get() {
            // SAFETY: the caller vouches for the memory.
            None => unsafe { receive_from(self.descriptor(), parts, wait) },
            Some(secured) => {
                let mut secured = secured.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the caller vouches for the memory.
                unsafe { secured.receive(self.descriptor(), parts, wait) }
            }
        }
    }

    /// Sends private bytes; returns how many left.
    pub fn send_bytes(&self, bytes: &[u8], wait: Wait) -> io::Result<usize> {
        // SAFETY: the part is a live borrow.
        unsafe { self.send(&[Part::of(bytes)], wait) }
    }

    /// Receives into private memory; returns how many bytes came, 0 at the end.
    pub fn receive_bytes(&self, bytes: &mut [u8], wait: Wait) -> io::Result<usize> {
        // SAFETY: the part is a live exclusive borrow.
        unsafe { self.receive(&[Part::of_mut(bytes)], wait) }
    }

    /// Ends both directions; whoever waits on the socket wakes up.
    pub fn shutdown(&self) {
        // Fails only if the connection is gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends the sending direction: the peer sees the end after what was sent.
    pub fn end_sending(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Whether the end of the socket, also that of its process, throws away what has not reached the peer: else the kernel goes on sending it
    /// for [`SILENCE_MAX`].
    pub fn forget_unsent(&self, yes: bool) {
        let at_once = libc::linger { l_onoff: yes.into(), l_linger: 0 };
        let bytes = size_of_val(&at_once) as libc::socklen_t;
        let value = (&raw const at_once).cast();
        // SAFETY: the option's value is a live linger and its length is given. It fails only for what is no socket.
        let _ =
            unsafe { libc::setsockopt(self.descriptor(), libc::SOL_SOCKET, libc::SO_LINGER, value, bytes) };
    }

    /// Whether the peer has broken the connection off. What it had sent before is still received.
    pub fn is_broken_off(&self) -> bool {
        let mut interest = [Interest::none(self.descriptor())];
        wait_for(&mut interest, Duration::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether the peer will send nothing any more: it has ended the connection, in good order or not. What it had sent before may still be there.
    pub fn has_ended(&self) -> bool {
        let mut interest = [Interest::end(self.descriptor())];
        wait_for(&mut interest, Duration::ZERO).is_ok_and(|ready| ready > 0)
    }

    pub fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let bytes = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the option's value is a live c_int and its length is given.
        let result =
            unsafe { libc::setsockopt(self.descriptor(), level, name, (&raw const value).cast(), bytes) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Sends from `parts`; returns how many bytes left.
///
/// # Safety
/// Every part must be readable memory during the call.
pub(super) unsafe fn send_from(socket: RawFd, parts: &[Part], wait: Wait) -> io::Result<usize> {
    let sent = if let [part] = parts {
        // One piece needs no header for the kernel to copy in.
        // SAFETY: the caller vouches for the memory.
        unsafe { libc::send(socket, part.start().cast(), part.bytes(), wait.flags()) }
    } else {
        let message = header(parts);
        // SAFETY: the header and its parts live during the call, and the caller vouches for the memory.
        unsafe { libc::sendmsg(socket, &message, wait.flags()) }
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `parts`; returns how many bytes came, 0 at the end.
///
/// # Safety
/// Every part must be memory that may be written during the call.
pub(super) unsafe fn receive_from(socket: RawFd, parts: &[Part], wait: Wait) -> io::Result<usize> {
    let received = if let [part] = parts {
        // One piece needs no header for the kernel to copy in.
        // SAFETY: the caller vouches for the memory.
        unsafe { libc::recv(socket, part.start().cast(), part.bytes(), wait.flags()) }
    } else {
        let mut message = header(parts);
        // SAFETY: the header and its parts live during the call, and the caller vouches for the memory.
        unsafe { libc::recvmsg(socket, &mut message, wait.flags()) }
    };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

fn header(parts: &[Part]) -> libc::msghdr {
    debug_assert!(parts.len() <= PARTS_MAX);
    // SAFETY: all zeroes is a valid msghdr: no address, no parts, no control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // The kernel takes iovecs by mutable pointer and does not write to them.
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len();
    header
}

/// Whether an error only says that nothing moved.
pub(super) fn is_idle(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
        && error.raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Tries between two looks at the clock; a try is a system call of about 0.3 us.
const TRIES_PER_LOOK: u32 = 128;
/// Tries before the core is offered to others, about a millisecond: much sooner, and every wait on a busy machine would
/// cost a turn of the scheduler; much later, and a peer that needs this very core would never answer.
const TRIES_BEFORE_YIELD: u32 = 4096;

/// Paces a loop that tries again and again.
#[derive(Default)]
pub(super) struct Spinner {
    tries: u32,
}

impl Spinner {
    /// Waits for a moment; true if it is time to look at the clock.
    pub fn pause(&mut self) -> bool {
        self.tries = self.tries.wrapping_add(1);
        let look = self.tries.is_multiple_of(TRIES_PER_LOOK);
        if look && self.tries > TRIES_BEFORE_YIELD {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        look
    }

    /// Something came: the patience starts anew.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// What to wait for on one descriptor.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Interest(libc::pollfd);

impl Interest {
    /// Nothing but the end of both directions, and errors.
    pub fn none(descriptor: RawFd) -> Self {
        Self(libc::pollfd { fd: descriptor, events: 0, revents: 0 })
    }

    /// The end of what the peer sends, and all that [`none`](Self::none) waits for.
    pub fn end(descriptor: RawFd) -> Self {
        Self(libc::pollfd { fd: descriptor, events: libc::POLLRDHUP, revents: 0 })
    }

    /// Bytes to receive, and room to send if `room`.
    pub fn new(descriptor: RawFd, room: bool) -> Self {
        let events = if room { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        Self(libc::pollfd { fd: descriptor, events, revents: 0 })
    }
}

/// Sleeps until one of the descriptors is ready; returns how many are, 0 after `within`.
pub(super) fn wait_for(interests: &mut [Interest], within: Duration) -> io::Result<usize> {
    let timeout_ms = i32::try_from(within.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    let count = interests.len() as libc::nfds_t;
    // SAFETY: `Interest` is laid out as pollfd, and the slice lives during the call.
    let ready = unsafe { libc::poll(interests.as_mut_ptr().cast(), count, timeout_ms) };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
        }
    }
}

/// 32 bytes that nobody can guess.
pub(super) fn random_bytes() -> io::Result<[u8; 32]> {
    let mut bytes = [0u8; 32];
    // SAFETY: the buffer is live and its length is given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // Up to 256 bytes come whole once the system has started.
    if got == 32 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}
