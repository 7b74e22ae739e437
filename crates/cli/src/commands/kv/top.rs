//! `hinterland kv top`: what is stored and found, each second.

use super::{hit_rate, percent};
use crate::commands::top::{interval, share};
use crate::context::Context;
use crate::failure::Failure;
use crate::screen::{Screen, show_trouble};
use crate::size::{human, rate};
use crate::table::{Align, Table, bar};
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_pool::Pool;
use hinterland_proto::control::{KvNamespaceStatus, KvStatus};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long an answer of the node is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Characters of a bar.
const BAR_WIDTH: usize = 20;

/// How to watch.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
While the node is away, or silent for 3 s, the reason is shown, and its blocks again when it is back. With --json a line is then \
an object with `node_trouble` in place of the list of stores.")]
pub struct Arguments {
    /// Show one picture and end
    #[arg(long)]
    once: bool,
    /// Seconds between pictures
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    interval: f64,
}

/// Shows pictures until it is interrupted.
///
/// # Errors
/// [`Failure`] if no node answers.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let signals = SignalWatch::new()?;
    let mut pool = Some(context.pool_to_watch(PATIENCE)?);
    let pause = Duration::from_secs_f64(arguments.interval);
    let first = look(&mut pool, context)?;
    let screen = if arguments.once { None } else { Screen::enter(context) };
    show(context, &first, &first, 0.0, screen.as_ref())?;
    let mut before = (Instant::now(), first);
    while !arguments.once && !wait_readable(&signals, Some(pause))? {
        match look(&mut pool, context) {
            Ok(stores) => {
                let now = (Instant::now(), stores);
                let elapsed = now.0.duration_since(before.0).as_secs_f64();
                show(context, &before.1, &now.1, elapsed, screen.as_ref())?;
                before = now;
            }
            // It may be started again: what it has then is shown again.
            Err(failure) => show_trouble(context, &failure, screen.as_ref())?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the node has, over the session that there is, or over a fresh one if that has ended.
fn look(pool: &mut Option<Pool>, context: &Context) -> Result<Vec<KvStatus>, Failure> {
    if let Some(stores) = pool.as_ref().and_then(|pool| pool.kv_status().ok()) {
        return Ok(stores);
    }
    *pool = None;
    Ok(pool.insert(context.pool_to_watch(PATIENCE)?).kv_status()?)
}

fn show(
    context: &Context,
    before: &[KvStatus],
    after: &[KvStatus],
    seconds: f64,
    screen: Option<&Screen>,
) -> Result<(), Failure> {
    if context.output.json {
        let stores = after.iter().map(|store| {
            let rates =
                store.namespaces.iter().map(|space| value(space, &Rates::of(before, store, space, seconds)));
            json!({ "store": super::store(store), "rates": rates.collect::<Vec<_>>() })
        });
        return context.output.json(&Value::Array(stores.collect()));
    }
    let mut lines = Vec::new();
    for store in after {
        lines.extend(picture(before, store, seconds));
        lines.push(String::new());
    }
    if after.is_empty() {
        lines.push("no KV blocks yet".to_owned());
    }
    match screen {
        Some(screen) => screen.draw(&lines),
        None => context.output.data(lines.join("\n")),
    }
}

/// What happened in a namespace each second.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Rates {
    asked: f64,
    read_bytes: f64,
    evictions: f64,
    /// Percent of those that were asked for in this time.
    found: Option<f64>,
    /// Blocks that were to be read.
    gets: f64,
    /// Percent of those that were.
    got: Option<f64>,
}

impl Rates {
    fn of(before: &[KvStatus], store: &KvStatus, after: &KvNamespaceStatus, seconds: f64) -> Self {
        let known = before
            .iter()
            .filter(|earlier| earlier.user == store.user)
            .flat_map(|earlier| &earlier.namespaces)
            .find(|space| space.namespace == after.namespace);
        let Some(before) = known.filter(|_| seconds > 0.0) else { return Self::default() };
        // A node that was restarted counts from zero again.
        let each = |before: u64, after: u64| after.saturating_sub(before);
        let (asked, found) = (each(before.asked, after.asked), each(before.found, after.found));
        let gets = each(before.gets, after.gets);
        Self {
            asked: asked as f64 / seconds,
            read_bytes: each(before.read_bytes, after.read_bytes) as f64 / seconds,
            evictions: each(before.evictions, after.evictions) as f64 / seconds,
            found: hit_rate(asked, found),
            gets: gets as f64 / seconds,
            got: hit_rate(gets, each(before.got, after.got)),
        }
    }
}

fn value(space: &KvNamespaceStatus, rates: &Rates) -> Value {
    json!({
        "namespace": format!("{:016x}", space.namespace),
        "asked_per_s": rates.asked,
        "found_percent": rates.found,
        "gets_per_s": rates.gets,
        "got_percent": rates.got,
        "read_bytes_per_s": rates.read_bytes,
        "evictions_per_s": rates.evictions,
    })
}

fn picture(before: &[KvStatus], store: &KvStatus, seconds: f64) -> Vec<String> {
    let mut lines = vec![format!(
        "hinterland kv top   user {}   {} {} of {}   {} blocks, {} being written   {} pages",
        store.user,
        bar(share(store.bytes, store.capacity_bytes), BAR_WIDTH),
        human(store.bytes),
        human(store.capacity_bytes),
        store.blocks,
        store.reserved,
        store.pages,
    )];
    let mut table = Table::new(&[
        ("NAMESPACE", Align::Left),
        ("BLOCKS", Align::Right),
        ("SIZE", Align::Right),
        ("ASKED/S", Align::Right),
        ("FOUND", Align::Right),
        ("READ/S", Align::Right),
        ("GOT", Align::Right),
        ("BYTES/S", Align::Right),
        ("EVICTED/S", Align::Right),
        ("LABEL", Align::Left),
    ]);
    for space in &store.namespaces {
        let rates = Rates::of(before, store, space, seconds);
        table.row([
            format!("{:016x}", space.namespace),
            space.blocks.to_string(),
            human(space.bytes),
            format!("{:.0}", rates.asked),
            percent(rates.found),
            format!("{:.0}", rates.gets),
            percent(rates.got),
            rate(rates.read_bytes),
            format!("{:.0}", rates.evictions),
            space.label.clone(),
        ]);
    }
    lines.extend(table.text().lines().map(str::to_owned));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_proto::control::{KvKeptStatus, KvRacksStatus};

    fn store(asked: u64, found: u64, evictions: u64) -> KvStatus {
        let space = KvNamespaceStatus {
            namespace: 7,
            label: "model".to_owned(),
            blocks: 3,
            bytes: 300,
            slot_bytes: 3072,
            evictions,
            quota_bytes: None,
            priority: 100,
            asked,
            found,
            gets: found,
            got: found / 2,
            read_bytes: found * 100,
        };
        KvStatus {
            user: 0,
            pages: "huge".to_owned(),
            capacity_bytes: 1 << 20,
            blocks: 3,
            bytes: 300,
            reserved: 0,
            evictions,
            pinned_bytes: 0,
            namespaces: vec![space],
            racks: KvRacksStatus::default(),
            disk: None,
            kept: KvKeptStatus::default(),
            eviction: "lru".to_owned(),
        }
    }

    #[test]
    fn rates_are_differences_and_the_hit_rate_is_of_this_time() {
        let (before, after) = (store(100, 100, 0), store(140, 110, 6));
        let rates = Rates::of(std::slice::from_ref(&before), &after, &after.namespaces[0], 2.0);
        assert_eq!(
            rates,
            Rates {
                asked: 20.0,
                read_bytes: 500.0,
                evictions: 3.0,
                found: Some(25.0),
                gets: 5.0,
                got: Some(50.0)
            }
        );
        let text = picture(&[before], &after, 2.0).join("\n");
        assert!(text.contains("25.0 %") && text.contains("model"), "{text}");
    }

    #[test]
    fn a_namespace_that_is_new_or_a_node_that_was_restarted_has_no_rates() {
        let (before, after) = (store(100, 100, 9), store(10, 1, 0));
        assert_eq!(Rates::of(&[], &after, &after.namespaces[0], 1.0), Rates::default());
        let rates = Rates::of(&[before], &after, &after.namespaces[0], 1.0);
        assert_eq!((rates.asked, rates.found), (0.0, None));
    }
}
