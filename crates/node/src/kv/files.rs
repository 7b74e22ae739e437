//! The files of a store: with names, so that they outlive the node, or without, sealed.
//!
//! See `docs/decisions/2026-11-22-kv-restart.md`. Blocks lie in the best memory that the node has; books, touches and the list of
//! namespaces in a folder of small pages. The node that uses them has byte 0 of the books locked. Which memory was the best changes from
//! start to start, as other programs take huge pages: a note beside the books says where the blocks lie that they are of. Without it a node could
//! take those of a life before for them, and find all of them damaged.

use crate::fault_point;
use crate::refused::{Refused, errno};
use hinterland_kv::{Geometry, Unfit};
use hinterland_os::file_lock::{ByteLock, is_byte_locked, lock_byte};
use hinterland_os::{MapOptions, MemoryFile, OsError, PageKind, Seals, SharedSlice};
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a node waits for the one before it to let go of the books: a killed process gives memory back page by page.
const LET_GO: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// The end of the name of the note that says where the blocks lie.
const NOTE: &str = "where";

/// Folders for files that outlive the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFolders {
    /// For blocks, the best first.
    pub blocks: Vec<PathBuf>,
    /// For all else.
    pub books: PathBuf,
}

/// The files of a store.
pub(super) struct Files {
    pub books: MemoryFile,
    pub blocks: MemoryFile,
    pub touches: MemoryFile,
    /// Whether they have names.
    pub are_kept: bool,
}

/// What a node of before has left.
pub(super) enum Left {
    /// Files that fit.
    Whole(Files),
    /// Some that do not, in words.
    Unfit(String),
    /// Another node uses them.
    InUse,
    /// None.
    Nothing,
}

impl KvFolders {
    /// The users whose stores were kept.
    pub(super) fn users(&self) -> Vec<u32> {
        let of_entry = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix("kv-")?.strip_suffix(".books")?.parse().ok()
        };
        let entries = fs::read_dir(&self.books).into_iter().flatten().flatten();
        let mut users: Vec<u32> = entries.filter_map(of_entry).collect();
        users.sort_unstable();
        users
    }

    /// Where the namespaces of a user are listed.
    pub(super) fn spaces(&self, user: u32) -> PathBuf {
        self.path(user, "spaces")
    }

    /// Takes the files of a user that a node of before has left.
    pub(super) fn take(&self, user: u32, geometry: &Geometry) -> Left {
        let path = self.path(user, "books");
        let mut books = match MemoryFile::open(&path, true) {
            Ok(books) => books,
            Err(error) if error.errno() == Some(errno::ENOENT) => return Left::Nothing,
            Err(error) => return Left::Unfit(error.to_string()),
        };
        match own(&books, LET_GO) {
            Ok(true) => {}
            Ok(false) => return Left::InUse,
            Err(error) => return Left::Unfit(error.to_string()),
        }
        match self.fitting(user, &mut books, geometry) {
            Ok((blocks, touches)) => Left::Whole(Files { books, blocks, touches, are_kept: true }),
            Err(reason) => Left::Unfit(reason),
        }
    }

    /// The other two files, if all three are whole and laid out like this.
    fn fitting(
        &self,
        user: u32,
        books: &mut MemoryFile,
        geometry: &Geometry,
    ) -> Result<(MemoryFile, MemoryFile), String> {
        let length = |found, needed| {
            let fits = found == needed;
            fits.then_some(()).ok_or_else(|| Unfit::Length { found, needed }.to_string())
        };
        if books.is_empty() {
            return Err(Unfit::Length { found: 0, needed: geometry.books_bytes() }.to_string());
        }
        let head = mapped(books).map_err(|error| error.to_string())?;
        geometry.fits(&head, books.len()).map_err(|unfit| unfit.to_string())?;
        let blocks = match self.noted_blocks(user) {
            Some(path) => MemoryFile::open(&path, true).ok(),
            // Of a node that noted nothing.
            None => self.all_blocks(user).find_map(|path| MemoryFile::open(&path, true).ok()),
        };
        let blocks = blocks.ok_or("their bytes are gone")?;
        length(blocks.len(), geometry.blocks_bytes())?;
        let touches =
            MemoryFile::open(&self.path(user, "touches"), true).map_err(|error| error.to_string())?;
        length(touches.len(), geometry.touches_bytes())?;
        // All pages are there, unless somebody has punched holes.
        blocks.allocate(0, blocks.len()).map_err(|error| error.to_string())?;
        Ok((blocks, touches))
    }

    /// Makes the files of a user anew, with all pages of the blocks.
    pub(super) fn make(&self, user: u32, geometry: &Geometry) -> Result<Files, OsError> {
        self.remove_files(user);
        // Making a file in it says what is wrong, if anything is.
        let _ = fs::create_dir_all(&self.books);
        let make = || {
            let blocks = self.make_blocks(user, geometry.blocks_bytes())?;
            // Before the books, by which the next node knows that there is something.
            self.note_blocks(user, &blocks)?;
            fault_point::reach("kv-blocks-made");
            let touches = MemoryFile::create(&self.path(user, "touches"), geometry.touches_bytes())?;
            fault_point::reach("kv-touches-made");
            let books = MemoryFile::create(&self.path(user, "books"), geometry.books_bytes())?;
            lock_byte(&books, 0, ByteLock::Alone)?;
            fault_point::reach("kv-books-made");
            Ok(Files { books, blocks, touches, are_kept: true })
        };
        make().inspect_err(|_| self.remove_files(user))
    }

    fn make_blocks(&self, user: u32, bytes: u64) -> Result<MemoryFile, OsError> {
        let mut refusal = None;
        for path in self.all_blocks(user) {
            let made = MemoryFile::create(&path, bytes);
            match made.and_then(|file| file.allocate(0, bytes).map(|()| file)) {
                Ok(file) => return Ok(file),
                Err(error) => refusal = Some(error),
            }
            // What was made in part takes memory that the next folder may need.
            let _ = fs::remove_file(path);
        }
        Err(refusal.unwrap_or_else(|| OsError::Unsupported {
            operation: "keeping KV blocks",
            reason: "there is no folder for them".to_owned(),
            hint: "start the node with --kv-keep off".into(),
        }))
    }

    /// Removes the files of a user and the list of namespaces; memory goes when the last program has unmapped it.
    pub(super) fn remove(&self, user: u32) {
        self.remove_files(user);
        // As there.
        let _ = fs::remove_file(self.spaces(user));
        let _ = fs::remove_dir(&self.books);
    }

    /// The same, but for the list.
    pub(super) fn remove_files(&self, user: u32) {
        let noted = self.noted_blocks(user);
        let others = ["books", "touches", NOTE].map(|what| self.path(user, what));
        for path in self.all_blocks(user).chain(noted).chain(others) {
            // What is gone is what is wanted; what cannot be removed is found again at the next start.
            let _ = fs::remove_file(path);
        }
        // Only if nothing else lies there.
        let _ = fs::remove_dir(&self.books);
    }

    /// Where the blocks of a user may lie, in the best memory first.
    fn all_blocks(&self, user: u32) -> impl Iterator<Item = PathBuf> {
        self.blocks.iter().map(move |folder| folder.join(format!("kv-{user}.blocks")))
    }

    /// Where the blocks lie that the books are of, if that was noted.
    fn noted_blocks(&self, user: u32) -> Option<PathBuf> {
        let noted = fs::read(self.path(user, NOTE)).ok()?;
        Some(PathBuf::from(OsString::from_vec(noted)))
    }

    fn note_blocks(&self, user: u32, blocks: &MemoryFile) -> Result<(), OsError> {
        let (note, path) = (self.path(user, NOTE), blocks.path().unwrap_or(Path::new("")));
        fs::write(&note, path.as_os_str().as_bytes())
            .map_err(|error| OsError::system("noting where KV blocks lie", note.display().to_string(), error))
    }

    fn path(&self, user: u32, what: &str) -> PathBuf {
        self.books.join(format!("kv-{user}.{what}"))
    }
}

impl Files {
    /// Files without names, gone with the last process that has them mapped. No client can cut them off.
    pub(super) fn anonymous(geometry: &Geometry) -> Result<Self, Refused> {
        let file = |name, bytes| MemoryFile::anonymous(name, bytes, PageKind::Base4K);
        let blocks = anonymous_blocks(geometry.blocks_bytes())?;
        let books = file("hinterland-kv-books", geometry.books_bytes())?;
        let touches = file("hinterland-kv-touches", geometry.touches_bytes())?;
        Ok(Self { books, blocks, touches, are_kept: false })
    }

    /// Clients hold these files: none may cut off what others and the node have mapped. Read-only descriptors can be
    /// opened anew for writing, so the books take no writer but the mapping that is there.
    pub(super) fn seal(&self) -> Result<(), OsError> {
        if self.are_kept {
            return Ok(());
        }
        self.books.add_seals(Seals { future_write: true, ..Seals::FIXED_LENGTH })?;
        self.blocks.add_seals(Seals::FIXED_LENGTH)?;
        self.touches.add_seals(Seals::FIXED_LENGTH)
    }

    /// The blocks file for the session of a mark, which has the byte of this number locked as long as anybody can write through
    /// the descriptor, or through what was mapped from it.
    pub(super) fn blocks_for(&self, mark: u64) -> Result<OwnedFd, OsError> {
        if !self.are_kept {
            return self.blocks.duplicate();
        }
        let descriptor = self.blocks.reopen()?;
        // Shared, as a session may ask twice; nobody locks it alone.
        lock_byte(&descriptor, mark, ByteLock::Shared)?;
        Ok(descriptor)
    }

    /// Whether somebody may still write what the session of a mark could; yes if it cannot be told.
    pub(super) fn is_held(&self, mark: u64) -> bool {
        is_byte_locked(&self.blocks, mark).unwrap_or(true)
    }

    /// Whether nobody has cut them off.
    pub(super) fn are_whole(&self) -> bool {
        [&self.books, &self.blocks, &self.touches].iter().all(|file| file.is_whole().unwrap_or(false))
    }

    /// The file of the blocks, if it has a name.
    pub(super) fn path(&self) -> Option<&Path> {
        self.blocks.path().filter(|_| self.are_kept)
    }
}

/// Maps all of a file for the node.
pub(super) fn mapped(file: &MemoryFile) -> Result<SharedSlice, OsError> {
    // Guarded: of files with names, programs hold descriptors with which they can cut them off.
    let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
    Ok(Arc::new(file.map(0, file.len() as usize, options)?).slice())
}

/// Locks the books for this node; false if another one goes on using them.
fn own(books: &MemoryFile, within: Duration) -> Result<bool, OsError> {
    let until = Instant::now() + within;
    while !lock_byte(books, 0, ByteLock::Alone)? {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// All pages are made here, so that no touch of a block can fail later: huge ones if there are enough.
fn anonymous_blocks(bytes: u64) -> Result<MemoryFile, Refused> {
    let make = |kind| {
        let file = MemoryFile::anonymous("hinterland-kv-blocks", bytes, kind)?;
        file.allocate(0, bytes)?;
        Ok::<_, OsError>(file)
    };
    let made = [PageKind::Huge2M, PageKind::TransparentHuge].into_iter().find_map(|kind| make(kind).ok());
    match made {
        Some(file) => Ok(file),
        None => make(PageKind::Base4K).map_err(|error| {
            let text =
                format!("no memory for {bytes} bytes of KV blocks: {error} (hint: a smaller --kv-capacity)");
            Refused::new(errno::ENOMEM, text)
        }),
    }
}

#[cfg(test)]
mod tests;
