//! The window of addresses, and the memory in it. An address of the device is an address of this process.

use crate::body::Body;
use crate::failure::{Failure, number};
use crate::work::Rows;
use hinterland_os::{BASE_PAGE_BYTES, MapOptions, Mapping, MemoryFile, OsError, PageKind, SharedSlice};
use std::sync::{Arc, PoisonError, RwLock};

/// Where the window begins, if it is free there: beyond what programs use, so that both sides can keep the same range.
pub(super) const WINDOW: u64 = 0x0a00_0000_0000;
/// How long it is.
pub(super) const WINDOW_BYTES: u64 = 1 << 40;
/// What mapped memory is made of: pieces of the size that a driver has.
pub(super) const GRANULARITY: u64 = 2 << 20;
/// Bytes that a copy within the memory moves at once, where it cannot be moved in place.
const CHUNK_BYTES: u64 = 1 << 20;

const _: () = assert!(GRANULARITY.is_multiple_of(BASE_PAGE_BYTES as u64));

/// A range that has memory.
#[derive(Debug, Clone)]
struct Part {
    address: u64,
    bytes: u64,
    slice: SharedSlice,
}

/// All memory of a session's devices.
#[derive(Debug)]
pub(super) struct Space {
    window: Arc<Mapping>,
    parts: RwLock<Arc<Vec<Part>>>,
}

impl Space {
    /// Reserves the window: where all sessions have it, or elsewhere if that is taken.
    ///
    /// # Errors
    /// There are no addresses.
    pub(super) fn new() -> Result<Self, OsError> {
        // The length fits: this is a 64-bit system.
        let bytes = WINDOW_BYTES as usize;
        let window = Mapping::reserve(Some(WINDOW), bytes)
            .or_else(|_| Mapping::reserve(None, bytes + GRANULARITY as usize))?;
        Ok(Self { window: Arc::new(window), parts: RwLock::default() })
    }

    /// First address of the window, a multiple of the granularity.
    pub(super) fn start(&self) -> u64 {
        self.window.address().next_multiple_of(GRANULARITY)
    }

    /// Backs a range that has no memory.
    pub(super) fn map(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        let failed = |error: OsError| Failure::new(number::OUT_OF_MEMORY, error.to_string());
        let length =
            usize::try_from(bytes).map_err(|_| Failure::value(format!("{bytes} bytes are too many")))?;
        let at = address
            .checked_sub(self.window.address())
            .and_then(|at| usize::try_from(at).ok())
            .ok_or_else(|| Failure::value(format!("{address:#x} lies below the window")))?;
        let file = MemoryFile::anonymous("device-memory", bytes, PageKind::Base4K).map_err(failed)?;
        let options = MapOptions { write: true, ..MapOptions::default() };
        let mapping = self.window.map_inside(at, &file, 0, length, options).map_err(failed)?;
        let part = Part { address, bytes, slice: Arc::new(mapping).slice() };
        self.change(|parts| {
            let place = parts.partition_point(|other| other.address < address);
            parts.insert(place, part);
        });
        Ok(())
    }

    /// Takes the memory of a range back. Nobody uses it.
    pub(super) fn unmap(&self, address: u64) {
        self.change(|parts| parts.retain(|part| part.address != address));
    }

    /// The memory as it is.
    pub(super) fn view(&self) -> View {
        View(Arc::clone(&self.parts.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Part>)) {
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut parts));
    }
}

/// The memory as it was at one moment; it stays mapped as long as this lives.
#[derive(Debug, Clone)]
pub(super) struct View(Arc<Vec<Part>>);

impl View {
    /// The part of the memory that holds `address`, where in it that is, and how many bytes it has from there on.
    fn part(&self, address: u64) -> Result<(&SharedSlice, usize, u64), Failure> {
        let after = self.0.partition_point(|part| part.address <= address);
        let part = after.checked_sub(1).and_then(|index| self.0.get(index));
        match part {
            Some(part) if address - part.address < part.bytes => {
                let at = address - part.address;
                // A part is as long as its slice, which is a length of this process.
                Ok((&part.slice, at as usize, part.bytes - at))
            }
            _ => Err(Failure::new(number::ILLEGAL_ADDRESS, format!("{address:#x} has no memory"))),
        }
    }

    /// Calls `each` for the pieces of a range: the slice, where in it, how many bytes of the range come before, and how many it has.
    fn pieces(
        &self,
        address: u64,
        bytes: u64,
        mut each: impl FnMut(&SharedSlice, usize, usize, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < bytes {
            let place = address.checked_add(done).ok_or_else(|| {
                Failure::new(number::ILLEGAL_ADDRESS, format!("{address:#x} and {bytes} bytes are too far"))
            })?;
            let (slice, at, left) = self.part(place)?;
            let piece = left.min(bytes - done);
            // No piece is longer than its slice.
            each(slice, at, done as usize, piece as usize)?;
            done += piece;
        }
        Ok(())
    }

    /// Copies out.
    pub(super) fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Failure> {
        self.pieces(address, to.len() as u64, |slice, at, done, bytes| {
            slice.read_at(at, &mut to[done..done + bytes]).map_err(failed)
        })
    }

    /// Copies in.
    pub(super) fn write(&self, address: u64, from: &[u8]) -> Result<(), Failure> {
        self.pieces(address, from.len() as u64, |slice, at, done, bytes| {
            slice.write_at(at, &from[done..done + bytes]).map_err(failed)
        })
    }

    /// Copies rows in; `from` has their bytes without gaps.
    pub(super) fn write_rows(&self, to: Rows, from: Body<'_>) -> Result<(), Failure> {
        let mut before = 0;
        for start in to.starts() {
            self.pieces(start, to.width, |slice, at, done, bytes| {
                let is_there = from.part(before + done, bytes).read_into(slice, at);
                if is_there { Ok(()) } else { Err(Failure::new(number::UNKNOWN, "a copy did not fit")) }
            })?;
            before += to.width as usize;
        }
        Ok(())
    }

    /// Copies rows out, without gaps.
    pub(super) fn read_rows(&self, from: Rows) -> Result<Vec<u8>, Failure> {
        let bytes = usize::try_from(from.bytes()).map_err(|_| Failure::value("too many bytes"))?;
        let mut all = Vec::new();
        all.try_reserve_exact(bytes)
            .map_err(|error| Failure::new(number::OUT_OF_MEMORY, error.to_string()))?;
        all.resize(bytes, 0);
        if from.width > 0 {
            for (start, row) in from.starts().zip(all.chunks_exact_mut(from.width as usize)) {
                self.read(start, row)?;
            }
        }
        Ok(all)
    }

    /// Copies rows within the memory, as if through a buffer where a row overlaps itself.
    pub(super) fn copy_rows(&self, to: Rows, from: Rows) -> Result<(), Failure> {
        for (start, source) in to.starts().zip(from.starts()) {
            self.copy(start, source, to.width)?;
        }
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), Failure> {
        let mut buffer = vec![0; bytes.min(CHUNK_BYTES) as usize];
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        for index in 0..chunks {
            // Upwards or downwards, so that what is still to be read is not overwritten.
            let chunk = if to > from { chunks - 1 - index } else { index };
            let at = chunk * CHUNK_BYTES;
            let part = &mut buffer[..(bytes - at).min(CHUNK_BYTES) as usize];
            self.read(from + at, part)?;
            self.write(to + at, part)?;
        }
        Ok(())
    }

    /// Sets elements of 1, 2 or 4 bytes.
    pub(super) fn fill(&self, to: Rows, element: u32, value: u32) -> Result<(), Failure> {
        let value = value.to_le_bytes();
        let value = &value[..element.clamp(1, 4) as usize];
        let is_one_byte = value.iter().all(|byte| *byte == value[0]);
        let pattern: Vec<u8> = if is_one_byte {
            Vec::new()
        } else {
            value.iter().copied().cycle().take(to.width.min(CHUNK_BYTES) as usize).collect()
        };
        for start in to.starts() {
            if is_one_byte {
                self.pieces(start, to.width, |slice, at, _, bytes| {
                    slice.fill(at, bytes, value[0]).map_err(failed)
                })?;
                continue;
            }
            let mut done = 0;
            while done < to.width {
                let bytes = (to.width - done).min(pattern.len() as u64);
                self.write(start + done, &pattern[..bytes as usize])?;
                done += bytes;
            }
        }
        Ok(())
    }
}

fn failed(error: OsError) -> Failure {
    Failure::new(number::ILLEGAL_ADDRESS, error.to_string())
}
