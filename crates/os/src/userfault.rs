//! Page faults of address ranges, served by whoever holds the descriptor (userfaultfd).

mod layout;

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use self::layout as uffd;
use crate::BASE_PAGE_BYTES;
use crate::container;
use crate::error::{OsError, check};
use crate::poll;

/// Opens a userfaultfd where the system call is refused.
pub const DEVICE: &str = "/dev/userfaultfd";
/// Events taken from the kernel in one read.
pub const EVENTS_PER_READ: usize = 64;
/// Attempts at a call that the kernel refuses while the address space of the program changes under it (`EAGAIN`). Each
/// means that a map, unmap or fork went on; far fewer follow each other in practice.
const ATTEMPTS_MAX: u32 = 10_000;

/// What the kernel is asked for beside faults of missing pages; see `ioctl_userfaultfd(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

impl Features {
    /// What far memory needs of a program's userfaultfd: both ends ask for the same.
    pub const FAR_MEMORY: Self = Self::WRITE_PROTECT
        .with(Self::EVENT_FORK)
        .with(Self::EVENT_REMAP)
        .with(Self::EVENT_REMOVE)
        .with(Self::EVENT_UNMAP)
        .with(Self::THREAD_ID)
        .with(Self::POISON);
    /// Nothing more.
    pub const NONE: Self = Self(0);
    /// Write-protect faults on anonymous memory.
    pub const WRITE_PROTECT: Self = Self(1 << 0);
    /// Tell of forks; the child's faults come by a descriptor of their own.
    pub const EVENT_FORK: Self = Self(1 << 1);
    /// Tell of `mremap`.
    pub const EVENT_REMAP: Self = Self(1 << 2);
    /// Tell of `madvise(MADV_DONTNEED, MADV_REMOVE)`.
    pub const EVENT_REMOVE: Self = Self(1 << 3);
    /// Missing faults on hugetlbfs.
    pub const MISSING_HUGETLBFS: Self = Self(1 << 4);
    /// Missing faults on tmpfs and memfd.
    pub const MISSING_SHMEM: Self = Self(1 << 5);
    /// Tell of `munmap`.
    pub const EVENT_UNMAP: Self = Self(1 << 6);
    /// SIGBUS to the faulting thread in place of an event.
    pub const SIGBUS: Self = Self(1 << 7);
    /// Say which thread faulted.
    pub const THREAD_ID: Self = Self(1 << 8);
    /// Minor faults on hugetlbfs.
    pub const MINOR_HUGETLBFS: Self = Self(1 << 9);
    /// Minor faults on tmpfs and memfd.
    pub const MINOR_SHMEM: Self = Self(1 << 10);
    /// The address to the byte in place of its page.
    pub const EXACT_ADDRESS: Self = Self(1 << 11);
    /// Write protection on hugetlbfs, tmpfs and memfd.
    pub const WRITE_PROTECT_SHARED: Self = Self(1 << 12);
    /// Write protection of pages that are not there.
    pub const WRITE_PROTECT_UNPOPULATED: Self = Self(1 << 13);
    /// [`Userfault::poison`].
    pub const POISON: Self = Self(1 << 14);
    /// Write protection lifted by the kernel itself, to be found with `PAGEMAP_SCAN`.
    pub const WRITE_PROTECT_ASYNC: Self = Self(1 << 15);
    /// [`Userfault::move_pages`].
    pub const MOVE: Self = Self(1 << 16);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits as the kernel has them.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Whose accesses may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Loads and stores of the program, and the kernel's on its behalf (`read` into the range, `write` from it).
    Full,
    /// Loads and stores only: a system call on a missing page of the range fails with `EFAULT`.
    UserModeOnly,
}

/// Which faults of a range are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultModes {
    /// The file has no page there.
    pub missing: bool,
    /// The file has the page, this mapping does not show it yet.
    pub minor: bool,
    /// A write to a page that is write-protected.
    pub write_protect: bool,
}

/// A page fault that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address: of the page, or of the byte with [`Features::EXACT_ADDRESS`].
    pub address: u64,
    /// The access was a write.
    pub write: bool,
    /// The page was write-protected.
    pub write_protect: bool,
    /// The file has the page: [`Userfault::continue_range`] answers it.
    pub minor: bool,
    /// The thread that faulted, as its own PID namespace numbers it; 0 without [`Features::THREAD_ID`].
    pub thread: u32,
}

/// What the kernel tells.
#[derive(Debug)]
pub enum Event {
    /// A fault that waits.
    Fault(Fault),
    /// `bytes` bytes of a range moved from one address to another.
    Remap {
        /// Address before.
        from: u64,
        /// Address after.
        to: u64,
        /// Length.
        bytes: u64,
    },
    /// Pages of the range were dropped (`MADV_DONTNEED` or `MADV_REMOVE`).
    Remove {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// The range was unmapped.
    Unmap {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// The program forked; the child's ranges fault on this descriptor. It lives in the process that reads the event.
    Fork(Userfault),
}

/// What a call that maps pages did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Bytes mapped by this call.
    pub mapped_bytes: u64,
    /// Bytes that had been mapped before, by another thread or an earlier answer.
    pub present_bytes: u64,
}

/// A descriptor through which page faults of registered ranges are seen and answered. Addresses are those of the process
/// that made it, whoever holds it. All methods may be called from any thread.
#[derive(Debug)]
pub struct Userfault {
    descriptor: OwnedFd,
    scope: Scope,
    /// Whether the kernel says that it is one. A program may hand over anything.
    is_genuine: bool,
}

impl Userfault {
    /// Makes a descriptor for this process, non-blocking, with these features: the system call, then
    /// `/dev/userfaultfd`, then for user-mode faults only ([`scope`](Self::scope) tells).
    ///
    /// # Errors
    /// [`OsError::Unsupported`] if none of the three works, or if the kernel lacks a feature.
    pub fn open(features: Features) -> Result<Self, OsError> {
        let (descriptor, scope) = open_descriptor()?;
        let fault = Self { descriptor, scope, is_genuine: true };
        fault.agree(features)?;
        Ok(fault)
    }

    /// Takes a descriptor that was handed over, after its maker agreed on features. Its scope is what the maker says.
    ///
    /// Whether it is a userfaultfd is asked from the kernel here; every call on another descriptor is refused, without
    /// touching it. From a pipe a hostile program could otherwise feed events, down to descriptors to be closed.
    pub fn from_descriptor(descriptor: OwnedFd, scope: Scope) -> Self {
        let is_genuine = poll::is_anonymous(&descriptor, "userfaultfd");
        Self { descriptor, scope, is_genuine }
    }

    /// Whether the descriptor is a userfaultfd at all.
    pub fn is_genuine(&self) -> bool {
        self.is_genuine
    }

    /// The features that this kernel has, and the scope that this process gets.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn available() -> Result<(Features, Scope), OsError> {
        let (descriptor, scope) = open_descriptor()?;
        let fault = Self { descriptor, scope, is_genuine: true };
        fault.agree(Features::NONE).map(|features| (features, scope))
    }

    /// Whose accesses are served.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Has faults of a range come here; whole pages of the mapping that it lies in.
    ///
    /// # Errors
    /// `EBUSY` if another descriptor serves it, `EINVAL` if the mapping cannot be served so.
    pub fn register(&self, address: u64, bytes: u64, modes: FaultModes) -> Result<(), OsError> {
        let mode = [
            (modes.missing, uffd::MODE_MISSING),
            (modes.write_protect, uffd::MODE_WRITE_PROTECT),
            (modes.minor, uffd::MODE_MINOR),
        ]
        .iter()
        .filter(|(set, _)| *set)
        .fold(0, |all, (_, bit)| all | bit);
        let range = uffd::Range { start: address, bytes };
        let mut arguments = uffd::RegisterArguments { range, mode, calls: 0 };
        self.call(uffd::REGISTER, &mut arguments, "registering faults", address, bytes)
    }

    /// Stops serving a range and wakes who waits in it; its pages stay.
    ///
    /// # Errors
    /// `EINVAL` if the range is not mapped.
    pub fn unregister(&self, address: u64, bytes: u64) -> Result<(), OsError> {
        let mut range = uffd::Range { start: address, bytes };
        self.call(uffd::UNREGISTER, &mut range, "unregistering faults", address, bytes)
    }

    /// Has all threads that wait in a range try again.
    ///
    /// # Errors
    /// `EINVAL` for an empty or misaligned range.
    pub fn wake(&self, address: u64, bytes: u64) -> Result<(), OsError> {
        let mut range = uffd::Range { start: address, bytes };
        self.call(uffd::WAKE, &mut range, "waking", address, bytes)
    }

    /// Maps pages that the file has, and wakes who waits for them. `page_bytes` is the page of the mapping. Pages that are
    /// mapped already are left and counted.
    ///
    /// # Errors
    /// `EFAULT` if the file has a hole in the range (what lies before it is mapped, nobody is woken for it); `ENOENT` if
    /// the range is not mapped or not registered any more; `ESRCH` if the process has ended.
    pub fn continue_range(&self, address: u64, bytes: u64, page_bytes: u64) -> Result<Filled, OsError> {
        self.fill(address, bytes, page_bytes, |at, rest| {
            let range = uffd::Range { start: address + at, bytes: rest };
            let mut arguments = uffd::RangeArguments { range, mode: 0, done: 0 };
            let result = self.call(uffd::CONTINUE, &mut arguments, "continuing faults", address + at, rest);
            (result, arguments.done)
        })
    }

    /// Copies `bytes` bytes from `source` of the calling process into new pages at `address`, and wakes who waits for
    /// them. Pages that are mapped already are left and counted.
    ///
    /// # Safety
    /// `source` must be valid for reads of `bytes` bytes.
    ///
    /// # Errors
    /// As [`continue_range`](Self::continue_range); `ENOMEM` without memory.
    pub unsafe fn copy(
        &self,
        address: u64,
        source: *const u8,
        bytes: u64,
        page_bytes: u64,
    ) -> Result<Filled, OsError> {
        let source_address = source.expose_provenance() as u64;
        self.fill(address, bytes, page_bytes, |at, rest| {
            let mut arguments = uffd::TransferArguments {
                destination: address + at,
                source: source_address + at,
                bytes: rest,
                mode: 0,
                done: 0,
            };
            let result = self.call(uffd::COPY, &mut arguments, "copying pages", address + at, rest);
            (result, arguments.done)
        })
    }

    /// One attempt at [`copy`](Self::copy): pages that are there are left and counted, and the call ends where the kernel
    /// refuses because events of the program wait to be read. With `protect` the new pages are write-protected from the
    /// start, so that no write to them goes unseen. What is settled may be less than `source`: read the events and try again.
    ///
    /// # Errors
    /// As [`copy`](Self::copy), without `EAGAIN`.
    pub fn try_copy(&self, address: u64, source: &[u8], protect: bool) -> Result<Filled, OsError> {
        let source_address = source.as_ptr().expose_provenance() as u64;
        let bytes = source.len() as u64;
        let mut filled = Filled::default();
        while filled.mapped_bytes + filled.present_bytes < bytes {
            let at = filled.mapped_bytes + filled.present_bytes;
            let mut arguments = uffd::TransferArguments {
                destination: address + at,
                source: source_address + at,
                bytes: bytes - at,
                mode: if protect { uffd::COPY_PROTECTED } else { 0 },
                done: 0,
            };
            let result = self.call(uffd::COPY, &mut arguments, "copying pages", address + at, bytes - at);
            let done = u64::try_from(arguments.done).unwrap_or(0).min(bytes - at);
            filled.mapped_bytes += done;
            match result {
                Ok(()) => {}
                Err(error) if error.errno() == Some(libc::EEXIST) => {
                    // Somebody may have begun to wait for this page before it was mapped.
                    self.wake(address + at + done, BASE_PAGE_BYTES as u64)?;
                    filled.present_bytes += BASE_PAGE_BYTES as u64;
                }
                // It stops early where the address space changes, or at a page that is there, with some pages done or none.
                Err(error) if error.is_would_block() => {
                    if done == 0 {
                        return Ok(filled);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// One attempt at [`write_protect`](Self::write_protect): `false` if events of the program wait to be read first.
    ///
    /// # Errors
    /// As [`write_protect`](Self::write_protect).
    pub fn try_write_protect(&self, address: u64, bytes: u64, protect: bool) -> Result<bool, OsError> {
        let mode = if protect { uffd::WRITE_PROTECT_ON } else { 0 };
        let range = uffd::Range { start: address, bytes };
        let mut arguments = uffd::WriteProtectArguments { range, mode };
        match self.call(uffd::WRITE_PROTECT, &mut arguments, "protecting", address, bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.is_would_block() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Maps the zero page over missing pages of anonymous memory, and wakes who waits for them.
    ///
    /// # Errors
    /// As [`continue_range`](Self::continue_range).
    pub fn zero(&self, address: u64, bytes: u64) -> Result<Filled, OsError> {
        self.fill(address, bytes, BASE_PAGE_BYTES as u64, |at, rest| {
            let range = uffd::Range { start: address + at, bytes: rest };
            let mut arguments = uffd::RangeArguments { range, mode: 0, done: 0 };
            let result = self.call(uffd::ZERO_PAGE, &mut arguments, "mapping zeros", address + at, rest);
            (result, arguments.done)
        })
    }

    /// Marks missing pages as lost: every access to them is SIGBUS, as with failed memory, and who waits gets it now.
    ///
    /// # Errors
    /// As [`continue_range`](Self::continue_range); `EINVAL` on kernels before 6.6.
    pub fn poison(&self, address: u64, bytes: u64, page_bytes: u64) -> Result<Filled, OsError> {
        self.fill(address, bytes, page_bytes, |at, rest| {
            let range = uffd::Range { start: address + at, bytes: rest };
            let mut arguments = uffd::RangeArguments { range, mode: 0, done: 0 };
            let result = self.call(uffd::POISON, &mut arguments, "poisoning", address + at, rest);
            (result, arguments.done)
        })
    }

    /// Moves anonymous pages from one address of the program to another that is missing, without a copy; returns the
    /// bytes moved. With `allow_holes`, missing pages of the source are skipped.
    ///
    /// # Errors
    /// `EEXIST` if the destination has a page, `ENOENT` for a hole that is not allowed, `EBUSY` for a page that is
    /// pinned or shared; pages before it have moved.
    pub fn move_pages(
        &self,
        destination: u64,
        source: u64,
        bytes: u64,
        allow_holes: bool,
    ) -> Result<u64, OsError> {
        let mode = if allow_holes { uffd::MOVE_ALLOWS_HOLES } else { 0 };
        let mut done = 0;
        for _ in 0..ATTEMPTS_MAX {
            let mut arguments = uffd::TransferArguments {
                destination: destination + done,
                source: source + done,
                bytes: bytes - done,
                mode,
                done: 0,
            };
            let result = self.call(uffd::MOVE, &mut arguments, "moving pages", source + done, bytes - done);
            done += u64::try_from(arguments.done).unwrap_or(0);
            match result {
                Ok(()) => return Ok(done),
                Err(error) if error.is_would_block() => {}
                Err(error) => return Err(error),
            }
            if done >= bytes {
                return Ok(done);
            }
        }
        Err(never_settles("moving pages", source, bytes))
    }

    /// One attempt at [`move_pages`](Self::move_pages) that skips holes of the source: bytes moved, and the error number that
    /// ended it, or 0. Only a thread of the process itself may ask for it. Nothing is
    /// allocated, also not for an error.
    pub fn try_move(&self, destination: u64, source: u64, bytes: u64) -> (u64, i32) {
        let mode = uffd::MOVE_ALLOWS_HOLES;
        let mut arguments = uffd::TransferArguments { destination, source, bytes, mode, done: 0 };
        if !self.is_genuine {
            return (0, libc::EBADF);
        }
        // SAFETY: the structure that this number is defined for; the kernel checks the addresses in it.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), uffd::MOVE, &raw mut arguments) };
        let done = u64::try_from(arguments.done).unwrap_or(0).min(bytes);
        if result == 0 {
            return (bytes, 0);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            // It stopped early for a reason that the next attempt tells.
            Some(libc::EAGAIN) => (done, 0),
            other => (done, other.unwrap_or(libc::EINVAL)),
        }
    }

    /// Protects the pages that are there from writing, by a descriptor that is known to be one; `false` if that cannot be now. Allocates nothing.
    pub fn protect_by(descriptor: BorrowedFd<'_>, address: u64, bytes: u64) -> bool {
        let range = uffd::Range { start: address, bytes };
        let mut arguments = uffd::WriteProtectArguments { range, mode: uffd::WRITE_PROTECT_ON };
        // SAFETY: the structure that this number is defined for; the kernel checks the addresses in it.
        unsafe { libc::ioctl(descriptor.as_raw_fd(), uffd::WRITE_PROTECT, &raw mut arguments) == 0 }
    }

    /// Protects pages from writing, or allows it again and wakes who waits.
    ///
    /// # Errors
    /// `ENOENT` if the range is not registered for it.
    pub fn write_protect(&self, address: u64, bytes: u64, protect: bool) -> Result<(), OsError> {
        let mode = if protect { uffd::WRITE_PROTECT_ON } else { 0 };
        for _ in 0..ATTEMPTS_MAX {
            let range = uffd::Range { start: address, bytes };
            let mut arguments = uffd::WriteProtectArguments { range, mode };
            match self.call(uffd::WRITE_PROTECT, &mut arguments, "protecting", address, bytes) {
                Err(error) if error.is_would_block() => {}
                other => return other,
            }
        }
        Err(never_settles("protecting", address, bytes))
    }

    /// Appends the events that wait, at most 64; returns how many. Never blocks, even if the program has made its copy of
    /// the descriptor blocking (on kernels from 6.10).
    ///
    /// # Errors
    /// The refusal of `read`; [`OsError::Refused`] if it is no userfaultfd. No event is not an error.
    pub fn read_events(&self, events: &mut Vec<Event>) -> Result<usize, OsError> {
        self.check()?;
        let mut messages = [uffd::Message::default(); EVENTS_PER_READ];
        let bytes = size_of_val(&messages);
        // SAFETY: the kernel writes whole messages into this frame, at most as many as there are.
        let result = unsafe { poll::read_now(&self.descriptor, messages.as_mut_ptr().cast(), bytes) };
        let count = match usize::try_from(result) {
            Ok(read) => read / size_of::<uffd::Message>(),
            Err(_) => match OsError::last("read", "userfaultfd") {
                error if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) => 0,
                error => return Err(error),
            },
        };
        events.extend(messages[..count].iter().filter_map(|message| self.event(message)));
        Ok(count)
    }

    fn event(&self, message: &uffd::Message) -> Option<Event> {
        let [first, second, third] = message.words;
        match message.event {
            uffd::EVENT_FAULT => Some(Event::Fault(Fault {
                write: first & uffd::FAULT_WRITE != 0,
                write_protect: first & uffd::FAULT_WRITE_PROTECT != 0,
                minor: first & uffd::FAULT_MINOR != 0,
                address: second,
                thread: third as u32,
            })),
            uffd::EVENT_FORK => {
                // SAFETY: with this event the kernel has installed a fresh descriptor into this process, and tells of
                // it once.
                let descriptor = unsafe { OwnedFd::from_raw_fd(first as u32 as libc::c_int) };
                Some(Event::Fork(Self { descriptor, scope: self.scope, is_genuine: true }))
            }
            uffd::EVENT_REMAP => Some(Event::Remap { from: first, to: second, bytes: third }),
            uffd::EVENT_REMOVE => Some(Event::Remove { start: first, end: second }),
            uffd::EVENT_UNMAP => Some(Event::Unmap { start: first, end: second }),
            _ => None,
        }
    }

    /// Repeats a call that maps pages until the whole range is mapped. The kernel maps page by page and stops at the
    /// first page that is there, or when the address space changes; `done` says how far it came.
    fn fill(
        &self,
        address: u64,
        bytes: u64,
        page_bytes: u64,
        mut call: impl FnMut(u64, u64) -> (Result<(), OsError>, i64),
    ) -> Result<Filled, OsError> {
        let mut filled = Filled::default();
        let mut at = 0;
        let mut refusals = 0;
        while at < bytes {
            let (result, done) = call(at, bytes - at);
            let done = u64::try_from(done).unwrap_or(0).min(bytes - at);
            filled.mapped_bytes += done;
            at += done;
            match result {
                Ok(()) => break,
                Err(error) if error.errno() == Some(libc::EEXIST) => {
                    // Somebody may have begun to wait for this page before it was mapped.
                    self.wake(address + at, page_bytes)?;
                    filled.present_bytes += page_bytes;
                    at += page_bytes;
                }
                Err(error) if error.is_would_block() => {
                    refusals = if done > 0 { 0 } else { refusals + 1 };
                    if refusals > ATTEMPTS_MAX {
                        return Err(never_settles("filling", address, bytes));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn check(&self) -> Result<(), OsError> {
        if self.is_genuine {
            return Ok(());
        }
        Err(OsError::Refused {
            operation: "serving page faults",
            reason: format!("descriptor {} is no userfaultfd", self.descriptor.as_raw_fd()),
            hint: "the program handed over something else; end its session".into(),
        })
    }

    fn agree(&self, features: Features) -> Result<Features, OsError> {
        let mut arguments = uffd::ApiArguments { api: uffd::API, features: features.0, calls: 0 };
        match self.call(uffd::API_CALL, &mut arguments, "agreeing on features", 0, 0) {
            Ok(()) => Ok(Features(arguments.features)),
            Err(error) if error.errno() == Some(libc::EINVAL) => Err(OsError::Unsupported {
                operation: "userfaultfd",
                reason: format!("this kernel lacks some of the features {:#x}", features.0),
                hint: "use a kernel from 6.8 on".into(),
            }),
            Err(error) => Err(error),
        }
    }

    fn call<T>(
        &self,
        number: libc::Ioctl,
        arguments: &mut T,
        operation: &'static str,
        address: u64,
        bytes: u64,
    ) -> Result<(), OsError> {
        self.check()?;
        // SAFETY: every caller passes the structure that this number is defined for (its size is part of the number),
        // and the addresses in it are those of the serving range, which the kernel checks.
        let result =
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), number, std::ptr::from_mut(arguments)) };
        if result < 0 {
            let error = std::io::Error::last_os_error();
            return Err(OsError::system(operation, format!("{bytes} bytes at {address:#x}"), error));
        }
        Ok(())
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cold]
fn never_settles(operation: &'static str, address: u64, bytes: u64) -> OsError {
    OsError::Refused {
        operation,
        reason: format!("the address space around {bytes} bytes at {address:#x} never stops changing"),
        hint: "the program unmaps or forks without end".into(),
    }
}

fn open_descriptor() -> Result<(OwnedFd, Scope), OsError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    if let Ok(descriptor) = system_call(flags) {
        return Ok((descriptor, Scope::Full));
    }
    if let Ok(descriptor) = through_device(flags) {
        return Ok((descriptor, Scope::Full));
    }
    system_call(flags | uffd::USER_MODE_ONLY).map(|descriptor| (descriptor, Scope::UserModeOnly)).map_err(
        |error| match error {
            OsError::System { operation, source, .. } => OsError::Unsupported {
                operation: "serving page faults",
                reason: format!("{operation}: {source}"),
                hint: no_faults_hint(source.raw_os_error()),
            },
            other => other,
        },
    )
}

fn no_faults_hint(errno: Option<libc::c_int>) -> Cow<'static, str> {
    if container::is_inside() {
        container::mend(&[DEVICE], &[]).into()
    } else if errno == Some(libc::ENOSYS) {
        "the kernel lacks it; a kernel from 6.8 on has everything that is used".into()
    } else {
        "as root: `sysctl vm.unprivileged_userfaultfd=1`, or give this user the right to open /dev/userfaultfd".into()
    }
}

fn system_call(flags: libc::c_int) -> Result<OwnedFd, OsError> {
    // SAFETY: plain values.
    let result = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let raw = check(result as libc::c_int, "userfaultfd", || "this process".to_owned())?;
    // SAFETY: the descriptor is fresh and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn through_device(flags: libc::c_int) -> Result<OwnedFd, OsError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(|error| OsError::system("open", DEVICE, error))?;
    // SAFETY: this number takes the flags as a plain value.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), uffd::NEW, flags) };
    let raw = check(result, "ioctl(USERFAULTFD_IOC_NEW)", || DEVICE.to_owned())?;
    // SAFETY: the descriptor is fresh and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
mod tests;
