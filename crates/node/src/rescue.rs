//! Saves the bytes of an object that the directory cannot take in again, before the node lets go of it.

use crate::fault_point;
use crate::holdings::{Holding, HoldingError};
use crate::refused::{Refused, errno};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where they go, in the folder of the state.
const FOLDER: &str = "rescued";
/// Bytes copied at once; holes of that size stay holes.
const STEP_BYTES: u64 = 1 << 20;
/// Of a name, which may be longer than a file's.
const NAME_BYTES: usize = 200;

/// The folder of what was saved.
pub fn rescued(state: &Path) -> PathBuf {
    state.join(FOLDER)
}

/// Writes the object to a file of its own below the state, durable when this returns; says where.
///
/// # Errors
/// [`Refused`] if it cannot be written whole; nothing was let go then.
pub fn rescue(holding: &Holding, state: &Path) -> Result<PathBuf, Refused> {
    let folder = rescued(state);
    let path = folder.join(file_name(holding));
    let partial = path.with_extension("partial");
    let saved = save(holding, &folder, &partial);
    fault_point::reach("rescue-written");
    saved.and_then(|()| fs::rename(&partial, &path)).and_then(|()| File::open(&folder)?.sync_all()).map_err(
        |error| {
            // A file that is not whole is of no use; the error that matters is the one of writing.
            let _ = fs::remove_file(&partial);
            let text = format!(
                "{}, which the directory does not know, cannot be saved in {}: {error}; it was not deleted (hint: make room there, or let the folder be a link to where there is room)",
                holding.name(),
                path.display()
            );
            Refused::new(errno::EIO, text)
        },
    )?;
    Ok(path)
}

/// The object's number, so that no two are the same, and its name, for people.
fn file_name(holding: &Holding) -> String {
    let name: String = holding.name().as_str().chars().map(|c| if c == '/' { '_' } else { c }).collect();
    let end = (0..=name.len().min(NAME_BYTES)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    format!("{}-{}.bytes", holding.object.0, &name[..end])
}

fn save(holding: &Holding, folder: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = File::create(path)?;
    let source = source(holding).map_err(io::Error::other)?;
    let mut buffer = vec![0; STEP_BYTES as usize]; // a constant that fits
    for offset in (0..holding.bytes()).step_by(STEP_BYTES as usize) {
        let part = &mut buffer[..STEP_BYTES.min(holding.bytes() - offset) as usize]; // at most the constant
        match &source {
            Some(sparse) => sparse.read_exact_at(part, offset)?,
            None => {
                let slice = holding.slice(offset, part.len() as u64).map_err(io::Error::other)?;
                slice.read_at(0, part).map_err(io::Error::other)?;
            }
        }
        if part.iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Current(part.len() as i64))?; // at most the constant
        } else {
            file.write_all(part)?;
        }
    }
    file.set_len(holding.bytes())?;
    file.sync_all()
}

/// The file of a region, whose holes would take memory where they are read in place; `None` for what has none.
fn source(holding: &Holding) -> Result<Option<File>, HoldingError> {
    let (length, kind) = holding.file_shape();
    let is_file = kind != hinterland_os::memory_file::PageKind::Device && length >= holding.bytes();
    let wants_it = holding.is_region() && is_file;
    Ok(if wants_it { Some(File::from(holding.descriptor(false)?)) } else { None })
}
