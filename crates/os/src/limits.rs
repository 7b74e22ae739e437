//! Resource limits of the process: open files and locked memory.

use crate::error::{OsError, check};

/// A limit: what is in force, and how far this process may raise it. `u64::MAX` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// In force.
    pub soft: u64,
    /// The most that it may be raised to without rights.
    pub hard: u64,
}

/// The limit of open files (descriptors).
///
/// # Errors
/// The refusal of `getrlimit`.
pub fn open_files() -> Result<Limit, OsError> {
    read(libc::RLIMIT_NOFILE, "limit of open files")
}

/// The limit of locked (and io_uring-registered) memory in bytes; processes with `CAP_IPC_LOCK` have none.
///
/// # Errors
/// The refusal of `getrlimit`.
pub fn locked_memory_bytes() -> Result<Limit, OsError> {
    read(libc::RLIMIT_MEMLOCK, "limit of locked memory")
}

/// Raises the limit of open files as far as it goes, and returns it.
///
/// # Errors
/// The refusal of `setrlimit`.
pub fn raise_open_files() -> Result<Limit, OsError> {
    let limit = open_files()?;
    let wanted = libc::rlimit { rlim_cur: limit.hard, rlim_max: limit.hard };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) };
    check(result, "setrlimit", || format!("open files to {}", limit.hard))?;
    open_files()
}

/// Sets the limit of open files in force, which programs that this process starts or becomes inherit. How far it may be raised stays.
///
/// # Errors
/// The refusal of `setrlimit`: `EINVAL` above the hard limit.
pub fn set_open_files(soft: u64) -> Result<(), OsError> {
    let wanted = libc::rlimit { rlim_cur: soft, rlim_max: open_files()?.hard };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) };
    check(result, "setrlimit", || format!("open files to {soft}")).map(drop)
}

fn read(resource: libc::__rlimit_resource_t, subject: &'static str) -> Result<Limit, OsError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes a structure of this frame.
    let result = unsafe { libc::getrlimit(resource, &mut limit) };
    check(result, "getrlimit", || subject.to_owned())?;
    Ok(Limit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_of_open_files_can_be_raised_to_its_hard_limit() {
        let raised = super::raise_open_files().unwrap();
        assert_eq!(raised.soft, raised.hard);
        super::set_open_files(raised.hard - 1).unwrap();
        assert_eq!(super::open_files().unwrap(), super::Limit { soft: raised.hard - 1, hard: raised.hard });
        assert!(super::set_open_files(raised.hard + 1).is_err());
    }
}
