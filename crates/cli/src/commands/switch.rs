//! `hinterland switch`: other settings for a program with far memory, while it runs.

use crate::context::Context;
use crate::failure::Failure;
use crate::run::back_end;
use crate::run::far;
use crate::size::human;
use hinterland_far::Budget;
use hinterland_far::control::{Request, Status, ask, runs};
use hinterland_os::OsError;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Within this a lowered budget is reached, or people are told why it is not.
const SECOND: Duration = Duration::from_secs(1);
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What to change.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["local", "far", "copies"]))]
#[command(after_help = "\
Example: hinterland switch 4711 --local 1G
         hinterland switch train --local 30%
         hinterland switch train --far ssd:/var/tmp@32G,lz4 --copies 2

The program goes on meanwhile. A higher budget is there at once. What is above a lower one leaves while the program's \
faults go on; if that takes longer than a second, it is said why. A budget that the program cannot live with is \
refused, and nothing changes, also where --far and --copies stand beside it.

With --far new back ends are used at once; what those that are not named any more have moves in the background, and is read where it is until then. One that is in use already gets the size that stands behind its name, and keeps its own without. A back end that cannot be opened, does not work, or has too little room is refused, and nothing changes. With --copies, what is far already is copied, or its copies dropped, in the background as well.")]
pub struct Arguments {
    /// The program: the number of one of its processes, or its name as in `hinterland far list`
    #[arg(value_name = "PID|NAME")]
    program: String,
    /// Most memory that it may have on this host: a size, or hundredths of what it uses, as in 50%
    #[arg(long, value_name = "SIZE", value_parser = far::budget)]
    local: Option<Budget>,
    /// Where the rest is kept from here on, as with `hinterland run`
    #[arg(long, visible_alias = "backends", value_name = "LIST", value_delimiter = ',', value_parser = back_end)]
    far: Option<Vec<String>>,
    /// In how many back ends each byte is kept from here on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    copies: Option<u8>,
    /// Seconds to wait until it is so
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    wait: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0 to 86400 seconds are possible".to_owned()),
    }
}

/// Changes what was asked for and waits until it is so.
///
/// # Errors
/// [`Failure`] if there is no such program, if it refuses, and if it is not so in time.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let (path, before) = runs::find(&runs::folder(), &arguments.program)?;
    let begun = Instant::now();
    let is_exchanged = arguments.far.is_some() || arguments.copies.is_some();
    let request = match arguments.local {
        Some(local) if !is_exchanged => Request::Local(local),
        // One request for all: where a part of it is refused, nothing changes.
        local => {
            let back_ends = absolute(arguments.far.as_deref().unwrap_or_default())?;
            Request::Far { back_ends, copies: arguments.copies, local }
        }
    };
    let mut status = ask(&path, &request)?;
    if is_exchanged {
        let active = status.back_ends.iter().filter(|one| one.life == "active");
        let far: Vec<_> = active.filter_map(|one| back_end::back_end(&one.name).ok()).collect();
        far::warn_of_same_fate(&far, status.copies, context);
        let Some(after) = exchange(&path, arguments, context, status, begun)? else {
            return Ok(ExitCode::SUCCESS);
        };
        status = after;
    }
    if arguments.local.is_some() {
        lower(&path, arguments, context, &before, status)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The words of a back end, which make sense to the run as well.
fn back_end(text: &str) -> Result<String, String> {
    back_end::back_end(text).map(|_| text.to_owned())
}

/// Bytes that back ends have that are no longer wanted.
fn leaving_bytes(status: &Status) -> u64 {
    status.back_ends.iter().filter(|one| one.life != "active").map(|one| one.held_bytes).sum()
}

/// Waits until content is where it shall be; returns how the run is then, none if it has ended.
fn exchange(
    path: &Path,
    arguments: &Arguments,
    context: &Context,
    status: Status,
    begun: Instant,
) -> Result<Option<Status>, Failure> {
    let used = begun.elapsed().as_secs_f64();
    let moved = leaving_bytes(&status);
    let judge = |status: &Status| {
        let waited = begun.elapsed().as_secs_f64();
        if waited < arguments.wait {
            return Ok(());
        }
        if leaving_bytes(status) == 0 {
            return Err(Failure::new(
                format!(
                    "after {waited:.1} s not all is in {} back ends: {}",
                    status.copies,
                    super::far::back_ends(status)
                ),
                "the rest goes on being copied as there is room; give the back ends more, or add one with --far",
            ));
        }
        Err(Failure::new(
            format!(
                "after {waited:.1} s {} are still where they were: {}",
                human(leaving_bytes(status)),
                super::far::back_ends(status)
            ),
            "the new back ends are in use and the rest goes on moving; all of it can be read meanwhile",
        ))
    };
    let is_moved = |status: &Status| leaving_bytes(status) == 0 && !status.is_uneven;
    let Some(status) = watch(path, context, status, is_moved, judge)? else { return Ok(None) };
    let taken = begun.elapsed().as_secs_f64();
    let value = json!({
        "pid": super::far::number(&status),
        "back_ends": status.back_ends,
        "copies": status.copies,
        "moved_bytes": moved,
        "used_after_s": used,
        "seconds": taken,
        "longest_stall_s": status.stall_s_max,
    });
    context.output.either(&value, || {
        format!(
            "{} ({}) uses {} since {used:.2} s; {} had moved after {taken:.2} s, and its longest stall meanwhile was {:.1} ms",
            status.about.name,
            super::far::number(&status),
            super::far::back_ends(&status),
            human(moved),
            status.stall_s_max * 1e3
        )
    })?;
    Ok(Some(status))
}

/// Words of back ends with whole paths: the run may be in another folder.
fn absolute(far: &[String]) -> Result<Vec<String>, Failure> {
    far.iter()
        .map(|word| match word.strip_prefix("ssd:") {
            Some(path) if !path.starts_with('/') => {
                let whole = std::path::absolute(path)
                    .map_err(|error| Failure::file("finding", Path::new(path), &error))?;
                Ok(format!("ssd:{}", whole.display()))
            }
            _ => Ok(word.clone()),
        })
        .collect()
}

/// Waits until no more than the budget is resident.
fn lower(
    path: &Path,
    arguments: &Arguments,
    context: &Context,
    before: &Status,
    status: Status,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut told = false;
    let judge = |status: &Status| {
        let waited = begun.elapsed();
        if waited >= SECOND && !told {
            told = true;
            context.output.say(why(before, status, waited));
        }
        if waited.as_secs_f64() >= arguments.wait {
            return Err(Failure::new(
                format!(
                    "after {:.1} s {} are resident, and the budget is {}",
                    waited.as_secs_f64(),
                    human(status.resident_bytes),
                    human(status.budget_bytes)
                ),
                if status.is_stuck {
                    "nothing more can leave: unlock or unmap memory in the program, or give it more"
                } else {
                    "the budget stays as it was asked for, and what is above it goes on leaving; --wait waits longer"
                },
            ));
        }
        Ok(())
    };
    let is_low = |status: &Status| status.resident_bytes <= status.budget_bytes;
    let Some(status) = watch(path, context, status, is_low, judge)? else { return Ok(()) };
    let taken = begun.elapsed().as_secs_f64();
    let value = json!({
        "pid": super::far::number(&status),
        "budget_bytes": status.budget_bytes,
        "resident_bytes": status.resident_bytes,
        "seconds": taken,
        "longest_stall_s": status.stall_s_max,
    });
    context.output.either(&value, || {
        format!(
            "{} ({}) has at most {} here since {:.2} s, of which {} are resident; its longest stall meanwhile was {:.1} ms",
            status.about.name,
            super::far::number(&status),
            super::far::budget(&status),
            taken,
            human(status.resident_bytes),
            status.stall_s_max * 1e3
        )
    })
}

/// Looks at a run until it is as it shall be; none if the program has ended meanwhile. `judge` hears of every look before, and ends it.
fn watch(
    path: &Path,
    context: &Context,
    mut status: Status,
    is_so: impl Fn(&Status) -> bool,
    mut judge: impl FnMut(&Status) -> Result<(), Failure>,
) -> Result<Option<Status>, Failure> {
    while !is_so(&status) {
        judge(&status)?;
        std::thread::sleep(LOOK_INTERVAL);
        status = match ask(path, &Request::Status) {
            Ok(status) => status,
            Err(error) if has_ended(&error) => {
                context.output.say("the program has ended meanwhile");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Some(status))
}

/// The run has removed its socket, or nobody serves it any more.
fn has_ended(error: &OsError) -> bool {
    const ENOENT: i32 = 2;
    const ECONNREFUSED: i32 = 111;
    const ECONNRESET: i32 = 104;
    matches!(error.errno(), Some(ENOENT | ECONNREFUSED | ECONNRESET))
}

fn why(before: &Status, status: &Status, waited: Duration) -> String {
    let above = status.resident_bytes.saturating_sub(status.budget_bytes);
    if status.is_stuck {
        return format!(
            "{} above the budget cannot leave: it is locked, pinned, read-only or shared with a child",
            human(above)
        );
    }
    let left = |status: &Status| status.evicted_bytes + status.dropped_bytes;
    let speed = left(status).saturating_sub(left(before)) as f64 / waited.as_secs_f64();
    if speed < 1.0 {
        return format!("{} above the budget have not begun to leave", human(above));
    }
    format!(
        "{} are above the budget still: memory leaves at {}, and the program touches more meanwhile",
        human(above),
        crate::size::rate(speed)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_why_a_budget_is_not_reached() {
        let before = Status::default();
        let mut status = Status { resident_bytes: 3 << 20, budget_bytes: 1 << 20, ..Status::default() };
        assert!(why(&before, &status, SECOND).contains("2.00 MiB above the budget have not begun"));
        status.evicted_bytes = 4 << 20;
        assert!(why(&before, &status, SECOND).contains("at 4.00 MiB/s"));
        status.is_stuck = true;
        assert!(why(&before, &status, SECOND).contains("locked"));
    }
}
