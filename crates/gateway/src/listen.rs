//! Where clients connect, and who may listen for whom.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket: whoever may open its file may connect.
    Unix(PathBuf),
}

/// Why it cannot be listened there.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum ListenError {
    /// No address.
    #[error("{0:?} is no address (hint: such as 127.0.0.1:6379, or unix:/run/user/1000/resp.sock)")]
    Address(String),
    /// Anybody on the network could read and write.
    #[error(
        "{0} can be reached from other hosts, and no password is set (hint: --password-file FILE, or listen at 127.0.0.1; nothing is encrypted, so an untrusted network needs a tunnel)"
    )]
    Open(SocketAddr),
}

impl Listen {
    /// Whether it may be listened here.
    ///
    /// # Errors
    /// [`ListenError::Open`] for an address that is not of this host alone, without a password.
    pub fn check(&self, has_password: bool) -> Result<(), ListenError> {
        match self {
            Self::Tcp(address) if !address.ip().to_canonical().is_loopback() && !has_password => {
                Err(ListenError::Open(*address))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let address = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        address.map(Self::Tcp).ok_or_else(|| ListenError::Address(text.to_owned()))
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_host_is_served_without_a_password() {
        for text in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1", "unix:/tmp/x"] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.check(false), Ok(()), "{text}");
        }
        for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            let listen: Listen = text.parse().unwrap();
            let error = listen.check(false).unwrap_err();
            assert!(error.to_string().contains("--password-file"), "{error}");
            assert_eq!(listen.check(true), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_says_what_one_looks_like() {
        for text in ["", "6379", "127.0.0.1", "127.0.0.1:99999", "unix:"] {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.to_string().contains("127.0.0.1:6379"), "{error}");
        }
    }
}
