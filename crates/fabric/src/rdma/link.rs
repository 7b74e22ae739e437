//! The client's end of one queue pair: chunks of registered memory through which bytes pass, and one call at a time.
//!
//! All bytes pass through memory of the link. So a device never writes into memory that its owner took back: whoever gives up
//! waiting fails the link and leaves its memory to it.

use super::MESSAGE_BYTES;
use super::abi::{self, Piece, SendRequest, WorkCompletion};
use super::links::Ends;
use super::pair::{QueuePair, Registered};
use crate::slice::Slice;
use hinterland_proto::checksum::crc32c;
use hinterland_proto::{FrameHeader, FrameKind, FrameReceiver, FrameSender, HEADER_BYTES, RemoteError};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of one chunk: long enough that a packet's cost does not show, short enough that copying overlaps with moving.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of one link: 1 MiB of locked memory.
pub(super) const CHUNKS: usize = 16;
/// Runs that are posted with one ring of the doorbell, all into one chunk.
pub(super) const RUNS_MAX: usize = 16;
/// Requests of one chunk: a run may need [two](Order::by_words).
const REQUESTS_MAX: usize = 2 * RUNS_MAX;
/// Requests that a pair may have under way: all chunks, and a call.
pub(super) const SENDS: u32 = (CHUNKS * REQUESTS_MAX + 8) as u32;
/// Completions that a pair may have under way: after a failure each request has one.
pub(super) const COMPLETIONS: i32 = (CHUNKS * REQUESTS_MAX + 8 + super::RECEIVES) as i32;
/// Bytes of the smallest packet that two ports may agree on.
const PACKET_BYTES_MIN: usize = 256;
/// The tag of a call's message.
const CALL: u64 = u64::MAX;

/// One request to the device.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// `abi::RDMA_READ` and its like.
    pub operation: i32,
    pub remote: u64,
    pub key: u32,
    /// Where in the chunk.
    pub offset: usize,
    pub bytes: usize,
    /// Of a swap or an addition.
    pub operands: [u64; 2],
}

impl Order {
    /// The same as one request, or as two: a device reads and writes memory packet by packet, and all packets but the last hold whole
    /// words. If the first begins with one, no word of 8 bytes is in two packets.
    fn by_words(self) -> [Option<Self>; 2] {
        let head = self.remote.wrapping_neg() as usize % size_of::<u64>();
        let is_moved = matches!(self.operation, abi::RDMA_READ | abi::RDMA_WRITE);
        if head == 0 || self.bytes <= PACKET_BYTES_MIN || !is_moved {
            return [Some(self), None];
        }
        // The address was granted as far as the order goes.
        let (remote, offset) = (self.remote + head as u64, self.offset + head);
        [Some(Self { bytes: head, ..self }), Some(Self { remote, offset, bytes: self.bytes - head, ..self })]
    }
}

/// What became of a chunk's orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Done,
    /// The link failed: the peer's device refused the access, if `refused`.
    Failed {
        refused: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Flying,
    Over(Fate),
}

/// What has come of an answer.
pub(super) enum Answer {
    Reply(Vec<u8>),
    Error(RemoteError),
}

pub(super) struct Link {
    // Before the memory: a pair that is gone touches none.
    pair: QueuePair,
    memory: Registered,
    out: Registered,
    pub ends: Ends,
    /// The peer's queue pair.
    pub peer_pair: u32,
    failed: AtomicBool,
    /// Completions are lost, as by a device that is broken: bytes move and nobody is told.
    #[cfg(test)]
    pub swallows: AtomicBool,
    state: Mutex<State>,
}

struct State {
    slots: [Slot; CHUNKS],
    free: Vec<usize>,
    sender: FrameSender,
    receiver: FrameReceiver,
    request_next: u64,
    calling: bool,
    inbox: Vec<u8>,
}

impl Link {
    pub fn new(pair: QueuePair, ends: Ends, peer_pair: u32, frames: (u64, u64)) -> io::Result<Self> {
        let domain = pair.domain();
        let memory = Registered::new(&domain, Slice::zeroed(CHUNKS * CHUNK_BYTES), abi::LOCAL_WRITE)?;
        let out = Registered::new(&domain, Slice::zeroed(MESSAGE_BYTES), abi::LOCAL_WRITE)?;
        let state = State {
            slots: [Slot::Free; CHUNKS],
            free: (0..CHUNKS).rev().collect(),
            sender: FrameSender::new(frames.0),
            receiver: FrameReceiver::new(frames.1),
            request_next: 1,
            calling: false,
            inbox: Vec::new(),
        };
        Ok(Self {
            pair,
            memory,
            out,
            ends,
            peer_pair,
            failed: AtomicBool::new(false),
            #[cfg(test)]
            swallows: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the link is of no more use.
    pub fn has_failed(&self) -> bool {
        // Acquire: pairs with the Release in `fail`.
        self.failed.load(Ordering::Acquire)
    }

    /// Gives up on the link: what is under way is over.
    pub fn fail(&self) {
        self.fail_as(&mut self.state(), false);
    }

    fn fail_as(&self, state: &mut State, refused: bool) {
        // Release: pairs with the Acquire in `has_failed`.
        if !self.failed.swap(true, Ordering::Release) {
            self.pair.fail();
        }
        for slot in &mut state.slots {
            if *slot == Slot::Flying {
                *slot = Slot::Over(Fate::Failed { refused });
            }
        }
    }

    /// A chunk for one thread, `None` if all are in use or the link has failed.
    pub fn reserve(&self) -> Option<usize> {
        if self.has_failed() { None } else { self.state().free.pop() }
    }

    /// Gives a chunk back that has no orders under way.
    pub fn release(&self, chunk: usize) {
        let mut state = self.state();
        state.slots[chunk] = Slot::Free;
        state.free.push(chunk);
    }

    /// The memory of a chunk.
    pub fn chunk(&self, chunk: usize) -> *mut u8 {
        self.memory.memory.as_ptr().wrapping_add(chunk * CHUNK_BYTES)
    }

    /// Posts the orders of a reserved chunk with one ring of the doorbell; `take` tells when they are over.
    pub fn begin(&self, chunk: usize, orders: &[Order]) {
        let mut pieces = [Piece::default(); REQUESTS_MAX];
        let mut requests = [SendRequest::new(chunk as u64, 0); REQUESTS_MAX];
        let mut count = 0;
        let orders = orders.iter().take(RUNS_MAX).flat_map(|order| order.by_words()).flatten();
        for ((order, piece), request) in orders.zip(&mut pieces).zip(&mut requests) {
            count += 1;
            *piece = Piece {
                address: self.memory.address() + (chunk * CHUNK_BYTES + order.offset) as u64,
                // A chunk is far below 4 GiB.
                bytes: order.bytes as u32,
                local_key: self.memory.local_key(),
            };
            request.operation = order.operation;
            request.pieces = piece;
            request.piece_count = 1;
            request.remote = match order.operation {
                abi::RDMA_READ | abi::RDMA_WRITE => [order.remote, u64::from(order.key), 0, 0],
                _ => [order.remote, order.operands[0], order.operands[1], u64::from(order.key)],
            };
            if order.operation == abi::RDMA_WRITE && order.bytes <= self.pair.inline_bytes {
                request.flags = abi::INLINE;
            }
        }
        if let Some(last) = requests[..count].last_mut() {
            last.flags |= abi::SIGNALLED;
        }
        let mut state = self.state();
        state.slots[chunk] = Slot::Flying;
        // SAFETY: the chunk was reserved by the caller and is given out again only after its fate is known; when the link is
        // dropped, the pair goes before the memory.
        let posted = !self.has_failed() && unsafe { self.pair.post(&mut requests[..count]) }.is_ok();
        if !posted {
            self.fail_as(&mut state, false);
        }
    }

    /// The fate of a chunk's orders, once it is known; the chunk stays reserved.
    pub fn take(&self, chunk: usize) -> Option<Fate> {
        match self.state().slots[chunk] {
            Slot::Over(fate) => Some(fate),
            Slot::Free | Slot::Flying => None,
        }
    }

    /// Looks what is complete; returns whether anything was.
    pub fn poll(&self) -> bool {
        let mut completions = [WorkCompletion::default(); 16];
        let mut state = self.state();
        let Ok(count) = self.pair.completions.poll(&mut completions) else {
            self.fail_as(&mut state, false);
            return true;
        };
        #[cfg(test)]
        // Relaxed: set by a test before it reads.
        if self.swallows.load(Ordering::Relaxed) {
            return false;
        }
        for completion in &completions[..count] {
            if completion.status != abi::STATUS_GOOD {
                self.fail_as(&mut state, completion.status == abi::STATUS_REMOTE_ACCESS);
            } else if completion.operation & abi::IS_RECEIVE != 0 {
                let index = usize::try_from(completion.tag).unwrap_or(usize::MAX);
                let message = self.pair.receives.message(index, completion.bytes as usize);
                let expected = state.calling && message.is_some() && self.pair.receives.offer(index).is_ok();
                if !expected {
                    // Nobody asked: the peer is broken or hostile.
                    self.fail_as(&mut state, false);
                }
                state.inbox.extend(message.unwrap_or_default());
            } else if let Some(slot) =
                state.slots.get_mut(usize::try_from(completion.tag).unwrap_or(usize::MAX))
                && *slot == Slot::Flying
            {
                *slot = Slot::Over(Fate::Done);
            }
        }
        count > 0
    }

    /// Asks the descriptor to tell of the next completion; poll once more before sleeping on it.
    pub fn arm(&self) {
        self.pair.completions.arm();
    }

    /// What tells of completions.
    pub fn descriptor(&self) -> i32 {
        self.pair.completions.descriptor()
    }

    /// Takes what the descriptor told.
    pub fn woken(&self) {
        self.pair.completions.take_events();
    }

    /// Starts a call, if the link has none under way and the body is short enough.
    pub fn call(&self, body: &[u8]) -> bool {
        let whole = HEADER_BYTES + body.len();
        if whole > MESSAGE_BYTES || self.has_failed() {
            return false;
        }
        let mut state = self.state();
        if state.calling {
            return false;
        }
        state.calling = true;
        state.inbox.clear();
        // At most `MESSAGE_BYTES`.
        let mut header = FrameHeader::new(FrameKind::Call, state.request_next, body.len() as u32);
        header.body_crc = Some(crc32c(body));
        let sealed = state.sender.seal(header);
        self.out.memory.copy_in(0, &sealed);
        self.out.memory.copy_in(HEADER_BYTES, body);
        let mut piece =
            Piece { address: self.out.address(), bytes: whole as u32, local_key: self.out.local_key() };
        let mut request = SendRequest::new(CALL, abi::SEND);
        request.pieces = &raw mut piece;
        request.piece_count = 1;
        request.flags = abi::SIGNALLED | if whole <= self.pair.inline_bytes { abi::INLINE } else { 0 };
        // SAFETY: the buffer is written again only after the answer came, so after the peer had the message; when the link
        // is dropped, the pair goes before the memory.
        if unsafe { self.pair.post(std::slice::from_mut(&mut request)) }.is_err() {
            self.fail_as(&mut state, false);
        }
        true
    }

    /// The answer to the call, once it is whole; an error if the link failed or the answer makes no sense.
    pub fn answer(&self) -> Result<Option<Answer>, &'static str> {
        let mut state = self.state();
        if let Some(head) = state.inbox.first_chunk::<HEADER_BYTES>() {
            let head = *head;
            let bytes = FrameHeader::parse(&head).map_or(0, |header| header.body_bytes as usize);
            if state.inbox.len() >= HEADER_BYTES + bytes {
                let answer = read_answer(&mut state, &head, bytes);
                state.calling = false;
                if answer.is_err() {
                    self.fail_as(&mut state, false);
                }
                return answer.map(Some);
            }
        }
        if self.has_failed() { Err("the queue pair failed") } else { Ok(None) }
    }
}

fn read_answer(state: &mut State, head: &[u8; HEADER_BYTES], bytes: usize) -> Result<Answer, &'static str> {
    let header = state.receiver.accept(head).map_err(|_| "the frame is wrong")?;
    let body = state.inbox.split_off(HEADER_BYTES);
    state.inbox.clear();
    if header.request != state.request_next || body.len() != bytes {
        return Err("it answers another request");
    }
    state.request_next += 1;
    header.check_body(|| crc32c(&body)).map_err(|_| "its checksum does not fit")?;
    match header.kind {
        FrameKind::Reply => Ok(Answer::Reply(body)),
        FrameKind::Error => Ok(Answer::Error(RemoteError::from_body(&body))),
        _ => Err("it is an answer to something else"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_begin_with_a_word_and_lose_no_byte() {
        for (remote, bytes, operation) in (4096..4104)
            .flat_map(|remote| {
                [8, PACKET_BYTES_MIN, PACKET_BYTES_MIN + 1, CHUNK_BYTES].map(|bytes| (remote, bytes))
            })
            .flat_map(|(remote, bytes)| {
                [abi::RDMA_READ, abi::RDMA_WRITE].map(|operation| (remote, bytes, operation))
            })
        {
            let order = Order { operation, remote, key: 7, offset: 100, bytes, operands: [0; 2] };
            let (mut at, mut offset) = (remote, 100);
            for request in order.by_words().into_iter().flatten() {
                assert_eq!((request.remote, request.offset, request.key), (at, offset, 7));
                assert!(request.bytes <= PACKET_BYTES_MIN || at.is_multiple_of(8), "{remote} {bytes}");
                assert!(request.bytes > 0 && request.operation == operation);
                (at, offset) = (at + request.bytes as u64, offset + request.bytes);
            }
            assert_eq!((at, offset), (remote + bytes as u64, 100 + bytes));
        }
        let swap =
            Order { operation: abi::SEND, remote: 4, key: 7, offset: 0, bytes: 1000, operands: [0; 2] };
        assert!(swap.by_words()[1].is_none());
    }
}
