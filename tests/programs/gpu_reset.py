"""What a reset of the primary context leaves under the driver's names, and of handles of cuBLAS."""

import ctypes

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .global .u32 counter = 5;
.visible .entry count_up() {
    .reg .b32 %r<2>;
    ld.global.u32 %r1, [counter];
    add.u32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    ret;
}
"""
INVALID_HANDLE, NOT_INITIALIZED = 400, 1

cuda = ctypes.CDLL("libcuda.so.1")
blas = ctypes.CDLL("libcublas.so.13")
by = ctypes.byref


def counted(take, code):
    """Launches the kernel, and says what the variable is then."""
    kernel, place, seen = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
    one = ctypes.c_uint(1)
    assert take(by(kernel), code, b"count_up") == 0
    assert cuda.cuLaunchKernel(kernel, one, one, one, one, one, one, ctypes.c_uint(0), None, None, None) == 0
    assert cuda.cuModuleGetGlobal_v2(by(place), None, code, b"counter") == 0
    assert cuda.cuMemcpyDtoH_v2(by(seen), place, ctypes.c_size_t(4)) == 0
    return seen.value


context, module, library, other = (ctypes.c_void_p() for _ in range(4))
handle, later, stream = (ctypes.c_void_p() for _ in range(3))
address, piece, reserved = (ctypes.c_uint64() for _ in range(3))
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(by(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(by(module), PTX) == 0
assert cuda.cuLibraryLoadData(by(library), PTX, None, None, 0, None, None, 0) == 0
assert counted(cuda.cuModuleGetFunction, module) == 6
assert counted(cuda.cuLibraryGetKernel, library) == 6
assert cuda.cuMemAlloc_v2(by(address), ctypes.c_size_t(8 << 20)) == 0
assert cuda.cuMemAddressReserve(by(reserved), ctypes.c_size_t(4 << 20), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)) == 0
properties = (ctypes.c_int * 8)(1, 0, 1, 0)
assert cuda.cuMemCreate(by(piece), ctypes.c_size_t(4 << 20), properties, ctypes.c_uint64(0)) == 0
assert cuda.cuMemMap(reserved, ctypes.c_size_t(4 << 20), ctypes.c_size_t(0), piece, ctypes.c_uint64(0)) == 0
assert blas.cublasCreate_v2(by(handle)) == 0
assert cuda.cuStreamCreate(by(stream), 1) == 0
assert blas.cublasSetStream_v2(handle, stream) == 0

assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
assert cuda.cuModuleGetFunction(by(other), module, b"count_up") == INVALID_HANDLE
assert cuda.cuModuleUnload(module) == INVALID_HANDLE
assert cuda.cuStreamSynchronize(stream) == INVALID_HANDLE
assert cuda.cuMemFree_v2(address) == 1
assert cuda.cuMemUnmap(reserved, ctypes.c_size_t(4 << 20)) == 1
assert cuda.cuMemRelease(piece) == 1
assert cuda.cuMemAddressFree(reserved, ctypes.c_size_t(4 << 20)) == 0, "addresses are of no device"
assert blas.cublasSetStream_v2(handle, None) == NOT_INITIALIZED
assert blas.cublasDestroy_v2(handle) == NOT_INITIALIZED
# The context is the same one, and a library is of all devices.
assert cuda.cuCtxSynchronize() == 0
assert counted(cuda.cuLibraryGetKernel, library) == 6
assert cuda.cuModuleLoadData(by(module), PTX) == 0
assert counted(cuda.cuModuleGetFunction, module) == 6
assert blas.cublasCreate_v2(by(later)) == 0
assert blas.cublasSetStream_v2(later, None) == 0
assert blas.cublasDestroy_v2(later) == 0
print("right")
