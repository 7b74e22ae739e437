//! `hinterland swap`: far memory as a block device, served, and attached as swap.

mod attach;

use crate::context::Context;
use crate::failure::Failure;
use crate::run::back_end::{BackEnd, back_end};
use crate::run::far::{open_back_ends, unit};
use crate::size::{Size, human};
use crate::starting::Starting;
use hinterland_farblock::{
    Address, BLOCK_BYTES, Blocks, DEVICE_BYTES_MAX, Server, ServerError, ServerOptions, ServerReport, Shape,
};
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_os::socket::runtime_folder;
use hinterland_os::swap_area;
use nix::libc;
use serde_json::json;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a unit unless another is asked for: see the decision on the swap device.
const UNIT_BYTES: u64 = 32 << 10;
/// Least length of a device: a swap area has a header and some pages.
const DEVICE_BYTES_MIN: u64 = 1 << 20;
/// How often it is looked whether clients are gone after a signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to do.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
For what `hinterland run --local` does not reach: static and set-id programs, containers, whole machines. \
The server keeps what the kernel swaps out in the back ends of far memory; a kernel with the module nbd uses it as swap.
  hinterland swap serve --size 4G --far lz4,ssd:/var/tmp
  hinterland swap attach
  hinterland swap detach")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What can be done.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Serve a block device whose content is in far memory, over the NBD protocol
    Serve(Serve),
    /// Make a device of a server and swap on it; needs root and the kernel's module nbd
    Attach(attach::Attach),
    /// Bring back what is swapped out, and take the device away
    Detach(attach::Detach),
}

/// What is served, and to whom.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
What is written is in this process and its back ends, and goes with it: end it after `hinterland swap detach`. \
It stays in the foreground until ctrl-C or SIGTERM; while a client uses the device, it takes two of them.")]
struct Serve {
    /// Length of the device; room is taken only for what is written and is not zeros
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Where content is kept, with commas between, as for `hinterland run`: lz4, zstd, ssd:PATH, pool or pool:RACK, each also
    /// with @SIZE behind it
    #[arg(long, value_name = "LIST", default_value = "lz4", value_delimiter = ',', value_parser = back_end)]
    far: Vec<BackEnd>,
    /// In how many of them each byte is kept
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    copies: u8,
    /// Bytes that go to a back end at once, a power of two from 4K to 2M [default: 32K]
    #[arg(long, value_name = "SIZE", value_parser = unit)]
    unit: Option<Size>,
    /// Do not keep what was read last
    #[arg(long)]
    no_recent: bool,
    /// Where clients connect: the path of a socket, or HOST:PORT; may be given several times
    /// [default: hinterland/swap.sock below $XDG_RUNTIME_DIR, else below /run]
    #[arg(long, value_name = "ADDRESS", value_parser = Address::from_str)]
    listen: Vec<Address>,
    /// Allow addresses that other hosts reach: nothing is encrypted, and whoever connects reads and writes
    #[arg(long)]
    serve_other_hosts: bool,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
}

/// Does it.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Serve(serve) => serve_device(serve, context),
        Command::Attach(attach) => attach::attach(attach, context),
        Command::Detach(detach) => attach::detach(detach, context),
    }
}

/// Where a server listens, and clients look for it, unless they are told otherwise.
fn default_address() -> Address {
    Address::Unix(runtime_folder().join("hinterland/swap.sock"))
}

fn serve_device(serve: &Serve, context: &Context) -> Result<ExitCode, Failure> {
    let bytes = serve.size.bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if !(DEVICE_BYTES_MIN..=DEVICE_BYTES_MAX).contains(&bytes) {
        return Err(Failure::usage(
            format!("a device of {} cannot be made", serve.size),
            "a size from 1M to 16T, such as --size 4G",
        ));
    }
    let signals = SignalWatch::new()?;
    let refused = swap_area::become_server();
    let unit_bytes = serve.unit.map_or(UNIT_BYTES, |unit| unit.bytes);
    let starting = Starting::begin()?;
    let stores = open_back_ends(&serve.far, serve.copies, unit_bytes, &context.socket())?;
    drop(starting);
    let shape = Shape { bytes, unit_bytes: unit_bytes as usize, keeps_recent: !serve.no_recent };
    let device = Arc::new(Blocks::new(stores, shape));
    let listen = if serve.listen.is_empty() { vec![default_address()] } else { serve.listen.clone() };
    let options = ServerOptions {
        listen,
        serves_other_hosts: serve.serve_other_hosts,
        clients_max: usize::from(serve.clients),
    };
    let server = Server::start(Arc::clone(&device), &options)?;
    if let Some(error) = refused.first() {
        context.output.warn(format_args!(
            "this host must not swap on this device, only another one may: the server itself may be swapped out or ended ({})",
            Failure::of(error).text
        ));
    }
    tell_ready(&server, bytes, context)?;
    while !wait_readable(&signals, None)? {}
    wait_for_users(&server, &device, &signals, context)?;
    finish(&server.finish(), context)
}

fn tell_ready(server: &Server, bytes: u64, context: &Context) -> Result<(), Failure> {
    let addresses: Vec<String> = server.addresses().iter().map(Address::to_string).collect();
    context.tell_ready(format_args!("serving at {}", addresses.join(", ")));
    if context.output.json {
        return context.output.json(&json!({ "ready": true, "listen": addresses, "bytes": bytes }));
    }
    let first = addresses.first().map_or("", String::as_str);
    context.output.say(format_args!(
        "a device of {} is served at {}; as root, `hinterland swap attach {first}` swaps on it; ctrl-C ends it",
        human(bytes),
        addresses.join(", "),
    ));
    Ok(())
}

/// After a signal: content that somebody needs goes with this process, so that it takes a second one. A terminal that is closed is
/// none: its shell and the kernel both send a signal.
fn wait_for_users(
    server: &Server,
    device: &Blocks,
    signals: &SignalWatch,
    context: &Context,
) -> Result<(), Failure> {
    // The one that came.
    let _ = signals.take();
    let live = device.report().live_bytes;
    if server.users() == 0 || live == 0 {
        return Ok(());
    }
    context.output.warn(format_args!(
        "{} are still here and would be lost; `hinterland swap detach` brings them back first. Waiting until no client uses the device; another ctrl-C or SIGTERM ends it at once",
        human(live)
    ));
    while server.users() > 0 {
        if wait_readable(signals, Some(LOOK_EVERY))? && signals.take() != Some(libc::SIGHUP) {
            break;
        }
    }
    Ok(())
}

fn finish(report: &ServerReport, context: &Context) -> Result<ExitCode, Failure> {
    if context.output.json {
        let blocks = &report.blocks;
        let moved: Vec<_> = blocks
            .moved
            .iter()
            .map(|(name, put, got)| json!({ "name": name, "out_bytes": put, "in_bytes": got }))
            .collect();
        context.output.json(&json!({
            "written_bytes": blocks.written_bytes, "zero_bytes": blocks.zero_bytes, "read_bytes": blocks.read_bytes,
            "read_zero_bytes": blocks.read_zero_bytes, "trimmed_bytes": blocks.trimmed_bytes, "live_bytes": blocks.live_bytes,
            "held_bytes_max": blocks.held_bytes_max, "recent_hits": blocks.recent_hits, "units_read": blocks.units_read,
            "cleaned_bytes": blocks.cleaned_bytes, "refused_bytes": blocks.refused_bytes, "lost_bytes": blocks.lost_bytes,
            "thin_units": blocks.thin_units, "memory_bytes": blocks.memory_bytes, "requests": report.requests,
            "refusals": report.refusals, "clients": report.clients, "broken": report.broken, "moved": moved,
        }))?;
    } else {
        context.output.say(format_args!("hinterland: {report}"));
    }
    Ok(ExitCode::SUCCESS)
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let Self { text, hint, .. } = Self::of(&error);
        match error {
            ServerError::Open(_) => Self::usage(text, hint),
            _ => Self::new(text, hint),
        }
    }
}
