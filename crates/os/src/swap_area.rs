//! Swap areas: their header, switching them on and off, and a process that serves one.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::BASE_PAGE_BYTES;
use crate::error::{OsError, check};

/// The kernel gives up areas that are shorter than this.
const PAGES_MIN: u64 = 10;
/// Where the header begins, behind room for a boot loader.
const HEADER_AT: usize = 1024;
/// Where the label of the header begins.
const LABEL_AT: usize = HEADER_AT + 12 + 16;
/// Most bytes of a label, the last one zero.
const LABEL_BYTES: usize = 16;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// An area that the kernel uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapArea {
    /// Its device or file.
    pub path: PathBuf,
    /// Bytes that it has.
    pub bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Those with more are used first.
    pub priority: i32,
}

/// The first page of an area of so many bytes.
///
/// # Errors
/// [`OsError::Refused`] for one that is too short or too long.
pub fn header(bytes: u64, label: &str) -> Result<Vec<u8>, OsError> {
    let pages = bytes / BASE_PAGE_BYTES as u64;
    let last = u32::try_from(pages.wrapping_sub(1)).ok().filter(|_| pages >= PAGES_MIN);
    let Some(last) = last else {
        return Err(OsError::Refused {
            operation: "making a swap area",
            reason: format!("{bytes} bytes are {pages} pages"),
            hint: "from 40 KiB to 16 TiB".into(),
        });
    };
    let mut page = vec![0; BASE_PAGE_BYTES];
    page[HEADER_AT..HEADER_AT + 4].copy_from_slice(&1u32.to_ne_bytes());
    page[HEADER_AT + 4..HEADER_AT + 8].copy_from_slice(&last.to_ne_bytes());
    let label = &label.as_bytes()[..label.len().min(LABEL_BYTES - 1)];
    page[LABEL_AT..LABEL_AT + label.len()].copy_from_slice(label);
    page[BASE_PAGE_BYTES - MAGIC.len()..].copy_from_slice(MAGIC);
    Ok(page)
}

/// Writes the header of an area onto a device.
///
/// # Errors
/// As [`header`], and the refusal of a write.
pub fn make(device: &Path, bytes: u64, label: &str) -> Result<(), OsError> {
    let page = header(bytes, label)?;
    let subject = || device.display().to_string();
    let mut file = OpenOptions::new()
        .write(true)
        .open(device)
        .map_err(|error| OsError::system("open", subject(), error))?;
    file.write_all(&page)
        .and_then(|()| file.sync_all())
        .map_err(|error| OsError::system("writing the swap header", subject(), error))
}

/// Lets the kernel use an area; it tells the device of what it frees.
///
/// # Errors
/// `EPERM` without the right, `EINVAL` without a header, `EBUSY` if it is in use.
pub fn switch_on(device: &Path, priority: Option<u16>) -> Result<(), OsError> {
    const PREFER: libc::c_int = 0x8000;
    const PRIORITY_MASK: libc::c_int = 0x7fff;
    const DISCARD: libc::c_int = 0x10000;
    let mut flags = DISCARD;
    if let Some(priority) = priority {
        flags |= PREFER | (libc::c_int::from(priority) & PRIORITY_MASK);
    }
    let path = c_path(device)?;
    // SAFETY: the path lives through the call.
    check(unsafe { libc::swapon(path.as_ptr(), flags) }, "swapon", || device.display().to_string())?;
    Ok(())
}

/// Takes an area away from the kernel, which reads all that is in use back into memory first.
///
/// # Errors
/// `ENOMEM` when what is there does not fit into memory.
pub fn switch_off(device: &Path) -> Result<(), OsError> {
    let path = c_path(device)?;
    // SAFETY: the path lives through the call.
    let result = unsafe { libc::swapoff(path.as_ptr()) };
    match check(result, "swapoff", || device.display().to_string()) {
        Ok(_) => Ok(()),
        Err(error) if error.errno() == Some(libc::ENOMEM) => Err(error.with_hint(
            "what is in it does not fit into memory: end programs, or add another swap area first",
        )),
        Err(error) => Err(error),
    }
}

/// The areas that the kernel uses.
///
/// # Errors
/// `/proc/swaps` cannot be read.
pub fn areas() -> Result<Vec<SwapArea>, OsError> {
    let text = std::fs::read_to_string("/proc/swaps")
        .map_err(|error| OsError::system("read", "/proc/swaps", error))?;
    Ok(text.lines().skip(1).filter_map(area).collect())
}

fn area(line: &str) -> Option<SwapArea> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [path, _kind, kib, used_kib, priority] = words.as_slice() else { return None };
    Some(SwapArea {
        path: PathBuf::from(path),
        bytes: kib.parse::<u64>().ok()?.checked_mul(1024)?,
        used_bytes: used_kib.parse::<u64>().ok()?.checked_mul(1024)?,
        priority: priority.parse().ok()?,
    })
}

/// Makes this process one that may serve a swap area of its own host: its memory is never taken out, its threads never wait for
/// memory that is being written to a device, and the kernel does not choose it when memory is short. Threads that are started
/// later inherit it. Returns what could not be had.
pub fn become_server() -> Vec<OsError> {
    const SET_IO_FLUSHER: libc::c_int = 57;
    let subject = || "this process".to_owned();
    let mut refused = Vec::new();
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: plain values.
    refused.extend(check(unsafe { libc::mlockall(flags) }, "mlockall", subject).err());
    // SAFETY: plain values; the kernel wants the unused ones to be zero.
    let result = unsafe { libc::prctl(SET_IO_FLUSHER, 1u64, 0u64, 0u64, 0u64) };
    refused.extend(check(result, "prctl(PR_SET_IO_FLUSHER)", subject).err());
    let score = File::options().write(true).open("/proc/self/oom_score_adj");
    if let Err(error) = score.and_then(|mut file| file.write_all(b"-1000")) {
        refused.push(OsError::system("writing oom_score_adj", subject(), error));
    }
    refused
}

fn c_path(path: &Path) -> Result<CString, OsError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| OsError::Refused {
        operation: "naming a device",
        reason: "its path has a zero byte".into(),
        hint: "name it as /dev/nbd0".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_how_many_pages_there_are() {
        let page = header(1 << 20, "far").unwrap();
        assert_eq!(page.len(), BASE_PAGE_BYTES);
        assert_eq!(&page[HEADER_AT + 4..HEADER_AT + 8], &255u32.to_ne_bytes());
        assert_eq!(&page[LABEL_AT..LABEL_AT + 4], b"far\0");
        assert!(page.ends_with(MAGIC));
        for bad in [0, 4096, 9 * 4096, 1 << 45] {
            assert!(header(bad, "far").unwrap_err().to_string().contains("hint:"), "{bad}");
        }
    }

    #[test]
    fn lines_of_the_kernel_are_areas() {
        let line = "/dev/nbd0                               partition\t65532\t\t4096\t\t-2";
        let expected =
            SwapArea { path: "/dev/nbd0".into(), bytes: 65532 << 10, used_bytes: 4 << 20, priority: -2 };
        assert_eq!(area(line), Some(expected));
        assert_eq!(area(""), None);
        assert!(areas().is_ok());
    }
}
