//! Swap on a served device: the kernel gets the connections and keeps them, so that nothing of ours stays behind.

use super::default_address;
use crate::context::Context;
use crate::failure::Failure;
use crate::size::human;
use hinterland_farblock::wire::MULTIPLE;
use hinterland_farblock::{Address, BLOCK_BYTES, Client, ClientError};
use hinterland_os::nbd_device::{self, NbdShape};
use hinterland_os::swap_area::{self, SwapArea};
use hinterland_os::{OsError, process};
use serde_json::json;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// What names of devices begin with.
const PREFIX: &str = "/dev/nbd";
/// Time in which a device appears after the kernel has made it.
const APPEARING_TIME: Duration = Duration::from_secs(10);
/// Pause between two looks for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Connections unless another number is asked for: more help only where there are processors for them.
const CONNECTIONS: usize = 4;
/// The label of the swap area.
const LABEL: &str = "hinterland";

/// Which server, and how it is used.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
If the server ends or cannot be reached, what is swapped out is lost: programs get SIGBUS when they touch it, and never \
see zeros. A server that is started again is empty, so it does not take the place of the one before.")]
pub struct Attach {
    /// Where the server listens: the path of a socket, or HOST:PORT
    /// [default: hinterland/swap.sock below $XDG_RUNTIME_DIR, else below /run]
    #[arg(value_name = "ADDRESS", value_parser = Address::from_str)]
    address: Option<Address>,
    /// The device, such as /dev/nbd3 [default: one that is free]
    #[arg(long, value_name = "DEVICE", value_parser = index)]
    device: Option<u32>,
    /// Connections to the server [default: one for each processor, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: Option<u16>,
    /// Swap areas with more are used first, 0 to 32767 [default: after all others]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=32767))]
    priority: Option<u16>,
    /// Seconds after which a request that the server has not answered has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
    /// Only make the device; do not swap on it
    #[arg(long)]
    no_swap: bool,
}

/// Which device.
#[derive(clap::Args, Debug)]
pub struct Detach {
    /// The device, such as /dev/nbd3 [default: the only one with swap]
    #[arg(value_name = "DEVICE", value_parser = index)]
    device: Option<u32>,
}

/// Makes a device and swaps on it.
///
/// # Errors
/// [`Failure`]; nothing stays then.
pub fn attach(attach: &Attach, context: &Context) -> Result<ExitCode, Failure> {
    need_root()?;
    nbd_device::look()?;
    let address = attach.address.clone().unwrap_or_else(default_address);
    let clients = connect(&address, attach.connections)?;
    let (bytes, flags) = clients.first().map_or((0, 0), |client| (client.bytes(), client.flags()));
    let shape = NbdShape {
        index: attach.device,
        bytes: bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
        block_bytes: BLOCK_BYTES as u64,
        flags,
        timeout: Duration::from_secs(u64::from(attach.timeout)),
    };
    let sockets: Vec<_> = clients.iter().map(AsFd::as_fd).collect();
    let index = nbd_device::connect(&shape, &sockets).map_err(busy)?;
    let device = PathBuf::from(format!("{PREFIX}{index}"));
    if let Err(failure) = use_device(&device, shape.bytes, attach) {
        // Nobody uses it, so that nothing is lost by it.
        let _ = nbd_device::disconnect(index);
        return Err(failure);
    }
    let swaps = !attach.no_swap;
    let value = json!({ "device": device.display().to_string(), "bytes": shape.bytes, "swap": swaps,
        "connections": clients.len() });
    context.output.either(&value, || {
        let what = if swaps { "is swap" } else { "is a device" };
        format!("{} {what} of {}, over {} connections", device.display(), human(shape.bytes), clients.len())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn connect(address: &Address, wanted: Option<u16>) -> Result<Vec<Client>, Failure> {
    let first = Client::connect(address)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let count = wanted.map_or(processors.min(CONNECTIONS), usize::from);
    let count = if first.flags() & MULTIPLE == 0 { 1 } else { count };
    let mut clients = vec![first];
    while clients.len() < count {
        let next = Client::connect(address)?;
        let first = &clients[0];
        // A server that was started meanwhile does not have what the one before has.
        if (next.bytes(), next.description()) != (first.bytes(), first.description()) {
            return Err(Failure::new(
                format!("two servers answered at {address}, one after the other"),
                "try again when the right one runs",
            ));
        }
        clients.push(next);
    }
    Ok(clients)
}

fn use_device(device: &Path, bytes: u64, attach: &Attach) -> Result<(), Failure> {
    let begun = Instant::now();
    while !device.exists() {
        if begun.elapsed() > APPEARING_TIME {
            return Err(Failure::new(
                format!("the kernel made {}, and no such file appears", device.display()),
                "mount a devtmpfs at /dev, or run udev",
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    if attach.no_swap {
        return Ok(());
    }
    swap_area::make(device, bytes, LABEL)?;
    Ok(swap_area::switch_on(device, attach.priority)?)
}

/// Brings everything back, and takes the device away.
///
/// # Errors
/// [`Failure`]; the device stays then if it is still swapped on.
pub fn detach(detach: &Detach, context: &Context) -> Result<ExitCode, Failure> {
    need_root()?;
    let areas = swap_area::areas()?;
    let index = match detach.device {
        Some(index) => index,
        None => only_one(&areas)?,
    };
    let device = PathBuf::from(format!("{PREFIX}{index}"));
    let area = areas.iter().find(|area| area.path == device);
    if area.is_some() {
        swap_area::switch_off(&device)?;
    }
    nbd_device::disconnect(index).map_err(|error| match error.errno() {
        Some(22 | 2) => error.with_hint("it is no device that is attached: lsblk shows those that are"),
        _ => error,
    })?;
    let used = area.map_or(0, |area| area.used_bytes);
    let value = json!({ "device": device.display().to_string(), "brought_back_bytes": used });
    context.output.either(&value, || {
        format!("{} is detached, and {} that were on it are in memory", device.display(), human(used))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn only_one(areas: &[SwapArea]) -> Result<u32, Failure> {
    let devices: Vec<u32> =
        areas.iter().filter_map(|area| area.path.to_str()).filter_map(|path| index(path).ok()).collect();
    match devices.as_slice() {
        [one] => Ok(*one),
        [] => Err(Failure::new(
            "no network block device is used as swap",
            "name the device, if one is attached without swap",
        )),
        _ => Err(Failure::usage(
            format!("{} network block devices are used as swap", devices.len()),
            "name one: swapon --show lists them",
        )),
    }
}

fn need_root() -> Result<(), Failure> {
    if process::effective_user() == 0 {
        return Ok(());
    }
    Err(Failure::new("only root may attach devices and swap on them", "sudo hinterland swap ..."))
}

fn busy(error: OsError) -> OsError {
    match error.errno() {
        Some(16) => error.with_hint("that device is in use: name another one with --device, or none"),
        _ => error,
    }
}

fn index(text: &str) -> Result<u32, String> {
    text.strip_prefix(PREFIX)
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("{text} is no network block device (hint: such as /dev/nbd0)"))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::of(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(path: &str) -> SwapArea {
        SwapArea { path: path.into(), bytes: 1 << 20, used_bytes: 0, priority: -2 }
    }

    #[test]
    fn devices_have_numbers() {
        assert_eq!(index("/dev/nbd12"), Ok(12));
        for bad in ["nbd0", "/dev/nbd", "/dev/nbd0p1", "/dev/sda"] {
            assert!(index(bad).unwrap_err().contains("hint:"), "{bad}");
        }
    }

    #[test]
    fn the_only_device_need_not_be_named() {
        assert_eq!(only_one(&[area("/dev/sda2"), area("/dev/nbd3")]).ok(), Some(3));
        assert!(only_one(&[area("/dev/sda2")]).is_err());
        assert!(only_one(&[area("/dev/nbd0"), area("/dev/nbd1")]).is_err());
    }
}
