//! Failures as Python sees them: `hinterland.HinterlandError`, or what a callback of the program raised.

use crate::program;
use hinterland_os::OsError;
use hinterland_pool::PoolError;
use hinterland_region::RegionError;
use hinterland_types::{AddressError, NameError, RangeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// `errno` values that this crate gives by itself.
pub(crate) mod errno {
    pub const EIO: i32 = 5;
    pub const EACCES: i32 = 13;
    pub const EINVAL: i32 = 22;
    pub const ENAMETOOLONG: i32 = 36;
    pub const EPROTO: i32 = 71;
    pub const ENOTSUP: i32 = 95;
    pub const ENOTCONN: i32 = 107;
    pub const ETIMEDOUT: i32 = 110;
    pub const EHOSTUNREACH: i32 = 113;
}

/// A call failed; made while other threads of the interpreter may run.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The pool said no: an `errno` value and words that end in a hint.
    Refused(i32, String),
    /// The program's own code raised this.
    Python(PyErr),
}

impl Failure {
    /// An argument that no call can work with.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::Refused(errno::EINVAL, text.into())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        static MAKER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        match failure {
            Failure::Python(error) => error,
            Failure::Refused(code, text) => Python::attach(|py| {
                let made = MAKER
                    .import(py, "hinterland.errors", "for_code")
                    .and_then(|maker| program::call(maker, (code, text)));
                made.map_or_else(|error| error, PyErr::from_value)
            }),
        }
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        let text = error.to_string();
        let code = match error {
            PoolError::Stream { source, .. } => {
                let code = source.raw_os_error();
                match source.downcast::<PyErr>() {
                    Ok(raised) => return Self::Python(raised),
                    Err(_) => code.unwrap_or(errno::EIO),
                }
            }
            PoolError::Os(os) => code_of(&os),
            PoolError::Unreachable { .. } | PoolError::Fabric(_) => errno::EHOSTUNREACH,
            PoolError::Handshake(_) => errno::EPROTO,
            other => other.code(),
        };
        Self::Refused(code, text)
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Pool(error) => error.into(),
            RegionError::Os(error) => Self::Refused(code_of(&error), error.to_string()),
            other => Self::Refused(other.code(), other.to_string()),
        }
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        let is_long = matches!(error, NameError::TooLong { .. });
        Self::Refused(if is_long { errno::ENAMETOOLONG } else { errno::EINVAL }, error.to_string())
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::argument(error.to_string())
    }
}

impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Self {
        Self::argument(error.to_string())
    }
}

fn code_of(error: &OsError) -> i32 {
    match error {
        OsError::OutOfBounds { .. } | OsError::Misaligned { .. } => errno::EINVAL,
        OsError::ReadOnly { .. } => errno::EACCES,
        OsError::Unsupported { .. } => errno::ENOTSUP,
        OsError::TimedOut { .. } => errno::ETIMEDOUT,
        other => other.errno().unwrap_or(errno::EIO),
    }
}
