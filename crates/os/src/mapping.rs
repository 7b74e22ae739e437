//! Address ranges: parts of files mapped shared, anonymous memory, and reserved windows.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{OsError, check};
use crate::guard::{Guard, Loss};
use crate::shared_slice::SharedSlice;
use crate::{BASE_PAGE_BYTES, HUGE_PAGE_BYTES};

/// How to map a part of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapOptions {
    /// The address to map at, which must be free (`MAP_FIXED_NOREPLACE`); anywhere if absent.
    pub address: Option<u64>,
    /// Whether the memory may be written.
    pub write: bool,
    /// Whether to map all pages at once (`MAP_POPULATE`), which also makes the missing pages of the file.
    pub populate: bool,
    /// Whether to place the mapping on a 2 MiB boundary and to ask for huge pages (`MADV_HUGEPAGE`).
    pub huge: bool,
    /// Whether a child made by `fork` goes without this range (`MADV_DONTFORK`).
    pub skip_fork: bool,
    /// Whether to survive that another process cuts the file off: accesses fail from then on, in place of SIGBUS.
    pub guarded: bool,
}

/// An address range of this process, unmapped on drop.
///
/// Mappings of files are shared and take no reservation (`MAP_NORESERVE`): mapping a sparse file of huge pages must not
/// claim a page for each hole. So whoever fills a page allocates it first ([`crate::MemoryFile::allocate`]), where
/// lack of memory is an error and not a signal.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes to unmap: more than `bytes` where the range ends within a huge page.
    held_bytes: usize,
    writable: bool,
    /// Whether drop gives the range back to the reservation that it was cut from, in place of unmapping it.
    inside_reservation: Option<Arc<Mapping>>,
    /// What notices that the file was cut off.
    guard: Option<&'static Guard>,
}

// SAFETY: a Mapping is an address range; its memory is reached only through SharedSlice or raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of `file` from `offset`, shared.
    ///
    /// # Errors
    /// [`OsError::Misaligned`] for an offset that is no multiple of the base page, else the refusal of `mmap`.
    pub fn map(file: impl AsFd, offset: u64, bytes: usize, options: MapOptions) -> Result<Self, OsError> {
        check_multiple("offset of a mapping", offset, BASE_PAGE_BYTES as u64)?;
        let file_offset = libc::off_t::try_from(offset).map_err(|_| OsError::OutOfBounds {
            offset,
            bytes: bytes as u64,
            limit: libc::off_t::MAX as u64,
        })?;
        let mut flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        if options.populate && !options.huge {
            flags |= libc::MAP_POPULATE;
        }
        let descriptor = file.as_fd().as_raw_fd();
        let huge_file = is_on_hugetlbfs(descriptor);
        let (place, placed_flags, reserved) = placement(bytes, options, flags)?;
        let held_bytes = held(bytes, huge_file || reserved.is_some());
        // SAFETY: either the kernel chooses the place, or the place is refused if anything is mapped there, or it is
        // the range that `placement` has just reserved for this call.
        let start = unsafe {
            map_raw(place, bytes, protection(options.write), placed_flags, descriptor, file_offset)
        }
        .inspect_err(|_| {
            if let Some(start) = reserved {
                // SAFETY: the range was reserved by `placement` and nobody else knows of it.
                unsafe { libc::munmap(start.as_ptr().cast(), held_bytes) };
            }
        })?;
        let mut mapping =
            Self { start, bytes, held_bytes, writable: options.write, inside_reservation: None, guard: None };
        mapping.advise(options)?;
        if options.guarded {
            mapping.guard = Some(Guard::take(start.as_ptr().addr(), held_bytes)?);
        }
        Ok(mapping)
    }

    /// Makes `bytes` bytes of private, zeroed, writable memory; with `huge` on a 2 MiB boundary and in huge pages where
    /// the kernel has them.
    ///
    /// # Errors
    /// The refusal of `mmap`.
    pub fn anonymous(bytes: usize, huge: bool) -> Result<Self, OsError> {
        let options = MapOptions { write: true, huge, ..MapOptions::default() };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (place, placed_flags, reserved) = placement(bytes, options, flags)?;
        let held_bytes = held(bytes, reserved.is_some());
        // SAFETY: as in `map`.
        let start = unsafe { map_raw(place, bytes, protection(true), placed_flags, -1, 0) }?;
        let mapping =
            Self { start, bytes, held_bytes, writable: true, inside_reservation: None, guard: None };
        mapping.advise(options)?;
        Ok(mapping)
    }

    /// Maps `bytes` bytes of `file` from `offset` two times in a row, shared: byte `bytes + i` of the result is byte `i`, so
    /// that what runs over the end of a ring lies in one piece. The length of the result is twice `bytes`.
    ///
    /// # Errors
    /// [`OsError::Misaligned`] for an offset or a length that is no multiple of the base page (huge pages: of theirs), else
    /// the refusal of `mmap`.
    pub fn map_twice(file: impl AsFd, offset: u64, bytes: usize, write: bool) -> Result<Self, OsError> {
        check_multiple("offset of a mapping", offset, BASE_PAGE_BYTES as u64)?;
        check_multiple("length of a doubled mapping", bytes as u64, BASE_PAGE_BYTES as u64)?;
        let limit = usize::MAX as u64 / 2;
        let twice =
            bytes.checked_mul(2).ok_or(OsError::OutOfBounds { offset, bytes: bytes as u64, limit })?;
        let file_offset = libc::off_t::try_from(offset).map_err(|_| OsError::OutOfBounds {
            offset,
            bytes: bytes as u64,
            limit: libc::off_t::MAX as u64,
        })?;
        // From here on the range is unmapped as a whole, whatever happens.
        let mut mapping = Self::reserve(None, twice)?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let descriptor = file.as_fd().as_raw_fd();
        for half in [0, bytes] {
            // SAFETY: `half` lies within the reservation of twice as many bytes.
            let place = unsafe { mapping.start.as_ptr().add(half) };
            // SAFETY: the range is one half of the reservation just made, of which nobody else knows.
            unsafe { map_raw(place, bytes, protection(write), flags, descriptor, file_offset) }?;
        }
        mapping.writable = write;
        Ok(mapping)
    }

    /// Reserves an address range at which nothing may be read or written until [`map_inside`](Self::map_inside) puts
    /// something there; it costs no memory.
    ///
    /// # Errors
    /// The refusal of `mmap`: `EEXIST` if something is mapped in the range already.
    pub fn reserve(address: Option<u64>, bytes: usize) -> Result<Self, OsError> {
        let options = MapOptions { address, ..MapOptions::default() };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (place, placed_flags, _) = placement(bytes, options, flags)?;
        // SAFETY: as in `map`.
        let start = unsafe { map_raw(place, bytes, libc::PROT_NONE, placed_flags, -1, 0) }?;
        Ok(Self { start, bytes, held_bytes: bytes, writable: false, inside_reservation: None, guard: None })
    }

    /// Maps a part of a file over a part of this reservation. Dropping the result reserves the part again.
    ///
    /// The caller keeps track of which parts of the reservation are in use; a part that is mapped twice belongs to the
    /// later mapping, and the earlier one then reads the later one's bytes.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`], or the refusal of `mmap`.
    pub fn map_inside(
        self: &Arc<Self>,
        at: usize,
        file: impl AsFd,
        offset: u64,
        bytes: usize,
        options: MapOptions,
    ) -> Result<Self, OsError> {
        if at > self.bytes || bytes > self.bytes - at {
            return Err(OsError::OutOfBounds {
                offset: at as u64,
                bytes: bytes as u64,
                limit: self.bytes as u64,
            });
        }
        check_multiple("place in a reservation", at as u64, BASE_PAGE_BYTES as u64)?;
        check_multiple("offset of a mapping", offset, BASE_PAGE_BYTES as u64)?;
        let mut flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        if options.populate {
            flags |= libc::MAP_POPULATE;
        }
        let descriptor = file.as_fd().as_raw_fd();
        if is_on_hugetlbfs(descriptor) {
            // The kernel would round the length up and map over what lies behind the range.
            check_multiple("length of a huge mapping", bytes as u64, HUGE_PAGE_BYTES as u64)?;
        }
        // SAFETY: `at` lies within the reservation, by the check above.
        let place = unsafe { self.start.as_ptr().add(at) };
        // SAFETY: the range lies inside a reservation that this process owns and that the Arc keeps reserved.
        let start = unsafe {
            map_raw(place, bytes, protection(options.write), flags, descriptor, offset as libc::off_t)
        }?;
        let mapping = Self {
            start,
            bytes,
            held_bytes: bytes,
            writable: options.write,
            inside_reservation: Some(Arc::clone(self)),
            guard: None,
        };
        mapping.advise(options)?;
        Ok(mapping)
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the range is empty; the kernel refuses such mappings, so it never is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of the first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// The first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Whether the memory may be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether a [guarded](MapOptions::guarded) mapping has lost its file: what is read from it is no byte of the file.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.guard.is_some_and(Guard::is_lost)
    }

    /// What tells that a guarded mapping has lost its file; `None` if nothing guards it.
    pub fn loss(&self) -> Option<Loss> {
        self.guard.map(Loss)
    }

    /// All of the mapping as a slice that keeps it alive. A slice of a [reservation](Self::reserve) has no bytes that
    /// can be reached; do not make one.
    pub fn slice(self: &Arc<Self>) -> SharedSlice {
        SharedSlice::whole(self)
    }

    /// Locks all pages in memory, making those that are missing.
    ///
    /// # Errors
    /// `ENOMEM` beyond the limit of locked memory.
    pub fn lock(&self) -> Result<(), OsError> {
        // SAFETY: the range is mapped; mlock changes no contents.
        let result = unsafe { libc::mlock(self.start.as_ptr().cast(), self.bytes) };
        check(result, "mlock", || format!("{} bytes", self.bytes))
            .map(drop)
            .map_err(|error| error.with_hint("raise the limit of locked memory: `ulimit -l unlimited`"))
    }

    fn advise(&self, options: MapOptions) -> Result<(), OsError> {
        let start = self.start.as_ptr().cast();
        if options.huge {
            // SAFETY: the range is mapped; MADV_HUGEPAGE changes no contents. Kernels without huge pages refuse it, and
            // then base pages are what there is.
            unsafe { libc::madvise(start, self.bytes, libc::MADV_HUGEPAGE) };
        }
        if options.skip_fork {
            // SAFETY: the range is mapped; MADV_DONTFORK changes only what a child inherits.
            let result = unsafe { libc::madvise(start, self.bytes, libc::MADV_DONTFORK) };
            check(result, "madvise(MADV_DONTFORK)", || format!("{} bytes", self.bytes))?;
        }
        if options.huge && options.populate {
            let how = if options.write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
            // SAFETY: the range is mapped with that right; populating changes no contents.
            let result = unsafe { libc::madvise(start, self.bytes, how) };
            check(result, "madvise(MADV_POPULATE)", || format!("{} bytes", self.bytes))?;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = self.start.as_ptr();
        if let Some(guard) = self.guard {
            guard.release();
        }
        if self.inside_reservation.is_some() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the range was mapped by map_inside over a reservation that still exists; reserving it again leaves
            // no hole in which the process could map something else.
            unsafe { libc::mmap(start.cast(), self.bytes, libc::PROT_NONE, flags, -1, 0) };
        } else {
            // SAFETY: this value mapped the range and nothing borrows from it any more: slices hold an Arc of it.
            unsafe { libc::munmap(start.cast(), self.held_bytes) };
        }
    }
}

pub(crate) fn check_multiple(what: &'static str, value: u64, alignment: u64) -> Result<(), OsError> {
    if value.is_multiple_of(alignment) { Ok(()) } else { Err(OsError::Misaligned { what, value, alignment }) }
}

fn protection(write: bool) -> libc::c_int {
    if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ }
}

/// Bytes that a mapping of `bytes` holds: whole huge pages where it lies in such.
fn held(bytes: usize, huge: bool) -> usize {
    if huge { bytes.next_multiple_of(HUGE_PAGE_BYTES) } else { bytes }
}

/// Whether a descriptor is a file whose mappings the kernel rounds to huge pages.
fn is_on_hugetlbfs(descriptor: libc::c_int) -> bool {
    file_system_type(descriptor) == Some(HUGETLBFS_MAGIC)
}

/// The magic number of the file system that a descriptor lies on.
pub(crate) fn file_system_type(descriptor: libc::c_int) -> Option<i64> {
    // SAFETY: an all-zero statfs is a valid value for the kernel to overwrite.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live statfs of this frame.
    let result = unsafe { libc::fstatfs(descriptor, &mut status) };
    (result == 0).then_some(status.f_type)
}

/// `f_type` of hugetlbfs (`HUGETLBFS_MAGIC`).
pub(crate) const HUGETLBFS_MAGIC: i64 = 0x958458f6;
/// `f_type` of tmpfs and memfd (`TMPFS_MAGIC`).
pub(crate) const TMPFS_MAGIC: i64 = 0x01021994;

/// Where to map: the wanted address, or for huge pages a range on a 2 MiB boundary that is reserved here.
fn placement(
    bytes: usize,
    options: MapOptions,
    flags: libc::c_int,
) -> Result<(*mut u8, libc::c_int, Option<NonNull<u8>>), OsError> {
    if let Some(address) = options.address {
        let place = std::ptr::without_provenance_mut(address as usize);
        return Ok((place, flags | libc::MAP_FIXED_NOREPLACE, None));
    }
    if !options.huge || bytes < HUGE_PAGE_BYTES {
        return Ok((std::ptr::null_mut(), flags, None));
    }
    let rounded = held(bytes, true);
    let reserve_flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses the place.
    let reserved = unsafe {
        map_raw(std::ptr::null_mut(), rounded + HUGE_PAGE_BYTES, libc::PROT_NONE, reserve_flags, -1, 0)
    }?;
    let before = reserved.as_ptr().align_offset(HUGE_PAGE_BYTES);
    // SAFETY: `before` is less than a huge page, by which the reservation is longer than what is kept.
    let start = unsafe { reserved.add(before) };
    // SAFETY: both ends belong to the reservation just made; what lies between is kept.
    unsafe {
        if before > 0 {
            libc::munmap(reserved.as_ptr().cast(), before);
        }
        if before < HUGE_PAGE_BYTES {
            libc::munmap(start.as_ptr().add(rounded).cast(), HUGE_PAGE_BYTES - before);
        }
    }
    Ok((start.as_ptr(), flags | libc::MAP_FIXED, Some(start)))
}

/// `mmap` with an error in place of `MAP_FAILED`.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, the range must belong to the caller.
unsafe fn map_raw(
    place: *mut u8,
    bytes: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    descriptor: libc::c_int,
    offset: libc::off_t,
) -> Result<NonNull<u8>, OsError> {
    // SAFETY: the caller answers for the range; all other arguments are values.
    let result = unsafe { libc::mmap(place.cast(), bytes, protection, flags, descriptor, offset) };
    let subject = || format!("{bytes} bytes at {place:p}, file offset {offset}");
    if result == libc::MAP_FAILED {
        return Err(OsError::last("mmap", subject()));
    }
    NonNull::new(result.cast()).ok_or_else(|| OsError::Refused {
        operation: "mmap",
        reason: format!("{} was placed at address zero", subject()),
        hint: "set vm.mmap_min_addr above zero".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_mapping_starts_on_a_huge_boundary() {
        let mapping = Mapping::anonymous(3 << 20, true).unwrap();
        assert_eq!(mapping.address() % HUGE_PAGE_BYTES as u64, 0);
        let slice = Arc::new(mapping).slice();
        slice.fill(0, 3 << 20, 3).unwrap();
    }

    #[test]
    fn an_address_in_use_is_refused() {
        let taken = Mapping::anonymous(8192, false).unwrap();
        let again = Mapping::reserve(Some(taken.address()), 4096).unwrap_err();
        assert_eq!(again.errno(), Some(libc::EEXIST));
    }

    #[test]
    fn a_part_of_a_reservation_is_reserved_again_when_its_mapping_goes() {
        let window = Arc::new(Mapping::reserve(None, 1 << 20).unwrap());
        let file = crate::MemoryFile::anonymous("window", 8192, crate::PageKind::Base4K).unwrap();
        let options = MapOptions { write: true, ..MapOptions::default() };
        let part = window.map_inside(4096, &file, 4096, 4096, options).unwrap();
        assert_eq!(part.address(), window.address() + 4096);
        Arc::new(part).slice().write_at(0, b"kept in the file").unwrap();
        let taken = Mapping::reserve(Some(window.address() + 4096), 4096).unwrap_err();
        assert_eq!(taken.errno(), Some(libc::EEXIST));
        let again = Arc::new(window.map_inside(8192, &file, 4096, 4096, options).unwrap()).slice();
        let mut text = [0u8; 16];
        again.read_at(0, &mut text).unwrap();
        assert_eq!(&text, b"kept in the file");
        assert!(window.map_inside(1 << 20, &file, 0, 4096, options).is_err());
        assert!(window.map_inside(5, &file, 0, 4096, options).is_err());
    }

    #[test]
    fn what_runs_over_the_end_of_a_doubled_mapping_is_at_its_start() {
        let file = crate::MemoryFile::anonymous("doubled", 3 * 4096, crate::PageKind::Base4K).unwrap();
        let slice = Arc::new(Mapping::map_twice(&file, 4096, 8192, true).unwrap()).slice();
        assert_eq!(slice.len(), 4 * 4096);
        slice.write_at(8190, b"over").unwrap();
        let (mut start, mut whole) = ([0; 2], [0; 4]);
        slice.read_at(0, &mut start).unwrap();
        file.read_at(4096, &mut whole[..2]).unwrap();
        assert_eq!((&start, &whole[..2]), (b"er", &b"er"[..]));
        slice.read_at(8190, &mut whole).unwrap();
        assert_eq!(&whole, b"over");
        assert!(Mapping::map_twice(&file, 5, 4096, true).is_err());
        assert!(Mapping::map_twice(&file, 0, 100, true).is_err());
    }

    #[test]
    fn a_read_only_mapping_refuses_writes_before_the_processor_does() {
        let file = crate::MemoryFile::anonymous("read-only", 4096, crate::PageKind::Base4K).unwrap();
        let slice = Arc::new(Mapping::map(&file, 0, 4096, MapOptions::default()).unwrap()).slice();
        assert!(matches!(slice.write_at(0, &[1]), Err(OsError::ReadOnly { .. })));
        assert!(matches!(slice.store_u64(0, 1), Err(OsError::ReadOnly { .. })));
        assert_eq!(slice.load_u64(0).unwrap(), 0);
    }
}
