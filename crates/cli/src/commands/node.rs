//! `hinterland node`: starts a node of a pool.

use crate::context::Context;
use crate::failure::Failure;
use crate::service;
use crate::size::{Size, SizeError};
use crate::starting::Starting;
use hinterland_fabric::tcp::Tls;
use hinterland_node::{
    BackingChoice, CopySettings, EtcdTarget, EtcdTargetError, HeatCopyOptions, HeatSettings, KvDisk,
    KvWatermarks, Node, NodeError, NodeOptions, RdmaChoice, RepairOptions, ShelfChoice, trouble_of_address,
};
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_os::{Coherence, NumaNodes, PageKind};
use hinterland_policy::EvictionKind;
use hinterland_types::limits::STREAMS_MAX;
use hinterland_types::{NodeName, RackName};
use serde_json::json;
use std::convert::Infallible;
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// How the node is started.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The first node hosts the directory of its pool; the others join it:
  hinterland node --name b --listen 127.0.0.1:7401
  hinterland node --name a --listen 127.0.0.1:7402 --join 127.0.0.1:7401 --socket /tmp/a.sock

Or the directory is in etcd, and the nodes choose one of them to lead it, and another when it dies:
  hinterland node --name a --listen 127.0.0.1:7402 --directory etcd://h1:2379,h2:2379,h3:2379

It prints a line when it is ready, and stays in the foreground until ctrl-C or SIGTERM. Objects \
and KV blocks stay in memory and are there again when it is started on the same state folder.")]
pub struct Arguments {
    /// The node's name; of several the last one counts
    #[arg(long, value_name = "NAME", value_parser = NodeName::from_str, overrides_with = "name")]
    name: NodeName,
    /// The rack that it serves [default: the name]
    #[arg(long, value_name = "RACK")]
    rack: Option<RackName>,
    /// Where other nodes reach it; anything but the loopback needs --key or --tls
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT", value_parser = address)]
    listen: SocketAddr,
    /// The address that others are told, if it is another
    #[arg(long, value_name = "HOST:PORT", value_parser = place)]
    advertise: Option<String>,
    /// The node that hosts the directory [default: host it here]
    #[arg(long, value_name = "HOST:PORT", value_parser = place)]
    join: Option<String>,
    /// etcd, which keeps the directory while its nodes take turns to lead it; the same for every node of a pool
    #[arg(long, value_name = "etcd://HOST:PORT,...", value_parser = etcd, conflicts_with = "join")]
    directory: Option<Box<EtcdTarget>>,
    /// Whether this node may lead a directory in etcd
    #[arg(long, default_value = "on", value_name = "WHETHER", requires = "directory")]
    directory_host: OnOff,
    /// What is the same for `up`
    #[command(flatten)]
    pub memory: Memory,
}

/// What a node has and how it uses it.
#[derive(clap::Args, Debug)]
pub struct Memory {
    /// Folder of its state [default: NAME in /var/lib/hinterland, or in hinterland below $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Put objects that the directory does not know, because it lost or got back an older store, into it again
    #[arg(long)]
    pub adopt: bool,
    /// Memory that it lends [default: 1G, at most a quarter of the memory that it may use]
    #[arg(long, value_name = "SIZE", value_parser = lent)]
    pub capacity: Option<Size>,
    /// Memory for parts of other racks' objects [default: 1G, at most a quarter of the memory that it may use]
    #[arg(long, value_name = "SIZE", value_parser = lent)]
    pub cache_budget: Option<Size>,
    /// Memory for KV blocks of each user of this host, taken when the first one is opened [default: 256M, at most an eighth of the memory that it may use]
    #[arg(long, value_name = "SIZE", value_parser = lent)]
    pub kv_capacity: Option<Size>,
    /// Whether KV blocks outlive the node, in files of memory that the next one with this state finds
    #[arg(long, default_value = "on", value_name = "WHETHER")]
    pub kv_keep: OnOff,
    /// When the bytes of KV blocks are checked: arrived (over a wire, from a disk, from before a restart), or always
    #[arg(long, default_value = "arrived", value_name = "WHEN")]
    pub kv_verify: Verify,
    /// Who takes the checksums without which KV blocks do not outlive a killed node: who writes them, while it copies, or the node behind
    #[arg(long, default_value = "writer", value_name = "WHO")]
    pub kv_sums: Sums,
    /// Percent of the memory for KV blocks: once less than LOW is free, room is made ahead until HIGH is; with --kv-disk only, or off
    #[arg(long, default_value = "2,5", value_name = "LOW,HIGH", value_parser = watermarks)]
    pub kv_watermarks: Watermarks,
    /// Folder on a disk for KV blocks that do not fit into memory; they are there again after a restart
    #[arg(long, value_name = "DIR")]
    pub kv_disk: Option<PathBuf>,
    /// Room on that disk for KV blocks of each user
    #[arg(long, default_value = "10G", value_name = "SIZE", requires = "kv_disk")]
    pub kv_disk_capacity: Size,
    /// Whether KV blocks of other nodes are asked for, and other nodes answered
    #[arg(long, default_value = "on", value_name = "WHETHER")]
    pub kv_remote: OnOff,
    /// How long other nodes are waited for that are asked for KV blocks, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub kv_remote_wait: u32,
    /// Who keeps KV blocks the same in all caches: hardware, or software where hosts share their memory
    #[arg(long, default_value = "hardware", value_name = "KIND")]
    pub coherence: Coherence,
    /// Memory that the hosts of a rack share, a device or file of each of them, for sealed objects; needs --coherence software
    #[arg(long, value_name = "PART/PARTS:PATH")]
    pub shelf: Option<ShelfChoice>,
    /// What the memory is made of: auto, hugetlb, transparent, base, or a folder
    #[arg(long, default_value = "auto", value_name = "KIND", value_parser = backing)]
    pub backing: BackingChoice,
    /// NUMA nodes that the memory comes from, such as 1 or 1,2: pages are made on several in turn [default: any]
    #[arg(long, value_name = "NODES")]
    pub numa: Option<NumaNodes>,
    /// Group whose members may use the node, by name or number; else its own user may, and root
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub socket_group: Option<u32>,
    /// File with the pool's key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Folder with ca.crt, tls.crt and tls.key: other nodes are spoken to under mutual TLS alone
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
    /// Connections to each other node
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=STREAMS_MAX as i64))]
    pub streams: u8,
    /// RDMA devices to use: auto for all that there are, off, or their names with commas
    #[arg(long, default_value = "auto", value_name = "DEVICES", value_parser = rdma)]
    pub rdma: RdmaChoice,
    /// Order in which cached parts leave: lru, clock, s3fifo or fifo
    #[arg(long, default_value = "lru", value_name = "ORDER")]
    pub eviction: EvictionKind,
    /// How long a connection spins for the next request before it sleeps, in microseconds
    #[arg(long, default_value_t = 0, value_name = "US", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub spin: u32,
    /// Whether this node makes copies again that were lost with other nodes
    #[arg(long, default_value = "on", value_name = "WHETHER")]
    pub repair: OnOff,
    /// How long an object has lacked copies before they are made again, in seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub repair_after: u32,
    /// How much it fetches for that in a second, at most; 0: as fast as it goes
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    pub repair_rate: Size,
    /// Whether sealed objects of other racks that this node fetches again and again get one more copy here, which goes as soon as its
    /// room is needed
    #[arg(long, default_value = "on", value_name = "WHETHER")]
    pub heat_copies: OnOff,
    /// How long what was fetched counts for that, and after how long a copy goes that nobody reads, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub heat_copies_memory: u32,
    /// Whether pages of regions move to the racks that use them most
    #[arg(long, default_value = "on", value_name = "WHETHER")]
    pub hot: OnOff,
    /// What a move of a page must gain, in moves: 4 means that it spares four times what it costs
    #[arg(long, default_value_t = 4.0, value_name = "MOVES")]
    pub hot_threshold: f64,
    /// Whether pages that several racks read, and that are hardly ever written, are copied to those that do not have them
    #[arg(long, default_value = "on", value_name = "WHETHER")]
    pub hot_share: OnOff,
    /// How long the accesses to a page count that nobody accesses any more, in seconds
    #[arg(long, default_value_t = 100, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub hot_lifetime: u32,
    /// How fast accesses stop counting: after t seconds one counts e^(-RATE t)
    #[arg(long, default_value_t = 0.04, value_name = "RATE")]
    pub hot_decay: f64,
    /// How many accesses of one thread count in a second, at most; 0: all of them, which draws pages to the rack that has the most
    #[arg(long, default_value_t = 25_000, value_name = "ACCESSES", value_parser = clap::value_parser!(u32))]
    pub hot_thread_rate: u32,
    /// How long a node that is silent, or a program with a guard that is stopped, keeps its place and its locks, in seconds; the same
    /// for all nodes of a pool
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = lease)]
    pub lease: f64,
    /// Go without an optimisation, to see what it is worth; may be repeated
    #[arg(long, value_name = "SWITCH", value_enum)]
    pub without: Vec<Switch>,
}

/// When the bytes of KV blocks are checked.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// After they came over a wire, from a disk, or from before a restart.
    Arrived,
    /// Whenever they are read.
    Always,
}

/// Who takes the checksums of KV blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Sums {
    /// Who writes a block, while it copies: what was put is not lost.
    Writer,
    /// The node, when there is time: what was put last is lost with a killed node, and under steady load everything.
    Behind,
}

/// When room is made ahead, if it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks(Option<KvWatermarks>);

/// Reads `LOW,HIGH` or `off`.
fn watermarks(text: &str) -> Result<Watermarks, String> {
    if text == "off" {
        return Ok(Watermarks(None));
    }
    let numbers = text.split_once(',').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    match numbers {
        Some((low, high)) if 0 < low && low < high && high <= 50 => {
            Ok(Watermarks(Some(KvWatermarks { low, high })))
        }
        _ => Err(
            "two percentages, the lower one first, of which the higher is 50 at most, such as 2,5; or off"
                .to_owned(),
        ),
    }
}

/// Whether something is done.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnOff {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// An optimisation that can be turned off.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// Huge pages for cached objects
    HugePages,
    /// Fetching the rest of an expert when a part of it is touched
    ExpertPrefetch,
    /// Fetching ahead of a sequential reader
    SequentialPrefetch,
    /// Fetching ahead of a reader with a stride
    StridePrefetch,
    /// Dividing models where their experts begin and end
    Layout,
    /// Asking programs which parts they still use
    Probe,
    /// Keeping a part of what is read in a loop
    Loops,
    /// Using the first bytes of a part while the next ones are on their way
    Pipeline,
    /// Writing commands of the directory together that come at the same time
    GroupCommit,
}

impl Switch {
    /// Its name on the command line.
    pub fn name(&self) -> String {
        // Every value has one: none is hidden.
        clap::ValueEnum::to_possible_value(self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Starts the node and stays until it is interrupted.
///
/// # Errors
/// [`Failure`] when it cannot start.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let rack = arguments.rack.clone().unwrap_or_else(|| arguments.name.clone().into());
    let mut options = options(&arguments.name, rack, arguments.listen, &arguments.memory, context)?;
    options.advertise.clone_from(&arguments.advertise);
    options.join.clone_from(&arguments.join);
    options.etcd = arguments.directory.as_deref().cloned();
    options.hosts_directory = arguments.directory_host == OnOff::On;
    serve(options, context, &[])
}

/// The options of a node, out of what `node` and `up` share.
///
/// # Errors
/// [`Failure`] when there is no folder for its state.
pub fn options(
    name: &NodeName,
    rack: RackName,
    listen: SocketAddr,
    memory: &Memory,
    context: &Context,
) -> Result<NodeOptions, Failure> {
    let state = memory.state.clone().map_or_else(|| default_state(name.as_str()), Ok)?;
    let mut options = NodeOptions::new(name.clone(), rack, context.socket(), state, listen);
    options.adopt = memory.adopt;
    let chosen = |size: Option<Size>, usual: u64| size.map_or(usual, |size| size.bytes);
    options.capacity_bytes = chosen(memory.capacity, options.capacity_bytes);
    options.cache_budget_bytes = chosen(memory.cache_budget, options.cache_budget_bytes);
    options.kv_capacity_bytes = chosen(memory.kv_capacity, options.kv_capacity_bytes);
    options.kv_keep = memory.kv_keep == OnOff::On;
    options.kv_verify = memory.kv_verify == Verify::Always;
    options.kv_writers_sum = memory.kv_sums == Sums::Writer;
    options.kv_watermarks = memory.kv_watermarks.0;
    options.kv_disk =
        memory.kv_disk.clone().map(|folder| KvDisk { folder, bytes: memory.kv_disk_capacity.bytes });
    options.kv_remote.is_on = memory.kv_remote == OnOff::On;
    options.kv_remote.find_within = Duration::from_millis(u64::from(memory.kv_remote_wait));
    options.coherence = memory.coherence;
    options.shelf.clone_from(&memory.shelf);
    options.backing = memory.backing.clone();
    options.numa.clone_from(&memory.numa);
    options.socket_group = memory.socket_group;
    options.key_file.clone_from(&memory.key);
    memory.key.iter().for_each(|path| context.warn_of_key(path));
    options.tls.clone_from(&memory.tls);
    memory.tls.iter().for_each(|folder| context.warn_of_key(&Tls::key_file(folder)));
    options.streams = usize::from(memory.streams);
    options.rdma = memory.rdma.clone();
    options.eviction = memory.eviction;
    options.repair = RepairOptions {
        is_on: memory.repair == OnOff::On,
        after: Duration::from_secs(u64::from(memory.repair_after)),
        bytes_per_second: memory.repair_rate.bytes,
    };
    options.heat_copies = HeatCopyOptions {
        is_on: memory.heat_copies == OnOff::On,
        settings: CopySettings {
            memory: Duration::from_secs(u64::from(memory.heat_copies_memory)),
            ..CopySettings::default()
        },
    };
    options.heat = (memory.hot == OnOff::On).then(|| HeatSettings {
        threshold: memory.hot_threshold,
        lifetime: Duration::from_secs(u64::from(memory.hot_lifetime)),
        decay_per_s: memory.hot_decay,
        thread_accesses_per_s: if memory.hot_thread_rate == 0 { u32::MAX } else { memory.hot_thread_rate },
        caches: memory.hot_share == OnOff::On,
        ..HeatSettings::default()
    });
    options.share_pages = memory.hot_share == OnOff::On;
    options.lease = Duration::from_secs_f64(memory.lease);
    options.spin = Duration::from_micros(u64::from(memory.spin));
    switch_off(&memory.without, &mut options);
    Ok(options)
}

/// Leaves optimisations out.
fn switch_off(without: &[Switch], options: &mut NodeOptions) {
    for switch in without {
        let switches = &mut options.switches;
        match switch {
            Switch::GroupCommit => options.group_commit = false,
            Switch::HugePages => switches.huge = false,
            Switch::ExpertPrefetch => switches.prefetch.group = false,
            Switch::SequentialPrefetch => switches.prefetch.sequential = false,
            Switch::StridePrefetch => switches.prefetch.stride = false,
            Switch::Layout => switches.layout = false,
            Switch::Probe => switches.probe = false,
            Switch::Loops => switches.loops = false,
            Switch::Pipeline => switches.pipeline = false,
        }
    }
}

/// What is said of ctrl-C while a node starts: who waits for it to end in order has its memory given back.
const INTERRUPTED: &str = "ending, as soon as the start has come to an end; ctrl-C again ends it at once";

/// How long a node that ends is asked what it holds.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Runs a node until SIGINT or SIGTERM. `advice` is said once it is ready.
///
/// # Errors
/// [`Failure`] when it cannot start.
pub fn serve(options: NodeOptions, context: &Context, advice: &[String]) -> Result<ExitCode, Failure> {
    // Before the node's threads, which must not be interrupted.
    let signals = SignalWatch::new()?;
    let socket = options.socket.clone();
    let chosen = options.clone();
    let mut starting = Starting::begin_in_order(context.output, INTERRUPTED)?;
    let join = options.join.clone();
    let notice =
        join.map(|address| context.notice(format!("the node at {address}, which is to host the directory")));
    let node = Node::start(options).map_err(|error: NodeError| Failure::of(&error))?;
    drop(notice);
    // Before anything else: what was adopted is said here alone.
    node.messages.iter().for_each(|message| context.output.say(message));
    if starting.finish() {
        node.stop();
        return Ok(ExitCode::SUCCESS);
    }
    // Asked over its own socket: ready is who answers.
    let status = context.pool()?.status()?;
    let ready = json!({
        "ready": true,
        "name": status.name,
        "rack": status.rack.as_str(),
        "node": status.node.to_string(),
        "address": status.address,
        "socket": socket,
        "directory": status.directory,
    });
    context.output.either(&ready, || node.ready_line())?;
    context.tell_ready(node.ready_line());
    let output = context.output;
    // It ends with the process: a name may take long to look up.
    let looking = std::thread::Builder::new().name("address".to_owned()).spawn(move || {
        if let Some(trouble) = trouble_of_address(&chosen, status.node, &status.address) {
            output.warn(trouble);
        }
    });
    looking.map_err(|error| Failure::new(format!("starting a thread: {error}"), "raise `ulimit -u`"))?;
    advice.iter().for_each(|line| context.output.say(line));
    while !wait_readable(&signals, None)? {}
    service::tell_stopping();
    let status = context.pool_to_watch(LAST_LOOK).and_then(|pool| Ok(pool.status()?));
    let stays = status.map_or(true, |status| status.used_bytes > 0);
    context.output.say(if stays {
        "stopping; objects stay in memory for the next start"
    } else {
        "stopping"
    });
    node.stop();
    Ok(ExitCode::SUCCESS)
}

fn default_state(name: &str) -> Result<PathBuf, Failure> {
    if matches!(name, "." | "..") {
        let text = format!("a node that is called {name} has no folder of its own for its state");
        return Err(Failure::usage(text, "give it another --name, or name a folder with --state DIR"));
    }
    if nix::unistd::getuid().is_root() {
        return Ok(PathBuf::from("/var/lib/hinterland").join(name));
    }
    state_home(|name| std::env::var_os(name)).map(|home| home.join("hinterland").join(name)).ok_or_else(
        || Failure::usage("there is no home folder for the node's state", "name one with --state DIR"),
    )
}

/// Where a user's programs keep their state. What is empty or relative does not count: it would be another folder in each one that
/// commands are typed in.
fn state_home(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")))
}

/// The number of a group.
fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!("there is no such group (hint: `sudo groupadd --system {text}` makes it)")),
        Err(error) => Err(format!("groups cannot be looked up: {error} (hint: give the group's number)")),
    }
}

/// How an address is written.
const HINT: &str = "(hint: write HOST:PORT, such as 127.0.0.1:7401)";

/// The first address that a name stands for.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found =
        text.to_socket_addrs().map_err(|error| format!("{text:?} is no address: {error} {HINT}"))?;
    found.next().ok_or_else(|| format!("{text:?} stands for no address {HINT}"))
}

/// An address whose name others look up, or this node later.
fn place(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no address with a port {HINT}")),
    }
}

fn etcd(text: &str) -> Result<Box<EtcdTarget>, EtcdTargetError> {
    text.parse().map(Box::new)
}

fn rdma(text: &str) -> Result<RdmaChoice, Infallible> {
    Ok(match text {
        "auto" => RdmaChoice::Auto,
        "off" => RdmaChoice::Off,
        names => RdmaChoice::Devices(names.split(',').map(str::to_owned).collect()),
    })
}

/// The least that is lent: below it nobody wants memory, and most likely a unit was left out.
const LENT_BYTES_MIN: u64 = 1 << 20;

/// How much memory is lent: nothing, or enough to be of use.
fn lent(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
    if (1..LENT_BYTES_MIN).contains(&size.bytes) {
        return Err(format!("{size} is too little (hint: 0 for none, else at least 1M, as in 2G)"));
    }
    Ok(size)
}

fn backing(text: &str) -> Result<BackingChoice, String> {
    Ok(match text {
        "auto" => BackingChoice::Auto,
        "hugetlb" => BackingChoice::Pages(PageKind::Huge2M),
        "transparent" => BackingChoice::Pages(PageKind::TransparentHuge),
        "base" => BackingChoice::Pages(PageKind::Base4K),
        // A device is refused by the node, which says how it is used.
        folder if Path::new(folder).is_file() => {
            return Err(format!("{folder} is a file (hint: name a folder, in which the node makes its own)"));
        }
        // Its last part is made: below /dev/shm nothing outlives the machine's start, and the node starts again.
        folder if folder.contains('/') => match Path::new(folder).parent() {
            Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
                return Err(format!(
                    "there is no folder {} (hint: check the path, and whether its device is mounted; or `mkdir -p {folder}`)",
                    parent.display()
                ));
            }
            _ => BackingChoice::Folder(PathBuf::from(folder)),
        },
        folder if Path::new(folder).exists() => BackingChoice::Folder(PathBuf::from(folder)),
        word => {
            return Err(format!(
                "{word:?} is no kind of memory, and no folder here (hint: auto, hugetlb, transparent, base, or the path of a folder that is there)"
            ));
        }
    })
}

/// A lease: long enough for a busy machine, short enough to be waited for.
fn lease(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=600.0).contains(seconds));
    seconds.ok_or_else(|| "a lease has 0.1 to 600 seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(address("127.0.0.1:7401"), Ok(SocketAddr::from(([127, 0, 0, 1], 7401))));
        assert!(address("127.0.0.1").unwrap_err().contains("hint: write HOST:PORT"));
        for right in ["first.lan:7401", "127.0.0.1:1", "[::1]:7401"] {
            assert_eq!(place(right), Ok(right.to_owned()));
        }
        for wrong in ["", "first.lan", ":7401", "first.lan:0", "first.lan:99999", "http://first.lan"] {
            assert!(place(wrong).unwrap_err().contains("hint: write HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn state_lies_in_no_folder_that_depends_on_where_one_is() {
        let of = |state: &'static str, home: &'static str| {
            state_home(move |name| Some(if name == "HOME" { home } else { state }.into()))
        };
        assert_eq!(of("/state", "/home/x"), Some(PathBuf::from("/state")));
        for state in ["", "state"] {
            assert_eq!(of(state, "/home/x"), Some(PathBuf::from("/home/x/.local/state")));
        }
        assert_eq!(of("", ""), None);
        // Nor is it a folder of others.
        for name in [".", ".."] {
            assert!(default_state(name).unwrap_err().text.contains("no folder of its own"), "{name}");
        }
    }

    #[test]
    fn rdma_devices_are_all_or_none_or_named() {
        assert_eq!(rdma("off"), Ok(RdmaChoice::Off));
        assert_eq!(rdma("a,b").unwrap().devices().unwrap(), ["a", "b"]);
        assert_eq!(rdma("auto").unwrap().devices().unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_no_kind_of_memory_is_a_folder_that_is_there_or_can_be_made() {
        assert_eq!(backing("base"), Ok(BackingChoice::Pages(PageKind::Base4K)));
        for folder in ["/usr", "/usr/memory", "./memory"] {
            assert_eq!(backing(folder), Ok(BackingChoice::Folder(PathBuf::from(folder))));
        }
        for (wrong, hint) in [
            ("hugetbl", "hugetlb"),
            ("/nowhere/x", "mkdir -p /nowhere/x"),
            ("/etc/passwd", "hint: name a folder"),
        ] {
            assert!(backing(wrong).unwrap_err().contains(hint), "{wrong}");
        }
    }

    #[test]
    fn memory_without_its_unit_is_refused() {
        assert_eq!(lent("0").unwrap().bytes, 0);
        assert_eq!(lent("1M").unwrap().bytes, 1 << 20);
        assert!(lent("16").unwrap_err().contains("hint: 0 for none"));
    }
}
