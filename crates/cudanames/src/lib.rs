//! The libraries under CUDA's own names, as bytes: each has its soname, its symbol versions, and a jump into the core for each symbol.
//!
//! A program finds `libcudart.so.13` and the others in a folder that stands first for its loader; beside them lies [`CORE_FILE`], which
//! does the work, so that all of them share one state. A function `NAME` of a library jumps to `hl_NAME` of the core. Where the
//! core has none, the function tells the core its name, which says it once and returns the library's "not supported".
//!
//! What the libraries have stands in `symbols/`; what the core has is read from its source when this crate is built.
#![forbid(unsafe_code)]

/// The file that the libraries need beside them.
pub const CORE_FILE: &str = "libhinterland_cuda.so";

/// A library under one of CUDA's names.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The file's name, which is also its soname: `libcudart.so.13`.
    pub file: &'static str,
    /// How its lists call it: `cudart`.
    pub short: &'static str,
    /// The version of all its symbols, or none.
    pub version: Option<&'static str>,
    /// Its functions, sorted by name.
    pub symbols: &'static [Symbol],
    /// The file.
    pub image: &'static [u8],
}

/// A function of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name, as programs import it.
    pub name: &'static str,
    /// Whether the core has it.
    pub is_there: bool,
}

include!(concat!(env!("OUT_DIR"), "/libraries.rs"));

impl Library {
    /// The library of this file name.
    pub fn of_file(file: &str) -> Option<&'static Self> {
        LIBRARIES.iter().find(|library| library.file == file)
    }

    /// A function of this name.
    pub fn symbol(&self, name: &str) -> Option<&'static Symbol> {
        let place = self.symbols.binary_search_by(|symbol| symbol.name.cmp(name)).ok()?;
        self.symbols.get(place)
    }
}

/// The library that has a function of this name, whichever it is.
pub fn owner(name: &str) -> Option<&'static Library> {
    LIBRARIES.iter().find(|library| library.symbol(name).is_some())
}
