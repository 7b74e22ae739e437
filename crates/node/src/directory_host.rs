//! The embedded directory: the pure state machine with its store on disk (redb) and its clock.
//!
//! Commands are judged one after another, their changes gather while those before are being written, and an answer is given when all that
//! it has seen is durable: [decision](../../../docs/decisions/2026-11-28-commands-written-together.md).

use crate::fault_point;
use hinterland_directory::{
    Command, Directory, DirectoryError, Ended, Mutation, Record, RecoverError, Reign, Reply, Settings,
    Standing, Table,
};
use hinterland_os::clock;
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Why the directory cannot start or answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DirectoryHostError {
    /// The command was refused; nothing has changed.
    #[error(transparent)]
    Refused(#[from] DirectoryError),
    /// The store could not be opened, read or written.
    #[error(
        "directory store {path}: {reason} (hint: is its disk full or failing? Nothing was acknowledged that is not on it)"
    )]
    Store {
        /// The file.
        path: PathBuf,
        /// What the store said.
        reason: String,
    },
    /// The store is not as it was written.
    #[error(
        "directory store {path} is damaged: {reason} (hint: put the file back from a copy, or move it away, and start this node and then all others with --adopt: objects that it does not know are put into it again)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What the store holds is not a directory.
    #[error("directory store {path}: {source}")]
    Recover {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: RecoverError,
    },
}

/// What the store means where it panics.
const STUMBLED: &str = "its pages contradict each other";

/// The directory of a pool and its store.
pub struct DirectoryHost {
    path: PathBuf,
    settings: Settings,
    state: Mutex<State>,
    /// A batch was written, or was not.
    written: Condvar,
    /// Held for all of a command where each has a transaction of its own; else nobody takes it.
    turn: Option<Mutex<()>>,
    batches: AtomicU64,
}

struct State {
    /// Nobody else leads, so it never ends but by a batch that was not written; then another one begins.
    reign: Reign,
    /// How many there were before. An answer that waits in one of them is never given.
    ended: u64,
    /// Why the last of them ended.
    reason: String,
    /// Away while somebody writes to it, and after it has failed once, as on a full disk, until it is opened again.
    store: Option<Database>,
    /// What is on the disk, for questions, while nothing can be written there.
    readable: Option<Directory>,
    /// Why the store was not opened again, and until when that is believed: a look takes as long as the store is large.
    refused: Option<(u64, DirectoryHostError)>,
}

impl DirectoryHost {
    /// Opens the store, or makes an empty one, and rebuilds the directory.
    ///
    /// # Errors
    /// [`DirectoryHostError`] if the store cannot be used.
    pub fn open(path: &Path, settings: Settings) -> Result<Self, DirectoryHostError> {
        let (database, records) = load(path, || Ok(Database::create(path)?))?;
        let directory = recover(path, settings, records)?;
        let state = State {
            reign: Reign::new(directory, u64::MAX),
            ended: 0,
            reason: String::new(),
            store: Some(database),
            readable: None,
            refused: None,
        };
        Ok(Self {
            path: path.to_path_buf(),
            settings,
            state: Mutex::new(state),
            written: Condvar::new(),
            turn: None,
            batches: AtomicU64::new(0),
        })
    }

    /// Writes each command by itself, as an optimisation that is switched off.
    #[must_use]
    pub fn one_by_one(self) -> Self {
        Self { turn: Some(Mutex::default()), ..self }
    }

    /// Transactions that were written.
    pub fn batches(&self) -> u64 {
        // Relaxed: a figure for people.
        self.batches.load(Ordering::Relaxed)
    }

    /// Answers a command; when it returns, the answer is durable.
    ///
    /// # Errors
    /// [`DirectoryHostError`]; nothing has changed.
    pub fn apply(&self, command: &Command) -> Result<Reply, DirectoryHostError> {
        let _turn = self.turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        let mut state = self.lock();
        if state.reign.ended().is_some()
            && let Err(error) = self.open_again(&mut state)
        {
            return self.answer_from_disk(&mut state, command, error);
        }
        let reign = state.ended;
        let Some(judged) = state.reign.judge(now_ms(), None, command) else {
            return Err(self.not_written("it was given up"));
        };
        if judged.changes() {
            fault_point::reach("directory-planned");
        }
        loop {
            if state.ended != reign {
                return Err(self.not_written(&state.reason));
            }
            match state.reign.standing(now_ms(), &judged) {
                Standing::Answer => return Ok(judged.outcome?),
                Standing::Wait => state = self.write_or_wait(state),
                Standing::CutOff => return Err(self.not_written("it was given up")),
                Standing::Ended(Ended::NotWritten(reason) | Ended::Over(reason)) => {
                    return Err(self.not_written(&reason));
                }
            }
        }
    }

    /// How often time must be told to it.
    pub const fn tick_ms(&self) -> u64 {
        self.settings.tick_ms()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what has gathered, if nobody is writing; else waits until a batch is written.
    fn write_or_wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(database) = state.store.take() else {
            return self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let Some(batch) = state.reign.begin_write() else {
            state.store = Some(database);
            return state;
        };
        drop(state);
        let outcome = catch_unwind(AssertUnwindSafe(|| write_all(&database, &batch.mutations)));
        // It stumbles over some damage; those who wait must hear of it all the same.
        let outcome = outcome.unwrap_or_else(|_| Err(redb::Error::Corrupted(STUMBLED.to_owned())));
        let mut state = self.lock();
        match outcome {
            Ok(()) => {
                fault_point::reach("directory-durable");
                self.batches.fetch_add(1, Ordering::Relaxed); // a figure for people
                state.store = Some(database);
                state.reign.written();
            }
            // Whether the batch is on the disk nobody knows before it is read.
            Err(source) => {
                drop(database);
                state.reign.end(Ended::NotWritten(source.to_string()));
            }
        }
        self.written.notify_all();
        state
    }

    /// Goes on with what is on the disk, after a batch that was not written.
    fn open_again(&self, state: &mut State) -> Result<(), DirectoryHostError> {
        if let Some((until_ms, error)) = &state.refused
            && now_ms() < *until_ms
        {
            return Err(error.clone());
        }
        // A file that is gone is no reason to begin a new one.
        let loaded = load(&self.path, || Ok(Database::open(&self.path)?))
            .and_then(|(database, records)| Ok((database, recover(&self.path, self.settings, records)?)));
        let (database, stored) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                state.refused = Some((now_ms() + self.tick_ms(), error.clone()));
                return Err(error);
            }
        };
        let last = state.readable.take();
        let stored = stored.with_leases_of(last.as_ref().unwrap_or(state.reign.directory()));
        let before = std::mem::replace(&mut state.reign, Reign::new(stored, u64::MAX));
        if let Some(Ended::NotWritten(reason) | Ended::Over(reason)) = before.ended() {
            state.reason.clone_from(reason);
        }
        state.ended += 1;
        (state.store, state.refused) = (Some(database), None);
        Ok(())
    }

    /// Answers a question while nothing can be written, so that a full disk here keeps nobody in the pool from reading.
    fn answer_from_disk(
        &self,
        state: &mut State,
        command: &Command,
        error: DirectoryHostError,
    ) -> Result<Reply, DirectoryHostError> {
        if !only_asks(command) {
            return Err(error);
        }
        let stored = match state.readable.take() {
            Some(stored) => stored,
            None => {
                let Ok((_, records)) = load(&self.path, || copy_in_memory(&self.path)) else {
                    return Err(error);
                };
                recover(&self.path, self.settings, records)?.with_leases_of(state.reign.directory())
            }
        };
        let stored = state.readable.insert(stored);
        // Time stands still for it: that a lease has run out would have to be written.
        let plan = stored.plan(0, command)?;
        if !plan.is_volatile() {
            return Err(error);
        }
        Ok(match stored.commit(plan) {
            // What a node would drop for it must be on the disk for sure.
            Reply::Beat { lease_ms, copying, .. } => {
                Reply::Beat { lease_ms, forget: Vec::new(), copying, writing: Vec::new() }
            }
            reply => reply,
        })
    }

    fn not_written(&self, reason: &str) -> DirectoryHostError {
        DirectoryHostError::Store { path: self.path.clone(), reason: reason.to_owned() }
    }
}

fn failed(path: &Path, source: redb::Error) -> DirectoryHostError {
    let path = path.to_path_buf();
    match source {
        redb::Error::Corrupted(reason) => DirectoryHostError::Damaged { path, reason },
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            DirectoryHostError::Damaged { path, reason: error.to_string() }
        }
        source => DirectoryHostError::Store { path, reason: source.to_string() },
    }
}

/// Opens the store and reads all of it, after a look at the checksums of all its pages: the store itself believes those that were
/// closed in good order, and a changed bit would be another name, home or digest.
fn load(
    path: &Path,
    open: impl FnOnce() -> Result<Database, redb::Error>,
) -> Result<(Database, Vec<Record>), DirectoryHostError> {
    let opened = without_panic(|| {
        let mut database = open()?;
        database.check_integrity()?;
        let records = read_all(&database)?;
        Ok((database, records))
    });
    opened.map_err(|error| failed(path, error))
}

/// The store as it is on the disk. What it mends of itself as it is opened is not written there.
fn copy_in_memory(path: &Path) -> Result<Database, redb::Error> {
    let bytes = std::fs::read(path)?;
    let memory = InMemoryBackend::new();
    memory.set_len(bytes.len() as u64)?;
    memory.write(0, &bytes)?;
    Ok(Database::builder().create_with_backend(memory)?)
}

/// Whether a command is a question, or says no more than that a node is there.
const fn only_asks(command: &Command) -> bool {
    matches!(
        command,
        Command::Heartbeat { .. }
            | Command::Lookup { .. }
            | Command::LookupObject { .. }
            | Command::LookupPage { .. }
            | Command::LookupHome { .. }
            | Command::PageHomes { .. }
            | Command::List { .. }
            | Command::HeatHomes { .. }
            | Command::Members
    )
}

/// The store stumbles over some damage in place of telling of it.
fn without_panic<T>(open: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    // Two that take the hook at once would leave the silent one behind.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::panic::take_hook();
    // What it would print is about its own lines.
    std::panic::set_hook(Box::new(|_| {}));
    let opened = catch_unwind(AssertUnwindSafe(open));
    std::panic::set_hook(before);
    opened.unwrap_or_else(|_| Err(redb::Error::Corrupted(STUMBLED.to_owned())))
}

fn recover(path: &Path, settings: Settings, records: Vec<Record>) -> Result<Directory, DirectoryHostError> {
    Directory::recover(settings, now_ms(), records)
        .map_err(|source| DirectoryHostError::Recover { path: path.to_path_buf(), source })
}

fn now_ms() -> u64 {
    clock::monotonic_ns() / 1_000_000
}

const fn definition(table: Table) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(table.name())
}

fn read_all(database: &Database) -> Result<Vec<Record>, redb::Error> {
    let mut records = Vec::new();
    let transaction = database.begin_read()?;
    for table in Table::ALL {
        let opened = match transaction.open_table(definition(table)) {
            Ok(opened) => opened,
            Err(redb::TableError::TableDoesNotExist(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in opened.iter()? {
            let (key, value) = entry?;
            records.push(Record { table, key: key.value().to_vec(), value: value.value().to_vec() });
        }
    }
    Ok(records)
}

fn write_all(database: &Database, mutations: &[Mutation]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for mutation in mutations {
        let mut table = transaction.open_table(definition(mutation.table))?;
        match &mutation.value {
            Some(value) => table.insert(mutation.key.as_slice(), value.as_slice())?,
            None => table.remove(mutation.key.as_slice())?,
        };
    }
    fault_point::reach("directory-written");
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_directory::MemberInfo;
    use hinterland_types::{NodeId, RackName};

    fn join() -> Command {
        Command::Join {
            name: None,
            node: NodeId(1),
            rack: RackName::parse("a").unwrap(),
            address: "127.0.0.1:1".to_owned(),
            capacity_bytes: 1 << 30,
            incarnation: 1,
        }
    }

    /// Members that come at the same time, and how often each says so.
    const WRITERS: u64 = 16;
    const LIVES: u64 = 20;

    fn come(node: u64, incarnation: u64) -> Command {
        let Command::Join { rack, address, capacity_bytes, .. } = join() else { unreachable!() };
        Command::Join { name: None, node: NodeId(node), rack, address, capacity_bytes, incarnation }
    }

    /// All join in life after life at once; how many transactions that took. What was answered is there.
    fn transactions_of_many(name: &str, open: impl Fn(&Path) -> DirectoryHost) -> u64 {
        let folder = std::env::temp_dir().join(format!("hinterland-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("directory.redb");
        let host = open(&path);
        std::thread::scope(|scope| {
            for node in 1..=WRITERS {
                let host = &host;
                scope.spawn(move || {
                    for incarnation in 1..=LIVES {
                        let reply = host.apply(&come(node, incarnation)).unwrap();
                        assert!(matches!(reply, Reply::Joined { .. }));
                        let beat = Command::Heartbeat { node: NodeId(node), incarnation, used_bytes: 0 };
                        assert!(matches!(host.apply(&beat), Ok(Reply::Beat { .. })));
                    }
                });
            }
        });
        let batches = host.batches();
        drop(host);
        let host = DirectoryHost::open(&path, Settings::default()).unwrap();
        let Reply::Members(members) = host.apply(&Command::Members).unwrap() else { panic!() };
        assert_eq!(members.len() as u64, WRITERS);
        assert!(members.iter().all(|member| member.incarnation == LIVES));
        std::fs::remove_dir_all(&folder).unwrap();
        batches
    }

    #[test]
    fn commands_that_come_together_are_written_together() {
        let open = |path: &Path| DirectoryHost::open(path, Settings::default()).unwrap();
        let together = transactions_of_many("together", open);
        assert!(together < WRITERS * LIVES, "{together} transactions");
        let apart = transactions_of_many("apart", |path| open(path).one_by_one());
        assert_eq!(apart, WRITERS * LIVES);
    }

    #[test]
    fn a_batch_that_was_not_written_is_told_to_all_and_leases_go_on() {
        let folder = std::env::temp_dir().join(format!("hinterland-not-written-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("directory.redb");
        let host = DirectoryHost::open(&path, Settings::default()).unwrap();
        host.apply(&join()).unwrap();
        // A batch as of a disk that is full: it is known to those who wait, and nowhere else.
        let waiting = std::thread::scope(|scope| {
            let store = host.lock().store.take();
            let waits: Vec<_> = (2..6)
                .map(|node| {
                    scope.spawn({
                        let host = &host;
                        move || host.apply(&come(node, 1))
                    })
                })
                .collect();
            while host.lock().reign.directory().member_count() < 5 {
                std::thread::yield_now();
            }
            drop(store);
            host.lock().reign.end(Ended::NotWritten("no space".to_owned()));
            host.written.notify_all();
            waits.into_iter().map(|wait| wait.join().unwrap()).collect::<Vec<_>>()
        });
        for answer in waiting {
            let refused = answer.unwrap_err().to_string();
            assert!(refused.contains("no space") && refused.contains(path.to_str().unwrap()), "{refused}");
        }
        let Reply::Members(members) = host.apply(&Command::Members).unwrap() else { panic!() };
        assert_eq!(members.iter().map(|member| member.node).collect::<Vec<_>>(), [NodeId(1)]);
        assert!(matches!(host.apply(&come(7, 1)), Ok(Reply::Joined { .. })));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_on_the_disk_is_answered_while_nothing_can_be_written() {
        let folder = std::env::temp_dir().join(format!("hinterland-unwritable-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("directory.redb");
        let settings = Settings { lease_ms: 200 };
        let host = DirectoryHost::open(&path, settings).unwrap();
        host.apply(&join()).unwrap();
        // As on a failing disk, it cannot be opened: another has it.
        let store = host.lock().store.take();
        host.lock().reign.end(Ended::NotWritten("no space".to_owned()));
        let beat = Command::Heartbeat { node: NodeId(1), incarnation: 1, used_bytes: 0 };
        for _ in 0..4 {
            let Ok(Reply::Members(members)) = host.apply(&Command::Members) else { panic!("not answered") };
            assert_eq!(members.len(), 1);
            assert!(matches!(host.apply(&beat), Ok(Reply::Beat { .. })), "no lease runs out");
            let refused = host.apply(&come(2, 1)).unwrap_err();
            assert!(matches!(refused, DirectoryHostError::Store { .. }), "{refused}");
            std::thread::sleep(std::time::Duration::from_millis(settings.lease_ms / 2));
        }
        drop(store);
        std::thread::sleep(std::time::Duration::from_millis(settings.tick_ms()));
        assert!(matches!(host.apply(&beat), Ok(Reply::Beat { .. })));
        assert!(matches!(host.apply(&come(2, 1)), Ok(Reply::Joined { .. })));
        // No new store is begun in place of one that is gone.
        host.lock().store.take();
        host.lock().reign.end(Ended::NotWritten("gone".to_owned()));
        std::fs::remove_file(&path).unwrap();
        assert!(host.apply(&Command::Members).is_err());
        assert!(!path.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_was_answered_is_there_after_a_restart() {
        let folder = std::env::temp_dir().join(format!("hinterland-directory-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("directory.redb");
        let host = DirectoryHost::open(&path, Settings::default()).unwrap();
        host.apply(&join()).unwrap();
        assert!(matches!(host.apply(&join()), Err(DirectoryHostError::Refused(_)) | Ok(_)));
        drop(host);
        let host = DirectoryHost::open(&path, Settings::default()).unwrap();
        let Reply::Members(members) = host.apply(&Command::Members).unwrap() else { panic!() };
        assert_eq!(members.len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Bits that are flipped, one in each copy of a store that was closed in good order.
    const FLIPS: usize = 200;

    #[test]
    fn a_bit_that_was_changed_in_a_closed_store_is_told_and_never_believed() {
        let folder = std::env::temp_dir().join(format!("hinterland-flipped-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("directory.redb");
        let members = |host: &DirectoryHost| -> Vec<MemberInfo> {
            match host.apply(&Command::Members).unwrap() {
                // What is left of a lease depends on when it is asked.
                Reply::Members(all) => {
                    all.into_iter().map(|member| MemberInfo { lease_left_ms: None, ..member }).collect()
                }
                other => panic!("{other:?}"),
            }
        };
        let host = DirectoryHost::open(&path, Settings::default()).unwrap();
        host.apply(&join()).unwrap();
        drop(host);
        let whole = std::fs::read(&path).unwrap();
        let expected = members(&DirectoryHost::open(&path, Settings::default()).unwrap());
        let written: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] != 0).collect();
        let mut refused = 0;
        for at in written.iter().step_by(written.len().div_ceil(FLIPS)) {
            let mut damaged = whole.clone();
            damaged[*at] ^= 1 << (at % 8);
            std::fs::write(&path, damaged).unwrap();
            match DirectoryHost::open(&path, Settings::default()) {
                // What nobody uses any more.
                Ok(host) => assert_eq!(members(&host), expected, "byte {at}"),
                Err(DirectoryHostError::Damaged { .. }) => refused += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        assert!(refused > 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_store_that_is_no_store_is_refused_with_its_path() {
        let path = std::env::temp_dir().join(format!("hinterland-no-store-{}", std::process::id()));
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        let refused = DirectoryHost::open(&path, Settings::default()).err().unwrap().to_string();
        assert!(refused.contains(path.to_str().unwrap()), "{refused}");
        std::fs::remove_file(&path).unwrap();
    }
}
