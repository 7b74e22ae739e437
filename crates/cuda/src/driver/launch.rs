//! Launches, and what can be asked or set of a function.

use std::ffi::{c_int, c_uint, c_void};

use hinterland_proto::gpu::command::launch_flags;

use crate::code::{Code, INVALID_VALUE};
use crate::core::launch::{Geometry, Parameters};
use crate::core::thread::{driver, quick_driver};
use crate::runtime::give;
use crate::runtime::launch::{
    self as launch_of_runtime, Attribute, clusters, kernel, launch_named, take_attributes,
};

/// Parameters of a launch: an address each, or one block described by `extra`.
///
/// # Safety
/// As `cuLaunchKernel` is documented.
pub(crate) unsafe fn parameters(each: *mut *mut c_void, extra: *mut *mut c_void) -> Result<Parameters, Code> {
    const END: usize = 0;
    const BLOCK: usize = 1;
    const BYTES: usize = 2;
    if extra.is_null() {
        return Ok(Parameters::Each(each.cast_const().cast()));
    }
    let (mut block, mut bytes) = (std::ptr::null(), 0);
    for pair in 0.. {
        // SAFETY: the caller's promise: pairs up to an end.
        let (key, value) = unsafe {
            let key = (*extra.add(2 * pair)).addr();
            if key == END {
                break;
            }
            (key, *extra.add(2 * pair + 1))
        };
        match key {
            BLOCK => block = value.cast_const().cast(),
            // SAFETY: the caller's promise.
            BYTES => bytes = unsafe { *value.cast::<usize>() },
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok(Parameters::Block(block, bytes))
}

/// # Safety
/// As `cuLaunchKernel` is documented.
unsafe fn launch(
    function: *mut c_void,
    geometry: &Geometry,
    stream: *mut c_void,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    quick_driver(|session| unsafe {
        launch_named(session, function, geometry, parameters(each, extra)?, stream, false)
    })
}

/// Launches a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: *mut c_void,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    let geometry = Geometry {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared: shared as usize,
        ..Geometry::default()
    };
    // SAFETY: as documented.
    unsafe { launch(function, &geometry, stream, each, extra) }
}

/// Launches a function whose groups may wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLaunchCooperativeKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: *mut c_void,
    each: *mut *mut c_void,
) -> Code {
    let geometry = Geometry {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared: shared as usize,
        flags: launch_flags::COOPERATIVE,
        ..Geometry::default()
    };
    // SAFETY: as documented.
    unsafe { launch(function, &geometry, stream, each, std::ptr::null_mut()) }
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    pub(super) stream: *mut c_void,
    attributes: *const Attribute,
    attribute_count: c_uint,
}

impl Config {
    /// # Safety
    /// There are as many attributes as it says.
    unsafe fn geometry(&self) -> Result<Geometry, Code> {
        let (grid, block, shared) = (self.grid, self.block, self.shared as usize);
        let mut geometry = Geometry { grid, block, shared, ..Geometry::default() };
        // SAFETY: the caller's promise.
        unsafe { take_attributes(&mut geometry, self.attributes, self.attribute_count)? };
        Ok(geometry)
    }
}

/// Launches a function with attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLaunchKernelEx(
    config: *const Config,
    function: *mut c_void,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    if config.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: as documented.
    let config = unsafe { &*config };
    // SAFETY: as documented.
    match unsafe { config.geometry() } {
        // SAFETY: as documented.
        Ok(geometry) => unsafe { launch(function, &geometry, config.stream, each, extra) },
        Err(code) => code,
    }
}

/// How many clusters of a launch fit at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuOccupancyMaxActiveClusters(
    place: *mut c_int,
    function: *mut c_void,
    config: *const Config,
) -> Code {
    driver(|session| {
        // SAFETY: as documented.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        // SAFETY: as documented.
        unsafe { give(place, clusters(session, function, &config.geometry()?)?) }
    })
}

same! {
    /// Bytes of dynamic shared memory that so many groups of a function leave for each of them.
    hl_cuOccupancyAvailableDynamicSMemPerBlock(place: *mut usize, function: *mut c_void, groups: c_int, threads: c_int) = launch_of_runtime::hl_cudaOccupancyAvailableDynamicSMemPerBlock;
    /// Where a parameter of a function lies in the block of them, and how long it is.
    hl_cuFuncGetParamInfo(function: *const c_void, index: usize, offset: *mut usize, bytes: *mut usize) = launch_of_runtime::hl_cudaFuncGetParamInfo;
    /// How many parameters a function has.
    hl_cuFuncGetParamCount(function: *const c_void, count: *mut usize) = launch_of_runtime::hl_cudaFuncGetParamCount;
    /// The same for a kernel of a library.
    hl_cuKernelGetParamInfo(function: *const c_void, index: usize, offset: *mut usize, bytes: *mut usize) = launch_of_runtime::hl_cudaFuncGetParamInfo;
    /// The same for a kernel of a library.
    hl_cuKernelGetParamCount(function: *const c_void, count: *mut usize) = launch_of_runtime::hl_cudaFuncGetParamCount;
}

/// A function is there when it was got.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuFuncLoad(function: *mut c_void) -> Code {
    driver(|session| kernel(session, function, session.owner()?).map(drop))
}

/// What is known of a function. The node is asked once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuFuncGetAttribute(
    place: *mut c_int,
    attribute: c_int,
    function: *mut c_void,
) -> Code {
    driver(|session| {
        let kernel = kernel(session, function, session.owner()?)?;
        let facts = session.facts(&kernel)?;
        let small = |number: u64| c_int::try_from(number).unwrap_or(c_int::MAX);
        let value = match attribute {
            0 => facts.threads_max,
            1 => small(facts.shared),
            2 => small(facts.constant),
            3 => small(facts.local),
            4 => facts.registers,
            5 => facts.ptx,
            6 => facts.binary,
            7 => 0,
            8 => facts.dynamic_shared_max,
            9 => facts.carveout,
            10 => c_int::from(kernel.layout.cluster.is_some()),
            11..=15 => kernel.of_clusters(attribute),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, value) }
    })
}

/// The same for a kernel of a library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuKernelGetAttribute(
    place: *mut c_int,
    attribute: c_int,
    kernel: *mut c_void,
    _device: c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuFuncGetAttribute(place, attribute, kernel) }
}

/// Sets an attribute of a function.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) -> Code {
    driver(|session| session.set_attribute(&*kernel(session, function, session.owner()?)?, attribute, value))
}

/// The same for a kernel of a library.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuKernelSetAttribute(
    attribute: c_int,
    value: c_int,
    kernel: *mut c_void,
    _device: c_int,
) -> Code {
    hl_cuFuncSetAttribute(kernel, attribute, value)
}

/// A preference, which is let go.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuFuncSetCacheConfig(function: *mut c_void, _config: c_int) -> Code {
    driver(|session| kernel(session, function, session.owner()?).map(drop))
}

/// How many groups of a function a multiprocessor holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    place: *mut c_int,
    function: *mut c_void,
    threads: c_int,
    shared: usize,
    flags: c_uint,
) -> Code {
    driver(|session| {
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(INVALID_VALUE)?;
        let kernel = kernel(session, function, session.owner()?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, session.occupancy(&kernel, threads, shared as u64, flags)? as c_int) }
    })
}

/// The same without flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuOccupancyMaxActiveBlocksPerMultiprocessor(
    place: *mut c_int,
    function: *mut c_void,
    threads: c_int,
    shared: usize,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(place, function, threads, shared, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_as_long_as_the_compiler_of_cuda_13_makes_it() {
        assert_eq!(size_of::<Config>(), 56);
    }
}
