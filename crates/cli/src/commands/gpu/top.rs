//! `hinterland gpu top`: watches the devices and sessions of a GPU node.

use super::list;
use crate::commands::top::interval;
use crate::context::Context;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::size::rate;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_proto::gpu::GpuStatus;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How to watch.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    node: list::Arguments,
    /// Show one picture and end
    #[arg(long)]
    once: bool,
    /// Seconds between pictures
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    interval: f64,
}

/// What has happened each second, in all sessions that were there both times.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Rates {
    launches: f64,
    bytes_in: f64,
    bytes_out: f64,
}

impl Rates {
    fn between(before: &GpuStatus, after: &GpuStatus, seconds: f64) -> Self {
        let mut rates = Self::default();
        for new in &after.sessions {
            let Some(old) = before.sessions.iter().find(|old| old.session == new.session) else { continue };
            let a_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds.max(1e-3);
            rates.launches += a_second(new.launches, old.launches);
            rates.bytes_in += a_second(new.bytes_in, old.bytes_in);
            rates.bytes_out += a_second(new.bytes_out, old.bytes_out);
        }
        rates
    }
}

/// Shows pictures until it is interrupted.
///
/// # Errors
/// [`Failure`] if no node answers.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let signals = SignalWatch::new()?;
    let mut inquiry = list::open(&arguments.node)?;
    let mut before = (Instant::now(), inquiry.ask()?);
    if arguments.once {
        show(context, &before.1, Rates::default(), None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::enter(context);
    show(context, &before.1, Rates::default(), screen.as_ref())?;
    while !wait_readable(&signals, Some(Duration::from_secs_f64(arguments.interval)))? {
        let after = (Instant::now(), inquiry.ask()?);
        let rates = Rates::between(&before.1, &after.1, after.0.duration_since(before.0).as_secs_f64());
        show(context, &after.1, rates, screen.as_ref())?;
        before = after;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(context: &Context, status: &GpuStatus, rates: Rates, screen: Option<&Screen>) -> Result<(), Failure> {
    let Rates { launches, bytes_in, bytes_out } = rates;
    if context.output.json {
        let a_second = json!({ "launches": launches, "bytes_in": bytes_in, "bytes_out": bytes_out });
        return context.output.json(&json!({ "node": list::value(status), "per_second": a_second }));
    }
    let head = format!("{launches:.0} launches/s   in {}   out {}", rate(bytes_in), rate(bytes_out));
    let text = format!("{head}\n\n{}", list::words(status));
    match screen {
        Some(screen) => screen.draw(&text.lines().map(str::to_owned).collect::<Vec<_>>()),
        None => context.output.data(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_proto::gpu::SessionStatus;

    fn status(session: u64, launches: u64) -> GpuStatus {
        let session = SessionStatus {
            session,
            program: String::new(),
            host: String::new(),
            process: 1,
            session_process: 2,
            seconds: 0,
            memory: 0,
            grant: 0,
            commands: 0,
            launches,
            bytes_in: 0,
            bytes_out: 0,
        };
        GpuStatus {
            version: 1,
            devices: Vec::new(),
            sessions: vec![session],
            sessions_total: 1,
            images: 0,
            image_bytes: 0,
        }
    }

    #[test]
    fn a_session_that_is_new_or_gone_makes_no_rate() {
        assert_eq!(Rates::between(&status(1, 100), &status(1, 300), 2.0).launches, 100.0);
        assert_eq!(Rates::between(&status(1, 100), &status(2, 300), 2.0), Rates::default());
    }
}
