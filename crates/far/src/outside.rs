//! Programs that a program starts and that go past far memory: who runs it is told, because their memory is beside the budget.
//!
//! The library hands each program file over before the kernel begins it ([`hinterland_farplan::wire`]). A thread looks at it, so
//! that no fault waits for a disk.

use crate::program;
use crate::words::say;
use hinterland_farplan::wire;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

/// Files that are told of: who starts more kinds of them knows by then.
const TOLD_MAX: usize = 16;

/// A program that is about to begin.
pub(crate) struct Started {
    pub file: OwnedFd,
    /// How it begins, as [`wire::BEGINS_WHOLE`] and those behind it.
    pub how: u64,
}

/// What was started outside.
#[derive(Default)]
pub(crate) struct Outside {
    count: AtomicU64,
}

impl Outside {
    /// Programs that were started outside, again each time.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed) // Relaxed: a count of its own.
    }

    /// Looks at what is started until no more can come.
    pub(crate) fn serve(&self, started: &Receiver<Started>) {
        let mut told = BTreeSet::new();
        while let Ok(one) = started.recv() {
            let Some((path, why)) = why_outside(&one) else { continue };
            self.count.fetch_add(1, Ordering::Relaxed); // Relaxed: as above.
            if told.len() < TOLD_MAX && told.insert(path.clone()) {
                say(format_args!("{} {why}", path.display()));
            }
        }
    }
}

/// The file and the rest of the sentence that it begins; `None` for a program that greets.
fn why_outside(started: &Started) -> Option<(PathBuf, String)> {
    let link = format!("/proc/self/fd/{}", started.file.as_raw_fd());
    let path = std::fs::read_link(&link).ok()?;
    // Before it is opened: a pipe would keep this thread until somebody writes.
    let data = std::fs::metadata(&link).ok()?;
    if !data.is_file() || data.permissions().mode() & 0o111 == 0 {
        return None; // the kernel refuses to begin it
    }
    // One that may be executed and not read is seen as one that greets.
    let file = File::open(&link).ok()?;
    let refusal = program::refusal_of(path.clone(), file);
    let (path, text, hint) = match refusal {
        Some(refusal) => {
            (refusal.path, refusal.text, "give it swap on far memory: docs/guides/swap-device.md")
        }
        None => {
            let (text, hint) = match started.how {
                wire::BEGINS_BARE => (
                    "was started without LD_PRELOAD and HINTERLAND_FAR_SOCKET",
                    "hand the environment on to it",
                ),
                wire::BEGINS_CUT_OFF => (
                    "was started by a process that has changed its user or its root, and does not reach far memory",
                    "start the run as that user, or in that root",
                ),
                wire::BEGINS_WITHOUT_RIGHT => (
                    "has given up the right to a userfaultfd",
                    "leave it CAP_SYS_PTRACE, or set vm.unprivileged_userfaultfd to 1",
                ),
                wire::BEGINS_FILTERED => (
                    "may not make the system calls that far memory needs, because of a filter (seccomp)",
                    "have the filter allow userfaultfd and memfd_create",
                ),
                _ => return None,
            };
            (path, text, hint)
        }
    };
    Some((path, format!("{text}: its memory is none of the budget's (hint: {hint})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::Command;

    fn started(path: &str, how: u64) -> Started {
        Started { file: File::open(path).unwrap().into(), how }
    }

    #[test]
    fn a_program_with_the_library_is_inside_and_one_without_is_told_why() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        assert_eq!(why_outside(&started(own, wire::BEGINS_WHOLE)), None);
        for (how, expected) in [
            (wire::BEGINS_BARE, "LD_PRELOAD"),
            (wire::BEGINS_CUT_OFF, "user or its root"),
            (wire::BEGINS_WITHOUT_RIGHT, "right to a userfaultfd"),
            (wire::BEGINS_FILTERED, "seccomp"),
        ] {
            let (path, why) = why_outside(&started(own, how)).unwrap();
            assert_eq!(path.to_str(), Some(own));
            assert!(why.contains(expected), "{why}");
        }
        // A number that no library says.
        assert_eq!(why_outside(&started(own, 99)), None);
    }

    #[test]
    fn what_the_kernel_does_not_begin_is_not_told_of() {
        assert_eq!(why_outside(&started("/etc/passwd", wire::BEGINS_BARE)), None);
        assert_eq!(why_outside(&started("/", wire::BEGINS_BARE)), None);
        let path = std::env::temp_dir().join(format!("hinterland-pipe-{}", std::process::id()));
        assert!(Command::new("mkfifo").args(["-m", "755"]).arg(&path).status().unwrap().success());
        let pipe = File::options().read(true).custom_flags(libc::O_PATH).open(&path);
        std::fs::remove_file(&path).unwrap();
        let pipe = Started { file: pipe.unwrap().into(), how: wire::BEGINS_BARE };
        assert_eq!(why_outside(&pipe), None, "and nobody waits for a writer");
    }
}
