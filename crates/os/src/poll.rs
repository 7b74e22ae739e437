//! Waiting for many descriptors at once (epoll), counters that wake (eventfd), and signals as a descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::error::{OsError, check};

/// Events taken from the kernel in one wait; more wait for the next one, which returns at once.
const EVENTS_MAX: usize = 64;

/// What to be told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes to read, a connection to accept, or the end of the stream.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// Only when it changes (`EPOLLET`), in place of as long as it holds.
    pub edge: bool,
}

impl Interest {
    /// Bytes to read.
    pub const READ: Self = Self { readable: true, writable: false, edge: false };
    /// Room to write.
    pub const WRITE: Self = Self { readable: false, writable: true, edge: false };
    /// Either.
    pub const BOTH: Self = Self { readable: true, writable: true, edge: false };
}

/// One descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The number that it was added under.
    pub token: u64,
    /// There is something to read, the end of the stream included.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The other side has closed, or the descriptor has failed; what was sent before can still be read.
    pub closed: bool,
}

/// A set of descriptors to wait for. All methods may be called from any thread.
#[derive(Debug)]
pub struct Poller {
    descriptor: OwnedFd,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// `EMFILE` without descriptors left.
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: plain values.
        let raw = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create", || {
            "poller".to_owned()
        })?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// Adds a descriptor under a number of the caller's.
    ///
    /// # Errors
    /// `EEXIST` if it is in the set, `EPERM` for plain files.
    pub fn add(&self, source: impl AsFd, token: u64, interest: Interest) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_ADD, source.as_fd(), token, interest)
    }

    /// Changes number and interest of a descriptor in the set.
    ///
    /// # Errors
    /// `ENOENT` if it is not in the set.
    pub fn modify(&self, source: impl AsFd, token: u64, interest: Interest) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_MOD, source.as_fd(), token, interest)
    }

    /// Takes a descriptor out. Do so before closing it if a duplicate of it lives elsewhere.
    ///
    /// # Errors
    /// `ENOENT` if it is not in the set.
    pub fn remove(&self, source: impl AsFd) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_DEL, source.as_fd(), 0, Interest::default())
    }

    /// Waits until something is ready or the time is over, and puts what is ready in place of the contents of `ready`. At
    /// most 64 at once. A signal ends the wait early, with nothing ready.
    ///
    /// # Errors
    /// The refusal of `epoll_wait`.
    pub fn wait(&self, ready: &mut Vec<Readiness>, timeout: Option<Duration>) -> Result<(), OsError> {
        ready.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: the kernel writes at most EVENTS_MAX events of this frame.
        let result = unsafe {
            libc::epoll_wait(
                self.descriptor.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_MAX as libc::c_int,
                milliseconds(timeout),
            )
        };
        let count = match check(result, "epoll_wait", || "poller".to_owned()) {
            Ok(count) => count as usize,
            Err(error) if error.errno() == Some(libc::EINTR) => 0,
            Err(error) => return Err(error),
        };
        ready.extend(events[..count].iter().map(|event| {
            let bits = event.events as libc::c_int;
            Readiness {
                token: event.u64,
                readable: bits & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0,
                writable: bits & libc::EPOLLOUT != 0,
                closed: bits & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) != 0,
            }
        }));
        Ok(())
    }

    fn control(
        &self,
        operation: libc::c_int,
        source: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> Result<(), OsError> {
        let mut bits = libc::EPOLLRDHUP;
        for (set, bit) in [
            (interest.readable, libc::EPOLLIN),
            (interest.writable, libc::EPOLLOUT),
            (interest.edge, libc::EPOLLET),
        ] {
            if set {
                bits |= bit;
            }
        }
        let mut event = libc::epoll_event { events: bits as u32, u64: token };
        // SAFETY: both descriptors are open and the event lives through the call.
        let result = unsafe {
            libc::epoll_ctl(self.descriptor.as_raw_fd(), operation, source.as_raw_fd(), &mut event)
        };
        check(result, "epoll_ctl", || format!("descriptor {}", source.as_raw_fd())).map(drop)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Waits until one descriptor is readable (or at its end); `false` when the time is over first.
///
/// # Errors
/// The refusal of `poll`.
pub fn wait_readable(source: impl AsFd, timeout: Option<Duration>) -> Result<bool, OsError> {
    let deadline = timeout.map(|time| std::time::Instant::now() + time);
    loop {
        let rest = deadline.map(|end| end.saturating_duration_since(std::time::Instant::now()));
        let mut entry = libc::pollfd {
            fd: source.as_fd().as_raw_fd(),
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one entry of this frame.
        let result = unsafe { libc::poll(&mut entry, 1, milliseconds(rest)) };
        match check(result, "poll", || format!("descriptor {}", entry.fd)) {
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            other => return other.map(|count| count > 0),
        }
    }
}

/// Waits until one of two descriptors is readable (or at its end), and says which of them are; neither when the time is over first.
///
/// # Errors
/// The refusal of `poll`.
pub fn wait_either(
    one: impl AsFd,
    other: impl AsFd,
    timeout: Option<Duration>,
) -> Result<(bool, bool), OsError> {
    let deadline = timeout.map(|time| std::time::Instant::now() + time);
    let entry = |descriptor: BorrowedFd<'_>| libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN | libc::POLLRDHUP,
        revents: 0,
    };
    loop {
        let rest = deadline.map(|end| end.saturating_duration_since(std::time::Instant::now()));
        let mut entries = [entry(one.as_fd()), entry(other.as_fd())];
        // SAFETY: two entries of this frame.
        let result = unsafe { libc::poll(entries.as_mut_ptr(), 2, milliseconds(rest)) };
        match check(result, "poll", || format!("descriptors {} and {}", entries[0].fd, entries[1].fd)) {
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            other => return other.map(|_| (entries[0].revents != 0, entries[1].revents != 0)),
        }
    }
}

/// Whether the other side of a stream socket has closed it, whatever of it may still be read. Never waits.
///
/// # Errors
/// The refusal of `poll`.
pub fn has_hung_up(source: impl AsFd) -> Result<bool, OsError> {
    let mut entry = libc::pollfd { fd: source.as_fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry of this frame.
    let result = unsafe { libc::poll(&mut entry, 1, 0) };
    match check(result, "poll", || format!("descriptor {}", entry.fd)) {
        Err(error) if error.errno() == Some(libc::EINTR) => Ok(false),
        other => other.map(|count| count > 0),
    }
}

/// A counter that another thread or process raises to wake who waits for it (`eventfd`).
#[derive(Debug)]
pub struct EventCounter {
    descriptor: OwnedFd,
}

impl EventCounter {
    /// A counter at zero; nothing blocks on it but a wait for its descriptor.
    ///
    /// # Errors
    /// `EMFILE` without descriptors left.
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: plain values.
        let result = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let raw = check(result, "eventfd", || "event counter".to_owned())?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// Takes a counter that was handed over. The descriptor is made non-blocking; whoever else holds it may change that, and
    /// then only [`raise`](Self::raise) may block, so raise no counter of somebody who is not trusted.
    ///
    /// # Errors
    /// [`OsError::Refused`] for a descriptor of another kind.
    pub fn from_descriptor(descriptor: OwnedFd) -> Result<Self, OsError> {
        if !is_anonymous(&descriptor, "eventfd") {
            return Err(OsError::Refused {
                operation: "taking an event counter",
                reason: format!("descriptor {} is none", descriptor.as_raw_fd()),
                hint: "the peer handed over something else; end its session".into(),
            });
        }
        // SAFETY: plain values.
        let result = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        check(result, "fcntl(F_SETFL)", || "event counter".to_owned())?;
        Ok(Self { descriptor })
    }

    /// Raises the counter and so wakes who waits. A counter at its maximum stays there: it wakes all the same.
    pub fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight live bytes. The only failure is a full counter, which is readable already.
        unsafe { libc::write(self.descriptor.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the count and sets it to zero.
    pub fn take(&self) -> u64 {
        let mut count = [0u8; 8];
        // SAFETY: the kernel writes eight bytes of this frame. At zero it refuses, and the count stays zero.
        unsafe { read_now(&self.descriptor, count.as_mut_ptr().cast(), count.len()) };
        u64::from_ne_bytes(count)
    }
}

impl AsFd for EventCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// SIGINT, SIGTERM and, unless it is ignored (`nohup`), SIGHUP of a terminal that is closed as a descriptor, in place of ending the process.
#[derive(Debug)]
pub struct SignalWatch {
    descriptor: OwnedFd,
}

impl SignalWatch {
    /// Blocks these signals in this thread and those that it makes from here on; call it before any other thread exists.
    ///
    /// # Errors
    /// The refusal of `pthread_sigmask` or `signalfd`.
    pub fn new() -> Result<Self, OsError> {
        const NAMES: &str = "SIGINT, SIGTERM and SIGHUP";
        // SAFETY: an all-zero sigset_t is valid and is initialised by sigemptyset.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is live, and the numbers are signals.
        let result = unsafe {
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            // A signal that is blocked reaches the descriptor although it is ignored.
            if !is_ignored(libc::SIGHUP) {
                libc::sigaddset(&mut set, libc::SIGHUP);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
        };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(result);
            return Err(OsError::system("pthread_sigmask", NAMES, error));
        }
        // SAFETY: the set lives through the call.
        let result = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        let raw = check(result, "signalfd", || NAMES.to_owned())?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// The next signal that has come, if any.
    pub fn take(&self) -> Option<i32> {
        // SAFETY: an all-zero signalfd_siginfo is valid.
        let mut information: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most one structure of this frame.
        let result = unsafe {
            libc::read(self.descriptor.as_raw_fd(), std::ptr::from_mut(&mut information).cast(), bytes)
        };
        (result == bytes as isize).then_some(information.ssi_signo as i32)
    }
}

impl AsFd for SignalWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether whoever started this process wants a signal to do nothing to it.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and the kernel writes one structure of this frame.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Whether a descriptor is an anonymous inode of this kind. The kernel gives such a name to nothing else: links to files
/// begin with a slash or a parenthesis.
pub(crate) fn is_anonymous(descriptor: impl AsFd, kind: &str) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == format!("anon_inode:[{kind}]").as_str())
}

/// `read` that does not wait, whether or not the descriptor is non-blocking: another process that holds it can change that.
/// Kernels that cannot do so for this kind of descriptor go by its flag.
///
/// # Safety
/// `buffer` must be valid for writes of `bytes` bytes.
pub(crate) unsafe fn read_now(descriptor: impl AsFd, buffer: *mut libc::c_void, bytes: usize) -> isize {
    let raw = descriptor.as_fd().as_raw_fd();
    let vector = libc::iovec { iov_base: buffer, iov_len: bytes };
    // SAFETY: the vector lives through the call and the caller answers for the buffer. The offset -1 is the present one.
    let result = unsafe { libc::preadv2(raw, &vector, 1, -1, libc::RWF_NOWAIT) };
    if result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) {
        // SAFETY: as above.
        return unsafe { libc::read(raw, buffer, bytes) };
    }
    result
}

/// Milliseconds for the kernel, rounded up so that a short wait is no busy loop; -1 for no limit.
fn milliseconds(timeout: Option<Duration>) -> libc::c_int {
    match timeout {
        None => -1,
        Some(time) => libc::c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_counter_wakes_the_poller_until_it_is_taken() {
        let (poller, counter) = (Poller::new().unwrap(), EventCounter::new().unwrap());
        let mut ready = Vec::new();
        poller.add(&counter, 7, Interest::READ).unwrap();
        assert!(poller.add(&counter, 8, Interest::READ).is_err());
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        counter.raise();
        counter.raise();
        poller.wait(&mut ready, None).unwrap();
        assert_eq!((ready.len(), ready[0].token, ready[0].readable), (1, 7, true));
        assert_eq!(counter.take(), 2);
        assert_eq!(counter.take(), 0);
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        poller.remove(&counter).unwrap();
        assert!(poller.modify(&counter, 7, Interest::WRITE).is_err());
    }

    #[test]
    fn of_two_descriptors_it_is_said_which_are_readable() {
        let (one, other) = (EventCounter::new().unwrap(), EventCounter::new().unwrap());
        let wait = || wait_either(&one, &other, Some(Duration::from_millis(1))).unwrap();
        assert_eq!(wait(), (false, false));
        other.raise();
        assert_eq!(wait(), (false, true));
        one.raise();
        assert_eq!(wait(), (true, true));
        other.take();
        assert_eq!(wait_either(&one, &other, None).unwrap(), (true, false));
    }

    #[test]
    fn a_socket_has_hung_up_when_its_other_end_is_closed_and_not_when_bytes_wait() {
        let (near, far) = crate::socket::UnixStream::pair().unwrap();
        assert!(!has_hung_up(&near).unwrap());
        far.send_all(b"unread", &[]).unwrap();
        assert!(!has_hung_up(&near).unwrap());
        drop(far);
        assert!(has_hung_up(&near).unwrap());
    }

    #[test]
    fn a_counter_that_its_other_holder_made_blocking_is_taken_without_waiting() {
        let counter = EventCounter::new().unwrap();
        // SAFETY: plain values.
        unsafe { libc::fcntl(counter.as_fd().as_raw_fd(), libc::F_SETFL, 0) };
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(counter.take()));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(0));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(matches!(EventCounter::from_descriptor(reader.into()), Err(OsError::Refused { .. })));
    }

    #[test]
    fn a_signal_to_a_watching_thread_is_read_and_does_not_kill() {
        std::thread::spawn(|| {
            let watch = SignalWatch::new().unwrap();
            assert_eq!(watch.take(), None);
            // SAFETY: sends a signal, which this thread blocks, to this thread only.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
            assert!(wait_readable(&watch, Some(Duration::from_secs(5))).unwrap());
            assert_eq!(watch.take(), Some(libc::SIGTERM));
        })
        .join()
        .unwrap();
    }
}
