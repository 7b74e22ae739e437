//! A mount of a made-up pool, used through the kernel as any program would.
//!
//! Each test needs the right to mount; where that is missing it says so and passes.

// A test that cannot go on ends right there, in its helpers too.
#![allow(clippy::unwrap_used)]

use hinterland_fuse::machine::{mount_program, passthrough};
use hinterland_fuse::{
    Contents, MountError, MountOptions, Mounted, ReadAt, Source, SourceError, Space, Unmounted, mount,
};
use hinterland_os::probe::Machine;
use hinterland_proto::PoolId;
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::{ObjectId, ObjectName};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EROFS: i32 = 30;

type Object = (ObjectInfo, Arc<Vec<u8>>);

/// Objects by name; those whose name starts with `local/` have a file of their own.
#[derive(Default)]
struct MadeUp {
    objects: Mutex<BTreeMap<ObjectName, Object>>,
    broken: Arc<AtomicBool>,
    remote_reads: Arc<AtomicU64>,
    /// The file that was given away last, for writing.
    last_own_file: Mutex<Option<File>>,
}

struct Remote {
    bytes: Arc<Vec<u8>>,
    broken: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
}

impl ReadAt for Remote {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(SourceError { code: EIO, text: "no home answers (hint: a test)".to_owned() });
        }
        let offset = offset as usize;
        buffer.copy_from_slice(&self.bytes[offset..offset + buffer.len()]);
        Ok(())
    }
}

impl MadeUp {
    fn with(names: &[(&str, usize)]) -> Arc<Self> {
        let source = Self::default();
        for (index, (name, bytes)) in names.iter().enumerate() {
            source.add(name, 1000 + index as u64, pattern(*bytes, index as u64));
        }
        Arc::new(source)
    }

    fn add(&self, name: &str, id: u64, bytes: Vec<u8>) {
        let name = ObjectName::parse(name).unwrap();
        let info = ObjectInfo {
            object: ObjectId(id),
            name: name.clone(),
            state: ObjectState::Sealed,
            bytes: bytes.len() as u64,
            address: None,
            copies: 1,
            homes: Vec::new(),
            digest: [7; 32],
        };
        self.objects.lock().unwrap().insert(name, (info, Arc::new(bytes)));
    }

    fn remove(&self, name: &str) {
        self.objects.lock().unwrap().remove(&ObjectName::parse(name).unwrap());
    }

    fn bytes(&self, name: &str) -> Arc<Vec<u8>> {
        self.objects.lock().unwrap()[&ObjectName::parse(name).unwrap()].1.clone()
    }
}

impl Source for MadeUp {
    fn pool(&self) -> PoolId {
        PoolId(1)
    }

    fn stat(&self, name: &ObjectName) -> Result<Option<ObjectInfo>, SourceError> {
        Ok(self.objects.lock().unwrap().get(name).map(|(info, _)| info.clone()))
    }

    fn list(
        &self,
        prefix: &str,
        after: Option<&ObjectName>,
        limit: u32,
    ) -> Result<(Vec<ObjectInfo>, bool), SourceError> {
        let objects = self.objects.lock().unwrap();
        let mut found: Vec<ObjectInfo> = objects
            .values()
            .map(|(info, _)| info.clone())
            .filter(|info| {
                info.name.as_str().starts_with(prefix) && after.is_none_or(|after| info.name > *after)
            })
            .collect();
        let more = found.len() > limit as usize;
        found.truncate(limit as usize);
        Ok((found, more))
    }

    fn open(&self, info: &ObjectInfo) -> Result<Contents, SourceError> {
        let there = self.objects.lock().unwrap().get(&info.name).cloned();
        let Some((_, bytes)) = there.filter(|(known, _)| known.object == info.object) else {
            return Err(SourceError {
                code: ENOENT,
                text: "there is no such object (hint: a test)".to_owned(),
            });
        };
        if !info.name.as_str().starts_with("local/") {
            let (broken, reads) = (self.broken.clone(), self.remote_reads.clone());
            return Ok(Contents::Remote(Box::new(Remote { bytes, broken, reads })));
        }
        let path = unique("/dev/shm");
        let mut file = File::create_new(&path).unwrap();
        file.write_all(&bytes).unwrap();
        if info.name.as_str().ends_with("/padded") {
            file.write_all(&[0xee; 4096]).unwrap();
        }
        let own = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        *self.last_own_file.lock().unwrap() = Some(file);
        Ok(Contents::OwnFile(own))
    }

    fn space(&self) -> Result<Space, SourceError> {
        Ok(Space { capacity_bytes: 1 << 30, used_bytes: 1 << 20 })
    }
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn unique(folder: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Path::new(folder).join(format!("hinterland-fuse-{}-{number}", std::process::id()))
}

/// A mount that is taken down at the end of its test.
struct Mount {
    mounted: Option<Mounted>,
    folder: PathBuf,
    ended: Receiver<()>,
}

impl Mount {
    fn of(source: Arc<MadeUp>) -> Option<Self> {
        Self::with(source, |_| {})
    }

    fn with(source: Arc<MadeUp>, change: impl FnOnce(&mut MountOptions)) -> Option<Self> {
        let machine = Machine::probe();
        if !machine.fuse.is_yes() || !(machine.may_administrate || mount_program().is_some()) {
            eprintln!("skipped: no right to mount here (hint: run as root, with /dev/fuse)");
            return None;
        }
        let folder = unique(&std::env::temp_dir().to_string_lossy());
        fs::create_dir(&folder).unwrap();
        let mut options = MountOptions::new(&folder);
        change(&mut options);
        let (sender, ended) = channel();
        let mounted = mount(source, &options, sender).unwrap();
        Some(Self { mounted: Some(mounted), folder, ended })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
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

#[test]
fn every_byte_comes_back_by_every_way() {
    let sizes = [
        ("empty", 0),
        ("one", 1),
        ("remote/odd", 3_000_001),
        ("local/odd", 3_000_001),
        ("local/padded", 3_000_001),
        ("local/none", 0),
    ];
    for wanted in [true, false] {
        let source = MadeUp::with(&sizes);
        let Some(mount) = Mount::with(source.clone(), |options| options.passthrough = wanted) else {
            return;
        };
        for (name, _) in sizes {
            let expected = source.bytes(name);
            assert_eq!(fs::read(mount.path(name)).unwrap(), **expected, "{name}");
            let file = File::open(mount.path(name)).unwrap();
            for offset in [0, 1, 4095, 4096, 65_537, 2_999_999, 3_000_000, 3_000_001, 9_000_000] {
                let mut buffer = vec![0xee; 70_000];
                let bytes = file.read_at(&mut buffer, offset as u64).unwrap();
                let from = offset.min(expected.len());
                let upto = (from + buffer.len()).min(expected.len());
                assert!(bytes > 0 || from == upto, "{name} at {offset}: nothing came");
                assert_eq!(buffer[..bytes], expected[from..from + bytes], "{name} at {offset}");
            }
        }
        let offered = passthrough(&Machine::probe()).is_ok();
        assert_eq!(mount.mounted().passes_through(), wanted && offered);
    }
}

#[test]
fn the_kernel_reads_a_local_object_from_its_own_file_unless_that_is_longer() {
    let source = MadeUp::with(&[("local/a", 4096), ("local/padded", 4096)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    if passthrough(&Machine::probe()).is_err() {
        eprintln!("skipped: no passthrough here");
        return;
    }
    // No object ever changes: a change behind the mount's back shows who reads.
    for (name, seen) in [("local/a", 1), ("local/padded", 0)] {
        let file = File::open(mount.path(name)).unwrap();
        let mut before = [0; 1];
        file.read_exact_at(&mut before, 0).unwrap();
        let own = source.last_own_file.lock().unwrap().take().unwrap();
        own.write_all_at(&[before[0] ^ 1], 0).unwrap();
        let mut after = [0; 1];
        file.read_exact_at(&mut after, 0).unwrap();
        assert_eq!(before[0] ^ after[0], seen, "{name}");
    }
}

#[test]
fn a_file_has_its_objects_identifier_and_size_and_the_mounts_device() {
    let source = MadeUp::with(&[("a", 1), ("models/b.gguf", 12_345)]);
    let Some(mount) = Mount::of(source) else { return };
    let metadata = fs::metadata(mount.path("models/b.gguf")).unwrap();
    assert_eq!((metadata.ino(), metadata.len(), metadata.mode() & 0o7777), (1001, 12_345, 0o444));
    assert_eq!(metadata.dev(), mount.mounted().device());
    let folder = fs::metadata(mount.path("models")).unwrap();
    assert!(folder.is_dir() && folder.ino() >> 63 == 1);
}

#[test]
fn folders_show_what_is_in_them() {
    let names: Vec<String> = (0..3000).map(|i| format!("many/{i}")).collect();
    let mut sizes: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    sizes.extend([("x", 1), ("y/z/deep", 5)]);
    let Some(mount) = Mount::of(MadeUp::with(&sizes)) else { return };
    let list = |folder: &str| {
        let mut names: Vec<String> = fs::read_dir(mount.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(""), ["many", "x", "y"]);
    assert_eq!(list("many").len(), 3000);
    assert_eq!(list("y"), ["z"]);
    assert_eq!(list("y/z"), ["deep"]);
    assert_eq!(fs::read(mount.path("y/z/deep")).unwrap().len(), 5);
}

#[test]
fn a_name_that_is_not_there_is_not_found() {
    let Some(mount) = Mount::of(MadeUp::with(&[("a/b", 1)])) else { return };
    for name in ["b", "a/c", "a/b/c", "a\u{1}"] {
        let error = fs::metadata(mount.path(name)).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(2 | 20)), "{name:?}: {error}");
    }
    let long = "n".repeat(300);
    assert_eq!(fs::metadata(mount.path(&long)).unwrap_err().raw_os_error(), Some(36));
}

#[test]
fn nothing_can_be_written() {
    let Some(mount) = Mount::of(MadeUp::with(&[("a", 1), ("local/b", 1)])) else { return };
    let outcomes = [
        File::options().write(true).open(mount.path("a")).map(drop),
        File::options().append(true).open(mount.path("local/b")).map(drop),
        File::create(mount.path("new")).map(drop),
        fs::create_dir(mount.path("folder")),
        fs::remove_file(mount.path("a")),
        fs::rename(mount.path("a"), mount.path("c")),
        File::open(mount.path("a")).and_then(|file| file.set_modified(std::time::SystemTime::now())),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(EROFS));
    }
    assert_eq!(fs::read(mount.path("a")).unwrap().len(), 1);
}

#[test]
fn a_failed_read_is_an_error_and_never_zeros() {
    let source = MadeUp::with(&[("far", 500_000)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    let mut file = File::open(mount.path("far")).unwrap();
    source.broken.store(true, Ordering::Relaxed);
    let error = file.read_exact(&mut [0; 4096]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EIO));
    source.broken.store(false, Ordering::Relaxed);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, **source.bytes("far"));
}

#[test]
fn a_removed_object_stays_readable_while_it_is_open() {
    let source = MadeUp::with(&[("far", 500_000), ("local/near", 500_000)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    for name in ["far", "local/near"] {
        let mut file = File::open(mount.path(name)).unwrap();
        let expected = source.bytes(name);
        source.remove(name);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, **expected, "{name}");
    }
}

#[test]
fn a_name_put_again_leads_to_the_new_object() {
    let source = MadeUp::with(&[("a", 10)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    assert_eq!(fs::read(mount.path("a")).unwrap().len(), 10);
    source.remove("a");
    source.add("a", 5000, vec![9; 20]);
    // The kernel keeps a name for one second.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(fs::read(mount.path("a")).unwrap(), [9; 20]);
    assert_eq!(fs::metadata(mount.path("a")).unwrap().ino(), 5000);
}

#[test]
fn a_name_that_is_replaced_all_the_time_can_be_opened() {
    const OPENS: u32 = 1000;
    let source = MadeUp::with(&[("restless", 1)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    let (replaced, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                source.add("restless", 2000 + version, version.to_le_bytes().to_vec());
                replaced.store(version, Ordering::Release);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        while replaced.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let failed = (0..OPENS).find_map(|_| {
            let least = replaced.load(Ordering::Acquire);
            let version = match fs::read(mount.path("restless")) {
                Ok(bytes) => u64::from_le_bytes(bytes.try_into().unwrap()),
                Err(error) => return Some(error.to_string()),
            };
            (version < least).then(|| format!("version {version} after {least}"))
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, None);
    });
}

#[test]
fn a_second_reader_is_served_from_the_page_cache() {
    let source = MadeUp::with(&[("far", 1 << 20)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    let first = fs::read(mount.path("far")).unwrap();
    let reads = source.remote_reads.load(Ordering::Relaxed);
    assert!(reads > 0);
    assert_eq!(fs::read(mount.path("far")).unwrap(), first);
    assert_eq!(source.remote_reads.load(Ordering::Relaxed), reads);
}

#[test]
fn an_object_whose_identifier_no_file_can_have_is_an_error_of_its_own() {
    let source = MadeUp::with(&[("good", 1)]);
    source.add("bad", 1, vec![1]);
    let Some(mount) = Mount::of(source) else { return };
    assert_eq!(fs::metadata(mount.path("bad")).unwrap_err().raw_os_error(), Some(EIO));
    assert_eq!(fs::read(mount.path("good")).unwrap().len(), 1);
}

#[test]
fn many_threads_read_different_files_at_once() {
    let source = MadeUp::with(&[("a", 2_000_000), ("b", 2_000_000), ("local/c", 2_000_000)]);
    let Some(mount) = Mount::of(source.clone()) else { return };
    std::thread::scope(|scope| {
        for name in ["a", "b", "local/c", "a", "b", "local/c"] {
            let (path, expected) = (mount.path(name), source.bytes(name));
            scope.spawn(move || {
                for _ in 0..5 {
                    assert!(fs::read(&path).unwrap() == **expected);
                }
            });
        }
    });
}

#[test]
fn a_second_mount_on_the_same_folder_is_refused() {
    let Some(mount) = Mount::of(MadeUp::with(&[])) else { return };
    let again = hinterland_fuse::mount(MadeUp::with(&[]), &MountOptions::new(&mount.folder), channel().0);
    let error = again.err().unwrap();
    assert!(
        matches!(error, MountError::AlreadyMounted { .. }) && error.to_string().contains("hint: unmount it")
    );
}

#[test]
fn folders_whose_names_are_no_text_are_mounted_on_as_any_other() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let Some(mount) = Mount::of(MadeUp::with(&[("a", 4)])) else { return };
    let mut folder = mount.folder.clone().into_os_string();
    folder.push(OsStr::from_bytes(b"-\xff \xc3"));
    let folder = PathBuf::from(folder);
    fs::create_dir(&folder).unwrap();
    let options = MountOptions::new(&folder);
    let odd = hinterland_fuse::mount(MadeUp::with(&[("b", 5)]), &options, channel().0).unwrap();
    assert_eq!(odd.device(), fs::metadata(&folder).unwrap().dev());
    assert_eq!(fs::read(folder.join("b")).unwrap(), pattern(5, 0));
    let again = hinterland_fuse::mount(MadeUp::with(&[]), &options, channel().0);
    assert!(matches!(again, Err(MountError::AlreadyMounted { .. })));
    // Beside it, another mount goes and comes.
    let beside = Mount::of(MadeUp::with(&[("c", 6)])).unwrap();
    assert_eq!(fs::read(beside.path("c")).unwrap(), pattern(6, 0));
    drop(beside);
    assert_eq!(odd.unmount().unwrap(), Unmounted::Clean);
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn unmounting_under_an_open_file_says_that_it_was_busy() {
    let Some(mut mount) = Mount::of(MadeUp::with(&[("a", 4)])) else { return };
    let file = File::open(mount.path("a")).unwrap();
    assert_eq!(mount.mounted.take().unwrap().unmount().unwrap(), Unmounted::Busy);
    assert!(fs::metadata(mount.path("a")).is_err());
    drop(file);
}

#[test]
fn unmounting_what_another_namespace_has_too_says_so_and_does_not_wait_for_it() {
    let Some(mut mount) = Mount::of(MadeUp::with(&[("a", 4)])) else { return };
    if !Machine::probe().may_administrate {
        return;
    }
    let mut other = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 600"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0];
    other.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let (sender, ended) = channel();
    let mounted = mount.mounted.take().unwrap();
    std::thread::spawn(move || sender.send(mounted.unmount().unwrap()));
    let outcome = ended.recv_timeout(Duration::from_secs(60));
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(outcome.unwrap(), Unmounted::Elsewhere);
}

#[test]
fn the_owner_hears_of_an_unmount_by_somebody_else() {
    let Some(mut mount) = Mount::of(MadeUp::with(&[])) else { return };
    if !Machine::probe().may_administrate {
        return;
    }
    assert!(std::process::Command::new("umount").arg(&mount.folder).status().unwrap().success());
    mount.ended.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(mount.mounted.take().unwrap().unmount().unwrap(), Unmounted::Clean);
}
