//! What is said to whoever runs the program.

use std::fmt::Display;
use std::io::Write;

/// Says a line on stderr. Where that is full, or a pipe that nobody reads any more, the program goes on all the same: a word that cannot be
/// said is no reason to end it.
pub(crate) fn say(text: impl Display) {
    let line = format!("hinterland: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
