//! Failures as C programs see them: a number to return, and words that the calling thread keeps.

use hinterland_os::OsError;
use hinterland_pool::PoolError;
use hinterland_region::RegionError;
use hinterland_types::{AddressError, NameError, RangeError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The largest number that the kernel uses for an error.
const ERRNO_MAX: i32 = 4095;

thread_local! {
    static WORDS: RefCell<CString> = RefCell::default();
}

/// A call failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: c_int,
    text: String,
}

impl Failure {
    /// A failure with an `errno` value and words that end in what to do.
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        // A node that answers nonsense must not turn a failure into a success.
        let code = if (1..=ERRNO_MAX).contains(&code) { code } else { libc::EIO };
        Self { code, text: text.into() }
    }

    /// An argument that no call can work with.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// The `errno` value, for a failure that is not the call's own.
    pub(crate) const fn number(&self) -> c_int {
        self.code
    }

    /// The `errno` value.
    #[cfg(test)]
    pub(crate) const fn code(&self) -> c_int {
        self.code
    }
}

/// Runs the body of a call: 0, or a negative `errno` with the words kept.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let words = panic
                .downcast_ref::<&str>()
                .map(|words| (*words).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let words = words.unwrap_or_else(|| "no words".to_owned());
            let text = format!(
                "a fault in libhinterland: {words} (hint: report it; close the pool and open it again)"
            );
            Failure::new(libc::EIO, text)
        }
    };
    let bytes: Vec<u8> = failure.text.into_bytes().into_iter().filter(|byte| *byte != 0).collect();
    // A thread that is ending keeps no words.
    let _ = WORDS.try_with(|words| words.replace(CString::new(bytes).unwrap_or_default()));
    -failure.code
}

/// What went wrong in the last call of this thread that failed; empty if none did. Valid until the next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn hl_last_error() -> *const c_char {
    let kept = WORDS.try_with(|words| words.borrow().as_ptr());
    kept.unwrap_or(c"this thread is ending".as_ptr())
}

/// The version of the library, as `MAJOR.MINOR.PATCH`.
#[unsafe(no_mangle)]
pub extern "C" fn hl_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"unknown",
        };
    VERSION.as_ptr()
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        let code = match &error {
            PoolError::Stream { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            PoolError::Os(os) => code_of(os),
            PoolError::Unreachable { .. } | PoolError::Fabric(_) => libc::EHOSTUNREACH,
            PoolError::Handshake(_) => libc::EPROTO,
            other => other.code(),
        };
        Self::new(code, error.to_string())
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Pool(error) => error.into(),
            RegionError::Os(error) => Self::new(code_of(&error), error.to_string()),
            other => Self::new(other.code(), other.to_string()),
        }
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        let code = if matches!(error, NameError::TooLong { .. }) { libc::ENAMETOOLONG } else { libc::EINVAL };
        Self::new(code, error.to_string())
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::new(libc::EINVAL, error.to_string())
    }
}

impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Self {
        Self::argument(error.to_string())
    }
}

fn code_of(error: &OsError) -> c_int {
    match error {
        OsError::OutOfBounds { .. } | OsError::Misaligned { .. } => libc::EINVAL,
        OsError::ReadOnly { .. } => libc::EACCES,
        OsError::Unsupported { .. } => libc::ENOTSUP,
        OsError::TimedOut { .. } => libc::ETIMEDOUT,
        other => other.errno().unwrap_or(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> String {
        // SAFETY: the words of this thread, which no call replaces meanwhile.
        unsafe { CStr::from_ptr(hl_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_an_error_of_the_call() {
        assert_eq!(guarded(|| panic!("boom {}", 1)), -libc::EIO);
        assert!(words().contains("boom 1") && words().contains("hint:"), "{}", words());
        assert_eq!(guarded(|| Ok(())), 0);
    }

    #[test]
    fn each_thread_has_its_own_words() {
        assert_eq!(guarded(|| Err(Failure::argument("mine\0 here"))), -libc::EINVAL);
        std::thread::spawn(|| assert_eq!(words(), "")).join().unwrap();
        assert_eq!(words(), "mine here");
    }

    #[test]
    fn a_node_cannot_turn_a_failure_into_success() {
        for code in [0, -5, i32::MIN, 5000, i32::MAX] {
            let failure = Failure::from(PoolError::Refused { code, text: "no".to_owned() });
            assert_eq!(failure.code(), libc::EIO, "{code}");
        }
    }
}
