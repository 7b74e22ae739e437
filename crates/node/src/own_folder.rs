//! A node's own folder in one that somebody names: several nodes may be given the same one, and each removes files that it does not know.

use hinterland_os::OsError;
use hinterland_os::backing::DEVICE_HINT;
use hinterland_os::fstab::unmounted_point;
use hinterland_types::NodeId;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Refuses a device, which is no folder and has its own ways, and a folder whose file system is not mounted: objects on it would be taken for lost.
///
/// # Errors
/// [`OsError::Refused`] with what to do.
pub fn refuse_folder(path: &Path) -> Result<(), OsError> {
    let refused = |reason, hint: String| {
        Err(OsError::Refused { operation: "choosing memory", reason, hint: hint.into() })
    };
    let is_device = fs::metadata(path)
        .is_ok_and(|found| found.file_type().is_char_device() || found.file_type().is_block_device());
    if is_device {
        return refused(format!("{} is a device and no folder", path.display()), DEVICE_HINT.to_owned());
    }
    let Some(point) = unmounted_point(path) else { return Ok(()) };
    let point = point.display();
    refused(
        format!("nothing is mounted on {point}, and /etc/fstab says that something is to be"),
        format!("`mount {point}`; if it is a plain folder by now, take it out of /etc/fstab"),
    )
}

/// The folder of a node below `parent`, made if it is not there. Files right in `parent` with the bytes of objects whose headers lie in
/// `headers` come along.
///
/// # Errors
/// Those of making the folder and of moving files.
pub fn own_folder(parent: &Path, own: NodeId, headers: &Path) -> io::Result<PathBuf> {
    let folder = parent.join(format!("hinterland-{:016x}", own.0));
    fs::create_dir_all(&folder)?;
    for header in fs::read_dir(headers).into_iter().flatten().flatten() {
        let Some(name) = header.path().file_stem().map(|stem| Path::new(stem).with_extension("bytes")) else {
            continue;
        };
        let (bytes, target) = (parent.join(&name), folder.join(&name));
        if bytes.is_file() && !target.exists() {
            fs::rename(&bytes, &target)?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_known_objects_come_along_and_no_others() {
        let parent = std::env::temp_dir().join(format!("hl-own-folder-{}", std::process::id()));
        let headers = parent.join("objects");
        fs::create_dir_all(&headers).unwrap();
        fs::write(headers.join("0000000000000010.object"), "").unwrap();
        for name in ["0000000000000010.bytes", "0000000000000011.bytes"] {
            fs::write(parent.join(name), name).unwrap();
        }
        let folder = own_folder(&parent, NodeId(7), &headers).unwrap();
        assert_eq!(folder, parent.join("hinterland-0000000000000007"));
        assert_eq!(
            fs::read_to_string(folder.join("0000000000000010.bytes")).unwrap(),
            "0000000000000010.bytes"
        );
        assert!(parent.join("0000000000000011.bytes").exists(), "another node's");
        // What is in the folder already is not replaced.
        fs::write(parent.join("0000000000000010.bytes"), "another node's").unwrap();
        own_folder(&parent, NodeId(7), &headers).unwrap();
        assert_eq!(
            fs::read_to_string(folder.join("0000000000000010.bytes")).unwrap(),
            "0000000000000010.bytes"
        );
        fs::remove_dir_all(&parent).unwrap();
    }
}
