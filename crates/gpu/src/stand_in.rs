//! The library that stands in for a driver in tests: built from `tests/cuda_stand_in`, and steered step by step.

use crate::library::Library;
use std::ffi::{CStr, c_char, c_ulong};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// The stand-in, for one test at a time: its streams are of the process. Dropping it opens the gate.
pub struct StandIn {
    path: PathBuf,
    library: Library,
    _alone: MutexGuard<'static, ()>,
}

impl StandIn {
    /// Builds and loads it, once no other test of this process uses it.
    ///
    /// # Panics
    /// Without a C++ compiler.
    pub fn alone() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| tree.join("target"), PathBuf::from);
        let path = target.join("cuda_stand_in.so");
        let status = Command::new(tree.join("tests/cuda_stand_in/build.sh")).arg(&path).status();
        assert!(status.is_ok_and(|status| status.success()), "hint: apt-get install g++");
        let library = Library::open(std::slice::from_ref(&path)).unwrap_or_else(|words| panic!("{words}"));
        Self { path, library, _alone: alone }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets no step of any stream begin.
    pub fn close(&self) {
        self.call(c"stand_in_close");
    }

    /// Lets all go on.
    pub fn open(&self) {
        self.call(c"stand_in_open");
    }

    /// Lets as many steps through a closed gate, and returns when a stream stands before the next: a copy, a launch and each of
    /// its groups, or an event is one.
    pub fn allow(&self, steps: u32) {
        let address = self.library.function(c"stand_in_allow").expect("the stand-in has it");
        // SAFETY: the source of the stand-in gives it this type.
        let allow: unsafe extern "C" fn(c_ulong) = unsafe { std::mem::transmute(address) };
        // SAFETY: it takes any number.
        unsafe { allow(c_ulong::from(steps)) };
    }

    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.count(c"stand_in_launches")
    }

    /// Threads that wait for an event.
    pub fn waiting(&self) -> u64 {
        self.count(c"stand_in_waiting")
    }

    /// Ranges of memory that are allocated or registered.
    pub fn ranges(&self) -> u64 {
        self.count(c"stand_in_ranges")
    }

    /// Tells it to refuse something, or nothing: see the source.
    pub fn lack(&self, what: &CStr) {
        let address = self.library.function(c"stand_in_lack").expect("the stand-in has it");
        // SAFETY: the source of the stand-in gives it this type.
        let lack: unsafe extern "C" fn(*const c_char) = unsafe { std::mem::transmute(address) };
        // SAFETY: a string.
        unsafe { lack(what.as_ptr()) };
    }

    fn call(&self, name: &CStr) {
        let address = self.library.function(name).expect("the stand-in has it");
        // SAFETY: the source of the stand-in gives the functions that are asked for here this type.
        let call: unsafe extern "C" fn() = unsafe { std::mem::transmute(address) };
        // SAFETY: it takes nothing.
        unsafe { call() };
    }

    fn count(&self, name: &CStr) -> u64 {
        let address = self.library.function(name).expect("the stand-in has it");
        // SAFETY: the source of the stand-in gives the functions that are asked for here this type.
        let count: unsafe extern "C" fn() -> c_ulong = unsafe { std::mem::transmute(address) };
        // SAFETY: it takes nothing.
        unsafe { count() }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.open();
        self.lack(c"nothing");
    }
}
