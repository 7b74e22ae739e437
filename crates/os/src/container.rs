//! Whether this process runs in a container: devices and rights are then given by whoever starts it, and no command inside mends what is
//! missing.

use std::fs;
use std::path::Path;

/// Files that Docker and Podman put into every container.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
/// Mode of a process whose system calls are filtered, as they are in containers and hardly anywhere else.
const FILTERED: &str = "2";

/// Whether it looks like one.
pub fn is_inside() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_filtered(&status) || MARKS.iter().any(|mark| Path::new(mark).exists())
}

fn is_filtered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == FILTERED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filtered_calls_are_seen() {
        assert!(is_filtered("Name:\tsh\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Name:\tsh\nSeccomp:\t0\n"));
        assert!(!is_filtered(""));
    }
}
