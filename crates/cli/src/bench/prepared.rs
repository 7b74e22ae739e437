//! Where models and programs lie that take too long to make in a bench: `bench/experts/prepare.sh` makes them once.

use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// Names the folder.
const VARIABLE: &str = "HINTERLAND_BENCH_CACHE";
/// The folder if the variable does not.
const FOLDER: &str = ".cache/bench";
const HINT: &str = "bench/experts/prepare.sh makes it, once";

/// The folder, as an absolute path.
///
/// # Errors
/// [`Failure`] if there is none.
pub fn folder() -> Result<PathBuf, Failure> {
    let named = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(FOLDER), PathBuf::from);
    file(&named)
}

/// A file or folder that must have been prepared, as an absolute path.
///
/// # Errors
/// [`Failure`] if it is missing.
pub fn file(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|error| Failure { hint: HINT.to_owned(), ..Failure::file("finding", path, &error) })
}
