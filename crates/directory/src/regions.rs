//! Pages of regions: where each lies, and how one moves from a home to another.
//!
//! The base rule of a region, a hash over the nodes that it was spread over, says where its pages lie; what has moved since
//! stands page by page. A move is an intent until it is committed, in one change with the new home, so that at any moment
//! one node is the home of a page. Whoever is unsure takes the intent back and reads in the answer who has the page: what
//! was committed before cannot be taken back, and what was taken back cannot be committed.

use crate::draft::Draft;
use crate::error::{Contradiction, DirectoryError};
use crate::lifecycle::wrong_state;
use crate::record::{Home, ObjectRecord, PageHomeRecord, PageMoveRecord, RegionRecord, Stage};
use crate::reply::{MovedPage, PageHome, Reply};
use crate::state::State;
use crate::{HomeInfo, PAGES_MAX, PageRun};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{Epoch, NodeId, ObjectId, PageNumber};
use std::collections::BTreeMap;

/// The record of a region that is spread over its homes.
pub(crate) fn region_of(pages: PageRun, homes: &[Home]) -> RegionRecord {
    let base = homes.iter().map(|home| (home.node, home.epoch)).collect();
    let mut region = RegionRecord { base, charged: Vec::new() };
    for page in pages.iter() {
        if let Some((node, _)) = region.base_home(page) {
            region.add(node);
        }
    }
    region
}

impl Draft<'_> {
    pub(crate) fn begin_move(
        &mut self,
        page: PageNumber,
        to: NodeId,
        incarnation: u64,
    ) -> Result<Reply, DirectoryError> {
        self.serving(to, incarnation)?;
        let (id, mut object) = self.region_at(page)?;
        if object.bytes < PAGE_BYTES {
            return Err(DirectoryError::PageFixed { page, object: id });
        }
        let from = self.home_of(page, id, &object);
        let lost = DirectoryError::PageLost { page };
        let (Some(home), true) = (&from.home, from.is_up) else { return Err(lost) };
        if home.node == to {
            return Err(DirectoryError::PageAtHome { page, node: to });
        }
        if let Some(going) = self.page_move(page).copied() {
            if let (true, Some(part)) = ((going.to, going.incarnation) == (to, incarnation), object.home(to))
            {
                // The same request again: another epoch would be an intent that nobody knows of, should the first answer be the one
                // that is heard.
                return Ok(Reply::Move { epoch: going.epoch, part: part.epoch, from });
            }
            if going.to != to && self.serving(going.to, going.incarnation).is_ok() {
                return Err(DirectoryError::PageMoving { page, node: going.to });
            }
            self.end_move(page, going);
        }
        if self.free_bytes(to) < PAGE_BYTES {
            return Err(DirectoryError::NotEnoughRoom { bytes: PAGE_BYTES, copies: 1, room: self.room() });
        }
        let mut region = self.region(id).cloned().unwrap_or_else(|| match object.pages() {
            Some(pages) => region_of(pages, &object.homes),
            None => region_of_nothing(),
        });
        region.add(to);
        self.set_region(id, Some(region));
        let part = match object.home(to) {
            Some(part) => part.epoch,
            None => {
                let epoch = self.next_epoch();
                object.homes.push(Home { node: to, epoch, complete: true, heat: false });
                epoch
            }
        };
        let epoch = self.next_epoch();
        let going = PageMoveRecord { object: id, from: home.node, to, epoch, incarnation };
        self.set_page_move(page, Some(going));
        self.set_object(id, Some(object));
        Ok(Reply::Move { epoch, part, from })
    }

    pub(crate) fn commit_move(
        &mut self,
        page: PageNumber,
        to: NodeId,
        incarnation: u64,
        epoch: Epoch,
    ) -> Result<Reply, DirectoryError> {
        self.serving(to, incarnation)?;
        let (id, object) = self.region_at(page)?;
        if self.page_home(page).is_some_and(|home| (home.node, home.epoch) == (to, epoch)) {
            return Ok(Reply::PageHome(self.home_of(page, id, &object)));
        }
        let expected = self.page_move(page).copied();
        let going = expected.filter(|m| (m.to, m.epoch, m.incarnation) == (to, epoch, incarnation));
        let going = going.ok_or(DirectoryError::MoveOver { page, epoch })?;
        self.set_page_move(page, None);
        self.set_page_home(page, Some(PageHomeRecord { object: id, node: to, epoch }));
        if let Some(mut region) = self.region(id).cloned() {
            region.take(going.from);
            self.set_region(id, Some(region));
        }
        Ok(Reply::PageHome(self.home_of(page, id, &object)))
    }

    pub(crate) fn cancel_move(&mut self, page: PageNumber, epoch: Epoch) -> Result<Reply, DirectoryError> {
        if let Some(going) = self.page_move(page).copied().filter(|going| going.epoch == epoch) {
            self.end_move(page, going);
        }
        self.lookup_home(page)
    }

    pub(crate) fn lookup_home(&self, page: PageNumber) -> Result<Reply, DirectoryError> {
        let (id, object) = self.region_at(page)?;
        Ok(Reply::PageHome(self.home_of(page, id, &object)))
    }

    pub(crate) fn list_homes(
        &self,
        id: ObjectId,
        after: Option<PageNumber>,
    ) -> Result<Reply, DirectoryError> {
        let object = self.known_object(id)?;
        let Some(pages) = object.pages() else { return Err(wrong_state(id, object)) };
        let base = match self.region(id) {
            Some(region) => region.base.clone(),
            None => object.homes.iter().map(|home| (home.node, home.epoch)).collect(),
        };
        let parts = self.home_infos(object, |_| true);
        let parts = parts.into_iter().map(|home| (self.is_up(home.node), home)).map(|(up, home)| (home, up));
        let first = after.map_or(pages.first().raw(), |after| after.raw() + 1);
        let behind = self.state.page_homes.range(PageNumber::new(first).unwrap_or_default()..);
        let ours = behind.take_while(|(page, _)| pages.contains(**page));
        let moved = ours.map(|(page, home)| MovedPage { page: *page, node: home.node, epoch: home.epoch });
        let mut moved: Vec<_> = moved.take(PAGES_MAX + 1).collect();
        let more = moved.len() > PAGES_MAX;
        moved.truncate(PAGES_MAX);
        Ok(Reply::Pages { base, parts: parts.collect(), moved, more })
    }

    /// Moves to and from a node that begins another life are over: it has forgotten them.
    pub(crate) fn give_up_moves_of(&mut self, node: NodeId) {
        let going = self.state.page_moves.iter();
        let over: Vec<_> =
            going.filter(|(_, m)| m.from == node || m.to == node).map(|(p, m)| (*p, *m)).collect();
        for (page, going) in over {
            self.end_move(page, going);
        }
    }

    /// The pages that lie on a node are lost, and its moves are over.
    pub(crate) fn lose_part(&mut self, id: ObjectId, node: NodeId) {
        let Some(mut region) = self.region(id).cloned() else { return };
        let going = self.state.page_moves.iter();
        let ours = going.filter(|(_, m)| m.object == id && (m.from == node || m.to == node));
        let over: Vec<_> = ours.map(|(page, m)| (*page, m.to)).collect();
        for (page, to) in over {
            if self.page_move(page).is_some() {
                region.take(to);
                self.set_page_move(page, None);
            }
        }
        region.charged.retain(|(other, _)| *other != node);
        self.set_region(id, Some(region));
    }

    /// Forgets all about the pages of a region that is gone.
    pub(crate) fn drop_pages(&mut self, id: ObjectId, object: &ObjectRecord) {
        if self.region(id).is_none() {
            return;
        }
        self.set_region(id, None);
        for page in object.pages().into_iter().flat_map(|pages| pages_with_records(self.state, pages)) {
            self.set_page_home(page, None);
            self.set_page_move(page, None);
        }
    }

    fn end_move(&mut self, page: PageNumber, going: PageMoveRecord) {
        self.set_page_move(page, None);
        if let Some(mut region) = self.region(going.object).cloned() {
            region.take(going.to);
            self.set_region(going.object, Some(region));
        }
    }

    /// The region that a page belongs to.
    fn region_at(&self, page: PageNumber) -> Result<(ObjectId, ObjectRecord), DirectoryError> {
        let id = self.state.page_owner(page).ok_or(DirectoryError::UnownedPage { page })?;
        let object = self.known_object(id)?;
        match object.stage {
            Stage::Mutable { .. } => Ok((id, object.clone())),
            _ => Err(wrong_state(id, object)),
        }
    }

    fn home_of(&self, page: PageNumber, id: ObjectId, object: &ObjectRecord) -> PageHome {
        let moved = self.page_home(page).map(|home| (home.node, home.epoch));
        let (node, epoch) = moved.or_else(|| base_of(self.region(id), object, page)).unwrap_or_default();
        let part = object.home(node).filter(|part| part.epoch <= epoch);
        let home: Option<HomeInfo> =
            part.and_then(|part| self.home_infos(object, |home| home.node == part.node).into_iter().next());
        PageHome { object: id, is_up: home.is_some() && self.is_up(node), home, epoch }
    }
}

/// Where the page of a region lies that never moved.
fn base_of(
    region: Option<&RegionRecord>,
    object: &ObjectRecord,
    page: PageNumber,
) -> Option<(NodeId, Epoch)> {
    match region {
        Some(region) => region.base_home(page),
        None => object.homes.first().map(|home| (home.node, home.epoch)),
    }
}

fn region_of_nothing() -> RegionRecord {
    RegionRecord { base: Vec::new(), charged: Vec::new() }
}

fn pages_with_records(state: &State, pages: PageRun) -> Vec<PageNumber> {
    let ours = |page: &&PageNumber| pages.contains(**page);
    let homes = state.page_homes.range(pages.first()..).map(|(page, _)| page).take_while(ours);
    let moves = state.page_moves.range(pages.first()..).map(|(page, _)| page).take_while(ours);
    homes.chain(moves).copied().collect()
}

impl State {
    /// Checks the records of regions against their objects and against each other.
    pub(crate) fn check_regions(&self) -> Result<(), Contradiction> {
        let bad = |object: ObjectId, what: &'static str| Contradiction::BadRegion { object, what };
        for (page, home) in &self.page_homes {
            if self.page_owner(*page) != Some(home.object) || !self.regions.contains_key(&home.object) {
                return Err(bad(home.object, "a page has a home and belongs to no region of records"));
            }
            if home.epoch.0 >= self.meta.next_epoch {
                return Err(Contradiction::CounterBehind { object: home.object });
            }
        }
        for (page, going) in &self.page_moves {
            let object = self.objects.get(&going.object);
            let is_home = |node: NodeId| object.is_some_and(|object| object.home(node).is_some());
            if self.page_owner(*page) != Some(going.object) || !is_home(going.to) || !is_home(going.from) {
                return Err(bad(going.object, "a page moves between nodes that are no homes"));
            }
            if going.epoch.0 >= self.meta.next_epoch {
                return Err(Contradiction::CounterBehind { object: going.object });
            }
        }
        self.regions.iter().try_for_each(|(id, region)| self.check_region(*id, region))
    }

    fn check_region(&self, id: ObjectId, region: &RegionRecord) -> Result<(), Contradiction> {
        let bad = |what: &'static str| Contradiction::BadRegion { object: id, what };
        let object = self.objects.get(&id).ok_or_else(|| bad("there is no such object"))?;
        let pages = match object.stage {
            Stage::Mutable { pages }
            | Stage::Making { pages, .. }
            | Stage::Removing { pages: Some(pages) } => pages,
            _ => return Err(bad("it is no region")),
        };
        if region.base.iter().any(|(_, epoch)| epoch.0 >= self.meta.next_epoch) {
            return Err(Contradiction::CounterBehind { object: id });
        }
        let mut charged: BTreeMap<NodeId, u32> = BTreeMap::new();
        for page in pages.iter() {
            let moved = self.page_homes.get(&page).map(|home| (home.node, home.epoch));
            let Some((node, epoch)) = moved.or_else(|| region.base_home(page)) else { continue };
            if object.home(node).is_some_and(|part| part.epoch <= epoch) {
                *charged.entry(node).or_default() += 1;
            }
            if let Some(going) = self.page_moves.get(&page) {
                *charged.entry(going.to).or_default() += 1;
            }
        }
        if charged.into_iter().eq(region.charged.iter().copied()) {
            Ok(())
        } else {
            Err(bad("the pages that nodes are charged for are not those that they have"))
        }
    }
}
