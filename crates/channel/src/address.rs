//! Where a GPU node listens.

use crate::error::ChannelError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a GPU node: `unix:/path/of/socket` within a host, `tcp:host:port` elsewhere.
///
/// ```
/// use hinterland_channel::Address;
/// let address: Address = "tcp:[::1]:7070".parse()?;
/// assert_eq!(address.to_string(), "tcp:[::1]:7070");
/// assert!("gpu-node".parse::<Address>().is_err());
/// # Ok::<(), hinterland_channel::ChannelError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// A socket in the file system; the channel is in shared memory.
    Unix(PathBuf),
    /// A host, by name or number, and a port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = ChannelError;

    fn from_str(text: &str) -> Result<Self, ChannelError> {
        let bad = || ChannelError::BadAddress { text: text.to_owned() };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            Some(("tcp", place)) => {
                let (host, port) = place.rsplit_once(':').ok_or_else(bad)?;
                let is_number = port.parse::<u16>().is_ok();
                if host.is_empty() || !is_number { Err(bad()) } else { Ok(Self::Tcp(place.to_owned())) }
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(place) => write!(formatter, "tcp:{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_nothing_else() {
        for text in ["unix:/run/gpu.sock", "tcp:localhost:7070", "tcp:10.0.0.1:0", "tcp:[::]:65535"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", "unix:", "tcp:", "tcp:host", "tcp::7", "tcp:host:65536", "tcp:host:", "udp:host:7", "/run/x"]
        {
            assert!(matches!(text.parse::<Address>(), Err(ChannelError::BadAddress { .. })), "{text}");
        }
    }
}
