//! Mounts that a machine is to have and has not: `/etc/fstab` beside `/proc/self/mountinfo`.

use crate::control_groups::unescaped;
use crate::process::text_of;
use std::fs;
use std::path::{Path, PathBuf};

/// The mount point at or above a path where `/etc/fstab` has something mounted, at the machine's start or at its first use, and nothing is. What
/// is written there now would lie on another disk, and what lies on the right one is not to be seen.
pub fn unmounted_point(path: &Path) -> Option<PathBuf> {
    let fstab = text_of("/etc/fstab").ok()?;
    let mounts = text_of("/proc/self/mountinfo").ok()?;
    // Its last part may be one that is to be made.
    let path = fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok()?;
    unmounted(&path, &fstab, &mounts)
}

/// Fields of `fstab`: what, where, kind, options. Field five of `mountinfo` is where.
fn unmounted(path: &Path, fstab: &str, mounts: &str) -> Option<PathBuf> {
    let is_mounted = |point: &str| mounts.lines().any(|line| line.split(' ').nth(4) == Some(point));
    let points = fstab.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let point = fields.by_ref().nth(1).filter(|_| !line.trim_start().starts_with('#'))?;
        // What is mounted only when somebody says so may be a folder otherwise.
        let is_automatic = !fields.nth(1).unwrap_or_default().split(',').any(|option| option == "noauto");
        // A slash at the end is no other folder.
        let point = if point == "/" { point } else { point.trim_end_matches('/') };
        (is_automatic && point.starts_with('/')).then_some(point)
    });
    // Blanks and the like are written in one way in both.
    let plain = |point: &str| unescaped(point.as_bytes());
    points.filter(|point| path.starts_with(plain(point)) && !is_mounted(point)).map(plain).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fstab_mounts_and_is_not_mounted_is_named() {
        let fstab = "# /dev/pmem9 /mnt/comment ext4 dax 0 0\n/dev/vda / ext4 defaults 0 1\n\n/dev/pmem0 /mnt/pmem ext4 dax 0 2\n\
                     /dev/pmem1\t/mnt/there/\text4\tdax 0 2\n/dev/sdb1 /mnt/stick ext4 noauto,user 0 0\nswap none swap sw 0 0\n\
                     /dev/pmem2 /mnt/a\\040b ext4 dax 0 0\n";
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n30 22 259:1 / /mnt/there rw - ext4 /dev/pmem1 rw,dax\n";
        let found = |path: &str| unmounted(Path::new(path), fstab, mounts);
        assert_eq!(found("/mnt/pmem"), Some(PathBuf::from("/mnt/pmem")));
        assert_eq!(found("/mnt/pmem/first"), Some(PathBuf::from("/mnt/pmem")));
        assert_eq!(found("/mnt/a b/first"), Some(PathBuf::from("/mnt/a b")));
        for path in
            ["/", "/mnt", "/mnt/pmem2", "/mnt/there", "/mnt/there/x", "/mnt/stick", "/mnt/comment", "/none"]
        {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
