//! The calls that make and take away memory, with what far memory adds to them. All go straight to the kernel.

use super::arming::Otherwise;
use super::{arming, heap, is_active, layout, link, reserved};
use crate::cancel::uncancelled;
use hinterland_farplan::PAGE;
use hinterland_region::system::{self, MapCall};
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Smaller memory stays where it is at first: telling costs 30 us. Most engines of languages ask for so much at once.
pub(super) const REGION_BYTES_MIN: u64 = 256 << 10;
/// Some ask for all of it in smaller parts, Ruby for 32 KiB and LuaJIT for 128 KiB: what comes behind so much in such parts is told of, too.
const PARTS_BYTES_MAX: u64 = 4 << 20;
/// Parts that are smaller cost more than they are worth.
const PART_BYTES_MIN: u64 = 16 << 10;
/// Writable memory beyond this is no program's to use up: the shadow of a sanitizer.
const REGION_BYTES_MAX: u64 = 4 << 40;
/// Pages become guards: empty, and whoever touches one gets SIGSEGV (Linux 6.13).
const MADV_GUARD_INSTALL: c_int = 102;
/// Most parts of one call (`UIO_MAXIOV`).
const PARTS_MAX: size_t = 1024;
/// What only the kernel copes with.
const FLAGS_LEFT_ALONE: c_int = libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_HUGETLB | libc::MAP_LOCKED;

/// Bytes that the program has in small parts.
static PARTS_BYTES: AtomicU64 = AtomicU64::new(0);

/// `mmap`.
pub(crate) fn map(call: MapCall) -> io::Result<u64> {
    // SAFETY: the program asked for exactly this.
    let kernel = |call| unsafe { system::map(call) };
    let may_be_far = may_be_far(&call);
    let replaces = call.flags & libc::MAP_FIXED != 0;
    if !is_active() && !begins_with(&call, may_be_far) {
        let address = kernel(call)?;
        if arming::is_waiting() {
            note_untold(&call, address, may_be_far);
        }
        return Ok(address);
    }
    let mut asked = call;
    if may_be_far {
        // All at once would be more than the budget.
        asked.flags &= !libc::MAP_POPULATE;
    }
    let replace = || {
        link::lift(call.address, whole_pages(call.bytes));
        kernel(asked)
    };
    let address = if replaces { layout::change(replace) } else { kernel(asked) }?;
    if replaces {
        reserved::cut(address, address.saturating_add(call.bytes));
    }
    if may_be_far && reserved::is_reservation(&call) {
        reserved::add(address, address.saturating_add(call.bytes));
    } else if may_be_far && call.bytes > REGION_BYTES_MAX {
        say_of_huge_memory(call.bytes);
    } else if may_be_far {
        link::register(address, whole_pages(call.bytes));
    }
    Ok(address)
}

fn may_be_far(call: &MapCall) -> bool {
    call.flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && call.flags & libc::MAP_ANONYMOUS != 0
        && call.flags & FLAGS_LEFT_ALONE == 0
        && call.protection & libc::PROT_EXEC == 0
        && (call.bytes >= REGION_BYTES_MIN || is_one_of_many(call.bytes))
}

/// Counts a small part, and says whether there are so many that it is to be told of.
fn is_one_of_many(bytes: u64) -> bool {
    // Relaxed: a count of its own.
    bytes >= PART_BYTES_MIN && PARTS_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes > PARTS_BYTES_MAX
}

/// Takes a small part off the count.
fn forget_part(bytes: u64) {
    if (PART_BYTES_MIN..REGION_BYTES_MIN).contains(&bytes) {
        // Relaxed: as above. Parts of what was large are taken off, too, and the count must not wrap.
        let less = |before: u64| Some(before.saturating_sub(bytes));
        let _ = PARTS_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Whether far memory begins with a mapping, which is to be made behind that. Memory that cannot be far counts, too, once it may be written:
/// it takes room from the rest. Pages of a file that nobody writes are the kernel's to drop.
fn begins_with(call: &MapCall, may_be_far: bool) -> bool {
    let weighs = call.protection & libc::PROT_WRITE != 0 || may_be_far && !reserved::is_reservation(call);
    weighs && arming::asks(call.bytes, true)
}

/// Keeps in mind what matters of a mapping if far memory begins later.
fn note_untold(call: &MapCall, address: u64, may_be_far: bool) {
    if call.flags & libc::MAP_FIXED != 0 {
        reserved::cut(address, address.saturating_add(call.bytes));
        heap::note(address, call.bytes);
    }
    if may_be_far && reserved::is_reservation(call) {
        reserved::add(address, address.saturating_add(call.bytes));
    }
}

/// What the program does to memory before far memory begins.
pub(super) fn note_change(address: u64, bytes: u64) {
    if arming::is_waiting() {
        reserved::cut(address, address.saturating_add(bytes));
        heap::note(address, bytes);
    }
}

/// `munmap`.
pub(crate) fn unmap(address: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: the program asked for exactly this.
    let kernel = || unsafe { system::unmap(address, bytes) };
    forget_part(bytes);
    if !is_active() {
        note_change(address, bytes);
        return kernel();
    }
    reserved::cut(address, address.saturating_add(bytes));
    layout::change(|| {
        link::lift(address, whole_pages(bytes));
        kernel()
    })
}

/// `mprotect`.
pub(crate) fn protect(address: u64, bytes: u64, protection: c_int) -> io::Result<()> {
    // SAFETY: the program asked for exactly this.
    let kernel = || unsafe { system::protect(address, bytes, protection) };
    // Not while the reclaim thread has put another protection there.
    if is_active() { layout::drop_content(kernel) } else { kernel() }?;
    if (is_active() || arming::is_waiting())
        && protection & libc::PROT_WRITE != 0
        && protection & libc::PROT_EXEC == 0
    {
        // Of memory that was only reserved, what may be written may be far.
        for (start, end) in reserved::parts(address, address.saturating_add(bytes)) {
            if is_active() || arming::begin(Otherwise::Ended) {
                link::register(start, end - start);
            }
        }
    }
    Ok(())
}

/// `mremap`.
pub(crate) fn remap(address: u64, bytes: u64, new_bytes: u64, flags: c_int, target: u64) -> io::Result<u64> {
    // SAFETY: the program asked for exactly this.
    let kernel = || unsafe { system::remap(address, bytes, new_bytes, flags, target) };
    let is_on = is_active() || new_bytes > bytes && arming::asks(new_bytes - bytes, true);
    if !is_on {
        note_change(address, bytes);
        if flags & libc::MREMAP_FIXED != 0 {
            note_change(target, new_bytes);
        }
        return kernel();
    }
    reserved::cut(address, address.saturating_add(bytes));
    let (old, new) = (whole_pages(bytes), whole_pages(new_bytes));
    layout::change(|| {
        // What lies at the target goes.
        if flags & libc::MREMAP_FIXED != 0 {
            link::lift(target, new);
        }
        link::lift(address, old);
        let moved = kernel();
        match moved {
            Ok(now) if new > old || link::follows() => link::land(address, now, new),
            Err(_) if link::follows() => link::land(address, address, old),
            _ => {}
        }
        moved
    })
}

/// `madvise`.
pub(crate) fn advise(address: u64, bytes: u64, advice: c_int) -> io::Result<()> {
    // SAFETY: the program asked for exactly this.
    let kernel = || unsafe { system::advise(address, bytes, advice) };
    make_ready(address, bytes, advice);
    if !is_active() {
        return kernel();
    }
    match advice {
        libc::MADV_DONTNEED => layout::drop_content(kernel),
        // Pages that stay until the kernel wants them, and are written again without a fault, would be in no table. What the kernel takes
        // for free it may drop at once. Where a part of it is not mapped, it has taken the rest, and says the same of both calls.
        libc::MADV_FREE => layout::drop_content(|| match kernel() {
            Err(error) if error.raw_os_error() != Some(libc::ENOMEM) => Err(error),
            // SAFETY: the kernel has agreed that this content goes.
            _ => unsafe { system::advise(address, bytes, libc::MADV_DONTNEED) },
        }),
        _ => kernel(),
    }
}

/// `process_madvise`. A process may give itself all advice by it (Linux 6.13), and another one none that matters here: the kernel refuses it then.
/// Returns the bytes that were advised of, which may be fewer than all.
///
/// # Safety
/// There are so many parts, unless there is none at all.
pub(crate) unsafe fn advise_parts(
    process: c_int,
    (parts, count): (*const iovec, size_t),
    advice: c_int,
    flags: c_uint,
) -> io::Result<size_t> {
    let kernel = || {
        // SAFETY: the program asked for exactly this.
        let done = unsafe { libc::syscall(libc::SYS_process_madvise, process, parts, count, advice, flags) };
        // A count, unless it is -1.
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as size_t) }
    };
    // SAFETY: the caller's promise. What the kernel refuses to look at is not looked at.
    let parts = unsafe {
        let is_refused = parts.is_null() || count > PARTS_MAX;
        if is_refused { &[] } else { std::slice::from_raw_parts(parts, count) }
    };
    for part in parts {
        make_ready(part.iov_base.expose_provenance() as u64, part.iov_len as u64, advice);
    }
    if !is_active() {
        return kernel();
    }
    match advice {
        libc::MADV_DONTNEED => layout::drop_content(kernel),
        // As above.
        libc::MADV_FREE => layout::drop_content(|| {
            let done = kernel()?;
            let mut rest = done;
            for part in parts {
                let bytes = part.iov_len.min(rest);
                // SAFETY: the kernel has agreed that this content goes.
                unsafe {
                    system::advise(
                        part.iov_base.expose_provenance() as u64,
                        bytes as u64,
                        libc::MADV_DONTNEED,
                    )?;
                }
                rest -= bytes;
            }
            Ok(done)
        }),
        _ => kernel(),
    }
}

/// The program is about to advise the kernel of memory.
fn make_ready(address: u64, bytes: u64, advice: c_int) {
    if advice == libc::MADV_DONTFORK {
        link::note_apart();
    }
    // A child would have a table of memory that is to be zeros. And no event tells of guards, which drop content and are overwritten by whoever
    // fills a page.
    let is_kernels = matches!(advice, libc::MADV_WIPEONFORK | MADV_GUARD_INSTALL);
    if is_kernels {
        // The same of what is only reserved, if it may be written later.
        reserved::cut(address & !(PAGE - 1), address.saturating_add(bytes));
    }
    if is_active() {
        if is_kernels {
            link::release(address & !(PAGE - 1), whole_pages(bytes));
        }
    } else if (is_kernels || advice == libc::MADV_FREE) && arming::is_waiting() {
        // Nor does it know of what the kernel may take at any moment.
        heap::note(address, bytes);
    }
}

/// So many bytes in whole pages; of more than there can be, which the kernel refuses, as many as fit a number.
pub(super) const fn whole_pages(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(PAGE) {
        Some(whole) => whole,
        None => !(PAGE - 1),
    }
}

fn say_of_huge_memory(bytes: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: guards nothing but a sentence.
    if !SAID.swap(true, Ordering::Relaxed) {
        system::say(&format!(
            "memory of {} GiB at once is left to the kernel, and none of it is far (hint: have the program ask for less)",
            bytes >> 30
        ));
    }
}

/// What the C library's `mmap` becomes.
pub(super) unsafe extern "C-unwind" fn c_mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    let call = MapCall {
        address: address.expose_provenance() as u64,
        bytes: bytes as u64,
        protection,
        flags,
        descriptor,
        offset: offset as u64,
    };
    uncancelled(|| answer(map(call)))
}

/// What the C library's `munmap` becomes.
pub(super) unsafe extern "C-unwind" fn c_munmap(address: *mut c_void, bytes: size_t) -> c_int {
    uncancelled(|| status(&unmap(address.expose_provenance() as u64, bytes as u64)))
}

/// What the C library's `mprotect` becomes.
pub(super) unsafe extern "C-unwind" fn c_mprotect(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
) -> c_int {
    uncancelled(|| status(&protect(address.expose_provenance() as u64, bytes as u64, protection)))
}

/// What the C library's `madvise` becomes.
pub(super) unsafe extern "C-unwind" fn c_madvise(
    address: *mut c_void,
    bytes: size_t,
    advice: c_int,
) -> c_int {
    uncancelled(|| status(&advise(address.expose_provenance() as u64, bytes as u64, advice)))
}

/// What the C library's `mremap` becomes.
pub(super) unsafe extern "C-unwind" fn c_mremap(
    address: *mut c_void,
    bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let (address, target) = (address.expose_provenance() as u64, target.expose_provenance() as u64);
    uncancelled(|| answer(remap(address, bytes as u64, new_bytes as u64, flags, target)))
}

fn answer(result: io::Result<u64>) -> *mut c_void {
    match result {
        Ok(address) => std::ptr::with_exposed_provenance_mut(address as usize),
        Err(error) => {
            set_errno(&error);
            libc::MAP_FAILED
        }
    }
}

fn status(result: &io::Result<()>) -> c_int {
    result.as_ref().map_or_else(
        |error| {
            set_errno(error);
            -1
        },
        |()| 0,
    )
}

fn set_errno(error: &io::Error) {
    // SAFETY: the C library gives every thread an errno.
    unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::ENOMEM) };
}
