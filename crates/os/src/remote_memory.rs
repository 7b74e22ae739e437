//! Bytes in the address space of another process, copied by the kernel (`process_vm_readv`).

use crate::error::OsError;

/// Fills `bytes` from `address` of the process. The caller needs the right to trace it: the same user, and an ancestor of it
/// where the system is strict. Missing pages there are faulted in, so a page whose faults somebody serves must be present.
///
/// # Errors
/// `EFAULT` for a range that is not readable there, `ESRCH` if the process has ended, `EPERM` without the right;
/// [`OsError::OutOfBounds`] if only a part could be read.
pub fn read(process: i32, address: u64, bytes: &mut [u8]) -> Result<(), OsError> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: bytes.len() };
    // SAFETY: the kernel writes to `bytes`, which is borrowed for writing; the other address is of another process and
    // checked by the kernel.
    let result = unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(result) {
        Ok(done) if done == bytes.len() => Ok(()),
        Ok(done) => Err(OsError::OutOfBounds {
            offset: address,
            bytes: bytes.len() as u64,
            limit: address.saturating_add(done as u64),
        }),
        Err(_) => {
            let subject = format!("{} bytes at {address:#x} of process {process}", bytes.len());
            Err(OsError::last("process_vm_readv", subject))
        }
    }
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
