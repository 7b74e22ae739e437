//! Fat binaries in files of a folder, named by their hashes: all sessions of a node share them.

use crate::store::ImageStore;
use std::collections::HashMap;
use std::fs::{self, File, FileTimes};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What the files are called behind their hash.
const SUFFIX: &str = ".fatbin";
/// What comes between the hash and the number of the process while a file is written.
const DRAFT: &str = "draft-";
/// A file that was not written to for so long is none that is being written: its session was killed.
const DRAFT_AGE_MAX: Duration = Duration::from_hours(1);
/// Most files that are looked at.
const FILES_MAX: usize = 1 << 16;
/// Most fat binaries that a client is told of. Each is kept open, and a process may have some 1000 files open.
const TOLD_MAX: usize = 512;

/// A folder of fat binaries. Content is checked whenever it is read, so that whoever writes there does no harm.
#[derive(Debug)]
pub struct ImageCache {
    folder: PathBuf,
    bytes_max: u64,
    /// What the client was told of: it does not send the bytes, so they have to be there also when another session has had them removed.
    told: HashMap<[u8; 32], File>,
}

struct Entry {
    hash: [u8; 32],
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl ImageCache {
    /// The cache in a folder, which is made if it is not there; beyond `bytes_max` what was not used for longest goes.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned(), bytes_max, told: HashMap::new() })
    }

    /// How many there are, and their bytes.
    pub fn size(&self) -> (u64, u64) {
        let entries = self.entries();
        (entries.len() as u64, entries.iter().map(|entry| entry.bytes).sum())
    }

    /// What there is, the last used first.
    fn entries(&self) -> Vec<Entry> {
        let Ok(listing) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut entries: Vec<Entry> = listing
            .take(FILES_MAX)
            .filter_map(|file| {
                let file = file.ok()?;
                let hash = hash_of(file.file_name().to_str()?.strip_suffix(SUFFIX)?)?;
                let about = file.metadata().ok()?;
                Some(Entry { hash, path: file.path(), bytes: about.len(), used: about.modified().ok()? })
            })
            .collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        entries
    }

    fn path(&self, hash: &[u8; 32]) -> PathBuf {
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(digits + SUFFIX)
    }

    fn write(&self, hash: &[u8; 32], image: &[u8]) -> io::Result<()> {
        let path = self.path(hash);
        if path.exists() {
            return Ok(());
        }
        // Whole or not at all: another session may read it at once.
        let draft = path.with_extension(format!("{DRAFT}{}", std::process::id()));
        let written = File::create(&draft).and_then(|mut file| file.write_all(image));
        let named = written.and_then(|()| fs::rename(&draft, &path));
        if named.is_err() {
            let _ = fs::remove_file(&draft);
        }
        named
    }

    /// Removes what sessions were writing when they were killed.
    fn remove_abandoned(&self) {
        let Ok(listing) = fs::read_dir(&self.folder) else { return };
        for file in listing.take(FILES_MAX).flatten() {
            let name = file.file_name();
            let is_draft = name
                .to_str()
                .and_then(|name| name.split_once('.'))
                .is_some_and(|(digits, rest)| hash_of(digits).is_some() && rest.starts_with(DRAFT));
            // One from the future, by a clock that was set, stays until it is from the past.
            let written = file.metadata().and_then(|about| about.modified()).ok();
            let age = written.and_then(|written| written.elapsed().ok());
            if is_draft && age.is_some_and(|age| age > DRAFT_AGE_MAX) {
                // Another session may have removed it.
                let _ = fs::remove_file(file.path());
            }
        }
    }

    fn evict(&self) {
        self.remove_abandoned();
        let mut kept = 0_u64;
        for entry in self.entries() {
            kept = kept.saturating_add(entry.bytes);
            if kept > self.bytes_max {
                // Another session may have removed it.
                let _ = fs::remove_file(&entry.path);
            }
        }
    }
}

impl ImageStore for ImageCache {
    fn find(&mut self, hash: &[u8; 32]) -> Option<Vec<u8>> {
        let path = self.path(hash);
        let image = self.told.get(hash).map_or_else(|| fs::read(&path), whole).ok()?;
        if blake3::hash(&image).as_bytes() != hash {
            tracing::warn!("{} is not what its name says; it is removed", path.display());
            let _ = fs::remove_file(&path);
            return None;
        }
        // When it was last used decides what stays; a file that cannot be touched goes sooner.
        let now = FileTimes::new().set_modified(SystemTime::now());
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_times(now));
        Some(image)
    }

    fn keep(&mut self, hash: &[u8; 32], image: &[u8]) {
        if image.len() as u64 > self.bytes_max {
            return;
        }
        match self.write(hash, image) {
            Ok(()) => self.evict(),
            Err(error) => tracing::warn!("a fat binary is not kept in {}: {error}", self.folder.display()),
        }
    }

    fn hashes(&mut self) -> Vec<[u8; 32]> {
        let mut hashes = Vec::new();
        for entry in self.entries().into_iter().take(TOLD_MAX) {
            // One that cannot be kept is sent by whoever has it.
            if let Ok(file) = File::open(&entry.path) {
                self.told.insert(entry.hash, file);
                hashes.push(entry.hash);
            }
        }
        hashes
    }
}

/// All of a file, however often it was read.
fn whole(file: &File) -> io::Result<Vec<u8>> {
    let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut image = vec![0; bytes];
    file.read_exact_at(&mut image, 0)?;
    Ok(image)
}

fn hash_of(digits: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    let is_hash = digits.len() == 64
        && digits.is_ascii()
        && hash.iter_mut().enumerate().all(|(index, byte)| {
            u8::from_str_radix(&digits[index * 2..index * 2 + 2], 16).map(|value| *byte = value).is_ok()
        });
    is_hash.then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("hinterland-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_a_killed_session_was_writing_is_removed_and_nothing_else_is() {
        let folder = Folder::new("image-cache-drafts");
        let mut cache = ImageCache::open(&folder.0, 1000).unwrap();
        let names =
            [format!("{:064x}.draft-7", 1), format!("{:064x}.draft-8", 2), "notes.draft-9".to_owned()];
        for (name, age) in names.iter().zip([2, 0, 2]) {
            let past = FileTimes::new().set_modified(SystemTime::now() - Duration::from_hours(age));
            let file = File::create(folder.0.join(name)).unwrap();
            file.set_times(past).unwrap();
        }
        cache.keep(blake3::hash(b"0123456789").as_bytes(), b"0123456789");
        assert_eq!(names.map(|name| folder.0.join(name).exists()), [false, true, true]);
        assert_eq!(cache.size(), (1, 10));
    }

    #[test]
    fn what_was_changed_on_disk_is_not_found_and_the_oldest_goes_first() {
        let folder = Folder::new("image-cache");
        let mut cache = ImageCache::open(&folder.0, 25).unwrap();
        let hash = |image: &[u8]| *blake3::hash(image).as_bytes();
        for (age, image) in [(30, b"0123456789"), (20, b"abcdefghij")] {
            cache.keep(&hash(image), image);
            let past = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(age));
            File::options().append(true).open(cache.path(&hash(image))).unwrap().set_times(past).unwrap();
        }
        assert_eq!(cache.find(&hash(b"0123456789")), Some(b"0123456789".to_vec()));
        cache.keep(&hash(b"klmnopqrst"), b"klmnopqrst");
        assert_eq!(cache.find(&hash(b"abcdefghij")), None, "it was not used for longest");
        assert_eq!((cache.size(), cache.hashes().len()), ((2, 20), 2));
        fs::write(cache.path(&hash(b"klmnopqrst")), b"klmnopqrsX").unwrap();
        assert_eq!(cache.find(&hash(b"klmnopqrst")), None);
        assert_eq!(cache.size(), (1, 10));
        cache.keep(&[1; 32], &[0; 26]);
        assert_eq!(cache.size(), (1, 10), "larger than all of the cache");
    }
}
