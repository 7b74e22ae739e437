//! Graphs that a program puts together node by node, and what it asks of nodes.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::launch::kernel;
use super::register::Dim3;
use super::volume::{Copy3D, Pitched, Place, copy_3d};
use super::{give, give_if};
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::capture_mode::CaptureMode;
use crate::core::device::Rows;
use crate::core::graph::{Graph, node_number};
use crate::core::handle::Kind;
use crate::core::launch::Geometry;
use crate::core::list::List;
use crate::core::node::{Arguments, Given, Node, NodeKind};
use crate::core::session::Session;
use crate::core::thread::with_session;

/// `cudaKernelNodeParams`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelParameters {
    pub(super) function: *const c_void,
    pub(super) grid: Dim3,
    pub(super) block: Dim3,
    pub(super) shared: c_uint,
    pub(super) each: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
}

impl KernelParameters {
    /// A place for those of a kernel.
    pub(crate) fn none() -> Self {
        let (nothing, all) = (std::ptr::null_mut(), Dim3::from([0; 3]));
        Self { function: std::ptr::null(), grid: all, block: all, shared: 0, each: nothing, extra: nothing }
    }
}

/// `cudaMemsetParams`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FillParameters {
    to: *mut c_void,
    pitch: usize,
    value: c_uint,
    element: c_uint,
    width: usize,
    height: usize,
}

/// A list of a program's: `count` of them from `start` on, or none.
///
/// # Safety
/// `start` has `count` elements, or `count` is 0.
unsafe fn numbers(start: *const *mut c_void, count: usize) -> Result<Vec<u32>, Code> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if start.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, count) }.iter().map(|node| node_number(*node)).collect()
}

fn handle(node: u32) -> *mut c_void {
    Kind::Node.handle(node)
}

fn graph_of(session: &Session, graph: *mut c_void) -> Result<Arc<Graph>, Code> {
    session.graph(Kind::Graph.of(graph)?)
}

/// Writes nodes into a program's array, or only says how many there are.
///
/// # Safety
/// `place` is null or has room for as many as `count` says.
unsafe fn give_nodes(nodes: &[u32], place: *mut *mut c_void, count: *mut usize) -> Result<(), Code> {
    if count.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if place.is_null() {
            return give(count, nodes.len());
        }
        let room = *count;
        for at in 0..room {
            place.add(at).write(nodes.get(at).map_or(std::ptr::null_mut(), |node| handle(*node)));
        }
        give(count, nodes.len().min(room))
    }
}

/// # Safety
/// The parameters are as many and as long as the image of the kernel says.
pub(crate) unsafe fn kernel_node(session: &Session, given: *const KernelParameters) -> Result<Node, Code> {
    if given.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let given = unsafe { *given };
    let kernel = kernel(session, given.function, session.owner()?)?;
    let geometry = Geometry {
        grid: given.grid.into(),
        block: given.block.into(),
        shared: given.shared as usize,
        ..Geometry::default()
    };
    // SAFETY: the caller's promise.
    let parameters = unsafe { crate::driver::launch::parameters(given.each, given.extra)? };
    let list = session.commands_of(kernel.owner, |stream| {
        // SAFETY: the caller's promise.
        unsafe { session.launch(&kernel, stream, &geometry, parameters) }
    })?;
    let arguments = Arc::new(Arguments::of_block(&kernel, list.launch_block()));
    let given = Given::Kernel(given.function.expose_provenance(), geometry, arguments);
    Ok(Node::own(NodeKind::Kernel, list, given))
}

/// # Safety
/// As a copy by `cudaMemcpy3D`, at each launch of the graph.
pub(crate) unsafe fn copy_node(session: &Session, given: *const Copy3D) -> Result<Node, Code> {
    if given.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let given = unsafe { *given };
    let list = session.commands_of(session.owner()?, |stream| copy_3d(session, stream, &given))?;
    Ok(Node::own(NodeKind::Copy, list, Given::Bytes(bytes_of(&given))))
}

pub(crate) fn fill_node(session: &Session, given: *const FillParameters) -> Result<Node, Code> {
    if given.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as documented.
    let given = unsafe { *given };
    if ![1, 2, 4].contains(&given.element) {
        return Err(INVALID_VALUE);
    }
    let place = Rows { start: given.to.addr() as u64, pitch: given.pitch as u64 };
    let (width, height) = (given.width as u64, given.height as u64);
    let list = session.commands_of(session.owner()?, |stream| {
        session.fill_rows(stream, place, given.element, given.value, width, height)
    })?;
    Ok(Node::own(NodeKind::Fill, list, Given::Bytes(bytes_of(&given))))
}

pub(super) fn child_node(session: &Session, child: *mut c_void) -> Result<Node, Code> {
    session.child_of(&*graph_of(session, child)?)
}

pub(super) fn empty_node() -> Node {
    Node::own(NodeKind::Empty, List::default(), Given::Nothing)
}

/// The bytes of a structure of C, for the program to have again.
fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<T>()];
    // SAFETY: as many bytes as the value has; padding may be anything, and is given back as it came.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>(),
            bytes.as_mut_ptr(),
            bytes.len(),
        );
    }
    bytes
}

/// A copy of one row as a copy of a volume.
fn one_row(to: *mut c_void, from: *const c_void, bytes: usize) -> Copy3D {
    let place = |start: *mut c_void| Pitched { start, pitch: bytes, width: bytes, height: 1 };
    Copy3D {
        from_array: std::ptr::null_mut(),
        from_at: Place::default(),
        from: place(from.cast_mut()),
        to_array: std::ptr::null_mut(),
        to_at: Place::default(),
        to: place(to),
        extent: Place { x: bytes, y: 1, z: 1 },
        kind: 4,
    }
}

/// Adds what `make` makes behind nodes of a graph.
///
/// # Safety
/// As the functions that add nodes are documented.
pub(crate) unsafe fn add(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    make: impl FnOnce(&'static Session) -> Result<Node, Code>,
) -> Code {
    with_session(|session| {
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        let graph = graph_of(session, graph)?;
        // SAFETY: the caller's promise.
        let behind = unsafe { numbers(behind, count)? };
        let node = session.add_node(&graph, &behind, make(session)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, handle(node)) }
    })
}

/// Adds a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddKernelNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    parameters: *const KernelParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| kernel_node(session, parameters)) }
}

/// Adds a copy of a volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddMemcpyNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    parameters: *const Copy3D,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| copy_node(session, parameters)) }
}

/// Adds a copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddMemcpyNode1D(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    _kind: c_int,
) -> Code {
    let copy = one_row(to, from, bytes);
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| copy_node(session, &raw const copy)) }
}

/// Adds a fill.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddMemsetNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    parameters: *const FillParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| fill_node(session, parameters)) }
}

/// Adds a node that does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddEmptyNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |_| Ok(empty_node())) }
}

/// Adds the nodes of another graph as they are now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddChildGraphNode(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    count: usize,
    child: *mut c_void,
) -> Code {
    // SAFETY: as documented.
    unsafe { add(place, graph, behind, count, |session| child_node(session, child)) }
}

/// Puts nodes behind others. What an edge is like is let go: the one behind begins when the one in front is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphAddDependencies(
    graph: *mut c_void,
    from: *const *mut c_void,
    to: *const *mut c_void,
    _edges: *const c_void,
    count: usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { change_edges(graph, from, to, count, false) }
}

/// Takes that back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphRemoveDependencies(
    graph: *mut c_void,
    from: *const *mut c_void,
    to: *const *mut c_void,
    _edges: *const c_void,
    count: usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { change_edges(graph, from, to, count, true) }
}

/// # Safety
/// Both arrays have `count` nodes.
pub(crate) unsafe fn change_edges(
    graph: *mut c_void,
    from: *const *mut c_void,
    to: *const *mut c_void,
    count: usize,
    is_removal: bool,
) -> Code {
    with_session(|session| {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (numbers(from, count)?, numbers(to, count)?) };
        session.change_edges(&*graph_of(session, graph)?, &from, &to, is_removal)
    })
}

/// The nodes of a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphGetNodes(
    graph: *mut c_void,
    nodes: *mut *mut c_void,
    count: *mut usize,
) -> Code {
    with_session(|session| {
        let graph = graph_of(session, graph)?;
        if nodes.is_null() {
            // SAFETY: a place for a result, as documented.
            return unsafe { give(count, session.node_count(&graph)) };
        }
        // SAFETY: as documented.
        unsafe { give_nodes(&session.nodes(&graph)?, nodes, count) }
    })
}

/// The nodes of a graph that are behind nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphGetRootNodes(
    graph: *mut c_void,
    nodes: *mut *mut c_void,
    count: *mut usize,
) -> Code {
    with_session(|session| {
        let graph = graph_of(session, graph)?;
        let edges = session.edges(&graph)?;
        let mut all = session.nodes(&graph)?;
        all.retain(|node| edges.iter().all(|(_, after)| after != node));
        // SAFETY: as documented.
        unsafe { give_nodes(&all, nodes, count) }
    })
}

/// Which nodes of a graph are behind which.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphGetEdges(
    graph: *mut c_void,
    from: *mut *mut c_void,
    to: *mut *mut c_void,
    edges: *mut [u8; 8],
    count: *mut usize,
) -> Code {
    with_session(|session| {
        let pairs = session.edges(&*graph_of(session, graph)?)?;
        let (first, second): (Vec<u32>, Vec<u32>) = pairs.into_iter().unzip();
        if count.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as documented: as much room in each as the count says.
        unsafe {
            let mut room = *count;
            give_nodes(&first, from, &raw mut room)?;
            clear_edges(edges, room);
            give_nodes(&second, to, count)
        }
    })
}

/// # Safety
/// `edges` is null or has room for `count`.
unsafe fn clear_edges(edges: *mut [u8; 8], count: usize) {
    if !edges.is_null() {
        // SAFETY: the caller's promise.
        unsafe { edges.write_bytes(0, count) };
    }
}

/// The nodes that a node is behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphNodeGetDependencies(
    node: *mut c_void,
    nodes: *mut *mut c_void,
    edges: *mut [u8; 8],
    count: *mut usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { neighbours(node, nodes, edges, count, |(before, after), own| (after == own).then_some(before)) }
}

/// The nodes that are behind a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphNodeGetDependentNodes(
    node: *mut c_void,
    nodes: *mut *mut c_void,
    edges: *mut [u8; 8],
    count: *mut usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { neighbours(node, nodes, edges, count, |(before, after), own| (before == own).then_some(after)) }
}

/// # Safety
/// `nodes` and `edges` are null or have as much room as `count` says.
unsafe fn neighbours(
    node: *mut c_void,
    nodes: *mut *mut c_void,
    edges: *mut [u8; 8],
    count: *mut usize,
    which: impl Fn((u32, u32), u32) -> Option<u32>,
) -> Code {
    with_session(|session| {
        let own = node_number(node)?;
        let graph = session.with_node(own, |graph, _, _| Ok(graph.clone()))?;
        let found: Vec<u32> =
            session.edges(&graph)?.into_iter().filter_map(|pair| which(pair, own)).collect();
        // SAFETY: the caller's promise.
        unsafe {
            give_nodes(&found, nodes, count)?;
            if !nodes.is_null() {
                clear_edges(edges, *count);
            }
        }
        Ok(())
    })
}

/// What a node does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphNodeGetType(node: *mut c_void, kind: *mut c_int) -> Code {
    with_session(|session| {
        let found = session.with_node(node_number(node)?, |_, state, index| Ok(state.kind(index)))?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(kind, found as c_int) }
    })
}

/// Takes a node out of its graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphDestroyNode(node: *mut c_void) -> Code {
    with_session(|session| session.destroy_node(node_number(node)?))
}

/// Makes a graph with the same nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphClone(place: *mut *mut c_void, graph: *mut c_void) -> Code {
    with_session(|session| {
        let clone = session.clone_graph(&*graph_of(session, graph)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Graph.handle(clone.number)) }
    })
}

/// The node of a copy of a graph that a node has become.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphNodeFindInClone(
    place: *mut *mut c_void,
    node: *mut c_void,
    clone: *mut c_void,
) -> Code {
    with_session(|session| {
        let found = session.node_in_clone(node_number(node)?, &*graph_of(session, clone)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, handle(found)) }
    })
}

/// How a kernel of a graph is launched. The arguments are ours, and stay as long as the node is not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphKernelNodeGetParams(
    node: *mut c_void,
    parameters: *mut KernelParameters,
) -> Code {
    with_session(|session| {
        let (function, geometry, arguments) = session.kernel_of_node(node_number(node)?)?;
        let [grid, block] = [geometry.grid, geometry.block].map(Dim3::from);
        let found = KernelParameters {
            function: std::ptr::with_exposed_provenance(function),
            grid,
            block,
            // Given as 32 bits.
            shared: geometry.shared as c_uint,
            each: arguments.each(),
            extra: std::ptr::null_mut(),
        };
        // SAFETY: a place for a result, as documented.
        unsafe { give(parameters, found) }
    })
}

/// # Safety
/// `place` is null or has room for the structure that the node was given.
unsafe fn give_again(node: *mut c_void, kind: NodeKind, place: *mut u8) -> Code {
    with_session(|session| {
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        session.with_node(node_number(node)?, |_, state, index| match state.given(index, kind)? {
            Given::Bytes(bytes) => {
                // SAFETY: the caller's promise.
                unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            _ => Err(NOT_SUPPORTED),
        })
    })
}

/// What a copy of a graph copies, as it was given; not for one that was captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphMemcpyNodeGetParams(node: *mut c_void, place: *mut Copy3D) -> Code {
    // SAFETY: as documented.
    unsafe { give_again(node, NodeKind::Copy, place.cast()) }
}

/// What a fill of a graph fills, as it was given; not for one that was captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphMemsetNodeGetParams(
    node: *mut c_void,
    place: *mut FillParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { give_again(node, NodeKind::Fill, place.cast()) }
}

/// Functions that give a node of a graph, or of an instance, other parameters.
macro_rules! setters {
    ($($words:literal $of_graph:ident $of_instance:ident ($($argument:ident: $kind:ty),*) = $make:expr;)*) => {$(
        #[doc = concat!("Gives ", $words, " of a graph other parameters.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $of_graph(node: *mut c_void, $($argument: $kind),*) -> Code {
            with_session(|session| {
                let made: fn(&Session, $($kind),*) -> Result<Node, Code> = $make;
                session.change_node(node_number(node)?, made(session, $($argument),*)?)
            })
        }

        #[doc = concat!("Gives ", $words, " of an instance other parameters.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $of_instance(exec: *mut c_void, node: *mut c_void, $($argument: $kind),*) -> Code {
            with_session(|session| {
                let made: fn(&Session, $($kind),*) -> Result<Node, Code> = $make;
                let node = node_number(node)?;
                session.change_exec_node(Kind::GraphExec.of(exec)?, node, &made(session, $($argument),*)?)
            })
        }
    )*};
}
setters! {
    "a kernel" hl_cudaGraphKernelNodeSetParams hl_cudaGraphExecKernelNodeSetParams(parameters: *const KernelParameters)
        // SAFETY: as documented.
        = |session, parameters| unsafe { kernel_node(session, parameters) };
    "a copy of a volume" hl_cudaGraphMemcpyNodeSetParams hl_cudaGraphExecMemcpyNodeSetParams(parameters: *const Copy3D)
        // SAFETY: as documented.
        = |session, parameters| unsafe { copy_node(session, parameters) };
    "a copy" hl_cudaGraphMemcpyNodeSetParams1D hl_cudaGraphExecMemcpyNodeSetParams1D(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int)
        = |session, to, from, bytes, _kind| {
            let copy = one_row(to, from, bytes);
            // SAFETY: as documented.
            unsafe { copy_node(session, &raw const copy) }
        };
    "a fill" hl_cudaGraphMemsetNodeSetParams hl_cudaGraphExecMemsetNodeSetParams(parameters: *const FillParameters) = fill_node;
}

/// Switches a kernel, a copy or a fill of an instance on or off.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphNodeSetEnabled(exec: *mut c_void, node: *mut c_void, is_on: c_uint) -> Code {
    with_session(|session| {
        session.switch_exec_node(Kind::GraphExec.of(exec)?, node_number(node)?, is_on != 0)
    })
}

/// Whether a kernel, a copy or a fill of an instance is switched on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphNodeGetEnabled(
    exec: *mut c_void,
    node: *mut c_void,
    place: *mut c_uint,
) -> Code {
    with_session(|session| {
        let is_on = session.is_exec_node_on(Kind::GraphExec.of(exec)?, node_number(node)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, c_uint::from(is_on)) }
    })
}

/// Captures a stream into a graph that is there, behind some of its nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamBeginCaptureToGraph(
    stream: *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    _edges: *const c_void,
    count: usize,
    mode: c_int,
) -> Code {
    with_session(|session| {
        let mode = CaptureMode::of(mode)?;
        let (stream, graph) = (session.stream(stream)?, graph_of(session, graph)?);
        // SAFETY: as documented.
        let behind = unsafe { numbers(behind, count)? };
        session.begin_capture_into(&stream, &graph, false, mode)?;
        session.set_frontier(&graph, stream.number, &behind, true)
    })
}

/// Says what the next command of a captured stream is behind: these nodes besides (flags 0), or these alone (1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamUpdateCaptureDependencies(
    stream: *mut c_void,
    behind: *const *mut c_void,
    _edges: *const c_void,
    count: usize,
    flags: c_uint,
) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        let graph = session.captured_graph(&stream)?.ok_or(crate::code::ILLEGAL_STATE)?;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as documented.
        let behind = unsafe { numbers(behind, count)? };
        session.set_frontier(&graph, stream.number, &behind, flags == 1)
    })
}

thread_local! {
    /// What a thread was last told that a captured stream is behind: it reads that out of our memory.
    static FRONTIER: std::cell::RefCell<(Vec<usize>, Vec<[u8; 8]>)> = const { std::cell::RefCell::new((Vec::new(), Vec::new())) };
}

/// The capture of a stream: whether, its number, its graph, and what the stream's next command is behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamGetCaptureInfo(
    stream: *mut c_void,
    status: *mut c_int,
    number: *mut u64,
    graph: *mut *mut c_void,
    dependencies: *mut *const c_void,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        let (capture, failed) = session.capture_of(&stream)?;
        let state = if capture == 0 { 0 } else { 1 + c_int::from(failed) };
        // SAFETY: places for results or null, as documented.
        unsafe {
            give(status, state)?;
            give_if(number, u64::from(capture));
            give_if(graph, std::ptr::null_mut());
            give_if(dependencies, std::ptr::null());
            give_if(edges, std::ptr::null());
            give_if(count, 0);
        }
        if state != 1 {
            // That a capture has failed is what was asked for, and no error.
            return Ok(());
        }
        let Some(own) = session.captured_graph(&stream)? else { return Ok(()) };
        // SAFETY: as above.
        unsafe { give_if(graph, Kind::Graph.handle(own.number)) };
        if dependencies.is_null() && count.is_null() {
            return Ok(());
        }
        let nodes = session.frontier(&own, stream.number)?;
        let given = FRONTIER.try_with(|frontier| {
            let (handles, kinds) = &mut *frontier.borrow_mut();
            *handles = nodes.iter().map(|node| handle(*node).addr()).collect();
            *kinds = vec![[0; 8]; nodes.len()];
            // SAFETY: as above.
            unsafe {
                give_if(dependencies, handles.as_ptr().cast());
                give_if(edges, kinds.as_ptr().cast());
                give_if(count, nodes.len());
            }
        });
        // In a destructor that runs last there is no place for them any more.
        given.map_err(|_| NOT_SUPPORTED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_compiler_of_cuda_13_makes_them() {
        assert_eq!(size_of::<KernelParameters>(), 56);
        assert_eq!(size_of::<FillParameters>(), 40);
        assert_eq!(size_of::<Copy3D>(), 160);
    }
}
