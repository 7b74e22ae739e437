//! KV blocks that a GPU reaches, and batches that are on their way to or from it.

use crate::blocks::Direction;
use crate::device::{DeviceBlocks, stream_handle};
use crate::failure::{Failure, errno};
use crate::keys::{Key, Keys};
use crate::own::Own;
use hinterland_gpu::StreamHandle;
use hinterland_pool::{GpuOptions, KvCache, KvGpu as Client, KvTransfer as Transfer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// KV blocks that a GPU reaches.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct KvGpu {
    client: Own<Client>,
}

impl KvGpu {
    /// Registers the blocks of a cache.
    pub(crate) fn open(cache: &KvCache, options: &GpuOptions) -> Result<Self, Failure> {
        Ok(Self { client: Own::new("KvGpu", cache.gpu(options)?) })
    }
}

#[pymethods]
impl KvGpu {
    /// What the GPU is called.
    #[getter]
    fn device_name(&self) -> PyResult<String> {
        Ok(self.client.value()?.gpu().name().to_owned())
    }

    /// Begins to copy blocks into memory of the GPU.
    #[pyo3(signature = (keys, buffers, stream = None))]
    fn get_into(
        &self,
        py: Python<'_>,
        keys: Keys,
        buffers: Vec<Bound<'_, PyAny>>,
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<KvTransfer> {
        let DeviceBlocks { batch, kept } = DeviceBlocks::of(&keys, &buffers, Direction::Get)?;
        let handle = StreamHandle::of_program(stream_handle(stream.as_ref())?);
        let (client, kept) = (self.client.value()?, Arc::new((kept, stream.map(Bound::unbind))));
        // SAFETY: what says where the memory lies, and the stream, are kept until the transfer is done; who passes addresses
        // answers for them.
        let transfer = py.detach(|| unsafe { client.get(&batch, handle, kept) });
        Ok(KvTransfer::new(transfer.map_err(Failure::from)?))
    }

    /// Begins to gather blocks from memory of the GPU.
    #[pyo3(signature = (keys, blocks, stream = None, *, prefix = false, after = None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: Keys,
        blocks: Vec<Bound<'_, PyAny>>,
        stream: Option<Bound<'_, PyAny>>,
        prefix: bool,
        after: Option<Key>,
    ) -> PyResult<KvTransfer> {
        let DeviceBlocks { batch, kept } = DeviceBlocks::of(&keys, &blocks, Direction::Put)?;
        let handle = StreamHandle::of_program(stream_handle(stream.as_ref())?);
        let (client, kept) = (self.client.value()?, Arc::new((kept, stream.map(Bound::unbind))));
        let transfer = py.detach(|| {
            if prefix || after.is_some() {
                // SAFETY: as in `get_into`.
                unsafe { client.put_prefix(&batch, after.as_deref(), handle, kept) }
            } else {
                // SAFETY: as in `get_into`.
                unsafe { client.put(&batch, handle, kept) }
            }
        });
        Ok(KvTransfer::new(transfer.map_err(Failure::from)?))
    }

    /// Takes the blocks away from the GPU when all transfers are done.
    fn close(&self, py: Python<'_>) {
        let client = self.client.take();
        py.detach(|| drop(client));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_details))]
    fn __exit__(&self, py: Python<'_>, _details: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a KvGpu is of one process (hint: open one in the other)"))
    }
}

/// A batch on its way.
#[pyclass(frozen, module = "hinterland")]
pub(crate) struct KvTransfer {
    transfer: Own<Mutex<State>>,
}

enum State {
    Begun(Transfer),
    Answered(Vec<bool>),
    /// It failed, or another thread waits for it.
    Gone,
}

impl KvTransfer {
    fn new(transfer: Transfer) -> Self {
        Self { transfer: Own::new("KvTransfer", Mutex::new(State::Begun(transfer))) }
    }
}

#[pymethods]
impl KvTransfer {
    /// Whether the GPU is done.
    fn arrived(&self, py: Python<'_>) -> PyResult<bool> {
        let transfer = self.transfer.value()?;
        let answer = py.detach(|| match &mut *lock(&transfer) {
            State::Begun(transfer) => transfer.is_arrived().map_err(Failure::from),
            State::Answered(_) | State::Gone => Ok(true),
        });
        Ok(answer?)
    }

    /// Waits for the GPU, and does what is left to do; an answer for each key.
    fn wait(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        let transfer = self.transfer.value()?;
        let answer = py.detach(|| {
            // Held while it waits: another thread that waits for the same transfer gets the same answer.
            let mut state = lock(&transfer);
            match std::mem::replace(&mut *state, State::Gone) {
                State::Begun(transfer) => {
                    let answers = transfer.wait()?;
                    *state = State::Answered(answers.clone());
                    Ok(answers)
                }
                State::Answered(answers) => {
                    *state = State::Answered(answers.clone());
                    Ok(answers)
                }
                State::Gone => Err(Failure::Refused(
                    errno::EIO,
                    "this transfer failed before (hint: begin another)".to_owned(),
                )),
            }
        });
        Ok(answer?)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a KvTransfer is of one process (hint: wait for it)"))
    }
}

impl Drop for KvTransfer {
    fn drop(&mut self) {
        // What is not done is waited for while other threads of the interpreter run.
        if let Some(transfer) = self.transfer.take() {
            Python::attach(|py| py.detach(|| drop(transfer)));
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
