//! Copies that died with a rack are made again, as `node`'s `repair` does it.

use super::cluster::{Cluster, Event, Purpose, place_of};
use super::figures::RecoveryFigures;
use super::plan::ScalePlan;
use hinterland_directory::{Command, ContentDigest, DirectoryError, REPAIRS_MAX, Reply};
use hinterland_types::{Epoch, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Shortest and longest pause between two questions while something lacks copies: `PAUSES` of the node.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How many times longer it is while nothing does.
const IDLE_PAUSES: u32 = 6;

/// What one node does about lost copies.
#[derive(Default)]
pub(super) struct Repairing {
    /// Since when each object has lacked copies, as this node has seen it.
    lacking: BTreeMap<ObjectId, Duration>,
    found: BTreeMap<ObjectId, Duration>,
    /// Copies of the present answer that are meant for this node.
    due: VecDeque<ObjectId>,
    /// The copy that is being made.
    making: Option<(ObjectId, Option<Epoch>)>,
    /// Where the list goes on behind the present answer.
    next: Option<ObjectId>,
}

/// The pause while something lacks copies.
fn pause(plan: &ScalePlan) -> Duration {
    (plan.repair.after / 4).clamp(PAUSES.0, PAUSES.1)
}

/// The pause while nothing does.
pub(super) fn idle_pause(plan: &ScalePlan) -> Duration {
    pause(plan) * IDLE_PAUSES
}

impl Cluster<'_> {
    /// The last rack is gone with its memory.
    pub(super) fn rack_dies(&mut self) {
        let rack = self.plan.racks - 1;
        let mut recovery = RecoveryFigures::default();
        for member in self.members.iter_mut().filter(|member| member.rack == rack) {
            member.alive = false;
            recovery.nodes += 1;
        }
        // Who was waiting for a page on its way to one of them goes on at the page's home.
        let pulls = self.members.iter().filter(|member| !member.alive).filter_map(|member| member.pull);
        for pull in pulls.collect::<Vec<_>>() {
            for (waiter, _) in self.frozen[pull.page as usize].take().into_iter().flatten() {
                self.members[waiter].blocked -= 1;
            }
        }
        for homes in self.objects.values() {
            let dead = homes.iter().filter(|home| !self.members[place_of(**home)].alive).count();
            if dead == homes.len() {
                recovery.objects_lost += 1;
            } else {
                recovery.copies += dead as u64;
            }
        }
        self.recovery = Some(recovery);
    }

    /// Whether the directory knows by now that the rack is gone.
    pub(super) fn notice_deaths(&mut self) {
        let (Some(died), Some(recovery)) = (self.plan.rack_dies, self.recovery.as_mut()) else { return };
        if recovery.noticed_s == 0.0 && self.host.downs() >= recovery.nodes {
            recovery.noticed_s = (self.now - died).as_secs_f64();
        }
    }

    /// Asks from the start of the list.
    pub(super) fn repair_pass(&mut self, node: usize) {
        if !self.members[node].alive {
            return;
        }
        self.members[node].repairing.found.clear();
        self.list_repairs(node, ObjectId(0));
    }

    fn list_repairs(&mut self, node: usize, after: ObjectId) {
        self.ask(node, Command::RepairList { after, limit: REPAIRS_MAX }, Purpose::RepairList);
    }

    pub(super) fn repairs_listed(&mut self, node: usize, answer: Result<Reply, DirectoryError>) {
        let (now, after) = (self.now, self.plan.repair.after);
        let member = &mut self.members[node];
        let Ok(Reply::Repairs { repairs, through, more }) = answer else {
            return self.pass_over(node);
        };
        let own = member.id;
        let repairing = &mut member.repairing;
        for repair in repairs {
            let since = *repairing.lacking.get(&repair.object).unwrap_or(&now);
            repairing.found.insert(repair.object, since);
            if now - since >= after && repair.target == Some(own) {
                repairing.due.push_back(repair.object);
            }
        }
        repairing.next = more.then_some(through);
        self.next_repair(node);
    }

    /// The next copy of the answer, or the next part of the list, or a pause.
    fn next_repair(&mut self, node: usize) {
        let member = &mut self.members[node];
        let repairing = &mut member.repairing;
        if let Some(object) = repairing.due.pop_front() {
            repairing.making = Some((object, None));
            let (id, incarnation) = (member.id, member.incarnation);
            return self.ask(
                node,
                Command::AddReplica { object, node: id, incarnation },
                Purpose::AddReplica,
            );
        }
        match repairing.next.take() {
            Some(after) => self.list_repairs(node, after),
            None => self.pass_over(node),
        }
    }

    fn pass_over(&mut self, node: usize) {
        let repairing = &mut self.members[node].repairing;
        repairing.lacking = std::mem::take(&mut repairing.found);
        let wait = if repairing.lacking.is_empty() { idle_pause(self.plan) } else { pause(self.plan) };
        self.after(wait, Event::RepairPass(node));
    }

    pub(super) fn replica_begun(&mut self, node: usize, answer: Result<Reply, DirectoryError>) {
        let Ok(Reply::Copying { epoch, object }) = answer else {
            // Another node was quicker.
            return self.next_repair(node);
        };
        self.members[node].repairing.making = Some((object.object, Some(epoch)));
        self.making += 1;
        let died = self.plan.rack_dies.unwrap_or_default();
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.begun_s.get_or_insert((self.now - died).as_secs_f64());
            recovery.making_max = recovery.making_max.max(self.making);
        }
        let bytes = object.size as f64;
        let own = Duration::from_secs_f64(bytes / self.plan.repair.bytes_per_s);
        let mut at = self.now + own;
        if let Some(home) = object.homes.first() {
            let source = &mut self.members[place_of(home.node)];
            source.network_free_at =
                self.now.max(source.network_free_at) + self.plan.costs.transfer(object.size);
            at = at.max(source.network_free_at);
        }
        self.schedule(at, Event::Fetched(node));
    }

    pub(super) fn fetched(&mut self, node: usize) {
        let member = &mut self.members[node];
        if !member.alive {
            return;
        }
        let Some((object, Some(epoch))) = member.repairing.making else { return };
        let digest = ContentDigest::default();
        member.held.insert(object, (epoch, Some(digest)));
        let (id, incarnation) = (member.id, member.incarnation);
        let command = Command::ReplicaAdded { object, node: id, incarnation, epoch, digest };
        self.ask(node, command, Purpose::ReplicaAdded);
    }

    pub(super) fn replica_added(&mut self, node: usize, is_added: bool) {
        self.making -= 1;
        let (now, bytes) = (self.now, self.plan.object_bytes);
        let repairing = &mut self.members[node].repairing;
        if let Some((object, _)) = repairing.making.take()
            && is_added
        {
            repairing.found.remove(&object);
            let died = self.plan.rack_dies.unwrap_or_default();
            if let Some(recovery) = self.recovery.as_mut() {
                recovery.copies_made += 1;
                recovery.bytes_made += bytes;
                if recovery.copies_made == recovery.copies {
                    recovery.whole_s = Some((now - died).as_secs_f64());
                }
            }
        }
        self.next_repair(node);
    }
}
