//! Streams: what a GPU does one after the other.

use crate::driver::{Handle, STREAM_APART};
use crate::error::GpuError;
use crate::gpu::Gpu;
use std::sync::Arc;

/// A stream of the program, as the driver and the CUDA runtime name it (`cudaStream_t`); 0 is the default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamHandle(pub(crate) Handle);

impl StreamHandle {
    /// The stream that the CUDA runtime uses when none is named.
    pub const DEFAULT: Self = Self(0);

    /// A stream of the program. Whoever passes it to a copy promises that it lives until that is done.
    pub const fn of_program(handle: usize) -> Self {
        Self(handle)
    }
}

/// A stream of this library, that waits for no other.
pub struct Stream {
    gpu: Arc<Gpu>,
    handle: Handle,
}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let _entered = gpu.enter()?;
        let mut handle = 0;
        // SAFETY: the place is ours; the stream is given back on drop.
        let code = unsafe { (gpu.driver.call.stream_create)(&mut handle, STREAM_APART) };
        gpu.driver.check("making a stream", code)?;
        Ok(Self { gpu: Arc::clone(gpu), handle })
    }

    /// Its name for the driver.
    pub const fn handle(&self) -> StreamHandle {
        StreamHandle(self.handle)
    }

    /// Waits until all that was put on it is done.
    ///
    /// # Errors
    /// [`GpuError::Driver`], also for what went wrong on it.
    pub fn wait(&self) -> Result<(), GpuError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the stream lives.
        let code = unsafe { (self.gpu.driver.call.stream_wait)(self.handle) };
        self.gpu.driver.check("waiting for a stream", code)
    }

    pub(crate) const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: it was made once. The driver ends it when what was put on it is done.
            unsafe { (self.gpu.driver.call.stream_destroy)(self.handle) };
        }
    }
}
