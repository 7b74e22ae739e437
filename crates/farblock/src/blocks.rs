//! The blocks of a device: written one behind the other into units, which go to the back ends whole.
//!
//! A *unit* holds blocks in the order in which they were written, so that a page that is written alone costs no read of its
//! neighbours, and a back end sees few large puts. The map says for each block where its newest content is: nowhere (zeros), or a
//! place in a unit. A unit whose blocks were all written again or trimmed is freed; what is left of sparse ones is written again
//! when too much room lies idle. Nothing is read, compressed or written under the lock.

use hinterland_far::store::{Copy, StoreError, Stores};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a block: what the kernel swaps at once at least.
pub const BLOCK_BYTES: usize = 4096;
/// Most bytes of a unit: what a back end takes at once at most.
pub const UNIT_BYTES_MAX: usize = 2 << 20;
/// Most bytes of a device: what the header of a swap area can say.
pub const DEVICE_BYTES_MAX: u64 = 16 << 40;
/// Bits of a place that tell where in its unit a block is: enough for the longest unit.
const INDEX_BITS: u32 = 9;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Units that may lie idle before sparse ones are written again.
const IDLE_UNITS: u64 = 32;
/// Sparse units that are written again for each full one: each gives at least half a unit back, so that room comes faster than it goes.
const CLEANED_A_UNIT: usize = 2;
/// Blocks whose places change under one hold of the lock.
const BLOCKS_A_HOLD: u64 = 16384;
/// Bytes of units that were read last and are kept: a swapped program touches neighbours one after the other.
const RECENT_BYTES: usize = 4 << 20;
/// Blocks that are written under one hold of the lock, so that reads get in between.
const WRITES_A_HOLD: usize = 32;
/// How often room is looked for before a write is refused.
const ROOM_TRIES: u32 = 8;

/// Why blocks could not be read or written. Nothing else was changed by it.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// Not in the device, or not whole blocks.
    #[error(
        "{bytes} bytes at {offset} are no blocks of the device (hint: whole blocks of 4 KiB below {limit})"
    )]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that there are.
        limit: u64,
    },
    /// The back ends have no room, or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a device is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its length, whole blocks.
    pub bytes: u64,
    /// Bytes of a unit, a power of two from one block to [`UNIT_BYTES_MAX`].
    pub unit_bytes: usize,
    /// Whether units that were read last are kept.
    pub keeps_recent: bool,
}

/// Blocks of 4 KiB in back ends. All methods may be called from several threads at once; of two writes of a block at the same
/// time, one is the last, whole.
pub struct Blocks {
    stores: Arc<Stores>,
    shape: Shape,
    state: Mutex<State>,
    /// By the unit's number; an entry of another unit is no answer.
    recent: Vec<Mutex<Option<Full>>>,
    counters: Counters,
    has_said_full: AtomicBool,
    has_said_lost: AtomicBool,
}

#[derive(Default)]
struct Counters {
    read_bytes: AtomicU64,
    read_zero_bytes: AtomicU64,
    written_bytes: AtomicU64,
    zero_bytes: AtomicU64,
    trimmed_bytes: AtomicU64,
    recent_hits: AtomicU64,
    units_read: AtomicU64,
    cleaned_bytes: AtomicU64,
    refused_bytes: AtomicU64,
    lost_bytes: AtomicU64,
    thin_units: AtomicU64,
    held_bytes_max: AtomicU64,
}

struct State {
    /// For each block: zero, or the unit's number and the index in it.
    map: Vec<u64>,
    units: HashMap<u64, Unit>,
    /// The unit that is being filled. Its entry in `units` has no content yet.
    open: u64,
    open_bytes: Vec<u8>,
    /// Blocks that the map says are in a unit, and blocks that units take.
    live_blocks: u64,
    held_blocks: u64,
    /// Units that became sparse, the oldest first; some of them are gone by the time they are looked at.
    sparse: VecDeque<u64>,
    /// Units that no back end took and that are in memory.
    stranded: VecDeque<u64>,
}

struct Unit {
    content: Content,
    /// The block that each place was written for.
    owners: Vec<u32>,
    live: usize,
}

#[derive(Clone)]
enum Content {
    Open,
    Memory(Arc<Vec<u8>>),
    Stored(Copy),
}

/// A unit by its number, with its content.
type Full = (u64, Arc<Vec<u8>>);

/// Where the next blocks of a read come from.
enum Source {
    /// They are in the caller's buffer already.
    Done,
    Unit(u64, Content, usize),
}

impl Blocks {
    /// A device of zeros.
    ///
    /// # Panics
    /// If the shape is not as [`Shape`] says: the caller parses it.
    pub fn new(stores: Arc<Stores>, shape: Shape) -> Self {
        assert!(
            shape.unit_bytes.is_power_of_two() && (BLOCK_BYTES..=UNIT_BYTES_MAX).contains(&shape.unit_bytes)
        );
        assert!(shape.bytes.is_multiple_of(BLOCK_BYTES as u64) && shape.bytes <= DEVICE_BYTES_MAX);
        let count = usize::try_from(shape.bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        let mut state = State {
            map: vec![0; count],
            units: HashMap::new(),
            open: 0,
            open_bytes: Vec::new(),
            live_blocks: 0,
            held_blocks: 0,
            sparse: VecDeque::new(),
            stranded: VecDeque::new(),
        };
        state.begin_unit(shape.unit_bytes);
        let recent = if shape.keeps_recent { RECENT_BYTES / shape.unit_bytes } else { 0 };
        let recent = std::iter::repeat_with(Mutex::default).take(recent).collect();
        Self {
            stores,
            shape,
            state: Mutex::new(state),
            recent,
            counters: Counters::default(),
            has_said_full: AtomicBool::new(false),
            has_said_lost: AtomicBool::new(false),
        }
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.shape.bytes
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// [`BlockError`]; what is in `into` then means nothing.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let first = self.check(offset, into.len() as u64)?;
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let (bytes, source) = self.next_run(first + (done / BLOCK_BYTES) as u64, rest);
            if let Source::Unit(number, content, index) = source {
                self.copy_out(number, &content, index * BLOCK_BYTES, &mut rest[..bytes])?;
            }
            done += bytes;
        }
        // Relaxed: a counter for people.
        self.counters.read_bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Writes whole blocks. Blocks of zeros take no room.
    ///
    /// # Errors
    /// [`BlockError`]; each of the blocks then has what it had, or what was to be written.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let first = self.check(offset, from.len() as u64)?;
        let refused = |error: BlockError| {
            // Relaxed: a counter for people.
            self.counters.refused_bytes.fetch_add(from.len() as u64, Ordering::Relaxed);
            say_once(
                &self.has_said_full,
                format_args!("writes are refused, and pages stay in memory: {error}"),
            );
            error
        };
        self.make_room().map_err(refused)?;
        let step = WRITES_A_HOLD * BLOCK_BYTES;
        for (number, part) in (first..).step_by(WRITES_A_HOLD).zip(from.chunks(step)) {
            self.write_part(number, part);
        }
        // Relaxed: a counter for people.
        self.counters.written_bytes.fetch_add(from.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write_part(&self, first: u64, from: &[u8]) {
        let (mut full, mut dead) = (Vec::new(), Vec::new());
        let zeros: Vec<bool> = from.chunks_exact(BLOCK_BYTES).map(is_zero).collect();
        let mut state = self.lock();
        for ((number, block), is_zero) in (first..).zip(from.chunks_exact(BLOCK_BYTES)).zip(&zeros) {
            if *is_zero {
                state.place(number, 0, &mut dead);
            } else {
                full.extend(state.append(number, block, self.shape.unit_bytes, &mut dead));
            }
        }
        drop(state);
        drop(dead);
        let zero_bytes = zeros.iter().filter(|is_zero| **is_zero).count() * BLOCK_BYTES;
        // Relaxed: a counter for people.
        self.counters.zero_bytes.fetch_add(zero_bytes as u64, Ordering::Relaxed);
        self.pack_all(full);
    }

    /// Makes whole blocks zeros and gives back what they took.
    ///
    /// # Errors
    /// [`BlockError::Range`].
    pub fn clear(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let first = self.check(offset, bytes)?;
        let end = first + bytes / BLOCK_BYTES as u64;
        let mut at = first;
        while at < end {
            let stop = end.min(at + BLOCKS_A_HOLD);
            let mut dead = Vec::new();
            let mut state = self.lock();
            for number in at..stop {
                state.place(number, 0, &mut dead);
            }
            drop(state);
            drop(dead);
            at = stop;
        }
        // Relaxed: a counter for people.
        self.counters.trimmed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// What it did so far.
    pub fn report(&self) -> BlocksReport {
        let (live, held) = {
            let state = self.lock();
            (state.live_blocks, state.held_blocks)
        };
        // Relaxed: numbers for people.
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        BlocksReport {
            read_bytes: get(&counters.read_bytes),
            read_zero_bytes: get(&counters.read_zero_bytes),
            written_bytes: get(&counters.written_bytes),
            zero_bytes: get(&counters.zero_bytes),
            trimmed_bytes: get(&counters.trimmed_bytes),
            live_bytes: live * BLOCK_BYTES as u64,
            held_bytes: held * BLOCK_BYTES as u64,
            held_bytes_max: get(&counters.held_bytes_max),
            recent_hits: get(&counters.recent_hits),
            units_read: get(&counters.units_read),
            cleaned_bytes: get(&counters.cleaned_bytes),
            refused_bytes: get(&counters.refused_bytes),
            lost_bytes: get(&counters.lost_bytes),
            thin_units: get(&counters.thin_units),
            memory_bytes: self.stores.memory_bytes(),
            moved: self
                .stores
                .members()
                .into_iter()
                .map(|member| (member.name, member.put_bytes, member.got_bytes))
                .collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first block.
    fn check(&self, offset: u64, bytes: u64) -> Result<u64, BlockError> {
        let block = BLOCK_BYTES as u64;
        let limit = self.shape.bytes;
        let is_whole = offset.is_multiple_of(block) && bytes.is_multiple_of(block);
        match offset.checked_add(bytes) {
            Some(end) if is_whole && end <= limit => Ok(offset / block),
            _ => Err(BlockError::Range { offset, bytes, limit }),
        }
    }

    /// The longest run from `first` that has one source, and its bytes.
    fn next_run(&self, first: u64, into: &mut [u8]) -> (usize, Source) {
        let state = self.lock();
        let at = first as usize;
        let count = into.len() / BLOCK_BYTES;
        let place = state.map[at];
        let step = u64::from(place != 0);
        let run = (0..count as u64).take_while(|n| state.map[at + *n as usize] == place + n * step).count();
        // Indices of neighbours in a unit follow each other, and the next unit begins with index zero of another number.
        let index = (place & INDEX_MASK) as usize;
        let run = if place == 0 { run } else { run.min((1 << INDEX_BITS) - index) };
        let bytes = run * BLOCK_BYTES;
        if place == 0 {
            drop(state);
            into[..bytes].fill(0);
            // Relaxed: a counter for people.
            self.counters.read_zero_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            return (bytes, Source::Done);
        }
        let number = place >> INDEX_BITS;
        match state.units.get(&number).map(|unit| unit.content.clone()) {
            Some(Content::Open) => {
                let at = index * BLOCK_BYTES;
                into[..bytes].copy_from_slice(&state.open_bytes[at..at + bytes]);
                (bytes, Source::Done)
            }
            Some(content) => (bytes, Source::Unit(number, content, index)),
            None => unreachable!("the map names a unit that there is not"),
        }
    }

    fn copy_out(&self, number: u64, content: &Content, at: usize, into: &mut [u8]) -> Result<(), BlockError> {
        let copy = match content {
            Content::Memory(bytes) => {
                into.copy_from_slice(&bytes[at..at + into.len()]);
                return Ok(());
            }
            Content::Stored(copy) => copy,
            Content::Open => unreachable!("blocks of the open unit are copied under the lock"),
        };
        let entry = (!self.recent.is_empty()).then(|| &self.recent[number as usize % self.recent.len()]);
        if let Some(entry) = entry {
            let known = entry.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((_, bytes)) = known.filter(|(known, _)| *known == number) {
                into.copy_from_slice(&bytes[at..at + into.len()]);
                // Relaxed: a counter for people.
                self.counters.recent_hits.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        // Relaxed: a counter for people.
        self.counters.units_read.fetch_add(1, Ordering::Relaxed);
        if into.len() == copy.bytes() {
            return copy.read(into).map_err(|error| self.lost(error, into.len()));
        }
        let mut bytes = vec![0; copy.bytes()];
        copy.read(&mut bytes).map_err(|error| self.lost(error, into.len()))?;
        into.copy_from_slice(&bytes[at..at + into.len()]);
        if let Some(entry) = entry {
            *entry.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, Arc::new(bytes)));
        }
        Ok(())
    }

    fn lost(&self, error: StoreError, bytes: usize) -> BlockError {
        // Relaxed: a counter for people.
        self.counters.lost_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        say_once(&self.has_said_lost, format_args!("reads fail, and programs get SIGBUS: {error}"));
        error.into()
    }

    /// Gives full units to the back ends, and writes what is left of sparse ones again if too much room lies idle.
    fn pack_all(&self, mut full: Vec<Full>) {
        while let Some((number, bytes)) = full.pop() {
            self.pack(number, &bytes);
            for _ in 0..CLEANED_A_UNIT {
                full.extend(self.clean_one(false).flatten());
            }
        }
    }

    /// Gives a unit to the back ends. What they refuse stays in memory, and later writes are refused until it is taken.
    fn pack(&self, number: u64, bytes: &Arc<Vec<u8>>) -> Option<StoreError> {
        let (copy, refusal) = self.stores.put(bytes);
        let is_stranded = copy.is_stranded();
        if refusal.is_some() && !is_stranded {
            // Relaxed: a counter for people.
            self.counters.thin_units.fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.lock();
        // Relaxed: a number for people, written under the lock.
        self.counters.held_bytes_max.fetch_max(state.held_blocks * BLOCK_BYTES as u64, Ordering::Relaxed);
        let State { units, stranded, .. } = &mut *state;
        // It may have died meanwhile.
        if let Some(unit) = units.get_mut(&number) {
            if is_stranded {
                stranded.push_back(number);
            } else {
                unit.content = Content::Stored(copy.clone());
            }
        }
        drop(state);
        drop(copy);
        refusal.filter(|_| is_stranded)
    }

    /// Tries again what the back ends refused before anything new is taken, so that memory here stays bounded.
    fn make_room(&self) -> Result<(), BlockError> {
        let mut tries = 0;
        loop {
            let (number, content) = {
                let mut state = self.lock();
                let Some(number) = state.stranded.pop_front() else { return Ok(()) };
                (number, state.units.get(&number).map(|unit| unit.content.clone()))
            };
            let Some(Content::Memory(bytes)) = content else { continue };
            let Some(refusal) = self.pack(number, &bytes) else { continue };
            // Room may lie idle in sparse units: what is left of two makes one.
            tries += 1;
            let cleaned = if tries < ROOM_TRIES { self.clean_one(true) } else { None };
            match cleaned {
                Some(Some((number, bytes))) => drop(self.pack(number, &bytes)),
                Some(None) => {}
                None => return Err(refusal.into()),
            }
        }
    }

    /// Writes what is left of the oldest sparse unit again: nothing if there is none, else the unit that became full by it, if one
    /// did.
    fn clean_one(&self, must: bool) -> Option<Option<Full>> {
        let (number, content, owners) = {
            let mut state = self.lock();
            let idle = state.held_blocks.saturating_sub(state.live_blocks);
            let unit_blocks = (self.shape.unit_bytes / BLOCK_BYTES) as u64;
            if !must && idle <= state.live_blocks / 2 + IDLE_UNITS * unit_blocks {
                return None;
            }
            loop {
                let number = state.sparse.pop_front()?;
                match state.units.get(&number) {
                    Some(unit) if matches!(unit.content, Content::Stored(_)) => {
                        break (number, unit.content.clone(), unit.owners.clone());
                    }
                    // On its way to the back ends: its turn comes later.
                    Some(_) => {
                        state.sparse.push_back(number);
                        return None;
                    }
                    None => {}
                }
            }
        };
        let mut bytes = vec![0; owners.len() * BLOCK_BYTES];
        let Content::Stored(copy) = content else { return None };
        // What cannot be read stays as it is: whoever reads it is told.
        copy.read(&mut bytes).ok()?;
        let (mut full, mut dead) = (None, Vec::new());
        let mut state = self.lock();
        for (index, owner) in owners.iter().enumerate() {
            if state.map[*owner as usize] == number << INDEX_BITS | index as u64 {
                let block = &bytes[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES];
                let filled = state.append(u64::from(*owner), block, self.shape.unit_bytes, &mut dead);
                // At most half a unit is appended, so at most one becomes full.
                full = full.or(filled);
                // Relaxed: a counter for people.
                self.counters.cleaned_bytes.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
            }
        }
        drop(state);
        drop(dead);
        Some(full)
    }
}

impl State {
    fn begin_unit(&mut self, unit_bytes: usize) {
        self.open += 1;
        self.open_bytes = Vec::with_capacity(unit_bytes);
        let owners = Vec::with_capacity(unit_bytes / BLOCK_BYTES);
        self.units.insert(self.open, Unit { content: Content::Open, owners, live: 0 });
    }

    /// Puts a block behind those of the open unit; returns the unit if that made it full.
    fn append(
        &mut self,
        block: u64,
        bytes: &[u8],
        unit_bytes: usize,
        dead: &mut Vec<Content>,
    ) -> Option<Full> {
        let (open, index) = (self.open, self.open_bytes.len() / BLOCK_BYTES);
        self.open_bytes.extend_from_slice(bytes);
        self.held_blocks += 1;
        if let Some(unit) = self.units.get_mut(&open) {
            // A device has at most 2^32 blocks.
            unit.owners.push(block as u32);
        }
        self.place(block, open << INDEX_BITS | index as u64, dead);
        if self.open_bytes.len() < unit_bytes {
            return None;
        }
        let bytes = Arc::new(std::mem::take(&mut self.open_bytes));
        let mut full = None;
        if let Some(unit) = self.units.get_mut(&open) {
            unit.content = Content::Memory(Arc::clone(&bytes));
            if unit.live == 0 {
                // All of it was written again while it was filled.
                self.held_blocks -= unit.owners.len() as u64;
                self.units.remove(&open);
            } else {
                if unit.live * 2 <= unit.owners.len() {
                    self.sparse.push_back(open);
                }
                full = Some((open, bytes));
            }
        }
        self.begin_unit(unit_bytes);
        full
    }

    /// Says where a block is from here on. Content that nobody needs any more goes to `dead`, to be dropped without the lock.
    fn place(&mut self, block: u64, place: u64, dead: &mut Vec<Content>) {
        let before = std::mem::replace(&mut self.map[block as usize], place);
        if place != 0 {
            self.live_blocks += 1;
            if let Some(unit) = self.units.get_mut(&(place >> INDEX_BITS)) {
                unit.live += 1;
            }
        }
        if before == 0 {
            return;
        }
        self.live_blocks -= 1;
        let number = before >> INDEX_BITS;
        let Some(unit) = self.units.get_mut(&number) else { return };
        unit.live -= 1;
        if number == self.open {
            return;
        }
        if unit.live == 0 {
            self.held_blocks -= unit.owners.len() as u64;
            if let Some(unit) = self.units.remove(&number) {
                dead.push(unit.content);
            }
        } else if unit.live == unit.owners.len() / 2 {
            self.sparse.push_back(number);
        }
    }
}

/// Tells people what they must know at once, and not a thousand times.
fn say_once(has_said: &AtomicBool, words: fmt::Arguments<'_>) {
    // Relaxed: guards nothing but a sentence.
    if !has_said.swap(true, Ordering::Relaxed) {
        // Nobody may be there to read it, and the device is needed all the same.
        let _ = writeln!(std::io::stderr().lock(), "hinterland: swap device: {words}");
    }
}

fn is_zero(block: &[u8]) -> bool {
    // Most blocks that are not zeros say so soon.
    block.chunks_exact(64).all(|part| part.iter().fold(0, |sum, byte| sum | byte) == 0)
}

/// What a device did. Bytes, and counts where the name says so.
#[derive(Clone, Debug, Default)]
pub struct BlocksReport {
    /// Read by clients.
    pub read_bytes: u64,
    /// Of these, zeros that no back end was asked for.
    pub read_zero_bytes: u64,
    /// Written by clients.
    pub written_bytes: u64,
    /// Of these, zeros.
    pub zero_bytes: u64,
    /// Trimmed, or made zeros.
    pub trimmed_bytes: u64,
    /// Content that the device has.
    pub live_bytes: u64,
    /// What that takes in units, those blocks included that are not needed any more.
    pub held_bytes: u64,
    /// The most of that.
    pub held_bytes_max: u64,
    /// Reads that a unit read before answered.
    pub recent_hits: u64,
    /// Units that were read from back ends.
    pub units_read: u64,
    /// Written again to give room back.
    pub cleaned_bytes: u64,
    /// Writes that were refused because the back ends had no room or failed.
    pub refused_bytes: u64,
    /// Reads that no back end could answer.
    pub lost_bytes: u64,
    /// Units that have fewer copies than were asked for.
    pub thin_units: u64,
    /// Memory of this host that the back ends take.
    pub memory_bytes: u64,
    /// By back end: name, bytes out, bytes in.
    pub moved: Vec<(String, u64, u64)>,
}

impl fmt::Display for BlocksReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
        write!(
            f,
            "swap device: {:.0} MiB written ({:.0} MiB of it zeros), {:.0} MiB read, {:.0} MiB trimmed; {:.0} MiB in use, \
             at most {:.0} MiB held; {} units read, {} reads from units read before, {:.0} MiB written again",
            mib(self.written_bytes),
            mib(self.zero_bytes),
            mib(self.read_bytes),
            mib(self.trimmed_bytes),
            mib(self.live_bytes),
            mib(self.held_bytes_max),
            self.units_read,
            self.recent_hits,
            mib(self.cleaned_bytes),
        )?;
        for (name, put, got) in &self.moved {
            write!(f, "; {name}: {:.0} MiB out, {:.0} MiB in", mib(*put), mib(*got))?;
        }
        if self.thin_units > 0 {
            write!(f, "; {} units have fewer copies than asked for", self.thin_units)?;
        }
        if self.refused_bytes > 0 {
            write!(f, "; {} bytes were refused for want of room", self.refused_bytes)?;
        }
        if self.lost_bytes > 0 {
            write!(f, "; {} bytes could not be read", self.lost_bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
