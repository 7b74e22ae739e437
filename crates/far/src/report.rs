//! What a run moved and cost, for people and for programs.

mod page;
mod record;

pub use record::{Recorder, Recording};

pub(crate) use record::BIN_SHIFT;

use crate::engine::Engine;
use std::fmt;
use std::sync::atomic::Ordering;

/// What one back end moved.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    /// Its name.
    pub name: String,
    /// Bytes of content that went in.
    pub out_bytes: u64,
    /// Bytes of content that came back.
    pub in_bytes: u64,
    /// Most memory of this host that it took at once.
    pub memory_bytes_max: u64,
    /// Content that was there then.
    pub packed_bytes: u64,
}

impl Moved {
    /// Bytes of content for each byte of memory that they took, if they took any.
    fn ratio(&self) -> Option<f64> {
        (self.memory_bytes_max > 0).then(|| self.packed_bytes as f64 / self.memory_bytes_max as f64)
    }
}

/// What a run moved and cost. Bytes and counts.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Processes that had far memory: none where all of them were small.
    pub processes: u64,
    /// Whether the library was loaded into the program.
    pub is_loaded: bool,
    /// Most that was resident at once of the memory under service.
    pub resident_bytes_max: u64,
    /// Most that was far at once.
    pub far_bytes_max: u64,
    /// Page faults served.
    pub faults: u64,
    /// Those that were first writes to clean memory.
    pub write_faults: u64,
    /// Seconds that faults waited in the supervisor, all threads together.
    pub stall_s: f64,
    /// First touches, filled with zeros.
    pub zero_bytes: u64,
    /// Brought back, those fetched ahead included.
    pub fetched_bytes: u64,
    /// Filled ahead of the program.
    pub ahead_bytes: u64,
    /// Of that, by calls that filled several units.
    pub together_bytes: u64,
    /// Of what was filled ahead, what lay along the steps of a thread.
    pub trend_bytes: u64,
    /// Huge pages that were made again where memory had come to rest.
    pub huge_pages: u64,
    /// Taken out and written to a back end.
    pub evicted_bytes: u64,
    /// Taken out without a write: a back end had the same bytes.
    pub clean_bytes: u64,
    /// Taken out without a write: zeros.
    pub zero_evicted_bytes: u64,
    /// Attempts to take out that were called off.
    pub kept_bytes: u64,
    /// Faults that were served above the budget because nothing could leave.
    pub over_budget: u64,
    /// Bytes by which the budget was short at last: with so many more, nine of ten of the latest faults for what was far would not have been.
    pub short_bytes: Option<u64>,
    /// Resident at most beside what can be far, where that alone left the budget no room; else 0.
    pub outside_bytes_max: u64,
    /// Programs that this one started and that cannot have far memory, again each time.
    pub outside_programs: u64,
    /// Seconds that what was written gave way to other runs on the same disks and links.
    pub gave_way_s: f64,
    /// Content that no back end could give back.
    pub lost_bytes: u64,
    /// How far was fetched ahead at last, and how often that was changed, if the run was tuned.
    pub tuned: Option<(u64, u64)>,
    /// By back end.
    pub moved: Vec<Moved>,
}

impl Report {
    pub(crate) fn of(engine: &Engine) -> Self {
        let (counters, processes, short_bytes) = {
            let known = engine.lock();
            // The program has ended, and nothing is far any more.
            let short_bytes = known.enough.more_bytes(known.counters.far_bytes_max);
            (known.counters, known.space_next, short_bytes)
        };
        let moved = engine.stores.members().into_iter().map(|member| Moved {
            name: member.name,
            out_bytes: member.put_bytes,
            in_bytes: member.got_bytes,
            memory_bytes_max: member.most.0,
            packed_bytes: member.most.1,
        });
        Self {
            processes,
            // Relaxed: the threads that write it have ended.
            is_loaded: processes > 0 || engine.is_loaded.load(Ordering::Relaxed),
            resident_bytes_max: counters.resident_bytes_max,
            far_bytes_max: counters.far_bytes_max,
            faults: counters.faults,
            write_faults: counters.protect_faults,
            stall_s: counters.stall_ns as f64 / 1e9,
            zero_bytes: counters.zero_bytes,
            fetched_bytes: counters.fetched_bytes,
            ahead_bytes: counters.ahead_bytes,
            together_bytes: counters.together_bytes,
            trend_bytes: counters.trend_bytes,
            huge_pages: counters.huge_pages,
            evicted_bytes: counters.evicted_bytes,
            clean_bytes: counters.clean_bytes,
            zero_evicted_bytes: counters.zero_evicted_bytes,
            kept_bytes: counters.busy_bytes,
            over_budget: counters.over_budget,
            short_bytes,
            outside_bytes_max: counters.outside_bytes_max,
            outside_programs: engine.outside.count(),
            gave_way_s: engine.board.as_ref().map_or(0.0, |board| board.waited_s()),
            lost_bytes: engine.lost_bytes.load(Ordering::Relaxed), // Relaxed: the run is over.
            tuned: engine.watch.tuned(),
            moved: moved.collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
        write!(
            f,
            "far memory: at most {:.0} MiB here and {:.0} MiB far; {} faults ({} of them first writes) waited {:.2} s; \
             out {:.0} MiB written, {:.0} MiB clean, {:.0} MiB zeros; in {:.0} MiB, {:.0} MiB filled ahead, \
             {:.0} of them several units at once, {:.0} along steps",
            mib(self.resident_bytes_max),
            mib(self.far_bytes_max),
            self.faults,
            self.write_faults,
            self.stall_s,
            mib(self.evicted_bytes),
            mib(self.clean_bytes),
            mib(self.zero_evicted_bytes),
            mib(self.fetched_bytes),
            mib(self.ahead_bytes),
            mib(self.together_bytes),
            mib(self.trend_bytes),
        )?;
        for moved in &self.moved {
            write!(
                f,
                "; {}: {:.0} MiB out, {:.0} MiB in",
                moved.name,
                mib(moved.out_bytes),
                mib(moved.in_bytes)
            )?;
            if let Some(ratio) = moved.ratio() {
                let (content, memory) = (mib(moved.packed_bytes), mib(moved.memory_bytes_max));
                write!(f, ", at most {content:.0} MiB in {memory:.0} MiB of memory ({ratio:.1} to 1)")?;
            }
        }
        if let Some((depth, changes)) = self.tuned {
            write!(f, "; fetched at most {} KiB ahead at last, changed {changes} times", depth >> 10)?;
        }
        if let Some(bytes) = self.short_bytes {
            write!(
                f,
                "; nine of ten of the last faults for what was far would not have been with {:.0} MiB more here",
                mib(bytes).ceil()
            )?;
        }
        if self.huge_pages > 0 {
            write!(f, "; {} huge pages made again", self.huge_pages)?;
        }
        if self.gave_way_s >= 0.01 {
            write!(f, "; gave way to other runs for {:.2} s", self.gave_way_s)?;
        }
        if self.over_budget > 0 {
            write!(f, "; {} faults were served above the budget", self.over_budget)?;
        }
        if self.outside_programs > 0 {
            write!(f, "; {} programs started outside", self.outside_programs)?;
        }
        if self.lost_bytes > 0 {
            write!(f, "; {} bytes were lost", self.lost_bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_back_end_takes_of_this_host_is_told_and_a_disk_takes_nothing() {
        let lz4 = Moved {
            name: "lz4".to_owned(),
            out_bytes: 9 << 20,
            memory_bytes_max: 2 << 20,
            packed_bytes: 5 << 20,
            ..Moved::default()
        };
        let disk = Moved { name: "ssd:/tmp".to_owned(), ..Moved::default() };
        let told = Report { moved: vec![lz4, disk], ..Report::default() }.to_string();
        let end = "; lz4: 9 MiB out, 0 MiB in, at most 5 MiB in 2 MiB of memory (2.5 to 1); ssd:/tmp: 0 MiB out, 0 MiB in";
        assert!(told.ends_with(end), "{told}");
    }
}
