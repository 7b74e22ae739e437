//! Objects as memory of the interpreter: the buffer protocol, without a copy.

use crate::failure::Failure;
use crate::number::{count, count_if_any};
use hinterland_proto::control::Advice;
use hinterland_region::Region;
use hinterland_types::ByteRange;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// What a mapping shows; nothing for an object without bytes.
type Shown = Option<Arc<Region>>;

/// A mapped object. Views of its memory keep it mapped, also after `close`.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct Mapping {
    /// Nothing after `close`.
    shown: Mutex<Option<Shown>>,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    nbytes: u64,
    #[pyo3(get)]
    is_writable: bool,
    #[pyo3(get)]
    is_remote: bool,
    #[pyo3(get)]
    is_symmetric: bool,
    pointer: usize,
}

impl Mapping {
    /// Shows a region, or the nothing that an object without bytes is.
    pub(crate) fn new(name: String, region: Option<Region>, is_writable: bool) -> Self {
        let region = region.map(Arc::new);
        let of_region = |question: fn(&Region) -> bool| region.as_deref().is_some_and(question);
        Self {
            nbytes: region.as_ref().map_or(0, |region| region.bytes()),
            is_remote: of_region(Region::is_armed),
            is_symmetric: of_region(Region::is_symmetric),
            pointer: region.as_ref().map_or(0, |region| region.pointer().addr().get()),
            shown: Mutex::new(Some(region)),
            name,
            is_writable,
        }
    }

    fn shown(&self) -> PyResult<Shown> {
        // Held for a moment and only by threads that are attached to the interpreter.
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone().ok_or_else(|| {
            let text =
                format!("the mapping of {:?} is closed (hint: use it inside its `with` block)", self.name);
            PyValueError::new_err(text)
        })
    }
}

#[pymethods]
impl Mapping {
    /// Says what is expected of a range: "normal", "random", "sequential" or "willneed".
    #[pyo3(signature = (advice, offset = 0, bytes = None))]
    fn advise(
        &self,
        py: Python<'_>,
        advice: &str,
        #[pyo3(from_py_with = count)] offset: u64,
        #[pyo3(from_py_with = count_if_any)] bytes: Option<u64>,
    ) -> PyResult<()> {
        let advice = match advice {
            "normal" => Advice::Normal,
            "random" => Advice::Random,
            "sequential" => Advice::Sequential,
            "willneed" => Advice::WillNeed,
            other => {
                let text = format!(
                    "{other:?} is no advice (hint: \"normal\", \"random\", \"sequential\" or \"willneed\")"
                );
                return Err(PyValueError::new_err(text));
            }
        };
        let Some(region) = self.shown()? else { return Ok(()) };
        let bytes = bytes.unwrap_or_else(|| self.nbytes.saturating_sub(offset));
        let advised = py.detach(|| {
            let range = ByteRange::new(offset, bytes)?;
            Ok::<_, Failure>(region.advise(range, advice)?)
        });
        Ok(advised?)
    }

    /// Where the memory is, for programs that pass addresses; nothing tells them of the end of the mapping.
    #[getter]
    fn pointer(&self) -> PyResult<usize> {
        self.shown()?;
        Ok(self.pointer)
    }

    /// Ends the mapping, or leaves it to the last view of its memory.
    fn close(&self, py: Python<'_>) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(shown));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __len__(&self) -> usize {
        // It is mapped: it fits the address space.
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
        if self.closed() {
            return format!("<hinterland.Mapping of {:?}, closed>", self.name);
        }
        let place = if self.is_remote { "from another rack" } else { "of this rack" };
        format!(
            "<hinterland.Mapping of {:?}, {} bytes {place} at {:#x}>",
            self.name, self.nbytes, self.pointer
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = format!(
            "a Mapping is memory of one process (hint: send its name, {:?}, and map it in the other)",
            self.name
        );
        Err(PyTypeError::new_err(text))
    }

    /// # Safety
    /// `view` is a buffer of the interpreter that is to be filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let shown = slf.get().shown()?;
        let nothing = NonNull::<u8>::dangling();
        let start: *mut c_void = shown.as_ref().map_or(nothing, |region| region.pointer()).as_ptr().cast();
        // The length of a mapping fits.
        let bytes = slf.get().nbytes as ffi::Py_ssize_t;
        let read_only = c_int::from(!slf.get().is_writable);
        // SAFETY: the interpreter promises the view; the memory stays mapped until the view is released, because the
        // view holds the region. Access beyond what `read_only` says is refused by the function.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes, read_only, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        // SAFETY: the view was just filled in; `internal` is the exporter's own.
        unsafe { (*view).internal = Box::into_raw(Box::new(shown)).cast() };
        Ok(())
    }

    /// # Safety
    /// `view` was filled in by `__getbuffer__` and is released once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `__getbuffer__` put the box there, and the interpreter releases a view once.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Shown>()) });
    }
}
