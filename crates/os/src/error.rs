//! The one error of this crate: which operation, on what, why, and what to try.

use std::borrow::Cow;
use std::io;

/// Why the operating system, or a check before asking it, refused.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// A system call failed.
    #[error("{operation} of {subject}: {source} (hint: {hint})")]
    System {
        /// The call or step that failed.
        operation: &'static str,
        /// The path, range or object that it was asked for.
        subject: String,
        /// The kernel's answer.
        source: io::Error,
        /// What to try.
        hint: Cow<'static, str>,
    },
    /// An access lies outside of its slice, mapping or file.
    #[error("{bytes} bytes at {offset} end behind {limit} (hint: the length given by the peer is wrong)")]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that there are.
        limit: u64,
    },
    /// A value that must be a multiple of another is not.
    #[error("{what} {value} is no multiple of {alignment} (hint: round it)")]
    Misaligned {
        /// The name of the value.
        what: &'static str,
        /// The value.
        value: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// A write into a mapping that was made for reading.
    #[error("write of {bytes} bytes at {offset} into memory mapped read-only (hint: map it for writing)")]
    ReadOnly {
        /// First byte of the write.
        offset: u64,
        /// Bytes of the write.
        bytes: u64,
    },
    /// The file behind a mapping was cut off, or its memory failed: what was there is gone.
    #[error(
        "{bytes} bytes at {offset} are lost: a process that may write this memory has cut its file off, or the memory failed (hint: remove the object and put it again)"
    )]
    Lost {
        /// First byte of the access.
        offset: u64,
        /// Bytes of the access.
        bytes: u64,
    },
    /// This machine, or this configuration of it, cannot do what was asked.
    #[error("{operation} cannot work here: {reason} (hint: {hint})")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
        /// Why it cannot work.
        reason: String,
        /// The command or setting that would change it.
        hint: Cow<'static, str>,
    },
    /// Nothing happened in the time that was given.
    #[error("{operation} of {subject}: nothing within {waited_ms} ms (hint: is the other side alive?)")]
    TimedOut {
        /// What was waited for.
        operation: &'static str,
        /// The path or object.
        subject: String,
        /// The time given.
        waited_ms: u64,
    },
    /// The peer sent something that no honest peer sends, or the caller asked for more than a stated limit.
    #[error("{operation}: {reason} (hint: {hint})")]
    Refused {
        /// What was being done.
        operation: &'static str,
        /// What is wrong with it.
        reason: String,
        /// What to try.
        hint: Cow<'static, str>,
    },
}

impl OsError {
    /// The error of the system call that just failed in this thread (`errno`).
    pub fn last(operation: &'static str, subject: impl Into<String>) -> Self {
        Self::system(operation, subject, io::Error::last_os_error())
    }

    /// An error made from an [`io::Error`], with the usual hint for its number.
    pub fn system(operation: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        let hint = Cow::Borrowed(hint_for(source.raw_os_error()));
        Self::System { operation, subject: subject.into(), source, hint }
    }

    /// The same error with a better hint.
    #[must_use]
    pub fn with_hint(self, new_hint: impl Into<Cow<'static, str>>) -> Self {
        match self {
            Self::System { operation, subject, source, .. } => {
                Self::System { operation, subject, source, hint: new_hint.into() }
            }
            Self::Unsupported { operation, reason, .. } => {
                Self::Unsupported { operation, reason, hint: new_hint.into() }
            }
            Self::Refused { operation, reason, .. } => {
                Self::Refused { operation, reason, hint: new_hint.into() }
            }
            other => other,
        }
    }

    /// The error number, if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the call would have had to wait on a non-blocking descriptor.
    pub fn is_would_block(&self) -> bool {
        self.errno() == Some(libc::EAGAIN)
    }
}

/// Turns the result of a system call (-1 and `errno`) into a `Result`.
pub(crate) fn check(
    result: libc::c_int,
    operation: &'static str,
    subject: impl FnOnce() -> String,
) -> Result<libc::c_int, OsError> {
    if result < 0 { Err(OsError::last(operation, subject())) } else { Ok(result) }
}

fn hint_for(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EPERM | libc::EACCES) => {
            "run with the right to do it, or ask `hinterland doctor` what is missing"
        }
        Some(libc::ENOENT) => "check that the path exists",
        Some(libc::EEXIST) => "another process made it already, or an earlier one left it behind",
        Some(libc::ENOSPC) => "free space, or give the file system a larger size",
        Some(libc::ENOMEM) => "free memory, reserve huge pages, or ask for less",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files: `ulimit -n 65536`",
        Some(libc::EINVAL) => {
            "the kernel does not know this request, or a length is not a multiple of the page"
        }
        Some(libc::ENOSYS) => "the kernel lacks it; a kernel from 6.7 has everything that is used",
        Some(libc::ECONNREFUSED) => "nothing listens there; start the node",
        Some(libc::EPIPE | libc::ECONNRESET) => "the other side went away",
        Some(libc::EBUSY) => "something still uses it",
        _ => "ask `hinterland doctor` about this machine",
    }
}
