//! A file of a disk, read and written past the page cache.

use super::slots::Slots;
use super::{Place, ResizeError, Store, StoreError};
use hinterland_os::{DIRECT_BYTES, DirectBuffer, DirectFile, OsError, Transfer};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file of fixed length, in places of one unit each. It has no name from the start on, so that nothing stays of it.
pub struct Disk {
    name: String,
    /// The number of the device that its folder is on.
    device: u64,
    file: DirectFile,
    slot_bytes: u64,
    free: Mutex<Slots>,
    /// Held by whoever changes its length.
    sizing: Mutex<()>,
    /// Aligned memory for transfers, used again.
    buffers: Mutex<Vec<DirectBuffer>>,
}

impl Disk {
    /// Takes `bytes` bytes in a file of its own in the folder, for content of at most `slot_bytes` bytes each.
    ///
    /// # Errors
    /// No folder there, no room, or no right to write.
    pub fn open(path: &Path, bytes: u64, slot_bytes: u64) -> Result<Self, OsError> {
        let folder = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_dir);
        let Some(folder) = folder else {
            return Err(OsError::Refused {
                operation: "making a file for far memory",
                reason: format!("{} is no folder", path.display()),
                hint: "name a folder of a disk with room, or make it with mkdir -p".into(),
            });
        };
        let device = folder.dev();
        let slot_bytes = slot_bytes.next_multiple_of(DIRECT_BYTES as u64);
        let slots = u32::try_from(bytes / slot_bytes).unwrap_or(u32::MAX);
        let file = DirectFile::unnamed(path, u64::from(slots).max(1) * slot_bytes)?;
        let name = format!("ssd:{}", path.display());
        let free = Mutex::new(Slots::new(slots));
        Ok(Self { name, device, file, slot_bytes, free, sizing: Mutex::default(), buffers: Mutex::default() })
    }

    fn free(&self) -> MutexGuard<'_, Slots> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aligned memory of at least so many bytes.
    fn buffer(&self, bytes: usize) -> Result<DirectBuffer, StoreError> {
        let known = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match known.filter(|buffer| buffer.bytes().len() >= bytes) {
            Some(buffer) => Ok(buffer),
            None => {
                DirectBuffer::new(bytes.max(self.slot_bytes as usize)).map_err(|error| self.failed(&error))
            }
        }
    }

    fn give_back(&self, buffer: DirectBuffer) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    fn full(&self) -> StoreError {
        StoreError::Full { name: self.name.clone() }
    }

    fn failed(&self, error: &dyn std::error::Error) -> StoreError {
        StoreError::Failed { name: self.name.clone(), reason: error.to_string() }
    }

    /// Writes contents to their slots, neighbours by one transfer. A slot that failed is not used again.
    fn write(&self, contents: &[&[u8]], slots: &[u32]) -> Vec<Result<Place, StoreError>> {
        let mut buffer = match self.buffer(contents.iter().map(|content| whole(content.len())).sum()) {
            Ok(buffer) => buffer,
            Err(error) => return slots.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut runs: Vec<Run> = Vec::new();
        let mut from = 0;
        for (content, slot) in contents.iter().zip(slots) {
            let at = u64::from(*slot) * self.slot_bytes;
            buffer.bytes_mut()[from..from + content.len()].copy_from_slice(content);
            let to = from + whole(content.len());
            match runs.last_mut() {
                Some(run) if run.at + (run.bytes.len() as u64) == at => {
                    run.bytes.end = to;
                    run.count += 1;
                }
                _ => runs.push(Run { at, bytes: from..to, count: 1 }),
            }
            from = to;
        }
        let transfer = |run: &Run| Transfer::Write(run.at, &buffer.bytes()[run.bytes.clone()]);
        let mut transfers: Vec<Transfer<'_>> = runs.iter().map(transfer).collect();
        let written = self.file.transfer(&mut transfers);
        let of_each =
            runs.iter().zip(&written).flat_map(|(run, written)| std::iter::repeat_n(written, run.count));
        let results = of_each.zip(slots).zip(contents).map(|((written, slot), content)| match written {
            Ok(()) => Ok(Place { at: u64::from(*slot) * self.slot_bytes, bytes: content.len() as u32 }),
            Err(error) => Err(self.failed(error)),
        });
        let results = results.collect();
        self.give_back(buffer);
        results
    }
}

/// Contents that lie one behind the other.
struct Run {
    at: u64,
    /// Which bytes of the buffer.
    bytes: Range<usize>,
    count: usize,
}

/// What content takes of a slot.
const fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(DIRECT_BYTES)
}

impl Store for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn device(&self) -> Option<u64> {
        // 0 stands for none; no disk has that number.
        Some(self.device.max(1))
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        self.put_all(&[content]).pop().unwrap_or_else(|| Err(self.full()))
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        self.get_all(&mut [(place, content)]).pop().unwrap_or_else(|| Err(self.full()))
    }

    fn put_all(&self, contents: &[&[u8]]) -> Vec<Result<Place, StoreError>> {
        let slots = self.free().take(contents.len());
        let mut results = self.write(&contents[..slots.len()], &slots);
        results.extend(contents[slots.len()..].iter().map(|_| Err(self.full())));
        results
    }

    fn get_all(&self, wanted: &mut [(Place, &mut [u8])]) -> Vec<Result<(), StoreError>> {
        let mut buffer = match self.buffer(wanted.iter().map(|(_, content)| whole(content.len())).sum()) {
            Ok(buffer) => buffer,
            Err(error) => return wanted.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut rest = buffer.bytes_mut();
        let mut transfers = Vec::with_capacity(wanted.len());
        for (place, content) in wanted.iter() {
            let (own, others) = rest.split_at_mut(whole(content.len()));
            rest = others;
            transfers.push(Transfer::Read(place.at, own));
        }
        let read = self.file.transfer(&mut transfers);
        let mut from = 0;
        for (_, content) in wanted.iter_mut() {
            content.copy_from_slice(&buffer.bytes()[from..from + content.len()]);
            from += whole(content.len());
        }
        self.give_back(buffer);
        read.into_iter().map(|read| read.map_err(|error| self.failed(&error))).collect()
    }

    fn content_bytes_max(&self) -> usize {
        self.slot_bytes as usize
    }

    fn sleeps(&self) -> bool {
        true
    }

    fn limit_bytes(&self) -> u64 {
        u64::from(self.free().count()) * self.slot_bytes
    }

    fn resize(&self, bytes: u64) -> Result<(), ResizeError> {
        let _alone = self.sizing.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = u32::try_from(bytes / self.slot_bytes).unwrap_or(u32::MAX);
        let before = self.free().count();
        let length = |slots: u32| u64::from(slots).max(1) * self.slot_bytes;
        if slots > before {
            // Before anybody gets a place there.
            self.file.resize(length(slots)).map_err(ResizeError::Refused)?;
        }
        if !self.free().resize(slots) {
            return Err(ResizeError::Held { name: self.name.clone() });
        }
        if slots < before {
            // After nobody has a place there; that the file stays longer does no harm.
            let _ = self.file.resize(length(slots));
        }
        Ok(())
    }

    fn free(&self, place: Place) {
        let slot = u32::try_from(place.at / self.slot_bytes).unwrap_or(u32::MAX);
        self.free().give_back(slot);
    }
}
