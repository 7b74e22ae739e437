//! The directory itself: plan a command, make its mutations durable, commit it.

use crate::draft::Draft;
use crate::error::{Contradiction, DirectoryError, RecoverError};
use crate::names::Renamed;
use crate::record::{AnswerRecord, Change, META_KEY, MemberState};
use crate::state::State;
use crate::{Command, Mutation, Record, Reply, RequestId, Table};
use hinterland_types::{Epoch, NodeId};
use std::collections::BTreeMap;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Milliseconds that a member's lease lasts after its last heartbeat.
    pub lease_ms: u64,
}

impl Default for Settings {
    /// Three seconds: three heartbeats, so that two may be lost.
    fn default() -> Self {
        Self { lease_ms: 3000 }
    }
}

impl Settings {
    /// How often to send a [`Command::Tick`], in milliseconds: a quarter of a lease. A directory that gets
    /// no command for half a lease takes it that it was stopped itself, and lets no lease run out for it.
    pub const fn tick_ms(&self) -> u64 {
        self.lease_ms / 4
    }
}

/// A member's lease: kept in memory only, because a restarted directory grants everybody a whole one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// When it runs out, in milliseconds of the time that commands come with.
    pub until_ms: u64,
    /// Bytes in use there, as the last heartbeat said.
    pub used_bytes: u64,
    /// What the member has said since this directory was read from its store.
    pub heard: Heard,
}

/// What a member has said since the directory was read from its store, which may be older than the member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Heard {
    /// Nothing: that it is up stands in the store.
    Nothing,
    /// That it is there.
    Presence,
    /// All that it holds.
    Holdings,
}

/// The answer to a command, and what must be durable before anybody sees it.
#[derive(Debug)]
#[must_use = "a plan has no effect until it is committed"]
pub struct Plan {
    revision: u64,
    now_ms: u64,
    slept_ms: u64,
    reply: Reply,
    changes: Vec<Change>,
    leases: BTreeMap<NodeId, Option<Lease>>,
    /// Whether an earlier store is heard of, which knew more.
    has_passed: bool,
}

impl Plan {
    /// The mutations to write in one transaction, in this order; often none.
    pub fn mutations(&self) -> Vec<Mutation> {
        self.changes.iter().map(Change::mutation).collect()
    }

    /// Whether nothing has to be written before [`Directory::commit`].
    pub fn is_volatile(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Maps pages to objects, objects to homes and names to objects, and knows the members by lease.
#[derive(Clone, Debug)]
pub struct Directory {
    settings: Settings,
    state: State,
    leases: BTreeMap<NodeId, Lease>,
    renamed: Renamed,
    revision: u64,
    last_ms: u64,
}

impl Directory {
    /// Checks the format of a store by the one record that says it: of a later release's store nothing may be changed.
    ///
    /// # Errors
    /// [`RecoverError::OtherFormat`], or that the record cannot be read.
    pub fn check_format(meta: &Record) -> Result<(), RecoverError> {
        crate::recover::check_format_of(meta)
    }

    /// The table and the key of that record.
    pub const fn format_key() -> (Table, &'static [u8]) {
        (Table::Meta, META_KEY)
    }

    /// Rebuilds the directory from all records of the store; none is an empty pool.
    ///
    /// Every member that was not down is granted a whole lease from `now_ms` (milliseconds of a clock that
    /// never goes back), because nobody could renew one while the directory was away.
    ///
    /// # Errors
    /// [`RecoverError`] if a record cannot be read, has another format, or contradicts another.
    pub fn recover(
        settings: Settings,
        now_ms: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RecoverError> {
        let state = crate::recover::recover(records)?;
        let until_ms = now_ms.saturating_add(settings.lease_ms);
        let alive = state.members.iter().filter(|(_, member)| member.state != MemberState::Down);
        let leases = alive.map(|(node, _)| (*node, unheard(until_ms))).collect();
        let renamed = Renamed::since(Epoch(state.meta.next_epoch));
        Ok(Self { settings, state, leases, renamed, revision: 0, last_ms: now_ms })
    }

    /// Works out what a command does, and changes nothing.
    ///
    /// Write [`Plan::mutations`] in one transaction, then [`Directory::commit`]. If the store fails, drop
    /// the plan: it is as if the command had never come. `now_ms` is in milliseconds; a time before that
    /// of an earlier command counts as that one.
    ///
    /// # Errors
    /// [`DirectoryError`] if the command is refused.
    pub fn plan(&self, now_ms: u64, command: &Command) -> Result<Plan, DirectoryError> {
        self.plan_with(now_ms, command, |_| None)
    }

    /// The same with a change that keeps the answer.
    fn plan_with(
        &self,
        now_ms: u64,
        command: &Command,
        keep: impl FnOnce(&Reply) -> Option<Change>,
    ) -> Result<Plan, DirectoryError> {
        let now_ms = now_ms.max(self.last_ms);
        let slept_ms = self.slept_ms(now_ms);
        let extended;
        let leases = if slept_ms == 0 {
            &self.leases
        } else {
            extended = extend(self.leases.clone(), slept_ms);
            &extended
        };
        let mut draft = Draft::new(&self.state, &self.settings, leases, &self.renamed, now_ms);
        let down = draft.expire();
        let reply = draft.execute(command, down)?;
        let has_passed = draft.has_passed();
        let (changes, leases) = draft.finish(keep(&reply));
        Ok(Plan { revision: self.revision, now_ms, slept_ms, reply, changes, leases, has_passed })
    }

    /// The same for a request with a number: asked again, it changes nothing and gives the answer of the first time.
    ///
    /// # Errors
    /// [`DirectoryError`] if the command is refused, or a later request of its slot has come before.
    pub fn plan_once(&self, now_ms: u64, id: RequestId, command: &Command) -> Result<Plan, DirectoryError> {
        let slot = (id.node, id.slot);
        let asked = (id.incarnation, id.number);
        self.check_life(id)?;
        match self.state.answers.get(&slot) {
            Some(last) if (last.incarnation, last.number) == asked => {
                let plan = self.plan(now_ms, &Command::Tick)?;
                return Ok(Plan { reply: last.reply.clone(), ..plan });
            }
            Some(last) if (last.incarnation, last.number) > asked => {
                return Err(DirectoryError::OvertakenRequest { node: id.node });
            }
            Some(_) | None => {}
        }
        self.plan_with(now_ms, command, |reply| {
            let (incarnation, number) = asked;
            Some(Change::Answer(slot, Some(AnswerRecord { incarnation, number, reply: reply.clone() })))
        })
    }

    /// Refuses a request of a life that is neither the present one of its node, nor the next, which is about to join: all later
    /// requests of the slot would be older than it for ever.
    fn check_life(&self, id: RequestId) -> Result<(), DirectoryError> {
        let (node, given) = (id.node, id.incarnation);
        let Some(member) = self.state.members.get(&node) else {
            return Err(DirectoryError::UnknownNode { node });
        };
        let known = member.incarnation;
        if given <= known.saturating_add(1) {
            return Ok(());
        }
        Err(DirectoryError::StaleIncarnation { node, given, known })
    }

    /// Makes a plan visible, after its mutations have become durable, and gives the answer.
    ///
    /// # Panics
    /// If another plan was committed after this one was made: plans are used one at a time.
    pub fn commit(&mut self, plan: Plan) -> Reply {
        assert_eq!(plan.revision, self.revision, "a plan is committed before the next one is made");
        self.revision += 1;
        self.last_ms = plan.now_ms;
        if plan.slept_ms > 0 {
            self.leases = extend(std::mem::take(&mut self.leases), plan.slept_ms);
        }
        for (node, lease) in plan.leases {
            match lease {
                Some(lease) => self.leases.insert(node, lease),
                None => self.leases.remove(&node),
            };
        }
        let renamed = self.state.renamed_by(&plan.changes);
        self.state.commit(plan.changes);
        let as_of = Epoch(self.state.meta.next_epoch);
        if plan.has_passed {
            // Nodes may know names that the earlier store gave: each is told all of them.
            self.renamed = Renamed::since(as_of);
        }
        renamed.into_iter().for_each(|object| self.renamed.add(as_of, object));
        plan.reply
    }

    /// Plans and commits at once, for a store that cannot fail (tests, simulators).
    ///
    /// # Errors
    /// [`DirectoryError`] if the command is refused.
    pub fn apply(
        &mut self,
        now_ms: u64,
        command: &Command,
    ) -> Result<(Reply, Vec<Mutation>), DirectoryError> {
        let plan = self.plan(now_ms, command)?;
        let mutations = plan.mutations();
        Ok((self.commit(plan), mutations))
    }

    /// How many members there are, whatever their state.
    pub fn member_count(&self) -> usize {
        self.state.members.len()
    }

    /// Goes on with the leases of another one that was stopped on the way, in place of whole ones: its clock was the same.
    #[must_use]
    pub fn with_leases_of(mut self, other: &Self) -> Self {
        self.leases.clone_from(&other.leases);
        // What was heard may be among what was not written.
        self.leases.values_mut().for_each(|lease| lease.heard = Heard::Nothing);
        // Who is down in the store has no lease, and who is not has one.
        let until_ms = other.last_ms.saturating_add(self.settings.lease_ms);
        self.leases.retain(|node, _| {
            self.state.members.get(node).is_some_and(|member| member.state != MemberState::Down)
        });
        for (node, member) in &self.state.members {
            if member.state != MemberState::Down {
                self.leases.entry(*node).or_insert(unheard(until_ms));
            }
        }
        self.last_ms = other.last_ms;
        self
    }

    /// Checks every rule between records, sums and indexes; costs as much as a recovery.
    ///
    /// # Errors
    /// The first [`Contradiction`], which is always a bug.
    pub fn check(&self) -> Result<(), Contradiction> {
        self.state.check()
    }

    /// Whether both hold the same durable state; leases do not count.
    pub fn same_records(&self, other: &Self) -> bool {
        self.state == other.state
    }

    /// Time that leases must not lose because the directory itself did not run.
    ///
    /// A directory that was stopped finds all heartbeats of that time unread: half a lease without any
    /// command, which cannot be while a member or a tick comes, does not count against the members.
    fn slept_ms(&self, now_ms: u64) -> u64 {
        let gap_ms = now_ms - self.last_ms;
        if gap_ms > self.settings.lease_ms / 2 { gap_ms } else { 0 }
    }
}

/// The lease of a member that stands in the store as one that is not down.
const fn unheard(until_ms: u64) -> Lease {
    Lease { until_ms, used_bytes: 0, heard: Heard::Nothing }
}

fn extend(mut leases: BTreeMap<NodeId, Lease>, slept_ms: u64) -> BTreeMap<NodeId, Lease> {
    for lease in leases.values_mut() {
        lease.until_ms = lease.until_ms.saturating_add(slept_ms);
    }
    leases
}

impl Draft<'_> {
    fn execute(&mut self, command: &Command, down: Vec<NodeId>) -> Result<Reply, DirectoryError> {
        match command {
            Command::Join { node, rack, address, capacity_bytes, incarnation, name } => {
                self.join(*node, rack, address, *capacity_bytes, *incarnation, name.as_ref())
            }
            Command::Heartbeat { node, incarnation, used_bytes } => {
                self.heartbeat(*node, *incarnation, *used_bytes)
            }
            Command::NodeObjects { node, incarnation, after, objects, more } => {
                self.node_objects(*node, *incarnation, *after, objects, *more)
            }
            Command::Adopt { node, incarnation, found, former } => {
                self.adopt(*node, *incarnation, found, former)
            }
            Command::Leave { node, incarnation, departure } => self.leave(*node, *incarnation, *departure),
            Command::Reserve { name, size, copies, placement, writer } => {
                self.reserve(name, *size, *copies, placement, *writer)
            }
            Command::Grow { object, bytes } => self.grow(*object, *bytes),
            Command::Seal { object, size, digest, homes } => self.seal(*object, *size, *digest, homes),
            Command::Abort { object } => self.abort(*object),
            Command::CreateRegion { name, size, placement, local } => {
                self.create_region(name, *size, placement, *local)
            }
            Command::MakeRegion { name, size, placement, writer } => {
                self.make_region(name, *size, placement, *writer)
            }
            Command::ShowRegion { object } => self.show_region(*object),
            Command::Remove { name, object } => self.remove(name, *object),
            Command::Forget { object, node, incarnation, epoch } => {
                self.forget(*object, *node, *incarnation, *epoch)
            }
            Command::RepairList { after, limit } => Ok(self.repair_list(*after, *limit)),
            Command::AddReplica { object, node, incarnation } => {
                self.add_replica(*object, *node, *incarnation)
            }
            Command::ReplicaAdded { object, node, incarnation, epoch, digest } => {
                self.replica_added(*object, *node, *incarnation, *epoch, *digest)
            }
            Command::AddHeatCopy { object, node, incarnation } => {
                self.add_heat_copy(*object, *node, *incarnation)
            }
            Command::DropHeatCopy { object, node, incarnation, epoch } => {
                self.drop_heat_copy(*object, *node, *incarnation, *epoch)
            }
            Command::HeatCopies { node, after } => Ok(self.list_heat_copies(*node, *after)),
            Command::HeatHomes { objects } => Ok(self.heat_homes(objects)),
            Command::Lookup { name } => self.lookup(name),
            Command::LookupObject { object } => self.lookup_object(*object),
            Command::LookupPage { page } => self.lookup_page(*page),
            Command::List { prefix, after, limit } => Ok(self.list(prefix, after.as_ref(), *limit)),
            Command::BeginMove { page, to, incarnation } => self.begin_move(*page, *to, *incarnation),
            Command::CommitMove { page, to, incarnation, epoch } => {
                self.commit_move(*page, *to, *incarnation, *epoch)
            }
            Command::CancelMove { page, epoch } => self.cancel_move(*page, *epoch),
            Command::LookupHome { page } => self.lookup_home(*page),
            Command::PageHomes { object, after } => self.list_homes(*object, *after),
            Command::Members => Ok(self.list_members()),
            Command::HeldNames { node, as_of, after } => self.held_names(*node, *as_of, *after),
            Command::FormerPools => Ok(self.list_former_pools()),
            Command::ShowHeld { node, incarnation, objects } => self.show_held(*node, *incarnation, objects),
            Command::Tick => Ok(Reply::Ticked { down }),
            Command::Rename { from, to, object, target } => self.rename(from, to, *object, *target),
            Command::RenameFolder { from, to, object } => self.rename_folder(from, to, *object),
            Command::Publish { object, size, digest, homes, name } => {
                self.publish(*object, *size, *digest, homes, name)
            }
        }
    }
}
