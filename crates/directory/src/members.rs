//! Members: joining, leases, saying what they hold, leaving.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::record::{MemberRecord, MemberState, ObjectRecord, Stage};
use crate::reply::{MemberInfo, Reply};
use crate::{ADDRESS_TEXT_BYTES_MAX, Departure, FORGET_MAX, HELD_MAX, Held};
use hinterland_types::limits::{ADDRESS_BITS, NODES_MAX};
use hinterland_types::{Epoch, NodeId, NodeName, ObjectId, RackName};
use std::ops::Bound;

/// A life from here on is believed only of a node whose life before is the one before: a clock, which numbers the first, does not come so
/// far, and behind the last number there is none for a node's next start.
const INCARNATION_END: u64 = 1 << 62;

/// What to do with one recorded copy, given what the node says.
#[derive(PartialEq, Eq)]
enum Verdict {
    Keep,
    /// It is whole, although the message that says so was never heard.
    Complete,
    /// The node must delete it and say so.
    Delete,
    /// It is not there, or not to be used.
    Drop,
}

impl Draft<'_> {
    /// Lets leases run out; gives the members that are down because of it.
    pub(crate) fn expire(&mut self) -> Vec<NodeId> {
        let now_ms = self.now_ms;
        let late = self.old_leases().filter(|(_, lease)| lease.until_ms <= now_ms);
        let down: Vec<_> = late.map(|(node, _)| node).collect();
        down.iter().for_each(|node| self.take_down(*node));
        down
    }

    fn take_down(&mut self, node: NodeId) {
        self.set_member_state(node, MemberState::Down);
        self.set_lease(node, None);
        self.give_up_writes_of(node);
    }

    /// Whatever the node's sessions were writing vanishes.
    fn give_up_writes_of(&mut self, node: NodeId) {
        for id in self.state.writing.get(&node).into_iter().flatten() {
            if self.object(*id).is_some_and(|object| object.stage.writer().is_some()) {
                self.give_up(*id);
            }
        }
    }

    pub(crate) fn join(
        &mut self,
        node: NodeId,
        rack: &RackName,
        address: &str,
        capacity_bytes: u64,
        incarnation: u64,
        name: Option<&NodeName>,
    ) -> Result<Reply, DirectoryError> {
        check_address(address)?;
        if capacity_bytes >> ADDRESS_BITS > 0 {
            return Err(DirectoryError::BadCapacity { bytes: capacity_bytes });
        }
        let lease_ms = self.settings.lease_ms;
        self.check_incarnation(node, incarnation)?;
        match self.member(node) {
            Some(member) if member.incarnation == incarnation => {
                return match member.state {
                    MemberState::Down => Err(DirectoryError::LeaseExpired { node }),
                    MemberState::Joining { .. } | MemberState::Up => Ok(Reply::Joined { lease_ms }),
                };
            }
            // Nothing follows the last number, so that whatever comes is newer.
            Some(member) if member.incarnation > incarnation && member.incarnation < u64::MAX => {
                let known = member.incarnation;
                return Err(DirectoryError::StaleIncarnation { node, given: incarnation, known });
            }
            None if self.member_nodes().len() >= NODES_MAX => return Err(DirectoryError::TooManyNodes),
            Some(_) | None => {}
        }
        self.give_up_writes_of(node);
        self.give_up_moves_of(node);
        let state = MemberState::Joining { through: ObjectId(0) };
        let (rack, address, name) = (rack.clone(), address.to_owned(), name.cloned());
        self.set_member(node, Some(MemberRecord { rack, address, capacity_bytes, incarnation, state, name }));
        // What it said in its life before does not count any more.
        self.set_lease(node, None);
        self.renew_lease(node, 0);
        Ok(Reply::Joined { lease_ms })
    }

    /// Refuses the number of a life that leaves too few for those behind it.
    fn check_incarnation(&self, node: NodeId, given: u64) -> Result<(), DirectoryError> {
        let next = self.member(node).map_or(0, |member| member.incarnation).saturating_add(1);
        if given < INCARNATION_END || given <= next {
            return Ok(());
        }
        Err(DirectoryError::BadIncarnation { node, given })
    }

    /// The member, if this is its present life and its lease has not run out.
    pub(crate) fn present(&self, node: NodeId, incarnation: u64) -> Result<&MemberRecord, DirectoryError> {
        let member = self.member(node).ok_or(DirectoryError::UnknownNode { node })?;
        if member.incarnation != incarnation {
            let known = member.incarnation;
            return Err(DirectoryError::StaleIncarnation { node, given: incarnation, known });
        }
        match member.state {
            MemberState::Down => Err(DirectoryError::LeaseExpired { node }),
            MemberState::Joining { .. } | MemberState::Up => Ok(member),
        }
    }

    /// As [`Draft::present`], and it serves.
    pub(crate) fn serving(&self, node: NodeId, incarnation: u64) -> Result<&MemberRecord, DirectoryError> {
        let member = self.present(node, incarnation)?;
        if member.state == MemberState::Up { Ok(member) } else { Err(DirectoryError::NotReady { node }) }
    }

    pub(crate) fn heartbeat(
        &mut self,
        node: NodeId,
        incarnation: u64,
        used_bytes: u64,
    ) -> Result<Reply, DirectoryError> {
        self.present(node, incarnation)?;
        self.renew_lease(node, used_bytes);
        let epoch_there = |id: &ObjectId| Some((*id, self.object(*id)?.home(node)?.epoch));
        let removing = self.state.removing.get(&node).into_iter().flatten();
        let is_sure = |id: &&ObjectId| !self.object(**id).is_some_and(|object| self.is_in_question(object));
        let forget = removing.filter(is_sure).filter_map(epoch_there).take(FORGET_MAX).collect();
        let copying = self.state.copying.get(&node).into_iter().flatten();
        let copying = copying.filter_map(epoch_there).take(FORGET_MAX).collect();
        let writing = self.state.writing.get(&node).into_iter().flatten();
        let token = |id: &ObjectId| Some((*id, self.object(*id)?.stage.writer()?.token));
        let writing = writing.filter_map(token).collect();
        Ok(Reply::Beat { lease_ms: self.settings.lease_ms, forget, copying, writing })
    }

    pub(crate) fn node_objects(
        &mut self,
        node: NodeId,
        incarnation: u64,
        after: ObjectId,
        objects: &[Held],
        more: bool,
    ) -> Result<Reply, DirectoryError> {
        let state = self.present(node, incarnation)?.state;
        let expected = match state {
            MemberState::Joining { through } => through,
            MemberState::Up | MemberState::Down => after,
        };
        let ascending = objects.first().is_none_or(|first| first.object > after) && is_ascending(objects);
        if after != expected || !ascending || objects.len() > HELD_MAX || (more && objects.is_empty()) {
            return Err(DirectoryError::ListOutOfOrder { node, expected });
        }
        self.check_numbers(node, objects.iter().map(|held| (held.object, held.epoch)))?;
        if let Some(knows_less) = self.know_less(node, objects) {
            return Ok(knows_less);
        }
        if state == MemberState::Up {
            return Ok(Reply::Reconciled { delete: self.unwanted(node, objects), up: true });
        }
        let last = objects.last().map_or(after, |held| held.object);
        let through = if more { last } else { ObjectId(u64::MAX) };
        let delete = self.reconcile(node, after, through, objects);
        self.set_member_state(node, if more { MemberState::Joining { through } } else { MemberState::Up });
        if !more {
            self.has_told(node);
        }
        Ok(Reply::Reconciled { delete, up: !more })
    }

    pub(crate) fn show_held(
        &mut self,
        node: NodeId,
        incarnation: u64,
        objects: &[Held],
    ) -> Result<Reply, DirectoryError> {
        let up = self.present(node, incarnation)?.state == MemberState::Up;
        if objects.len() > HELD_MAX || !is_ascending(objects) {
            return Err(DirectoryError::ListOutOfOrder { node, expected: ObjectId(0) });
        }
        self.check_numbers(node, objects.iter().map(|held| (held.object, held.epoch)))?;
        Ok(self.know_less(node, objects).unwrap_or(Reply::Shown { up }))
    }

    /// Copies in the list that the directory does not want; nothing changes.
    fn unwanted(&self, node: NodeId, objects: &[Held]) -> Vec<(ObjectId, Epoch)> {
        let wanted = |held: &&Held| {
            let recorded = self.object(held.object).filter(|object| object.claims_name());
            recorded.and_then(|object| object.home(node)).is_some_and(|home| home.epoch == held.epoch)
        };
        objects.iter().filter(|held| !wanted(held)).map(|held| (held.object, held.epoch)).collect()
    }

    /// Compares the records behind `after` up to `through` with what the node says it holds there.
    fn reconcile(
        &mut self,
        node: NodeId,
        after: ObjectId,
        through: ObjectId,
        objects: &[Held],
    ) -> Vec<(ObjectId, Epoch)> {
        let mut delete = Vec::new();
        let recorded = self.state.held.get(&node);
        let range = (Bound::Excluded(after), Bound::Included(through));
        for id in recorded.into_iter().flat_map(|ids| ids.range(range)) {
            let held = objects.binary_search_by_key(id, |held| held.object).ok().map(|place| objects[place]);
            let Some(object) = self.object(*id) else { continue };
            match self.verdict(node, object, held) {
                Verdict::Keep => {}
                Verdict::Complete => self.complete_home(*id, node),
                Verdict::Delete => delete.extend(held.map(|held| (*id, held.epoch))),
                Verdict::Drop => {
                    delete.extend(held.map(|held| (*id, held.epoch)));
                    self.drop_home(*id, node);
                }
            }
        }
        let unknown = |held: &&Held| !recorded.is_some_and(|ids| ids.contains(&held.object));
        delete.extend(objects.iter().filter(unknown).map(|held| (held.object, held.epoch)));
        delete
    }

    fn verdict(&self, node: NodeId, object: &ObjectRecord, held: Option<Held>) -> Verdict {
        let Some(home) = object.home(node) else { return Verdict::Drop };
        let Some(held) = held.filter(|held| held.epoch == home.epoch) else { return Verdict::Drop };
        match object.stage {
            // The home had sealed its copy, the put may still succeed; a half-written copy may not.
            Stage::Writing { .. } if held.digest.is_some() => Verdict::Keep,
            Stage::Writing { .. } => Verdict::Drop,
            Stage::Sealed { digest, .. } if held.digest != Some(digest) => Verdict::Drop,
            // Nobody is charged for a heat copy, so it is never one too many.
            Stage::Sealed { .. } if !home.heat && self.has_enough_beside(object, node) => Verdict::Drop,
            Stage::Sealed { .. } if home.complete => Verdict::Keep,
            Stage::Sealed { .. } => Verdict::Complete,
            Stage::Mutable { .. } | Stage::Making { .. } => Verdict::Keep,
            Stage::Removing { .. } => Verdict::Delete,
        }
    }

    pub(crate) fn leave(
        &mut self,
        node: NodeId,
        incarnation: u64,
        departure: Departure,
    ) -> Result<Reply, DirectoryError> {
        let member = self.member(node).ok_or(DirectoryError::UnknownNode { node })?;
        if member.incarnation != incarnation {
            let known = member.incarnation;
            return Err(DirectoryError::StaleIncarnation { node, given: incarnation, known });
        }
        if departure == Departure::ComesBack {
            self.take_down(node);
            return Ok(Reply::Left { lost: Vec::new() });
        }
        if departure == Departure::Gone {
            self.check_last_copies(node)?;
        }
        self.take_down(node);
        let mut lost = Vec::new();
        for id in self.state.held.get(&node).into_iter().flatten() {
            let had_pages = self.region(*id).is_some_and(|region| region.pages_on(node) > 0);
            self.drop_home(*id, node);
            let readable = |object: &ObjectRecord| object.homes.iter().any(|home| home.complete);
            let named = self.object(*id).filter(|object| object.pages().is_some() && object.claims_name());
            if named.is_some_and(|object| had_pages || !readable(object)) {
                lost.push(*id);
            }
        }
        self.set_member(node, None);
        Ok(Reply::Left { lost })
    }

    fn check_last_copies(&self, node: NodeId) -> Result<(), DirectoryError> {
        let mut last = self.state.held.get(&node).into_iter().flatten().filter_map(|id| {
            let object =
                self.object(*id).filter(|object| object.claims_name() && object.pages().is_some())?;
            let here = object.home(node)?.complete;
            let elsewhere = object.homes.iter().any(|h| h.complete && h.node != node && self.is_up(h.node));
            let is_last = match self.region(*id) {
                // Each page of a region lies on one node.
                Some(region) => region.pages_on(node) > 0,
                None => here && !elsewhere,
            };
            is_last.then_some(&object.name)
        });
        match last.next() {
            Some(first) => {
                let first = first.clone();
                Err(DirectoryError::LastCopies { node, objects: 1 + last.count() as u64, first })
            }
            None => Ok(()),
        }
    }

    pub(crate) fn list_members(&self) -> Reply {
        let info = |node: NodeId| {
            let member = self.member(node)?;
            let lease = self.lease(node);
            Some(MemberInfo {
                node,
                rack: member.rack.clone(),
                name: member.name.clone(),
                address: member.address.clone(),
                incarnation: member.incarnation,
                state: member.state,
                capacity_bytes: member.capacity_bytes,
                reserved_bytes: self.state.reserved_bytes(node),
                used_bytes: lease.map_or(0, |lease| lease.used_bytes),
                object_count: self.state.held.get(&node).map_or(0, |objects| objects.len() as u64),
                lease_left_ms: lease.map(|lease| lease.until_ms.saturating_sub(self.now_ms)),
            })
        };
        Reply::Members(self.member_nodes().into_iter().filter_map(info).collect())
    }
}

fn is_ascending(objects: &[Held]) -> bool {
    objects.windows(2).all(|pair| pair[0].object < pair[1].object)
}

fn check_address(address: &str) -> Result<(), DirectoryError> {
    let parts = address.rsplit_once(':');
    let good = parts.is_some_and(|(host, port)| {
        !host.is_empty()
            && host.chars().all(|c| c.is_ascii_graphic())
            && port.parse().is_ok_and(|p: u16| p > 0)
    });
    if good && address.len() <= ADDRESS_TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(DirectoryError::BadAddress { address: address.chars().take(48).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Change, MetaRecord};
    use crate::{Command, Directory, Record, Settings};

    #[test]
    fn a_node_whose_last_number_was_taken_joins_again() {
        let (node, rack, address) = (NodeId(1), RackName::parse("a").unwrap(), "127.0.0.1:1".to_owned());
        let capacity_bytes = 1 << 30;
        let member = MemberRecord {
            rack: rack.clone(),
            address: address.clone(),
            capacity_bytes,
            incarnation: u64::MAX,
            state: MemberState::Down,
            name: None,
        };
        let records = [Change::Meta(MetaRecord::default()), Change::Member(node, Some(member))];
        let records = records.map(|change| change.mutation());
        let records = records.map(|m| Record { table: m.table, key: m.key, value: m.value.unwrap() });
        let mut directory = Directory::recover(Settings::default(), 0, records).unwrap();
        let mut join = |incarnation| {
            let (rack, address) = (rack.clone(), address.clone());
            directory
                .apply(0, &Command::Join { name: None, node, rack, address, capacity_bytes, incarnation })
        };
        assert!(join(5).is_ok());
        let stale = DirectoryError::StaleIncarnation { node, given: 4, known: 5 };
        assert_eq!(join(4).unwrap_err(), stale);
        assert!(join(6).is_ok());
    }
}
