//! What belongs to this process: after a fork the child neither uses it nor gives it back.

use crate::failure::{Failure, errno};
use pyo3::Python;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

/// A value that may be closed, and that a forked child leaves alone: its session is the parent's.
pub(crate) struct Own<T: Send + Sync> {
    what: &'static str,
    process: u32,
    value: ManuallyDrop<Mutex<Option<Arc<T>>>>,
}

impl<T: Send + Sync> Own<T> {
    /// A value of this process, with the word for it in messages.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        let value = ManuallyDrop::new(Mutex::new(Some(Arc::new(value))));
        Self { what, process: std::process::id(), value }
    }

    /// The value, unless it was closed or this is a child of the process that made it.
    pub(crate) fn value(&self) -> Result<Arc<T>, Failure> {
        if self.process != std::process::id() {
            let text = format!(
                "this {} was opened before the fork and belongs to the parent (hint: open a Pool in the child; what is mapped can be read)",
                self.what
            );
            return Err(Failure::Refused(errno::ENOTCONN, text));
        }
        // Held for a moment and only by threads that are attached to the interpreter, so never across a fork.
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        value.clone().ok_or_else(|| {
            let text = format!("this {} is closed (hint: use it inside its `with` block)", self.what);
            Failure::Refused(errno::ENOTCONN, text)
        })
    }

    /// Closes it: the value, to be dropped when nobody waits for it; nothing if it was closed or inherited.
    pub(crate) fn take(&self) -> Option<Arc<T>> {
        if self.process != std::process::id() {
            return None;
        }
        self.value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T: Send + Sync> Drop for Own<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: the value is dropped here and nowhere else.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        // It may have to wait for the node: other threads of the interpreter go on meanwhile.
        let mut value = Some(value);
        // Without an interpreter it is dropped where it stands.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}
