//! Transparent huge pages of another process's private memory: who wants them, and making them at once.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{OsError, check};
use crate::mappings;
use crate::process::ProcessHandle;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// `MADV_COLLAPSE` of `asm-generic/mman-common.h`, which `libc` has for some systems only.
const MADV_COLLAPSE: libc::c_int = 25;

/// Which private memory the kernel gives huge pages to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All but what asks for none.
    Always,
    /// What asks for them (`MADV_HUGEPAGE`).
    Asked,
    /// None.
    Never,
}

impl Wanted {
    /// What this machine is set to; [`Never`](Self::Never) for kernels without them.
    pub fn of_machine() -> Self {
        Self::parse(&std::fs::read_to_string(ENABLED).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        if text.contains("[always]") {
            Self::Always
        } else if text.contains("[madvise]") {
            Self::Asked
        } else {
            Self::Never
        }
    }

    /// Where a process has memory that gets huge pages. The kernel walks all of its memory for that.
    ///
    /// # Errors
    /// The refusal of `/proc/PID/smaps`: the process has ended, or is another user's.
    pub fn of_process(self, process: i32) -> Result<Vec<Range<u64>>, OsError> {
        if self == Self::Never {
            return Ok(Vec::new());
        }
        mappings::flags_of_process(process, |range, flags| self.is_wanted(flags).then_some(range))
    }

    fn is_wanted(self, flags: &str) -> bool {
        match self {
            Self::Always => !mappings::has_flag(flags, "nh"),
            Self::Asked => mappings::has_flag(flags, "hg"),
            Self::Never => false,
        }
    }
}

/// Has the kernel make one huge page of the 2 MiB at an address of a process, at once. Refuses, and changes nothing, where a page is missing or protected
/// (under a userfaultfd), where there is no free huge page, and where pages are pinned.
///
/// # Errors
/// `EINVAL` or `EAGAIN` for what the kernel refuses, `ENOMEM` or `EBUSY` without a page, `ESRCH` if the process has ended, `EPERM` without
/// `CAP_SYS_NICE` and the right to look into the process.
pub fn collapse(process: &ProcessHandle, address: u64, bytes: usize) -> Result<(), OsError> {
    let range = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
    // SAFETY: one range of another process, which the kernel checks; its bytes stay as they are.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_fd().as_raw_fd(),
            &raw const range,
            1,
            MADV_COLLAPSE,
            0,
        )
    };
    // The bytes that were advised, at most 2 MiB.
    check(result as libc::c_int, "process_madvise(MADV_COLLAPSE)", || format!("address {address:#x}"))
        .map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{HUGE_PAGE_BYTES, Mapping};

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
VmFlags: rd wr mr mw me ac hg 
7f0000400000-7f0000600000 rw-p 00000000 00:00 0                          [heap]
VmFlags: rd wr mr mw me ac 
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0 
VmFlags: rd wr mr nh 
";

    #[test]
    fn who_wants_huge_pages_is_what_the_machine_and_the_program_say() {
        assert_eq!(Wanted::parse("always [madvise] never\n"), Wanted::Asked);
        assert_eq!(Wanted::parse("[always] madvise never\n"), Wanted::Always);
        assert_eq!(Wanted::parse("always madvise [never]\n"), Wanted::Never);
        assert_eq!(Wanted::parse(""), Wanted::Never);
        let ranges = |wanted: Wanted| {
            mappings::parse(SMAPS, &mut |range, flags| wanted.is_wanted(flags).then_some(range))
        };
        assert_eq!(ranges(Wanted::Asked), ranges(Wanted::Always)[..1]);
        assert_eq!(
            ranges(Wanted::Always),
            [0x7f00_0000_0000..0x7f00_0040_0000, 0x7f00_0040_0000..0x7f00_0060_0000]
        );
        assert_eq!(ranges(Wanted::Never), []);
    }

    #[test]
    fn pages_become_one_and_keep_their_bytes() {
        let memory = std::sync::Arc::new(Mapping::anonymous(2 * HUGE_PAGE_BYTES, false).unwrap()).slice();
        let start = (memory.as_ptr() as u64).next_multiple_of(HUGE_PAGE_BYTES as u64);
        let offset = (start - memory.as_ptr() as u64) as usize;
        memory.fill(offset, HUGE_PAGE_BYTES, 7).unwrap();
        let own = std::process::id() as i32;
        let handle = ProcessHandle::open(own).unwrap();
        match collapse(&handle, start, HUGE_PAGE_BYTES) {
            Ok(()) => {
                let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
                let huge = |line: &str| line.starts_with("AnonHugePages:") && !line.contains(" 0 kB");
                assert!(smaps.lines().any(huge));
            }
            // No right to, a kernel before 6.1, or no free huge page: the bytes count.
            Err(error) => eprintln!("not collapsed: {error}"),
        }
        let mut bytes = vec![0; HUGE_PAGE_BYTES];
        memory.read_at(offset, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        assert!(collapse(&handle, 1 << 20, HUGE_PAGE_BYTES).is_err());
    }
}
