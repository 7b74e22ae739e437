//! Memory of Python objects that need not be contiguous: a view of one block in a larger array.

use crate::buffer::{Memory, buffer_of};
use hinterland_pool::Run;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// Adds the memory of an object, to be read, to `runs`; what is returned keeps it alive and in place.
///
/// # Errors
/// Those of [`buffer_of`]; `BufferError` for an object that reaches its rows by pointers.
pub(crate) fn readable(object: &Bound<'_, PyAny>, runs: &mut Vec<Run>) -> PyResult<Memory> {
    let memory = buffer_of(object)?;
    let Memory::Shaped(buffer) = &memory else {
        add_runs(memory.start(), &[], &[], memory.len(), runs);
        return Ok(memory);
    };
    if buffer.suboffsets().is_some_and(|offsets| offsets.iter().any(|&offset| offset >= 0)) {
        return Err(PyBufferError::new_err("the buffer reaches its rows by pointers (hint: copy it first)"));
    }
    let start = buffer.buf_ptr().expose_provenance();
    add_runs(start, buffer.shape(), buffer.strides(), buffer.item_size(), runs);
    Ok(memory)
}

/// Adds the memory of an object, to be filled, to `runs`; what is returned keeps it alive and in place.
///
/// # Errors
/// As [`readable`], `TypeError` for memory that cannot be written, `BufferError` for elements that share memory.
pub(crate) fn writable(object: &Bound<'_, PyAny>, runs: &mut Vec<Run>) -> PyResult<Memory> {
    let first = runs.len();
    let buffer = readable(object, runs)?;
    if buffer.is_readonly() {
        let text = "the buffer cannot be written (hint: pass a bytearray or a writable array)";
        return Err(PyTypeError::new_err(text));
    }
    if !are_apart(&runs[first..]) {
        let text = "elements of the buffer share memory (hint: pass an array that is not broadcast)";
        return Err(PyBufferError::new_err(text));
    }
    Ok(buffer)
}

/// The bytes of an array in the order of its elements; nothing for an empty one. One run where the strides allow it.
pub(crate) fn add_runs(
    start: usize,
    shape: &[usize],
    strides: &[isize],
    item_bytes: usize,
    runs: &mut Vec<Run>,
) {
    if shape.contains(&0) || item_bytes == 0 {
        return;
    }
    let mut bytes = item_bytes;
    // From the innermost outwards: distance and number of what is not contiguous.
    let mut outer: Vec<(isize, usize)> = Vec::with_capacity(shape.len());
    for (&count, &stride) in shape.iter().zip(strides).rev().filter(|(count, _)| **count > 1) {
        match outer.last_mut() {
            None if stride > 0 && stride.unsigned_abs() == bytes => bytes *= count,
            Some((inner, number)) if stride == inner.wrapping_mul(*number as isize) => *number *= count,
            _ => outer.push((stride, count)),
        }
    }
    let (stride, count) = outer.first().copied().unwrap_or((0, 1));
    let first = runs.len();
    runs.push(Run { start, bytes, stride, count });
    // What is outside of it repeats it, the outermost slowest.
    for &(stride, count) in outer.iter().skip(1) {
        let inner = first..runs.len();
        for index in 1..count as isize {
            for run in inner.clone() {
                let start = runs[run].start.wrapping_add_signed(stride.wrapping_mul(index));
                runs.push(Run { start, ..runs[run] });
            }
        }
    }
}

/// Whether no two fragments share a byte.
pub(crate) fn are_apart(runs: &[Run]) -> bool {
    if let [Run { bytes, stride, count, .. }] = runs {
        return *count == 1 || stride.unsigned_abs() >= *bytes;
    }
    let mut fragments: Vec<(usize, usize)> = Vec::new();
    for run in runs {
        let start = |index: usize| run.start.wrapping_add_signed(run.stride.wrapping_mul(index as isize));
        fragments.extend((0..run.count).map(|index| (start(index), run.bytes)));
    }
    fragments.sort_unstable();
    fragments.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
}

#[cfg(test)]
mod tests {
    use super::{Run, add_runs, are_apart};

    fn runs(
        start: usize,
        shape: &[usize],
        strides: &[isize],
        item_bytes: usize,
    ) -> Vec<(usize, usize, isize, usize)> {
        let mut runs = Vec::new();
        add_runs(start, shape, strides, item_bytes, &mut runs);
        runs.iter().map(|run| (run.start, run.bytes, run.stride, run.count)).collect()
    }

    #[test]
    fn rows_of_a_larger_array_are_runs_in_order() {
        assert_eq!(runs(100, &[], &[], 8), [(100, 8, 0, 1)]);
        assert_eq!(runs(100, &[3, 4], &[8, 2], 2), [(100, 24, 0, 1)]);
        assert_eq!(runs(100, &[2, 4], &[64, 2], 2), [(100, 8, 64, 2)]);
        assert_eq!(runs(100, &[2, 1, 4], &[64, 1000, 2], 2), [(100, 8, 64, 2)]);
        assert_eq!(runs(100, &[2, 2, 2], &[100, 10, 1], 1), [(100, 2, 10, 2), (200, 2, 10, 2)]);
        assert_eq!(runs(100, &[3], &[-4], 4), [(100, 4, -4, 3)]);
        assert_eq!(runs(100, &[3, 0], &[4, 4], 4), []);
        // A block of a paged cache: layers and kinds at one distance.
        assert_eq!(runs(0, &[30, 2, 64], &[2 * 6400, 6400, 1], 1), [(0, 64, 6400, 60)]);
        assert_eq!(runs(0, &[2, 2, 2, 1], &[1000, 100, 10, 1], 1).len(), 4);
    }

    #[test]
    fn elements_that_share_memory_are_noticed() {
        let run = |start, bytes, stride, count| Run { start, bytes, stride, count };
        assert!(are_apart(&[run(0, 4, 4, 8)]) && are_apart(&[run(100, 4, -4, 8)]) && are_apart(&[]));
        assert!(!are_apart(&[run(0, 4, 3, 2)]) && !are_apart(&[run(0, 1, 0, 2)]));
        assert!(are_apart(&[run(0, 1, 2, 4), run(1, 1, 2, 4)]));
        assert!(!are_apart(&[run(0, 2, 2, 4), run(7, 1, 2, 4)]));
    }
}
