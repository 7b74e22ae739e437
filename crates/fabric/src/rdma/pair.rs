//! Queue pairs and what they are made of, each ended when nobody holds it any more: a pair before its queues, memory before its domain.

use super::abi::{self, PairAttributes, PairCapacity, PairInit, Piece, SendRequest, WorkCompletion};
use super::device::{Device, Port};
use crate::slice::Slice;
use hinterland_proto::verbs::{PairAddress, PortKind};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Retransmissions: 268 ms each, seven times. A network that loses packets is survived, and a peer that is gone is noticed
/// within two seconds.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 6;
/// Tries when the peer has no buffer for a message, 7 for any number: a peer that takes nothing ends by its deadline.
const RECEIVER_RETRIES: u8 = 7;
/// 0.64 ms between those.
const RECEIVER_WAIT: u8 = 12;
/// Reads and atomics at once on one pair, as every device can.
const READS: u8 = 8;
const HOPS: u8 = 64;

fn failed(what: &str) -> io::Error {
    let error = io::Error::last_os_error();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A protection domain: keys of its memory open nothing on pairs of another one.
pub(super) struct Domain {
    raw: *mut abi::Domain,
    pub device: Arc<Device>,
}

// SAFETY: the library's functions may be called from any thread; the domain is ended once, by `drop`.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(device: &Arc<Device>) -> io::Result<Self> {
        // SAFETY: an open context.
        let raw = unsafe { (device.library.alloc_pd)(device.context) };
        if raw.is_null() {
            return Err(failed("making a protection domain"));
        }
        Ok(Self { raw, device: Arc::clone(device) })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made by `new` and ended here only; everything inside holds an `Arc` of this.
        unsafe { (self.device.library.dealloc_pd)(self.raw) };
    }
}

/// Memory that a device may reach, until this is dropped.
pub(super) struct Registered {
    raw: *mut abi::Region,
    pub memory: Slice,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// Whether devices of this host refused memory that is paged in on demand: asked once.
static NO_PAGING: AtomicBool = AtomicBool::new(false);

impl Registered {
    /// Registers memory with these rights (`abi::REMOTE_READ` and its like), on demand where the device can.
    pub fn new(domain: &Arc<Domain>, memory: Slice, access: i32) -> io::Result<Self> {
        let library = domain.device.library;
        let register = |access| {
            // SAFETY: a live domain; the slice keeps the memory mapped as long as the registration, which `Self` ends first.
            unsafe { (library.reg_mr)(domain.raw, memory.as_ptr().cast(), memory.len(), access) }
        };
        let mut raw = std::ptr::null_mut();
        // Relaxed: a hint about the hardware; nothing is published through it.
        if !NO_PAGING.load(Ordering::Relaxed) {
            raw = register(access | abi::ON_DEMAND);
        }
        if raw.is_null() {
            raw = register(access);
            // A device that is gone refuses either, and says nothing about the others.
            NO_PAGING.fetch_or(!raw.is_null(), Ordering::Relaxed);
        }
        if raw.is_null() {
            return Err(failed("registering memory"));
        }
        Ok(Self { raw, memory, domain: Arc::clone(domain) })
    }

    pub fn local_key(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.raw).local_key }
    }

    pub fn remote_key(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.raw).remote_key }
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: made by `new` and ended here only.
        unsafe { (self.domain.device.library.dereg_mr)(self.raw) };
    }
}

/// A queue of completions and the descriptor that tells of them.
pub(super) struct Completions {
    raw: *mut abi::CompletionQueue,
    channel: *mut abi::Channel,
    device: Arc<Device>,
}

// SAFETY: drivers lock their completion queues; both objects are ended once, by `drop`.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    pub fn new(device: &Arc<Device>, entries: i32) -> io::Result<Self> {
        let library = device.library;
        // SAFETY: an open context.
        let channel = unsafe { (library.create_comp_channel)(device.context) };
        if channel.is_null() {
            return Err(failed("making a completion channel"));
        }
        // SAFETY: a live channel; its descriptor is open.
        unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
        // SAFETY: an open context and a live channel of it.
        let raw = unsafe { (library.create_cq)(device.context, entries, std::ptr::null_mut(), channel, 0) };
        if raw.is_null() {
            let error = failed("making a completion queue");
            // SAFETY: made above, and nothing uses it.
            unsafe { (library.destroy_comp_channel)(channel) };
            return Err(error);
        }
        Ok(Self { raw, channel, device: Arc::clone(device) })
    }

    /// Takes what is complete; returns how many.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> io::Result<usize> {
        let most = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: a live queue, whose context has the table of its driver.
        let poll = unsafe { (*(*self.raw).context).poll_cq };
        let Some(poll) = poll else { return Err(io::Error::other("the driver cannot poll")) };
        // SAFETY: a live queue and room for `most` completions.
        let count = unsafe { poll(self.raw, most, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| io::Error::other("polling a completion queue failed"))
    }

    /// Asks that the next completion be told by the descriptor; poll once more before sleeping.
    pub fn arm(&self) {
        // SAFETY: as in `poll`.
        if let Some(arm) = unsafe { (*(*self.raw).context).req_notify_cq } {
            // SAFETY: a live queue.
            unsafe { arm(self.raw, 0) };
        }
    }

    /// Sleeps until a completion is told, at most `within`.
    pub fn sleep(&self, within: Duration) {
        let milliseconds = i32::try_from(within.as_millis().max(1)).unwrap_or(i32::MAX);
        let mut ready = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        let count = unsafe { libc::poll(&raw mut ready, 1, milliseconds) };
        if count > 0 {
            self.take_events();
        }
    }

    /// What tells of completions, after `arm`.
    pub fn descriptor(&self) -> i32 {
        // SAFETY: a live channel; its descriptor is open.
        unsafe { (*self.channel).fd }
    }

    /// Takes what the descriptor told.
    pub fn take_events(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let library = self.device.library;
        // SAFETY: a live channel that does not block, and room for both answers.
        while unsafe { (library.get_cq_event)(self.channel, &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: the event was just taken from this queue, the only one of the channel.
            unsafe { (library.ack_cq_events)(queue, 1) };
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let library = self.device.library;
        // SAFETY: made by `new` and ended here only; pairs hold an `Arc` of this, so none is left. All events that were
        // taken were acknowledged.
        unsafe {
            (library.destroy_cq)(self.raw);
            (library.destroy_comp_channel)(self.channel);
        }
    }
}

/// Buffers for messages that all pairs of a domain share.
pub(super) struct Receives {
    raw: *mut abi::SharedReceive,
    buffers: Registered,
    buffer_bytes: usize,
}

// SAFETY: drivers lock shared receive queues; it is ended once, by `drop`.
unsafe impl Send for Receives {}
// SAFETY: as above.
unsafe impl Sync for Receives {}

impl Receives {
    /// `count` buffers, all offered.
    pub fn new(domain: &Arc<Domain>, count: usize, buffer_bytes: usize) -> io::Result<Self> {
        let memory = Slice::zeroed(count * buffer_bytes);
        let buffers = Registered::new(domain, memory, abi::LOCAL_WRITE)?;
        let requests = u32::try_from(count).unwrap_or(u32::MAX);
        let mut init =
            abi::SharedReceiveInit { context: std::ptr::null_mut(), requests, pieces: 1, limit: 0 };
        // SAFETY: a live domain and a filled description.
        let raw = unsafe { (domain.device.library.create_srq)(domain.raw, &raw mut init) };
        if raw.is_null() {
            return Err(failed("making a shared receive queue"));
        }
        let receives = Self { raw, buffers, buffer_bytes };
        (0..count).try_for_each(|index| receives.offer(index))?;
        Ok(receives)
    }

    /// Offers a buffer (again).
    pub fn offer(&self, index: usize) -> io::Result<()> {
        let mut piece = Piece {
            address: self.buffers.address() + (index * self.buffer_bytes) as u64,
            bytes: u32::try_from(self.buffer_bytes).unwrap_or(u32::MAX),
            local_key: self.buffers.local_key(),
        };
        let mut request = abi::ReceiveRequest {
            tag: index as u64,
            next: std::ptr::null_mut(),
            pieces: &raw mut piece,
            piece_count: 1,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue, whose context has the table of its driver.
        let post = unsafe { (*(*self.raw).context).post_srq_recv };
        // SAFETY: request and piece live during the call; the buffer lives as long as the queue.
        let result = post.map(|post| unsafe { post(self.raw, &raw mut request, &raw mut bad) });
        if result == Some(0) {
            Ok(())
        } else {
            Err(io::Error::other("offering a buffer for messages failed"))
        }
    }

    /// A copy of the first bytes of a buffer that a message came into.
    pub fn message(&self, index: usize, bytes: usize) -> Option<Vec<u8>> {
        let bytes = bytes.min(self.buffer_bytes);
        Some(self.buffers.memory.sub(index.checked_mul(self.buffer_bytes)?, bytes)?.to_vec())
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        // SAFETY: made by `new` and ended here only; pairs hold an `Arc` of this, so none is left. Buffers go after it.
        unsafe { (self.buffers.domain.device.library.destroy_srq)(self.raw) };
    }
}

/// A reliable connection to one pair of the peer.
pub(super) struct QueuePair {
    raw: *mut abi::Pair,
    pub inline_bytes: usize,
    pub completions: Arc<Completions>,
    pub receives: Arc<Receives>,
    domain: Arc<Domain>,
}

// SAFETY: drivers lock their queues; the pair is ended once, by `drop`.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a pair that is not connected yet.
    pub fn new(
        domain: &Arc<Domain>,
        receives: &Arc<Receives>,
        completions: &Arc<Completions>,
        send_requests: u32,
        inline_bytes: u32,
    ) -> io::Result<Self> {
        let make = |inline_bytes| {
            let mut init = PairInit {
                context: std::ptr::null_mut(),
                send_queue: completions.raw,
                receive_queue: completions.raw,
                shared_receive: receives.raw,
                capacity: PairCapacity {
                    send_requests,
                    send_pieces: 1,
                    inline_bytes,
                    ..PairCapacity::default()
                },
                kind: abi::RELIABLE,
                all_signalled: 0,
            };
            // SAFETY: live objects of one device, and a filled description, which says afterwards what was given.
            let raw = unsafe { (domain.device.library.create_qp)(domain.raw, &raw mut init) };
            (raw, init.capacity.inline_bytes as usize)
        };
        let (mut raw, mut inline) = make(inline_bytes);
        if raw.is_null() && inline_bytes > 0 {
            (raw, inline) = make(0);
        }
        if raw.is_null() {
            return Err(failed("making a queue pair"));
        }
        Ok(Self {
            raw,
            inline_bytes: inline,
            completions: Arc::clone(completions),
            receives: Arc::clone(receives),
            domain: Arc::clone(domain),
        })
    }

    pub fn domain(&self) -> Arc<Domain> {
        Arc::clone(&self.domain)
    }

    pub fn number(&self) -> u32 {
        // SAFETY: a live pair.
        unsafe { (*self.raw).number }
    }

    /// Connects to the peer's pair; `access` is what the peer may do to registered memory.
    pub fn connect(&self, port: &Port, sequence: u32, peer: &PairAddress, access: i32) -> io::Result<()> {
        let mut wanted = PairAttributes::zeroed();
        wanted.state = abi::STATE_INIT;
        wanted.port = port.number;
        wanted.access = access.unsigned_abs();
        self.modify(&mut wanted, abi::MASK_INIT, "preparing a queue pair")?;
        wanted.state = abi::STATE_READY_TO_RECEIVE;
        wanted.path_mtu = i32::from(port.address.mtu.min(peer.port.mtu));
        wanted.peer_number = peer.pair;
        wanted.receive_sequence = peer.sequence;
        wanted.reads_in_max = READS;
        wanted.receiver_wait = RECEIVER_WAIT;
        wanted.path.port = port.number;
        wanted.path.lid = peer.port.lid;
        wanted.path.is_global = u8::from(port.address.kind != PortKind::InfiniBand);
        wanted.path.gid = peer.port.gid;
        wanted.path.gid_index = port.gid_index;
        wanted.path.hop_limit = HOPS;
        self.modify(&mut wanted, abi::MASK_READY_TO_RECEIVE, "addressing the peer's queue pair")?;
        wanted.state = abi::STATE_READY_TO_SEND;
        wanted.timeout = TIMEOUT;
        wanted.retries = RETRIES;
        wanted.receiver_retries = RECEIVER_RETRIES;
        wanted.send_sequence = sequence;
        wanted.reads_out_max = READS;
        self.modify(&mut wanted, abi::MASK_READY_TO_SEND, "connecting a queue pair")
    }

    /// Ends all that is in flight: it completes with an error, and nothing reaches memory through this pair any more.
    pub fn fail(&self) {
        let mut wanted = PairAttributes::zeroed();
        wanted.state = abi::STATE_ERROR;
        // A pair that cannot be moved there is in that state, or its device is gone.
        let _ = self.modify(&mut wanted, abi::MASK_STATE, "ending a queue pair");
    }

    fn modify(&self, wanted: &mut PairAttributes, mask: i32, what: &str) -> io::Result<()> {
        // SAFETY: a live pair and filled attributes.
        let error = unsafe { (self.domain.device.library.modify_qp)(self.raw, wanted, mask) };
        if error == 0 {
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(error);
        Err(io::Error::new(error.kind(), format!("{what}: {error}")))
    }

    /// Posts a list of requests with one ring of the doorbell.
    ///
    /// # Safety
    /// The memory that their pieces name must stay, and to them alone, until the last completed or the pair was dropped;
    /// inline requests copy it during the call.
    pub unsafe fn post(&self, requests: &mut [SendRequest]) -> io::Result<()> {
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        let Some(first) = requests.first_mut() else { return Ok(()) };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live pair, whose context has the table of its driver.
        let post = unsafe { (*(*self.raw).context).post_send };
        // SAFETY: the list is linked above and lives during the call; the caller vouches for the memory.
        let result = post.map(|post| unsafe { post(self.raw, first, &raw mut bad) });
        match result {
            Some(0) => Ok(()),
            _ => Err(io::Error::other("posting to a queue pair failed")),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by `new` and ended here only; queues and domain are held by this and go after it.
        unsafe { (self.domain.device.library.destroy_qp)(self.raw) };
    }
}
