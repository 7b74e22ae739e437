//! The other side of the protocol: the handshake of connections that the kernel is given, and requests of tests and benches.

use crate::address::{Address, Stream};
use crate::wire::{self, Command, Reader, Request, answer, info};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Time for each step of the handshake.
const STEP_TIME: Duration = Duration::from_secs(30);
/// Most bytes of an answer that is looked at.
const ANSWER_BYTES_MAX: usize = 8192;

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there.
    #[error(
        "no server answers at {address}: {source} (hint: start one with hinterland swap serve --listen {address})"
    )]
    Connect {
        /// Where.
        address: Address,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The connection ended.
    #[error("the server at {address} went away: {source} (hint: look at what it said last)")]
    Lost {
        /// Where.
        address: Address,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What it said is not the protocol, or not what is needed.
    #[error(
        "{address} cannot be used: {reason} (hint: hinterland swap serve, or another server of the fixed newstyle NBD protocol)"
    )]
    Unusable {
        /// Where.
        address: Address,
        /// What is wrong.
        reason: &'static str,
    },
    /// The server refused a request.
    #[error("the server refused: error {0} (hint: the server's report says why)")]
    Refused(u32),
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Client {
    address: Address,
    stream: Stream,
    bytes: u64,
    flags: u16,
    description: String,
    cookie: u64,
}

impl Client {
    /// Connects and asks for the default export.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(address: &Address) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { address: address.clone(), source };
        let stream = address.connect(STEP_TIME).map_err(failed)?;
        stream.set_timeouts(Some(STEP_TIME), Some(STEP_TIME)).map_err(failed)?;
        let description = String::new();
        let mut client =
            Self { address: address.clone(), stream, bytes: 0, flags: 0, description, cookie: 0 };
        client.greet()?;
        // The kernel and whoever else has it from here on set times of their own.
        client.stream.set_timeouts(None, None).map_err(failed)?;
        if client.bytes == 0 {
            return Err(client.unusable("it has no bytes"));
        }
        Ok(client)
    }

    /// Length of the device in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The transmission flags.
    pub const fn flags(&self) -> u16 {
        self.flags
    }

    /// What the server says of itself, other than any other server.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Reads.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), ClientError> {
        self.ask(Command::Read, offset, into.len() as u32, &[])?;
        self.stream.read_exact(into).map_err(|source| self.lost(source))
    }

    /// Writes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), ClientError> {
        self.ask(Command::Write, offset, from.len() as u32, from)
    }

    /// Flush, trim or zeros.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn command(&mut self, command: Command, offset: u64, bytes: u32) -> Result<(), ClientError> {
        self.ask(command, offset, bytes, &[])
    }

    fn ask(&mut self, command: Command, offset: u64, bytes: u32, payload: &[u8]) -> Result<(), ClientError> {
        self.cookie += 1;
        let cookie = self.cookie;
        let head = Request { command, has_wrong_flags: false, cookie, offset, bytes }.encode();
        let mut reply = [0; wire::REPLY_BYTES];
        let done = self
            .stream
            .write_all(&[&head, payload].concat())
            .and_then(|()| self.stream.read_exact(&mut reply));
        done.map_err(|source| self.lost(source))?;
        match wire::parse_reply(&reply) {
            Some((known, 0)) if known == cookie => Ok(()),
            Some((known, error)) if known == cookie => Err(ClientError::Refused(error)),
            _ => Err(self.unusable("its reply is to something else")),
        }
    }

    fn greet(&mut self) -> Result<(), ClientError> {
        let mut hello = [0; 18];
        self.stream.read_exact(&mut hello).map_err(|source| self.lost(source))?;
        let mut reader = Reader(&hello);
        if reader.u64() != Some(wire::GREETING) || reader.u64() != Some(wire::OPTION_MAGIC) {
            return Err(self.unusable("it does not speak the NBD protocol in its newer style"));
        }
        let flags = reader.u16().unwrap_or(0);
        if flags & wire::FIXED_NEWSTYLE == 0 {
            return Err(self.unusable("it does not answer options"));
        }
        let own = u32::from(flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES));
        let mut words = own.to_be_bytes().to_vec();
        let questions = [info::EXPORT, info::DESCRIPTION, info::BLOCK_SIZE];
        words.extend(wire::option(wire::option::GO, &wire::info_payload(b"", &questions)));
        self.stream.write_all(&words).map_err(|source| self.lost(source))?;
        loop {
            let mut head = [0; wire::ANSWER_BYTES];
            self.stream.read_exact(&mut head).map_err(|source| self.lost(source))?;
            let Some((_, kind, bytes)) =
                wire::parse_answer(&head).filter(|(_, _, bytes)| *bytes <= ANSWER_BYTES_MAX)
            else {
                return Err(self.unusable("its answer to an option is none"));
            };
            let mut payload = vec![0; bytes];
            self.stream.read_exact(&mut payload).map_err(|source| self.lost(source))?;
            match kind {
                answer::ACK => return Ok(()),
                answer::INFO => self.learn(&payload),
                _ => return Err(self.unusable("it has no default export, or wants encryption")),
            }
        }
    }

    fn learn(&mut self, payload: &[u8]) {
        let mut reader = Reader(payload);
        match reader.u16() {
            Some(info::EXPORT) => {
                self.bytes = reader.u64().unwrap_or(0);
                self.flags = reader.u16().unwrap_or(0);
            }
            Some(info::DESCRIPTION) => self.description = String::from_utf8_lossy(reader.0).into_owned(),
            _ => {}
        }
    }

    fn lost(&self, source: io::Error) -> ClientError {
        ClientError::Lost { address: self.address.clone(), source }
    }

    fn unusable(&self, reason: &'static str) -> ClientError {
        ClientError::Unusable { address: self.address.clone(), reason }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
