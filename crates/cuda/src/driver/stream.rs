//! Streams, events and graphs: the runtime's, under the driver's names. Handles are the same.

use std::ffi::{c_int, c_uint, c_void};

use crate::code::Code;
use crate::core::handle::Kind;
use crate::core::list::HostFunction;
use crate::core::thread::driver;
use crate::runtime::any_node::{self, AnyParameters, HostParameters};
use crate::runtime::graph::{InstantiateParameters, UpdateResult};
use crate::runtime::{event, give, graph, limit, node, node_attribute, stream, user_object};

same! {
    /// Makes a stream with flags.
    hl_cuStreamCreate(place: *mut *mut c_void, flags: c_uint) = stream::hl_cudaStreamCreateWithFlags;
    /// Makes a stream with flags and a priority.
    hl_cuStreamCreateWithPriority(place: *mut *mut c_void, flags: c_uint, priority: c_int) = stream::hl_cudaStreamCreateWithPriority;
    /// Ends a stream; its work goes on.
    hl_cuStreamDestroy_v2(stream: *mut c_void) = stream::hl_cudaStreamDestroy;
    /// Returns when the work of a stream is done, or when nobody could tell that it is not.
    hl_cuStreamSynchronize(stream: *mut c_void) = stream::hl_cudaStreamSynchronize;
    /// Whether the work of a stream is done.
    hl_cuStreamQuery(stream: *mut c_void) = stream::hl_cudaStreamQuery;
    /// Makes a stream wait for an event.
    hl_cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) = stream::hl_cudaStreamWaitEvent;
    /// The flags of a stream.
    hl_cuStreamGetFlags(stream: *mut c_void, flags: *mut c_uint) = stream::hl_cudaStreamGetFlags;
    /// The priority of a stream.
    hl_cuStreamGetPriority(stream: *mut c_void, priority: *mut c_int) = stream::hl_cudaStreamGetPriority;
    /// The device of a stream.
    hl_cuStreamGetDevice(stream: *mut c_void, device: *mut c_int) = stream::hl_cudaStreamGetDevice;
    /// Attributes of streams are hints.
    hl_cuStreamGetAttribute(stream: *mut c_void, number: c_int, value: *mut [u64; 8]) = limit::hl_cudaStreamGetAttribute;
    /// Hints, which are let go.
    hl_cuStreamSetAttribute(stream: *mut c_void, number: c_int, value: *const c_void) = limit::hl_cudaStreamSetAttribute;
    /// Hints, which are let go.
    hl_cuStreamCopyAttributes(to: *mut c_void, from: *mut c_void) = limit::hl_cudaStreamCopyAttributes;
    /// Calls a function of the program when the work of a stream so far is done, with its error.
    hl_cuStreamAddCallback(stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void, Code, *mut c_void)>, data: *mut c_void, flags: c_uint) = stream::hl_cudaStreamAddCallback;
    /// Says what the calling thread may do while something is being captured.
    hl_cuThreadExchangeStreamCaptureMode(mode: *mut c_int) = stream::hl_cudaThreadExchangeStreamCaptureMode;
    /// The capture of a stream.
    hl_cuStreamGetCaptureInfo_v3(stream: *mut c_void, status: *mut c_int, number: *mut u64, graph: *mut *mut c_void, dependencies: *mut *const c_void, edges: *mut *const c_void, count: *mut usize) = node::hl_cudaStreamGetCaptureInfo;
    /// The number of a stream.
    hl_cuStreamGetId(stream: *mut c_void, number: *mut u64) = stream::hl_cudaStreamGetId;
    /// Begins to capture a stream.
    hl_cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_int) = stream::hl_cudaStreamBeginCapture;
    /// Ends a capture and gives its graph.
    hl_cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) = stream::hl_cudaStreamEndCapture;
    /// Whether a stream is being captured.
    hl_cuStreamIsCapturing(stream: *mut c_void, status: *mut c_int) = stream::hl_cudaStreamIsCapturing;
    /// Calls a function of the program when the work of a stream so far is done.
    hl_cuLaunchHostFunc(stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) = stream::hl_cudaLaunchHostFunc;
    /// Makes an event with flags.
    hl_cuEventCreate(place: *mut *mut c_void, flags: c_uint) = event::hl_cudaEventCreateWithFlags;
    /// Ends an event.
    hl_cuEventDestroy_v2(event: *mut c_void) = event::hl_cudaEventDestroy;
    /// Records an event behind the work of a stream.
    hl_cuEventRecord(event: *mut c_void, stream: *mut c_void) = event::hl_cudaEventRecord;
    /// The same with flags.
    hl_cuEventRecordWithFlags(event: *mut c_void, stream: *mut c_void, flags: c_uint) = event::hl_cudaEventRecordWithFlags;
    /// Whether an event is done.
    hl_cuEventQuery(event: *mut c_void) = event::hl_cudaEventQuery;
    /// Returns when an event is done.
    hl_cuEventSynchronize(event: *mut c_void) = event::hl_cudaEventSynchronize;
    /// Milliseconds between two events.
    hl_cuEventElapsedTime_v2(place: *mut f32, start: *mut c_void, end: *mut c_void) = event::hl_cudaEventElapsedTime;
    /// The same under its older name.
    hl_cuEventElapsedTime(place: *mut f32, start: *mut c_void, end: *mut c_void) = event::hl_cudaEventElapsedTime;
    /// An empty graph.
    hl_cuGraphCreate(place: *mut *mut c_void, flags: c_uint) = graph::hl_cudaGraphCreate;
    /// Makes a graph with the same nodes.
    hl_cuGraphClone(place: *mut *mut c_void, graph: *mut c_void) = node::hl_cudaGraphClone;
    /// The nodes of a graph.
    hl_cuGraphGetNodes(graph: *mut c_void, nodes: *mut *mut c_void, count: *mut usize) = node::hl_cudaGraphGetNodes;
    /// Adds a node that does nothing.
    hl_cuGraphAddEmptyNode(place: *mut *mut c_void, graph: *mut c_void, behind: *const *mut c_void, count: usize) = node::hl_cudaGraphAddEmptyNode;
    /// Adds the nodes of another graph as they are now.
    hl_cuGraphAddChildGraphNode(place: *mut *mut c_void, graph: *mut c_void, behind: *const *mut c_void, count: usize, child: *mut c_void) = node::hl_cudaGraphAddChildGraphNode;
    /// The nodes of a graph that are behind nothing.
    hl_cuGraphGetRootNodes(graph: *mut c_void, nodes: *mut *mut c_void, count: *mut usize) = node::hl_cudaGraphGetRootNodes;
    /// Which nodes of a graph are behind which.
    hl_cuGraphGetEdges_v2(graph: *mut c_void, from: *mut *mut c_void, to: *mut *mut c_void, edges: *mut [u8; 8], count: *mut usize) = node::hl_cudaGraphGetEdges;
    /// The nodes that a node is behind.
    hl_cuGraphNodeGetDependencies_v2(node: *mut c_void, nodes: *mut *mut c_void, edges: *mut [u8; 8], count: *mut usize) = node::hl_cudaGraphNodeGetDependencies;
    /// The nodes that are behind a node.
    hl_cuGraphNodeGetDependentNodes_v2(node: *mut c_void, nodes: *mut *mut c_void, edges: *mut [u8; 8], count: *mut usize) = node::hl_cudaGraphNodeGetDependentNodes;
    /// Puts nodes behind others.
    hl_cuGraphAddDependencies_v2(graph: *mut c_void, from: *const *mut c_void, to: *const *mut c_void, edges: *const c_void, count: usize) = node::hl_cudaGraphAddDependencies;
    /// Takes that back.
    hl_cuGraphRemoveDependencies_v2(graph: *mut c_void, from: *const *mut c_void, to: *const *mut c_void, edges: *const c_void, count: usize) = node::hl_cudaGraphRemoveDependencies;
    /// The node of a copy of a graph that a node has become.
    hl_cuGraphNodeFindInClone(place: *mut *mut c_void, node: *mut c_void, clone: *mut c_void) = node::hl_cudaGraphNodeFindInClone;
    /// Captures a stream into a graph that is there, behind some of its nodes.
    hl_cuStreamBeginCaptureToGraph(stream: *mut c_void, graph: *mut c_void, behind: *const *mut c_void, edges: *const c_void, count: usize, mode: c_int) = node::hl_cudaStreamBeginCaptureToGraph;
    /// Says what the next command of a captured stream is behind.
    hl_cuStreamUpdateCaptureDependencies_v2(stream: *mut c_void, behind: *const *mut c_void, edges: *const c_void, count: usize, flags: c_uint) = node::hl_cudaStreamUpdateCaptureDependencies;
    /// Gives a node of an instance the nodes of another graph.
    hl_cuGraphExecChildGraphNodeSetParams(exec: *mut c_void, node: *mut c_void, child: *mut c_void) = any_node::hl_cudaGraphExecChildGraphNodeSetParams;
    /// Takes a node out of its graph.
    hl_cuGraphDestroyNode(node: *mut c_void) = node::hl_cudaGraphDestroyNode;
    /// Adds a record of an event for others.
    hl_cuGraphAddEventRecordNode(place: *mut *mut c_void, graph: *mut c_void, behind: *const *mut c_void, count: usize, event: *mut c_void) = any_node::hl_cudaGraphAddEventRecordNode;
    /// Adds a wait for an event that others record.
    hl_cuGraphAddEventWaitNode(place: *mut *mut c_void, graph: *mut c_void, behind: *const *mut c_void, count: usize, event: *mut c_void) = any_node::hl_cudaGraphAddEventWaitNode;
    /// The event that a node records.
    hl_cuGraphEventRecordNodeGetEvent(node: *mut c_void, event: *mut *mut c_void) = any_node::hl_cudaGraphEventRecordNodeGetEvent;
    /// The event that a node waits for.
    hl_cuGraphEventWaitNodeGetEvent(node: *mut c_void, event: *mut *mut c_void) = any_node::hl_cudaGraphEventWaitNodeGetEvent;
    /// Has a node record another event.
    hl_cuGraphEventRecordNodeSetEvent(node: *mut c_void, event: *mut c_void) = any_node::hl_cudaGraphEventRecordNodeSetEvent;
    /// Has a node wait for another event.
    hl_cuGraphEventWaitNodeSetEvent(node: *mut c_void, event: *mut c_void) = any_node::hl_cudaGraphEventWaitNodeSetEvent;
    /// Has a node of an instance record another event.
    hl_cuGraphExecEventRecordNodeSetEvent(exec: *mut c_void, node: *mut c_void, event: *mut c_void) = any_node::hl_cudaGraphExecEventRecordNodeSetEvent;
    /// Has a node of an instance wait for another event.
    hl_cuGraphExecEventWaitNodeSetEvent(exec: *mut c_void, node: *mut c_void, event: *mut c_void) = any_node::hl_cudaGraphExecEventWaitNodeSetEvent;
    /// Bytes of a device that graphs allocate.
    hl_cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut u64) = graph::hl_cudaDeviceGetGraphMemAttribute;
    /// Forgets the most there were.
    hl_cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: *const u64) = graph::hl_cudaDeviceSetGraphMemAttribute;
    /// Nothing is kept for graphs that none of them has.
    hl_cuDeviceGraphMemTrim(device: c_int) = graph::hl_cudaDeviceGraphMemTrim;
    /// An attribute of a kernel of a graph.
    hl_cuGraphKernelNodeGetAttribute(node: *mut c_void, number: c_int, value: *mut [u32; 16]) = node_attribute::hl_cudaGraphKernelNodeGetAttribute;
    /// Sets an attribute of a kernel of a graph.
    hl_cuGraphKernelNodeSetAttribute(node: *mut c_void, number: c_int, value: *const [u32; 16]) = node_attribute::hl_cudaGraphKernelNodeSetAttribute;
    /// Gives a kernel of a graph all attributes of another one.
    hl_cuGraphKernelNodeCopyAttributes(to: *mut c_void, from: *mut c_void) = node_attribute::hl_cudaGraphKernelNodeCopyAttributes;
    /// Makes an object that graphs can keep.
    hl_cuUserObjectCreate(place: *mut *mut c_void, data: *mut c_void, destroy: Option<HostFunction>, count: c_uint, flags: c_uint) = user_object::hl_cudaUserObjectCreate;
    /// Gives the program more references to an object.
    hl_cuUserObjectRetain(object: *mut c_void, count: c_uint) = user_object::hl_cudaUserObjectRetain;
    /// Takes references from the program.
    hl_cuUserObjectRelease(object: *mut c_void, count: c_uint) = user_object::hl_cudaUserObjectRelease;
    /// Gives a graph references to an object.
    hl_cuGraphRetainUserObject(graph: *mut c_void, object: *mut c_void, count: c_uint, flags: c_uint) = user_object::hl_cudaGraphRetainUserObject;
    /// Takes references from a graph.
    hl_cuGraphReleaseUserObject(graph: *mut c_void, object: *mut c_void, count: c_uint) = user_object::hl_cudaGraphReleaseUserObject;
    /// Adds a function of the program.
    hl_cuGraphAddHostNode(place: *mut *mut c_void, graph: *mut c_void, behind: *const *mut c_void, count: usize, parameters: *const HostParameters) = any_node::hl_cudaGraphAddHostNode;
    /// The function that a node calls, and its argument.
    hl_cuGraphHostNodeGetParams(node: *mut c_void, parameters: *mut HostParameters) = any_node::hl_cudaGraphHostNodeGetParams;
    /// Has a node call another function.
    hl_cuGraphHostNodeSetParams(node: *mut c_void, parameters: *const HostParameters) = any_node::hl_cudaGraphHostNodeSetParams;
    /// Has a node of an instance call another function.
    hl_cuGraphExecHostNodeSetParams(exec: *mut c_void, node: *mut c_void, parameters: *const HostParameters) = any_node::hl_cudaGraphExecHostNodeSetParams;
    /// Adds a node of any kind, as CUDA 12 has it.
    hl_cuGraphAddNode(place: *mut *mut c_void, graph: *mut c_void, behind: *const *mut c_void, count: usize, parameters: *mut AnyParameters) = any_node::add_of_driver;
    /// Gives a node of any kind other parameters.
    hl_cuGraphNodeSetParams(node: *mut c_void, parameters: *mut AnyParameters) = any_node::set_of_driver;
    /// Gives a node of an instance other parameters.
    hl_cuGraphExecNodeSetParams(exec: *mut c_void, node: *mut c_void, parameters: *mut AnyParameters) = any_node::set_instance_of_driver;
    /// What a node does.
    hl_cuGraphNodeGetType(node: *mut c_void, kind: *mut c_int) = node::hl_cudaGraphNodeGetType;
    /// Makes a graph ready to be launched, as CUDA 12 has it.
    hl_cuGraphInstantiate(place: *mut *mut c_void, graph: *mut c_void, flags: u64) = graph::hl_cudaGraphInstantiate;
    /// Makes a graph ready to be launched.
    hl_cuGraphInstantiateWithParams(place: *mut *mut c_void, graph: *mut c_void, parameters: *mut InstantiateParameters) = graph::hl_cudaGraphInstantiateWithParams;
    /// Makes a graph ready to be launched.
    hl_cuGraphInstantiateWithFlags(place: *mut *mut c_void, graph: *mut c_void, flags: u64) = graph::hl_cudaGraphInstantiate;
    /// Makes an instance do what a graph says.
    hl_cuGraphExecUpdate_v2(exec: *mut c_void, graph: *mut c_void, result: *mut UpdateResult) = graph::hl_cudaGraphExecUpdate;
    /// Launches an instance.
    hl_cuGraphLaunch(exec: *mut c_void, stream: *mut c_void) = graph::hl_cudaGraphLaunch;
    /// Nothing is to be sent ahead of a launch.
    hl_cuGraphUpload(exec: *mut c_void, stream: *mut c_void) = graph::hl_cudaGraphUpload;
    /// Ends a graph.
    hl_cuGraphDestroy(graph: *mut c_void) = graph::hl_cudaGraphDestroy;
    /// Ends an instance.
    hl_cuGraphExecDestroy(exec: *mut c_void) = graph::hl_cudaGraphExecDestroy;
}

/// Adds a node of any kind. What an edge is like is let go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGraphAddNode_v2(
    place: *mut *mut c_void,
    graph: *mut c_void,
    behind: *const *mut c_void,
    _edges: *const c_void,
    count: usize,
    parameters: *mut AnyParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuGraphAddNode(place, graph, behind, count, parameters) }
}

/// The context of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuStreamGetCtx(stream: *mut c_void, place: *mut *mut c_void) -> Code {
    driver(|session| {
        let owner = session.stream(stream)?.owner;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Context.handle(owner.context)) }
    })
}
