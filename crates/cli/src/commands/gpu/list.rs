//! `hinterland gpu ls`: the devices and sessions of a GPU node.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::run::gpu::node_address;
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_channel::{Address, ChannelError};
use hinterland_gpunode::inquiry::{Inquiry, InquiryError};
use hinterland_proto::gpu::{DeviceStatus, GpuStatus, SessionStatus};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Which node.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Arguments {
    /// The node: unix:PATH or tcp:HOST:PORT
    #[arg(value_name = "ADDRESS", value_parser = node_address)]
    pub address: Address,
    /// File with the key of a node on another host
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Shows it.
///
/// # Errors
/// [`Failure`] with exit status 3 if no node answers.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let status = open(arguments)?.ask()?;
    context.output.either(&value(&status), || words(&status))?;
    Ok(ExitCode::SUCCESS)
}

/// A connection for questions.
///
/// # Errors
/// [`Failure`] with exit status 3 if no node answers.
pub fn open(arguments: &Arguments) -> Result<Inquiry, Failure> {
    let key = match &arguments.key {
        Some(path) => Some(hinterland_node::read_key(path).map_err(|error| Failure::of(&error))?),
        None => None,
    };
    Ok(Inquiry::open(&arguments.address, key)?)
}

/// All of it as JSON.
pub fn value(status: &GpuStatus) -> Value {
    json!({
        "version": status.version,
        "devices": status.devices.iter().map(device).collect::<Vec<_>>(),
        "sessions": status.sessions.iter().map(session).collect::<Vec<_>>(),
        "sessions_total": status.sessions_total,
        "images": status.images,
        "image_bytes": status.image_bytes,
    })
}

fn device(status: &DeviceStatus) -> Value {
    json!({ "name": status.name, "memory_bytes": status.memory, "promised_bytes": status.promised })
}

fn session(status: &SessionStatus) -> Value {
    json!({
        "session": status.session,
        "program": status.program,
        "host": status.host,
        "process": status.process,
        "session_process": status.session_process,
        "seconds": status.seconds,
        "memory_bytes": status.memory,
        "grant_bytes": status.grant,
        "commands": status.commands,
        "launches": status.launches,
        "bytes_in": status.bytes_in,
        "bytes_out": status.bytes_out,
    })
}

/// All of it for people.
pub fn words(status: &GpuStatus) -> String {
    let mut devices = Table::new(&[
        ("DEVICE", Align::Right),
        ("NAME", Align::Left),
        ("MEMORY", Align::Right),
        ("PROMISED", Align::Right),
    ]);
    for (number, device) in status.devices.iter().enumerate() {
        devices.row([
            number.to_string(),
            printable(&device.name),
            human(device.memory),
            human(device.promised),
        ]);
    }
    let code = format!("{} fat binaries in the cache, {}", status.images, human(status.image_bytes));
    let mut parts = vec![devices.text(), code];
    if status.sessions.is_empty() {
        parts.push(format!("no sessions; {} so far", status.sessions_total));
    } else {
        parts.push(sessions(status));
    }
    parts.join("\n\n")
}

fn sessions(status: &GpuStatus) -> String {
    let mut table = Table::new(&[
        ("SESSION", Align::Right),
        ("PROGRAM", Align::Left),
        ("HOST", Align::Left),
        ("PID", Align::Right),
        ("TIME", Align::Right),
        ("MEMORY", Align::Right),
        ("OF", Align::Right),
        ("LAUNCHES", Align::Right),
        ("IN", Align::Right),
        ("OUT", Align::Right),
    ]);
    for session in &status.sessions {
        table.row([
            session.session.to_string(),
            printable(&session.program),
            printable(&session.host),
            session.process.to_string(),
            format!("{} s", session.seconds),
            human(session.memory),
            human(session.grant),
            session.launches.to_string(),
            human(session.bytes_in),
            human(session.bytes_out),
        ]);
    }
    table.text()
}

/// A name that a client chose, without what would move the cursor.
fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).take(40).collect()
}

impl From<InquiryError> for Failure {
    fn from(error: InquiryError) -> Self {
        let is_unreachable = matches!(&error, InquiryError::Channel(ChannelError::Connect { .. }));
        let exit = if is_unreachable { Exit::Unreachable } else { Exit::Failure };
        Self { exit, ..Self::of(&error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_choose_do_not_move_the_cursor() {
        assert_eq!(printable("llama\x1b[2Jé\n"), "llama?[2Jé?");
    }
}
