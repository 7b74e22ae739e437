//! Memory of a GPU in Python objects: arrays that say where they lie, pairs of address and length, or lists of these.

use crate::blocks::{Direction, Fragments};
use crate::failure::Failure;
use crate::strided::{add_runs, are_apart};
use hinterland_pool::{Batch, Run};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyTuple};

/// The memory of a batch on a GPU, and the objects that keep it there.
pub(crate) struct DeviceBlocks {
    pub(crate) batch: Batch,
    pub(crate) kept: Vec<Py<PyAny>>,
}

impl DeviceBlocks {
    /// The memory of objects, one for each key.
    ///
    /// # Errors
    /// `TypeError` for an object that is no memory of a GPU, or cannot be written for a get; `BufferError` for one that no block
    /// can be in; [`Failure::argument`] if there are not as many as keys.
    pub(crate) fn of(keys: &[Vec<u8>], objects: &[Bound<'_, PyAny>], direction: Direction) -> PyResult<Self> {
        if keys.len() != objects.len() {
            let text =
                format!("{} keys and {} buffers (hint: pass as many of each)", keys.len(), objects.len());
            return Err(Failure::argument(text).into());
        }
        let mut blocks = Self {
            batch: Batch::with_capacity(keys.len(), keys.len()),
            kept: Vec::with_capacity(keys.len()),
        };
        for (key, object) in keys.iter().zip(objects) {
            let mut runs = Vec::new();
            if let Ok(list) = object.cast::<PyList>() {
                list.iter().try_for_each(|part| add(&part, direction, &mut runs))?;
            } else if let Some(pair) = pair(object)? {
                runs.push(pair);
            } else if let Ok(tuple) = object.cast::<PyTuple>() {
                tuple.iter().try_for_each(|part| add(&part, direction, &mut runs))?;
            } else {
                add(object, direction, &mut runs)?;
            }
            if direction == Direction::Get && !are_apart(&runs) {
                let text = "parts of a buffer share memory (hint: pass an array that is not broadcast)";
                return Err(PyBufferError::new_err(text));
            }
            blocks.batch.push(key, runs).map_err(Failure::from)?;
            blocks.kept.push(object.clone().unbind());
        }
        Ok(blocks)
    }
}

/// Adds one part of a block.
fn add(object: &Bound<'_, PyAny>, direction: Direction, runs: &mut Vec<Run>) -> PyResult<()> {
    if let Ok(fragments) = object.cast::<Fragments>() {
        runs.extend_from_slice(fragments.get().runs(direction)?);
        return Ok(());
    }
    if let Some(pair) = pair(object)? {
        runs.push(pair);
        return Ok(());
    }
    let Ok(interface) = object.getattr("__cuda_array_interface__") else {
        let text = format!(
            "a {} has no __cuda_array_interface__ (hint: pass a CUDA array, (address, nbytes), or of a type that numpy lacks tensor.view(torch.uint8))",
            object.get_type().name()?
        );
        return Err(PyTypeError::new_err(text));
    };
    add_array(interface.cast::<PyDict>()?, direction, runs)
}

/// Adds an array that says where it lies, as <https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html> has it.
fn add_array(interface: &Bound<'_, PyDict>, direction: Direction, runs: &mut Vec<Run>) -> PyResult<()> {
    let field = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(interface.get_item(name)?.filter(|value| !value.is_none()))
    };
    let needed = |name: &'static str| -> PyResult<Bound<'_, PyAny>> {
        field(name)?.ok_or_else(|| {
            PyTypeError::new_err(format!(
                "a __cuda_array_interface__ without {name} (hint: pass a CUDA array)"
            ))
        })
    };
    let (start, read_only): (usize, bool) = needed("data")?.extract()?;
    if read_only && direction == Direction::Get {
        return Err(PyTypeError::new_err("the array cannot be written (hint: pass a writable one)"));
    }
    if field("mask")?.is_some() {
        return Err(PyBufferError::new_err("the array has a mask (hint: pass the array below it)"));
    }
    let shape: Vec<usize> = needed("shape")?.extract()?;
    let kind: String = needed("typestr")?.extract()?;
    let item_bytes: usize = kind.get(2..).and_then(|digits| digits.parse().ok()).ok_or_else(|| {
        PyTypeError::new_err(format!("elements of type {kind:?} (hint: pass an array of numbers or bytes)"))
    })?;
    let strides: Vec<isize> = match field("strides")? {
        Some(strides) => strides.extract()?,
        None => contiguous(&shape, item_bytes),
    };
    if strides.len() != shape.len() {
        return Err(PyBufferError::new_err(
            "as many strides as dimensions are needed (hint: report the array)",
        ));
    }
    add_runs(start, &shape, &strides, item_bytes, runs);
    Ok(())
}

/// An address and a length in bytes.
fn pair(object: &Bound<'_, PyAny>) -> PyResult<Option<Run>> {
    let Ok(tuple) = object.cast::<PyTuple>() else { return Ok(None) };
    if tuple.len() != 2 || !tuple.iter().all(|item| item.cast::<PyInt>().is_ok()) {
        return Ok(None);
    }
    let (start, bytes) = tuple.extract()?;
    Ok(Some(Run::single(start, bytes)))
}

/// The strides of an array without gaps.
fn contiguous(shape: &[usize], item_bytes: usize) -> Vec<isize> {
    let mut stride = item_bytes;
    let mut strides: Vec<isize> = shape
        .iter()
        .rev()
        .map(|&count| {
            let this = stride as isize;
            stride = stride.saturating_mul(count.max(1));
            this
        })
        .collect();
    strides.reverse();
    strides
}

/// The handle of a stream: a number, or an object that has one as PyTorch, CuPy and cuda.core name it.
pub(crate) fn stream_handle(stream: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
    let Some(stream) = stream else { return Ok(0) };
    if stream.cast::<PyInt>().is_ok() {
        return stream.extract();
    }
    if let Ok(method) = stream.getattr("__cuda_stream__") {
        let (_version, handle): (usize, usize) = method.call0()?.extract()?;
        return Ok(handle);
    }
    for name in ["cuda_stream", "ptr"] {
        if let Ok(handle) = stream.getattr(name) {
            return handle.extract();
        }
    }
    let text =
        "no CUDA stream (hint: pass torch.cuda.current_stream(), a CuPy stream, or the handle as a number)";
    Err(PyTypeError::new_err(text))
}

#[cfg(test)]
mod tests {
    use super::contiguous;

    #[test]
    fn an_array_without_strides_has_no_gaps() {
        assert_eq!(contiguous(&[2, 3, 4], 2), [24, 8, 2]);
        assert_eq!(contiguous(&[0, 3], 4), [12, 4]);
        assert!(contiguous(&[], 8).is_empty());
    }
}
