//! A mount namespace of its own: what is mounted in it, nobody else sees, and it goes with its processes.

use crate::failure::Failure;
use hinterland_os::container::{self, Right};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};
use std::fs;
use std::io;
use std::path::Path;

/// Moves this process into a mount namespace of its own. Root stays root; others get a user namespace in which
/// they are themselves and may mount. Call it before any other thread exists.
///
/// # Errors
/// [`Failure`] with what to do when the system does not allow it.
pub fn enter() -> Result<(), Failure> {
    let (user, group) = (getuid(), getgid());
    // What this process lacks is told by what it was started with.
    container::look();
    let as_root = user.is_root();
    let flags = if as_root { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
    unshare(flags | CloneFlags::CLONE_NEWNS).map_err(|error| refused(as_root, error))?;
    if !as_root {
        let failed =
            |error| Failure::new(format!("the user namespace cannot be set up: {error}"), "run as root");
        keep_identity(user.as_raw(), group.as_raw()).map_err(failed)?;
    }
    // What is mounted from here on is not passed on to the namespace that was left.
    let nothing: Option<&str> = None;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).map_err(|error| {
        Failure::new(format!("mounts cannot be made private: {error}"), "run as root, outside of a container")
    })
}

fn keep_identity(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn refused(as_root: bool, error: Errno) -> Failure {
    let text = format!("no mount namespace can be made: {}", error.desc());
    if container::is_inside() {
        let mend = container::mend(&["/dev/fuse"], &[Right::Mount]);
        Failure::new(
            text,
            format!("{mend}; or `hinterland run --no-mount` for a program that needs nothing of the pool"),
        )
    } else if as_root {
        Failure::new(text, "give `hinterland run --no-mount` to a program that needs nothing of the pool")
    } else {
        Failure::new(
            text,
            "run as root, or allow user namespaces with `sysctl kernel.unprivileged_userns_clone=1` and \
             `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    }
}

/// Makes the folder that is mounted on, if it is not there yet. It stays when the program ends: other
/// programs may have their own mounts on it.
///
/// # Errors
/// [`Failure`] when it cannot be made.
pub fn make_mount_point(folder: &Path) -> Result<(), Failure> {
    match fs::create_dir_all(folder) {
        Ok(()) => Ok(()),
        // A stale mount, or anything else that is there: mounting tells what is wrong with it.
        Err(_) if fs::symlink_metadata(folder).is_ok() => Ok(()),
        Err(error) => Err(Failure::new(
            format!("the folder {} cannot be made: {error}", folder.display()),
            format!(
                "make it as root with `mkdir {}`, or name one of your own with --at DIR",
                folder.display()
            ),
        )),
    }
}
