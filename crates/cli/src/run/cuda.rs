//! The folder of libraries under CUDA's names: they are a part of this program, and the core lies beside it.

use super::preload;
use crate::failure::Failure;
use hinterland_cudanames::{CORE_FILE, LIBRARIES};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The variable that names the core.
const VARIABLE: &str = "HINTERLAND_CUDA_CORE";

/// Names without a version, by which programs load a library while they run.
const SHORT_NAMES: [(&str, &str); 2] =
    [("libcuda.so", "libcuda.so.1"), ("libnvidia-ml.so", "libnvidia-ml.so.1")];

/// Finds the core: named by `HINTERLAND_CUDA_CORE`, beside this program, or in `../lib/hinterland` from there.
///
/// # Errors
/// [`Failure`] with the places that were looked at.
pub fn find_core() -> Result<PathBuf, Failure> {
    let hint = "build it with `cargo build --release --package hinterland-cuda`";
    preload::find_beside(CORE_FILE, VARIABLE, hint)
}

/// Writes all libraries into a folder, with a link to the core; what is there already and the same is left alone. Returns the paths of the
/// libraries and of the core, without the short names that are links to them.
///
/// Each file is put in place whole, so programs that start meanwhile find the old one or the new one.
///
/// # Errors
/// [`Failure`] when the folder cannot be written to.
pub fn write_libraries(folder: &Path, core: &Path) -> Result<Vec<PathBuf>, Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::file("making", folder, &error))?;
    let mut written = Vec::new();
    for library in LIBRARIES {
        let path = folder.join(library.file);
        let is_same = fs::read(&path).is_ok_and(|bytes| bytes == library.image);
        if !is_same {
            let write = |hidden: &Path| fs::write(hidden, library.image);
            replace(&path, write).map_err(|error| Failure::file("writing", &path, &error))?;
        }
        written.push(path);
    }
    for (name, file) in SHORT_NAMES {
        link(&folder.join(name), Path::new(file))?;
    }
    let path = folder.join(CORE_FILE);
    if path != core {
        link(&path, core)?;
    }
    written.push(path);
    Ok(written)
}

/// Makes a link where there is none to the same.
fn link(path: &Path, to: &Path) -> Result<(), Failure> {
    if fs::read_link(path).ok().as_deref() == Some(to) {
        return Ok(());
    }
    let make = |hidden: &Path| std::os::unix::fs::symlink(to, hidden);
    replace(path, make).map_err(|error| Failure::file("linking", path, &error))
}

/// Makes a file under a name that nobody looks for, then gives it its own.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    let done = make(&hidden).and_then(|()| fs::rename(&hidden, path));
    if done.is_err() {
        // Nothing is left to be done about a file that could not be written.
        let _ = fs::remove_file(&hidden);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_written_once_and_mended_when_they_differ() {
        let root = std::env::temp_dir().join(format!("hinterland-cuda-{}", std::process::id()));
        let core = root.join("elsewhere").join(CORE_FILE);
        let folder = root.join("a/folder");
        let written = write_libraries(&folder, &core).unwrap();
        assert_eq!(written.len(), LIBRARIES.len() + 1);
        assert!(SHORT_NAMES.iter().all(|(name, _)| folder.join(name).is_file()));
        assert_eq!(fs::read_link(folder.join(CORE_FILE)).unwrap(), core);
        let first = folder.join(LIBRARIES[0].file);
        assert_eq!(fs::read(&first).unwrap(), LIBRARIES[0].image);
        fs::write(&first, "an older one").unwrap();
        fs::remove_file(folder.join(CORE_FILE)).unwrap();
        fs::write(folder.join(CORE_FILE), "no link").unwrap();
        write_libraries(&folder, &core).unwrap();
        assert_eq!(fs::read(&first).unwrap(), LIBRARIES[0].image);
        assert_eq!(fs::read_link(folder.join(CORE_FILE)).unwrap(), core);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), LIBRARIES.len() + 3, "no hidden file is left");
        let refused = write_libraries(&first, &core).unwrap_err();
        assert!(refused.text.contains("making"), "{}", refused.text);
        fs::remove_dir_all(&root).unwrap();
    }
}
