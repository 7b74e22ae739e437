//! The pool for Python: the compiled module `hinterland._native`.
//!
//! It is thin: what has a Python form (records, errors, context managers for locks) is in `python/hinterland`. Every call
//! that may wait lets other threads of the interpreter run. It needs no interpreter to be built, and loads into every
//! Python from 3.11 on, the first whose stable interface has buffers.

mod blocks;
mod buffer;
mod device;
mod failure;
mod gpu;
mod guard;
mod keys;
mod kv;
mod mapping;
mod number;
mod object;
mod own;
mod pool;
mod program;
mod queue;
mod records;
mod source;
mod strided;

use pyo3::prelude::*;

/// The compiled part of `hinterland`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::blocks::Fragments;
    #[pymodule_export]
    use super::gpu::KvGpu;
    #[pymodule_export]
    use super::gpu::KvTransfer;
    #[pymodule_export]
    use super::guard::Guard;
    #[pymodule_export]
    use super::kv::KvCache;
    #[pymodule_export]
    use super::mapping::Mapping;
    #[pymodule_export]
    use super::object::Object;
    #[pymodule_export]
    use super::pool::Pool;
    #[pymodule_export]
    use super::queue::KvQueue;

    /// Waits end when a handler of a signal raises, as for ctrl-C.
    #[pymodule_init]
    fn begin(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        hinterland_pool::end_waits_when(|| {
            Python::attach(|py| py.check_signals()).map_err(std::io::Error::other)
        });
        Ok(())
    }

    /// Version of the library.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
