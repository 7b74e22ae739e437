//! A page trace played against a model of the engine: the run time that a setting would give.
//!
//! The model has what the engine has: units, a budget with spare room, a hand that sweeps over what is resident, clean and
//! dirty units, fetching ahead ([`Sequences`] and [`Trends`] are the engine's own), and one thread each for faults and for evictions. It has no
//! queues in the kernel and no cache of the processor.

use crate::PAGE;
use crate::refault::{Clock, Refaults};
use crate::room;
use crate::stride::{self, FILL_BYTES_MAX, Next, PASSED_BYTES_MAX, Sequences, Touch};
use crate::trace::{Kind, Record, Trace};
use crate::trend::{ALONG_BYTES_MAX, Trend, Trends};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What is taken out at once.
const BATCH_BYTES: u64 = 2 << 20;
/// Of a hundred gaps between faults of a kind, those that were nothing but the fault itself.
const IDLE_GAPS_PERCENT: usize = 5;

/// How fast a back end is, and what its memory costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Its name in `--far`.
    pub name: String,
    /// Nanoseconds to read content back: once, and for each KiB.
    pub get_ns: f64,
    /// As above, for each KiB.
    pub get_kib_ns: f64,
    /// Nanoseconds to keep content: once, and for each KiB.
    pub put_ns: f64,
    /// As above, for each KiB.
    pub put_kib_ns: f64,
    /// What a byte there costs, in bytes of this host's memory.
    pub cost: f64,
}

/// What the engine's steps cost, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// A fault, from the touch until the program goes on, without its content.
    pub fault_ns: f64,
    /// Filling a page.
    pub page_ns: f64,
    /// The first write to a clean unit.
    pub write_ns: f64,
    /// Taking a batch out.
    pub batch_ns: f64,
    /// Taking a page out, beside what its back end does.
    pub out_page_ns: f64,
    /// The first touch of a page without far memory.
    pub plain_page_ns: f64,
}

impl Default for Costs {
    /// Estimates for a machine with two processors and Linux 6.18, from what calls of the kernel cost there; they were never fitted to runs.
    fn default() -> Self {
        Self {
            fault_ns: 16_000.0,
            page_ns: 700.0,
            write_ns: 12_000.0,
            batch_ns: 60_000.0,
            out_page_ns: 900.0,
            plain_page_ns: 1_000.0,
        }
    }
}

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// `--local` in bytes.
    pub local_bytes: u64,
    /// `--far-unit`.
    pub unit_bytes: u64,
    /// Whether to fetch ahead of sequences.
    pub ahead: bool,
    /// Which of the speeds, each once; content goes to them in turn by their speed.
    pub back_ends: Vec<usize>,
}

/// What a setting would give.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Seconds.
    pub time_s: f64,
    /// Seconds without far memory, as far as the trace tells.
    pub plain_s: f64,
    /// Page faults served, first writes included.
    pub faults: u64,
    /// Brought back, ahead included.
    pub in_bytes: u64,
    /// Taken out and written.
    pub out_bytes: u64,
    /// Filled ahead of the program.
    pub ahead_bytes: u64,
    /// Most that was far at once.
    pub far_bytes_max: u64,
}

type Unit = (u8, u64);

#[derive(Clone, Copy, Debug)]
struct Resident {
    is_dirty: bool,
    stamp: u64,
    /// When the content is there.
    ready_ns: f64,
}

struct Model<'model> {
    costs: &'model Costs,
    setting: &'model Setting,
    get: (f64, f64),
    put: (f64, f64),
    room: u64,
    spare: u64,
    resident: BTreeMap<Unit, Resident>,
    /// Units that the program touches at any time: what is mapped beside them is not known.
    touched: HashSet<Unit>,
    /// Units that are far.
    far: HashSet<Unit>,
    sequences: Sequences,
    trends: Trends,
    hand: Unit,
    /// Bytes filled.
    clock: Clock,
    refaults: Refaults,
    now_ns: f64,
    handler_ns: f64,
    evictor_ns: f64,
    told: Prediction,
}

/// Plays a trace.
pub fn replay(trace: &Trace, gaps: &Gaps, setting: &Setting, speeds: &[Speed], costs: &Costs) -> Prediction {
    let room = room_bytes(trace, setting.local_bytes);
    let members: Vec<&Speed> = setting.back_ends.iter().filter_map(|index| speeds.get(*index)).collect();
    let unit_kib = setting.unit_bytes as f64 / 1024.0;
    let mut model = Model {
        costs,
        setting,
        get: blended(&members, unit_kib, |speed| (speed.get_ns, speed.get_kib_ns)),
        put: blended(&members, unit_kib, |speed| (speed.put_ns, speed.put_kib_ns)),
        room,
        spare: room::spare_bytes(room, setting.unit_bytes),
        resident: BTreeMap::new(),
        touched: touched_units(trace, setting.unit_bytes),
        far: HashSet::new(),
        sequences: Sequences::new(FILL_BYTES_MAX),
        trends: Trends::default(),
        hand: (0, 0),
        clock: 0,
        refaults: Refaults::new(setting.unit_bytes, setting.unit_bytes),
        now_ns: 0.0,
        handler_ns: 0.0,
        evictor_ns: 0.0,
        told: Prediction::default(),
    };
    let pages = footprint_pages(trace) as f64;
    model.told.plain_s = (gaps.sum_ns() + pages * costs.plain_page_ns) / 1e9;
    if pages * PAGE as f64 <= room as f64 {
        // Nothing is under service as long as all fits.
        model.told.time_s = model.told.plain_s;
        return model.told;
    }
    let mut gaps = gaps.each.iter();
    for record in &trace.records {
        if record.kind.is_touch() {
            model.now_ns += gaps.next().copied().unwrap_or(0.0);
            model.touch(record, trace.header.unit_bytes);
        } else if record.kind == Kind::Drop {
            model.drop_range(record);
        }
    }
    model.told.time_s = (model.now_ns + gaps.sum::<f64>()) / 1e9;
    model.told
}

/// Bytes that may be resident of what is under service.
pub fn room_bytes(trace: &Trace, local_bytes: u64) -> u64 {
    let census = trace.records.iter().filter(|record| record.kind == Kind::Census);
    let other = census.map(|record| record.address).max().unwrap_or(0);
    room::room_bytes(local_bytes, other)
}

/// Different pages that were touched.
pub fn footprint_pages(trace: &Trace) -> u64 {
    let grain = trace.header.unit_bytes;
    let mut all: Vec<Unit> = trace.touches().map(|record| (record.space, record.address / grain)).collect();
    all.sort_unstable();
    all.dedup();
    all.len() as u64 * (grain / PAGE)
}

fn touched_units(trace: &Trace, unit_bytes: u64) -> HashSet<Unit> {
    let count = (trace.header.unit_bytes / unit_bytes).max(1);
    let first = |record: &Record| (record.space, record.address / unit_bytes);
    let all = |(space, first): Unit| (0..count).map(move |index| (space, first + index));
    trace.touches().map(first).flat_map(all).collect()
}

/// The time and the rate of several back ends that share content by their speed.
fn blended(members: &[&Speed], unit_kib: f64, of: impl Fn(&Speed) -> (f64, f64)) -> (f64, f64) {
    // Each takes content in proportion to its speed, which is what puts of a unit take.
    let weight = |speed: &Speed| 1.0 / (speed.put_ns + speed.put_kib_ns * unit_kib).max(1.0);
    let sum: f64 = members.iter().map(|speed| weight(speed)).sum();
    members.iter().fold((0.0, 0.0), |(once, kib), speed| {
        let share = weight(speed) / sum;
        let (its_once, its_kib) = of(speed);
        (once + share * its_once, kib + share * its_kib)
    })
}

impl Model<'_> {
    fn touch(&mut self, record: &Record, grain_bytes: u64) {
        let unit_bytes = self.setting.unit_bytes;
        // A trace whose unit is larger than the setting's touched all of it.
        let count = (grain_bytes / unit_bytes).max(1);
        let first = record.address / unit_bytes;
        for index in 0..count {
            self.touch_unit((record.space, first + index), record);
        }
    }

    fn touch_unit(&mut self, unit: Unit, record: &Record) {
        let writes = record.is_store() || record.kind == Kind::Write;
        if let Some(resident) = self.resident.get_mut(&unit) {
            if resident.ready_ns > self.now_ns {
                // It is on its way: the touch is a fault that finds it done.
                self.now_ns = resident.ready_ns + self.costs.fault_ns;
                self.told.faults += 1;
            }
            if writes && !resident.is_dirty {
                resident.is_dirty = true;
                self.now_ns += self.costs.write_ns;
                self.told.faults += 1;
            }
            return;
        }
        self.told.faults += 1;
        self.make_room(1);
        let was_far = self.far.remove(&unit);
        let begin = self.now_ns.max(self.handler_ns);
        let done = begin + self.costs.fault_ns + self.fill_ns(was_far);
        self.now_ns = done;
        self.handler_ns = done;
        self.told.in_bytes += if was_far { self.setting.unit_bytes } else { 0 };
        self.place(
            unit,
            Resident { is_dirty: writes || !was_far, stamp: self.clock, ready_ns: done },
            was_far,
            true,
        );
        if self.setting.ahead {
            self.fetch_ahead(unit, record.address, writes);
        }
    }

    /// A unit is here from now on; what came back soon after it left stays longer.
    fn place(&mut self, unit: Unit, mut resident: Resident, was_far: bool, is_wanted: bool) {
        if was_far {
            let stay = self.refaults.came(
                (self.address(unit), self.setting.unit_bytes),
                self.clock,
                self.room,
                is_wanted,
            );
            resident.stamp += stay.longer;
            self.clock += stay.jump;
        }
        self.clock += self.setting.unit_bytes;
        self.resident.insert(unit, resident);
    }

    /// An address that is another one in each space.
    fn address(&self, (space, unit): Unit) -> u64 {
        (u64::from(space) << 48) + unit * self.setting.unit_bytes
    }

    fn fill_ns(&self, was_far: bool) -> f64 {
        let unit = self.setting.unit_bytes;
        let content = if was_far { self.get.0 + self.get.1 * unit as f64 / 1024.0 } else { 0.0 };
        content + (unit / PAGE) as f64 * self.costs.page_ns
    }

    /// Fills what follows, as the engine does, while the program goes on.
    fn fetch_ahead(&mut self, (space, unit): Unit, page: u64, writes: bool) {
        let bytes = self.setting.unit_bytes;
        let (start, end) = (unit * bytes, (unit + 1) * bytes);
        // A trace does not tell threads apart.
        let touch =
            Touch { thread: u32::from(space), page: page.clamp(start, end - PAGE), start, end, writes };
        match stride::next(&mut self.sequences, Some(&mut self.trends), touch) {
            Next::Window { sequence, bytes } => self.fetch_window((space, unit), sequence, bytes),
            Next::Along(trend) => self.fetch_along(space, touch, trend),
            Next::Nothing => {}
        }
    }

    /// What lies along the steps of the program.
    fn fetch_along(&mut self, space: u8, touch: Touch, trend: Trend) {
        let most = (u64::from(trend.count)).min((ALONG_BYTES_MAX / self.setting.unit_bytes).max(1));
        for index in 1..=most as i64 {
            let Some(address) = touch.page.checked_add_signed(trend.step * index) else { break };
            let key = (space, address / self.setting.unit_bytes);
            if !self.touched.contains(&key) {
                break;
            }
            if !self.resident.contains_key(&key) {
                self.fill_ahead(key, touch.writes);
            }
        }
    }

    /// A unit is filled that nobody waits for.
    fn fill_ahead(&mut self, key: Unit, opens: bool) {
        let was_far = self.far.remove(&key);
        self.make_room(1);
        self.handler_ns = self.handler_ns.max(self.now_ns) + self.fill_ns(was_far);
        let resident = Resident { is_dirty: !was_far || opens, stamp: self.clock, ready_ns: self.handler_ns };
        self.place(key, resident, was_far, false);
        self.told.in_bytes += if was_far { self.setting.unit_bytes } else { 0 };
        self.told.ahead_bytes += self.setting.unit_bytes;
    }

    fn fetch_window(&mut self, (space, unit): Unit, index: usize, wanted: u64) {
        let bytes = self.setting.unit_bytes;
        let end = (unit + 1) * bytes;
        let opens = self.sequences.writes(index);
        let (mut next, mut passed) = (unit + 1, 0);
        loop {
            let key = (space, next);
            if self.resident.contains_key(&key) && passed < PASSED_BYTES_MAX {
                next += 1;
                passed += bytes;
                continue;
            }
            let is_enough = next * bytes >= end + wanted + passed;
            if is_enough || self.resident.contains_key(&key) || !self.touched.contains(&key) {
                break;
            }
            self.fill_ahead(key, opens);
            next += 1;
        }
        self.sequences.fetched(index, next * bytes);
    }

    /// Lets the evicting thread take out what must go for so many units; waits where it is behind.
    fn make_room(&mut self, units: u64) {
        let unit = self.setting.unit_bytes;
        let held = (self.resident.len() as u64 + units) * unit;
        if held + self.spare <= self.room {
            return;
        }
        let excess = (held + self.spare - self.room).div_ceil(unit);
        let work: f64 = (0..excess).map_while(|_| self.evict_one()).sum();
        self.evictor_ns = self.evictor_ns.max(self.now_ns) + work;
        let each = self.evict_ns(true);
        let slack = self.spare as f64 / unit as f64 * each;
        self.now_ns = self.now_ns.max(self.evictor_ns - slack);
    }

    fn evict_ns(&self, is_dirty: bool) -> f64 {
        let unit = self.setting.unit_bytes;
        let batch = self.costs.batch_ns * unit as f64 / BATCH_BYTES as f64;
        let pages = (unit / PAGE) as f64 * self.costs.out_page_ns;
        batch + pages + if is_dirty { self.put.0 + self.put.1 * unit as f64 / 1024.0 } else { 0.0 }
    }

    /// Takes the next unit out that was not filled last; what that takes.
    fn evict_one(&mut self) -> Option<f64> {
        let young = self.clock.saturating_sub(self.resident.len() as u64 * self.setting.unit_bytes / 4);
        let old = |(_, resident): &(&Unit, &Resident)| resident.stamp < young;
        let victim = self.resident.range(self.hand..).find(old).or_else(|| self.resident.iter().find(old));
        let next = || self.resident.range(self.hand..).next().or_else(|| self.resident.iter().next());
        let unit = *victim.or_else(next)?.0;
        self.hand = (unit.0, unit.1 + 1);
        let resident = self.resident.remove(&unit)?;
        self.far.insert(unit);
        self.refaults.left(self.address(unit), self.clock, self.room);
        let bytes = self.setting.unit_bytes;
        self.told.out_bytes += if resident.is_dirty { bytes } else { 0 };
        self.told.far_bytes_max = self.told.far_bytes_max.max(self.far.len() as u64 * bytes);
        Some(self.evict_ns(resident.is_dirty))
    }

    fn drop_range(&mut self, record: &Record) {
        let unit = self.setting.unit_bytes;
        let first = record.address.div_ceil(unit);
        let end = (record.address + u64::from(record.amount) * PAGE) / unit;
        if first >= end {
            return;
        }
        let range = (record.space, first)..(record.space, end);
        let gone: Vec<Unit> = self.resident.range(range.clone()).map(|(unit, _)| *unit).collect();
        for unit in gone {
            self.resident.remove(&unit);
        }
        self.far.retain(|unit| !range.contains(unit));
    }
}

/// What the program itself took between touches.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaps {
    each: Vec<f64>,
}

impl Gaps {
    /// Takes out of the times between touches what the faults of the trace took.
    ///
    /// Where the program's own processor time is known and less than the time that went by, the gaps are scaled to it:
    /// a busy machine makes gaps longer, never that time.
    pub fn of(trace: &Trace) -> Self {
        let mut before = 0;
        let mut by_kind: HashMap<(Kind, bool), Vec<u64>> = HashMap::new();
        let mut raw = Vec::new();
        for record in trace.touches() {
            let gap = record.time_ns.saturating_sub(before);
            before = record.time_ns;
            by_kind.entry((record.kind, record.is_store())).or_default().push(gap);
            raw.push((gap, (record.kind, record.is_store())));
        }
        let idle: HashMap<(Kind, bool), u64> = by_kind
            .into_iter()
            .map(|(key, mut gaps)| {
                gaps.sort_unstable();
                (key, gaps[gaps.len() * IDLE_GAPS_PERCENT / 100])
            })
            .collect();
        let mut each: Vec<f64> = raw
            .iter()
            .map(|(gap, key)| gap.saturating_sub(idle.get(key).copied().unwrap_or(0)) as f64)
            .collect();
        // What follows the last touch is the program's own.
        each.push(trace.time_ns.saturating_sub(before) as f64);
        let mut gaps = Self { each };
        if let Some(user_ns) = trace.last(Kind::Usage).map(|record| record.time_ns as f64)
            && user_ns < trace.time_ns as f64
        {
            gaps.scale_to(user_ns);
        }
        gaps
    }

    /// All of them together.
    pub fn sum_ns(&self) -> f64 {
        self.each.iter().sum()
    }

    fn scale_to(&mut self, sum_ns: f64) {
        // A little for each touch, so that regular programs, whose gaps are all alike, keep their order in time.
        let least = sum_ns / self.each.len().max(1) as f64 / 10.0;
        for gap in &mut self.each {
            *gap += least;
        }
        let factor = sum_ns / self.sum_ns().max(1.0);
        for gap in &mut self.each {
            *gap *= factor;
        }
    }
}

#[cfg(test)]
mod tests;
