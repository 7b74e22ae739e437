//! Regions as this node knows them: where each page lies, who uses it, and how it moves.
//!
//! A region is known here as soon as a program of this host opens it or the node has a part of it. Each has a word a page,
//! which programs map read-only; see [`hinterland_proto::pages`].

mod arriving;
mod copies;
mod deciding;
mod known;
mod making;
mod moving;
mod sharing;
mod slots;
mod words;

pub use deciding::{IDLE_PACE, PACE};
pub use known::Region;
pub use making::{create_near, create_region};
pub use slots::SlotFile;

use crate::core::Core;
use crate::refused::{Refused, errno};
use copies::Sources;
use deciding::Deciding;
use hinterland_directory::{Command, ObjectState, Reply};
use hinterland_fabric::rdma::Host;
use hinterland_os::barrier;
use hinterland_policy::heat::HeatRules;
use hinterland_proto::control::PagesOn;
use hinterland_types::{NodeId, ObjectId, PageNumber, SessionId};
use known::Layout;
use sharing::Readers;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Regions that are known without a part of them here: each costs 8 bytes a page. Those that nobody has open go first.
const KNOWN_MAX: usize = 4096;

/// How long threads that are in a page are waited for at once: a copy takes far less.
const LEAVE_WAIT: Duration = Duration::from_millis(2);
const LEAVE_PAUSE: Duration = Duration::from_micros(50);

/// All regions that this node knows.
pub struct Regions {
    folder: PathBuf,
    known: RwLock<HashMap<ObjectId, Arc<Region>>>,
    making: Mutex<()>,
    slots: Mutex<Vec<Arc<SlotFile>>>,
    /// Whether accesses fence themselves, because the kernel does not do it for them.
    fences: bool,
    /// Set when the directory knows this life of the node, so that no move of an earlier one can still be committed.
    joined: AtomicBool,
    /// Which pages come here by themselves; none if they do not.
    deciding: Option<Deciding>,
    /// Whether copies of pages are given and kept.
    shares_pages: bool,
    readers: Readers,
    sources: Sources,
    /// What devices of other racks read pages through.
    devices: OnceLock<Arc<Host>>,
}

impl Regions {
    /// Knows none yet. Words of an earlier life are made to say nothing, so that programs which still read them ask.
    pub fn new(folder: &Path, heat: Option<HeatRules>, shares_pages: bool) -> Self {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "words") {
                words::silence(&entry.path());
            }
        }
        Self {
            folder: folder.to_path_buf(),
            known: RwLock::default(),
            making: Mutex::default(),
            slots: Mutex::default(),
            fences: !barrier::register(),
            joined: AtomicBool::new(false),
            deciding: heat.map(Deciding::new),
            shares_pages,
            readers: Readers::new(folder),
            sources: Sources::default(),
            devices: OnceLock::new(),
        }
    }

    /// Pages may be read by devices through this host from here on.
    pub fn read_by(&self, host: &Arc<Host>) {
        // Set once, when the node starts.
        let _ = self.devices.set(Arc::clone(host));
    }

    /// Why memory could not be opened to devices, the last time.
    pub fn refusal(&self) -> Option<String> {
        self.devices.get()?.refusal()
    }

    /// From here on pages are served: the directory knows this life. Finds out about every part that is here.
    pub fn joined(&self, core: &Core) {
        self.readers.wait_for_earlier();
        self.joined.store(true, Ordering::Release);
        for holding in core.holdings.all().into_iter().filter(|holding| holding.is_region()) {
            if let Err(refused) = self.get(core, holding.object) {
                tracing::warn!(%refused, "the pages of {} are found out about when they are used", holding.name());
            }
        }
    }

    /// Whether copies of pages are given and kept: where programs fence themselves, as in racks of several hosts, nobody could tell
    /// whether one still reads a copy.
    fn gives_copies(&self) -> bool {
        self.shares_pages && !self.fences
    }

    /// A node says that it still has copies of pages of this one.
    ///
    /// # Errors
    /// [`Refused`] with `ENOENT` if they do not count any more.
    pub(crate) fn keep_copies(&self, node: NodeId, term: u64) -> Result<(), Refused> {
        self.readers.keep(node, term)
    }

    /// The region, found out about if it is not known yet.
    ///
    /// # Errors
    /// [`Refused`] if there is no such region, or the directory cannot be asked.
    pub fn get(&self, core: &Core, object: ObjectId) -> Result<Arc<Region>, Refused> {
        if let Some(region) = self.known(object) {
            return Ok(region);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = self.known(object) {
            return Ok(region);
        }
        if !self.joined.load(Ordering::Acquire) {
            return Err(Refused::new(errno::EAGAIN, "this node is starting (hint: try again)"));
        }
        let layout = layout(core, object)?;
        let region = Arc::new(Region::new(core, layout, &self.folder, self.fences)?);
        if let Some(part) = region.part() {
            part.attach(&region);
        }
        self.insert(Arc::clone(&region));
        Ok(region)
    }

    /// The region, if it is known.
    pub fn known(&self, object: ObjectId) -> Option<Arc<Region>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&object).filter(|region| !region.is_gone()).cloned()
    }

    /// Every region that is known, in no order.
    pub fn all(&self) -> Vec<Arc<Region>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().filter(|region| !region.is_gone()).cloned().collect()
    }

    /// Lets go of regions that were removed: they keep their memory.
    pub fn forget_gone(&self) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).retain(|_, region| !region.is_gone());
    }

    fn insert(&self, region: Arc<Region>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, other| !other.is_gone());
        if known.len() >= KNOWN_MAX {
            known.retain(|_, other| other.part().is_some() || Arc::strong_count(other) > 1);
        }
        known.insert(region.object, region);
    }

    /// The slots of a session, made when they are first asked for.
    ///
    /// # Errors
    /// [`Refused`] without memory.
    pub fn slots(&self, session: SessionId) -> Result<Arc<SlotFile>, Refused> {
        let mut all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slots) = all.iter().find(|slots| slots.session == session) {
            return Ok(Arc::clone(slots));
        }
        let slots = Arc::new(SlotFile::new(session)?);
        all.push(Arc::clone(&slots));
        Ok(slots)
    }

    /// The session is over. Its program may be in the middle of an access: its slots count until nobody has them mapped.
    pub fn end_session(&self, session: SessionId) {
        let mut all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|slots| slots.session == session).for_each(|slots| slots.end());
        all.retain(|slots| slots.is_in_use());
    }

    /// All slots that threads may be in.
    pub(crate) fn all_slots(&self) -> Vec<Arc<SlotFile>> {
        let mut all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|slots| slots.is_in_use());
        all.clone()
    }

    /// Whether every thread that was in one of the pages when this was called has left since; looks for some milliseconds. A
    /// thread that enters one later sees what was stored before the call.
    pub fn have_left(&self, first: PageNumber, last: PageNumber) -> bool {
        if !self.fences && !barrier::all_processors() {
            return false;
        }
        let mut inside = Vec::new();
        for slots in self.all_slots() {
            inside.extend(slots.inside(first, last).into_iter().map(|slot| (Arc::clone(&slots), slot)));
        }
        let deadline = Instant::now() + LEAVE_WAIT;
        while !inside.is_empty() && Instant::now() < deadline {
            std::thread::sleep(LEAVE_PAUSE);
            inside.retain(|(slots, slot)| slots.is_inside(*slot, first, last));
        }
        inside.is_empty()
    }

    /// Where the pages of a region lie, as the directory says.
    ///
    /// # Errors
    /// [`Refused`] if there is no such region, or the directory cannot be asked.
    pub fn pages_at(&self, core: &Core, object: ObjectId) -> Result<Vec<PagesOn>, Refused> {
        Ok(known::pages_at(&layout(core, object)?))
    }

    /// Makes all words say nothing, for the node ends.
    pub fn stop(&self) {
        for region in self.all() {
            region.silence();
        }
    }
}

/// Asks the directory all about a region.
fn layout(core: &Core, object: ObjectId) -> Result<Layout, Refused> {
    let info = core.directory.lookup_object(object)?;
    let (ObjectState::Mutable | ObjectState::Making, Some(pages)) = (info.state, info.pages) else {
        return Err(Refused::new(errno::ENOENT, format!("{} is no region", info.name)));
    };
    let mut layout = Layout {
        object,
        name: info.name,
        bytes: info.size,
        pages,
        base: Vec::new(),
        parts: Vec::new(),
        moved: Vec::new(),
    };
    let mut after = None;
    loop {
        let answer = core.directory.apply(&Command::PageHomes { object, after })?;
        let Reply::Pages { base, parts, moved, more } = answer else {
            return Err(Refused::new(errno::EIO, format!("the directory answered {answer:?}")));
        };
        (layout.base, layout.parts) = (base, parts);
        after = moved.last().map(|moved| moved.page).or(after);
        let is_over = !more || moved.is_empty();
        layout.moved.extend(moved);
        if is_over {
            return Ok(layout);
        }
    }
}
