//! Memory of Python objects that need not be contiguous: a view of one block in a larger array.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// The runs of contiguous bytes of an object's memory, in the order of its elements, kept alive and in place as long as this
/// value.
pub(crate) struct Strided {
    /// Address and length of each run.
    runs: Vec<(usize, usize)>,
    buffer: PyUntypedBuffer,
}

impl Strided {
    /// The memory of an object, to be read.
    ///
    /// # Errors
    /// `TypeError` for an object without a buffer; `BufferError` for one that reaches its rows by pointers.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if buffer.suboffsets().is_some_and(|offsets| offsets.iter().any(|&offset| offset >= 0)) {
            return Err(PyBufferError::new_err(
                "the buffer reaches its rows by pointers (hint: copy it first)",
            ));
        }
        let runs =
            runs(buffer.buf_ptr().expose_provenance(), buffer.shape(), buffer.strides(), buffer.item_size());
        Ok(Self { runs, buffer })
    }

    /// The memory of an object, to be filled.
    ///
    /// # Errors
    /// As [`of`](Self::of), `TypeError` for memory that cannot be written, `BufferError` for elements that share memory.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let strided = Self::of(object)?;
        if strided.buffer.readonly() {
            let text = "the buffer cannot be written (hint: pass a bytearray or a writable array)";
            return Err(PyTypeError::new_err(text));
        }
        let mut sorted = strided.runs.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            let text = "elements of the buffer share memory (hint: pass an array that is not broadcast)";
            return Err(PyBufferError::new_err(text));
        }
        Ok(strided)
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.runs.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The bytes. A program that changes them at the same time in another thread gets some mixture, as from any file.
    pub(crate) fn pieces(&self) -> Vec<&[u8]> {
        let piece = |&(address, bytes): &(usize, usize)| {
            // SAFETY: the exporter keeps the memory in place while the buffer is held, and the run lies in it.
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), bytes) }
        };
        self.runs.iter().map(piece).collect()
    }

    /// The bytes, to be filled.
    pub(crate) fn pieces_mut(&mut self) -> Vec<&mut [u8]> {
        let piece = |&(address, bytes): &(usize, usize)| {
            // SAFETY: as in `pieces`; only what `writable` made is filled, whose runs do not overlap.
            unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), bytes) }
        };
        self.runs.iter().map(piece).collect()
    }
}

/// Address and length of each run of contiguous bytes of an array, in the order of its elements; none for an empty one.
fn runs(start: usize, shape: &[usize], strides: &[isize], item_bytes: usize) -> Vec<(usize, usize)> {
    if shape.contains(&0) || item_bytes == 0 {
        return Vec::new();
    }
    let (mut outer, mut bytes) = (shape.len(), item_bytes);
    while outer > 0
        && (shape[outer - 1] == 1 || strides[outer - 1].unsigned_abs() == bytes && strides[outer - 1] > 0)
    {
        bytes *= shape[outer - 1];
        outer -= 1;
    }
    let mut runs = vec![(start, bytes)];
    for (&count, &stride) in shape[..outer].iter().zip(strides) {
        let along = |&(address, bytes): &(usize, usize)| {
            (0..count as isize).map(move |index| (address.wrapping_add_signed(index * stride), bytes))
        };
        runs = runs.iter().flat_map(along).collect();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn rows_of_a_larger_array_are_runs_in_order() {
        assert_eq!(runs(100, &[], &[], 8), [(100, 8)]);
        assert_eq!(runs(100, &[3, 4], &[8, 2], 2), [(100, 24)]);
        assert_eq!(runs(100, &[2, 4], &[64, 2], 2), [(100, 8), (164, 8)]);
        assert_eq!(runs(100, &[2, 1, 4], &[64, 1000, 2], 2), [(100, 8), (164, 8)]);
        assert_eq!(runs(100, &[2, 2, 2], &[100, 10, 1], 1), [(100, 2), (110, 2), (200, 2), (210, 2)]);
        assert_eq!(runs(100, &[3], &[-4], 4), [(100, 4), (96, 4), (92, 4)]);
        assert_eq!(runs(100, &[3, 0], &[4, 4], 4), []);
    }
}
