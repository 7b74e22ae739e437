//! Access to the pages of a region, each at its home: by loads and stores in this rack, else by one operation for each home.
//!
//! The word of a page, which the node keeps, says where it lies. A thread names the page in its slot before it reads the word,
//! so that the node does not move it meanwhile. A word that is out of date costs a round trip: the home refuses, the node
//! finds out where the page is, and the access begins again. See the decision on racks.

mod locked;
mod many;

pub(crate) use locked::Under;
pub(crate) use many::{Load, LoadsByHome};

use crate::address::{SAMPLE_EVERY, is_sampled};
use crate::remote::{Attached, call_for_handle};
use crate::session::unexpected;
use crate::slots::{Slot, Slots};
use crate::{Pool, PoolError};
use hinterland_fabric::{Destination, Endpoint, FabricError, Source};
use hinterland_os::clock::boot_ns;
use hinterland_os::{MapOptions, MemoryFile, SharedSlice};
use hinterland_proto::ErrorCode;
use hinterland_proto::control::{Home, ObjectInfo, Opened, PagesOpened, Reply, Request};
use hinterland_proto::pages::{PageWord, copies_until_at, words_bytes};
use hinterland_types::limits::{PAGE_BYTES, PAGE_SHIFT};
use hinterland_types::{ByteRange, GlobalAddress, PageNumber};
use std::collections::{BTreeMap, HashMap};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long an access looks for a page: longer than a home needs to find out that a mover has died.
const PATIENCE: Duration = Duration::from_secs(20);
/// A pause between two looks at pages that are being moved.
const PAUSE: Duration = Duration::from_micros(100);
/// How often an access goes to a home that does not answer, before it says so: a connection may just have been cut.
const HOME_TRIES: u32 = 3;

const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const EREMCHG: i32 = 78;
const ETIMEDOUT: i32 = 110;

/// The pages of an open region.
pub(crate) struct RegionPages {
    pub(crate) first: GlobalAddress,
    pub(crate) bytes: u64,
    words: SharedSlice,
    /// The part that the node has; it may get one later.
    part: OnceLock<SharedSlice>,
    homes: RwLock<Vec<Home>>,
    pub(crate) slots: Option<Arc<Slots>>,
    attached: Mutex<HashMap<String, Attached>>,
}

/// What an access does with the bytes.
pub(crate) enum Buffer<'a> {
    /// Fills memory of the program.
    Into(&'a mut [u8]),
    /// Sends memory of the program.
    From(&'a [u8]),
}

impl Buffer<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Into(bytes) => bytes.len(),
            Self::From(bytes) => bytes.len(),
        }
    }

    const fn is_write(&self) -> bool {
        matches!(self, Self::From(_))
    }
}

/// A part of an access that lies in one page.
#[derive(Clone, Copy)]
struct Piece {
    index: u32,
    /// Offset in the region.
    offset: u64,
    /// Offset in the buffer.
    done: usize,
    bytes: usize,
}

/// An atomic operation on a word of 8 bytes.
#[derive(Clone, Copy)]
pub(crate) enum WordOperation {
    Add(u64),
    Swap { expected: u64, desired: u64 },
}

/// What became of an attempt.
enum Attempt<T> {
    Done(T),
    /// It lies at this place of the list of homes.
    At(usize),
    /// Nobody may touch it now, or nobody here knows where it is.
    Unsettled,
}

impl RegionPages {
    /// Asks the node for the words and for its part.
    pub(crate) fn open(pool: &Pool, opened: &Opened) -> Result<Self, PoolError> {
        let (told, words, part) = ask(pool, opened)?;
        let pages = told.bytes.div_ceil(PAGE_BYTES).max(1);
        let words = MemoryFile::from_descriptor(words)?;
        let mapping = words.map(0, words_bytes(pages), MapOptions::default())?;
        let region = Self {
            first: told.first,
            bytes: told.bytes,
            words: Arc::new(mapping).slice(),
            part: OnceLock::new(),
            homes: RwLock::new(told.homes),
            slots: pool.slots()?,
            attached: Mutex::default(),
        };
        region.take_part(part)?;
        Ok(region)
    }

    /// The memory of the node's part, for threads that have it at hand.
    pub(crate) fn part(&self) -> Option<&SharedSlice> {
        self.part.get()
    }

    /// The words, for the same.
    pub(crate) const fn words(&self) -> &SharedSlice {
        &self.words
    }

    fn take_part(&self, part: Option<(OwnedFd, u64)>) -> Result<(), PoolError> {
        if let Some((descriptor, bytes)) = part
            && self.part.get().is_none()
        {
            let file = MemoryFile::from_descriptor(descriptor)?;
            // The node decides by the capability whether it may be written.
            let map = |write| {
                file.map(0, bytes as usize, MapOptions { write, guarded: true, ..MapOptions::default() })
            };
            let mapping = map(true).or_else(|_| map(false))?;
            let slice = Arc::new(mapping).slice().sub(0, self.bytes as usize)?;
            // Another thread may have been quicker.
            let _ = self.part.set(slice);
        }
        Ok(())
    }

    /// Reads or writes a range that lies inside the region.
    pub(crate) fn access(
        &self,
        pool: &Pool,
        opened: &Opened,
        offset: u64,
        mut buffer: Buffer<'_>,
    ) -> Result<(), PoolError> {
        self.check_process()?;
        ByteRange::within(offset, buffer.len() as u64, self.bytes)
            .map_err(|error| PoolError::Refused { code: EINVAL, text: error.to_string() })?;
        let mut left = pieces(offset, buffer.len());
        let started = Instant::now();
        let mut failures = 0;
        while !left.is_empty() {
            let mut unsettled = Vec::new();
            let mut elsewhere: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
            for piece in left {
                match self.here(pool, opened, piece, &mut buffer)? {
                    Attempt::Done(()) => {}
                    Attempt::At(home) => elsewhere.entry(home).or_default().push(piece),
                    Attempt::Unsettled => unsettled.push(piece),
                }
            }
            for (home, pieces) in elsewhere {
                match self.there(pool, opened, home, &pieces, &mut buffer) {
                    Ok(()) => {}
                    Err(error) if is_unsettled(&error) => unsettled.extend(pieces),
                    Err(error) => {
                        failures += 1;
                        if failures >= HOME_TRIES {
                            return Err(error);
                        }
                        unsettled.extend(pieces);
                    }
                }
            }
            // Homes refuse in their own order, and what goes to one home is cut out of the buffer in the order of its bytes.
            unsettled.sort_unstable_by_key(|piece| piece.done);
            self.settle(pool, opened, &unsettled, buffer.is_write(), started)?;
            left = unsettled;
        }
        Ok(())
    }

    /// An atomic operation on the word at an offset, a multiple of 8; returns what was there before.
    pub(crate) fn word(
        &self,
        pool: &Pool,
        opened: &Opened,
        offset: u64,
        operation: WordOperation,
    ) -> Result<u64, PoolError> {
        self.check_process()?;
        let refused = |text: String| PoolError::Refused { code: EINVAL, text };
        ByteRange::within(offset, 8, self.bytes).map_err(|error| refused(error.to_string()))?;
        if !offset.is_multiple_of(8) {
            let text = format!("offset {offset} is no multiple of 8 (hint: atomic words are aligned)");
            return Err(refused(text));
        }
        let piece = Piece { index: (offset >> PAGE_SHIFT) as u32, offset, done: 0, bytes: 8 };
        let started = Instant::now();
        loop {
            if pool.asks() {
                pool.done(&Request::AwaitPage { handle: opened.handle, index: piece.index })?;
            }
            let attempt = self.in_page(piece.index, true, |memory| match operation {
                WordOperation::Add(addend) => memory.fetch_add_u64(offset as usize, addend),
                WordOperation::Swap { expected, desired } => {
                    memory.compare_swap_u64(offset as usize, expected, desired)
                }
            });
            let home = match attempt {
                Attempt::Done(before) => return Ok(before?),
                Attempt::At(home) => Some(home),
                Attempt::Unsettled => None,
            };
            if let Some(home) = home {
                let done = self.attach(pool, opened, home).and_then(|attached| {
                    let done = match operation {
                        WordOperation::Add(addend) => {
                            attached.endpoint.fetch_and_add(attached.handle, offset, addend)
                        }
                        WordOperation::Swap { expected, desired } => {
                            attached.endpoint.compare_and_swap(attached.handle, offset, expected, desired)
                        }
                    };
                    done.map_err(|error| self.failed(pool, &attached, error))
                });
                match done {
                    Err(error) if is_unsettled(&error) => {}
                    // After a lost connection nobody knows whether it happened: it is not tried again.
                    other => {
                        self.sample(piece.index, true);
                        return other;
                    }
                }
            }
            self.settle(pool, opened, &[piece], true, started)?;
        }
    }

    /// Accesses one page by loads or stores.
    fn here(
        &self,
        pool: &Pool,
        opened: &Opened,
        piece: Piece,
        buffer: &mut Buffer<'_>,
    ) -> Result<Attempt<()>, PoolError> {
        let range = piece.done..piece.done + piece.bytes;
        if pool.asks() {
            return self.by_the_node(pool, opened, piece, buffer);
        }
        // 64-bit only.
        let offset = piece.offset as usize;
        let is_write = buffer.is_write();
        if !is_write && self.part.get().is_none() && self.word_of(piece.index).is_copy() {
            // The part came with the copy.
            self.ask_again(pool, opened)?;
        }
        let attempt = self.in_page(piece.index, is_write, |memory| match buffer {
            Buffer::Into(into) => memory.read_at(offset, &mut into[range.clone()]),
            Buffer::From(from) => memory.write_at(offset, &from[range.clone()]),
        });
        match attempt {
            Attempt::Done(done) => Ok(Attempt::Done(done?)),
            Attempt::At(home) => Ok(Attempt::At(home)),
            Attempt::Unsettled if !self.word_of(piece.index).is_fit(is_write) => Ok(Attempt::Unsettled),
            // The page is here, but the part is not mapped yet, or the thread has no slot: then the node does it.
            Attempt::Unsettled if self.part.get().is_none() => Ok(Attempt::Unsettled),
            Attempt::Unsettled => self.by_the_node(pool, opened, piece, buffer),
        }
    }

    /// Has the node access a page that it has.
    fn by_the_node(
        &self,
        pool: &Pool,
        opened: &Opened,
        piece: Piece,
        buffer: &mut Buffer<'_>,
    ) -> Result<Attempt<()>, PoolError> {
        let range = piece.done..piece.done + piece.bytes;
        let done = match buffer {
            Buffer::Into(into) => pool.session().read(opened.handle, piece.offset, &mut into[range]),
            Buffer::From(from) => pool.session().write(opened.handle, piece.offset, &from[range]),
        };
        match done {
            Err(error) if is_unsettled(&error) => {
                Ok(self.word_of(piece.index).home().map_or(Attempt::Unsettled, Attempt::At))
            }
            other => other.map(Attempt::Done),
        }
    }

    /// Runs `access` on the node's part if the page is there, and keeps the page there meanwhile.
    fn in_page<T>(&self, index: u32, is_write: bool, access: impl FnOnce(&SharedSlice) -> T) -> Attempt<T> {
        let word = self.word_of(index);
        let elsewhere = word.home();
        if let Some(home) = elsewhere.filter(|_| is_write || !word.is_copy()) {
            return Attempt::At(home);
        }
        let otherwise = || elsewhere.map_or(Attempt::Unsettled, Attempt::At);
        let (Some(slots), Some(memory), Some(page)) = (&self.slots, self.part.get(), self.page(index)) else {
            return otherwise();
        };
        if slots.is_forked() {
            return otherwise();
        }
        let done = slots.with(|slot| {
            slot.enter(page);
            let mut word = self.word_of(index);
            if word.is_fit(is_write) && word.needs_fence() && !slots.fences() {
                slot.fence();
                word = self.word_of(index);
            }
            let is_copy = !is_write && word.is_copy();
            let done = (is_copy || word.is_fit(is_write)).then(|| access(memory));
            // What was read of a copy that does not count any more is forgotten.
            let done = done.filter(|_| !is_copy || self.copies_count());
            slot.leave();
            if done.is_some() && is_sampled() {
                slot.sample(page, is_write, SAMPLE_EVERY as u16); // a small constant
            }
            done
        });
        done.flatten().map_or_else(otherwise, Attempt::Done)
    }

    /// Whether what was just read of a copy counts: its time was not over when it had been read.
    fn copies_count(&self) -> bool {
        // The clock is read after the bytes.
        fence(Ordering::SeqCst);
        let pages = self.bytes.div_ceil(PAGE_BYTES).max(1);
        let until_ns = self.words.load_u64(copies_until_at(pages)).unwrap_or(0);
        boot_ns() < until_ns
    }

    /// Runs `access` on the node's part if the range lies in one page and that is there; else nothing happens.
    pub(crate) fn at_once<T>(
        &self,
        offset: u64,
        bytes: usize,
        is_write: bool,
        access: impl FnOnce(&SharedSlice) -> T,
    ) -> Option<T> {
        if offset % PAGE_BYTES + bytes as u64 > PAGE_BYTES {
            return None;
        }
        match self.in_page((offset >> PAGE_SHIFT) as u32, is_write, access) {
            Attempt::Done(done) => Some(done),
            Attempt::At(_) | Attempt::Unsettled => None,
        }
    }

    /// Accesses pages of one home, in one operation.
    fn there(
        &self,
        pool: &Pool,
        opened: &Opened,
        home: usize,
        pieces: &[Piece],
        buffer: &mut Buffer<'_>,
    ) -> Result<(), PoolError> {
        let attached = self.attach(pool, opened, home)?;
        let runs = runs(pieces.iter().copied())?;
        let is_write = buffer.is_write();
        let done = match buffer {
            Buffer::Into(into) => {
                let mut parts: Vec<IoSliceMut<'_>> = Vec::new();
                let (mut rest, mut at) = (&mut **into, 0);
                for piece in pieces {
                    let (_, from) = rest.split_at_mut(piece.done - at);
                    let (now, later) = from.split_at_mut(piece.bytes);
                    parts.push(IoSliceMut::new(now));
                    (rest, at) = (later, piece.done + piece.bytes);
                }
                attached.endpoint.read_to(attached.handle, &runs, Destination::scattered(&mut parts))
            }
            Buffer::From(from) => {
                let part = |piece: &Piece| IoSlice::new(&from[piece.done..piece.done + piece.bytes]);
                let parts: Vec<_> = pieces.iter().map(part).collect();
                attached.endpoint.write_from(attached.handle, &runs, Source::gathered(&parts))
            }
        };
        for piece in pieces {
            self.sample(piece.index, is_write);
        }
        done.map_err(|error| self.failed(pool, &attached, error))
    }

    /// Asks the node where pages are that were not where their words said, and waits a little.
    fn settle(
        &self,
        pool: &Pool,
        opened: &Opened,
        pieces: &[Piece],
        is_write: bool,
        started: Instant,
    ) -> Result<(), PoolError> {
        if pieces.is_empty() {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            let text = format!(
                "page {} of {} was on the move for {} s (hint: `hinterland status` shows whether its home and the directory are up)",
                pieces[0].index,
                opened.info.name,
                PATIENCE.as_secs()
            );
            return Err(PoolError::Refused { code: ETIMEDOUT, text });
        }
        if self.part.get().is_none() && pieces.iter().any(|piece| self.word_of(piece.index).is_fit(false)) {
            self.ask_again(pool, opened)?;
        }
        let mut asked = None;
        for piece in pieces.iter().filter(|piece| !self.word_of(piece.index).is_fit(is_write)) {
            if asked != Some(piece.index) {
                // Other nodes may have copies of what is to be written.
                let (handle, index) = (opened.handle, piece.index);
                let request = if is_write {
                    Request::WritePage { handle, index }
                } else {
                    Request::AwaitPage { handle, index }
                };
                match pool.done(&request) {
                    Err(error) if !is_unsettled(&error) => return Err(error),
                    _ => {}
                }
                asked = Some(piece.index);
            }
            let known = self.homes.read().unwrap_or_else(PoisonError::into_inner).len();
            if self.word_of(piece.index).home().is_some_and(|home| home >= known) {
                self.ask_again(pool, opened)?;
            }
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Asks the node for homes, and a part, that were not there before.
    fn ask_again(&self, pool: &Pool, opened: &Opened) -> Result<(), PoolError> {
        let (told, _, part) = ask(pool, opened)?;
        *self.homes.write().unwrap_or_else(PoisonError::into_inner) = told.homes;
        self.take_part(part)
    }

    fn attach(&self, pool: &Pool, opened: &Opened, home: usize) -> Result<Attached, PoolError> {
        let homes = self.homes.read().unwrap_or_else(PoisonError::into_inner);
        let moved = PoolError::Refused { code: EREMCHG, text: "a home that is not known yet".to_owned() };
        let address = homes.get(home).map(|home| home.address.clone()).ok_or(moved)?;
        drop(homes);
        let known = self.lock().get(&address).cloned();
        if let Some(attached) = known {
            return Ok(attached);
        }
        let endpoint = pool.remotes().endpoint(&address)?;
        let request = Request::OpenObject { object: opened.info.object, rights: opened.rights };
        let handle = call_for_handle(&endpoint, &request).inspect_err(|error| {
            if !matches!(error, PoolError::Refused { .. }) {
                pool.remotes().forget(&address);
            }
        })?;
        let attached = pool.remotes().attached(endpoint, handle, &address);
        self.lock().insert(address, attached.clone());
        Ok(attached)
    }

    /// What a failed operation means; a connection that is gone is forgotten.
    fn failed(&self, pool: &Pool, attached: &Attached, error: FabricError) -> PoolError {
        match &error {
            FabricError::Remote { error, .. } if error.code == ErrorCode::PAGE_MOVED => {
                PoolError::Refused { code: EREMCHG, text: error.text.clone() }
            }
            FabricError::Remote { error, .. } if error.code == ErrorCode::PAGE_MOVING => {
                PoolError::Refused { code: EAGAIN, text: error.text.clone() }
            }
            FabricError::Remote { .. } => {
                // The handle may have gone with an earlier life of the home.
                self.lock().remove(&attached.address);
                error.into()
            }
            _ => {
                self.lock().remove(&attached.address);
                pool.remotes().forget(&attached.address);
                error.into()
            }
        }
    }

    fn sample(&self, index: u32, is_write: bool) {
        if let (Some(slots), Some(page)) = (&self.slots, self.page(index)) {
            slots.with(|slot: Slot<'_>| slot.sample(page, is_write, 1));
        }
    }

    /// Forked children have the sockets and the slots of their parent, and must not use them.
    fn check_process(&self) -> Result<(), PoolError> {
        if self.slots.as_ref().is_some_and(|slots| slots.is_forked()) {
            let text =
                "this process was forked from one that has the pool open (hint: connect to the pool anew)";
            return Err(PoolError::Refused { code: EINVAL, text: text.to_owned() });
        }
        Ok(())
    }

    fn word_of(&self, index: u32) -> PageWord {
        // The index lies inside the region, for all of which there are words.
        PageWord(self.words.load_u64(index as usize * 8).unwrap_or(0))
    }

    fn page(&self, index: u32) -> Option<PageNumber> {
        PageNumber::new(self.first.page().raw() + index)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an access did nothing and may begin again.
fn is_unsettled(error: &PoolError) -> bool {
    matches!(error, PoolError::Refused { code: EAGAIN | EREMCHG, .. })
}

/// What a node gives to those who open the pages of a region: words, part and its length.
type Told = (PagesOpened, OwnedFd, Option<(OwnedFd, u64)>);

fn ask(pool: &Pool, opened: &Opened) -> Result<Told, PoolError> {
    let request = Request::OpenPages { handle: opened.handle };
    match pool.session().call_with(&request, &[])? {
        (Reply::PagesOpened(told), mut descriptors)
            if descriptors.len() == 1 + usize::from(told.part_bytes.is_some()) =>
        {
            let part = told.part_bytes.and_then(|bytes| Some((descriptors.pop()?, bytes)));
            // The number was just checked.
            let words = descriptors.remove(0);
            Ok((told, words, part))
        }
        (other, _) => Err(unexpected("PagesOpened with its descriptors", &other)),
    }
}

/// Cuts a range at the pages' ends.
fn pieces(offset: u64, bytes: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes {
        let at = offset + done as u64;
        let now = (PAGE_BYTES - at % PAGE_BYTES).min((bytes - done) as u64) as usize;
        // A region has at most 2^25 pages.
        pieces.push(Piece { index: (at >> PAGE_SHIFT) as u32, offset: at, done, bytes: now });
        done += now;
    }
    pieces
}

/// The ranges of pieces, whose bytes follow each other.
fn runs(pieces: impl Iterator<Item = Piece>) -> Result<Vec<ByteRange>, PoolError> {
    let mut runs: Vec<ByteRange> = Vec::new();
    for piece in pieces {
        let range = crate::session::range(piece.offset, piece.bytes as u64)?;
        match runs.last_mut() {
            // Each page is granted to devices by itself.
            Some(last) if last.end() == piece.offset && !piece.offset.is_multiple_of(PAGE_BYTES) => {
                *last = crate::session::range(last.offset(), last.bytes() + range.bytes())?;
            }
            _ => runs.push(range),
        }
    }
    Ok(runs)
}

/// Whether an object is a region, whose pages have words.
pub(crate) fn has_pages(info: &ObjectInfo) -> bool {
    info.state == hinterland_proto::control::ObjectState::Mutable
}
