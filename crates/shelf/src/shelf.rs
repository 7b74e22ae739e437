//! A node's side of a shelf: the owner of one part, and a reader of the others.

use crate::error::ShelfError;
use crate::layout::{Entry, LINE, MAGIC, Shape, UNIT_BYTES, bytes_of, head_line, hold_word};
use crate::lines::{Lines, Point};
use hinterland_os::{FlushedSlice, SharedSlice};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are stored at once.
const CHUNK_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Writing,
    Live,
    /// It has room that somebody may hold.
    Retired,
}

/// What the owner knows of its own part. It alone writes the part, so it never has to look there.
struct Books {
    entries: Vec<(State, Entry)>,
}

/// A shelf as one node sees it.
pub struct Shelf<M: Lines> {
    memory: M,
    shape: Shape,
    part_bytes: u64,
    own: u32,
    books: Mutex<Books>,
    /// Which of this node's holds are in use.
    holds: Mutex<Vec<bool>>,
}

/// An object of another node that cannot be given up while this lives.
pub struct Held<'shelf, M: Lines> {
    shelf: &'shelf Shelf<M>,
    number: u32,
    /// From the start of the shelf.
    place: u64,
    bytes: u64,
}

impl<M: Lines> Shelf<M> {
    /// Opens a shelf as the owner of part `part`, counted from 1, and makes the part if the memory holds none. What the part
    /// held is given up: whoever holds some of it may read on.
    ///
    /// # Errors
    /// [`ShelfError`] if the part is not there or is another's; nothing was stored then.
    pub fn open(memory: M, shape: Shape, part: u32, owner: u64) -> Result<Self, ShelfError> {
        let (bytes, parts) = (memory.bytes(), shape.parts);
        let part_bytes = shape.part_bytes(bytes);
        if part == 0 || part > parts {
            return Err(ShelfError::NoPart { part, parts });
        }
        if part_bytes <= shape.control_bytes() {
            return Err(ShelfError::Small { bytes, parts, needed: shape.control_bytes() });
        }
        let books =
            Mutex::new(Books { entries: vec![(State::Free, Entry::default()); shape.entries as usize] });
        let holds = Mutex::new(vec![false; shape.holds as usize]);
        let shelf = Self { memory, shape, part_bytes, own: part - 1, books, holds };
        let start = shelf.start(shelf.own);
        shelf.memory.refresh(start, shape.control_bytes(), Point::PartToOpen);
        let head = head_line(shape, shelf.own, part_bytes, owner);
        // Who was told another number of parts would store into those of others.
        if (0..parts).any(|other| other != shelf.own && !shelf.fits(other)) {
            return Err(ShelfError::Foreign { part });
        }
        if shelf.line(start) == head {
            shelf.take_up()?;
        } else if shelf.memory.load(start) == MAGIC {
            return Err(ShelfError::Foreign { part });
        } else {
            let empty = vec![0; (shape.control_bytes() - LINE) as usize];
            shelf.memory.stream(start + LINE, &empty, Point::NewPart)?;
            shelf.memory.fence(Point::NewPart);
            shelf.memory.stream(start, &bytes_of(head), Point::NewHead)?;
            shelf.memory.fence(Point::NewHead);
        }
        Ok(shelf)
    }

    /// Whether a part, counted from 1, may be made or taken up without harm to what lies there: where a shelf keeps its words there is one, or
    /// zeros. Whoever named the wrong file loses nothing if this is asked first.
    pub fn is_free_to_use(memory: &M, shape: Shape, part: u32) -> bool {
        let part_bytes = shape.part_bytes(memory.bytes());
        let start = u64::from(part.saturating_sub(1)) * part_bytes;
        let length = shape.control_bytes().min(part_bytes);
        memory.refresh(start, length, Point::PartToOpen);
        memory.load(start) == MAGIC || (start..start + length).step_by(8).all(|place| memory.load(place) == 0)
    }

    /// Goes on with the part of an earlier process: it holds nothing any more, and what it had published is retired.
    fn take_up(&self) -> Result<(), ShelfError> {
        let start = self.start(self.own);
        for number in 0..self.shape.holds {
            if self.memory.load(start + self.shape.hold(number)) != 0 {
                self.memory.stream(start + self.shape.hold(number), &[0; LINE as usize], Point::Released)?;
            }
        }
        let mut books = self.books();
        for index in 0..self.shape.entries {
            let [generation, object, bytes, place, room, ..] = self.line(start + self.shape.entry(index));
            let mut entry = Entry { generation, object, bytes, place, room };
            if !generation.is_multiple_of(2) {
                entry.generation += 1;
                self.store_entry(index, entry, Point::Retired)?;
            }
            let state = if room == 0 { State::Free } else { State::Retired };
            books.entries[index as usize] = (state, entry);
        }
        self.memory.fence(Point::Retired);
        Ok(())
    }

    /// Stores an object whose bytes `read` gives by offset, and publishes it: when this returns, every other node finds it.
    ///
    /// # Errors
    /// [`ShelfError::Full`]; [`ShelfError::Exists`]; what `read` says. Nobody sees anything of the object then.
    pub fn put(
        &self,
        object: u64,
        bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), ShelfError>,
    ) -> Result<(), ShelfError> {
        let (index, mut entry) = self.reserve(object, bytes)?;
        let mut store = || -> Result<(), ShelfError> {
            let mut buffer = vec![0; CHUNK_BYTES.min(bytes) as usize];
            for offset in (0..bytes).step_by(CHUNK_BYTES as usize) {
                let chunk = &mut buffer[..CHUNK_BYTES.min(bytes - offset) as usize];
                read(offset, chunk)?;
                let place = self.start(self.own) + entry.place + offset;
                self.memory.stream(place, chunk, Point::WrittenBytes)?;
            }
            // A line that is stored past the cache may arrive in pieces, so the generation comes alone, behind the rest.
            self.store_entry(index, entry, Point::WrittenEntry)?;
            // The bytes wait for this fence too.
            self.memory.fence(Point::WrittenEntry);
            let published = Entry { generation: entry.generation + 1, ..entry };
            self.store_entry(index, published, Point::Published)?;
            self.memory.fence(Point::Published);
            entry = published;
            Ok(())
        };
        let stored = store();
        // What failed has an even generation, and goes when nobody holds what was there before.
        let state = if stored.is_ok() { State::Live } else { State::Retired };
        self.books().entries[index as usize] = (state, entry);
        stored
    }

    /// Takes an object away: when this returns, nobody finds it any more. Its room is used again when nobody holds it. Whether it was
    /// there.
    ///
    /// # Errors
    /// [`ShelfError::Os`] if memory cannot be written.
    pub fn remove(&self, object: u64) -> Result<bool, ShelfError> {
        let mut books = self.books();
        let is_it = |(state, entry): &(State, Entry)| *state == State::Live && entry.object == object;
        let Some(index) = books.entries.iter().position(is_it) else { return Ok(false) };
        let mut entry = books.entries[index].1;
        entry.generation += 1;
        self.store_entry(index as u32, entry, Point::Retired)?;
        self.memory.fence(Point::Retired);
        books.entries[index] = (State::Retired, entry);
        Ok(true)
    }

    /// Finds an object of another node and holds it.
    pub fn hold(&self, object: u64) -> Option<Held<'_, M>> {
        (0..self.shape.parts).filter(|&part| part != self.own).find_map(|part| self.hold_of(part, object))
    }

    fn hold_of(&self, part: u32, object: u64) -> Option<Held<'_, M>> {
        let start = self.start(part);
        self.memory.refresh(start, LINE, Point::HeadToRead);
        if self.memory.load(start) != MAGIC || !self.is_of_this_shape(part) {
            return None;
        }
        self.shape.probes(object).find_map(|index| {
            let place = start + self.shape.entry(index);
            self.memory.refresh(place, LINE, Point::EntryToRead);
            let [generation, found, ..] = self.line(place);
            if found != object || generation.is_multiple_of(2) {
                return None;
            }
            let number = self.take_hold(part, index)?;
            let mut held = Held { shelf: self, number, place: 0, bytes: 0 };
            // First what this node says arrives, then it looks: the owner does both the other way round, so one of them sees the
            // other. An entry whose generation is still odd stays as it is until the hold is gone.
            self.memory.refresh(place, LINE, Point::EntryHeld);
            let [now, found, bytes, at, room, ..] = self.line(place);
            let is_inside = at >= self.shape.control_bytes()
                && bytes <= room
                && at.checked_add(room).is_some_and(|end| end <= self.part_bytes);
            (held.place, held.bytes) = (start.saturating_add(at), bytes);
            (now == generation && found == object && is_inside).then_some(held)
        })
    }

    /// Whether a part of another node has the same shape, or does not exist yet.
    fn fits(&self, part: u32) -> bool {
        let start = self.start(part);
        self.memory.refresh(start, LINE, Point::HeadToRead);
        self.memory.load(start) != MAGIC || self.is_of_this_shape(part)
    }

    fn is_of_this_shape(&self, part: u32) -> bool {
        let head = self.line(self.start(part));
        // Whoever owns it.
        head == head_line(self.shape, part, self.part_bytes, head[4])
    }

    fn take_hold(&self, part: u32, index: u32) -> Option<u32> {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let number = holds.iter().position(|is_used| !is_used)?;
        let line = bytes_of([hold_word(part, index), 0, 0, 0, 0, 0, 0, 0]);
        let place = self.start(self.own) + self.shape.hold(number as u32);
        self.memory.stream(place, &line, Point::Held).ok()?;
        holds[number] = true;
        Some(number as u32)
    }

    /// Takes an entry and room.
    fn reserve(&self, object: u64, bytes: u64) -> Result<(u32, Entry), ShelfError> {
        let full = ShelfError::Full { needed: bytes };
        let mut books = self.books();
        if books
            .entries
            .iter()
            .any(|(state, entry)| matches!(state, State::Writing | State::Live) && entry.object == object)
        {
            return Err(ShelfError::Exists);
        }
        self.sweep(&mut books);
        let is_free = |index: &u32| books.entries[*index as usize].0 == State::Free;
        let Some(index) = self.shape.probes(object).find(is_free) else { return Err(full) };
        let Some(room) = bytes.max(1).checked_next_multiple_of(UNIT_BYTES) else { return Err(full) };
        let Some(place) = books.place(room, self.shape.control_bytes(), self.part_bytes) else {
            return Err(full);
        };
        let generation = books.entries[index as usize].1.generation;
        let entry = Entry { generation, object, bytes, place, room };
        books.entries[index as usize] = (State::Writing, entry);
        Ok((index, entry))
    }

    /// Frees what was retired and is held by nobody.
    fn sweep(&self, books: &mut Books) {
        if books.entries.iter().all(|(state, _)| *state != State::Retired) {
            return;
        }
        let mut held = HashSet::new();
        for part in (0..self.shape.parts).filter(|&part| part != self.own) {
            let holds = self.start(part) + self.shape.hold(0);
            self.memory.refresh(holds, LINE * u64::from(self.shape.holds), Point::HoldsToRead);
            held.extend(
                (0..u64::from(self.shape.holds)).map(|number| self.memory.load(holds + number * LINE)),
            );
        }
        for (index, (state, _)) in books.entries.iter_mut().enumerate() {
            if *state == State::Retired && !held.contains(&hold_word(self.own, index as u32)) {
                *state = State::Free;
            }
        }
    }

    fn store_entry(&self, index: u32, entry: Entry, point: Point) -> Result<(), ShelfError> {
        let place = self.start(self.own) + self.shape.entry(index);
        Ok(self.memory.stream(place, &bytes_of(entry.line()), point)?)
    }

    fn line(&self, place: u64) -> [u64; 8] {
        std::array::from_fn(|word| self.memory.load(place + word as u64 * 8))
    }

    fn start(&self, part: u32) -> u64 {
        u64::from(part) * self.part_bytes
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// The first gap of so many bytes.
    fn place(&self, room: u64, begin: u64, end: u64) -> Option<u64> {
        let mut taken: Vec<(u64, u64)> = self
            .entries
            .iter()
            .filter(|(state, _)| *state != State::Free)
            .map(|(_, entry)| (entry.place, entry.room))
            .collect();
        taken.sort_unstable();
        let mut at = begin;
        for (place, room_taken) in taken {
            if place.checked_sub(at).is_some_and(|gap| gap >= room) {
                return Some(at);
            }
            at = at.max(place.saturating_add(room_taken));
        }
        end.checked_sub(at).is_some_and(|gap| gap >= room).then_some(at)
    }
}

impl<M: Lines> Held<'_, M> {
    /// Bytes of the object.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies a range out.
    ///
    /// # Errors
    /// [`ShelfError::Outside`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ShelfError> {
        let place = self.refresh(offset, into.len() as u64)?;
        Ok(self.shelf.memory.read(place, into)?)
    }

    /// Drops this host's copies of a range, which may be of an object that was there before; returns where it is.
    fn refresh(&self, offset: u64, bytes: u64) -> Result<u64, ShelfError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(ShelfError::Outside { offset, bytes, length: self.bytes });
        }
        self.shelf.memory.refresh(self.place + offset, bytes, Point::BytesToRead);
        Ok(self.place + offset)
    }
}

impl Held<'_, FlushedSlice> {
    /// The memory of a range, to be loaded from while this is held.
    ///
    /// # Errors
    /// [`ShelfError::Outside`].
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<SharedSlice, ShelfError> {
        let place = self.refresh(offset, bytes)?;
        Ok(self.shelf.memory.slice().sub(place as usize, bytes as usize)?)
    }
}

impl<M: Lines> Drop for Held<'_, M> {
    fn drop(&mut self) {
        let shelf = self.shelf;
        let place = shelf.start(shelf.own) + shelf.shape.hold(self.number);
        // Only the fence: what was loaded, by whatever instructions, was loaded before this is said.
        shelf.memory.refresh(place, 0, Point::Released);
        let is_said = shelf.memory.stream(place, &[0; LINE as usize], Point::Released).is_ok();
        shelf.memory.fence(Point::Released);
        // A hold that cannot be taken back is not used again: its object stays.
        if is_said {
            let mut holds = shelf.holds.lock().unwrap_or_else(PoisonError::into_inner);
            holds[self.number as usize] = false;
        }
    }
}
