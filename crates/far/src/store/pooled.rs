//! Memory of the pool: of this host, by loads and stores, or of another rack, through the fabric.

use super::{Place, ResizeError, Store, StoreError};
use hinterland_pool::{Pool, PoolError, Scratch};
use hinterland_proto::control::Placement;
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ObjectName, RackName};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Slabs are at least this long, where there is room: few are needed, and none takes long to make.
const SLAB_BYTES_MIN: u64 = 16 << 20;
/// And at most this: of 4 KiB pages they are made at 1.5 GB/s.
const SLAB_BYTES_MAX: u64 = 128 << 20;
/// Errands that may wait for the helper; what finds no room is done later.
const ERRANDS_MAX: usize = 64;
/// How long the pool is not asked again after it had no room: each time the directory is asked.
const REFUSED_TIME: Duration = Duration::from_millis(200);
const ENOSPC: i32 = 28;

/// Memory of the pool in slabs, each cut into places of one unit. It goes with the session: whatever becomes of this process, its node
/// gives it back.
pub struct Pooled {
    inner: Arc<Inner>,
    helper: SyncSender<Errand>,
}

struct Inner {
    name: String,
    /// A session of its own.
    pool: Pool,
    placement: Placement,
    /// It is another rack's.
    sleeps: bool,
    limit_bytes: AtomicU64,
    slot_bytes: u64,
    /// Unlike that of any other run: it makes the names of slabs.
    own: String,
    books: Mutex<Books>,
    /// Held by whoever makes a slab.
    growing: Mutex<Growing>,
}

#[derive(Default)]
struct Growing {
    /// Slabs that were asked for.
    number: u64,
    /// When the pool had no room.
    refused: Option<Instant>,
}

#[derive(Default)]
struct Books {
    slabs: Vec<Option<Slab>>,
    bytes: u64,
    free_slots: u64,
}

struct Slab {
    memory: Arc<Scratch>,
    slots: u32,
    free: Vec<u32>,
}

/// What would keep others waiting.
enum Errand {
    /// Room is getting short: make a slab.
    Grow,
    /// Gives a slab back as it is dropped.
    GiveBack(Arc<Scratch>),
}

impl Pooled {
    /// At most `limit_bytes` of the pool, in this rack or another one, for content of at most `slot_bytes` bytes each. The session is for this alone: its
    /// end gives everything back.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer, or nothing can be had there.
    pub fn open(
        pool: Pool,
        rack: Option<RackName>,
        limit_bytes: u64,
        slot_bytes: u64,
    ) -> Result<Self, PoolError> {
        let name = rack.as_ref().map_or_else(|| "pool".to_owned(), |rack| format!("pool:{rack}"));
        let own_rack = pool.status()?.rack;
        let sleeps = rack.as_ref().is_some_and(|rack| *rack != own_rack);
        let rack = rack.unwrap_or(own_rack);
        let mut own = String::new();
        for byte in hinterland_pool::local::random::<8>()? {
            let _ = write!(own, "{byte:02x}"); // A string takes it.
        }
        let inner = Arc::new(Inner {
            name,
            pool,
            placement: Placement::Rack(rack),
            sleeps,
            limit_bytes: AtomicU64::new(limit_bytes),
            slot_bytes,
            own,
            books: Mutex::default(),
            growing: Mutex::default(),
        });
        // Now, so that a rack that is not there is found before the program starts.
        inner.grow(false)?;
        let (helper, errands) = sync_channel(ERRANDS_MAX);
        let helped = Arc::clone(&inner);
        let run = move || help(&helped, &errands);
        std::thread::Builder::new()
            .name("far-pool".to_owned())
            .spawn(run)
            .map_err(|error| hinterland_os::OsError::system("starting a thread", "far-pool", error))?;
        Ok(Self { inner, helper })
    }
}

fn help(inner: &Inner, errands: &Receiver<Errand>) {
    hinterland_os::process::name_thread("far-pool");
    for errand in errands {
        match errand {
            // Whoever needs room is told why there is none.
            Errand::Grow => drop(inner.grow(true)),
            Errand::GiveBack(memory) => drop(memory),
        }
    }
}

impl Inner {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a slab, unless there is room; `ahead`, unless there is plenty.
    fn grow(&self, ahead: bool) -> Result<(), PoolError> {
        let mut growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = {
            let books = self.books();
            let is_enough = if ahead { !books.is_short() } else { books.free_slots > 0 };
            if is_enough {
                return Ok(());
            }
            books.bytes
        };
        let full = |text: &str| PoolError::Refused { code: ENOSPC, text: text.to_owned() };
        let least = self.slot_bytes.next_multiple_of(PAGE_BYTES);
        let limit = self.limit_bytes.load(Ordering::Relaxed); // Relaxed: a setting.
        let left = limit.saturating_sub(bytes) / PAGE_BYTES * PAGE_BYTES;
        if left < least {
            let text = format!(
                "{} has reached its limit of {limit} bytes (hint: give it more with @SIZE)",
                self.name
            );
            return Err(full(&text));
        }
        if growing.refused.is_some_and(|refused| refused.elapsed() < REFUSED_TIME) {
            return Err(full("there was no room a moment ago"));
        }
        let wanted = (bytes / 4).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).min(left).max(least);
        let memory = self.ask(&mut growing, wanted.next_multiple_of(PAGE_BYTES), least)?;
        self.books().insert(memory, self.slot_bytes);
        Ok(())
    }

    /// A slab of so many bytes, or of half as many and so on.
    fn ask(&self, growing: &mut Growing, mut wanted: u64, least: u64) -> Result<Scratch, PoolError> {
        loop {
            growing.number += 1;
            let name = format!("far/{}/{}", self.own, growing.number);
            let name = ObjectName::parse(&name)
                .map_err(|error| PoolError::Refused { code: ENOSPC, text: error.to_string() })?;
            match self.pool.scratch(&name, wanted, self.placement.clone()) {
                Ok(memory) => return Ok(memory),
                Err(PoolError::Refused { code: ENOSPC, .. }) if wanted / 2 >= least => {
                    wanted = (wanted / 2).next_multiple_of(PAGE_BYTES);
                }
                Err(error) => {
                    growing.refused = Some(Instant::now());
                    return Err(error);
                }
            }
        }
    }

    fn failed(&self, error: &PoolError) -> StoreError {
        match error {
            PoolError::Refused { code: ENOSPC, .. } => StoreError::Full { name: self.name.clone() },
            other => StoreError::Failed { name: self.name.clone(), reason: plain(&other.to_string()) },
        }
    }

    fn memory(&self, place: Place) -> Result<(Arc<Scratch>, u64), StoreError> {
        let (slab, slot) = parts(place);
        let books = self.books();
        let slab = books.slabs.get(slab).and_then(Option::as_ref);
        let memory = slab.map(|slab| Arc::clone(&slab.memory)).ok_or_else(|| StoreError::Failed {
            name: self.name.clone(),
            reason: "the content is not there".to_owned(),
        })?;
        Ok((memory, u64::from(slot) * self.slot_bytes))
    }
}

/// The text without its hint: that of the whole error says what to do.
fn plain(text: &str) -> String {
    text.split_once(" (hint:").map_or(text, |(text, _)| text).to_owned()
}

/// Slab and slot.
const fn parts(place: Place) -> (usize, u32) {
    ((place.at >> 32) as usize, place.at as u32)
}

impl Books {
    fn insert(&mut self, memory: Scratch, slot_bytes: u64) {
        // At most 128 MiB of at least 4 KiB each.
        let slots = (memory.bytes() / slot_bytes) as u32;
        self.bytes += memory.bytes();
        self.free_slots += u64::from(slots);
        let slab = Slab { memory: Arc::new(memory), slots, free: (0..slots).rev().collect() };
        match self.slabs.iter().position(Option::is_none) {
            Some(index) => self.slabs[index] = Some(slab),
            None => self.slabs.push(Some(slab)),
        }
    }

    /// Whether the last eighth is in use.
    fn is_short(&self) -> bool {
        let slots: u64 = self.slabs.iter().flatten().map(|slab| u64::from(slab.slots)).sum();
        self.free_slots < slots / 8
    }

    /// A place in the first slab that has one, so that the last ones become empty.
    fn take(&mut self) -> Option<(usize, u32)> {
        let (index, slab) =
            self.slabs.iter_mut().enumerate().find_map(|(index, slab)| {
                Some((index, slab.as_mut().filter(|slab| !slab.free.is_empty())?))
            })?;
        let slot = slab.free.pop()?;
        self.free_slots -= 1;
        Some((index, slot))
    }

    /// Takes a place back; returns a slab that is of no more use.
    fn give(&mut self, index: usize, slot: u32) -> Option<Arc<Scratch>> {
        let place = self.slabs.get_mut(index)?;
        let slab = place.as_mut()?;
        slab.free.push(slot);
        self.free_slots += 1;
        let (slots, is_empty) = (u64::from(slab.slots), slab.free.len() == slab.slots as usize);
        // What is left must do for a while.
        if !is_empty || self.free_slots < 2 * slots {
            return None;
        }
        let slab = place.take()?;
        self.free_slots -= slots;
        self.bytes -= slab.memory.bytes();
        Some(slab.memory)
    }
}

impl Drop for Inner {
    /// Its session ends with it, by which the node gives everything back: to ask for each slab would be to wait for a home that hangs, once for each.
    fn drop(&mut self) {
        let books = self.books.get_mut().unwrap_or_else(PoisonError::into_inner);
        for slab in books.slabs.drain(..).flatten() {
            if let Some(memory) = Arc::into_inner(slab.memory) {
                memory.leave();
            }
        }
    }
}

impl Store for Pooled {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn device(&self) -> Option<u64> {
        // The link to the rack; numbers of disks have 32 bits that count.
        self.inner.sleeps.then(|| xxh3_64(self.inner.name.as_bytes()) | 1 << 63)
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let inner = &self.inner;
        let (index, slot) = loop {
            let taken = {
                let mut books = inner.books();
                let taken = books.take();
                if books.is_short() {
                    // If nobody can be sent, whoever finds no room makes it.
                    let _ = self.helper.try_send(Errand::Grow);
                }
                taken
            };
            match taken {
                Some(taken) => break taken,
                None => inner.grow(false).map_err(|error| inner.failed(&error))?,
            }
        };
        let place = Place { at: (index as u64) << 32 | u64::from(slot), bytes: content.len() as u32 };
        let written = inner.memory(place).and_then(|(memory, offset)| {
            if memory.is_lost() {
                return Err(inner.failed(&PoolError::Closed));
            }
            memory.write_at(offset, content).map_err(|error| inner.failed(&error))
        });
        match written {
            Ok(()) => Ok(place),
            Err(error) => {
                self.free(place);
                Err(error)
            }
        }
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        let (memory, offset) = self.inner.memory(place)?;
        memory.read_at(offset, content).map_err(|error| self.inner.failed(&error))
    }

    fn free(&self, place: Place) {
        let (index, slot) = parts(place);
        let unused = self.inner.books().give(index, slot);
        if let Some(memory) = unused {
            // If nobody can be sent, it is given back here.
            let _ = self.helper.try_send(Errand::GiveBack(memory));
        }
    }

    fn sleeps(&self) -> bool {
        self.inner.sleeps
    }

    fn content_bytes_max(&self) -> usize {
        self.inner.slot_bytes as usize
    }

    fn limit_bytes(&self) -> u64 {
        self.inner.limit_bytes.load(Ordering::Relaxed) // Relaxed: a setting.
    }

    fn resize(&self, bytes: u64) -> Result<(), ResizeError> {
        // Whoever makes a slab has looked at the limit before.
        let _alone = self.inner.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.inner.books().bytes > bytes {
            return Err(ResizeError::Held { name: self.inner.name.clone() });
        }
        self.inner.limit_bytes.store(bytes, Ordering::Relaxed); // Relaxed: a setting.
        Ok(())
    }
}
