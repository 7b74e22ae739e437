//! Writes that make pages of a shared file appear whole, from pinned memory through io_uring.
//!
//! While one process fills a page of a tmpfs file, others have the file mapped and touch the page at any moment. If the
//! page enters the page cache before its bytes are in it, a reader sees zeros. A plain `write` does not prevent that:
//! it copies with page faults disabled while it holds the lock of the new page, and when a page of the *source* happens
//! to be absent (swapped, being migrated, a NUMA hint), the copy is cut short, the rest of the new page is zeroed and
//! declared up to date, and it becomes visible before the write tries again. Source pages that are registered with
//! io_uring are pinned and are read through the kernel's own mapping: the copy cannot fault and so is never cut short,
//! and a page that a reader can see is a page that is complete.
//!
//! What a write leaves out of a page that it makes is zeros at once, for every reader. So writes are refused that do not
//! cover whole pages of the file ([`PageKind::fill_bytes`]): on a tmpfs with huge pages the kernel makes a page of 2 MiB
//! for a write of 64 KiB and zeroes the rest. hugetlbfs has no `write`; its pages are filled through a mapping, and only
//! faults in the `minor` mode of [`crate::userfault`] keep readers away meanwhile.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use crate::error::OsError;
use crate::mapping::{Mapping, check_multiple};
use crate::memory_file::{MemoryFile, PageKind};

/// Buffers of one writer: more would only wait for each other on the memory bus.
pub const BUFFERS_MAX: usize = 64;

/// An io_uring with registered staging buffers, used by one thread.
pub struct FixedWriter {
    ring: IoUring,
    staging: Arc<Mapping>,
    buffer_bytes: usize,
    buffer_count: usize,
}

impl FixedWriter {
    /// Makes `buffer_count` buffers of `buffer_bytes` bytes each (rounded up to the base page), zeroed and pinned.
    ///
    /// # Errors
    /// [`OsError::Refused`] for no or too many buffers; [`OsError::Unsupported`] where io_uring is disabled; `ENOMEM`
    /// beyond the limit of locked memory.
    pub fn new(buffer_count: usize, buffer_bytes: usize) -> Result<Self, OsError> {
        let buffer_bytes = buffer_bytes.next_multiple_of(crate::BASE_PAGE_BYTES);
        if buffer_count == 0 || buffer_count > BUFFERS_MAX || buffer_bytes == 0 {
            return Err(OsError::Refused {
                operation: "making staging buffers",
                reason: format!("{buffer_count} buffers of {buffer_bytes} bytes"),
                hint: "between 1 and 64 buffers of at least one page".into(),
            });
        }
        let staging = Arc::new(Mapping::anonymous(buffer_count * buffer_bytes, true)?);
        let ring = new_ring(buffer_count)?;
        let buffers: Vec<libc::iovec> = (0..buffer_count)
            .map(|index| libc::iovec {
                // SAFETY: the offset of each buffer lies within the staging mapping.
                iov_base: unsafe { staging.start().as_ptr().add(index * buffer_bytes) }.cast(),
                iov_len: buffer_bytes,
            })
            .collect();
        // SAFETY: the buffers lie in the staging mapping, which this value keeps until after the ring is gone.
        unsafe { ring.submitter().register_buffers(&buffers) }.map_err(|error| {
            OsError::system(
                "pinning staging buffers",
                format!("{buffer_count} x {buffer_bytes} bytes"),
                error,
            )
            .with_hint("raise the limit of locked memory: `ulimit -l unlimited`")
        })?;
        Ok(Self { ring, staging, buffer_bytes, buffer_count })
    }

    /// Number of buffers.
    pub fn buffer_count(&self) -> usize {
        self.buffer_count
    }

    /// Bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// A buffer, to receive into. All writes have ended whenever the caller can call this.
    ///
    /// # Panics
    /// If `index` is not below [`buffer_count`](Self::buffer_count): that is a bug of the caller.
    pub fn buffer(&mut self, index: usize) -> &mut [u8] {
        assert!(index < self.buffer_count, "buffer {index} of {}", self.buffer_count);
        let start = self.staging.start().as_ptr();
        // SAFETY: the buffer lies in the staging mapping, which nobody else reaches; the exclusive borrow of self ends
        // before the kernel reads it, and every write has ended before `write` or `write_all` returns.
        unsafe { std::slice::from_raw_parts_mut(start.add(index * self.buffer_bytes), self.buffer_bytes) }
    }

    /// Writes the first `bytes` bytes of a buffer to `offset` of a file, and waits until all are there.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` without memory for the page; [`OsError::OutOfBounds`]; [`OsError::Misaligned`] for a write that
    /// would leave a part of a page zeroed; [`OsError::Unsupported`] on hugetlbfs.
    pub fn write(
        &mut self,
        file: &MemoryFile,
        index: usize,
        bytes: usize,
        offset: u64,
    ) -> Result<(), OsError> {
        self.write_all(file, &[Write { buffer: index, bytes, offset }])
    }

    /// Writes several buffers at once, and waits until all are there. Each may be named once.
    ///
    /// # Errors
    /// The first that failed, as [`write`](Self::write); the others have been tried.
    pub fn write_all(&mut self, file: &MemoryFile, writes: &[Write]) -> Result<(), OsError> {
        for write in writes {
            self.check(file, write)?;
        }
        let descriptor = file.as_fd().as_raw_fd();
        let mut first_error = None;
        for batch in writes.chunks(self.buffer_count) {
            let mut rest: Vec<(Write, usize)> = batch.iter().map(|&write| (write, 0)).collect();
            // Short writes are rare (memory ran out half-way); what is left of them goes round again.
            while !rest.is_empty() {
                rest = self.round(descriptor, &rest, &mut first_error)?;
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn check(&self, file: &MemoryFile, write: &Write) -> Result<(), OsError> {
        if write.buffer >= self.buffer_count || write.bytes > self.buffer_bytes {
            return Err(OsError::OutOfBounds {
                offset: (write.buffer * self.buffer_bytes) as u64,
                bytes: write.bytes as u64,
                limit: (self.buffer_count * self.buffer_bytes) as u64,
            });
        }
        if file.kind() == PageKind::Huge2M {
            return Err(OsError::Unsupported {
                operation: "a write to hugetlbfs",
                reason: "files of 2 MiB huge pages have no write".to_owned(),
                hint: "allocate the page, fill it through a mapping and continue the fault".into(),
            });
        }
        let end = file.check_range(write.offset, write.bytes as u64)?;
        let unit = file.kind().fill_bytes();
        check_multiple("offset of a fill", write.offset, unit)?;
        if end == file.len() { Ok(()) } else { check_multiple("length of a fill", write.bytes as u64, unit) }
    }

    /// Submits all, waits for all, and returns those that wrote only a part.
    fn round(
        &mut self,
        descriptor: libc::c_int,
        pending: &[(Write, usize)],
        first_error: &mut Option<OsError>,
    ) -> Result<Vec<(Write, usize)>, OsError> {
        for (position, (write, done)) in pending.iter().enumerate() {
            // SAFETY: the buffer and the part of it lie within the staging mapping, by `check`.
            let source =
                unsafe { self.staging.start().as_ptr().add(write.buffer * self.buffer_bytes + done) };
            // Both casts are of values below the bounds checked above: a buffer index below 64 and a length that the
            // kernel itself limits to 2 GiB.
            let entry = opcode::WriteFixed::new(
                types::Fd(descriptor),
                source,
                (write.bytes - done) as u32,
                write.buffer as u16,
            )
            .offset(write.offset + *done as u64)
            .build()
            .user_data(position as u64);
            // SAFETY: buffer and descriptor stay valid until the completion, for which this function waits. The queue
            // has an entry for each buffer, so it is not full.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            debug_assert!(pushed.is_ok(), "the submission queue has room for every buffer");
        }
        let mut unfinished = Vec::new();
        let mut ended = 0;
        while ended < pending.len() {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::thread::yield_now(),
                // Writes may be in flight and nothing tells their end: the buffers may not be reused.
                Err(error) => return Err(OsError::system("io_uring_enter", "fixed writes", error)),
            }
            for completion in self.ring.completion() {
                ended += 1;
                let (write, done) = pending[completion.user_data() as usize];
                match usize::try_from(completion.result()) {
                    Ok(0) if done < write.bytes => {
                        first_error.get_or_insert(failure(&write, libc::ENOSPC));
                    }
                    Ok(more) if done + more < write.bytes => unfinished.push((write, done + more)),
                    Ok(_) => {}
                    Err(_) => {
                        first_error.get_or_insert(failure(&write, -completion.result()));
                    }
                }
            }
        }
        Ok(unfinished)
    }
}

/// One buffer to be written by [`FixedWriter::write_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Index of the buffer.
    pub buffer: usize,
    /// Bytes of it, from its start.
    pub bytes: usize,
    /// Where in the file.
    pub offset: u64,
}

#[cold]
fn failure(write: &Write, errno: i32) -> OsError {
    let error = std::io::Error::from_raw_os_error(errno);
    OsError::system("fixed write", format!("{} bytes at {}", write.bytes, write.offset), error)
}

fn new_ring(entries: usize) -> Result<IoUring, OsError> {
    IoUring::builder().build(entries.next_power_of_two() as u32).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => OsError::Unsupported {
            operation: "io_uring",
            reason: error.to_string(),
            hint: "as root: `sysctl kernel.io_uring_disabled=0`".into(),
        },
        _ => OsError::system("io_uring_setup", format!("{entries} entries"), error),
    })
}

#[cfg(test)]
mod tests;
