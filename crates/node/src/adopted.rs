//! What has become of objects that the directory did not know, summed up for people: a pool has thousands of them.

use crate::holdings::Holding;
use hinterland_directory::NotAdopted;
use hinterland_types::ObjectName;
use hinterland_types::size::human;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

/// Names that one line has; the rest is counted.
const NAMES_MAX: usize = 5;

/// Objects that were put into the directory again, and those that it could not take in. Each is a line of the log, too (`info`).
#[derive(Default)]
pub struct Adopted {
    taken: Sum,
    renamed: u64,
    left: Vec<(NotAdopted, Sum)>,
}

impl Adopted {
    /// One is in the directory again, under this name.
    pub fn took(&mut self, holding: &Holding, name: &ObjectName) {
        tracing::info!(object = holding.object.0, "adopted {name}");
        self.taken.add(name, holding.bytes());
        self.renamed += u64::from(name != holding.name());
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

/// How many objects, how large all of them are, and what the first are called.
#[derive(Default)]
struct Sum {
    objects: u64,
    bytes: u64,
    names: Vec<ObjectName>,
}

impl Sum {
    fn add(&mut self, name: &ObjectName, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.names.len() < NAMES_MAX {
            self.names.push(name.clone());
        }
    }
}

impl Display for Sum {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let plural = if self.objects == 1 { "" } else { "s" };
        write!(f, "{} object{plural}, {}", self.objects, human(self.bytes))?;
        for (place, name) in self.names.iter().enumerate() {
            write!(f, "{}{name}", if place == 0 { " (" } else { ", " })?;
        }
        match self.objects - self.names.len() as u64 {
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
            sum.add(&ObjectName::parse(&format!("many/{number}")).unwrap(), 1 << 20);
            lines.push(sum.to_string());
        }
        assert_eq!(lines[0], "1 object, 1.00 MiB (many/0)");
        assert_eq!(lines[4], "5 objects, 5.00 MiB (many/0, many/1, many/2, many/3, many/4)");
        assert_eq!(lines[6], "7 objects, 7.00 MiB (many/0, many/1, many/2, many/3, many/4 and 2 more)");
    }
}
