//! Where the control sockets of runs are, and which run somebody means.
//!
//! Each run has a socket named for its supervisor in a folder of its user. A socket gets that name only when it is listened on, so
//! one of that name that refuses connections was left by a supervisor that was killed, and is removed by whoever finds it.

use super::{Request, Status, ask};
use hinterland_os::OsError;
use hinterland_os::socket::{UnixListener, UnixStream, runtime_folder};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The end of the name of a socket.
const SOCKET_END: &str = ".sock";
/// Names that are tried: more than one is needed only where processes of several containers have one number.
const NAMES_MAX: u32 = 16;
/// How long a run may take to accept, when it is looked for.
const PATIENCE: Duration = Duration::from_millis(500);
const ECONNREFUSED: i32 = 111;

/// The folder of control sockets: `hinterland/far` below `XDG_RUNTIME_DIR`, else below `/run`.
pub fn folder() -> PathBuf {
    runtime_folder().join("hinterland/far")
}

/// Whether a user may control runs of this process's user, and be believed.
pub(crate) fn is_trusted(user: u32) -> bool {
    user == 0 || user == own_user()
}

fn own_user() -> u32 {
    // The owner of what this process makes.
    fs::metadata("/proc/self").map_or(u32::MAX, |data| data.uid())
}

/// Makes the folder for this user alone, or checks that it is.
pub(crate) fn make_folder(folder: &Path) -> Result<(), OsError> {
    let subject = || folder.display().to_string();
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(|error| OsError::system("mkdir", subject(), error))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(OsError::system("mkdir", subject(), error)),
    }
    check_folder(folder)
}

/// Refuses a folder that others own or may enter.
fn check_folder(folder: &Path) -> Result<(), OsError> {
    let data = fs::symlink_metadata(folder)
        .map_err(|error| OsError::system("stat", folder.display().to_string(), error))?;
    if data.is_dir() && data.uid() == own_user() && data.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(OsError::Refused {
        operation: "using the folder of control sockets",
        reason: format!("{} is not a folder of this user alone", folder.display()),
        hint: "remove it, or name another with XDG_RUNTIME_DIR".into(),
    })
}

/// Listens in the folder; the path is that under which the socket is found.
pub(crate) fn bind(folder: &Path) -> Result<(UnixListener, PathBuf), OsError> {
    let process = std::process::id();
    let hidden = folder.join(format!(".{process}-{}", hinterland_os::clock::monotonic_ns()));
    let listener = UnixListener::bind(&hidden)?;
    for number in 0..NAMES_MAX {
        let part = if number == 0 { String::new() } else { format!("-{number}") };
        let path = folder.join(format!("{process}{part}{SOCKET_END}"));
        let renamed = match UnixStream::connect(&path, PATIENCE) {
            Ok(_) => continue,
            Err(_) => fs::rename(&hidden, &path),
        };
        return match renamed {
            Ok(()) => Ok((listener, path)),
            Err(error) => Err(OsError::system("rename", path.display().to_string(), error)),
        };
    }
    Err(OsError::Refused {
        operation: "opening a control socket",
        reason: format!("all names of process {process} are taken in {}", folder.display()),
        hint: "name another folder with XDG_RUNTIME_DIR".into(),
    })
}

/// All runs of this user, by supervisor. Sockets that killed supervisors left are removed.
///
/// # Errors
/// [`OsError`] if the folder is not this user's alone, or cannot be read; none is no error.
pub fn list(folder: &Path) -> Result<Vec<(PathBuf, Status)>, OsError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    check_folder(folder)?;
    let entries = fs::read_dir(folder)
        .map_err(|error| OsError::system("reading", folder.display().to_string(), error))?;
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if !path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(SOCKET_END)) {
            continue;
        }
        match ask(&path, &Request::Status) {
            Ok(status) => found.push((path, status)),
            Err(error) if error.errno() == Some(ECONNREFUSED) => {
                // Gone already, or another one's by now: both are as good.
                let _ = fs::remove_file(&path);
            }
            // It ends at this moment, or does not answer: it is not to be had.
            Err(_) => {}
        }
    }
    found.sort_by_key(|(_, status)| status.started_ms);
    Ok(found)
}

/// The run that somebody means: by the number of any of its processes, its supervisor's too, or by name.
///
/// # Errors
/// [`OsError::Refused`] if there is none, or several have the name.
pub fn find(folder: &Path, what: &str) -> Result<(PathBuf, Status), OsError> {
    let refused = |reason: String, hint: &str| OsError::Refused {
        operation: "finding the program",
        reason,
        hint: hint.to_owned().into(),
    };
    let runs = list(folder)?;
    let number: Option<i32> = what.parse().ok();
    let is_meant = |status: &Status| {
        number.is_some_and(|number| {
            status.processes.contains(&number) || u32::try_from(number) == Ok(status.supervisor)
        })
    };
    if let Some(run) = runs.iter().find(|(_, status)| is_meant(status)) {
        return Ok(run.clone());
    }
    let mut named = runs.iter().filter(|(_, status)| status.about.name == what);
    match (named.next(), named.next()) {
        (Some(run), None) => Ok(run.clone()),
        (Some(_), Some(_)) => Err(refused(
            format!("several programs with far memory are called {what}"),
            "take the number of one: `hinterland far list` shows them",
        )),
        (None, _) if runs.is_empty() => Err(refused(
            format!("no program {what} has far memory: none of this user's has"),
            "start one with `hinterland run --local SIZE -- PROGRAM`, or be the user who did",
        )),
        (None, _) => Err(refused(
            format!("no program {what} has far memory"),
            "`hinterland far list` shows those that have",
        )),
    }
}
