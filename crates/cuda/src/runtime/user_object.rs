//! Objects of the program that graphs keep.

use std::ffi::{c_uint, c_void};

use super::give;
use crate::code::{Code, INVALID_VALUE};
use crate::core::handle::Kind;
use crate::core::list::{HostCall, HostFunction};
use crate::core::thread::with_session;

/// `cudaUserObjectNoDestructorSync`, which has to be said: nobody waits for the function that ends the object.
const NOBODY_WAITS: c_uint = 1;
/// `cudaGraphUserObjectMove`
const MOVE: c_uint = 1;

fn number(object: *mut c_void) -> Result<u32, Code> {
    Kind::UserObject.of(object)
}

/// Makes an object, with so many references of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaUserObjectCreate(
    place: *mut *mut c_void,
    data: *mut c_void,
    destroy: Option<HostFunction>,
    count: c_uint,
    flags: c_uint,
) -> Code {
    with_session(|session| {
        let function = destroy.filter(|_| flags == NOBODY_WAITS && !place.is_null()).ok_or(INVALID_VALUE)?;
        let destroy = HostCall { function, data: data.expose_provenance() };
        let object = session.create_user_object(destroy, count)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::UserObject.handle(object)) }
    })
}

/// Gives the program more references to an object.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaUserObjectRetain(object: *mut c_void, count: c_uint) -> Code {
    with_session(|session| session.retain_user_object(number(object)?, count))
}

/// Takes references from the program.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaUserObjectRelease(object: *mut c_void, count: c_uint) -> Code {
    with_session(|session| session.release_user_object(number(object)?, count))
}

/// Gives a graph references to an object: new ones, or the program's.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphRetainUserObject(
    graph: *mut c_void,
    object: *mut c_void,
    count: c_uint,
    flags: c_uint,
) -> Code {
    with_session(|session| {
        let graph = session.graph(Kind::Graph.of(graph)?)?;
        if flags & !MOVE != 0 {
            return Err(INVALID_VALUE);
        }
        session.keep_user_object(&graph, number(object)?, count, flags == MOVE)
    })
}

/// Takes references from a graph.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphReleaseUserObject(
    graph: *mut c_void,
    object: *mut c_void,
    count: c_uint,
) -> Code {
    with_session(|session| {
        let graph = session.graph(Kind::Graph.of(graph)?)?;
        session.let_user_object_go(&graph, number(object)?, count)
    })
}
