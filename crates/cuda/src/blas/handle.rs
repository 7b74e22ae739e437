//! Handles of cuBLAS and what they keep. A handle of cuBLAS is one of cuBLASLt too. Relaxed: numbers that only need to differ.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::Message;
use hinterland_proto::gpu::command::BlasSet;

use super::{INVALID_VALUE, NOT_INITIALIZED, Status, blas, status};
use crate::core::context::Owner;
use crate::core::outbox::Effect;
use crate::core::session::{Session, present};
use crate::core::stream::Stream;
use crate::runtime::give;

/// Properties that a handle keeps at the node.
const STREAM: u32 = 1;
const MATH_MODE: u32 = 2;
const WORKSPACE: u32 = 3;
const POINTER_MODE: u32 = 4;
const ATOMICS_MODE: u32 = 5;

/// What a handle keeps.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) stream: Arc<Stream>,
    pub(super) stream_handle: *mut c_void,
    pub(super) math_mode: c_int,
    /// 0: scalars lie in the program's memory; 1: in the device's.
    pub(super) pointer_mode: c_int,
    pub(super) atomics_mode: c_int,
    /// Memory of the device that the program gave to work in, and its length. A program that sets the stream, be it the same one, has the handle work in
    /// memory of its own again.
    workspace: Option<(u64, u64)>,
}

// SAFETY: the handle of a stream is a number in the form of a pointer.
unsafe impl Send for Settings {}

/// What is behind a `cublasHandle_t`. Programs give the pointer back; its first word says that it is one.
#[derive(Debug)]
pub struct Handle {
    magic: u64,
    pub(super) number: u32,
    settings: Mutex<Settings>,
    /// Memory of the device for a result that the host waits for.
    scratch: std::sync::OnceLock<u64>,
    owner: Owner,
    /// How often the context had been emptied.
    emptied: Option<u32>,
    /// Whether the program has taken back what it gave to work in, which the node is told in front of the next product.
    is_workspace_over: AtomicBool,
}

/// What memory to work in starts at a multiple of.
const WORKSPACE_ALIGNMENT: u64 = 256;

const MAGIC: u64 = 0x7361_6c62_6c68_0001;

impl Handle {
    /// # Errors
    /// It is no handle, or ended with all of its context.
    ///
    /// # Safety
    /// `handle` is null or was made by `cublasCreate` and not destroyed.
    pub(super) unsafe fn of<'handle>(handle: *const Self) -> Result<&'handle Self, Status> {
        // SAFETY: the caller's promise.
        let handle = unsafe { Self::made(handle)? };
        if handle.is_there() { Ok(handle) } else { Err(NOT_INITIALIZED) }
    }

    /// Whether its context was not emptied since it was made.
    fn is_there(&self) -> bool {
        present().is_some_and(|session| session.emptied(self.owner.context) == self.emptied)
    }

    /// # Errors
    /// It is no handle.
    ///
    /// # Safety
    /// As [`of`](Self::of).
    unsafe fn made<'handle>(handle: *const Self) -> Result<&'handle Self, Status> {
        if handle.is_null() || !handle.is_aligned() {
            return Err(NOT_INITIALIZED);
        }
        // SAFETY: the caller's promise.
        let handle = unsafe { &*handle };
        if handle.magic == MAGIC { Ok(handle) } else { Err(NOT_INITIALIZED) }
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of the device for a result, made when it is first needed.
    pub(super) fn scratch(&self, session: &Session) -> Result<u64, Status> {
        /// No result is longer.
        const BYTES: u64 = 16;
        if let Some(address) = self.scratch.get() {
            return Ok(*address);
        }
        let made = session.allocate(self.owner, BYTES).map_err(status)?;
        let kept = *self.scratch.get_or_init(|| made);
        if kept != made {
            session.free(made).map_err(status)?;
        }
        Ok(kept)
    }

    /// Does something of the handle's in the order of its stream, as it is set now. A list that is captured says so itself: the program may set the
    /// handle to something else before the list is sent.
    pub(super) fn issue<M: Message>(
        &self,
        session: &Session,
        settings: &Settings,
        message: &M,
    ) -> Result<(), Status> {
        let stream = &settings.stream;
        if !stream.is_captured() && self.is_workspace_over.swap(false, Ordering::Relaxed) {
            self.tell(session, stream, STREAM, u64::from(stream.number), 0)?;
        }
        if stream.is_captured() {
            let set = |property, value, more| {
                let set = BlasSet { handle: self.number, property, value, more };
                session.issue(stream, Effect::Quiet, &set, 0, |_| ()).map(drop).map_err(status)
            };
            set(STREAM, u64::from(stream.number), 0)?;
            let modes = [
                (MATH_MODE, settings.math_mode),
                (POINTER_MODE, settings.pointer_mode),
                (ATOMICS_MODE, settings.atomics_mode),
            ];
            // What a list does not say is as in a new handle.
            for (property, mode) in modes.into_iter().filter(|(_, mode)| *mode != 0) {
                set(property, mode as u64, 0)?;
            }
            if let Some((address, bytes)) = settings.workspace {
                set(WORKSPACE, address, bytes)?;
            }
        }
        session.issue(stream, Effect::Visible, message, 0, |_| ()).map(drop).map_err(status)
    }

    fn set_stream(&self, session: &Session, handle: *mut c_void, new: Arc<Stream>) -> Result<(), Status> {
        let mut settings = self.settings();
        settings.stream_handle = handle;
        let is_given = settings.workspace.take().is_some();
        if settings.stream.number == new.number {
            self.is_workspace_over.fetch_or(is_given, Ordering::Relaxed);
            return Ok(());
        }
        self.tell(session, &new, STREAM, u64::from(new.number), 0)?;
        self.is_workspace_over.store(false, Ordering::Relaxed);
        settings.stream = new;
        Ok(())
    }

    fn set_workspace(&self, session: &Session, address: u64, bytes: u64) -> Result<(), Status> {
        if !address.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Err(INVALID_VALUE);
        }
        let mut settings = self.settings();
        self.tell(session, &settings.stream, WORKSPACE, address, bytes)?;
        settings.workspace = Some((address, bytes));
        self.is_workspace_over.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Tells the node of a setting, in the order of the handle's stream. While that is captured the handle is set nevertheless, and at once.
    fn tell(
        &self,
        session: &Session,
        stream: &Stream,
        property: u32,
        value: u64,
        more: u64,
    ) -> Result<(), Status> {
        let message = BlasSet { handle: self.number, property, value, more };
        if stream.is_captured() {
            return session.send(&message).map(drop).map_err(status);
        }
        session.issue(stream, Effect::Quiet, &message, 0, |_| ()).map(drop).map_err(status)
    }
}

/// Makes a handle for the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasCreate_v2(place: *mut *mut Handle) -> Status {
    blas(|session| {
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        let owner = session.owner().map_err(status)?;
        let stream = session.default_stream().map_err(status)?;
        let number = session.blas.create(session, owner).map_err(status)?;
        let settings = Settings {
            stream,
            stream_handle: std::ptr::null_mut(),
            math_mode: 0,
            pointer_mode: 0,
            atomics_mode: 0,
            workspace: None,
        };
        let handle = Box::new(Handle {
            magic: MAGIC,
            number,
            settings: Mutex::new(settings),
            scratch: std::sync::OnceLock::new(),
            owner,
            emptied: session.emptied(owner.context),
            is_workspace_over: AtomicBool::new(false),
        });
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Box::into_raw(handle)) }.map_err(status)
    })
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasDestroy_v2(handle: *mut Handle) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let is_there = unsafe { Handle::made(handle)? }.is_there();
        // SAFETY: made by `cublasCreate`; from here on it is not recognised any more.
        let mut handle = unsafe { Box::from_raw(handle) };
        handle.magic = 0;
        if !is_there {
            return Err(NOT_INITIALIZED);
        }
        if let Some(address) = handle.scratch.get() {
            session.free(*address).map_err(status)?;
        }
        session.blas.destroy(session, handle.number).map_err(status)
    })
}

/// Has products run in a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSetStream_v2(handle: *mut Handle, stream: *mut c_void) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let handle = unsafe { Handle::of(handle)? };
        let new = session.stream(stream).map_err(status)?;
        handle.set_stream(session, stream, new)
    })
}

/// The stream of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGetStream_v2(handle: *mut Handle, stream: *mut *mut c_void) -> Status {
    // SAFETY: as documented.
    blas(|_| unsafe { give(stream, Handle::of(handle)?.settings().stream_handle).map_err(status) })
}

/// Sets what mathematics are allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSetMathMode(handle: *mut Handle, mode: c_int) -> Status {
    // SAFETY: as documented.
    unsafe { set(handle, MATH_MODE, mode, |settings| &mut settings.math_mode) }
}

/// What mathematics are allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGetMathMode(handle: *mut Handle, mode: *mut c_int) -> Status {
    // SAFETY: as documented.
    blas(|_| unsafe { give(mode, Handle::of(handle)?.settings().math_mode).map_err(status) })
}

/// Says where scalars lie: 0 in the program's memory, 1 in the device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSetPointerMode_v2(handle: *mut Handle, mode: c_int) -> Status {
    // SAFETY: as documented.
    unsafe { set(handle, POINTER_MODE, mode, |settings| &mut settings.pointer_mode) }
}

/// Where scalars lie.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGetPointerMode_v2(handle: *mut Handle, mode: *mut c_int) -> Status {
    // SAFETY: as documented.
    blas(|_| unsafe { give(mode, Handle::of(handle)?.settings().pointer_mode).map_err(status) })
}

/// Allows or forbids atomics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSetAtomicsMode(handle: *mut Handle, mode: c_int) -> Status {
    // SAFETY: as documented.
    unsafe { set(handle, ATOMICS_MODE, mode, |settings| &mut settings.atomics_mode) }
}

/// # Safety
/// As [`Handle::of`].
unsafe fn set(
    handle: *mut Handle,
    property: u32,
    value: c_int,
    place: fn(&mut Settings) -> &mut c_int,
) -> Status {
    blas(|session| {
        // SAFETY: the caller's promise.
        let handle = unsafe { Handle::of(handle)? };
        let mut settings = handle.settings();
        if *place(&mut settings) != value {
            handle.tell(session, &settings.stream, property, value as u64, 0)?;
            *place(&mut settings) = value;
        }
        Ok(())
    })
}

/// Gives cuBLAS memory of the device to work in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSetWorkspace_v2(
    handle: *mut Handle,
    memory: *mut c_void,
    bytes: usize,
) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let handle = unsafe { Handle::of(handle)? };
        let address = memory.addr() as u64;
        if bytes > 0 {
            session.check_range(address, bytes as u64).map_err(status)?;
        }
        handle.set_workspace(session, address, bytes as u64)
    })
}

/// The version of the node's cuBLAS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGetVersion_v2(_handle: *mut Handle, version: *mut c_int) -> Status {
    // SAFETY: a place for a result, as documented.
    blas(|session| unsafe { give(version, session.welcome.blas).map_err(status) })
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cublasGetStatusName(status: Status) -> *const c_char {
    let name = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        1 => c"CUBLAS_STATUS_NOT_INITIALIZED",
        3 => c"CUBLAS_STATUS_ALLOC_FAILED",
        7 => c"CUBLAS_STATUS_INVALID_VALUE",
        8 => c"CUBLAS_STATUS_ARCH_MISMATCH",
        11 => c"CUBLAS_STATUS_MAPPING_ERROR",
        13 => c"CUBLAS_STATUS_EXECUTION_FAILED",
        14 => c"CUBLAS_STATUS_INTERNAL_ERROR",
        15 => c"CUBLAS_STATUS_NOT_SUPPORTED",
        16 => c"CUBLAS_STATUS_LICENSE_ERROR",
        _ => c"unknown status",
    };
    name.as_ptr()
}

/// What a status means.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cublasGetStatusString(status: Status) -> *const c_char {
    let words = match status {
        0 => c"success",
        1 => c"the library was not initialized",
        3 => c"the resource allocation failed",
        7 => c"an unsupported value or parameter was passed to the function",
        8 => c"the device does not have the capability for this function",
        11 => c"an access to GPU memory space failed",
        13 => c"the GPU program failed to execute",
        14 => c"an internal operation failed, or the GPU node cannot be reached",
        15 => c"the functionality requested is not supported",
        _ => c"unknown status",
    };
    words.as_ptr()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use hinterland_proto::gpu::command::Command;

    use super::*;
    use crate::core::hostile::sent_by;

    #[test]
    fn memory_that_a_handle_works_in_is_its_own_again_when_the_stream_is_set_be_it_the_same_one() {
        let properties = |work: fn(&Handle, &Session, &Arc<Stream>)| {
            let all = sent_by(|session| {
                let stream = session.create_stream(Owner::primary(0), 0, 0).unwrap();
                let settings = Settings {
                    stream: stream.clone(),
                    stream_handle: std::ptr::null_mut(),
                    math_mode: 0,
                    pointer_mode: 0,
                    atomics_mode: 0,
                    workspace: None,
                };
                let handle = Handle {
                    magic: MAGIC,
                    number: 1,
                    settings: Mutex::new(settings),
                    scratch: std::sync::OnceLock::new(),
                    owner: Owner::primary(0),
                    emptied: None,
                    is_workspace_over: AtomicBool::new(false),
                };
                work(&handle, session, &stream);
            });
            let property = |command: &Command| match command {
                Command::BlasSet(set) => Some(set.property),
                _ => None,
            };
            all.iter().filter_map(property).collect::<Vec<_>>()
        };
        fn multiply(handle: &Handle, session: &Session) {
            // Any command of the handle's.
            let message = BlasSet { handle: 1, property: MATH_MODE, value: 1, more: 0 };
            handle.issue(session, &handle.settings(), &message).unwrap();
        }
        fn set(handle: &Handle, session: &Session, stream: &Arc<Stream>) {
            handle.set_stream(session, std::ptr::null_mut(), stream.clone()).unwrap();
        }
        let given_and_taken = |handle: &Handle, session: &Session, stream: &Arc<Stream>| {
            handle.set_workspace(session, 4096, 64).unwrap();
            multiply(handle, session);
            set(handle, session, stream);
            multiply(handle, session);
            set(handle, session, stream);
            multiply(handle, session);
        };
        assert_eq!(properties(given_and_taken), [WORKSPACE, MATH_MODE, STREAM, MATH_MODE, MATH_MODE]);
        // As PyTorch does it for each product.
        let given_again = |handle: &Handle, session: &Session, stream: &Arc<Stream>| {
            for _ in 0..2 {
                set(handle, session, stream);
                handle.set_workspace(session, 4096, 64).unwrap();
                multiply(handle, session);
            }
        };
        assert_eq!(properties(given_again), [WORKSPACE, MATH_MODE, WORKSPACE, MATH_MODE]);
    }
}
