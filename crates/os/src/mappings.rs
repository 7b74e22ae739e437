//! The mappings of a process: all of another one's with their flags, and one of its own, asked for by an address.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::OsError;
use crate::process;

/// The mappings of a process, in order, with their flags as the kernel names them, two letters each. The kernel walks all memory of the process for that.
///
/// # Errors
/// The refusal of `/proc/PID/smaps`: the process has ended, or is another user's.
pub fn flags_of_process<T>(
    process: i32,
    mut look: impl FnMut(Range<u64>, &str) -> Option<T>,
) -> Result<Vec<T>, OsError> {
    let path = format!("/proc/{process}/smaps");
    let text = process::text_of(&path).map_err(|error| OsError::system("reading", path, error))?;
    Ok(parse(&text, &mut look))
}

/// Whether flags have one.
pub fn has_flag(flags: &str, flag: &str) -> bool {
    flags.split_ascii_whitespace().any(|other| other == flag)
}

/// What one mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// Memory of this process alone, and not of a file.
    pub is_private: bool,
}

/// The mapping that an address lies in, of the process whose `/proc/PID/maps` a descriptor is; `None` if there is none, and on kernels before 6.11.
/// Allocates nothing.
pub fn at(maps: BorrowedFd<'_>, address: u64) -> Option<Mapping> {
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the structure that this number is defined for, of the size that it says; it names no buffers.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
        return None;
    }
    let has = |flag: u64| query.flags & flag != 0;
    Some(Mapping {
        start: query.start,
        end: query.end,
        read: has(READABLE),
        write: has(WRITABLE),
        execute: has(EXECUTABLE),
        is_private: !has(SHARED) && query.inode == 0,
    })
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl = 0xC068_6611u32 as libc::Ioctl;
const READABLE: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const EXECUTABLE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    wanted: u64,
    address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_bytes: u32,
    name: u64,
    build: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

pub(crate) fn parse<T>(smaps: &str, look: &mut impl FnMut(Range<u64>, &str) -> Option<T>) -> Vec<T> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            found.extend(current.take().and_then(|range| look(range, flags)));
        } else if let Some(range) = range(line) {
            current = Some(range);
        }
    }
    found
}

/// The range at the start of the first line of a mapping.
fn range(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_mapping_is_told_by_an_address_in_it() {
        let maps = std::fs::File::open("/proc/self/maps").unwrap();
        let on_stack = 0u8;
        let Some(stack) = at(maps.as_fd(), (&raw const on_stack).addr() as u64) else {
            assert!(at(maps.as_fd(), 0).is_none(), "a kernel before 6.11");
            return;
        };
        assert!(stack.read && stack.write && !stack.execute && stack.is_private);
        let code = at(maps.as_fd(), (at as *const ()).addr() as u64).unwrap();
        assert!(code.execute && !code.write && !code.is_private && code.start < code.end);
        assert_eq!(at(maps.as_fd(), 0), None);
    }
}
