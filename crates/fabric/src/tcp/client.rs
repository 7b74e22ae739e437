//! One peer over several streams, for any number of threads.

use super::Mode;
use super::channel::{Answer, Channel, Request};
use super::cutter::Cutter;
use super::greeting::{greet, not_connected};
use super::queue::TcpQueue;
use super::socket::{Socket, Spinner, Wait};
use super::stripes::{FrameDraft, Work};
use super::tls::Tls;
use super::turns::{Slot, Taken, Waiters};
use crate::endpoint::{Capabilities, Endpoint, Found, Queue};
use crate::error::FabricError;
use crate::part::{Destination, Part, Source};
use hinterland_proto::{
    ClientIdentity, Established, FETCH_BYTES_MAX, Features, FrameKind, HandshakeError, PeerLimits, PoolId,
    PoolKey, RUN_BYTES, RefusalCode, Role,
};
use hinterland_types::limits::{CONTROL_BYTES_MAX, FRAME_BODY_BYTES_MAX, STREAMS_MAX};
use hinterland_types::{ByteRange, Handle, NodeId, SessionId};
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Reads and writes of one run up to this size take the shortest way through the code.
const ONE_FRAME_BYTES_MAX: usize = 64 << 10;
/// Frames from which on several streams are quicker than one, for somebody who has to ask where the bytes are first.
const PARALLEL_FRAMES_MIN: usize = 4;
/// Reads and writes from this size on get a thread for every stream: starting them costs about 1 % of their time.
const HELPED_BYTES_MIN: u64 = 32 << 20;

/// How to reach a peer.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Streams to the peer, 1 to 8. Reads and writes of several frames are striped over them. In polling mode at most one
    /// less than there are processors.
    pub streams: usize,
    /// How to wait for answers.
    pub mode: Mode,
    /// Deadline of every operation and of connecting.
    pub timeout: Duration,
    /// Bytes of one frame; longer reads and writes are cut, and several frames are under way at once.
    pub chunk_bytes: u32,
    /// Socket buffers in bytes, each direction; without it 1 MiB within a machine, else what the kernel chooses.
    pub buffer_bytes: Option<usize>,
    /// Whether all bodies carry checksums; short ones always do.
    pub checksums: bool,
    /// Whether very long reads and writes get a thread for every stream while they run.
    pub helpers: bool,
    /// What this side is.
    pub role: Role,
    /// This side, if it is a node.
    pub node: NodeId,
    /// The pool that the peer must belong to.
    pub pool: PoolId,
    /// The key of the pool.
    pub key: Option<PoolKey>,
    /// Whether this side has RDMA devices and says so.
    pub rdma: bool,
    /// The files by which both sides prove that they belong to the pool, and keep what they say from others; none for plain TCP.
    pub tls: Option<Tls>,
    /// Whether there is one more stream for what must not wait behind other calls; see [`TcpEndpoint::call_urgent_within`].
    pub urgent: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            streams: 2,
            mode: Mode::Blocking,
            timeout: Duration::from_secs(10),
            chunk_bytes: 256 << 10,
            buffer_bytes: None,
            checksums: false,
            helpers: true,
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            rdma: false,
            tls: None,
            urgent: false,
        }
    }
}

/// A peer, reached over TCP.
///
/// Streams are opened when they are first needed; one that breaks is replaced at its next use, as long as another
/// keeps the session alive.
pub struct TcpEndpoint {
    connector: Connector,
    established: Established,
    streams: Vec<Slot>,
    /// One more, where there may be one: only urgent calls take it, and only when all others are taken.
    urgent: Option<Slot>,
    /// Who waits for one of the streams, and who for the last one.
    waiters: Waiters,
    urgent_waiters: Waiters,
    /// Where the next thread starts to look for a free stream.
    next: AtomicUsize,
    /// When a stream could not be opened last, and why. Threads that waited for one meanwhile are told the same: each would wait for
    /// as long again, one after the other, for a peer that does not answer.
    unopened: Mutex<Option<(Instant, FabricError)>>,
}

/// What it takes to open a further stream.
#[derive(Clone)]
pub(super) struct Connector {
    pub address: SocketAddr,
    pub options: ClientOptions,
    identity: ClientIdentity,
    pub peer: NodeId,
    pub limits: PeerLimits,
}

/// How long an answer is waited for.
struct Patience<'a> {
    started: Instant,
    within: Duration,
    goes_on: &'a dyn Fn() -> bool,
}

impl Patience<'_> {
    /// From this moment on.
    fn new(within: Duration) -> Self {
        Self { started: Instant::now(), within, goes_on: &|| true }
    }

    /// What is left of the time, if anything is.
    fn left(&self) -> Option<Duration> {
        let left = self.within.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero());
        left.filter(|_| (self.goes_on)())
    }
}

impl TcpEndpoint {
    /// Connects and opens a session.
    ///
    /// # Errors
    /// [`FabricError::Connect`] or [`FabricError::Handshake`], with what to try.
    pub fn connect(
        address: impl ToSocketAddrs + Display,
        options: ClientOptions,
    ) -> Result<Self, FabricError> {
        let named = address.to_string();
        let failed = |reason: String| FabricError::Connect { address: named.clone(), reason };
        let mut last = failed("the name has no address".to_owned());
        for address in address.to_socket_addrs().map_err(|error| failed(error.to_string()))? {
            match Self::connect_to(address, options.clone()) {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect_to(address: SocketAddr, options: ClientOptions) -> Result<Self, FabricError> {
        let identity = ClientIdentity {
            role: options.role,
            node: options.node,
            pool: options.pool,
            key: options.key.clone(),
            features: features(&options),
            join: None,
        };
        let limits = PeerLimits { body_bytes_max: 1, runs_max: 1, streams_max: 1 };
        let mut connector = Connector { address, options, identity, peer: NodeId(0), limits };
        let (socket, established) = connector.open()?;
        connector.identity.join = Some(established.ticket.clone());
        connector.peer = established.node;
        connector.limits = established.limits;
        let mut wanted = connector.options.streams.clamp(1, STREAMS_MAX);
        if connector.options.mode == Mode::Polling {
            // Each spins at the far end too: more of them than processors only take turns.
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            wanted = wanted.min(processors.saturating_sub(1).max(1));
        }
        let count = wanted.min(established.limits.streams_max as usize);
        let first = Channel::new(socket, &established);
        let mut streams = vec![Mutex::new(Some(first))];
        streams.resize_with(count, || Mutex::new(None));
        let may_have_more = count < established.limits.streams_max as usize;
        let urgent = (connector.options.urgent && may_have_more).then(Mutex::default);
        let (next, unopened) = (AtomicUsize::new(0), Mutex::default());
        let (waiters, urgent_waiters) = Default::default();
        Ok(Self { connector, established, streams, urgent, waiters, urgent_waiters, next, unopened })
    }

    /// The node at the other end.
    pub fn node(&self) -> NodeId {
        self.established.node
    }

    /// The pool of that node.
    pub fn pool(&self) -> PoolId {
        self.established.pool
    }

    /// Whether both sides have RDMA devices.
    pub fn has_rdma(&self) -> bool {
        self.established.features.has(Features::RDMA)
    }

    /// What both sides were told to do.
    pub fn options(&self) -> &ClientOptions {
        &self.connector.options
    }

    /// Asks the peer's fabric about RDMA.
    pub(crate) fn verbs(&self, body: &[u8]) -> Result<Vec<u8>, FabricError> {
        match self.exchange(&plain(FrameKind::Verbs, body), self.connector.options.timeout)? {
            Answer::Reply(reply) => Ok(reply),
            other => Err(self.connector.unexpected(other, "a question about RDMA")),
        }
    }

    /// The session that the node gave us.
    pub fn session(&self) -> SessionId {
        self.established.ticket.session
    }

    /// Sends a message as [`call_within`](Endpoint::call_within) does, but never waits behind calls that are not urgent, however
    /// many of them there are and however long they take.
    ///
    /// # Errors
    /// As [`call_within`](Endpoint::call_within).
    pub fn call_urgent_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        check_call(body)?;
        let patience = Patience::new(within);
        self.reply(self.exchange_on(
            self.urgent_stream(&patience)?,
            &plain(FrameKind::Call, body),
            &patience,
        )?)
    }

    /// Sends a message as [`call_within`](Endpoint::call_within) does, and gives up before if `goes_on` says no: it is asked again and
    /// again while the peer is silent, about every [`WAIT_SLICE`](super::WAIT_SLICE), and the answer waits for it.
    ///
    /// # Errors
    /// As [`call_within`](Endpoint::call_within).
    pub fn call_while(
        &self,
        body: &[u8],
        within: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, FabricError> {
        check_call(body)?;
        let patience = Patience { goes_on, ..Patience::new(within) };
        self.reply(self.exchange_on(self.any_stream(&patience)?, &plain(FrameKind::Call, body), &patience)?)
    }

    fn reply(&self, answer: Answer) -> Result<Vec<u8>, FabricError> {
        match answer {
            Answer::Reply(reply) => Ok(reply),
            other => Err(self.connector.unexpected(other, "a call")),
        }
    }

    /// Takes a stream that is free, or waits for one.
    fn any_stream(&self, patience: &Patience<'_>) -> Result<Taken<'_>, FabricError> {
        match self.free_stream() {
            Some(free) => Ok(free),
            None => self.awaited(self.waiters.wait(|| self.free_stream(), || patience.left()), patience),
        }
    }

    /// Takes a stream that is free, or else the one that is kept for this.
    fn urgent_stream(&self, patience: &Patience<'_>) -> Result<Taken<'_>, FabricError> {
        let Some(kept) = &self.urgent else { return self.any_stream(patience) };
        let waiters = &self.urgent_waiters;
        let take = || self.free_stream().or_else(|| waiters.take(kept));
        match take() {
            Some(free) => Ok(free),
            None => self.awaited(waiters.wait(take, || patience.left()), patience),
        }
    }

    fn awaited<'a>(
        &self,
        taken: Option<Taken<'a>>,
        patience: &Patience<'_>,
    ) -> Result<Taken<'a>, FabricError> {
        // All streams were taken for so long; nothing was sent.
        taken.ok_or_else(|| FabricError::Timeout {
            peer: self.connector.peer,
            during: "waiting for a stream",
            after: patience.started.elapsed().min(patience.within),
        })
    }

    /// A stream that nobody uses.
    fn free_stream(&self) -> Option<Taken<'_>> {
        if let Some(first) = self.waiters.take(&self.streams[0]) {
            return Some(first);
        }
        // Relaxed: only spreads threads over streams; nothing is published through it.
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.streams.len();
        let (before, after) = self.streams.split_at(turn);
        after.iter().chain(before).find_map(|stream| self.waiters.take(stream))
    }

    /// One request, one answer, on one stream.
    fn exchange(&self, request: &Request<'_>, within: Duration) -> Result<Answer, FabricError> {
        let patience = Patience::new(within);
        self.exchange_on(self.any_stream(&patience)?, request, &patience)
    }

    fn exchange_on(
        &self,
        mut guard: Taken<'_>,
        request: &Request<'_>,
        patience: &Patience<'_>,
    ) -> Result<Answer, FabricError> {
        let channel = match &mut *guard {
            Some(channel) => channel,
            None => guard.insert(self.open_unless_failed(patience.started)?),
        };
        // SAFETY: the memory of the request is borrowed by our caller; the channel is dropped below unless the
        // answer was received.
        unsafe { channel.begin(request) };
        let result = self.finish_exchange(channel, patience);
        if result.is_err() {
            *guard = None;
        }
        result
    }

    /// Opens a stream, unless somebody could not since `started`.
    fn open_unless_failed(&self, started: Instant) -> Result<Channel, FabricError> {
        let unopened = || self.unopened.lock().unwrap_or_else(PoisonError::into_inner);
        match &*unopened() {
            Some((at, error)) if *at > started => return Err(error.clone()),
            _ => {}
        }
        self.connector.join().inspect_err(|error| *unopened() = Some((Instant::now(), error.clone())))
    }

    fn finish_exchange(&self, channel: &mut Channel, patience: &Patience<'_>) -> Result<Answer, FabricError> {
        let wait = match self.connector.options.mode {
            Mode::Blocking => Wait::Sleep,
            Mode::Polling => Wait::Never,
        };
        let mut spinner = Spinner::default();
        loop {
            if channel.flush(wait)?
                && let Some((_, answer)) = channel.receive(wait)?
            {
                return Ok(answer);
            }
            if wait == Wait::Sleep || spinner.pause() {
                self.connector.check(patience, channel)?;
            }
        }
    }

    /// A short read or write of one run and one piece: no allocation, one frame.
    fn transfer_one(
        &self,
        kind: FrameKind,
        handle: Handle,
        run: ByteRange,
        part: Part,
    ) -> Result<(), FabricError> {
        let mut table = [0; RUN_BYTES];
        table[..8].copy_from_slice(&run.offset().to_le_bytes());
        table[8..].copy_from_slice(&run.bytes().to_le_bytes());
        let mut request = plain(kind, &table);
        request.handle = handle;
        request.argument = 1;
        request.checked = self.connector.options.checksums;
        let parts = [part];
        if kind == FrameKind::Read {
            request.into = &parts;
        } else {
            request.payload = &parts;
        }
        let answer = self.exchange(&request, self.connector.options.timeout)?;
        self.connector.done(answer)
    }

    /// A read or write of any length.
    fn transfer(
        &self,
        kind: FrameKind,
        handle: Handle,
        runs: &[ByteRange],
        parts: &[Part],
    ) -> Result<(), FabricError> {
        if let ([run], [part]) = (runs, parts)
            && run.bytes() == part.bytes() as u64
            && (1..=ONE_FRAME_BYTES_MAX).contains(&part.bytes())
        {
            return self.transfer_one(kind, handle, *run, *part);
        }
        let limits = self.established.limits;
        let bytes: u64 = runs.iter().fold(0, |sum, run| sum.saturating_add(run.bytes()));
        let frame_bytes_max = self.connector.options.chunk_bytes.min(limits.body_bytes_max);
        let cutter = Cutter::new(runs, parts, frame_bytes_max, limits.runs_max)?;
        let mut frame = FrameDraft::new(kind, handle, self.connector.options.checksums);
        if !frame.cut(&mut cutter.clone())? {
            return Ok(());
        }
        if frame.bytes as u64 == bytes {
            let answer = self.exchange(&frame.request(0), self.connector.options.timeout)?;
            return self.connector.done(answer);
        }
        let chunks = usize::try_from(bytes.div_ceil(u64::from(frame_bytes_max))).unwrap_or(usize::MAX);
        let started = Instant::now();
        // Without a limit: many long ones at once take their time, each while the others move bytes.
        let mut first = self.any_stream(&Patience::new(Duration::MAX))?;
        if first.is_none() {
            *first = Some(self.open_unless_failed(started)?);
        }
        let mut lanes = vec![first];
        for mut lane in self.streams.iter().filter_map(|stream| self.waiters.take(stream)).take(chunks - 1) {
            // A stream that cannot be opened is one stream less, not a failure.
            if self.connector.ready(&mut lane).is_ok() {
                lanes.push(lane);
            }
        }
        let mut lanes: Vec<&mut Option<Channel>> = lanes.iter_mut().map(|lane| &mut **lane).collect();
        let work = Work::new(frame, cutter);
        if self.connector.options.helpers && bytes >= HELPED_BYTES_MIN {
            work.move_with_helpers(&self.connector, &mut lanes)
        } else {
            work.move_alone(&self.connector, &mut lanes)
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: false,
            atomic_bytes: 8,
            inline_bytes: super::CHECKED_BODY_BYTES as u32,
            message_bytes_max: CONTROL_BYTES_MAX,
            gather_runs_max: self.established.limits.runs_max,
            gpu_memory: false,
        }
    }

    fn parallel_from(&self) -> usize {
        // With fewer frames than this the second round trip costs more than the second stream brings.
        let frames = if self.streams.len() > 1 { PARALLEL_FRAMES_MIN } else { usize::MAX };
        frames.saturating_mul(self.connector.options.chunk_bytes as usize)
    }

    fn has_ended(&self) -> bool {
        let is_over = |stream: &Slot| match stream.try_lock() {
            Ok(slot) => slot.as_ref().is_none_or(|channel| channel.socket().has_ended()),
            Err(TryLockError::Poisoned(_)) => true,
            Err(TryLockError::WouldBlock) => false,
        };
        self.streams.iter().chain(&self.urgent).all(is_over)
    }

    fn read_to(&self, handle: Handle, runs: &[ByteRange], into: Destination<'_>) -> Result<(), FabricError> {
        self.transfer(FrameKind::Read, handle, runs, into.parts())
    }

    fn write_from(&self, handle: Handle, runs: &[ByteRange], from: Source<'_>) -> Result<(), FabricError> {
        self.transfer(FrameKind::Write, handle, runs, from.parts())
    }

    fn compare_and_swap(
        &self,
        handle: Handle,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, FabricError> {
        let mut operands = [0; 16];
        operands[..8].copy_from_slice(&expected.to_le_bytes());
        operands[8..].copy_from_slice(&desired.to_le_bytes());
        self.atomic(FrameKind::CompareSwap, handle, offset, &operands)
    }

    fn fetch_and_add(&self, handle: Handle, offset: u64, addend: u64) -> Result<u64, FabricError> {
        self.atomic(FrameKind::FetchAdd, handle, offset, &addend.to_le_bytes())
    }

    fn fetch(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        if question.len() > FETCH_BYTES_MAX as usize {
            let (value, limit) = (question.len() as u64, u64::from(FETCH_BYTES_MAX));
            return Err(FabricError::Limit { what: "question of a fetch", value, limit });
        }
        let room = into.len().min(FRAME_BODY_BYTES_MAX as usize);
        let request = Request {
            argument: room as u64,
            into: &[Part::of_mut(&mut into[..room])],
            ..plain(FrameKind::Fetch, question)
        };
        match self.exchange(&request, self.connector.options.timeout)? {
            Answer::Found(handle, bytes) => {
                let handle = (handle != Handle(0)).then_some(handle);
                Ok(Found { handle, bytes, placed: usize::try_from(bytes).unwrap_or(usize::MAX).min(room) })
            }
            other => Err(self.connector.unexpected(other, "a fetch")),
        }
    }

    fn call_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        check_call(body)?;
        self.reply(self.exchange(&plain(FrameKind::Call, body), within)?)
    }

    fn call(&self, body: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.call_within(body, self.connector.options.timeout)
    }

    fn queue(&self, streams: usize) -> Result<Box<dyn Queue>, FabricError> {
        let streams = if streams == 0 { self.streams.len() } else { streams.min(self.streams.len()) };
        Ok(Box::new(TcpQueue::open(self.connector.clone(), streams)?))
    }
}

impl TcpEndpoint {
    fn atomic(
        &self,
        kind: FrameKind,
        handle: Handle,
        offset: u64,
        operands: &[u8],
    ) -> Result<u64, FabricError> {
        if !offset.is_multiple_of(8) {
            return Err(FabricError::Unsupported { what: "swap a word that is not aligned to 8 bytes" });
        }
        let mut request = plain(kind, operands);
        request.handle = handle;
        request.argument = offset;
        match self.exchange(&request, self.connector.options.timeout)? {
            Answer::Word(word) => Ok(word),
            other => Err(self.connector.unexpected(other, "an atomic operation")),
        }
    }
}

impl Connector {
    /// Opens a connection and shakes hands.
    pub fn open(&self) -> Result<(Socket, Established), FabricError> {
        let (address, options) = (self.address, &self.options);
        let failed = |error: std::io::Error| FabricError::Connect {
            address: address.to_string(),
            reason: error.to_string(),
        };
        let socket = Socket::connect(address, options.timeout).map_err(failed)?;
        if let Some(tls) = &options.tls {
            let deadline = Instant::now() + options.timeout;
            socket.connect_tls(tls, deadline).map_err(|error| not_connected(address, &error))?;
        }
        let established = greet(&socket, address, &self.identity, options.timeout)?;
        let polling = established.features.has(Features::POLLING);
        socket.set_buffers(options.buffer_bytes, polling).map_err(failed)?;
        Ok((socket, established))
    }

    /// Opens a further stream of the session.
    pub fn join(&self) -> Result<Channel, FabricError> {
        match self.open() {
            Ok((socket, established)) => Ok(Channel::new(socket, &established)),
            Err(FabricError::Handshake { source: HandshakeError::Refused(refusal), .. })
                if refusal.code == RefusalCode::Ticket =>
            {
                Err(FabricError::SessionLost { peer: self.peer, reason: refusal.text })
            }
            Err(error) => Err(error),
        }
    }

    /// The channel of a slot, opened if it is not.
    pub fn ready<'a>(&self, slot: &'a mut Option<Channel>) -> Result<&'a mut Channel, FabricError> {
        match slot {
            Some(channel) => Ok(channel),
            None => Ok(slot.insert(self.join()?)),
        }
    }

    fn check(&self, patience: &Patience<'_>, channel: &Channel) -> Result<(), FabricError> {
        let (waited, during) = (patience.started.elapsed(), channel.during());
        if waited >= patience.within {
            return Err(FabricError::Timeout { peer: self.peer, during, after: patience.within });
        }
        if (patience.goes_on)() {
            return Ok(());
        }
        Err(FabricError::Timeout { peer: self.peer, during, after: waited })
    }

    /// Turns the answer to a read or write into a result.
    pub fn done(&self, answer: Answer) -> Result<(), FabricError> {
        match answer {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(other, "a read or write")),
        }
    }

    pub fn unexpected(&self, answer: Answer, during: &'static str) -> FabricError {
        match answer {
            Answer::Failed(error) => FabricError::Remote { peer: self.peer, error },
            _ => {
                let what = "it is an answer to something else";
                FabricError::WrongAnswer { peer: self.peer, during, what }
            }
        }
    }
}

fn features(options: &ClientOptions) -> Features {
    let polling = if options.mode == Mode::Polling { Features::POLLING } else { Features::default() };
    if options.rdma { polling.with(Features::RDMA) } else { polling }
}

pub(super) fn plain(kind: FrameKind, body: &[u8]) -> Request<'_> {
    Request {
        kind,
        handle: Handle(0),
        argument: 0,
        start: body,
        payload: &[],
        into: &[],
        tag: 0,
        checked: false,
    }
}

pub(super) fn check_call(body: &[u8]) -> Result<(), FabricError> {
    let (value, limit) = (body.len() as u64, u64::from(CONTROL_BYTES_MAX));
    if value <= limit { Ok(()) } else { Err(FabricError::Limit { what: "call", value, limit }) }
}
