//! Where things are written: data on standard output, words on standard error.

use crate::failure::Failure;
use anstream::stream::IsTerminal;
use hinterland_os::process;
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, Write};

const RED: &str = "\x1b[1;31m";
const CYAN: &str = "\x1b[36m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// How a command writes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Data is JSON.
    pub json: bool,
    /// No words but errors.
    pub quiet: bool,
}

impl Output {
    /// Writes a line of data, or several.
    ///
    /// # Errors
    /// [`Failure`] when standard output is closed or full.
    pub fn data(self, text: impl Display) -> Result<(), Failure> {
        check_stdout()?;
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
    }

    /// Writes one JSON value on one line.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub fn json(self, value: &Value) -> Result<(), Failure> {
        self.data(value)
    }

    /// Writes the JSON if it is asked for, else the words that `people` makes.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub fn either(self, value: &Value, people: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { self.json(value) } else { self.data(people()) }
    }

    /// Says something in words.
    pub fn say(self, text: impl Display) {
        if !self.quiet {
            say(format_args!("{text}"));
        }
    }

    /// Says what is not as it should be, but no error.
    pub fn warn(self, text: impl Display) {
        if !self.quiet {
            say(format_args!("{YELLOW}warning:{PLAIN} {text}"));
        }
    }

    /// Says why a command failed.
    pub fn fail(self, failure: &Failure) {
        if failure.silent {
            return;
        }
        if self.json {
            say(failure.json());
        } else {
            say(format_args!("{RED}error:{PLAIN} {}", failure.text));
            say(format_args!("{CYAN}hint:{PLAIN} {}", failure.hint));
        }
    }

    /// Whether a moving picture can be shown on standard error.
    pub fn may_animate(self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }
}

/// Nobody takes what is written to standard output that was closed, although it looks as if.
///
/// # Errors
/// [`Failure`] if it is so.
pub fn check_stdout() -> Result<(), Failure> {
    const EBADF: i32 = 9;
    if process::was_output_closed() {
        Err(Failure::output(&io::Error::from_raw_os_error(EBADF)))
    } else {
        Ok(())
    }
}

fn say(text: impl Display) {
    // Nothing is left to tell people that they cannot be told.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Columns of the terminal, or 100 where there is none.
pub fn columns() -> usize {
    terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0))
}

/// Rows of the terminal, or 40 where there is none.
pub fn rows() -> usize {
    terminal_size::terminal_size().map_or(40, |(_, height)| usize::from(height.0))
}
