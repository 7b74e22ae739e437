//! Error numbers of CUDA that the core itself returns. The runtime's and the driver's are the same.

use std::ffi::{CStr, c_int};

/// What a function of the runtime or the driver returns.
pub type Code = c_int;

/// Everything went well.
pub const SUCCESS: Code = 0;
/// An argument is out of range.
pub const INVALID_VALUE: Code = 1;
/// The grant of memory is used up, and the node has no more.
pub const NO_MEMORY: Code = 2;
/// CUDA cannot be used in this process, for instance behind a fork.
pub const NOT_INITIALIZED: Code = 3;
/// A launch that no device can do.
pub const INVALID_CONFIGURATION: Code = 9;
/// Rows of a copy or a fill that lie upon each other.
pub const INVALID_PITCH: Code = 12;
/// No such variable.
pub const INVALID_SYMBOL: Code = 13;
/// The node is gone or cannot be reached.
pub const UNAVAILABLE: Code = 46;
/// No such kernel.
pub const INVALID_FUNCTION: Code = 98;
/// A direction of a copy that there is none of.
pub const INVALID_DIRECTION: Code = 21;
/// A launch for which a multiprocessor has too few registers.
pub const OUT_OF_RESOURCES: Code = 701;
/// A launch of groups that may wait for each other and do not fit at once.
pub const COOPERATIVE_TOO_LARGE: Code = 720;
/// No device can be reached.
pub const NO_DEVICE: Code = 100;
/// No device has this number.
pub const INVALID_DEVICE: Code = 101;
/// A fat binary that makes no sense.
pub const INVALID_IMAGE: Code = 200;
/// There is no such context (any more), or none is current.
pub const INVALID_CONTEXT: Code = 201;
/// The context that is current has ended, or nobody holds it.
pub const CONTEXT_IS_DESTROYED: Code = 709;
/// A fat binary without an image for the device.
pub const NO_BINARY: Code = 209;
/// A limit that a device of this kind does not have.
pub const UNSUPPORTED_LIMIT: Code = 215;
/// These devices do not reach each other's memory.
pub const PEER_UNSUPPORTED: Code = 217;
/// There is access between these devices already.
pub const PEER_ENABLED: Code = 704;
/// There is no access between these devices.
pub const PEER_NOT_ENABLED: Code = 705;
/// Memory of the host that is registered already.
pub const ALREADY_REGISTERED: Code = 712;
/// Memory of the host that is not registered.
pub const NOT_REGISTERED: Code = 713;
/// There is no such file.
pub const FILE_NOT_FOUND: Code = 301;
/// A stream, event, graph or module that does not exist (any more).
pub const INVALID_HANDLE: Code = 400;
/// Not in this state.
pub const ILLEGAL_STATE: Code = 401;
/// The program has memory where something else is to be.
pub const ALREADY_MAPPED: Code = 208;
/// Nothing has this name.
pub const NOT_FOUND: Code = 500;
/// Not done yet; no error.
pub const NOT_READY: Code = 600;
/// Not from a function that a stream calls.
pub const NOT_PERMITTED: Code = 800;
/// This cannot be done here.
pub const NOT_SUPPORTED: Code = 801;
/// Not while a stream is being captured.
pub const CAPTURE_UNSUPPORTED: Code = 900;
/// The capture failed before.
pub const CAPTURE_INVALIDATED: Code = 901;
/// Streams of two captures were joined.
pub const CAPTURE_MERGE: Code = 902;
/// The capture did not begin in this stream.
pub const CAPTURE_UNMATCHED: Code = 903;
/// A stream of the capture was not joined with its origin.
pub const CAPTURE_UNJOINED: Code = 904;
/// A stream that is being captured would wait for what is not.
pub const CAPTURE_ISOLATION: Code = 905;
/// The default stream while a stream that it waits for is being captured.
pub const CAPTURE_IMPLICIT: Code = 906;
/// The event was last recorded in a capture.
pub const CAPTURED_EVENT: Code = 907;
/// The capture began in another thread.
pub const CAPTURE_WRONG_THREAD: Code = 908;
/// Nobody knows what happened.
pub const UNKNOWN: Code = 999;

/// What a function of the driver returns where one of the runtime returns a number that only the runtime has.
#[must_use]
pub const fn of_driver(code: Code) -> Code {
    match code {
        INVALID_CONFIGURATION | INVALID_PITCH | INVALID_DIRECTION => INVALID_VALUE,
        INVALID_SYMBOL => NOT_FOUND,
        INVALID_FUNCTION => INVALID_HANDLE,
        other => other,
    }
}

/// Name (of the runtime, without the prefix `cudaError`), name of the driver, and words.
type Entry = (Code, &'static CStr, &'static CStr, &'static CStr);

/// Every number that programs are likely to meet, ours and those that a device sends.
const ENTRIES: &[Entry] = &[
    (0, c"cudaSuccess", c"CUDA_SUCCESS", c"no error"),
    (1, c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"cudaErrorCudartUnloading", c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (5, c"cudaErrorProfilerDisabled", c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled"),
    (9, c"cudaErrorInvalidConfiguration", c"CUDA_ERROR_UNKNOWN", c"invalid configuration argument"),
    (12, c"cudaErrorInvalidPitchValue", c"CUDA_ERROR_UNKNOWN", c"invalid pitch argument"),
    (13, c"cudaErrorInvalidSymbol", c"CUDA_ERROR_UNKNOWN", c"invalid device symbol"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"CUDA_ERROR_UNKNOWN", c"invalid copy direction for memcpy"),
    (34, c"cudaErrorStubLibrary", c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library"),
    (
        35,
        c"cudaErrorInsufficientDriver",
        c"CUDA_ERROR_UNKNOWN",
        c"CUDA driver version is insufficient for CUDA runtime version",
    ),
    (
        36,
        c"cudaErrorCallRequiresNewerDriver",
        c"CUDA_ERROR_UNKNOWN",
        c"API call is not supported in the installed CUDA driver",
    ),
    (
        43,
        c"cudaErrorDuplicateVariableName",
        c"CUDA_ERROR_UNKNOWN",
        c"duplicate global variable looked up by string name",
    ),
    (
        46,
        c"cudaErrorDevicesUnavailable",
        c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"the GPU node cannot be reached any more",
    ),
    (52, c"cudaErrorMissingConfiguration", c"CUDA_ERROR_UNKNOWN", c"launch without a configuration"),
    (98, c"cudaErrorInvalidDeviceFunction", c"CUDA_ERROR_UNKNOWN", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"cudaErrorInvalidKernelImage", c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"cudaErrorDeviceUninitialized", c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (205, c"cudaErrorMapBufferObjectFailed", c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"),
    (
        206,
        c"cudaErrorUnmapBufferObjectFailed",
        c"CUDA_ERROR_UNMAP_FAILED",
        c"unmapping of buffer object failed",
    ),
    (208, c"cudaErrorAlreadyMapped", c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped"),
    (
        209,
        c"cudaErrorNoKernelImageForDevice",
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for the device",
    ),
    (210, c"cudaErrorAlreadyAcquired", c"CUDA_ERROR_ALREADY_ACQUIRED", c"resource already acquired"),
    (211, c"cudaErrorNotMapped", c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped"),
    (
        214,
        c"cudaErrorECCUncorrectable",
        c"CUDA_ERROR_ECC_UNCORRECTABLE",
        c"uncorrectable ECC error encountered",
    ),
    (
        215,
        c"cudaErrorUnsupportedLimit",
        c"CUDA_ERROR_UNSUPPORTED_LIMIT",
        c"limit is not supported on this architecture",
    ),
    (
        216,
        c"cudaErrorDeviceAlreadyInUse",
        c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        c"exclusive-thread device already in use by a different thread",
    ),
    (
        217,
        c"cudaErrorPeerAccessUnsupported",
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access is not supported between these devices",
    ),
    (218, c"cudaErrorInvalidPtx", c"CUDA_ERROR_INVALID_PTX", c"a PTX image could not be compiled"),
    (
        219,
        c"cudaErrorInvalidGraphicsContext",
        c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        c"invalid OpenGL or DirectX context",
    ),
    (
        220,
        c"cudaErrorNvlinkUncorrectable",
        c"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        c"uncorrectable NVLink error detected during the execution",
    ),
    (
        221,
        c"cudaErrorJitCompilerNotFound",
        c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        c"PTX JIT compiler library not found",
    ),
    (
        222,
        c"cudaErrorUnsupportedPtxVersion",
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the PTX was compiled with an unsupported toolchain",
    ),
    (300, c"cudaErrorInvalidSource", c"CUDA_ERROR_INVALID_SOURCE", c"device kernel image is invalid"),
    (301, c"cudaErrorFileNotFound", c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    (
        302,
        c"cudaErrorSharedObjectSymbolNotFound",
        c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        c"shared object symbol not found",
    ),
    (
        303,
        c"cudaErrorSharedObjectInitFailed",
        c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        c"shared object initialization failed",
    ),
    (
        304,
        c"cudaErrorOperatingSystem",
        c"CUDA_ERROR_OPERATING_SYSTEM",
        c"OS call failed or operation not supported on this OS",
    ),
    (400, c"cudaErrorInvalidResourceHandle", c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (
        401,
        c"cudaErrorIllegalState",
        c"CUDA_ERROR_ILLEGAL_STATE",
        c"the operation cannot be done in the present state",
    ),
    (500, c"cudaErrorSymbolNotFound", c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        700,
        c"cudaErrorIllegalAddress",
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (
        701,
        c"cudaErrorLaunchOutOfResources",
        c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"too many resources requested for launch",
    ),
    (
        702,
        c"cudaErrorLaunchTimeout",
        c"CUDA_ERROR_LAUNCH_TIMEOUT",
        c"the launch timed out and was terminated",
    ),
    (
        703,
        c"cudaErrorLaunchIncompatibleTexturing",
        c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        c"launch uses incompatible texturing mode",
    ),
    (
        704,
        c"cudaErrorPeerAccessAlreadyEnabled",
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access is already enabled",
    ),
    (
        705,
        c"cudaErrorPeerAccessNotEnabled",
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access has not been enabled",
    ),
    (
        708,
        c"cudaErrorSetOnActiveProcess",
        c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"cannot set while device is active in this process",
    ),
    (709, c"cudaErrorContextIsDestroyed", c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (710, c"cudaErrorAssert", c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
    (711, c"cudaErrorTooManyPeers", c"CUDA_ERROR_TOO_MANY_PEERS", c"peer mapping resources exhausted"),
    (
        712,
        c"cudaErrorHostMemoryAlreadyRegistered",
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"cudaErrorHostMemoryNotRegistered",
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (714, c"cudaErrorHardwareStackError", c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error"),
    (
        715,
        c"cudaErrorIllegalInstruction",
        c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        c"an illegal instruction was encountered",
    ),
    (716, c"cudaErrorMisalignedAddress", c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (
        717,
        c"cudaErrorInvalidAddressSpace",
        c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"operation not supported on global/shared address space",
    ),
    (718, c"cudaErrorInvalidPc", c"CUDA_ERROR_INVALID_PC", c"invalid program counter"),
    (719, c"cudaErrorLaunchFailure", c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (
        720,
        c"cudaErrorCooperativeLaunchTooLarge",
        c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"too many blocks in cooperative launch",
    ),
    (800, c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (802, c"cudaErrorSystemNotReady", c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized"),
    (
        803,
        c"cudaErrorSystemDriverMismatch",
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination",
    ),
    (
        900,
        c"cudaErrorStreamCaptureUnsupported",
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (
        901,
        c"cudaErrorStreamCaptureInvalidated",
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        902,
        c"cudaErrorStreamCaptureMerge",
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"operation would result in a merge of separate capture sequences",
    ),
    (
        903,
        c"cudaErrorStreamCaptureUnmatched",
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"capture was not ended in the same stream as it began",
    ),
    (
        904,
        c"cudaErrorStreamCaptureUnjoined",
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"capturing stream has unjoined work",
    ),
    (
        905,
        c"cudaErrorStreamCaptureIsolation",
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        906,
        c"cudaErrorStreamCaptureImplicit",
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (
        907,
        c"cudaErrorCapturedEvent",
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (
        908,
        c"cudaErrorStreamCaptureWrongThread",
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (909, c"cudaErrorTimeout", c"CUDA_ERROR_TIMEOUT", c"wait operation timed out"),
    (
        910,
        c"cudaErrorGraphExecUpdateFailure",
        c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"the graph update was not performed",
    ),
    (912, c"cudaErrorInvalidClusterSize", c"CUDA_ERROR_INVALID_CLUSTER_SIZE", c"cluster misconfiguration"),
    (999, c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

fn entry(code: Code) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.0 == code)
}

/// The runtime's name of a number.
#[must_use]
pub fn runtime_name(code: Code) -> &'static CStr {
    entry(code).map_or(c"unrecognized error code", |entry| entry.1)
}

/// The driver's name of a number, if it is one.
#[must_use]
pub fn driver_name(code: Code) -> Option<&'static CStr> {
    entry(code).map(|entry| entry.2)
}

/// What a number means.
#[must_use]
pub fn words(code: Code) -> &'static CStr {
    entry(code).map_or(c"unrecognized error code", |entry| entry.3)
}
