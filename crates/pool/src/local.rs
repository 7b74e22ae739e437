//! Frames over a unix socket, with descriptors beside them: the wire of a session with the local node.
//!
//! The same handshake and frames as between hosts; a descriptor that belongs to a frame comes with its
//! header.

use crate::PoolError;
use crate::silence::{Patience, Silence};
use crate::waiting::{INTERRUPTED_AFTER, LOOK_EVERY, is_looked, look};
use hinterland_os::affinity::online_core_count;
use hinterland_os::poll;
use hinterland_os::process::ProcessHandle;
use hinterland_os::socket::{UnixStream, Woken};
use hinterland_os::{OsError, SpinBudget};
use hinterland_proto::{
    ClientHandshake, ClientIdentity, ClientStep, Established, FrameHeader, FrameReceiver, FrameSender,
    HEADER_BYTES, PeerHello, Refusal, ServerHandshake, ServerIdentity, ServerStep,
};
use hinterland_types::SessionId;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most descriptors that may wait for their frame; a peer that sends more is cut off.
const DESCRIPTORS_WAITING_MAX: usize = 16;

/// How long one that is stopped is waited for by those who have the patience: who has stopped it may let it go on.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);
/// How long a node that is not stopped, but very busy, may take to open a session.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// One end of an established session.
pub struct LocalStream {
    stream: UnixStream,
    sender: FrameSender,
    receiver: FrameReceiver,
    descriptors: Vec<OwnedFd>,
    spin: SpinBudget,
    patience: Option<Patience>,
    /// Whether it is asked while it waits if the program was interrupted.
    is_looked: bool,
    peer: Option<Peer>,
}

/// The process at the other end, and what is done once if it has ended though its socket is open; whether the session goes on.
struct Peer {
    process: ProcessHandle,
    then: Box<dyn FnMut() -> bool + Send>,
}

/// What a node says of one who asks to be let in: the session and its secret, or a refusal.
pub type Admission = Result<(SessionId, [u8; 32]), Refusal>;

impl LocalStream {
    /// Opens a session as a client.
    ///
    /// # Errors
    /// [`PoolError::Handshake`] if the node refuses or is none; if the stream has a time limit, [`PoolError::Silent`] when that is over
    /// and the node is stopped, or when half a minute is;
    /// [`PoolError::Os`].
    pub fn open(stream: UnixStream, identity: ClientIdentity) -> Result<(Self, Established), PoolError> {
        Self::shake_hands(stream, identity, |silence| !silence.is_stopped)
    }

    /// The same with patience from the first word on.
    ///
    /// # Errors
    /// As [`open`](Self::open); of a node that is stopped after some seconds, and whenever the patience ends.
    pub fn open_patiently(
        stream: UnixStream,
        identity: ClientIdentity,
        mut patience: Patience,
    ) -> Result<(Self, Established), PoolError> {
        stream.set_receive_timeout(Some(patience.every))?;
        stream.set_send_timeout(Some(patience.every))?;
        let (stream, established) = Self::shake_hands(stream, identity, |silence| {
            (patience.then)(silence) && !(silence.is_stopped && silence.waited >= STOPPED_WITHIN)
        })?;
        stream.socket().set_receive_timeout(None)?;
        Ok((Self { patience: Some(patience), ..stream }, established))
    }

    /// `goes_on` says whether a node that has been silent for the time limit of the stream, or once more so, is waited for.
    fn shake_hands(
        stream: UnixStream,
        identity: ClientIdentity,
        mut goes_on: impl FnMut(&Silence) -> bool,
    ) -> Result<(Self, Established), PoolError> {
        let (mut handshake, hello) = ClientHandshake::new(identity, random()?);
        stream.send_all(&hello, &[])?;
        let (mut input, begun) = (Vec::new(), Instant::now());
        loop {
            match receive_more(&stream, &mut input) {
                Err(PoolError::Os(error)) if error.is_would_block() => {
                    let silence = Silence::of(&stream, begun.elapsed());
                    if !goes_on(&silence) || silence.waited >= OPEN_WITHIN {
                        return Err(PoolError::Silent(silence));
                    }
                }
                received => received?,
            }
            loop {
                let (taken, step) = handshake.receive(&input)?;
                input.drain(..taken);
                match step {
                    ClientStep::Wait => break,
                    ClientStep::Send(bytes) => stream.send_all(&bytes, &[])?,
                    ClientStep::Done(established) => {
                        return Ok((Self::new(stream, &established), established));
                    }
                }
            }
        }
    }

    /// Answers a handshake as a node; `admit` decides. `None` if the peer was refused or went away.
    ///
    /// # Errors
    /// [`PoolError::Os`].
    pub fn answer(
        stream: UnixStream,
        identity: ServerIdentity,
        admit: impl FnOnce(&PeerHello) -> Admission,
    ) -> Result<Option<(Self, PeerHello)>, PoolError> {
        let mut handshake = ServerHandshake::new(identity, random()?);
        let mut input = Vec::new();
        loop {
            receive_more(&stream, &mut input)?;
            let (taken, step) = handshake.receive(&input);
            input.drain(..taken);
            match step {
                ServerStep::Wait => {}
                ServerStep::Send(bytes) => stream.send_all(&bytes, &[])?,
                ServerStep::Refuse { bytes, .. } => {
                    stream.send_all(&bytes, &[])?;
                    return Ok(None);
                }
                ServerStep::Authenticated(peer) => {
                    return match admit(&peer) {
                        Ok((session, secret)) => {
                            let (ready, established) = handshake.ready(session, secret);
                            stream.send_all(&ready, &[])?;
                            Ok(Some((Self::new(stream, &established), peer)))
                        }
                        Err(refusal) => {
                            stream.send_all(&refusal.to_bytes(), &[])?;
                            Ok(None)
                        }
                    };
                }
            }
        }
    }

    /// Sends a frame: header, body in pieces, descriptors with the header.
    ///
    /// # Errors
    /// [`PoolError::Os`] if the peer is gone.
    pub fn send(
        &mut self,
        header: FrameHeader,
        body: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), PoolError> {
        let bytes = self.sender.seal(header);
        match body {
            [] => self.push(&bytes, descriptors)?,
            [small] if small.len() <= 4096 => self.push(&[&bytes[..], small].concat(), descriptors)?,
            pieces => {
                self.push(&bytes, descriptors)?;
                for piece in pieces {
                    self.push(piece, &[])?;
                }
            }
        }
        Ok(())
    }

    /// Sends frames with their bodies as one message, which wakes the peer once.
    ///
    /// # Errors
    /// [`PoolError::Os`] if the peer is gone.
    pub fn send_together(&mut self, frames: &[(FrameHeader, Vec<u8>)]) -> Result<(), PoolError> {
        let mut bytes = Vec::new();
        for (header, body) in frames {
            bytes.extend_from_slice(&self.sender.seal(*header));
            bytes.extend_from_slice(body);
        }
        self.push(&bytes, &[])
    }

    /// Receives the header of the next frame and the descriptors that came with it.
    ///
    /// # Errors
    /// [`PoolError::Closed`] at the end; [`PoolError::Frame`] for a peer that cannot be believed.
    pub fn receive_header(&mut self) -> Result<(FrameHeader, Vec<OwnedFd>), PoolError> {
        let mut bytes = [0; HEADER_BYTES];
        self.fill_start(&mut bytes)?;
        let header = self.receiver.accept(&bytes)?;
        Ok((header, std::mem::take(&mut self.descriptors)))
    }

    /// Receives (part of) a body.
    ///
    /// # Errors
    /// [`PoolError::Closed`] if it ends before.
    pub fn receive_body(&mut self, into: &mut [u8]) -> Result<(), PoolError> {
        self.fill(into)
    }

    /// Receives a whole body that the header announced; the header was checked, so its length has a limit.
    ///
    /// # Errors
    /// [`PoolError::Closed`] if it ends before; [`PoolError::Frame`] for a wrong checksum.
    pub fn receive_whole(&mut self, header: &FrameHeader) -> Result<Vec<u8>, PoolError> {
        let mut body = vec![0; header.body_bytes as usize];
        self.fill(&mut body)?;
        header.check_body(|| hinterland_proto::checksum::crc32c(&body))?;
        Ok(body)
    }

    /// The socket, to be shut down from another thread or watched.
    pub const fn socket(&self) -> &UnixStream {
        &self.stream
    }

    fn new(stream: UnixStream, established: &Established) -> Self {
        Self {
            stream,
            sender: FrameSender::new(established.send_sequence),
            receiver: FrameReceiver::new(established.receive_sequence),
            descriptors: Vec::new(),
            spin: SpinBudget::new(if may_spin() { online_core_count() } else { 1 }),
            patience: None,
            is_looked: false,
            peer: None,
        }
    }

    /// Has `then` called again and again while an answer is waited for, or the peer takes nothing; when it returns false, the session
    /// is ended.
    ///
    /// # Errors
    /// [`PoolError::Os`] for a time of no length.
    pub fn on_silence(&mut self, patience: Patience) -> Result<(), PoolError> {
        self.stream.set_send_timeout(Some(patience.every))?;
        self.patience = Some(patience);
        Ok(())
    }

    /// Has `then` called, once, when the process at the other end has ended while its socket is open: a child that it forked holds it. Where it
    /// returns false, the session ends too. It is noticed while nothing comes, and calls no more than once. In the middle of a frame the
    /// session ends without that.
    pub fn on_end_of_peer(&mut self, process: ProcessHandle, then: impl FnMut() -> bool + Send + 'static) {
        self.peer = Some(Peer { process, then: Box::new(then) });
    }

    /// Has waits end for a program that is interrupted, if it has said how that is seen; the session ends with them.
    ///
    /// # Errors
    /// [`PoolError::Os`].
    pub fn end_when_interrupted(&mut self) -> Result<(), PoolError> {
        self.is_looked = is_looked();
        if self.is_looked {
            self.stream.set_send_timeout(Some(LOOK_EVERY))?;
        }
        Ok(())
    }

    /// After how long [`be_patient`](Self::be_patient) is asked; none if it waits until something happens.
    fn every(&self) -> Option<Duration> {
        let patience = self.patience.as_ref().map(|patience| patience.every);
        patience.or_else(|| self.is_looked.then_some(LOOK_EVERY))
    }

    /// One more time has passed in which nothing happened.
    fn be_patient(&mut self, waited: &mut Duration) -> Result<(), PoolError> {
        *waited += self.every().unwrap_or_default();
        let mut goes_on = Ok(());
        if self.is_looked && *waited >= INTERRUPTED_AFTER {
            goes_on = look("waiting for the node");
        }
        if let Some(patience) = self.patience.as_mut().filter(|_| goes_on.is_ok()) {
            let silence = Silence::of(&self.stream, *waited);
            goes_on = if (patience.then)(&silence) { Ok(()) } else { Err(PoolError::Silent(silence)) };
        }
        if goes_on.is_err() {
            // An answer that comes later must not be taken for that to another question.
            self.stream.shutdown();
        }
        goes_on
    }

    fn push(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), PoolError> {
        let (mut done, mut waited) = (0, Duration::ZERO);
        while done < bytes.len() {
            let descriptors = if done == 0 { descriptors } else { &[] };
            match self.stream.send(&bytes[done..], descriptors) {
                Ok(sent) => (done, waited) = (done + sent, Duration::ZERO),
                Err(error) if error.is_would_block() && self.every().is_some() => {
                    self.be_patient(&mut waited)?
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills a buffer with what may not be on its way yet.
    fn fill_start(&mut self, buffer: &mut [u8]) -> Result<(), PoolError> {
        let mut waited = Duration::ZERO;
        let received = loop {
            let every = self.every();
            let peer = self.peer.as_ref().map(|peer| peer.process.as_fd());
            let got =
                self.stream.receive_spinning(buffer, &mut self.descriptors, &mut self.spin, every, peer);
            match got {
                Ok(Woken::Received(bytes)) => break Ok(bytes),
                Ok(Woken::Nothing) => self.be_patient(&mut waited)?,
                Ok(Woken::Beside) => {
                    if self.peer.take().is_some_and(|mut peer| !(peer.then)()) {
                        return Err(PoolError::Closed);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        let done = self.received(received)?;
        self.fill(&mut buffer[done..])
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), PoolError> {
        let mut done = 0;
        while done < buffer.len() {
            let received = self.receive_rest(&mut buffer[done..]);
            done += self.received(received)?;
        }
        Ok(())
    }

    /// Receives more of a frame that has begun. Where the process at the other end is known, its end is the end of the stream: a child that
    /// holds its socket sends no rest.
    fn receive_rest(&mut self, buffer: &mut [u8]) -> Result<usize, OsError> {
        let Some(peer) = &self.peer else { return self.stream.receive(buffer, &mut self.descriptors) };
        let mut has_ended = false;
        loop {
            match self.stream.receive_now(buffer, &mut self.descriptors) {
                // What it sent last was looked for after its end.
                Err(error) if error.is_would_block() && has_ended => return Ok(0),
                Err(error) if error.is_would_block() => {
                    has_ended = !poll::wait_either(&self.stream, peer.process.as_fd(), None)?.0;
                }
                received => return received,
            }
        }
    }

    fn received(&self, received: Result<usize, OsError>) -> Result<usize, PoolError> {
        match received {
            Ok(0) => Err(PoolError::Closed),
            Ok(_) if self.descriptors.len() > DESCRIPTORS_WAITING_MAX => Err(PoolError::Closed),
            Ok(bytes) => Ok(bytes),
            Err(error) if is_gone(&error) => Err(PoolError::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

/// 32 (or other) random bytes from the kernel.
///
/// # Errors
/// [`PoolError::Stream`] without `/dev/urandom`.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES], PoolError> {
    let mut bytes = [0; BYTES];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|source| PoolError::Stream { what: "reading /dev/urandom".to_owned(), source })?;
    Ok(bytes)
}

/// Whether a local session spins before it sleeps, at either end: yes, unless `HINTERLAND_NO_SPIN=1`.
fn may_spin() -> bool {
    std::env::var_os("HINTERLAND_NO_SPIN").is_none_or(|value| value != "1")
}

fn is_gone(error: &OsError) -> bool {
    const ECONNRESET: i32 = 104;
    const EPIPE: i32 = 32;
    matches!(error.errno(), Some(ECONNRESET | EPIPE))
}

fn receive_more(stream: &UnixStream, input: &mut Vec<u8>) -> Result<(), PoolError> {
    let mut buffer = [0; 1024];
    let mut descriptors = Vec::new();
    match stream.receive(&mut buffer, &mut descriptors) {
        Ok(0) => Err(PoolError::Closed),
        Ok(bytes) => {
            input.extend_from_slice(&buffer[..bytes]);
            Ok(())
        }
        Err(error) if is_gone(&error) => Err(PoolError::Closed),
        Err(error) => Err(error.into()),
    }
}
