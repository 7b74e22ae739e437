//! Tests of where the files of a store lie.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder that goes with the test.
struct Ground(PathBuf);

impl Ground {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only makes the names differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("hinterland-kv-files-{}-{number}", std::process::id()));
        ["huge", "small", "books"].iter().for_each(|name| fs::create_dir_all(folder.join(name)).unwrap());
        Self(folder)
    }

    /// The folders of a node that finds these kinds of memory.
    fn with(&self, kinds: &[&str]) -> KvFolders {
        KvFolders {
            blocks: kinds.iter().map(|kind| self.0.join(kind)).collect(),
            books: self.0.join("books"),
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn geometry() -> Geometry {
    hinterland_kv::Store::<hinterland_kv::Owned>::geometry_for(4 << 20)
}

/// Takes what was left, which has this word at the start of its blocks.
fn taken(folders: &KvFolders) -> Result<u64, String> {
    match folders.take(0, &geometry()) {
        Left::Whole(files) => {
            let mut word = [0; 8];
            files.blocks.read_at(0, &mut word).unwrap();
            Ok(u64::from_le_bytes(word))
        }
        Left::Unfit(why) => Err(why),
        Left::InUse => Err("in use".to_owned()),
        Left::Nothing => Err("nothing".to_owned()),
    }
}

/// Makes the files, with this word at the start of the blocks.
fn made(folders: &KvFolders, word: u64) {
    let files = folders.make(0, &geometry()).unwrap();
    files.blocks.write_at(0, &word.to_le_bytes()).unwrap();
    let head = mapped(&files.books).unwrap();
    geometry().store(&head);
}

#[test]
fn blocks_are_found_in_memory_that_is_not_the_best_any_more_and_those_of_a_life_before_are_not() {
    let ground = Ground::new();
    let (huge, small) = (ground.with(&["huge", "small"]), ground.with(&["small"]));
    made(&huge, 1);
    assert_eq!(taken(&small), Ok(1), "huge pages have gone to others, and what was in them is there");
    // Now with what the first life had in huge pages left behind, as where nobody could remove it.
    let left = fs::read(ground.0.join("huge/kv-0.blocks")).unwrap();
    made(&small, 2);
    assert!(!ground.0.join("huge/kv-0.blocks").exists(), "memory that nobody finds again");
    fs::write(ground.0.join("huge/kv-0.blocks"), left).unwrap();
    assert_eq!(taken(&huge), Ok(2));
    fs::remove_file(ground.0.join("small/kv-0.blocks")).unwrap();
    assert_eq!(taken(&huge), Err("their bytes are gone".to_owned()));
    huge.remove(0);
    assert!(!ground.0.join("huge/kv-0.blocks").exists() && !ground.0.join("books").exists());
}

#[test]
fn files_of_a_release_without_the_note_are_taken() {
    let ground = Ground::new();
    let folders = ground.with(&["huge", "small"]);
    made(&folders, 3);
    fs::remove_file(ground.0.join("books/kv-0.where")).unwrap();
    assert_eq!(taken(&folders), Ok(3));
}
