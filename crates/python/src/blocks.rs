//! The memory of a batch of blocks: buffers, lists of buffers, or fragments by their address.

use crate::buffer::Memory;
use crate::failure::Failure;
use crate::number::all_whole;
use crate::strided::{readable, writable};
use hinterland_pool::{Batch, Gather, PoolError, Run, Scatter};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Memory by address, for programs that register what they own and pass pointers.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct Fragments {
    runs: Vec<Run>,
    writable: bool,
    _owner: Option<Py<PyAny>>,
}

#[pymethods]
impl Fragments {
    /// Fragments of `sizes` bytes at `addresses`; `owner` is kept alive with them.
    #[new]
    #[pyo3(signature = (addresses, sizes, owner = None, writable = true))]
    fn new(
        #[pyo3(from_py_with = all_whole)] addresses: Vec<usize>,
        #[pyo3(from_py_with = all_whole)] sizes: Vec<usize>,
        owner: Option<Py<PyAny>>,
        writable: bool,
    ) -> PyResult<Self> {
        if addresses.len() != sizes.len() {
            let text = format!(
                "{} addresses and {} sizes (hint: pass as many of each)",
                addresses.len(),
                sizes.len()
            );
            return Err(Failure::argument(text).into());
        }
        if addresses.iter().zip(&sizes).any(|(&address, &bytes)| address == 0 && bytes > 0) {
            return Err(
                Failure::argument("a fragment at address 0 (hint: pass the address of memory)").into()
            );
        }
        let total = sizes.iter().try_fold(0_usize, |total, &bytes| total.checked_add(bytes));
        if total.is_none_or(|total| isize::try_from(total).is_err()) {
            let text = "the fragments are longer than all memory (hint: sizes are in bytes)";
            return Err(Failure::argument(text).into());
        }
        let runs = addresses.into_iter().zip(sizes).map(|(start, bytes)| Run::single(start, bytes)).collect();
        Ok(Self { runs, writable, _owner: owner })
    }

    /// Bytes of all fragments.
    #[getter]
    fn nbytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    fn __repr__(&self) -> String {
        format!("<hinterland.Fragments {} of {} bytes>", self.runs.len(), self.nbytes())
    }
}

impl Fragments {
    /// The fragments.
    ///
    /// # Errors
    /// `TypeError` if they are to be filled and cannot be.
    pub(crate) fn runs(&self, direction: Direction) -> PyResult<&[Run]> {
        if direction == Direction::Get && !self.writable {
            let text = "these Fragments were made with writable=False (hint: pass memory to be filled)";
            return Err(pyo3::exceptions::PyTypeError::new_err(text));
        }
        Ok(&self.runs)
    }
}

/// What a batch is done with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Its memory is read.
    Put,
    /// Its memory is filled.
    Get,
}

/// Keeps the memory of a batch in place.
#[derive(Default)]
pub(crate) struct Kept {
    _buffers: Vec<Memory>,
    _fragments: Vec<Py<Fragments>>,
}

/// The memory of a batch: one list of runs, and where those of each block end.
#[derive(Default)]
pub(crate) struct Blocks {
    runs: Vec<Run>,
    ends: Vec<usize>,
    kept: Kept,
}

impl Blocks {
    /// The memory of objects, one for each key.
    ///
    /// # Errors
    /// `TypeError` for an object that is no memory, or cannot be written for a get; `BufferError` for memory that no block can
    /// be in; [`Failure::argument`] if there are not as many as keys.
    pub(crate) fn of(keys: usize, objects: &[Bound<'_, PyAny>], direction: Direction) -> PyResult<Self> {
        if keys != objects.len() {
            let text = format!("{keys} keys and {} buffers (hint: pass as many of each)", objects.len());
            return Err(Failure::argument(text).into());
        }
        let mut blocks = Self { ends: Vec::with_capacity(keys), ..Self::default() };
        for object in objects {
            if let Ok(list) = object.cast::<PyList>() {
                list.iter().try_for_each(|part| blocks.add(&part, direction))?;
            } else if let Ok(tuple) = object.cast::<PyTuple>() {
                tuple.iter().try_for_each(|part| blocks.add(&part, direction))?;
            } else {
                blocks.add(object, direction)?;
            }
            blocks.ends.push(blocks.runs.len());
        }
        Ok(blocks)
    }

    fn add(&mut self, object: &Bound<'_, PyAny>, direction: Direction) -> PyResult<()> {
        if let Ok(fragments) = object.cast::<Fragments>() {
            self.runs.extend_from_slice(fragments.get().runs(direction)?);
            self.kept._fragments.push(fragments.clone().unbind());
            return Ok(());
        }
        let take = if direction == Direction::Get { writable } else { readable };
        self.kept._buffers.push(take(object, &mut self.runs)?);
        Ok(())
    }

    /// The runs of each block.
    fn lists(&self) -> impl Iterator<Item = &[Run]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.runs[start..end])
    }

    /// The memory of each block, to be read. A program that changes it at the same time in another thread gets some
    /// mixture, as from any file.
    pub(crate) fn gathers(&self) -> impl Iterator<Item = Result<Gather<'_>, PoolError>> {
        // SAFETY: the exporters keep the buffers' memory in place while they are held in `kept`; for fragments by address
        // whoever made them answers.
        self.lists().map(|runs| unsafe { Gather::of_addresses(runs) })
    }

    /// The memory of each block, to be filled.
    pub(crate) fn scatters(&mut self) -> impl Iterator<Item = Result<Scatter<'_>, PoolError>> {
        // SAFETY: as in `gathers`; blocks of a get were checked to be writable.
        self.lists().map(|runs| unsafe { Scatter::of_addresses(runs) })
    }

    /// The same for a queue, and what it has to keep.
    pub(crate) fn batch(self, keys: &[Vec<u8>]) -> Result<(Batch, Kept), Failure> {
        let mut batch = Batch::with_capacity(keys.len(), self.runs.len());
        for (key, runs) in keys.iter().zip(self.lists()) {
            batch.push(key, runs.iter().copied())?;
        }
        Ok((batch, self.kept))
    }
}
