//! A session as a process of its own: what the daemon starts for each client.

use crate::cache::ImageCache;
use crate::control::{FromSession, ToSession, hear, say};
use crate::cuda::CudaMachine;
use crate::device::Device;
use crate::executor::Grants;
use crate::failure::{Failure, number};
use crate::outbox::Outbox;
use crate::pooled::{NoPool, ObjectStore, PoolObjects};
use crate::session::{Ask, Progress, SessionParts, serve};
use crate::software::{SoftwareMachine, SoftwareOptions};
use crate::spec::DeviceSpec;
use crate::store::{ImageStore, NoStore};
use hinterland_channel::Channel;
use hinterland_os::poll::{Interest, Poller};
use hinterland_proto::gpu::Hello;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long an end of the client may take to be found by whoever reads its commands; then the process ends anyway.
const END_TIME: Duration = Duration::from_millis(300);

/// What the daemon tells the process when it starts it.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// What [`Handover::pass_to`](hinterland_channel::Handover::pass_to) returned.
    pub channel: String,
    /// The devices of the node.
    pub device: DeviceSpec,
    /// The folder of fat binaries, if they are kept.
    pub cache: Option<PathBuf>,
    /// Bytes of that folder.
    pub cache_bytes: u64,
    /// The socket of a node of the pool whose objects it may copy from, if there is one.
    pub pool: Option<PathBuf>,
}

/// The daemon, from the session's process.
struct Daemon {
    stream: UnixStream,
    answers: Receiver<ToSession>,
}

impl Daemon {
    /// Waits for the answer as long as the daemon is there: one that is stopped answers when it goes on, and nobody else could tell what is promised to whom.
    fn ask(&self, question: &FromSession) -> Option<ToSession> {
        say(&self.stream, question).ok()?;
        self.answers.recv().ok()
    }
}

/// Serves the client of this process until it is gone, and ends the process. Standard input is the socket of the daemon.
pub fn run_session(options: SessionOptions) -> ! {
    let outcome = run(options);
    if let Err(words) = &outcome {
        tracing::warn!("a session ended: {words}");
    }
    // Without any clean-up: threads may be in the middle of a kernel, and the kernel of the system takes everything back.
    std::process::exit(i32::from(outcome.is_err()))
}

fn run(options: SessionOptions) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| words(&error))?;
    let stream = UnixStream::from(stream);
    let (sender, answers) = channel();
    listen(stream.try_clone().map_err(|error| words(&error))?, sender)?;
    let reports = stream.try_clone().map_err(|error| words(&error))?;
    let inherited = hinterland_channel::inherit(&options.channel).map_err(|error| words(&error))?;
    let channel = watched(inherited)?;
    let daemon = Arc::new(Mutex::new(Daemon { stream, answers }));
    let asked = Arc::clone(&daemon);
    let asks: Ask = Box::new(move || match lock(&asked).ask(&FromSession::List) {
        Some(ToSession::Status(status)) => Some(status),
        _ => None,
    });
    let report = Box::new(move |progress: &Progress| {
        // The daemon is gone if this fails; the thread that listens to it ends the process.
        let _ = say(&reports, &FromSession::Progress(*progress));
    });
    let ended = || std::process::exit(0);
    serve(channel, asks, ended, |hello, outbox| prepare(&options, &daemon, hello, outbox, report))
        .map_err(|error| words(&error))
}

fn lock(daemon: &Mutex<Daemon>) -> std::sync::MutexGuard<'_, Daemon> {
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens to the daemon; when it is gone, so is this process.
fn listen(stream: UnixStream, answers: Sender<ToSession>) -> Result<(), String> {
    let listener = std::thread::Builder::new().name("daemon".to_owned());
    let run = move || {
        while let Ok(Some(answer)) = hear(&stream) {
            if answers.send(answer).is_err() {
                break;
            }
        }
        std::process::exit(1)
    };
    listener.spawn(run).map(drop).map_err(|error| error.to_string())
}

/// The same channel, with a thread that ends the process soon after the client is gone, whatever else goes on.
fn watched(channel: Channel) -> Result<Channel, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let (descriptors, state) = channel.into_descriptors().map_err(|error| words(&error))?;
    // The last one is a socket of the client in every kind of channel.
    let watched = descriptors.last().ok_or("a channel without descriptors")?;
    let watched: OwnedFd = watched.try_clone().map_err(|error| words(&error))?;
    let poller = Poller::new().map_err(|error| words(&error))?;
    poller.add(&watched, 0, Interest::default()).map_err(|error| words(&error))?;
    let run = move || {
        let _kept = watched;
        let mut ready = Vec::new();
        while poller.wait(&mut ready, None).is_ok() {
            if ready.iter().any(|event| event.closed) {
                std::thread::sleep(END_TIME);
                std::process::exit(0);
            }
        }
    };
    let watcher = std::thread::Builder::new().name("client".to_owned());
    watcher.spawn(run).map_err(|error| words(&error))?;
    Channel::from_descriptors(descriptors, &state).map_err(|error| words(&error))
}

/// Asks the daemon whether the client is admitted, and makes its devices.
fn prepare(
    options: &SessionOptions,
    daemon: &Arc<Mutex<Daemon>>,
    hello: &Hello,
    outbox: &Arc<Outbox>,
    report: Box<dyn FnMut(&Progress) + Send>,
) -> Result<(Box<dyn Device>, SessionParts), Failure> {
    let greeted = FromSession::Greeted {
        program: hello.program.chars().take(256).collect(),
        host: hello.host.chars().take(256).collect(),
        process: hello.process,
        memory: hello.memory,
        devices: hello.devices.clone(),
    };
    let (session, devices) = match lock(daemon).ask(&greeted) {
        Some(ToSession::Admitted { session, devices }) => (session, devices),
        Some(ToSession::Refused { error, words }) => return Err(Failure::new(error, words)),
        _ => return Err(Failure::new(number::UNKNOWN, "the GPU node is ending (hint: connect again)")),
    };
    let images: Box<dyn ImageStore> = match &options.cache {
        Some(folder) => match ImageCache::open(folder, options.cache_bytes) {
            Ok(cache) => Box::new(cache),
            Err(error) => {
                tracing::warn!("fat binaries are not kept: {}: {error}", folder.display());
                Box::new(NoStore)
            }
        },
        None => Box::new(NoStore),
    };
    let objects: Box<dyn ObjectStore> = match &options.pool {
        Some(socket) => Box::new(PoolObjects::new(socket.clone())),
        None => Box::new(NoPool),
    };
    let numbers = devices.iter().map(|(device, _)| *device).collect();
    let grants = Box::new(DaemonGrants { daemon: Arc::clone(daemon), numbers });
    let bytes: Vec<u64> = devices.iter().map(|(_, bytes)| *bytes).collect();
    let machine: Box<dyn Device> = match &options.device {
        DeviceSpec::Software(software) => {
            let software = SoftwareOptions { devices: devices.len() as u32, ..software.clone() };
            let machine = SoftwareMachine::new(software, &bytes, Arc::clone(outbox));
            Box::new(machine.map_err(|error| Failure::new(number::OUT_OF_MEMORY, error.to_string()))?)
        }
        DeviceSpec::Cuda(numbers) => Box::new(CudaMachine::new(numbers, &devices, Arc::clone(outbox))?),
    };
    Ok((machine, SessionParts { number: session, images, grants, objects, report }))
}

/// Grants, which the daemon gives.
struct DaemonGrants {
    daemon: Arc<Mutex<Daemon>>,
    /// The node's numbers of the session's devices.
    numbers: Vec<u32>,
}

impl Grants for DaemonGrants {
    fn ask(&mut self, device: u32, least: u64, wanted: u64) -> Option<(u64, u64)> {
        let device = self.numbers.get(device as usize).copied()?;
        match lock(&self.daemon).ask(&FromSession::AskGrant { device, least, wanted }) {
            Some(ToSession::Granted(bytes, left)) => Some((bytes, left)),
            _ => None,
        }
    }
}
