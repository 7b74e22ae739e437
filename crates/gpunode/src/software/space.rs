//! The window of addresses, and the memory in it. An address of the device is an address of this process.

use crate::body::Body;
use crate::failure::{Failure, number};
use crate::outbox::Outbox;
use crate::work::Rows;
use hinterland_os::{BASE_PAGE_BYTES, MapOptions, Mapping, MemoryFile, OsError, PageKind, SharedSlice};
use hinterland_ptx::{IllegalAddress, Memory};
use std::sync::atomic::Ordering;
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

    /// Copies rows out, without gaps, in pieces of at most `piece_bytes`; `each` gets where a piece begins in all of it.
    pub(super) fn read_rows(
        &self,
        from: Rows,
        piece_bytes: usize,
        mut each: impl FnMut(u64, Vec<u8>),
    ) -> Result<(), Failure> {
        let mut piece = Vec::new();
        let mut sent = 0;
        for start in from.starts() {
            let mut done = 0;
            while done < from.width {
                let before = piece.len();
                // At most the length of a piece.
                let bytes = (from.width - done).min((piece_bytes - before) as u64) as usize;
                piece.resize(before + bytes, 0);
                self.read(start + done, &mut piece[before..])?;
                done += bytes as u64;
                if piece.len() == piece_bytes {
                    let full = std::mem::take(&mut piece);
                    each(sent, full);
                    sent += piece_bytes as u64;
                }
            }
        }
        if !piece.is_empty() || sent == 0 {
            each(sent, piece);
        }
        Ok(())
    }

    /// Whether all of a range has memory.
    pub(super) fn check(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        self.pieces(address, bytes, |_, _, _, _| Ok(()))
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

/// The memory as a kernel sees it: it mostly touches the part that it touched before.
pub(super) struct KernelMemory<'view> {
    view: &'view View,
    outbox: &'view Outbox,
    last: Option<&'view Part>,
}

impl<'view> KernelMemory<'view> {
    pub(super) const fn new(view: &'view View, outbox: &'view Outbox) -> Self {
        Self { view, outbox, last: None }
    }

    /// The part that holds a range, and where in it that begins; nothing if no part holds all of it.
    fn find(&mut self, address: u64, bytes: u64) -> Option<(&'view SharedSlice, usize)> {
        let holds = |part: &Part| {
            address >= part.address && bytes <= part.bytes && address - part.address <= part.bytes - bytes
        };
        let part = match self.last {
            Some(part) if holds(part) => part,
            _ => {
                let after = self.view.0.partition_point(|part| part.address <= address);
                let part = self.view.0.get(after.checked_sub(1)?)?;
                self.last = Some(part);
                if !holds(part) {
                    return None;
                }
                part
            }
        };
        // Within the part, whose length is one of this process.
        Some((&part.slice, (address - part.address) as usize))
    }
}

impl Memory for KernelMemory<'_> {
    fn print(&mut self, text: &[u8]) {
        self.outbox.printed(text);
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), IllegalAddress> {
        match self.find(address, bytes.len() as u64) {
            Some((slice, at)) => slice.read_at(at, bytes).map_err(|_| IllegalAddress),
            // Over the border of two parts, or not there.
            None => self.view.read(address, bytes).map_err(|_| IllegalAddress),
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), IllegalAddress> {
        match self.find(address, bytes.len() as u64) {
            Some((slice, at)) => slice.write_at(at, bytes).map_err(|_| IllegalAddress),
            None => self.view.write(address, bytes).map_err(|_| IllegalAddress),
        }
    }

    fn update(
        &mut self,
        address: u64,
        size: u32,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, IllegalAddress> {
        // A number at a multiple of its size lies in one part: parts begin and end at whole pages.
        let (slice, at) = self.find(address, u64::from(size)).ok_or(IllegalAddress)?;
        if size == 8 {
            let word = slice.atomic_u64(at).map_err(|_| IllegalAddress)?;
            // AcqRel and Acquire: pair with the other updates of kernels.
            return Ok(word
                .try_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old)))
                .unwrap_or_else(|old| old));
        }
        // Those of 2 bytes are changed within the 4 around them.
        let (start, shift) = (at & !3, (at & 3) * 8);
        let mask = if size == 4 { u32::MAX } else { 0xffff << shift };
        let word = slice.atomic_u32(start).map_err(|_| IllegalAddress)?;
        let update = |old: u32| {
            // Shifted and masked to the number's own bits.
            let new = (change(u64::from((old & mask) >> shift)) as u32) << shift;
            Some((old & !mask) | (new & mask))
        };
        // AcqRel and Acquire: as above.
        let old = word.try_update(Ordering::AcqRel, Ordering::Acquire, update).unwrap_or_else(|old| old);
        Ok(u64::from((old & mask) >> shift))
    }
}

fn failed(error: OsError) -> Failure {
    Failure::new(number::ILLEGAL_ADDRESS, error.to_string())
}
