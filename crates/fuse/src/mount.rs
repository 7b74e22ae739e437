//! Mounting and unmounting, and why it cannot be done.

use crate::attributes::Owner;
use crate::drafts::Drafts;
use crate::filesystem::PoolFiles;
use crate::machine::DEVICE;
use crate::source::Source;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use hinterland_os::container::{self, Right};
use hinterland_os::control_groups::unescaped;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{major, makedev, minor};
use nix::unistd::{getgid, getuid};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The kind of file system that `/proc/mounts` shows, behind `fuse.`.
const KIND: &str = "hinterland";
/// What the kernel may read ahead of a sequential reader: one large request, while the last one is used. More brings no
/// speed, and moves bytes that a program which reads a header and maps the rest never wants. Only root can set it; 128 KiB
/// otherwise.
const READ_AHEAD_KIB: u32 = 1024;
/// What the kernel shows, and the process behind a mount reads: over these it would ask itself, and nothing ends a process that waits so.
const KERNELS_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// How often it is looked whether an unmount has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Looks that find a mount in other namespaces only, before it is left there.
const LOOKS_MIN: u32 = 5;
/// How long it takes the kernel at most from when nobody can ask a mount any more until it is gone, and how often that is looked at.
const GOES_WITHIN: Duration = Duration::from_secs(2);
const GOES_LOOK: Duration = Duration::from_millis(1);

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The folder to mount on; it must exist.
    pub folder: PathBuf,
    /// Whether other users may look in too.
    pub allow_other: bool,
    /// Threads that answer the kernel, at least 1.
    pub workers: usize,
    /// Whether local objects may be passed through to their files.
    pub passthrough: bool,
    /// Whether another mount of a pool on the folder may be covered.
    pub cover: bool,
    /// Whether files can be made, which become objects, and removed.
    pub writable: bool,
    /// The socket of the node, if it has a path: more connections are made through it as files are opened.
    pub socket: Option<PathBuf>,
}

impl MountOptions {
    /// The usual options for a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            allow_other: false,
            workers: 4,
            passthrough: true,
            cover: false,
            writable: false,
            socket: None,
        }
    }
}

/// Why a pool cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel or the container has no FUSE.
    #[error("{DEVICE} cannot be used: {error} (hint: {})", device_hint(error))]
    NoDevice {
        /// What opening it said.
        error: io::Error,
    },
    /// Mounting needs rights that this process lacks.
    #[error("no right to mount on {folder:?}: {error} (hint: {})", right_hint())]
    NotAllowed {
        /// Where.
        folder: PathBuf,
        /// What the kernel or the mount program said.
        error: io::Error,
    },
    /// The folder is missing.
    #[error("{folder:?} does not exist (hint: `mkdir -p {}`)", folder.display())]
    NoFolder {
        /// Which.
        folder: PathBuf,
    },
    /// The folder is no folder.
    #[error("{folder:?} is not a folder (hint: name one that is)")]
    NotAFolder {
        /// Which.
        folder: PathBuf,
    },
    /// The folder is the root of all files.
    #[error("a mount on / would lie over all files (hint: `mkdir -p /pool`, and mount there)")]
    Root,
    /// The folder is one in which the kernel itself shows something.
    #[error(
        "a mount on {folder:?} would lie over what the kernel shows there, and programs that look for that would wait for ever (hint: `mkdir -p /pool`, and mount there)"
    )]
    Kernels {
        /// Which.
        folder: PathBuf,
    },
    /// The node's socket lies below the folder.
    #[error(
        "a mount on {folder:?} would lie over {socket:?}, by which the node is reached (hint: `mkdir -p /pool`, and mount there)"
    )]
    OverSocket {
        /// Which.
        folder: PathBuf,
        /// The socket.
        socket: PathBuf,
    },
    /// What is mounted there belonged to a process that is gone.
    #[error(
        "{folder:?} is a mount whose process has ended (hint: clear it with `{}`)",
        clearing_command(folder)
    )]
    Stale {
        /// Which.
        folder: PathBuf,
    },
    /// A pool is mounted there already.
    #[error(
        "a pool is mounted on {folder:?} already (hint: unmount it with `{}`, or mount on another folder)",
        clearing_command(folder)
    )]
    AlreadyMounted {
        /// Which.
        folder: PathBuf,
    },
    /// Anything else.
    #[error("{doing} {folder:?} failed: {error} (hint: `hinterland doctor` tells what this machine lacks)")]
    Other {
        /// `mounting on` or `unmounting`.
        doing: &'static str,
        /// Which.
        folder: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// The command that removes a mount on `folder`.
pub fn clearing_command(folder: &Path) -> String {
    let program = if getuid().is_root() { "umount" } else { "fusermount3 -u" };
    format!("{program} {}", folder.display())
}

/// How an unmount went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing used it.
    Clean,
    /// Files were still open or mapped: the mount is out of sight, and those files fail once the process
    /// that serves them ends.
    Busy,
    /// Other mount namespaces, such as those of containers, have a copy of the mount, and nothing takes it from them: files
    /// fail there once the process that serves them ends.
    Elsewhere,
}

/// A pool mounted on a folder. Dropping it unmounts.
pub struct Mounted {
    session: BackgroundSession,
    folder: PathBuf,
    device: u64,
    passthrough: Arc<AtomicBool>,
    drafts: Arc<Drafts>,
}

/// Mounts a pool. `ended` hears of the end of the mount, whoever unmounts.
///
/// # Errors
/// [`MountError`] says what is in the way and how to clear it.
pub fn mount(
    source: Arc<dyn Source>,
    options: &MountOptions,
    ended: Sender<()>,
) -> Result<Mounted, MountError> {
    let folder = check_folder(&options.folder, options.cover)?;
    if let Some(socket) = &options.socket
        && socket.canonicalize().is_ok_and(|found| found.starts_with(&folder))
    {
        return Err(MountError::OverSocket { folder, socket: socket.clone() });
    }
    check_device()?;
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let owner = Owner { user, group, writable: options.writable };
    let passthrough = Arc::new(AtomicBool::new(options.passthrough));
    let kept = Arc::new(OnceLock::new());
    let drafts = Arc::new(Drafts::default());
    let files =
        PoolFiles::new(source, owner, passthrough.clone(), Arc::clone(&drafts), (Arc::clone(&kept), ended));
    let session = Session::new(files, &folder, &configuration(options))
        .and_then(Session::spawn)
        .map_err(|error| refused(&folder, error))?;
    let device = device_of(&folder).map_err(|error| refused(&folder, error))?;
    if let Some(trace) = Trace::of(device) {
        // It is set here only.
        let _ = kept.set(trace);
    }
    let mounted = Mounted { session, folder, device, passthrough, drafts };
    mounted.set_read_ahead();
    Ok(mounted)
}

impl Mounted {
    /// `st_dev` of every file in the mount.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The folder, without links.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the kernel passes local objects through to their files.
    pub fn passes_through(&self) -> bool {
        // Relaxed: for people to read.
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Unmounts; files that are still open are cut off when this process ends.
    ///
    /// # Errors
    /// [`MountError::Other`] when the kernel refuses even to take the mount out of sight.
    pub fn unmount(self) -> Result<Unmounted, MountError> {
        let Self { session, folder, device, drafts, .. } = self;
        let failed = |folder, error| MountError::Other { doing: "unmounting", folder, error };
        let Some(ended) = end(session, device) else {
            drafts.settle();
            return Ok(Unmounted::Elsewhere);
        };
        match ended {
            Ok(()) => Ok(Unmounted::Clean),
            // Somebody else unmounted it meanwhile.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(Unmounted::Clean),
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                umount2(&folder, MntFlags::MNT_DETACH).map_err(|error| failed(folder, error.into()))?;
                drafts.settle();
                Ok(Unmounted::Busy)
            }
            // A worker was about to ask for the next request when the kernel ended the connection: the mount is going or
            // has gone.
            Err(error) if error.raw_os_error() == Some(Errno::ECONNABORTED as i32) => {
                match umount2(&folder, MntFlags::MNT_DETACH) {
                    Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(Unmounted::Clean),
                    Err(error) => Err(failed(folder, error.into())),
                }
            }
            Err(error) => Err(failed(folder, error)),
        }
    }

    fn set_read_ahead(&self) {
        let path = path_of(self.device).join("read_ahead_kb");
        if let Err(error) = fs::write(&path, READ_AHEAD_KIB.to_string()) {
            tracing::debug!("read-ahead stays as it is: {}: {error}", path.display());
        }
    }
}

/// What the kernel shows of a mount for as long as it has it, in whichever namespace, and longer than it lets anybody ask.
pub(crate) struct Trace {
    device: u64,
    path: PathBuf,
    inode: u64,
}

impl Trace {
    fn of(device: u64) -> Option<Self> {
        let path = path_of(device);
        let inode = fs::metadata(&path).ok()?.ino();
        Some(Self { device, path, inode })
    }

    /// `st_dev` of every file in the mount.
    pub(crate) const fn device(&self) -> u64 {
        self.device
    }

    /// Whether the mount has gone within a moment. It has not as long as anybody has one of its files open.
    pub(crate) fn goes(&self) -> bool {
        let end = Instant::now() + GOES_WITHIN;
        loop {
            // Another mount may have the same device by now.
            if fs::metadata(&self.path).map(|found| found.ino()).ok() != Some(self.inode) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(GOES_LOOK);
        }
    }
}

/// Unmounts and waits until nothing asks any more. `None`: the mount is gone from this namespace, and the kernel still has it in
/// another one, so that this could last for as long as that does.
fn end(session: BackgroundSession, device: u64) -> Option<io::Result<()>> {
    let (sender, ended) = channel();
    // It is left to the end of the process if it does not end.
    std::thread::spawn(move || sender.send(session.umount_and_join()));
    let mut gone = 0;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return Some(Err(io::ErrorKind::Other.into())),
            Err(RecvTimeoutError::Timeout) if is_elsewhere(device) => gone += 1,
            Err(RecvTimeoutError::Timeout) => gone = 0,
        }
        // The kernel takes a mount out of sight a moment before it ends what was mounted.
        if gone >= LOOKS_MIN {
            return None;
        }
    }
}

/// Whether the kernel has what was mounted, but not in this namespace; false where that cannot be known.
fn is_elsewhere(device: u64) -> bool {
    let number = format!("{}:{}", major(device), minor(device));
    let Ok(mounts) = mounts() else { return false };
    let is_here = lines(&mounts).any(|line| field(line, 2) == number.as_bytes());
    !is_here && path_of(device).exists()
}

/// Where the kernel shows what it knows of a mount.
fn path_of(device: u64) -> PathBuf {
    Path::new("/sys/class/bdi").join(format!("{}:{}", major(device), minor(device)))
}

fn configuration(options: &MountOptions) -> Config {
    let mut configuration = Config::default();
    configuration.mount_options = vec![
        MountOption::FSName(KIND.to_owned()),
        // As plain text, because fuser passes its own `Subtype` to the mount program only.
        MountOption::CUSTOM(format!("subtype={KIND}")),
        if options.writable { MountOption::RW } else { MountOption::RO },
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::DefaultPermissions,
    ];
    configuration.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    configuration.n_threads = Some(options.workers.max(1));
    configuration.clone_fd = true;
    configuration
}

fn check_folder(folder: &Path, cover: bool) -> Result<PathBuf, MountError> {
    let folder = folder.to_owned();
    // Reading it asks the process behind a mount, where attributes may come from the kernel's memory.
    if let Err(error) = fs::read_dir(&folder) {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => MountError::NoFolder { folder },
            io::ErrorKind::NotADirectory => MountError::NotAFolder { folder },
            io::ErrorKind::NotConnected => MountError::Stale { folder },
            _ => MountError::Other { doing: "mounting on", folder, error },
        });
    }
    let folder = folder.canonicalize().map_err(|error| MountError::Other {
        doing: "mounting on",
        folder: folder.clone(),
        error,
    })?;
    if folder == Path::new("/") {
        return Err(MountError::Root);
    }
    if KERNELS_FOLDERS.iter().any(|kernels| folder == Path::new(kernels)) || folder.starts_with("/proc") {
        return Err(MountError::Kernels { folder });
    }
    let mounts = mounts().unwrap_or_default();
    if !cover && is_mounted(&mounts, &folder) {
        return Err(MountError::AlreadyMounted { folder });
    }
    Ok(folder)
}

fn device_hint(error: &io::Error) -> String {
    let number = error.raw_os_error().map(Errno::from_raw);
    let is_driverless = matches!(number, Some(Errno::ENODEV | Errno::ENXIO));
    match error.kind() {
        _ if is_driverless => "run `modprobe fuse` as root, of the host where this is a container".to_owned(),
        _ if container::is_inside() => container::mend(&[DEVICE], &[Right::Mount]),
        io::ErrorKind::PermissionDenied => format!("run `chmod 0666 {DEVICE}` as root"),
        _ => "run `modprobe fuse` as root".to_owned(),
    }
}

fn right_hint() -> String {
    if container::is_inside() {
        return container::mend(&[DEVICE], &[Right::Mount]);
    }
    "run as root, or install the mount program with `apt install fuse3`".to_owned()
}

fn check_device() -> Result<(), MountError> {
    match fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Ok(()),
        Err(error) => Err(MountError::NoDevice { error }),
    }
}

/// `st_dev` of the pool that was just mounted on `folder`. The mount itself is not asked: whoever is killed while it waits for an answer that
/// it would have to give itself stays for ever, because it keeps the connection open.
fn device_of(folder: &Path) -> io::Result<u64> {
    let mounts = mounts()?;
    let device = pools_on(&mounts, folder).last().and_then(|line| {
        let (major, minor) = std::str::from_utf8(field(line, 2)).ok()?.split_once(':')?;
        Some(makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    device.ok_or_else(|| io::Error::other("the mount went at once"))
}

/// What is mounted where, as the kernel tells. Folders have names of any bytes, also those that others mount on.
fn mounts() -> io::Result<Vec<u8>> {
    fs::read("/proc/self/mountinfo")
}

fn lines(mounts: &[u8]) -> impl Iterator<Item = &[u8]> {
    mounts.split(|byte| *byte == b'\n')
}

/// A field of a line, counted from 0; empty if it has fewer.
fn field(line: &[u8], number: usize) -> &[u8] {
    line.split(|byte| *byte == b' ').nth(number).unwrap_or_default()
}

/// Whether a pool is mounted on `folder`.
fn is_mounted(mounts: &[u8], folder: &Path) -> bool {
    pools_on(mounts, folder).next().is_some()
}

/// Lines of `/proc/self/mountinfo` that say that a pool is mounted on `folder`, the uppermost last. The fifth field is the mount point, and the
/// kind stands behind a lone dash.
fn pools_on<'a>(mounts: &'a [u8], folder: &'a Path) -> impl Iterator<Item = &'a [u8]> {
    let kind = format!("fuse.{KIND}");
    lines(mounts).filter(move |line| {
        let words = line.split(|byte| *byte == b' ');
        let found = words.skip_while(|word| *word != b"-").nth(1);
        found == Some(kind.as_bytes()) && unescaped(field(line, 4)) == folder
    })
}

fn refused(folder: &Path, error: io::Error) -> MountError {
    let folder = folder.to_owned();
    match error.kind() {
        // The folder is there: it is the mount program, tried after the kernel refused, that is not.
        io::ErrorKind::NotFound => {
            let error = io::Error::other("the kernel refuses, and there is no fusermount3");
            MountError::NotAllowed { folder, error }
        }
        io::ErrorKind::PermissionDenied => MountError::NotAllowed { folder, error },
        _ if error.to_string().contains("fusermount") => MountError::NotAllowed { folder, error },
        _ => MountError::Other { doing: "mounting on", folder, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn only_a_pool_mounted_on_the_very_folder_counts() {
        let mounts = b"36 35 0:44 / /a\\040b ro,nosuid - fuse.hinterland hinterland ro\n\
                      37 35 0:45 / /c rw - tmpfs tmpfs rw\n\
                      38 35 0:46 / /d\xff\\134040 rw - fuse.hinterland hinterland rw\n";
        assert!(is_mounted(mounts, Path::new("/a b")));
        assert!(!is_mounted(mounts, Path::new("/a")));
        assert!(!is_mounted(mounts, Path::new("/c")));
        assert!(is_mounted(mounts, Path::new(std::ffi::OsStr::from_bytes(b"/d\xff\\040"))));
    }

    #[test]
    fn a_missing_folder_and_a_file_are_told_apart() {
        let missing = check_folder(Path::new("/nonexistent/pool"), false).unwrap_err();
        assert!(matches!(&missing, MountError::NoFolder { .. }) && missing.to_string().contains("mkdir -p"));
        let file = check_folder(Path::new("/proc/self/status"), false).unwrap_err();
        assert!(matches!(file, MountError::NotAFolder { .. }));
    }

    #[test]
    fn nothing_is_mounted_over_what_the_kernel_shows() {
        for (folder, cover) in
            [("/proc", true), ("/proc/self/fd", true), ("/sys", false), ("/dev/../dev", true)]
        {
            let refusal = check_folder(Path::new(folder), cover).unwrap_err();
            let is_it = matches!(refusal, MountError::Kernels { .. });
            assert!(is_it && refusal.to_string().contains("hint: "), "{folder}: {refusal}");
        }
    }

    #[test]
    fn nothing_is_mounted_over_all_files() {
        for (root, cover) in [("/", false), ("/proc/..", true)] {
            let refusal = check_folder(Path::new(root), cover).unwrap_err();
            assert!(
                matches!(refusal, MountError::Root) && refusal.to_string().contains("hint: "),
                "{refusal}"
            );
        }
    }
}
