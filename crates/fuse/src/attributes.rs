//! What `stat` and extended attributes say of a file or folder.

use fuser::{FileAttr, FileType, INodeNo};
use hinterland_proto::control::{ObjectInfo, ObjectState};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Every file's time: objects carry none. The earliest day that zip archives can hold in any time zone,
/// and the same in every mount, so that copying tools see no change.
const FILE_TIME: Duration = Duration::from_secs(315_619_200);
/// What programs should read at once: the largest request that the kernel makes.
const READ_BYTES: u32 = 1 << 20;
/// Names of the extended attributes.
const ATTRIBUTE_NAMES: [&str; 5] = [
    "user.hinterland.object",
    "user.hinterland.name",
    "user.hinterland.digest",
    "user.hinterland.copies",
    "user.hinterland.homes",
];

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
    /// What `stat` says of an object's file.
    pub(crate) fn file(self, inode: u64, info: &ObjectInfo) -> FileAttr {
        self.draft(inode, info.bytes)
    }

    /// What `stat` says of a file that is being written.
    pub(crate) fn draft(self, inode: u64, bytes: u64) -> FileAttr {
        let perm = if self.writable { 0o644 } else { 0o444 };
        self.attributes(inode, FileType::RegularFile, perm, bytes)
    }

    /// What `stat` says of a folder.
    pub(crate) fn folder(self, inode: u64) -> FileAttr {
        let perm = if self.writable { 0o755 } else { 0o555 };
        self.attributes(inode, FileType::Directory, perm, 0)
    }

    fn attributes(self, inode: u64, kind: FileType, perm: u16, size: u64) -> FileAttr {
        let time: SystemTime = UNIX_EPOCH + FILE_TIME;
        FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: self.user,
            gid: self.group,
            rdev: 0,
            blksize: READ_BYTES,
            flags: 0,
        }
    }
}

/// The names of a file's extended attributes, each ended by a zero byte, as `listxattr` wants them.
pub(crate) fn attribute_names() -> Vec<u8> {
    ATTRIBUTE_NAMES.iter().flat_map(|name| name.bytes().chain([0])).collect()
}

/// The value of an extended attribute; nothing for a name that a file does not have.
pub(crate) fn attribute(info: &ObjectInfo, name: &str) -> Option<String> {
    match name.strip_prefix("user.hinterland.")? {
        "object" => Some(info.object.0.to_string()),
        "name" => Some(info.name.to_string()),
        "digest" if info.state == ObjectState::Sealed => Some(hexadecimal(&info.digest)),
        "copies" => Some(info.copies.to_string()),
        "homes" => Some(homes(info)),
        _ => None,
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
    fn every_named_attribute_has_a_value_and_no_other_has() {
        let mut info = object(9, "models/a", 5);
        info.digest[0] = 0xab;
        for name in ATTRIBUTE_NAMES {
            assert!(attribute(&info, name).is_some(), "{name}");
        }
        assert!(attribute(&info, "user.hinterland.digest").unwrap().starts_with("ab00"));
        assert_eq!(attribute(&info, "user.hinterland.secret"), None);
        assert_eq!(attribute(&info, "security.capability"), None);
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
            });
        }
        let text = attribute(&info, "user.hinterland.homes").unwrap();
        assert_eq!(text, "node-1 b 127.0.0.1:1 up\nnode-2 b 127.0.0.1:1 down");
    }

    #[test]
    fn a_file_shows_its_whole_size_and_cannot_be_written() {
        let owner = Owner { user: 7, group: 8, writable: false };
        let attributes = owner.file(9, &object(9, "a", 513));
        assert_eq!((attributes.size, attributes.blocks, attributes.perm), (513, 2, 0o444));
    }
}
