//! The names of what this node holds, kept beside the bytes: `--adopt` puts objects into a lost directory under them, and tells a name of
//! before from a later one by the epoch as of which it is known.
//!
//! The directory is asked every [`PAUSE`]. A name that it says goes into the header of its object first, then the epoch into `STATE/names`,
//! so that the epoch never stands for a name that was not heard.

use crate::directory_link::DirectoryLink;
use crate::fault_point;
use crate::holdings::{Holding, HoldingError, Holdings};
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, FormerPool, Reply};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the directory is asked: what is renamed may come back under its earlier name for as long.
pub const PAUSE: Duration = Duration::from_secs(2);

/// What a line of `STATE/names` begins with that has a pool.
const POOL: &str = "pool ";

/// As of which epoch names are known, and the pools in which what is held was before.
#[derive(Debug)]
pub struct KnownNames {
    path: PathBuf,
    known: Mutex<Known>,
    /// What has other names than those that were known, until that is said: the headers have them, also where the rest was not heard.
    went_back: Mutex<WentBack>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Known {
    as_of: Epoch,
    /// Objects of which that is not so: they were being put or removed.
    unsettled: BTreeSet<ObjectId>,
    /// Pools that are no more, with the last object that came from each.
    former: BTreeMap<u128, ObjectId>,
}

/// A part of what the directory says.
struct Told {
    known: Known,
    names: Vec<(ObjectId, ObjectName)>,
    more: bool,
    all: bool,
    older: bool,
    claimed: Option<(Epoch, Epoch)>,
}

impl KnownNames {
    /// What an earlier life of a node with this state has known. A file that does not say it counts as none: names are then as old as
    /// their copies.
    pub fn open(state: &Path) -> Self {
        let path = state.join("names");
        let known = fs::read_to_string(&path).ok().and_then(|text| Known::parse(&text));
        Self { path, known: Mutex::new(known.unwrap_or_default()), went_back: Mutex::default() }
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

    /// The pools in which what is held may have been before, as a directory is told.
    pub fn former(&self) -> Vec<FormerPool> {
        self.lock().former.iter().map(|(pool, last)| FormerPool { pool: *pool, last: *last }).collect()
    }

    /// Keeps known that objects up to this one were in a pool that is no more, before they are put into another: nobody else may know it.
    ///
    /// # Errors
    /// [`Refused`] if the disk does not take it.
    pub fn remember_pool(&self, former: FormerPool) -> Result<(), Refused> {
        let before = self.lock().clone();
        let mut known = before.clone();
        known.add(former);
        if known == before { Ok(()) } else { self.keep(known) }
    }

    /// The earliest and the latest epoch as of which names are known of objects that were put into a directory again.
    pub fn claimed(node: NodeId, directory: &DirectoryLink) -> Option<(Epoch, Epoch)> {
        // Without an answer there is nothing to say about it.
        ask(node, directory, Epoch(0), None).ok()?.claimed
    }

    /// Asks what was renamed, and keeps it. What there is to say where the directory is older than the names that were known here. `older` says whether the directory is older than what is held, or may be, and its names with it: those
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
    ) -> Result<Option<String>, Refused> {
        let before = self.lock().clone();
        if holdings.newest().is_empty() {
            // Nor is anything known of what another directory will give it.
            let is_new = before != Known::default();
            return is_new.then(|| self.keep(Known::default())).transpose().map(|_| None);
        }
        let told = ask(node, directory, before.as_of, None)?;
        let Told { mut known, mut names, mut more, all, older: is_older, .. } = told;
        if let Some(refused) = all.then(older).flatten() {
            return Err(refused);
        }
        // A directory that was put back from an older copy may know fewer.
        before.former.iter().for_each(|(pool, last)| known.add(FormerPool { pool: *pool, last: *last }));
        loop {
            for (object, name) in &names {
                match holdings.rename(*object, name) {
                    // It has gone, or is not here yet: its header has another name.
                    Err(HoldingError::Absent(_) | HoldingError::State { .. }) => {
                        known.unsettled.insert(*object);
                    }
                    renamed => {
                        let before = renamed?.filter(|_| is_older);
                        self.lock_went_back().add(name, before);
                    }
                }
            }
            let Some((last, _)) = names.last().filter(|_| more) else { break };
            Told { names, more, .. } = ask(node, directory, before.as_of, Some(*last))?;
        }
        fault_point::reach("names-renamed");
        if known != before {
            self.keep(known)?;
        }
        Ok(std::mem::take(&mut *self.lock_went_back()).words())
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

    fn lock_went_back(&self) -> MutexGuard<'_, WentBack> {
        self.went_back.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Objects that have other names than those that were known here.
#[derive(Debug, Default)]
struct WentBack {
    objects: u64,
    first: Option<(ObjectName, ObjectName)>,
}

impl WentBack {
    fn add(&mut self, name: &ObjectName, before: Option<ObjectName>) {
        let Some(before) = before else { return };
        self.objects += 1;
        self.first.get_or_insert_with(|| (name.clone(), before));
    }

    /// What is said where the directory is older than these names.
    fn words(&self) -> Option<String> {
        let (name, before) = self.first.as_ref()?;
        let count = self.objects;
        Some(format!(
            "the directory's store is older than names that this node knew: of {count} of its objects it has another one, such as {name} in place of {before}; no bytes were changed (hint: rename them, or put the newest store back)"
        ))
    }
}

fn ask(
    node: NodeId,
    directory: &DirectoryLink,
    as_of: Epoch,
    after: Option<ObjectId>,
) -> Result<Told, Refused> {
    match directory.apply_soon(&Command::HeldNames { node, as_of, after })? {
        Reply::HeldNames { as_of, names, unsettled, more, all, older, claimed, former } => {
            let unsettled = unsettled.into_iter().collect();
            let mut known = Known { as_of, unsettled, former: BTreeMap::new() };
            former.into_iter().for_each(|former| known.add(former));
            Ok(Told { known, names, more, all, older, claimed })
        }
        _ => Err(Refused::new(errno::EIO, "the directory did not say the names of what is held here")),
    }
}

impl Known {
    fn add(&mut self, FormerPool { pool, last }: FormerPool) {
        let known = self.former.entry(pool).or_insert(last);
        *known = (*known).max(last);
    }

    /// The epoch, then a line for each object that is not settled, then one for each pool with the last object that came from it.
    fn text(&self) -> String {
        let numbers = std::iter::once(self.as_of.0).chain(self.unsettled.iter().map(|object| object.0));
        let pools = self.former.iter().map(|(pool, last)| format!("{POOL}{pool:032x} {}\n", last.0));
        numbers.map(|number| format!("{number}\n")).chain(pools).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        // Without the end of its line a number was cut off.
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let as_of = Epoch(lines.next()?.parse().ok()?);
        let mut known = Self { as_of, ..Self::default() };
        for line in lines {
            if let Some((pool, last)) = line.strip_prefix(POOL).and_then(|pool| pool.split_once(' ')) {
                let pool = u128::from_str_radix(pool, 16).ok()?;
                known.add(FormerPool { pool, last: ObjectId(last.parse().ok()?) });
            } else {
                known.unsettled.insert(ObjectId(line.parse().ok()?));
            }
        }
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_read_as_it_was_written_and_half_of_it_is_not() {
        let former = BTreeMap::from([(7, ObjectId(30)), (u128::MAX, ObjectId(40))]);
        let unsettled = [ObjectId(17), ObjectId(18)].into();
        let known = Known { as_of: Epoch(700), unsettled, former };
        let none = Known { as_of: Epoch(9), ..Known::default() };
        for known in [&known, &none] {
            assert_eq!(Known::parse(&known.text()).as_ref(), Some(known));
        }
        let pools = ["pool 7 8\n", "700\npool 7\n", "700\npool x 8\n", "700\npool 7 8", "700\npool 7 x\n"];
        for wrong in ["", "\n", "7", "700\n1", "x\n", "700\n\n", "-1\n"].into_iter().chain(pools) {
            assert_eq!(Known::parse(wrong), None, "{wrong:?}");
        }
    }
}
