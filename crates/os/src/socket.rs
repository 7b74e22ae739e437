//! Unix stream sockets that carry descriptors beside the bytes.

use std::fs::{File, TryLockError};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::clock::monotonic_ns;
use crate::error::{OsError, check};
use crate::poll;
use crate::spin::SpinBudget;

/// Descriptors in one message: what a session hands out at once, and far below the kernel's limit of 253.
pub const DESCRIPTORS_MAX: usize = 16;
/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 128;
/// Pause between two attempts to connect to a listener whose queue is full, or to be the only one who begins to listen.
const CONNECT_PAUSE: Duration = Duration::from_millis(2);
/// How long others may take to begin to listen in a folder. Whoever may read it can keep it locked, which is to be no reason to wait for ever.
const FOLDER_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of control data for `DESCRIPTORS_MAX` descriptors.
// SAFETY: CMSG_SPACE only computes a length.
const CONTROL_BYTES: usize =
    unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<libc::c_int>()) as u32) } as usize;

/// Who is at the other end, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process number at the time of connecting.
    pub process: i32,
    /// User.
    pub user: u32,
    /// Group.
    pub group: u32,
}

/// What has ended a wait for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// So many bytes; none at the end of the stream.
    Received(usize),
    /// The descriptor that was watched beside the socket is readable, and the socket is not.
    Beside,
    /// The time is over.
    Nothing,
}

/// A listening socket at a path, which is removed on drop if it is still this one's.
#[derive(Debug)]
pub struct UnixListener {
    /// Before the socket: while that is open, no other file has the same number.
    file: SocketFile,
    descriptor: OwnedFd,
}

impl UnixListener {
    /// Listens at `path`. A socket that an earlier process left there is replaced if nobody listens on it. A folder that is missing is
    /// made below [`runtime_folder`], and nowhere else.
    ///
    /// # Errors
    /// `EADDRINUSE` if somebody listens there, `ENOENT` for a folder that is missing; [`OsError::Refused`] for a path of more than 107
    /// bytes, or one at which is something else than a socket.
    pub fn bind(path: &Path) -> Result<Self, OsError> {
        let (address, address_bytes) = socket_address(path)?;
        see_to_folder(path)?;
        let _alone = FolderLock::of(path);
        // Non-blocking: of several threads that are told of one connection, all but one find it gone.
        let descriptor = new_socket(libc::SOCK_NONBLOCK)?;
        let subject = || path.display().to_string();
        let bind = || {
            // SAFETY: the address lives through the call and has the length given.
            unsafe { libc::bind(descriptor.as_raw_fd(), (&raw const address).cast(), address_bytes) }
        };
        if let Err(error) = check(bind(), "bind", subject) {
            if error.errno() != Some(libc::EADDRINUSE) {
                return Err(error.with_hint("choose a path in a folder that this user may write"));
            }
            remove_abandoned(path, error)?;
            check(bind(), "bind", subject)?;
        }
        // SAFETY: plain values.
        check(unsafe { libc::listen(descriptor.as_raw_fd(), BACKLOG) }, "listen", subject)?;
        Ok(Self { file: SocketFile::of(path), descriptor })
    }

    /// Lets members of the group connect, or else nobody but the user of this process, and root.
    ///
    /// # Errors
    /// `EPERM` for a group of which this user is no member.
    pub fn let_in(&self, group: Option<u32>) -> Result<(), OsError> {
        let failed = |call, error| OsError::system(call, self.path().display().to_string(), error);
        if group.is_some() {
            std::os::unix::fs::chown(self.path(), None, group).map_err(|error| {
                failed("chown", error).with_hint("choose a group of which this user is a member")
            })?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(self.path(), std::fs::Permissions::from_mode(mode))
            .map_err(|error| failed("chmod", error))
    }

    /// Takes the next connection; `None` when none comes within the time.
    ///
    /// # Errors
    /// `EMFILE` without descriptors left (the connection stays in the queue).
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<UnixStream>, OsError> {
        if !poll::wait_readable(&self.descriptor, timeout)? {
            return Ok(None);
        }
        let raw = self.descriptor.as_raw_fd();
        let no_address = std::ptr::null_mut();
        // SAFETY: null pointers ask for no address.
        let result = unsafe { libc::accept4(raw, no_address, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        match check(result, "accept", || self.path().display().to_string()) {
            // SAFETY: the descriptor is fresh and owned by nobody else.
            Ok(raw) => Ok(Some(UnixStream { descriptor: unsafe { OwnedFd::from_raw_fd(raw) } })),
            // The peer gave up between the poll and the accept, or the listener was closed.
            Err(error)
                if matches!(
                    error.errno(),
                    Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR | libc::EINVAL)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What wakes whoever waits in [`accept`](Self::accept), from another thread, and lets nobody connect any more.
    ///
    /// # Errors
    /// `EMFILE` without descriptors left.
    pub fn closer(&self) -> Result<Closer, OsError> {
        let copy = self.descriptor.try_clone();
        copy.map(Closer).map_err(|error| OsError::system("dup", self.path().display().to_string(), error))
    }

    /// The path that it listens at.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// The folder below which programs of a user keep their sockets: `XDG_RUNTIME_DIR`, else `/run`.
pub fn runtime_folder() -> PathBuf {
    let named = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty());
    named.map_or_else(|| PathBuf::from("/run"), PathBuf::from)
}

/// Sees to the folder of a socket. Below the runtime folder, which is empty when a machine has started, whoever needs one makes it; a
/// folder that is missing elsewhere is most often one that was mistyped.
///
/// # Errors
/// `ENOENT` for such a folder, with the command that makes it.
pub fn see_to_folder(path: &Path) -> Result<(), OsError> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    if folder.exists() {
        return Ok(());
    }
    if folder.starts_with(runtime_folder()) {
        let made = std::fs::create_dir_all(folder);
        return made.map_err(|error| {
            let failed = OsError::system("mkdir", folder.display().to_string(), error);
            failed.with_hint("choose a path in a folder that this user may write")
        });
    }
    let missing = std::io::Error::from_raw_os_error(libc::ENOENT);
    let hint = format!("there is no folder {0}: check the path, or `mkdir -p {0}`", folder.display());
    Err(OsError::system("bind", path.display().to_string(), missing).with_hint(hint))
}

/// Has others who begin to listen in a folder wait until it is dropped: a socket that somebody is about to listen at refuses connections, as one
/// does that was abandoned, and would be removed.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "its drop unlocks")] Option<File>);

impl FolderLock {
    /// Locks the folder of a path. Where that cannot be done, nobody waits.
    fn of(path: &Path) -> Self {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let Ok(folder) = File::open(parent.unwrap_or(Path::new("."))) else { return Self(None) };
        let deadline = Instant::now() + FOLDER_PATIENCE;
        while let Err(TryLockError::WouldBlock) = folder.try_lock() {
            if Instant::now() >= deadline {
                return Self(None);
            }
            std::thread::sleep(CONNECT_PAUSE);
        }
        Self(Some(folder))
    }
}

/// Makes a path free to be listened at in other ways than by [`UnixListener::bind`]: a socket that an earlier process left there is removed if
/// nobody listens on it. It is to be listened there before what is returned is dropped.
///
/// # Errors
/// As [`UnixListener::bind`].
pub fn make_way(path: &Path) -> Result<FolderLock, OsError> {
    see_to_folder(path)?;
    let alone = FolderLock::of(path);
    if std::fs::symlink_metadata(path).is_ok() {
        let in_use = std::io::Error::from_raw_os_error(libc::EADDRINUSE);
        remove_abandoned(path, OsError::system("bind", path.display().to_string(), in_use))?;
    }
    Ok(alone)
}

/// Removes a socket that nobody listens on; `in_use` is what is said of any other.
fn remove_abandoned(path: &Path, in_use: OsError) -> Result<(), OsError> {
    let subject = || path.display().to_string();
    let found = std::fs::symlink_metadata(path).map_err(|error| OsError::system("stat", subject(), error))?;
    if !found.file_type().is_socket() {
        return Err(OsError::Refused {
            operation: "listening",
            reason: format!("{} is there already and no socket", path.display()),
            hint: "choose another path for the socket".into(),
        });
    }
    // Who is stopped, or has its queue full, does not refuse.
    match UnixStream::connect(path, Duration::from_millis(200)) {
        Err(error) if error.errno() == Some(libc::ECONNREFUSED) => {
            std::fs::remove_file(path).map_err(|error| OsError::system("unlink", subject(), error))
        }
        _ => Err(in_use.with_hint("another node runs here; stop it, or choose another path for the socket")),
    }
}

/// Ends a listener from another thread.
pub struct Closer(OwnedFd);

impl Closer {
    /// From here on every `accept` of the listener is `None`, at once.
    pub fn close(&self) {
        // SAFETY: plain values. Nothing else can be wrong with a socket that listens.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RD) };
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The file of a socket that is listened at: it is removed on drop, unless another one is in its place. Who lets nobody connect any more
/// while it ends is taken for gone, and whoever begins meanwhile to listen at the path is to keep it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// The file of a socket that was bound to a path a moment ago. It is to be dropped before the socket.
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_path_buf(), identity: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _alone = FolderLock::of(&self.path);
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // A path that is gone already needs no removing.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What no other file has while this one is there: its device and its number.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// One end of a connection.
#[derive(Debug)]
pub struct UnixStream {
    descriptor: OwnedFd,
}

impl UnixStream {
    /// Connects to the listener at `path`, waiting up to `timeout` while its queue is full.
    ///
    /// # Errors
    /// `ENOENT` or `ECONNREFUSED` when nobody listens, [`OsError::TimedOut`] when the queue stays full.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, OsError> {
        let (address, address_bytes) = socket_address(path)?;
        let stream = Self { descriptor: new_socket(libc::SOCK_NONBLOCK)? };
        let deadline = Instant::now() + timeout;
        loop {
            // SAFETY: the address lives through the call and has the length given.
            let result = unsafe {
                libc::connect(stream.descriptor.as_raw_fd(), (&raw const address).cast(), address_bytes)
            };
            match check(result, "connect", || path.display().to_string()) {
                Ok(_) => break,
                Err(error) if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) => {
                    if Instant::now() >= deadline {
                        let waited_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                        let subject = path.display().to_string();
                        return Err(OsError::TimedOut { operation: "connect", subject, waited_ms });
                    }
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// `EMFILE` without descriptors left.
    pub fn pair() -> Result<(Self, Self), OsError> {
        let mut raw = [-1; 2];
        // SAFETY: the kernel writes two descriptors of this frame.
        let result = unsafe {
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, raw.as_mut_ptr())
        };
        check(result, "socketpair", || "unix stream".to_owned())?;
        // SAFETY: both descriptors are fresh and owned by nobody else.
        let [one, other] = raw.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        Ok((Self { descriptor: one }, Self { descriptor: other }))
    }

    /// Takes a connected socket that was handed over or inherited.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Sends bytes, and with the first of them the descriptors; returns how many bytes went, which may be fewer. The
    /// descriptors stay open here; once at least one byte has gone, so have all of them.
    ///
    /// # Errors
    /// [`OsError::Refused`] for more than [`DESCRIPTORS_MAX`] descriptors or for descriptors without a byte; `EPIPE`
    /// when the peer is gone; `EAGAIN` ([`OsError::is_would_block`]) when it would have to wait.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, OsError> {
        self.send_message(bytes, descriptors, 0)
    }

    /// Sends what bytes can be sent without waiting, whatever the mode of the socket: a peer that has this end, too, may
    /// have changed it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_now(&self, bytes: &[u8]) -> Result<usize, OsError> {
        self.send_message(bytes, &[], libc::MSG_DONTWAIT)
    }

    fn send_message(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: libc::c_int,
    ) -> Result<usize, OsError> {
        if descriptors.len() > DESCRIPTORS_MAX || (bytes.is_empty() && !descriptors.is_empty()) {
            return Err(OsError::Refused {
                operation: "sending descriptors",
                reason: format!("{} descriptors with {} bytes", descriptors.len(), bytes.len()),
                hint: "at most 16 in one message, which has at least one byte".into(),
            });
        }
        let mut control = ControlBuffer::new();
        let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            control.put(descriptors, &mut message);
        }
        loop {
            // SAFETY: all that the message points to lives through the call; sendmsg does not write to the bytes.
            let result =
                unsafe { libc::sendmsg(self.descriptor.as_raw_fd(), &message, libc::MSG_NOSIGNAL | flags) };
            match outcome(result, "sendmsg") {
                Err(error) if error.errno() == Some(libc::EINTR) => {}
                other => return other,
            }
        }
    }

    /// Sends all bytes (on a blocking socket), the descriptors with the first.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_all(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), OsError> {
        let mut done = self.send(bytes, descriptors)?;
        while done < bytes.len() {
            done += self.send(&bytes[done..], &[])?;
        }
        Ok(())
    }

    /// Receives up to `buffer.len()` bytes and appends descriptors that came with them, closed on exec; zero bytes is the
    /// end of the stream.
    ///
    /// # Errors
    /// [`OsError::Refused`] if the peer sent more descriptors than [`DESCRIPTORS_MAX`] or than this process may open
    /// (all of that message are closed then); `EAGAIN` ([`OsError::is_would_block`]) when nothing is there within the
    /// receive timeout.
    pub fn receive(&self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, OsError> {
        self.receive_message(buffer, descriptors, 0)
    }

    /// As [`receive`](Self::receive) without waiting, whatever the mode of the socket.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_now(&self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, OsError> {
        self.receive_message(buffer, descriptors, libc::MSG_DONTWAIT)
    }

    /// As [`receive`](Self::receive), looking again and again as long as was learned to pay before the thread sleeps. Its sleep ends when
    /// `patience` does, and when `beside` is readable and the socket is not.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_spinning(
        &self,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        budget: &mut SpinBudget,
        patience: Option<Duration>,
        beside: Option<BorrowedFd<'_>>,
    ) -> Result<Woken, OsError> {
        let (start_ns, limit_ns) = (monotonic_ns(), budget.limit_ns());
        let waited_ns = || monotonic_ns() - start_ns;
        while waited_ns() < limit_ns {
            match self.receive_message(buffer, descriptors, libc::MSG_DONTWAIT) {
                Err(error) if error.is_would_block() => {}
                other => {
                    budget.learn(waited_ns());
                    return other.map(Woken::Received);
                }
            }
        }
        // Not asleep in `recvmsg`: there a thread is also woken when the peer has taken what was sent to it, and has to go back
        // to sleep; each time costs the peer as much as a message (45 us where this was measured).
        let (has_more, is_beside) = match beside {
            Some(beside) => poll::wait_either(self, beside, patience)?,
            None => (poll::wait_readable(self, patience)?, false),
        };
        if !has_more {
            return Ok(if is_beside { Woken::Beside } else { Woken::Nothing });
        }
        let received = self.receive(buffer, descriptors);
        budget.learn(waited_ns());
        received.map(Woken::Received)
    }

    fn receive_message(
        &self,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        flags: libc::c_int,
    ) -> Result<usize, OsError> {
        let mut control = ControlBuffer::new();
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        let bytes = loop {
            message.msg_control = control.as_mut_ptr();
            message.msg_controllen = CONTROL_BYTES;
            // SAFETY: all that the message points to lives through the call and has the lengths given.
            let result = unsafe {
                libc::recvmsg(self.descriptor.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC | flags)
            };
            match outcome(result, "recvmsg") {
                Err(error) if error.errno() == Some(libc::EINTR) => {}
                other => break other?,
            }
        };
        // SAFETY: the kernel has just filled the message and its control data.
        let received = unsafe { take_descriptors(&message) };
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(OsError::Refused {
                operation: "receiving descriptors",
                reason: format!("more came than the {} that could be taken", received.len()),
                hint: "raise the limit of open files (`ulimit -n 65536`), or the peer is broken".into(),
            });
        }
        descriptors.extend(received);
        Ok(bytes)
    }

    /// Fills the whole buffer (on a blocking socket).
    ///
    /// # Errors
    /// `ECONNRESET` if the stream ends before; else as [`receive`](Self::receive).
    pub fn receive_exact(&self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<(), OsError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.receive(&mut buffer[done..], descriptors)? {
                0 => {
                    let error = std::io::Error::from_raw_os_error(libc::ECONNRESET);
                    let subject = format!("{} bytes, of which {done} came", buffer.len());
                    return Err(OsError::system("receive", subject, error));
                }
                more => done += more,
            }
        }
        Ok(())
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// The refusal of `getsockopt`.
    pub fn peer_credentials(&self) -> Result<PeerCredentials, OsError> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes of this frame.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &mut bytes,
            )
        };
        check(result, "getsockopt(SO_PEERCRED)", || "unix stream".to_owned())?;
        Ok(PeerCredentials { process: credentials.pid, user: credentials.uid, group: credentials.gid })
    }

    /// Whether calls return `EAGAIN` in place of waiting.
    ///
    /// # Errors
    /// The refusal of `fcntl`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), OsError> {
        let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
        // SAFETY: plain values.
        let result = unsafe { libc::fcntl(self.descriptor.as_raw_fd(), libc::F_SETFL, flags) };
        check(result, "fcntl(F_SETFL)", || "unix stream".to_owned()).map(drop)
    }

    /// How long a blocking [`receive`](Self::receive) waits before `EAGAIN`; for ever with `None`.
    ///
    /// # Errors
    /// The refusal of `setsockopt`.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> Result<(), OsError> {
        self.set_timeout(libc::SO_RCVTIMEO, timeout)
    }

    /// How long a blocking [`send`](Self::send) waits before `EAGAIN`; for ever with `None`.
    ///
    /// # Errors
    /// The refusal of `setsockopt`.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> Result<(), OsError> {
        self.set_timeout(libc::SO_SNDTIMEO, timeout)
    }

    /// Ends the connection in both directions, also for duplicates of the descriptor.
    pub fn shutdown(&self) {
        // SAFETY: plain values. A connection that has ended already needs no ending.
        unsafe { libc::shutdown(self.descriptor.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// A second descriptor of the same connection.
    ///
    /// # Errors
    /// `EMFILE` without descriptors left.
    pub fn duplicate(&self) -> Result<Self, OsError> {
        let copy = self.descriptor.try_clone();
        copy.map(Self::from_descriptor).map_err(|error| OsError::system("dup", "unix stream", error))
    }

    fn set_timeout(&self, option: libc::c_int, timeout: Option<Duration>) -> Result<(), OsError> {
        // A zero time means no limit to the kernel, so the shortest limit is a microsecond.
        let time = timeout.map_or(Duration::ZERO, |time| time.max(Duration::from_micros(1)));
        let value = libc::timeval {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_usec: time.subsec_micros().into(),
        };
        let bytes = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the value lives through the call and has the length given.
        let result = unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                bytes,
            )
        };
        check(result, "setsockopt", || "timeout of a unix stream".to_owned()).map(drop)
    }
}

impl AsFd for UnixStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<UnixStream> for OwnedFd {
    fn from(stream: UnixStream) -> Self {
        stream.descriptor
    }
}

/// Has the kernel ask the other side of a TCP connection whether it is there when nothing has come for so long: a host that was
/// switched off, or cannot be reached any more, says no farewell. The connection fails after three questions without an answer.
///
/// # Errors
/// The refusal of `setsockopt`.
pub fn probe_when_quiet(socket: impl AsFd, after: Duration) -> Result<(), OsError> {
    let seconds = |time: Duration| libc::c_int::try_from(time.as_secs()).unwrap_or(libc::c_int::MAX).max(1);
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(after)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(after / 3)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, option, value) in options {
        let bytes = size_of::<libc::c_int>() as libc::socklen_t;
        let descriptor = socket.as_fd().as_raw_fd();
        // SAFETY: the value lives through the call and has the length given.
        let result = unsafe { libc::setsockopt(descriptor, level, option, (&raw const value).cast(), bytes) };
        check(result, "setsockopt", || "keepalive of a TCP connection".to_owned())?;
    }
    Ok(())
}

/// Control data of one message, aligned as the kernel's structures are.
#[repr(C, align(8))]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_BYTES]);

impl ControlBuffer {
    fn new() -> Self {
        Self([MaybeUninit::zeroed(); CONTROL_BYTES])
    }

    fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Writes the descriptors as control data and points the message at it.
    fn put(&mut self, descriptors: &[BorrowedFd<'_>], message: &mut libc::msghdr) {
        debug_assert!(descriptors.len() <= DESCRIPTORS_MAX);
        let payload = (descriptors.len() * size_of::<libc::c_int>()) as u32;
        message.msg_control = self.as_mut_ptr();
        // SAFETY: both macros only compute lengths.
        let (space, length) = unsafe { (libc::CMSG_SPACE(payload), libc::CMSG_LEN(payload)) };
        message.msg_controllen = space as usize;
        // SAFETY: the control buffer is aligned and has room for DESCRIPTORS_MAX descriptors, so the first header and
        // its data lie within it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = length as usize;
            let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
            for (index, descriptor) in descriptors.iter().enumerate() {
                data.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
}

/// Takes ownership of all descriptors in the control data of a received message.
///
/// # Safety
/// `recvmsg` must have filled the message, its control data must be live, and this is called once for it.
unsafe fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut received = Vec::new();
    // SAFETY: the kernel wrote well-formed headers into the control data, which these macros walk within its length;
    // each descriptor in it is fresh and owned by nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let payload = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                for index in 0..payload / size_of::<libc::c_int>() {
                    received.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    received
}

fn new_socket(more_flags: libc::c_int) -> Result<OwnedFd, OsError> {
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | more_flags;
    // SAFETY: plain values.
    let result = unsafe { libc::socket(libc::AF_UNIX, flags, 0) };
    let raw = check(result, "socket", || "unix stream".to_owned())?;
    // SAFETY: the descriptor is fresh and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn socket_address(path: &Path) -> Result<(libc::sockaddr_un, libc::socklen_t), OsError> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(OsError::Refused {
            operation: "using a path for a unix socket",
            reason: format!("{} has {} bytes", path.display(), bytes.len()),
            hint: "choose a folder with a shorter path: at most 107 bytes".into(),
        });
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

fn outcome(result: isize, operation: &'static str) -> Result<usize, OsError> {
    usize::try_from(result).map_err(|_| OsError::last(operation, "unix stream"))
}

#[cfg(test)]
mod tests;
