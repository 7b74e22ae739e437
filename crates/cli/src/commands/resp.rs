//! `hinterland resp`: serves Redis clients with values in KV blocks.

use crate::context::Context;
use crate::failure::Failure;
use crate::input;
use crate::service;
use crate::size::Size;
use crate::starting::Starting;
use hinterland_gateway::{Listen, ListenError, Server, ServerError, ServerOptions};
use hinterland_os::notice::Notice;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_os::socket::SocketFile;
use hinterland_pool::Pool;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// How often the node is looked at, and how long it may take to answer.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the start may take until people are told why.
const NOTICE: Duration = Duration::from_secs(2);
/// Processors for each thread that serves clients: the node and the clients need some too.
const PROCESSORS_A_THREAD: usize = 4;
/// Longest password.
const PASSWORD_BYTES_MAX: usize = 512;
/// Longest file with one: what stands below the first line is not looked at.
const PASSWORD_FILE_BYTES_MAX: u64 = 1 << 20;

/// How clients are served.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Redis clients set and get values that lie in the node's KV blocks. It is a cache: a value may be evicted at \
any time. Values outlive this command, and the node too, in memory, unless it runs with --kv-keep off. \
It stays in the foreground until ctrl-C or SIGTERM.
  hinterland resp --listen 127.0.0.1:6379
  redis-cli -p 6379 set greeting hello")]
pub struct Arguments {
    /// Where clients connect: HOST:PORT or unix:PATH; may be given several times. Anything but this host needs a password
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "ADDRESS", value_parser = Listen::from_str)]
    listen: Vec<Listen>,
    /// Servers of one user with the same namespace share their keys
    #[arg(long, default_value = "default", value_name = "NAME")]
    namespace: String,
    /// File with the password that clients must say, on its first line
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Databases that clients can select
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    databases: u16,
    /// Threads that serve clients [default: one for every four processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// Clients at once
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    clients: u32,
    /// Memory for what clients send and are sent
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    buffers: Size,
}

/// Serves, says so, and waits for a signal.
///
/// # Errors
/// [`Failure`] with what is in the way.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let signals = SignalWatch::new()?;
    let password = arguments.password_file.as_deref().map(password).transpose()?;
    let threads = match arguments.threads {
        Some(threads) => usize::from(threads),
        None => {
            std::thread::available_parallelism().map_or(1, |count| (count.get() / PROCESSORS_A_THREAD).max(1))
        }
    };
    let output = context.output;
    let bound = Server::bind(ServerOptions {
        listen: arguments.listen.clone(),
        socket: context.socket(),
        namespace: arguments.namespace.clone(),
        password,
        databases: usize::from(arguments.databases),
        threads,
        clients_max: arguments.clients as usize,
        buffers_bytes: usize::try_from(arguments.buffers.bytes).unwrap_or(usize::MAX),
    })?;
    let files = bound.files();
    let starting = Starting::begin_with(move || files.iter().for_each(|file| drop(SocketFile::of(file))))?;
    let notice = Notice::begin(NOTICE, move || {
        output.say("waiting for the node: it makes its memory for KV blocks at their first use, up to some seconds for each GiB");
    });
    let server = bound.serve()?;
    drop(notice);
    drop(starting);
    let addresses: Vec<String> = server.addresses().iter().map(Listen::to_string).collect();
    if context.output.json {
        let value = json!({ "ready": true, "listen": addresses, "namespace": arguments.namespace, "threads": threads });
        context.output.json(&value)?;
    } else {
        context
            .output
            .say(format_args!("Redis clients are served at {}; ctrl-C ends it", addresses.join(", ")));
    }
    // It ends with the process: it may be waiting for the node.
    let watched = context.clone();
    let watching = std::thread::Builder::new().name("node".to_owned()).spawn(move || watch(&watched));
    watching.map_err(|error| Failure::new(format!("starting a thread: {error}"), "raise `ulimit -u`"))?;
    context.tell_ready(format_args!("serving at {}", addresses.join(", ")));
    while !wait_readable(&signals, None)? {}
    service::tell_stopping();
    drop(server);
    Ok(ExitCode::SUCCESS)
}

/// Says once that the node does not answer, so that clients wait or are refused, and once that it does again.
fn watch(context: &Context) {
    let (mut pool, mut is_silent) = (None, false);
    loop {
        std::thread::sleep(LOOK_EVERY);
        match look(context, &mut pool) {
            Ok(()) if is_silent => context.output.warn("the node answers again"),
            Err(failure) if !is_silent => context.output.warn(format_args!(
                "clients are not served meanwhile: {} (hint: {})",
                failure.text, failure.hint
            )),
            _ => continue,
        }
        is_silent = !is_silent;
    }
}

fn look(context: &Context, pool: &mut Option<Pool>) -> Result<(), Failure> {
    if let Some(known) = pool.take()
        && known.status().is_ok()
    {
        *pool = Some(known);
        return Ok(());
    }
    // A node that has ended may be there again; else it is told that there is none, and not what became of a connection.
    let fresh = context.pool_to_watch(LOOK_EVERY)?;
    fresh.status()?;
    *pool = Some(fresh);
    Ok(())
}

fn password(path: &Path) -> Result<String, Failure> {
    let text = input::read_text(path, PASSWORD_FILE_BYTES_MAX)?;
    let password = text.lines().next().unwrap_or("").to_owned();
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(Failure::usage(
            format!("the first line of {} has {} bytes", path.display(), password.len()),
            format!(
                "a password of 1 to {PASSWORD_BYTES_MAX} bytes: head -c 24 /dev/urandom | base64 > {}",
                path.display()
            ),
        ));
    }
    Ok(password)
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Pool(error) => error.into(),
            ServerError::Listen(error @ ListenError::Open(_)) => {
                let Self { text, hint, .. } = Self::of(&error);
                Self::usage(text, hint)
            }
            other => Self::of(&other),
        }
    }
}
