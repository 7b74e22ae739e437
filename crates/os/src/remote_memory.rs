//! Bytes in the address space of another process, copied by the kernel (`process_vm_readv`).

use crate::error::OsError;

/// Most buffers that the kernel takes at once (`IOV_MAX`).
const PARTS_PER_CALL: usize = 1024;

/// Fills `bytes` from `address` of the process. The caller needs the right to trace it: the same user, and an ancestor of it
/// where the system is strict. Missing pages there are faulted in, so a page whose faults somebody serves must be present.
///
/// # Errors
/// `EFAULT` for a range that is not readable there, `ESRCH` if the process has ended, `EPERM` without the right;
/// [`OsError::OutOfBounds`] if only a part could be read.
pub fn read(process: i32, address: u64, bytes: &mut [u8]) -> Result<(), OsError> {
    read_parts(process, &mut [(address, bytes)])
}

/// Fills several buffers, each from its own address of the process, with one call for up to 1024 of them; else as [`read`].
///
/// # Errors
/// As [`read`]. What is in the buffers then means nothing.
pub fn read_parts(process: i32, parts: &mut [(u64, &mut [u8])]) -> Result<(), OsError> {
    for parts in parts.chunks_mut(PARTS_PER_CALL) {
        let vector = |start: *mut libc::c_void, bytes: usize| libc::iovec { iov_base: start, iov_len: bytes };
        let local: Vec<_> =
            parts.iter_mut().map(|(_, part)| vector(part.as_mut_ptr().cast(), part.len())).collect();
        let place = |address: u64| std::ptr::without_provenance_mut(address as usize);
        let remote: Vec<_> =
            parts.iter().map(|(address, part)| vector(place(*address), part.len())).collect();
        let count = parts.len() as libc::c_ulong;
        // SAFETY: the kernel writes to the parts, which are borrowed for writing; the other addresses are of another process and
        // checked by the kernel.
        let result =
            unsafe { libc::process_vm_readv(process, local.as_ptr(), count, remote.as_ptr(), count, 0) };
        let wanted: usize = parts.iter().map(|(_, part)| part.len()).sum();
        let first = parts.first().map_or(0, |(address, _)| *address);
        match usize::try_from(result) {
            Ok(done) if done == wanted => {}
            Ok(done) => {
                let (bytes, limit) = (wanted as u64, first.saturating_add(done as u64));
                return Err(OsError::OutOfBounds { offset: first, bytes, limit });
            }
            Err(_) => {
                let subject = format!("{wanted} bytes from {first:#x} on of process {process}");
                return Err(OsError::last("process_vm_readv", subject));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_process_are_read_and_of_none_are_not() {
        let here = [7u8; 5000];
        let mut copy = [0u8; 5000];
        let address = here.as_ptr().expose_provenance() as u64;
        read(std::process::id() as i32, address, &mut copy).unwrap();
        assert_eq!(here, copy);
        assert!(read(std::process::id() as i32, 4096, &mut copy).is_err());
        assert!(read(i32::MAX, address, &mut copy).is_err());
    }
}
