//! What sessions of a node do: put, get, remove.

use super::{Node, Task};
use crate::message::{Address, HomeAnswer, HomeRequest, Ticket};
use crate::read_task::{ReadStep, ReadTask};
use crate::truth::{Fact, Found, block_of};
use crate::{BrokenRule, Outbox};
use hinterland_directory::{Command, ContentDigest, DirectoryError, Placement, Reply, Writer};
use hinterland_proto::checksum::{block_count, digest};
use hinterland_proto::machine::{
    Put, PutAction, PutEvent, PutHome, PutLimits, PutMachine, PutOutcome, PutStep,
};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{NodeId, ObjectId, ObjectName};

/// Milliseconds after which the directory is asked again.
const RETRY_MS: u64 = 400;
/// How often it is asked.
const TRIES: u32 = 8;

/// What a put is told to do.
#[derive(Clone, Debug)]
pub(crate) struct PutOrder {
    /// Number of the put in this run; its content follows from it.
    pub(crate) put: u64,
    pub(crate) name: ObjectName,
    pub(crate) bytes: u64,
    pub(crate) stream: bool,
    pub(crate) copies: u8,
    pub(crate) placement: Placement,
}

pub(crate) struct PutTask {
    order: PutOrder,
    machine: PutMachine,
    writer: Writer,
    homes: Vec<PutHome>,
    offered: Option<u64>,
    told: bool,
    broken: Option<BrokenRule>,
}

fn put_limits() -> PutLimits {
    let chunk_bytes = 2 * CHECKSUM_BLOCK_BYTES;
    PutLimits { chunk_bytes, window: 2, timeout_ms: 400, tries: 4, grow_bytes: 3 * CHECKSUM_BLOCK_BYTES }
}

impl PutTask {
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.machine.deadline_ms()
    }

    pub(super) fn timeout(&mut self, node: &mut Node, id: u64, now_ms: u64, outbox: &mut Outbox) -> bool {
        self.happened(node, id, now_ms, PutEvent::Timeout, outbox)
    }

    pub(super) fn directory_answered(
        &mut self,
        node: &mut Node,
        ticket: Ticket,
        now_ms: u64,
        answer: Result<Reply, DirectoryError>,
        outbox: &mut Outbox,
    ) -> bool {
        let event = match answer {
            Ok(Reply::Reserved { object, homes }) => {
                outbox.facts.push(Fact::Reserved(self.order.put, object));
                let homes = homes.iter().map(|home| PutHome { node: home.node, epoch: home.epoch });
                self.homes = homes.collect();
                PutEvent::Reserved { object, homes: self.homes.clone() }
            }
            Ok(Reply::Grown { bytes }) => PutEvent::Grown { bytes },
            Ok(Reply::Sealed { .. }) => PutEvent::Committed,
            Ok(Reply::Aborted { .. }) => PutEvent::Aborted,
            Ok(Reply::AlreadySealed { .. }) => PutEvent::AlreadySealed,
            Ok(_) => return true,
            Err(error) => {
                let steps = [PutStep::Reserve, PutStep::Grow, PutStep::Commit, PutStep::Abort];
                PutEvent::Refused { step: steps[ticket.part as usize % 4], reason: error.to_string() }
            }
        };
        self.happened(node, ticket.task, now_ms, event, outbox)
    }

    pub(super) fn home_answered(
        &mut self,
        node: &mut Node,
        id: u64,
        now_ms: u64,
        from: Address,
        answer: HomeAnswer,
        outbox: &mut Outbox,
    ) -> bool {
        let Address::Node(home) = from else { return true };
        let event = match answer {
            HomeAnswer::Opened => PutEvent::Opened { node: home },
            HomeAnswer::Wrote(offset) => PutEvent::Wrote { node: home, offset },
            HomeAnswer::Sealed(digest) => PutEvent::HomeSealed { node: home, digest },
            HomeAnswer::Aborted => PutEvent::HomeAborted { node: home },
            HomeAnswer::Refused(reason) => PutEvent::HomeRefused { node: home, reason },
            HomeAnswer::Sums(_) | HomeAnswer::Blocks(_) => return true,
        };
        self.happened(node, id, now_ms, event, outbox)
    }

    /// Feeds the machine and does what it says; gives whether the put goes on.
    fn happened(
        &mut self,
        node: &mut Node,
        id: u64,
        now_ms: u64,
        event: PutEvent,
        outbox: &mut Outbox,
    ) -> bool {
        self.machine.handle(now_ms, event);
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.act(node, id, action, outbox);
            }
            let Some(event) = self.source() else { break };
            self.machine.handle(now_ms, event);
        }
        !self.machine.is_over()
    }

    /// The source is always ready, as far as the window goes.
    fn source(&mut self) -> Option<PutEvent> {
        let offered = self.offered?;
        if offered == self.order.bytes {
            self.offered = None;
            let blocks = (0..block_count(self.order.bytes)).map(|block| block_of(self.order.put, block));
            return Some(PutEvent::Finish { digest: digest(self.order.bytes, &blocks.collect::<Vec<_>>()) });
        }
        let end = self.machine.data_end_max().min(self.order.bytes);
        self.offered = Some(end);
        (end > offered).then_some(PutEvent::Data { end })
    }

    fn act(&mut self, node: &Node, id: u64, action: PutAction, outbox: &mut Outbox) {
        let mut ask = |part, command| node.ask(id, part, command, outbox);
        match action {
            PutAction::Reserve => ask(
                0,
                Command::Reserve {
                    name: self.order.name.clone(),
                    size: (!self.order.stream).then_some(self.order.bytes),
                    copies: self.order.copies,
                    placement: self.order.placement.clone(),
                    writer: self.writer,
                },
            ),
            PutAction::Grow { object, bytes } => ask(1, Command::Grow { object, bytes }),
            PutAction::Commit { object, size, digest, homes } => {
                ask(2, Command::Seal { object, size, digest: ContentDigest(digest), homes });
                if self.broken == Some(BrokenRule::DoneBeforeCommit) {
                    self.tell(Fact::Done(self.order.put), outbox);
                }
            }
            PutAction::Abort { object } => {
                ask(3, Command::Abort { object });
                if self.broken == Some(BrokenRule::HomesLetGoFirst) {
                    for home in &self.homes {
                        node.ask_home(id, 0, home.node, HomeRequest::Abort(object, home.epoch), outbox);
                    }
                }
            }
            PutAction::Open { object, home } => {
                node.ask_home(id, 0, home.node, HomeRequest::Open(object, home.epoch), outbox);
            }
            PutAction::Write { object, home, chunk } => {
                let numbers =
                    chunk.offset() / CHECKSUM_BLOCK_BYTES..chunk.end().div_ceil(CHECKSUM_BLOCK_BYTES);
                let blocks = numbers.map(|block| block_of(self.order.put, block)).collect();
                let request = HomeRequest::Write(object, home.epoch, chunk, blocks);
                node.ask_home(id, 0, home.node, request, outbox);
            }
            PutAction::SealHome { object, home, size } => {
                node.ask_home(id, 0, home.node, HomeRequest::Seal(object, home.epoch, size), outbox);
            }
            PutAction::AbortHome { object, home } => {
                node.ask_home(id, 0, home.node, HomeRequest::Abort(object, home.epoch), outbox);
            }
            PutAction::Release { .. } | PutAction::CommitHome { .. } => {}
            PutAction::Done { .. } => self.tell(Fact::Done(self.order.put), outbox),
            PutAction::Fail(failure) => {
                outbox.note(|| format!("put {}: {failure}", self.order.put));
                let undone = failure.outcome == PutOutcome::Undone;
                self.tell(Fact::Failed(self.order.put, undone), outbox);
            }
        }
    }

    fn tell(&mut self, fact: Fact, outbox: &mut Outbox) {
        if !std::mem::replace(&mut self.told, true) {
            outbox.facts.push(fact);
        }
    }
}

pub(crate) struct GetTask {
    name: ObjectName,
    /// What had been acknowledged under the name when the get began.
    expected: Option<u64>,
    phase: GetPhase,
}

enum GetPhase {
    Looking { tries: u32, deadline_ms: u64 },
    Reading(ReadTask),
}

impl GetTask {
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        match &self.phase {
            GetPhase::Looking { deadline_ms, .. } => Some(*deadline_ms),
            GetPhase::Reading(read) => read.deadline_ms(),
        }
    }

    fn end(&self, found: Found, outbox: &mut Outbox) -> bool {
        outbox.facts.push(Fact::Got(self.name.clone(), self.expected, found));
        false
    }

    pub(super) fn timeout(&mut self, node: &Node, id: u64, now_ms: u64, outbox: &mut Outbox) -> bool {
        match &mut self.phase {
            GetPhase::Looking { tries, .. } if *tries >= TRIES => {
                self.end(Found::Unreachable("no answer from the directory".to_owned()), outbox)
            }
            GetPhase::Looking { tries, deadline_ms } => {
                (*tries, *deadline_ms) = (*tries + 1, now_ms + RETRY_MS);
                node.ask(id, 0, Command::Lookup { name: self.name.clone() }, outbox);
                true
            }
            GetPhase::Reading(read) => {
                let steps = read.timeout(now_ms);
                self.follow(node, id, steps, outbox)
            }
        }
    }

    pub(super) fn directory_answered(
        &mut self,
        node: &Node,
        id: u64,
        now_ms: u64,
        answer: Result<Reply, DirectoryError>,
        outbox: &mut Outbox,
    ) -> bool {
        if !matches!(self.phase, GetPhase::Looking { .. }) {
            return true;
        }
        match answer {
            Ok(Reply::Object(info)) => {
                let checking = node.config.broken != Some(BrokenRule::NoChecksums);
                let (read, steps) = ReadTask::new(&info, now_ms, checking);
                self.phase = GetPhase::Reading(read);
                self.follow(node, id, steps, outbox)
            }
            Err(DirectoryError::UnknownName { .. } | DirectoryError::NameBeingWritten { .. }) => {
                self.end(Found::Nothing, outbox)
            }
            other => self.end(Found::Unreachable(format!("{other:?}")), outbox),
        }
    }

    pub(super) fn home_answered(
        &mut self,
        node: &Node,
        ticket: Ticket,
        now_ms: u64,
        answer: HomeAnswer,
        outbox: &mut Outbox,
    ) -> bool {
        let GetPhase::Reading(read) = &mut self.phase else { return true };
        let steps = read.answered(now_ms, ticket.part, answer);
        self.follow(node, ticket.task, steps, outbox)
    }

    fn follow(&mut self, node: &Node, id: u64, steps: Vec<ReadStep>, outbox: &mut Outbox) -> bool {
        let GetPhase::Reading(read) = &self.phase else { return true };
        let object = read.object;
        for step in steps {
            match step {
                ReadStep::Send(home, request, part) => node.ask_home(id, part, home, request, outbox),
                ReadStep::Done(blocks) => return self.end(Found::Content(object, blocks), outbox),
                ReadStep::Failed(reason) => return self.end(Found::Unreachable(reason), outbox),
            }
        }
        true
    }
}

pub(crate) struct RemoveTask {
    name: ObjectName,
    /// Once the name has been looked up: only this object is removed.
    object: Option<ObjectId>,
    tries: u32,
    pub(crate) deadline_ms: u64,
}

impl RemoveTask {
    pub(super) fn timeout(&mut self, node: &Node, id: u64, now_ms: u64, outbox: &mut Outbox) -> bool {
        (self.tries, self.deadline_ms) = (self.tries + 1, now_ms + RETRY_MS);
        let command = match self.object {
            Some(object) => Command::Remove { name: self.name.clone(), object: Some(object) },
            None => Command::Lookup { name: self.name.clone() },
        };
        node.ask(id, u32::from(self.object.is_some()), command, outbox);
        self.tries < TRIES
    }

    pub(super) fn directory_answered(
        &mut self,
        node: &Node,
        id: u64,
        now_ms: u64,
        answer: Result<Reply, DirectoryError>,
        outbox: &mut Outbox,
    ) -> bool {
        match (answer, self.object) {
            (Ok(Reply::Object(info)), None) => {
                self.object = Some(info.object);
                outbox.facts.push(Fact::RemoveBegun(info.object));
                self.timeout(node, id, now_ms, outbox)
            }
            (Ok(Reply::Object(_)), Some(_)) => true,
            _ => false,
        }
    }
}

impl Node {
    /// A session puts an object.
    pub(crate) fn put(&mut self, now_ms: u64, order: PutOrder, outbox: &mut Outbox) {
        let Some(process) = &self.process else { return };
        if !process.member.is_up() {
            return;
        }
        self.add_task(|node, id| {
            let put = Put { size: (!order.stream).then_some(order.bytes) };
            let machine = PutMachine::new(put, put_limits(), now_ms).ok()?;
            let writer = Writer { node: node.config.id, incarnation: node.incarnation, token: id };
            let broken = node.config.broken;
            let mut task =
                PutTask { order, machine, writer, homes: Vec::new(), offered: Some(0), told: false, broken };
            task.happened(node, id, now_ms, PutEvent::Timeout, outbox);
            Some(Task::Put(Box::new(task)))
        });
    }

    /// A session gives up one of its puts.
    pub(crate) fn cancel_a_put(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let tasks = self.process.iter().flat_map(|process| &process.tasks);
        let puts = tasks.filter(|(_, task)| matches!(task, Task::Put(_)));
        let Some(id) = puts.map(|(id, _)| *id).next() else { return };
        self.with_task(id, |node, task| match task {
            Task::Put(put) => {
                let event = PutEvent::Cancel { reason: "interrupted".to_owned() };
                put.happened(node, id, now_ms, event, outbox)
            }
            Task::Get(_) | Task::Remove(_) | Task::Copy(_) => true,
        });
    }

    /// A session reads an object and knows that this put was acknowledged.
    pub(crate) fn get(&mut self, now_ms: u64, name: ObjectName, expected: Option<u64>, outbox: &mut Outbox) {
        self.add_task(|node, id| {
            let phase = GetPhase::Looking { tries: 0, deadline_ms: now_ms };
            let mut task = GetTask { name, expected, phase };
            task.timeout(node, id, now_ms, outbox);
            Some(Task::Get(task))
        });
    }

    /// A session removes a name.
    pub(crate) fn remove(&mut self, now_ms: u64, name: ObjectName, outbox: &mut Outbox) {
        self.add_task(|node, id| {
            let mut task = RemoveTask { name, object: None, tries: 0, deadline_ms: now_ms };
            task.timeout(node, id, now_ms, outbox);
            Some(Task::Remove(task))
        });
    }

    pub(crate) fn id(&self) -> NodeId {
        self.config.id
    }
}
