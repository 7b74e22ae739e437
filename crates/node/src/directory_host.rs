//! The embedded directory: the pure state machine with its store on disk (redb) and its clock.
//!
//! A command is planned, its mutations are made durable in one transaction, and only then is it visible.

use crate::fault_point;
use hinterland_directory::{
    Command, Directory, DirectoryError, Mutation, Record, RecoverError, Reply, Settings, Table,
};
use hinterland_os::clock;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Why the directory cannot start or answer.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryHostError {
    /// The command was refused; nothing has changed.
    #[error(transparent)]
    Refused(#[from] DirectoryError),
    /// The store could not be opened, read or written.
    #[error(
        "directory store {path}: {source} (hint: is its disk full or failing? Nothing was acknowledged that is not on it)"
    )]
    Store {
        /// The file.
        path: PathBuf,
        /// What the store said.
        source: Box<redb::Error>,
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

/// The directory of a pool and its store.
pub struct DirectoryHost {
    path: PathBuf,
    /// Whose turn it is among all that may wait: hundreds of sessions may want the state at once, each until its command is on the
    /// disk, and who renews a lease must not be one of them.
    turn: Mutex<()>,
    state: Mutex<State>,
    settings: Settings,
}

struct State {
    directory: Directory,
    store: Store,
}

/// A store that failed once, as on a full disk, takes nothing more until it is opened again.
enum Store {
    Open(Database),
    /// It failed while it wrote this, of which nobody knows whether it is on the disk.
    Failed(Vec<Mutation>),
}

impl DirectoryHost {
    /// Opens the store, or makes an empty one, and rebuilds the directory.
    ///
    /// # Errors
    /// [`DirectoryHostError`] if the store cannot be used.
    pub fn open(path: &Path, settings: Settings) -> Result<Self, DirectoryHostError> {
        let (database, records) = load(path)?;
        let directory = recover(path, settings, records)?;
        let state = State { directory, store: Store::Open(database) };
        Ok(Self { path: path.to_path_buf(), turn: Mutex::default(), state: Mutex::new(state), settings })
    }

    /// Answers a command; when it returns, the answer is durable.
    ///
    /// # Errors
    /// [`DirectoryHostError`]; nothing has changed.
    pub fn apply(&self, command: &Command) -> Result<Reply, DirectoryHostError> {
        let may_wait = !matches!(command, Command::Heartbeat { .. } | Command::Tick);
        let _turn = may_wait.then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut plan = state.directory.plan(now_ms(), command)?;
        if plan.is_volatile() {
            return Ok(state.directory.commit(plan));
        }
        fault_point::reach("directory-planned");
        if let Store::Failed(doubtful) = &state.store {
            let (database, records) = load(&self.path)?;
            if doubtful.iter().all(|mutation| is_in(&records, mutation)) {
                // It had reached the disk although the store said no: what is on the disk counts.
                state.directory = recover(&self.path, self.settings, records)?;
            }
            state.store = Store::Open(database);
            plan = state.directory.plan(now_ms(), command)?;
        }
        let mutations = plan.mutations();
        if let Store::Open(database) = &state.store
            && let Err(source) = write_all(database, &mutations)
        {
            state.store = Store::Failed(mutations);
            return Err(failed(&self.path, source));
        }
        fault_point::reach("directory-durable");
        Ok(state.directory.commit(plan))
    }

    /// How often time must be told to it.
    pub const fn tick_ms(&self) -> u64 {
        self.settings.tick_ms()
    }
}

fn failed(path: &Path, source: redb::Error) -> DirectoryHostError {
    let path = path.to_path_buf();
    match source {
        redb::Error::Corrupted(reason) => DirectoryHostError::Damaged { path, reason },
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            DirectoryHostError::Damaged { path, reason: error.to_string() }
        }
        source => DirectoryHostError::Store { path, source: Box::new(source) },
    }
}

/// Opens the store and reads all of it, after a look at the checksums of all its pages: the store itself believes those that were
/// closed in good order, and a changed bit would be another name, home or digest.
fn load(path: &Path) -> Result<(Database, Vec<Record>), DirectoryHostError> {
    let opened = without_panic(|| {
        let mut database = Database::create(path)?;
        database.check_integrity()?;
        let records = read_all(&database)?;
        Ok((database, records))
    });
    opened.map_err(|error| failed(path, error))
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
    opened.unwrap_or_else(|_| Err(redb::Error::Corrupted("its pages contradict each other".to_owned())))
}

fn recover(path: &Path, settings: Settings, records: Vec<Record>) -> Result<Directory, DirectoryHostError> {
    Directory::recover(settings, now_ms(), records)
        .map_err(|source| DirectoryHostError::Recover { path: path.to_path_buf(), source })
}

/// Whether records are as a mutation leaves them.
fn is_in(records: &[Record], mutation: &Mutation) -> bool {
    let found = records.iter().find(|record| record.table == mutation.table && record.key == mutation.key);
    found.map(|record| &record.value) == mutation.value.as_ref()
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
            node: NodeId(1),
            rack: RackName::parse("a").unwrap(),
            address: "127.0.0.1:1".to_owned(),
            capacity_bytes: 1 << 30,
            incarnation: 1,
        }
    }

    #[test]
    fn heartbeats_and_ticks_do_not_wait_for_a_turn() {
        let folder = std::env::temp_dir().join(format!("hinterland-turn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let host = DirectoryHost::open(&folder.join("directory.redb"), Settings::default()).unwrap();
        host.apply(&join()).unwrap();
        let beat = Command::Heartbeat { node: NodeId(1), incarnation: 1, used_bytes: 0 };
        std::thread::scope(|scope| {
            let turn = host.turn.lock().unwrap();
            let waits = scope.spawn(|| host.apply(&Command::Members).unwrap());
            // It would not return if it waited, and neither would the tick.
            assert!(host.apply(&beat).is_ok_and(|reply| matches!(reply, Reply::Beat { .. })));
            host.apply(&Command::Tick).unwrap();
            assert!(!waits.is_finished());
            drop(turn);
        });
        drop(host);
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
