//! The directory's process: commands wait in the order in which they came, and are counted by kind.

use super::costs::Costs;
use super::figures::CommandFigures;
use hinterland_directory::{Command, Directory, DirectoryError, Mutation, Reply, Settings, Table};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// A command's answer, and when it leaves the directory.
pub(super) struct Answered {
    pub(super) answer: Result<Reply, DirectoryError>,
    pub(super) at: Duration,
}

/// The real directory behind a queue of one server.
pub(super) struct Host<'run> {
    directory: Directory,
    costs: Costs,
    clock_ns: &'run dyn Fn() -> u64,
    members: u32,
    /// When it has answered all that has come so far.
    free_at: Duration,
    kinds: BTreeMap<&'static str, CommandFigures>,
    /// Sizes of the records that are in the store.
    records: HashMap<(Table, Vec<u8>), u64>,
    record_bytes: u64,
    busy: Duration,
    waited: Duration,
    waited_max: Duration,
    /// Members that are down: what the store has of their state, which stands at the end of the record.
    down: BTreeSet<Vec<u8>>,
}

impl<'run> Host<'run> {
    pub(super) fn new(directory: Directory, costs: Costs, clock_ns: &'run dyn Fn() -> u64) -> Self {
        Self {
            directory,
            costs,
            clock_ns,
            members: 0,
            free_at: Duration::ZERO,
            kinds: BTreeMap::new(),
            records: HashMap::new(),
            record_bytes: 0,
            busy: Duration::ZERO,
            waited: Duration::ZERO,
            waited_max: Duration::ZERO,
            down: BTreeSet::new(),
        }
    }

    pub(super) fn settings() -> Settings {
        Settings::default()
    }

    /// Takes a command that comes now; all that came before were taken.
    pub(super) fn take(&mut self, now: Duration, command: &Command) -> Answered {
        let begin = now.max(self.free_at);
        let waited = begin - now;
        self.waited += waited;
        self.waited_max = self.waited_max.max(waited);
        let before_ns = (self.clock_ns)();
        // A simulated time is hours at the most.
        let planned = self.directory.plan(begin.as_millis() as u64, command);
        let (answer, mutations) = match planned {
            Ok(plan) => {
                let mutations = plan.mutations();
                (Ok(self.directory.commit(plan)), mutations)
            }
            Err(error) => (Err(error), Vec::new()),
        };
        let taken_ns = (self.clock_ns)().saturating_sub(before_ns);
        let service = match &answer {
            _ if !mutations.is_empty() => self.costs.durable,
            Ok(Reply::Repairs { repairs, .. }) => {
                self.costs.volatile + self.costs.look * self.members * u32::from(!repairs.is_empty())
            }
            _ => self.costs.volatile,
        };
        self.busy += service;
        self.free_at = begin + service;
        let figures = self.kinds.entry(kind(command)).or_default();
        figures.count += 1;
        figures.refused += u64::from(answer.is_err());
        figures.durable += u64::from(!mutations.is_empty());
        figures.measured_ns += taken_ns;
        figures.written_bytes += mutations.iter().map(size).sum::<u64>();
        mutations.into_iter().for_each(|mutation| self.keep(mutation));
        Answered { answer, at: self.free_at }
    }

    /// Takes one of the set-up: at once, and nothing waits for it.
    pub(super) fn prepare(&mut self, command: &Command) -> Result<Reply, DirectoryError> {
        let answered = self.take(Duration::ZERO, command);
        self.free_at = Duration::ZERO;
        answered.answer
    }

    /// Counts from here on.
    pub(super) fn forget_counts(&mut self) {
        self.kinds.clear();
        (self.busy, self.waited, self.waited_max) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    }

    pub(super) fn kinds(&self) -> &BTreeMap<&'static str, CommandFigures> {
        &self.kinds
    }

    /// Records of the store, and their bytes.
    pub(super) fn stored(&self) -> (u64, u64) {
        (self.records.len() as u64, self.record_bytes)
    }

    /// Time at work, and time that commands have waited: in all, and the longest.
    pub(super) fn times(&self) -> (Duration, Duration, Duration) {
        (self.busy, self.waited, self.waited_max)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.directory.check().map_err(|error| error.to_string())
    }

    /// Members that the directory takes to be down.
    pub(super) fn downs(&self) -> u64 {
        self.down.len() as u64
    }

    fn keep(&mut self, mutation: Mutation) {
        if mutation.table == Table::Members {
            self.members += u32::from(!self.records.contains_key(&(mutation.table, mutation.key.clone())));
            // The state is the last field, and `Down` the third of its variants, without fields.
            if mutation.value.as_ref().is_some_and(|value| value.last() == Some(&2)) {
                self.down.insert(mutation.key.clone());
            } else {
                self.down.remove(&mutation.key);
            }
        }
        let bytes = size(&mutation);
        let key = (mutation.table, mutation.key);
        let before = match mutation.value {
            Some(_) => {
                self.record_bytes += bytes;
                self.records.insert(key, bytes)
            }
            None => self.records.remove(&key),
        };
        self.record_bytes -= before.unwrap_or(0);
    }
}

/// Bytes of key and value.
fn size(mutation: &Mutation) -> u64 {
    (mutation.key.len() + mutation.value.as_ref().map_or(0, Vec::len)) as u64
}

/// One word for the kind of a command.
fn kind(command: &Command) -> &'static str {
    match command {
        Command::Join { .. } => "join",
        Command::Heartbeat { .. } => "heartbeat",
        Command::NodeObjects { .. } => "node-objects",
        Command::Reserve { .. } => "reserve",
        Command::Seal { .. } => "seal",
        Command::CreateRegion { .. } => "create-region",
        Command::RepairList { .. } => "repair-list",
        Command::AddReplica { .. } => "add-replica",
        Command::ReplicaAdded { .. } => "replica-added",
        Command::LookupObject { .. } => "lookup-object",
        Command::BeginMove { .. } => "begin-move",
        Command::CommitMove { .. } => "commit-move",
        Command::CancelMove { .. } => "cancel-move",
        Command::LookupHome { .. } => "lookup-home",
        Command::PageHomes { .. } => "page-homes",
        Command::Tick => "tick",
        _ => "other",
    }
}
