//! `hinterland top`: watches members, caches and rates, and programs with far memory.

mod far;
pub mod watch;

use crate::context::Context;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::shapes;
use crate::size::{human, rate};
use crate::table::{Align, Table, bar};
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_proto::control::{CacheStatus, Counters, MemberInfo};
use hinterland_types::NodeName;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use watch::{Look, Sample, Watch};

/// Characters of a bar.
const BAR_WIDTH: usize = 20;
/// How long a picture waits for the node and the directory. They answer in milliseconds if they answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How to watch.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
While no node answers it says so, and goes on when one does. With --json each picture is one line: `status` as \
`hinterland status` gives it and `rates`, both left out while no node answers, with the reason in `node_trouble`; `far`, `at_ms`.")]
pub struct Arguments {
    /// Show one picture and end
    #[arg(long)]
    once: bool,
    /// Seconds between pictures
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    interval: f64,
}

pub fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.1 to 3600 seconds are possible".to_owned()),
    }
}

/// What is shown: the node, or why it does not answer, and programs with far memory if there are any.
struct Picture<'a> {
    node: Result<(&'a Sample, Rates), &'a Failure>,
    programs: &'a far::Programs,
}

/// What has happened each second between two samples.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Rates {
    received_bytes: f64,
    sent_bytes: f64,
    faults: f64,
    demand_fills: f64,
    prefetch_fills: f64,
    filled_bytes: f64,
    evictions: f64,
    requests: f64,
    /// Mean time of a demand fill in microseconds.
    fill_us: f64,
}

/// Shows pictures until it is interrupted.
///
/// # Errors
/// [`Failure`] if no node answers at the start, and no program has far memory.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let signals = SignalWatch::new()?;
    // Who may not look into the folder of others' programs still sees the pool.
    let mut programs = far::Programs::default().followed_by(super::far::statuses().unwrap_or_default());
    let mut watch = Watch::start(context, &signals)?;
    let mut before = match watch.look(None)? {
        Look::Seen(sample) => Ok(sample),
        Look::Unseen(failure) if programs.is_empty() => return Err(failure),
        Look::Unseen(failure) => Err(failure),
        Look::Interrupted => return Ok(ExitCode::SUCCESS),
    };
    let pause = Duration::from_secs_f64(arguments.interval);
    let node = before.as_ref().map(|sample| (&**sample, Rates::default()));
    let first = Picture { node, programs: &programs };
    if arguments.once {
        show(context, &first, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::enter(context);
    show(context, &first, screen.as_ref())?;
    while !wait_readable(&signals, Some(pause))? {
        let after = match watch.look(Some(PATIENCE))? {
            Look::Seen(sample) => Ok(sample),
            Look::Unseen(failure) => Err(failure),
            Look::Interrupted => break,
        };
        programs = programs.followed_by(super::far::statuses().unwrap_or_default());
        let node = after.as_ref().map(|sample| (&**sample, Rates::since(before.as_deref().ok(), sample)));
        show(context, &Picture { node, programs: &programs }, screen.as_ref())?;
        before = after;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(context: &Context, picture: &Picture<'_>, screen: Option<&Screen>) -> Result<(), Failure> {
    if context.output.json {
        return context.output.json(&picture.value());
    }
    let lines = picture.lines();
    match screen {
        Some(screen) => screen.draw(&lines),
        None => context.output.data(lines.join("\n")),
    }
}

impl Picture<'_> {
    fn value(&self) -> Value {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let mut value = self.node.map_or_else(|_| json!({}), |(sample, rates)| value(sample, rates));
        value["node_trouble"] = json!(self.node.err().map(|failure| &failure.text));
        value["at_ms"] = json!(at_ms);
        value["far"] = self.programs.value();
        value
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = match self.node {
            Ok((sample, rates)) => picture(sample, rates),
            Err(failure) => vec![
                "hinterland top".to_owned(),
                String::new(),
                failure.text.clone(),
                format!("hint: {}", failure.hint),
            ],
        };
        if self.node.is_err() || !self.programs.is_empty() {
            lines.push(String::new());
            lines.extend(self.programs.lines());
        }
        lines
    }
}

impl Rates {
    /// None for a node that has not been seen before.
    fn since(before: Option<&Sample>, after: &Sample) -> Self {
        before.map_or_else(Self::default, |before| {
            let elapsed = after.at.duration_since(before.at).as_secs_f64();
            Self::between(&before.status.counters, &after.status.counters, elapsed)
        })
    }

    fn between(before: &Counters, after: &Counters, seconds: f64) -> Self {
        let seconds = seconds.max(0.001);
        // A node that was restarted counts from zero again.
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let fills = after.demand_fills.saturating_sub(before.demand_fills);
        let fill_us = after.demand_fill_us.saturating_sub(before.demand_fill_us);
        Self {
            received_bytes: each(before.network_received_bytes, after.network_received_bytes),
            sent_bytes: each(before.network_sent_bytes, after.network_sent_bytes),
            faults: each(before.faults, after.faults),
            demand_fills: each(before.demand_fills, after.demand_fills),
            prefetch_fills: each(before.prefetch_fills, after.prefetch_fills),
            filled_bytes: each(before.filled_bytes, after.filled_bytes),
            evictions: each(before.evictions, after.evictions),
            requests: each(before.ring_requests, after.ring_requests),
            fill_us: if fills == 0 { 0.0 } else { fill_us as f64 / fills as f64 },
        }
    }
}

fn value(sample: &Sample, rates: Rates) -> Value {
    json!({
        "status": shapes::status(&sample.status, &sample.members),
        "rates": {
            "network_received_bytes_per_s": rates.received_bytes,
            "network_sent_bytes_per_s": rates.sent_bytes,
            "faults_per_s": rates.faults,
            "demand_fills_per_s": rates.demand_fills,
            "prefetch_fills_per_s": rates.prefetch_fills,
            "filled_bytes_per_s": rates.filled_bytes,
            "evictions_per_s": rates.evictions,
            "ring_requests_per_s": rates.requests,
            "demand_fill_us": rates.fill_us,
        },
    })
}

fn picture(sample: &Sample, rates: Rates) -> Vec<String> {
    let Sample { status, members, .. } = sample;
    let directory = match (status.directory, &status.shared) {
        (false, _) => "",
        (true, None) => ", directory",
        (true, Some(_)) => ", leads the directory",
    };
    let mut lines = vec![
        format!(
            "hinterland top   {} in rack {}{directory}   up {}   {}   {}",
            status.name,
            status.rack,
            super::status::duration(status.uptime_s),
            super::status::sessions(status.sessions),
            status.backing
        ),
        String::new(),
    ];
    if let Some(shared) = &status.shared {
        lines.push(format!("directory led by {}", super::status::leader(shared)));
        lines.push(String::new());
    }
    lines.extend(match members {
        Ok(members) => member_lines(members),
        Err(trouble) => vec![format!("members are not known: {trouble}")],
    });
    lines.push(String::new());
    let budget = status.cache_budget_bytes;
    lines.push(format!(
        "cache {} {} of {} budget",
        bar(share(status.cache_bytes, budget), BAR_WIDTH),
        human(status.cache_bytes),
        human(budget)
    ));
    lines.extend(cache_lines(&status.caches, status.caches_left_out));
    lines.push(String::new());
    lines.extend(rate_lines(rates, &status.counters));
    if let Some(problem) = status.problems.last() {
        lines.push(String::new());
        lines.push(format!("last problem: {}", problem.text));
    }
    lines
}

fn member_lines(members: &[MemberInfo]) -> Vec<String> {
    let mut table = Table::new(&[
        ("RACK", Align::Left),
        ("NAME", Align::Left),
        ("NODE", Align::Left),
        ("ADDRESS", Align::Left),
        ("STATE", Align::Left),
        ("MEMORY", Align::Left),
        ("USED", Align::Right),
        ("OF", Align::Right),
    ]);
    for member in members {
        table.row([
            member.rack.to_string(),
            member.name.as_ref().map_or_else(|| "?".to_owned(), NodeName::to_string),
            member.node.to_string(),
            member.address.clone(),
            if member.up { "up" } else { "DOWN" }.to_owned(),
            bar(share(member.used_bytes, member.capacity_bytes), BAR_WIDTH),
            human(member.used_bytes),
            human(member.capacity_bytes),
        ]);
    }
    table.text().lines().map(str::to_owned).collect()
}

fn cache_lines(caches: &[CacheStatus], left_out: u32) -> Vec<String> {
    if caches.is_empty() {
        return vec!["no object of another rack is cached".to_owned()];
    }
    let mut table = Table::new(&[
        ("CACHED OBJECT", Align::Left),
        ("HERE", Align::Left),
        ("BYTES", Align::Right),
        ("OF", Align::Right),
        ("BUDGET", Align::Right),
        ("UNITS", Align::Right),
        ("MAPPED", Align::Right),
        ("PAGES", Align::Left),
    ]);
    for cache in caches {
        table.row([
            cache.name.clone(),
            bar(share(cache.resident_bytes, cache.bytes), BAR_WIDTH),
            human(cache.resident_bytes),
            human(cache.bytes),
            cache.budget_bytes.map_or_else(|| "node's".to_owned(), human),
            format!("{}/{}", cache.resident_units, cache.units),
            cache.mappings.to_string(),
            cache.pages.clone(),
        ]);
    }
    let mut lines: Vec<String> = table.text().lines().map(str::to_owned).collect();
    if left_out > 0 {
        lines.push(format!("and {left_out} more cached objects, with fewer bytes here"));
    }
    lines
}

fn rate_lines(rates: Rates, counters: &Counters) -> Vec<String> {
    let mut table = Table::new(&[("", Align::Left), ("EACH SECOND", Align::Right), ("IN ALL", Align::Right)]);
    let mut bytes = |name: &str, each: f64, all: u64| table.row([name.to_owned(), rate(each), human(all)]);
    bytes("network in", rates.received_bytes, counters.network_received_bytes);
    bytes("network out", rates.sent_bytes, counters.network_sent_bytes);
    bytes("filled", rates.filled_bytes, counters.filled_bytes);
    let mut count = |name: &str, each: f64, all: u64| {
        table.row([name.to_owned(), format!("{each:.0}"), all.to_string()]);
    };
    count("faults", rates.faults, counters.faults);
    count("fills on demand", rates.demand_fills, counters.demand_fills);
    count("fills ahead", rates.prefetch_fills, counters.prefetch_fills);
    count("evictions", rates.evictions, counters.evictions);
    count("ring requests", rates.requests, counters.ring_requests);
    let mut lines: Vec<String> = table.text().lines().map(str::to_owned).collect();
    if rates.fill_us > 0.0 {
        lines.push(format!("a fill on demand takes {:.0} us", rates.fill_us));
    }
    lines.extend(super::region::moved_line(counters));
    let trouble = [
        (counters.copies_made, "lost copies were made again here"),
        (counters.heat_copies_made, "copies were made here because this rack reads them a lot"),
        (counters.heat_copies_dropped, "of these were dropped"),
        (counters.failovers, "fetches went to another replica"),
        (counters.checksum_failures, "blocks arrived with a wrong checksum"),
        (counters.poisoned_faults, "faults ended in SIGBUS"),
    ];
    lines.extend(trouble.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    lines
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::Members;
    use crate::shapes::samples::{members, node};
    use std::time::Instant;

    fn shown(rates: Rates) -> String {
        picture(&sample(Ok(members())), rates).join("\n")
    }

    fn sample(members: Members) -> Sample {
        Sample { at: Instant::now(), status: node(), members }
    }

    #[test]
    fn a_node_whose_directory_is_away_shows_itself_and_why_it_knows_no_members() {
        let sample = sample(Err("nobody listens".to_owned()));
        let text = picture(&sample, Rates::default()).join("\n");
        assert!(text.contains("a in rack a") && text.contains("network in"), "{text}");
        assert!(
            text.contains("members are not known: nobody listens") && !text.contains("ADDRESS"),
            "{text}"
        );
        let value = value(&sample, Rates::default());
        assert_eq!(value["status"]["members_trouble"], "nobody listens");
    }

    #[test]
    fn while_no_node_answers_the_picture_says_so() {
        let (failure, programs) = (Failure::new("no node answers", "start one"), far::Programs::default());
        let picture = Picture { node: Err(&failure), programs: &programs };
        let text = picture.lines().join("\n");
        assert!(text.contains("no node answers\nhint: start one"), "{text}");
        let value = picture.value();
        assert_eq!(value["node_trouble"], "no node answers");
        assert!(value.get("status").is_none() && value.get("rates").is_none());
    }

    #[test]
    fn rates_are_differences_over_time() {
        let before = Counters { faults: 10, demand_fills: 5, demand_fill_us: 100, ..Counters::default() };
        let after = Counters { faults: 30, demand_fills: 15, demand_fill_us: 400, ..Counters::default() };
        let rates = Rates::between(&before, &after, 2.0);
        assert_eq!((rates.faults, rates.demand_fills, rates.fill_us), (10.0, 5.0, 30.0));
    }

    #[test]
    fn a_restarted_node_has_no_negative_rates() {
        let before = Counters { faults: 1000, ..Counters::default() };
        assert_eq!(Rates::between(&before, &Counters::default(), 1.0), Rates::default());
    }

    #[test]
    fn a_picture_shows_members_caches_rates_and_the_last_problem() {
        let text = shown(Rates { received_bytes: 1048576.0, fill_us: 25.0, ..Rates::default() });
        for part in [
            "a in rack a, directory   up 1 h 2 min   2 sessions",
            "b     ?      node-2  127.0.0.1:7402  DOWN   [--------------------]",
            "cache [#-------------------] 64.0 MiB of 2.00 GiB budget",
            "models/small.gguf  [#########-----------]  64.0 MiB  145 MiB  100 MiB  32/73       2  huge",
            "network in        1.00 MiB/s     0 B",
            "a fill on demand takes 25 us",
            "last problem: rack c does not answer",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }

    #[test]
    fn caches_that_an_answer_had_no_room_for_are_counted() {
        let caches = crate::shapes::samples::node().caches;
        assert!(!cache_lines(&caches, 0).join("\n").contains("more"));
        assert_eq!(
            cache_lines(&caches, 700).last().unwrap(),
            "and 700 more cached objects, with fewer bytes here"
        );
    }

    #[test]
    fn trouble_is_shown_only_when_there_is_some() {
        assert!(!shown(Rates::default()).contains("SIGBUS"));
        let counters = Counters { poisoned_faults: 3, ..Counters::default() };
        assert!(rate_lines(Rates::default(), &counters).join("\n").contains("3 faults ended in SIGBUS"));
    }
}
