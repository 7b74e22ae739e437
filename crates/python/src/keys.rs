//! Keys of KV blocks as programs pass them: bytes, and lists of bytes.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};
use std::ops::Deref;

/// The key of one block.
pub(crate) struct Key(Vec<u8>);

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    /// # Errors
    /// `TypeError` for what is no bytes.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self).map_err(|error| {
            if !error.is_instance_of::<PyTypeError>(object.py()) {
                return error;
            }
            let text = if object.is_instance_of::<PyString>() {
                "a key is bytes, not str (hint: `key.encode()`, or a digest of it)".to_owned()
            } else {
                format!("a key is bytes, not {} (hint: 1 to 64, such as a digest)", type_name(object))
            };
            PyTypeError::new_err(text)
        })
    }
}

/// The keys of a batch.
pub(crate) struct Keys(Vec<Vec<u8>>);

impl Deref for Keys {
    type Target = [Vec<u8>];

    fn deref(&self) -> &[Vec<u8>] {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Keys {
    type Error = PyErr;

    /// # Errors
    /// `TypeError` for what is no list, such as one key alone, and for a key that is no bytes.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let is_key = object.is_instance_of::<PyBytes>()
            || object.is_instance_of::<PyByteArray>()
            || object.is_instance_of::<PyMemoryView>()
            || object.is_instance_of::<PyString>();
        if !is_key && object.hasattr("__getitem__")? {
            return Ok(Self(object.extract::<Vec<Key>>()?.into_iter().map(|key| key.0).collect()));
        }
        let hint = if !is_key && object.hasattr("__iter__")? { "`list(keys)`" } else { "`[key]` for one" };
        let text = format!("keys are a list of bytes, not {} (hint: {hint})", type_name(object));
        Err(PyTypeError::new_err(text))
    }
}

fn type_name(object: Borrowed<'_, '_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "that".to_owned(), |name| name.to_string())
}
