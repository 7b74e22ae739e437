//! `hinterland gpu top`: watches the devices and sessions of a GPU node.

use super::list;
use crate::commands::top::interval;
use crate::commands::top::watch::Asker;
use crate::context::Context;
use crate::failure::Failure;
use crate::screen::{Screen, show_trouble};
use crate::size::rate;
use hinterland_gpunode::inquiry::Inquiry;
use hinterland_os::poll::{EventCounter, Interest, Poller, SignalWatch, wait_readable};
use hinterland_proto::gpu::GpuStatus;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a picture waits for the node, which answers in milliseconds if it answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Token of a signal that ends the watch.
const SIGNAL: u64 = 0;
/// Token of an answer.
const ANSWER: u64 = 1;

/// How to watch.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
While the node is away, or silent for 2 s, the reason is shown, and its devices again when it is back. With --json a line is then \
an object with `node_trouble` alone.")]
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
    let mut watch = Watch::start(&arguments.node, &signals)?;
    let mut before = match watch.look(None)? {
        Some(first) => (Instant::now(), first?),
        None => return Ok(ExitCode::SUCCESS),
    };
    let screen = if arguments.once { None } else { Screen::enter(context) };
    show(context, &before.1, Rates::default(), screen.as_ref())?;
    let pause = Duration::from_secs_f64(arguments.interval);
    while !arguments.once && !wait_readable(&signals, Some(pause))? {
        match watch.look(Some(PATIENCE))? {
            Some(Ok(status)) => {
                let after = (Instant::now(), status);
                let seconds = after.0.duration_since(before.0).as_secs_f64();
                show(context, &after.1, Rates::between(&before.1, &after.1, seconds), screen.as_ref())?;
                before = after;
            }
            // It may be started again: what it has then is shown again.
            Some(Err(failure)) => show_trouble(context, &failure, screen.as_ref())?,
            None => break,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A GPU node that is asked beside the picture: one that hangs holds up neither that nor ctrl-C.
struct Watch {
    poller: Poller,
    answered: Arc<EventCounter>,
    asker: Asker<GpuStatus, Failure>,
}

impl Watch {
    /// `signals` must outlive it.
    fn start(node: &list::Arguments, signals: &SignalWatch) -> Result<Self, Failure> {
        let (poller, answered) = (Poller::new()?, Arc::new(EventCounter::new()?));
        poller.add(signals, SIGNAL, Interest::READ)?;
        poller.add(&*answered, ANSWER, Interest::READ)?;
        let (node, mut inquiry) = (node.clone(), None);
        let asker = Asker::start(&answered, move || ask(&mut inquiry, &node))?;
        Ok(Self { poller, answered, asker })
    }

    /// What the node says, or why it says nothing; it is waited for no longer than `patience` if there is one. `None` if a signal is to end
    /// the watch.
    fn look(&mut self, patience: Option<Duration>) -> Result<Option<Result<GpuStatus, Failure>>, Failure> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        // What came too late for the picture before is no news.
        drop(self.asker.answer());
        self.asker.ask();
        let mut ready = Vec::new();
        loop {
            if let Some(answer) = self.asker.answer() {
                return Ok(Some(answer));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                let text = format!("the GPU node has not answered for {} s", self.asker.waited_s());
                return Ok(Some(Err(Failure::new(
                    text,
                    "it may be stopped, or very busy: its log says more",
                ))));
            }
            self.poller.wait(&mut ready, left)?;
            if ready.iter().any(|one| one.token == SIGNAL) {
                return Ok(None);
            }
            self.answered.take();
        }
    }
}

/// Asks over the connection that is there, or over a fresh one if the node has ended that one, as by a restart.
fn ask(inquiry: &mut Option<Inquiry>, node: &list::Arguments) -> Result<GpuStatus, Failure> {
    if let Some(mut known) = inquiry.take()
        && let Ok(status) = known.ask()
    {
        *inquiry = Some(known);
        return Ok(status);
    }
    let mut fresh = list::open(node)?;
    let status = fresh.ask()?;
    *inquiry = Some(fresh);
    Ok(status)
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
