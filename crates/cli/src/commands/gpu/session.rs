//! `hinterland gpu session`: serves one client of a GPU node, in a process of its own.

use crate::failure::Failure;
use hinterland_gpunode::process::{SessionOptions, run_session};
use hinterland_gpunode::spec::DeviceSpec;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the node's daemon hands over, besides descriptors.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The channel, as its descriptors and state
    #[arg(long, value_name = "TEXT")]
    channel: String,
    /// The devices of the node
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Folder that keeps the code of programs
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Most bytes of that folder
    #[arg(long, value_name = "BYTES")]
    cache_size: u64,
    /// Socket of a node of the pool whose objects the client may copy from
    #[arg(long, value_name = "SOCKET")]
    pool: Option<PathBuf>,
}

/// Serves the client, and ends this process.
///
/// # Errors
/// Never: what goes wrong is told to the client, and in the log.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    run_session(SessionOptions {
        channel: arguments.channel.clone(),
        device: arguments.device.clone(),
        cache: arguments.cache.clone(),
        cache_bytes: arguments.cache_size,
        pool: arguments.pool.clone(),
    })
}
