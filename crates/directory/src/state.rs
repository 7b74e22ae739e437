//! The durable state in memory: the records, and the indexes and sums that follow from them.

use crate::error::Contradiction;
use crate::extent::{FreePages, pages_for};
use crate::former::FormerPools;
use crate::record::{
    AnswerRecord, Change, Doubted, MemberRecord, MetaRecord, ObjectRecord, PageHomeRecord, PageMoveRecord,
    PageRecord, RegionRecord, Runs, Stage,
};
use crate::{PageRun, charged_bytes};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Every field but `meta`, `doubted`, `doubted_epochs`, `former`, `outdated`, `stored`, `members`, `objects`, `answers`, `claims` and the three of regions follows from those.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) meta: MetaRecord,
    /// Numbers that an earlier, newer store gave.
    pub(crate) doubted: Runs,
    /// Epochs that it gave, or may have given.
    pub(crate) doubted_epochs: Option<Doubted<Epoch>>,
    /// Pools that objects were in before.
    pub(crate) former: FormerPools,
    /// Whether the store has records of these three under the keys that they had at first.
    pub(crate) outdated: bool,
    /// Whether the meta record stands in the store.
    pub(crate) stored: bool,
    pub(crate) members: BTreeMap<NodeId, MemberRecord>,
    pub(crate) objects: BTreeMap<ObjectId, ObjectRecord>,
    pub(crate) regions: BTreeMap<ObjectId, RegionRecord>,
    pub(crate) page_homes: BTreeMap<PageNumber, PageHomeRecord>,
    pub(crate) page_moves: BTreeMap<PageNumber, PageMoveRecord>,
    pub(crate) answers: BTreeMap<(NodeId, u16), AnswerRecord>,
    /// Up to which epoch the name of an object was known to the node that brought it back.
    pub(crate) claims: BTreeMap<ObjectId, Epoch>,
    pub(crate) names: BTreeMap<ObjectName, ObjectId>,
    pub(crate) pages: BTreeMap<PageNumber, PageRecord>,
    pub(crate) free: FreePages,
    /// Bytes that objects have reserved on each node.
    pub(crate) reserved: BTreeMap<NodeId, u64>,
    /// Objects with a home on each node.
    pub(crate) held: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Objects in `Removing` with a home on each node.
    pub(crate) removing: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Sealed objects of which each node is making a copy.
    pub(crate) copying: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Sealed objects of which each node has a heat copy, or is making one.
    pub(crate) heat: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Sealed objects with fewer whole copies than were asked for, wherever those are.
    pub(crate) short: BTreeSet<ObjectId>,
    /// Objects that sessions of each node are writing.
    pub(crate) writing: BTreeMap<NodeId, BTreeSet<ObjectId>>,
}

impl State {
    pub(crate) fn empty() -> Self {
        Self {
            meta: MetaRecord::default(),
            doubted: Runs::default(),
            doubted_epochs: None,
            former: FormerPools::new(),
            outdated: false,
            stored: false,
            members: BTreeMap::new(),
            objects: BTreeMap::new(),
            regions: BTreeMap::new(),
            page_homes: BTreeMap::new(),
            page_moves: BTreeMap::new(),
            answers: BTreeMap::new(),
            claims: BTreeMap::new(),
            names: BTreeMap::new(),
            pages: BTreeMap::new(),
            free: FreePages::all(),
            reserved: BTreeMap::new(),
            held: BTreeMap::new(),
            removing: BTreeMap::new(),
            copying: BTreeMap::new(),
            heat: BTreeMap::new(),
            short: BTreeSet::new(),
            writing: BTreeMap::new(),
        }
    }

    /// Bytes that objects have reserved on the node.
    pub(crate) fn reserved_bytes(&self, node: NodeId) -> u64 {
        self.reserved.get(&node).copied().unwrap_or(0)
    }

    /// The object that owns the page.
    pub(crate) fn page_owner(&self, page: PageNumber) -> Option<ObjectId> {
        let (first, owner) = self.pages.range(..=page).next_back()?;
        let run = PageRun::new(*first, owner.count).ok()?;
        run.contains(page).then_some(owner.object)
    }

    /// Objects to which changes give another name, or another whole copy: one that was being made has the name of before.
    pub(crate) fn renamed_by(&self, changes: &[Change]) -> Vec<ObjectId> {
        let renamed = changes.iter().filter_map(|change| match change {
            Change::Object(id, Some(object)) => {
                let before = self.objects.get(id)?;
                let whole = |object: &ObjectRecord| object.homes.iter().filter(|home| home.complete).count();
                let is_sealed = matches!(before.stage, Stage::Sealed { .. });
                let is_copied = is_sealed && whole(object) > whole(before);
                (object.claims_name() && (before.name != object.name || is_copied)).then_some(*id)
            }
            _ => None,
        });
        renamed.collect()
    }

    /// Takes over the changes of one plan.
    ///
    /// Names and pages follow from the objects, so their changes are only for the store. What goes makes
    /// room first: one plan may take a name from one object and give it to another.
    pub(crate) fn commit(&mut self, changes: Vec<Change>) {
        let mut unchanged = BTreeMap::new();
        for change in &changes {
            if let Change::Region(id, Some(region)) = change
                && !changes.iter().any(|other| matches!(other, Change::Object(object, _) if object == id))
                && self.recharge(*id, region)
            {
                continue;
            }
            if let Change::Object(id, _) | Change::Region(id, _) = change
                && let Some(object) = self.take_out(*id)
            {
                unchanged.insert(*id, object);
            }
        }
        for change in &changes {
            if let Change::Object(id, _) = change {
                unchanged.remove(id);
            }
        }
        // What an object is charged for stands in its region, so that comes first.
        for change in &changes {
            self.commit_pages(change);
        }
        for change in changes {
            match change {
                Change::Meta(meta) => {
                    self.meta = meta;
                    self.stored = true;
                }
                Change::Doubted(doubted) => self.doubted = doubted,
                Change::DoubtedEpochs(doubted) => self.doubted_epochs = Some(doubted),
                Change::Former(former) => self.former = former,
                Change::Outdated(_) => self.outdated = false,
                Change::Member(node, Some(member)) => {
                    self.members.insert(node, member);
                }
                Change::Member(node, None) => {
                    self.members.remove(&node);
                }
                Change::Object(id, Some(object)) => {
                    self.put_in(id, object).expect("a plan gives no page to two objects"); // else it is our bug
                }
                Change::Answer(slot, Some(answer)) => {
                    self.answers.insert(slot, answer);
                }
                Change::Answer(slot, None) => {
                    self.answers.remove(&slot);
                }
                Change::Claim(id, Some(as_of)) => {
                    self.claims.insert(id, as_of);
                }
                Change::Claim(id, None) => {
                    self.claims.remove(&id);
                }
                Change::Object(_, None)
                | Change::Name(..)
                | Change::Pages(..)
                | Change::Region(..)
                | Change::PageHome(..)
                | Change::PageMove(..) => {}
            }
        }
        for (id, object) in unchanged {
            self.put_in(id, object).expect("it had its pages before"); // else it is our bug
        }
    }

    /// Adds an object that is not there, with all that follows from it.
    pub(crate) fn put_in(&mut self, id: ObjectId, object: ObjectRecord) -> Result<(), Contradiction> {
        if let Some(pages) = object.pages() {
            if !self.free.claim(pages) {
                return Err(Contradiction::TwoOwners { pages, object: id });
            }
            self.pages.insert(pages.first(), PageRecord { count: pages.count(), object: id });
        }
        if object.claims_name() {
            self.names.insert(object.name.clone(), id);
        }
        if let Some(writer) = object.stage.writer() {
            self.writing.entry(writer.node).or_default().insert(id);
        }
        for home in &object.homes {
            *self.reserved.entry(home.node).or_default() += self.charge(id, &object, home.node);
            self.held.entry(home.node).or_default().insert(id);
            if !object.claims_name() {
                self.removing.entry(home.node).or_default().insert(id);
            }
            if matches!(object.stage, Stage::Sealed { .. }) && !home.complete {
                self.copying.entry(home.node).or_default().insert(id);
            }
            if matches!(object.stage, Stage::Sealed { .. }) && home.heat {
                self.heat.entry(home.node).or_default().insert(id);
            }
        }
        if is_short(&object) {
            self.short.insert(id);
        }
        self.objects.insert(id, object);
        Ok(())
    }

    /// Bytes that the object has reserved on one of its homes: a heat copy none, since it goes before anything is short of room.
    fn charge(&self, id: ObjectId, object: &ObjectRecord, node: NodeId) -> u64 {
        if object.home(node).is_some_and(|home| home.heat) {
            return 0;
        }
        match self.regions.get(&id) {
            Some(region) => u64::from(region.pages_on(node)) * PAGE_BYTES,
            None => charged_bytes(object.bytes),
        }
    }

    /// Charges the homes of a region that stays as it is for the pages that they have in a changed record; false if it had no record before.
    ///
    /// A region can have hundreds of homes, and the move of a page concerns two.
    fn recharge(&mut self, id: ObjectId, region: &RegionRecord) -> bool {
        let (Some(before), Some(object)) = (self.regions.get(&id), self.objects.get(&id)) else {
            return false;
        };
        let nodes = before.charged.iter().chain(&region.charged).map(|(node, _)| *node);
        let differ = nodes.filter(|node| before.pages_on(*node) != region.pages_on(*node));
        // A node that is in both lists comes twice.
        let changed: BTreeSet<NodeId> = differ.filter(|node| object.home(*node).is_some()).collect();
        for node in changed {
            let bytes = |region: &RegionRecord| u64::from(region.pages_on(node)) * PAGE_BYTES;
            let reserved = self.reserved.entry(node).or_default();
            *reserved = *reserved + bytes(region) - bytes(before);
        }
        true
    }

    fn commit_pages(&mut self, change: &Change) {
        match change {
            Change::Region(id, Some(region)) => drop(self.regions.insert(*id, region.clone())),
            Change::Region(id, None) => drop(self.regions.remove(id)),
            Change::PageHome(page, Some(home)) => drop(self.page_homes.insert(*page, *home)),
            Change::PageHome(page, None) => drop(self.page_homes.remove(page)),
            Change::PageMove(page, Some(going)) => drop(self.page_moves.insert(*page, *going)),
            Change::PageMove(page, None) => drop(self.page_moves.remove(page)),
            _ => {}
        }
    }

    fn take_out(&mut self, id: ObjectId) -> Option<ObjectRecord> {
        let object = self.objects.remove(&id)?;
        self.short.remove(&id);
        if let Some(pages) = object.pages() {
            self.free.release(pages);
            self.pages.remove(&pages.first());
        }
        if object.claims_name() {
            self.names.remove(&object.name);
        }
        if let Some(writer) = object.stage.writer() {
            drop_from(&mut self.writing, writer.node, id);
        }
        for home in &object.homes {
            drop_from(&mut self.held, home.node, id);
            drop_from(&mut self.removing, home.node, id);
            drop_from(&mut self.copying, home.node, id);
            drop_from(&mut self.heat, home.node, id);
            let left = self.reserved_bytes(home.node) - self.charge(id, &object, home.node);
            self.reserved.insert(home.node, left);
            if !self.held.contains_key(&home.node) {
                self.reserved.remove(&home.node);
            }
        }
        Some(object)
    }

    /// Checks every rule that holds between records, and that all indexes and sums are right.
    pub(crate) fn check(&self) -> Result<(), Contradiction> {
        self.check_objects()?;
        let mut fresh = Self::empty();
        fresh.regions = self.regions.clone();
        for (id, object) in &self.objects {
            fresh.put_in(*id, object.clone())?;
        }
        let sums = [
            (self.names == fresh.names, "names"),
            (self.pages == fresh.pages, "pages"),
            (self.free == fresh.free, "free pages"),
            (self.reserved == fresh.reserved, "reserved bytes"),
            (self.held == fresh.held, "objects by home"),
            (self.removing == fresh.removing, "objects to forget"),
            (self.copying == fresh.copying, "copies in the making"),
            (self.heat == fresh.heat, "heat copies by node"),
            (self.short == fresh.short, "objects that lack copies"),
            (self.writing == fresh.writing, "puts by node"),
        ];
        match sums.iter().find(|(right, _)| !right) {
            Some((_, what)) => Err(Contradiction::WrongSum { what }),
            None => Ok(()),
        }
    }

    /// Checks every rule between records; indexes and sums are taken to be right.
    pub(crate) fn check_objects(&self) -> Result<(), Contradiction> {
        self.objects.iter().try_for_each(|(id, object)| self.check_object(*id, object))?;
        if let Some(id) = self.claims.keys().find(|id| !self.objects.contains_key(id)) {
            return Err(Contradiction::NothingToClaim { object: *id });
        }
        self.check_regions()
    }

    fn check_object(&self, id: ObjectId, object: &ObjectRecord) -> Result<(), Contradiction> {
        let mut nodes = BTreeSet::new();
        for home in &object.homes {
            if !nodes.insert(home.node) {
                return Err(Contradiction::SameHomeTwice { object: id, node: home.node });
            }
            if !self.members.contains_key(&home.node) {
                return Err(Contradiction::HomeWithoutMember { object: id, node: home.node });
            }
            if home.epoch.0 >= self.meta.next_epoch {
                return Err(Contradiction::CounterBehind { object: id });
            }
            if home.heat && !matches!(object.stage, Stage::Sealed { .. } | Stage::Removing { .. }) {
                return Err(Contradiction::HeatCopyOfUnsealed { object: id, node: home.node });
            }
        }
        if id.0 >= self.meta.next_object || id.0 == 0 {
            return Err(Contradiction::CounterBehind { object: id });
        }
        if object.claims_name() && self.names.get(&object.name) != Some(&id) {
            return Err(Contradiction::ObjectWithoutName { object: id, name: object.name.clone() });
        }
        if !object.claims_name() && object.homes.is_empty() {
            return Err(Contradiction::NothingToRemove { object: id });
        }
        if self.claims.contains_key(&id) && !object.claims_name() {
            return Err(Contradiction::NothingToClaim { object: id });
        }
        match object.pages() {
            Some(pages) if pages.count() != pages_for(object.bytes) => {
                Err(Contradiction::WrongPageCount { object: id, bytes: object.bytes, pages })
            }
            _ => Ok(()),
        }
    }
}

/// Whether it is sealed and has fewer whole copies than were asked for.
fn is_short(object: &ObjectRecord) -> bool {
    let whole = object.homes.iter().filter(|home| home.complete && !home.heat).count();
    matches!(object.stage, Stage::Sealed { .. }) && whole < usize::from(object.copies)
}

fn drop_from(index: &mut BTreeMap<NodeId, BTreeSet<ObjectId>>, node: NodeId, id: ObjectId) {
    if let Some(objects) = index.get_mut(&node) {
        objects.remove(&id);
        if objects.is_empty() {
            index.remove(&node);
        }
    }
}
