//! The names of what this node holds, kept beside the bytes: `--adopt` puts objects into a lost directory under them, and tells a name of
//! before from a later one by the epoch as of which it is known.
//!
//! The directory is asked every [`PAUSE`]. A name that it says goes into the header of its object first, then the epoch into `STATE/names`,
//! so that the epoch never stands for a name that was not heard.

use crate::directory_link::DirectoryLink;
use crate::fault_point;
use crate::holdings::{Holding, HoldingError, Holdings};
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, Reply};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the directory is asked: what is renamed may come back under its earlier name for as long.
pub const PAUSE: Duration = Duration::from_secs(2);

/// As of which epoch names are known.
#[derive(Debug)]
pub struct KnownNames {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Known {
    as_of: Epoch,
    /// Objects of which that is not so: they were being put or removed.
    unsettled: BTreeSet<ObjectId>,
}

/// A part of what the directory says.
struct Told {
    known: Known,
    names: Vec<(ObjectId, ObjectName)>,
    more: bool,
    all: bool,
    claimed: Option<(Epoch, Epoch)>,
}

impl KnownNames {
    /// What an earlier life of a node with this state has known. A file that does not say it counts as none: names are then as old as
    /// their copies.
    pub fn open(state: &Path) -> Self {
        let path = state.join("names");
        let known = fs::read_to_string(&path).ok().and_then(|text| Known::parse(&text));
        Self { path, known: Mutex::new(known.unwrap_or_default()) }
    }

    /// As of which epoch the name of an object that is held is known.
    pub fn as_of(&self, holding: &Holding) -> Epoch {
        let known = self.lock();
        let epoch = holding.epoch();
        // One that was placed later has the name of that time.
        if known.unsettled.contains(&holding.object) { epoch } else { epoch.max(known.as_of) }
    }

    /// The latest epoch as of which names are known here.
    pub fn latest(&self) -> Epoch {
        self.lock().as_of
    }

    /// The earliest and the latest epoch as of which names are known of objects that were put into a directory again.
    pub fn claimed(node: NodeId, directory: &DirectoryLink) -> Option<(Epoch, Epoch)> {
        // Without an answer there is nothing to say about it.
        ask(node, directory, Epoch(0), None).ok()?.claimed
    }

    /// Asks what was renamed, and keeps it; `older` says whether the directory is older than what is held, and its names with it: those
    /// that are known are not given up for them before somebody has decided.
    ///
    /// # Errors
    /// [`Refused`] if the directory does not say it, or a disk does not take it; it is asked for again.
    pub fn hear(
        &self,
        node: NodeId,
        directory: &DirectoryLink,
        holdings: &Holdings,
        older: impl FnOnce() -> Option<Refused>,
    ) -> Result<(), Refused> {
        let before = self.lock().clone();
        if holdings.newest().is_empty() {
            // Nor is anything known of what another directory will give it.
            return if before == Known::default() { Ok(()) } else { self.keep(Known::default()) };
        }
        let Told { mut known, mut names, mut more, all, .. } = ask(node, directory, before.as_of, None)?;
        if let Some(refused) = all.then(older).flatten() {
            return Err(refused);
        }
        loop {
            for (object, name) in &names {
                match holdings.rename(*object, name) {
                    // It has gone, or is not here yet: its header has another name.
                    Err(HoldingError::Absent(_) | HoldingError::State { .. }) => {
                        known.unsettled.insert(*object);
                    }
                    renamed => renamed?,
                }
            }
            let Some((last, _)) = names.last().filter(|_| more) else { break };
            Told { names, more, .. } = ask(node, directory, before.as_of, Some(*last))?;
        }
        fault_point::reach("names-renamed");
        if known == before {
            return Ok(());
        }
        self.keep(known)
    }

    fn keep(&self, known: Known) -> Result<(), Refused> {
        self.write(&known).map_err(|error| {
            let text = format!("{}: {error} (hint: is its disk full or failing?)", self.path.display());
            Refused::new(errno::EIO, text)
        })?;
        fault_point::reach("names-kept");
        *self.lock() = known;
        Ok(())
    }

    fn write(&self, known: &Known) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(known.text().as_bytes())?;
        file.sync_all()?;
        // The file of before, which may come back after a crash, says less and nothing that is wrong.
        fs::rename(&fresh, &self.path)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(
    node: NodeId,
    directory: &DirectoryLink,
    as_of: Epoch,
    after: Option<ObjectId>,
) -> Result<Told, Refused> {
    match directory.apply_soon(&Command::HeldNames { node, as_of, after })? {
        Reply::HeldNames { as_of, names, unsettled, more, all, claimed } => {
            let known = Known { as_of, unsettled: unsettled.into_iter().collect() };
            Ok(Told { known, names, more, all, claimed })
        }
        _ => Err(Refused::new(errno::EIO, "the directory did not say the names of what is held here")),
    }
}

impl Known {
    fn text(&self) -> String {
        let numbers = std::iter::once(self.as_of.0).chain(self.unsettled.iter().map(|object| object.0));
        numbers.map(|number| format!("{number}\n")).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        // Without the end of its line a number was cut off.
        let numbers: Option<Vec<u64>> =
            text.strip_suffix('\n')?.split('\n').map(|line| line.parse().ok()).collect();
        let numbers = numbers?;
        let (as_of, unsettled) = numbers.split_first()?;
        Some(Self { as_of: Epoch(*as_of), unsettled: unsettled.iter().copied().map(ObjectId).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_read_as_it_was_written_and_half_of_it_is_not() {
        let known = Known { as_of: Epoch(700), unsettled: [ObjectId(17), ObjectId(18)].into() };
        let none = Known { as_of: Epoch(9), unsettled: BTreeSet::new() };
        for known in [&known, &none] {
            assert_eq!(Known::parse(&known.text()).as_ref(), Some(known));
        }
        for wrong in ["", "\n", "7", "700\n1", "x\n", "700\n\n", "-1\n"] {
            assert_eq!(Known::parse(wrong), None, "{wrong:?}");
        }
    }
}
