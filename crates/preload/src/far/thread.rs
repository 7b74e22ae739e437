//! A thread that the C library does not know of.
//!
//! What the C library does with all threads of a process must not reach ours. `setuid` and its like have each thread make the call: they wait for ever for one that
//! holds its signals back, and end the process where one may do what another may not. And a program ends when its last thread does. So the kernel's own call
//! makes the thread, with storage of its own for what the C library keeps by thread (`errno`).
//!
//! It keeps the user that the program had when it began, but none of the capabilities: there must be little to take over for a program that gives up
//! its rights and is broken into afterwards. Nor does it share folder and root, so that the program may enter another mount namespace.

use hinterland_os::OsError;
use std::ffi::c_void;

const PAGE: usize = hinterland_farplan::PAGE as usize;
/// What the C library keeps by thread lies on both sides of the thread pointer: its own record behind, variables in front, some of
/// them further away than `errno`.
const BEHIND_BYTES: usize = 2 * PAGE;
const BEFORE_BYTES: usize = 16 * PAGE;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITIES_VERSION: u32 = 0x2008_0522;

/// Runs a function in a new thread, with all signals as they are in this one; returns its number. A child of `fork` has nothing of it.
///
/// # Safety
/// The function may be called with this argument in another thread. It uses nothing that the standard library keeps by thread.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn start(
    stack_bytes: usize,
    run: unsafe extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> Result<i32, OsError> {
    let before = before_bytes();
    let stack = (PAGE + stack_bytes).next_multiple_of(PAGE);
    let area = map(stack + before + BEHIND_BYTES)?;
    let (top, pointer) = (area + stack, area + stack + before);
    // SAFETY: pages of the new area: the lowest one stays without memory, and the record of the thread begins with its own address, which is
    // there once more behind two words.
    unsafe {
        libc::syscall(libc::SYS_mprotect, area, PAGE, libc::PROT_NONE);
        let record = std::ptr::with_exposed_provenance_mut::<usize>(pointer);
        record.write(pointer);
        record.add(2).write(pointer);
    }
    // SAFETY: stack and storage are the thread's alone; the rest is the caller's promise.
    let made = unsafe { clone(top, pointer, run, argument) };
    if made < 0 {
        // SAFETY: nobody uses the area.
        unsafe { libc::syscall(libc::SYS_munmap, area, stack + before + BEHIND_BYTES) };
        let error = std::io::Error::from_raw_os_error(-made as i32);
        return Err(OsError::system("starting a thread", "hinterland-far", error));
    }
    // Numbers of threads are below 2^22.
    Ok(made as i32)
}

/// # Errors
/// Always: not known for this processor.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn start(
    _stack_bytes: usize,
    _run: unsafe extern "C" fn(*mut c_void) -> !,
    _argument: *mut c_void,
) -> Result<i32, OsError> {
    Err(OsError::Refused {
        operation: "starting a thread",
        reason: "far memory is for x86-64 programs".to_owned(),
        hint: "run it without --local".into(),
    })
}

/// How much storage there must be in front of the thread pointer: the C library finds `errno` at the same distance in every thread.
#[cfg(target_arch = "x86_64")]
fn before_bytes() -> usize {
    let pointer: usize;
    // SAFETY: reads the first word of this thread's record, which is its address.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
    // SAFETY: the C library gives every thread an errno.
    let errno = unsafe { libc::__errno_location() }.addr();
    pointer.saturating_sub(errno).next_multiple_of(PAGE) + BEFORE_BYTES
}

#[cfg(target_arch = "x86_64")]
fn map(bytes: usize) -> Result<usize, OsError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new private memory anywhere.
    let result = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, protection, flags, -1, 0) };
    if result == -1 {
        return Err(OsError::last("mmap", "the stack of a thread"));
    }
    // SAFETY: the memory that was just mapped; nothing is in it.
    unsafe { libc::syscall(libc::SYS_madvise, result, bytes, libc::MADV_DONTFORK) };
    // An address, which is no error, is not negative.
    Ok(result as usize)
}

/// Makes the thread; returns its number, or an error number below zero.
///
/// # Safety
/// As [`start`]; the stack ends at `top`, the thread pointer is whole.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(
    top: usize,
    pointer: usize,
    run: unsafe extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> i64 {
    let flags = libc::CLONE_VM
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS;
    let made: i64;
    // SAFETY: in the new thread the registers are as here but for the stack, which is empty: it goes to the function, which does not come back. This one
    // goes on behind it.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => made,
            in("rdi") i64::from(flags),
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") pointer,
            in("r12") run,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    made
}

/// Gives up the capabilities of the calling thread alone. What the program can be traced and dumped by does not change with it.
pub(super) fn give_up_rights() {
    let header = [CAPABILITIES_VERSION, 0];
    let none = [0u32; 6];
    // SAFETY: a header of two words and a set of six, as this version has them.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
}
