//! A queue of batches of KV blocks, whose answers an event loop can wait for.

use crate::blocks::{Blocks, Direction, Kept};
use crate::failure::Failure;
use crate::keys::Keys;
use crate::own::Own;
use hinterland_pool::{Batch, KeyOperation, KvCache, KvQueue as Queue, QueueOptions, Refusal, WhenFull};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::os::fd::AsRawFd;

/// What became of a batch: its number, whether it was done, why not, and an answer for each key.
type Answer = (u64, bool, Option<String>, Vec<bool>);
/// What submitting gives, or why not, and the memory back.
type Submitted = Result<u64, Box<Refusal<Kept>>>;

/// Batches that worker threads see to.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct KvQueue {
    queue: Own<Queue<Kept>>,
}

impl KvQueue {
    /// A queue over the blocks of a cache.
    pub(crate) fn open(cache: &KvCache, workers: usize, depth: usize, wait: bool) -> Result<Self, Failure> {
        let when_full = if wait { WhenFull::Wait } else { WhenFull::Refuse };
        let queue = Queue::open(cache, QueueOptions { workers, depth, when_full })?;
        Ok(Self { queue: Own::new("KvQueue", queue) })
    }

    fn submit(
        &self,
        py: Python<'_>,
        batch: Batch,
        kept: Kept,
        submit: impl FnOnce(&Queue<Kept>, Batch, Kept) -> Submitted + Send,
    ) -> PyResult<u64> {
        let queue = self.queue.value()?;
        // What was kept is dropped here, where the interpreter is.
        let submitted = py.detach(|| submit(&queue, batch, kept));
        Ok(submitted.map_err(|refusal| Failure::from(refusal.error))?)
    }

    fn submit_keys(&self, py: Python<'_>, operation: KeyOperation, keys: &[Vec<u8>]) -> PyResult<u64> {
        let batch = named(keys)?;
        self.submit(py, batch, Kept::default(), |queue, batch, kept| {
            queue.submit_keys(operation, batch, kept)
        })
    }
}

#[pymethods]
impl KvQueue {
    /// The descriptor that is readable while answers wait.
    fn event_fd(&self) -> PyResult<i32> {
        Ok(self.queue.value()?.event().as_raw_fd())
    }

    /// The same, for select and event loops.
    fn fileno(&self) -> PyResult<i32> {
        self.event_fd()
    }

    /// Has blocks written.
    fn submit_put(&self, py: Python<'_>, keys: Keys, blocks: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        let (batch, kept) = Blocks::of(keys.len(), &blocks, Direction::Put)?.batch(&keys)?;
        // SAFETY: `kept` keeps the memory in place, and comes back with the answer.
        self.submit(py, batch, kept, |queue, batch, kept| unsafe { queue.submit_put(batch, kept) })
    }

    /// Has buffers filled.
    fn submit_get(&self, py: Python<'_>, keys: Keys, buffers: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        let (batch, kept) = Blocks::of(keys.len(), &buffers, Direction::Get)?.batch(&keys)?;
        // SAFETY: as in `submit_put`; the memory was checked to be writable.
        self.submit(py, batch, kept, |queue, batch, kept| unsafe { queue.submit_get(batch, kept) })
    }

    /// Has blocks looked for.
    fn submit_exists(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        self.submit_keys(py, KeyOperation::Exists, &keys)
    }

    /// Has blocks looked for from the first on, with `remote` also in other racks.
    #[pyo3(signature = (keys, remote=false))]
    fn submit_match_prefix(&self, py: Python<'_>, keys: Keys, remote: bool) -> PyResult<u64> {
        let everywhere = KeyOperation::MatchPrefixEverywhere;
        self.submit_keys(py, if remote { everywhere } else { KeyOperation::MatchPrefix }, &keys)
    }

    /// Has blocks of other racks brought here.
    fn submit_fetch(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        self.submit_keys(py, KeyOperation::Fetch, &keys)
    }

    /// Has blocks kept from being evicted.
    fn submit_pin(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        self.submit_keys(py, KeyOperation::Pin, &keys)
    }

    /// Takes pins of this queue back.
    fn submit_unpin(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        self.submit_keys(py, KeyOperation::Unpin, &keys)
    }

    /// Has blocks removed from the memory and the disk of this host.
    fn submit_remove(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        self.submit_keys(py, KeyOperation::Remove, &keys)
    }

    /// Has all blocks of the namespace removed from this host.
    fn submit_clear(&self, py: Python<'_>) -> PyResult<u64> {
        self.submit_keys(py, KeyOperation::Clear, &[])
    }

    /// The answers that wait.
    fn drain(&self) -> PyResult<Vec<Answer>> {
        let answers = self.queue.value()?.drain().into_iter().map(|completion| match completion.outcome {
            Ok(outcomes) => (completion.id, true, None, outcomes),
            Err(error) => (completion.id, false, Some(error.to_string()), Vec::new()),
        });
        Ok(answers.collect())
    }

    /// Ends the queue; waits for what is being done.
    fn close(&self, py: Python<'_>) {
        if let Some(queue) = self.queue.take() {
            // The buffers that it still has are dropped where the interpreter is.
            let left = py.detach(|| {
                queue.close();
                queue.drain()
            });
            drop(left);
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_details))]
    fn __exit__(&self, py: Python<'_>, _details: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = "a KvQueue is of one process (hint: open one in the other)";
        Err(PyTypeError::new_err(text))
    }
}

/// A batch of keys alone.
fn named(keys: &[Vec<u8>]) -> Result<Batch, Failure> {
    let mut batch = Batch::with_capacity(keys.len(), 0);
    for key in keys {
        batch.push(key, [])?;
    }
    Ok(batch)
}
