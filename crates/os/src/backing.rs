//! The choice of what memory to use: huge pages if any can be had, else a tmpfs with huge pages, else 4 KiB pages.

use std::path::{Path, PathBuf};

use crate::container;
use crate::error::OsError;
use crate::huge_pages::{self, HugePageCounts, OvercommitClaim};
use crate::memory_file::{MemoryFile, PageKind};
use crate::{BASE_PAGE_BYTES, HUGE_PAGE_BYTES};

/// Memory for files of the pool, ready to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// The pages that files in the folder are made of.
    pub kind: PageKind,
    /// Where to make files. They outlive the process; a mount does too.
    pub folder: PathBuf,
    /// What was chosen and why, with the command that would give something better; one paragraph, to be shown once.
    pub explanation: String,
    /// Whether this call mounted the folder, so that the caller may [`unmount`](huge_pages::unmount) it.
    pub mounted: bool,
    /// By how much this call raised the limit of surplus huge pages, for [`huge_pages::set_overcommit`].
    pub overcommit_before: Option<OvercommitClaim>,
}

/// How the memory of a device is used.
pub const DEVICE_HINT: &str = "as a NUMA node: `daxctl reconfigure-device --mode=system-ram dax0.0`, then --numa; or \
                               through a file system: `mkfs.ext4 /dev/pmem0`, `mount -o dax`, then --backing FOLDER";

/// Chooses memory for `bytes` bytes of files. Mounts are made at `folder`/hugetlb and `folder`/tmpfs-huge (a mount that
/// is there from an earlier run is used again, with its files); plain 4 KiB pages go to a folder of the same name below
/// `/dev/shm`. Each choice is tried with one real page before it is taken.
///
/// # Errors
/// With a `request`, why it cannot be had; without, only if not even 4 KiB pages can be had.
pub fn choose_backing(request: Option<PageKind>, folder: &Path, bytes: u64) -> Result<Backing, OsError> {
    match request {
        Some(PageKind::Huge2M) => hugetlb(folder, bytes),
        Some(PageKind::TransparentHuge) => huge_tmpfs(folder, bytes),
        Some(PageKind::Base4K) => base_pages(folder, "as was asked for"),
        Some(PageKind::Device) => Err(OsError::Unsupported {
            operation: "choosing a device",
            reason: "files are not made on a device".to_owned(),
            hint: DEVICE_HINT.into(),
        }),
        None => hugetlb(folder, bytes).or_else(|no_hugetlb| {
            huge_tmpfs(folder, bytes).map(|backing| explain_fallback(backing, &no_hugetlb, bytes)).or_else(
                |no_tmpfs| {
                    if is_no_right_to_mount(&no_hugetlb) && is_no_right_to_mount(&no_tmpfs) {
                        return base_pages(folder, no_right_to_mount());
                    }
                    base_pages(folder, &no_tmpfs.to_string())
                        .map(|backing| explain_fallback(backing, &no_hugetlb, bytes))
                },
            )
        }),
    }
}

/// What is said where nothing but the right to mount is missing: no setting of the machine would help.
fn no_right_to_mount() -> &'static str {
    if container::is_inside() {
        "a container may not mount huge pages; faults are cheaper with them: start it with `-v /dev/hugepages:/dev/hugepages`, and the \
         node with `--backing /dev/hugepages`"
    } else {
        "this user may not mount huge pages; faults are cheaper with them: start the node as root"
    }
}

fn is_no_right_to_mount(error: &OsError) -> bool {
    matches!(error, OsError::System { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
}

fn explain_fallback(mut backing: Backing, why: &OsError, bytes: u64) -> Backing {
    // Root of a user namespace mounts other file systems, and no huge pages.
    if is_no_right_to_mount(why) {
        backing.explanation.push_str("; ");
        backing.explanation.push_str(no_right_to_mount());
        return backing;
    }
    let pages = bytes.div_ceil(HUGE_PAGE_BYTES as u64);
    let text = format!(
        "; no 2 MiB huge pages: {why}; faults are cheaper with them: `sysctl vm.nr_overcommit_hugepages={pages}` as root"
    );
    backing.explanation.push_str(&text);
    backing
}

fn hugetlb(folder: &Path, bytes: u64) -> Result<Backing, OsError> {
    let pages = bytes.div_ceil(HUGE_PAGE_BYTES as u64);
    let counts = HugePageCounts::read()?;
    // Claimed even where enough pages are free: another node of this machine may count on the same ones.
    let claim = match huge_pages::claim_overcommit(pages) {
        Ok(claim) => Some(claim),
        Err(_) if counts.obtainable() >= pages => None,
        Err(error) => return Err(error),
    };
    let give_back = |error| {
        if let Some(claim) = claim {
            // The limit was changed a moment ago; if it cannot be lowered again it stays higher, which harms nobody.
            let _ = huge_pages::set_overcommit(claim);
        }
        error
    };
    let mount_folder = folder.join("hugetlb");
    let mounted = !huge_pages::is_hugetlbfs(&mount_folder);
    if mounted {
        huge_pages::mount_hugetlbfs(&mount_folder).map_err(give_back)?;
    }
    if let Err(error) = probe_page(&mount_folder) {
        if mounted {
            // The mount is ours and empty; the error that matters is the one of the probe.
            let _ = huge_pages::unmount(&mount_folder);
        }
        return Err(give_back(error));
    }
    let explanation = format!(
        "2 MiB huge pages in {} ({} reserved and free, the rest made on demand)",
        mount_folder.display(),
        counts.free.saturating_sub(counts.reserved)
    );
    Ok(Backing {
        kind: PageKind::Huge2M,
        folder: mount_folder,
        explanation,
        mounted,
        overcommit_before: claim,
    })
}

fn huge_tmpfs(folder: &Path, bytes: u64) -> Result<Backing, OsError> {
    let mount_folder = folder.join("tmpfs-huge");
    let mounted = !huge_pages::is_huge_tmpfs_folder(&mount_folder);
    // Room for the files themselves and for a partial page of each.
    let bytes_max = bytes + bytes / 8 + (64 << 20);
    if mounted {
        huge_pages::mount_huge_tmpfs(&mount_folder, bytes_max)?;
    } else {
        huge_pages::resize_huge_tmpfs(&mount_folder, bytes_max)?;
    }
    if let Err(error) = probe_page(&mount_folder) {
        if mounted {
            // As in `hugetlb`: the error of the probe is the one that matters.
            let _ = huge_pages::unmount(&mount_folder);
        }
        return Err(error);
    }
    let explanation =
        format!("transparent huge pages of a tmpfs (huge=always) in {}", mount_folder.display());
    Ok(Backing {
        kind: PageKind::TransparentHuge,
        folder: mount_folder,
        explanation,
        mounted,
        overcommit_before: None,
    })
}

fn base_pages(folder: &Path, why: &str) -> Result<Backing, OsError> {
    let name = folder.file_name().unwrap_or_else(|| "hinterland".as_ref());
    let shm_folder = Path::new("/dev/shm").join(name);
    std::fs::create_dir_all(&shm_folder)
        .map_err(|error| OsError::system("making the folder", shm_folder.display().to_string(), error))?;
    probe_page(&shm_folder)?;
    Ok(Backing {
        kind: PageKind::Base4K,
        explanation: format!("4 KiB pages in {} ({why})", shm_folder.display()),
        folder: shm_folder,
        mounted: false,
        overcommit_before: None,
    })
}

/// Makes one page of a file in the folder and frees it.
fn probe_page(folder: &Path) -> Result<(), OsError> {
    let path = folder.join(format!(".probe-{}", std::process::id()));
    let is_huge = huge_pages::is_hugetlbfs(folder) || huge_pages::is_huge_tmpfs_folder(folder);
    let bytes = if is_huge { HUGE_PAGE_BYTES } else { BASE_PAGE_BYTES } as u64;
    let file = MemoryFile::create(&path, bytes)?;
    let result = file.allocate(0, bytes);
    file.remove()?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_is_there_is_used_again_with_its_files_and_grows() {
        let folder = std::env::temp_dir().join(format!("hinterland-again-{}", std::process::id()));
        // Needs the right to mount.
        let Ok(first) = choose_backing(Some(PageKind::TransparentHuge), &folder, 4 << 20) else { return };
        let file = MemoryFile::create(&first.folder.join("kept"), 4096).unwrap();
        file.write_at(0, b"kept").unwrap();
        let second = choose_backing(Some(PageKind::TransparentHuge), &folder, 400 << 20).unwrap();
        assert_eq!((second.mounted, &second.folder), (false, &first.folder));
        let again = MemoryFile::open(&second.folder.join("kept"), false).unwrap();
        assert_eq!((again.len(), again.kind()), (4096, PageKind::TransparentHuge));
        let space = crate::probe::space(&second.folder).unwrap();
        assert!(space.total_bytes >= 400 << 20);
        drop((file, again));
        clean(&first);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn every_choice_that_is_offered_gives_a_page_and_the_first_choice_is_the_best() {
        let folder = std::env::temp_dir().join(format!("hinterland-backing-{}", std::process::id()));
        let chosen = choose_backing(None, &folder, 8 << 20).unwrap();
        let path = chosen.folder.join("object");
        let file = MemoryFile::create(&path, 4 << 20).unwrap();
        file.allocate(0, 4 << 20).unwrap();
        assert_eq!(file.kind(), chosen.kind);
        file.remove().unwrap();
        drop(file);
        if chosen.kind != PageKind::Huge2M {
            let says = |words| chosen.explanation.contains(words);
            assert!(says("sysctl") || says("may not mount"), "{}", chosen.explanation);
        }
        clean(&chosen);
        let asked = choose_backing(Some(PageKind::Base4K), &folder, 8 << 20).unwrap();
        assert_eq!(asked.kind, PageKind::Base4K);
        clean(&asked);
        if let Ok(transparent) = choose_backing(Some(PageKind::TransparentHuge), &folder, 8 << 20) {
            assert_eq!(transparent.kind, PageKind::TransparentHuge);
            clean(&transparent);
        }
        let _ = std::fs::remove_dir_all(&folder);
    }

    fn clean(backing: &Backing) {
        if backing.mounted {
            huge_pages::unmount(&backing.folder).unwrap();
        }
        if let Some(claim) = backing.overcommit_before {
            huge_pages::set_overcommit(claim).unwrap();
        }
        let _ = std::fs::remove_dir(&backing.folder);
    }
}
