//! Pages that several processes of a run have in common: of files, libraries above all, and of shared memory.
//!
//! The kernel counts such a page in each process that maps it. Counted like that, ten workers with one library of 200 MiB would leave nothing of a budget
//! of 2 GiB although 200 MiB are there. Which processes share a page only a walk through all of their memory tells (`Pss` in `/proc/PID/smaps_rollup`), so that
//! is done by a thread of its own, without the lock, and only where it matters; in between, what was found is scaled with what a process has now.

use crate::engine::{Engine, Known};
use crate::peer::living;
use hinterland_farplan::PAGE;
use hinterland_os::looks;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Pause between two looks, at least.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A look that took a moment is followed by a pause of so many: the program's calls that change its memory wait for a walk.
const PAUSES: u32 = 50;
/// How long one process may keep the look: a walk through a TiB takes less.
const WALK_PATIENCE: Duration = Duration::from_secs(10);
/// Most processes that are walked through in one look. Where there are more, their pages count in each of them.
const WALKS_MAX: usize = 256;
/// Less of the room than one part of so many is not worth a walk.
const WORTH: u64 = 32;

/// What a process has resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub all_bytes: u64,
    /// Of files and of shared memory, whether others have them too or not.
    pub common_bytes: u64,
}

impl Resident {
    /// Of a process; nothing if it has ended.
    pub(crate) fn of(process: i32) -> Self {
        let read = |task: i32| std::fs::read_to_string(format!("/proc/{task}/statm")).unwrap_or_default();
        let mut text = read(process);
        if text.starts_with("0 ") {
            text = read(living(process));
        }
        Self::parse(&text)
    }

    fn parse(statm: &str) -> Self {
        let mut words = statm.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
        let mut next = || words.next().unwrap_or(0) * PAGE;
        Self { all_bytes: next(), common_bytes: next() }
    }

    /// What counts of it where so much of what may be common is this process's own.
    pub(crate) fn counted(self, own: Own) -> u64 {
        let common = self.common_bytes.min(self.all_bytes);
        self.all_bytes - common + (common as f64 * own.0) as u64
    }
}

/// Which part of what a process may have in common with others counts as its own: from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Own(f64);

impl Own {
    /// All of it: nobody else is known to have it.
    pub(crate) const ALL: Self = Self(1.0);

    /// So many bytes of so many; all if there are none.
    fn of(own_bytes: u64, bytes: u64) -> Self {
        if bytes == 0 { Self::ALL } else { Self((own_bytes as f64 / bytes as f64).min(1.0)) }
    }
}

/// A process and the space that counts for it.
struct Member {
    space: u64,
    process: i32,
}

impl Engine {
    /// Finds out what processes have in common until the run is over.
    pub(crate) fn weigh_common(&self) {
        let mut pause = LOOK_INTERVAL;
        loop {
            let known = self.lock();
            // Who panicked has said so; the tables are whole after each call.
            let waited = self.over.wait_timeout_while(known, pause, |known| !known.is_over);
            let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if known.is_over {
                return;
            }
            let (members, room) = (members(&known), self.room_bytes(&known));
            drop(known);
            let begun = Instant::now();
            let found = weigh(&members, room);
            pause = LOOK_INTERVAL.max(begun.elapsed() * PAUSES);
            let mut known = self.lock();
            for Member { space: counting, .. } in members {
                if let Some(space) = known.spaces.get_mut(&counting) {
                    space.own = Some(found.get(&counting).copied().unwrap_or(Own::ALL));
                }
            }
        }
    }
}

/// All processes, by the space of their family that counts. The memory of a child is its parent's until one of them writes, so that of a family one
/// process counts for all: what the others have of a common page is taken together with what it has.
fn members(known: &Known) -> Vec<Member> {
    let mut counting = BTreeMap::new();
    let processes = known.spaces.iter().filter(|(_, space)| space.process > 0);
    let mut members = Vec::new();
    for (id, space) in processes {
        let family = if space.is_child { space.family } else { *id };
        // Children come after those that they come from, unless these have ended; then the first of them counts.
        let counts = *counting.entry(family).or_insert(*id);
        members.push(Member { space: counts, process: space.process });
    }
    members
}

/// The own part of each space that counts, where it is worth knowing.
fn weigh(members: &[Member], room: u64) -> BTreeMap<u64, Own> {
    let mut common = BTreeMap::new();
    for member in members {
        // The first one is the one that counts.
        common.entry(member.space).or_insert_with(|| Resident::of(member.process).common_bytes);
    }
    let largest = common.values().max().copied().unwrap_or(0);
    let others: u64 = common.values().sum::<u64>() - largest;
    if members.len() > WALKS_MAX || others < room / WORTH {
        return BTreeMap::new();
    }
    let mut own = BTreeMap::new();
    for member in members {
        // Who cannot be looked at has all that it has.
        let bytes = own_bytes_in_time(member.process).unwrap_or(u64::MAX);
        let sum: &mut u64 = own.entry(member.space).or_default();
        *sum = sum.saturating_add(bytes);
    }
    own.into_iter().map(|(space, bytes)| (space, Own::of(bytes, common[&space]))).collect()
}

/// As [`own_bytes`]; nothing either of a process that the kernel keeps whoever looks waiting for.
fn own_bytes_in_time(process: i32) -> Option<u64> {
    // Numbers of processes are not negative.
    let number = process.cast_unsigned();
    let is_there = !looks::is_becoming_another(number);
    is_there.then(|| looks::in_time(number, WALK_PATIENCE, move || own_bytes(process)))??
}

/// What a process has of files and of shared memory, each page divided by how many have it; nothing if the kernel does not say so.
fn own_bytes(process: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", living(process))).ok()?;
    parse_own(&text)
}

fn parse_own(rollup: &str) -> Option<u64> {
    let field = |name: &str| {
        let rest = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().strip_suffix(" kB")?.trim_end().parse::<u64>().ok()
    };
    Some((field("Pss_File:")? + field("Pss_Shmem:")?) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_counts_once_and_the_rest_in_each() {
        let resident = Resident::parse("9000 100 60 1 0 50 0");
        assert_eq!(resident, Resident { all_bytes: 100 * PAGE, common_bytes: 60 * PAGE });
        assert_eq!(resident.counted(Own::ALL), 100 * PAGE);
        assert_eq!(resident.counted(Own::of(15 * PAGE, 60 * PAGE)), 55 * PAGE);
        assert_eq!(resident.counted(Own::of(u64::MAX, 60 * PAGE)), 100 * PAGE, "it could not be looked at");
        assert_eq!(resident.counted(Own::of(0, 0)), 100 * PAGE);
        assert_eq!(Resident::parse(""), Resident::default(), "it has ended");
    }

    #[test]
    fn the_kernel_says_what_this_process_has() {
        let own = std::process::id().cast_signed();
        let (resident, own) = (Resident::of(own), own_bytes(own).unwrap());
        assert!(resident.common_bytes > 0 && own > 0, "{resident:?} {own}");
        // A page counts as a part of itself at most; it goes on meanwhile.
        assert!(own <= resident.common_bytes + (64 << 20), "{resident:?} {own}");
        assert_eq!(parse_own("Rss: 8 kB\nPss_File:    12 kB\nPss_Shmem:   3 kB\n"), Some(15 << 10));
        assert_eq!(parse_own("Rss: 8 kB\nPss: 12 kB\n"), None, "an old kernel");
    }
}
