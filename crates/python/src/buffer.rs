//! Memory of Python objects: contiguous bytes that a call reads or fills while other threads of the interpreter run.

use hinterland_types::WINDOW_BASE;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::io::{self, Read};

/// The memory of an object, kept alive and in place.
pub(crate) enum Memory {
    /// Elements in some order.
    Shaped(PyUntypedBuffer),
    /// Bytes in a row of which the object says no more, as those of `ctypes` and arrays without dimensions.
    Plain(Plain),
}

/// A view that has no shape.
pub(crate) struct Plain(Box<ffi::Py_buffer>);

// SAFETY: the exporter keeps the memory in place, whichever thread has the view; it is released by one that is attached to the interpreter.
unsafe impl Send for Plain {}
// SAFETY: as above; the view does not change.
unsafe impl Sync for Plain {}

impl Plain {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, and the view is filled in or an exception is set.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FORMAT) };
        if got == 0 { Ok(Self(view)) } else { Err(PyErr::fetch(object.py())) }
    }

    fn format(&self) -> &[u8] {
        if self.0.format.is_null() {
            return b"B";
        }
        // SAFETY: the exporter keeps the string as long as the view.
        unsafe { std::ffi::CStr::from_ptr(self.0.format) }.to_bytes()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: the view was filled in, and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

impl Memory {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Shaped(buffer) => buffer.len_bytes(),
            // A length is not negative.
            Self::Plain(plain) => plain.0.len as usize,
        }
    }

    /// The first byte.
    pub(crate) fn start(&self) -> usize {
        self.pointer().expose_provenance()
    }

    /// Whether it cannot be written.
    pub(crate) fn is_readonly(&self) -> bool {
        match self {
            Self::Shaped(buffer) => buffer.readonly(),
            Self::Plain(plain) => plain.0.readonly != 0,
        }
    }

    fn pointer(&self) -> *mut u8 {
        match self {
            Self::Shaped(buffer) => buffer.buf_ptr().cast(),
            Self::Plain(plain) => plain.0.buf.cast(),
        }
    }

    fn is_contiguous(&self) -> bool {
        match self {
            Self::Shaped(buffer) => buffer.is_c_contiguous(),
            Self::Plain(_) => true,
        }
    }

    fn format(&self) -> &[u8] {
        match self {
            Self::Shaped(buffer) => buffer.format().to_bytes(),
            Self::Plain(plain) => plain.format(),
        }
    }
}

/// The memory of an object.
///
/// # Errors
/// `TypeError` for an object without a buffer, and for an array of objects, whose memory has pointers: they mean nothing to another
/// process, and bytes in their place end the interpreter.
pub(crate) fn buffer_of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
    let memory = match PyUntypedBuffer::get(object) {
        Ok(buffer) => Memory::Shaped(buffer),
        // No shape, or no distances: then it is in a row, or the object says why not.
        Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
            Memory::Plain(Plain::of(object).map_err(|_| error)?)
        }
        Err(error) => return Err(error),
    };
    // Names of fields stand between colons; outside of them an O is a pointer to an object.
    if memory.format().split(|&byte| byte == b':').step_by(2).any(|codes| codes.contains(&b'O')) {
        let text = "the buffer has objects of Python in it, not their bytes (hint: pass an array of numbers)";
        return Err(PyTypeError::new_err(text));
    }
    Ok(memory)
}

/// Contiguous memory of an object, kept alive and in place as long as this value.
pub(crate) struct Bytes {
    memory: Memory,
}

impl Bytes {
    /// The memory of an object, to be read.
    ///
    /// # Errors
    /// Those of [`buffer_of`]; `BufferError` for an object that is not contiguous.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let memory = buffer_of(object)?;
        if !memory.is_contiguous() {
            return Err(PyBufferError::new_err("the bytes are not contiguous (hint: copy them first)"));
        }
        Ok(Self { memory })
    }

    /// The memory of an object, to be filled.
    ///
    /// # Errors
    /// As [`of`](Self::of), and `TypeError` for memory that cannot be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Self::of(object)?;
        if bytes.memory.is_readonly() {
            let text = "the buffer cannot be written (hint: pass a bytearray or a writable array)";
            return Err(PyTypeError::new_err(text));
        }
        Ok(bytes)
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// The bytes to write from `address` of the pool on: a copy where the buffer is of a mapping of the same memory, since copies by words
    /// are for memory that is apart.
    pub(crate) fn apart_from(&self, address: u64) -> Cow<'_, [u8]> {
        let bytes = self.as_slice();
        if self.is_at(address) { Cow::Owned(bytes.to_vec()) } else { Cow::Borrowed(bytes) }
    }

    /// Has the bytes filled with those from `address` of the pool on, by way of a copy where the buffer is of a mapping of the same
    /// memory; gives their number.
    pub(crate) fn fill_from<E>(
        &mut self,
        address: u64,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        if self.is_at(address) {
            let mut copy = vec![0; self.len()];
            read(&mut copy)?;
            self.as_mut_slice().copy_from_slice(&copy);
        } else {
            read(self.as_mut_slice())?;
        }
        Ok(self.len())
    }

    /// Whether as many bytes from `address` of the pool on, mapped where every process has them, share some with this memory.
    fn is_at(&self, address: u64) -> bool {
        let start = WINDOW_BASE.saturating_add(address);
        start.abs_diff(self.memory.start() as u64) < self.len() as u64
    }

    /// The bytes. A program that changes them at the same time in another thread gets some mixture, as from any file.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps the memory in place while the buffer is held; it is contiguous and not empty.
        unsafe { std::slice::from_raw_parts(self.memory.pointer(), self.len()) }
    }

    /// The bytes, to be filled.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as in `as_slice`; only what `writable` made is filled.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer(), self.len()) }
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
