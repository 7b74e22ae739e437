//! Watching the faults of a run: recording them as a page trace, or learning from them how far to fetch ahead.
//!
//! What the engine takes out of sight and the program touches again is a fault, and nothing else is. So the smaller the budget, the more a trace
//! tells: what misses in a memory of this size is all that a larger one can miss. What is filled ahead of a program is recorded as if it had been
//! touched then: whether it was, nobody is told.

use crate::engine::{Engine, Known};
use hinterland_farplan::live::Tuner;
use hinterland_farplan::trace::{Check, Header, Kind, Record, STORE, end};
use hinterland_farplan::{PAGE, State};
use hinterland_os::userfault::Event;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often resident memory is counted.
const CENSUS_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// What is done with the faults of a run beside serving them.
#[derive(Debug, Default)]
pub enum Watch {
    /// Nothing.
    #[default]
    Nothing,
    /// They are written to a file.
    Record(TraceWriter),
    /// The depth of fetching ahead follows them.
    Tune(Tuner),
}

/// Writes a page trace while a program runs.
#[derive(Debug)]
pub struct TraceWriter {
    file: BufWriter<File>,
    begun: Instant,
    census_next: Instant,
    check: Check,
    records: u64,
    threads_max: u64,
    /// Bytes of content and what they took, when most were there.
    content: (u64, u64),
    failure: Option<io::Error>,
    told: Sender<io::Result<u64>>,
}

/// Where a recorder says at the end how many records it wrote.
pub type Written = Receiver<io::Result<u64>>;

impl TraceWriter {
    /// A recorder that writes to this file.
    ///
    /// # Errors
    /// The refusal of a write.
    pub fn new(file: File, header: Header) -> io::Result<(Self, Written)> {
        let (told, written) = channel();
        let now = Instant::now();
        let mut recorder = Self {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            begun: now,
            census_next: now,
            check: Check::default(),
            records: 0,
            threads_max: 0,
            content: (0, 0),
            failure: None,
            told,
        };
        let bytes = header.to_bytes();
        recorder.check.add(&bytes);
        recorder.file.write_all(&bytes)?;
        Ok((recorder, written))
    }

    fn time_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn write(&mut self, record: Record) {
        if self.failure.is_some() {
            return;
        }
        let bytes = record.to_bytes();
        self.check.add(&bytes);
        self.records += 1;
        if let Err(error) = self.file.write_all(&bytes) {
            self.failure = Some(error);
        }
    }

    fn event(&mut self, engine: &Engine, known: &Known, id: u64, event: &Event) {
        let time_ns = self.time_ns();
        let number = u8::try_from(id).unwrap_or(u8::MAX);
        let mut record = |kind, address, flags, amount| {
            self.write(Record { time_ns, address, kind, space: number, flags, amount });
        };
        match event {
            Event::Fault(fault) => {
                let page = fault.address & !(PAGE - 1);
                let table = known.spaces.get(&id).map(|space| &space.table);
                let (start, end) = table.and_then(|table| table.unit(page)).unwrap_or((page, page + PAGE));
                let kind = match table.and_then(|table| table.state(page)) {
                    None | Some(State::Untouched) => Kind::First,
                    Some(State::Far(_) | State::Leaving { .. }) => Kind::Again,
                    Some(State::Resident { .. }) if fault.write_protect => Kind::Write,
                    // Two threads at one unit, or a page beside one that was touched: nothing that was not known.
                    Some(State::Resident { .. }) => return,
                };
                let flags = if fault.write || fault.write_protect { STORE } else { 0 };
                record(kind, start & !(engine.unit_bytes - 1), flags, ((end - start) / PAGE) as u32);
            }
            Event::Remap { from: start, bytes, .. } => {
                record(Kind::Drop, *start, 0, u32::try_from(bytes / PAGE).unwrap_or(u32::MAX));
            }
            Event::Remove { start, end } | Event::Unmap { start, end } => {
                record(Kind::Drop, *start, 0, u32::try_from((end - start) / PAGE).unwrap_or(u32::MAX));
            }
            Event::Fork(_) => {}
        }
        if Instant::now() >= self.census_next {
            self.census(engine, known);
            self.census_next = Instant::now() + CENSUS_INTERVAL;
        }
    }

    /// Notes units that were filled before anybody touched them.
    fn filled(&mut self, unit_bytes: u64, id: u64, (start, end): (u64, u64), kind: Kind, writes: bool) {
        let (time_ns, flags) = (self.time_ns(), if writes { STORE } else { 0 });
        let number = u8::try_from(id).unwrap_or(u8::MAX);
        let mut at = start;
        while at < end {
            // Units lie at multiples of their length; the first and the last of a range may be cut.
            let next = ((at & !(unit_bytes - 1)) + unit_bytes).min(end);
            let (address, amount) = (at & !(unit_bytes - 1), ((next - at) / PAGE) as u32); // at most 512
            self.write(Record { time_ns, address, kind, space: number, flags, amount });
            at = next;
        }
    }

    fn census(&mut self, engine: &Engine, known: &Known) {
        let (mut other, mut files, mut threads) = (0, 0, 0);
        for space in known.spaces.values().filter(|space| space.process != 0 && !space.is_child) {
            let text = std::fs::read_to_string(format!("/proc/{}/statm", space.process)).unwrap_or_default();
            let mut words = text.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
            let (resident, shared) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            other += (resident * PAGE).saturating_sub(space.table.resident_bytes());
            files += shared;
            let tasks = std::fs::read_dir(format!("/proc/{}/task", space.process));
            threads += tasks.map_or(0, |tasks| tasks.count() as u64);
        }
        self.threads_max = self.threads_max.max(threads);
        let held: u64 = known.spaces.values().map(|space| space.table.far_bytes()).sum();
        if held > self.content.0 {
            self.content = (held, engine.stores.memory_bytes());
        }
        let (time_ns, amount) = (self.time_ns(), u32::try_from(files).unwrap_or(u32::MAX));
        self.write(Record { time_ns, address: other, kind: Kind::Census, space: 0, flags: 0, amount });
    }

    /// Writes what is known at the end, and says how it went.
    fn finish(mut self) {
        let time_ns = self.time_ns();
        let (user_ns, system_ns) = hinterland_os::process::children_times_ns();
        let last =
            |kind, time_ns, address, amount| Record { time_ns, address, kind, space: 0, flags: 0, amount };
        let threads = u32::try_from(self.threads_max).unwrap_or(u32::MAX);
        self.write(last(Kind::Usage, user_ns, system_ns, threads));
        self.write(last(Kind::Content, self.content.0, self.content.1, 0));
        let bytes = end(time_ns, self.records, self.check).to_bytes();
        let failure = self.failure.take();
        let result =
            failure.map_or_else(|| self.file.write_all(&bytes).and_then(|()| self.file.flush()), Err);
        // Who does not listen does not want to know.
        let _ = self.told.send(result.map(|()| self.records));
    }
}

/// What watches the faults of an engine.
#[derive(Debug, Default)]
pub(crate) struct Watcher(Mutex<Watch>);

impl Watcher {
    pub(crate) fn new(watch: Watch) -> Self {
        Self(Mutex::new(watch))
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an event, before anything is done about it.
    pub(crate) fn event(&self, engine: &Engine, known: &Known, id: u64, event: &Event) {
        if let Watch::Record(recorder) = &mut *self.lock() {
            recorder.event(engine, known, id, event);
        }
    }

    /// Takes in what was filled ahead of a program: memory that was touched never before, or that came back.
    pub(crate) fn filled(&self, unit_bytes: u64, id: u64, range: (u64, u64), is_first: bool, writes: bool) {
        if let Watch::Record(recorder) = &mut *self.lock() {
            let kind = if is_first { Kind::First } else { Kind::Again };
            recorder.filled(unit_bytes, id, range, kind, writes);
        }
    }

    /// How many bytes to fetch behind a unit, of those that would be.
    pub(crate) fn ahead(&self, id: u64, start: u64, end: u64, bytes: u64) -> u64 {
        match &mut *self.lock() {
            Watch::Tune(tuner) => tuner.fault(id, start, end, bytes),
            Watch::Nothing | Watch::Record(_) => bytes,
        }
    }

    /// How far was fetched ahead at last, and how often that was changed; `None` if nothing was tuned.
    pub(crate) fn tuned(&self) -> Option<(u64, u64)> {
        match &*self.lock() {
            Watch::Tune(tuner) => Some((tuner.depth_bytes(), tuner.changes())),
            Watch::Nothing | Watch::Record(_) => None,
        }
    }

    /// Ends a record.
    pub(crate) fn finish(&self) {
        let mut watch = self.lock();
        // What was tuned is still to be told.
        if matches!(&*watch, Watch::Record(_))
            && let Watch::Record(recorder) = std::mem::take(&mut *watch)
        {
            recorder.finish();
        }
    }
}
