//! The same functions for programs that are compiled with `--default-stream per-thread`: no stream means the thread's own.
//!
//! The compiler gives such programs names with `_ptsz` behind them where a stream is an argument, and with `_ptds` where the default stream is
//! meant without being named.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::graph::InstantiateParameters;
use super::launch::{Config, hl_cudaLaunchKernelExC};
use super::register::Dim3;
use super::volume::{Copy3D, CopyPeer3D, Pitched, Place};
use super::{event, graph, launch, limit, memory, node, pool, stream, volume};
use crate::code::Code;
use crate::driver::entry;

/// `cudaStreamPerThread`, where the program names none.
pub(crate) fn own(stream: *mut c_void) -> *mut c_void {
    if stream.is_null() { std::ptr::without_provenance_mut(2) } else { stream }
}

/// Functions that differ in nothing but what no stream means.
macro_rules! per_thread {
    ($($name:ident[$own:ident]($($argument:ident: $kind:ty),*) = $module:ident::$plain:ident;)*) => {$(
        #[doc = concat!("`", stringify!($plain), "` where no stream means the thread's own.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Code {
            let $own = $crate::runtime::per_thread::own($own);
            // SAFETY: as documented. The plain function may be a safe one.
            #[allow(unused_unsafe)]
            unsafe { $module::$plain($($argument),*) }
        }
    )*};
}
pub(crate) use per_thread;
per_thread! {
    hl___cudaLaunchKernel_ptsz[stream](function: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize, stream: *mut c_void) = launch::hl___cudaLaunchKernel;
    hl_cudaEventRecord_ptsz[stream](event: *mut c_void, stream: *mut c_void) = event::hl_cudaEventRecord;
    hl_cudaEventRecordWithFlags_ptsz[stream](event: *mut c_void, stream: *mut c_void, flags: c_uint) = event::hl_cudaEventRecordWithFlags;
    hl_cudaFreeAsync_ptsz[stream](address: *mut c_void, stream: *mut c_void) = pool::hl_cudaFreeAsync;
    hl_cudaGraphLaunch_ptsz[stream](exec: *mut c_void, stream: *mut c_void) = graph::hl_cudaGraphLaunch;
    hl_cudaGraphUpload_ptsz[stream](exec: *mut c_void, stream: *mut c_void) = graph::hl_cudaGraphUpload;
    hl_cudaLaunchCooperativeKernel_ptsz[stream](function: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize, stream: *mut c_void) = launch::hl_cudaLaunchCooperativeKernel;
    hl_cudaLaunchHostFunc_ptsz[stream](stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) = stream::hl_cudaLaunchHostFunc;
    hl_cudaLaunchKernel_ptsz[stream](function: *const c_void, grid: Dim3, block: Dim3, arguments: *const *const c_void, shared: usize, stream: *mut c_void) = launch::hl_cudaLaunchKernel;
    hl_cudaMallocAsync_ptsz[stream](place: *mut *mut c_void, bytes: usize, stream: *mut c_void) = pool::hl_cudaMallocAsync;
    hl_cudaMemcpy2DAsync_ptsz[stream](to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: *mut c_void) = memory::hl_cudaMemcpy2DAsync;
    hl_cudaMallocFromPoolAsync_ptsz[stream](place: *mut *mut c_void, bytes: usize, pool: *mut c_void, stream: *mut c_void) = pool::hl_cudaMallocFromPoolAsync;
    hl_cudaMemcpy3DAsync_ptsz[stream](copy: *const Copy3D, stream: *mut c_void) = volume::hl_cudaMemcpy3DAsync;
    hl_cudaMemcpy3DPeerAsync_ptsz[stream](copy: *const CopyPeer3D, stream: *mut c_void) = volume::hl_cudaMemcpy3DPeerAsync;
    hl_cudaMemset3DAsync_ptsz[stream](place: Pitched, value: c_int, extent: Place, stream: *mut c_void) = volume::hl_cudaMemset3DAsync;
    hl_cudaStreamBeginCaptureToGraph_ptsz[stream](stream: *mut c_void, graph: *mut c_void, behind: *const *mut c_void, edges: *const c_void, count: usize, mode: c_int) = node::hl_cudaStreamBeginCaptureToGraph;
    hl_cudaStreamUpdateCaptureDependencies_ptsz[stream](stream: *mut c_void, behind: *const *mut c_void, edges: *const c_void, count: usize, flags: c_uint) = node::hl_cudaStreamUpdateCaptureDependencies;
    hl_cudaMemcpyAsync_ptsz[stream](to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int, stream: *mut c_void) = memory::hl_cudaMemcpyAsync;
    hl_cudaMemcpyToSymbolAsync_ptsz[stream](shadow: *const c_void, from: *const c_void, bytes: usize, offset: usize, kind: c_int, stream: *mut c_void) = memory::hl_cudaMemcpyToSymbolAsync;
    hl_cudaMemset2DAsync_ptsz[stream](address: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize, stream: *mut c_void) = memory::hl_cudaMemset2DAsync;
    hl_cudaMemsetAsync_ptsz[stream](address: *mut c_void, value: c_int, bytes: usize, stream: *mut c_void) = memory::hl_cudaMemsetAsync;
    hl_cudaStreamBeginCapture_ptsz[stream](stream: *mut c_void, mode: c_int) = stream::hl_cudaStreamBeginCapture;
    hl_cudaStreamEndCapture_ptsz[stream](stream: *mut c_void, place: *mut *mut c_void) = stream::hl_cudaStreamEndCapture;
    hl_cudaStreamGetAttribute_ptsz[stream](stream: *mut c_void, number: c_int, value: *mut [u64; 8]) = limit::hl_cudaStreamGetAttribute;
    hl_cudaStreamSetAttribute_ptsz[stream](stream: *mut c_void, number: c_int, value: *const c_void) = limit::hl_cudaStreamSetAttribute;
    hl_cudaStreamGetCaptureInfo_ptsz[stream](stream: *mut c_void, status: *mut c_int, number: *mut u64, graph: *mut *mut c_void, dependencies: *mut *const c_void, edges: *mut *const c_void, count: *mut usize) = node::hl_cudaStreamGetCaptureInfo;
    hl_cudaStreamGetDevice_ptsz[stream](stream: *mut c_void, device: *mut c_int) = stream::hl_cudaStreamGetDevice;
    hl_cudaStreamGetFlags_ptsz[stream](stream: *mut c_void, flags: *mut c_uint) = stream::hl_cudaStreamGetFlags;
    hl_cudaStreamGetId_ptsz[stream](stream: *mut c_void, number: *mut u64) = stream::hl_cudaStreamGetId;
    hl_cudaStreamGetPriority_ptsz[stream](stream: *mut c_void, priority: *mut c_int) = stream::hl_cudaStreamGetPriority;
    hl_cudaStreamIsCapturing_ptsz[stream](stream: *mut c_void, status: *mut c_int) = stream::hl_cudaStreamIsCapturing;
    hl_cudaStreamQuery_ptsz[stream](stream: *mut c_void) = stream::hl_cudaStreamQuery;
    hl_cudaStreamSynchronize_ptsz[stream](stream: *mut c_void) = stream::hl_cudaStreamSynchronize;
    hl_cudaStreamWaitEvent_ptsz[stream](stream: *mut c_void, event: *mut c_void, flags: c_uint) = stream::hl_cudaStreamWaitEvent;
}

/// `cudaStreamAddCallback` where no stream means the thread's own. The function is told what the program gave.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamAddCallback_ptsz(
    stream: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void, Code, *mut c_void)>,
    data: *mut c_void,
    flags: c_uint,
) -> Code {
    stream::add_callback((own(stream), stream), function, data, flags)
}

/// `cudaLaunchKernelExC` where no stream means the thread's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLaunchKernelExC_ptsz(
    config: *const Config,
    function: *const c_void,
    arguments: *const *const c_void,
) -> Code {
    if config.is_null() {
        // SAFETY: as documented.
        return unsafe { hl_cudaLaunchKernelExC(config, function, arguments) };
    }
    // SAFETY: as documented.
    let mut own_config = unsafe { *config };
    own_config.stream = own(own_config.stream);
    // SAFETY: as documented.
    unsafe { hl_cudaLaunchKernelExC(&raw const own_config, function, arguments) }
}

/// `cudaMemcpy` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy_ptds(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> Code {
    // SAFETY: as documented.
    match unsafe { memory::hl_cudaMemcpyAsync(to, from, bytes, kind, own(std::ptr::null_mut())) } {
        0 => stream::hl_cudaStreamSynchronize(own(std::ptr::null_mut())),
        code => code,
    }
}

/// `cudaMemset` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset_ptds(address: *mut c_void, value: c_int, bytes: usize) -> Code {
    memory::hl_cudaMemsetAsync(address, value, bytes, own(std::ptr::null_mut()))
}

/// `cudaMemcpy2D` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy2D_ptds(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> Code {
    let stream = own(std::ptr::null_mut());
    // SAFETY: as documented.
    match unsafe { memory::hl_cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream) }
    {
        0 => stream::hl_cudaStreamSynchronize(stream),
        code => code,
    }
}

/// `cudaMemcpyToSymbol` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyToSymbol_ptds(
    shadow: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Code {
    let stream = own(std::ptr::null_mut());
    // SAFETY: as documented.
    match unsafe { memory::hl_cudaMemcpyToSymbolAsync(shadow, from, bytes, offset, kind, stream) } {
        0 => stream::hl_cudaStreamSynchronize(stream),
        code => code,
    }
}

/// `cudaMemcpyFromSymbol` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyFromSymbol_ptds(
    to: *mut c_void,
    shadow: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Code {
    let stream = own(std::ptr::null_mut());
    // SAFETY: as documented.
    match unsafe { memory::hl_cudaMemcpyFromSymbolAsync(to, shadow, bytes, offset, kind, stream) } {
        0 => stream::hl_cudaStreamSynchronize(stream),
        code => code,
    }
}

/// `cudaMemcpyFromSymbolAsync` where no stream means the thread's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyFromSymbolAsync_ptsz(
    to: *mut c_void,
    shadow: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: *mut c_void,
) -> Code {
    // SAFETY: as documented.
    unsafe { memory::hl_cudaMemcpyFromSymbolAsync(to, shadow, bytes, offset, kind, own(stream)) }
}

/// `cudaMemset2D` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset2D_ptds(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
) -> Code {
    memory::hl_cudaMemset2DAsync(address, pitch, value, width, height, own(std::ptr::null_mut()))
}

/// `cudaMemcpy3D` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy3D_ptds(copy: *const Copy3D) -> Code {
    let stream = own(std::ptr::null_mut());
    // SAFETY: as documented.
    match unsafe { volume::hl_cudaMemcpy3DAsync(copy, stream) } {
        0 => stream::hl_cudaStreamSynchronize(stream),
        code => code,
    }
}

/// `cudaMemset3D` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset3D_ptds(place: Pitched, value: c_int, extent: Place) -> Code {
    volume::hl_cudaMemset3DAsync(place, value, extent, own(std::ptr::null_mut()))
}

/// `cudaMemcpy3DPeer` in the order of the thread's own stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy3DPeer_ptds(copy: *const CopyPeer3D) -> Code {
    let stream = own(std::ptr::null_mut());
    // SAFETY: as documented.
    match unsafe { volume::hl_cudaMemcpy3DPeerAsync(copy, stream) } {
        0 => stream::hl_cudaStreamSynchronize(stream),
        code => code,
    }
}

/// `cudaStreamCopyAttributes` where no stream means the thread's own.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamCopyAttributes_ptsz(to: *mut c_void, from: *mut c_void) -> Code {
    limit::hl_cudaStreamCopyAttributes(own(to), own(from))
}

/// What no stream means is of no matter here: nothing is sent ahead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGraphInstantiateWithParams_ptsz(
    place: *mut *mut c_void,
    graph: *mut c_void,
    parameters: *mut InstantiateParameters,
) -> Code {
    // SAFETY: as documented.
    unsafe { graph::hl_cudaGraphInstantiateWithParams(place, graph, parameters) }
}

/// `cudaGetDriverEntryPoint`, for functions to which no stream means the thread's own unless other ones are asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDriverEntryPoint_ptsz(
    name: *const c_char,
    place: *mut *mut c_void,
    flags: u64,
    found: *mut c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { entry::hl_cudaGetDriverEntryPoint(name, place, entry::own_by_default(flags), found) }
}

/// `cudaGetDriverEntryPointByVersion` likewise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDriverEntryPointByVersion_ptsz(
    name: *const c_char,
    place: *mut *mut c_void,
    version: c_uint,
    flags: u64,
    found: *mut c_int,
) -> Code {
    let flags = entry::own_by_default(flags);
    // SAFETY: as documented.
    unsafe { entry::hl_cudaGetDriverEntryPointByVersion(name, place, version, flags, found) }
}
