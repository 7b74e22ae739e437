//! What can go wrong when an object of the pool is to be memory of this process.

use hinterland_os::OsError;
use hinterland_pool::PoolError;
use hinterland_types::RangeError;
use std::io;

/// A mapping could not be made, or an operation on one failed; the text ends in what to do.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The node said no, or the connection to it is gone.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The operating system said no to something that is not about address ranges.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A system call on an address range failed.
    #[error("{operation} of {bytes} bytes at {address:#x}: {source} (hint: {hint})")]
    System {
        /// The call.
        operation: &'static str,
        /// Address.
        address: u64,
        /// Length.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
        /// What to try.
        hint: &'static str,
    },
    /// The part of the object does not exist.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A part that cannot be mapped on its own.
    #[error(
        "{bytes} bytes at offset {offset} for address {address:#x} do not fit pages of {page_bytes} bytes (hint: map at any address, and from an offset that is a multiple of the page)"
    )]
    Alignment {
        /// Offset in the object.
        offset: u64,
        /// Length.
        bytes: u64,
        /// The address asked for; 0 for any.
        address: u64,
        /// Page of the file.
        page_bytes: u64,
    },
    /// The memory would be lost under the program's own copies.
    #[error(
        "{name} has pages of {page_bytes} bytes and cannot be mapped for private writing (hint: map it read-only, or read it as a file)"
    )]
    PrivateHuge {
        /// The object.
        name: String,
        /// Page of its file.
        page_bytes: u64,
    },
    /// System calls on missing pages would fail.
    #[error(
        "this process may only have its own loads served, not those of system calls (hint: as root `sysctl vm.unprivileged_userfaultfd=1`, or give this user /dev/userfaultfd)"
    )]
    UserModeOnly,
    /// The node describes an object that cannot be.
    #[error("the node describes {name} wrongly: {reason} (hint: run the same release on both sides)")]
    Nonsense {
        /// The object.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// After a restart of the node the object is another one.
    #[error("{name} is not what it was before the node restarted: {reason} (hint: start the program again)")]
    Changed {
        /// The object.
        name: String,
        /// What differs.
        reason: String,
    },
    /// A thread could not be started.
    #[error(
        "the thread that watches over mapped memory cannot be started: {source} (hint: raise `ulimit -u`)"
    )]
    Thread {
        /// The answer of the system.
        source: io::Error,
    },
}

impl RegionError {
    /// The `errno` value that fits.
    pub fn code(&self) -> i32 {
        match self {
            Self::Pool(error) => error.code(),
            Self::Os(error) => error.errno().unwrap_or(libc::EIO),
            Self::System { source, .. } | Self::Thread { source } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Range(_) | Self::Alignment { .. } => libc::EINVAL,
            Self::PrivateHuge { .. } | Self::UserModeOnly => libc::EPERM,
            Self::Nonsense { .. } | Self::Changed { .. } => libc::EIO,
        }
    }

    /// Whether the connection is of no more use and a new one may do better.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Pool(PoolError::Closed | PoolError::Os(_) | PoolError::Frame(_)))
    }

    /// Whether the object itself is gone, so that no later attempt can do better.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Pool(PoolError::Refused { code, .. }) => *code == libc::ENOENT,
            Self::Changed { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn system(operation: &'static str, extent: crate::system::Extent, source: io::Error) -> Self {
        let hint = match source.raw_os_error() {
            Some(libc::ENOMEM) => "raise vm.max_map_count, or free memory",
            Some(libc::EEXIST) => "something is mapped there; map at any address",
            Some(libc::EPERM | libc::EACCES) => "the node handed out a file without the right that is needed",
            _ => "ask `hinterland doctor` about this machine",
        };
        Self::System { operation, address: extent.address, bytes: extent.bytes, source, hint }
    }
}
