//! `hinterland mount`: shows the pool's objects as files, and makes objects of files.

use crate::context::Context;
use crate::failure::Failure;
use crate::starting::Starting;
use hinterland_fuse::{MountOptions, PoolSource, ReadPreference, Unmounted};
use hinterland_os::poll::SignalWatch;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Where and how to mount.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
It stays in the foreground until it is interrupted or unmounted. Files are read-only, unless --writable is given: then files \
are made, written, renamed and removed as in any file system, and the pool sees each as an object, whole, when it is closed. \
Extended attributes tell a file's object, digest and homes, and are not listed: getfattr -n user.hinterland.homes FILE. Two of \
them say, before its first byte or on its folder, where it lies: setfattr -n user.hinterland.rack -v RACK DIR, and \
user.hinterland.copies.")]
pub struct Arguments {
    /// The folder to mount on
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Let files be made, written, renamed and removed; each becomes an object when it is closed
    #[arg(long)]
    writable: bool,
    /// Let other users look in too
    #[arg(long)]
    allow_other: bool,
    /// Threads that answer the kernel
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Do not let the kernel read local objects by itself
    #[arg(long)]
    no_passthrough: bool,
}

/// Mounts, says so, and waits for a signal or the unmount.
///
/// # Errors
/// [`Failure`] with what is in the way.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let signals = SignalWatch::new()?;
    // One for each file that programs have open. Where it cannot be raised, fewer of them are opened.
    let _ = hinterland_os::limits::raise_open_files();
    let starting = Starting::begin()?;
    // It says so while the node is silent, which the source does not.
    drop(context.pool()?);
    let source =
        Arc::new(PoolSource::with_preference(&context.socket(), ReadPreference::from_environment())?);
    drop(starting);
    let options = MountOptions {
        allow_other: arguments.allow_other,
        workers: usize::from(arguments.workers),
        passthrough: !arguments.no_passthrough,
        writable: arguments.writable,
        socket: Some(context.socket()),
        ..MountOptions::new(&arguments.folder)
    };
    let (sender, ended) = channel();
    let mounted = hinterland_fuse::mount(source, &options, sender.clone())?;
    let folder = mounted.folder().to_owned();
    let ready = json!({
        "ready": true,
        "folder": folder,
        "device": mounted.device(),
        "passthrough": mounted.passes_through(),
        "writable": arguments.writable,
    });
    if context.output.json {
        context.output.json(&ready)?;
    } else {
        let way = if mounted.passes_through() { ", local objects passed through" } else { "" };
        context.output.say(format_args!("mounted on {}{way}; ctrl-C unmounts", folder.display()));
    }
    context.tell_ready(format_args!("mounted on {}", folder.display()));
    std::thread::spawn(move || {
        // The mount's own end comes over the same channel; either ends the wait.
        while !matches!(hinterland_os::poll::wait_readable(&signals, None), Ok(true)) {}
        let _ = sender.send(());
    });
    // It fails only when nobody can send any more, and then the mount has ended too.
    let _ = ended.recv();
    let who = match mounted.unmount()? {
        Unmounted::Clean => return Ok(ExitCode::SUCCESS),
        Unmounted::Busy => "files were still open: programs that use them get errors from here on",
        Unmounted::Elsewhere => {
            "other mount namespaces have it (containers, programs under `hinterland run`): files there give errors from here on"
        }
    };
    context.output.warn(format_args!("{}: {who}", folder.display()));
    Ok(ExitCode::SUCCESS)
}
