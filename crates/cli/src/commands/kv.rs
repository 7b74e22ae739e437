//! `hinterland kv`: KV blocks that programs of this host share.

mod block;
mod events;
mod limit;
mod top;

use crate::context::Context;
use crate::failure::Failure;
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_pool::KvCache;
use hinterland_proto::control::{KvDiskStatus, KvKeptStatus, KvNamespaceStatus, KvStatus};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::ExitCode;

/// What to do.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A namespace is named by its number or the start of its label, as `hinterland kv stat` shows them; a key by its bytes in \
hexadecimal digits, or as text.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What can be done.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show how much is stored and found, for each namespace
    Stat,
    /// Watch what is stored and found
    Top(top::Arguments),
    /// Show one block: where it lies, its pins, what it follows on
    Inspect(block::Arguments),
    /// Print blocks as they are stored and removed
    Events(events::Arguments),
    /// Set how much memory a namespace may take, and who gives first
    Limit(limit::Arguments),
    /// Remove all blocks of a namespace from this node, or from all
    Clear(limit::Clear),
}

/// Does it.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Stat => stat(context),
        Command::Top(arguments) => top::run(arguments, context),
        Command::Inspect(arguments) => block::run(arguments, context),
        Command::Events(arguments) => events::run(arguments, context),
        Command::Limit(arguments) => limit::run(arguments, context),
        Command::Clear(arguments) => limit::clear(arguments, context),
    }
}

/// Shows the stores of the node: lines and a table for each, or a JSON array.
fn stat(context: &Context) -> Result<ExitCode, Failure> {
    let stores = context.pool_to_look()?.kv_status()?;
    if stores.is_empty() && !context.output.json {
        context.output.say("no KV blocks (a program opens them with `Pool.kv` of the Python package)");
        return Ok(ExitCode::SUCCESS);
    }
    let value = Value::Array(stores.iter().map(store).collect());
    context.output.either(&value, || stores.iter().map(words).collect::<Vec<_>>().join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The namespace that a word names: its number, or the start of one label. Those of the own user go first: others may have the same ones.
fn open(word: &str, context: &Context) -> Result<KvCache, Failure> {
    let pool = context.pool()?;
    let stores = pool.kv_status()?;
    let spaces = stores.iter().flat_map(|store| {
        store.namespaces.iter().map(|space| (store.user, space.namespace, space.label.as_str()))
    });
    let meant = meant(word, &spaces.collect::<Vec<_>>(), nix::unistd::getuid().as_raw());
    match meant.as_slice() {
        [namespace] => Ok(pool.kv_known(*namespace)?),
        [] => {
            let text = format!("no namespace of KV blocks is called {word:?}");
            Err(Failure::usage(text, "`hinterland kv stat` lists them"))
        }
        several => {
            let text = format!("{} namespaces have labels that start with {word:?}", several.len());
            Err(Failure::usage(text, "give the number that `hinterland kv stat` shows"))
        }
    }
}

/// The numbers of the namespaces, given as user, number and label, that a word names: those of one user, or if that one has none, of others.
fn meant(word: &str, spaces: &[(u32, u64, &str)], user: u32) -> Vec<u64> {
    let number = u64::from_str_radix(word, 16).ok().filter(|_| word.len() == 16);
    let is_meant =
        |space: u64, label: &str| number.map_or_else(|| label.starts_with(word), |number| number == space);
    let of = |is_own: bool| {
        let found = spaces
            .iter()
            .filter(|(owner, space, label)| (*owner == user) == is_own && is_meant(*space, label));
        found.map(|(_, space, _)| *space).collect::<BTreeSet<u64>>().into_iter().collect()
    };
    let own: Vec<u64> = of(true);
    if own.is_empty() { of(false) } else { own }
}

/// Percent of the keys that were asked for and there.
fn hit_rate(asked: u64, found: u64) -> Option<f64> {
    (asked > 0).then(|| found as f64 * 100.0 / asked as f64)
}

fn percent(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1} %"))
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
        "pinned_bytes": status.pinned_bytes,
        "racks": {
            "nodes": status.racks.nodes,
            "resting": status.racks.resting,
            "hits": status.racks.hits,
            "misses": status.racks.misses,
            "bytes": status.racks.bytes,
            "checksum_failures": status.racks.checksum_failures,
            "sent_blocks": status.racks.sent_blocks,
            "sent_bytes": status.racks.sent_bytes,
        },
        "disk": status.disk.as_ref().map(disk),
        "kept": kept(&status.kept),
        "namespaces": status.namespaces.iter().map(namespace).collect::<Vec<_>>(),
    })
}

fn kept(status: &KvKeptStatus) -> Value {
    json!({
        "path": status.path,
        "restored_blocks": status.restored_blocks,
        "dropped_blocks": status.dropped_blocks,
        "unchecked_blocks": status.unchecked_blocks,
        "abandoned_slots": status.abandoned_slots,
        "unsummed_blocks": status.unsummed_blocks,
        "damaged_blocks": status.damaged_blocks,
        "verifies": status.verifies,
        "evictions_ahead": status.evictions_ahead,
    })
}

/// What people are told of what outlives the node, and of what was found wrong.
fn kept_words(status: &KvKeptStatus) -> String {
    let path = match &status.path {
        Some(path) => format!("in {path}, also after a restart"),
        None => "as long as the node runs".to_owned(),
    };
    let checked = if status.verifies { "each time they are read" } else { "when they have arrived" };
    format!(
        "kept      {path}; {} came from before, {} were dropped, {} are to be checked, {} slots may still be written by programs of before\nchecked   {checked}; {} were damaged and dropped",
        status.restored_blocks,
        status.dropped_blocks,
        status.unchecked_blocks,
        status.abandoned_slots,
        status.damaged_blocks
    )
}

fn disk(status: &KvDiskStatus) -> Value {
    json!({
        "path": status.path,
        "state": status.state,
        "capacity_bytes": status.capacity_bytes,
        "blocks": status.blocks,
        "bytes": status.bytes,
        "staged_bytes": status.staged_bytes,
        "written_blocks": status.written_blocks,
        "written_bytes": status.written_bytes,
        "read_blocks": status.read_blocks,
        "read_bytes": status.read_bytes,
        "lost_blocks": status.lost_blocks,
        "failures": status.failures,
        "checksum_failures": status.checksum_failures,
        "last_error": status.last_error,
    })
}

/// What people are told of a disk: one line, and another one if something went wrong.
fn disk_words(status: &KvDiskStatus) -> String {
    let mut words = format!(
        "disk      {}: {} of {} used, {} blocks; {} written, {} brought back, {} not kept",
        status.state,
        human(status.bytes),
        human(status.capacity_bytes),
        status.blocks,
        status.written_blocks,
        status.read_blocks,
        status.lost_blocks
    );
    match &status.last_error {
        Some(error) if status.failures == 0 => words.push_str(&format!("\n          {error}")),
        Some(error) => {
            words.push_str(&format!("\n          {} failures, the last one: {error}", status.failures));
        }
        None => {}
    }
    words
}

fn namespace(status: &KvNamespaceStatus) -> Value {
    json!({
        "namespace": format!("{:016x}", status.namespace),
        "label": status.label,
        "blocks": status.blocks,
        "bytes": status.bytes,
        "slot_bytes": status.slot_bytes,
        "evictions": status.evictions,
        "quota_bytes": status.quota_bytes,
        "priority": status.priority,
        "asked": status.asked,
        "found": status.found,
        "gets": status.gets,
        "got": status.got,
        "read_bytes": status.read_bytes,
    })
}

fn words(status: &KvStatus) -> String {
    let mut table = Table::new(&[
        ("NAMESPACE", Align::Left),
        ("BLOCKS", Align::Right),
        ("SIZE", Align::Right),
        ("QUOTA", Align::Right),
        ("PRIORITY", Align::Right),
        ("EVICTED", Align::Right),
        ("ASKED", Align::Right),
        ("FOUND", Align::Right),
        ("READ", Align::Right),
        ("GOT", Align::Right),
        ("LABEL", Align::Left),
    ]);
    for space in &status.namespaces {
        let number = format!("{:016x}", space.namespace);
        table.row([
            number,
            space.blocks.to_string(),
            human(space.bytes),
            space.quota_bytes.map_or_else(|| "none".to_owned(), human),
            space.priority.to_string(),
            space.evictions.to_string(),
            space.asked.to_string(),
            percent(hit_rate(space.asked, space.found)),
            space.gets.to_string(),
            percent(hit_rate(space.gets, space.got)),
            space.label.clone(),
        ]);
    }
    let mut lines = vec![
        format!("user      {}", status.user),
        format!(
            "memory    {} of {} used, {} pinned, {} pages",
            human(status.bytes),
            human(status.capacity_bytes),
            human(status.pinned_bytes),
            status.pages
        ),
        format!(
            "blocks    {}, {} being written, {} evicted so far, {} of them ahead",
            status.blocks, status.reserved, status.evictions, status.kept.evictions_ahead
        ),
        format!(
            "racks     {} other nodes, {} left alone for a while; {} blocks ({}) came, {} were not had, {} were wrong; {} ({}) went",
            status.racks.nodes,
            status.racks.resting,
            status.racks.hits,
            human(status.racks.bytes),
            status.racks.misses,
            status.racks.checksum_failures,
            status.racks.sent_blocks,
            human(status.racks.sent_bytes)
        ),
    ];
    lines.push(kept_words(&status.kept));
    lines.extend(status.disk.as_ref().map(disk_words));
    lines.extend([String::new(), table.text()]);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_two_users_have_is_that_of_the_user_who_asks() {
        let spaces = [
            (0, 7, "llama a"),
            (0, 8, "llama b"),
            (1000, 7, "llama a"),
            (1000, 9, "qwen"),
            (1001, 9, "qwen"),
        ];
        assert_eq!(meant("llama a", &spaces, 1000), [7]);
        assert_eq!(meant("0000000000000007", &spaces, 0), [7]);
        assert_eq!(meant("llama", &spaces, 1000), [7]);
        assert_eq!(meant("llama", &spaces, 0), [7, 8]);
        // Of others: the node says whose it is.
        assert_eq!(meant("qwen", &spaces, 0), [9]);
        assert_eq!(meant("nothing", &spaces, 0), [0; 0]);
    }
}
