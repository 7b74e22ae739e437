//! What a command would change, laid over the state as it is.

use crate::directory::{Heard, Lease, Settings};
use crate::error::DirectoryError;
use crate::former::FormerPools;
use crate::names::Renamed;
use crate::record::{
    Change, Doubted, MemberRecord, MemberState, MetaRecord, OUTDATED_KEYS, ObjectRecord, PageHomeRecord,
    PageMoveRecord, PageRecord, RegionRecord, Runs, Stage, format_of,
};
use crate::reply::HomeInfo;
use crate::state::State;
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Epochs behind one that an earlier store gave that are not given here: it may have given more, as many objects may have been put, copied and renamed behind the
/// copy that is being replaced by an older one.
const EPOCHS_SKIPPED: u64 = 1 << 20;

/// Reads see the changes made so far; the state itself is not touched.
pub(crate) struct Draft<'a> {
    pub(crate) state: &'a State,
    pub(crate) settings: &'a Settings,
    pub(crate) now_ms: u64,
    leases: &'a BTreeMap<NodeId, Lease>,
    pub(crate) renamed: &'a Renamed,
    meta: MetaRecord,
    doubted: Cow<'a, Runs>,
    doubted_epochs: Option<Doubted<Epoch>>,
    former: Option<FormerPools>,
    members: BTreeMap<NodeId, Option<MemberRecord>>,
    objects: BTreeMap<ObjectId, Option<ObjectRecord>>,
    regions: BTreeMap<ObjectId, Option<RegionRecord>>,
    page_homes: BTreeMap<PageNumber, Option<PageHomeRecord>>,
    page_moves: BTreeMap<PageNumber, Option<PageMoveRecord>>,
    claims: BTreeMap<ObjectId, Option<Epoch>>,
    lease_changes: BTreeMap<NodeId, Option<Lease>>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        state: &'a State,
        settings: &'a Settings,
        leases: &'a BTreeMap<NodeId, Lease>,
        renamed: &'a Renamed,
        now_ms: u64,
    ) -> Self {
        Self {
            state,
            settings,
            now_ms,
            leases,
            renamed,
            meta: state.meta,
            doubted: Cow::Borrowed(&state.doubted),
            doubted_epochs: state.doubted_epochs,
            former: None,
            members: BTreeMap::new(),
            objects: BTreeMap::new(),
            regions: BTreeMap::new(),
            page_homes: BTreeMap::new(),
            page_moves: BTreeMap::new(),
            claims: BTreeMap::new(),
            lease_changes: BTreeMap::new(),
        }
    }

    pub(crate) fn member(&self, node: NodeId) -> Option<&MemberRecord> {
        match self.members.get(&node) {
            Some(changed) => changed.as_ref(),
            None => self.state.members.get(&node),
        }
    }

    pub(crate) fn set_member(&mut self, node: NodeId, member: Option<MemberRecord>) {
        self.members.insert(node, member);
    }

    pub(crate) fn set_member_state(&mut self, node: NodeId, state: MemberState) {
        if let Some(member) = self.member(node).cloned() {
            self.set_member(node, Some(MemberRecord { state, ..member }));
        }
    }

    /// Whether a member has said what it is called: mostly the first one that is looked at. Asked with each command, so of as many as have not
    /// none is looked up.
    fn has_names(&self) -> bool {
        let is_named = |member: &MemberRecord| member.name.is_some();
        let stored = self.state.members.iter().filter(|(_, member)| is_named(member));
        self.members.values().flatten().any(is_named)
            || stored.map(|(node, _)| node).any(|node| !self.members.contains_key(node))
    }

    /// Nodes of all members, ascending.
    pub(crate) fn member_nodes(&self) -> Vec<NodeId> {
        let added = self.members.keys().filter(|node| !self.state.members.contains_key(node));
        let mut nodes: Vec<_> = self.state.members.keys().chain(added).copied().collect();
        nodes.retain(|node| self.member(*node).is_some());
        nodes.sort_unstable();
        nodes
    }

    /// Whether the member serves.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.member(node).is_some_and(|member| member.state == MemberState::Up)
    }

    pub(crate) fn object(&self, id: ObjectId) -> Option<&ObjectRecord> {
        match self.objects.get(&id) {
            Some(changed) => changed.as_ref(),
            None => self.state.objects.get(&id),
        }
    }

    /// The object, or the error that says it is not there.
    pub(crate) fn known_object(&self, id: ObjectId) -> Result<&ObjectRecord, DirectoryError> {
        self.object(id).ok_or(DirectoryError::UnknownObject { object: id })
    }

    pub(crate) fn set_object(&mut self, id: ObjectId, object: Option<ObjectRecord>) {
        self.objects.insert(id, object);
    }

    pub(crate) fn region(&self, id: ObjectId) -> Option<&RegionRecord> {
        match self.regions.get(&id) {
            Some(changed) => changed.as_ref(),
            None => self.state.regions.get(&id),
        }
    }

    pub(crate) fn set_region(&mut self, id: ObjectId, region: Option<RegionRecord>) {
        self.regions.insert(id, region);
    }

    pub(crate) fn page_home(&self, page: PageNumber) -> Option<&PageHomeRecord> {
        match self.page_homes.get(&page) {
            Some(changed) => changed.as_ref(),
            None => self.state.page_homes.get(&page),
        }
    }

    pub(crate) fn set_page_home(&mut self, page: PageNumber, home: Option<PageHomeRecord>) {
        self.page_homes.insert(page, home);
    }

    pub(crate) fn page_move(&self, page: PageNumber) -> Option<&PageMoveRecord> {
        match self.page_moves.get(&page) {
            Some(changed) => changed.as_ref(),
            None => self.state.page_moves.get(&page),
        }
    }

    pub(crate) fn set_page_move(&mut self, page: PageNumber, going: Option<PageMoveRecord>) {
        self.page_moves.insert(page, going);
    }

    /// The object that has the name.
    pub(crate) fn name_owner(&self, name: &ObjectName) -> Option<ObjectId> {
        let claims = |id: &ObjectId| {
            self.object(*id).is_some_and(|object| object.claims_name() && object.name == *name)
        };
        self.state.names.get(name).copied().filter(claims)
    }

    /// Up to which epoch the name of an object was known to the node that brought it back; of others nothing.
    pub(crate) fn claim(&self, id: ObjectId) -> Option<Epoch> {
        match self.claims.get(&id) {
            Some(changed) => *changed,
            None => self.state.claims.get(&id).copied(),
        }
    }

    pub(crate) fn set_claim(&mut self, id: ObjectId, as_of: Epoch) {
        self.claims.insert(id, Some(as_of));
    }

    pub(crate) fn lease(&self, node: NodeId) -> Option<&Lease> {
        match self.lease_changes.get(&node) {
            Some(changed) => changed.as_ref(),
            None => self.leases.get(&node),
        }
    }

    pub(crate) fn set_lease(&mut self, node: NodeId, lease: Option<Lease>) {
        self.lease_changes.insert(node, lease);
    }

    pub(crate) fn renew_lease(&mut self, node: NodeId, used_bytes: u64) {
        let until_ms = self.now_ms.saturating_add(self.settings.lease_ms);
        let heard = self.lease(node).map_or(Heard::Presence, |lease| lease.heard.max(Heard::Presence));
        self.set_lease(node, Some(Lease { until_ms, used_bytes, heard }));
    }

    /// A member has said all that it holds.
    pub(crate) fn has_told(&mut self, node: NodeId) {
        if let Some(lease) = self.lease(node).copied() {
            self.set_lease(node, Some(Lease { heard: Heard::Holdings, ..lease }));
        }
    }

    /// Whether a member serves, and holds what is recorded of it. That it serves may stand in a store that is older than the pool, of a
    /// member that is gone since; and one that is there may have let go of copies since. So it must have been heard of, and where the store is known to
    /// have been older, it must have said what it holds.
    pub(crate) fn is_sure_of(&self, node: NodeId) -> bool {
        let has_gone_back = !self.doubted.is_empty() || self.doubted_epochs.is_some();
        let needed = if has_gone_back { Heard::Holdings } else { Heard::Presence };
        self.is_up(node) && self.lease(node).is_some_and(|lease| lease.heard >= needed)
    }

    /// Leases as they were before this draft.
    pub(crate) fn old_leases(&self) -> impl Iterator<Item = (NodeId, Lease)> + use<'a> {
        self.leases.iter().map(|(node, lease)| (*node, *lease))
    }

    pub(crate) fn next_object(&mut self) -> ObjectId {
        let id = ObjectId(self.meta.next_object);
        self.meta.next_object += 1;
        id
    }

    pub(crate) fn next_epoch(&mut self) -> Epoch {
        let epoch = Epoch(self.meta.next_epoch);
        self.meta.next_epoch += 1;
        epoch
    }

    /// The epoch that will be given next: all names that were given and taken away until now are of an earlier one.
    pub(crate) const fn as_of(&self) -> Epoch {
        Epoch(self.meta.next_epoch)
    }

    /// Somebody knew the names of an epoch: those that are given from here on are later. Where it was never reached here, an earlier store
    /// has told it, and more than was said of so far may be of that one.
    pub(crate) fn pass_epoch(&mut self, as_of: Epoch) {
        if as_of.0 > self.meta.next_epoch {
            self.pass(as_of);
        }
    }

    /// An earlier store has given this epoch. Copies of others that it gave come later perhaps, when this one has given new ones: those are to be told apart.
    fn pass(&mut self, given: Epoch) {
        let end = Epoch(given.0.saturating_add(EPOCHS_SKIPPED));
        let passed = Doubted { first: Epoch(self.meta.next_epoch), end };
        self.doubted_epochs = Some(self.doubted_epochs.map_or(passed, |doubted| doubted.with(passed)));
        self.meta.next_epoch = end.0;
    }

    /// Whether an earlier store has given epochs that this one has not.
    pub(crate) fn has_passed(&self) -> bool {
        self.doubted_epochs != self.state.doubted_epochs
    }

    /// Whether an earlier store may have given an epoch, and this one has not.
    pub(crate) fn is_doubted_epoch(&self, epoch: Epoch) -> bool {
        self.doubted_epochs.is_some_and(|doubted| doubted.contains(epoch))
    }

    /// Whether the number was not given yet.
    pub(crate) fn is_ungiven(&self, object: ObjectId, epoch: Epoch) -> bool {
        object.0 >= self.meta.next_object || epoch.0 >= self.meta.next_epoch
    }

    /// Pools that objects were in before.
    pub(crate) fn former(&self) -> &FormerPools {
        self.former.as_ref().unwrap_or(&self.state.former)
    }

    pub(crate) fn set_former(&mut self, former: FormerPools) {
        self.former = Some(former);
    }

    /// Whether an earlier store may have given the number of an object, and this one has not.
    pub(crate) fn is_doubted(&self, object: ObjectId) -> bool {
        self.doubted.contains(object)
    }

    /// Puts an object in doubt, with all numbers before it that were not given: none of them is given again, and neither is the epoch. Of one
    /// that is known here the number is in no doubt.
    pub(crate) fn doubt(&mut self, object: ObjectId, epoch: Epoch) {
        if self.object(object).is_none() {
            let end = ObjectId(object.0.saturating_add(1));
            self.doubted.to_mut().add(Doubted { first: object.min(ObjectId(self.meta.next_object)), end });
            self.meta.next_object = self.meta.next_object.max(end.0);
        }
        if epoch.0 >= self.meta.next_epoch {
            self.pass(epoch);
        }
    }

    /// Doubts the epochs from here on where an earlier store is heard of for the first time, or once more, although no epoch tells it: it may
    /// have given any of them, and what there is by now is of a time before that was known.
    pub(crate) fn doubt_epochs(&mut self, is_once_more: bool) {
        let next = self.meta.next_epoch;
        if self.doubted_epochs.is_none_or(|doubted| is_once_more && doubted.end.0 < next) {
            self.pass(Epoch(next));
        }
    }

    /// How to reach the homes of an object for which the condition holds.
    pub(crate) fn home_infos(
        &self,
        object: &ObjectRecord,
        wanted: impl Fn(&crate::Home) -> bool,
    ) -> Vec<HomeInfo> {
        let homes = object.homes.iter().filter(|home| wanted(home));
        let infos = homes.filter_map(|home| {
            let member = self.member(home.node)?;
            Some(HomeInfo {
                node: home.node,
                rack: member.rack.clone(),
                address: member.address.clone(),
                epoch: home.epoch,
            })
        });
        infos.collect()
    }

    /// Starts to remove an object: the name is free at once, bytes and addresses when the homes have let go.
    pub(crate) fn retire(&mut self, id: ObjectId) {
        let Some(object) = self.object(id).cloned() else { return };
        let pages = object.pages();
        self.set_or_drop(id, ObjectRecord { stage: Stage::Removing { pages }, ..object });
    }

    /// Ends a put with which nobody goes on. One that was going on when an older store was copied may have ended well since, and somebody was told
    /// so: its homes have it whole then.
    pub(crate) fn give_up(&mut self, id: ObjectId) {
        let is_put = |object: &ObjectRecord| matches!(object.stage, Stage::Writing { .. });
        if self.object(id).is_some_and(|object| is_put(object) && self.is_of_before(object)) {
            self.forget_in_doubt(id);
        } else {
            self.retire(id);
        }
    }

    /// Whether an object has a home of a time before a newer store than this one was heard of.
    pub(crate) fn is_of_before(&self, object: &ObjectRecord) -> bool {
        let end = self.doubted_epochs.map(|doubted| doubted.end);
        end.is_some_and(|end| object.homes.iter().any(|home| home.epoch < end))
    }

    /// Knows nothing of a put any more but its number: a home that has it whole is heard of as one with an object of a newer store, and one that has
    /// a part of it drops that when it joins.
    pub(crate) fn forget_in_doubt(&mut self, id: ObjectId) {
        self.set_object(id, None);
        self.doubt(id, Epoch(0));
    }

    /// Drops one home, and the object with it if nothing is left to wait for.
    pub(crate) fn drop_home(&mut self, id: ObjectId, node: NodeId) {
        let Some(mut object) = self.object(id).cloned() else { return };
        object.homes.retain(|home| home.node != node);
        self.lose_part(id, node);
        self.set_or_drop(id, object);
    }

    fn set_or_drop(&mut self, id: ObjectId, object: ObjectRecord) {
        let over = matches!(object.stage, Stage::Removing { .. }) && object.homes.is_empty();
        if over {
            self.drop_pages(id, &object);
        }
        self.set_object(id, (!over).then_some(object));
    }

    /// The changes in the order in which they are stored and committed: what goes before what comes, and the answer behind both, if it is kept.
    pub(crate) fn finish(mut self, answer: Option<Change>) -> (Vec<Change>, BTreeMap<NodeId, Option<Lease>>) {
        let has_names = self.has_names();
        let mut gone = self.changed_claims();
        let mut come = Vec::new();
        let is_gone = |node: &NodeId| matches!(self.members.get(node), Some(None));
        let unasked = self.state.answers.keys().filter(|(node, _)| is_gone(node));
        gone.extend(unasked.map(|slot| Change::Answer(*slot, None)));
        for (node, member) in self.members {
            if self.state.members.get(&node) != member.as_ref() {
                come.push(Change::Member(node, member));
            }
        }
        for (id, object) in self.objects {
            let old = self.state.objects.get(&id);
            if old == object.as_ref() {
                continue;
            }
            let (old_name, name) = (claimed_name(old), claimed_name(object.as_ref()));
            if old_name != name {
                gone.extend(old_name.map(|name| Change::Name(name.clone(), None)));
                come.extend(name.map(|name| Change::Name(name.clone(), Some(id))));
            }
            let (old_pages, pages) = (owned_pages(id, old), owned_pages(id, object.as_ref()));
            if old_pages != pages {
                gone.extend(old_pages.map(|(first, _)| Change::Pages(first, None)));
                come.extend(pages.map(|(first, owner)| Change::Pages(first, Some(owner))));
            }
            come.push(Change::Object(id, object));
        }
        for (id, region) in self.regions {
            if self.state.regions.get(&id) != region.as_ref() {
                come.push(Change::Region(id, region));
            }
        }
        for (page, home) in self.page_homes {
            if self.state.page_homes.get(&page) != home.as_ref() {
                come.push(Change::PageHome(page, home));
            }
        }
        for (page, going) in self.page_moves {
            if self.state.page_moves.get(&page) != going.as_ref() {
                come.push(Change::PageMove(page, going));
            }
        }
        gone.append(&mut come);
        gone.extend(answer);
        let former = self.former.as_ref().unwrap_or(&self.state.former);
        self.meta.format = format_of(&self.doubted, self.doubted_epochs, former, has_names);
        let (differs, epochs_differ) =
            (*self.doubted != self.state.doubted, self.doubted_epochs != self.state.doubted_epochs);
        let former_differs = *former != self.state.former;
        let changes = !gone.is_empty() || differs || epochs_differ || former_differs;
        // With the first change all three go under the keys that they have by now.
        let moves = changes && self.state.outdated;
        if moves {
            gone.extend(OUTDATED_KEYS.map(Change::Outdated));
        }
        if differs || (moves && !self.doubted.is_empty()) {
            gone.push(Change::Doubted(self.doubted.into_owned()));
        }
        gone.extend(self.doubted_epochs.filter(|_| epochs_differ || moves).map(Change::DoubtedEpochs));
        if former_differs || (moves && !former.is_empty()) {
            gone.push(Change::Former(former.clone()));
        }
        if self.meta != self.state.meta || (!gone.is_empty() && !self.state.stored) {
            gone.push(Change::Meta(self.meta));
        }
        (gone, self.lease_changes)
    }

    /// What is known of names that were claimed: nothing any more where the object is gone, or somebody has named it since.
    fn changed_claims(&mut self) -> Vec<Change> {
        for (id, object) in &self.objects {
            let Some(old) = self.state.objects.get(id).filter(|_| self.state.claims.contains_key(id)) else {
                continue;
            };
            let is_as_before =
                object.as_ref().is_some_and(|object| object.claims_name() && object.name == old.name);
            if !is_as_before {
                self.claims.entry(*id).or_insert(None);
            }
        }
        let claims = std::mem::take(&mut self.claims).into_iter();
        let changed = claims.filter(|(id, as_of)| self.state.claims.get(id) != as_of.as_ref());
        changed.map(|(id, as_of)| Change::Claim(id, as_of)).collect()
    }
}

fn claimed_name(object: Option<&ObjectRecord>) -> Option<&ObjectName> {
    object.filter(|object| object.claims_name()).map(|object| &object.name)
}

fn owned_pages(id: ObjectId, object: Option<&ObjectRecord>) -> Option<(PageNumber, PageRecord)> {
    let pages = object?.pages()?;
    Some((pages.first(), PageRecord { count: pages.count(), object: id }))
}
