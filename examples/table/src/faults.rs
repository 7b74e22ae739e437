//! Memory that two programs share by page faults, as systems that swap to other machines reach it: what the pool's way is
//! compared with, and nothing that the pool uses.
//!
//! Each program has all of the memory mapped, and the pages of 4 KiB that it may use. One that it does not have, or may only read and
//! wants to write, is a fault (userfaultfd): the thread waits until the page has come from the other program, whole. A page is
//! with any number of programs that read it, or with one that writes it (K. Li and P. Hudak, *Memory coherence in shared
//! virtual memory systems*, 1989). It has a home, which knows who else has it; what a program has of the other's pages is
//! limited, and goes back, with its bytes if it was written.
//!
//! | module | subject |
//! | --- | --- |
//! | [`pages`] | who has which page, and what is asked of the other: no I/O |
//! | [`host`] | the kernel's side of it and the connection |
//! | [`lines`] | a program that shares such memory and is driven by lines |

pub mod host;
pub mod lines;
pub mod pages;

use crate::memory::Memory;
use hinterland_os::{MapOptions, Mapping, MemoryFile, OsError, PageKind, SharedSlice};
use hinterland_pool::PoolError;
use host::{Counts, Host};
use pages::{PAGE_BYTES, Pages};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One of the two programs' memory.
#[derive(Clone)]
pub struct FaultedMemory {
    bytes: SharedSlice,
    counts: Arc<Counts>,
}

/// What faults cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Faults.
    pub taken: u64,
    /// Pages whose bytes came from the other program.
    pub fetched: u64,
}

impl FaultedMemory {
    /// `bytes` bytes of zeros, shared with the program at the other end, which is the other part; at most `cached_bytes` of pages
    /// whose home is there are kept here. A thread serves the faults until the process ends. If it cannot go on, the process ends: who waits
    /// for a page cannot be told.
    ///
    /// # Errors
    /// [`OsError`] where the kernel does not give faults away.
    pub fn share(peer: TcpStream, part: u8, bytes: u64, cached_bytes: u64) -> Result<Self, OsError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        let file = MemoryFile::anonymous("table", bytes, PageKind::Base4K)?;
        let map = || -> Result<Arc<Mapping>, OsError> {
            Ok(Arc::new(file.map(0, bytes as usize, MapOptions { write: true, ..MapOptions::default() })?))
        };
        let (seen, behind) = (map()?, map()?);
        let mut host = Host::new(file, Arc::clone(&seen), behind.slice(), peer)?;
        let counts = host.counts();
        let pages = Pages::new(
            part,
            (bytes / PAGE_BYTES as u64) as usize,
            (cached_bytes / PAGE_BYTES as u64) as usize,
        );
        std::thread::spawn(move || {
            if let Err(error) = host.serve(pages) {
                eprintln!("error: page faults are not served any more: {error}");
                std::process::exit(1);
            }
        });
        Ok(Self { bytes: seen.slice(), counts })
    }

    /// What faults cost so far.
    pub fn faults(&self) -> Faults {
        // Relaxed: counters that nothing is ordered by.
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Faults { taken: read(&self.counts.taken), fetched: read(&self.counts.fetched) }
    }
}

fn refused(error: &OsError) -> PoolError {
    const EINVAL: i32 = 22;
    PoolError::Refused { code: EINVAL, text: error.to_string() }
}

impl Memory for FaultedMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.bytes.read_at(offset as usize, into).map_err(|error| refused(&error))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        self.bytes.write_at(offset as usize, from).map_err(|error| refused(&error))
    }

    fn swap(&self, offset: u64, expected: u64, desired: u64) -> Result<u64, PoolError> {
        self.bytes.compare_swap_u64(offset as usize, expected, desired).map_err(|error| refused(&error))
    }

    fn add(&self, offset: u64, addend: u64) -> Result<u64, PoolError> {
        self.bytes.fetch_add_u64(offset as usize, addend).map_err(|error| refused(&error))
    }
}
