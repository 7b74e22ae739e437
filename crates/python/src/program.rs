//! Code of the program that is called from here.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Calls what is code of the program, or of Python beside it.
///
/// An interpreter before 3.14 that ends also ends each other thread that wants to go on in it, and unwinds the frames from which that code
/// was called. What these give back is gone by then, and the process would be killed by a signal: the thread stays where it is, as it does
/// with later ones. So nothing may be given back in the frames between, which hence own neither the function nor its arguments.
///
/// # Errors
/// What it raises.
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.into_pyobject(function.py())?;
    let stay = Stay;
    let result = function.call1(&arguments);
    std::mem::forget(stay);
    result
}

/// Dropped only when the frame that has it is unwound.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        // A panic is one of ours, and becomes an exception.
        while !std::thread::panicking() {
            std::thread::park();
        }
    }
}
