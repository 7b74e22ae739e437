//! Batches whose memory the queue owns until they are answered, so that nothing about them is unsafe.

use super::queue::{Batch, KvQueue, Refusal};
use super::runs::Run;
use super::{EINVAL, PoolError};

/// Memory of a batch, one piece for each block, and whatever else the program wants back with the answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owned<T = ()> {
    /// The blocks' bytes: what is to be put, or after a get what was found.
    pub blocks: Vec<Vec<u8>>,
    /// The program's own.
    pub with: T,
}

impl<T: Send + 'static> KvQueue<Owned<T>> {
    /// Has blocks written.
    ///
    /// # Errors
    /// [`Refusal`] for wrong keys, or as many keys as blocks are not given; else as for every batch.
    pub fn put(&self, keys: &[&[u8]], memory: Owned<T>) -> Result<u64, Box<Refusal<Owned<T>>>> {
        let starts: Vec<usize> =
            memory.blocks.iter().map(|block| block.as_ptr().expose_provenance()).collect();
        match batch(keys, &starts, &memory.blocks) {
            // SAFETY: the blocks come along and are not touched until the answer hands them out.
            Ok(batch) => unsafe { self.submit_put(batch, memory) },
            Err(error) => Err(Box::new(Refusal { error, kept: memory })),
        }
    }

    /// Has blocks copied; each piece of memory is as long as its block must be.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get(&self, keys: &[&[u8]], mut memory: Owned<T>) -> Result<u64, Box<Refusal<Owned<T>>>> {
        let starts: Vec<usize> =
            memory.blocks.iter_mut().map(|block| block.as_mut_ptr().expose_provenance()).collect();
        match batch(keys, &starts, &memory.blocks) {
            // SAFETY: as in `put`.
            Ok(batch) => unsafe { self.submit_get(batch, memory) },
            Err(error) => Err(Box::new(Refusal { error, kept: memory })),
        }
    }
}

fn batch(keys: &[&[u8]], starts: &[usize], blocks: &[Vec<u8>]) -> Result<Batch, PoolError> {
    if keys.len() != blocks.len() {
        let text = format!("{} keys and {} blocks (hint: pass as many of each)", keys.len(), blocks.len());
        return Err(PoolError::Refused { code: EINVAL, text });
    }
    let mut batch = Batch::with_capacity(keys.len(), keys.len());
    for ((key, &start), block) in keys.iter().zip(starts).zip(blocks) {
        batch.push(key, [Run::single(start, block.len())])?;
    }
    Ok(batch)
}
