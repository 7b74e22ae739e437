//! Every system call on the connection of a channel.

use crate::error::ChannelError;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Probes of an idle connection that may stay unanswered.
const PROBES_MAX: i32 = 3;

/// A connected TCP socket, prepared for a channel. Its calls never wait but [`wait`](Self::wait).
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
}

/// A piece of memory for a system call.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub start: *mut u8,
    pub bytes: usize,
}

impl Piece {
    pub const NONE: Self = Self { start: std::ptr::null_mut(), bytes: 0 };
}

/// What to wait for on a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Bytes, or the end.
    Bytes,
    /// Room to send, or the end.
    Room,
    /// The end only.
    End,
}

impl Socket {
    /// Sets the options of a connected socket. A peer that acknowledges nothing for `silence_max` is given up, whether or
    /// not there is anything to send.
    pub fn prepare(stream: TcpStream, silence_max: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = Self { stream };
        let seconds = |part: u32| i32::try_from((silence_max / part).as_secs()).unwrap_or(i32::MAX).max(1);
        let silence_ms = i32::try_from(silence_max.as_millis()).unwrap_or(i32::MAX).max(1);
        socket.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms)?;
        socket.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(2))?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(5))?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES_MAX)?;
        Ok(socket)
    }

    /// Sends from two pieces; how many bytes left, `None` if none can now.
    ///
    /// # Safety
    /// Both must be readable memory during the call.
    pub unsafe fn send(&self, pieces: [Piece; 2]) -> io::Result<Option<usize>> {
        let mut vectors = vectors(pieces);
        let message = header(&mut vectors);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the header and its vectors live during the call, and the caller vouches for the memory.
        outcome(|| unsafe { libc::sendmsg(self.raw(), &message, flags) })
    }

    /// Receives into two pieces; how many bytes came, 0 at the end, `None` if none are there.
    ///
    /// # Safety
    /// Both must be memory that may be written during the call.
    pub unsafe fn receive(&self, pieces: [Piece; 2]) -> io::Result<Option<usize>> {
        let mut vectors = vectors(pieces);
        let mut message = header(&mut vectors);
        // SAFETY: the header and its vectors live during the call, and the caller vouches for the memory.
        outcome(|| unsafe { libc::recvmsg(self.raw(), &mut message, libc::MSG_DONTWAIT) })
    }

    /// Sleeps until there is what is waited for, or `also` is readable, or the time is over. Says whether the other side
    /// has ended its direction, or the connection has failed.
    pub fn wait(&self, what: For, also: Option<BorrowedFd<'_>>, rest: Option<Duration>) -> io::Result<bool> {
        let events = match what {
            For::Bytes => libc::POLLIN,
            For::Room => libc::POLLOUT,
            For::End => 0,
        };
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        // A negative number is passed over.
        let second = also.map_or(-1, |descriptor| descriptor.as_raw_fd());
        let mut entries = [entry(self.raw(), events | libc::POLLRDHUP), entry(second, libc::POLLIN)];
        let limit = rest.map(|time| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: two entries of this frame; the time is null or lives through the call; no signal mask.
        let result = unsafe { libc::ppoll(entries.as_mut_ptr(), 2, limit, std::ptr::null()) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
        }
        Ok(entries[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0)
    }

    /// The error that the connection has met, if it has.
    pub fn failure(&self) -> Option<io::Error> {
        self.stream.take_error().ok().flatten()
    }

    /// Ends the direction in which this side sends: the other side sees the end behind what was sent.
    pub fn end_sending(&self) {
        // Fails only if the connection is gone already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends both directions at once.
    pub fn end(&self) {
        // Fails only if the connection is gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn raw(&self) -> libc::c_int {
        self.stream.as_fd().as_raw_fd()
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let bytes = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the option's value is a live c_int and its length is given.
        let result = unsafe { libc::setsockopt(self.raw(), level, name, (&raw const value).cast(), bytes) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// What the end of a connection is to a channel.
pub(crate) fn failed(error: &io::Error) -> ChannelError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected => {
            ChannelError::Closed
        }
        _ => ChannelError::Lost { reason: error.to_string() },
    }
}

fn vectors(pieces: [Piece; 2]) -> [libc::iovec; 2] {
    pieces.map(|piece| libc::iovec { iov_base: piece.start.cast(), iov_len: piece.bytes })
}

fn header(vectors: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: all zeroes is a valid msghdr: no address, no parts, no control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = 2;
    header
}

fn outcome(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(Some(bytes));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}
