//! Sessions of programs: they greet, hand over descriptors, tell of memory, and end.

use crate::apart::There;
use crate::board::{self, Board};
use crate::control::runs;
use crate::engine::{Engine, Known, Mover, Options, Space};
use crate::follow::Follow;
use crate::left;
use crate::order::ANSWER_PATIENCE;
use crate::outside::Started;
use crate::peer::{self, Peer};
use crate::report::Report;
use crate::ways::Ways;
use crate::words::{self, say_last};
use hinterland_farplan::PAGE;
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_os::container::{self, Right};
use hinterland_os::limits;
use hinterland_os::pagemap::PageMap;
use hinterland_os::poll::{EventCounter, Interest, Poller, Readiness};
use hinterland_os::process::{self, ProcessHandle, name_thread};
use hinterland_os::socket::{UnixListener, UnixStream};
use hinterland_os::userfault::{self, EVENTS_PER_READ, Event, Features, Scope};
use hinterland_os::{MapOptions, MemoryFile, OsError, SharedSlice, Userfault, affinity};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EPERM: i32 = 1;
const SIGKILL: i32 = 9;
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const LISTENER: u64 = 0;
const BELL: u64 = 1;
/// Tokens from here on: two for each space or connection.
const TOKEN_FIRST: u64 = 2;
/// How long a program may take to make room for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two looks at faults that wait.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// Looks at what has been said when the run is over: a connection is accepted in one, and read in the next.
const LAST_LOOKS: u32 = 3;
/// Pause without anything to do.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);
/// The same while processors are kept awake.
const AWAKE_INTERVAL: Duration = Duration::from_millis(10);
/// Descriptors that there is to be room for whatever forks: several processes can greet at once.
const SPARE_DESCRIPTORS: usize = 12;
/// Descriptors that there must be room for before a connection is accepted: those that a process brings, and what is open for a moment.
const GREETING_DESCRIPTORS: usize = 6;
/// Descriptors that a message brings at most: a greeting has two.
const MESSAGE_DESCRIPTORS: usize = 2;
/// How long a thread that looks at processes may take to see the end of the run. One that a process keeps waiting ends with this process.
const LOOKERS_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two looks whether they have.
const LOOKERS_INTERVAL: Duration = Duration::from_millis(1);
/// Pause where there is no room.
const DESCRIPTORS_INTERVAL: Duration = Duration::from_millis(1);
/// One past the last address that a program can have: 47 bits.
const ADDRESS_MAX: u64 = 1 << 47;

/// Why far memory cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The operating system refused.
    #[error(transparent)]
    System(#[from] OsError),
}

/// Whether this process, and so a program that it starts, has the right to what far memory needs.
///
/// # Errors
/// The refusal of a userfaultfd that tells of forks, and of a page in a file, which the program shares with the supervisor.
pub fn check_rights() -> Result<(), FarError> {
    if process::file_bytes_max() < PAGE {
        return Err(FarError::System(OsError::Refused {
            operation: "far memory",
            reason: "files may not have the 4096 bytes that it needs".to_owned(),
            hint: "raise the limit: `ulimit -f unlimited`".into(),
        }));
    }
    let faults = Userfault::open(Features::FAR_MEMORY).map_err(|error| match error.errno() {
        // What the kernel refused is a request of ours with a number, which tells nobody anything.
        Some(EPERM) => OsError::Refused {
            operation: "far memory",
            reason: "this user may not follow the forks of programs".to_owned(),
            hint: if container::is_inside() {
                container::mend(&[], &[Right::FollowForks]).into()
            } else {
                "run it as root, or with CAP_SYS_PTRACE and the right to userfaultfd".into()
            },
        },
        _ if container::is_inside() => {
            match container::missing(&[userfault::DEVICE], &[Right::FollowForks]) {
                Some(mend) => error.with_hint(mend),
                None => error,
            }
        }
        _ => error,
    })?;
    if faults.scope() == Scope::Full {
        return Ok(());
    }
    Err(FarError::System(OsError::Refused {
        operation: "far memory",
        reason: "system calls on far memory would fail".to_owned(),
        hint: "as root: `sysctl vm.unprivileged_userfaultfd=1`, or run it as root".into(),
    }))
}

/// Refuses a run in which not even one program could greet: it would wait, and nobody would ever end.
fn check_descriptors() -> Result<(), FarError> {
    let hard = limits::open_files()?.hard;
    // The one that looks is counted, too. Without /proc there is no far memory.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    if hard < (open + GREETING_DESCRIPTORS + SPARE_DESCRIPTORS) as u64 {
        return Err(FarError::System(OsError::Refused {
            operation: "far memory",
            reason: format!("{hard} open files, the hard limit, leave no room for a program"),
            hint: "raise it before the run, as with `ulimit -n 65536`".into(),
        }));
    }
    Ok(())
}

/// The supervisor of one run: two threads, until [`finish`](Self::finish).
pub struct Supervisor {
    engine: Arc<Engine>,
    socket: PathBuf,
    threads: Vec<JoinHandle<()>>,
    /// Those that look at processes, and that one of them may keep waiting: see [`hinterland_os::looks`].
    lookers: Vec<JoinHandle<()>>,
}

struct Connection {
    stream: UnixStream,
    /// Who made it, as the kernel says: what a program takes for its number may be another one here.
    process: i32,
    /// What was handed over with the greeting.
    page: Option<SharedSlice>,
    /// Nothing but a greeting has been said so far: what is may bring descriptors, or need some here.
    is_new: bool,
    /// The message that is coming in, how much of it is here, and the descriptors that came with it.
    message: [u8; wire::BYTES],
    filled: usize,
    descriptors: Vec<OwnedFd>,
}

struct Serving {
    engine: Arc<Engine>,
    poller: Poller,
    listener: UnixListener,
    connections: HashMap<u64, Connection>,
    connection_next: u64,
    /// Spaces whose descriptor is in the poller.
    watched: HashMap<u64, Arc<Userfault>>,
    follow: Follow,
    ways: Ways,
    /// To who looks at programs that begin.
    started: Sender<Started>,
    /// Room for the descriptors of who greets, which forks do not get: what a fork has made must be able to greet, or nobody would ever end.
    spare: Vec<OwnedFd>,
}

impl Connection {
    fn new(stream: UnixStream, process: i32) -> Self {
        let (message, descriptors) = ([0; wire::BYTES], Vec::new());
        Self { stream, process, page: None, is_new: true, message, filled: 0, descriptors }
    }

    /// Takes what has come of a message, without a wait for the rest: others of the run wait for their memory meanwhile. Returns whether it is
    /// all there.
    ///
    /// # Errors
    /// The stream has ended or failed, or more descriptors came than any message has.
    fn receive(&mut self) -> Result<bool, OsError> {
        match self.stream.receive_now(&mut self.message[self.filled..], &mut self.descriptors) {
            Err(error) if error.is_would_block() => Ok(false),
            Ok(0) => Err(unsound("the stream has ended")),
            Ok(_) if self.descriptors.len() > MESSAGE_DESCRIPTORS => {
                Err(unsound("it brings too many descriptors"))
            }
            Ok(count) => {
                self.filled += count;
                Ok(self.filled == self.message.len())
            }
            Err(error) => Err(error),
        }
    }

    /// The message that is there, and its descriptors; the next one can come.
    fn take(&mut self) -> (Option<Message>, Vec<OwnedFd>) {
        self.filled = 0;
        (Message::parse(&self.message), std::mem::take(&mut self.descriptors))
    }
}

/// Of a connection over which nothing more is to be had.
fn unsound(reason: &str) -> OsError {
    OsError::Refused {
        operation: "receiving",
        reason: reason.to_owned(),
        hint: "start the program anew".into(),
    }
}

impl Supervisor {
    /// Listens at `socket` for programs and serves them.
    ///
    /// # Errors
    /// The refusal of a socket, a descriptor or a thread, or where `/proc` does not show this process.
    pub fn start(socket: &Path, options: Options) -> Result<Self, FarError> {
        if !peer::is_proc_ours() {
            return Err(FarError::System(OsError::Refused {
                operation: "far memory",
                reason: "/proc shows the processes of another PID namespace".to_owned(),
                hint: "`mount -t proc proc /proc` in a mount namespace of its own, then start it again"
                    .into(),
            }));
        }
        let share = options.service.share;
        let mut engine = Engine::new(options, EventCounter::new()?);
        if share > 0 {
            match take_slot(share) {
                Ok(board) => engine.board = Some(Arc::new(board)),
                Err(error) => {
                    engine.say_once("board", &format!("other runs of this host are not regarded: {error}"))
                }
            }
        }
        let engine = Arc::new(engine);
        let listener = UnixListener::bind(socket)?;
        let (started, begun) = channel();
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, Interest::READ)?;
        poller.add(&engine.bell, BELL, Interest::READ)?;
        check_descriptors()?;
        let serving = Serving {
            engine: Arc::clone(&engine),
            poller,
            listener,
            connections: HashMap::new(),
            connection_next: 0,
            watched: HashMap::new(),
            follow: Follow::new(false, engine.unit_bytes),
            ways: Ways::new(false, false, 1),
            started,
            spare: Vec::new(),
        };
        let board = || engine.board.clone();
        let (evicting, looking, weighing) = (Arc::clone(&engine), Arc::clone(&engine), Arc::clone(&engine));
        let mut threads = vec![
            spawn("far-faults", board(), move || serving.run())?,
            spawn("far-evict", board(), move || evicting.evict_until(|known| known.is_over))?,
            // Ends with the thread above, which has the other end.
            spawn("far-programs", None, move || looking.outside.serve(&begun))?,
        ];
        let mut lookers = vec![spawn("far-common", None, move || weighing.weigh_common())?];
        if engine.service.huge {
            let making = Arc::clone(&engine);
            lookers.push(spawn("far-huge", board(), move || making.remake_huge_pages())?);
        }
        for _ in 0..engine.service.readers {
            let reading = Arc::clone(&engine);
            let serve = move || reading.reads.serve(|| reading.bell.raise());
            threads.push(spawn("far-read", board(), serve)?);
        }
        for _ in 0..engine.service.writers {
            let writing = Arc::clone(&engine);
            let serve = move || writing.settling.serve(|copies| writing.settle(copies));
            threads.push(spawn("far-write", board(), serve)?);
        }
        Ok(Self { engine, socket: socket.to_owned(), threads, lookers })
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }

    /// Ends what is left of the program, then the service, and tells what it did.
    pub fn finish(self) -> Report {
        // Who begins from here on finds no run any more, and has memory of the kernel's.
        let _ = std::fs::remove_file(&self.socket);
        left::end(&self.engine, &self.socket);
        self.engine.pressure.notify_all();
        self.engine.over.notify_all();
        self.engine.bell.raise();
        self.engine.reads.end();
        self.engine.settling.end();
        for thread in self.threads {
            // One that panicked has ended this process.
            let _ = thread.join();
        }
        let begun = Instant::now();
        while self.lookers.iter().any(|thread| !thread.is_finished()) && begun.elapsed() < LOOKERS_PATIENCE {
            std::thread::sleep(LOOKERS_INTERVAL);
        }
        end_unattended(&self.engine);
        self.engine.watch.finish();
        words::finish();
        Report::of(&self.engine)
    }
}

/// Ends children of `fork` that are on their way from their first words to a reclaim thread, which would end them: before it is there, their own
/// first steps would find zeros in memory that nobody serves any more.
fn end_unattended(engine: &Engine) {
    for space in engine.lock().spaces.values().filter(|space| space.is_unattended) {
        // One that has ended needs nothing more.
        let _ = ProcessHandle::open(space.process).and_then(|process| process.signal(SIGKILL));
    }
}

/// Ends the whole process when its thread panics: without it, programs would wait for ever. Their reclaim threads see the
/// end and end them.
struct EndsAll {
    name: &'static str,
}

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say_last(format_args!(
                "the thread {} of far memory has failed, which is a defect of Hinterland: the run ends here, because the \
                 program could only wait (hint: report it with the lines above)",
                self.name
            ));
            std::process::abort();
        }
    }
}

/// What other runs of this user on this host know of this one.
fn take_slot(share: u64) -> Result<Board, OsError> {
    let folder = runs::folder();
    runs::make_folder(&folder)?;
    Board::open(&folder, share)
}

fn spawn(
    name: &'static str,
    board: Option<Arc<Board>>,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, OsError> {
    let begin = move || {
        name_thread(name);
        board::work_for(board);
        let _guard = EndsAll { name };
        run();
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(begin)
        .map_err(|error| OsError::system("starting a thread", name, error))
}

impl Serving {
    fn run(mut self) {
        let mut ready = Vec::new();
        let mut events = Vec::new();
        let service = self.engine.service;
        self.follow = Follow::new(service.follow, self.engine.unit_bytes);
        self.ways = Ways::new(service.look, service.awake, affinity::core_count());
        let mut looks = LAST_LOOKS;
        while looks > 0 {
            let mut look = None;
            let pause = {
                let known = self.engine.lock();
                if known.is_over {
                    looks -= 1;
                    Duration::ZERO
                } else if known.waiting.is_empty() {
                    look = self.ways.look().filter(|_| !self.is_crowded());
                    if self.ways.is_awake() { AWAKE_INTERVAL } else { IDLE_INTERVAL }
                } else {
                    RETRY_INTERVAL
                }
            };
            if look.is_some() {
                // There, before all others, it would be in the way of whom it serves.
                self.follow.leave();
            }
            if self.wait(&mut ready, look, pause).is_err() {
                return;
            }
            if ready.is_empty() {
                self.follow.leave();
                if pause >= AWAKE_INTERVAL {
                    self.ways.rest();
                }
            }
            for one in &ready {
                match one.token {
                    LISTENER => self.accept(),
                    BELL => drop(self.engine.bell.take()),
                    token if token % 2 == 0 => self.events((token - TOKEN_FIRST) / 2, &mut events),
                    token => self.message((token - TOKEN_FIRST) / 2),
                }
            }
            let engine = Arc::clone(&self.engine);
            let mut known = engine.lock();
            if !known.waiting.is_empty() {
                engine.retry(&mut known);
            }
            self.watch(&known);
        }
    }

    /// Whether other runs leave no processor idle.
    fn is_crowded(&self) -> bool {
        self.engine.board.as_ref().is_some_and(|board| board.is_crowded())
    }

    /// Waits for something to do, for so long, and before that looks for it without sleep.
    fn wait(
        &self,
        ready: &mut Vec<Readiness>,
        look: Option<Duration>,
        pause: Duration,
    ) -> Result<(), OsError> {
        if let Some(time) = look {
            let begun = Instant::now();
            while begun.elapsed() < time {
                self.poller.wait(ready, Some(Duration::ZERO))?;
                if !ready.is_empty() {
                    return Ok(());
                }
            }
        }
        self.poller.wait(ready, Some(pause))
    }

    /// Reads events and takes them in under one lock: whoever made a change goes on as soon as its event was read.
    fn events(&mut self, id: u64, events: &mut Vec<Event>) {
        // Who holds the lock keeps faults waiting: that time is theirs, too.
        let mut since = Instant::now();
        let mut known = self.engine.lock();
        let Some(space) = known.spaces.get(&id) else { return };
        let (faults, can_follow) = (Arc::clone(&space.faults), space.is_numbered_here);
        // Its own processor pays where others are idle.
        let is_crowding = self.engine.board.as_ref().is_some_and(|board| board.is_crowding());
        let can_follow = can_follow && !is_crowding && self.ways.follows();
        let mut served = 0;
        let mut is_short = false;
        loop {
            let count = match faults.read_events(events) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => {
                    // A fork that there is no descriptor for is told of again.
                    is_short = matches!(error.errno(), Some(EMFILE | ENFILE));
                    break;
                }
            };
            let before = match events[..] {
                [Event::Fault(fault)] if can_follow && known.waiting.is_empty() => {
                    let space = known.spaces.get(&id);
                    let outlook = space.map_or(0, |space| space.sequences.outlook(fault.address));
                    self.follow.begin(fault.thread, outlook)
                }
                _ => {
                    self.follow.leave();
                    None
                }
            };
            served += count as u64;
            let (ahead_bytes, slept) = (known.counters.ahead_bytes, known.counters.slept);
            changes_first(events);
            for event in events.drain(..) {
                self.engine.event(&mut known, id, event, since);
            }
            let has_slept = known.counters.slept > slept;
            self.follow.end(before, known.counters.ahead_bytes - ahead_bytes, has_slept);
            since = Instant::now();
            // Others want the lock, too; what is left makes the descriptor readable again.
            if !known.waiting.is_empty() || count < EVENTS_PER_READ {
                break;
            }
        }
        self.engine.begin_mappings(&mut known, id);
        drop(known);
        self.ways.served(served as usize, since);
        if is_short {
            self.wait_for_descriptors();
        }
        if let Some(board) = &self.engine.board {
            board.note_faults(served);
        }
    }

    /// Brings the poller up to date with the spaces.
    fn watch(&mut self, known: &Known) {
        for (id, space) in &known.spaces {
            if !self.watched.contains_key(id) {
                let _ = self.poller.add(&*space.faults, TOKEN_FIRST + id * 2, Interest::READ);
                self.watched.insert(*id, Arc::clone(&space.faults));
            }
        }
        let poller = &self.poller;
        self.watched.retain(|id, faults| {
            let stays = known.spaces.contains_key(id);
            if !stays {
                let _ = poller.remove(&**faults);
            }
            stays
        });
    }

    fn accept(&mut self) {
        // Who greets hands descriptors over, and where there is no room the kernel drops them: it waits here until others have ended.
        while self.has_spare(GREETING_DESCRIPTORS * (1 + self.silent())) {
            self.spare.clear();
            let Ok(Some(stream)) = self.listener.accept(Some(Duration::ZERO)) else {
                self.has_spare(SPARE_DESCRIPTORS);
                return;
            };
            self.admit(stream);
        }
        self.wait_for_descriptors();
    }

    /// Connections that are to greet still.
    fn silent(&self) -> usize {
        self.connections.values().filter(|connection| connection.is_new && connection.page.is_none()).count()
    }

    /// Keeps room for so many descriptors; `false` if there is less.
    fn has_spare(&mut self, count: usize) -> bool {
        while self.spare.len() < count {
            let Ok(one) = self.listener.as_fd().try_clone_to_owned() else { return false };
            self.spare.push(one);
        }
        true
    }

    /// Programs wait for what this process has no descriptor for; it is tried again.
    fn wait_for_descriptors(&self) {
        self.engine.say_once(
            "descriptors",
            "the limit of open files of this run is reached: programs that begin, and forks, wait until others have ended \
             (hint: raise the hard limit before the run, as with `ulimit -n 65536`)",
        );
        std::thread::sleep(DESCRIPTORS_INTERVAL);
    }

    /// Takes a connection of a program.
    fn admit(&mut self, stream: UnixStream) {
        let number = self.connection_next;
        self.connection_next += 1;
        let token = TOKEN_FIRST + number * 2 + 1;
        let process = stream.peer_credentials().map_or(0, |peer| peer.process);
        if process == 0 {
            self.engine.say_once(
                "unseen",
                "a process that cannot be seen from here, because of its PID namespace, asks for far memory and is refused \
                 (hint: enter other namespaces outside of the run)",
            );
            return;
        }
        if stream.set_send_timeout(Some(PATIENCE)).is_ok()
            && self.poller.add(&stream, token, Interest::READ).is_ok()
        {
            self.connections.insert(number, Connection::new(stream, process));
        }
    }

    fn message(&mut self, number: u64) {
        let Some(mut connection) = self.connections.remove(&number) else { return };
        let is_new = connection.is_new;
        if is_new {
            self.spare.clear();
        }
        let stays = match connection.receive() {
            Ok(true) => {
                let (message, descriptors) = connection.take();
                if let Some(Message { kind: Kind::Mover, words: [_, staging, bytes] }) = message {
                    // From here on the evicting thread reads what it says.
                    let _ = self.poller.remove(&connection.stream);
                    self.employ(connection.stream, connection.process, staging, bytes);
                    self.has_spare(SPARE_DESCRIPTORS);
                    return;
                }
                self.obey(&mut connection, message, descriptors)
            }
            Ok(false) => true,
            Err(_) => false,
        };
        if stays {
            self.connections.insert(number, connection);
        } else {
            let _ = self.poller.remove(&connection.stream);
        }
        if is_new {
            self.has_spare(SPARE_DESCRIPTORS);
        }
    }

    /// Does what a program has said. Returns whether it may say more.
    fn obey(
        &mut self,
        connection: &mut Connection,
        message: Option<Message>,
        mut descriptors: Vec<OwnedFd>,
    ) -> bool {
        // A greeting may have to be said again.
        connection.is_new &= matches!(message, Some(Message { kind: Kind::Hello, .. }));
        let process = connection.process;
        match message {
            Some(Message { kind: Kind::Hello, words: [_, probe, how] }) if is_usable(probe, PAGE) => {
                self.greet(connection, probe, how, descriptors).is_ok()
            }
            Some(Message { kind: Kind::Register, words: [address, bytes, _] }) => {
                let is_served = is_usable(address, bytes) && self.register(process, address, bytes);
                answer(&connection.stream, is_served, &[]).is_ok()
            }
            Some(Message { kind: Kind::Lift, words: [address, bytes, _] }) => {
                let mut known = self.engine.lock();
                if let Some((_, space)) = space_of(&mut known, process) {
                    space.loose.lift(address, address.saturating_add(bytes));
                }
                true
            }
            Some(Message { kind: Kind::Land, words: [before, address, bytes] }) => {
                let is_served = is_usable(address, bytes) && self.land(process, before, address, bytes);
                answer(&connection.stream, is_served, &[]).is_ok()
            }
            Some(Message { kind: Kind::Release, words: [address, bytes, _] }) => {
                // A number that the kernel gave is not negative.
                let again = u64::from(!self.engine.release(process as u64, address, bytes));
                let done = Message::new(Kind::Done, [0, again, 0]);
                connection.stream.send_all(&done.to_bytes(), &[]).is_ok()
            }
            Some(Message { kind: Kind::Program, words: [_, how, _] }) => {
                if let Some(file) = descriptors.pop() {
                    // Refused only when all is over.
                    let _ = self.started.send(Started { file, how });
                }
                true
            }
            Some(Message { kind: Kind::Present, .. }) => self.note_first(process),
            Some(Message { kind: Kind::Connect, .. }) => {
                if let Some(descriptor) = descriptors.pop() {
                    self.admit(UnixStream::from_descriptor(descriptor));
                }
                true
            }
            _ => false,
        }
    }

    /// Keeps in mind which process is the first one of the run. It says so again in each program that it becomes; a run within this one
    /// has another first. Nothing more comes over the connection.
    fn note_first(&self, process: i32) -> bool {
        self.engine.is_loaded.store(true, Ordering::Relaxed); // Relaxed: a mark for the end of the run.
        let mut known = self.engine.lock();
        let lives = |first: &ProcessHandle| first.has_ended(Duration::ZERO).is_ok_and(|ended| !ended);
        if !known.first.as_ref().is_some_and(lives) {
            // One that has ended by now is not listed.
            known.first = ProcessHandle::open(process).ok();
        }
        false
    }

    /// A process begins: the program, one that it has become, or a child that it forked.
    fn greet(
        &self,
        connection: &mut Connection,
        probe: u64,
        how: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), OsError> {
        let process = connection.process;
        let Some(peer) = Peer::of(process) else {
            return Err(self.refuse(process, "it has ended, or /proc does not show it"));
        };
        let mut descriptors = descriptors.into_iter();
        if let Some(page) = descriptors.next() {
            connection.page = Some(shared_page(page)?);
        }
        let page = connection.page.clone();
        let is_first = how & wire::HELLO_FIRST != 0;
        let there = if how & wire::HELLO_APART != 0 { Some(There::of(process)?) } else { None };
        let mut known = self.engine.lock();
        if let Some(descriptor) = descriptors.next() {
            if known.is_over {
                return Err(over());
            }
            let faults = Userfault::from_descriptor(descriptor, Scope::Full);
            let mut space = Space::new(process, faults, self.engine.unit_bytes, self.engine.part_bytes());
            space.page = page;
            space.is_numbered_here = peer.is_numbered_here;
            // Whatever this process was before, it is no longer.
            for other in known.spaces.values_mut().filter(|other| other.process == process) {
                other.mover = None;
            }
            let id = known.space_next;
            known.space_next += 1;
            known.spaces.insert(id, space);
            self.engine.arm(&mut known, id, probe, probe + PAGE);
            drop(known);
            return answer(&connection.stream, false, &[]);
        }
        let Some(space) = peer.child(&mut known, !is_first) else {
            if is_first {
                // Which one it is tells the fault of its probe.
                let touch = Message::new(Kind::Done, [0, 1, 0]);
                return connection.stream.send_all(&touch.to_bytes(), &[]);
            }
            return Err(self.refuse(
                process,
                "it brings no userfaultfd, and which child of the program it is cannot be told",
            ));
        };
        space.page = page;
        space.is_unattended = true;
        if let Some(there) = there {
            there.cut(space, ADDRESS_MAX);
        }
        drop(known);
        answer(&connection.stream, false, &[])
    }

    /// Says why a process cannot have far memory, which ends it.
    fn refuse(&self, process: i32, why: &str) -> OsError {
        let reason = format!("process {process} cannot have far memory: {why}");
        self.engine.say_once("greeting", &format!("{reason} (hint: start it anew)"));
        OsError::Refused { operation: "greeting", reason, hint: "start it anew".into() }
    }

    /// Memory that may be far. Returns whether memory is under service.
    fn register(&self, process: i32, address: u64, bytes: u64) -> bool {
        let mut known = self.engine.lock();
        let end = address.saturating_add(bytes);
        let Some((id, space)) = space_of(&mut known, process) else { return false };
        if space.is_armed {
            self.engine.arm(&mut known, id, address, end);
            return true;
        }
        space.loose.add(address, end);
        self.engine.arm_if_needed(&mut known);
        known.spaces.get(&id).is_some_and(|space| space.is_armed)
    }

    /// Memory that lies somewhere else now, or has another length. Returns as [`register`](Self::register).
    fn land(&self, process: i32, before: u64, address: u64, bytes: u64) -> bool {
        let mut known = self.engine.lock();
        let Some((id, space)) = space_of(&mut known, process) else { return false };
        let landed = space.loose.land(before, address, bytes);
        if space.is_armed {
            // What moved under service is in the table where it is now, without what it grew by.
            let grown = space.table.unit(address).map(|_| (address, address.saturating_add(bytes)));
            for (from, to) in landed.into_iter().chain(grown) {
                self.engine.arm(&mut known, id, from, to);
            }
            return true;
        }
        for (from, to) in landed {
            space.loose.add(from, to);
        }
        self.engine.arm_if_needed(&mut known);
        known.spaces.get(&id).is_some_and(|space| space.is_armed)
    }

    fn employ(&self, stream: UnixStream, process: i32, staging: u64, staging_bytes: u64) {
        // A unit must fit.
        if !is_usable(staging, staging_bytes) || staging_bytes < self.engine.unit_bytes {
            self.engine.say_once(
                "staging",
                &format!("process {process} offers {staging_bytes} bytes at {staging:#x} to move memory out by: it gets no far memory, and is ended"),
            );
            return;
        }
        let mut known = self.engine.lock();
        if let Some((_, space)) = space_of(&mut known, process)
            // Refused only if it has ended.
            && let Ok(pages) = PageMap::of_process(peer::living(process))
            && stream.set_receive_timeout(Some(ANSWER_PATIENCE)).is_ok()
            // With it open there, faults of the process wait, whatever becomes of this one.
            && answer(&stream, false, &[space.faults.as_fd()]).is_ok()
        {
            space.is_unattended = false;
            space.mover =
                Some(Mover { stream: Arc::new(stream), pages: Arc::new(pages), staging, staging_bytes });
        }
        self.engine.pressure.notify_all();
    }
}

/// Of a process that begins when the run is over: it has the kernel's memory.
fn over() -> OsError {
    OsError::Refused {
        operation: "greeting",
        reason: "the run is over".into(),
        hint: "wait for what the program starts".into(),
    }
}

/// Puts changes of the address space before faults, in the order in which they were made. The kernel gives faults first; but by the end of one
/// read the changes in it are done, and it lets pages be filled again. What a fault filled before its fork was taken in would be in the table of the child, and not in
/// its memory: it would read zeros. Before a removal, it would fill what was removed.
fn changes_first(events: &mut [Event]) {
    events.sort_by_key(|event| matches!(event, Event::Fault(_)));
}

/// Whether whole pages of a program can lie there.
fn is_usable(address: u64, bytes: u64) -> bool {
    let is_whole = (address | bytes).is_multiple_of(PAGE);
    is_whole && address.checked_add(bytes).is_some_and(|end| address < end && end <= ADDRESS_MAX)
}

/// The space that a process has now.
fn space_of(known: &mut Known, process: i32) -> Option<(u64, &mut Space)> {
    let ours = |space: &Space| space.process == process && process != 0;
    known.spaces.iter_mut().rev().find(|(_, space)| ours(space)).map(|(id, space)| (*id, space))
}

fn answer(
    stream: &UnixStream,
    is_served: bool,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<(), OsError> {
    stream.send_all(&Message::new(Kind::Done, [u64::from(is_served), 0, 0]).to_bytes(), descriptors)
}

fn shared_page(descriptor: OwnedFd) -> Result<SharedSlice, OsError> {
    let file = MemoryFile::from_descriptor(descriptor)?;
    let options = MapOptions { write: false, guarded: true, ..MapOptions::default() };
    Ok(Arc::new(file.map(0, PAGE as usize, options)?).slice())
}

#[cfg(test)]
mod tests;
