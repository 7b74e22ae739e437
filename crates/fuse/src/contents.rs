//! The bytes of a file that is being written, put together from what it was, what was written, and what has gone to the pool.
//!
//! A file that is reopened starts from the object's bytes, in blocks that are fetched when they are needed. What is written lies in
//! memory. A file that is written from its start to its end does not grow there: its bytes go to the pool's homes on the way, and come
//! back from there if somebody goes back after all.

use crate::open_files::OpenFile;
use crate::scratch::Scratch;
use crate::source::{NewObject, SourceError};
use std::io;

/// Bytes of an object that are fetched at once when a part of them is overwritten.
const BLOCK_BYTES: u64 = 64 << 10;
/// Bytes that a file which is written in order keeps here before they go to the pool.
const KEPT_BYTES: u64 = 32 << 20;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 4 << 20;

/// What a reopened file was.
struct Base {
    file: OpenFile,
    /// Its bytes up to here are still those of the file.
    limit: u64,
    /// Blocks that lie in the scratch memory.
    present: Vec<bool>,
}

/// The bytes of a file.
#[derive(Default)]
pub(crate) struct Contents {
    bytes: u64,
    base: Option<Base>,
    scratch: Option<Scratch>,
    /// Bytes from the start that only the pool has.
    drained: u64,
    /// Whether every write went on where the last one ended.
    in_order: bool,
    /// Whether the pool has all bytes.
    is_pushed: bool,
}

impl Contents {
    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self { in_order: true, ..Self::default() }
    }

    /// An object's bytes.
    pub(crate) fn of(file: OpenFile, bytes: u64) -> Self {
        // An object's blocks fit in memory by far.
        let present = vec![false; bytes.div_ceil(BLOCK_BYTES) as usize];
        Self { bytes, base: Some(Base { file, limit: bytes, present }), ..Self::default() }
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the pool has all of them.
    pub(crate) fn is_pushed(&self) -> bool {
        self.is_pushed
    }

    /// Whether some of them lie only in the pool.
    pub(crate) fn needs_pool(&self) -> bool {
        self.drained > 0
    }

    /// Reads a range within the file.
    ///
    /// # Errors
    /// [`SourceError`] if the object or the pool cannot be read.
    pub(crate) fn read(
        &self,
        put: Option<&dyn NewObject>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), SourceError> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let rest = &mut into[done..];
            let upto = |end: u64| usize::try_from(end - at).unwrap_or(usize::MAX).min(rest.len());
            let count;
            match &self.base {
                _ if at < self.drained => {
                    count = upto(self.drained);
                    put.ok_or_else(|| gone("the pool's part"))?.read_at(at, &mut rest[..count])?;
                }
                Some(base) if base.has(at) => {
                    count = upto(block_end(at).min(base.limit));
                    base.file.read_exact_at(at, &mut rest[..count])?;
                }
                base => {
                    let end = match base {
                        Some(base) if at < base.limit => block_end(at).min(base.limit),
                        Some(_) | None => u64::MAX,
                    };
                    count = upto(end);
                    match &self.scratch {
                        Some(scratch) => scratch.read_at(at, &mut rest[..count]).map_err(memory)?,
                        None => rest[..count].fill(0),
                    }
                }
            }
            done += count;
        }
        Ok(())
    }

    /// Writes anywhere; what lies between the end and the offset is zeros.
    ///
    /// # Errors
    /// [`SourceError`]; the bytes of the range are then undefined.
    pub(crate) fn write(
        &mut self,
        put: Option<&mut (dyn NewObject + 'static)>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), SourceError> {
        let end = offset + data.len() as u64;
        self.in_order &= offset == self.bytes;
        self.touch(put, offset)?;
        self.fetch_edges(offset, end)?;
        self.scratch()?.write_at(offset, data).map_err(memory)?;
        self.bytes = self.bytes.max(end);
        Ok(())
    }

    /// Makes the file shorter, or longer with zeros.
    ///
    /// # Errors
    /// [`SourceError`] if bytes cannot be fetched back.
    pub(crate) fn resize(
        &mut self,
        put: Option<&mut (dyn NewObject + 'static)>,
        bytes: u64,
    ) -> Result<(), SourceError> {
        self.in_order &= bytes >= self.bytes;
        self.touch(put, bytes.min(self.bytes))?;
        self.scratch()?.resize(bytes).map_err(memory)?;
        if let Some(base) = &mut self.base {
            base.limit = base.limit.min(bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Makes a range within the file zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn blank(
        &mut self,
        put: Option<&mut (dyn NewObject + 'static)>,
        offset: u64,
        bytes: u64,
    ) -> Result<(), SourceError> {
        let end = offset.saturating_add(bytes).min(self.bytes);
        if offset >= end {
            return Ok(());
        }
        self.in_order = false;
        self.touch(put, offset)?;
        self.fetch_edges(offset, end)?;
        self.scratch()?.blank(offset, end - offset).map_err(memory)
    }

    /// Hands what has come in order to the pool if it is much.
    ///
    /// # Errors
    /// [`SourceError`] of the pool.
    pub(crate) fn drain(&mut self, put: &mut dyn NewObject) -> Result<(), SourceError> {
        if !self.in_order || self.base.is_some() || self.bytes - self.drained < KEPT_BYTES {
            return Ok(());
        }
        let from = self.drained;
        self.copy_to(put, from)?;
        self.drained = self.bytes;
        let count = self.bytes - from;
        self.scratch()?.blank(from, count).map_err(memory)
    }

    /// Hands everything to the pool that it does not have yet.
    ///
    /// # Errors
    /// [`SourceError`] of the pool.
    pub(crate) fn push(&mut self, put: &mut dyn NewObject) -> Result<(), SourceError> {
        if !self.is_pushed {
            self.copy_to(put, self.drained)?;
            self.is_pushed = true;
        }
        Ok(())
    }

    /// Hands the bytes that only the pool has from one place there to another.
    ///
    /// # Errors
    /// [`SourceError`] of the pool; the bytes are where they were.
    pub(crate) fn hand_over(
        &mut self,
        here: &dyn NewObject,
        there: &mut dyn NewObject,
    ) -> Result<(), SourceError> {
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(self.drained).unwrap_or(COPY_BYTES))];
        let mut at = 0;
        while at < self.drained {
            let count = buffer.len().min(usize::try_from(self.drained - at).unwrap_or(usize::MAX));
            here.read_at(at, &mut buffer[..count])?;
            there.write(&buffer[..count])?;
            at += count as u64;
        }
        self.is_pushed = false;
        Ok(())
    }

    /// What was published is what the file is, for those who still read it.
    pub(crate) fn replace_by(&mut self, file: OpenFile) {
        *self = Self::of(file, self.bytes);
    }

    fn copy_to(&self, put: &mut dyn NewObject, mut from: u64) -> Result<(), SourceError> {
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(self.bytes - from).unwrap_or(COPY_BYTES))];
        while from < self.bytes {
            let count = buffer.len().min(usize::try_from(self.bytes - from).unwrap_or(usize::MAX));
            self.read(None, from, &mut buffer[..count])?;
            put.write(&buffer[..count])?;
            from += count as u64;
        }
        Ok(())
    }

    /// Before bytes from `offset` on change: the pool forgets what it was handed, if that reaches so far.
    fn touch(&mut self, put: Option<&mut (dyn NewObject + 'static)>, offset: u64) -> Result<(), SourceError> {
        if !self.is_pushed && offset >= self.drained {
            return Ok(());
        }
        let Some(put) = put else { return Ok(()) };
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(self.drained).unwrap_or(COPY_BYTES))];
        let mut at = 0;
        while at < self.drained {
            let count = buffer.len().min(usize::try_from(self.drained - at).unwrap_or(usize::MAX));
            put.read_at(at, &mut buffer[..count])?;
            self.scratch()?.write_at(at, &buffer[..count]).map_err(memory)?;
            at += count as u64;
        }
        put.rewind();
        (self.drained, self.in_order, self.is_pushed) = (0, false, false);
        Ok(())
    }

    /// Fetches the blocks of the object that a range cuts, and counts all blocks of the range as overwritten.
    fn fetch_edges(&mut self, offset: u64, end: u64) -> Result<(), SourceError> {
        if self.base.as_ref().is_none_or(|base| offset >= base.limit) {
            return Ok(());
        }
        self.scratch()?;
        let (Some(base), Some(scratch)) = (&mut self.base, &self.scratch) else { return Ok(()) };
        let mut block = offset / BLOCK_BYTES;
        while block * BLOCK_BYTES < end.min(base.limit) {
            let start = block * BLOCK_BYTES;
            let upto = (start + BLOCK_BYTES).min(base.limit);
            // The cast follows from the length of the list.
            let is_covered = offset <= start && upto <= end;
            if !base.present[block as usize] && !is_covered {
                let mut bytes = vec![0; (upto - start) as usize];
                base.file.read_exact_at(start, &mut bytes)?;
                scratch.write_at(start, &bytes).map_err(memory)?;
            }
            base.present[block as usize] = true;
            block += 1;
        }
        Ok(())
    }

    fn scratch(&mut self) -> Result<&Scratch, SourceError> {
        match &mut self.scratch {
            Some(scratch) => Ok(scratch),
            none => Ok(none.insert(Scratch::new().map_err(memory)?)),
        }
    }
}

impl Base {
    /// Whether the byte is to be read from the object.
    fn has(&self, at: u64) -> bool {
        at < self.limit && !self.present[(at / BLOCK_BYTES) as usize]
    }
}

fn block_end(at: u64) -> u64 {
    (at / BLOCK_BYTES + 1) * BLOCK_BYTES
}

fn memory(error: io::Error) -> SourceError {
    let text = format!("memory for a file that is being written: {error} (hint: write fewer at once)");
    SourceError { code: error.raw_os_error().unwrap_or(nix::libc::EIO), text }
}

fn gone(what: &str) -> SourceError {
    SourceError { code: nix::libc::EIO, text: format!("{what} of a file is gone (hint: write it anew)") }
}

#[cfg(test)]
mod tests;
