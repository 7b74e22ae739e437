//! The other screen of the terminal, for pictures that change.

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{columns, rows};
use anstream::stream::IsTerminal;
use serde_json::json;
use std::io::{self, Write};

/// Goes to the other screen of the terminal, and hides the cursor.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor, and comes back.
const LEAVE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of a line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears the rest of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

/// The other screen of the terminal, left when it is dropped.
pub struct Screen;

impl Screen {
    /// Enters it, if people watch on a terminal.
    pub fn enter(context: &Context) -> Option<Self> {
        if context.output.json || !io::stdout().is_terminal() {
            return None;
        }
        // A terminal that takes no more output ends the command at the first picture.
        let _ = io::stdout().write_all(ENTER_SCREEN.as_bytes());
        Some(Self)
    }

    /// Shows lines in the place of those before, as many as there is room for.
    ///
    /// # Errors
    /// [`Failure`] if the terminal is gone.
    pub fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let (width, height) = (columns(), rows());
        let mut frame = String::from(HOME);
        for line in lines.iter().take(height.saturating_sub(1)) {
            frame.extend(line.chars().take(width));
            frame.push_str(CLEAR_LINE);
            frame.push('\n');
        }
        frame.push_str(CLEAR_BELOW);
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(frame.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::output(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut stdout = io::stdout().lock();
        // The terminal is gone if this fails.
        let _ = stdout.write_all(LEAVE_SCREEN.as_bytes()).and_then(|()| stdout.flush());
    }
}

/// Shows why a node that is watched says nothing.
///
/// # Errors
/// [`Failure`] if nothing can be written.
pub fn show_trouble(context: &Context, failure: &Failure, screen: Option<&Screen>) -> Result<(), Failure> {
    if context.output.json {
        return context.output.json(&json!({ "node_trouble": failure.text }));
    }
    let lines = vec![failure.text.clone(), format!("hint: {}", failure.hint)];
    match screen {
        Some(screen) => screen.draw(&lines),
        None => context.output.data(lines.join("\n")),
    }
}
