//! Taking cold units out of programs, in batches, off the fault path.
//!
//! The pages of a unit leave a program by `UFFDIO_MOVE`, which only a thread of that program may ask for: the library's
//! reclaim thread does, on order. From that moment the program cannot write to them any more, so what is read from the staging
//! area afterwards is the last content. From there it can come back at once; it goes into the back ends behind that. The decision on far memory says why nothing is lost on the way.

use crate::engine::{Budget, Engine, Known, Mover, Space};
use crate::order::{Answer, Batch, Order, Run, Victim};
use crate::staging::Staged;
use crate::store::Copy;
use crate::thrash::Thrashing;
use crate::weighing::{Own, Resident};
use hinterland_farplan::grain::Part;
use hinterland_farplan::room::{BATCH_BYTES, BATCH_UNITS, budget_bytes_min};
use hinterland_farplan::wire::{self, Kind, Message};
use hinterland_farplan::{Outcome, PAGE, REFUSED, State};
use hinterland_os::{OsError, Userfault};
use std::collections::BTreeSet;
use std::iter::{repeat, repeat_n};
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes taken out at once where processors are crowded: the kernel moves and copies a batch in one go.
const CROWDED_BATCH_BYTES: u64 = 256 << 10;
/// Bytes that are compressed between two moments at which others may have a crowded processor.
const YIELD_BYTES: u64 = 32 << 10;
/// How often resident memory is measured.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How often a space is asked whether it still exists.
const SWEEP_INTERVAL: Duration = Duration::from_millis(300);
/// How often a batch of what the kernel has refused to move is asked for again.
const REFUSED_INTERVAL: Duration = Duration::from_millis(100);
/// The kernel refuses what is locked, or has other rights than the staging area, and what is pinned: until the program changes that.
const REFUSALS: [u64; 2] = [22, 16]; // EINVAL, EBUSY
/// An address that is valid and that no program has: above what the kernel keeps free, below where programs begin.
const NOWHERE: u64 = 1 << 20;
/// How long nothing may leave before faults go on without room. Shorter than it takes a busy machine to let a thread of the program
/// finish a call, a program whose memory could leave would grow beyond the budget.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// How long when that was so a moment ago.
const STUCK_AFTER_MIN: Duration = Duration::from_millis(4);

/// What content of nothing but zeros is compared with.
static ZEROS: [u8; 4096] = [0; 4096];

impl Engine {
    /// Keeps room until the run is over.
    pub(crate) fn evict_until(&self, is_over: impl Fn(&Known) -> bool) {
        let (mut looked, mut swept, mut refused) = (Instant::now(), Instant::now(), Instant::now());
        let (mut fruitful, mut patience) = (Instant::now(), STUCK_AFTER);
        let (mut is_evicting, mut was_full, mut staged) = (false, false, Staged::default());
        let (mut late, mut thrashing) = (Vec::new(), Thrashing::new());
        loop {
            let mut moved = self.ask_again(&mut late, &mut staged);
            if refused.elapsed() >= REFUSED_INTERVAL {
                let batch = self.choose_refused(&mut self.lock(), &late);
                let gone = batch.map_or(0, |batch| self.take_out(batch, &mut staged, &mut late));
                // What follows may have been let go with it.
                if gone == 0 {
                    refused = Instant::now();
                }
                moved += gone;
            }
            let batch = {
                let mut known = self.lock();
                if is_over(&known) {
                    return;
                }
                if looked.elapsed() >= LOOK_INTERVAL {
                    self.look(&mut known);
                    looked = Instant::now();
                    if let Some(text) = thrashing.look(self, &known) {
                        drop(known);
                        self.say_once("thrash", &text);
                        continue;
                    }
                }
                if swept.elapsed() >= SWEEP_INTERVAL {
                    sweep(&mut known);
                    swept = Instant::now();
                }
                let room = self.room_bytes(&known);
                let resident = known.resident_bytes();
                let spare = self.spare_bytes(room);
                let low = self.low_bytes(room);
                // The rest of the spare room is not worth a batch of its own while faults take it again.
                let enough = if is_evicting { spare - (spare - low) / 2 } else { low };
                if resident + enough <= room {
                    (is_evicting, was_full) = (false, false);
                    known.is_stuck = false;
                    fruitful = Instant::now();
                    patience = STUCK_AFTER;
                    self.rest(known, LOOK_INTERVAL);
                    continue;
                }
                is_evicting = true;
                was_full |= self.stores.is_full();
                // Nobody waits for room while a program is stopped: that is no reason to go beyond the budget.
                if !late.is_empty() && known.waiting.is_empty() {
                    fruitful = Instant::now();
                }
                self.choose(&mut known, resident + spare - room, &late)
            };
            moved += batch.map_or(0, |batch| self.take_out(batch, &mut staged, &mut late));
            if moved > 0 {
                fruitful = Instant::now();
                continue;
            }
            if fruitful.elapsed() >= patience && self.go_on_without_room(late.is_empty(), was_full) {
                patience = (patience / 2).max(STUCK_AFTER_MIN);
            }
            self.rest(self.lock(), Duration::from_millis(1));
        }
    }

    /// Has faults be served without room, since none can be made. Returns whether they were not so far.
    fn go_on_without_room(&self, is_all_asked: bool, was_full: bool) -> bool {
        let is_new = !std::mem::replace(&mut self.lock().is_stuck, true);
        if was_full {
            self.say_once(
                "above",
                "more than the local budget stays resident, because no back end has room for it",
            );
        } else if is_all_asked {
            self.say_once(
                "stuck",
                "more than the local budget stays resident: what is there is locked, pinned, read-only or \
                 shared with a child",
            );
        } else {
            self.say_once(
                "stopped",
                "more than the local budget stays resident: a program of the run is stopped, or gets no processor, and its memory \
                 cannot leave meanwhile (hint: let it go on, or end it)",
            );
        }
        self.bell.raise();
        is_new
    }

    /// Waits for pressure, or for so long.
    fn rest(&self, mut known: MutexGuard<'_, Known>, time: Duration) {
        known.is_evictor_idle = true;
        // Who panicked has said so; the table is whole after each call.
        let waited = self.pressure.wait_timeout(known, time);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_evictor_idle = false;
    }

    /// Measures what the processes have resident beside their tables.
    pub(crate) fn look(&self, known: &mut Known) {
        known.counters.far_bytes_max = known.counters.far_bytes_max.max(known.far_bytes());
        // The memory of a child is its parent's until one of them writes: one of a family counts, as long as it is there the one that all come from.
        let mut counted: BTreeSet<u64> =
            known.spaces.iter().filter(|(_, space)| !space.is_child).map(|(id, _)| *id).collect();
        let mut is_weighed = true;
        for space in known.spaces.values_mut() {
            let counts = space.process != 0 && (!space.is_child || counted.insert(space.family));
            is_weighed &= !counts || space.own.is_some();
            space.other_bytes = if counts {
                let beside = space.table.resident_bytes() + loose_resident_bytes(space);
                Resident::of(space.process).counted(space.own.unwrap_or(Own::ALL)).saturating_sub(beside)
            } else {
                // What it has locked itself is nobody else's.
                space.table.refused_bytes()
            };
        }
        let outside: u64 = known.spaces.values().map(|space| space.other_bytes).sum();
        let is_above = matches!(known.budget, Budget::Bytes(bytes) if budget_bytes_min(outside) > bytes);
        // What new processes have in common with others counts in each of them for a moment.
        if is_above && is_weighed {
            // One look alone may see memory that the program is giving back: it has left the table, and not yet the process.
            let lasting = outside.min(known.counters.outside_bytes);
            known.counters.outside_bytes_max = known.counters.outside_bytes_max.max(lasting);
        }
        known.counters.outside_bytes = outside;
        self.lower_ceiling(known);
    }

    /// Units of the largest space that can be asked, marked as leaving. Who has not answered yet cannot.
    fn choose(&self, known: &mut Known, wanted: u64, late: &[Order]) -> Option<Batch> {
        // What no back end takes stays in the supervisor: better above the budget in the program than without limit here.
        if self.stores.is_full() {
            return None;
        }
        let can_be_asked = |mover: &Mover| !late.iter().any(|order| order.is_with(mover));
        let id = known
            .spaces
            .iter()
            .filter(|(_, space)| space.process != 0 && space.mover.as_ref().is_some_and(can_be_asked))
            .max_by_key(|(_, space)| space.table.resident_bytes())
            .map(|(id, _)| *id)?;
        let now = known.clock;
        self.gather(known, id, |space, most, block| {
            let bytes = wanted.max(self.unit_bytes).min(most);
            space.hand.next(&space.table, now, bytes, block)
        })
    }

    /// As [`choose`](Self::choose), units that the kernel has refused to move, of each space in its turn.
    fn choose_refused(&self, known: &mut Known, late: &[Order]) -> Option<Batch> {
        let can_be_asked = |mover: &Mover| !late.iter().any(|order| order.is_with(mover));
        let id = known
            .spaces
            .iter()
            .filter(|(_, space)| space.table.refused_bytes() > 0)
            .filter(|(_, space)| space.process != 0 && space.mover.as_ref().is_some_and(can_be_asked))
            .min_by_key(|(_, space)| space.refused_at)
            .map(|(id, _)| *id)?;
        let ticket = known.ticket;
        self.gather(known, id, |space, most, block| {
            space.refused_at = ticket;
            let found = space.hand.refused(&space.table, most, block);
            // They count in the table as long as they leave.
            let bytes: u64 = found.iter().map(|(start, end)| end - start).sum();
            space.other_bytes = space.other_bytes.saturating_sub(bytes);
            found
        })
        .map(|batch| Batch { was_refused: true, ..batch })
    }

    /// What of a space leaves together, at most so many bytes and whole blocks, marked as leaving.
    fn gather(
        &self,
        known: &mut Known,
        id: u64,
        find: impl FnOnce(&mut Space, u64, u64) -> Vec<(u64, u64)>,
    ) -> Option<Batch> {
        let mut ticket = known.ticket;
        let space = known.spaces.get_mut(&id)?;
        let mover = space.mover.clone()?;
        // Odd: a call that takes memory away is under way, and orders would be refused.
        let epoch = space.page.as_ref()?.load_u64(wire::EPOCH_AT).ok().filter(|epoch| epoch % 2 == 0)?;
        let is_crowded = self.board.as_ref().is_some_and(|board| board.is_crowded());
        // A unit leaves whole.
        let batch_bytes = if is_crowded { CROWDED_BATCH_BYTES.max(self.unit_bytes) } else { BATCH_BYTES };
        let most = batch_bytes.min(BATCH_UNITS * self.unit_bytes).min(mover.staging_bytes);
        // Whole blocks, for which there has to be place.
        let (most, block) =
            if self.service.fit { (most - self.unit_bytes, self.unit_bytes) } else { (most, PAGE) };
        let found = find(space, most, block);
        let mut victims = Vec::with_capacity(found.len());
        for Part { start, end, clean } in self.parts(space, &found) {
            ticket += 1;
            space.table.leave(start..end, ticket, clean.is_some());
            victims.push(Victim { start, end, ticket, clean });
        }
        let process = space.process;
        known.ticket = ticket;
        (!victims.is_empty()).then_some(Batch { process, mover, epoch, victims, was_refused: false })
    }

    /// What leaves together of resident units.
    fn parts(&self, space: &mut Space, found: &[(u64, u64)]) -> Vec<Part<Copy>> {
        if self.service.fit {
            let is_exact = self.stores.is_exact();
            return space.grains.divide(&space.table, found, is_exact, |copy| copy.bytes() as u64);
        }
        let clean = |address: u64| match space.table.state(address) {
            Some(State::Resident { clean, .. }) => clean.clone(),
            _ => None,
        };
        found.iter().map(|&(start, end)| Part { start, end, clean: clean(start) }).collect()
    }

    /// Moves a batch out, and keeps its content. Returns the bytes that went; an order without an answer so far is kept with those that are `late`.
    fn take_out(&self, batch: Batch, staged: &mut Staged, late: &mut Vec<Order>) -> u64 {
        let mut order = Order::give(batch);
        match order.answer(true) {
            Answer::NotYet => {
                late.push(order);
                0
            }
            answer => self.took_out(&order, answer, staged),
        }
    }

    /// Looks which late answers have come. Returns the bytes that went.
    fn ask_again(&self, late: &mut Vec<Order>, staged: &mut Staged) -> u64 {
        let mut bytes = 0;
        late.retain_mut(|order| match order.answer(false) {
            Answer::NotYet => true,
            answer => {
                bytes += self.took_out(order, answer, staged);
                false
            }
        });
        bytes
    }

    /// Keeps the content of what has moved, and says so in the tables. Returns the bytes that the tables have resident no longer.
    fn took_out(&self, Order { batch, runs, .. }: &Order, answer: Answer, staged: &mut Staged) -> u64 {
        let moved = if let Answer::Moved(moved) = answer {
            Some(moved)
        } else {
            // Nothing more is taken out of it.
            for space in self.lock().spaces.values_mut() {
                let is_it = |mover: &Mover| Arc::ptr_eq(&mover.stream, &batch.mover.stream);
                if space.mover.as_ref().is_some_and(is_it) {
                    space.mover = None;
                }
            }
            None
        };
        let (outcomes, bytes) = self.keep(batch, runs, moved.as_deref(), staged);
        let mut known = self.lock();
        let stamp = known.clock;
        let room = self.room_bytes(&known);
        let mut refused_bytes = 0;
        for ((victim, outcome), error) in batch.victims.iter().zip(&outcomes).zip(errors(runs, &moved)) {
            let is_refused = REFUSALS.contains(&error) && matches!(outcome, Outcome::Kept);
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
                let before = space.table.refused_bytes();
                let stamp = if is_refused { REFUSED } else { stamp };
                space.table.finish(victim.ticket, (victim.start, victim.end), outcome, stamp);
                // It counts as all that cannot be far, before the next look.
                let refused = space.table.refused_bytes() - before;
                space.other_bytes += refused;
                refused_bytes += refused;
            }
        }
        // Half of what leaves may be filled again while a lowered budget is reached.
        if known.ceiling_bytes > 0 {
            let ceiling = known.ceiling_bytes.saturating_sub(bytes / 2);
            known.ceiling_bytes = if ceiling > self.room_bytes(&known) { ceiling } else { 0 };
        }
        let is_stale = |(_, error): &(u64, u64)| *error == wire::STALE;
        known.counters.stale += u64::from(moved.is_some_and(|moved| moved.iter().any(is_stale)));
        // What was refused before is no news.
        let progress = bytes + if batch.was_refused { 0 } else { refused_bytes };
        known.is_stuck &= progress == 0;
        // For room, and for units that were leaving and came back.
        let is_awaited = !known.waiting.is_empty();
        drop(known);
        if is_awaited {
            self.bell.raise();
        }
        let _ = batch.mover.stream.send_all(&Message::new(Kind::Clear, [0; 3]).to_bytes(), &[]);
        let copies = outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Stored(copy) => Some(copy),
            _ => None,
        });
        self.settling.add(copies, |copies| self.settle(copies));
        progress
    }

    /// What became of each unit, in their order, and how many bytes went. Content that must be kept is in this process then, and
    /// can be read.
    fn keep(
        &self,
        batch: &Batch,
        runs: &[Run],
        moved: Option<&[(u64, u64)]>,
        staged: &mut Staged,
    ) -> (Vec<Outcome<Copy>>, u64) {
        let lost = |bytes: u64| Outcome::Stored(Copy::lost(&self.stores, bytes as usize));
        let Some(moved) = moved else {
            // Nobody knows which pages went. What a copy has is in the copy; the rest must not be taken for zeros by a child.
            let outcome = |victim: &Victim| {
                if victim.clean.is_some() { Outcome::Clean } else { lost(victim.end - victim.start) }
            };
            return (batch.victims.iter().map(outcome).collect(), 0);
        };
        let is_dirty =
            |run: &Run| batch.victims[run.victims.clone()].iter().any(|victim| victim.clean.is_none());
        let place = |run: &Run| run.place..run.place + run.bytes;
        let short = runs.iter().zip(moved).filter(|(run, (done, _))| is_dirty(run) || *done < run.bytes);
        let looked = short.map(|(run, _)| place(run)).reduce(|all, run| all.start..run.end);
        let dirty = dirty(&batch.victims, runs);
        // The staging area is the truth: while the kernel also moves pages elsewhere (compaction), it moves more than it says (6.18).
        // What has a copy and went whole is not even looked at.
        let is_read = looked.is_some_and(|range| {
            let pages = &batch.mover.pages;
            staged.look(pages, batch.mover.staging, range).is_ok()
                && staged.read(batch.process, &dirty).is_ok()
                // Else what seems never to have been there was there.
                && pages.is_alive()
        });
        let (mut outcomes, mut bytes) = (Vec::with_capacity(batch.victims.len()), 0);
        for (run, (done, _)) in runs.iter().zip(moved) {
            for victim in &batch.victims[run.victims.clone()] {
                let range = victim.start - run.start..victim.end - run.start;
                let said = range.end.min(*done).saturating_sub(range.start);
                let range = run.place + range.start..run.place + range.end;
                let gone =
                    if said < range.end - range.start { said.max(staged.reach(range.clone())) } else { said };
                bytes += gone;
                outcomes.push(if gone == 0 {
                    Outcome::Kept
                } else if victim.clean.is_some() {
                    Outcome::Clean
                } else if is_read {
                    self.begin(staged.content(), range.start as usize..(range.start + gone) as usize)
                } else {
                    // The process has ended, or it forbids to be read: the content is lost, and is no zeros.
                    lost(gone)
                });
            }
        }
        (outcomes, bytes)
    }

    fn begin(&self, buffer: &Arc<Vec<u8>>, range: Range<usize>) -> Outcome<Copy> {
        // What is not there was never touched: zeros.
        if buffer[range.clone()].chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()]) {
            return Outcome::Zero;
        }
        Outcome::Stored(self.stores.begin(buffer, range))
    }

    /// Puts what has left into back ends, unless it has come back meanwhile and was written.
    pub(crate) fn settle(&self, copies: &[Copy]) {
        let wanted: Vec<_> = copies.iter().filter(|copy| copy.is_shared()).cloned().collect();
        self.give_way();
        for part in wanted.chunks(self.settled_at_once(wanted.len())) {
            if let Some(refusal) = self.stores.settle(part)
                && part.iter().any(|copy| copy.is_stranded())
            {
                self.say_once("full", &format!("far memory has no room: {refusal}"));
            }
            if part.len() < wanted.len() {
                std::thread::yield_now();
            }
        }
    }

    /// Waits for runs that have used less of the devices that content goes to.
    fn give_way(&self) {
        if let Some(board) = &self.board {
            self.stores.devices().into_iter().for_each(|device| board.give_way(device));
        }
    }

    /// How many contents are put before others may have the processor: all, unless it is what they wait for. The scheduler lets whoever computes go on for
    /// its slice, a millisecond or more, also where the thread that wakes meanwhile has waited for a fault.
    fn settled_at_once(&self, count: usize) -> usize {
        let is_crowded =
            self.stores.is_exact() && self.board.as_ref().is_some_and(|board| board.is_crowded());
        let few = (YIELD_BYTES / self.unit_bytes.max(1)).max(1) as usize; // at most YIELD_BYTES
        if is_crowded { few.min(count.max(1)) } else { count.max(1) }
    }
}

/// The error number of each unit's run, in their order.
fn errors<'a>(runs: &'a [Run], moved: &'a Option<Vec<(u64, u64)>>) -> impl Iterator<Item = u64> + 'a {
    let each = runs.iter().zip(moved.iter().flatten());
    each.flat_map(|(run, (_, error))| repeat_n(*error, run.victims.len())).chain(repeat(0))
}

/// Where in the staging area what has no copy goes, neighbours as one.
fn dirty(victims: &[Victim], runs: &[Run]) -> Vec<Range<u64>> {
    let mut dirty: Vec<Range<u64>> = Vec::new();
    for run in runs {
        for victim in victims[run.victims.clone()].iter().filter(|victim| victim.clean.is_none()) {
            let (start, end) = (run.place + victim.start - run.start, run.place + victim.end - run.start);
            match dirty.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => dirty.push(start..end),
            }
        }
    }
    dirty
}

/// Resident bytes of what was told of and is not under service; 0 if they cannot be told.
fn loose_resident_bytes(space: &Space) -> u64 {
    if space.loose.is_empty() {
        return 0;
    }
    let Ok(pages) = space.pages() else { return 0 };
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
