//! A node: its life as a member, its copies, and the tasks of its sessions.

mod copying;
mod home;
mod member;
mod session;

use crate::message::{Address, HomeRequest, Message, Ticket};
use crate::truth::Fact;
use crate::{BrokenRule, Outbox};
use copying::CopyTask;
use hinterland_directory::{Command, Settings};
use hinterland_types::{Epoch, NodeId, ObjectId, RackName};
use home::Copy;
use member::Member;
pub(crate) use session::PutOrder;
use session::{GetTask, PutTask, RemoveTask};
use std::collections::BTreeMap;

/// What a node is made with.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub(crate) id: NodeId,
    pub(crate) rack: RackName,
    pub(crate) capacity_bytes: u64,
    pub(crate) settings: Settings,
    pub(crate) broken: Option<BrokenRule>,
}

/// A node with what survives its process.
pub(crate) struct Node {
    pub(crate) config: NodeConfig,
    /// Kept in the state folder.
    incarnation: u64,
    /// Counts processes: answers to an earlier one reach nobody.
    life: u64,
    copies: BTreeMap<ObjectId, Copy>,
    process: Option<Process>,
    /// The next chunk is stored wrong.
    spoils: bool,
}

/// What dies with the process.
struct Process {
    member: Member,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    /// Copies that the node no longer has and the directory may still count.
    owed: BTreeMap<u32, (ObjectId, Epoch)>,
    next_owed: u32,
}

enum Task {
    Put(Box<PutTask>),
    Get(GetTask),
    Remove(RemoveTask),
    Copy(CopyTask),
}

impl Node {
    pub(crate) fn new(config: NodeConfig) -> Self {
        Self { config, incarnation: 0, life: 0, copies: BTreeMap::new(), process: None, spoils: false }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the process; sealed copies that the memory still has are offered again.
    pub(crate) fn start(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.incarnation += 1;
        self.life += 1;
        let member = Member::new(now_ms, &self.config.settings);
        self.process = Some(Process {
            member,
            tasks: BTreeMap::new(),
            next_task: 1,
            owed: BTreeMap::new(),
            next_owed: 0,
        });
        self.send_join(now_ms, outbox);
    }

    /// The process dies, and all memory with it if `loses_memory`. Gives the sealed copies that are lost.
    pub(crate) fn crash(&mut self, loses_memory: bool) -> Vec<ObjectId> {
        self.process = None;
        self.copies.retain(|_, copy| copy.is_sealed());
        if !loses_memory {
            return Vec::new();
        }
        std::mem::take(&mut self.copies).into_keys().collect()
    }

    /// Says good-bye before it stops.
    pub(crate) fn leave(&mut self, outbox: &mut Outbox) {
        let departure = hinterland_directory::Departure::ComesBack;
        let (node, incarnation) = (self.config.id, self.incarnation);
        self.ask(0, 0, Command::Leave { node, incarnation, departure }, outbox);
    }

    /// When [`Node::wake`] has something to do.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        let process = self.process.as_ref()?;
        let tasks = process.tasks.values().filter_map(|task| match task {
            Task::Put(put) => put.deadline_ms(),
            Task::Get(get) => get.deadline_ms(),
            Task::Remove(remove) => Some(remove.deadline_ms),
            Task::Copy(copy) => copy.deadline_ms(),
        });
        tasks.chain([process.member.deadline_ms()]).min()
    }

    /// Time has passed.
    pub(crate) fn wake(&mut self, now_ms: u64, outbox: &mut Outbox) {
        if self.process.is_none() {
            return;
        }
        self.wake_member(now_ms, outbox);
        let due = |task: &Task| match task {
            Task::Put(put) => put.deadline_ms(),
            Task::Get(get) => get.deadline_ms(),
            Task::Remove(remove) => Some(remove.deadline_ms),
            Task::Copy(copy) => copy.deadline_ms(),
        };
        let tasks = self.process.iter().flat_map(|process| &process.tasks);
        let late = tasks.filter(|(_, task)| due(task).is_some_and(|deadline_ms| deadline_ms <= now_ms));
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.with_task(id, |node, task| match task {
                Task::Put(put) => put.timeout(node, id, now_ms, outbox),
                Task::Get(get) => get.timeout(node, id, now_ms, outbox),
                Task::Remove(remove) => remove.timeout(node, id, now_ms, outbox),
                Task::Copy(copy) => copy.timeout(node, id, now_ms, outbox),
            });
        }
    }

    /// A message has arrived.
    pub(crate) fn receive(&mut self, now_ms: u64, from: Address, message: Message, outbox: &mut Outbox) {
        if self.process.is_none() {
            return;
        }
        match message {
            Message::Home(ticket, request) => self.serve(from, ticket, request, outbox),
            Message::Answer(ticket, answer) if ticket.life == self.life => {
                if ticket.task == 0 {
                    return self.member_answered(now_ms, ticket.part, answer, outbox);
                }
                self.with_task(ticket.task, |node, task| match task {
                    Task::Put(put) => put.directory_answered(node, ticket, now_ms, answer, outbox),
                    Task::Get(get) => get.directory_answered(node, ticket.task, now_ms, answer, outbox),
                    Task::Remove(remove) => {
                        remove.directory_answered(node, ticket.task, now_ms, answer, outbox)
                    }
                    Task::Copy(copy) => copy.directory_answered(node, now_ms, answer, outbox),
                });
            }
            Message::HomeAnswer(ticket, answer) if ticket.life == self.life => {
                self.with_task(ticket.task, |node, task| match task {
                    Task::Put(put) => put.home_answered(node, ticket.task, now_ms, from, answer, outbox),
                    Task::Get(get) => get.home_answered(node, ticket, now_ms, answer, outbox),
                    Task::Remove(_) => true,
                    Task::Copy(copy) => copy.home_answered(node, ticket, now_ms, answer, outbox),
                });
            }
            Message::Answer(..) | Message::HomeAnswer(..) | Message::Ask(..) => {}
        }
    }

    /// Object and whether its copy here is sealed and has exactly these blocks.
    pub(crate) fn holds_good(&self, object: ObjectId, blocks: &[u32]) -> bool {
        self.copies.get(&object).is_some_and(|copy| copy.is_good(blocks))
    }

    /// All copies here: object and epoch.
    pub(crate) fn held(&self) -> Vec<(ObjectId, Epoch)> {
        self.copies.iter().map(|(object, copy)| (*object, copy.epoch)).collect()
    }

    /// A block of one of the sealed copies changes. Gives the object.
    pub(crate) fn rot(&mut self, choice: u64) -> Option<ObjectId> {
        let sealed = self.copies.iter_mut().filter(|(_, copy)| copy.is_sealed() && copy.block_count() > 0);
        let mut sealed: Vec<_> = sealed.collect();
        let place = choice as usize % sealed.len().max(1);
        let (object, copy) = sealed.get_mut(place)?;
        copy.rot(choice);
        Some(**object)
    }

    /// Runs a task's handler, which says whether the task goes on.
    fn with_task(&mut self, id: u64, handler: impl FnOnce(&mut Self, &mut Task) -> bool) {
        let Some(mut task) = self.process.as_mut().and_then(|process| process.tasks.remove(&id)) else {
            return;
        };
        let goes_on = handler(self, &mut task);
        if let Some(process) = self.process.as_mut().filter(|_| goes_on) {
            process.tasks.insert(id, task);
        }
    }

    fn add_task(&mut self, make: impl FnOnce(&mut Self, u64) -> Option<Task>) {
        let Some(process) = self.process.as_mut() else { return };
        let id = process.next_task;
        process.next_task += 1;
        let task = make(self, id);
        if let Some((process, task)) = self.process.as_mut().zip(task) {
            process.tasks.insert(id, task);
        }
    }

    fn ticket(&self, task: u64, part: u32) -> Ticket {
        Ticket { life: self.life, task, part }
    }

    fn ask(&self, task: u64, part: u32, command: Command, outbox: &mut Outbox) {
        outbox.send(Address::Directory, Message::Ask(self.ticket(task, part), command));
    }

    fn ask_home(&self, task: u64, part: u32, home: NodeId, request: HomeRequest, outbox: &mut Outbox) {
        outbox.send(Address::Node(home), Message::Home(self.ticket(task, part), request));
    }

    /// Deletes a copy because the directory does not want it.
    fn delete(&mut self, object: ObjectId, epoch: Epoch, outbox: &mut Outbox) {
        let there = self.copies.get(&object).is_some_and(|copy| copy.epoch == epoch);
        if there && self.copies.remove(&object).is_some_and(|copy| copy.is_sealed()) {
            outbox.facts.push(Fact::Deleted(object));
        }
    }
}
