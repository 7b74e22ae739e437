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
    #[command(alias = "ls")]
    List,
}

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

/// The names of the back ends, with what each has.
pub fn back_ends(status: &Status) -> String {
    let here = status.back_ends.iter().filter(|one| one.life != "gone");
    let words = here.map(|one| {
        let life = if one.life == "active" { String::new() } else { format!(" ({})", one.life) };
        format!("{} {}{life}", one.name, human(one.held_bytes))
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
