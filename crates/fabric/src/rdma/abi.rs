//! The binary interface of libibverbs (`IBVERBS_1.1`), as far as it is used: layouts, numbers, and the library, loaded at run time.
//!
//! The interface is frozen: libraries and drivers of different releases work together by these very layouts, which the
//! assertions at the end pin down. Functions that move data are not symbols of the library but entries of a table in each
//! device's context, because drivers provide them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Opaque: a device that may be opened.
#[repr(C)]
pub(super) struct Device {
    _opaque: [u8; 0],
}
/// Opaque: a protection domain.
#[repr(C)]
pub(super) struct Domain {
    _opaque: [u8; 0],
}

/// The part of an opened device that callers may look into.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    before_poll: [*const c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    before_srq: [*const c_void; 7],
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut SharedReceive, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int,
    >,
    before_send: [*const c_void; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Pair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    post_recv: *const c_void,
    behind: [*const c_void; 5],
    cmd_fd: c_int,
    pub async_fd: c_int,
}

/// A port; the library writes fewer bytes than this, in every release.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttributes {
    pub state: c_int,
    pub mtu_max: c_int,
    pub mtu: c_int,
    between: [u8; 22],
    pub lid: u16,
    middle: [u8; 10],
    pub link_layer: u8,
    rest: [u8; 81],
}

#[repr(C)]
pub(super) struct CompletionQueue {
    pub context: *mut Context,
}

#[repr(C)]
pub(super) struct SharedReceive {
    pub context: *mut Context,
}

#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub fd: c_int,
    refcnt: c_int,
}

#[repr(C)]
pub(super) struct Pair {
    pub context: *mut Context,
    between: [u8; 44],
    pub number: u32,
}

#[repr(C)]
pub(super) struct Region {
    context: *mut Context,
    domain: *mut Domain,
    address: *mut c_void,
    length: usize,
    handle: u32,
    pub local_key: u32,
    pub remote_key: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PairCapacity {
    pub send_requests: u32,
    pub receive_requests: u32,
    pub send_pieces: u32,
    pub receive_pieces: u32,
    pub inline_bytes: u32,
}

#[repr(C)]
pub(super) struct PairInit {
    pub context: *mut c_void,
    pub send_queue: *mut CompletionQueue,
    pub receive_queue: *mut CompletionQueue,
    pub shared_receive: *mut SharedReceive,
    pub capacity: PairCapacity,
    pub kind: c_int,
    pub all_signalled: c_int,
}

#[repr(C)]
pub(super) struct SharedReceiveInit {
    pub context: *mut c_void,
    pub requests: u32,
    pub pieces: u32,
    pub limit: u32,
}

/// How packets find the other side.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub gid: [u8; 16],
    pub flow_label: u32,
    pub gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pad: u8,
    pub lid: u16,
    pub service_level: u8,
    pub source_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
    end: u8,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct PairAttributes {
    pub state: c_int,
    pub state_now: c_int,
    pub path_mtu: c_int,
    pub migration: c_int,
    pub qkey: u32,
    pub receive_sequence: u32,
    pub send_sequence: u32,
    pub peer_number: u32,
    pub access: c_uint,
    pub capacity: PairCapacity,
    pub path: Path,
    pub path_other: Path,
    pub pkey_index: u16,
    pub pkey_index_other: u16,
    pub drain_notify: u8,
    pub draining: u8,
    pub reads_out_max: u8,
    pub reads_in_max: u8,
    pub receiver_wait: u8,
    pub port: u8,
    pub timeout: u8,
    pub retries: u8,
    pub receiver_retries: u8,
    pub port_other: u8,
    pub timeout_other: u8,
    end: [u8; 9],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub local_key: u32,
}

/// A request to send; `remote` is address, key and operands, by the kind of operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendRequest {
    pub tag: u64,
    pub next: *mut SendRequest,
    pub pieces: *mut Piece,
    pub piece_count: c_int,
    pub operation: c_int,
    pub flags: c_uint,
    pub immediate: u32,
    pub remote: [u64; 4],
    unused: [u64; 7],
}

#[repr(C)]
pub(super) struct ReceiveRequest {
    pub tag: u64,
    pub next: *mut ReceiveRequest,
    pub pieces: *mut Piece,
    pub piece_count: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct WorkCompletion {
    pub tag: u64,
    pub status: c_int,
    pub operation: c_int,
    pub vendor_error: u32,
    pub bytes: u32,
    pub immediate: u32,
    pub pair_number: u32,
    pub source_pair: u32,
    pub flags: c_uint,
    rest: [u32; 2],
}

impl SendRequest {
    pub fn new(tag: u64, operation: c_int) -> Self {
        Self {
            tag,
            next: std::ptr::null_mut(),
            pieces: std::ptr::null_mut(),
            piece_count: 0,
            operation,
            flags: 0,
            immediate: 0,
            remote: [0; 4],
            unused: [0; 7],
        }
    }
}

impl PortAttributes {
    pub fn zeroed() -> Self {
        // SAFETY: integers and arrays of them only, for which all zeroes is a value.
        unsafe { std::mem::zeroed() }
    }
}

impl PairAttributes {
    pub fn zeroed() -> Self {
        // SAFETY: integers and arrays of them only, for which all zeroes is a value.
        unsafe { std::mem::zeroed() }
    }
}

pub(super) const RDMA_WRITE: c_int = 0;
pub(super) const SEND: c_int = 2;
pub(super) const RDMA_READ: c_int = 4;
pub(super) const COMPARE_SWAP: c_int = 5;
pub(super) const FETCH_ADD: c_int = 6;
pub(super) const SIGNALLED: c_uint = 2;
pub(super) const INLINE: c_uint = 8;
pub(super) const RELIABLE: c_int = 2;
pub(super) const STATE_INIT: c_int = 1;
pub(super) const STATE_READY_TO_RECEIVE: c_int = 2;
pub(super) const STATE_READY_TO_SEND: c_int = 3;
pub(super) const STATE_ERROR: c_int = 6;
/// State, key index, port, access.
pub(super) const MASK_INIT: c_int = 0x39;
/// State, path, MTU, peer, sequence, reads in, receiver's wait.
pub(super) const MASK_READY_TO_RECEIVE: c_int = 0x12_9181;
/// State, timeout, retries, sequence, reads out.
pub(super) const MASK_READY_TO_SEND: c_int = 0x1_2e01;
pub(super) const MASK_STATE: c_int = 1;
pub(super) const LOCAL_WRITE: c_int = 1;
pub(super) const REMOTE_WRITE: c_int = 2;
pub(super) const REMOTE_READ: c_int = 4;
pub(super) const REMOTE_ATOMIC: c_int = 8;
pub(super) const ON_DEMAND: c_int = 64;
pub(super) const STATUS_GOOD: c_int = 0;
pub(super) const STATUS_REMOTE_ACCESS: c_int = 10;
/// Set in the operation of a completion that is a receive.
pub(super) const IS_RECEIVE: c_int = 128;

macro_rules! library {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions.
        #[derive(Clone, Copy)]
        pub(super) struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Self, String> {
                // SAFETY: the name ends in a zero byte; loading runs the library's constructors, which only set it up.
                let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return Err(loader_words());
                }
                Ok(Self {
                    $($name: {
                        // SAFETY: the handle is open and stays so; the name ends in a zero byte.
                        let found = unsafe { libc::dlsym(handle, $symbol.as_ptr()) };
                        if found.is_null() {
                            return Err(loader_words());
                        }
                        // SAFETY: the symbol is a function of this type, by the interface `IBVERBS_1.1`.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                    },)*
                })
            }
        }
    };
}

library! {
    get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = c"ibv_free_device_list": fn(*mut *mut Device);
    get_device_name = c"ibv_get_device_name": fn(*mut Device) -> *const c_char;
    open_device = c"ibv_open_device": fn(*mut Device) -> *mut Context;
    close_device = c"ibv_close_device": fn(*mut Context) -> c_int;
    query_port = c"ibv_query_port": fn(*mut Context, u8, *mut PortAttributes) -> c_int;
    alloc_pd = c"ibv_alloc_pd": fn(*mut Context) -> *mut Domain;
    dealloc_pd = c"ibv_dealloc_pd": fn(*mut Domain) -> c_int;
    reg_mr = c"ibv_reg_mr": fn(*mut Domain, *mut c_void, usize, c_int) -> *mut Region;
    dereg_mr = c"ibv_dereg_mr": fn(*mut Region) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel": fn(*mut Context) -> *mut Channel;
    destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut Channel) -> c_int;
    create_cq = c"ibv_create_cq": fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut CompletionQueue;
    destroy_cq = c"ibv_destroy_cq": fn(*mut CompletionQueue) -> c_int;
    get_cq_event = c"ibv_get_cq_event": fn(*mut Channel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events": fn(*mut CompletionQueue, c_uint);
    create_srq = c"ibv_create_srq": fn(*mut Domain, *mut SharedReceiveInit) -> *mut SharedReceive;
    destroy_srq = c"ibv_destroy_srq": fn(*mut SharedReceive) -> c_int;
    create_qp = c"ibv_create_qp": fn(*mut Domain, *mut PairInit) -> *mut Pair;
    modify_qp = c"ibv_modify_qp": fn(*mut Pair, *mut PairAttributes, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp": fn(*mut Pair) -> c_int;
}

/// The library, loaded once; the text says why there is none.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

fn loader_words() -> String {
    // SAFETY: the loader gives a text that stays until its next call on this thread, or null.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return "libibverbs.so.1 cannot be loaded".to_owned();
    }
    // SAFETY: it is not null and ends in a zero byte.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Context, poll_cq) == 8 + 88 && offset_of!(Context, req_notify_cq) == 8 + 96);
    assert!(offset_of!(Context, post_srq_recv) == 8 + 160 && offset_of!(Context, post_send) == 8 + 200);
    assert!(offset_of!(Context, cmd_fd) == 264 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Channel, fd) == 8 && offset_of!(Pair, number) == 52);
    assert!(offset_of!(Region, local_key) == 36 && offset_of!(Region, remote_key) == 40);
    assert!(
        size_of::<PairInit>() == 64 && offset_of!(PairInit, kind) == 52 && size_of::<PairCapacity>() == 20
    );
    assert!(size_of::<Path>() == 32 && offset_of!(Path, lid) == 24 && offset_of!(Path, is_global) == 29);
    assert!(size_of::<PairAttributes>() == 144 && offset_of!(PairAttributes, path) == 56);
    assert!(offset_of!(PairAttributes, pkey_index) == 120 && offset_of!(PairAttributes, port) == 129);
    assert!(offset_of!(PairAttributes, receiver_retries) == 132 && offset_of!(PairAttributes, access) == 32);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, remote) == 40);
    assert!(
        offset_of!(SendRequest, flags) == 32 && size_of::<ReceiveRequest>() == 32 && size_of::<Piece>() == 16
    );
    assert!(size_of::<WorkCompletion>() == 48 && offset_of!(WorkCompletion, flags) == 36);
    assert!(size_of::<SharedReceiveInit>() == 24 && size_of::<PortAttributes>() == 128);
    assert!(offset_of!(PortAttributes, mtu) == 8 && offset_of!(PortAttributes, lid) == 34);
    assert!(offset_of!(PortAttributes, link_layer) == 46);
};
