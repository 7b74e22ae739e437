//! Memory for tests, in which each participant has its own copies of lines, and nobody sees a store that was not written back.
//!
//! A participant stands for a host. Its loads and stores reach its own copies only; a copy moves to memory when it is written
//! back, and is fetched anew after it was dropped. As in real caches, write-backs and stores past the cache are late: they
//! arrive when the participant fences, in any order, or earlier by chance. And caches act on their own: under a seed, lines
//! are evicted (dirty ones are written back) and fetched ahead at random. One seed is one run, as long as the calls come in
//! one order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::coherence::LINE_BYTES;

type Line = [u8; LINE_BYTES];

/// Lines that were used last, among which eviction and prefetch choose: others would have no effect.
const RECENT: usize = 48;
/// Lines beside a recent one that are fetched ahead.
const NEIGHBOURS: u64 = 3;

/// How caches act on their own.
#[derive(Clone, Copy, Debug)]
pub struct Disorder {
    /// What all chance comes from.
    pub seed: u64,
    /// Calls between two acts on average; 0 for none.
    pub calls: u32,
    /// Whether memory holds anything at the start, in place of zeros.
    pub garbage: bool,
}

impl Disorder {
    /// Nothing happens unless it is asked for, and memory is zero at the start.
    pub const NONE: Self = Self { seed: 0, calls: 0, garbage: false };
}

#[derive(Clone, Copy)]
struct Copied {
    line: Line,
    dirty: bool,
}

enum Late {
    WriteBack(usize),
    Stream(usize, Line),
}

impl Late {
    const fn place(&self) -> usize {
        match self {
            Self::WriteBack(place) | Self::Stream(place, _) => *place,
        }
    }
}

#[derive(Default)]
struct Cache {
    lines: BTreeMap<usize, Copied>,
    late: VecDeque<Late>,
}

struct State {
    lines: usize,
    memory: HashMap<usize, Line>,
    caches: Vec<Cache>,
    recent: VecDeque<usize>,
    disorder: Disorder,
    chance: u64,
}

/// What is called before each step of any participant, while nothing is locked: a test lets others run there.
pub type OnStep = dyn Fn() + Send + Sync;

/// One host's side of the memory.
#[derive(Clone)]
pub struct Participant {
    state: Arc<Mutex<State>>,
    on_step: Arc<OnStep>,
    number: usize,
}

/// Memory of `bytes` bytes (rounded up to lines) as `count` participants see it.
pub fn segment(bytes: usize, count: usize, disorder: Disorder, on_step: Arc<OnStep>) -> Vec<Participant> {
    let state = State {
        lines: bytes.div_ceil(LINE_BYTES),
        memory: HashMap::new(),
        caches: (0..count).map(|_| Cache::default()).collect(),
        recent: VecDeque::new(),
        disorder,
        chance: disorder.seed ^ 0x9e37_79b9_7f4a_7c15,
    };
    let state = Arc::new(Mutex::new(state));
    (0..count)
        .map(|number| Participant { state: Arc::clone(&state), on_step: Arc::clone(&on_step), number })
        .collect()
}

impl Participant {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.lock().lines * LINE_BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads bytes; false outside.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let (place, at) = ((offset + done) / LINE_BYTES, (offset + done) % LINE_BYTES);
            let count = (LINE_BYTES - at).min(into.len() - done);
            let Some(mut state) = self.step(place) else { return false };
            let copied = state.copied(self.number, place);
            into[done..done + count].copy_from_slice(&copied.line[at..at + count]);
            done += count;
        }
        true
    }

    /// The same as this participant would see it, without any effect.
    pub fn peek(&self, offset: usize) -> u64 {
        let (place, at) = (offset / LINE_BYTES, offset % LINE_BYTES);
        let state = self.lock();
        let cache = &state.caches[self.number];
        let late = cache.late.iter().rev().find_map(|late| match late {
            Late::Stream(where_to, line) if *where_to == place => Some(*line),
            _ => None,
        });
        let line = late.or_else(|| cache.lines.get(&place).map(|copied| copied.line));
        let line = line.unwrap_or_else(|| state.in_memory(place));
        let mut word = [0; 8];
        word.copy_from_slice(&line[at..at + 8]);
        u64::from_le_bytes(word)
    }

    /// Stores bytes into this participant's copies; false outside.
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let mut done = 0;
        while done < from.len() {
            let (place, at) = ((offset + done) / LINE_BYTES, (offset + done) % LINE_BYTES);
            let count = (LINE_BYTES - at).min(from.len() - done);
            let Some(mut state) = self.step(place) else { return false };
            let copied = state.copied(self.number, place);
            copied.line[at..at + count].copy_from_slice(&from[done..done + count]);
            copied.dirty = true;
            done += count;
        }
        true
    }

    /// Stores a line past the cache; false outside.
    pub fn stream(&self, place: usize, line: Line) -> bool {
        let Some(mut state) = self.step(place) else { return false };
        state.drop_copy(self.number, place);
        state.caches[self.number].late.push_back(Late::Stream(place, line));
        true
    }

    /// Starts to write back the lines of a range.
    pub fn write_back(&self, offset: usize, bytes: usize) {
        // Lines that are not dirty are not looked at: new memory is long.
        let dirty = |(&place, copied): (&usize, &Copied)| copied.dirty.then_some(place);
        let range = lines_of(offset, bytes);
        let places: Vec<usize> =
            self.lock().caches[self.number].lines.range(range).filter_map(dirty).collect();
        for place in places {
            let Some(mut state) = self.step(place) else { return };
            if state.caches[self.number].lines.get(&place).is_some_and(|copied| copied.dirty) {
                state.caches[self.number].late.push_back(Late::WriteBack(place));
            }
        }
    }

    /// Waits until all that was started has arrived.
    pub fn fence(&self) {
        loop {
            (self.on_step)();
            let mut state = self.lock();
            if !state.arrive(self.number) {
                return;
            }
        }
    }

    /// Drops the copies of the lines of a range, after a fence; dirty ones are written back.
    pub fn refresh(&self, offset: usize, bytes: usize) {
        self.fence();
        for place in lines_of(offset, bytes) {
            let Some(mut state) = self.step(place) else { return };
            state.drop_copy(self.number, place);
        }
    }

    /// Locks the memory after a step of this participant on a line; `None` outside.
    fn step(&self, place: usize) -> Option<MutexGuard<'_, State>> {
        (self.on_step)();
        let mut state = self.lock();
        if place >= state.lines {
            return None;
        }
        state.recent.push_back(place);
        if state.recent.len() > RECENT {
            state.recent.pop_front();
        }
        state.act();
        Some(state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lines_of(offset: usize, bytes: usize) -> std::ops::Range<usize> {
    if bytes == 0 { 0..0 } else { offset / LINE_BYTES..(offset + bytes).div_ceil(LINE_BYTES) }
}

impl State {
    /// The copy of a participant, fetched if there is none.
    fn copied(&mut self, number: usize, place: usize) -> &mut Copied {
        // What it stored past its cache it sees itself. That it looks at a line makes no write-back arrive.
        let is_streamed = |late: &Late| matches!(late, Late::Stream(where_to, _) if *where_to == place);
        if self.caches[number].late.iter().any(is_streamed) {
            self.arrive_at(number, place);
        }
        let line = self.in_memory(place);
        self.caches[number].lines.entry(place).or_insert(Copied { line, dirty: false })
    }

    fn in_memory(&self, place: usize) -> Line {
        self.memory.get(&place).copied().unwrap_or_else(|| {
            let mut line = [0; LINE_BYTES];
            if self.disorder.garbage {
                let mut state = self.disorder.seed ^ (place as u64) << 20;
                line.fill_with(|| (next(&mut state) >> 56) as u8);
            }
            line
        })
    }

    /// Drops a copy; a dirty one is written back.
    fn drop_copy(&mut self, number: usize, place: usize) {
        self.arrive_at(number, place);
        if let Some(Copied { line, dirty: true }) = self.caches[number].lines.remove(&place) {
            self.memory.insert(place, line);
        }
    }

    /// Lets what is late for one line arrive.
    fn arrive_at(&mut self, number: usize, place: usize) {
        while let Some(index) = self.caches[number].late.iter().position(|late| late.place() == place) {
            self.arrive_index(number, index);
        }
    }

    /// Lets something that is late arrive, whichever; false if there is nothing.
    fn arrive(&mut self, number: usize) -> bool {
        let count = self.caches[number].late.len() as u64;
        if count == 0 {
            return false;
        }
        let index = self.below(count) as usize;
        let place = self.caches[number].late[index].place();
        // What is late for one line arrives in order.
        if let Some(index) = self.caches[number].late.iter().position(|late| late.place() == place) {
            self.arrive_index(number, index);
        }
        true
    }

    fn arrive_index(&mut self, number: usize, index: usize) {
        match self.caches[number].late.remove(index) {
            Some(Late::Stream(place, line)) => {
                self.memory.insert(place, line);
            }
            Some(Late::WriteBack(place)) => {
                // It may have been evicted meanwhile.
                if let Some(copied) = self.caches[number].lines.get_mut(&place) {
                    if copied.dirty {
                        self.memory.insert(place, copied.line);
                    }
                    copied.dirty = false;
                }
            }
            None => {}
        }
    }

    /// What caches do on their own.
    fn act(&mut self) {
        let calls = u64::from(self.disorder.calls);
        if calls == 0 || self.below(calls) != 0 {
            return;
        }
        let number = self.below(self.caches.len() as u64) as usize;
        let index = self.below(self.recent.len() as u64) as usize;
        let recent = self.recent[index];
        match self.below(4) {
            0 => self.drop_copy(number, recent),
            1 => {
                self.arrive(number);
            }
            _ => {
                let place = (recent + self.below(NEIGHBOURS) as usize).min(self.lines - 1);
                let is_late = self.caches[number].late.iter().any(|late| late.place() == place);
                if !is_late {
                    self.copied(number, place);
                }
            }
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        (next(&mut self.chance) >> 33) % limit
    }
}

/// The next number of a sequence (splitmix).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [Participant; 2] {
        let mut sides = segment(4096, 2, Disorder::NONE, Arc::new(|| ())).into_iter();
        [(); 2].map(|()| sides.next().expect("there are two"))
    }

    #[test]
    fn a_store_is_seen_after_it_was_written_back_and_the_old_copy_dropped() {
        let [one, other] = pair();
        assert_eq!(other.peek(128), 0);
        let mut byte = [9];
        assert!(other.read(128, &mut byte) && byte == [0]);
        one.write(128, &[5]);
        other.refresh(128, 1);
        assert!(other.read(128, &mut byte) && byte == [0], "it is in the other's cache");
        one.write_back(128, 1);
        one.fence();
        assert!(other.read(128, &mut byte) && byte == [0], "the old copy is still there");
        other.refresh(128, 1);
        assert!(other.read(128, &mut byte) && byte == [5]);
    }

    #[test]
    fn what_is_stored_past_the_cache_arrives_with_the_fence_and_is_seen_by_who_stored_it() {
        let [one, other] = pair();
        one.stream(3, [7; 64]);
        assert_eq!((one.peek(192), other.peek(192)), (u64::from_le_bytes([7; 8]), 0));
        one.fence();
        assert_eq!(other.peek(192), u64::from_le_bytes([7; 8]));
        assert!(!one.stream(64, [0; 64]) && !one.write(4095, &[1, 2]));
    }

    #[test]
    fn two_writers_of_one_line_undo_each_other() {
        let [one, other] = pair();
        one.write(0, &[1]);
        other.write(1, &[2]);
        one.refresh(0, 1);
        other.refresh(0, 1);
        assert_eq!(one.peek(0), 0x200, "the later line went over the first as a whole");
    }
}
