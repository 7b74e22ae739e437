//! Functions of the driver for programs that are compiled with `CUDA_API_PER_THREAD_DEFAULT_STREAM`: no stream means the thread's own.
//!
//! Its header gives such programs names with `_ptsz` behind them where a stream is an argument, and with `_ptds` where the default stream is meant
//! without being named.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::copy::Rectangle;
use super::launch::{Config, hl_cuLaunchKernelEx};
use super::{copy, launch, pool, stream};
use crate::code::{Code, INVALID_VALUE};
use crate::runtime::graph::InstantiateParameters;
use crate::runtime::per_thread::{self as of_runtime, own, per_thread};

per_thread! {
    hl_cuEventRecord_ptsz[stream](event: *mut c_void, stream: *mut c_void) = stream::hl_cuEventRecord;
    hl_cuEventRecordWithFlags_ptsz[stream](event: *mut c_void, stream: *mut c_void, flags: c_uint) = stream::hl_cuEventRecordWithFlags;
    hl_cuGraphLaunch_ptsz[stream](exec: *mut c_void, stream: *mut c_void) = stream::hl_cuGraphLaunch;
    hl_cuGraphUpload_ptsz[stream](exec: *mut c_void, stream: *mut c_void) = stream::hl_cuGraphUpload;
    hl_cuLaunchCooperativeKernel_ptsz[stream](function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: *mut c_void, each: *mut *mut c_void) = launch::hl_cuLaunchCooperativeKernel;
    hl_cuLaunchHostFunc_ptsz[stream](stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) = stream::hl_cuLaunchHostFunc;
    hl_cuLaunchKernel_ptsz[stream](function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: *mut c_void, each: *mut *mut c_void, extra: *mut *mut c_void) = launch::hl_cuLaunchKernel;
    hl_cuMemAllocAsync_ptsz[stream](place: *mut u64, bytes: usize, stream: *mut c_void) = copy::hl_cuMemAllocAsync;
    hl_cuMemAllocFromPoolAsync_ptsz[stream](place: *mut *mut c_void, bytes: usize, pool: *mut c_void, stream: *mut c_void) = pool::hl_cuMemAllocFromPoolAsync;
    hl_cuMemFreeAsync_ptsz[stream](address: u64, stream: *mut c_void) = copy::hl_cuMemFreeAsync;
    hl_cuMemcpy2DAsync_v2_ptsz[stream](copy: *const Rectangle, stream: *mut c_void) = copy::hl_cuMemcpy2DAsync_v2;
    hl_cuMemcpyAsync_ptsz[stream](to: u64, from: u64, bytes: usize, stream: *mut c_void) = copy::hl_cuMemcpyAsync;
    hl_cuMemcpyDtoDAsync_v2_ptsz[stream](to: u64, from: u64, bytes: usize, stream: *mut c_void) = copy::hl_cuMemcpyDtoDAsync_v2;
    hl_cuMemcpyDtoHAsync_v2_ptsz[stream](to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) = copy::hl_cuMemcpyDtoHAsync_v2;
    hl_cuMemcpyHtoDAsync_v2_ptsz[stream](to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) = copy::hl_cuMemcpyHtoDAsync_v2;
    hl_cuMemcpyPeerAsync_ptsz[stream](to: u64, to_context: *mut c_void, from: u64, from_context: *mut c_void, bytes: usize, stream: *mut c_void) = copy::hl_cuMemcpyPeerAsync;
    hl_cuMemsetD8Async_ptsz[stream](address: u64, value: u8, count: usize, stream: *mut c_void) = copy::hl_cuMemsetD8Async;
    hl_cuMemsetD16Async_ptsz[stream](address: u64, value: u16, count: usize, stream: *mut c_void) = copy::hl_cuMemsetD16Async;
    hl_cuMemsetD32Async_ptsz[stream](address: u64, value: u32, count: usize, stream: *mut c_void) = copy::hl_cuMemsetD32Async;
    hl_cuMemsetD2D8Async_ptsz[stream](address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: *mut c_void) = copy::hl_cuMemsetD2D8Async;
    hl_cuMemsetD2D16Async_ptsz[stream](address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: *mut c_void) = copy::hl_cuMemsetD2D16Async;
    hl_cuMemsetD2D32Async_ptsz[stream](address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: *mut c_void) = copy::hl_cuMemsetD2D32Async;
    hl_cuStreamBeginCapture_v2_ptsz[stream](stream: *mut c_void, mode: c_int) = stream::hl_cuStreamBeginCapture_v2;
    hl_cuStreamBeginCaptureToGraph_ptsz[stream](stream: *mut c_void, graph: *mut c_void, behind: *const *mut c_void, edges: *const c_void, count: usize, mode: c_int) = stream::hl_cuStreamBeginCaptureToGraph;
    hl_cuStreamUpdateCaptureDependencies_v2_ptsz[stream](stream: *mut c_void, behind: *const *mut c_void, edges: *const c_void, count: usize, flags: c_uint) = stream::hl_cuStreamUpdateCaptureDependencies_v2;
    hl_cuStreamEndCapture_ptsz[stream](stream: *mut c_void, graph: *mut *mut c_void) = stream::hl_cuStreamEndCapture;
    hl_cuStreamGetAttribute_ptsz[stream](stream: *mut c_void, number: c_int, value: *mut [u64; 8]) = stream::hl_cuStreamGetAttribute;
    hl_cuStreamGetCaptureInfo_v3_ptsz[stream](stream: *mut c_void, status: *mut c_int, number: *mut u64, graph: *mut *mut c_void, dependencies: *mut *const c_void, edges: *mut *const c_void, count: *mut usize) = stream::hl_cuStreamGetCaptureInfo_v3;
    hl_cuStreamGetCtx_ptsz[stream](stream: *mut c_void, place: *mut *mut c_void) = stream::hl_cuStreamGetCtx;
    hl_cuStreamGetDevice_ptsz[stream](stream: *mut c_void, device: *mut c_int) = stream::hl_cuStreamGetDevice;
    hl_cuStreamGetFlags_ptsz[stream](stream: *mut c_void, flags: *mut c_uint) = stream::hl_cuStreamGetFlags;
    hl_cuStreamGetId_ptsz[stream](stream: *mut c_void, number: *mut u64) = stream::hl_cuStreamGetId;
    hl_cuStreamGetPriority_ptsz[stream](stream: *mut c_void, priority: *mut c_int) = stream::hl_cuStreamGetPriority;
    hl_cuStreamIsCapturing_ptsz[stream](stream: *mut c_void, status: *mut c_int) = stream::hl_cuStreamIsCapturing;
    hl_cuStreamQuery_ptsz[stream](stream: *mut c_void) = stream::hl_cuStreamQuery;
    hl_cuStreamSetAttribute_ptsz[stream](stream: *mut c_void, number: c_int, value: *const c_void) = stream::hl_cuStreamSetAttribute;
    hl_cuStreamSynchronize_ptsz[stream](stream: *mut c_void) = stream::hl_cuStreamSynchronize;
    hl_cuStreamWaitEvent_ptsz[stream](stream: *mut c_void, event: *mut c_void, flags: c_uint) = stream::hl_cuStreamWaitEvent;
}

same! {
    /// `cuStreamAddCallback` where no stream means the thread's own. The function is told what the program gave.
    hl_cuStreamAddCallback_ptsz(stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void, Code, *mut c_void)>, data: *mut c_void, flags: c_uint) = of_runtime::hl_cudaStreamAddCallback_ptsz;
}

/// Functions that wait, as the same ones in the order of the thread's own stream, which then is waited for.
macro_rules! then_wait {
    ($($name:ident($($argument:ident: $kind:ty),*) = $later:ident;)*) => {$(
        #[doc = concat!("`", stringify!($later), "` in the order of the thread's own stream, and a wait for that.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Code {
            // SAFETY: as documented. The function may be a safe one.
            #[allow(unused_unsafe)]
            match unsafe { copy::$later($($argument,)* own(null_mut())) } {
                // SAFETY: a stream that there always is.
                0 => unsafe { stream::hl_cuStreamSynchronize(own(null_mut())) },
                code => code,
            }
        }
    )*};
}
then_wait! {
    hl_cuMemcpy_ptds(to: u64, from: u64, bytes: usize) = hl_cuMemcpyAsync;
    hl_cuMemcpy2D_v2_ptds(copy: *const Rectangle) = hl_cuMemcpy2DAsync_v2;
    hl_cuMemcpy2DUnaligned_v2_ptds(copy: *const Rectangle) = hl_cuMemcpy2DAsync_v2;
    hl_cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize) = hl_cuMemcpyDtoDAsync_v2;
    hl_cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: u64, bytes: usize) = hl_cuMemcpyDtoHAsync_v2;
    hl_cuMemcpyHtoD_v2_ptds(to: u64, from: *const c_void, bytes: usize) = hl_cuMemcpyHtoDAsync_v2;
    hl_cuMemcpyPeer_ptds(to: u64, to_context: *mut c_void, from: u64, from_context: *mut c_void, bytes: usize) = hl_cuMemcpyPeerAsync;
}

/// Functions that do not wait, as the same ones in the order of the thread's own stream.
macro_rules! of_own {
    ($($name:ident($($argument:ident: $kind:ty),*) = $later:ident;)*) => {$(
        #[doc = concat!("`", stringify!($later), "` in the order of the thread's own stream.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> Code {
            copy::$later($($argument,)* own(null_mut()))
        }
    )*};
}
of_own! {
    hl_cuMemsetD8_v2_ptds(address: u64, value: u8, count: usize) = hl_cuMemsetD8Async;
    hl_cuMemsetD16_v2_ptds(address: u64, value: u16, count: usize) = hl_cuMemsetD16Async;
    hl_cuMemsetD32_v2_ptds(address: u64, value: u32, count: usize) = hl_cuMemsetD32Async;
}

/// `cuLaunchKernelEx` where no stream means the thread's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLaunchKernelEx_ptsz(
    config: *const Config,
    function: *mut c_void,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    if config.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: as documented.
    let mut own_config = unsafe { *config };
    own_config.stream = own(own_config.stream);
    // SAFETY: as documented.
    unsafe { hl_cuLaunchKernelEx(&raw const own_config, function, each, extra) }
}

/// What no stream means is of no matter here: nothing is sent ahead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGraphInstantiateWithParams_ptsz(
    place: *mut *mut c_void,
    graph: *mut c_void,
    parameters: *mut InstantiateParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { stream::hl_cuGraphInstantiateWithParams(place, graph, parameters) }
}

/// `cuStreamCopyAttributes` where no stream means the thread's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuStreamCopyAttributes_ptsz(to: *mut c_void, from: *mut c_void) -> Code {
    // SAFETY: as documented.
    unsafe { stream::hl_cuStreamCopyAttributes(own(to), own(from)) }
}
