//! Network block devices of the kernel: sockets handed over to it become `/dev/nbdN`, and are taken away again.
//!
//! Generic netlink rather than the older `ioctl`s: the kernel owns the sockets, so that no process has to stay behind, several
//! connections are one device, and a number that is free is chosen by the kernel.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::error::{OsError, check};

/// The family's name in generic netlink.
const FAMILY: &str = "nbd";
/// Number of the controller, which knows families by name.
const CONTROLLER: u16 = 16;
/// Asks the controller for a family.
const GET_FAMILY: u8 = 3;
/// The attributes of that question and its answer.
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Commands of the family.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
/// Attributes of the family.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const TIMEOUT_S: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const SOCKET_ITEM: u16 = 1;
const SOCKET_DESCRIPTOR: u16 = 1;
/// An attribute that holds others.
const NESTED: u16 = 1 << 15;
/// Bytes of a netlink header, and of the generic one behind it.
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
/// Time in which the kernel answers; it reads the device's partitions meanwhile.
const ANSWER_S: i64 = 60;

/// What a device shall be.
#[derive(Clone, Copy, Debug)]
pub struct NbdShape {
    /// Its number, or whatever is free.
    pub index: Option<u32>,
    /// Length.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The transmission flags that the server told.
    pub flags: u16,
    /// Time after which a request that is not answered has failed; zero waits for ever.
    pub timeout: Duration,
}

/// Makes a device of connections whose handshake is done, and returns its number. The kernel keeps them.
///
/// # Errors
/// [`OsError::Unsupported`] without the module; `EPERM` without the right; `EBUSY` if that number is taken.
pub fn connect(shape: &NbdShape, sockets: &[BorrowedFd<'_>]) -> Result<u32, OsError> {
    let netlink = Netlink::open()?;
    let family = netlink.family()?;
    let mut message = Message::new(family, CONNECT);
    if let Some(index) = shape.index {
        message.attribute(INDEX, &index.to_ne_bytes());
    }
    message.attribute(SIZE_BYTES, &shape.bytes.to_ne_bytes());
    message.attribute(BLOCK_BYTES, &shape.block_bytes.to_ne_bytes());
    if !shape.timeout.is_zero() {
        message.attribute(TIMEOUT_S, &shape.timeout.as_secs().max(1).to_ne_bytes());
    }
    message.attribute(SERVER_FLAGS, &u64::from(shape.flags).to_ne_bytes());
    let all = message.begin(SOCKETS);
    for socket in sockets {
        let item = message.begin(SOCKET_ITEM);
        message.attribute(SOCKET_DESCRIPTOR, &socket.as_raw_fd().unsigned_abs().to_ne_bytes());
        message.end(item);
    }
    message.end(all);
    let answers = netlink.ask(message, "connecting a network block device")?;
    let index = answers.iter().find_map(|answer| attribute(answer, INDEX)).and_then(number);
    index.or(shape.index).ok_or_else(|| OsError::Refused {
        operation: "connecting a network block device",
        reason: "the kernel did not say which".into(),
        hint: "name one with --device".into(),
    })
}

/// Takes the connections of a device away: requests that are under way are finished first, later ones fail.
///
/// # Errors
/// As [`connect`]; `EINVAL` or `ENOENT` for a device that there is not.
pub fn disconnect(index: u32) -> Result<(), OsError> {
    let netlink = Netlink::open()?;
    let mut message = Message::new(netlink.family()?, DISCONNECT);
    message.attribute(INDEX, &index.to_ne_bytes());
    netlink.ask(message, "disconnecting a network block device").map(|_| ())
}

/// Looks whether this kernel has the module, loaded.
///
/// # Errors
/// [`OsError::Unsupported`] if it has not.
pub fn look() -> Result<(), OsError> {
    Netlink::open().and_then(|netlink| netlink.family()).map(drop)
}

struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(family: u16, command: u8) -> Self {
        const REQUEST: u16 = 1;
        const ACKNOWLEDGE: u16 = 4;
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        bytes.extend([command, 1, 0, 0]);
        Self { bytes }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let at = self.begin(kind);
        self.bytes[at + 2..at + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.extend(value);
        self.end(at);
    }

    /// Begins an attribute that holds others.
    fn begin(&mut self, kind: u16) -> usize {
        let at = self.bytes.len();
        self.bytes.extend([0, 0]);
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        at
    }

    fn end(&mut self, at: usize) {
        // A message has a few hundred bytes.
        let bytes = (self.bytes.len() - at) as u16;
        self.bytes[at..at + 2].copy_from_slice(&bytes.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let bytes = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&bytes.to_ne_bytes());
        self.bytes
    }
}

struct Netlink {
    descriptor: OwnedFd,
}

impl Netlink {
    fn open() -> Result<Self, OsError> {
        const GENERIC: libc::c_int = 16;
        // SAFETY: plain values.
        let raw = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, GENERIC) };
        check(raw, "socket", || "generic netlink".to_owned())?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        let time = libc::timeval { tv_sec: ANSWER_S, tv_usec: 0 };
        let bytes = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the value lives through the call and has the length given.
        let result = unsafe {
            libc::setsockopt(raw, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), bytes)
        };
        check(result, "setsockopt", || "generic netlink".to_owned())?;
        Ok(Self { descriptor })
    }

    /// The number that the kernel gave the family.
    fn family(&self) -> Result<u16, OsError> {
        let mut message = Message::new(CONTROLLER, GET_FAMILY);
        message.attribute(FAMILY_NAME, &[FAMILY.as_bytes(), &[0]].concat());
        let missing = || OsError::Unsupported {
            operation: "a network block device",
            reason: "the kernel's module nbd is not loaded, or not built".into(),
            hint: "modprobe nbd, as root; a kernel without CONFIG_BLK_DEV_NBD cannot".into(),
        };
        match self.ask(message, "asking for the module nbd") {
            Ok(answers) => answers
                .iter()
                .find_map(|answer| attribute(answer, FAMILY_ID))
                .and_then(|value| value.get(..2)?.try_into().ok().map(u16::from_ne_bytes))
                .ok_or_else(missing),
            Err(error) if error.errno() == Some(libc::ENOENT) => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// Sends a request, and returns the attributes of every answer before the kernel's acknowledgement.
    fn ask(&self, message: Message, operation: &'static str) -> Result<Vec<Vec<u8>>, OsError> {
        const ERROR: u16 = 2;
        let request = message.finish();
        // SAFETY: the bytes live through the call.
        let sent =
            unsafe { libc::send(self.descriptor.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 {
            return Err(OsError::last(operation, "the kernel"));
        }
        let mut answers = Vec::new();
        let mut buffer = vec![0u8; 16384];
        loop {
            // SAFETY: the buffer lives through the call and has the length given.
            let got = unsafe {
                libc::recv(self.descriptor.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
            };
            let Ok(got) = usize::try_from(got) else {
                return Err(OsError::last(operation, "the kernel"));
            };
            let mut rest = &buffer[..got];
            while let Some((kind, body, next)) = split_message(rest) {
                rest = next;
                if kind != ERROR {
                    answers.push(body.get(GENERIC_BYTES..).unwrap_or(&[]).to_vec());
                    continue;
                }
                let code = body.get(..4).and_then(|code| code.try_into().ok()).map_or(0, i32::from_ne_bytes);
                if code == 0 {
                    return Ok(answers);
                }
                let source = io::Error::from_raw_os_error(code.saturating_neg());
                return Err(OsError::system(operation, "the kernel", source));
            }
        }
    }
}

/// Kind and body of the first message, and what follows it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or(&[])))
}

/// The value of an attribute.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !NESTED;
        let value = bytes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.get(..4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_broken_ones_are_none() {
        let mut message = Message::new(7, CONNECT);
        message.attribute(INDEX, &3u32.to_ne_bytes());
        message.attribute(FAMILY_NAME, b"nbd\0");
        let all = message.begin(SOCKETS);
        message.attribute(SOCKET_DESCRIPTOR, &9u32.to_ne_bytes());
        message.end(all);
        let bytes = message.finish();
        let (kind, body, rest) = split_message(&bytes).unwrap();
        assert_eq!((kind, rest.len()), (7, 0));
        let body = &body[GENERIC_BYTES..];
        assert_eq!(attribute(body, INDEX).and_then(number), Some(3));
        assert_eq!(attribute(body, FAMILY_NAME), Some(&b"nbd\0"[..]));
        let inner = attribute(body, SOCKETS).unwrap();
        assert_eq!(attribute(inner, SOCKET_DESCRIPTOR).and_then(number), Some(9));
        assert_eq!(attribute(body, 99), None);
        for cut in 0..bytes.len() {
            // Whatever the answer, it ends.
            let _ = split_message(&bytes[..cut]);
            let _ = attribute(&bytes[..cut], 99);
        }
    }

    #[test]
    fn a_kernel_without_the_module_says_what_to_load() {
        if look().is_ok() {
            return;
        }
        let error = disconnect(0).unwrap_err().to_string();
        assert!(error.contains("modprobe nbd"), "{error}");
    }
}
