//! Shared libraries that are loaded when they are first needed, and stay.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A library that was loaded. It is never unloaded: its threads and handlers would be left without their code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library(usize);

impl Library {
    /// Opens the first of these that can be; the loader's words about each, if none can.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn open(candidates: &[PathBuf]) -> Result<Self, String> {
        let mut words = Vec::new();
        for candidate in candidates {
            match Self::open_one(candidate) {
                Ok(library) => return Ok(library),
                Err(why) => words.push(why),
            }
        }
        // The loader says the same of all names that it does not know.
        words.truncate(2);
        Err(words.join("; "))
    }

    fn open_one(path: &Path) -> Result<Self, String> {
        // The loader takes it for the program itself.
        if path.as_os_str().is_empty() {
            return Err("a library without a name cannot be loaded".to_owned());
        }
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{} has a zero byte in its name", path.display()))?;
        // SAFETY: the name is a string; what a library does when it is loaded is what whoever installed or named it wants.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Self(handle.expose_provenance()));
        }
        // SAFETY: this thread's last failure, a string until the next call, or null.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err(format!("{} cannot be loaded", path.display()));
        }
        // SAFETY: as above.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// The address of a function, never null; `None` if the library has none of this name.
    pub(crate) fn function(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is that of a library which is never closed; the name is a string.
        let address = unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(self.0), name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// The library that a variable of the environment names; an empty one names none.
pub(crate) fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Declares a table of a library's functions, each of which returns a number that is 0 if it did what it should.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($field:ident = $symbol:literal ($($argument:ty),*);)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)*
        }

        impl $table {
            /// Looks all functions up; the name of the first that is missing.
            ///
            /// # Errors
            /// That name.
            pub(crate) fn of(library: crate::library::Library) -> Result<Self, &'static str> {
                $(
                    let address = library.function($symbol).ok_or(stringify!($field))?;
                    // SAFETY: the library's documentation gives the function of this name these arguments and this result,
                    // and the address is not null.
                    let $field = unsafe {
                        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($argument),*) -> std::ffi::c_int>(address)
                    };
                )*
                Ok(Self { $($field,)* })
            }
        }
    };
}

pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_empty_is_not_taken_for_the_program_itself() {
        assert!(Library::open(&[PathBuf::new()]).is_err_and(|words| words.contains("without a name")));
        let found = Library::open(&[PathBuf::new(), PathBuf::from("libm.so.6")]).unwrap();
        assert!(found.function(c"cos").is_some());
    }
}
