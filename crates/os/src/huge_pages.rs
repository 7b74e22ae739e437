//! Huge page counts of the machine, the overcommit of them, and mounts whose files have huge pages.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
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

/// Surplus pages that somebody was allowed on top of those of all others, to be given back at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the limit stays raised until it is given back"]
pub struct OvercommitClaim {
    /// By how many pages the limit was raised.
    pub pages: u64,
}

/// Raises the limit of surplus pages, which are made on demand from free memory, by `pages`, but not above what the
/// memory of the machine holds. Several processes may do so at once: each adds its own share under a lock, so none takes
/// what another one counts on. Pages that exist already beyond the limit (of an earlier run) count as used.
///
/// # Errors
/// `EACCES` without the right to write it.
pub fn claim_overcommit(pages: u64) -> Result<OvercommitClaim, OsError> {
    let surplus = read_count("surplus_hugepages")?;
    let pages_max = crate::probe::memory_total_bytes() / crate::HUGE_PAGE_BYTES as u64;
    let mut added = 0;
    change_overcommit(|limit| {
        let raised = limit.max(surplus).saturating_add(pages).min(pages_max).max(limit);
        added = raised - limit;
        raised
    })?;
    Ok(OvercommitClaim { pages: added })
}

/// Lowers the limit of surplus pages again by what was claimed. Pages that exist stay.
///
/// # Errors
/// `EACCES` without the right to write it.
pub fn set_overcommit(claim: OvercommitClaim) -> Result<(), OsError> {
    change_overcommit(|limit| limit.saturating_sub(claim.pages))
}

/// Reads the limit and writes another one, while all other callers wait.
fn change_overcommit(change: impl FnOnce(u64) -> u64) -> Result<(), OsError> {
    let path = format!("{COUNTS_FOLDER}/nr_overcommit_hugepages");
    let refused = |error| {
        OsError::system("setting the huge page overcommit", path.clone(), error)
            .with_hint("as root: `sysctl vm.nr_overcommit_hugepages=N`")
    };
    let mut file = fs::OpenOptions::new().write(true).open(&path).map_err(refused)?;
    file.lock().map_err(refused)?;
    let wanted = change(read_count("nr_overcommit_hugepages")?);
    // The lock ends with the descriptor.
    file.write_all(wanted.to_string().as_bytes()).map_err(refused)
}

/// Mounts a hugetlbfs of 2 MiB pages at a folder, which is made if it does not exist.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn mount_hugetlbfs(folder: &Path) -> Result<(), OsError> {
    mount(folder, "hugetlbfs", "pagesize=2M,mode=0700", 0)
}

/// Mounts a tmpfs with `huge=always` at a folder, which is made if it does not exist. `bytes_max` bounds its files.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` on a kernel without transparent huge pages.
pub fn mount_huge_tmpfs(folder: &Path, bytes_max: u64) -> Result<(), OsError> {
    mount(folder, "tmpfs", &format!("huge=always,mode=0700,size={bytes_max}"), 0)
}

/// Changes the bound of a tmpfs that is mounted at a folder; its files stay.
///
/// # Errors
/// `EINVAL` if its files hold more already, `EPERM` without `CAP_SYS_ADMIN`.
pub fn resize_huge_tmpfs(folder: &Path, bytes_max: u64) -> Result<(), OsError> {
    mount(folder, "tmpfs", &format!("huge=always,size={bytes_max}"), libc::MS_REMOUNT)
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
    File::open(folder).is_ok_and(|file| {
        file_system_type(file.as_raw_fd()) == Some(TMPFS_MAGIC) && is_huge_tmpfs(file.as_fd())
    })
}

/// Whether a file on a tmpfs gets huge pages: by the option of its mount (found in `/proc/self/mountinfo` by the device
/// number), or, for memfds, which lie on a mount of the kernel's own, by the system's setting.
pub(crate) fn is_huge_tmpfs(file: BorrowedFd<'_>) -> bool {
    // SAFETY: an all-zero stat is a valid value for the kernel to overwrite.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure of this frame.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut status) } != 0 {
        return false;
    }
    let device = format!("{}:{}", libc::major(status.st_dev), libc::minor(status.st_dev));
    let Ok(mounts) = crate::process::text_of("/proc/self/mountinfo") else { return false };
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

fn mount(folder: &Path, kind: &'static str, options: &str, more_flags: libc::c_ulong) -> Result<(), OsError> {
    fs::create_dir_all(folder)
        .map_err(|error| OsError::system("making the folder", folder.display().to_string(), error))?;
    let (c_folder, c_kind) = (c_path(folder)?, crate::memory_file::c_string(kind)?);
    let c_options = crate::memory_file::c_string(options)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | more_flags;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_add_up_and_each_is_given_back_alone() {
        // Needs the right to change the limit; other tests and processes may change it at the same time, so only what
        // a claim guarantees is checked.
        let Ok(first) = claim_overcommit(3) else { return };
        let second = claim_overcommit(5).unwrap();
        assert!(read_count("nr_overcommit_hugepages").unwrap() >= 8);
        set_overcommit(first).unwrap();
        assert!(read_count("nr_overcommit_hugepages").unwrap() >= 5);
        set_overcommit(second).unwrap();
    }

    #[test]
    fn a_claim_is_never_more_than_the_machine_holds() {
        let Ok(claim) = claim_overcommit(u64::MAX) else { return };
        let pages_max = crate::probe::memory_total_bytes() / crate::HUGE_PAGE_BYTES as u64;
        assert!(claim.pages <= pages_max);
        set_overcommit(claim).unwrap();
    }
}
