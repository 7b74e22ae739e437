//! The control socket of a run: what a running program has where, and changes to it while it runs.
//!
//! One request and one answer a connection, each a line of JSON. Only the same user and root are answered, and the socket lies in
//! a folder that nobody else may enter ([`runs`]).

pub mod runs;
mod status;
mod switching;

pub use status::{BackEndStatus, Status};
pub use switching::{Understand, Wanted};

use crate::engine::{Budget, Engine};
use crate::session::Supervisor;
use hinterland_farplan::enough::Enough;
use hinterland_farplan::room::budget_bytes_min;
use hinterland_os::poll::{EventCounter, Interest, Poller};
use hinterland_os::process::name_thread;
use hinterland_os::socket::{UnixListener, UnixStream};
use hinterland_os::{OsError, clock};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most bytes of a request or an answer: a status with many back ends and processes has a tenth of that.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// How long a peer may take over its request, and over taking its answer: others of the run wait meanwhile, and its end does.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer may take: what is opened for a switch may take its time, as a disk does.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Pause where a peer cannot be let in, as there is no descriptor left.
const REFUSAL_PAUSE: Duration = Duration::from_millis(50);
/// What a run cannot go below: the smallest program with its libraries, as `--local` asks for.
pub const LOCAL_BYTES_MIN: u64 = 64 << 20;

const LISTENER: u64 = 0;
const STOP: u64 = 1;

/// What a run can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// How it is.
    Status,
    /// Another budget from here on.
    Local(Budget),
    /// Other back ends from here on, or another number of copies.
    Far {
        /// Back ends in words as on the command line, to which what the others have moves; without any, they stay as they are.
        back_ends: Vec<String>,
        /// In how many of them each byte is kept; `None`: in as many as before.
        copies: Option<u8>,
        /// Another budget as well; if it is refused, nothing is changed.
        #[serde(default)]
        local: Option<Budget>,
    },
}

/// What a run answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// How it is, after what was asked for was begun.
    Status(Box<Status>),
    /// It was not done, and nothing has changed. The text ends in a hint.
    Refused(String),
}

/// What people know a run by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The name that was given, or the program's.
    pub name: String,
    /// The program and its words.
    pub command: Vec<String>,
}

/// A control socket, until it is dropped.
pub struct Control {
    stop: Arc<EventCounter>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

struct Server {
    engine: Arc<Engine>,
    about: About,
    understand: Option<Box<Understand>>,
    listener: UnixListener,
    poller: Poller,
    stop: Arc<EventCounter>,
    started_ms: u64,
    began: Instant,
}

impl Control {
    /// Opens a control socket for the run of a supervisor in the folder for such sockets. `understand` makes back ends of words; without it,
    /// back ends are others' too and cannot be changed.
    ///
    /// # Errors
    /// The refusal of the folder, the socket or the thread.
    pub fn open(
        supervisor: &Supervisor,
        folder: &Path,
        about: About,
        understand: Option<Box<Understand>>,
    ) -> Result<Self, OsError> {
        runs::make_folder(folder)?;
        let (listener, path) = runs::bind(folder)?;
        let stop = Arc::new(EventCounter::new()?);
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, Interest::READ)?;
        poller.add(stop.as_ref(), STOP, Interest::READ)?;
        let server = Server {
            engine: supervisor.engine(),
            about,
            understand,
            listener,
            poller,
            stop: Arc::clone(&stop),
            started_ms: clock::wall_ms(),
            began: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("far-control".to_owned()).spawn(move || {
            name_thread("far-control");
            server.run();
        });
        let thread = thread.map_err(|error| {
            // Nobody is there to answer.
            let _ = std::fs::remove_file(&path);
            OsError::system("starting a thread", "far-control", error)
        })?;
        Ok(Self { stop, thread: Some(thread), path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A path that is gone already needs no removing.
        let _ = std::fs::remove_file(&self.path);
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Server {
    fn run(self) {
        let mut ready = Vec::new();
        loop {
            if self.poller.wait(&mut ready, None).is_err() {
                return;
            }
            for one in &ready {
                if one.token == STOP {
                    self.stop.take();
                    return;
                }
                match self.listener.accept(Some(Duration::ZERO)) {
                    // A peer that asks nothing, or takes no answer, is its own loss.
                    Ok(Some(stream)) => drop(self.serve(&stream)),
                    Ok(None) => {}
                    // It waits still, so that the poller tells of it again at once.
                    Err(_) => std::thread::sleep(REFUSAL_PAUSE),
                }
            }
        }
    }

    fn serve(&self, stream: &UnixStream) -> Result<(), OsError> {
        let peer = stream.peer_credentials()?.user;
        stream.set_receive_timeout(Some(PATIENCE))?;
        stream.set_send_timeout(Some(PATIENCE))?;
        // Read in any case: what is left unread at the end would take the answer with it.
        let request = receive::<Request>(stream, PATIENCE)?;
        let answer = match request {
            _ if !runs::is_trusted(peer) => Answer::Refused(format!(
                "user {peer} may not control this program (hint: be its user, or root)"
            )),
            Ok(request) => self.answer(&request),
            Err(why) => Answer::Refused(format!(
                "this is no request: {why} (hint: use the hinterland of the same version as the run's)"
            )),
        };
        send(stream, &answer)
    }

    fn answer(&self, request: &Request) -> Answer {
        let done =
            match request {
                Request::Status => Ok(()),
                Request::Local(budget) => self.engine.change_budget(*budget),
                Request::Far { back_ends, copies, local } => match &self.understand {
                    Some(understand) => self.change_far(understand, back_ends, *copies, *local),
                    None => Err("back ends of jobs are shared in their batch (hint: change far in its file)"
                        .to_owned()),
                },
            };
        if let Err(why) = done {
            return Answer::Refused(why);
        }
        Answer::Status(Box::new(Status::of(&self.engine, &self.about, self.started_ms, self.began)))
    }

    /// Other back ends, and another budget with them: what can be refused of it is tried first.
    fn change_far(
        &self,
        understand: &Understand,
        back_ends: &[String],
        copies: Option<u8>,
        local: Option<Budget>,
    ) -> Result<(), String> {
        local.map_or(Ok(()), |budget| self.engine.check_budget(budget))?;
        switching::switch(&self.engine, understand, back_ends, copies)?;
        if let Some(budget) = local {
            self.engine.set_budget(budget);
        }
        Ok(())
    }
}

impl Engine {
    /// Sets another budget, unless it makes no sense.
    fn change_budget(&self, budget: Budget) -> Result<(), String> {
        self.check_budget(budget)?;
        self.set_budget(budget);
        Ok(())
    }

    /// Refuses a budget that the programs cannot live with.
    fn check_budget(&self, budget: Budget) -> Result<(), String> {
        if let Budget::Bytes(bytes) = budget
            && bytes < LOCAL_BYTES_MIN
        {
            return Err(format!("{bytes} bytes are too little for any program (hint: at least 64M)"));
        }
        if let Budget::Percent(percent) = budget
            && !(1..=100).contains(&percent)
        {
            return Err(format!("{percent}% is no share (hint: 1% to 100%)"));
        }
        let mut known = self.lock();
        let before = std::mem::replace(&mut known.budget, budget);
        self.arm_if_needed(&mut known);
        known.budget = before;
        self.look(&mut known);
        let other: u64 = known.spaces.values().map(|space| space.other_bytes).sum();
        if let Budget::Bytes(bytes) = budget
            && let least = budget_bytes_min(other)
            && bytes < least
        {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(format!(
                "the program has {} MiB that cannot leave (its libraries, stacks, small memory and what it locks), so {} MiB are \
                 the least (hint: give it at least {}M)",
                mib(other),
                mib(least),
                mib(least)
            ));
        }
        Ok(())
    }

    /// Sets a budget that makes sense.
    fn set_budget(&self, budget: Budget) {
        let mut known = self.lock();
        known.budget = budget;
        self.go_on_above_room(&mut known);
        known.counters.stall_ns_max = 0;
        known.enough = Enough::default();
        known.is_stuck = false;
        drop(known);
        self.pressure.notify_all();
        self.bell.raise();
    }
}

/// Asks a run, and waits for its answer.
///
/// # Errors
/// `ECONNREFUSED` or `ENOENT` if nobody is there; [`OsError::Refused`] for an answer of somebody else, or what the run refused.
pub fn ask(path: &Path, request: &Request) -> Result<Status, OsError> {
    let refused = |reason: String| {
        let (reason, hint) = match reason.split_once(" (hint: ") {
            Some((reason, hint)) => (reason.to_owned(), hint.trim_end_matches(')').to_owned()),
            None => (reason, "use the hinterland of the same version as the run's".to_owned()),
        };
        OsError::Refused { operation: "asking a run", reason, hint: hint.into() }
    };
    let stream = UnixStream::connect(path, PATIENCE)?;
    let peer = stream.peer_credentials()?.user;
    if !runs::is_trusted(peer) {
        return Err(refused(format!("{} is served by user {peer} (hint: be that user)", path.display())));
    }
    stream.set_receive_timeout(Some(ANSWER_PATIENCE))?;
    stream.set_send_timeout(Some(PATIENCE))?;
    send(&stream, request)?;
    match receive::<Answer>(&stream, ANSWER_PATIENCE)? {
        Ok(Answer::Status(status)) => Ok(*status),
        Ok(Answer::Refused(why)) => Err(refused(why)),
        Err(why) => Err(refused(format!("the answer makes no sense: {why}"))),
    }
}

fn send(stream: &UnixStream, message: &impl Serialize) -> Result<(), OsError> {
    let mut line = serde_json::to_vec(message).map_err(|error| {
        OsError::system("writing a message", "control socket", std::io::Error::other(error))
    })?;
    line.push(b'\n');
    stream.send_all(&line, &[])
}

/// Reads one line, which comes within some time; the inner error says why it is no message.
fn receive<M: for<'a> Deserialize<'a>>(
    stream: &UnixStream,
    within: Duration,
) -> Result<Result<M, String>, OsError> {
    let mut line = Vec::new();
    let mut part = [0; 4096];
    let deadline = Instant::now() + within;
    while !line.contains(&b'\n') {
        let read = stream.receive(&mut part, &mut Vec::new())?;
        line.extend_from_slice(&part[..read]);
        if read == 0 {
            break;
        }
        if line.len() > MESSAGE_BYTES_MAX || Instant::now() > deadline {
            return Ok(Err(format!("it is longer than {MESSAGE_BYTES_MAX} bytes, or comes too slowly")));
        }
    }
    let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
    Ok(serde_json::from_slice(&line[..end]).map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests;
