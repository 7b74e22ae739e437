//! Where a device is served, and the connections there.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where clients connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

/// Why it is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error(
    "{0:?} is no address (hint: the path of a socket with a slash in it, or HOST:PORT such as 127.0.0.1:10809)"
)]
pub struct AddressError(String);

impl Address {
    /// Whether only this host reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or nobody answers within the time.
    pub fn connect(&self, timeout: Duration) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, timeout)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let address = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        address.map(Self::Tcp).ok_or_else(|| AddressError(text.to_owned()))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // What it is does not change with the folder that somebody stands in.
            Self::Unix(path) => fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
}

impl Stream {
    /// Another handle of the same connection.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn again(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// Ends the connection, for all who have a handle.
    pub fn end(&self) {
        // One that has ended already needs no ending.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    /// Sets how long reads and writes wait.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write))
            }
            Self::Tcp(stream) => stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

    use super::*;

    #[test]
    fn paths_have_a_slash_and_the_rest_is_tcp() {
        for text in ["/run/x", "./x", "unix:x"] {
            assert!(matches!(text.parse(), Ok(Address::Unix(_))), "{text}");
        }
        for (text, is_local) in
            [("127.0.0.1:1", true), ("[::1]:1", true), ("0.0.0.0:1", false), ("[::]:1", false)]
        {
            assert_eq!(text.parse::<Address>().unwrap().is_local(), is_local, "{text}");
        }
        for text in ["", "x", "unix:", "10809", "127.0.0.1:99999"] {
            assert!(text.parse::<Address>().unwrap_err().to_string().contains("hint:"), "{text}");
        }
    }
}
