//! What a session's process and its daemon say to each other: postcard behind its length, on a socket that both hold.
//!
//! The socket is also how each learns that the other is gone.

use crate::session::Progress;
use hinterland_proto::gpu::GpuStatus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Longest message.
const BYTES_MAX: usize = 4 << 20;

/// What a session says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSession {
    /// A client has greeted it: is it admitted?
    Greeted {
        /// The program.
        program: String,
        /// Its host.
        host: String,
        /// Its process number there.
        process: u32,
        /// Memory wanted of each device in bytes, or 0.
        memory: u64,
        /// Devices wanted, or none for all.
        devices: Vec<u32>,
    },
    /// How far it is.
    Progress(Progress),
    /// Another grant of memory of a device is wanted, by its number at the node.
    AskGrant {
        /// The device.
        device: u32,
        /// Bytes in all without which it stays as it is.
        least: u64,
        /// Bytes in all.
        wanted: u64,
    },
    /// What the node does is wanted.
    List,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSession {
    /// The client is admitted: the session's number, and the devices with what it may use of each.
    Admitted {
        /// The session's number.
        session: u64,
        /// Number at the node, and bytes.
        devices: Vec<(u32, u64)>,
    },
    /// The client is refused.
    Refused {
        /// CUDA's number.
        error: i32,
        /// Why, and what to do.
        words: String,
    },
    /// Bytes of a device that the session may use, and those that could be added.
    Granted(u64, u64),
    /// What the node does.
    Status(GpuStatus),
}

/// Writes a message.
///
/// # Errors
/// The other side is gone.
pub fn say<T: Serialize>(mut stream: &UnixStream, message: &T) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    // No message is longer than its limit, far below 4 GiB.
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    stream.write_all(&frame)
}

/// Reads a message; nothing if the other side has ended.
///
/// # Errors
/// What came is none.
pub fn hear<T: DeserializeOwned>(mut stream: &UnixStream) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > BYTES_MAX {
        return Err(io::Error::other(format!("a message of {bytes} bytes")));
    }
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body)?;
    postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
}
