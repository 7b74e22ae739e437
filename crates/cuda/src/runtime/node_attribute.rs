//! What kernels of graphs are launched with besides their parameters.

use std::ffi::{c_int, c_void};

use hinterland_proto::gpu::command::launch_flags;

use super::give;
use super::launch::{Attribute, is_hint, take_attributes};
use crate::code::{Code, INVALID_VALUE};
use crate::core::graph::node_number;
use crate::core::launch::Geometry;
use crate::core::list::LaunchAttributes;
use crate::core::thread::with_session;

/// `cudaLaunchAttributeValue`
pub type Value = [u32; 16];

/// `cudaLaunchAttributeCooperative`
const COOPERATIVE: c_int = 2;
/// `cudaLaunchAttributeClusterDimension`
const CLUSTER: c_int = 4;

fn flag_of(number: c_int) -> Option<u32> {
    match number {
        COOPERATIVE => Some(launch_flags::COOPERATIVE),
        CLUSTER => Some(launch_flags::CLUSTER),
        _ => None,
    }
}

/// An attribute of a kernel of a graph. A hint is as it was set last, and zeros if it never was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphKernelNodeGetAttribute(
    node: *mut c_void,
    number: c_int,
    value: *mut Value,
) -> Code {
    with_session(|session| {
        let (has, hints) = session.attributes_of_node(node_number(node)?)?;
        let mut found = [0; 16];
        match number {
            COOPERATIVE => found[0] = u32::from(has.flags & launch_flags::COOPERATIVE != 0),
            CLUSTER if has.flags & launch_flags::CLUSTER != 0 => found[..3].copy_from_slice(&has.cluster),
            CLUSTER => {}
            _ if is_hint(number) => found = hints.get(&number).copied().unwrap_or(found),
            _ => return Err(INVALID_VALUE),
        }
        // SAFETY: a place for a result, as documented.
        unsafe { give(value, found) }
    })
}

/// Sets an attribute of a kernel of a graph. Hints are kept for questions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphKernelNodeSetAttribute(
    node: *mut c_void,
    number: c_int,
    value: *const Value,
) -> Code {
    with_session(|session| {
        let node = node_number(node)?;
        let (LaunchAttributes { flags, cluster }, mut hints) = session.attributes_of_node(node)?;
        // SAFETY: as documented.
        let value = *unsafe { value.as_ref() }.ok_or(INVALID_VALUE)?;
        let mut geometry = Geometry { flags, cluster, ..Geometry::default() };
        if let Some(flag) = flag_of(number) {
            geometry.flags &= !flag;
            // SAFETY: one.
            unsafe { take_attributes(&mut geometry, &Attribute::new(number, value), 1)? };
            if number == CLUSTER && geometry.cluster == [0; 3] {
                geometry.flags &= !flag;
            }
        } else if is_hint(number) {
            hints.insert(number, value);
        } else {
            return Err(INVALID_VALUE);
        }
        let attributes = LaunchAttributes { flags: geometry.flags, cluster: geometry.cluster };
        session.set_attributes_of_node(node, attributes, hints)
    })
}

/// Gives a kernel of a graph all attributes of another one.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGraphKernelNodeCopyAttributes(to: *mut c_void, from: *mut c_void) -> Code {
    with_session(|session| {
        let (attributes, hints) = session.attributes_of_node(node_number(from)?)?;
        session.set_attributes_of_node(node_number(to)?, attributes, hints)
    })
}
