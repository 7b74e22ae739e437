//! The connection to the supervisor, over which memory is told of.
//!
//! A program may close any descriptor, and have a file of its own under its number. So this one has a high number, is known by the file behind
//! it, and is made anew where it is gone.

use super::layout::{self, Signals};
use super::mover;
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_os::socket::UnixStream;
use hinterland_os::userfault::{Features, Scope};
use hinterland_os::{OsError, Userfault};
use hinterland_region::descriptor::{Own, try_raised};
use std::cell::UnsafeCell;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long the supervisor may take to accept.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest path of a socket, as the kernel has it.
const PATH_BYTES_MAX: usize = 108;

/// Said when the program has closed the connection and no other can be had.
const CUT_OFF: &[u8] = b"hinterland: the program has closed a descriptor of the library and none can be opened in its place: \
what memory it asks for from here on is not far (hint: raise the limit of open files; before Linux 6.9, where the program has changed its user or its root, \
let it close only what it opened)\n";

struct Link(UnsafeCell<Option<Own<UnixStream>>>);

// SAFETY: only whoever has set `BUSY`, and whoever is the only thread, looks at it.
unsafe impl Sync for Link {}

static LINK: Link = Link(UnsafeCell::new(None));
/// One request at a time: 1 while one is under way.
static BUSY: AtomicU32 = AtomicU32::new(0);
/// A page of which a child's first touch tells the supervisor who it is.
static PROBE: AtomicU64 = AtomicU64::new(0);
/// Whether any memory was told of.
static TOLD: AtomicBool = AtomicBool::new(false);
/// Whether the supervisor has said that memory is under service.
static SERVED: AtomicBool = AtomicBool::new(false);
/// Whether some memory was ever hidden from children.
static IS_APART: AtomicBool = AtomicBool::new(false);
/// Where the supervisor listens: a copy, since programs write over their environment.
static SOCKET: Path = Path { bytes: UnsafeCell::new([0; PATH_BYTES_MAX]), count: AtomicUsize::new(0) };

/// A path, in memory that nobody allocates: of no bytes until it is known.
struct Path {
    bytes: UnsafeCell<[u8; PATH_BYTES_MAX]>,
    count: AtomicUsize,
}

// SAFETY: the bytes are written before the program has threads, and before their count, by which they are found.
unsafe impl Sync for Path {}

/// Keeps in mind where the supervisor listens.
pub(super) fn learn_socket(socket: &[u8]) -> Result<(), String> {
    // SAFETY: there is one thread, and nobody has been given the bytes yet.
    let bytes = unsafe { &mut *SOCKET.bytes.get() };
    let place = bytes.get_mut(..socket.len()).ok_or("the path of its socket is too long")?;
    place.copy_from_slice(socket);
    // Release: pairs with the Acquire in `socket`.
    SOCKET.count.store(socket.len(), Ordering::Release);
    Ok(())
}

fn socket() -> Option<&'static std::path::Path> {
    // Acquire: pairs with the Release in `learn_socket`.
    let count = SOCKET.count.load(Ordering::Acquire);
    // SAFETY: nobody writes them any more once their count is there.
    let bytes = unsafe { &*SOCKET.bytes.get() };
    let path = bytes.get(..count).filter(|path| !path.is_empty())?;
    Some(std::path::Path::new(OsStr::from_bytes(path)))
}

/// Greets the supervisor with a userfaultfd of this process and the page that `prepare` makes.
pub(super) fn connect(prepare: impl FnOnce() -> Result<OwnedFd, OsError>) -> Result<(), Begin> {
    let stream = open().map_err(|error| match error.errno() {
        // The program before has told of it.
        Some(libc::EACCES) => Begin::Outside(None),
        // A root in which the folder is not, a variable that has outlived its run, or a filter.
        Some(libc::ENOENT | libc::ENOSYS | libc::EPERM) => Begin::Outside(Some(error)),
        _ => unless_short(error),
    })?;
    let outside_if_filtered = |stream: &UnixStream, error: OsError| {
        // Why there is none is not told apart below.
        if is_out_of_descriptors(stream) { Begin::Short(error) } else { outside_if_filtered(stream, error) }
    };
    // The run itself had the rights, else the first program would not have been started.
    let faults = match Userfault::open(Features::FAR_MEMORY) {
        Ok(faults) if faults.scope() == Scope::Full => faults,
        Ok(_) => return Err(outside(&stream, wire::BEGINS_WITHOUT_RIGHT, None)),
        Err(error) if error.errno() == Some(libc::EPERM) => {
            return Err(outside(&stream, wire::BEGINS_WITHOUT_RIGHT, Some(error)));
        }
        Err(error) => return Err(outside_if_filtered(&stream, error)),
    };
    let page = prepare().map_err(|error| match error.errno() {
        Some(libc::EFBIG) => Begin::Outside(Some(error)),
        _ => outside_if_filtered(&stream, error),
    })?;
    // Relaxed: published by `activate`.
    PROBE.store(probe_page().map_err(unless_short)?, Ordering::Relaxed);
    greet(stream, Some(faults), page).map_err(unless_over)
}

/// The run may have ended in good order, and its socket is gone, while this process greets.
fn unless_over(error: OsError) -> Begin {
    if !matches!(error.errno(), Some(libc::EPIPE | libc::ECONNRESET)) {
        return Begin::Failed(error);
    }
    match socket().map(|socket| UnixStream::connect(socket, PATIENCE)) {
        Some(Err(gone)) if gone.errno() == Some(libc::ENOENT) => Begin::Outside(Some(gone)),
        _ => Begin::Failed(error),
    }
}

/// Why a program has no far memory.
pub(super) enum Begin {
    /// Its memory is the kernel's and beside the budget; what there is to say of it, unless somebody else does.
    Outside(Option<OsError>),
    /// There is no room for it at the moment: it may be tried again.
    Short(OsError),
    /// It must not run.
    Failed(OsError),
}

fn unless_short(error: OsError) -> Begin {
    match error.errno() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Begin::Short(error),
        _ => Begin::Failed(error),
    }
}

fn is_out_of_descriptors(stream: &UnixStream) -> bool {
    stream
        .as_fd()
        .try_clone_to_owned()
        .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)))
}

/// Has the supervisor tell why this program is outside; says it here if that cannot be done.
fn outside(stream: &UnixStream, how: u64, why: Option<OsError>) -> Begin {
    let message = Message::new(Kind::Program, [0, how, 0]);
    let told = std::fs::File::open("/proc/self/exe")
        .is_ok_and(|file| stream.send_all(&message.to_bytes(), &[file.as_fd()]).is_ok());
    let why = || why.unwrap_or_else(|| refused("the right to a userfaultfd has been given up"));
    Begin::Outside((!told).then(why))
}

/// What a filter of system calls (seccomp) answers, which a program has for those that it becomes.
fn outside_if_filtered(stream: &UnixStream, error: OsError) -> Begin {
    let is_missing = matches!(error, OsError::Unsupported { .. });
    if is_missing || matches!(error.errno(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)) {
        return outside(stream, wire::BEGINS_FILTERED, Some(error));
    }
    unless_short(error)
}

/// In a child of `fork`: says who it is.
pub(super) fn reconnect(page: OwnedFd) -> Result<(), OsError> {
    // Relaxed: the only thread of the child.
    let was_busy = BUSY.swap(0, Ordering::Relaxed) != 0;
    let stream = open()?;
    // SAFETY: the only thread of the child.
    let of_parent = unsafe { (*LINK.0.get()).take() };
    if was_busy {
        // A thread of the parent may have been about to change it.
        std::mem::forget(of_parent);
    }
    greet(stream, None, page)
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

fn greet(stream: UnixStream, faults: Option<Userfault>, page: OwnedFd) -> Result<(), OsError> {
    // Relaxed: as above.
    let probe = PROBE.load(Ordering::Relaxed);
    let apart = if IS_APART.load(Ordering::Relaxed) { wire::HELLO_APART } else { 0 }; // Relaxed: as above.
    let hello = |how: u64| Message::new(Kind::Hello, [0, probe, how | apart]);
    let mut handed = vec![page.as_fd()];
    if let Some(faults) = &faults {
        handed.push(faults.as_fd());
    }
    stream.send_all(&hello(wire::HELLO_FIRST).to_bytes(), &handed)?;
    let mut bytes = [0; wire::BYTES];
    stream.receive_exact(&mut bytes, &mut Vec::new())?;
    if Message::parse(&bytes).is_some_and(|answer| answer.words[1] != 0) {
        touch_probe();
        stream.send_all(&hello(0).to_bytes(), &[])?;
        stream.receive_exact(&mut bytes, &mut Vec::new())?;
    }
    let raised = raise(stream);
    locked(|link| *link = Some(raised));
    Ok(())
}

/// The connection with a high number, if one can be had.
fn raise(stream: UnixStream) -> Own<UnixStream> {
    let stream = match try_raised(stream.as_fd()) {
        Some(raised) => UnixStream::from_descriptor(raised),
        None => stream,
    };
    let number = stream.as_fd().as_raw_fd();
    Own::new(stream, number)
}

/// A further connection to the supervisor. A program that has changed its root or its user since it began does not reach the socket: then the
/// supervisor gets the other end of a new pair over the connection that is there, which in a child is that of its parent.
pub(super) fn open() -> Result<UnixStream, OsError> {
    let socket = socket().ok_or_else(|| refused("the socket is not known"))?;
    UnixStream::connect(socket, PATIENCE).or_else(|error| {
        let Ok((here, there)) = UnixStream::pair() else { return Err(error) };
        let is_handed = hand_over(Message::new(Kind::Connect, [0; 3]), there.as_fd());
        if is_handed { Ok(here) } else { Err(error) }
    })
}

/// Sends a message that has no answer, with a descriptor, over the connection that is there. That of the parent of a child may be in the middle of a
/// request: a message goes in one piece, and the answers are not read here.
fn hand_over(message: Message, descriptor: BorrowedFd<'_>) -> bool {
    // As in `release`.
    let _held = Signals::hold();
    locked(|link| {
        let ours = link.as_ref().filter(|stream| stream.is_ours());
        ours.is_some_and(|stream| stream.send_all(&message.to_bytes(), &[descriptor]).is_ok())
    })
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

/// Some memory is about to be hidden from children: one that is made from here on says so.
pub(super) fn note_apart() {
    IS_APART.store(true, Ordering::Relaxed); // Relaxed: a fork behind the call that hides it finds it.
}

/// Whether the supervisor must be told what becomes of memory: some was told of, and none is under service as far as is known.
pub(super) fn follows() -> bool {
    // Relaxed: who hears late tells what need not be told.
    TOLD.load(Ordering::Relaxed) && !SERVED.load(Ordering::Relaxed)
}

/// Has memory be the kernel's alone from here on, with what it holds.
pub(super) fn release(address: u64, bytes: u64) {
    let request = Message::new(Kind::Release, [address, bytes, 0]);
    let ask = || {
        // A handler of a signal that asks for memory, or forks, would find the connection taken by the thread that it interrupts.
        let _held = Signals::hold();
        tell(request, true)
    };
    while ask().is_some_and(|answer| answer.words[1] != 0) {
        // What is on its way out arrives in a millisecond or so.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Tells of the program that this process is about to become. Over a connection of its own: a child of `vfork` has none, and must
/// not be in that of its parent.
pub(super) fn tell_program(file: BorrowedFd<'_>, is_bare: bool) {
    let Some(socket) = socket() else { return };
    let message = |how: u64| Message::new(Kind::Program, [0, how, 0]);
    if let Ok(stream) = UnixStream::connect(socket, PATIENCE) {
        let how = if is_bare { wire::BEGINS_BARE } else { wire::BEGINS_WHOLE };
        let _ = stream.send_all(&message(how).to_bytes(), &[file]);
    } else {
        // Without a supervisor there is nobody to be told, and the reclaim thread ends the process.
        hand_over(message(if is_bare { wire::BEGINS_BARE } else { wire::BEGINS_CUT_OFF }), file);
    }
}

/// Tells that the library is in the first process of the run, which may never have memory to tell of. Nobody waits for an answer.
pub(super) fn tell_presence() {
    // What is in the way says who has memory.
    if let Some(stream) = socket().and_then(|socket| UnixStream::connect(socket, PATIENCE).ok()) {
        let _ = stream.send_all(&Message::new(Kind::Present, [0; 3]).to_bytes(), &[]);
    }
}

/// Sends a message; returns the answer, if one is wanted and there is a supervisor.
fn tell(message: Message, answers: bool) -> Option<Message> {
    let answer = locked(|link| exchange(link, message, answers));
    if answer.is_some_and(|answer| answer.words[0] != 0) {
        SERVED.store(true, Ordering::Relaxed); // Relaxed: as above.
    }
    answer
}

/// Does something with the connection, which nobody else does meanwhile. Signals are held back from the caller: their handlers may want it, too.
fn locked<T>(work: impl FnOnce(&mut Option<Own<UnixStream>>) -> T) -> T {
    // Acquire: pairs with the Release below. Relaxed on failure: looked at again.
    while BUSY.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: gives the processor away.
        unsafe { libc::sched_yield() };
    }
    // SAFETY: `BUSY` is ours.
    let result = work(unsafe { &mut *LINK.0.get() });
    // Release: pairs with the Acquire above.
    BUSY.store(0, Ordering::Release);
    result
}

fn exchange(link: &mut Option<Own<UnixStream>>, message: Message, answers: bool) -> Option<Message> {
    if !link.as_ref()?.is_ours() && !renew(link) {
        say_cut_off();
        return None;
    }
    let stream = link.as_ref()?;
    // An error is the end of the supervisor; the reclaim thread acts on it.
    stream.send_all(&message.to_bytes(), &[]).ok()?;
    let mut answer = [0; wire::BYTES];
    let answered = answers && stream.receive_exact(&mut answer, &mut Vec::new()).is_ok();
    if answered { Message::parse(&answer) } else { None }
}

/// Makes a connection in place of the one that the program has closed; `false` where there is none to be had.
fn renew(link: &mut Option<Own<UnixStream>>) -> bool {
    // The supervisor knows by the kernel whose connection it is.
    let fresh = connect_again();
    let is_there = fresh.is_some();
    if let Some(stream) = fresh {
        *link = Some(raise(stream));
    }
    is_there
}

/// This thread is about to fork. A child says who it is over this connection where it does not reach the socket.
pub(super) fn before_fork() {
    let _held = Signals::hold();
    locked(|link| {
        if link.as_ref().is_some_and(|stream| !stream.is_ours()) {
            // Where there is none, the child may reach the socket.
            renew(link);
        }
    });
}

/// The connection once more, for the reclaim thread.
pub(super) fn duplicate() -> Option<OwnedFd> {
    locked(|link| link.as_ref()?.as_fd().try_clone_to_owned().ok())
}

/// As [`open`], of a program that has closed the connection, and allocates nothing: `malloc` may be the caller.
fn connect_again() -> Option<UnixStream> {
    connect_to_socket().or_else(|| {
        let kept = mover::kept_connection()?;
        let (here, there) = UnixStream::pair().ok()?;
        kept.send_all(&Message::new(Kind::Connect, [0; 3]).to_bytes(), &[there.as_fd()]).ok()?;
        Some(here)
    })
}

fn connect_to_socket() -> Option<UnixStream> {
    let socket = socket()?.as_os_str().as_bytes();
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The path fitted when the program began.
    for (to, from) in address.sun_path.iter_mut().zip(socket) {
        *to = *from as libc::c_char;
    }
    let bytes = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: plain values.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return None;
    }
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    // A signal may interrupt it; a queue that is full is waited for.
    // SAFETY: the address lives through the call and has the length given.
    while unsafe { libc::connect(raw, (&raw const address).cast(), bytes) } != 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return None;
        }
    }
    Some(UnixStream::from_descriptor(descriptor))
}

fn say_cut_off() {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: guards nothing but a sentence.
    if !SAID.swap(true, Ordering::Relaxed) {
        // SAFETY: pointer and length of a constant. Nothing can be done about a stderr that is closed.
        unsafe { libc::write(2, CUT_OFF.as_ptr().cast(), CUT_OFF.len()) };
    }
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
