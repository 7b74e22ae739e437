//! A file of a disk, read and written past the page cache.

use super::{Place, Store, StoreError};
use hinterland_os::{DIRECT_BYTES, DirectBuffer, DirectFile, OsError, Transfer};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A file of fixed length, in places of one unit each. It has no name from the start on, so that nothing stays of it.
pub struct Disk {
    name: String,
    file: DirectFile,
    slot_bytes: u64,
    free: Mutex<Vec<u32>>,
    /// Aligned memory for transfers, used again.
    buffers: Mutex<Vec<DirectBuffer>>,
}

impl Disk {
    /// Takes `bytes` bytes in a file of its own in the folder, for content of at most `slot_bytes` bytes each.
    ///
    /// # Errors
    /// No folder there, no room, or no right to write.
    pub fn open(path: &Path, bytes: u64, slot_bytes: u64) -> Result<Self, OsError> {
        let own = format!(".hinterland-far-{}", std::process::id());
        // Only ever a file of our own: what somebody else has there would be overwritten and removed.
        if !path.is_dir() {
            return Err(OsError::Refused {
                operation: "making a file for far memory",
                reason: format!("{} is no folder", path.display()),
                hint: "name a folder of a disk with room, or make it with mkdir -p".into(),
            });
        }
        let file_path = path.join(own);
        let slot_bytes = slot_bytes.next_multiple_of(DIRECT_BYTES as u64);
        let slots = u32::try_from(bytes / slot_bytes).unwrap_or(u32::MAX);
        let opened = DirectFile::open(&file_path, u64::from(slots).max(1) * slot_bytes);
        // Whatever came of it, no file stays.
        let removed = std::fs::remove_file(&file_path);
        let file = opened?;
        removed.map_err(|error| OsError::system("unlink", file_path.display().to_string(), error))?;
        let name = format!("ssd:{}", path.display());
        let free = Mutex::new((0..slots).rev().collect());
        Ok(Self { name, file, slot_bytes, free, buffers: Mutex::default() })
    }

    fn buffer(&self) -> Result<DirectBuffer, StoreError> {
        let known = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        known.map_or_else(
            || DirectBuffer::new(self.slot_bytes as usize).map_err(|error| self.failed(&error)),
            Ok,
        )
    }

    fn give_back(&self, buffer: DirectBuffer) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    fn failed(&self, error: &dyn std::error::Error) -> StoreError {
        StoreError::Failed { name: self.name.clone(), reason: error.to_string() }
    }

    fn one(&self, transfer: Transfer<'_>) -> Result<(), StoreError> {
        match self.file.transfer(&mut [transfer]).pop() {
            Some(Err(error)) => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }
}

impl Store for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let slot = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = slot.ok_or_else(|| StoreError::Full { name: self.name.clone() })?;
        let at = u64::from(slot) * self.slot_bytes;
        let place = Place { at, bytes: content.len() as u32 };
        let result = self.buffer().and_then(|mut buffer| {
            buffer.bytes_mut()[..content.len()].copy_from_slice(content);
            let whole = content.len().next_multiple_of(DIRECT_BYTES);
            let written = self.one(Transfer::Write(at, &buffer.bytes()[..whole]));
            self.give_back(buffer);
            written
        });
        // A place that failed is not used again.
        result.map(|()| place)
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        let mut buffer = self.buffer()?;
        let whole = content.len().next_multiple_of(DIRECT_BYTES);
        let result = self.one(Transfer::Read(place.at, &mut buffer.bytes_mut()[..whole]));
        content.copy_from_slice(&buffer.bytes()[..content.len()]);
        self.give_back(buffer);
        result
    }

    fn content_bytes_max(&self) -> usize {
        self.slot_bytes as usize
    }

    fn free(&self, place: Place) {
        let slot = u32::try_from(place.at / self.slot_bytes).unwrap_or(u32::MAX);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }
}
