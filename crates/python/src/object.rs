//! An open object: reads at any offset.

use crate::buffer::Bytes;
use crate::failure::Failure;
use crate::own::Own;
use hinterland_pool::Object as Opened;
use hinterland_types::ByteRange;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// An open object or region.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct Object {
    opened: Own<Opened>,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    nbytes: u64,
    #[pyo3(get)]
    is_local: bool,
}

impl Object {
    /// Takes an object that was just opened.
    pub(crate) fn new(opened: Opened) -> Self {
        let (name, nbytes) = (opened.info().name.to_string(), opened.info().bytes);
        let is_local = opened.is_local();
        Self { opened: Own::new("Object", opened), name, nbytes, is_local }
    }

    /// Whether the object has a range.
    fn check(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        ByteRange::within(offset, bytes, self.nbytes)?;
        Ok(())
    }
}

#[pymethods]
impl Object {
    /// Reads `bytes` bytes from `offset` on, or all that follow.
    #[pyo3(signature = (offset = 0, bytes = None))]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        bytes: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let opened = self.opened.value()?;
        let bytes = bytes.unwrap_or_else(|| self.nbytes.saturating_sub(offset));
        self.check(offset, bytes)?;
        // No longer than the object, which fits the address space.
        PyBytes::new_with(py, bytes as usize, |into| {
            Ok(py.detach(|| opened.read_at(offset, into).map_err(Failure::from))?)
        })
    }

    /// Fills a writable buffer from `offset` on.
    #[pyo3(signature = (buffer, offset = 0))]
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let opened = self.opened.value()?;
        let mut into = Bytes::writable(buffer)?;
        self.check(offset, into.len() as u64)?;
        Ok(py.detach(|| {
            opened.read_at(offset, into.as_mut_slice()).map_err(Failure::from)?;
            Ok::<_, Failure>(into.len())
        })?)
    }

    /// Writes bytes at `offset` of a region.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let opened = self.opened.value()?;
        let from = Bytes::of(data)?;
        self.check(offset, from.len() as u64)?;
        Ok(py.detach(|| opened.write_at(offset, from.as_slice()).map_err(Failure::from))?)
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
        format!("<hinterland.Object {:?}, {} bytes>", self.name, self.nbytes)
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = format!(
            "an open Object is of one process (hint: send its name, {:?}, and open it in the other)",
            self.name
        );
        Err(PyTypeError::new_err(text))
    }
}
