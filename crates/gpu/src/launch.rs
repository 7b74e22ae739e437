//! A batch of copies on a stream, from its launch to its end.

use crate::copier::{Copier, Tables};
use crate::driver::NOT_READY;
use crate::error::GpuError;
use crate::stream::StreamHandle;
use std::sync::Arc;

/// Copies that were put on a stream. Dropping it waits for them; what they use lives until then, or for ever if the GPU
/// does not say that they are done.
#[must_use = "dropping it waits for the copies"]
pub struct Launch<K> {
    copier: Arc<Copier>,
    /// Nothing once the copies are done.
    tables: Option<Tables>,
    kept: Option<K>,
    stream: StreamHandle,
    /// Whether the event stands behind the copies.
    is_recorded: bool,
}

impl<K> Launch<K> {
    pub(crate) fn done(copier: &Arc<Copier>, kept: K) -> Self {
        let (copier, stream) = (Arc::clone(copier), StreamHandle::DEFAULT);
        Self { copier, tables: None, kept: Some(kept), stream, is_recorded: false }
    }

    pub(crate) fn begun(copier: &Arc<Copier>, tables: Tables, stream: StreamHandle, kept: K) -> Self {
        let (copier, tables) = (Arc::clone(copier), Some(tables));
        Self { copier, tables, kept: Some(kept), stream, is_recorded: false }
    }

    pub(crate) const fn recorded(&mut self) {
        self.is_recorded = true;
    }

    pub(crate) fn tables(&self) -> &Tables {
        self.tables.as_ref().expect("a launch that was begun has its tables")
    }

    /// What is kept.
    pub fn kept(&self) -> &K {
        self.kept.as_ref().expect("it is taken only by `wait`, which ends the launch")
    }

    /// Whether the copies are done.
    ///
    /// # Errors
    /// [`GpuError::Driver`] if the GPU failed, at these copies or before.
    pub fn is_done(&mut self) -> Result<bool, GpuError> {
        let Some(tables) = &self.tables else { return Ok(true) };
        let gpu = self.copier.gpu();
        let entered = gpu.enter()?;
        // SAFETY: the event lives.
        let code = unsafe { (gpu.driver.call.event_query)(tables.event) };
        if code == NOT_READY {
            return Ok(false);
        }
        gpu.driver.check("asking whether a batch is done", code)?;
        drop(entered);
        self.give_back();
        Ok(true)
    }

    /// Waits for the copies; what was kept.
    ///
    /// # Errors
    /// As [`is_done`](Self::is_done).
    pub fn wait(mut self) -> Result<K, GpuError> {
        self.finish()?;
        Ok(self.kept.take().expect("it is taken only here"))
    }

    fn finish(&mut self) -> Result<(), GpuError> {
        let Some(tables) = &self.tables else { return Ok(()) };
        let gpu = self.copier.gpu();
        let entered = gpu.enter()?;
        let call = &gpu.driver.call;
        let code = if self.is_recorded {
            // SAFETY: the event lives.
            unsafe { (call.event_wait)(tables.event) }
        } else {
            // SAFETY: whoever launched on the stream promised that it lives.
            unsafe { (call.stream_wait)(self.stream.0) }
        };
        gpu.driver.check("waiting for a batch", code)?;
        drop(entered);
        self.give_back();
        Ok(())
    }

    fn give_back(&mut self) {
        if let Some(tables) = self.tables.take() {
            self.copier.give_back(tables);
        }
    }
}

impl<K> Drop for Launch<K> {
    fn drop(&mut self) {
        if self.finish().is_err() {
            // Nobody knows whether the GPU still uses them.
            std::mem::forget((self.tables.take(), self.kept.take()));
        }
    }
}
