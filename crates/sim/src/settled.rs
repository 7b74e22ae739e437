//! What must hold when all faults are over and everything had time to settle.

use crate::chaos::NAMES;
use crate::world::{World, object_name};
use hinterland_directory::{Command, ObjectInfo, ObjectState, Reply, charged_bytes};
use hinterland_types::{Epoch, NodeId, ObjectId};
use std::collections::{BTreeMap, BTreeSet};

impl World {
    pub(crate) fn settled(&self, now_ms: u64) -> Result<(), String> {
        self.directory.check()?;
        let objects = self.all_objects(now_ms);
        for info in &objects {
            // A node that is gone never lets go; the room of the others is checked below.
            let waits = info.state == ObjectState::Removing && !self.gone.is_empty();
            if info.state != ObjectState::Sealed && !waits {
                return Err(format!("{} is still {:?}: it was never freed", info.object, info.state));
            }
        }
        self.homes_agree(&objects)?;
        self.room_is_free(now_ms, &objects)?;
        self.nothing_to_repair(now_ms)?;
        self.promises_kept(now_ms)
    }

    fn all_objects(&self, now_ms: u64) -> Vec<ObjectInfo> {
        // Reservations whose answer was lost have ids that no put ever heard of.
        let ids = (1..=self.largest_object + 200).map(ObjectId);
        let infos =
            ids.filter_map(|object| match self.directory.ask(now_ms, &Command::LookupObject { object }) {
                Some(Reply::Object(info)) => Some(info),
                _ => None,
            });
        infos.collect()
    }

    /// What the directory records is exactly what the nodes hold.
    fn homes_agree(&self, objects: &[ObjectInfo]) -> Result<(), String> {
        let mut recorded: BTreeSet<(NodeId, ObjectId, Epoch)> = BTreeSet::new();
        for info in objects.iter().filter(|info| info.state == ObjectState::Sealed) {
            let homes = info.homes.iter().chain(&info.homes_down);
            let there = homes.filter(|home| !self.gone.contains(&home.node));
            recorded.extend(there.map(|home| (home.node, info.object, home.epoch)));
        }
        let mut held = BTreeSet::new();
        for node in self.nodes.values() {
            held.extend(node.held().into_iter().map(|(object, epoch)| (node.id(), object, epoch)));
        }
        if let Some((node, object, _)) = held.difference(&recorded).next() {
            return Err(format!("{node} still holds {object}, which has no home there"));
        }
        match recorded.difference(&held).next() {
            Some((node, object, _)) => Err(format!("{object} has a home on {node}, which does not hold it")),
            None => Ok(()),
        }
    }

    /// Everything that was aborted or removed is free again.
    fn room_is_free(&self, now_ms: u64, objects: &[ObjectInfo]) -> Result<(), String> {
        let Some(Reply::Members(members)) = self.directory.ask(now_ms, &Command::Members) else {
            return Err("the directory is down at the end".to_owned());
        };
        let mut expected: BTreeMap<NodeId, u64> = BTreeMap::new();
        for info in objects.iter().filter(|info| info.state == ObjectState::Sealed) {
            for home in info.homes.iter().chain(&info.homes_down) {
                *expected.entry(home.node).or_default() += charged_bytes(info.size);
            }
        }
        for member in members.iter().filter(|member| !self.gone.contains(&member.node)) {
            let bytes = expected.get(&member.node).copied().unwrap_or(0);
            if member.reserved_bytes != bytes {
                let reserved = member.reserved_bytes;
                return Err(format!(
                    "{reserved} bytes are reserved on {}, objects have {bytes}",
                    member.node
                ));
            }
        }
        Ok(())
    }

    fn nothing_to_repair(&self, now_ms: u64) -> Result<(), String> {
        let command = Command::RepairList { after: ObjectId(0), limit: u32::MAX };
        let Some(Reply::Repairs { repairs, .. }) = self.directory.ask(now_ms, &command) else {
            return Err("the directory is down at the end".to_owned());
        };
        match repairs.iter().find(|repair| repair.target.is_some()) {
            Some(repair) => Err(format!("nobody repairs {repair:?}")),
            None => Ok(()),
        }
    }

    fn promises_kept(&self, now_ms: u64) -> Result<(), String> {
        for place in 0..NAMES.len() {
            let name = object_name(place);
            if !self.truth.must_be_readable(&name) {
                continue;
            }
            let answer = self.directory.ask(now_ms, &Command::Lookup { name: name.clone() });
            let Some(Reply::Object(info)) = answer else {
                return Err(format!("{name} was acknowledged but there is no such name"));
            };
            let content = self.truth.content(info.object).unwrap_or_default();
            let good = |node: NodeId| self.nodes[&node].holds_good(info.object, &content);
            if !info.homes.iter().any(|home| good(home.node)) {
                return Err(format!("{name} was acknowledged but no home has it: {info:?}"));
            }
        }
        Ok(())
    }
}
