//! The process that hosts the directory: its store, its crashes, and the order of writing and answering.

use crate::message::{Address, Message, Ticket};
use crate::{BrokenRule, Outbox};
use hinterland_directory::{Command, Directory, DirectoryError, Mutation, Record, Reply, Settings, Table};
use hinterland_types::NodeId;
use std::collections::BTreeMap;

/// What happens at the next command that must be made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreFault {
    /// The process dies before the write.
    CrashBefore,
    /// The process dies between the write and the answer.
    CrashAfter,
    /// The write fails, for example because the disk is full.
    WriteFails,
}

/// What became of a command.
enum Executed {
    Answer(Result<Reply, DirectoryError>),
    /// The store failed: nothing has changed and nobody is told.
    Silent,
    /// The process died.
    Died,
}

pub(crate) struct DirectoryHost {
    settings: Settings,
    store: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    /// `None` while the process is dead.
    running: Option<Directory>,
    fault: Option<StoreFault>,
    broken: Option<BrokenRule>,
    /// For the broken rule without incarnations: what each node last joined as.
    incarnations: BTreeMap<NodeId, u64>,
    /// For the broken rule that answers before it writes.
    unwritten: Vec<Mutation>,
}

impl DirectoryHost {
    pub(crate) fn new(settings: Settings, broken: Option<BrokenRule>) -> Self {
        Self {
            settings,
            store: BTreeMap::new(),
            running: None,
            fault: None,
            broken,
            incarnations: BTreeMap::new(),
            unwritten: Vec::new(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings
    }

    /// Starts the process from what the store has.
    pub(crate) fn start(&mut self, now_ms: u64) -> Result<(), String> {
        let records = self.store.iter().map(|((table, key), value)| Record {
            table: *table,
            key: key.clone(),
            value: value.clone(),
        });
        let directory =
            Directory::recover(self.settings, now_ms, records).map_err(|error| error.to_string())?;
        self.running = Some(directory);
        Ok(())
    }

    /// The process dies; what was written stays.
    pub(crate) fn crash(&mut self) {
        self.running = None;
        self.fault = None;
        self.unwritten.clear();
    }

    /// Something goes wrong at the next write.
    pub(crate) fn arm(&mut self, fault: StoreFault) {
        self.fault = Some(fault);
    }

    pub(crate) fn disarm(&mut self) {
        self.fault = None;
    }

    /// Checks the rules between all records.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.running {
            Some(directory) => directory.check().map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Asks something without the network, at the end of a run.
    pub(crate) fn ask(&self, now_ms: u64, command: &Command) -> Option<Reply> {
        let mut directory = self.running.clone()?;
        directory.apply(now_ms, command).ok().map(|(reply, _)| reply)
    }

    /// Leases run out. Gives whether the process is still alive.
    pub(crate) fn tick(&mut self, now_ms: u64) -> bool {
        !matches!(self.execute(now_ms, &Command::Tick), Executed::Died)
    }

    /// Takes a request, answers it if all goes well. Gives whether the process is still alive.
    pub(crate) fn receive(
        &mut self,
        now_ms: u64,
        from: Address,
        ticket: Ticket,
        command: &Command,
        outbox: &mut Outbox,
    ) -> bool {
        let command = self.without_fences(command);
        match self.execute(now_ms, &command) {
            Executed::Answer(answer) => outbox.send(from, Message::Answer(ticket, answer)),
            Executed::Silent => {}
            Executed::Died => return false,
        }
        true
    }

    /// Plans, writes, commits.
    fn execute(&mut self, now_ms: u64, command: &Command) -> Executed {
        let Some(directory) = self.running.as_mut() else { return Executed::Died };
        let plan = match directory.plan(now_ms, command) {
            Ok(plan) => plan,
            Err(error) => return Executed::Answer(Err(error)),
        };
        let mut mutations = plan.mutations();
        let fault = if mutations.is_empty() { None } else { self.fault.take() };
        if fault == Some(StoreFault::CrashBefore) {
            self.crash();
            return Executed::Died;
        }
        if fault == Some(StoreFault::WriteFails) {
            return Executed::Silent;
        }
        if self.broken == Some(BrokenRule::AnswerBeforeDurable) {
            // What this command changes is written with the next command, unless a crash comes before.
            std::mem::swap(&mut mutations, &mut self.unwritten);
        }
        if self.broken == Some(BrokenRule::FreesUnwritten) {
            mutations.retain(|mutation| {
                mutation.value.is_some() || !matches!(mutation.table, Table::Objects | Table::Pages)
            });
        }
        write(&mut self.store, mutations);
        if fault == Some(StoreFault::CrashAfter) {
            self.crash();
            return Executed::Died;
        }
        let reply = directory.commit(plan);
        if let Command::Join { node, incarnation, .. } = command {
            self.incarnations.insert(*node, *incarnation);
        }
        Executed::Answer(Ok(reply))
    }

    /// The command as it is, unless a rule is broken on purpose.
    fn without_fences(&self, command: &Command) -> Command {
        let mut command = command.clone();
        if self.broken == Some(BrokenRule::NoIncarnations) {
            match &mut command {
                Command::Heartbeat { node, incarnation, .. }
                | Command::NodeObjects { node, incarnation, .. }
                | Command::Leave { node, incarnation, .. }
                | Command::Forget { node, incarnation, .. }
                | Command::AddReplica { node, incarnation, .. }
                | Command::ReplicaAdded { node, incarnation, .. } => {
                    *incarnation = self.incarnations.get(node).copied().unwrap_or(*incarnation);
                }
                _ => {}
            }
        }
        if self.broken == Some(BrokenRule::RemoveByName)
            && let Command::Remove { object, .. } = &mut command
        {
            *object = None;
        }
        command
    }
}

fn write(store: &mut BTreeMap<(Table, Vec<u8>), Vec<u8>>, mutations: Vec<Mutation>) {
    for mutation in mutations {
        match mutation.value {
            Some(value) => store.insert((mutation.table, mutation.key), value),
            None => store.remove(&(mutation.table, mutation.key)),
        };
    }
}
