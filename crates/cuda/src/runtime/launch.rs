//! Launches, and what can be asked or set of a kernel.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use hinterland_proto::gpu::command::{AskClusters, launch_flags};

use super::register::Dim3;
use super::{give, give_if};
use crate::code::{Code, INVALID_FUNCTION, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::attribute;
use crate::core::context::Owner;
use crate::core::handle::Kind;
use crate::core::launch::{Geometry, Parameters};
use crate::core::module::{Kernel, REGISTRY, Registered};
use crate::core::session::Session;
use crate::core::thread::{as_driver, device, with_session};

/// A kernel of the program: the address of a stub, or a handle of the driver's.
pub(crate) fn registered(session: &Session, function: *const c_void) -> Result<Arc<Registered>, Code> {
    match Kind::Function.of(function) {
        Ok(number) => session.modules.function(number),
        Err(_) => REGISTRY.function(function.addr()),
    }
}

/// A kernel of the program in a context, or, of a module, in that of the module.
pub(crate) fn kernel(session: &Session, function: *const c_void, owner: Owner) -> Result<Arc<Kernel>, Code> {
    if function.is_null() {
        return Err(INVALID_FUNCTION);
    }
    let registered = registered(session, function)?;
    session.kernel(&registered, registered.binary.owner.unwrap_or(owner))
}

/// Launches a kernel that a program names, by either interface. With the runtime the stream has to be of the current context (`of_current`).
///
/// # Errors
/// There is no such kernel or stream; as [`Session::launch`].
///
/// # Safety
/// The parameters are as many and as long as the image of the kernel says.
pub(crate) unsafe fn launch_named(
    session: &Session,
    function: *const c_void,
    geometry: &Geometry,
    parameters: Parameters,
    stream: *mut c_void,
    of_current: bool,
) -> Result<(), Code> {
    let find = || {
        let (stream, own) = as_driver(!of_current, || (session.stream(stream), session.owner()));
        let (stream, own) = (stream?, own?);
        if of_current && stream.owner != own {
            return Err(INVALID_HANDLE);
        }
        let kernel = kernel(session, function, stream.owner)?;
        session.note_kernel(kernel.function, function.expose_provenance());
        Ok((kernel, stream))
    };
    session.with_launched(function, stream, find, |kernel, stream| {
        // SAFETY: the caller's promise.
        unsafe { session.launch(kernel, stream, geometry, parameters) }
    })
}

/// # Safety
/// As `cudaLaunchKernel` is documented.
unsafe fn launch(
    function: *const c_void,
    geometry: &Geometry,
    arguments: *const *const c_void,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    with_session(|session| unsafe {
        launch_named(session, function, geometry, Parameters::Each(arguments), stream, true)
    })
}

/// Launches a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLaunchKernel(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const c_void,
    shared: usize,
    stream: *mut c_void,
) -> Code {
    let geometry = Geometry { grid: grid.into(), block: block.into(), shared, ..Geometry::default() };
    // SAFETY: as documented.
    unsafe { launch(function, &geometry, arguments, stream) }
}

/// The same, as compilers of CUDA 13 call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaLaunchKernel(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const c_void,
    shared: usize,
    stream: *mut c_void,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaLaunchKernel(function, grid, block, arguments, shared, stream) }
}

/// Launches a kernel whose groups may wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLaunchCooperativeKernel(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const c_void,
    shared: usize,
    stream: *mut c_void,
) -> Code {
    let flags = launch_flags::COOPERATIVE;
    let geometry = Geometry { grid: grid.into(), block: block.into(), shared, flags, ..Geometry::default() };
    // SAFETY: as documented.
    unsafe { launch(function, &geometry, arguments, stream) }
}

/// `cudaLaunchAttribute`, which is `CUlaunchAttribute`: a number and 64 bytes whose meaning it says.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Attribute {
    number: c_int,
    _pad: [u8; 4],
    value: [u32; 16],
}

impl Attribute {
    pub(super) fn new(number: c_int, value: [u32; 16]) -> Self {
        Self { number, _pad: [0; 4], value }
    }
}

/// Policies and preferences: access window, synchronisation, cluster scheduling, priority, memory domains, preferred cluster, share of memory, links.
const HINTS: &[c_int] = &[0, 1, 3, 5, 8, 9, 10, 11, 14, 15, 16];

/// Whether an attribute of a launch changes nothing in what it does.
pub(super) fn is_hint(number: c_int) -> bool {
    HINTS.contains(&number)
}

/// `cudaLaunchConfig_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Config {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    pub(super) stream: *mut c_void,
    attributes: *const Attribute,
    attribute_count: c_uint,
}

/// Takes attributes of a launch into its geometry. Hints are let go; what changes the meaning of a launch and is not known is refused.
///
/// # Safety
/// `attributes` has `count` of them, or `count` is 0.
pub(crate) unsafe fn take_attributes(
    geometry: &mut Geometry,
    attributes: *const Attribute,
    count: c_uint,
) -> Result<(), Code> {
    const COOPERATIVE: c_int = 2;
    const CLUSTER: c_int = 4;
    const PROGRAMMATIC: c_int = 6;
    if count == 0 {
        return Ok(());
    }
    if attributes.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    for attribute in unsafe { std::slice::from_raw_parts(attributes, count as usize) } {
        let value = &attribute.value;
        match attribute.number {
            COOPERATIVE if value[0] != 0 => geometry.flags |= launch_flags::COOPERATIVE,
            PROGRAMMATIC if value[0] != 0 => geometry.flags |= launch_flags::PROGRAMMATIC,
            COOPERATIVE | PROGRAMMATIC => {}
            CLUSTER => {
                geometry.cluster = [value[0], value[1], value[2]];
                geometry.flags |= launch_flags::CLUSTER;
            }
            number if is_hint(number) => {}
            number => {
                eprintln!("hinterland: launch attribute {number} is not supported for a GPU elsewhere");
                return Err(NOT_SUPPORTED);
            }
        }
    }
    Ok(())
}

/// Launches a kernel with attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLaunchKernelExC(
    config: *const Config,
    function: *const c_void,
    arguments: *const *const c_void,
) -> Code {
    if config.is_null() {
        return with_session(|_| Err(INVALID_VALUE));
    }
    // SAFETY: as documented.
    let config = unsafe { &*config };
    let mut geometry = Geometry {
        grid: config.grid.into(),
        block: config.block.into(),
        shared: config.shared,
        ..Geometry::default()
    };
    // SAFETY: as documented.
    match unsafe { take_attributes(&mut geometry, config.attributes, config.attribute_count) } {
        // SAFETY: as documented.
        Ok(()) => unsafe { launch(function, &geometry, arguments, config.stream) },
        Err(code) => with_session(|_| Err(code)),
    }
}

/// `cudaFuncAttributes`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FunctionAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    threads_max: c_int,
    registers: c_int,
    ptx: c_int,
    binary: c_int,
    cache_mode: c_int,
    dynamic_shared_max: c_int,
    carveout: c_int,
    needs_cluster: c_int,
    cluster: [c_int; 3],
    cluster_policy: c_int,
    non_portable_cluster: c_int,
    _reserved: [c_int; 16],
}

/// What is known of a kernel. The node is asked once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaFuncGetAttributes(
    place: *mut FunctionAttributes,
    function: *const c_void,
) -> Code {
    with_session(|session| {
        let kernel = kernel(session, function, session.owner()?)?;
        let facts = session.facts(&kernel)?;
        let attributes = FunctionAttributes {
            shared: facts.shared as usize,
            constant: facts.constant as usize,
            local: facts.local as usize,
            threads_max: facts.threads_max,
            registers: facts.registers,
            ptx: facts.ptx,
            binary: facts.binary,
            cache_mode: 0,
            dynamic_shared_max: facts.dynamic_shared_max,
            carveout: facts.carveout,
            needs_cluster: c_int::from(kernel.layout.cluster.is_some()),
            cluster: [11, 12, 13].map(|attribute| kernel.of_clusters(attribute)),
            cluster_policy: kernel.of_clusters(15),
            non_portable_cluster: kernel.of_clusters(14),
            _reserved: [0; 16],
        };
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, attributes) }
    })
}

/// Sets an attribute of a kernel on the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaFuncSetAttribute(
    function: *const c_void,
    attribute: c_int,
    value: c_int,
) -> Code {
    with_session(|session| {
        let kernel = kernel(session, function, session.owner()?)?;
        session.set_attribute(&kernel, attribute, value)
    })
}

/// The same for a named device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaKernelSetAttributeForDevice(
    function: *const c_void,
    attribute: c_int,
    value: c_int,
    device: c_int,
) -> Code {
    with_session(|session| {
        let device = super::device::number(session, device)?;
        let kernel = kernel(session, function, session.owner_on(device)?)?;
        session.set_attribute(&kernel, attribute, value)
    })
}

/// A preference, which is let go.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaFuncSetCacheConfig(function: *const c_void, _config: c_int) -> Code {
    with_session(|session| registered(session, function).map(drop))
}

/// The name of a kernel in its image, which stays as long as the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaFuncGetName(place: *mut *const c_char, function: *const c_void) -> Code {
    with_session(|session| {
        let name = registered(session, function)?.c_name()?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, name) }
    })
}

/// Where a parameter of a kernel lies in the block of them, and how long it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaFuncGetParamInfo(
    function: *const c_void,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Code {
    with_session(|session| {
        let kernel = kernel(session, function, session.owner()?)?;
        let found = kernel.layout.parameters.get(index).ok_or(INVALID_VALUE)?;
        // SAFETY: places for results, the second of which the program may not want, as documented.
        unsafe {
            give(offset, found.offset as usize)?;
            give_if(bytes, found.size as usize);
        }
        Ok(())
    })
}

/// How many parameters a kernel has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaFuncGetParamCount(function: *const c_void, count: *mut usize) -> Code {
    with_session(|session| {
        let kernel = kernel(session, function, session.owner()?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(count, kernel.layout.parameters.len()) }
    })
}

/// How many groups of a kernel a multiprocessor holds. The node is asked once for the same numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    place: *mut c_int,
    function: *const c_void,
    threads: c_int,
    shared: usize,
    flags: c_uint,
) -> Code {
    with_session(|session| {
        let kernel = kernel(session, function, session.owner()?)?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(INVALID_VALUE)?;
        let groups = session.occupancy(&kernel, threads, shared as u64, flags)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, groups as c_int) }
    })
}

/// The same without flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    place: *mut c_int,
    function: *const c_void,
    threads: c_int,
    shared: usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(place, function, threads, shared, 0) }
}

/// Bytes of dynamic shared memory that so many groups of a kernel leave for each of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaOccupancyAvailableDynamicSMemPerBlock(
    place: *mut usize,
    function: *const c_void,
    groups: c_int,
    threads: c_int,
) -> Code {
    with_session(|session| {
        let of = |number| i64::from(session.attribute_or_zero(device(), number));
        if groups < 1 || threads < 1 {
            return Err(INVALID_VALUE);
        }
        let own =
            i64::try_from(session.facts(&*kernel(session, function, session.owner()?)?)?.shared).unwrap_or(0);
        let reserved = of(attribute::RESERVED_SHARED);
        let share = of(attribute::SHARED_PER_MULTIPROCESSOR) / i64::from(groups) - reserved;
        let most = of(attribute::SHARED_PER_BLOCK_OPTIN).max(of(attribute::SHARED_PER_BLOCK));
        let left = share.min(most) - own;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, usize::try_from(left).unwrap_or(0)) }
    })
}

/// How many clusters of a launch fit at once. The node is asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaOccupancyMaxActiveClusters(
    place: *mut c_int,
    function: *const c_void,
    config: *const Config,
) -> Code {
    with_session(|session| {
        // SAFETY: as documented.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        let mut geometry = Geometry {
            grid: config.grid.into(),
            block: config.block.into(),
            shared: config.shared,
            ..Geometry::default()
        };
        // SAFETY: as documented.
        unsafe {
            take_attributes(&mut geometry, config.attributes, config.attribute_count)?;
            give(place, clusters(session, function, &geometry)?)
        }
    })
}

/// How many clusters of a launch fit at once. The node is asked.
///
/// # Errors
/// There is no such kernel; what the node says.
pub(crate) fn clusters(
    session: &Session,
    function: *const c_void,
    geometry: &Geometry,
) -> Result<c_int, Code> {
    let kernel = kernel(session, function, session.owner()?)?;
    let answer = session.ask(&[], |question| AskClusters {
        question,
        function: kernel.function,
        grid: geometry.grid,
        block: geometry.block,
        cluster: geometry.cluster.map(|size| size.max(1)),
        // As in a launch, which has 32 bits.
        shared: geometry.shared as u32,
    })?;
    answer.try_into().map(i32::from_le_bytes).map_err(|_| INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_compiler_of_cuda_13_makes_them() {
        assert_eq!(size_of::<Config>(), 56);
        assert_eq!(size_of::<Attribute>(), 72);
        assert_eq!(size_of::<FunctionAttributes>(), 144);
    }
}
