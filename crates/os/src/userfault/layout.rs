//! The structures and numbers of `linux/userfaultfd.h`, laid out as the kernel reads them.

/// Version of the interface (`UFFD_API`).
pub(super) const API: u64 = 0xAA;
/// Only faults of user code, none of the kernel's on its behalf (`UFFD_USER_MODE_ONLY`).
pub(super) const USER_MODE_ONLY: libc::c_int = 1;

pub(super) const MODE_MISSING: u64 = 1 << 0;
pub(super) const MODE_WRITE_PROTECT: u64 = 1 << 1;
pub(super) const MODE_MINOR: u64 = 1 << 2;

/// `UFFDIO_COPY_MODE_WP`.
pub(super) const COPY_PROTECTED: u64 = 1 << 1;
/// `UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES`.
pub(super) const MOVE_ALLOWS_HOLES: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
pub(super) const WRITE_PROTECT_ON: u64 = 1 << 0;

pub(super) const EVENT_FAULT: u8 = 0x12;
pub(super) const EVENT_FORK: u8 = 0x13;
pub(super) const EVENT_REMAP: u8 = 0x14;
pub(super) const EVENT_REMOVE: u8 = 0x15;
pub(super) const EVENT_UNMAP: u8 = 0x16;

pub(super) const FAULT_WRITE: u64 = 1 << 0;
pub(super) const FAULT_WRITE_PROTECT: u64 = 1 << 1;
pub(super) const FAULT_MINOR: u64 = 1 << 2;

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

const fn number(direction: u32, bytes: usize, call: u32) -> libc::Ioctl {
    ((direction << 30) | ((bytes as u32) << 16) | (0xAA << 8) | call) as libc::Ioctl
}

pub(super) const NEW: libc::Ioctl = number(0, 0, 0x00);
pub(super) const REGISTER: libc::Ioctl = number(READ_WRITE, size_of::<RegisterArguments>(), 0x00);
pub(super) const UNREGISTER: libc::Ioctl = number(READ, size_of::<Range>(), 0x01);
pub(super) const WAKE: libc::Ioctl = number(READ, size_of::<Range>(), 0x02);
pub(super) const COPY: libc::Ioctl = number(READ_WRITE, size_of::<TransferArguments>(), 0x03);
pub(super) const ZERO_PAGE: libc::Ioctl = number(READ_WRITE, size_of::<RangeArguments>(), 0x04);
pub(super) const MOVE: libc::Ioctl = number(READ_WRITE, size_of::<TransferArguments>(), 0x05);
pub(super) const WRITE_PROTECT: libc::Ioctl = number(READ_WRITE, size_of::<WriteProtectArguments>(), 0x06);
pub(super) const CONTINUE: libc::Ioctl = number(READ_WRITE, size_of::<RangeArguments>(), 0x07);
pub(super) const POISON: libc::Ioctl = number(READ_WRITE, size_of::<RangeArguments>(), 0x08);
pub(super) const API_CALL: libc::Ioctl = number(READ_WRITE, size_of::<ApiArguments>(), 0x3F);

/// `struct uffdio_api`.
#[repr(C)]
#[derive(Default)]
pub(super) struct ApiArguments {
    pub api: u64,
    pub features: u64,
    pub calls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct Range {
    pub start: u64,
    pub bytes: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(Default)]
pub(super) struct RegisterArguments {
    pub range: Range,
    pub mode: u64,
    pub calls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`, which have one shape.
#[repr(C)]
#[derive(Default)]
pub(super) struct TransferArguments {
    pub destination: u64,
    pub source: u64,
    pub bytes: u64,
    pub mode: u64,
    pub done: i64,
}

/// `struct uffdio_continue`, `struct uffdio_zeropage` and `struct uffdio_poison`, which have one shape.
#[repr(C)]
#[derive(Default)]
pub(super) struct RangeArguments {
    pub range: Range,
    pub mode: u64,
    pub done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
#[derive(Default)]
pub(super) struct WriteProtectArguments {
    pub range: Range,
    pub mode: u64,
}

/// `struct uffd_msg`, with its union as three words.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Message {
    pub event: u8,
    pub reserved: [u8; 7],
    pub words: [u64; 3],
}

const _: () = assert!(size_of::<ApiArguments>() == 24);
const _: () = assert!(size_of::<Range>() == 16);
const _: () = assert!(size_of::<RegisterArguments>() == 32);
const _: () = assert!(size_of::<TransferArguments>() == 40);
const _: () = assert!(size_of::<RangeArguments>() == 32);
const _: () = assert!(size_of::<WriteProtectArguments>() == 24);
const _: () = assert!(size_of::<Message>() == 32);
