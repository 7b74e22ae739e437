//! Nodes of graphs by one structure for all kinds, nodes that record events for others or wait for such, and nodes that call the program.

use std::ffi::{c_int, c_void};

use super::give;
use super::node::{
    FillParameters, KernelParameters, add, child_node, copy_node, empty_node, fill_node, kernel_node,
};
use super::volume::{Copy3D, Pitched, Place};
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::event::EXTERNAL;
use crate::core::graph::node_number;
use crate::core::handle::Kind;
use crate::core::list::{HostCall, HostFunction, List};
use crate::core::node::{Given, Node, NodeKind};
use crate::core::session::Session;
use crate::core::thread::with_session;

/// `cudaGraphNodeParams` and `CUgraphNodeParams`: a kind, and what belongs to that kind.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AnyParameters {
    kind: c_int,
    reserved: [c_int; 3],
    body: [u64; 29],
    reserved_too: u64,
}

/// `cudaMemcpyNodeParams`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct CopyParameters {
    flags: c_int,
    reserved: [c_int; 3],
    copy: Copy3D,
}

/// `CUDA_MEMCPY_NODE_PARAMS`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct CopyOfDriver {
    flags: c_int,
    reserved: c_int,
    _context: *mut c_void,
    ends: CopyEnds,
}

/// `CUDA_MEMCPY3D`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CopyEnds {
    from: EndOfDriver,
    to: EndOfDriver,
    width: usize,
    height: usize,
    depth: usize,
}

/// One end of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct EndOfDriver {
    at: [usize; 3],
    _level: usize,
    kind: c_int,
    here: *mut c_void,
    there: *mut c_void,
    _array: *mut c_void,
    _reserved: *mut c_void,
    pitch: usize,
    height: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v3`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelOfDriver {
    plain: KernelParameters,
    kernel: *const c_void,
    _context: *mut c_void,
}

impl KernelOfDriver {
    /// As the runtime has it: functions and kernels of libraries have handles of one kind.
    pub(crate) fn plain(&self) -> KernelParameters {
        let function = if self.plain.function.is_null() { self.kernel } else { self.plain.function };
        KernelParameters { function, ..self.plain }
    }

    /// As the driver has it.
    pub(crate) fn of(plain: KernelParameters) -> Self {
        Self { plain, kernel: std::ptr::null(), _context: std::ptr::null_mut() }
    }
}

/// `cudaChildGraphNodeParams`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ChildParameters {
    graph: *mut c_void,
    ownership: c_int,
}

/// `cudaHostNodeParams`, which is the start of `CUDA_HOST_NODE_PARAMS`: a function and its argument.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HostParameters {
    function: Option<HostFunction>,
    data: *mut c_void,
}

/// Whose structure it is: they differ for kernels and copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Face {
    Runtime,
    Driver,
}

impl AnyParameters {
    /// What belongs to the kind, as its own structure.
    ///
    /// # Safety
    /// The program filled it in as the kind says, and any bytes are a value of `T`.
    unsafe fn body<T: Copy>(&self) -> T {
        const { assert!(size_of::<T>() <= size_of::<[u64; 29]>() && align_of::<T>() <= 8) };
        // SAFETY: it is long enough and aligned; the rest is the caller's promise.
        unsafe { self.body.as_ptr().cast::<T>().read() }
    }
}

/// `CUmemorytype`
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const ANY: c_int = 4;

impl EndOfDriver {
    /// Where it lies, as the runtime says it.
    fn place(&self) -> Result<(Place, Pitched), Code> {
        let start = match self.kind {
            HOST => self.here,
            DEVICE | ANY => self.there,
            // Arrays are refused where they are made.
            _ => return Err(NOT_SUPPORTED),
        };
        let [x, y, z] = self.at;
        Ok((Place { x, y, z }, Pitched { start, pitch: self.pitch, width: self.pitch, height: self.height }))
    }
}

impl CopyEnds {
    /// As the driver has it, by addresses of whatever they belong to.
    pub(crate) fn of(plain: &Copy3D) -> Self {
        let end = |at: Place, place: Pitched| EndOfDriver {
            at: [at.x, at.y, at.z],
            _level: 0,
            kind: ANY,
            here: std::ptr::null_mut(),
            there: place.start,
            _array: std::ptr::null_mut(),
            _reserved: std::ptr::null_mut(),
            pitch: place.pitch,
            height: place.height,
        };
        let Place { x: width, y: height, z: depth } = plain.extent;
        Self { from: end(plain.from_at, plain.from), to: end(plain.to_at, plain.to), width, height, depth }
    }

    /// As the runtime has it.
    ///
    /// # Errors
    /// An end is no memory that has an address.
    pub(crate) fn plain(&self) -> Result<Copy3D, Code> {
        let ((from_at, from), (to_at, to)) = (self.from.place()?, self.to.place()?);
        let none = std::ptr::null_mut();
        let extent = Place { x: self.width, y: self.height, z: self.depth };
        Ok(Copy3D { from_array: none, from_at, from, to_array: none, to_at, to, extent, kind: 4 })
    }
}

/// The node that parameters describe.
///
/// # Safety
/// As `cudaGraphAddNode` and `cuGraphAddNode` are documented.
unsafe fn any_node(session: &Session, face: Face, given: *const AnyParameters) -> Result<Node, Code> {
    // SAFETY: the caller's promise.
    let given = unsafe { given.as_ref() }.ok_or(INVALID_VALUE)?;
    if given.reserved != [0; 3] || given.reserved_too != 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise, here and in each place below.
    unsafe {
        match (given.kind, face) {
            (0, Face::Runtime) => kernel_node(session, &given.body::<KernelParameters>()),
            (0, Face::Driver) => kernel_node(session, &given.body::<KernelOfDriver>().plain()),
            (1, Face::Runtime) => match given.body::<CopyParameters>() {
                CopyParameters { flags: 0, reserved: [0, 0, 0], copy } => copy_node(session, &raw const copy),
                _ => Err(INVALID_VALUE),
            },
            (1, Face::Driver) => match given.body::<CopyOfDriver>() {
                CopyOfDriver { flags: 0, reserved: 0, ends, .. } => copy_node(session, &ends.plain()?),
                _ => Err(INVALID_VALUE),
            },
            (2, _) => fill_node(session, &given.body::<FillParameters>()),
            (4, _) => match given.body::<ChildParameters>() {
                ChildParameters { graph, ownership: 0 } => child_node(session, graph),
                _ => {
                    Err(refused("take another graph as their own (hint: cudaGraphChildGraphOwnershipClone)"))
                }
            },
            (5, _) => Ok(empty_node()),
            (6, _) => wait_node(session, given.body()),
            (7, _) => record_node(session, given.body()),
            (3, _) => host_node(&given.body::<HostParameters>()),
            (8 | 9, _) => Err(refused("use semaphores of other interfaces")),
            (10 | 11, _) => Err(refused("allocate or free (hint: allocate before the graph)")),
            (12, _) => Err(refused("wait for or write single words (hint: events)")),
            (13, _) => Err(refused("decide (hint: decide between launches)")),
            _ => Err(INVALID_VALUE),
        }
    }
}

fn refused(what: &str) -> Code {
    eprintln!("hinterland: graphs on a GPU elsewhere have no nodes that {what}");
    NOT_SUPPORTED
}

/// A function of the program.
fn host_node(given: &HostParameters) -> Result<Node, Code> {
    let function = given.function.ok_or(INVALID_VALUE)?;
    let mut list = List::default();
    // Of whatever stream it comes behind.
    list.push_call(0, HostCall { function, data: given.data.expose_provenance() })?;
    Ok(Node::own(NodeKind::Host, list, Given::Nothing))
}

/// # Safety
/// `given` is null or points to parameters.
unsafe fn host_node_of(given: *const HostParameters) -> Result<Node, Code> {
    // SAFETY: the caller's promise.
    host_node(unsafe { given.as_ref() }.ok_or(INVALID_VALUE)?)
}

/// A record of an event that others see.
fn record_node(session: &Session, event: *mut c_void) -> Result<Node, Code> {
    let event = session.events.get(Kind::Event.of(event)?)?;
    let list = session.commands_of(event.owner, |stream| session.record_event(&event, stream, EXTERNAL))?;
    Ok(Node::own(NodeKind::Record, list, Given::Nothing))
}

/// A wait for an event that others record.
fn wait_node(session: &Session, event: *mut c_void) -> Result<Node, Code> {
    let event = session.events.get(Kind::Event.of(event)?)?;
    let list =
        session.commands_of(session.owner()?, |stream| session.wait_event(stream, &event, EXTERNAL))?;
    Ok(Node::own(NodeKind::Wait, list, Given::Nothing))
}

/// Adds a node of any kind. What an edge is like is let go: the one behind begins when the one in front is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    _edges: *const c_void,
    count: usize,
    parameters: *mut AnyParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| any_node(session, Face::Runtime, parameters)) }
}

/// The same for the driver's structure.
pub(crate) unsafe fn add_of_driver(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    parameters: *mut AnyParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| any_node(session, Face::Driver, parameters)) }
}

/// Gives a node of a graph what `make` makes.
fn set(node: *mut c_void, make: impl FnOnce(&Session) -> Result<Node, Code>) -> Code {
    with_session(|session| session.change_node(node_number(node)?, make(session)?))
}

/// The same for a node of an instance.
fn set_instance(
    exec: *mut c_void,
    node: *mut c_void,
    make: impl FnOnce(&Session) -> Result<Node, Code>,
) -> Code {
    with_session(|session| {
        session.change_exec_node(Kind::GraphExec.of(exec)?, node_number(node)?, &make(session)?)
    })
}

/// Gives a node of a graph other parameters, of its own kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphNodeSetParams(
    node: *mut c_void,
    parameters: *mut AnyParameters,
) -> Code {
    // SAFETY: as documented.
    set(node, |session| unsafe { any_node(session, Face::Runtime, parameters) })
}

/// The same for the driver's structure.
pub(crate) unsafe fn set_of_driver(node: *mut c_void, parameters: *mut AnyParameters) -> Code {
    // SAFETY: as documented.
    set(node, |session| unsafe { any_node(session, Face::Driver, parameters) })
}

/// Gives a node of an instance other parameters, of its own kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphExecNodeSetParams(
    exec: *mut c_void,
    node: *mut c_void,
    parameters: *mut AnyParameters,
) -> Code {
    // SAFETY: as documented.
    set_instance(exec, node, |session| unsafe { any_node(session, Face::Runtime, parameters) })
}

/// The same for the driver's structure.
pub(crate) unsafe fn set_instance_of_driver(
    exec: *mut c_void,
    node: *mut c_void,
    parameters: *mut AnyParameters,
) -> Code {
    // SAFETY: as documented.
    set_instance(exec, node, |session| unsafe { any_node(session, Face::Driver, parameters) })
}

/// Adds a function of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddHostNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    parameters: *const HostParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |_| host_node_of(parameters)) }
}

/// The function that a node calls, and its argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphHostNodeGetParams(
    node: *mut c_void,
    parameters: *mut HostParameters,
) -> Code {
    with_session(|session| {
        let HostCall { function, data } = session.call_of_node(node_number(node)?)?;
        let data = std::ptr::with_exposed_provenance_mut(data);
        // SAFETY: a place for a result, as documented.
        unsafe { give(parameters, HostParameters { function: Some(function), data }) }
    })
}

/// Has a node call another function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphHostNodeSetParams(
    node: *mut c_void,
    parameters: *const HostParameters,
) -> Code {
    // SAFETY: as documented.
    set(node, |_| unsafe { host_node_of(parameters) })
}

/// Has a node of an instance call another function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphExecHostNodeSetParams(
    exec: *mut c_void,
    node: *mut c_void,
    parameters: *const HostParameters,
) -> Code {
    // SAFETY: as documented.
    set_instance(exec, node, |_| unsafe { host_node_of(parameters) })
}

/// Gives a node of an instance the nodes of another graph.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphExecChildGraphNodeSetParams(
    exec: *mut c_void,
    node: *mut c_void,
    child: *mut c_void,
) -> Code {
    set_instance(exec, node, |session| child_node(session, child))
}

/// Functions of nodes that are about an event.
macro_rules! of_events {
    ($($words:literal $kind:expr, $make:ident: $add:ident $get:ident $set:ident $set_instance:ident;)*) => {$(
        #[doc = concat!("Adds a node that ", $words, ".")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $add(
            place: *mut *mut c_void,
            graph: *mut c_void,
            behind: *const *mut c_void,
            count: usize,
            event: *mut c_void,
        ) -> Code {
            // SAFETY: as documented.
            unsafe { add(place, graph, behind, count, |session| $make(session, event)) }
        }

        #[doc = concat!("The event of a node that ", $words, ".")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(node: *mut c_void, event: *mut *mut c_void) -> Code {
            with_session(|session| {
                let found = session.event_of_node(node_number(node)?, $kind)?;
                // SAFETY: a place for a result, as documented.
                unsafe { give(event, Kind::Event.handle(found)) }
            })
        }

        #[doc = concat!("Gives another event to a node that ", $words, ".")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $set(node: *mut c_void, event: *mut c_void) -> Code {
            set(node, |session| $make(session, event))
        }

        #[doc = concat!("Gives another event to a node of an instance that ", $words, ".")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $set_instance(exec: *mut c_void, node: *mut c_void, event: *mut c_void) -> Code {
            set_instance(exec, node, |session| $make(session, event))
        }
    )*};
}
of_events! {
    "records an event for others" NodeKind::Record, record_node:
        hl_cudaGraphAddEventRecordNode hl_cudaGraphEventRecordNodeGetEvent hl_cudaGraphEventRecordNodeSetEvent hl_cudaGraphExecEventRecordNodeSetEvent;
    "waits for an event that others record" NodeKind::Wait, wait_node:
        hl_cudaGraphAddEventWaitNode hl_cudaGraphEventWaitNodeGetEvent hl_cudaGraphEventWaitNodeSetEvent hl_cudaGraphExecEventWaitNodeSetEvent;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_compiler_of_cuda_13_makes_them() {
        assert_eq!(size_of::<AnyParameters>(), 256);
        assert_eq!(size_of::<CopyParameters>(), 176);
        assert_eq!(size_of::<CopyOfDriver>(), 216);
        assert_eq!(size_of::<CopyEnds>(), 200);
        assert_eq!(size_of::<KernelOfDriver>(), 72);
        assert_eq!(size_of::<HostParameters>(), 16);
    }
}
