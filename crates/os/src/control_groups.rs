//! How much memory the control groups of this process allow it, in both versions of them.

use crate::process::text_of;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The most memory that a control group may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// In bytes; more than the machine has where a group of version 1 has no limit.
    pub bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// The smallest limit of the groups that this process is in, from its own up to the root; absent if none of them has one, or none can be seen.
pub fn memory_limit() -> Option<MemoryLimit> {
    let read = |path| text_of(path).unwrap_or_default();
    smallest(limit_files(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo")))
}

/// A limit that says `max`, or cannot be read, is none.
fn smallest(files: Vec<PathBuf>) -> Option<MemoryLimit> {
    let limit = |file: PathBuf| {
        let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some(MemoryLimit { bytes, file })
    };
    files.into_iter().filter_map(limit).min_by_key(|limit| limit.bytes)
}

/// The files in which a limit may stand, given what `/proc` says of a process: its groups, and what it sees mounted.
fn limit_files(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        // `0::/path` for version 2, `4:cpu,memory:/path` for version 1.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let is_second = controllers.is_empty();
        if !is_second && controllers.split(',').all(|controller| controller != "memory") {
            continue;
        }
        let name = if is_second { "memory.max" } else { "memory.limit_in_bytes" };
        for (root, place) in mounts.lines().filter_map(|mount| hierarchy(mount, is_second)) {
            // What is mounted may be a group further down, as in containers without a namespace of groups. What lies outside of it cannot be seen.
            let below = Path::new(group).strip_prefix(&root).unwrap_or(Path::new(""));
            let own = place.join(below);
            files.extend(
                own.ancestors()
                    .take_while(|folder| folder.starts_with(&place))
                    .map(|folder| folder.join(name)),
            );
        }
    }
    files
}

/// Which group is mounted where, if a line of `mountinfo` is about the groups that count memory.
fn hierarchy(mount: &str, is_second: bool) -> Option<(PathBuf, PathBuf)> {
    let (before, after) = mount.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, place) = (fields.next()?, fields.next()?);
    let mut fields = after.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let counts = match kind {
        "cgroup2" => is_second,
        "cgroup" => !is_second && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    counts.then(|| (unescaped(root.as_bytes()), unescaped(place.as_bytes())))
}

/// A path of `mountinfo` or `fstab`, where blanks, tabs, line ends and backslashes stand as `\` and three octal digits.
pub fn unescaped(field: &[u8]) -> PathBuf {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, behind)) = rest.split_first() {
        let escaped = match rest.get(..4) {
            Some(b"\\040") => Some(b' '),
            Some(b"\\011") => Some(b'\t'),
            Some(b"\\012") => Some(b'\n'),
            Some(b"\\134") => Some(b'\\'),
            _ => None,
        };
        plain.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { behind };
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(groups: &str, mounts: &str) -> Vec<String> {
        limit_files(groups, mounts).iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn groups_of_version_2_are_followed_to_the_root() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n24 1 8:1 / / rw - ext4 /dev/sda rw\n";
        let expected =
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"];
        assert_eq!(names("0::/a/b\n", mounts), expected);
    }

    #[test]
    fn groups_of_version_1_are_those_of_the_memory_controller() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n";
        let expected = [
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        assert_eq!(names("4:memory:/job\n1:cpu:/other\n0::/\n", mounts), expected);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = "35 31 0:32 /docker/7f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n36 31 0:33 /docker/7f /a\\040b ro - cgroup2 cgroup rw\n";
        let expected = ["/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(names("4:memory:/docker/7f\n", mounts), expected);
        // A group outside of what is mounted shows as such; the mounted one still counts.
        assert_eq!(names("0::/../elsewhere\n", mounts), ["/a b/memory.max"]);
        assert!(names("0::/\n", "").is_empty() && names("nonsense", mounts).is_empty());
    }

    #[test]
    fn the_smallest_limit_counts_and_max_is_none() {
        let folder = std::env::temp_dir().join(format!("hinterland-groups-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let small = file("small", "1048576\n");
        let files = vec![
            file("none", "max\n"),
            file("large", "9223372036854771712\n"),
            small.clone(),
            folder.join("absent"),
        ];
        assert_eq!(smallest(files), Some(MemoryLimit { bytes: 1 << 20, file: small }));
        assert_eq!(smallest(vec![file("none", "max\n")]), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
