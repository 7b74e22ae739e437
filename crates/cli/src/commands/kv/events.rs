//! `hinterland kv events`: blocks as they come and go, a line each.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes::hexadecimal;
use hinterland_os::poll::{SignalWatch, wait_readable};
use hinterland_proto::control::KvEvent;
use serde_json::{Value, json};
use std::process::ExitCode;
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
    let signals = SignalWatch::new()?;
    let cache = super::open(&arguments.namespace, context)?;
    let mut after = arguments.after;
    loop {
        let some = cache.events(after)?;
        if some.lost {
            context.output.warn("some events before these are not known any more: look at the blocks anew");
        }
        for event in &some.events {
            let value = value(event);
            context.output.either(&value, || words(event))?;
        }
        let is_all = some.next == after || (some.events.is_empty() && arguments.once);
        after = some.next;
        if is_all && (arguments.once || wait_readable(&signals, Some(PAUSE))?) {
            return Ok(ExitCode::SUCCESS);
        }
    }
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
