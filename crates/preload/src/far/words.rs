//! Words that several threads wait on (`futex(2)`), where the kernel wants to write one that is far.
//!
//! Most of what programs ask of such words only reads them, and waits for them as a load does. What writes one (`FUTEX_WAKE_OP`, `FUTEX_LOCK_PI`) does not
//! wait for a page: the kernel answers `EFAULT`, and the program would be told that its own word is none. So the page is brought here, and the call is made again.
//!
//! Programs ask by `syscall(2)`, as the C library has no function for it.

use super::is_active;
use libc::{c_int, c_long};

/// Attempts: the page may leave again between two calls.
const ATTEMPTS_MAX: u32 = 100;
const PAGE: u64 = hinterland_farplan::PAGE;

/// `syscall(2)`: as the C library's to the last register, also where it returns twice or on another stack, but that a word may be far.
///
/// # Safety
/// As `syscall`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "movq xmm0, rdi",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        // What the call was is in a register that the kernel leaves alone.
        "2:",
        "movq rcx, xmm0",
        "cmp rcx, {futex}",
        "jne 3f",
        "cmp rax, -{fault}",
        "jne 3f",
        "mov rcx, r10",
        "jmp {again}",
        "3:",
        "mov rdi, rax",
        "jmp {fail}",
        ".cfi_endproc",
        futex = const libc::SYS_futex,
        fault = const libc::EFAULT,
        again = sym again,
        fail = sym fail,
    )
}

/// Makes a call again whose words could not be reached.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn again(word: u64, what: u64, value: u64, more: u64, other: u64, third: u64) -> c_long {
    // Other bits say how.
    let what_alone = (what as c_int) & libc::FUTEX_CMD_MASK;
    let has_other = matches!(what_alone, libc::FUTEX_WAKE_OP | libc::FUTEX_CMP_REQUEUE_PI);
    let mut answer = -i64::from(libc::EFAULT);
    for _ in 0..ATTEMPTS_MAX {
        if answer != -i64::from(libc::EFAULT) || !is_active() || !bring(word) || has_other && !bring(other) {
            break;
        }
        // SAFETY: the program asked for exactly this.
        answer = unsafe { call([word, what, value, more, other, third]) };
    }
    if answer < 0 { fail(answer) } else { answer }
}

/// Has the page of a word be here, and writable; `false` if the program may not write there.
fn bring(word: u64) -> bool {
    // SAFETY: adds a page where the program would have one as soon as it writes, and changes no byte.
    unsafe { libc::syscall(libc::SYS_madvise, word & !(PAGE - 1), PAGE, libc::MADV_POPULATE_WRITE) == 0 }
}

/// `futex(2)`, as the kernel answers.
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "x86_64")]
unsafe fn call([word, what, value, more, other, third]: [u64; 6]) -> c_long {
    let answer: c_long;
    // SAFETY: the caller's promise; the kernel leaves all other registers alone.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_futex => answer,
            in("rdi") word,
            in("rsi") what,
            in("rdx") value,
            in("r10") more,
            in("r8") other,
            in("r9") third,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// An answer of the kernel that is an error, as the C library has it.
extern "C" fn fail(answer: c_long) -> c_long {
    // SAFETY: the C library gives every thread an errno.
    unsafe { *libc::__errno_location() = -answer as c_int }; // errors are -1 to -4095
    -1
}
