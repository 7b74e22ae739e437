//! Moves of pages: a node that wants one takes it from its home, and at any moment the directory knows whose it is.
//!
//! The steps, and what makes each safe, stand in the decision on racks. In short: the home freezes the page and serves nothing
//! of it until the directory has said where it lies; the taker serves nothing of it before the directory has said that it is
//! its own. Whoever is left in doubt takes the intent back, and the answer says who has the page.

use crate::core::Core;
use crate::fault_point;
use crate::holdings::Holding;
use crate::refused::{Refused, errno};
use crate::regions::arriving::{Granted, bring_page};
use crate::regions::{Region, Regions};
use hinterland_directory::{Command, PageHome, Reply};
use hinterland_os::barrier;
use hinterland_proto::checksum::crc32c;
use hinterland_proto::control::{PageHeat, PeerReply, PeerRequest};
use hinterland_proto::pages::PageWord;
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{ByteRange, Epoch, NodeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a home waits for those who are in a page: far longer than any copy of one takes, short for who waits to write.
const FREEZE_WAIT: Duration = Duration::from_millis(50);
/// How long a frozen page waits to hear from its mover before the directory is asked: longer than a page takes to travel.
const SILENCE: Duration = Duration::from_millis(1500);
/// How often somebody who waits for a page looks again.
const LOOK_PAUSE: Duration = Duration::from_micros(200);
/// How long a request waits for a page that is moving before it is answered, so that its session can do other things.
const AWAIT_SLICE: Duration = Duration::from_millis(20);

/// The moves of one region that this node takes part in.
#[derive(Default)]
pub struct Moves {
    going: Mutex<HashMap<u32, Move>>,
    /// One page after the other is frozen, so that a request that was sent twice is not served twice at once.
    pub(super) freezing: Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// It is frozen here.
    Leaving { epoch: Epoch, since: Instant },
    /// It is coming; the epoch is known once the directory has answered.
    Coming(Coming),
}

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Coming {
    /// Without one and in doubt, the directory may have an intent of which this node was not told.
    epoch: Option<Epoch>,
    /// Whether the page has room and memory here.
    has_room: bool,
    /// Whether nobody works on it any more, because the directory could not be asked.
    in_doubt: bool,
}

impl Moves {
    fn set_coming(&self, index: u32, coming: Coming) {
        self.lock().insert(index, Move::Coming(coming));
    }

    /// The directory may have an intent of this node that nobody works on: it is asked about until it answers.
    pub(super) fn doubt(&self, index: u32, epoch: Option<Epoch>) {
        let coming = Coming { epoch, in_doubt: true, ..Coming::default() };
        self.lock().entry(index).or_insert(Move::Coming(coming));
    }

    fn coming(&self, index: u32) -> Option<Coming> {
        match self.lock().get(&index) {
            Some(Move::Coming(coming)) => Some(*coming),
            _ => None,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u32, Move>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Regions {
    /// Brings a page here. `heat` is what it has in this rack; `None` for an order, which no heat refuses.
    ///
    /// # Errors
    /// [`Refused`]; the page is where it was, or the directory cannot be asked and it will be known later.
    pub fn pull(
        &self,
        core: &Core,
        region: &Arc<Region>,
        index: u32,
        heat: Option<PageHeat>,
    ) -> Result<(), Refused> {
        if region.page(index).is_none() || region.bytes < PAGE_BYTES {
            return Err(Refused::new(
                errno::EINVAL,
                format!("{} has no page {index} that could move", region.name),
            ));
        }
        if region.word(index).is_held() {
            return Ok(());
        }
        // A copy makes room for the page itself.
        self.give_back(core, region, index)?;
        {
            let mut going = region.moves.lock();
            if going.contains_key(&index) || region.copies.has(index) {
                return Err(Refused::new(errno::EAGAIN, "the page is being moved already"));
            }
            going.insert(index, Move::Coming(Coming::default()));
        }
        let taken = self.take(core, region, index, heat);
        let Err(refused) = taken else { return Ok(()) };
        tracing::debug!(%refused, "page {index} of {} did not come", region.name);
        match region.moves.coming(index) {
            Some(Coming { epoch: Some(epoch), .. }) => self.end_in_doubt(core, region, index, epoch),
            Some(Coming { in_doubt: true, .. }) => {}
            _ => self.forget_coming(core, region, index),
        }
        if region.word(index).is_held() { Ok(()) } else { Err(refused) }
    }

    fn take(
        &self,
        core: &Core,
        region: &Arc<Region>,
        index: u32,
        heat: Option<PageHeat>,
    ) -> Result<(), Refused> {
        let page = region.page(index).ok_or_else(|| Refused::new(errno::EINVAL, "there is no such page"))?;
        let incarnation = core.membership.incarnation.get();
        let command = Command::BeginMove { page, to: core.own, incarnation };
        let begun = core.directory.ask(&command).inspect_err(|_| {
            // The directory may have begun it all the same.
            region.moves.set_coming(index, Coming { in_doubt: true, ..Coming::default() });
        })?;
        let Reply::Move { epoch, part, from } = begun? else {
            return Err(Refused::new(errno::EIO, "the directory did not begin the move"));
        };
        let coming = Coming { epoch: Some(epoch), ..Coming::default() };
        region.moves.set_coming(index, coming);
        fault_point::reach("move-begun");
        let holding = self.part_as_told(core, region, part, incarnation)?;
        core.holdings.add_page(&holding, index)?;
        region.moves.set_coming(index, Coming { has_room: true, ..coming });
        fault_point::reach("move-room-made");
        self.copy(core, region, index, epoch, &from, heat)?;
        core.directory.apply(&Command::CommitMove { page, to: core.own, incarnation, epoch })?;
        fault_point::reach("move-committed");
        self.arrive(region, index, epoch);
        if let Some(home) = from.home {
            let request = PeerRequest::PageMoved { object: region.object, index, epoch };
            if let Err(refused) = core.peers.call(&home.address, &request) {
                tracing::debug!(%refused, "the home of before asks the directory");
            }
        }
        Ok(())
    }

    /// The part of the region here that the directory has named to this life of the node, made if there is none. The node may have begun
    /// another life while the answer was on its way, and the directory have given up the part: pages that came into one that it does not
    /// know would go with that at the next report.
    pub(crate) fn part_as_told(
        &self,
        core: &Core,
        region: &Arc<Region>,
        part: Epoch,
        incarnation: u64,
    ) -> Result<Arc<Holding>, Refused> {
        let changed = || {
            let text =
                format!("this node has begun anew while {} was asked for (hint: ask again)", region.name);
            Refused::new(errno::EAGAIN, text)
        };
        if core.membership.incarnation.get() != incarnation {
            return Err(changed());
        }
        // Of two pages that come at once to a node without a part, the second waits: should the region be removed meanwhile, it finds the part
        // of the first, which the node has let go of, and makes none that the directory takes for gone.
        let _making = region.making_part.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holding) = region.part() {
            return if holding.epoch() == part { Ok(holding) } else { Err(changed()) };
        }
        let holding = core.holdings.create_part(region.object, part, region.name.clone(), region.bytes)?;
        holding.attach(region);
        region.set_part(Arc::clone(&holding))?;
        Ok(holding)
    }

    /// Copies the page from its home into the room that was made for it.
    fn copy(
        &self,
        core: &Core,
        region: &Arc<Region>,
        index: u32,
        epoch: Epoch,
        from: &PageHome,
        heat: Option<PageHeat>,
    ) -> Result<(), Refused> {
        let lost = || Refused::new(errno::EIO, "the page has no home that is up");
        let home = from.home.as_ref().filter(|_| from.is_up).ok_or_else(lost)?;
        let request = PeerRequest::PageFreeze { object: region.object, index, epoch, heat };
        let PeerReply::PageFrozen { handle, crc } = core.peers.call(&home.address, &request)? else {
            return Err(Refused::new(errno::EIO, "the home did not freeze the page"));
        };
        fault_point::reach("move-frozen");
        let holding = region.part().ok_or_else(lost)?;
        let granted = Granted { address: &home.address, handle, crc };
        bring_page(core, region, index, &holding, &granted, "move-copied")
    }

    fn arrive(&self, region: &Region, index: u32, epoch: Epoch) {
        region.set_here(index, epoch);
        fault_point::reach("move-arrived");
        region.moves.lock().remove(&index);
    }

    /// Takes the intent back, and finds out in the answer whether it was committed before.
    fn end_in_doubt(&self, core: &Core, region: &Arc<Region>, index: u32, epoch: Epoch) {
        let Some(page) = region.page(index) else { return };
        match core.directory.ask(&Command::CancelMove { page, epoch }) {
            Ok(Ok(Reply::PageHome(home))) => {
                if is_at(&home, core.own) && home.epoch == epoch {
                    self.arrive(region, index, epoch);
                } else {
                    self.forget_coming(core, region, index);
                }
            }
            // The region is gone.
            Ok(_) => self.forget_coming(core, region, index),
            Err(_) => {
                // Nobody knows: the page is neither served nor forgotten until the directory answers.
                let coming = region.moves.coming(index).unwrap_or_default();
                region.moves.set_coming(index, Coming { epoch: Some(epoch), in_doubt: true, ..coming });
            }
        }
    }

    /// The directory may have begun a move of which this node was not told, and would refuse the page to others: asked again it says
    /// which, and that is taken back.
    fn take_intent_back(&self, core: &Core, region: &Arc<Region>, index: u32) {
        let Some(page) = region.page(index) else { return };
        let incarnation = core.membership.incarnation.get();
        match core.directory.ask(&Command::BeginMove { page, to: core.own, incarnation }) {
            Ok(Ok(Reply::Move { epoch, .. })) => self.end_in_doubt(core, region, index, epoch),
            // There is none, or it ends with the life of this node or of the home.
            Ok(_) => self.forget_coming(core, region, index),
            Err(refused) => tracing::debug!(%refused, "an intent waits for the directory"),
        }
    }

    fn forget_coming(&self, core: &Core, region: &Region, index: u32) {
        let has_room = region.moves.coming(index).is_some_and(|coming| coming.has_room);
        if let Some(holding) = region.part().filter(|_| has_room)
            && let Err(error) = core.holdings.drop_page(&holding, index)
        {
            tracing::warn!(%error, "the memory of a page that did not come is given back at the next start");
        }
        region.moves.lock().remove(&index);
    }

    /// Freezes a page for another node; returns the checksum of its bytes.
    ///
    /// # Errors
    /// [`Refused`]; the page is as it was.
    pub fn freeze(&self, region: &Arc<Region>, index: u32, epoch: Epoch) -> Result<u32, Refused> {
        let _freezing = region.moves.freezing.lock().unwrap_or_else(PoisonError::into_inner);
        let page = region.page(index).ok_or_else(|| Refused::new(errno::EINVAL, "there is no such page"))?;
        let word = region.word(index);
        let going = region.moves.lock().get(&index).copied();
        let is_frozen = matches!(going, Some(Move::Leaving { epoch: other, .. }) if other == epoch);
        if !is_frozen {
            if going.is_some() || !word.is_here() {
                return Err(Refused::new(errno::EAGAIN, "the page is not here, or is being moved already"));
            }
            if region.is_pinned()? {
                let text =
                    "a program has the region mapped by plain pointers (hint: it moves when no program has)";
                return Err(Refused::new(errno::EBUSY, text));
            }
            region.moves.lock().insert(index, Move::Leaving { epoch, since: Instant::now() });
            region.set_word(index, word.moving());
            fault_point::reach("home-page-marked");
            if !self.wait_until_left(region, index, page) {
                region.set_word(index, word);
                region.moves.lock().remove(&index);
                let text = "a program stays in the page (hint: it may have been stopped; the page moves when it goes on)";
                return Err(Refused::new(errno::EBUSY, text));
            }
        }
        let offset = u64::from(index) * PAGE_BYTES;
        let range = ByteRange::new(offset, PAGE_BYTES.min(region.bytes - offset))
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        let bytes = region.frozen_slice(range)?;
        // Before the taker may commit: from then on a device would read what is no longer the page.
        region.revoke(&bytes);
        let crc = crc32c(&bytes.to_vec());
        if bytes.is_lost() {
            return Err(Refused::new(errno::EIO, "the memory was lost: a program has cut its file off"));
        }
        fault_point::reach("home-page-frozen");
        Ok(crc)
    }

    /// Waits until neither a request nor a thread is in the page; false if that takes too long.
    pub(super) fn wait_until_left(
        &self,
        region: &Region,
        index: u32,
        page: hinterland_types::PageNumber,
    ) -> bool {
        if !self.fences && !barrier::all_processors() {
            return false;
        }
        let deadline = Instant::now() + FREEZE_WAIT;
        loop {
            let slots = self.all_slots();
            if !region.is_used(index) && !slots.iter().any(|slots| slots.names(page)) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Lets go of a page whose move is committed, or says so if it is not.
    ///
    /// # Errors
    /// [`Refused`] if the directory cannot be asked.
    pub fn moved(&self, core: &Core, region: &Arc<Region>, index: u32, epoch: Epoch) -> Result<(), Refused> {
        let going = region.moves.lock().get(&index).copied();
        match going {
            Some(Move::Leaving { epoch: other, .. }) if other == epoch => {
                self.settle_leaving(core, region, index, epoch)
            }
            _ => Ok(()),
        }
    }

    /// Asks the directory where a frozen page lies, and lets go of it or thaws it.
    fn settle_leaving(
        &self,
        core: &Core,
        region: &Arc<Region>,
        index: u32,
        epoch: Epoch,
    ) -> Result<(), Refused> {
        let _freezing = region.moves.freezing.lock().unwrap_or_else(PoisonError::into_inner);
        let going = region.moves.lock().get(&index).copied();
        if !matches!(going, Some(Move::Leaving { epoch: other, .. }) if other == epoch) {
            return Ok(());
        }
        let Some(page) = region.page(index) else { return Ok(()) };
        let home = match core.directory.ask(&Command::CancelMove { page, epoch })? {
            Ok(Reply::PageHome(home)) => home,
            // The region is gone: its end is told otherwise, and nothing of it is served.
            _ => return Ok(()),
        };
        fault_point::reach("home-page-decided");
        if is_at(&home, core.own) {
            let word = region.word(index);
            region.set_here(index, Epoch(u64::from(word.epoch())));
            region.moves.lock().remove(&index);
            return Ok(());
        }
        self.point(region, index, &home);
        if let Some(holding) = region.part()
            && let Err(error) = core.holdings.drop_page(&holding, index)
        {
            tracing::warn!(%error, "the memory of a page that went is given back at the next start");
        }
        fault_point::reach("home-page-gone");
        region.moves.lock().remove(&index);
        self.count_given();
        Ok(())
    }

    /// Says in the word where a page lies.
    fn point(&self, region: &Region, index: u32, home: &PageHome) {
        let word = match &home.home {
            Some(info) => PageWord::elsewhere(region.place_of(info, home.is_up), home.epoch.0),
            None => PageWord::UNKNOWN,
        };
        region.set_word(index, word);
    }

    /// Looks where a page lies for a session that did not find it; waits a little if it is moving.
    ///
    /// # Errors
    /// [`Refused`] if the region or the page is gone, or its home is down.
    pub fn find(&self, core: &Core, region: &Arc<Region>, index: u32) -> Result<(), Refused> {
        let Some(page) = region.page(index) else {
            return Err(Refused::new(errno::EINVAL, format!("{} has no page {index}", region.name)));
        };
        let deadline = Instant::now() + AWAIT_SLICE;
        loop {
            let is_going = region.moves.lock().contains_key(&index);
            if !is_going || region.word(index).is_fit(false) {
                break;
            }
            if Instant::now() >= deadline {
                return Ok(());
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        if region.word(index).is_fit(false) || region.word(index).is_copy() {
            return Ok(());
        }
        let home = match core.directory.ask(&Command::LookupHome { page })? {
            Ok(Reply::PageHome(home)) if home.object == region.object => home,
            Ok(_) => {
                region.close();
                return Err(Refused::new(errno::ENOENT, format!("{} was removed", region.name)));
            }
            Err(error) => {
                region.close();
                return Err(error.into());
            }
        };
        if home.home.is_none() || !home.is_up {
            let text = format!(
                "page {index} of {} cannot be reached: its home is down or has lost it (hint: `hinterland status` shows the nodes)",
                region.name
            );
            return Err(Refused::new(errno::EIO, text));
        }
        let going = region.moves.lock();
        // What was decided here since the question is newer than the answer.
        if !going.contains_key(&index) && !region.word(index).is_held() && !is_at(&home, core.own) {
            self.point(region, index, &home);
        }
        Ok(())
    }

    /// Ends moves that nobody goes on with. Called every now and then.
    pub fn end_silent_moves(&self, core: &Core) {
        for region in self.all() {
            let going: Vec<(u32, Move)> =
                region.moves.lock().iter().map(|(index, going)| (*index, *going)).collect();
            for (index, going) in going {
                match going {
                    Move::Leaving { epoch, since } if since.elapsed() >= SILENCE => {
                        if let Err(refused) = self.settle_leaving(core, &region, index, epoch) {
                            tracing::debug!(%refused, "a frozen page waits for the directory");
                        }
                    }
                    Move::Coming(Coming { epoch, in_doubt: true, .. }) => match epoch {
                        Some(epoch) => self.end_in_doubt(core, &region, index, epoch),
                        None => self.take_intent_back(core, &region, index),
                    },
                    _ => {}
                }
            }
        }
    }
}

/// The moves of a region, held still.
pub(super) struct UnderWay<'region>(MutexGuard<'region, HashMap<u32, Move>>);

impl UnderWay<'_> {
    /// Whether a page is moving.
    pub(super) fn contains(&self, index: u32) -> bool {
        self.0.contains_key(&index)
    }
}

impl Region {
    /// The moves of its pages; none begins or ends until it is dropped.
    pub(super) fn moves_under_way(&self) -> UnderWay<'_> {
        UnderWay(self.moves.lock())
    }

    /// Whether a page is moving.
    pub(super) fn is_moving(&self, index: u32) -> bool {
        self.moves_under_way().contains(index)
    }

    /// Runs something while no page of the region is being frozen; `None` if one is on its way.
    ///
    /// # Errors
    /// What `then` says.
    pub fn while_still<T>(&self, then: impl FnOnce() -> Result<T, Refused>) -> Result<Option<T>, Refused> {
        let _freezing = self.moves.freezing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.moves.lock().is_empty() {
            return Ok(None);
        }
        then().map(Some)
    }
}

fn is_at(home: &PageHome, node: NodeId) -> bool {
    home.home.as_ref().is_some_and(|info| info.node == node)
}
