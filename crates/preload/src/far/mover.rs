//! The reclaim thread: it moves pages out of the program's sight when the supervisor orders it.
//!
//! `UFFDIO_MOVE` is for threads of the process alone, so this one work has to be done in here. It goes through a descriptor of
//! its own, without events, on which only the staging area is registered.
//!
//! The thread has a table of descriptors of its own: no program closes them, or puts a file of its own under their numbers, and no child of `fork` has them,
//! so that the supervisor sees the end of this process. Among them is the userfaultfd that the supervisor serves, never used: as long as
//! it is open, faults wait for a supervisor and see no zeros. The thread itself takes it from the supervisor, and nobody goes on before it has it: so
//! there is no moment in which faults would wait and nobody sees the supervisor's end.
//!
//! The thread must never wait for far memory, which it alone can make room for: it has its orders on its stack, which no table knows, and
//! allocates nothing. The C library does not know of it ([`thread`]).

use super::protected::Protected;
use super::{layout, link, thread};
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_os::socket::UnixStream;
use hinterland_os::userfault::{FaultModes, Features};
use hinterland_os::{OsError, Userfault, futex};
use hinterland_region::descriptor::{Own, try_raised};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the staging area: what leaves in one batch, and room to keep huge pages whole.
const STAGING_BYTES: u64 = 4 << 20;
/// Orders, messages and answers take 50 KiB of it.
const STACK_BYTES: usize = 256 << 10;
/// Bytes that are received at once.
const RECEIVED_MAX: usize = 256 * wire::BYTES;
/// Words of a message's control data with one descriptor.
const CONTROL_WORDS: usize = 3;
/// What is said at the end.
const LAST_WORDS: &[u8] =
    b"hinterland: the supervisor of far memory is gone: this program cannot reach its memory any more and is ended\n";
/// What is said in its place by a thread that shares the program's descriptors.
const LAST_WORDS_CLOSED: &[u8] = b"hinterland: the program has closed the descriptors of far memory: it cannot reach its memory any more and is \
ended (hint: let it close only what it opened, or allow the system call close_range)\n";
/// Seconds that it may take to say it.
const WORDS_S: libc::time_t = 1;
const HUGE: u64 = 2 << 20;
/// Calls without progress before a page is left.
const IDLE_MAX: u32 = 1000;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const PAGE: u64 = hinterland_farplan::PAGE;

/// Where the staging area lies.
static STAGING: AtomicU64 = AtomicU64::new(0);

/// How far the thread is: `STARTING`, `ALONE` with descriptors of its own, or `SHARED`.
static STAGE: AtomicU32 = AtomicU32::new(STARTING);
const STARTING: u32 = 0;
const ALONE: u32 = 1;
const SHARED: u32 = 2;

/// The number of this thread, and that of the connection over which memory is told of, in its table of descriptors; 0 and -1 where there is none.
static NUMBER: AtomicI32 = AtomicI32::new(0);
static KEPT: AtomicI32 = AtomicI32::new(-1);
/// `PIDFD_THREAD` (Linux 6.9): of this thread, and not of the process.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// 1 from the first page of an order on until the supervisor has kept what the staging area has of it.
static IN_HAND: AtomicU32 = AtomicU32::new(0);
/// How long a fork waits for that at the most, and between two looks.
const FORK_PATIENCE: Duration = Duration::from_secs(1);
const FORK_PAUSE: Duration = Duration::from_micros(100);

/// In the parent, behind a fork: waits until content that is in its staging area alone has been kept. For a child it would be lost if this process ended now,
/// as who becomes a daemon does.
pub(super) fn after_fork() {
    let begun = Instant::now();
    // Acquire: pairs with the Release of `obey`; a page that had moved before the fork had done so behind it.
    while IN_HAND.load(Ordering::Acquire) != 0 && begun.elapsed() < FORK_PATIENCE {
        futex::wait(&IN_HAND, 1, Some(FORK_PAUSE));
    }
}

/// The staging area: its first byte and one past its last.
pub(super) fn staging_range() -> (u64, u64) {
    let start = STAGING.load(Ordering::Relaxed); // Relaxed: as where it is set.
    (start, start + STAGING_BYTES)
}

/// What a program has closed of the library's: the connection over which memory is told of, from where no `close` of the program reaches it. For messages that
/// have no answer: one of an earlier request may be on its way there. Allocates nothing.
pub(super) fn kept_connection() -> Option<UnixStream> {
    // Relaxed, both: set before the thread that has them lets anybody go on.
    let (thread, number) = (NUMBER.load(Ordering::Relaxed), KEPT.load(Ordering::Relaxed));
    if number < 0 || STAGE.load(Ordering::Relaxed) != ALONE {
        return None; // Relaxed: as above.
    }
    let fresh = |raw: libc::c_long| {
        let raw = RawFd::try_from(raw).ok().filter(|raw| *raw >= 0)?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Some(unsafe { OwnedFd::from_raw_fd(raw) })
    };
    // SAFETY: plain values. Who asks is a thread of the same process, which the kernel always lets have it.
    unsafe {
        let there = fresh(libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD))?;
        let taken = fresh(libc::syscall(libc::SYS_pidfd_getfd, there.as_raw_fd(), number, 0))?;
        Some(UnixStream::from_descriptor(taken))
    }
}

/// What the thread is made with.
struct Given {
    stream: Own<UnixStream>,
    faults: Own<Userfault>,
    /// The connection over which memory is told of, once more; -1 where there is none.
    kept: RawFd,
    staging: u64,
}

struct Mover {
    stream: Own<UnixStream>,
    faults: Own<Userfault>,
    kept: RawFd,
    /// Whether no other thread has these descriptors.
    is_alone: bool,
    /// For what the program may not write; only with descriptors that the program does not have.
    protected: Option<Protected>,
    staging: u64,
    orders: [[u64; 3]; wire::ORDERS_MAX],
    count: usize,
    /// Messages that have come, and how much of them: many with one call.
    received: [u8; RECEIVED_MAX],
    filled: usize,
    taken: usize,
}

/// Makes the thread, which tells the supervisor of itself; returns when this process's faults wait for a supervisor whatever becomes of it.
pub(super) fn start() -> Result<(), OsError> {
    let faults = Userfault::open(Features::MOVE)?;
    let staging = staging()?;
    faults.register(
        staging,
        STAGING_BYTES,
        FaultModes { missing: true, minor: false, write_protect: false },
    )?;
    let stream = link::open()?;
    let (stream, faults) = if can_part() { (stream, faults) } else { raise(stream, faults) };
    let numbers = [stream.as_fd().as_raw_fd(), faults.as_fd().as_raw_fd()];
    // The program may have closed it by the time that the thread has its own.
    let kept = link::duplicate().map(|kept| {
        let number = kept.as_raw_fd();
        Own::new(kept, number)
    });
    let kept_number = kept.as_ref().map_or(-1, Own::number);
    let given = Given {
        stream: Own::new(stream, numbers[0]),
        faults: Own::new(faults, numbers[1]),
        kept: kept_number,
        staging,
    };
    KEPT.store(kept_number, Ordering::Relaxed); // Relaxed: as below.
    // Relaxed, both: before the thread that changes them. A child of a fork has the word of its parent.
    IN_HAND.store(0, Ordering::Relaxed);
    STAGE.store(STARTING, Ordering::Relaxed);
    // Relaxed: nobody asks for it before all is set up.
    NUMBER.store(make(&given)?, Ordering::Relaxed);
    // Acquire: pairs with the Release of the thread.
    while STAGE.load(Ordering::Acquire) == STARTING {
        futex::wait(&STAGE, STARTING, None);
    }
    if STAGE.load(Ordering::Relaxed) == SHARED {
        // They are the thread's. Else it has its own, and these are closed unless the program has done so.
        std::mem::forget(given);
    }
    Ok(())
}

/// Whether a thread may have descriptors of its own. Nothing is asked of the kernel that would give them to the calling thread: the program
/// may have others by now.
fn can_part() -> bool {
    // SAFETY: closes a number that no descriptor has.
    unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0) == 0 }
}

/// Gives the calling thread a table with nothing but these descriptors, in rising order. `false` where it keeps that of the process.
fn part_with(numbers: [RawFd; 3]) -> bool {
    let close = |first: u32, last: u32, flags: libc::c_uint| {
        // SAFETY: closes descriptors in a table that this thread alone has from the first call on, and uses none of them.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
    };
    // Numbers of open descriptors are not negative.
    let [first, second, third] = numbers.map(|number| number as u32);
    // What lies behind is not even copied.
    if !close(third + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE) {
        return false;
    }
    for (from, to) in [(0, first), (first + 1, second), (second + 1, third)] {
        if from < to {
            close(from, to - 1, 0);
        }
    }
    true
}

/// The descriptors with high numbers, far from those that programs use. Where there are none left, as they are.
fn raise(stream: UnixStream, faults: Userfault) -> (UnixStream, Userfault) {
    match (try_raised(stream.as_fd()), try_raised(faults.as_fd())) {
        (Some(raised), Some(moves)) => {
            (UnixStream::from_descriptor(raised), Userfault::from_descriptor(moves, faults.scope()))
        }
        _ => (stream, faults),
    }
}

/// Says something on the program's stderr, which this thread need not have, and whose process it ends behind that.
pub(super) fn say(text: &[u8]) {
    end_soon();
    // SAFETY: plain values; what is opened is this thread's, which is about to end with its process.
    let descriptor = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        libc::syscall(libc::SYS_pidfd_getfd, process, libc::STDERR_FILENO, 0)
    };
    let descriptor = if descriptor < 0 { libc::STDERR_FILENO } else { descriptor as RawFd };
    // SAFETY: pointer and length of a slice. Nothing can be done about a stderr that is closed.
    unsafe { libc::syscall(libc::SYS_write, descriptor, text.as_ptr(), text.len()) };
}

/// Has the kernel end this process in a moment, whatever becomes of this thread: the kernel holds a pipe or a terminal for a thread of the program that writes to it,
/// also while that waits for its memory.
fn end_soon() {
    let mut timer: libc::c_int = 0;
    // SAFETY: all-zero values are valid, and live through the calls.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGKILL);
        let mut moment: libc::itimerspec = std::mem::zeroed();
        moment.it_value.tv_sec = WORDS_S;
        let clock = libc::CLOCK_MONOTONIC;
        if libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut timer) == 0 {
            let none = std::ptr::null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const moment, none);
        }
    }
}

/// The descriptor that came with a message, closed with this value.
///
/// # Safety
/// The kernel has filled the message, whose control data live.
unsafe fn first_descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the caller's promise.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    // SAFETY: such data are numbers of descriptors that were made for this process, one as there is room for no more.
    unsafe {
        let number = libc::CMSG_DATA(std::ptr::from_ref(header)).cast::<RawFd>().read_unaligned();
        Some(OwnedFd::from_raw_fd(number))
    }
}

/// Makes the thread; returns its number.
fn make(given: &Given) -> Result<i32, OsError> {
    // The thread is born with all signals held back: they are the program's.
    let held = layout::Signals::hold();
    let made = spawn(given);
    drop(held);
    made
}

/// Makes the thread with nothing but the kernel's own call: the standard library's threads allocate as they begin, while the program may already
/// call `fork`, and its child would find their locks taken.
fn spawn(given: &Given) -> Result<i32, OsError> {
    unsafe extern "C" fn begin(given: *mut libc::c_void) -> ! {
        // SAFETY: the value lives until this thread says how far it is. It is never dropped here, as this function does not return.
        let given = unsafe { given.cast::<Given>().read() };
        // SAFETY: a constant of less than 16 bytes with its NUL.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"hinterland-far".as_ptr()) };
        // On this thread's stack: whoever started it may have little of its own.
        let mut mover = Mover::new(given);
        mover.part();
        thread::give_up_rights();
        mover.run();
        loop {
            // SAFETY: ends this thread, whose process is being ended.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
    }
    // SAFETY: what runs makes system calls only.
    unsafe { thread::start(STACK_BYTES, begin, std::ptr::from_ref(given).cast_mut().cast()) }
}

impl Mover {
    fn new(given: Given) -> Self {
        Self {
            stream: given.stream,
            faults: given.faults,
            kept: given.kept,
            is_alone: false,
            protected: None,
            staging: given.staging,
            orders: [[0; 3]; wire::ORDERS_MAX],
            count: 0,
            received: [0; RECEIVED_MAX],
            filled: 0,
            taken: 0,
        }
    }

    /// Leaves the program's table of descriptors for one of its own.
    fn part(&mut self) {
        let (stream, faults) = (self.stream.number(), self.faults.number());
        // Twice the same is as good as once.
        let mut numbers = [stream, faults, if self.kept < 0 { stream } else { self.kept }];
        numbers.sort_unstable();
        self.is_alone = part_with(numbers);
    }

    /// Tells the supervisor of this thread, takes the userfaultfd that it serves and keeps it open, and lets whoever started the thread go on. `false` where
    /// there is no supervisor any more.
    fn begin(&mut self) -> bool {
        let hello = Message::new(Kind::Mover, [0, self.staging, STAGING_BYTES]);
        let Some(kept) = self.send(&hello.to_bytes()).then(|| self.receive_kept()).flatten() else {
            return false;
        };
        // It is closed by the end of the process.
        if self.is_alone {
            self.protected = Some(Protected::new(kept));
        } else {
            // The program has this table, too: far from its numbers.
            std::mem::forget(try_raised(kept.as_fd()).unwrap_or(kept));
        }
        // Release: pairs with the Acquire in `start`.
        STAGE.store(if self.is_alone { ALONE } else { SHARED }, Ordering::Release);
        futex::wake(&STAGE, 1);
        true
    }

    /// The descriptor in the supervisor's first message. Allocates nothing, as all here.
    fn receive_kept(&self) -> Option<OwnedFd> {
        let mut bytes = [0u8; wire::BYTES];
        let mut kept = None;
        let mut done = 0;
        while done < bytes.len() {
            // A header and one number, whole words.
            let mut control = [0u64; CONTROL_WORDS];
            let rest = &mut bytes[done..];
            let mut vector = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            // SAFETY: an all-zero msghdr is valid.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = &raw mut vector;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            let (stream, flags) = (self.stream.number(), libc::MSG_CMSG_CLOEXEC);
            // SAFETY: all that the message points to lives through the call and has the lengths given.
            match unsafe { libc::syscall(libc::SYS_recvmsg, stream, &raw mut message, flags) } {
                some @ 1.. => done += some as usize,
                0 => return None,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
                _ => return None,
            }
            // SAFETY: the kernel has just filled the message and its control data.
            kept = unsafe { first_descriptor(&message) }.or(kept);
        }
        kept
    }

    /// Whether the descriptors are those of this thread still.
    fn are_ours(&self) -> bool {
        self.is_alone || (self.stream.is_ours() && self.faults.is_ours())
    }

    fn run(&mut self) {
        let mut goes_on = self.begin();
        while goes_on {
            goes_on = self.next();
        }
        // Without a supervisor, a touch of far memory would wait for ever.
        say(if self.are_ours() { LAST_WORDS } else { LAST_WORDS_CLOSED });
        // SAFETY: ends this process, at once and whatever the program thinks of signals.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }

    /// Does what the next message says; `false` if there will be none.
    fn next(&mut self) -> bool {
        let Some(bytes) = self.receive() else { return false };
        match Message::parse(&bytes) {
            Some(Message { kind: Kind::Take, words }) if self.count < wire::ORDERS_MAX => {
                self.orders[self.count] = words;
                self.count += 1;
                true
            }
            Some(Message { kind: Kind::Run, words: [epoch, _, _] }) => self.obey(epoch),
            Some(Message { kind: Kind::Clear, .. }) => {
                // Also while the program locks all of its memory.
                let empty = libc::MADV_DONTNEED_LOCKED;
                // SAFETY: the staging area is this thread's alone, and what was in it has been kept.
                unsafe { libc::syscall(libc::SYS_madvise, self.staging, STAGING_BYTES, empty) };
                IN_HAND.store(0, Ordering::Release); // Release: as in `obey`.
                true
            }
            _ => true,
        }
    }

    /// The next message; `None` if there will be none.
    fn receive(&mut self) -> Option<[u8; wire::BYTES]> {
        while self.filled - self.taken < wire::BYTES {
            if !self.are_ours() {
                return None;
            }
            // What is left is a part of a message.
            self.received.copy_within(self.taken..self.filled, 0);
            (self.filled, self.taken) = (self.filled - self.taken, 0);
            let rest = &mut self.received[self.filled..];
            let descriptor = self.stream.number();
            // SAFETY: the kernel writes to `rest`, which is borrowed for writing.
            match unsafe {
                libc::syscall(libc::SYS_recvfrom, descriptor, rest.as_mut_ptr(), rest.len(), 0, 0, 0)
            } {
                some @ 1.. => self.filled += some as usize,
                0 => return None,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return None,
            }
        }
        let message = self.received[self.taken..].first_chunk().copied();
        self.taken += wire::BYTES;
        message
    }

    fn send(&self, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let descriptor = self.stream.number();
            // SAFETY: the kernel reads `rest`, which is borrowed.
            match unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    descriptor,
                    rest.as_ptr(),
                    rest.len(),
                    libc::MSG_NOSIGNAL,
                    0,
                    0,
                )
            } {
                some @ 0.. => done += some as usize,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
        true
    }

    fn obey(&mut self, epoch: u64) -> bool {
        // They may have been closed while it waited for the order.
        if !self.are_ours() {
            return false;
        }
        IN_HAND.store(1, Ordering::Release); // Release: pairs with the Acquire of `after_fork`.
        let mut answers = [0; wire::ORDERS_MAX * wire::BYTES];
        let count = std::mem::take(&mut self.count);
        for (order, answer) in self.orders[..count].iter().zip(answers.as_chunks_mut::<{ wire::BYTES }>().0) {
            let [address, bytes, place] = *order;
            let fits = place.saturating_add(bytes) <= STAGING_BYTES;
            let moved = layout::while_unchanged(epoch, || {
                if fits { self.take(address, bytes, self.staging + place) } else { (0, EINVAL) }
            });
            let (done, error) = moved.map_or((0, wire::STALE), |(done, error)| (done, error as u64));
            *answer = Message::new(Kind::Taken, [address, done, error]).to_bytes();
        }
        self.send(&answers[..count * wire::BYTES])
    }

    /// Moves pages, as many from the start of the range as will go; returns their bytes and why not more.
    fn take(&self, address: u64, bytes: u64, target: u64) -> (u64, i32) {
        let (mut done, error) = self.take_at_once(address, bytes, target);
        if done == bytes || !matches!(error, ENOENT | EINVAL) {
            return (done, error);
        }
        // A range over several mappings goes mapping by mapping, at worst page by page. One that the kernel refuses to move is passed over; who asked
        // sees in the staging area what lies behind it.
        let mut first = None;
        while done < bytes {
            let (at, rest, to) = (address + done, bytes - done, target + done);
            let known =
                self.protected.as_ref().and_then(|protected| Some((protected, protected.mapping(at)?)));
            let Some((protected, mapping)) = known else {
                let (some, refused) = self.take_pages(at, rest, to);
                return first.unwrap_or((done + some, refused));
            };
            let part = rest.min(mapping.end - at);
            let take = || self.take_at_once(at, part, to);
            let (some, refused) = if mapping.write {
                take()
            } else {
                protected.while_open(mapping, (at, part), take).unwrap_or_else(|refused| (0, refused))
            };
            if some < part {
                first = first.or(Some((done + some, refused)));
                if !matches!(refused, EINVAL | EBUSY) {
                    break;
                }
            }
            done += part;
        }
        first.unwrap_or((done, 0))
    }

    /// As [`take`](Self::take), of one mapping that may be written.
    fn take_at_once(&self, address: u64, bytes: u64, target: u64) -> (u64, i32) {
        let (mut done, mut first) = (0, None);
        let mut tried_alone = u64::MAX;
        let mut idle = 0;
        while done < bytes {
            let (moved, error) = self.faults.try_move(target + done, address + done, bytes - done);
            done += moved;
            match error {
                0 => {
                    // The kernel wants the call again, as long as somebody else is at the page.
                    idle = if moved > 0 { 0 } else { idle + 1 };
                    if idle > IDLE_MAX {
                        return first.unwrap_or((done, EAGAIN));
                    }
                }
                // Shared with a child of fork, or pinned. Reading it makes it this process's own if it was shared.
                EBUSY if tried_alone != done => {
                    tried_alone = done;
                    if !read_one(address + done) {
                        return first.unwrap_or((done, EAGAIN));
                    }
                }
                // Pinned: passed over, as a mapping that is refused.
                EBUSY => {
                    first = first.or(Some((done, EBUSY)));
                    done += PAGE;
                }
                _ => return first.unwrap_or((done, error)),
            }
        }
        first.unwrap_or((done, 0))
    }

    /// As [`take`](Self::take), page by page.
    fn take_pages(&self, address: u64, bytes: u64, target: u64) -> (u64, i32) {
        let mut first = None;
        for at in (0..bytes).step_by(PAGE as usize) {
            match self.faults.try_move(target + at, address + at, PAGE) {
                (PAGE, _) => {}
                (_, EINVAL) => first = first.or(Some((at, EINVAL))),
                (_, error) => return first.unwrap_or((at, if error == 0 { EAGAIN } else { error })),
            }
        }
        first.unwrap_or((bytes, 0))
    }
}

/// Reads a byte through the kernel, which makes a page that a child shares this process's own. It must be there.
fn read_one(address: u64) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: 1 };
    // SAFETY: one byte of this frame is written; the kernel checks the other address.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == 1 }
}

/// An area on a 2 MiB boundary that children of `fork` do not get.
fn staging() -> Result<u64, OsError> {
    let bytes = STAGING_BYTES + HUGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new private memory anywhere.
    let result = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, protection, flags, -1, 0) };
    if result == -1 {
        return Err(OsError::last("mmap", "the staging area"));
    }
    // SAFETY: the memory that was just mapped; nothing is in it.
    unsafe { libc::syscall(libc::SYS_madvise, result, bytes, libc::MADV_DONTFORK) };
    let start = (result as u64).next_multiple_of(HUGE);
    STAGING.store(start, Ordering::Relaxed); // Relaxed: before any thread that looks for it.
    Ok(start)
}
