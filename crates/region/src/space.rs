//! What the pool has mapped in this process: one table behind one lock, shared by every session of the process.

use crate::link::Link;
use crate::private_pages::Carried;
use crate::system::{Extent, SignalsHeld, thread_number};
use crate::table::{Piece, Table};
use hinterland_proto::control::ObjectInfo;
use hinterland_types::limits::BASE_PAGE_BYTES;
use hinterland_types::{Handle, WINDOW_BASE, WINDOW_BYTES};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One `map` of one object: what its pieces have in common.
pub(crate) struct Source {
    /// The connection that it came over.
    pub link: Arc<Link>,
    /// The object.
    pub info: ObjectInfo,
    /// Length of the file behind it.
    pub file_bytes: u64,
    /// Page of that file.
    pub page_bytes: u64,
    /// Whether faults are served by the node; otherwise the file has all bytes.
    pub armed: bool,
    /// Whether the program asked for a shared mapping.
    pub shared: bool,
    /// The connection that `handle` and `registrations` belong to.
    pub generation: u64,
    /// Capability.
    pub handle: Handle,
    /// Registrations of faults.
    pub registrations: Vec<u64>,
}

/// Everything that is mapped.
pub(crate) struct Space {
    /// Which addresses.
    pub table: Table,
    /// What the program has unmapped of huge pages of which it uses another part.
    pub husks: Table,
    /// Of what, by number.
    pub sources: BTreeMap<u64, Source>,
    /// Every connection of this process.
    pub links: Vec<Arc<Link>>,
    /// Private pages of the parent that a forked child has yet to get back.
    pub carried: Vec<Carried>,
    next_source: u64,
}

/// A range of whole pages that the kernel knows as one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Where.
    pub extent: Extent,
    /// Offset in the object.
    pub offset: u64,
    /// `PROT_` bits.
    pub protection: i32,
    /// Whether the program may have written private copies.
    pub copies: bool,
}

static SPACE: Mutex<Space> = Mutex::new(Space {
    table: Table::new(),
    husks: Table::new(),
    sources: BTreeMap::new(),
    links: Vec::new(),
    carried: Vec::new(),
    next_source: 1,
});

/// The thread that holds the lock; 0 if none does.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Addresses that ever held a piece: inside the window and outside of it, lowest and highest.
static BOUNDS: [(AtomicU64, AtomicU64); 2] =
    [(AtomicU64::new(u64::MAX), AtomicU64::new(0)), (AtomicU64::new(u64::MAX), AtomicU64::new(0))];

/// The lock, held. Signals wait meanwhile: a handler that touched pool memory would wait for a thread that waits for the
/// lock.
pub(crate) struct SpaceGuard {
    guard: Option<MutexGuard<'static, Space>>,
    _signals: SignalsHeld,
}

/// Takes the lock.
pub(crate) fn lock() -> SpaceGuard {
    let signals = SignalsHeld::hold();
    let guard = SPACE.lock().unwrap_or_else(PoisonError::into_inner);
    // Relaxed: only the thread that stores its own number ever compares against it.
    OWNER.store(thread_number(), Ordering::Relaxed);
    SpaceGuard { guard: Some(guard), _signals: signals }
}

/// Whether this thread holds the lock. An allocator that maps memory on its behalf comes back through the preload
/// library and must not ask for the lock again.
pub(crate) fn is_held_here() -> bool {
    // Relaxed: see `lock`.
    OWNER.load(Ordering::Relaxed) == thread_number()
}

/// Makes the only thread of a forked child the holder of the lock that its parent held.
pub(crate) fn adopt_lock() {
    // Relaxed: see `lock`.
    OWNER.store(thread_number(), Ordering::Relaxed);
}

/// Whether a range can have anything to do with the pool; cheap, and sometimes true without need.
pub(crate) fn may_overlap(address: u64, bytes: u64) -> bool {
    let end = address.saturating_add(bytes);
    // Relaxed: whoever unmaps an address learnt of it from the thread that mapped it, after the bounds were set.
    BOUNDS
        .iter()
        .any(|(low, high)| address < high.load(Ordering::Relaxed) && end > low.load(Ordering::Relaxed))
}

impl Space {
    /// Adds a source and its first piece; returns the number of the source.
    pub fn add(&mut self, source: Source, mut piece: Piece) -> u64 {
        let number = self.next_source;
        self.next_source += 1;
        piece.source = number;
        widen_bounds(piece.address, piece.end(), source.page_bytes);
        self.sources.insert(number, source);
        self.table.insert(piece);
        number
    }

    /// Takes out the sources that have no piece left, of those that the parts came from. The caller drops them after the
    /// lock.
    pub fn retire(&mut self, parts: &[Piece]) -> Vec<Source> {
        let mut retired = Vec::new();
        for part in parts {
            if !self.table.has_source(part.source) {
                retired.extend(self.sources.remove(&part.source));
            }
        }
        retired
    }

    /// The kernel's mappings behind the pieces of a source.
    pub fn stretches(&self, number: u64) -> Vec<Stretch> {
        let page = self.page_bytes(number);
        let mut stretches: Vec<Stretch> = Vec::new();
        for piece in self.table.of_source(number) {
            let start = piece.address - piece.address % page;
            let end = piece.end().next_multiple_of(page);
            match stretches.last_mut() {
                Some(last) if last.extent.end() > start => {
                    last.extent.bytes = end.max(last.extent.end()) - last.extent.address;
                    last.copies |= piece.copies;
                }
                _ => stretches.push(Stretch {
                    extent: Extent { address: start, bytes: end - start },
                    offset: piece.offset - (piece.address - start),
                    protection: piece.protection,
                    copies: piece.copies,
                }),
            }
        }
        stretches
    }

    /// The whole pages that a part which was cut out leaves without any use.
    pub fn freed_extent(&self, part: &Piece) -> Extent {
        let page = self.page_bytes(part.source);
        let (low, high) = (part.address - part.address % page, part.end().next_multiple_of(page));
        let start = if self.table.parts(low, part.address).is_empty() { low } else { low + page };
        let end = if self.table.parts(part.end(), high).is_empty() { high } else { high - page };
        Extent { address: start, bytes: end.saturating_sub(start) }
    }

    /// The numbers of the sources of a connection that are served by faults.
    pub fn armed_sources(&self, link: &Link) -> Vec<u64> {
        let of_link = |source: &Source| source.armed && std::ptr::eq(Arc::as_ptr(&source.link), link);
        self.sources.iter().filter(|(_, source)| of_link(source)).map(|(number, _)| *number).collect()
    }

    /// The numbers of the sources that wait for a session to serve them: all that the one of `generation` does not.
    pub fn waiting_sources(&self, link: &Link, generation: u64) -> Vec<u64> {
        let mut numbers = self.armed_sources(link);
        numbers
            .retain(|number| self.sources.get(number).is_some_and(|source| source.generation != generation));
        numbers
    }

    /// The page of a source's file.
    pub fn page_bytes(&self, number: u64) -> u64 {
        self.sources.get(&number).map_or(BASE_PAGE_BYTES, |source| source.page_bytes)
    }
}

fn widen_bounds(start: u64, end: u64, page_bytes: u64) {
    let inside = (WINDOW_BASE..WINDOW_BASE + WINDOW_BYTES).contains(&start);
    let (low, high) = &BOUNDS[usize::from(!inside)];
    // Relaxed: see `may_overlap`.
    low.fetch_min(start - start % page_bytes, Ordering::Relaxed);
    high.fetch_max(end.next_multiple_of(page_bytes), Ordering::Relaxed);
}

impl Deref for SpaceGuard {
    type Target = Space;
    fn deref(&self) -> &Space {
        self.guard.as_ref().expect("the guard is taken only by drop")
    }
}

impl DerefMut for SpaceGuard {
    fn deref_mut(&mut self) -> &mut Space {
        self.guard.as_mut().expect("the guard is taken only by drop")
    }
}

impl Drop for SpaceGuard {
    fn drop(&mut self) {
        // Relaxed: see `lock`.
        OWNER.store(0, Ordering::Relaxed);
        // Unlocked before the signals come back.
        self.guard.take();
    }
}
