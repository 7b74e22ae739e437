//! `hinterland kv events`: blocks as they come and go, a line each.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes::hexadecimal;
use crate::starting::ENDED_BY_SIGNAL;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_proto::control::KvEvent;
use nix::libc::SIGINT;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two questions to the node.
const PAUSE: Duration = Duration::from_millis(100);

/// Which events.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The namespace: its number, or the start of its label
    namespace: String,
    /// Begin after the event of this number
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    after: u64,
    /// Print what is known now, and end
    #[arg(long)]
    once: bool,
}

/// Prints events until it is interrupted. The record begins with the first question to a node.
///
/// # Errors
/// [`Failure`] if the node goes.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let follows = Arc::new(AtomicBool::new(false));
    end_when_interrupted(Arc::clone(&follows))?;
    let cache = super::open(&arguments.namespace, context)?;
    let mut after = arguments.after;
    loop {
        let some = cache.events(after)?;
        follows.store(!arguments.once, Ordering::Release);
        if some.lost {
            context.output.warn("some events before these are not known any more: look at the blocks anew");
        }
        for event in &some.events {
            let value = value(event);
            context.output.either(&value, || words(event))?;
        }
        let is_all = some.next == after || (some.events.is_empty() && arguments.once);
        after = some.next;
        if is_all && arguments.once {
            return Ok(ExitCode::SUCCESS);
        }
        if is_all {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Ends the command by a signal, whatever it waits for: a node may be silent, and there is nothing to put back. That is the usual end of one
/// that follows; before, what was asked for has not been printed.
fn end_when_interrupted(follows: Arc<AtomicBool>) -> Result<(), Failure> {
    let signals = SignalWatch::new()?;
    let wait = move || {
        // A wait that fails ends as a signal would: the command could not be ended otherwise.
        let _ = wait_readable(&signals, None);
        let signal = signals.take().unwrap_or(SIGINT);
        std::process::exit(if follows.load(Ordering::Acquire) { 0 } else { ENDED_BY_SIGNAL + signal });
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| Failure::new(format!("starting a thread: {error}"), "raise `ulimit -u`"))
}

fn value(event: &KvEvent) -> Value {
    match event {
        KvEvent::Stored { key, parent, bytes } => json!({
            "event": "stored",
            "key": hexadecimal(key),
            "parent": parent.as_deref().map(hexadecimal),
            "bytes": bytes,
        }),
        KvEvent::Removed { key } => json!({ "event": "removed", "key": hexadecimal(key) }),
    }
}

fn words(event: &KvEvent) -> String {
    match event {
        KvEvent::Stored { key, parent, bytes } => {
            let parent = parent.as_deref().map_or_else(|| "-".to_owned(), hexadecimal);
            format!("stored   {}  {bytes} bytes  after {parent}", hexadecimal(key))
        }
        KvEvent::Removed { key } => format!("removed  {}", hexadecimal(key)),
    }
}
