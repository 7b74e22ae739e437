//! Bytes of a socket under TLS.
//!
//! What is sent is copied, encrypted and written; what comes is decrypted and copied to its place. Memory whose file is cut off during the
//! copy is an error, as it is of the system call that would have copied it. [`Secured::send`] answers for bytes only
//! once all that was made of them has left: until then it wants the same call again, as a socket that is full does. What has come
//! and has no place yet stays here, and the next call gets it without asking the socket, so nobody may sleep on the socket before
//! [`Secured::receive`] has said that there is no more.

use super::channel::{append, scatter};
use super::socket::{Wait, is_idle, receive_from, send_from};
use super::tls::Tls;
use crate::part::Part;
use hinterland_os::losses;
use hinterland_proto::{HandshakeError, Refusal, RefusalCode};
use rustls::{AlertDescription, Connection, Error};
use std::io::{self, BufRead, IoSlice, Write};
use std::os::fd::RawFd;
use std::time::Instant;

/// Most bytes that are encrypted at once: four records, which stay in the cache of the processor.
const SENT_AT_ONCE_BYTES: usize = 64 << 10;
/// Bytes that are taken from the socket at once.
const TAKEN_AT_ONCE_BYTES: usize = 256 << 10;
/// The type of the record with which TLS begins; no message of the handshake of the fabric begins so.
const FIRST_BYTE: u8 = 0x16;
/// A fatal alert, `no_application_protocol`, unencrypted: how a node without TLS answers one that begins with TLS.
const NO_TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 120];

/// The state of TLS on a socket.
#[derive(Debug)]
pub(super) struct Secured {
    session: Connection,
    /// Bytes of the caller that were encrypted and have not all left.
    taken: usize,
    plain: Vec<u8>,
    /// What came from the socket, and the part of it that was not looked at.
    came: Vec<u8>,
    start: usize,
    end: usize,
}

impl Secured {
    /// Begins TLS with a server, or refuses it.
    pub fn connect(tls: &Tls, socket: RawFd, deadline: Instant) -> io::Result<Self> {
        let session = tls.client().map_err(io::Error::other)?;
        Self::shake_hands(session.into(), socket, deadline)
    }

    /// Begins TLS with a client whose first byte is of TLS.
    pub fn accept(tls: &Tls, socket: RawFd, deadline: Instant) -> io::Result<Self> {
        let session = tls.server().map_err(io::Error::other)?;
        Self::shake_hands(session.into(), socket, deadline)
    }

    fn shake_hands(mut session: Connection, socket: RawFd, deadline: Instant) -> io::Result<Self> {
        // Frames are bounded by their own limits, and each call takes no more than it may.
        session.set_buffer_limit(None);
        let came = vec![0; TAKEN_AT_ONCE_BYTES];
        let mut secured = Self { session, taken: 0, plain: Vec::new(), came, start: 0, end: 0 };
        while secured.session.is_handshaking() || secured.session.wants_write() {
            if Instant::now() >= deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no answer to the handshake of TLS in time",
                ));
            }
            let moved = if secured.session.wants_write() {
                secured.write(socket, Wait::Sleep)
            } else {
                secured.take(socket, Wait::Sleep).and_then(|came| match came {
                    true => Ok(()),
                    false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, ENDED)),
                })
            };
            match moved {
                Err(error) if is_idle(&error) => {}
                result => result?,
            }
        }
        Ok(secured)
    }

    /// Sends from `parts`; returns how many bytes of them have left.
    ///
    /// # Safety
    /// Every part must be readable memory during the call.
    pub unsafe fn send(&mut self, socket: RawFd, parts: &[Part], wait: Wait) -> io::Result<usize> {
        if self.taken == 0 {
            self.plain.clear();
            let before = losses();
            for part in parts {
                let room = SENT_AT_ONCE_BYTES - self.plain.len();
                // SAFETY: the caller vouches for the part.
                unsafe { append(&mut self.plain, part.first(part.bytes().min(room))) };
            }
            if losses() != before {
                // Zeros may have been copied. The kernel would have missed the pages.
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            self.session.writer().write_all(&self.plain)?;
            self.taken = self.plain.len();
        }
        self.write(socket, wait)?;
        Ok(std::mem::take(&mut self.taken))
    }

    /// Writes all that is encrypted.
    fn write(&mut self, socket: RawFd, wait: Wait) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut Wire { socket, wait })?;
        }
        Ok(())
    }

    /// Receives into `parts`; returns how many bytes came, 0 at the end.
    ///
    /// # Safety
    /// Every part must be memory that may be written during the call.
    pub unsafe fn receive(&mut self, socket: RawFd, parts: &[Part], wait: Wait) -> io::Result<usize> {
        let wanted: usize = parts.iter().map(|part| part.bytes()).sum();
        let mut filled = 0;
        loop {
            while filled < wanted {
                let mut reader = self.session.reader();
                let decrypted = match reader.fill_buf() {
                    Ok([]) => return Ok(filled),
                    Ok(decrypted) => decrypted,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The connection has ended without a word of TLS: for frames, which have lengths and numbers, an end as any other.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(filled),
                    Err(error) => return Err(error),
                };
                let bytes = decrypted.len().min(wanted - filled);
                // SAFETY: the caller vouches for the parts.
                unsafe { scatter(&decrypted[..bytes], parts, filled) };
                reader.consume(bytes);
                filled += bytes;
            }
            // What has come already is looked at without asking the socket.
            if filled == wanted || (filled > 0 && self.start == self.end) {
                return Ok(filled);
            }
            if !self.take(socket, wait)? {
                return Ok(filled);
            }
        }
    }

    /// Decrypts some of what has come, asking the socket if there is nothing; false at the end.
    fn take(&mut self, socket: RawFd, wait: Wait) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            // SAFETY: the part is a live exclusive borrow.
            self.end = unsafe { receive_from(socket, &[Part::of_mut(&mut self.came)], wait)? };
        }
        let mut rest = &self.came[self.start..self.end];
        let is_end = rest.is_empty();
        self.session.read_tls(&mut rest)?;
        self.start = self.end - rest.len();
        if let Err(error) = self.session.process_new_packets() {
            // The peer is told why, if it still listens.
            let _ = self.write(socket, Wait::Never);
            return Err(self
                .refusal()
                .unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidData, words(&error))));
        }
        Ok(!is_end)
    }

    /// What a node says before TLS has begun: that it has no place for one more connection, or that nothing was said for too long.
    fn refusal(&self) -> Option<io::Error> {
        let is_first = matches!(self.session, Connection::Client(_)) && self.session.is_handshaking();
        let refusal = is_first.then(|| Refusal::from_bytes(&self.came[..self.end])).flatten()?;
        let is_of_all = matches!(refusal.code, RefusalCode::Full | RefusalCode::Slow);
        is_of_all.then(|| io::Error::new(io::ErrorKind::ConnectionRefused, HandshakeError::Refused(refusal)))
    }
}

const ENDED: &str = "the node has ended the connection in the handshake of TLS (hint: look at its log; is it a node of Hinterland?)";

/// What went wrong, and what to do.
fn words(error: &Error) -> String {
    let hint = match error {
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::InvalidMessage(_) => {
            "the other side does not speak TLS: give --tls to all nodes of the pool or to none"
        }
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "the other side does not know the authority of this side's certificate: all nodes need certificates of one ca.crt"
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "this side's certificate has ended: make a new tls.crt"
        }
        Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
        ) => "the other side's certificate is not of this side's ca.crt",
        Error::InvalidCertificate(
            rustls::CertificateError::Expired | rustls::CertificateError::ExpiredContext { .. },
        ) => "the other side's certificate has ended, or a clock is wrong",
        Error::InvalidCertificate(
            rustls::CertificateError::NotValidYet | rustls::CertificateError::NotValidYetContext { .. },
        ) => "the other side's certificate is not valid yet, or a clock is wrong",
        Error::AlertReceived(AlertDescription::UnsupportedCertificate) => {
            "this side's certificate must be for clients and servers: make a tls.crt with both uses (clientAuth, serverAuth), or without any"
        }
        Error::InvalidCertificate(
            rustls::CertificateError::InvalidPurpose | rustls::CertificateError::InvalidPurposeContext { .. },
        ) => {
            "the other side's certificate must be for clients and servers: it needs both uses (clientAuth, serverAuth), or none"
        }
        _ => "docs/guides/tls.md says which files each side needs",
    };
    format!("TLS: {error} (hint: {hint})")
}

/// Whether a peer begins with TLS, by the first byte that it sends; it stays where it is. `None` if it sends none in time.
pub(super) fn begins_with_tls(socket: RawFd, deadline: Instant) -> Option<bool> {
    let mut byte = [0; 1];
    while Instant::now() < deadline {
        let flags = libc::MSG_PEEK | libc::MSG_NOSIGNAL;
        // SAFETY: the buffer is live and its length is given.
        let got = unsafe { libc::recv(socket, byte.as_mut_ptr().cast(), 1, flags) };
        match got {
            1 => return Some(byte[0] == FIRST_BYTE),
            0 => return None,
            _ if is_idle(&io::Error::last_os_error()) => {}
            _ => return None,
        }
    }
    None
}

/// Tells a peer that begins with TLS that there is none here.
pub(super) fn refuse_tls(socket: RawFd) {
    // SAFETY: the part is a live borrow. The socket's buffer is empty, so this does not wait.
    let _ = unsafe { send_from(socket, &[Part::of(&NO_TLS_ALERT)], Wait::Never) };
}

/// Where encrypted bytes go.
struct Wire {
    socket: RawFd,
    wait: Wait,
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the part is a live borrow.
        unsafe { send_from(self.socket, &[Part::of(bytes)], self.wait) }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let parts: Vec<Part> = pieces.iter().take(super::PARTS_MAX).map(|piece| Part::of(piece)).collect();
        // SAFETY: the parts are live borrows.
        unsafe { send_from(self.socket, &parts, self.wait) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
