//! Far memory: the program's side. Large anonymous memory is told to the supervisor, a thread moves pages out on its order.
//!
//! Nothing happens unless `hinterland run --local` set `HINTERLAND_FAR_SOCKET`. Then the library, as it is loaded,
//!
//! 1. turns the C library's own `mmap`, `munmap`, `mremap`, `madvise` and `brk` to the functions here ([`patch`]), so that `malloc`'s
//!    memory is seen, too ([`calls`], [`heap`]);
//! 2. hands each program that one becomes over as it begins, unless that has this library, too ([`programs`]).
//!
//! With the first memory that is worth it ([`arming`]), and before it could not any more ([`rights`]), a process begins to have far memory. Then the library
//!
//! 1. makes a userfaultfd and hands it to the supervisor ([`link`]);
//! 2. starts the reclaim thread ([`mover`]), which ends the process if the supervisor is gone, and keeps a descriptor of the userfaultfd where
//!    no `close` of the program reaches it: if the supervisor dies, faults wait and never see zeros.
//!
//! A child of `fork` greets anew before `fork` returns in it, if its parent has begun.

mod arming;
mod calls;
mod claims;
mod heap;
mod layout;
mod link;
mod mover;
mod patch;
mod programs;
mod protected;
mod quiet;
mod reserved;
mod rights;
mod room;
mod simulated;
mod thread;
mod words;

pub(crate) use calls::{advise, advise_parts, map, protect, remap, unmap};
pub(crate) use claims::{attach, lock_all, make_way};

use crate::cancel::uncancelled;
use hinterland_farplan::PAGE;
use hinterland_os::OsError;
use hinterland_region::system::say;
use libc::{Elf64_Phdr, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process in which far memory is on; 0 at first. A child has its parent's number here until it has greeted: what it
/// allocates before is the kernel's alone, because connection and locks are still those of the parent.
static PROCESS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn is_active() -> bool {
    // Acquire: pairs with the Release in `activate`, behind which everything is set up.
    let process = PROCESS.load(Ordering::Acquire);
    process != 0 && process == std::process::id()
}

/// Whether far memory is on in this process, or in one that it was made from and has not greeted since.
fn has_begun() -> bool {
    PROCESS.load(Ordering::Acquire) != 0 // Acquire: as above.
}

fn activate() {
    // Release: pairs with the Acquire in `is_active`.
    PROCESS.store(std::process::id(), Ordering::Release);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

unsafe extern "C" {
    /// `pthread_atfork(3)` as it is in the C library. By its own name it is a function that each library has a copy of, far from all else here.
    fn __register_atfork(
        before: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
        library: *const c_void,
    ) -> c_int;
}

/// Runs as the library is loaded, before the program. Each program that is started pays for it, above all for each part of 64 KiB of the library's code that something here is
/// in: the kernel maps that with a fault. So all that is done then is done in here, and by what this crate has.
extern "C" fn begin() {
    crate::mounts::begin();
    // Later, a handler of a signal might wait for the loader, which it interrupts.
    FORK.find();
    let Some(socket) = crate::mounts::variable(c"HINTERLAND_FAR_SOCKET") else { return };
    if simulated::is_simulated() {
        // What simulates it is a program beside the budget, which has been told of.
        return;
    }
    let loaded = Loaded::look();
    if let Err(why) = set_up(socket, loaded.own_path) {
        say(&format!("far memory cannot be had, and the program is not started: {why}"));
        // SAFETY: ends the process at once; nothing of the program has run.
        unsafe { libc::_exit(125) };
    }
    arming::allow(loaded.data_bytes, is_first(), crate::mounts::is_on(c"HINTERLAND_FAR_EAGER"));
    if is_active() {
        // Nothing of the program has run, which might have mapped something else there.
        let arrays = loaded.arrays.iter().filter(|(start, end)| start < end);
        arrays.for_each(|(start, end)| link::register(*start, end - start));
    }
}

fn set_up(socket: &[u8], own_path: &'static [u8]) -> Result<(), String> {
    link::learn_socket(socket)?;
    programs::learn_own_name(own_path);
    patch::turn_to_us()?;
    // SAFETY: the functions live as long as this library, which is as long as the program: so they are handlers of the program, which are never taken away.
    let handled = unsafe {
        __register_atfork(Some(arming::before_fork), Some(arming::after_fork), Some(child), std::ptr::null())
    };
    if handled != 0 {
        return Err("no memory for a handler of fork (hint: free some)".to_owned());
    }
    heap::begin();
    Ok(())
}

/// Whether this is the process that the run started, whatever programs it became since.
fn is_first() -> bool {
    let number = crate::mounts::variable(c"HINTERLAND_FAR_FIRST");
    number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()) == Some(std::process::id())
}

/// More objects with large arrays than any program is loaded with; what finds no place stays the kernel's.
const ARRAYS_MAX: usize = 64;

/// What the loader has done before anybody looked.
struct Loaded {
    /// Bytes that the program and its libraries may write.
    data_bytes: u64,
    /// Large arrays of the program and its libraries that begin as zeros (`.bss`): whole pages, of which no file has anything. Nothing else that the
    /// loader made can be far, since the kernel serves faults of anonymous memory alone.
    arrays: [(u64, u64); ARRAYS_MAX],
    /// The path of this library, as the loader has it.
    own_path: &'static [u8],
}

impl Loaded {
    fn look() -> Self {
        let mut loaded = Self { data_bytes: 0, arrays: [(0, 0); ARRAYS_MAX], own_path: b"" };
        // SAFETY: the function is called in here only, with the value.
        unsafe { libc::dl_iterate_phdr(Some(Self::add), (&raw mut loaded).cast()) };
        loaded
    }

    unsafe extern "C" fn add(object: *mut dl_phdr_info, _bytes: size_t, loaded: *mut c_void) -> c_int {
        let own = begin as *const () as u64;
        // SAFETY: the loader's own record, its segments and its name, which stay while the object is loaded, and the value above.
        unsafe {
            let (object, loaded) = (&*object, &mut *loaded.cast::<Self>());
            let segments = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
            for segment in segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD) {
                let start = object.dlpi_addr.wrapping_add(segment.p_vaddr);
                if segment.p_flags & libc::PF_W != 0 {
                    loaded.data_bytes += segment.p_memsz;
                    loaded.add_array(start, segment);
                }
                if own.wrapping_sub(start) < segment.p_memsz && !object.dlpi_name.is_null() {
                    loaded.own_path = CStr::from_ptr(object.dlpi_name).to_bytes();
                }
            }
        }
        0
    }

    /// What lies behind the bytes that a segment has in its file, if it is worth it.
    fn add_array(&mut self, start: u64, segment: &Elf64_Phdr) {
        let page_behind = |bytes: u64| start.checked_add(bytes)?.checked_next_multiple_of(PAGE);
        let (Some(from), Some(to)) = (page_behind(segment.p_filesz), page_behind(segment.p_memsz)) else {
            return;
        };
        if to.saturating_sub(from) >= calls::REGION_BYTES_MIN
            && let Some(place) = self.arrays.iter_mut().find(|(_, end)| *end == 0)
        {
            *place = (from, to);
        }
    }
}

/// In a child that `fork` has just made. If its parent has far memory, it has no reclaim thread, and its memory has a descriptor that only the supervisor has. What its
/// parent's reclaim thread has is not in its table of descriptors.
unsafe extern "C" fn child() {
    arming::in_child();
    if !has_begun() {
        return;
    }
    // The thread that forked may have been cancelled.
    uncancelled(greet);
}

/// The C library's `_Fork`, which handlers of signals may call.
static FORK: rights::Next = rights::Next::new(c"_Fork");

/// `_Fork(3)`: as `fork`, but that the C library calls no handlers, of which ours are some.
///
/// # Safety
/// As `_Fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> libc::pid_t {
    let next = FORK.find();
    if next.is_null() {
        // SAFETY: the C library gives every thread an errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    }
    // SAFETY: the C library's function of this name, which has this shape; the handlers are called around it as it would call them.
    unsafe {
        let next: unsafe extern "C-unwind" fn() -> libc::pid_t = std::mem::transmute(next);
        arming::before_fork();
        let process = next();
        if process == 0 {
            child()
        } else {
            arming::after_fork()
        }
        process
    }
}

/// Allocates nothing of the program: its heap may be far, and is zeros until the supervisor has answered if that is gone.
fn greet() {
    // It is the program's.
    // SAFETY: the C library gives every thread an errno.
    let errno = unsafe { *libc::__errno_location() };
    // A handler that forks would have its own child go on with what is begun here.
    let held = layout::Signals::hold();
    quiet::quietly(|| {
        // Its parent may have as many files open as it may: that is no reason for a child to end.
        let room = room::of_descriptors();
        let result = layout::prepare().and_then(link::reconnect).and_then(|()| {
            activate();
            mover::start()
        });
        drop(room);
        if let Err(error) = result {
            end(&error);
        }
    });
    drop(held);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Ends a child that cannot have its memory, at once.
fn end(error: &OsError) -> ! {
    let why = "a child of fork cannot have far memory, and is ended";
    if matches!(error.errno(), Some(libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOENT)) {
        say(&format!(
            "{why}: the run that it belongs to is over (hint: have the program wait for what it forks)"
        ));
    } else {
        say(&format!("{why}: {error}"));
    }
    // SAFETY: plain values.
    unsafe { libc::_exit(125) }
}
