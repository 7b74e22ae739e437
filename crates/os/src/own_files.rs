//! Which file lies behind an address of this process, and whether what is there is still the file's.
//!
//! The kernel is asked each time: a table of one's own would be wrong, without anybody noticing, as soon as somebody maps or unmaps by a call that
//! it does not see. A question costs two to three microseconds (`PROCMAP_QUERY`, from kernel 6.11 on; before, `/proc/self/maps` is read),
//! and 10 ns a page for the second one.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::error::{OsError, check};
use crate::{BASE_PAGE_BYTES, mapping::check_multiple};

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl = 0xC068_6611u32 as libc::Ioctl;
const VMA_WRITABLE: u64 = 1 << 1;
const VMA_SHARED: u64 = 1 << 3;
/// Longest name of a file that is wanted.
const NAME_BYTES_MAX: usize = 4096;
/// Entries of `/proc/self/pagemap` that are read at once: those of 2 MiB.
const ENTRIES: usize = 512;
/// Bits of an entry: the page is in memory, it is in swap or is a mark, it is a page of a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// A file by its device and its number there: one file has one as long as anybody has it open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl FileIdentity {
    /// That of an open file.
    ///
    /// # Errors
    /// The refusal of `fstat`.
    pub fn of(file: BorrowedFd<'_>) -> Result<Self, OsError> {
        // SAFETY: an all-zero block is valid, and the kernel writes to a live one.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the descriptor is open for as long as it is borrowed.
        let result = unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) };
        check(result, "fstat", || "a file".to_owned())?;
        Ok(Self { device: status.st_dev, inode: status.st_ino })
    }
}

/// A mapping of a file in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMapping {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset in the file of the first address.
    pub offset: u64,
    /// The file.
    pub file: FileIdentity,
    /// Whether writes go to the file, not to private copies.
    pub is_shared: bool,
    /// Whether the program may write there now.
    pub is_writable: bool,
    /// The name that the kernel shows for the file: a hint, since anybody may give a file any name.
    pub name: String,
}

/// The mapping of a file around an address; nothing if there is none, or memory of no file.
///
/// # Errors
/// [`OsError::System`] where `/proc` cannot be read.
pub fn mapping_at(address: u64) -> Result<Option<FileMapping>, OsError> {
    let maps = open("/proc/self/maps")?;
    match query(&maps, address) {
        // The kernel does not know the question.
        Err(error) if error.errno() == Some(libc::ENOTTY) => search(maps, address),
        other => other,
    }
}

fn query(maps: &File, address: u64) -> Result<Option<FileMapping>, OsError> {
    let mut name = [0_u8; NAME_BYTES_MAX];
    let mut asked = Query {
        size: size_of::<Query>() as u64,
        address,
        name_bytes: NAME_BYTES_MAX as u32,
        name: name.as_mut_ptr().expose_provenance() as u64,
        ..Query::default()
    };
    // SAFETY: the block is live and of the size that it says, and the name has the bytes that it says.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut asked) };
    match check(result, "ioctl(PROCMAP_QUERY)", || format!("{address:#x}")) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        other => other?,
    };
    let has_file = asked.inode != 0 && address >= asked.start && address < asked.end;
    let length = (asked.name_bytes as usize).saturating_sub(1).min(NAME_BYTES_MAX);
    Ok(has_file.then(|| FileMapping {
        start: asked.start,
        end: asked.end,
        offset: asked.offset,
        file: FileIdentity { device: libc::makedev(asked.major, asked.minor), inode: asked.inode },
        is_shared: asked.vma_flags & VMA_SHARED != 0,
        is_writable: asked.vma_flags & VMA_WRITABLE != 0,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
    }))
}

/// Looks through the text of all mappings.
fn search(mut maps: File, address: u64) -> Result<Option<FileMapping>, OsError> {
    let mut bytes = Vec::new();
    maps.read_to_end(&mut bytes).map_err(|error| OsError::system("read", "/proc/self/maps", error))?;
    // Names of files need not be text.
    let text = String::from_utf8_lossy(&bytes);
    let around = |mapping: &FileMapping| address >= mapping.start && address < mapping.end;
    Ok(text.lines().filter_map(line).find(around).filter(|mapping| mapping.file.inode != 0))
}

/// One line: `start-end perms offset major:minor inode name`.
fn line(text: &str) -> Option<FileMapping> {
    let mut rest = text;
    let mut word = || {
        let (word, behind) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
        rest = behind;
        word
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = word().split_once('-')?;
    let rights = word();
    let offset = hex(word())?;
    let (major, minor) = word().split_once(':')?;
    let inode = word().parse().ok()?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    Some(FileMapping {
        start: hex(start)?,
        end: hex(end)?,
        offset,
        file: FileIdentity { device: libc::makedev(number(major)?, number(minor)?), inode },
        is_shared: rights.as_bytes().get(3) == Some(&b's'),
        is_writable: rights.as_bytes().get(1) == Some(&b'w'),
        name: rest.trim_start().to_owned(),
    })
}

/// Whether every page of a range that the program has touched is one of the file, and none a private copy: what a program reads in a private mapping
/// of a file is then the file's bytes. The range is widened to whole pages.
///
/// # Errors
/// [`OsError::System`] where `/proc` cannot be read.
pub fn is_all_of_file(address: u64, bytes: u64) -> Result<bool, OsError> {
    const ENTRY_BYTES: u64 = 8;
    let page = BASE_PAGE_BYTES as u64;
    let map = open("/proc/self/pagemap")?;
    let mut next = address / page;
    let end = address.saturating_add(bytes).div_ceil(page);
    let mut entries = [0_u8; ENTRIES * ENTRY_BYTES as usize];
    while next < end {
        // At most the number of entries.
        let count = (end - next).min(ENTRIES as u64) as usize;
        let part = &mut entries[..count * ENTRY_BYTES as usize];
        map.read_exact_at(part, next * ENTRY_BYTES)
            .map_err(|error| OsError::system("read", "/proc/self/pagemap", error))?;
        let is_private = |entry: &[u8; 8]| {
            let entry = u64::from_ne_bytes(*entry);
            entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
        };
        if part.as_chunks::<8>().0.iter().any(is_private) {
            return Ok(false);
        }
        next += count as u64;
    }
    Ok(true)
}

/// Keeps a file in being, so that no other file gets its identity, without a descriptor that a program might close: a page of it is mapped, without
/// access, for the rest of the process's life.
///
/// # Errors
/// The refusal of `mmap`.
pub fn keep(file: impl AsFd, page_bytes: u64) -> Result<(), OsError> {
    check_multiple("length to keep", page_bytes, BASE_PAGE_BYTES as u64)?;
    let descriptor = file.as_fd().as_raw_fd();
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    // Past whatever stands before the C library's function: that would have its own thoughts about files of the pool.
    // SAFETY: the kernel chooses the place, and nobody can touch a page without access.
    let place = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0_usize,
            page_bytes as usize,
            libc::PROT_NONE,
            flags,
            descriptor,
            0_usize,
        )
    };
    if place < 0 {
        return Err(OsError::last("mmap", "a page of a file"));
    }
    // A child inherits the identity with the parent's other mappings, or has no use for it.
    let start = std::ptr::with_exposed_provenance_mut::<libc::c_void>(place as usize);
    // SAFETY: the range was mapped above; what a child inherits is all that changes.
    unsafe { libc::syscall(libc::SYS_madvise, start, page_bytes as usize, libc::MADV_DONTFORK) };
    Ok(())
}

/// Opens a file by the name that a mapping shows, if it is still that file.
///
/// # Errors
/// [`OsError::System`] if there is no such file (any more), or it is another one.
pub fn open_same(mapping: &FileMapping) -> Result<File, OsError> {
    let file = open(&mapping.name)?;
    let about = file.metadata().map_err(|error| OsError::system("stat", &mapping.name, error))?;
    if (FileIdentity { device: about.dev(), inode: about.ino() }) == mapping.file {
        return Ok(file);
    }
    let other = std::io::Error::from_raw_os_error(libc::ESTALE);
    Err(OsError::system("open", &mapping.name, other))
}

fn open(path: &str) -> Result<File, OsError> {
    File::open(path).map_err(|error| OsError::system("open", path, error))
}

#[cfg(test)]
mod tests;
