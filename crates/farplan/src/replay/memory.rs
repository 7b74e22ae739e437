//! The memory of the program in the model, and what touches of it take.

use super::threads::{Content, Limits, Pace, Readers, Writers};
use super::{Costs, Prediction, Setting, Speed, Unit, touched};
use crate::PAGE;
use crate::grain::{Grains, Part, Return};
use crate::guess::Guess;
use crate::hand::Hand;
use crate::refault::{Clock, Refaults};
use crate::room::{self, BATCH_BYTES, BATCH_UNITS, FILL_SHARE};
use crate::stride::{self, AHEAD_BYTES_MAX, FILL_BYTES_MAX, Next, PASSED_BYTES_MAX, Sequences, Touch};
use crate::table::{Piece, State, Table};
use crate::trace::{Kind, Record, Trace};
use crate::trend::{ALONG_BYTES_MAX, Trend, Trends};
use crate::width::{BESIDE_BYTES_MIN, HERE_BYTES_MAX};
use std::collections::{BTreeMap, HashMap};

/// Moments that are kept of what was filled ahead, before those that have gone by are forgotten.
const MOMENTS_MAX: usize = 1 << 14;

/// One address space.
struct Space {
    table: Table<Content>,
    sequences: Sequences,
    trends: Trends,
    guess: Guess,
    grains: Grains,
    refaults: Refaults,
    hand: Hand,
}

/// What is on its way out.
struct Leaving {
    space: u8,
    /// In the order of addresses.
    ranges: Vec<(u64, u64)>,
    bytes: u64,
    /// When it has left.
    done_ns: f64,
}

/// What is known of a far unit that comes back.
#[derive(Clone, Copy)]
struct Want {
    waits: bool,
    foretold: bool,
    writes: bool,
}

/// The memory, and the threads of the engine.
pub(super) struct Memory<'model> {
    costs: &'model Costs,
    setting: &'model Setting,
    is_exact: bool,
    get: Pace,
    readers: Readers,
    writers: Writers,
    limits: Limits,
    room: u64,
    spaces: BTreeMap<u8, Space>,
    /// Bytes filled.
    clock: Clock,
    content_next: u64,
    now_ns: f64,
    handler_ns: f64,
    /// When the evicting thread is free.
    evictor_ns: f64,
    leaving: Option<Leaving>,
    is_evicting: bool,
    /// When units are there that were filled ahead, by space and first byte.
    moments: HashMap<(u8, u64), f64>,
    told: Prediction,
}

impl<'model> Memory<'model> {
    /// The memory that a trace tells of, none of it touched, with room for so many bytes.
    pub(super) fn new(
        trace: &Trace,
        setting: &'model Setting,
        room: u64,
        speeds: &[Speed],
        costs: &'model Costs,
    ) -> Self {
        let members: Vec<&Speed> = setting.back_ends.iter().filter_map(|index| speeds.get(*index)).collect();
        let unit_kib = setting.unit.bytes() as f64 / 1024.0;
        // One is the program's.
        let processors = costs.processors.saturating_sub(1).max(1) as f64;
        let get = Pace::of(&members, unit_kib, processors, |speed| {
            (speed.get_ns, speed.get_kib_ns, speed.get_together)
        });
        let put = Pace::of(&members, unit_kib, processors, |speed| {
            (speed.put_ns, speed.put_kib_ns, speed.put_together)
        });
        Self {
            costs,
            setting,
            is_exact: members.iter().all(|speed| speed.is_exact),
            get,
            readers: Readers::new(setting.width, get),
            writers: Writers::new(vec![0.0; setting.width], put),
            limits: Limits::new(processors),
            room,
            spaces: spaces(trace, setting.unit),
            clock: 0,
            content_next: 0,
            now_ns: 0.0,
            handler_ns: 0.0,
            evictor_ns: 0.0,
            leaving: None,
            is_evicting: false,
            moments: HashMap::new(),
            told: Prediction::default(),
        }
    }

    /// The program computes for a while.
    pub(super) fn go_on(&mut self, ns: f64) {
        self.now_ns += ns;
    }

    /// What all of it came to.
    pub(super) fn told(self) -> Prediction {
        Prediction { time_s: self.now_ns / 1e9, ..self.told }
    }

    /// A touch of a trace that tells so many bytes apart.
    pub(super) fn touch(&mut self, record: &Record, grain_bytes: u64) {
        // A trace whose unit is larger than the setting's touched all of it.
        let step = self.setting.unit.part_bytes().min(grain_bytes);
        for index in 0..grain_bytes / step {
            self.touch_page(record.space, record.address + index * step, record);
        }
    }

    fn touch_page(&mut self, id: u8, page: u64, record: &Record) {
        let writes = record.is_store() || record.kind == Kind::Write;
        self.wait_for_leaving(id, page);
        let Some(space) = self.spaces.get(&id) else { return };
        let Some((start, end)) = space.table.alike(page, self.setting.unit.bytes()) else { return };
        match space.table.state(page) {
            Some(State::Resident { clean, .. }) => {
                let is_first_write = writes && clean.is_some();
                self.wait_for_fill(id, page);
                if is_first_write {
                    self.first_write(id, (start, end));
                }
            }
            Some(State::Untouched) => {
                let begin = self.begin_fault(end - start);
                let done = begin + self.costs.fault_ns + self.fill_ns(end - start);
                self.zeros(id, (start, end));
                self.end_fault(done);
                self.fetch_ahead(id, page, (start, end), writes);
            }
            Some(State::Far(piece)) => {
                let piece = piece.clone();
                let begin = self.begin_fault(end - start);
                let at_hand = self.at_hand(piece.copy, begin);
                let done = at_hand + self.costs.fault_ns + self.fill_ns(end - start);
                self.landed(id, (start, end), &piece, Want { waits: true, foretold: false, writes });
                self.end_fault(done);
                self.fetch_ahead(id, page, (start, end), writes);
            }
            Some(State::Leaving { .. }) | None => {}
        }
        self.evict(self.handler_ns);
    }

    /// A fault for so many bytes: when the thread that serves it has room for them.
    fn begin_fault(&mut self, bytes: u64) -> f64 {
        self.told.faults += 1;
        let mut at = self.now_ns.max(self.handler_ns);
        while let Some(next) = self.evict(at)
            && self.resident_bytes() + bytes > self.room
        {
            at = next;
        }
        at
    }

    fn end_fault(&mut self, done_ns: f64) {
        self.now_ns = done_ns;
        self.handler_ns = done_ns;
    }

    /// What is on its way out comes back only when it has left.
    fn wait_for_leaving(&mut self, id: u8, page: u64) {
        let Some(leaving) = &self.leaving else { return };
        if leaving.space != id || leaving.done_ns <= self.now_ns {
            return;
        }
        let place = leaving.ranges.partition_point(|(_, end)| *end <= page);
        if leaving.ranges.get(place).is_some_and(|(start, _)| *start <= page) {
            self.now_ns = leaving.done_ns;
        }
    }

    /// What is filled ahead just now is a fault that finds it done.
    fn wait_for_fill(&mut self, id: u8, page: u64) {
        if self.handler_ns <= self.now_ns {
            return;
        }
        let unit = page & !(self.setting.unit.part_bytes() - 1);
        if let Some(ready) = self.moments.remove(&(id, unit)).filter(|ready| *ready > self.now_ns) {
            self.now_ns = ready + self.costs.fault_ns;
            self.told.faults += 1;
        }
    }

    /// Opens a clean unit to writing, and what follows it if the program goes on in order.
    fn first_write(&mut self, id: u8, (start, end): (u64, u64)) {
        self.told.faults += 1;
        self.now_ns = self.now_ns.max(self.handler_ns) + self.costs.write_ns;
        self.handler_ns = self.now_ns;
        let clock = self.clock;
        let Some(space) = self.spaces.get_mut(&id) else { return };
        space.table.update(start..end, |unit| {
            if let State::Resident { clean, stamp } = unit {
                (*clean, *stamp) = (None, clock.max(*stamp));
            }
        });
        space.guess.was_written(start);
        if let Some(until) = space.sequences.written(start) {
            open(&mut space.table, end, until);
            return;
        }
        let (index, bytes) = space.sequences.fault(start, end, true);
        let reached = open(&mut space.table, end, end.saturating_add(bytes.min(FILL_BYTES_MAX)));
        space.sequences.fetched(index, reached);
    }

    /// When content is at hand that is asked for from a moment on.
    fn at_hand(&mut self, content: Content, at_ns: f64) -> f64 {
        if self.writers.has(content, at_ns, &mut self.limits) {
            return at_ns;
        }
        if content.bytes > HERE_BYTES_MAX || self.readers.has(content) {
            return self.readers.read(content, at_ns, &mut self.limits);
        }
        self.limits.read_here(at_ns, content.bytes, self.get)
    }

    fn fill_ns(&self, bytes: u64) -> f64 {
        (bytes / PAGE) as f64 * self.costs.page_ns
    }

    fn zeros(&mut self, id: u8, (start, end): (u64, u64)) {
        let stamp = self.clock;
        self.clock += end - start;
        if let Some(space) = self.spaces.get_mut(&id) {
            space.table.update(start..end, |unit| *unit = State::Resident { clean: None, stamp });
        }
    }

    /// A far unit is here again.
    fn landed(&mut self, id: u8, (start, end): (u64, u64), piece: &Piece<Content>, want: Want) {
        let (clock, room, bytes) = (self.clock, self.room, end - start);
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let away = space.refaults.away(start, clock);
        let stay = space.refaults.came((start, bytes), clock, room, want.waits);
        if self.setting.unit == Unit::Fitted {
            let is_other_far = Grains::other_half(start, bytes).is_some_and(
                |other| matches!(space.table.state(other), Some(State::Far(other)) if !other.is_same(piece)),
            );
            let is_wanted = want.waits || want.foretold;
            space.grains.came(Return { start, bytes, is_wanted, is_other_far, away }, clock, room);
        }
        let clean = (!want.writes && space.guess.protects(start)).then(|| piece.clone());
        let stamp = clock + stay.longer;
        space.table.update(start..end, |unit| *unit = State::Resident { clean: clean.clone(), stamp });
        self.clock += bytes + stay.jump;
        self.told.in_bytes += bytes;
    }

    /// Fills what follows, as the engine does, while the program goes on.
    fn fetch_ahead(&mut self, id: u8, page: u64, (start, end): (u64, u64), writes: bool) {
        if !self.setting.ahead {
            return;
        }
        let Some(space) = self.spaces.get_mut(&id) else { return };
        // A trace does not tell threads apart.
        let touch = Touch { thread: u32::from(id), page, start, end, writes };
        match stride::next(&mut space.sequences, Some(&mut space.trends), touch) {
            Next::Window { bytes: 0, .. } | Next::Nothing => {}
            Next::Window { sequence, bytes } => {
                let opens = space.sequences.writes(sequence);
                let most = bytes.min(FILL_BYTES_MAX).min(self.room / FILL_SHARE);
                let (reached, passed) = self.fetch_window(id, end, most, opens);
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.sequences.fetched(sequence, reached);
                }
                self.read_ahead(id, reached, end.saturating_add(passed + bytes));
            }
            Next::Along(trend) => self.fetch_along(id, page, trend, writes),
        }
    }

    /// Fills up to so many bytes from an address on, and passes over what is there. Returns where that ends, and what was there.
    fn fetch_window(&mut self, id: u8, from: u64, most: u64, opens: bool) -> (u64, u64) {
        let (mut at, mut passed, mut filled) = (from, 0, 0);
        while let Some(space) = self.spaces.get(&id) {
            if passed < PASSED_BYTES_MAX {
                let end = space.table.resident_end(at, PASSED_BYTES_MAX - passed);
                passed += end - at;
                at = end;
            }
            let Some((start, end)) = space.table.alike(at, self.setting.unit.bytes()) else { break };
            let state = space.table.state(at).cloned();
            if filled >= most || !self.has_room_ahead(end - start) {
                break;
            }
            if let Some(State::Far(piece)) = &state
                && self.is_read_beside(piece.copy)
                && !self.readers.is_done(piece.copy, self.handler_ns, &mut self.limits)
            {
                break;
            }
            let want = Want { waits: false, foretold: false, writes: opens };
            if !self.fill_ahead(id, (start, end), state, want) {
                break;
            }
            filled += end - start;
            at = end;
        }
        (at, passed)
    }

    /// What lies along the steps of the program.
    fn fetch_along(&mut self, id: u8, page: u64, trend: Trend, writes: bool) {
        let most = ALONG_BYTES_MAX.min(self.room / FILL_SHARE);
        let mut filled = 0;
        for index in 1..=i64::from(trend.count) {
            let Some(address) = page.checked_add_signed(trend.step * index) else { break };
            let Some(space) = self.spaces.get(&id) else { break };
            let Some((start, end)) = space.table.alike(address, self.setting.unit.bytes()) else { break };
            let state = space.table.state(address).cloned();
            if matches!(state, Some(State::Resident { .. })) {
                continue;
            }
            if filled + (end - start) > most || !self.has_room_ahead(end - start) {
                break;
            }
            if let Some(State::Far(piece)) = &state
                && self.get.sleeps
                && !self.is_here(piece.copy)
                && !self.readers.is_done(piece.copy, self.handler_ns, &mut self.limits)
            {
                if !self.readers.want(piece.copy, self.handler_ns, &mut self.limits) {
                    break;
                }
                continue;
            }
            if !self.fill_ahead(id, (start, end), state, Want { waits: false, foretold: true, writes }) {
                break;
            }
            filled += end - start;
        }
    }

    /// Less than where eviction begins, or it would never begin.
    fn has_room_ahead(&self, bytes: u64) -> bool {
        let spare = room::low_bytes(self.room, self.setting.unit.bytes()) / 2;
        self.resident_bytes() + bytes + spare <= self.room
    }

    /// Fills a unit that nobody waits for. `false`: nothing can be filled there.
    fn fill_ahead(
        &mut self,
        id: u8,
        (start, end): (u64, u64),
        state: Option<State<Content>>,
        want: Want,
    ) -> bool {
        self.handler_ns = self.handler_ns.max(self.now_ns);
        match state {
            Some(State::Untouched) => self.zeros(id, (start, end)),
            Some(State::Far(piece)) => {
                self.handler_ns = self.at_hand(piece.copy, self.handler_ns);
                self.landed(id, (start, end), &piece, want);
            }
            _ => return false,
        }
        self.handler_ns += self.fill_ns(end - start);
        self.told.ahead_bytes += end - start;
        if self.moments.len() >= MOMENTS_MAX {
            let now = self.now_ns;
            self.moments.retain(|_, ready| *ready > now);
        }
        for unit in (start..end).step_by(self.setting.unit.part_bytes() as usize) {
            self.moments.insert((id, unit), self.handler_ns);
        }
        true
    }

    /// Has the far units of a range read that are long enough for other threads.
    fn read_ahead(&mut self, id: u8, from: u64, until: u64) {
        if self.setting.unit.bytes() <= BESIDE_BYTES_MIN {
            return;
        }
        let mut at = from;
        while at < until
            && let Some(space) = self.spaces.get(&id)
            && let Some((_, end)) = space.table.unit(at)
        {
            if let Some(State::Far(piece)) = space.table.state(at) {
                let content = piece.copy;
                if self.is_read_beside(content)
                    && !self.readers.want(content, self.handler_ns, &mut self.limits)
                {
                    break;
                }
            }
            at = end;
        }
    }

    fn is_here(&mut self, content: Content) -> bool {
        self.writers.has(content, self.handler_ns, &mut self.limits)
    }

    fn is_read_beside(&mut self, content: Content) -> bool {
        content.bytes > BESIDE_BYTES_MIN && !self.is_here(content)
    }

    /// Bytes that are here, those that are on their way out included.
    fn resident_bytes(&self) -> u64 {
        let tables: u64 = self.spaces.values().map(|space| space.table.resident_bytes()).sum();
        tables + self.leaving.as_ref().map_or(0, |leaving| leaving.bytes)
    }

    /// Lets the evicting thread do what it begins until a moment. Returns when it will be further, if it has something to do.
    fn evict(&mut self, until_ns: f64) -> Option<f64> {
        loop {
            if let Some(leaving) = &self.leaving {
                if leaving.done_ns > until_ns {
                    return Some(leaving.done_ns);
                }
                self.leaving = None;
            }
            let unit = self.setting.unit.bytes();
            let (spare, low) = (room::spare_bytes(self.room, unit), room::low_bytes(self.room, unit));
            // The rest of the spare room is not worth a batch of its own while faults take it again.
            let enough = if self.is_evicting { spare - (spare - low) / 2 } else { low };
            let resident = self.resident_bytes();
            self.is_evicting = resident + enough > self.room;
            if !self.is_evicting {
                return None;
            }
            // What is here too much has been so since the last fault at least.
            let begin = self.evictor_ns.max(self.handler_ns.min(until_ns));
            if begin > until_ns {
                return Some(begin);
            }
            if !self.take_out(begin, resident + spare - self.room) {
                return None;
            }
        }
    }

    /// Takes a batch of about so many bytes out of the largest space. `false`: there is none.
    fn take_out(&mut self, begin_ns: f64, wanted: u64) -> bool {
        let (now, room, unit) = (self.clock, self.room, self.setting.unit.bytes());
        let largest = self.spaces.iter_mut().max_by_key(|(_, space)| space.table.resident_bytes());
        let Some((&id, space)) = largest else { return false };
        let fits = self.setting.unit == Unit::Fitted;
        let most = BATCH_BYTES.min(BATCH_UNITS * unit);
        // Whole blocks, for which there has to be place.
        let (most, block) = if fits { (most - unit, unit) } else { (most, PAGE) };
        let found = space.hand.next(&space.table, now, wanted.max(unit).min(most), block);
        if found.is_empty() {
            return false;
        }
        let parts = if fits {
            space.grains.divide(&space.table, &found, self.is_exact, |content| content.bytes)
        } else {
            let clean = |start: u64| match space.table.state(start) {
                Some(State::Resident { clean, .. }) => clean.clone(),
                _ => None,
            };
            found.iter().map(|&(start, end)| Part { start, end, clean: clean(start) }).collect()
        };
        let (mut ranges, mut written, mut bytes) = (Vec::with_capacity(parts.len()), Vec::new(), 0);
        for Part { start, end, clean } in parts {
            let is_clean = clean.is_some();
            let piece = clean.unwrap_or_else(|| {
                self.content_next += 1;
                let copy = Content { number: self.content_next, bytes: end - start };
                written.push(copy);
                Piece { copy, base: start as i64 } // an address of a program has 47 bits
            });
            space.table.update(start..end, |unit| *unit = State::Far(piece.clone()));
            space.refaults.left(start, now, room);
            if is_clean {
                space.guess.was_kept(start);
            }
            bytes += end - start;
            ranges.push((start, end));
        }
        let pages = (bytes / PAGE) as f64;
        let work = self.costs.batch_ns + pages * self.costs.out_page_ns;
        let done_ns = self.limits.worked(begin_ns, work);
        self.evictor_ns = self.writers.add(&written, done_ns, &mut self.limits);
        self.leaving = Some(Leaving { space: id, ranges, bytes, done_ns });
        self.told.out_bytes += written.iter().map(|content| content.bytes).sum::<u64>();
        let far: u64 = self.spaces.values().map(|space| space.table.far_bytes()).sum();
        self.told.far_bytes_max = self.told.far_bytes_max.max(far);
        true
    }

    /// The program gives memory up.
    pub(super) fn drop_range(&mut self, record: &Record) {
        if let Some(space) = self.spaces.get_mut(&record.space) {
            space.table.remove(record.address, record.address + u64::from(record.amount) * PAGE);
        }
    }
}

/// The address spaces of a trace: what is mapped beside what was touched is not known.
fn spaces(trace: &Trace, unit: Unit) -> BTreeMap<u8, Space> {
    let bytes = unit.bytes();
    let mut spaces = BTreeMap::new();
    let units = touched(trace, bytes);
    // Neighbours as one region.
    for run in units.chunk_by(|one, other| one.0 == other.0 && one.1 + 1 == other.1) {
        let Some((&(id, first), count)) = run.first().zip(Some(run.len() as u64)) else { continue };
        let space = spaces.entry(id).or_insert_with(|| Space {
            table: Table::new(unit.part_bytes()),
            sequences: Sequences::new(AHEAD_BYTES_MAX),
            trends: Trends::default(),
            guess: Guess::default(),
            grains: Grains::default(),
            refaults: Refaults::new(bytes, unit.part_bytes()),
            hand: Hand::default(),
        });
        space.table.add(first * bytes, (first + count) * bytes);
    }
    spaces
}

/// Lets what is here of a range be written without a fault, up to the first unit that is not here; returns where that is.
fn open(table: &mut Table<Content>, from: u64, until: u64) -> u64 {
    let mut at = from;
    while at < until
        && let Some((_, end)) = table.unit(at)
        && let Some(State::Resident { clean, stamp }) = table.state(at)
    {
        let (is_clean, stamp) = (clean.is_some(), *stamp);
        if is_clean {
            table.set(at, State::Resident { clean: None, stamp });
        }
        at = end;
    }
    at
}
