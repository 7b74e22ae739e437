//! Why a command failed: a sentence, the next step, and the exit status.

use hinterland_fabric::FabricError;
use hinterland_fuse::MountError;
use hinterland_gpu::GpuError;
use hinterland_os::OsError;
use hinterland_pool::PoolError;
use serde_json::{Value, json};
use std::io;
use std::process::ExitCode;

/// What the shell is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// 1: it was tried and failed.
    Failure = 1,
    /// 2: the command line makes no sense.
    Usage = 2,
    /// 3: no node answers.
    Unreachable = 3,
    /// 126, as of a shell: the program is there and cannot be started.
    CannotStart = 126,
    /// 127, as of a shell: the program is not there.
    NotFound = 127,
}

/// A failed command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What failed, with what.
    pub text: String,
    /// The next step.
    pub hint: String,
    /// The exit status.
    pub exit: Exit,
    /// Nobody reads what the command writes any more: end without a word.
    pub silent: bool,
}

impl Failure {
    /// A failure with its next step.
    pub fn new(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { text: text.into(), hint: hint.into(), exit: Exit::Failure, silent: false }
    }

    /// A command line that makes no sense.
    pub fn usage(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::new(text, hint) }
    }

    /// An error whose text may end in `(hint: ...)`, as those of all crates do.
    pub fn of(error: &dyn std::fmt::Display) -> Self {
        let whole = error.to_string();
        match whole.rsplit_once("(hint: ") {
            Some((text, hint)) => Self::new(text.trim_end(), hint.strip_suffix(')').unwrap_or(hint)),
            None => Self::new(whole, "`hinterland doctor` tells what is wrong"),
        }
    }

    /// Reading or writing a file failed.
    pub fn file(doing: &str, path: &std::path::Path, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "check the path",
            io::ErrorKind::PermissionDenied => "check who owns it, or run as that user",
            io::ErrorKind::StorageFull => "make room on that disk",
            io::ErrorKind::IsADirectory => "name a file",
            _ => "check the file and its disk",
        };
        Self::new(format!("{doing} {} failed: {error}", path.display()), hint)
    }

    /// Standard output cannot be written to; a reader that went away is no reason for words.
    pub fn output(error: &io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::BrokenPipe;
        Self { silent, ..Self::new(format!("writing the output failed: {error}"), "check where it goes") }
    }

    /// As one line of JSON.
    pub fn json(&self) -> Value {
        json!({ "error": self.text, "hint": self.hint, "exit": self.exit as u8 })
    }

    /// The status that the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit as u8)
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        let unreachable =
            matches!(error, PoolError::NoNode { .. } | PoolError::Closed | PoolError::Silent(_));
        Self { exit: if unreachable { Exit::Unreachable } else { Exit::Failure }, ..Self::of(&error) }
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        Self::of(&error)
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::of(&error)
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::of(&error)
    }
}

impl From<OsError> for Failure {
    fn from(error: OsError) -> Self {
        Self::of(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_is_taken_out_of_the_text() {
        let failure = Failure::of(&"it broke (twice) (hint: mend it (well))");
        assert_eq!((failure.text.as_str(), failure.hint.as_str()), ("it broke (twice)", "mend it (well)"));
    }

    #[test]
    fn an_error_without_a_hint_gets_one() {
        assert!(Failure::of(&"it broke").hint.contains("doctor"));
    }

    #[test]
    fn nobody_listening_has_a_status_of_its_own() {
        let missing = PoolError::NoNode { socket: "/x".into(), source: io::ErrorKind::NotFound.into() };
        assert_eq!(Failure::from(missing).exit, Exit::Unreachable);
        assert_eq!(Failure::from(PoolError::Refused { code: 2, text: String::new() }).exit, Exit::Failure);
    }

    #[test]
    fn a_reader_that_went_away_is_no_reason_for_words() {
        assert!(Failure::output(&io::ErrorKind::BrokenPipe.into()).silent);
        assert!(!Failure::output(&io::ErrorKind::StorageFull.into()).silent);
    }
}
