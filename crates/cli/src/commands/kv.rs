//! `hinterland kv`: KV blocks that programs of this host share.

use crate::context::Context;
use crate::failure::Failure;
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_proto::control::{KvNamespaceStatus, KvStatus};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What to do.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What can be done.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show how much is stored, for each namespace
    Stat,
}

/// Shows the stores of the node: lines and a table for each, or a JSON array.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let Command::Stat = arguments.command;
    let stores = context.pool()?.kv_status()?;
    if stores.is_empty() && !context.output.json {
        context.output.say("no KV blocks (a program opens them with `Pool.kv` of the Python package)");
        return Ok(ExitCode::SUCCESS);
    }
    let value = Value::Array(stores.iter().map(store).collect());
    context.output.either(&value, || stores.iter().map(words).collect::<Vec<_>>().join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn store(status: &KvStatus) -> Value {
    json!({
        "user": status.user,
        "pages": status.pages,
        "capacity_bytes": status.capacity_bytes,
        "blocks": status.blocks,
        "bytes": status.bytes,
        "reserved": status.reserved,
        "evictions": status.evictions,
        "namespaces": status.namespaces.iter().map(namespace).collect::<Vec<_>>(),
    })
}

fn namespace(status: &KvNamespaceStatus) -> Value {
    json!({
        "namespace": format!("{:016x}", status.namespace),
        "label": status.label,
        "blocks": status.blocks,
        "bytes": status.bytes,
    })
}

fn words(status: &KvStatus) -> String {
    let mut table = Table::new(&[
        ("NAMESPACE", Align::Left),
        ("BLOCKS", Align::Right),
        ("SIZE", Align::Right),
        ("LABEL", Align::Left),
    ]);
    for space in &status.namespaces {
        let number = format!("{:016x}", space.namespace);
        table.row([number, space.blocks.to_string(), human(space.bytes), space.label.clone()]);
    }
    let lines = [
        format!("user      {}", status.user),
        format!(
            "memory    {} of {} used, {} pages",
            human(status.bytes),
            human(status.capacity_bytes),
            status.pages
        ),
        format!(
            "blocks    {}, {} being written, {} evicted so far",
            status.blocks, status.reserved, status.evictions
        ),
        String::new(),
        table.text(),
    ];
    lines.join("\n")
}
