//! Whether the machine was started anew since a node used a state folder last.

use super::HoldingError;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The kernel's name for the time since the machine was started.
const KERNEL: &str = "/proc/sys/kernel/random/boot_id";

/// What the kernel says, beside what the state folder says.
pub(super) struct Boot {
    path: PathBuf,
    now: String,
    before: Option<String>,
}

impl Boot {
    /// Reads both. A kernel that does not say is taken for one that was not started anew.
    ///
    /// # Errors
    /// [`HoldingError::Header`] if the state folder cannot be read.
    pub(super) fn of(state_folder: &Path) -> Result<Self, HoldingError> {
        let path = state_folder.join("boot");
        let now = fs::read_to_string(KERNEL).unwrap_or_default();
        let before = match fs::read_to_string(&path) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(HoldingError::Header { path, source }),
        };
        Ok(Self { path, now, before })
    }

    /// Whether the state is of another start of the machine, or may be: a crash can have left a note of which nothing is on the disk. State
    /// of a release that noted none is taken for one of this.
    pub(super) fn is_another(&self) -> bool {
        !self.now.is_empty() && self.before.as_ref().is_some_and(|before| *before != self.now)
    }

    /// The state is of this start of the machine from here on.
    ///
    /// # Errors
    /// [`HoldingError::Header`] if it cannot be written.
    pub(super) fn note(&self) -> Result<(), HoldingError> {
        if self.before.as_ref() == Some(&self.now) {
            return Ok(());
        }
        // Whole, whenever the machine stops.
        let partial = self.path.with_extension("partial");
        let write = || -> io::Result<()> {
            let mut file = File::create(&partial)?;
            file.write_all(self.now.as_bytes())?;
            file.sync_all()?;
            fs::rename(&partial, &self.path)
        };
        write().map_err(|source| HoldingError::Header { path: self.path.clone(), source })
    }
}
