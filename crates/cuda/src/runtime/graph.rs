//! Graphs and instances of them.

use std::ffi::{c_int, c_uint, c_void};

use super::device::number;
use super::{give, give_if};
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::handle::Kind;
use crate::core::thread::with_session;

/// `cudaGraphExecUpdateResultInfo`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UpdateResult {
    result: c_int,
    node: *mut c_void,
    from: *mut c_void,
}

/// Flags of an instance: memory that it allocates is freed before the next launch, it is sent ahead, kernels launch it, kernels have the priority of their nodes.
const KNOWN_FLAGS: u64 = 15;
/// `cudaGraphInstantiateFlagDeviceLaunch`
const FROM_DEVICE: u64 = 4;

/// An empty graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphCreate(place: *mut *mut c_void, flags: c_uint) -> Code {
    with_session(|session| {
        if place.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let owner = session.owner()?;
        let graph = session.add_graph(owner, owner.device)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Graph.handle(graph.number)) }
    })
}

/// Makes a graph ready to be launched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphInstantiate(
    place: *mut *mut c_void,
    graph: *mut c_void,
    flags: u64,
) -> Code {
    with_session(|session| {
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        let graph = session.graph(Kind::Graph.of(graph)?)?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if flags & FROM_DEVICE != 0 {
            eprintln!(
                "hinterland: graphs on a GPU elsewhere cannot be launched by kernels (hint: cudaGraphLaunch by the program)"
            );
            return Err(NOT_SUPPORTED);
        }
        let exec = session.instantiate(&graph, flags)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::GraphExec.handle(exec)) }
    })
}

/// The same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphInstantiateWithFlags(
    place: *mut *mut c_void,
    graph: *mut c_void,
    flags: u64,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaGraphInstantiate(place, graph, flags) }
}

/// Makes an instance do what a graph says. It never fails for a difference between the two: the node then makes the instance anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphExecUpdate(
    exec: *mut c_void,
    graph: *mut c_void,
    result: *mut UpdateResult,
) -> Code {
    with_session(|session| {
        let graph = session.graph(Kind::Graph.of(graph)?)?;
        session.update_exec(Kind::GraphExec.of(exec)?, &graph)?;
        let good = UpdateResult { result: 0, node: std::ptr::null_mut(), from: std::ptr::null_mut() };
        // SAFETY: a place for a result or null, as documented.
        unsafe { give_if(result, good) };
        Ok(())
    })
}

/// Launches an instance.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> Code {
    with_session(|session| session.launch_exec(Kind::GraphExec.of(exec)?, &session.stream(stream)?))
}

/// Nothing is to be sent ahead of a launch.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphUpload(exec: *mut c_void, stream: *mut c_void) -> Code {
    with_session(|session| {
        session.known_exec(Kind::GraphExec.of(exec)?)?;
        session.stream(stream).map(drop)
    })
}

/// Ends a graph.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphDestroy(graph: *mut c_void) -> Code {
    with_session(|session| session.destroy_graph(Kind::Graph.of(graph)?))
}

/// Ends an instance.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphExecDestroy(exec: *mut c_void) -> Code {
    with_session(|session| session.destroy_exec(Kind::GraphExec.of(exec)?))
}

/// `cudaGraphInstantiateParams`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct InstantiateParameters {
    flags: u64,
    upload: *mut c_void,
    wrong: *mut c_void,
    result: c_int,
}

/// Makes a graph ready to be launched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphInstantiateWithParams(
    place: *mut *mut c_void,
    graph: *mut c_void,
    parameters: *mut InstantiateParameters,
) -> Code {
    // SAFETY: as documented.
    let flags = unsafe { parameters.as_ref() }.map_or(0, |given| given.flags);
    // SAFETY: as documented.
    let code = unsafe { hl_cudaGraphInstantiate(place, graph, flags) };
    // SAFETY: as documented.
    if let Some(given) = unsafe { parameters.as_mut() } {
        (given.wrong, given.result) = (std::ptr::null_mut(), c_int::from(code != 0));
    }
    code
}

/// `cudaGraphMemAttributeType`
const MEMORY: std::ops::RangeInclusive<c_int> = 0..=3;

/// Bytes of a device that graphs allocate: 0 and 2 now, 1 and 3 the most there were. They are used and kept alike, as what no graph has is given back at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetGraphMemAttribute(
    device: c_int,
    attribute: c_int,
    value: *mut u64,
) -> Code {
    with_session(|session| {
        let (now, most) = session.graph_bytes(number(session, device)?)?;
        if !MEMORY.contains(&attribute) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a place for a result, as documented.
        unsafe { give(value, if attribute % 2 == 0 { now } else { most }) }
    })
}

/// Forgets the most there were; that is all that can be set, and to 0 alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceSetGraphMemAttribute(
    device: c_int,
    attribute: c_int,
    value: *const u64,
) -> Code {
    with_session(|session| {
        let device = number(session, device)?;
        // SAFETY: a number, as documented, or null.
        let value = unsafe { value.as_ref() };
        if !MEMORY.contains(&attribute) || attribute % 2 == 0 || value != Some(&0) {
            return Err(INVALID_VALUE);
        }
        session.forget_graph_bytes(device)
    })
}

/// Nothing is kept for graphs that none of them has.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceGraphMemTrim(device: c_int) -> Code {
    with_session(|session| number(session, device).map(drop))
}
