//! One client: its handshake, and its requests one after the other.
//!
//! Requests of a connection are answered in their order by its own thread: the kernel spreads its requests over as many connections
//! as it is given, and no thread has to wake another one. Whatever a client sends, what it can make the server keep is one buffer of
//! [`PART_BYTES`].

use crate::blocks::{BLOCK_BYTES, BlockError, Blocks};
use crate::wire::{self, Choice, Command, Errno, Request, answer, info};
use hinterland_far::store::StoreError;
use std::io::{self, BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that are read or written at once; longer requests are several of these.
const PART_BYTES: usize = 2 << 20;
/// Bytes that are taken from the socket at once: a few requests with a page each.
const INPUT_BYTES: usize = 64 << 10;
/// Options that a client may ask before it begins.
const OPTIONS_MAX: u32 = 64;
/// Names under which the device is found; the empty one is the default.
pub const EXPORT: &str = "far";

/// What connections did, all together.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests that were answered.
    pub requests: AtomicU64,
    /// Those that were refused.
    pub refusals: AtomicU64,
    /// Connections that ended because the client said what no honest one says.
    pub broken: AtomicU64,
    /// What the last of them said.
    pub last: Mutex<&'static str>,
}

impl Tally {
    /// Counts a client that did not keep to the protocol.
    pub fn count_broken(&self, reason: &'static str) {
        // Relaxed: a counter for people.
        self.broken.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// What a connection needs to know.
pub struct Service<'server> {
    /// The device.
    pub device: &'server Blocks,
    /// Words about this server, other than those of any other.
    pub description: &'server str,
    /// What was done.
    pub tally: &'server Tally,
}

/// Why a connection ended.
#[derive(Debug)]
pub enum End {
    /// The client said so, or went away between requests.
    Farewell,
    /// It went away in the middle of something, or does not read; or the device failed behind the head of a reply.
    Io,
    /// It said what no honest client says.
    Broken(&'static str),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

const fn flags() -> u16 {
    wire::HAS_FLAGS
        | wire::SENDS_FLUSH
        | wire::SENDS_TRIM
        | wire::SENDS_ZEROES
        | wire::MULTIPLE
        | wire::FAST_ZERO
}

/// A client whose bytes come and go through `S`.
pub struct Connection<'server, S: Read + Write> {
    stream: BufReader<S>,
    service: Service<'server>,
    buffer: Vec<u8>,
}

impl<'server, S: Read + Write> Connection<'server, S> {
    /// A client that has just connected.
    pub fn new(stream: S, service: Service<'server>) -> Self {
        Self { stream: BufReader::with_capacity(INPUT_BYTES, stream), service, buffer: Vec::new() }
    }

    #[cfg(test)]
    fn stream(&self) -> &S {
        self.stream.get_ref()
    }

    /// Agrees with the client; returns whether it wants the device.
    ///
    /// # Errors
    /// [`End`].
    pub fn greet(&mut self) -> Result<bool, End> {
        let mut hello = wire::GREETING.to_be_bytes().to_vec();
        hello.extend(wire::OPTION_MAGIC.to_be_bytes());
        hello.extend((wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
        self.send(&hello)?;
        let mut said = [0; 4];
        self.stream.read_exact(&mut said)?;
        let said = u32::from_be_bytes(said);
        let known = u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        if said & !known != 0 || said & u32::from(wire::FIXED_NEWSTYLE) == 0 {
            return Err(End::Broken("flags that are not known"));
        }
        let has_zeros = said & u32::from(wire::NO_ZEROES) == 0;
        for _ in 0..OPTIONS_MAX {
            let (kind, payload) = self.option()?;
            let Some(payload) = payload else {
                self.send(&wire::answer(kind, answer::TOO_BIG, b""))?;
                continue;
            };
            match Choice::parse(kind, &payload) {
                Choice::ExportName(name) => {
                    if !is_ours(&name) {
                        return Err(End::Broken("an export that there is not"));
                    }
                    let mut reply = self.service.device.bytes().to_be_bytes().to_vec();
                    reply.extend(flags().to_be_bytes());
                    reply.resize(reply.len() + if has_zeros { 124 } else { 0 }, 0);
                    self.send(&reply)?;
                    return Ok(true);
                }
                Choice::Abort => {
                    self.send(&wire::answer(kind, answer::ACK, b""))?;
                    return Ok(false);
                }
                Choice::List => {
                    let mut name = (EXPORT.len() as u32).to_be_bytes().to_vec();
                    name.extend(EXPORT.as_bytes());
                    self.send(&wire::answer(kind, answer::SERVER, &name))?;
                    self.send(&wire::answer(kind, answer::ACK, b""))?;
                }
                Choice::Info(begins, name, questions) => {
                    if self.inform(kind, &name, &questions)? && begins {
                        return Ok(true);
                    }
                }
                Choice::Broken => self.send(&wire::answer(kind, answer::INVALID, b""))?,
                Choice::Unknown => self.send(&wire::answer(kind, answer::UNSUPPORTED, b""))?,
            }
        }
        Err(End::Broken("options without end"))
    }

    /// The next option; without its payload if that is too long.
    fn option(&mut self) -> Result<(u32, Option<Vec<u8>>), End> {
        let mut head = [0; wire::OPTION_BYTES];
        self.stream.read_exact(&mut head)?;
        let (kind, bytes) = wire::parse_option(&head).ok_or(End::Broken("no option where one should be"))?;
        if bytes > wire::OPTION_PAYLOAD_BYTES_MAX {
            if bytes > wire::PAYLOAD_BYTES_MAX as usize {
                return Err(End::Broken("an option without end"));
            }
            self.skip(bytes as u64)?;
            return Ok((kind, None));
        }
        let mut payload = vec![0; bytes];
        self.stream.read_exact(&mut payload)?;
        Ok((kind, Some(payload)))
    }

    /// Tells about the device; returns whether there is one of that name.
    fn inform(&mut self, kind: u32, name: &[u8], questions: &[u16]) -> Result<bool, End> {
        if !is_ours(name) {
            self.send(&wire::answer(kind, answer::NO_EXPORT, b"there is one export, the default one"))?;
            return Ok(false);
        }
        let mut about = info::EXPORT.to_be_bytes().to_vec();
        about.extend(self.service.device.bytes().to_be_bytes());
        about.extend(flags().to_be_bytes());
        let mut all = wire::answer(kind, answer::INFO, &about);
        // Blocks are told whether or not it is asked: who does not know them is refused what is not whole.
        let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
        let block = BLOCK_BYTES as u32;
        sizes.extend([block, block, wire::PAYLOAD_BYTES_MAX].iter().flat_map(|size| size.to_be_bytes()));
        all.extend(wire::answer(kind, answer::INFO, &sizes));
        if questions.contains(&info::DESCRIPTION) {
            let mut words = info::DESCRIPTION.to_be_bytes().to_vec();
            words.extend(self.service.description.as_bytes());
            all.extend(wire::answer(kind, answer::INFO, &words));
        }
        all.extend(wire::answer(kind, answer::ACK, b""));
        self.send(&all)?;
        Ok(true)
    }

    /// Answers requests until the client ends.
    ///
    /// # Errors
    /// [`End`]; a farewell is none.
    pub fn serve(&mut self) -> Result<(), End> {
        loop {
            match self.one() {
                Err(End::Farewell) => return Ok(()),
                result => result?,
            }
        }
    }

    fn one(&mut self) -> Result<(), End> {
        let mut head = [0; wire::REQUEST_BYTES];
        if self.stream.read(&mut head[..1])? == 0 {
            return Err(End::Farewell);
        }
        self.stream.read_exact(&mut head[1..])?;
        let request = Request::parse(&head).ok_or(End::Broken("no request where one should be"))?;
        if request.command == Command::Disconnect {
            return Err(End::Farewell);
        }
        let moves = matches!(request.command, Command::Read | Command::Write);
        if moves && request.bytes > wire::PAYLOAD_BYTES_MAX {
            return Err(End::Broken("a request that is too long"));
        }
        // Relaxed: a counter for people.
        self.service.tally.requests.fetch_add(1, Ordering::Relaxed);
        let refusal = self.why_not(&request);
        match request.command {
            Command::Write => self.take(&request, refusal),
            Command::Read if refusal.is_none() => self.give(&request),
            Command::Trim | Command::Zero if refusal.is_none() => {
                let result = self.service.device.clear(request.offset, u64::from(request.bytes));
                self.reply(&request, result.err().map(|error| errno(&error)))
            }
            _ => self.reply(&request, refusal),
        }
    }

    /// Why a request is refused before anything is done.
    fn why_not(&self, request: &Request) -> Option<Errno> {
        if request.has_wrong_flags || request.command == Command::Unknown {
            return Some(Errno::Invalid);
        }
        if request.command == Command::Flush {
            return None;
        }
        let block = BLOCK_BYTES as u64;
        let is_whole = request.offset.is_multiple_of(block) && request.bytes.is_multiple_of(block as u32);
        let end = request.offset.checked_add(u64::from(request.bytes));
        let is_inside = end.is_some_and(|end| end <= self.service.device.bytes());
        match (is_whole, is_inside, request.command) {
            (true, true, _) => None,
            // The protocol wants this for what would have to grow the device.
            (_, false, Command::Write | Command::Zero) => Some(Errno::NoSpace),
            _ => Some(Errno::Invalid),
        }
    }

    /// Takes what is to be written, and writes it unless it was refused already.
    fn take(&mut self, request: &Request, mut refusal: Option<Errno>) -> Result<(), End> {
        let (mut offset, mut rest) = (request.offset, request.bytes as usize);
        while rest > 0 {
            let bytes = rest.min(PART_BYTES);
            if refusal.is_some() {
                self.skip(rest as u64)?;
                break;
            }
            if self.buffer.len() < bytes {
                self.buffer.resize(bytes, 0);
            }
            self.stream.read_exact(&mut self.buffer[..bytes])?;
            let written = self.service.device.write(offset, &self.buffer[..bytes]);
            refusal = written.err().map(|error| errno(&error));
            offset += bytes as u64;
            rest -= bytes;
        }
        self.reply(request, refusal)
    }

    fn give(&mut self, request: &Request) -> Result<(), End> {
        let (mut offset, mut rest) = (request.offset, request.bytes as usize);
        let mut head = wire::REPLY_BYTES;
        while rest > 0 || head > 0 {
            let bytes = rest.min(PART_BYTES);
            if self.buffer.len() < head + bytes {
                self.buffer.resize(head + bytes, 0);
            }
            if let Err(error) = self.service.device.read(offset, &mut self.buffer[head..head + bytes]) {
                // Behind the first part the reply has said already that all is well: only an end takes that back.
                return if head > 0 { self.reply(request, Some(errno(&error))) } else { Err(End::Io) };
            }
            self.buffer[..head].copy_from_slice(&wire::reply(request.cookie, None)[..head]);
            self.stream.get_mut().write_all(&self.buffer[..head + bytes])?;
            offset += bytes as u64;
            rest -= bytes;
            head = 0;
        }
        Ok(())
    }

    fn reply(&mut self, request: &Request, error: Option<Errno>) -> Result<(), End> {
        if error.is_some() {
            // Relaxed: a counter for people.
            self.service.tally.refusals.fetch_add(1, Ordering::Relaxed);
        }
        self.send(&wire::reply(request.cookie, error))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), End> {
        let skipped = io::copy(&mut (&mut self.stream).take(bytes), &mut io::sink())?;
        if skipped < bytes { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.stream.get_mut().write_all(bytes).map_err(End::from)
    }
}

fn is_ours(name: &[u8]) -> bool {
    name.is_empty() || name == EXPORT.as_bytes()
}

fn errno(error: &BlockError) -> Errno {
    match error {
        BlockError::Range { .. } => Errno::Invalid,
        BlockError::Store(StoreError::Full { .. }) => Errno::NoSpace,
        BlockError::Store(_) => Errno::Io,
    }
}

#[cfg(test)]
mod tests;
