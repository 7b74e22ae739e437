//! A node as a member: joining, saying what it holds, heartbeats, letting go of what nobody wants.

use super::{Node, Task};
use crate::Outbox;
use hinterland_directory::{Command, DirectoryError, Reply, Settings};
use hinterland_types::{Epoch, ObjectId};

/// Copies in one part of a list: few, so that lists have parts.
const LIST_PART: usize = 3;
/// Milliseconds after which joining and listing are tried again.
const RETRY_MS: u64 = 400;
/// Milliseconds that a node needs to find out what it holds: from none to so many of these.
const SCAN_MS: u64 = 100;
const SCANS: u64 = 5;
/// Milliseconds between two questions which copies nobody wants.
const AUDIT_MS: u64 = 1000;
/// Milliseconds between two looks for objects with too few copies.
const REPAIR_MS: u64 = 1500;

/// What an answer is for; stands in the low bits of a ticket's part, above it a sequence number.
const JOIN: u32 = 1;
const LIST: u32 = 2;
const BEAT: u32 = 3;
const OTHER: u32 = 4;
pub(super) const REPAIRS: u32 = 5;
pub(super) const COPY: u32 = 6;
const FORGET: u32 = 7;
const KIND_BITS: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Joining,
    Listing { after: ObjectId, through: ObjectId },
    Up,
}

pub(super) struct Member {
    stage: Stage,
    retry_ms: u64,
    beat_ms: u64,
    audit_ms: u64,
    repair_ms: u64,
    /// Of the part of the list that is being sent.
    sequence: u32,
}

impl Member {
    pub(super) fn new(now_ms: u64, settings: &Settings) -> Self {
        Self {
            stage: Stage::Joining,
            retry_ms: now_ms + RETRY_MS,
            beat_ms: now_ms + settings.lease_ms / 3,
            audit_ms: now_ms + AUDIT_MS,
            repair_ms: now_ms + REPAIR_MS,
            sequence: 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    pub(super) fn deadline_ms(&self) -> u64 {
        match self.stage {
            Stage::Joining => self.retry_ms,
            Stage::Listing { .. } => self.retry_ms.min(self.beat_ms),
            Stage::Up => self.beat_ms.min(self.audit_ms).min(self.repair_ms),
        }
    }
}

impl Node {
    pub(super) fn wake_member(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let lease_ms = self.config.settings.lease_ms;
        let Some(process) = &mut self.process else { return };
        let member = &mut process.member;
        let (mut beat, mut audit, mut repair, mut retry) = (false, false, false, false);
        if member.stage == Stage::Up || matches!(member.stage, Stage::Listing { .. }) {
            beat = due(&mut member.beat_ms, now_ms, lease_ms / 3);
        }
        match member.stage {
            Stage::Up => {
                audit = due(&mut member.audit_ms, now_ms, AUDIT_MS);
                repair = due(&mut member.repair_ms, now_ms, REPAIR_MS);
            }
            Stage::Joining | Stage::Listing { .. } => retry = due(&mut member.retry_ms, now_ms, RETRY_MS),
        }
        let stage = member.stage;
        if beat {
            self.send_beat(outbox);
        }
        if audit {
            self.send_audit(outbox);
        }
        if repair {
            self.look_for_repairs(outbox);
        }
        match stage {
            Stage::Joining if retry => self.send_join(now_ms, outbox),
            Stage::Listing { after, .. } if retry => self.send_list(now_ms, after, outbox),
            _ => {}
        }
    }

    pub(super) fn send_join(&mut self, now_ms: u64, outbox: &mut Outbox) {
        if let Some(process) = &mut self.process {
            process.member.stage = Stage::Joining;
            process.member.retry_ms = now_ms + RETRY_MS;
        }
        let command = Command::Join {
            name: None,
            node: self.config.id,
            rack: self.config.rack.clone(),
            address: format!("host-{}:7400", self.config.id.0),
            capacity_bytes: self.config.capacity_bytes,
            incarnation: self.incarnation,
        };
        self.ask_as_member(JOIN, command, outbox);
    }

    /// The lease ran out, or another life is recorded: join as a new life of the same memory.
    fn rejoin(&mut self, now_ms: u64, known: u64, outbox: &mut Outbox) {
        self.incarnation = self.incarnation.max(known) + 1;
        if let Some(process) = &mut self.process {
            process.tasks.retain(|_, task| !matches!(task, Task::Copy(_)));
            process.owed.clear();
        }
        self.send_join(now_ms, outbox);
    }

    /// Reads the headers of what the memory still holds, which takes a while; then the list is sent.
    fn scan(&mut self, now_ms: u64) {
        let after = ObjectId(0);
        let scan_ms = self.incarnation % SCANS * SCAN_MS;
        if let Some(process) = &mut self.process {
            process.member.stage = Stage::Listing { after, through: after };
            process.member.retry_ms = now_ms + scan_ms;
        }
    }

    fn send_list(&mut self, now_ms: u64, after: ObjectId, outbox: &mut Outbox) {
        let mut objects = self.list(after);
        let more = objects.len() > LIST_PART;
        objects.truncate(LIST_PART);
        let through = objects.last().map_or(after, |held| held.object);
        let Some(process) = &mut self.process else { return };
        process.member.stage = Stage::Listing { after, through };
        process.member.retry_ms = now_ms + RETRY_MS;
        process.member.sequence += 1;
        let part = LIST | process.member.sequence << KIND_BITS;
        let (node, incarnation) = (self.config.id, self.incarnation);
        self.ask(0, part, Command::NodeObjects { node, incarnation, after, objects, more }, outbox);
    }

    fn send_audit(&mut self, outbox: &mut Outbox) {
        let (node, incarnation) = (self.config.id, self.incarnation);
        let objects = self.list(ObjectId(0));
        let command = Command::NodeObjects { node, incarnation, after: ObjectId(0), objects, more: false };
        self.ask_as_member(OTHER, command, outbox);
    }

    fn send_beat(&mut self, outbox: &mut Outbox) {
        let (node, incarnation) = (self.config.id, self.incarnation);
        self.ask_as_member(BEAT, Command::Heartbeat { node, incarnation, used_bytes: 0 }, outbox);
        let owed = self.process.iter().flat_map(|process| process.owed.iter());
        for (number, (object, epoch)) in owed {
            self.send_forget(*number, *object, *epoch, outbox);
        }
    }

    fn send_forget(&self, number: u32, object: ObjectId, epoch: Epoch, outbox: &mut Outbox) {
        let (node, incarnation) = (self.config.id, self.incarnation);
        let command = Command::Forget { object, node, incarnation, epoch };
        self.ask(0, FORGET | number << KIND_BITS, command, outbox);
    }

    /// Tells the directory that a copy is not here, until it has heard it: once now, then with heartbeats.
    pub(super) fn owe(&mut self, object: ObjectId, epoch: Epoch, outbox: &mut Outbox) {
        let Some(process) = &mut self.process else { return };
        if process.owed.values().any(|owed| *owed == (object, epoch)) {
            return;
        }
        let number = process.next_owed;
        process.next_owed += 1;
        process.owed.insert(number, (object, epoch));
        self.send_forget(number, object, epoch, outbox);
    }

    /// Asks as the present incarnation; an answer to an earlier one is told apart by the part.
    pub(super) fn ask_as_member(&self, kind: u32, command: Command, outbox: &mut Outbox) {
        self.ask(0, kind | (self.incarnation as u32) << KIND_BITS, command, outbox);
    }

    pub(super) fn member_answered(
        &mut self,
        now_ms: u64,
        part: u32,
        answer: Result<Reply, DirectoryError>,
        outbox: &mut Outbox,
    ) {
        let (kind, sequence) = (part & ((1 << KIND_BITS) - 1), part >> KIND_BITS);
        let Some(process) = &mut self.process else { return };
        let member = &process.member;
        let waited_for = match kind {
            LIST => sequence == member.sequence,
            FORGET => process.owed.contains_key(&sequence),
            _ => sequence == self.incarnation as u32,
        };
        if !waited_for {
            return;
        }
        match (answer, member.stage) {
            (Ok(Reply::Forgotten), _) => drop(process.owed.remove(&sequence)),
            (Ok(Reply::Joined { .. }), Stage::Joining) => self.scan(now_ms),
            (Ok(Reply::Reconciled { delete, up }), stage) => {
                self.delete_all(&delete, outbox);
                match stage {
                    Stage::Listing { .. } if kind == LIST && up => self.come_up(),
                    Stage::Listing { through, .. } if kind == LIST => self.send_list(now_ms, through, outbox),
                    _ => {}
                }
            }
            (Ok(Reply::Beat { forget, copying, writing, .. }), _) => {
                self.delete_all(&forget, outbox);
                self.check_copies(now_ms, &copying, outbox);
                self.check_puts(&writing, outbox);
            }
            (Ok(Reply::Repairs { repairs, .. }), Stage::Up) if kind == REPAIRS => {
                self.repair(&repairs, outbox)
            }
            (Ok(Reply::Copying { epoch, object }), _) if kind == COPY => {
                self.begin_copy(now_ms, epoch, &object, outbox);
            }
            (Err(DirectoryError::ListOutOfOrder { expected, .. }), Stage::Listing { .. }) if kind == LIST => {
                self.send_list(now_ms, expected, outbox);
            }
            (Err(DirectoryError::StaleIncarnation { known, .. }), _) => self.rejoin(now_ms, known, outbox),
            (Err(DirectoryError::LeaseExpired { .. } | DirectoryError::UnknownNode { .. }), _) => {
                self.rejoin(now_ms, 0, outbox);
            }
            _ => {}
        }
    }

    fn come_up(&mut self) {
        if let Some(process) = &mut self.process {
            process.member.stage = Stage::Up;
        }
    }

    fn delete_all(&mut self, delete: &[(ObjectId, Epoch)], outbox: &mut Outbox) {
        for (object, epoch) in delete {
            self.delete(*object, *epoch, outbox);
            self.owe(*object, *epoch, outbox);
        }
    }

    /// Puts that the directory waits for and nobody goes on with are given up.
    fn check_puts(&self, writing: &[(ObjectId, u64)], outbox: &mut Outbox) {
        for (object, token) in writing {
            let goes_on = self.process.as_ref().is_some_and(|process| process.tasks.contains_key(token));
            if !goes_on {
                self.ask_as_member(OTHER, Command::Abort { object: *object }, outbox);
            }
        }
    }
}

/// Whether the time has come; then the next one is set.
fn due(at_ms: &mut u64, now_ms: u64, every_ms: u64) -> bool {
    let due = *at_ms <= now_ms;
    if due {
        *at_ms = now_ms + every_ms;
    }
    due
}
