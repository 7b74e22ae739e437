//! One region as this node knows it: its words, who uses its pages over the network, its part.

use crate::core::Core;
use crate::holdings::{Holding, Life};
use crate::refused::{Refused, errno};
use crate::regions::copies::Copies;
use crate::regions::moving::Moves;
use crate::regions::sharing::Shares;
use crate::regions::words::Words;
use hinterland_directory::{HomeInfo, MovedPage, PageRun, spread};
use hinterland_fabric::Slice;
use hinterland_fabric::rdma::Host;
use hinterland_proto::control::{Home, PagesOn, PagesOpened};
use hinterland_proto::pages::{PageWord, WORD_HOMES_MAX};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ByteRange, Epoch, NodeId, ObjectId, ObjectName, PageNumber};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// What the directory says of a region.
pub struct Layout {
    pub object: ObjectId,
    pub name: ObjectName,
    pub bytes: u64,
    pub pages: PageRun,
    pub base: Vec<(NodeId, Epoch)>,
    pub parts: Vec<(HomeInfo, bool)>,
    pub moved: Vec<MovedPage>,
}

/// A region.
pub struct Region {
    /// Identifier.
    pub object: ObjectId,
    /// Name.
    pub name: ObjectName,
    /// Size.
    pub bytes: u64,
    /// Its pages.
    pub pages: PageRun,
    words: Words,
    /// Requests of other nodes and of sessions that are using each page.
    users: Box<[AtomicU32]>,
    homes: RwLock<Vec<Home>>,
    part: RwLock<Option<(Arc<Holding>, Life)>>,
    /// Held while a part is made: one that went meanwhile must not be made once more.
    pub(super) making_part: Mutex<()>,
    pub(super) moves: Moves,
    /// Who has copies of pages that are here.
    pub(super) shares: Shares,
    /// Pages elsewhere of which copies are here.
    pub(super) copies: Copies,
    fences: bool,
    /// What devices of other racks read pages through.
    devices: Option<Arc<Host>>,
}

/// Requests that use pages; they are counted until it is dropped.
struct PageUse {
    region: Arc<Region>,
    first: u32,
    end: u32,
}

impl Drop for PageUse {
    fn drop(&mut self) {
        for index in self.first..self.end {
            // Release: what was copied is seen by the mover, whose load of the count is an Acquire.
            self.region.users[index as usize].fetch_sub(1, Ordering::Release);
        }
    }
}

impl Region {
    /// The region of a layout; the part that the node has gains and loses pages until it has exactly its own.
    ///
    /// # Errors
    /// [`Refused`] without memory.
    pub fn new(core: &Core, layout: Layout, folder: &Path, fences: bool) -> Result<Self, Refused> {
        let count = layout.pages.count();
        let words = Words::new(&folder.join(format!("{:016x}.words", layout.object.0)), count)?;
        let region = Self {
            object: layout.object,
            name: layout.name.clone(),
            bytes: layout.bytes,
            pages: layout.pages,
            words,
            users: (0..count).map(|_| AtomicU32::new(0)).collect(),
            homes: RwLock::default(),
            part: RwLock::default(),
            making_part: Mutex::default(),
            moves: Moves::default(),
            shares: Shares::default(),
            copies: Copies::default(),
            fences,
            devices: core.regions.devices.get().cloned(),
        };
        let ours = layout.parts.iter().find(|(home, _)| home.node == core.own).map(|(home, _)| home.epoch);
        let part = core.holdings.find(layout.object).ok();
        let part = part.filter(|part| part.is_region() && Some(part.epoch()) == ours);
        let lies = region.fill(core, &layout, part.is_some());
        if let Some(part) = part {
            core.holdings.settle_pages(&part, count, |index| lies[index as usize])?;
            let life = part.new_life()?;
            *region.part.write().unwrap_or_else(PoisonError::into_inner) = Some((part, life));
        }
        Ok(region)
    }

    /// Sets every word; returns which pages lie here.
    fn fill(&self, core: &Core, layout: &Layout, has_part: bool) -> Vec<bool> {
        let moved = layout.moved();
        let places: HashMap<NodeId, usize> =
            layout.parts.iter().map(|(home, up)| (home.node, self.place_of(home, *up))).collect();
        let mut lies = vec![false; layout.pages.count() as usize];
        for (index, page) in layout.pages.iter().enumerate() {
            let Some((home, _, epoch)) = layout.home_of(page, &moved) else { continue };
            lies[index] = home.node == core.own && has_part;
            let word = match places.get(&home.node) {
                _ if lies[index] => self.word_here(epoch),
                Some(place) if home.node != core.own => PageWord::elsewhere(*place, epoch.0),
                _ => PageWord::UNKNOWN,
            };
            // Regions have at most 2^25 pages. Nobody has the words yet, so their order is of no importance.
            self.words.set(index as u32, word);
        }
        lies
    }

    fn word_here(&self, epoch: Epoch) -> PageWord {
        let word = PageWord::here(epoch.0);
        if self.fences { word.fenced() } else { word }
    }

    /// The place of a home in the list that words name; a home that is not there is appended.
    pub fn place_of(&self, home: &HomeInfo, up: bool) -> usize {
        let mut homes = self.homes.write().unwrap_or_else(PoisonError::into_inner);
        let told =
            Home { node: home.node, rack: home.rack.clone(), address: home.address.clone(), up, heat: false };
        if let Some(place) =
            homes.iter().position(|other| other.node == home.node && other.address == home.address)
        {
            homes[place].up = up;
            return place;
        }
        if homes.len() < WORD_HOMES_MAX {
            homes.push(told);
        }
        homes.len() - 1
    }

    /// The homes that words name.
    pub fn homes(&self) -> Vec<Home> {
        self.homes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many pages it has.
    pub fn count(&self) -> u32 {
        self.pages.count()
    }

    /// A page's number in the pool.
    pub fn page(&self, index: u32) -> Option<PageNumber> {
        PageNumber::new(self.pages.first().raw() + index).filter(|_| index < self.count())
    }

    /// What the node says of a page.
    pub fn word(&self, index: u32) -> PageWord {
        if index < self.count() { self.words.get(index) } else { PageWord::UNKNOWN }
    }

    pub(super) fn set_word(&self, index: u32, word: PageWord) {
        if index < self.count() {
            self.words.set(index, word);
        }
    }

    /// Says until when copies of its pages may be read, in nanoseconds of the monotonic clock.
    pub(super) fn set_copies_until(&self, until_ns: u64) {
        self.words.set_copies_until(self.count(), until_ns);
    }

    /// Says that a page is here.
    pub(super) fn set_here(&self, index: u32, epoch: Epoch) {
        self.set_word(index, self.word_here(epoch));
    }

    /// The part of it that this node has.
    pub fn part(&self) -> Option<Arc<Holding>> {
        self.part.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(part, _)| Arc::clone(part))
    }

    /// Takes a part that was just made.
    ///
    /// # Errors
    /// [`Refused`] if its file cannot be asked about.
    pub fn set_part(&self, part: Arc<Holding>) -> Result<(), Refused> {
        let life = part.new_life()?;
        let mut own = self.part.write().unwrap_or_else(PoisonError::into_inner);
        if own.is_none() {
            *own = Some((part, life));
        }
        Ok(())
    }

    /// Whether programs may store into the part without asking words of this life of the node.
    ///
    /// # Errors
    /// [`Refused`] if the kernel does not say.
    pub fn is_pinned(&self) -> Result<bool, Refused> {
        match &*self.part.read().unwrap_or_else(PoisonError::into_inner) {
            Some((part, life)) => Ok(part.is_pinned(*life)?),
            None => Ok(false),
        }
    }

    /// Whether the region was removed.
    pub fn is_gone(&self) -> bool {
        self.words.are_gone()
    }

    /// The region was removed: nobody finds anything through its words any more.
    pub fn close(&self) {
        self.words.close();
        if let Some(Ok(memory)) = self.part().map(|part| part.slice(0, self.bytes)) {
            self.revoke(&Slice::from(memory));
        }
    }

    /// Takes memory back from devices: none reads it when this returns. Words say already that it is not here.
    pub(super) fn revoke(&self, memory: &Slice) {
        if let Some(host) = &self.devices {
            host.revoke(memory);
        }
    }

    /// Makes all words say nothing.
    pub fn silence(&self) {
        self.words.silence();
    }

    /// Whether other nodes have a copy of one of its pages.
    pub fn is_shared(&self) -> bool {
        (0..self.count()).any(|index| self.words.get(index).is_shared())
    }

    /// Whether every page is here, and none is about to go.
    pub fn is_whole(&self) -> bool {
        (0..self.count()).all(|index| self.words.get(index).is_here())
    }

    /// The memory of a range, all of which must be here, and to be written in no node's copy; until the slice is dropped none of its pages goes.
    ///
    /// # Errors
    /// [`Refused`] with `EREMCHG` or `EAGAIN`: nothing was done, see [`hinterland_proto::ErrorCode::PAGE_MOVED`].
    pub fn slice(self: &Arc<Self>, range: ByteRange, is_write: bool) -> Result<Slice, Refused> {
        self.slice_where(range, |word| word.is_fit(is_write))
    }

    /// The memory of frozen and of shared pages, for the node that takes or copies them.
    ///
    /// # Errors
    /// As [`slice`](Self::slice), if one of them is neither.
    pub fn frozen_slice(self: &Arc<Self>, range: ByteRange) -> Result<Slice, Refused> {
        self.slice_where(range, |word| {
            word.is_held() && word.is_moving() || word.is_shared() && !word.is_moving()
        })
    }

    /// The memory of the page that a range lies in, for devices: `None` if it is not here, or moving, or the range lies in two.
    /// Nobody is told of it as for [`slice`](Self::slice); a move takes it back.
    ///
    /// # Errors
    /// [`Refused`] if the memory was lost.
    pub fn one_sided(&self, range: ByteRange) -> Result<Option<(ByteRange, Slice)>, Refused> {
        // Who reads a region never sees half of a word.
        if !self.devices.as_ref().is_some_and(|host| host.reads_whole_words()) {
            return Ok(None);
        }
        let first = range.offset() / PAGE_BYTES * PAGE_BYTES;
        let bytes = PAGE_BYTES.min(self.bytes.saturating_sub(first));
        // A region has at most 2^25 pages.
        let index = (first / PAGE_BYTES) as u32;
        let Ok(page) = ByteRange::new(first, bytes) else { return Ok(None) };
        if !page.contains(range) || self.is_gone() || !self.words.get(index).is_fit(false) {
            return Ok(None);
        }
        let Some(part) = self.part() else { return Ok(None) };
        Ok(Some((page, Slice::from(part.slice(first, bytes)?))))
    }

    fn slice_where(
        self: &Arc<Self>,
        range: ByteRange,
        is_fit: impl Fn(PageWord) -> bool,
    ) -> Result<Slice, Refused> {
        let range = ByteRange::within(range.offset(), range.bytes(), self.bytes)
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        // A region has at most 2^25 pages, and the range lies inside.
        let first = (range.offset() / PAGE_BYTES) as u32;
        let end = if range.bytes() == 0 { first } else { (range.end().div_ceil(PAGE_BYTES)) as u32 };
        let used = self.use_pages(first, end);
        for index in first..end {
            let word = self.words.get(index);
            if !is_fit(word) {
                drop(used);
                return Err(self.not_here(index, word));
            }
        }
        let part = self.part().ok_or_else(|| self.not_here(first, PageWord::UNKNOWN))?;
        Ok(Slice::from(part.slice(range.offset(), range.bytes())?).guarded(used).changing())
    }

    fn use_pages(self: &Arc<Self>, first: u32, end: u32) -> PageUse {
        for index in first..end {
            // SeqCst: pairs with the fence behind the mover's store of the word, so that one of the two sees the other.
            self.users[index as usize].fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        PageUse { region: Arc::clone(self), first, end }
    }

    /// Whether a request is using the page.
    pub(super) fn is_used(&self, index: u32) -> bool {
        // SeqCst: pairs with the addition of who begins; as an Acquire with the Release of who ends.
        self.users[index as usize].load(Ordering::SeqCst) > 0
    }

    fn not_here(&self, index: u32, word: PageWord) -> Refused {
        if word.is_shared() && !self.is_gone() {
            self.shares.want(index);
            let text = format!(
                "other nodes have copies of page {index} of {} (hint: have them taken back)",
                self.name
            );
            return Refused::new(errno::EAGAIN, text);
        }
        if word.is_moving() && !self.is_gone() {
            return Refused::new(
                errno::EAGAIN,
                format!("page {index} of {} is being moved (hint: ask again)", self.name),
            );
        }
        let text = format!("page {index} of {} is not here (hint: ask your own node where it is)", self.name);
        Refused::new(errno::EREMCHG, text)
    }

    /// What a session needs to use the pages: the words, and the part if there is one.
    ///
    /// # Errors
    /// [`Refused`] without descriptors left.
    pub fn open(&self, write: bool) -> Result<(PagesOpened, Vec<OwnedFd>), Refused> {
        let mut descriptors = vec![self.words.descriptor()?];
        let part = self.part.read().unwrap_or_else(PoisonError::into_inner);
        let part_bytes = match &*part {
            Some((part, life)) => {
                descriptors.push(part.sharing_descriptor(*life, write)?);
                Some(part.file_shape().0)
            }
            None => None,
        };
        let opened =
            PagesOpened { first: self.pages.address(), bytes: self.bytes, homes: self.homes(), part_bytes };
        Ok((opened, descriptors))
    }
}

impl Layout {
    /// Where a page lies that is not lost.
    fn home_of(
        &self,
        page: PageNumber,
        moved: &HashMap<PageNumber, (NodeId, Epoch)>,
    ) -> Option<(&HomeInfo, bool, Epoch)> {
        let based = spread(page, self.base.len()).map(|place| self.base[place]);
        let (node, epoch) = moved.get(&page).copied().or(based)?;
        let part = self.parts.iter().find(|(home, _)| home.node == node && home.epoch <= epoch)?;
        Some((&part.0, part.1, epoch))
    }

    fn moved(&self) -> HashMap<PageNumber, (NodeId, Epoch)> {
        self.moved.iter().map(|moved| (moved.page, (moved.node, moved.epoch))).collect()
    }
}

/// How many pages each node has, and how many of them have moved there.
pub fn pages_at(layout: &Layout) -> Vec<PagesOn> {
    let moved = layout.moved();
    let mut all: Vec<PagesOn> = layout
        .parts
        .iter()
        .map(|(home, up)| {
            let home = Home {
                node: home.node,
                rack: home.rack.clone(),
                address: home.address.clone(),
                up: *up,
                heat: false,
            };
            PagesOn { home: Some(home), pages: 0, moved: 0 }
        })
        .collect();
    all.push(PagesOn { home: None, pages: 0, moved: 0 });
    for page in layout.pages.iter() {
        let node = layout.home_of(page, &moved).map(|(home, ..)| home.node);
        let place = all.iter().position(|on| on.home.as_ref().map(|home| home.node) == node);
        if let Some(on) = place.and_then(|place| all.get_mut(place)) {
            on.pages += 1;
            on.moved += u64::from(moved.contains_key(&page));
        }
    }
    all.retain(|on| on.pages > 0);
    all
}
