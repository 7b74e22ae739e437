//! Huge pages that are made again where memory has come to rest.
//!
//! Memory comes back in small pages. Where a program, or the machine, wants huge ones, what has stayed for a while becomes one again
//! ([`hinterland_farplan::huge`] says when that pays). The kernel does it (`MADV_COLLAPSE`), at once or not at all: it refuses where a page is missing or
//! protected, so that nothing here has to be right about that. Copies of clean memory are given up for it: what is at rest seldom leaves.

use crate::ahead::open;
use crate::engine::{Engine, Known};
use hinterland_farplan::huge::HUGE_BYTES;
use hinterland_os::looks;
use hinterland_os::process::ProcessHandle;
use hinterland_os::transparent_huge::{Wanted, collapse};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Most huge pages of an address space that are made in one look: 256 MiB a second.
const MADE_MAX: usize = 32;
/// How long it is remembered where a process wants huge pages: the kernel walks all of its memory to tell.
const WANTED_TIME: Duration = Duration::from_secs(10);

/// How long one process may keep who asks it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where each process wants huge pages, and when that was asked.
type Asked = HashMap<i32, (Instant, Vec<Range<u64>>)>;

impl Engine {
    /// Makes huge pages until the run is over.
    pub(crate) fn remake_huge_pages(&self) {
        let wanted = Wanted::of_machine();
        if wanted == Wanted::Never {
            return;
        }
        let mut asked = Asked::new();
        loop {
            let known = self.lock();
            // Who panicked has said so; the tables are whole after each call.
            let waited = self.over.wait_timeout_while(known, LOOK_INTERVAL, |known| !known.is_over);
            let (mut known, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if known.is_over {
                return;
            }
            let found = self.at_rest(&mut known);
            drop(known);
            asked.retain(|_, (since, _)| since.elapsed() < WANTED_TIME);
            for (id, process, blocks) in found {
                self.remake(id, process, &blocks, ranges(&mut asked, wanted, process));
            }
        }
    }

    /// Address spaces with places of huge pages where nothing comes or goes.
    fn at_rest(&self, known: &mut Known) -> Vec<(u64, i32, Vec<u64>)> {
        let (now, room) = (known.clock, self.room_bytes(known));
        let mut found = Vec::new();
        for (id, space) in &mut known.spaces {
            // What a child shares with its parent is not its own to change.
            if space.process == 0 || space.is_child || !space.is_armed {
                continue;
            }
            let blocks = space.blocks.next(&space.table, now, room, MADE_MAX);
            if !blocks.is_empty() {
                found.push((*id, space.process, blocks));
            }
        }
        found
    }

    fn remake(&self, id: u64, process: i32, blocks: &[u64], wanted: &[Range<u64>]) {
        let Ok(handle) = ProcessHandle::open(process) else { return };
        let is_wanted =
            |block: u64| wanted.iter().any(|range| range.start <= block && block + HUGE_BYTES <= range.end);
        for block in blocks.iter().copied().filter(|block| is_wanted(*block)) {
            let is_open = {
                let mut known = self.lock();
                let Some(space) = known.spaces.get_mut(&id) else { return };
                space.table.resident_end(block, HUGE_BYTES) == block + HUGE_BYTES
                    && open(space, block, block + HUGE_BYTES).is_ok_and(|end| end == block + HUGE_BYTES)
            };
            // One that is refused is tried again when something has changed there.
            if is_open && collapse(&handle, block, HUGE_BYTES as usize).is_ok() {
                self.lock().counters.huge_pages += 1;
            }
        }
    }
}

/// Where a process wants huge pages, as it was not long ago.
fn ranges(asked: &mut Asked, wanted: Wanted, process: i32) -> &[Range<u64>] {
    let look = move || wanted.of_process(process).unwrap_or_default();
    // Numbers of processes are not negative.
    let find = || looks::in_time(process.cast_unsigned(), PATIENCE, look).unwrap_or_default();
    let ask = || (Instant::now(), find());
    &asked.entry(process).or_insert_with(ask).1
}
