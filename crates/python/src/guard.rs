//! A guard: a locked range of a region.

use crate::buffer::Bytes;
use crate::failure::{Failure, errno};
use crate::number::{count, whole};
use crate::own::Own;
use crate::pool::Connected;
use hinterland_pool::{NotUpgraded, ReadGuard, WriteGuard};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// A lock on an address and the range that it covers; leaving its `with` block gives it back.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct Guard {
    held: Own<Kept>,
    #[pyo3(get)]
    address: u64,
    #[pyo3(get)]
    nbytes: u64,
}

/// A lock and the session that has it, which a guard keeps also when the pool is closed: what it has buffered is yet to be written.
struct Kept {
    lock: RwLock<Option<Held>>,
    _session: Arc<Connected>,
}

pub(crate) enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Guard {
    pub(crate) fn new(held: Held, session: Arc<Connected>, address: u64, nbytes: u64) -> Self {
        let kept = Kept { lock: RwLock::new(Some(held)), _session: session };
        Self { held: Own::new("guard", kept), address, nbytes }
    }

    /// Uses the guard while other threads of the interpreter run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Held) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let held = self.held.value()?;
        Ok(py.detach(move || {
            let guard = held.lock.read().unwrap_or_else(PoisonError::into_inner);
            call(guard.as_ref().ok_or_else(over)?)
        })?)
    }
}

impl Held {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::Read(guard) => Ok(guard.read(offset, into)?),
            Self::Write(guard) => Ok(guard.read(offset, into)?),
        }
    }

    fn writer(&self) -> Result<&WriteGuard, Failure> {
        match self {
            Self::Write(guard) => Ok(guard),
            Self::Read(_) => {
                let text = "this guard is one for reading (hint: upgrade() it, or take it with write_guard)";
                Err(Failure::Refused(errno::EACCES, text.to_owned()))
            }
        }
    }

    fn unlock(self) -> Result<(), Failure> {
        match self {
            Self::Read(guard) => Ok(guard.unlock()?),
            Self::Write(guard) => Ok(guard.unlock()?),
        }
    }
}

#[pymethods]
impl Guard {
    /// Whether it may be written through.
    #[getter]
    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |held| Ok(matches!(held, Held::Write(_))))
    }

    /// The number of the last grant of the lock to a writer.
    #[getter]
    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |held| {
            Ok(match held {
                Held::Read(guard) => guard.fence(),
                Held::Write(guard) => guard.fence(),
            })
        })
    }

    /// Reads bytes at an offset of the range.
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = count)] offset: u64,
        #[pyo3(from_py_with = whole::<0, { isize::MAX as u64 }, usize>)] bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if offset.saturating_add(bytes as u64) > self.nbytes {
            let text =
                format!("{bytes} bytes at {offset} lie outside of the {} bytes of the guard", self.nbytes);
            return Err(Failure::argument(format!("{text} (hint: take a longer one)")).into());
        }
        PyBytes::new_with(py, bytes, |into| self.with(py, |held| held.read(offset, into)))
    }

    /// Fills a writable buffer from an offset of the range on.
    #[pyo3(signature = (buffer, offset = 0))]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = count)] offset: u64,
    ) -> PyResult<usize> {
        let mut into = Bytes::writable(buffer)?;
        let address = self.address.saturating_add(offset);
        self.with(py, |held| into.fill_from(address, |into| held.read(offset, into)))
    }

    /// Writes bytes at an offset of the range.
    fn write(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] offset: u64,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let from = Bytes::of(data)?;
        let address = self.address.saturating_add(offset);
        self.with(py, |held| Ok(held.writer()?.write(offset, &from.apart_from(address))?))
    }

    /// Returns when all that was written has arrived.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |held| Ok(held.writer()?.flush()?))
    }

    /// Makes a guard for writing of one for reading, once the other readers have left; waits up to `wait` seconds.
    #[pyo3(signature = (wait = 10.0))]
    fn upgrade(&self, py: Python<'_>, wait: f64) -> PyResult<()> {
        let (held, wait) = (self.held.value()?, seconds(wait)?);
        Ok(py.detach(move || {
            let mut place = held.lock.write().unwrap_or_else(PoisonError::into_inner);
            match place.take().ok_or_else(over)? {
                Held::Read(guard) => match guard.upgrade(wait) {
                    Ok(guard) => {
                        *place = Some(Held::Write(guard));
                        Ok(())
                    }
                    Err(NotUpgraded { guard, error }) => {
                        *place = Some(Held::Read(*guard));
                        Err(Failure::from(error))
                    }
                },
                writer @ Held::Write(_) => {
                    *place = Some(writer);
                    Err(Failure::argument("this guard is one for writing already (hint: go on)".to_owned()))
                }
            }
        })?)
    }

    /// Writes what is buffered and gives the lock back. What was unlocked before stays so.
    fn unlock(&self, py: Python<'_>) -> PyResult<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        Ok(py.detach(move || {
            let given = give_back(&held);
            drop(held);
            given
        })?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_details))]
    fn __exit__(&self, py: Python<'_>, _details: &Bound<'_, PyAny>) -> PyResult<()> {
        self.unlock(py)
    }

    fn __repr__(&self) -> String {
        format!("<hinterland.Guard at {:#x}, {} bytes>", self.address, self.nbytes)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a Guard is of one process (hint: take one in the other process)"))
    }
}

/// Waits for who uses the guard just now, and unlocks it.
fn give_back(kept: &Kept) -> Result<(), Failure> {
    kept.lock.write().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Held::unlock)
}

/// A wait as Python gives it.
pub(crate) fn seconds(wait: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(wait).map_err(|_| {
        Failure::argument(format!("{wait} seconds cannot be waited (hint: 0 or more, and finite)"))
    })
}

fn over() -> Failure {
    Failure::Refused(
        errno::ENOTCONN,
        "this guard was unlocked (hint: use it inside its `with` block)".to_owned(),
    )
}
