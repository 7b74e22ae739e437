//! Locks of single bytes that belong to an open file: they end when the last descriptor and the last mapping of it do.
//!
//! So a lock on a descriptor that was handed to another process tells, as long as the kernel holds it, that somebody there may
//! still use the file. The bytes need not exist.

use std::os::fd::{AsFd, AsRawFd};

use crate::error::{OsError, check};

/// Who else may lock the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteLock {
    /// Others may share it.
    Shared,
    /// Nobody.
    Alone,
}

/// Locks a byte for the open file behind a descriptor; false if another open file has it so that it cannot be had.
///
/// # Errors
/// The refusal of `fcntl`: `EBADF` for a descriptor that is not open for writing (reading for a shared one).
pub fn lock_byte(file: impl AsFd, byte: u64, lock: ByteLock) -> Result<bool, OsError> {
    let kind = if lock == ByteLock::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
    let mut region = region(byte, kind);
    match ask(&file, libc::F_OFD_SETLK, &mut region) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.errno(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether another open file has a byte locked.
///
/// # Errors
/// The refusal of `fcntl`.
pub fn is_byte_locked(file: impl AsFd, byte: u64) -> Result<bool, OsError> {
    let mut region = region(byte, libc::F_WRLCK);
    ask(&file, libc::F_OFD_GETLK, &mut region)?;
    Ok(i32::from(region.l_type) != libc::F_UNLCK)
}

fn region(byte: u64, kind: libc::c_int) -> libc::flock {
    // SAFETY: an all-zero flock is valid; the process number must be zero for locks of open files.
    let mut region: libc::flock = unsafe { std::mem::zeroed() };
    // Small constants; a byte that no file can have is none that anybody locks.
    region.l_type = kind as libc::c_short;
    region.l_whence = libc::SEEK_SET as libc::c_short;
    region.l_start = libc::off_t::try_from(byte).unwrap_or(libc::off_t::MAX - 1);
    region.l_len = 1;
    region
}

fn ask(file: &impl AsFd, operation: libc::c_int, region: &mut libc::flock) -> Result<(), OsError> {
    let raw = file.as_fd().as_raw_fd();
    // SAFETY: the pointer is to a live flock of this frame.
    let result = unsafe { libc::fcntl(raw, operation, std::ptr::from_mut(region)) };
    check(result, "locking", || format!("byte {} of descriptor {raw}", region.l_start)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapOptions, MemoryFile, PageKind};

    #[test]
    fn a_mapping_keeps_the_lock_of_its_descriptor_and_its_end_gives_it_back() {
        let file = MemoryFile::anonymous("locks", 4096, PageKind::Base4K).unwrap();
        let handed = MemoryFile::from_descriptor(file.reopen().unwrap()).unwrap();
        assert!(lock_byte(&handed, 1 << 40, ByteLock::Shared).unwrap());
        assert!(is_byte_locked(&file, 1 << 40).unwrap() && !is_byte_locked(&file, 7).unwrap());
        assert!(!lock_byte(&file, 1 << 40, ByteLock::Alone).unwrap());
        let mapping = handed.map(0, 4096, MapOptions { write: true, ..MapOptions::default() }).unwrap();
        drop(handed);
        assert!(is_byte_locked(&file, 1 << 40).unwrap(), "somebody can still write through it");
        drop(mapping);
        assert!(!is_byte_locked(&file, 1 << 40).unwrap());
        assert!(lock_byte(&file, 1 << 40, ByteLock::Alone).unwrap());
    }
}
