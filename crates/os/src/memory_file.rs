//! Files whose pages are the memory of the pool: memfds, files on hugetlbfs or tmpfs, plain files and devices.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::container;
use crate::error::{OsError, check};
use crate::mapping::{HUGETLBFS_MAGIC, MapOptions, Mapping, TMPFS_MAGIC, check_multiple, file_system_type};
use crate::{BASE_PAGE_BYTES, HUGE_PAGE_BYTES};

/// Which pages a file is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PageKind {
    /// 2 MiB pages of hugetlbfs: a fault maps 2 MiB at once, pages cannot be swapped, `write` does not work.
    Huge2M,
    /// A tmpfs mounted `huge=always`: 2 MiB pages where the kernel finds them, 4 KiB pages elsewhere.
    TransparentHuge,
    /// 4 KiB pages: tmpfs, memfd without huge pages, or the page cache of a disk.
    Base4K,
    /// A device (`/dev/dax*` or a block device): its size is fixed and it has no holes.
    Device,
}

impl PageKind {
    /// Bytes that lengths, allocations and holes of such a file are multiples of.
    pub const fn page_bytes(self) -> u64 {
        match self {
            Self::Huge2M | Self::Device => HUGE_PAGE_BYTES as u64,
            Self::TransparentHuge | Self::Base4K => BASE_PAGE_BYTES as u64,
        }
    }

    /// The name used in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Huge2M => "hugetlb",
            Self::TransparentHuge => "tmpfs-huge",
            Self::Base4K => "base",
            Self::Device => "device",
        }
    }
}

impl std::fmt::Display for PageKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a memfd shall refuse from this call on, for every holder of a descriptor of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seals {
    /// Its length may not shrink: nobody gets SIGBUS from a truncation.
    pub shrink: bool,
    /// Its length may not grow.
    pub grow: bool,
    /// No writes and no new writable mappings; those that exist still write.
    pub future_write: bool,
    /// No writes at all; refused with `EBUSY` while a writable mapping exists.
    pub write: bool,
    /// No further seals.
    pub seal: bool,
}

impl Seals {
    /// The length stays what it is, and no seal can be added: for files that a peer may hold which is not trusted.
    pub const FIXED_LENGTH: Self =
        Self { shrink: true, grow: true, future_write: false, write: false, seal: true };
}

/// An open file of pool memory. Offsets and lengths are bytes.
#[derive(Debug)]
pub struct MemoryFile {
    descriptor: OwnedFd,
    bytes: u64,
    /// But for tmpfs, of which it is the small one.
    kind: PageKind,
    /// Whether a file on a tmpfs has huge pages, once somebody has asked: to look costs some 70 system calls, and of most files (rings, one
    /// page of flags) nobody wants to know.
    is_huge: OnceLock<bool>,
    path: Option<PathBuf>,
}

impl MemoryFile {
    /// A file without a name (`memfd_create`), gone with its last descriptor and mapping; `name` is shown in
    /// `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`OsError::Unsupported`] for transparent huge pages where the system forbids them to memfds and for devices.
    pub fn anonymous(name: &str, bytes: u64, kind: PageKind) -> Result<Self, OsError> {
        let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        match kind {
            PageKind::Huge2M => flags |= libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
            PageKind::Base4K => {}
            PageKind::TransparentHuge if crate::huge_pages::memfd_is_huge() => {}
            PageKind::TransparentHuge | PageKind::Device => {
                return Err(OsError::Unsupported {
                    operation: "memfd_create",
                    reason: format!("a memfd cannot have {kind} pages on this system"),
                    hint: "make a file on a tmpfs mounted huge=always, or \
                           `echo always > /sys/kernel/mm/transparent_hugepage/shmem_enabled`"
                        .into(),
                });
            }
        }
        let c_name = c_string(name)?;
        // SAFETY: the name is a NUL-terminated string that outlives the call.
        let result = unsafe { libc::memfd_create(c_name.as_ptr(), flags) };
        let raw = check(result, "memfd_create", || format!("{name} ({kind} pages)"))?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        // Where the system gives every memfd huge pages, those without have none to offer: both kinds are one.
        let kind = if kind == PageKind::TransparentHuge { PageKind::Base4K } else { kind };
        let mut file = Self { descriptor, bytes: 0, kind, is_huge: OnceLock::new(), path: None };
        file.resize(bytes)?;
        Ok(file)
    }

    /// Makes the file `path`, which must not exist, of `bytes` bytes and no pages. The pages are of the kind of the file
    /// system that it lies on.
    ///
    /// # Errors
    /// `EEXIST` if it exists; else the refusal of `open` or `ftruncate`.
    pub fn create(path: &Path, bytes: u64) -> Result<Self, OsError> {
        let mut file = Self::open_with(path, OpenOptions::new().read(true).write(true).create_new(true))?;
        if let Err(error) = file.resize(bytes) {
            file.remove()?;
            return Err(error);
        }
        Ok(file)
    }

    /// Opens an existing file or device.
    ///
    /// # Errors
    /// The refusal of `open`.
    pub fn open(path: &Path, write: bool) -> Result<Self, OsError> {
        Self::open_with(path, OpenOptions::new().read(true).write(write))
    }

    /// Takes a descriptor that another process handed over; its length and page kind are asked from the kernel, never
    /// from the peer.
    ///
    /// # Errors
    /// The refusal of `fstat`; [`OsError::Refused`] for a descriptor that is neither file nor device.
    pub fn from_descriptor(descriptor: OwnedFd) -> Result<Self, OsError> {
        Self::inspect(File::from(descriptor), None)
    }

    /// Length in bytes, as of opening or of the last [`resize`](Self::resize) through this value.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Which pages the file is made of.
    pub fn kind(&self) -> PageKind {
        if self.kind == PageKind::Base4K
            && *self.is_huge.get_or_init(|| is_huge_tmpfs(self.descriptor.as_fd()))
        {
            return PageKind::TransparentHuge;
        }
        self.kind
    }

    /// The path that it was made or opened under; none for a memfd or a descriptor that was handed over.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether the file still has its length: whoever has a descriptor for writing may have cut it off.
    ///
    /// # Errors
    /// The refusal of `fstat`.
    pub fn is_whole(&self) -> Result<bool, OsError> {
        self.status().map(|status| self.kind == PageKind::Device || status.len() >= self.bytes)
    }

    /// Bytes of memory that the file holds at this moment (its holes not counted).
    ///
    /// # Errors
    /// The refusal of `fstat`.
    pub fn held_bytes(&self) -> Result<u64, OsError> {
        self.status().map(|status| status.blocks() * 512)
    }

    /// Sets the length. Pages behind it are freed, and an access to them through a mapping is SIGBUS.
    ///
    /// # Errors
    /// [`OsError::Misaligned`] on huge pages; the refusal of `ftruncate`; [`OsError::Unsupported`] for a device.
    pub fn resize(&mut self, bytes: u64) -> Result<(), OsError> {
        if self.kind == PageKind::Device {
            return Err(self.device_has_fixed_size("ftruncate"));
        }
        if self.kind == PageKind::Huge2M {
            check_multiple("length of a file of huge pages", bytes, self.kind.page_bytes())?;
        }
        // SAFETY: plain values.
        let result = unsafe { libc::ftruncate(self.raw(), signed(bytes)?) };
        check(result, "ftruncate", || format!("{} to {bytes} bytes", self.subject()))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Makes the pages of a range, zeroed where they are holes, so that no later access can fail for lack of memory. They are made on
    /// the [NUMA nodes](crate::NumaNodes::choose) that were chosen.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` without memory, with what was made in part left in place; [`OsError::OutOfBounds`].
    pub fn allocate(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.check_range(offset, bytes)?;
        if self.kind == PageKind::Device || bytes == 0 {
            return Ok(());
        }
        crate::numa::on_chosen(|| self.fallocate(libc::FALLOC_FL_KEEP_SIZE, offset, bytes, "fallocate"))
    }

    /// Frees the pages of a range, which must be a multiple of the page: it reads as zeros, and the kernel unmaps it in
    /// every process at once. A mapping under [`crate::userfault`] faults as missing then.
    ///
    /// # Errors
    /// [`OsError::Misaligned`], [`OsError::OutOfBounds`], or the refusal of `fallocate`.
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.check_range(offset, bytes)?;
        if self.kind == PageKind::Device {
            return Err(self.device_has_fixed_size("punching a hole"));
        }
        if bytes == 0 {
            return Ok(());
        }
        check_multiple("start of a hole", offset, self.kind.page_bytes())?;
        if offset + bytes != self.bytes {
            check_multiple("length of a hole", bytes, self.kind.page_bytes())?;
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.fallocate(mode, offset, bytes, "punching a hole")
    }

    /// A second descriptor of the same file through which nobody can write or map writably, for handing out.
    ///
    /// # Errors
    /// The refusal of `open` on `/proc/self/fd/N`.
    pub fn reopen_read_only(&self) -> Result<OwnedFd, OsError> {
        let link = format!("/proc/self/fd/{}", self.raw());
        File::open(&link)
            .map(OwnedFd::from)
            .map_err(|error| OsError::system("open read-only", format!("{link} ({})", self.subject()), error))
    }

    /// The file opened once more, for reading and writing: what belongs to one opening of it, such as locks, is apart.
    ///
    /// # Errors
    /// The refusal of `open` on `/proc/self/fd/N`.
    pub fn reopen(&self) -> Result<OwnedFd, OsError> {
        let link = format!("/proc/self/fd/{}", self.raw());
        File::options()
            .read(true)
            .write(true)
            .open(&link)
            .map(OwnedFd::from)
            .map_err(|error| OsError::system("open", format!("{link} ({})", self.subject()), error))
    }

    /// A second descriptor with the same rights as this one, for handing out.
    ///
    /// # Errors
    /// The refusal of `dup`.
    pub fn duplicate(&self) -> Result<OwnedFd, OsError> {
        self.descriptor.try_clone().map_err(|error| OsError::system("dup", self.subject(), error))
    }

    /// Waits until what was written, also through mappings, is on the disk that the file lies on, and so is its name. For
    /// files that lie in memory there is nothing to do.
    ///
    /// # Errors
    /// The refusal of `fsync`.
    pub fn sync(&self) -> Result<(), OsError> {
        let synced = self.descriptor.try_clone().map(File::from).and_then(|file| file.sync_all());
        let named = self
            .path
            .as_deref()
            .and_then(Path::parent)
            .map_or(Ok(()), |folder| File::open(folder).and_then(|folder| folder.sync_all()));
        synced.and(named).map_err(|error| OsError::system("fsync", self.subject(), error))
    }

    /// Seals a memfd.
    ///
    /// # Errors
    /// `EPERM` for files that are no memfd, `EBUSY` for [`Seals::write`] while a writable mapping exists.
    pub fn add_seals(&self, seals: Seals) -> Result<(), OsError> {
        let bits = [
            (seals.shrink, libc::F_SEAL_SHRINK),
            (seals.grow, libc::F_SEAL_GROW),
            (seals.future_write, libc::F_SEAL_FUTURE_WRITE),
            (seals.write, libc::F_SEAL_WRITE),
            (seals.seal, libc::F_SEAL_SEAL),
        ];
        let wanted = bits.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
        // SAFETY: plain values.
        let result = unsafe { libc::fcntl(self.raw(), libc::F_ADD_SEALS, wanted) };
        check(result, "sealing", || self.subject()).map(drop)
    }

    /// What a memfd refuses. A file of another kind has no seals, which is an error.
    ///
    /// # Errors
    /// `EINVAL` for files that are no memfd.
    pub fn seals(&self) -> Result<Seals, OsError> {
        // SAFETY: plain values.
        let result = unsafe { libc::fcntl(self.raw(), libc::F_GET_SEALS) };
        let bits = check(result, "reading the seals", || self.subject())?;
        Ok(Seals {
            shrink: bits & libc::F_SEAL_SHRINK != 0,
            grow: bits & libc::F_SEAL_GROW != 0,
            future_write: bits & libc::F_SEAL_FUTURE_WRITE != 0,
            write: bits & libc::F_SEAL_WRITE != 0,
            seal: bits & libc::F_SEAL_SEAL != 0,
        })
    }

    /// Maps a range of the file.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], or as [`Mapping::map`].
    pub fn map(&self, offset: u64, bytes: usize, options: MapOptions) -> Result<Mapping, OsError> {
        self.check_range(offset, bytes as u64)?;
        Mapping::map(self, offset, bytes, options)
    }

    /// Reads exactly `destination.len()` bytes with `pread`. A hole reads as zeros.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`] if the file ends before; the refusal of `pread`.
    pub fn read_at(&self, offset: u64, destination: &mut [u8]) -> Result<(), OsError> {
        let mut done = 0;
        while done < destination.len() {
            let rest = &mut destination[done..];
            // SAFETY: the pointer and length are of a live exclusive slice.
            let result = unsafe {
                libc::pread(self.raw(), rest.as_mut_ptr().cast(), rest.len(), signed(offset + done as u64)?)
            };
            match self.progress(result, "pread", offset, destination.len())? {
                Some(0) => {
                    let bytes = destination.len() as u64;
                    return Err(OsError::OutOfBounds { offset, bytes, limit: offset + done as u64 });
                }
                Some(more) => done += more,
                None => {}
            }
        }
        Ok(())
    }

    /// Writes all of `source` with `pwrite`. Not for pages that others have mapped and may not see half-filled: that is
    /// what [`crate::PageFiller`] is for. Refused by hugetlbfs.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`] past the end (the file never grows); the refusal of `pwrite`.
    pub fn write_at(&self, offset: u64, source: &[u8]) -> Result<(), OsError> {
        self.check_range(offset, source.len() as u64)?;
        let mut done = 0;
        while done < source.len() {
            let rest = &source[done..];
            // SAFETY: the pointer and length are of a live slice.
            let result = unsafe {
                libc::pwrite(self.raw(), rest.as_ptr().cast(), rest.len(), signed(offset + done as u64)?)
            };
            done += self.progress(result, "pwrite", offset, source.len())?.unwrap_or(0);
        }
        Ok(())
    }

    /// Unlinks the path of the file; descriptors and mappings of it stay valid.
    ///
    /// # Errors
    /// The refusal of `unlink`. Nothing happens to a file without a path.
    pub fn remove(&self) -> Result<(), OsError> {
        match &self.path {
            Some(path) if self.kind != PageKind::Device => std::fs::remove_file(path)
                .map_err(|error| OsError::system("unlink", path.display().to_string(), error)),
            _ => Ok(()),
        }
    }

    fn open_with(path: &Path, options: &mut OpenOptions) -> Result<Self, OsError> {
        let file = options
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| OsError::system("open", path.display().to_string(), error))?;
        Self::inspect(file, Some(path.to_path_buf()))
    }

    fn inspect(file: File, path: Option<PathBuf>) -> Result<Self, OsError> {
        let status = file.metadata().map_err(|error| OsError::system("fstat", format!("{path:?}"), error))?;
        let file_type = status.file_type();
        let (bytes, kind) = if file_type.is_file() {
            let is_hugetlbfs = file_system_type(file.as_raw_fd()) == Some(HUGETLBFS_MAGIC);
            (status.len(), if is_hugetlbfs { PageKind::Huge2M } else { PageKind::Base4K })
        } else if file_type.is_block_device() {
            (block_device_bytes(&file)?, PageKind::Device)
        } else if file_type.is_char_device() {
            (dax_device_bytes(status.rdev())?, PageKind::Device)
        } else {
            return Err(OsError::Refused {
                operation: "using a descriptor as memory",
                reason: format!("{path:?} is neither a file nor a device"),
                hint: "give a file, a block device or a /dev/dax device".into(),
            });
        };
        Ok(Self { descriptor: file.into(), bytes, kind, is_huge: OnceLock::new(), path })
    }

    fn fallocate(
        &self,
        mode: libc::c_int,
        offset: u64,
        bytes: u64,
        operation: &'static str,
    ) -> Result<(), OsError> {
        loop {
            // SAFETY: plain values.
            let result = unsafe { libc::fallocate(self.raw(), mode, signed(offset)?, signed(bytes)?) };
            match check(result, operation, || format!("{bytes} bytes at {offset} of {}", self.subject())) {
                Err(error) if error.errno() == Some(libc::EINTR) => {}
                Err(error) if error.errno() == Some(libc::ENOSPC) => return Err(self.without_room(error)),
                other => return other.map(drop),
            }
        }
    }

    /// Who runs in a container gives shared memory no larger size from there.
    fn without_room(&self, error: OsError) -> OsError {
        if container::is_inside() && self.subject().starts_with("/dev/shm/") {
            return error.with_hint("free space, or start the container with a larger `--shm-size`");
        }
        error
    }

    fn progress(
        &self,
        result: isize,
        operation: &'static str,
        offset: u64,
        bytes: usize,
    ) -> Result<Option<usize>, OsError> {
        if let Ok(done) = usize::try_from(result) {
            return Ok(Some(done));
        }
        match OsError::last(operation, format!("{bytes} bytes at {offset} of {}", self.subject())) {
            error if error.errno() == Some(libc::EINTR) => Ok(None),
            error => Err(error),
        }
    }

    /// The end of a range that lies within the file.
    pub(crate) fn check_range(&self, offset: u64, bytes: u64) -> Result<u64, OsError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(end),
            _ => Err(OsError::OutOfBounds { offset, bytes, limit: self.bytes }),
        }
    }

    fn status(&self) -> Result<std::fs::Metadata, OsError> {
        File::from(self.duplicate()?)
            .metadata()
            .map_err(|error| OsError::system("fstat", self.subject(), error))
    }

    fn device_has_fixed_size(&self, operation: &'static str) -> OsError {
        OsError::Unsupported {
            operation,
            reason: format!("{} is a device of fixed size without holes", self.subject()),
            hint: "use a file on hugetlbfs or tmpfs".into(),
        }
    }

    fn subject(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => format!("descriptor {}", self.raw()),
        }
    }

    fn raw(&self) -> libc::c_int {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString, OsError> {
    CString::new(text).map_err(|_| OsError::Refused {
        operation: "passing a name to the kernel",
        reason: format!("{text:?} contains a zero byte"),
        hint: "use another name".into(),
    })
}

fn signed(value: u64) -> Result<libc::off_t, OsError> {
    let limit = libc::off_t::MAX as u64;
    libc::off_t::try_from(value).map_err(|_| OsError::OutOfBounds { offset: value, bytes: 0, limit })
}

fn is_huge_tmpfs(file: BorrowedFd<'_>) -> bool {
    file_system_type(file.as_raw_fd()) == Some(TMPFS_MAGIC) && crate::huge_pages::is_huge_tmpfs(file)
}

/// `_IOR(0x12, 114, size_t)`: the size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;

fn block_device_bytes(file: &File) -> Result<u64, OsError> {
    let mut bytes = 0u64;
    // SAFETY: the kernel writes 8 bytes to a live u64.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut bytes) };
    check(result, "ioctl(BLKGETSIZE64)", || "block device".to_owned())?;
    Ok(bytes)
}

fn dax_device_bytes(device: u64) -> Result<u64, OsError> {
    let path = format!("/sys/dev/char/{}:{}/size", libc::major(device), libc::minor(device));
    let text = std::fs::read_to_string(&path).map_err(|error| {
        OsError::system("reading the size of a character device", path.clone(), error)
            .with_hint("of character devices only /dev/dax* is memory")
    })?;
    text.trim().parse().map_err(|_| OsError::Refused {
        operation: "reading the size of a character device",
        reason: format!("{path} holds {text:?}"),
        hint: "of character devices only /dev/dax* is memory".into(),
    })
}

#[cfg(test)]
mod tests;
