//! Compressed memory of this host.

use super::{Place, Store, StoreError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Parts of the table, so that threads seldom wait for each other.
const SHARDS: usize = 16;

/// Compressed memory (LZ4), up to a limit. Content that does not become smaller is kept as it is.
pub struct Packed {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    next: AtomicU64,
    shards: [Mutex<HashMap<u64, Box<[u8]>>>; SHARDS],
}

impl Packed {
    /// At most so many bytes of compressed content.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            next: AtomicU64::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, at: u64) -> &Mutex<HashMap<u64, Box<[u8]>>> {
        &self.shards[at as usize % SHARDS]
    }
}

impl Store for Packed {
    fn name(&self) -> &str {
        "lz4"
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        let packed = lz4_flex::block::compress(content);
        let kept: Box<[u8]> = if packed.len() < content.len() { packed.into() } else { content.into() };
        let bytes = kept.len() as u64;
        // Relaxed: a budget, which guards no other memory.
        if self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit_bytes {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed); // Relaxed: as above.
            return Err(StoreError::Full { name: self.name().to_owned() });
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed); // Relaxed: only has to differ.
        self.shard(at).lock().unwrap_or_else(PoisonError::into_inner).insert(at, kept);
        Ok(Place { at, bytes: bytes as u32 })
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        let failed =
            |reason: &str| StoreError::Failed { name: self.name().to_owned(), reason: reason.to_owned() };
        let shard = self.shard(place.at).lock().unwrap_or_else(PoisonError::into_inner);
        let kept = shard.get(&place.at).ok_or_else(|| failed("the content is not there"))?;
        if kept.len() == content.len() {
            content.copy_from_slice(kept);
            return Ok(());
        }
        match lz4_flex::block::decompress_into(kept, content) {
            Ok(bytes) if bytes == content.len() => Ok(()),
            Ok(_) => Err(failed("the content is too short")),
            Err(error) => Err(failed(&error.to_string())),
        }
    }

    fn free(&self, place: Place) {
        let kept = self.shard(place.at).lock().unwrap_or_else(PoisonError::into_inner).remove(&place.at);
        if let Some(kept) = kept {
            self.used_bytes.fetch_sub(kept.len() as u64, Ordering::Relaxed); // Relaxed: a budget.
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed) // Relaxed: a number for people.
    }
}
