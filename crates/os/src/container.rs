//! Whether this process runs in a container: devices and rights are then given by whoever starts it, and no command inside mends what is
//! missing.

use crate::process::text_of;

/// Mode of a process whose system calls are filtered, as they are in containers and hardly anywhere else.
const FILTERED: &str = "2";
/// `CAP_SYS_MODULE` as a bit number: no container has it that was not given all rights, and outside root has it.
const CAP_SYS_MODULE: u32 = 16;

/// Whether it looks like one: its system calls are filtered, or a right of root cannot be had. Files that mark a container are not asked
/// for: they are left over where a machine was made of the image of one.
pub fn is_inside() -> bool {
    is_confined(&text_of("/proc/self/status").unwrap_or_default())
}

fn is_confined(status: &str) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let rights = field("CapBnd:").and_then(|rights| u64::from_str_radix(rights, 16).ok());
    field("Seccomp:") == Some(FILTERED) || rights.is_some_and(|rights| rights >> CAP_SYS_MODULE & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filtered_calls_and_missing_rights_are_seen() {
        assert!(is_confined("Name:\tsh\nCapBnd:\t000001ffffffffff\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(is_confined("CapBnd:\t00000000a80425fb\nSeccomp:\t0\n"));
        assert!(!is_confined("Name:\tsh\nCapBnd:\t000001ffffffffff\nSeccomp:\t0\n"));
        assert!(!is_confined(""));
    }
}
