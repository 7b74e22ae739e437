//! What has become of objects that the directory did not know, summed up for people: a pool has thousands of them.

use crate::holdings::Holding;
use hinterland_directory::NotAdopted;
use hinterland_types::size::human;
use hinterland_types::{DRAFTS_FOLDER, ObjectName};
use std::fmt::{self, Display, Formatter};
use std::path::Path;

/// Names that one line has; the rest is counted.
const NAMES_MAX: usize = 5;

/// Objects that were put into the directory again, and those that it could not take in. Each is a line of the log, too (`info`).
#[derive(Default)]
pub struct Adopted {
    taken: Sum,
    renamed: u64,
    /// Their names are those of others.
    beside: Sum,
    /// Others of which that is so now.
    moved: Vec<ObjectName>,
    /// Other nodes knew names of a later time.
    behind: Sum,
    /// Other nodes adopted that knew those of an earlier time.
    is_ahead: bool,
    left: Vec<(NotAdopted, Sum)>,
}

impl Adopted {
    /// One is in the directory again, under this name; `is_behind` says that other nodes knew names of a later time.
    pub fn took(&mut self, holding: &Holding, name: &ObjectName, is_behind: bool) {
        tracing::info!(object = holding.object.0, "adopted {name}");
        let (own, bytes) = (holding.name(), holding.bytes());
        self.taken.add(name, bytes);
        self.renamed += u64::from(*name != own);
        if *name == own && is_behind {
            tracing::info!(object = holding.object.0, "{name} may be of before");
            self.behind.add(name, bytes);
        }
        if *name != own && !own.as_str().starts_with(DRAFTS_FOLDER) {
            tracing::info!(object = holding.object.0, "{own} is another object's: this one is {name}");
            self.beside.add(format!("{own} is {name}"), bytes);
        }
    }

    /// An object gave up its name for one that was taken in, and has this one.
    pub fn moved(&mut self, name: &ObjectName) {
        tracing::info!("{name} gave up its name");
        self.moved.push(name.clone());
    }

    /// Nodes that adopted before knew names of an earlier time.
    pub const fn others_are_behind(&mut self) {
        self.is_ahead = true;
    }

    /// One could not be taken in, and is let go of: it was saved there, or has copies enough elsewhere.
    pub fn left(&mut self, holding: &Holding, why: NotAdopted, saved: Option<&Path>) {
        let place = saved.map_or_else(|| "dropped".to_owned(), |path| format!("saved {}", path.display()));
        tracing::info!(object = holding.object.0, "{place} of {}: {why}", holding.name());
        let known = self.left.iter().position(|(reason, _)| *reason == why);
        let place = known.unwrap_or_else(|| {
            self.left.push((why, Sum::default()));
            self.left.len() - 1
        });
        self.left[place].1.add(holding.name(), holding.bytes());
    }

    /// A line for what was taken in, and one for each reason why something was not; `rescued` is the folder of what was saved.
    pub fn words(&self, rescued: &Path) -> Vec<String> {
        let mut words = Vec::new();
        if self.taken.objects > 0 {
            let renamed = match self.renamed {
                0 => String::new(),
                renamed => {
                    format!("; {renamed} of them as recovered/NUMBER, as `hinterland ls recovered` shows")
                }
            };
            words.push(format!("adopted {}{renamed}", self.taken));
        }
        words.extend(self.doubts());
        words.extend(self.left.iter().map(|(why, sum)| {
            let place = match why {
                NotAdopted::TooManyCopies => "dropped here".to_owned(),
                _ => format!("saved in {} as NUMBER-NAME.bytes", rescued.display()),
            };
            format!("{place} what the directory cannot take in: {why}: {sum}")
        }));
        words
    }
}

impl Adopted {
    /// A line for each reason for which a name may not be what people take it for.
    fn doubts(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.beside.objects > 0 {
            words.push(format!(
                "beside others that have their names: {}; the others had them later, as far as nodes know, or stood in the directory (hint: compare both, then remove or rename one)",
                self.beside
            ));
        }
        if !self.moved.is_empty() {
            let mut moved = Sum::default();
            self.moved.iter().for_each(|name| moved.add(name, 0));
            words.push(format!(
                "objects whose names those of this node had later{}: look at both",
                Names(&moved)
            ));
        }
        if self.behind.objects > 0 {
            words.push(format!(
                "of before, perhaps: {}; other nodes were told of names after this one was told last, so these may have been renamed, replaced or removed since",
                self.behind
            ));
        }
        if self.is_ahead {
            words.push("of before, perhaps: what other nodes have adopted that were told of names last before this one was; that may have been renamed, replaced or removed since".to_owned());
        }
        words
    }
}

/// How many objects, how large all of them are, and what the first are called.
#[derive(Default)]
struct Sum {
    objects: u64,
    bytes: u64,
    names: Vec<String>,
}

impl Sum {
    fn add(&mut self, name: impl ToString, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.names.len() < NAMES_MAX {
            self.names.push(name.to_string());
        }
    }
}

impl Display for Sum {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let plural = if self.objects == 1 { "" } else { "s" };
        write!(f, "{} object{plural}, {}{}", self.objects, human(self.bytes), Names(self))
    }
}

/// What the first are called, and how many there are behind them.
struct Names<'a>(&'a Sum);

impl Display for Names<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (place, name) in self.0.names.iter().enumerate() {
            write!(f, "{}{name}", if place == 0 { " (" } else { ", " })?;
        }
        match self.0.objects - self.0.names.len() as u64 {
            0 => write!(f, ")"),
            more => write!(f, " and {more} more)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_names_the_first_and_counts_the_rest() {
        let mut sum = Sum::default();
        let mut lines = Vec::new();
        for number in 0..7 {
            sum.add(format!("many/{number}"), 1 << 20);
            lines.push(sum.to_string());
        }
        assert_eq!(lines[0], "1 object, 1.00 MiB (many/0)");
        assert_eq!(lines[4], "5 objects, 5.00 MiB (many/0, many/1, many/2, many/3, many/4)");
        assert_eq!(lines[6], "7 objects, 7.00 MiB (many/0, many/1, many/2, many/3, many/4 and 2 more)");
    }
}
