//! An open object: reads at any offset, and weaker handles of it.

use crate::buffer::Bytes;
use crate::failure::Failure;
use crate::number::{count, count_if_any};
use crate::own::Own;
use crate::pool::Connected;
use hinterland_pool::Object as Opened;
use hinterland_types::{ByteRange, Rights};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// An open object or region.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct Object {
    opened: Own<Opened>,
    pool: Arc<Own<Connected>>,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    offset: u64,
    #[pyo3(get)]
    nbytes: u64,
    #[pyo3(get)]
    is_writable: bool,
    #[pyo3(get)]
    is_local: bool,
}

impl Object {
    /// Takes an object that was just opened.
    pub(crate) fn new(opened: Opened, pool: Arc<Own<Connected>>) -> Self {
        let (name, range) = (opened.info().name.to_string(), opened.range());
        let (offset, nbytes) = (range.offset(), range.bytes());
        let (is_writable, is_local) = (opened.rights().allows(Rights::WRITE), opened.is_local());
        Self { opened: Own::new("Object", opened), pool, name, offset, nbytes, is_writable, is_local }
    }

    /// Runs a call while other threads of the interpreter run, unless the pool is closed; closed meanwhile, its session ends after it.
    fn with<T: Send>(&self, py: Python<'_>, call: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
        let connected = self.pool.value()?;
        Ok(py.detach(move || {
            let result = call();
            drop(connected);
            result
        })?)
    }

    /// Which bytes are meant: by default all that it reaches, from `offset` on.
    fn range(&self, offset: Option<u64>, bytes: Option<u64>) -> Result<ByteRange, Failure> {
        let offset = offset.unwrap_or(self.offset);
        let bytes = bytes.unwrap_or_else(|| (self.offset + self.nbytes).saturating_sub(offset));
        Ok(ByteRange::new(offset, bytes)?)
    }

    /// Whether the object has these bytes; which of them the handle reaches is asked later.
    fn check(opened: &Opened, offset: u64, bytes: u64) -> Result<(), Failure> {
        ByteRange::within(offset, bytes, opened.info().bytes)?;
        Ok(())
    }
}

#[pymethods]
impl Object {
    /// Reads `bytes` bytes from `offset` on, by default all that can be reached.
    #[pyo3(signature = (offset = None, bytes = None))]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = count_if_any)] offset: Option<u64>,
        #[pyo3(from_py_with = count_if_any)] bytes: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (opened, range) = (self.opened.value()?, self.range(offset, bytes)?);
        Self::check(&opened, range.offset(), range.bytes())?;
        // No longer than the object, which fits the address space.
        PyBytes::new_with(py, range.bytes() as usize, |into| {
            self.with(py, || Ok(opened.read_at(range.offset(), into)?))
        })
    }

    /// Fills a writable buffer from `offset` on.
    #[pyo3(signature = (buffer, offset = None))]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = count_if_any)] offset: Option<u64>,
    ) -> PyResult<usize> {
        let opened = self.opened.value()?;
        let mut into = Bytes::writable(buffer)?;
        let offset = offset.unwrap_or(self.offset);
        Self::check(&opened, offset, into.len() as u64)?;
        self.with(py, || {
            let address = address_of(&opened, offset);
            Ok(into.fill_from(address, |into| opened.read_at(offset, into))?)
        })
    }

    /// Writes bytes at `offset` of a region.
    fn write_at(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] offset: u64,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let opened = self.opened.value()?;
        let from = Bytes::of(data)?;
        Self::check(&opened, offset, from.len() as u64)?;
        let from = from.apart_from(address_of(&opened, offset));
        self.with(py, || Ok(opened.write_at(offset, &from)?))
    }

    /// Makes a weaker handle of this one.
    #[pyo3(signature = (offset = None, bytes = None, writable = false))]
    fn diminish(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count_if_any)] offset: Option<u64>,
        #[pyo3(from_py_with = count_if_any)] bytes: Option<u64>,
        writable: bool,
    ) -> PyResult<Self> {
        let (opened, range) = (self.opened.value()?, self.range(offset, bytes)?);
        let rights = if writable { Rights::READ | Rights::WRITE } else { Rights::READ };
        let weaker = self.with(py, || Ok(opened.diminish(rights, range)?))?;
        Ok(Self::new(weaker, Arc::clone(&self.pool)))
    }

    /// Takes this handle back, and all that were made from it.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        let opened = self.opened.value()?;
        self.with(py, || Ok(opened.revoke()?))
    }

    /// Gives the object back.
    fn close(&self, py: Python<'_>) {
        let opened = self.opened.take();
        py.detach(|| drop(opened));
    }

    fn __len__(&self) -> usize {
        // Fits the address space.
        self.nbytes as usize
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_details))]
    fn __exit__(&self, py: Python<'_>, _details: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<hinterland.Object {:?}, {} bytes from {}>", self.name, self.nbytes, self.offset)
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = format!(
            "an open Object is of one process (hint: send its name, {:?}, and open it in the other)",
            self.name
        );
        Err(PyTypeError::new_err(text))
    }
}

/// The address of a byte of an object; one that nothing has, for an object without.
fn address_of(opened: &Opened, offset: u64) -> u64 {
    opened.info().address.map_or(u64::MAX, |first| first.raw().saturating_add(offset))
}
