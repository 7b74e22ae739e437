//! Compressed memory of this host.

use super::reserve::Reserve;
use super::{Place, ResizeError, Store, StoreError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use zstd::bulk::{Compressor, Decompressor};

/// Parts of the table, so that threads seldom wait for each other.
const SHARDS: usize = 16;
/// Zstandard's level: the next ones take twice the time for a few hundredths less.
const LEVEL: i32 = 1;

/// How content is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4: quick.
    Lz4,
    /// Zstandard: smaller.
    Zstd,
}

impl Codec {
    /// Bytes that it makes of content.
    pub(super) fn packed_bytes(self, content: &[u8]) -> u64 {
        // Content that it cannot compress is kept as it is.
        Packed::of(self, u64::MAX).put(content).map_or(content.len() as u64, |place| u64::from(place.bytes))
    }
}

/// Compressed memory, up to a limit. Content that does not become smaller is kept as it is.
pub struct Packed {
    codec: Codec,
    limit_bytes: AtomicU64,
    /// Memory of the host that it leaves alone.
    reserve: Option<Reserve>,
    used_bytes: AtomicU64,
    next: AtomicU64,
    shards: [Mutex<Table>; SHARDS],
    /// What Zstandard works with is a megabyte, and used again.
    compressors: Mutex<Vec<Compressor<'static>>>,
    decompressors: Mutex<Vec<Decompressor<'static>>>,
}

thread_local! {
    /// What content is compressed into, before its length is known.
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

type Table = HashMap<u64, Arc<[u8]>>;

impl Packed {
    /// At most so many bytes of content, compressed by LZ4.
    pub fn new(limit_bytes: u64) -> Self {
        Self::of(Codec::Lz4, limit_bytes)
    }

    /// At most so many bytes of compressed content.
    pub fn of(codec: Codec, limit_bytes: u64) -> Self {
        Self {
            codec,
            limit_bytes: AtomicU64::new(limit_bytes),
            reserve: None,
            used_bytes: AtomicU64::new(0),
            next: AtomicU64::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
            compressors: Mutex::default(),
            decompressors: Mutex::default(),
        }
    }

    /// The same, which takes nothing more where this host would have hardly any memory left.
    pub fn sparing(self) -> Self {
        Self { reserve: Some(Reserve::host()), ..self }
    }

    /// As [`sparing`](Self::sparing), with a host that is seen otherwise.
    #[cfg(test)]
    pub(super) fn beside(self, reserve: Reserve) -> Self {
        Self { reserve: Some(reserve), ..self }
    }

    /// Takes so much of the limit and of the host's memory.
    fn take(&self, bytes: u64) -> Result<(), StoreError> {
        // Relaxed: budgets, which guard no other memory.
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let refusal = if self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > limit {
            StoreError::Full { name: self.name().to_owned() }
        } else if self.reserve.as_ref().is_some_and(|reserve| !reserve.take(bytes, Instant::now())) {
            StoreError::Short { name: self.name().to_owned() }
        } else {
            return Ok(());
        };
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed); // Relaxed: as above.
        Err(refusal)
    }

    fn shard(&self, at: u64) -> MutexGuard<'_, Table> {
        lock(&self.shards[at as usize % SHARDS])
    }

    /// Compresses into a buffer, which is made long enough; returns the length of what came out.
    fn compress(&self, content: &[u8], packed: &mut Vec<u8>) -> io::Result<usize> {
        let most = match self.codec {
            Codec::Lz4 => lz4::block::compress_bound(content.len())?,
            Codec::Zstd => zstd::zstd_safe::compress_bound(content.len()),
        };
        if packed.len() < most {
            packed.resize(most, 0);
        }
        match self.codec {
            Codec::Lz4 => lz4::block::compress_to_buffer(content, None, false, packed),
            Codec::Zstd => {
                let known = lock(&self.compressors).pop();
                let mut compressor = known.map_or_else(|| Compressor::new(LEVEL), Ok)?;
                let bytes = compressor.compress_to_buffer(content, packed.as_mut_slice());
                lock(&self.compressors).push(compressor);
                bytes
            }
        }
    }

    /// Returns the length of what came out.
    fn decompress(&self, packed: &[u8], content: &mut [u8]) -> io::Result<usize> {
        match self.codec {
            // At most 2 MiB.
            Codec::Lz4 => lz4::block::decompress_to_buffer(packed, Some(content.len() as i32), content),
            Codec::Zstd => {
                let known = lock(&self.decompressors).pop();
                let mut decompressor = known.map_or_else(Decompressor::new, Ok)?;
                let bytes = decompressor.decompress_to_buffer(packed, content);
                lock(&self.decompressors).push(decompressor);
                bytes
            }
        }
    }

    fn failed(&self, reason: String) -> StoreError {
        StoreError::Failed { name: self.name().to_owned(), reason }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for Packed {
    fn name(&self) -> &str {
        match self.codec {
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let kept: Arc<[u8]> = PACKED.with_borrow_mut(|packed| {
            let bytes = self.compress(content, packed).map_err(|error| self.failed(error.to_string()))?;
            Ok::<Arc<[u8]>, StoreError>(if bytes < content.len() {
                packed[..bytes].into()
            } else {
                content.into()
            })
        })?;
        let bytes = kept.len() as u64;
        self.take(bytes)?;
        let at = self.next.fetch_add(1, Ordering::Relaxed); // Relaxed: only has to differ.
        self.shard(at).insert(at, kept);
        Ok(Place { at, bytes: bytes as u32 })
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        let kept = self.shard(place.at).get(&place.at).cloned();
        let kept = kept.ok_or_else(|| self.failed("the content is not there".to_owned()))?;
        if kept.len() == content.len() {
            content.copy_from_slice(&kept);
            return Ok(());
        }
        match self.decompress(&kept, content) {
            Ok(bytes) if bytes == content.len() => Ok(()),
            Ok(_) => Err(self.failed("the content is too short".to_owned())),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    fn free(&self, place: Place) {
        let kept = self.shard(place.at).remove(&place.at);
        if let Some(kept) = kept {
            self.used_bytes.fetch_sub(kept.len() as u64, Ordering::Relaxed); // Relaxed: a budget.
        }
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed) // Relaxed: a setting.
    }

    fn resize(&self, bytes: u64) -> Result<(), ResizeError> {
        if self.memory_bytes() > bytes {
            return Err(ResizeError::Held { name: self.name().to_owned() });
        }
        self.limit_bytes.store(bytes, Ordering::Relaxed); // Relaxed: a setting.
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed) // Relaxed: a number for people.
    }
}
