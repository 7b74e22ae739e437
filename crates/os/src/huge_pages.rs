//! Huge page counts of the machine, the overcommit of them, and mounts whose files have huge pages.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{OsError, check};
use crate::mapping::{HUGETLBFS_MAGIC, TMPFS_MAGIC, file_system_type};

const COUNTS_FOLDER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const THP_FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// 2 MiB pages of the machine, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePageCounts {
    /// Pages that exist, the surplus included.
    pub total: u64,
    /// Pages that exist and hold nothing.
    pub free: u64,
    /// Free pages that are promised to mappings.
    pub reserved: u64,
    /// Pages made on demand beyond the reserved pool.
    pub surplus: u64,
    /// How many surplus pages may exist.
    pub overcommit: u64,
}

impl HugePageCounts {
    /// Reads the counts.
    ///
    /// # Errors
    /// `ENOENT` on a kernel without 2 MiB pages.
    pub fn read() -> Result<Self, OsError> {
        Ok(Self {
            total: read_count("nr_hugepages")?,
            free: read_count("free_hugepages")?,
            reserved: read_count("resv_hugepages")?,
            surplus: read_count("surplus_hugepages")?,
            overcommit: read_count("nr_overcommit_hugepages")?,
        })
    }

    /// Pages that an allocation may still get, if there is memory for those made on demand.
    pub fn obtainable(&self) -> u64 {
        self.free.saturating_sub(self.reserved) + self.overcommit.saturating_sub(self.surplus)
    }
}

/// Allows at least `pages` surplus pages, which are made on demand from free memory; returns the limit of before, to be
/// given to [`set_overcommit`] at the end. A limit that is high enough already is left.
///
/// # Errors
/// `EACCES` without the right to write it.
pub fn raise_overcommit(pages: u64) -> Result<u64, OsError> {
    let before = read_count("nr_overcommit_hugepages")?;
    if before < pages {
        set_overcommit(pages)?;
    }
    Ok(before)
}

/// Sets how many surplus pages may exist.
///
/// # Errors
/// `EACCES` without the right to write it.
pub fn set_overcommit(pages: u64) -> Result<(), OsError> {
    let path = format!("{COUNTS_FOLDER}/nr_overcommit_hugepages");
    fs::write(&path, pages.to_string()).map_err(|error| {
        OsError::system("setting the huge page overcommit", path, error)
            .with_hint("as root: `sysctl vm.nr_overcommit_hugepages=N`")
    })
}

/// Mounts a hugetlbfs of 2 MiB pages at a folder, which is made if it does not exist. `bytes_max` bounds its files.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn mount_hugetlbfs(folder: &Path, bytes_max: u64) -> Result<(), OsError> {
    mount(folder, "hugetlbfs", &format!("pagesize=2M,mode=0700,size={bytes_max}"))
}

/// Mounts a tmpfs with `huge=always` at a folder, which is made if it does not exist. `bytes_max` bounds its files.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` on a kernel without transparent huge pages.
pub fn mount_huge_tmpfs(folder: &Path, bytes_max: u64) -> Result<(), OsError> {
    mount(folder, "tmpfs", &format!("huge=always,mode=0700,size={bytes_max}"))
}

/// Unmounts what is mounted at a folder, at once even if files of it are still open or mapped: those live on until
/// their last user goes.
///
/// # Errors
/// `EINVAL` if nothing is mounted there, `EPERM` without `CAP_SYS_ADMIN`.
pub fn unmount(folder: &Path) -> Result<(), OsError> {
    let c_folder = c_path(folder)?;
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    let result = unsafe { libc::umount2(c_folder.as_ptr(), libc::MNT_DETACH) };
    check(result, "umount", || folder.display().to_string()).map(drop)
}

/// Whether a folder lies on a hugetlbfs.
pub fn is_hugetlbfs(folder: &Path) -> bool {
    File::open(folder).is_ok_and(|file| file_system_type(file.as_raw_fd()) == Some(HUGETLBFS_MAGIC))
}

/// Whether a folder lies on a tmpfs that gives its files huge pages.
pub fn is_huge_tmpfs_folder(folder: &Path) -> bool {
    File::open(folder)
        .is_ok_and(|file| file_system_type(file.as_raw_fd()) == Some(TMPFS_MAGIC) && is_huge_tmpfs(&file))
}

/// Whether a file on a tmpfs gets huge pages: by the option of its mount (found in `/proc/self/mountinfo` by the device
/// number), or, for memfds, which lie on a mount of the kernel's own, by the system's setting.
pub(crate) fn is_huge_tmpfs(file: &File) -> bool {
    let Ok(status) = file.metadata() else { return false };
    let device = format!("{}:{}", libc::major(status.dev()), libc::minor(status.dev()));
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    // Fields: id, parent, major:minor, root, mount point, options, ..., "-", type, source, options of the file system.
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device.as_str()));
    match line.and_then(|line| line.rsplit(' ').next()) {
        Some(options) => options.split(',').any(|option| option == "huge=always"),
        None => memfd_is_huge(),
    }
}

/// Whether the system gives memfds pages larger than the base page, by the setting for all sizes or for one of them.
pub(crate) fn memfd_is_huge() -> bool {
    let is_on = |path: &str| matches!(chosen_word(path).as_deref(), Some("always" | "within_size" | "force"));
    let sizes = fs::read_dir(THP_FOLDER).into_iter().flatten().flatten();
    is_on(SHMEM_ENABLED)
        || sizes.map(|size| size.path().join("shmem_enabled")).any(|path| path.to_str().is_some_and(is_on))
}

/// The bracketed word of a setting such as `always [madvise] never`.
pub(crate) fn chosen_word(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

fn mount(folder: &Path, kind: &'static str, options: &str) -> Result<(), OsError> {
    fs::create_dir_all(folder)
        .map_err(|error| OsError::system("making the folder", folder.display().to_string(), error))?;
    let (c_folder, c_kind) = (c_path(folder)?, crate::memory_file::c_string(kind)?);
    let c_options = crate::memory_file::c_string(options)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(c_kind.as_ptr(), c_folder.as_ptr(), c_kind.as_ptr(), flags, c_options.as_ptr().cast())
    };
    check(result, "mount", || format!("{kind} ({options}) at {}", folder.display()))
        .map(drop)
        .map_err(|error| error.with_hint("mounting needs root (CAP_SYS_ADMIN)"))
}

fn c_path(path: &Path) -> Result<CString, OsError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| OsError::Refused {
        operation: "passing a path to the kernel",
        reason: format!("{} contains a zero byte", path.display()),
        hint: "use another path".into(),
    })
}

fn read_count(name: &str) -> Result<u64, OsError> {
    let path = format!("{COUNTS_FOLDER}/{name}");
    let text = fs::read_to_string(&path).map_err(|error| OsError::system("read", path.clone(), error))?;
    text.trim().parse().map_err(|_| OsError::Refused {
        operation: "reading a huge page count",
        reason: format!("{path} holds {text:?}"),
        hint: "is sysfs mounted at /sys?".into(),
    })
}
