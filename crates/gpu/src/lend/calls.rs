//! The driver's functions that lending needs, and the structures that they take.

use super::tensor::TensorMap;
use crate::driver::{Address, Handle};
use crate::library::functions;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `CUmemAllocationProp`: pinned memory of one device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub kind: c_int,
    pub handles: c_int,
    pub place: c_int,
    pub device: c_int,
    pub metadata: usize,
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub place: c_int,
    pub device: c_int,
    pub flags: c_int,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copy2D {
    pub from_x: usize,
    pub from_y: usize,
    pub from_kind: c_uint,
    pub from_padding: c_uint,
    pub from_host: usize,
    pub from_device: Address,
    pub from_array: usize,
    pub from_pitch: usize,
    pub to_x: usize,
    pub to_y: usize,
    pub to_kind: c_uint,
    pub to_padding: c_uint,
    pub to_host: usize,
    pub to_device: Address,
    pub to_array: usize,
    pub to_pitch: usize,
    pub width: usize,
    pub rows: usize,
}

/// `CUlaunchAttribute`: its number, and 64 bytes of value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchAttribute {
    pub number: c_int,
    pub padding: c_int,
    pub value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchShape {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UpdateResult {
    pub result: c_int,
    pub node: usize,
    pub from: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelNode {
    pub function: Handle,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub padding: c_uint,
    pub parameters: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kernel: Handle,
    pub context: Handle,
}

const _: () = {
    assert!(size_of::<KernelNode>() == 72 && std::mem::offset_of!(KernelNode, parameters) == 40);
    assert!(size_of::<Kind>() == 32 && size_of::<Access>() == 12 && size_of::<Copy2D>() == 128);
    assert!(size_of::<LaunchAttribute>() == 72 && size_of::<LaunchShape>() == 56);
    assert!(std::mem::offset_of!(LaunchShape, stream) == 32 && size_of::<UpdateResult>() == 24);
};

functions! {
    /// The driver's functions for lending, by what they do.
    Calls {
        context_set = c"cuCtxSetCurrent" (Handle);
        device_bus = c"cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
        device_uuid = c"cuDeviceGetUuid" (*mut u8, c_int);
        device_memory = c"cuDeviceTotalMem_v2" (*mut usize, c_int);
        can_reach = c"cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
        granularity = c"cuMemGetAllocationGranularity" (*mut usize, *const Kind, c_int);
        reserve = c"cuMemAddressReserve" (*mut Address, usize, usize, Address, u64);
        create = c"cuMemCreate" (*mut u64, usize, *const Kind, u64);
        release = c"cuMemRelease" (u64);
        map = c"cuMemMap" (Address, usize, usize, u64, u64);
        unmap = c"cuMemUnmap" (Address, usize);
        set_access = c"cuMemSetAccess" (Address, usize, *const Access, usize);
        host_allocate = c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        copy_in = c"cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
        copy_out = c"cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
        copy_within = c"cuMemcpyAsync" (Address, Address, usize, Handle);
        copy_rows = c"cuMemcpy2DAsync_v2" (*const Copy2D, Handle);
        fill_8 = c"cuMemsetD2D8Async" (Address, usize, u8, usize, usize, Handle);
        fill_16 = c"cuMemsetD2D16Async" (Address, usize, u16, usize, usize, Handle);
        fill_32 = c"cuMemsetD2D32Async" (Address, usize, c_uint, usize, usize, Handle);
        stream_make = c"cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
        stream_wait_event = c"cuStreamWaitEvent" (Handle, Handle, c_uint);
        event_record_with_flags = c"cuEventRecordWithFlags" (Handle, Handle, c_uint);
        event_elapsed = c"cuEventElapsedTime" (*mut f32, Handle, Handle);
        capture_begin = c"cuStreamBeginCapture_v2" (Handle, c_int);
        capture_end = c"cuStreamEndCapture" (Handle, *mut Handle);
        capture_info = c"cuStreamGetCaptureInfo_v2" (Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle, *mut usize);
        node_switch = c"cuGraphNodeSetEnabled" (Handle, Handle, c_uint);
        node_kernel = c"cuGraphExecKernelNodeSetParams_v2" (Handle, Handle, *const KernelNode);
        graph_instantiate = c"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
        graph_update = c"cuGraphExecUpdate_v2" (Handle, Handle, *mut UpdateResult);
        graph_launch = c"cuGraphLaunch" (Handle, Handle);
        graph_destroy = c"cuGraphDestroy" (Handle);
        exec_destroy = c"cuGraphExecDestroy" (Handle);
        module_global = c"cuModuleGetGlobal_v2" (*mut Address, *mut usize, Handle, *const c_char);
        function_attribute = c"cuFuncGetAttribute" (*mut c_int, c_int, Handle);
        function_set = c"cuFuncSetAttribute" (Handle, c_int, c_int);
        function_parameter = c"cuFuncGetParamInfo" (Handle, usize, *mut usize, *mut usize);
        occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" (*mut c_int, Handle, c_int, usize, c_uint);
        clusters = c"cuOccupancyMaxActiveClusters" (*mut c_int, Handle, *const LaunchShape);
        tensor_map = c"cuTensorMapEncodeTiled" (*mut TensorMap, c_uint, c_uint, Address, *const u64, *const u64, *const c_uint, *const c_uint, c_uint, c_uint, c_uint, c_uint);
        launch = c"cuLaunchKernelEx" (*const LaunchShape, Handle, *mut *mut c_void, *mut *mut c_void);
    }
}
