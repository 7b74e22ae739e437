//! Memory of Python objects: contiguous bytes that a call reads or fills while other threads of the interpreter run.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use std::io::{self, Read};

/// The memory of an object, kept alive and in place.
///
/// # Errors
/// `TypeError` for an object without a buffer, and for an array of objects, whose memory has pointers: they mean nothing to another
/// process, and bytes in their place end the interpreter.
pub(crate) fn buffer_of(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    // Names of fields stand between colons; outside of them an O is a pointer to an object.
    if buffer.format().to_bytes().split(|&byte| byte == b':').step_by(2).any(|codes| codes.contains(&b'O')) {
        let text = "the buffer has objects of Python in it, not their bytes (hint: pass an array of numbers)";
        return Err(PyTypeError::new_err(text));
    }
    Ok(buffer)
}

/// Contiguous memory of an object, kept alive and in place as long as this value.
pub(crate) struct Bytes {
    buffer: PyUntypedBuffer,
}

impl Bytes {
    /// The memory of an object, to be read.
    ///
    /// # Errors
    /// Those of [`buffer_of`]; `BufferError` for an object that is not contiguous.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = buffer_of(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the bytes are not contiguous (hint: copy them first)"));
        }
        Ok(Self { buffer })
    }

    /// The memory of an object, to be filled.
    ///
    /// # Errors
    /// As [`of`](Self::of), and `TypeError` for memory that cannot be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Self::of(object)?;
        if bytes.buffer.readonly() {
            let text = "the buffer cannot be written (hint: pass a bytearray or a writable array)";
            return Err(PyTypeError::new_err(text));
        }
        Ok(bytes)
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len_bytes()
    }

    /// The bytes. A program that changes them at the same time in another thread gets some mixture, as from any file.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps the memory in place while the buffer is held; it is contiguous and not empty.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.len()) }
    }

    /// The bytes, to be filled.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as in `as_slice`; only what `writable` made is filled.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast(), self.len()) }
    }
}

/// Reads the memory of an object from start to end.
pub(crate) struct BytesReader {
    bytes: Bytes,
    at: usize,
}

impl BytesReader {
    /// From the first byte on.
    pub(crate) const fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }
}

impl Read for BytesReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes.as_slice()[self.at..];
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}
