//! Which pages come to this rack: samples of programs are summed up, and `policy` decides.
//!
//! The arithmetic and the decision are [`hinterland_policy::heat`]; here are the clock, the samples and the moves. The rack that
//! wants a page asks its home with its own heat, and with that of the page that would leave for it; the home compares.

use crate::core::Core;
use crate::fault_point;
use crate::refused::{Refused, errno};
use crate::regions::{Region, Regions};
use hinterland_policy::heat::{Decision, Heat, HeatRules, HeatTable, Moves, Room};
use hinterland_proto::control::{HotPage, PageHeat, PeerReply, PeerRequest};
use hinterland_types::PageNumber;
use hinterland_types::limits::PAGE_BYTES;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pages that one round asks for at the most, so that a round ends soon.
const ASKED_MAX: usize = 32;
/// The heat of a page that cannot leave: above any that is counted.
const ENDLESS: u64 = 1 << 60;
/// Pages among which the one that leaves is looked for.
const VICTIMS_MAX: usize = 64;

/// Heat of pages as this rack sees it, and the moves that follow from it.
pub struct Deciding {
    rules: HeatRules,
    state: Mutex<State>,
    started: Instant,
    /// Pages that came, that went, and that were asked for in vain.
    pub taken: AtomicU64,
    pub given: AtomicU64,
    pub refused: AtomicU64,
}

/// A page that would leave for another: its heat, its region and its place there, if it can leave.
type Victim = (Heat, Option<(Arc<Region>, u32)>);

struct State {
    table: HeatTable,
    moves: Moves,
    /// Where the search for a page that leaves goes on.
    turn: usize,
    /// When programs were last asked for what they had accessed.
    summed_at: Duration,
}

impl Deciding {
    /// Knows of no access.
    pub fn new(rules: HeatRules) -> Self {
        let state = State {
            table: HeatTable::new(rules),
            moves: Moves::new(rules),
            turn: 0,
            summed_at: Duration::ZERO,
        };
        Self {
            rules,
            state: Mutex::new(state),
            started: Instant::now(),
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// What the home of a page says to a rack that wants it; an order is never refused.
    ///
    /// # Errors
    /// [`Refused`] if the page stays.
    pub fn allows(&self, page: PageNumber, wanted: Option<&PageHeat>) -> Result<(), Refused> {
        let Some(wanted) = wanted else { return Ok(()) };
        let decision = self.decide_on(page, wanted);
        let now = self.started.elapsed();
        let mut state = self.lock();
        if !decision.is_pull() {
            return Err(Refused::new(errno::EBUSY, format!("the page stays with its home: {decision:?}")));
        }
        // It is no move of this rack's budget, and who asks first and then takes the page must not find it resting for that.
        match state.moves.is_free(page, now) {
            Ok(()) => Ok(()),
            Err(why) => {
                Err(Refused::new(errno::EBUSY, format!("the page stays with its home: {}", why.word())))
            }
        }
    }

    /// What the heats say about a page that is here.
    fn decide_on(&self, page: PageNumber, wanted: &PageHeat) -> Decision {
        let room = match wanted.victim {
            Some((reads, writes)) => Room::Victim(Heat { reads, writes }),
            None => Room::Free,
        };
        let wanting = Heat { reads: wanted.reads, writes: wanted.writes };
        self.rules.decide(wanting, self.lock().table.heat(page, self.started.elapsed()), room)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Regions {
    /// Sums up what programs have accessed, and brings pages that are worth it. Returns whether there was anything to sum up.
    pub fn decide(&self, core: &Core) -> bool {
        let Some(deciding) = &self.deciding else { return false };
        let mut counts: HashMap<PageNumber, (u64, u64)> = HashMap::new();
        let most = {
            let now = deciding.started.elapsed();
            let before = std::mem::replace(&mut deciding.lock().summed_at, now);
            deciding.rules.accesses_counted(now.saturating_sub(before))
        };
        for slots in self.all_slots() {
            slots.drain(most, |sample, accesses| {
                let (reads, writes) = counts.entry(sample.page).or_default();
                *(if sample.is_write { writes } else { reads }) += accesses;
            });
        }
        if counts.is_empty() {
            return false;
        }
        let regions = self.by_first_page();
        let now = deciding.started.elapsed();
        let mut wanted: Vec<(PageNumber, Heat, Arc<Region>, u32)> = Vec::new();
        for (page, (reads, writes)) in counts {
            // A program may have written any number: only pages of regions that are known are counted.
            let Some((first, region)) = regions.range(..=page.raw()).next_back() else { continue };
            let index = page.raw() - first;
            if index >= region.count() {
                continue;
            }
            let heat = deciding.lock().table.record(page, reads, writes, now);
            let is_worth_asking = deciding.rules.decide(heat, Heat::ZERO, Room::Free).is_pull();
            let word = region.word(index);
            if is_worth_asking && word.home().is_some() && !word.is_copy() && region.bytes >= PAGE_BYTES {
                wanted.push((page, heat, Arc::clone(region), index));
            }
        }
        wanted.sort_by_key(|(_, heat, ..)| std::cmp::Reverse(heat.total()));
        for (page, heat, region, index) in wanted.into_iter().take(ASKED_MAX) {
            self.want(core, deciding, page, heat, &region, index);
        }
        true
    }

    /// Asks for a page, unless it moves, rests or the budget is spent.
    fn want(
        &self,
        core: &Core,
        deciding: &Deciding,
        page: PageNumber,
        heat: Heat,
        region: &Arc<Region>,
        index: u32,
    ) {
        if deciding.lock().moves.begin(page, deciding.started.elapsed()).is_err() {
            return;
        }
        let brought = self.bring_as_agreed(core, deciding, heat, region, index);
        let counter = match &brought {
            Ok(true) => Some(&deciding.taken),
            Ok(false) => None,
            Err(_) => Some(&deciding.refused),
        };
        // Relaxed: a counter that nothing is ordered by.
        let _ = counter.map(|counter| counter.fetch_add(1, Ordering::Relaxed));
        deciding.lock().moves.end(page, brought.is_ok(), deciding.started.elapsed());
    }

    /// Asks the home of a page what it agrees to, and moves the page here (true) or brings a copy.
    fn bring_as_agreed(
        &self,
        core: &Core,
        deciding: &Deciding,
        heat: Heat,
        region: &Arc<Region>,
        index: u32,
    ) -> Result<bool, Refused> {
        let victim = self.victim(core, deciding);
        let victim_heat = victim.as_ref().map(|(cold, ..)| (cold.reads, cold.writes));
        let unknown = || Refused::new(errno::EAGAIN, "nobody here knows where the page is");
        let home = region
            .word(index)
            .home()
            .and_then(|place| region.homes().get(place).cloned())
            .ok_or_else(unknown)?;
        // The home is asked first, so that no page leaves for nothing, and the directory is not asked in vain.
        let wanted = PageHeat { reads: heat.reads, writes: heat.writes, victim: victim_heat };
        let ask = PeerRequest::PageWanted { object: region.object, index, heat: wanted };
        if core.peers.call(&home.address, &ask)? == PeerReply::PageMayBeCopied {
            self.copy_page(core, region, index)?;
            return Ok(false);
        }
        if let Some((_, leaving)) = victim {
            let (leaving, leaving_index) =
                leaving.ok_or_else(|| Refused::new(errno::ENOSPC, "no page can leave"))?;
            let take = PeerRequest::PageTake { object: leaving.object, index: leaving_index };
            core.peers.call(&home.address, &take)?;
            fault_point::reach("victim-sent");
        }
        self.pull(core, region, index, Some(wanted))?;
        Ok(true)
    }

    /// The coldest of some pages, which leaves if another is to come, and its heat; `None` if there is room. Where no page can leave,
    /// it is one of endless heat.
    fn victim(&self, core: &Core, deciding: &Deciding) -> Option<Victim> {
        // Heat copies make way for pages.
        let used = core.holdings.used_bytes().saturating_sub(core.heat_copies.bytes());
        let free = core.holdings.capacity_bytes().saturating_sub(used);
        if free >= PAGE_BYTES {
            return None;
        }
        let now = deciding.started.elapsed();
        let candidates = self.held_pages(&mut deciding.lock().turn);
        let pages = candidates.iter().map(|(page, ..)| *page);
        let coldest = deciding.lock().table.coldest_of(pages, now);
        let found = coldest.and_then(|(victim, cold)| {
            let (_, region, index) = candidates.iter().find(|(page, ..)| *page == victim)?;
            Some((cold, Some((Arc::clone(region), *index))))
        });
        Some(found.unwrap_or((Heat { reads: ENDLESS, writes: 0 }, None)))
    }

    /// Some pages that are here and can move, other ones each time.
    fn held_pages(&self, turn: &mut usize) -> Vec<(PageNumber, Arc<Region>, u32)> {
        let mut found = Vec::new();
        let movable =
            |region: &Arc<Region>| region.bytes >= PAGE_BYTES && !region.is_pinned().unwrap_or(true);
        let regions: Vec<_> =
            self.all().into_iter().filter(|region| region.part().is_some()).filter(movable).collect();
        let total: usize = regions.iter().map(|region| region.count() as usize).sum();
        if total == 0 {
            return found;
        }
        let mut place = *turn % total;
        for _ in 0..total {
            if found.len() >= VICTIMS_MAX {
                break;
            }
            let mut index = place;
            for region in &regions {
                if index < region.count() as usize {
                    // Below the number of pages of a region.
                    let index = index as u32;
                    if region.word(index).is_here() {
                        found.extend(region.page(index).map(|page| (page, Arc::clone(region), index)));
                    }
                    break;
                }
                index -= region.count() as usize;
            }
            place = (place + 1) % total;
        }
        *turn = place;
        found
    }

    /// Whether the home of a page lets it go to a rack that wants it.
    ///
    /// # Errors
    /// [`Refused`] if it stays.
    pub fn allows(&self, region: &Region, index: u32, wanted: Option<&PageHeat>) -> Result<(), Refused> {
        let page = region.page(index).ok_or_else(|| Refused::new(errno::EINVAL, "there is no such page"))?;
        match &self.deciding {
            Some(deciding) => deciding.allows(page, wanted),
            None if wanted.is_none() => Ok(()),
            None => Err(Refused::new(
                errno::EBUSY,
                "this node lets no page go by heat (hint: start it with --hot on)",
            )),
        }
    }

    /// Whether the home of a page keeps it, but lets a rack have a copy that reads it so often.
    pub fn may_be_copied(&self, region: &Region, index: u32, wanted: &PageHeat) -> bool {
        let (Some(deciding), Some(page)) = (&self.deciding, region.page(index)) else { return false };
        self.gives_copies() && deciding.decide_on(page, wanted).is_cache()
    }

    /// The pages that programs of this rack use most, hottest first, `count` at the most.
    pub fn hottest(&self, count: usize) -> Vec<HotPage> {
        let Some(deciding) = &self.deciding else { return Vec::new() };
        let hottest = deciding.lock().table.hottest(count, deciding.started.elapsed());
        let regions = self.by_first_page();
        let told = hottest.into_iter().filter_map(|(page, heat)| {
            let (first, region) = regions.range(..=page.raw()).next_back()?;
            let index = page.raw() - first;
            let word = region.word(index);
            (index < region.count() && heat.total() > 0).then(|| HotPage {
                name: region.name.clone(),
                index,
                reads: heat.reads,
                writes: heat.writes,
                here: word.is_held(),
                copied: word.is_shared() || word.is_copy(),
                home: word.home().and_then(|place| region.homes().get(place).cloned()),
            })
        });
        told.collect()
    }

    /// All regions that are known, by the number of their first page.
    fn by_first_page(&self) -> BTreeMap<u32, Arc<Region>> {
        self.all().into_iter().map(|region| (region.pages.first().raw(), region)).collect()
    }

    /// A page went.
    pub(super) fn count_given(&self) {
        if let Some(deciding) = &self.deciding {
            // Relaxed: a counter that nothing is ordered by.
            deciding.given.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages that came by heat, pages that went, and pages that were asked for in vain.
    pub fn tallies(&self) -> [u64; 3] {
        // Relaxed: counters that nothing is ordered by.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.deciding.as_ref().map_or([0; 3], |d| [read(&d.taken), read(&d.given), read(&d.refused)])
    }
}

/// How often samples are summed up while programs access pages, and how long nobody looks while none does.
pub const PACE: Duration = Duration::from_millis(10);
/// See [`PACE`].
pub const IDLE_PACE: Duration = Duration::from_millis(100);
