//! Nodes of graphs by the driver's structures.

use std::ffi::{c_uint, c_void};

use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::graph::node_number;
use crate::core::handle::Kind;
use crate::core::node::{Given, Node, NodeKind};
use crate::core::session::Session;
use crate::core::thread::{driver, without_record};
use crate::runtime::any_node::{CopyEnds, KernelOfDriver};
use crate::runtime::node::{
    FillParameters, KernelParameters, add, copy_node, fill_node, hl_cudaGraphKernelNodeGetParams,
    hl_cudaGraphMemsetNodeGetParams, kernel_node,
};
use crate::runtime::volume::Copy3D;
use crate::runtime::{give, node};

/// # Safety
/// `given` is null or as the driver documents it.
unsafe fn copy(session: &Session, given: *const CopyEnds) -> Result<Node, Code> {
    // SAFETY: the caller's promise.
    let given = unsafe { given.as_ref() }.ok_or(INVALID_VALUE)?.plain()?;
    // SAFETY: likewise.
    unsafe { copy_node(session, &raw const given) }
}

/// # Safety
/// `given` is null or as the driver documents it.
unsafe fn kernel(session: &Session, given: *const KernelOfDriver) -> Result<Node, Code> {
    // SAFETY: the caller's promise.
    let given = unsafe { given.as_ref() }.ok_or(INVALID_VALUE)?.plain();
    // SAFETY: likewise.
    unsafe { kernel_node(session, &raw const given) }
}

fn change(node: *mut c_void, make: impl FnOnce(&Session) -> Result<Node, Code>) -> Code {
    driver(|session| session.change_node(node_number(node)?, make(session)?))
}

fn change_instance(
    exec: *mut c_void,
    node: *mut c_void,
    make: impl FnOnce(&Session) -> Result<Node, Code>,
) -> Code {
    driver(|session| session.change_exec_node(Kind::GraphExec.of(exec)?, node_number(node)?, &make(session)?))
}

/// Functions of nodes of a kind. Those of an instance, and those that add, are told a context, which is that of the addresses in any case.
macro_rules! nodes {
    ($($words:literal $kind:ty = $make:expr; $add:ident($($context:ident)?) $set:ident $set_instance:ident;)*) => {$(
        #[doc = concat!("Adds ", $words, ".")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $add(
            place: *mut *mut c_void,
            graph: *mut c_void,
            behind: *const *mut c_void,
            count: usize,
            parameters: *const $kind,
            $($context: *mut c_void,)?
        ) -> Code {
            $(let _ = $context;)?
            let make: unsafe fn(&Session, *const $kind) -> Result<Node, Code> = $make;
            // SAFETY: as documented.
            without_record(|| unsafe { add(place, graph, behind, count, |session| make(session, parameters)) })
        }

        #[doc = concat!("Gives ", $words, " of a graph other parameters.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(node: *mut c_void, parameters: *const $kind) -> Code {
            let make: unsafe fn(&Session, *const $kind) -> Result<Node, Code> = $make;
            // SAFETY: as documented.
            change(node, |session| unsafe { make(session, parameters) })
        }

        #[doc = concat!("Gives ", $words, " of an instance other parameters.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set_instance(
            exec: *mut c_void,
            node: *mut c_void,
            parameters: *const $kind,
            $($context: *mut c_void,)?
        ) -> Code {
            $(let _ = $context;)?
            let make: unsafe fn(&Session, *const $kind) -> Result<Node, Code> = $make;
            // SAFETY: as documented.
            change_instance(exec, node, |session| unsafe { make(session, parameters) })
        }
    )*};
}
nodes! {
    "a kernel" KernelOfDriver = kernel;
        hl_cuGraphAddKernelNode_v2() hl_cuGraphKernelNodeSetParams_v2 hl_cuGraphExecKernelNodeSetParams_v2;
    "a kernel, as CUDA 11 describes it," KernelParameters = kernel_node;
        hl_cuGraphAddKernelNode() hl_cuGraphKernelNodeSetParams hl_cuGraphExecKernelNodeSetParams;
    "a copy" CopyEnds = copy;
        hl_cuGraphAddMemcpyNode(context) hl_cuGraphMemcpyNodeSetParams hl_cuGraphExecMemcpyNodeSetParams;
    "a fill" FillParameters = |session, given| fill_node(session, given);
        hl_cuGraphAddMemsetNode(context) hl_cuGraphMemsetNodeSetParams hl_cuGraphExecMemsetNodeSetParams;
}

same! {
    /// Switches a kernel, a copy or a fill of an instance on or off.
    hl_cuGraphNodeSetEnabled(exec: *mut c_void, node: *mut c_void, is_on: c_uint) = node::hl_cudaGraphNodeSetEnabled;
    /// Whether a kernel, a copy or a fill of an instance is switched on.
    hl_cuGraphNodeGetEnabled(exec: *mut c_void, node: *mut c_void, place: *mut c_uint) = node::hl_cudaGraphNodeGetEnabled;
    /// How a kernel of a graph is launched, as CUDA 11 describes it.
    hl_cuGraphKernelNodeGetParams(node: *mut c_void, parameters: *mut KernelParameters) = node::hl_cudaGraphKernelNodeGetParams;
}

/// How a kernel of a graph is launched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGraphKernelNodeGetParams_v2(
    node: *mut c_void,
    parameters: *mut KernelOfDriver,
) -> Code {
    let mut plain = KernelParameters::none();
    // SAFETY: as documented.
    let code = without_record(|| unsafe { hl_cudaGraphKernelNodeGetParams(node, &raw mut plain) });
    if code != 0 {
        return code;
    }
    // SAFETY: a place for a result, as documented.
    unsafe { give(parameters, KernelOfDriver::of(plain)) }.err().unwrap_or(0)
}

/// What a fill of a graph fills, as it was given; not for one that was captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGraphMemsetNodeGetParams(
    node: *mut c_void,
    place: *mut FillParameters,
) -> Code {
    // SAFETY: as documented.
    without_record(|| unsafe { hl_cudaGraphMemsetNodeGetParams(node, place) })
}

/// What a copy of a graph copies; not for one that was captured. Places are addresses of whatever they belong to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGraphMemcpyNodeGetParams(node: *mut c_void, place: *mut CopyEnds) -> Code {
    driver(|session| {
        let plain = session.with_node(node_number(node)?, |_, state, index| {
            match state.given(index, NodeKind::Copy)? {
                // SAFETY: a node of this kind was given such a structure, whose bytes these are.
                Given::Bytes(bytes) => Ok(unsafe { bytes.as_ptr().cast::<Copy3D>().read_unaligned() }),
                _ => Err(NOT_SUPPORTED),
            }
        })?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, CopyEnds::of(&plain)) }
    })
}
