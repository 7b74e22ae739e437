//! Folders that are there as long as their process is: also those of a process that was killed, which the next one removes.
//!
//! A folder has a file in it that its process keeps locked (`flock`). The kernel gives the lock back when the process ends, however it ends, so
//! a lock that can be had is a sure sign that nobody needs the folder; numbers of processes are not, as they are used again and mean
//! different processes in different containers. Whoever makes a folder and whoever removes one may meet at any moment:
//!
//! | the remover finds | then |
//! | --- | --- |
//! | a file that is locked | the process lives; the folder stays |
//! | a file that can be locked | the folder goes, the file last. A maker that had not locked it yet finds that out, and makes another folder |
//! | no file | the folder goes if it is empty. A maker that wants to put its file there makes another folder |
//!
//! Only folders of the same user are looked at, and no link is followed: all is done through a descriptor of the folder itself.

use crate::failure::Failure;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file that a process keeps locked.
const LOCK_FILE: &str = "in-use";
/// What names of such folders begin with; a word for what is in them follows.
const PREFIX: &str = "hinterland-";
/// What may be in them.
const CONTENTS: [&str; 3] = ["cuda", "far", "gpu"];
/// Names that are tried before the folder for temporary files is given up.
const TRIES_MAX: u32 = 100_000;

/// A folder of this process; it goes when this is dropped.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    /// Locked for as long as it is open.
    _lock: File,
}

impl TemporaryFolder {
    /// Makes a folder that nobody else may look into, below the system's for such, and removes those that killed processes left there.
    /// `contents` is one of the words that tell in a name what it is for.
    ///
    /// # Errors
    /// [`Failure`] when none can be made.
    pub fn make(contents: &str) -> Result<Self, Failure> {
        let parent = std::env::temp_dir();
        remove_left_over(&parent);
        Self::make_in(&parent, contents)
    }

    fn make_in(parent: &Path, contents: &str) -> Result<Self, Failure> {
        debug_assert!(CONTENTS.contains(&contents), "what is not known is never removed");
        for number in 0..TRIES_MAX {
            let path = parent.join(format!("{PREFIX}{contents}-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Failure::file("making", &path, &error)),
            }
            match lock_new(&path) {
                Ok(Some(lock)) => return Ok(Self { path, _lock: lock }),
                // It was taken for one that was left over, and may be another's by now.
                Ok(None) => {}
                Err(error) => return Err(Failure::file("locking", &path, &error)),
            }
        }
        Err(Failure::new(format!("{} is full of folders", parent.display()), "remove old ones: hinterland-*"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the next process.
        let _ = empty(&self.path).and_then(|()| fs::remove_dir(&self.path));
    }
}

/// Makes the file of a new folder and locks it; nothing if somebody removes the folder, or has done so and made it anew.
fn lock_new(folder: &Path) -> io::Result<Option<File>> {
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(LOCK_FILE))
    {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        Err(fs::TryLockError::Error(error)) => return Err(error),
    }
    // A remover may have had the lock before, and then the file has no name any more.
    if file.metadata()?.nlink() == 0 {
        return Ok(None);
    }
    // From here on nobody removes it, and others cannot put one of theirs in its place.
    let is_own = fs::symlink_metadata(folder)?.uid() == nix::unistd::geteuid().as_raw();
    Ok(is_own.then_some(file))
}

/// Removes folders of processes that are gone. Whatever is in the way of that is left alone.
fn remove_left_over(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_ours) {
            // Somebody else may be at it, or the file system refuses: nothing of this start depends on it.
            let _ = remove_if_left(&entry.path());
        }
    }
}

/// Whether a folder has a name as they are given here: what is in it, and two numbers.
fn is_ours(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let words: Vec<&str> = rest.split('-').collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    matches!(words.as_slice(), [contents, process, number]
        if CONTENTS.contains(contents) && is_number(process) && is_number(number))
}

fn remove_if_left(path: &Path) -> io::Result<()> {
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)?;
    if folder.metadata()?.uid() != nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    // The folder itself, whatever has its name by now.
    let inside = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let lock_path = inside.join(LOCK_FILE);
    let lock = OpenOptions::new()
        .write(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(&lock_path);
    match lock {
        Ok(lock) => {
            if lock.try_lock().is_err() {
                return Ok(());
            }
            empty(&inside)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Refused unless it is empty, and for a link.
    fs::remove_dir(path)
}

/// Removes what is in a folder, the file that is locked last: who is killed before leaves a folder that the next one knows.
fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == LOCK_FILE {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(folder.join(LOCK_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn ground(name: &str) -> PathBuf {
        let ground = std::env::temp_dir().join(format!("hl-temporary-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&ground);
        fs::create_dir_all(&ground).unwrap();
        ground
    }

    #[test]
    fn folders_of_the_living_stay_and_those_of_the_dead_go() {
        let ground = ground("dead");
        let living = TemporaryFolder::make_in(&ground, "cuda").unwrap();
        fs::write(living.path().join("library"), "bytes").unwrap();
        let dead = TemporaryFolder::make_in(&ground, "gpu").unwrap();
        let (dead_path, living_path) = (dead.path().to_owned(), living.path().to_owned());
        fs::create_dir_all(dead_path.join("some/more")).unwrap();
        fs::write(dead_path.join("some/more/bytes"), "bytes").unwrap();
        let TemporaryFolder { _lock: lock, .. } = &dead;
        // As when its process was killed: the lock is given back, and nothing else happens.
        lock.unlock().unwrap();
        remove_left_over(&ground);
        assert!(living_path.join("library").exists());
        assert!(!dead_path.exists());
        drop((living, dead));
        assert_eq!(fs::read_dir(&ground).unwrap().count(), 0);
        fs::remove_dir_all(&ground).unwrap();
    }

    #[test]
    fn what_links_lead_to_is_left_alone() {
        let ground = ground("links");
        let precious = ground.join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join(LOCK_FILE), "").unwrap();
        fs::write(precious.join("bytes"), "bytes").unwrap();
        symlink(&precious, ground.join("hinterland-cuda-1-0")).unwrap();
        let folder = ground.join("hinterland-gpu-2-0");
        fs::create_dir(&folder).unwrap();
        symlink(precious.join(LOCK_FILE), folder.join(LOCK_FILE)).unwrap();
        let other = ground.join("hinterland-gpu-3-0");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(LOCK_FILE), "").unwrap();
        symlink(&precious, other.join("library")).unwrap();
        remove_left_over(&ground);
        assert!(precious.join("bytes").exists() && precious.join(LOCK_FILE).exists());
        assert!(ground.join("hinterland-cuda-1-0").exists() && folder.exists());
        assert!(!other.exists(), "the link in it went, and not what it leads to");
        fs::remove_dir_all(&ground).unwrap();
    }

    #[test]
    fn folders_of_other_names_and_full_ones_without_a_lock_stay() {
        let ground = ground("names");
        let names =
            ["hinterland-gpu-12", "hinterland-demo-1-0", "hinterland-cuda-a-0", "hinterland-cuda-1-0-0"];
        for name in names {
            fs::create_dir(ground.join(name)).unwrap();
            fs::write(ground.join(name).join(LOCK_FILE), "").unwrap();
        }
        let full = ground.join("hinterland-cuda-7-0");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("library"), "").unwrap();
        fs::create_dir(ground.join("hinterland-gpu-7-0")).unwrap();
        remove_left_over(&ground);
        assert!(names.iter().all(|name| ground.join(name).exists()) && full.exists());
        assert!(
            !ground.join("hinterland-gpu-7-0").exists(),
            "its maker was killed before it had a file there"
        );
        fs::remove_dir_all(&ground).unwrap();
    }

    #[test]
    fn makers_and_removers_that_meet_leave_every_maker_a_folder_of_its_own() {
        let ground = ground("race");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let remover = scope.spawn(|| {
                // Relaxed: a flag alone.
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    remove_left_over(&ground);
                }
            });
            let makers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let folder = TemporaryFolder::make_in(&ground, "cuda").unwrap();
                            fs::write(folder.path().join("library"), "bytes").unwrap();
                            std::thread::yield_now();
                            assert!(folder.path().join("library").exists());
                        }
                    })
                })
                .collect();
            let failed = makers.into_iter().filter_map(|maker| maker.join().err()).count();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            remover.join().unwrap();
            assert_eq!(failed, 0);
        });
        remove_left_over(&ground);
        assert_eq!(fs::read_dir(&ground).unwrap().count(), 0);
        fs::remove_dir_all(&ground).unwrap();
    }
}
