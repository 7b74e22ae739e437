//! Which descriptors are files of the pool.

use hinterland_types::ObjectId;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Mounts of one process: `hinterland run` makes one.
const DEVICES_MAX: usize = 8;

const UNREAD: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNREAD);
static DEVICES: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];

/// Called as the library is loaded, before the program has threads.
pub(crate) fn begin() {
    if variable(c"HINTERLAND_MOUNT_DEVICE").is_some() {
        hinterland_region::descriptor::make_room();
    }
}

/// The object behind a descriptor, if it is a file of a mount of the pool. Takes one system call where there is such a
/// mount, none where there is not.
pub(crate) fn object_of(descriptor: libc::c_int) -> Option<ObjectId> {
    if descriptor < 0 || !has_mounts() {
        return None;
    }
    // SAFETY: an all-zero block is valid.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // No question to the file system: device, type and number of an open file never change.
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let wanted = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: the path is a NUL-terminated literal, and the kernel writes to a live structure.
    let result =
        unsafe { libc::syscall(libc::SYS_statx, descriptor, c"".as_ptr(), flags, wanted, &raw mut status) };
    let device = libc::makedev(status.stx_dev_major, status.stx_dev_minor);
    let regular = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    // Relaxed: written before `STATE`, which `has_mounts` has read.
    let ours = || DEVICES.iter().any(|known| known.load(Ordering::Relaxed) == device);
    (result == 0 && regular && device != 0 && ours()).then_some(ObjectId(status.stx_ino))
}

/// Whether this process has a mount of the pool; read from the environment once, without allocating.
fn has_mounts() -> bool {
    // Acquire: pairs with the Release below, by which the devices are there.
    match STATE.load(Ordering::Acquire) {
        SOME => true,
        NONE => false,
        _ => {
            let found = read_environment();
            // Release: pairs with the Acquire above. Threads that read at once store the same.
            STATE.store(if found { SOME } else { NONE }, Ordering::Release);
            found
        }
    }
}

fn read_environment() -> bool {
    let Some(text) = variable(c"HINTERLAND_MOUNT_DEVICE") else { return false };
    let mut found = false;
    for (part, device) in text.split(|byte| *byte == b',').zip(&DEVICES) {
        if let Some(number) = decimal(part) {
            // Relaxed: published by the store to `STATE`.
            device.store(number, Ordering::Relaxed);
            found = true;
        }
    }
    found
}

/// A variable of the environment, as it is there.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name is NUL-terminated. The value stays as long as the program does not change the variable, which
    // programs do not do to variables that they do not know.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Whether a switch of the environment is on.
pub(crate) fn is_on(name: &CStr) -> bool {
    variable(name).is_some_and(|text| !matches!(text, b"" | b"0"))
}

fn decimal(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let add = |sum: u64, byte: &u8| sum.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    if digits { text.iter().try_fold(0u64, add) } else { None }
}
