//! Taking cold units out of programs, in batches, off the fault path.
//!
//! The pages of a unit leave a program by `UFFDIO_MOVE`, which only a thread of that program may ask for: the library's
//! reclaim thread does, on order. From that moment the program cannot write to them any more, so what is read from the staging
//! area afterwards is the last content. The decision on far memory says why nothing is lost on the way.

use crate::engine::{BUDGET_BYTES_MIN, Budget, Engine, Known, MARGIN_BYTES, Mover, Space};
use crate::staging::Staged;
use crate::store::Copy;
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_farplan::{Outcome, PAGE, Piece};
use hinterland_os::pagemap::PageMap;
use hinterland_os::{OsError, Userfault};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes taken out at once, and units: few enough that faults in them wait for 1 ms or so.
const BATCH_BYTES: u64 = 2 << 20;
const BATCH_UNITS: u64 = 128;
/// A huge page, which moves in one piece.
const HUGE: u64 = 2 << 20;
/// How often resident memory is measured.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How often a space is asked whether it still exists.
const SWEEP_INTERVAL: Duration = Duration::from_millis(300);
/// An address that is valid and that no program has: above what the kernel keeps free, below where programs begin.
const NOWHERE: u64 = 1 << 20;
/// How long nothing may leave before faults go on without room. Shorter than it takes a busy machine to let a thread of the program
/// finish a call, a program whose memory could leave would grow beyond the budget.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// How long when that was so a moment ago.
const STUCK_AFTER_MIN: Duration = Duration::from_millis(4);

/// What content of nothing but zeros is compared with.
static ZEROS: [u8; 4096] = [0; 4096];

/// A unit that is on its way out.
struct Victim {
    start: u64,
    end: u64,
    ticket: u64,
    clean: Option<Piece<Arc<Copy>>>,
}

/// Units of one space that leave together.
struct Batch {
    process: i32,
    mover: Mover,
    epoch: u64,
    victims: Vec<Victim>,
}

/// Neighbours that are moved by one order.
struct Run {
    start: u64,
    bytes: u64,
    place: u64,
}

impl Engine {
    /// Keeps room until the run is over.
    pub(crate) fn evict_until(&self, is_over: impl Fn(&Known) -> bool) {
        let (mut looked, mut swept) = (Instant::now(), Instant::now());
        let (mut fruitful, mut patience) = (Instant::now(), STUCK_AFTER);
        let (mut is_evicting, mut staged) = (false, Staged::default());
        loop {
            let batch = {
                let mut known = self.lock();
                if is_over(&known) {
                    return;
                }
                if looked.elapsed() >= LOOK_INTERVAL {
                    self.look(&mut known);
                    looked = Instant::now();
                }
                if swept.elapsed() >= SWEEP_INTERVAL {
                    sweep(&mut known);
                    swept = Instant::now();
                }
                let room = self.room_bytes(&known);
                let resident: u64 = known.spaces.values().map(|space| space.table.resident_bytes()).sum();
                let spare = self.spare_bytes(room);
                if resident + if is_evicting { spare } else { self.low_bytes(room) } <= room {
                    is_evicting = false;
                    known.is_stuck = false;
                    fruitful = Instant::now();
                    patience = STUCK_AFTER;
                    drop(self.pressure.wait_timeout(known, LOOK_INTERVAL));
                    continue;
                }
                is_evicting = true;
                self.choose(&mut known, resident + spare - room)
            };
            let moved = batch.map_or(0, |batch| self.take_out(batch, &mut staged));
            if moved > 0 {
                fruitful = Instant::now();
                self.lock().is_stuck = false;
                self.bell.raise();
                continue;
            }
            if fruitful.elapsed() >= patience {
                if !std::mem::replace(&mut self.lock().is_stuck, true) {
                    patience = (patience / 2).max(STUCK_AFTER_MIN);
                }
                self.say_once(
                    "more than the local budget stays resident: what is there is locked, pinned, read-only or \
                     shared with a child",
                );
                self.bell.raise();
            }
            let known = self.lock();
            drop(self.pressure.wait_timeout(known, Duration::from_millis(1)));
        }
    }

    /// Measures what the processes have resident beside their tables.
    pub(crate) fn look(&self, known: &mut Known) {
        let far: u64 = known.spaces.values().map(|space| space.table.far_bytes()).sum();
        known.counters.far_bytes_max = known.counters.far_bytes_max.max(far);
        for space in known.spaces.values_mut() {
            // The memory of a child is its parent's until one of them writes.
            let resident = if space.is_child { 0 } else { resident_bytes(space.process) };
            let loose = if space.is_child { 0 } else { loose_resident_bytes(space) };
            space.other_bytes = resident.saturating_sub(space.table.resident_bytes() + loose);
        }
        let outside: u64 = known.spaces.values().map(|space| space.other_bytes).sum();
        if matches!(known.budget, Budget::Bytes(bytes) if outside + MARGIN_BYTES + BUDGET_BYTES_MIN > bytes) {
            known.counters.outside_bytes_max = known.counters.outside_bytes_max.max(outside);
        }
    }

    /// Units of the largest space that can be asked, marked as leaving.
    fn choose(&self, known: &mut Known, wanted: u64) -> Option<Batch> {
        // What no back end takes stays in the supervisor: better above the budget in the program than without limit here.
        if self.stores.is_full() {
            return None;
        }
        let id = known
            .spaces
            .iter()
            .filter(|(_, space)| space.mover.is_some() && space.process != 0)
            .max_by_key(|(_, space)| space.table.resident_bytes())
            .map(|(id, _)| *id)?;
        let (now, mut ticket) = (known.clock, known.ticket);
        let space = known.spaces.get_mut(&id)?;
        let mover = space.mover.clone()?;
        // Odd: a call that takes memory away is under way, and orders would be refused.
        let epoch = space.page.as_ref()?.load_u64(wire::EPOCH_AT).ok().filter(|epoch| epoch % 2 == 0)?;
        let most = BATCH_BYTES.min(BATCH_UNITS * self.unit_bytes).min(mover.staging_bytes);
        let bytes = wanted.clamp(self.unit_bytes, most);
        let found = space.hand.next(&space.table, now, bytes);
        let mut victims = Vec::with_capacity(found.len());
        for (start, end) in found {
            ticket += 1;
            if let Some(clean) = space.table.leave(start, ticket) {
                victims.push(Victim { start, end, ticket, clean });
            }
        }
        let process = space.process;
        known.ticket = ticket;
        (!victims.is_empty()).then_some(Batch { process, mover, epoch, victims })
    }

    /// Moves a batch out, keeps its content, and says so in the tables. Returns the bytes that went.
    fn take_out(&self, batch: Batch, staged: &mut Staged) -> u64 {
        let runs = runs(&batch.victims);
        let moved = match order(&batch, &runs) {
            Ok(moved) => Some(moved),
            // The program has ended, or its reclaim thread has: then nothing more is taken out of it.
            Err(_) => {
                let mut known = self.lock();
                for space in known.spaces.values_mut() {
                    let is_it = |mover: &Mover| Arc::ptr_eq(&mover.stream, &batch.mover.stream);
                    if space.mover.as_ref().is_some_and(is_it) {
                        space.mover = None;
                    }
                }
                None
            }
        };
        let (outcomes, bytes, stranded) = self.keep(&batch, &runs, moved.as_deref(), staged);
        let mut known = self.lock();
        let stamp = known.clock;
        let room = self.room_bytes(&known);
        for victim in &batch.victims {
            let outcome = outcomes.get(&victim.ticket).unwrap_or(&Outcome::Kept);
            match outcome {
                Outcome::Kept => known.counters.busy_bytes += victim.end - victim.start,
                Outcome::Zero => known.counters.zero_evicted_bytes += victim.end - victim.start,
                Outcome::Clean => known.counters.clean_bytes += victim.end - victim.start,
                Outcome::Stored(_) => known.counters.evicted_bytes += victim.end - victim.start,
            }
            if !matches!(outcome, Outcome::Kept)
                && let Some(space) = known.spaces.values_mut().find(|space| space.process == batch.process)
            {
                space.refaults.left(victim.start, stamp, room);
                if matches!(outcome, Outcome::Clean) {
                    space.guess.was_kept(victim.start);
                }
            }
            // A child that was forked meanwhile has the unit in the same state.
            for space in known.spaces.values_mut() {
                space.table.finish(victim.ticket, (victim.start, victim.end), outcome, stamp);
            }
        }
        // Half of what leaves may be filled again while a lowered budget is reached.
        if known.ceiling_bytes > 0 {
            let ceiling = known.ceiling_bytes.saturating_sub(bytes / 2);
            known.ceiling_bytes = if ceiling > self.room_bytes(&known) { ceiling } else { 0 };
        }
        let is_stale = |(_, error): &(u64, u64)| *error == wire::STALE;
        known.counters.stale += u64::from(moved.is_some_and(|moved| moved.iter().any(is_stale)));
        drop(known);
        let _ = batch.mover.stream.send_all(&Message::new(Kind::Clear, [0; 3]).to_bytes(), &[]);
        if let Some(why) = stranded {
            self.say_once(&format!("far memory has no room: {why}"));
        }
        // Waiting faults in units that came back may go on as well.
        self.bell.raise();
        bytes
    }

    /// What became of each unit, by ticket; content that must be kept is in the back ends when this returns.
    fn keep(
        &self,
        batch: &Batch,
        runs: &[Run],
        moved: Option<&[(u64, u64)]>,
        staged: &mut Staged,
    ) -> (HashMap<u64, Outcome<Arc<Copy>>>, u64, Option<String>) {
        let mut outcomes = HashMap::new();
        let (mut bytes, mut stranded) = (0, None);
        let Some(moved) = moved else {
            // Nobody knows which pages went. What a copy has is in the copy; the rest must not be taken for zeros by a child.
            for victim in &batch.victims {
                let lost = || Arc::new(Copy::lost(&self.stores, (victim.end - victim.start) as usize));
                let outcome = if victim.clean.is_some() { Outcome::Clean } else { Outcome::Stored(lost()) };
                outcomes.insert(victim.ticket, outcome);
            }
            return (outcomes, 0, None);
        };
        for (run, (done, _)) in runs.iter().zip(moved) {
            let inside = |victim: &&Victim| run.start <= victim.start && victim.start < run.start + run.bytes;
            let victims = || batch.victims.iter().filter(inside);
            // What has a copy and went whole is not even looked at.
            let is_dirty = victims().any(|victim| victim.clean.is_none());
            let place = batch.mover.staging + run.place;
            // The staging area is the truth: while the kernel also moves pages elsewhere (compaction), it moves more than it says (6.18).
            let looked =
                (is_dirty || *done < run.bytes).then(|| staged.look(batch.process, place, run.bytes));
            let is_read = is_dirty && looked.is_some_and(|looked| looked.is_ok()) && staged.read().is_ok();
            for victim in victims() {
                let range = victim.start - run.start..victim.end - run.start;
                let said = range.end.min(*done).saturating_sub(range.start);
                let gone =
                    if said < range.end - range.start { said.max(staged.reach(range.clone())) } else { said };
                if gone == 0 {
                    continue;
                }
                bytes += gone;
                if victim.clean.is_some() {
                    outcomes.insert(victim.ticket, Outcome::Clean);
                    continue;
                }
                if !is_read {
                    // The process has ended, or it forbids to be read: the content is lost, and is no zeros.
                    let lost = Arc::new(Copy::lost(&self.stores, gone as usize));
                    outcomes.insert(victim.ticket, Outcome::Stored(lost));
                    continue;
                }
                // What is not there was never touched: zeros.
                let content = staged.content(range.start..range.start + gone);
                if content.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()]) {
                    outcomes.insert(victim.ticket, Outcome::Zero);
                    continue;
                }
                let (copy, refusal) = self.stores.put(content);
                if copy.is_stranded() {
                    stranded = refusal.map(|error| error.to_string());
                }
                outcomes.insert(victim.ticket, Outcome::Stored(Arc::new(copy)));
            }
        }
        (outcomes, bytes, stranded)
    }
}

/// Neighbours as one run each, placed so that a huge page stays one.
fn runs(victims: &[Victim]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for victim in victims {
        let bytes = victim.end - victim.start;
        if let Some(last) = runs.last_mut()
            && last.start + last.bytes == victim.start
            && victim.start % HUGE != 0
        {
            last.bytes += bytes;
            continue;
        }
        let place = runs.last().map_or(0, |last| last.place + last.bytes);
        runs.push(Run { start: victim.start, bytes, place });
    }
    runs
}

/// Has the reclaim thread move the runs. Returns bytes moved and error number of each.
fn order(batch: &Batch, runs: &[Run]) -> Result<Vec<(u64, u64)>, OsError> {
    let stream = &batch.mover.stream;
    let mut bytes = Vec::with_capacity((runs.len() + 1) * wire::BYTES);
    for run in runs {
        bytes.extend_from_slice(&Message::new(Kind::Take, [run.start, run.bytes, run.place]).to_bytes());
    }
    bytes.extend_from_slice(&Message::new(Kind::Run, [batch.epoch, runs.len() as u64, 0]).to_bytes());
    stream.send_all(&bytes, &[])?;
    let mut answers = vec![0; runs.len() * wire::BYTES];
    stream.receive_exact(&mut answers, &mut Vec::new())?;
    let mut moved = Vec::with_capacity(runs.len());
    for (run, answer) in runs.iter().zip(answers.as_chunks::<{ wire::BYTES }>().0) {
        match Message::parse(answer) {
            Some(Message { kind: Kind::Taken, words: [start, done, error] }) if start == run.start => {
                // Whole pages, and no more than were asked for, whatever a program says.
                moved.push((done.min(run.bytes) & !(PAGE - 1), error));
            }
            _ => {
                return Err(OsError::Refused {
                    operation: "taking memory out",
                    reason: "the reclaim thread answers something else".to_owned(),
                    hint: "the program has changed our library's memory; nothing more is taken out of it"
                        .into(),
                });
            }
        }
    }
    Ok(moved)
}

/// Resident bytes of a process; 0 if it has ended.
fn resident_bytes(process: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * PAGE
}

/// Resident bytes of what was told of and is not under service; 0 if they cannot be told.
fn loose_resident_bytes(space: &Space) -> u64 {
    if space.loose.is_empty() {
        return 0;
    }
    let Ok(pages) = PageMap::of_process(space.process) else { return 0 };
    space.loose.ranges().map(|(start, end)| pages.present_bytes(start, end - start).unwrap_or(0)).sum()
}

/// Forgets address spaces that have ended.
pub(crate) fn sweep(known: &mut Known) {
    const ESRCH: i32 = 3;
    let has_ended = |error: &OsError| error.errno() == Some(ESRCH);
    // Nothing is served there: the kernel says that no such memory is there, or that nobody is.
    let ask = |faults: &Userfault| faults.try_copy(NOWHERE, &[0; PAGE as usize], false);
    known.spaces.retain(|_, space| !ask(&space.faults).is_err_and(|error| has_ended(&error)));
}
