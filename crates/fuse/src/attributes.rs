//! What `stat` and extended attributes say of a file or folder.

use crate::remembered::Marks;
use crate::source::Placing;
use crate::tree::Entry;
use fuser::{Errno, FileAttr, FileType, INodeNo};
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::RackName;
use hinterland_types::limits::COPIES_MAX;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Every file's time: objects carry none. The earliest day that zip archives can hold in any time zone,
/// and the same in every mount, so that copying tools see no change.
const FILE_TIME: Duration = Duration::from_secs(315_619_200);
/// What programs should read at once: the largest request that the kernel makes.
const READ_BYTES: u32 = 1 << 20;
/// What the names of all extended attributes start with.
const PREFIX: &str = "user.hinterland.";

/// Whose files they are: the user that mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    /// User.
    pub(crate) user: u32,
    /// Group.
    pub(crate) group: u32,
    /// Whether files can be made and removed.
    pub(crate) writable: bool,
}

impl Owner {
    /// What `stat` says of a file, and what was set of it.
    pub(crate) fn file(self, inode: u64, bytes: u64, marks: Option<Marks>) -> FileAttr {
        attributes(inode, FileType::RegularFile, bytes, marks.unwrap_or_else(|| self.file_marks()))
    }

    /// What `stat` says of a folder, and what was set of it.
    pub(crate) fn folder(self, inode: u64, marks: Option<Marks>) -> FileAttr {
        attributes(inode, FileType::Directory, 0, marks.unwrap_or_else(|| self.folder_marks()))
    }

    /// What `stat` says of a symbolic link, and what was set of it.
    pub(crate) fn link(self, inode: u64, target: &[u8], marks: Option<Marks>) -> FileAttr {
        let bytes = target.len() as u64;
        attributes(inode, FileType::Symlink, bytes, marks.unwrap_or_else(|| self.link_marks()))
    }

    /// What holds of a file of which nothing was set.
    pub(crate) fn file_marks(self) -> Marks {
        self.marks(if self.writable { 0o644 } else { 0o444 })
    }

    /// What holds of a folder of which nothing was set.
    pub(crate) fn folder_marks(self) -> Marks {
        self.marks(if self.writable { 0o755 } else { 0o555 })
    }

    /// What holds of a symbolic link of which nothing was set.
    pub(crate) fn link_marks(self) -> Marks {
        self.marks(0o777)
    }

    fn marks(self, mode: u16) -> Marks {
        let time: SystemTime = UNIX_EPOCH + FILE_TIME;
        Marks { mode, user: self.user, group: self.group, accessed: time, modified: time, changed: time }
    }
}

fn attributes(inode: u64, kind: FileType, size: u64, marks: Marks) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size,
        blocks: size.div_ceil(512),
        atime: marks.accessed,
        mtime: marks.modified,
        ctime: marks.changed,
        crtime: marks.modified,
        kind,
        perm: marks.mode,
        nlink: 1,
        uid: marks.user,
        gid: marks.group,
        rdev: 0,
        blksize: READ_BYTES,
        flags: 0,
    }
}

/// The value of an extended attribute; nothing for a name that a file or folder does not have.
pub(crate) fn attribute(entry: &Entry, placing: &Placing, name: &str) -> Option<String> {
    match entry {
        Entry::File(info) => file_attribute(info, placing, name),
        Entry::Folder(_) => folder_attribute(placing, name),
        // The kernel asks links for none of those that programs name.
        Entry::Link(_) => None,
    }
}

/// What was set of a folder for the files that are made in it.
fn folder_attribute(placing: &Placing, name: &str) -> Option<String> {
    match name.strip_prefix(PREFIX)? {
        "copies" => placing.copies.map(|copies| copies.to_string()),
        "rack" => placing.rack.as_ref().map(ToString::to_string),
        _ => None,
    }
}

/// What a placing is when an attribute of it is set, or taken away by no value.
///
/// # Errors
/// An `errno` value: `EOPNOTSUPP` for names that are not ours, `EPERM` for those that only tell, `EINVAL` for a value that makes no
/// sense.
pub(crate) fn placed(placing: &Placing, name: &str, value: Option<&[u8]>) -> Result<Placing, Errno> {
    let mut placing = placing.clone();
    let text = value
        .map(|value| std::str::from_utf8(value).map(str::trim).map_err(|_| Errno::EINVAL))
        .transpose()?;
    match name.strip_prefix(PREFIX) {
        None => return Err(Errno::EOPNOTSUPP),
        Some("copies") => {
            let number = |text: &str| text.parse().ok().filter(|copies| (1..=COPIES_MAX).contains(copies));
            placing.copies = text.map(|text| number(text).ok_or(Errno::EINVAL)).transpose()?;
        }
        Some("rack") => {
            placing.rack = text.map(|text| RackName::parse(text).map_err(|_| Errno::EINVAL)).transpose()?;
        }
        Some(_) => return Err(Errno::EPERM),
    }
    Ok(placing)
}

/// What a file says of the object that it is, or is to become.
fn file_attribute(info: &ObjectInfo, placing: &Placing, name: &str) -> Option<String> {
    match name.strip_prefix(PREFIX)? {
        "object" => Some(info.object.0.to_string()),
        "name" => Some(info.name.to_string()),
        "digest" if info.state == ObjectState::Sealed => Some(hexadecimal(&info.digest)),
        "copies" => Some(info.copies.to_string()),
        "homes" if !info.homes.is_empty() => Some(homes(info)),
        "rack" => {
            let home = info.homes.first().map(|home| &home.rack);
            home.or(placing.rack.as_ref()).map(ToString::to_string)
        }
        "state" => Some(state(info.state).to_owned()),
        _ => None,
    }
}

/// The word for a state.
fn state(state: ObjectState) -> &'static str {
    match state {
        ObjectState::Sealed => "sealed",
        ObjectState::Mutable => "mutable",
        ObjectState::Writing => "writing",
    }
}

fn homes(info: &ObjectInfo) -> String {
    let homes: Vec<String> = info
        .homes
        .iter()
        .map(|home| {
            let state = if home.up { "up" } else { "down" };
            format!("{} {} {} {state}", home.node, home.rack, home.address)
        })
        .collect();
    homes.join("\n")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::object;
    use hinterland_proto::control::Home;
    use hinterland_types::{NodeId, RackName};

    #[test]
    fn an_object_has_its_attributes_and_no_other() {
        let mut info = object(9, "models/a", 5);
        let none = Placing::default();
        info.digest[0] = 0xab;
        for name in ["object", "name", "state", "digest", "copies"] {
            assert!(file_attribute(&info, &none, &format!("user.hinterland.{name}")).is_some(), "{name}");
        }
        assert!(file_attribute(&info, &none, "user.hinterland.digest").unwrap().starts_with("ab00"));
        for name in
            ["user.hinterland.homes", "user.hinterland.rack", "user.hinterland.secret", "security.capability"]
        {
            assert_eq!(file_attribute(&info, &none, name), None);
        }
    }

    #[test]
    fn where_files_lie_is_set_by_two_attributes_and_no_other() {
        let none = Placing::default();
        let two = placed(&none, "user.hinterland.copies", Some(b"2")).unwrap();
        let both = placed(&two, "user.hinterland.rack", Some(b"b\n")).unwrap();
        assert_eq!((both.copies, both.rack.as_ref().map(RackName::as_str)), (Some(2), Some("b")));
        assert_eq!(placed(&both, "user.hinterland.copies", None).unwrap().copies, None);
        assert_eq!(folder_attribute(&two, "user.hinterland.copies").as_deref(), Some("2"));
        assert_eq!(folder_attribute(&two, "user.hinterland.rack"), None);
        for (name, value, code) in [
            ("user.hinterland.copies", "0", Errno::EINVAL),
            ("user.hinterland.copies", "9", Errno::EINVAL),
            ("user.hinterland.rack", "a b", Errno::EINVAL),
            ("user.hinterland.digest", "ab", Errno::EPERM),
            ("user.comment", "x", Errno::EOPNOTSUPP),
        ] {
            assert_eq!(i32::from(placed(&none, name, Some(value.as_bytes())).unwrap_err()), i32::from(code));
        }
    }

    #[test]
    fn homes_stand_one_a_line() {
        let mut info = object(9, "a", 5);
        for (node, up) in [(1, true), (2, false)] {
            info.homes.push(Home {
                node: NodeId(node),
                rack: RackName::parse("b").unwrap(),
                address: "127.0.0.1:1".to_owned(),
                up,
                heat: false,
            });
        }
        let text = file_attribute(&info, &Placing::default(), "user.hinterland.homes").unwrap();
        assert_eq!(text, "node-1 b 127.0.0.1:1 up\nnode-2 b 127.0.0.1:1 down");
    }

    #[test]
    fn a_file_shows_its_whole_size_and_cannot_be_written() {
        let owner = Owner { user: 7, group: 8, writable: false };
        let attributes = owner.file(9, 513, None);
        assert_eq!((attributes.size, attributes.blocks, attributes.perm), (513, 2, 0o444));
    }
}
