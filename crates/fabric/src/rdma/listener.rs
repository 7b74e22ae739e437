//! Answers the calls that come over one queue pair, on a thread of its own: frames as on a stream, in messages.

use super::abi::{self, Piece, SendRequest, WorkCompletion};
use super::host::SessionHost;
use super::pair::{QueuePair, Registered};
use super::{MESSAGE_BYTES, RECEIVES};
use crate::service::Service;
use crate::slice::Slice;
use hinterland_proto::checksum::crc32c;
use hinterland_proto::{
    ErrorCode, FrameHeader, FrameKind, FrameReceiver, FrameSender, HEADER_BYTES, RemoteError,
};
use hinterland_types::limits::CONTROL_BYTES_MAX;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Messages of an answer that may be under way at once.
const SENDS: usize = 4;
/// Polls before the thread sleeps.
const POLLS: u32 = 64;
/// Longest sleep before the thread looks whether it shall end.
const SLICE: Duration = Duration::from_millis(100);
/// How long a peer may leave no room for an answer.
const STALL: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 512 << 10;

/// A pair and its thread; dropped, the pair fails and the thread has ended.
pub(super) struct Listener {
    pair: Arc<QueuePair>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub fn number(&self) -> u32 {
        self.pair.number()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `run`.
        self.stopping.store(true, Ordering::Release);
        self.pair.fail();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Starts the thread of a connected pair.
pub(super) fn listen(
    pair: QueuePair,
    host: &Arc<SessionHost>,
    service: &Arc<dyn Service>,
    send_sequence: u64,
    receive_sequence: u64,
) -> io::Result<Listener> {
    let pair = Arc::new(pair);
    let domain = pair.domain();
    let out = Registered::new(&domain, Slice::zeroed(SENDS * MESSAGE_BYTES), abi::LOCAL_WRITE)?;
    let stopping = Arc::new(AtomicBool::new(false));
    let mut call = Calls {
        pair: Arc::clone(&pair),
        out,
        free: (0..SENDS).collect(),
        inbox: VecDeque::new(),
        host: Arc::downgrade(host),
        service: Arc::clone(service),
        sender: FrameSender::new(send_sequence),
        receiver: FrameReceiver::new(receive_sequence),
        stopping: Arc::clone(&stopping),
    };
    let thread = std::thread::Builder::new().name("fabric-rdma".to_owned()).stack_size(STACK_BYTES).spawn(
        move || {
            // Whatever ended it, the peer must notice.
            let _ = call.run();
            call.pair.fail();
        },
    )?;
    Ok(Listener { pair, stopping, thread: Some(thread) })
}

struct Calls {
    pair: Arc<QueuePair>,
    out: Registered,
    /// Buffers for answers that are not under way.
    free: Vec<usize>,
    inbox: VecDeque<Vec<u8>>,
    /// Weak: the session owns the pair, not the other way round.
    host: Weak<SessionHost>,
    service: Arc<dyn Service>,
    sender: FrameSender,
    receiver: FrameReceiver,
    stopping: Arc<AtomicBool>,
}

impl Calls {
    fn run(&mut self) -> io::Result<()> {
        // Acquire: pairs with the Release in `drop` of the listener.
        while !self.stopping.load(Ordering::Acquire) {
            match self.inbox.pop_front() {
                Some(message) => self.serve(&message)?,
                None => self.wait()?,
            }
        }
        Ok(())
    }

    /// Takes completions, after a sleep if there are none.
    fn wait(&mut self) -> io::Result<()> {
        for _ in 0..POLLS {
            if self.take()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.pair.completions.arm();
        if !self.take()? {
            self.pair.completions.sleep(SLICE);
        }
        Ok(())
    }

    fn take(&mut self) -> io::Result<bool> {
        let mut completions = [WorkCompletion::default(); 16];
        let count = self.pair.completions.poll(&mut completions)?;
        for completion in &completions[..count] {
            if completion.status != abi::STATUS_GOOD {
                return Err(io::Error::other("the queue pair failed"));
            }
            let index = usize::try_from(completion.tag).unwrap_or(usize::MAX);
            if completion.operation & abi::IS_RECEIVE == 0 {
                self.free.push(index);
                continue;
            }
            let message = self.pair.receives.message(index, completion.bytes as usize);
            self.pair.receives.offer(index)?;
            if self.inbox.len() >= RECEIVES {
                // While an answer waits for room at the peer, its messages are taken off the queue with the completions.
                return Err(io::Error::other("the peer sends more than it may before it hears an answer"));
            }
            self.inbox.extend(message);
        }
        Ok(count > 0)
    }

    fn serve(&mut self, message: &[u8]) -> io::Result<()> {
        let bad = || io::Error::other("a message that makes no sense");
        let head = message.first_chunk::<HEADER_BYTES>().ok_or_else(bad)?;
        let header = self.receiver.accept(head).map_err(|_| bad())?;
        let body = &message[HEADER_BYTES..];
        if header.kind != FrameKind::Call || header.body_bytes as usize != body.len() {
            return Err(bad());
        }
        header.check_body(|| crc32c(body)).map_err(|_| bad())?;
        let Some(host) = self.host.upgrade() else { return Err(bad()) };
        let answer = self.service.call(host.session, body);
        host.revalidate(&*self.service);
        // Relaxed: a count.
        host.host.calls.fetch_add(1, Ordering::Relaxed);
        drop(host);
        let (kind, body) = match answer {
            Ok(body) if body.len() <= CONTROL_BYTES_MAX as usize => (FrameKind::Reply, body),
            Ok(body) => {
                let text =
                    format!("the answer of {} bytes is over the limit of {CONTROL_BYTES_MAX}", body.len());
                (FrameKind::Error, RemoteError::new(ErrorCode::LIMIT, text).to_body())
            }
            Err(error) => (FrameKind::Error, error.to_body()),
        };
        let mut reply = FrameHeader::new(kind, header.request, u32::try_from(body.len()).unwrap_or(0));
        reply.body_crc = Some(crc32c(&body));
        let sealed = self.sender.seal(reply);
        let whole = [&sealed[..], &body].concat();
        whole.chunks(MESSAGE_BYTES).try_for_each(|piece| self.send(piece))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let started = Instant::now();
        let index = loop {
            if let Some(index) = self.free.pop() {
                break index;
            }
            // Acquire: as in `run`.
            if self.stopping.load(Ordering::Acquire) || started.elapsed() > STALL {
                return Err(io::Error::other("the peer takes no answer"));
            }
            self.wait()?;
        };
        self.out.memory.copy_in(index * MESSAGE_BYTES, bytes);
        let mut piece = Piece {
            address: self.out.address() + (index * MESSAGE_BYTES) as u64,
            bytes: u32::try_from(bytes.len()).unwrap_or(0),
            local_key: self.out.local_key(),
        };
        let mut request = SendRequest::new(index as u64, abi::SEND);
        request.pieces = &raw mut piece;
        request.piece_count = 1;
        request.flags = abi::SIGNALLED | if bytes.len() <= self.pair.inline_bytes { abi::INLINE } else { 0 };
        // SAFETY: the buffer is ours until its completion gives it back, and `out` outlives the pair's work: when this is
        // dropped, the pair has failed and nothing is under way.
        unsafe { self.pair.post(std::slice::from_mut(&mut request)) }
    }
}
