//! `hinterland far`: programs whose memory is partly elsewhere.

use crate::context::Context;
use crate::failure::Failure;
use crate::size::human;
use crate::table::{Align, Table};
use clap::Subcommand;
use hinterland_far::Budget;
use hinterland_far::control::{Status, runs};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What to do.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
`hinterland run --local SIZE -- PROGRAM` starts such a program, `hinterland switch` changes its settings while it \
runs, and `hinterland top` shows it live.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List the programs of this user that have far memory
    #[command(alias = "ls", after_help = FIELDS)]
    List,
}

/// What `--json` says of back ends.
const FIELDS: &str = "\
With --json each program has `short_bytes`, what its budget is short of: with so much more, nine of ten of its latest faults for what was far would not have \
been (null where there were few); and `back_ends`, each of them with: `name`; `life` (active, retired, failed, or gone); \
`out_bytes` and `in_bytes`, the content that went in and came back; `held_bytes`, the content that is there; \
`memory_bytes`, the memory of this host that it takes for that, which is less where it compresses and 0 for a disk and the pool; \
`limit_bytes`, the most that it takes, compressed, or null; \
`speed_bytes_s`, its bytes a second of late, in and out together; \
`put_s` and `get_s`, the seconds that it takes of late to put content and to get it back, those of a batch divided by their number.";

/// Lists programs: a table, or JSON.
///
/// # Errors
/// [`Failure`] if the folder of control sockets is another user's.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let What::List = arguments.what;
    let found = statuses()?;
    if found.is_empty() && !context.output.json {
        context.output.say("no program of this user has far memory");
        return Ok(ExitCode::SUCCESS);
    }
    let values: Vec<Value> = found.iter().map(value).collect();
    context.output.either(&json!({ "programs": values }), || table(&found).text())?;
    Ok(ExitCode::SUCCESS)
}

/// How all runs of this user are.
///
/// # Errors
/// [`Failure`] if the folder of control sockets is another user's.
pub fn statuses() -> Result<Vec<Status>, Failure> {
    Ok(runs::list(&runs::folder())?.into_iter().map(|(_, status)| status).collect())
}

/// A run as JSON.
pub fn value(status: &Status) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    value["pid"] = json!(number(status));
    value
}

/// The number that people know the program by: its first process, or its supervisor's before it has greeted.
pub fn number(status: &Status) -> i64 {
    status.processes.first().map_or(i64::from(status.supervisor), |process| i64::from(*process))
}

/// A budget as it is written on the command line.
pub fn budget(status: &Status) -> String {
    match status.budget {
        Budget::Bytes(bytes) => human(bytes),
        Budget::Percent(percent) => format!("{percent}% ({})", human(status.budget_bytes)),
    }
}

/// The names of the back ends, with what each has, and what it takes of this host's memory for that.
pub fn back_ends(status: &Status) -> String {
    let here = status.back_ends.iter().filter(|one| one.life != "gone");
    let words = here.map(|one| {
        let life = if one.life == "active" { String::new() } else { format!(" ({})", one.life) };
        let memory = match one.memory_bytes {
            0 => String::new(),
            bytes => {
                let ratio = one.held_bytes as f64 / bytes as f64;
                format!(" in {} of memory ({ratio:.1} to 1)", human(bytes))
            }
        };
        format!("{} {}{memory}{life}", one.name, human(one.held_bytes))
    });
    words.collect::<Vec<_>>().join(", ")
}

fn table(found: &[Status]) -> Table {
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("NAME", Align::Left),
        ("BUDGET", Align::Right),
        ("RESIDENT", Align::Right),
        ("FAR", Align::Right),
        ("BACK ENDS", Align::Left),
        ("UP", Align::Right),
    ]);
    for status in found {
        table.row([
            number(status).to_string(),
            status.about.name.clone(),
            budget(status),
            human(status.resident_bytes),
            human(status.far_bytes),
            back_ends(status),
            super::status::duration(status.uptime_s as u64),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_far::control::BackEndStatus;

    #[test]
    fn back_ends_are_shown_with_the_memory_that_they_take() {
        let one = |name: &str, memory_bytes| BackEndStatus {
            name: name.to_owned(),
            life: "active".to_owned(),
            held_bytes: 3 << 20,
            memory_bytes,
            get_s: 0.25,
            ..BackEndStatus::default()
        };
        let status = Status { back_ends: vec![one("lz4", 2 << 20), one("ssd:/tmp", 0)], ..Status::default() };
        assert_eq!(back_ends(&status), "lz4 3.00 MiB in 2.00 MiB of memory (1.5 to 1), ssd:/tmp 3.00 MiB");
        let value = value(&status);
        assert_eq!(value["back_ends"][0]["memory_bytes"], 2 << 20);
        assert_eq!(value["back_ends"][1]["get_s"], 0.25);
        // Each field is explained, and none that is not there.
        let fields = value["back_ends"][0].as_object().unwrap();
        assert!(fields.keys().all(|field| FIELDS.contains(&format!("`{field}`"))), "{fields:?}");
    }
}
