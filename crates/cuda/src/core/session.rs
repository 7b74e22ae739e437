//! The one session of a process with its GPU node: made by the first call that needs a device, ended with the process.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hinterland_channel::{
    Address, BiasedLock, Channel, ChannelError, ChannelOptions, Meter, Receiver, Sender,
};
use hinterland_proto::gpu::{DEFAULT_STREAMS, GPU_VERSION, GpuStatus, HELLO, Hello, LIST, WELCOME, Welcome};
use hinterland_proto::{ClientIdentity, Features, NotAKey, PoolId, Role};
use hinterland_types::NodeId;
use hinterland_types::size::human;

use super::blas_handles::BlasHandles;
use super::callback::Callbacks;
use super::capture::Captures;
use super::context::Contexts;
use super::ending::Ending;
use super::event::Event;
use super::fork;
use super::handle::Table;
use super::inbox::{Inbox, Target};
use super::instance::Instances;
use super::landing::Landing;
use super::memory::Memory;
use super::module::Modules;
use super::outbox::Outbox;
use super::pooled::Pooled;
use super::pools::Pools;
use super::stream::Stream;
use super::user_object::Named;
use super::window::Window;
use crate::code::{Code, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED};

/// Where the node is: `unix:PATH` or `tcp:HOST:PORT`. Set by `hinterland run --gpu`.
const NODE: &str = "HINTERLAND_GPU";
/// Device memory to ask for at the start, in bytes.
const MEMORY: &str = "HINTERLAND_GPU_MEMORY";
/// The file with the pool's key.
const KEY_FILE: &str = "HINTERLAND_KEY_FILE";
/// Microseconds by which everything is late in each direction over a network, for experiments.
const DELAY: &str = "HINTERLAND_GPU_DELAY_US";
/// Set to 1: each wait for the node is told.
pub(crate) const VERBOSE: &str = "HINTERLAND_VERBOSE";
/// Set to 1: a stream with nothing but copies to the device is waited for, too.
const NO_FENCE: &str = "HINTERLAND_NO_FENCE";
/// Set to 1: graphs are sent whole.
const NO_GRAPH_EDITS: &str = "HINTERLAND_NO_GRAPH_EDITS";
/// Set to 1: the node is asked about kernels also when their image says it.
const NO_IMAGE_FACTS: &str = "HINTERLAND_NO_IMAGE_FACTS";
/// Set to 1: each launch looks its kernel and stream up.
const NO_RECENT: &str = "HINTERLAND_NO_RECENT_LAUNCHES";
/// Set to 1: all threads take turns at sending by an ordinary lock.
const NO_BIAS: &str = "HINTERLAND_NO_BIAS";
/// How long the node may take to answer the first message: it makes a context meanwhile.
const START_MAX: Duration = Duration::from_secs(60);

/// A session.
#[derive(Debug)]
pub struct Session {
    /// What the node said of itself.
    pub welcome: Welcome,
    pub(super) outbox: BiasedLock<Outbox>,
    /// Counts of what went over, readable without the lock.
    pub(super) sent: Arc<Meter>,
    pub(super) inbox: Inbox,
    pub(super) body_max: usize,
    /// Whether each wait is told.
    pub(super) is_verbose: bool,
    /// Switches of optimisations, for showing what they are worth.
    pub(super) without: Without,
    /// Streams that the program made.
    pub streams: Table<Stream>,
    pub(super) ending: Ending,
    pub(super) contexts: Contexts,
    /// Events that the program made.
    pub events: Table<Event>,
    pub(super) captures: Captures,
    pub(super) callbacks: Callbacks,
    /// What ends objects of the program.
    pub(super) endings: Callbacks,
    pub(super) instances: Instances,
    pub(super) user_objects: Table<Named>,
    pub(super) landing: Landing,
    pub(super) pools: Pools,
    pub(super) memory: Mutex<Memory>,
    /// Fat binaries and kernels as each device knows them.
    pub modules: Modules,
    pub(super) pooled: Pooled,
    /// Handles of cuBLAS.
    pub blas: BlasHandles,
}

/// What is switched off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Without {
    pub(super) fence: bool,
    pub(super) graph_edits: bool,
    pub(super) image_facts: bool,
    pub(super) recent: bool,
}

static SESSION: OnceLock<Result<Session, Code>> = OnceLock::new();
/// The session, made now if it does not exist.
///
/// # Errors
/// No node can be reached (said on standard error, once), the process is the child of a fork, or the node or its device is of no
/// use any more.
pub fn session() -> Result<&'static Session, Code> {
    if fork::is_child() {
        return Err(NOT_INITIALIZED);
    }
    let session = SESSION.get_or_init(|| {
        Session::start().map_err(|why| {
            eprintln!("hinterland: no GPU: {why}");
            NO_DEVICE
        })
    });
    match session {
        Ok(session) => match session.inbox.sticky() {
            0 => Ok(session),
            error => Err(error),
        },
        Err(code) => Err(*code),
    }
}

/// The session if there is one that is this process's own: for calls that must not make one.
pub fn present() -> Option<&'static Session> {
    if fork::is_child() {
        return None;
    }
    SESSION.get().and_then(|session| session.as_ref().ok())
}

impl Session {
    fn start() -> Result<Self, String> {
        let node = node()?;
        // Before there is anything that a child could inherit.
        fork::watch()?;
        let channel = connect(&node)?;
        fork::set_sockets(&channel.sockets());
        let wanted = memory_wanted()?;
        let (welcome, sender, receiver) = greet(&node, channel, wanted)?;
        if let Some(words) = cut(&welcome, wanted) {
            eprintln!("hinterland: {words}");
        }
        let session = Self::new(welcome, sender, receiver)?;
        session.fetch_models();
        Ok(session)
    }

    /// A session behind its greeting.
    pub(super) fn new(welcome: Welcome, sender: Sender, receiver: Receiver) -> Result<Self, String> {
        if welcome.version != GPU_VERSION {
            return Err(format!(
                "the GPU node speaks version {} and this library {GPU_VERSION} (hint: install the same release on both)",
                welcome.version
            ));
        }
        let devices = u32::try_from(welcome.devices.len()).unwrap_or(u32::MAX);
        if devices == 0 || devices > DEFAULT_STREAMS {
            return Err(format!(
                "the GPU node offers {devices} devices, and 1 to {DEFAULT_STREAMS} are possible"
            ));
        }
        let window = Window::reserve(welcome.window, welcome.window_bytes, welcome.granularity)?;
        let grants = welcome.devices.iter().map(|device| device.grant).collect();
        Ok(Self {
            body_max: sender.body_max(),
            is_verbose: is_set(VERBOSE),
            without: Without {
                fence: is_set(NO_FENCE),
                graph_edits: is_set(NO_GRAPH_EDITS),
                image_facts: is_set(NO_IMAGE_FACTS),
                recent: is_set(NO_RECENT),
            },
            sent: sender.meter(),
            outbox: BiasedLock::new(Outbox::new(sender), !is_set(NO_BIAS)),
            inbox: Inbox::new(receiver),
            streams: Table::new(DEFAULT_STREAMS),
            ending: Ending::default(),
            contexts: Contexts::new(devices),
            events: Table::new(1),
            captures: Captures::new(),
            callbacks: Callbacks::default(),
            endings: Callbacks::default(),
            instances: Instances::new(),
            user_objects: Table::new(1),
            landing: Landing::default(),
            pools: Pools::new(devices),
            memory: Mutex::new(Memory::new(window, grants)),
            modules: Modules::new(),
            pooled: Pooled::new(),
            blas: BlasHandles::default(),
            welcome,
        })
    }

    /// What the node said of a device.
    ///
    /// # Errors
    /// No such device.
    pub fn device(&self, number: u32) -> Result<&hinterland_proto::gpu::DeviceFacts, Code> {
        self.welcome.devices.get(number as usize).ok_or(INVALID_DEVICE)
    }

    /// The fault after which nothing works any more, or 0.
    #[must_use]
    pub fn sticky(&self) -> Code {
        self.inbox.sticky()
    }

    /// Tells a fault that came from the device since it was last asked.
    ///
    /// # Errors
    /// The fault.
    pub fn surface(&self) -> Result<(), Code> {
        self.inbox.surface()
    }

    /// Says why a thread is about to wait, for who wants to know what its waits come from.
    pub(super) fn say_wait(&self, why: &str) {
        if self.is_verbose {
            eprintln!("hinterland: waits for {}", why.rsplit("::").next().unwrap_or(why));
        }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// What the node says, or it is gone.
    pub fn ask<M: hinterland_proto::gpu::Message>(
        &self,
        tail: &[u8],
        message: impl FnOnce(u32) -> M,
    ) -> Result<Vec<u8>, Code> {
        let (number, pending) = self.inbox.expect(Target::Question);
        self.say_wait(std::any::type_name::<M>());
        // Names of the inbox are counted in 32 bits.
        self.send_with_tail(&message(number as u32), tail.len(), |body| body.put(0, tail))?;
        self.flush()?;
        match self.inbox.wait(&pending)? {
            0 => Ok(pending.take_answer()),
            error => Err(error),
        }
    }
}

/// What the node says of itself to whoever comes, from a session that ends at once: a program that only wants to know what there is
/// may fork after that, and its children use CUDA.
pub(crate) fn look() -> Result<Welcome, String> {
    let node = node()?;
    greet(&node, connect(&node)?, 0).map(|(welcome, ..)| welcome)
}

/// What the node does at this moment.
pub(crate) fn look_at_status() -> Result<GpuStatus, String> {
    let node = node()?;
    let (mut sender, mut receiver) = connect(&node)?.split().map_err(|error| error.to_string())?;
    say(&mut sender, LIST, &[]).map_err(|error| format!("the GPU node at {node} went away: {error}"))?;
    postcard::from_bytes(&hear(&mut receiver, LIST)?).map_err(no_sense)
}

/// What a variable of the environment says; an empty one says nothing.
fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|text| !text.is_empty())
}

/// The address of the node.
fn node() -> Result<String, String> {
    given(NODE).ok_or_else(|| {
        format!("{NODE} is not set (hint: start the program with `hinterland run --gpu ADDRESS -- PROGRAM`)")
    })
}

/// Tells the node who comes and with how much memory it wants to begin.
fn greet(node: &str, channel: Channel, memory: u64) -> Result<(Welcome, Sender, Receiver), String> {
    let (mut sender, mut receiver) =
        channel.split().map_err(|error| format!("the channel to the GPU node cannot be used: {error}"))?;
    let hello = Hello {
        version: GPU_VERSION,
        program: program_name(),
        host: host_name(),
        process: std::process::id(),
        memory,
        devices: Vec::new(),
    };
    let body =
        postcard::to_allocvec(&hello).map_err(|error| format!("the greeting cannot be written: {error}"))?;
    say(&mut sender, HELLO, &body).map_err(|error| format!("the GPU node at {node} went away: {error}"))?;
    let welcome = hear(&mut receiver, WELCOME)
        .and_then(|words| postcard::from_bytes(&words).map_err(no_sense))
        .map_err(|error| format!("the GPU node at {node} did not let us in: {error}"))?;
    Ok((welcome, sender, receiver))
}

/// Connects to the node, over a network with the key of the pool.
fn connect(node: &str) -> Result<Channel, String> {
    let address: Address = node.parse().map_err(|error: ChannelError| error.to_string())?;
    let key = match given(KEY_FILE) {
        Some(path) => {
            let text =
                std::fs::read_to_string(&path).map_err(|error| format!("the key in {path}: {error}"))?;
            Some(text.parse().map_err(|error: NotAKey| format!("the key in {path}: {error}"))?)
        }
        None => None,
    };
    let identity = ClientIdentity {
        role: Role::Client,
        node: NodeId(0),
        pool: PoolId::ANY,
        key,
        features: Features::default(),
        join: None,
    };
    let delay = match given(DELAY) {
        Some(text) => {
            Duration::from_micros(text.parse().map_err(|_| format!("{DELAY}={text} is no number"))?)
        }
        None => Duration::ZERO,
    };
    let options = ChannelOptions { delay_out: delay, delay_in: delay, ..ChannelOptions::default() };
    hinterland_channel::connect(&address, &identity, options)
        .map_err(|error| format!("the GPU node at {node} does not answer: {error}"))
}

fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(|| "program".into(), |name| name.to_string_lossy().into_owned())
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "host".into(), |name| name.trim().into())
}

pub(crate) fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

fn memory_wanted() -> Result<u64, String> {
    match given(MEMORY) {
        Some(text) => text.parse().map_err(|_| format!("{MEMORY}={text} is no number of bytes")),
        None => Ok(0),
    }
}

/// What a node gives less than was asked for at the start, in words.
fn cut(welcome: &Welcome, wanted: u64) -> Option<String> {
    let (number, device) = welcome.devices.iter().enumerate().find(|(_, device)| device.grant < wanted)?;
    Some(format!(
        "{} of device memory were asked for, and device {number} of the GPU node gives {} (hint: ask for at most that with --gpu-memory)",
        human(wanted),
        human(device.grant)
    ))
}

fn say(sender: &mut Sender, word: u32, body: &[u8]) -> Result<(), ChannelError> {
    // The channel is empty: there is room.
    let Some(mut room) = sender.room(word, body.len())? else { return Err(ChannelError::Closed) };
    room.append(body)?;
    room.commit();
    sender.flush()
}

fn no_sense(error: postcard::Error) -> String {
    format!("its first message makes no sense: {error}")
}

fn hear(receiver: &mut Receiver, word: u32) -> Result<Vec<u8>, String> {
    let end = std::time::Instant::now() + START_MAX;
    loop {
        if let Some(mut frame) = receiver.next().map_err(|error| error.to_string())? {
            if frame.word() != word {
                return Err(format!("its first word is {:#x}", frame.word()));
            }
            return Ok(frame.bytes().to_vec());
        }
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(format!("no answer within {} s", START_MAX.as_secs()));
        }
        receiver.wait(Some(left)).map_err(|error| error.to_string())?;
    }
}
