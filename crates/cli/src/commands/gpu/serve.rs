//! `hinterland gpu serve`: lends the GPUs of this machine to programs of others.

use crate::context::Context;
use crate::failure::Failure;
use crate::run::gpu::node_address;
use crate::run::temporary::TemporaryFolder;
use crate::service;
use crate::size::Size;
use crate::starting::Starting;
use hinterland_channel::Address;
use hinterland_gpunode::daemon::{Daemon, DaemonError, DaemonOptions};
use hinterland_gpunode::spec::DeviceSpec;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_pool::Pool;
use serde_json::json;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// This program, whatever becomes of its file meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// How GPUs are lent.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Programs reach it with `hinterland run --gpu ADDRESS -- PROGRAM`. Each gets a process of its own here, which ends with \
it and gives everything back. The command stays in the foreground until ctrl-C or SIGTERM.

  hinterland gpu serve --listen unix:/run/hinterland/gpu.sock --device cuda
  hinterland gpu serve --listen tcp:0.0.0.0:7410 --key pool.key --device cuda:0
  hinterland gpu serve --listen unix:/tmp/gpu.sock --device software:memory=2G,kernels=none")]
pub struct Arguments {
    /// Where programs connect: unix:PATH or tcp:HOST:PORT; may be given several times. Anything but this host needs --key
    #[arg(long, required = true, value_name = "ADDRESS", value_parser = node_address)]
    listen: Vec<Address>,
    /// The devices: cuda, cuda:0,1, or software with options (memory, devices, kernels=ptx|none, delay-us, threads, fault)
    #[arg(long, default_value = "cuda", value_name = "DEVICE")]
    device: DeviceSpec,
    /// Memory of each device that a session gets for itself [default: all, shared by all sessions]
    #[arg(long, value_name = "SIZE")]
    session_memory: Option<Size>,
    /// Sessions at once
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    sessions: u16,
    /// Folder that keeps the code of programs, so that it is sent once [default: one that ends with this command]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Most bytes of that folder
    #[arg(long, default_value = "4G", value_name = "SIZE")]
    cache_size: Size,
    /// Socket of a node of a pool on this host: what a program copies of the pool's objects is read from there, and not sent by it
    #[arg(long, value_name = "SOCKET")]
    pool: Option<PathBuf>,
    /// File with the key that programs of other hosts need: 64 hexadecimal digits (`openssl rand -hex 32` makes some)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// [`Failure`] with what is in the way.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let signals = SignalWatch::new()?;
    arguments.key.iter().for_each(|path| context.warn_of_key(path));
    let key = match &arguments.key {
        Some(path) => Some(hinterland_node::read_key(path).map_err(|error| Failure::of(&error))?),
        None => None,
    };
    if key.is_none()
        && let Some(address) = arguments.listen.iter().find(|address| !is_local(address))
    {
        let text = format!("{address} is reached from other hosts, and there is no key");
        return Err(Failure::usage(text, "give --key FILE, or listen on 127.0.0.1"));
    }
    // Before there is a folder: who does not wait for the node any longer leaves nothing behind.
    let pool = arguments.pool.as_deref().map(reachable_pool).transpose()?;
    let (folder, _own) = match &arguments.cache {
        Some(folder) => (folder.clone(), None),
        None => {
            let folder = TemporaryFolder::make("gpu")?;
            (folder.path().to_owned(), Some(folder))
        }
    };
    let daemon = Daemon::start(DaemonOptions {
        listen: arguments.listen.clone(),
        key,
        device: arguments.device.clone(),
        session_memory: arguments.session_memory.map(|size| size.bytes),
        sessions_max: usize::from(arguments.sessions),
        cache: Some(folder),
        cache_bytes: arguments.cache_size.bytes,
        pool,
        program: [OWN_PROGRAM, "gpu", "session"].map(str::to_owned).to_vec(),
    })?;
    let addresses: Vec<String> = daemon.addresses().iter().map(ToString::to_string).collect();
    if context.output.json {
        context
            .output
            .json(&json!({ "ready": true, "listen": addresses, "device": arguments.device.to_string() }))?;
    } else {
        context.output.say(format_args!("GPUs are served at {}; ctrl-C ends it", addresses.join(", ")));
    }
    context.tell_ready(format_args!("serving at {}", addresses.join(", ")));
    while !wait_readable(&signals, None)? {}
    service::tell_stopping();
    drop(daemon);
    Ok(ExitCode::SUCCESS)
}

/// The socket of a pool's node, which answers; the path stays the same in whatever folder.
fn reachable_pool(socket: &Path) -> Result<PathBuf, Failure> {
    let socket = std::path::absolute(socket).map_err(|error| Failure::file("finding", socket, &error))?;
    let starting = Starting::begin()?;
    Pool::connect(Some(&socket))?;
    drop(starting);
    Ok(socket)
}

/// Whether only programs of this host reach an address.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Tcp(place) => place.to_socket_addrs().is_ok_and(|mut found| {
            found.all(|one| matches!(one.ip(), IpAddr::V4(ip) if ip.is_loopback()) || one.ip().is_loopback())
        }),
    }
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        Self::of(&error)
    }
}
