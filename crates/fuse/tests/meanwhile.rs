//! Removing and renaming files whose names other hosts give to other objects at that moment.
//!
//! Each test needs the right to mount; where that is missing it says so and passes.

// A test that cannot go on ends right there, in its helpers too.
#![allow(clippy::unwrap_used)]

use hinterland_fuse::machine::mount_program;
use hinterland_fuse::{
    Contents, MountOptions, Mounted, NewObject, Placing, ReadAt, Source, SourceError, Space, Unmounted, mount,
};
use hinterland_os::probe::Machine;
use hinterland_proto::PoolId;
use hinterland_proto::control::{ObjectInfo, ObjectState, RenameTarget};
use hinterland_types::{ObjectId, ObjectName};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::Duration;

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;

/// What another host puts under a name before the mount's next change is done.
type Other = (ObjectName, u64, ObjectState);

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectName, (ObjectInfo, Arc<Vec<u8>>)>,
    other: Option<Other>,
    /// Whether no object can be opened.
    is_away: bool,
}

impl State {
    fn add(&mut self, name: &ObjectName, id: u64, state: ObjectState, bytes: Vec<u8>) -> ObjectInfo {
        let info = ObjectInfo {
            object: ObjectId(id),
            name: name.clone(),
            state,
            bytes: bytes.len() as u64,
            address: None,
            copies: 1,
            homes: Vec::new(),
            digest: [7; 32],
        };
        self.objects.insert(name.clone(), (info.clone(), Arc::new(bytes)));
        info
    }

    /// The other host is faster than what the mount has just begun.
    fn let_other_go_first(&mut self) {
        if let Some((name, id, state)) = self.other.take() {
            self.add(&name, id, state, id.to_le_bytes().to_vec());
        }
    }

    fn check(&self, name: &ObjectName, object: ObjectId) -> Result<(), SourceError> {
        match self.objects.get(name) {
            Some((info, _)) if info.object == object => Ok(()),
            _ => Err(error(ENOENT)),
        }
    }
}

/// A pool that another host changes, too.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn add(&self, at: &str, id: u64) {
        self.lock().add(&name(at), id, ObjectState::Sealed, id.to_le_bytes().to_vec());
    }

    fn then(&self, at: &str, id: u64, state: ObjectState) {
        self.lock().other = Some((name(at), id, state));
    }

    /// Which object has each name.
    fn names(&self) -> Vec<(String, u64)> {
        let state = self.lock();
        assert!(state.other.is_none(), "the other host has done nothing");
        state.objects.iter().map(|(name, (info, _))| (name.to_string(), info.object.0)).collect()
    }
}

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

fn error(code: i32) -> SourceError {
    SourceError { code, text: "it is made up (hint: a test)".to_owned() }
}

struct Bytes(Arc<Vec<u8>>);

impl ReadAt for Bytes {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let offset = offset as usize;
        buffer.copy_from_slice(&self.0[offset..offset + buffer.len()]);
        Ok(())
    }
}

struct Put {
    shared: Shared,
    id: u64,
    bytes: Vec<u8>,
}

impl NewObject for Put {
    fn object(&self) -> ObjectId {
        ObjectId(self.id)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let offset = offset as usize;
        into.copy_from_slice(&self.bytes[offset..offset + into.len()]);
        Ok(())
    }

    fn rename(&mut self, _from: &ObjectName, to: &ObjectName) -> Result<(), SourceError> {
        if self.shared.lock().objects.contains_key(to) { Err(error(EEXIST)) } else { Ok(()) }
    }

    fn exchange_names(
        &mut self,
        _from: &ObjectName,
        _other: ObjectId,
        _to: &ObjectName,
    ) -> Result<(), SourceError> {
        Err(error(EIO))
    }

    fn rewind(&mut self) {
        self.bytes.clear();
    }

    fn reserve(&mut self, _bytes: u64) -> Result<(), SourceError> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn publish(self: Box<Self>, name: &ObjectName) -> Result<ObjectInfo, SourceError> {
        Ok(self.shared.lock().add(name, self.id, ObjectState::Sealed, self.bytes))
    }
}

impl Source for Shared {
    fn pool(&self) -> PoolId {
        PoolId(1)
    }

    fn stat(&self, name: &ObjectName) -> Result<Option<ObjectInfo>, SourceError> {
        Ok(self.lock().objects.get(name).map(|(info, _)| info.clone()))
    }

    fn list(
        &self,
        prefix: &str,
        after: Option<&ObjectName>,
        _limit: u32,
    ) -> Result<(Vec<ObjectInfo>, bool), SourceError> {
        let state = self.lock();
        let found = state
            .objects
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after));
        Ok((found.map(|(_, (info, _))| info.clone()).collect(), false))
    }

    fn open(&self, info: &ObjectInfo) -> Result<Contents, SourceError> {
        let state = self.lock();
        if state.is_away {
            return Err(error(EIO));
        }
        let found = state.objects.values().find(|(known, _)| known.object == info.object);
        let (_, bytes) = found.ok_or_else(|| error(ENOENT))?;
        Ok(Contents::Remote(Box::new(Bytes(bytes.clone()))))
    }

    fn space(&self) -> Result<Space, SourceError> {
        Ok(Space { capacity_bytes: 1 << 30, used_bytes: 1 << 20 })
    }

    fn create(&self, name: &ObjectName, _placing: &Placing) -> Result<Box<dyn NewObject>, SourceError> {
        let state = self.lock();
        if state.objects.contains_key(name) {
            return Err(error(EEXIST));
        }
        Ok(Box::new(Put { shared: self.clone(), id: 500, bytes: Vec::new() }))
    }

    fn rename(
        &self,
        object: ObjectId,
        from: &ObjectName,
        to: &ObjectName,
        target: RenameTarget,
    ) -> Result<(), SourceError> {
        let mut state = self.lock();
        state.let_other_go_first();
        state.check(from, object)?;
        if target == RenameTarget::Refuse && state.objects.contains_key(to) {
            return Err(error(EEXIST));
        }
        let (mut info, bytes) = state.objects.remove(from).ok_or_else(|| error(ENOENT))?;
        info.name = to.clone();
        state.objects.insert(to.clone(), (info, bytes));
        Ok(())
    }

    fn remove(&self, name: &ObjectName, object: ObjectId) -> Result<(), SourceError> {
        let mut state = self.lock();
        state.let_other_go_first();
        state.check(name, object)?;
        state.objects.remove(name).map(drop).ok_or_else(|| error(ENOENT))
    }
}

/// A mount that is taken down at the end of its test.
struct Mount {
    mounted: Option<Mounted>,
    folder: PathBuf,
}

impl Mount {
    fn of(source: &Shared, test: &str) -> Option<Self> {
        let machine = Machine::probe();
        if !machine.fuse.is_yes() || !(machine.may_administrate || mount_program().is_some()) {
            eprintln!("skipped: no right to mount here (hint: run as root, with /dev/fuse)");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("hinterland-{test}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let options = MountOptions { writable: true, ..MountOptions::new(&folder) };
        let (sender, _) = channel();
        let mounted = mount(Arc::new(source.clone()), &options, sender).unwrap();
        Some(Self { mounted: Some(mounted), folder })
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let outcome = mounted.unmount();
            if !std::thread::panicking() {
                assert_eq!(outcome.unwrap(), Unmounted::Clean);
            }
        }
        fs::remove_dir(&self.folder).unwrap();
    }
}

fn code<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> Option<i32> {
    outcome.unwrap_err().raw_os_error()
}

#[test]
fn removing_a_file_leaves_what_another_host_puts_there() {
    let shared = Shared::default();
    let Some(mount) = Mount::of(&shared, "removed") else { return };
    shared.add("file", 1000);
    shared.then("file", 2000, ObjectState::Sealed);
    fs::remove_file(mount.path("file")).unwrap();
    assert_eq!(shared.names(), [("file".to_owned(), 2000)]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), 2000_u64.to_le_bytes());
    shared.then("file", 3000, ObjectState::Mutable);
    assert_eq!(code(fs::remove_file(mount.path("file"))), Some(ENOENT));
    assert_eq!(shared.names(), [("file".to_owned(), 3000)]);
}

#[test]
fn a_file_that_is_moved_as_it_is_written_takes_nothing_of_another_host_with_it() {
    let shared = Shared::default();
    let Some(mount) = Mount::of(&shared, "covered") else { return };
    shared.add("file", 1000);
    let mut draft = File::create_new(mount.path("draft")).unwrap();
    draft.write_all(b"written").unwrap();
    fs::rename(mount.path("draft"), mount.path("file")).unwrap();
    shared.then("file", 2000, ObjectState::Sealed);
    fs::rename(mount.path("file"), mount.path("moved")).unwrap();
    drop(draft);
    assert_eq!(fs::read(mount.path("moved")).unwrap(), b"written");
    assert_eq!(shared.names()[0], ("file".to_owned(), 2000));
}

#[test]
fn an_object_that_another_host_replaces_as_its_file_is_moved_stays_under_its_name() {
    let shared = Shared::default();
    let Some(mount) = Mount::of(&shared, "reopened") else { return };
    shared.add("file", 1000);
    let mut writer = File::options().write(true).open(mount.path("file")).unwrap();
    writer.write_all(b"w").unwrap();
    shared.then("file", 2000, ObjectState::Sealed);
    fs::rename(mount.path("file"), mount.path("moved")).unwrap();
    writer.write_all(b"ritten").unwrap();
    drop(writer);
    assert_eq!(fs::read(mount.path("moved")).unwrap(), b"written\0");
    assert_eq!(shared.names()[0], ("file".to_owned(), 2000));
}

#[test]
fn renaming_moves_what_has_the_name_by_then_unless_it_is_no_file() {
    let shared = Shared::default();
    let Some(mount) = Mount::of(&shared, "renamed") else { return };
    shared.add("file", 1000);
    shared.then("file", 2000, ObjectState::Sealed);
    fs::rename(mount.path("file"), mount.path("moved")).unwrap();
    assert_eq!(shared.names(), [("moved".to_owned(), 2000)]);
    assert_eq!(fs::read(mount.path("moved")).unwrap(), 2000_u64.to_le_bytes());
    shared.then("moved", 3000, ObjectState::Mutable);
    assert_eq!(code(fs::rename(mount.path("moved"), mount.path("again"))), Some(EBUSY));
    assert_eq!(shared.names(), [("moved".to_owned(), 3000)]);
}

#[test]
fn a_file_that_is_replaced_after_it_could_not_be_opened_is_read_as_it_is_then() {
    let shared = Shared::default();
    let Some(mount) = Mount::of(&shared, "failed") else { return };
    shared.add("file", 1000);
    assert_eq!(fs::metadata(mount.path("file")).unwrap().len(), 8);
    // The kernel knows for a second where the name leads, and asks for it between the open that fails and the one that does not.
    sleep(Duration::from_millis(900));
    shared.lock().is_away = true;
    assert_eq!(code(fs::read(mount.path("file"))), Some(EIO));
    shared.lock().is_away = false;
    sleep(Duration::from_millis(150));
    assert_eq!(fs::metadata(mount.path("file")).unwrap().len(), 8);
    shared.add("file", 2000);
    assert_eq!(fs::read(mount.path("file")).unwrap(), 2000_u64.to_le_bytes());
}
