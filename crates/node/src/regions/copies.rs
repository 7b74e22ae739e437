//! Copies that this node has of pages of others, for its programs to read: how they come, how long they count, how they go.
//!
//! A copy lies where the page itself would lie, in this node's part of the region, and the word of the page says that it is one. It
//! counts until a time that stands behind the words. Programs look at their clock after they have read, so a copy that this node cannot
//! take back any more, because it is stopped or cut off, is worth nothing by itself.

use crate::core::Core;
use crate::fault_point;
use crate::holdings::Holding;
use crate::refused::{Refused, errno};
use crate::regions::arriving::{Granted, bring_page};
use crate::regions::sharing::LEASE;
use crate::regions::{Region, Regions};
use hinterland_directory::{Command, Reply};
use hinterland_os::clock::boot_ns;
use hinterland_proto::control::{Home, PeerReply, PeerRequest};
use hinterland_types::NodeId;
use hinterland_types::limits::PAGE_BYTES;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Copies that a node has at the most, as in paper 004, section 6.1: 100 MiB.
const COPIES_MAX: usize = 50;
/// The share of its memory that a node uses for copies at the most: they are not counted as used.
const MEMORY_SHARE: u64 = 8;
/// How long a copy counts from the moment at which its home was last asked: an eighth less than the home waits, for clocks that run at
/// different speeds.
const COUNTS_NS: u64 = LEASE.as_nanos() as u64 / 8 * 7;
/// How often homes are told that their copies are still read.
const KEEP_EVERY_NS: u64 = LEASE.as_nanos() as u64 / 5;
/// How long one waits for an answer to that.
const KEEP_WAIT: Duration = Duration::from_millis(400);

/// The nodes whose pages this one has copies of.
#[derive(Default)]
pub struct Sources {
    homes: Mutex<HashMap<NodeId, Source>>,
    numbers: AtomicU64,
    kept_ns: AtomicU64,
    /// Copies that came.
    pub(super) copied: AtomicU64,
}

#[derive(Clone)]
struct Source {
    term: u64,
    address: String,
    until_ns: u64,
}

/// Copies of pages of one region.
#[derive(Default)]
pub struct Copies(Mutex<HashMap<u32, PageCopy>>);

#[derive(Clone, Copy)]
struct PageCopy {
    home: NodeId,
    /// The term under which it was given.
    term: u64,
    /// Tells it from a later copy of the same page.
    number: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is on its way.
    Coming,
    /// The same, but it was taken back: who brings it drops it, and until then its memory is in use.
    Void,
    /// Programs read it.
    Here,
    /// Nobody begins to read it any more; who does counts it until then at the most.
    Leaving { until_ns: u64 },
}

impl Copies {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, PageCopy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory of the page is used for a copy.
    pub(super) fn has(&self, index: u32) -> bool {
        self.lock().contains_key(&index)
    }
}

impl Sources {
    /// Until when a copy counts; one of another term than the latest does not.
    fn until_ns(&self, copy: &PageCopy) -> u64 {
        let homes = self.lock();
        homes.get(&copy.home).filter(|source| source.term == copy.term).map_or(0, |source| source.until_ns)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Source>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Regions {
    /// Brings a copy of a page here.
    ///
    /// # Errors
    /// [`Refused`]; then there is none.
    pub fn copy_page(&self, core: &Core, region: &Arc<Region>, index: u32) -> Result<(), Refused> {
        if region.page(index).is_none() || region.bytes < PAGE_BYTES {
            let text = format!("{} has no page {index} that could be copied", region.name);
            return Err(Refused::new(errno::EINVAL, text));
        }
        if !self.gives_copies() {
            let text = "this node keeps no copies of pages (hint: start it with --hot-share on, on a kernel with membarrier)";
            return Err(Refused::new(errno::ENOTSUP, text));
        }
        let word = region.word(index);
        if word.is_held() || word.is_copy() {
            return Ok(());
        }
        let most =
            COPIES_MAX.min((core.holdings.capacity_bytes() / MEMORY_SHARE / PAGE_BYTES).max(1) as usize);
        if self.all().iter().map(|region| region.copies.lock().len()).sum::<usize>() >= most {
            return Err(Refused::new(
                errno::ENOSPC,
                format!("this node has {most} copies of pages, the most it may have"),
            ));
        }
        let place = word.home().and_then(|place| region.homes().get(place).cloned());
        let home = place.ok_or_else(|| Refused::new(errno::EAGAIN, "nobody here knows where the page is"))?;
        // Relaxed: all that counts is that no number is given twice.
        let number = self.sources.numbers.fetch_add(1, Ordering::Relaxed);
        {
            let going = region.moves_under_way();
            let mut copies = region.copies.lock();
            if going.contains(index) || copies.contains_key(&index) {
                return Err(Refused::new(
                    errno::EAGAIN,
                    "the page is coming already, or its last copy is not gone yet",
                ));
            }
            copies.insert(index, PageCopy { home: home.node, term: 0, number, stage: Stage::Coming });
        }
        let holding = self.part_for_copies(core, region, index);
        let brought = holding.and_then(|holding| {
            core.holdings.lend_page(&holding, index)?;
            fault_point::reach("copy-room-made");
            let brought = self.bring(core, region, index, number, &home, &holding);
            if brought.is_err()
                && let Err(error) = core.holdings.return_page(&holding, index)
            {
                tracing::warn!(%error, "the memory of a copy that did not come is given back at the next start");
            }
            brought
        });
        if brought.is_err() {
            region.copies.lock().retain(|_, copy| copy.number != number);
        } else {
            // Relaxed: a counter that nothing is ordered by.
            self.sources.copied.fetch_add(1, Ordering::Relaxed);
        }
        brought
    }

    /// The part of the region here, made if there is none: the directory names it in the answer to a move, which is taken back.
    fn part_for_copies(
        &self,
        core: &Core,
        region: &Arc<Region>,
        index: u32,
    ) -> Result<Arc<Holding>, Refused> {
        if let Some(part) = region.part() {
            return Ok(part);
        }
        let page = region.page(index).ok_or_else(|| Refused::new(errno::EINVAL, "there is no such page"))?;
        let incarnation = core.membership.incarnation.get();
        let command = Command::BeginMove { page, to: core.own, incarnation };
        let begun = core.directory.ask(&command).inspect_err(|_| region.moves.doubt(index, None))?;
        let Reply::Move { epoch, part, .. } = begun? else {
            return Err(Refused::new(errno::EIO, "the directory did not name a part"));
        };
        let command = Command::CancelMove { page, epoch };
        core.directory.apply(&command).inspect_err(|_| region.moves.doubt(index, Some(epoch)))?;
        self.part_as_told(core, region, part, incarnation)
    }

    fn bring(
        &self,
        core: &Core,
        region: &Arc<Region>,
        index: u32,
        number: u64,
        home: &Home,
        holding: &Holding,
    ) -> Result<(), Refused> {
        let asked_ns = boot_ns();
        let address = core.membership.address.clone();
        let request = PeerRequest::PageShare { object: region.object, index, address };
        let PeerReply::PageShared { handle, crc, term } = core.peers.call(&home.address, &request)? else {
            return Err(Refused::new(errno::EIO, "the home did not share the page"));
        };
        fault_point::reach("copy-granted");
        self.begin_term(core, home, term, asked_ns)?;
        let granted = Granted { address: &home.address, handle, crc };
        bring_page(core, region, index, holding, &granted, "copy-arrived")?;
        let taken_back = || Refused::new(errno::EAGAIN, "the page was written meanwhile");
        let mut copies = region.copies.lock();
        let is_coming = |copy: &&mut PageCopy| copy.number == number && copy.stage == Stage::Coming;
        let copy = copies.get_mut(&index).filter(is_coming).ok_or_else(taken_back)?;
        let word = region.word(index);
        let place = word.home().and_then(|place| region.homes().get(place).cloned());
        if place.is_none_or(|place| place.node != home.node) {
            return Err(taken_back());
        }
        *copy = PageCopy { term, stage: Stage::Here, ..*copy };
        self.set_until(region, &copies);
        region.set_word(index, word.copied());
        drop(copies);
        fault_point::reach("copy-shown");
        Ok(())
    }

    /// A home has answered under a term: copies of an earlier one are void, and the others count for longer.
    fn begin_term(&self, core: &Core, home: &Home, term: u64, asked_ns: u64) -> Result<(), Refused> {
        let before = self.sources.lock().get(&home.node).map(|source| source.term);
        if before.is_some_and(|before| before != term) && !self.drop_copies_of(core, home.node) {
            return Err(Refused::new(errno::EAGAIN, "copies of before are still read"));
        }
        let until_ns = asked_ns + COUNTS_NS;
        let mut homes = self.sources.lock();
        let source = homes.entry(home.node).or_insert_with(|| Source {
            term,
            address: home.address.clone(),
            until_ns: 0,
        });
        if source.term != term {
            *source = Source { term, address: home.address.clone(), until_ns: 0 };
        }
        source.until_ns = source.until_ns.max(until_ns);
        Ok(())
    }

    /// Says behind the words until when all copies of the region count.
    fn set_until(&self, region: &Region, copies: &HashMap<u32, PageCopy>) {
        let until = copies.values().filter_map(|copy| match copy.stage {
            Stage::Coming | Stage::Void => None,
            Stage::Here => Some(self.sources.until_ns(copy)),
            Stage::Leaving { until_ns } => Some(until_ns),
        });
        region.set_copies_until(until.min().unwrap_or(0));
    }

    /// The page will be written by its home: lets nobody read the copy any more, and says so when nobody does.
    ///
    /// # Errors
    /// [`Refused`] if a program stays in it; what that reads does not count when the time behind the words is over.
    pub fn give_back(&self, core: &Core, region: &Arc<Region>, index: u32) -> Result<(), Refused> {
        let page = region.page(index).ok_or_else(|| Refused::new(errno::EINVAL, "there is no such page"))?;
        let number = {
            let mut copies = region.copies.lock();
            let Some(copy) = copies.get_mut(&index) else { return Ok(()) };
            match copy.stage {
                Stage::Coming | Stage::Void => {
                    copy.stage = Stage::Void;
                    return Ok(());
                }
                Stage::Here => {
                    copy.stage = Stage::Leaving { until_ns: self.sources.until_ns(copy) };
                    let number = copy.number;
                    region.set_word(index, region.word(index).uncopied());
                    number
                }
                Stage::Leaving { .. } => copy.number,
            }
        };
        fault_point::reach("copy-hidden");
        if !self.wait_until_left(region, index, page) {
            let text = "a program stays in the copy (hint: it may have been stopped)";
            return Err(Refused::new(errno::EBUSY, text));
        }
        let mut copies = region.copies.lock();
        if copies.get(&index).is_some_and(|copy| copy.number == number) {
            if let Some(holding) = region.part()
                && let Err(error) = core.holdings.return_page(&holding, index)
            {
                tracing::warn!(%error, "the memory of a copy is given back at the next start");
            }
            copies.remove(&index);
            self.set_until(region, &copies);
        }
        drop(copies);
        fault_point::reach("copy-gone");
        Ok(())
    }

    /// Drops all copies of pages of a node; whether nobody reads one any more.
    fn drop_copies_of(&self, core: &Core, home: NodeId) -> bool {
        let mut is_done = true;
        for region in self.all() {
            let theirs: Vec<u32> =
                // What is coming was given under a term of its own.
                region.copies.lock().iter().filter(|(_, copy)| copy.home == home && copy.stage != Stage::Coming).map(|(index, _)| *index).collect();
            for index in theirs {
                is_done &= self.give_back(core, &region, index).is_ok();
            }
        }
        is_done
    }

    /// Tells homes that their copies are still read, and drops those that do not count any more. Called every now and then.
    pub fn tend_copies(&self, core: &Core) {
        let now_ns = boot_ns();
        // Relaxed: only one thread does this.
        if now_ns < self.sources.kept_ns.load(Ordering::Relaxed) + KEEP_EVERY_NS
            || self.sources.lock().is_empty()
        {
            return;
        }
        self.sources.kept_ns.store(now_ns, Ordering::Relaxed); // as above
        let regions = self.all();
        let homes: Vec<(NodeId, Source)> =
            self.sources.lock().iter().map(|(home, source)| (*home, source.clone())).collect();
        for (home, source) in homes {
            let has_copies =
                regions.iter().any(|region| region.copies.lock().values().any(|copy| copy.home == home));
            if !has_copies {
                self.sources.lock().retain(|other, now| {
                    *other != home || now.term != source.term || now.until_ns != source.until_ns
                });
                continue;
            }
            let asked_ns = boot_ns();
            let kept = core.peers.call_within(
                &source.address,
                &PeerRequest::PageKeep { term: source.term },
                KEEP_WAIT,
            );
            match kept {
                Ok(_) => {
                    if let Some(now) =
                        self.sources.lock().get_mut(&home).filter(|now| now.term == source.term)
                    {
                        now.until_ns = now.until_ns.max(asked_ns + COUNTS_NS);
                    }
                }
                Err(refused) => {
                    tracing::debug!(%refused, "copies of pages of {home} are not kept");
                    if refused.code == errno::ENOENT || boot_ns() > source.until_ns {
                        self.drop_copies_of(core, home);
                    }
                }
            }
        }
        for region in &regions {
            let leaving: Vec<u32> = {
                let copies = region.copies.lock();
                if copies.is_empty() {
                    continue;
                }
                self.set_until(region, &copies);
                let is_leaving = |copy: &PageCopy| matches!(copy.stage, Stage::Leaving { .. });
                copies.iter().filter(|(_, copy)| is_leaving(copy)).map(|(index, _)| *index).collect()
            };
            for index in leaving {
                // A program stays in it still: the next round tries again.
                let _ = self.give_back(core, region, index);
            }
        }
    }

    /// Copies of pages that came here.
    pub fn copied(&self) -> u64 {
        // Relaxed: a counter that nothing is ordered by.
        self.sources.copied.load(Ordering::Relaxed)
    }
}
