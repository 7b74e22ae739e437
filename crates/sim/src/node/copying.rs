//! Making another copy of an object that has too few.

use super::member::{COPY, REPAIRS};
use super::{Copy, Node, Task};
use crate::Outbox;
use crate::message::{HomeAnswer, Ticket};
use crate::read_task::{ReadStep, ReadTask};
use hinterland_directory::{Command, ContentDigest, DirectoryError, ObjectInfo, Repair, Reply};
use hinterland_types::{Epoch, ObjectId};

/// Milliseconds after which the directory is told again that the copy is complete.
const RETRY_MS: u64 = 500;

pub(super) struct CopyTask {
    object: ObjectId,
    bytes: u64,
    digest: ContentDigest,
    epoch: Epoch,
    phase: Phase,
}

enum Phase {
    Reading(ReadTask),
    Telling { deadline_ms: u64 },
}

impl CopyTask {
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        match &self.phase {
            Phase::Reading(read) => read.deadline_ms(),
            Phase::Telling { deadline_ms } => Some(*deadline_ms),
        }
    }

    pub(super) fn timeout(&mut self, node: &mut Node, id: u64, now_ms: u64, outbox: &mut Outbox) -> bool {
        match &mut self.phase {
            Phase::Reading(read) => {
                let steps = read.timeout(now_ms);
                self.follow(node, id, now_ms, steps, outbox)
            }
            Phase::Telling { deadline_ms } => {
                *deadline_ms = now_ms + RETRY_MS;
                self.tell(node, id, outbox);
                true
            }
        }
    }

    fn tell(&self, node: &Node, id: u64, outbox: &mut Outbox) {
        let command = Command::ReplicaAdded {
            object: self.object,
            node: node.config.id,
            incarnation: node.incarnation,
            epoch: self.epoch,
            digest: self.digest,
        };
        node.ask(id, 0, command, outbox);
    }

    pub(super) fn home_answered(
        &mut self,
        node: &mut Node,
        ticket: Ticket,
        now_ms: u64,
        answer: HomeAnswer,
        outbox: &mut Outbox,
    ) -> bool {
        let Phase::Reading(read) = &mut self.phase else { return true };
        let steps = read.answered(now_ms, ticket.part, answer);
        self.follow(node, ticket.task, now_ms, steps, outbox)
    }

    fn follow(
        &mut self,
        node: &mut Node,
        id: u64,
        now_ms: u64,
        steps: Vec<ReadStep>,
        outbox: &mut Outbox,
    ) -> bool {
        for step in steps {
            match step {
                ReadStep::Send(home, request, part) => node.ask_home(id, part, home, request, outbox),
                ReadStep::Done(blocks) => {
                    let copy = Copy::fetched(self.epoch, self.bytes, blocks);
                    node.copies.insert(self.object, copy);
                    self.phase = Phase::Telling { deadline_ms: now_ms + RETRY_MS };
                    self.tell(node, id, outbox);
                }
                ReadStep::Failed(_) => {
                    node.owe(self.object, self.epoch, outbox);
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn directory_answered(
        &mut self,
        node: &mut Node,
        _now_ms: u64,
        answer: Result<Reply, DirectoryError>,
        outbox: &mut Outbox,
    ) -> bool {
        match answer {
            // A new life of the node says what it holds; this task ends with the old one.
            Err(
                DirectoryError::StaleIncarnation { .. }
                | DirectoryError::LeaseExpired { .. }
                | DirectoryError::NotReady { .. }
                | DirectoryError::UnknownNode { .. },
            ) => true,
            Err(_) => {
                node.delete(self.object, self.epoch, outbox);
                node.owe(self.object, self.epoch, outbox);
                false
            }
            Ok(_) => false,
        }
    }
}

impl Node {
    pub(super) fn look_for_repairs(&self, outbox: &mut Outbox) {
        self.ask_as_member(REPAIRS, Command::RepairList { after: ObjectId(0), limit: 8 }, outbox);
    }

    /// Takes on the repairs that the directory would have here.
    pub(super) fn repair(&mut self, repairs: &[Repair], outbox: &mut Outbox) {
        let here = repairs.iter().filter(|repair| repair.target == Some(self.config.id));
        let free = here.filter(|repair| !self.copies.contains_key(&repair.object));
        for repair in free {
            let (object, node, incarnation) = (repair.object, self.config.id, self.incarnation);
            self.ask_as_member(COPY, Command::AddReplica { object, node, incarnation }, outbox);
        }
    }

    pub(super) fn begin_copy(&mut self, now_ms: u64, epoch: Epoch, info: &ObjectInfo, outbox: &mut Outbox) {
        let object = info.object;
        let here = self.copies.get(&object).map(|copy| copy.epoch);
        if here == Some(epoch) || self.is_copying(object, epoch) {
            return;
        }
        let Some(process) = &mut self.process else { return };
        let later =
            |task: &Task| matches!(task, Task::Copy(copy) if copy.object == object && copy.epoch > epoch);
        if !process.member.is_up() || here.is_some() || process.tasks.values().any(later) {
            return self.owe(object, epoch, outbox);
        }
        // A copy of an earlier epoch is out of date, and must not replace this one when it is complete.
        process.tasks.retain(|_, task| !matches!(task, Task::Copy(copy) if copy.object == object));
        self.add_task(|node, id| {
            let (read, steps) = ReadTask::new(info, now_ms, true);
            let digest = info.digest.unwrap_or_default();
            let mut task = CopyTask { object, bytes: info.size, digest, epoch, phase: Phase::Reading(read) };
            task.follow(node, id, now_ms, steps, outbox).then_some(Task::Copy(task))
        });
    }

    /// Copies that the directory waits for and nobody makes: the answer that began them was lost, or they
    /// are complete and the directory has not heard it. The list may be older than what is here.
    pub(super) fn check_copies(&mut self, now_ms: u64, copying: &[(ObjectId, Epoch)], outbox: &mut Outbox) {
        for (object, epoch) in copying.iter().copied() {
            if self.is_copying(object, epoch) {
                continue;
            }
            let Some((bytes, digest)) = self.complete_copy(object, epoch) else {
                self.owe(object, epoch, outbox);
                continue;
            };
            self.add_task(|node, id| {
                let phase = Phase::Telling { deadline_ms: now_ms + RETRY_MS };
                let task = CopyTask { object, bytes, digest, epoch, phase };
                task.tell(node, id, outbox);
                Some(Task::Copy(task))
            });
        }
    }

    fn is_copying(&self, object: ObjectId, epoch: Epoch) -> bool {
        let mut tasks = self.process.iter().flat_map(|process| process.tasks.values());
        tasks.any(|task| matches!(task, Task::Copy(copy) if copy.object == object && copy.epoch == epoch))
    }
}
