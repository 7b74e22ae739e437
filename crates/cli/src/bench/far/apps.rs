//! Real programs to measure with: `bench/far/workloads.py`, in the environment that `bench/far/prepare.sh` makes.

use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the environment.
const VARIABLE: &str = "HINTERLAND_FAR_APPS";
/// The environment if the variable does not.
const FOLDER: &str = ".cache/far-apps";
const PROGRAM: &str = "bench/far/workloads.py";

/// The words that run one.
///
/// # Errors
/// [`Failure`] where they are not installed, or not found from here.
pub fn words(name: &str, scale: f64) -> Result<Vec<String>, Failure> {
    let folder = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(FOLDER), PathBuf::from);
    // The link itself: what it points to does not know of the packages.
    let python = file(&folder.join("bin/python"), "bench/far/prepare.sh installs it")?;
    let program = file(Path::new(PROGRAM), "start the bench in the source tree")?;
    Ok([python, program]
        .map(|path| path.display().to_string())
        .into_iter()
        .chain([name.to_owned(), scale.to_string()])
        .collect())
}

/// The interpreter itself: what is called `python3` may be a script that looks for it.
///
/// # Errors
/// [`Failure`] where there is none.
pub fn python() -> Result<PathBuf, Failure> {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let output =
        output.map_err(|error| Failure::new(format!("no python3: {error}"), "apt-get install python3"))?;
    file(Path::new(String::from_utf8_lossy(&output.stdout).trim()), "apt-get install python3")
}

fn file(path: &Path, hint: &str) -> Result<PathBuf, Failure> {
    let failed =
        |error: std::io::Error| Failure { hint: hint.to_owned(), ..Failure::file("finding", path, &error) };
    std::fs::metadata(path).map_err(failed)?;
    std::path::absolute(path).map_err(failed)
}
