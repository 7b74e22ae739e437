//! A file that gets its name when all bytes are in it. Before, nothing of it stays, however the command ends.

use crate::failure::Failure;
use hinterland_os::poll::{SignalWatch, wait_readable};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A shell says of a program that a signal has ended so much more than the signal's number.
const ENDED_BY_SIGNAL: i32 = 128;

/// Symbolic links that are followed: as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// The file, without its name.
pub struct Target {
    file: File,
    path: PathBuf,
    /// The name that it has meanwhile, where the file system has no files without one.
    partial: Option<PathBuf>,
}

impl Target {
    /// Makes the file in the folder where it is to be, behind symbolic links, which stay. Call it before there is any other thread: where the file needs a name
    /// meanwhile, one thread waits for the signals that end the command, and removes it.
    ///
    /// # Errors
    /// [`Failure`] if there is no such folder, or nothing can be made in it.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::file("writing", path, &error);
        let path = &followed(path).map_err(failed)?;
        match unnamed(path).map_err(failed)? {
            Some(file) => Ok(Self { file, path: path.to_path_buf(), partial: None }),
            None => {
                let partial = partial_path(path);
                remove_when_interrupted(&partial)?;
                let file = File::create(&partial).map_err(failed)?;
                Ok(Self { file, path: path.to_path_buf(), partial: Some(partial) })
            }
        }
    }

    /// Where the bytes go.
    pub const fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, in place of the file that has it.
    ///
    /// # Errors
    /// What the system said; nothing is left then.
    pub fn finish(mut self) -> io::Result<()> {
        if self.partial.is_none() {
            match link(&self.file, &self.path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
            // A link takes no name that something has, and a rename does.
            let partial = self.partial.insert(partial_path(&self.path));
            if let Err(error) = fs::remove_file(&*partial)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            link(&self.file, partial)?;
        }
        match &self.partial {
            Some(partial) => fs::rename(partial, &self.path),
            None => Ok(()),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Behind a rename there is nothing to remove. What failed otherwise is told.
            let _ = fs::remove_file(partial);
        }
    }
}

/// Where a path leads, also when nothing is there yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(next) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(Errno::ELOOP.into())
}

/// A file without a name in the folder of `path`; `None` where it could not be given one later.
fn unnamed(path: &Path) -> io::Result<Option<File>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    match File::options().write(true).custom_flags(libc::O_TMPFILE).open(folder) {
        Ok(file) if proc_entry(&file).exists() => Ok(Some(file)),
        Ok(_) => Ok(None),
        // A file system without such files, as NFS, or a kernel that takes the folder for the file.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn proc_entry(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    let entry = proc_entry(file);
    nix::unistd::linkat(AT_FDCWD, &entry, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)
        .map_err(|errno: Errno| errno.into())
}

/// Beside the file, so that renaming stays on one disk, and hidden.
fn partial_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

/// Removes a file when the command is interrupted, and ends it.
fn remove_when_interrupted(partial: &Path) -> Result<(), Failure> {
    let (signals, partial) = (SignalWatch::new()?, partial.to_path_buf());
    let wait = move || {
        // A wait that fails ends as a signal would: the command could not be ended otherwise.
        let _ = wait_readable(&signals, None);
        let _ = fs::remove_file(&partial);
        std::process::exit(ENDED_BY_SIGNAL + signals.take().unwrap_or(libc::SIGTERM));
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| {
        Failure::new(format!("a thread cannot be started: {error}"), "end programs, or raise `ulimit -u`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A folder of its own, removed when it is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hinterland-get-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn named(path: &Path) -> Target {
        let partial = partial_path(path);
        Target { file: File::create(&partial).unwrap(), path: path.to_path_buf(), partial: Some(partial) }
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_replaces_the_one_before() {
        let folder = Folder::new("whole");
        let path = folder.0.join("b.bin");
        for (create, text) in
            [(named as fn(&Path) -> Target, "one"), (|path| Target::create(path).unwrap(), "two")]
        {
            for text in [text, "again"] {
                let mut target = create(&path);
                target.file().write_all(text.as_bytes()).unwrap();
                target.finish().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
                assert_eq!(folder.names(), ["b.bin"]);
            }
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn symbolic_links_stay_and_lead_to_the_file() {
        let folder = Folder::new("links");
        let (link, file) = (folder.0.join("link"), folder.0.join("file"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        // First nothing is behind the link, then a file.
        for text in ["one", "two"] {
            let mut target = Target::create(&link).unwrap();
            target.file().write_all(text.as_bytes()).unwrap();
            target.finish().unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let around = folder.0.join("around");
        std::os::unix::fs::symlink("around", &around).unwrap();
        assert!(Target::create(&around).is_err());
    }

    #[test]
    fn nothing_stays_of_a_file_that_is_given_up() {
        let folder = Folder::new("given-up");
        let path = folder.0.join("b.bin");
        drop(named(&path));
        drop(Target::create(&path).unwrap());
        assert!(folder.names().is_empty(), "{:?}", folder.names());
    }

    #[test]
    fn a_part_of_a_file_is_hidden_beside_it() {
        let path = partial_path(Path::new("/a/b.bin"));
        assert_eq!(path.parent(), Some(Path::new("/a")));
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(".b.bin."));
    }
}
