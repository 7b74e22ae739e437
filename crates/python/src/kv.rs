//! KV blocks: put, found and read in batches.

use crate::blocks::{Blocks, Direction};
use crate::failure::Failure;
use crate::gpu::KvGpu;
use crate::keys::{Key, Keys};
use crate::number::{all_whole_if_any, count, count_if_any, lists_of_whole, whole, whole_if_any};
use crate::own::Own;
use crate::queue::KvQueue;
use hinterland_pool::{GatheredRuns, GpuOptions, KvCache as Client, QueueOptions, Scatter, Stored};
use hinterland_proto::control::KvEvent;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// KV blocks that processes of this host share.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct KvCache {
    client: Own<Client>,
    fingerprint: String,
}

impl KvCache {
    /// Takes a namespace that was just opened.
    pub(crate) fn new(client: Client, fingerprint: &str) -> Self {
        Self { client: Own::new("KvCache", client), fingerprint: fingerprint.to_owned() }
    }

    /// Runs a call while other threads of the interpreter run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Client) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let client = self.client.value()?;
        Ok(py.detach(|| call(&client))?)
    }
}

/// What happened, to which key, the one that it follows on, and its length.
type Event<'py> = (&'static str, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>, u32);

#[pymethods]
impl KvCache {
    /// Writes blocks; for each, whether it is there now.
    #[pyo3(signature = (keys, blocks, *, prefix = false, after = None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: Keys,
        blocks: Vec<Bound<'_, PyAny>>,
        prefix: bool,
        after: Option<Key>,
    ) -> PyResult<Vec<bool>> {
        let blocks = Blocks::of(keys.len(), &blocks, Direction::Put)?;
        let blocks = &blocks;
        self.with(py, |client| {
            let batch = gathered(&keys, blocks)?;
            let stored = if prefix || after.is_some() {
                client.put_runs_prefix(&batch, after.as_deref())?
            } else {
                client.put_runs(&batch)?
            };
            Ok(stored.into_iter().map(|stored| stored != Stored::NoRoom).collect())
        })
    }

    /// Writes blocks in place of those that their keys have; for each, whether it is there now.
    fn replace(&self, py: Python<'_>, keys: Keys, blocks: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<bool>> {
        let blocks = Blocks::of(keys.len(), &blocks, Direction::Put)?;
        let blocks = &blocks;
        self.with(py, |client| {
            let batch = gathered(&keys, blocks)?;
            Ok(client.replace_runs(&batch)?.into_iter().map(|stored| stored == Stored::Written).collect())
        })
    }

    /// Fills buffers with blocks; for each, whether it was there.
    #[pyo3(signature = (keys, buffers, remote = false))]
    fn get_into(
        &self,
        py: Python<'_>,
        keys: Keys,
        buffers: Vec<Bound<'_, PyAny>>,
        remote: bool,
    ) -> PyResult<Vec<bool>> {
        let mut blocks = Blocks::of(keys.len(), &buffers, Direction::Get)?;
        let blocks = &mut blocks;
        self.with(py, |client| {
            let mut found = Vec::with_capacity(keys.len());
            let mut scatters = blocks.scatters().collect::<Result<Vec<_>, _>>()?;
            let lengths: Vec<u64> = scatters.iter().map(Scatter::bytes).collect();
            let mut get = |index: usize| {
                match client.get_runs(&keys[index], 0, &mut scatters[index])? {
                    Some(bytes) if u64::from(bytes) != lengths[index] => {
                        return Err(Failure::argument(format!(
                            "a block of {bytes} bytes does not fit a buffer of {} (hint: engines of another layout need another fingerprint)",
                            lengths[index]
                        )));
                    }
                    answer => found.push(answer.is_some()),
                }
                Ok(())
            };
            if remote {
                client.fetch_each(&slices(&keys), &|index| lengths[index], &mut get)?;
            } else {
                (0..keys.len()).try_for_each(get)?;
            }
            Ok(found)
        })
    }

    /// Copies as much of blocks as buffers hold; the length of each block, or None.
    #[pyo3(signature = (keys, buffers, offsets = None, remote = false))]
    fn read_into(
        &self,
        py: Python<'_>,
        keys: Keys,
        buffers: Vec<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = all_whole_if_any)] offsets: Option<Vec<u32>>,
        remote: bool,
    ) -> PyResult<Vec<Option<u32>>> {
        let offsets = offsets.unwrap_or_else(|| vec![0; keys.len()]);
        if offsets.len() != keys.len() {
            let text =
                format!("{} keys and {} offsets (hint: pass as many of each)", keys.len(), offsets.len());
            return Err(Failure::argument(text).into());
        }
        let mut blocks = Blocks::of(keys.len(), &buffers, Direction::Get)?;
        let blocks = &mut blocks;
        self.with(py, |client| {
            if !remote {
                let named = keys.iter().zip(offsets).zip(blocks.scatters());
                return named
                    .map(|((key, from), scatter)| Ok(client.get_runs(key, from, &mut scatter?)?))
                    .collect();
            }
            let mut found = Vec::with_capacity(keys.len());
            let mut scatters = blocks.scatters().collect::<Result<Vec<_>, _>>()?;
            let lengths: Vec<u64> = scatters.iter().map(Scatter::bytes).collect();
            client.fetch_each(&slices(&keys), &|index| lengths[index], &mut |index| {
                found.push(client.get_runs(&keys[index], offsets[index], &mut scatters[index])?);
                Ok::<_, Failure>(())
            })?;
            Ok(found)
        })
    }

    /// Copies parts of blocks, those of each of one block; the length of each block, or None.
    fn read_ranges(
        &self,
        py: Python<'_>,
        keys: Keys,
        buffers: Vec<Vec<Bound<'_, PyAny>>>,
        #[pyo3(from_py_with = lists_of_whole)] offsets: Vec<Vec<u32>>,
    ) -> PyResult<Vec<Option<u32>>> {
        let counts: Vec<usize> = offsets.iter().map(Vec::len).collect();
        if keys.len() != counts.len() || buffers.iter().map(Vec::len).ne(counts.iter().copied()) {
            let text =
                "keys, buffers and offsets are not as many (hint: pass a buffer for each offset of each key)";
            return Err(Failure::argument(text).into());
        }
        let buffers: Vec<Bound<'_, PyAny>> = buffers.into_iter().flatten().collect();
        let mut blocks = Blocks::of(buffers.len(), &buffers, Direction::Get)?;
        let blocks = &mut blocks;
        self.with(py, |client| {
            let mut scatters = blocks.scatters();
            let mut read = |(key, offsets): (&Vec<u8>, Vec<u32>)| {
                let parts =
                    offsets.into_iter().zip(&mut scatters).map(|(from, scatter)| Ok((from, scatter?)));
                let mut parts = parts.collect::<Result<Vec<_>, Failure>>()?;
                Ok(client.get_ranges(key, &mut parts)?)
            };
            keys.iter().zip(offsets).map(&mut read).collect()
        })
    }

    /// For each key, the length of its block, or None.
    #[pyo3(signature = (keys, remote = false))]
    fn lengths(&self, py: Python<'_>, keys: Keys, remote: bool) -> PyResult<Vec<Option<u32>>> {
        self.with(py, |client| {
            if remote {
                return Ok(client.lengths_everywhere(&slices(&keys))?);
            }
            keys.iter().map(|key| Ok(client.length(key)?)).collect()
        })
    }

    /// A block as bytes, or None.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.with(py, |client| {
            let Some(mut length) = client.length(&key)? else { return Ok(None) };
            loop {
                let mut bytes = vec![0; length as usize];
                let Some(read) = client.get(&key, &mut [&mut bytes])? else { return Ok(None) };
                if read <= length {
                    bytes.truncate(read as usize);
                    return Ok(Some(bytes));
                }
                // A longer one has taken its place meanwhile.
                length = read;
            }
        })?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// For each key, whether its block is there.
    fn exists(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        self.with(py, |client| Ok(client.exists(&slices(&keys))?))
    }

    /// How many of the keys are there, from the first on.
    #[pyo3(signature = (keys, remote = false))]
    fn match_prefix(&self, py: Python<'_>, keys: Keys, remote: bool) -> PyResult<usize> {
        self.with(py, |client| {
            let keys = slices(&keys);
            Ok(if remote { client.match_prefix_everywhere(&keys)? } else { client.match_prefix(&keys)? })
        })
    }

    /// Brings blocks here from other nodes; for each key, whether its block is here then.
    fn fetch(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        self.with(py, |client| Ok(client.fetch(&slices(&keys))?))
    }

    /// Begins to bring blocks here; returns how many are looked for.
    fn prefetch(&self, py: Python<'_>, keys: Keys) -> PyResult<usize> {
        self.with(py, |client| Ok(client.prefetch(&slices(&keys))?))
    }

    /// Keeps blocks from being evicted; for each, whether it is.
    fn pin(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        self.with(py, |client| Ok(client.pin(&slices(&keys))?))
    }

    /// Takes pins back; for each, whether there was one.
    fn unpin(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        self.with(py, |client| Ok(client.unpin(&slices(&keys))?))
    }

    /// Sets how many bytes the namespace may take, and its priority; returns the bytes that it takes.
    #[pyo3(signature = (quota_bytes = None, priority = 100))]
    fn limit(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count_if_any)] quota_bytes: Option<u64>,
        #[pyo3(from_py_with = whole::<0, { u8::MAX as u64 }, u8>)] priority: u8,
    ) -> PyResult<u64> {
        self.with(py, |client| Ok(client.limit(quota_bytes, priority)?))
    }

    /// What came and went since a number; the next number, the events, and whether some are lost.
    #[pyo3(signature = (after = 0))]
    fn events<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = count)] after: u64,
    ) -> PyResult<(u64, Vec<Event<'py>>, bool)> {
        let some = self.with(py, |client| Ok(client.events(after)?))?;
        let told = some.events.into_iter().map(|event| match event {
            KvEvent::Stored { key, parent, bytes } => {
                let parent = parent.map(|parent| PyBytes::new(py, &parent));
                ("stored", PyBytes::new(py, &key), parent, bytes)
            }
            KvEvent::Removed { key } => ("removed", PyBytes::new(py, &key), None, 0),
        });
        Ok((some.next, told.collect(), some.lost))
    }

    /// All keys of the namespace.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let keys = self.with(py, |client| Ok(client.keys()))?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
    }

    /// Removes blocks, here or at every node; returns how many were there.
    #[pyo3(signature = (keys, everywhere = false))]
    fn remove(&self, py: Python<'_>, keys: Keys, everywhere: bool) -> PyResult<u64> {
        self.with(py, |client| {
            let keys = slices(&keys);
            Ok(if everywhere { client.remove_everywhere(&keys)? } else { client.remove(&keys)? })
        })
    }

    /// Removes blocks at every other node; returns how many were there.
    fn remove_elsewhere(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        self.with(py, |client| Ok(client.remove_elsewhere(&slices(&keys))?))
    }

    /// Removes all blocks of the namespace, here or at every node; returns how many there were.
    #[pyo3(signature = (everywhere = false))]
    fn clear(&self, py: Python<'_>, everywhere: bool) -> PyResult<u64> {
        self.with(py, |client| Ok(if everywhere { client.clear_everywhere()? } else { client.clear()? }))
    }

    /// Whether the node has ended the session.
    fn is_lost(&self) -> PyResult<bool> {
        Ok(self.client.value()?.is_lost())
    }

    /// A queue of batches of these blocks.
    #[pyo3(signature = (workers = 2, depth = 1024, wait = false))]
    fn queue(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::<1, { QueueOptions::WORKERS_MAX as u64 }, usize>)] workers: usize,
        #[pyo3(from_py_with = whole::<1, { QueueOptions::DEPTH_MAX as u64 }, usize>)] depth: usize,
        wait: bool,
    ) -> PyResult<KvQueue> {
        self.with(py, |client| KvQueue::open(client, workers, depth, wait))
    }

    /// Lets a GPU reach the blocks.
    #[pyo3(signature = (device = None))]
    fn gpu(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_if_any::<0, { i32::MAX as u64 }, usize>)] device: Option<usize>,
    ) -> PyResult<KvGpu> {
        let compiler = py.import("hinterland.nvrtc")?.getattr("path")?.call0()?.extract()?;
        self.with(py, |client| KvGpu::open(client, &GpuOptions { device, compiler, driver: None }))
    }

    /// Gives the namespace back; its blocks stay.
    fn close(&self, py: Python<'_>) {
        let client = self.client.take();
        py.detach(|| drop(client));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_details))]
    fn __exit__(&self, py: Python<'_>, _details: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<hinterland.KvCache {:?}>", self.fingerprint)
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = "a KvCache is of one process (hint: open it in the other with the same fingerprint)";
        Err(PyTypeError::new_err(text))
    }
}

/// A batch to write: each key with the runs of its block.
fn gathered<'batch>(
    keys: &'batch [Vec<u8>],
    blocks: &'batch Blocks,
) -> Result<Vec<GatheredRuns<'batch>>, Failure> {
    keys.iter().zip(blocks.gathers()).map(|(key, gather)| Ok((&key[..], gather?))).collect()
}

fn slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(|key| &key[..]).collect()
}
