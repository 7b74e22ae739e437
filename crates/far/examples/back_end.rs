//! A back end in one file: a folder with one file for each content. `docs/guides/far-back-end.md` goes through it.
//!
//! `cargo run -p hinterland-far --example back_end` keeps content in it and in compressed memory at once, and retires it again.

use hinterland_far::store::{Life, Packed, Place, Store, StoreError, Stores};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Files of a folder, at most so many bytes of them.
struct Folder {
    path: PathBuf,
    limit_bytes: u64,
    used_bytes: AtomicU64,
    next: AtomicU64,
}

impl Folder {
    fn file(&self, place: Place) -> PathBuf {
        self.path.join(format!("{:016x}", place.at))
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        StoreError::Failed { name: self.name().to_owned(), reason: error.to_string() }
    }
}

impl Store for Folder {
    fn name(&self) -> &str {
        "folder"
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let bytes = content.len() as u64;
        // Relaxed: a budget, which guards no other memory.
        if self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit_bytes {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed); // Relaxed: as above.
            return Err(StoreError::Full { name: self.name().to_owned() });
        }
        // Relaxed: only has to differ.
        let place = Place { at: self.next.fetch_add(1, Ordering::Relaxed), bytes: bytes as u32 };
        fs::write(self.file(place), content).map_err(|error| {
            self.free(place);
            self.failed(&error)
        })?;
        Ok(place)
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        let found = fs::read(self.file(place)).map_err(|error| self.failed(&error))?;
        if found.len() != content.len() {
            return Err(self.failed(&io::ErrorKind::UnexpectedEof.into()));
        }
        content.copy_from_slice(&found);
        Ok(())
    }

    fn free(&self, place: Place) {
        // A file that is not there takes no room.
        let _ = fs::remove_file(self.file(place));
        self.used_bytes.fetch_sub(u64::from(place.bytes), Ordering::Relaxed); // Relaxed: a budget.
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("hinterland-back-end-{}", std::process::id()));
    fs::create_dir_all(&path)?;
    let stores = Arc::new(Stores::new(Vec::new(), 1));
    stores.add(Box::new(Packed::new(64 << 20)))?;
    let (used_bytes, next) = (AtomicU64::new(0), AtomicU64::new(0));
    stores.add(Box::new(Folder { path: path.clone(), limit_bytes: 64 << 20, used_bytes, next }))?;

    let content = |number: u32| number.to_le_bytes().repeat(16384);
    let copies: Vec<_> = (0..200).map(|number| stores.put(&content(number)).0).collect();
    let files = fs::read_dir(&path)?.count();
    stores.retire("folder")?;
    while stores.members().iter().any(|member| member.name == "folder" && member.life != Life::Gone) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for (number, copy) in (0..).zip(&copies) {
        let mut back = vec![0; copy.bytes()];
        copy.read(&mut back)?;
        assert_eq!(back, content(number));
    }
    assert_eq!(fs::read_dir(&path)?.count(), 0);
    fs::remove_dir(&path)?;
    println!("{files} of {} were in files, and came back", copies.len());
    Ok(())
}
