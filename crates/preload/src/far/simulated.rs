//! Whether this process runs on a processor that is a program: valgrind.
//!
//! It has no call that makes a thread as [`thread`](super::thread) does, and none that serves faults: it would end the program.

/// `VG_USERREQ__RUNNING_ON_VALGRIND`: how many of them lie upon each other.
#[cfg(target_arch = "x86_64")]
const REQUEST: u64 = 0x1001;

/// Asks as `valgrind.h` does: by instructions that change nothing on a processor, and that valgrind knows.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_simulated() -> bool {
    let request = [REQUEST, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: the register is turned by 128 bits, which is not at all, and another one is exchanged for itself. Valgrind reads the request and
    // writes the answer.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

/// Far memory is not for other processors.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_simulated() -> bool {
    false
}
