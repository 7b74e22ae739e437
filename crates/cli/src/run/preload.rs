//! Where the library lies that turns `mmap` of a pool file into a mapped object, and how one beside this program is found.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The library's file name.
pub const LIBRARY: &str = "libhinterland_preload.so";
/// The variable that names it.
const VARIABLE: &str = "HINTERLAND_PRELOAD";

/// Finds the library: named by `HINTERLAND_PRELOAD`, beside this program, or in `../lib/hinterland` from there.
///
/// # Errors
/// [`Failure`] with the places that were looked at.
pub fn find() -> Result<PathBuf, Failure> {
    find_beside(
        LIBRARY,
        VARIABLE,
        "build it with `cargo build --release --package hinterland-preload`, name it in HINTERLAND_PRELOAD, or run \
         with --no-preload, which reads mapped files through the mount",
    )
}

/// Finds a library of ours: named by a variable, beside this program, or in `../lib/hinterland` from there.
///
/// # Errors
/// [`Failure`] with the places that were looked at, and the hint.
pub fn find_beside(library: &str, variable: &str, hint: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("this program cannot find itself: {error}"), "mount /proc"))?;
    find_from(library, (variable, std::env::var_os(variable).as_deref()), &program, hint)
}

fn find_from(
    library: &str,
    (variable, named): (&str, Option<&OsStr>),
    program: &Path,
    hint: &str,
) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        let path = PathBuf::from(named);
        // A relative path would mean something else once the program changes its folder.
        return path.canonicalize().map_err(|error| {
            Failure::new(format!("{variable} names {}: {error}", path.display()), format!("unset {variable}"))
        });
    }
    let folder = program.parent().unwrap_or(Path::new("/"));
    let above = folder.parent().unwrap_or(folder);
    let places = [folder.join(library), above.join("lib/hinterland").join(library)];
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        return found.canonicalize().map_err(|error| Failure::file("finding", found, &error));
    }
    Err(Failure::new(
        format!(
            "{library} is neither in {} nor in {}",
            folder.display(),
            above.join("lib/hinterland").display()
        ),
        hint,
    ))
}

/// The value of `LD_PRELOAD`: the library before what is preloaded already.
pub fn variable(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn find_from(named: Option<&OsStr>, program: &Path) -> Result<PathBuf, Failure> {
        super::find_from(LIBRARY, (VARIABLE, named), program, "name it in HINTERLAND_PRELOAD")
    }

    #[test]
    fn the_library_is_found_beside_the_program_or_in_lib() {
        let root = std::env::temp_dir().join(format!("hinterland-preload-{}", std::process::id()));
        let (bin, lib) = (root.join("bin"), root.join("lib/hinterland"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let program = bin.join("hinterland");
        let missing = find_from(None, &program).unwrap_err();
        assert!(
            missing.text.contains(&*bin.to_string_lossy()) && missing.hint.contains("HINTERLAND_PRELOAD")
        );
        fs::write(lib.join(LIBRARY), "").unwrap();
        let canonical = root.canonicalize().unwrap();
        assert_eq!(find_from(None, &program).unwrap(), canonical.join("lib/hinterland").join(LIBRARY));
        fs::write(bin.join(LIBRARY), "").unwrap();
        assert_eq!(find_from(None, &program).unwrap(), canonical.join("bin").join(LIBRARY));
        let named = lib.join(LIBRARY);
        assert_eq!(find_from(Some(named.as_os_str()), &program).unwrap(), named.canonicalize().unwrap());
        fs::remove_dir_all(&root).unwrap();
        assert!(find_from(Some(named.as_os_str()), &program).unwrap_err().text.contains(VARIABLE));
    }

    #[test]
    fn what_is_preloaded_already_stays() {
        let library = Path::new("/lib/a.so");
        assert_eq!(variable(library, None), "/lib/a.so");
        assert_eq!(variable(library, Some(OsStr::new(""))), "/lib/a.so");
        assert_eq!(variable(library, Some(OsStr::new("/lib/b.so"))), "/lib/a.so:/lib/b.so");
    }
}
