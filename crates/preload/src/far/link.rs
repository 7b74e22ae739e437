//! The connection to the supervisor, over which memory is told of.

use super::layout;
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_os::socket::UnixStream;
use hinterland_os::userfault::{Features, Scope};
use hinterland_os::{OsError, Userfault};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long the supervisor may take to accept.
const PATIENCE: Duration = Duration::from_secs(5);

struct Link {
    stream: UnixStream,
    /// Never used: as long as it is open, faults wait for a supervisor and see no zeros.
    _faults: OwnedFd,
}

/// Never freed: a thread of the parent of a child of `fork` may have been in it.
static LINK: AtomicPtr<Link> = AtomicPtr::new(std::ptr::null_mut());
/// One request at a time: the process number of the holder, which a child of `fork` finds to be another's.
static BUSY: AtomicU32 = AtomicU32::new(0);
/// A page of which a child's first touch tells the supervisor who it is.
static PROBE: AtomicU64 = AtomicU64::new(0);
/// Whether any memory was told of.
static TOLD: AtomicBool = AtomicBool::new(false);
/// Whether the supervisor has said that memory is under service.
static SERVED: AtomicBool = AtomicBool::new(false);
static SOCKET: AtomicPtr<Vec<u8>> = AtomicPtr::new(std::ptr::null_mut());

/// Greets the supervisor with a userfaultfd of this process.
pub(super) fn connect(socket: &[u8]) -> Result<(), OsError> {
    let wanted = [
        Features::WRITE_PROTECT,
        Features::EVENT_FORK,
        Features::EVENT_REMAP,
        Features::EVENT_REMOVE,
        Features::EVENT_UNMAP,
        Features::THREAD_ID,
        Features::POISON,
    ];
    let features = wanted.into_iter().fold(Features::NONE, Features::with);
    let faults = Userfault::open(features)?;
    if faults.scope() != Scope::Full {
        return Err(OsError::Refused {
            operation: "far memory",
            reason: "system calls on far memory would fail".to_owned(),
            hint: "as root: `sysctl vm.unprivileged_userfaultfd=1`, or run as root".into(),
        });
    }
    // Relaxed: this runs before any other thread exists.
    SOCKET.store(Box::into_raw(Box::new(socket.to_vec())), Ordering::Relaxed);
    PROBE.store(probe_page()?, Ordering::Relaxed);
    greet(Some(faults))
}

/// In a child of `fork`: says who it is, and takes its descriptor.
pub(super) fn reconnect() -> Result<(), OsError> {
    // Relaxed: the only thread of the child.
    BUSY.store(0, Ordering::Relaxed);
    greet(None)
}

/// Has the supervisor see by a fault which of several children this is.
fn touch_probe() {
    let probe = PROBE.load(Ordering::Relaxed); // Relaxed: as above.
    // SAFETY: a mapped page of this library, reached by nobody else; the fault is served before this returns.
    unsafe { std::ptr::with_exposed_provenance::<u8>(probe as usize).read_volatile() };
    // A child of this process must not find it there.
    // SAFETY: a page of this library's own, of which nobody needs the content.
    unsafe { libc::syscall(libc::SYS_madvise, probe, hinterland_farplan::PAGE, libc::MADV_DONTNEED) };
}

fn greet(faults: Option<Userfault>) -> Result<(), OsError> {
    let stream = open()?;
    let page = layout::descriptor();
    let hello = |parent| Message::new(Kind::Hello, [process(), PROBE.load(Ordering::Relaxed), parent]); // Relaxed: as above.
    // SAFETY: asks for a number.
    let parent = if faults.is_some() { 0 } else { u64::from(unsafe { libc::getppid() }.unsigned_abs()) };
    let mut handed = vec![page];
    if let Some(faults) = &faults {
        handed.push(faults.as_fd());
    }
    stream.send_all(&hello(parent).to_bytes(), &handed)?;
    let mut bytes = [0; wire::BYTES];
    let mut received = Vec::new();
    stream.receive_exact(&mut bytes, &mut received)?;
    if Message::parse(&bytes).is_some_and(|answer| answer.words[1] != 0) {
        touch_probe();
        stream.send_all(&hello(0).to_bytes(), &[])?;
        stream.receive_exact(&mut bytes, &mut received)?;
    }
    let own = faults.map(|faults| faults.as_fd().try_clone_to_owned());
    let kept = match (own, received.pop()) {
        (Some(own), _) => own.map_err(|error| OsError::system("dup", "a userfaultfd", error))?,
        (None, Some(descriptor)) => descriptor,
        (None, None) => return Err(refused("the supervisor handed no descriptor over")),
    };
    // Release: pairs with the Acquire in `request`.
    LINK.store(Box::into_raw(Box::new(Link { stream, _faults: kept })), Ordering::Release);
    Ok(())
}

/// A further connection to the supervisor.
pub(super) fn open() -> Result<UnixStream, OsError> {
    // SAFETY: what is stored came from a box that is never freed. Relaxed: as above.
    let socket = unsafe { SOCKET.load(Ordering::Relaxed).as_ref() };
    let socket = socket.ok_or_else(|| refused("the socket is not known"))?;
    UnixStream::connect(Path::new(OsStr::from_bytes(socket)), PATIENCE)
}

/// The number of this process.
pub(super) fn process() -> u64 {
    u64::from(std::process::id())
}

/// Tells of new memory, and waits until it is under service where it must be. Allocates nothing: `malloc` may be the caller.
pub(super) fn register(address: u64, bytes: u64) {
    // A call that takes memory away has been told of as a whole before somebody tells of what is new in its place.
    TOLD.store(true, Ordering::Relaxed); // Relaxed: the layout lock orders it for whoever lifts this memory.
    let _ = layout::drop_content(|| tell(Message::new(Kind::Register, [address, bytes, 0]), true));
}

/// Tells that memory is about to be unmapped, replaced or moved. The caller has the layout lock.
pub(super) fn lift(address: u64, bytes: u64) {
    if follows() {
        let _ = tell(Message::new(Kind::Lift, [address, bytes, 0]), false);
    }
}

/// Tells that memory has moved, or is where it was but longer or shorter. The caller has the layout lock.
pub(super) fn land(before: u64, address: u64, bytes: u64) {
    let _ = tell(Message::new(Kind::Land, [before, address, bytes]), true);
}

/// Whether the supervisor must be told what becomes of memory: some was told of, and none is under service as far as is known.
pub(super) fn follows() -> bool {
    // Relaxed: who hears late tells what need not be told.
    TOLD.load(Ordering::Relaxed) && !SERVED.load(Ordering::Relaxed)
}

/// Has memory be the kernel's alone from here on, with what it holds.
pub(super) fn release(address: u64, bytes: u64) {
    let request = Message::new(Kind::Release, [address, bytes, 0]);
    while tell(request, true).is_some_and(|answer| answer.words[1] != 0) {
        // What is on its way out arrives in a millisecond or so.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Tells of the program that this process is about to become. Over a connection of its own: a child of `vfork` has none, and must
/// not be in that of its parent.
pub(super) fn tell_program(file: BorrowedFd<'_>, is_bare: bool) {
    // Acquire: what is stored came from a box that is never freed.
    // SAFETY: as above.
    let Some(socket) = (unsafe { SOCKET.load(Ordering::Acquire).as_ref() }) else { return };
    let message = Message::new(Kind::Program, [process(), u64::from(is_bare), 0]);
    // Without a supervisor there is nobody to be told, and the reclaim thread ends the process.
    if let Ok(stream) = UnixStream::connect(Path::new(OsStr::from_bytes(socket)), PATIENCE) {
        let _ = stream.send_all(&message.to_bytes(), &[file]);
    }
}

/// Sends a message; returns the answer, if one is wanted and there is a supervisor.
fn tell(message: Message, answers: bool) -> Option<Message> {
    // SAFETY: what is stored came from a box that is never freed. Acquire: pairs with the Release in `greet`.
    let link = unsafe { LINK.load(Ordering::Acquire).as_ref() }?;
    // Acquire: pairs with the Release below. Relaxed on failure: looked at again.
    while BUSY.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: gives the processor away.
        unsafe { libc::sched_yield() };
    }
    let mut answer = [0; wire::BYTES];
    // An error is the end of the supervisor; the reclaim thread acts on it.
    let told = link.stream.send_all(&message.to_bytes(), &[]);
    let answered =
        answers && told.and_then(|()| link.stream.receive_exact(&mut answer, &mut Vec::new())).is_ok();
    let answer = if answered { Message::parse(&answer) } else { None };
    if answer.is_some_and(|answer| answer.words[0] != 0) {
        SERVED.store(true, Ordering::Relaxed); // Relaxed: as above.
    }
    // Release: pairs with the Acquire above.
    BUSY.store(0, Ordering::Release);
    answer
}

fn probe_page() -> Result<u64, OsError> {
    let bytes = hinterland_farplan::PAGE as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private page anywhere.
    let result = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, protection, flags, -1, 0) };
    if result == -1 { Err(OsError::last("mmap", "the probe page")) } else { Ok(result as u64) }
}

fn refused(reason: &str) -> OsError {
    OsError::Refused {
        operation: "far memory",
        reason: reason.to_owned(),
        hint: "start the program again with `hinterland run --local`".into(),
    }
}
