"""Functions of the driver as programs look them up: each has the arguments of the version of CUDA that was asked for, and keeps to its own errors."""

import ctypes
import pathlib
import sys

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .global .u32 place;
.visible .entry nothing() {
    ret;
}
.visible .global .align 4 .u32 hidden = 41;
.visible .entry tell(.param .u64 to) {
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    mov.u64 %rd2, hidden;
    cvta.global.u64 %rd2, %rd2;
    st.global.u64 [%rd1], %rd2;
    ret;
}
"""
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int
INVALID_VALUE, NOT_READY, INVALID_HANDLE, NOT_FOUND = 1, 600, 400, 500

cuda, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")


def good(code):
    """Ends the program on an error."""
    if code != 0:
        words = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(words))
        raise SystemExit(f"error {code}: {words.value}")


def look(name, version):
    """The function of a name in a version of CUDA, and what is said of it."""
    entry, status = POINTER(), NUMBER(-1)
    code = cuda.cuGetProcAddress_v2(name, ctypes.byref(entry), version, ctypes.c_uint64(0), ctypes.byref(status))
    assert (code, status.value == 0) in ((0, True), (NOT_FOUND, False)), (name, code, status.value)
    return entry.value, status.value


def function(name, version, *arguments):
    """The same, to be called with arguments of these types."""
    return ctypes.CFUNCTYPE(NUMBER, *arguments)(look(name, version)[0])


good(cuda.cuInit(0))

# The arguments of a context grew twice.
context = POINTER()
good(function(b"cuCtxCreate", 3020, POINTER, ctypes.c_uint, NUMBER)(ctypes.addressof(context), 0, 0))
good(function(b"cuCtxCreate", 11040, POINTER, POINTER, NUMBER, ctypes.c_uint, NUMBER)(ctypes.addressof(context), None, 0, 0, 0))
good(function(b"cuCtxCreate", 13000, POINTER, POINTER, ctypes.c_uint, NUMBER)(ctypes.addressof(context), None, 0, 0))
# Before CUDA 12 nobody was told why a function is not there, and no place was given for it.
entry = POINTER()
good(function(b"cuGetProcAddress", 11030, POINTER, POINTER, NUMBER, ctypes.c_uint64)(b"cuInit", ctypes.addressof(entry), 11030, 0))
assert entry.value == look(b"cuInit", 13000)[0]
assert look(b"cuGraphExecUpdate", 10020) == (None, 2) and look(b"cuGraphExecUpdate", 12000)[1] == 0
assert look(b"cuNothing", 13000) == (None, 1)
assert look(b"cuGraphAddDependencies", 11000) == (None, 2) and look(b"cuGraphAddDependencies", 12030)[1] == 0
# A batch of copies had a place for which of them failed, which CUDA 13 took away.
assert look(b"cuMemcpyBatchAsync", 12000) == (None, 2)
assert look(b"cuMemcpyBatchAsync", 12080)[0] != look(b"cuMemcpyBatchAsync", 13000)[0]

# One kernel has one name, until its module goes.
module, first, second = POINTER(), POINTER(), POINTER()
good(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
good(cuda.cuModuleGetFunction(ctypes.byref(first), module, b"nothing"))
good(cuda.cuModuleGetFunction(ctypes.byref(second), module, b"nothing"))
assert first.value == second.value
launch = (first, 1, 1, 1, 1, 1, 1, 0, None, None, None)
good(cuda.cuLaunchKernel(*launch))
nothing_given = (POINTER * 1)(0)
good(cuda.cuLaunchKernel(*launch[:-1], nothing_given))

# What the driver says is no error of the runtime's.
event, stream = POINTER(), POINTER()
good(cuda.cuStreamCreate(ctypes.byref(stream), 1))
assert cuda.cuEventQuery(POINTER(0x10)) == INVALID_HANDLE
assert cuda.cuStreamDestroy_v2(POINTER(0x10)) == INVALID_HANDLE
assert runtime.cudaGetLastError() == 0
assert runtime.cudaStreamDestroy(POINTER(0x10)) == INVALID_HANDLE == runtime.cudaGetLastError()

good(cuda.cuModuleUnload(module))
assert cuda.cuLaunchKernel(*launch) == INVALID_HANDLE
good(cuda.cuCtxSynchronize())

# A file of code, as a library of either interface.
path = pathlib.Path(sys.argv[1])
path.write_bytes(PTX)
library, name, size = POINTER(), str(path).encode(), ctypes.c_size_t()
FOUR, EIGHT, TO_DEVICE, TO_HOST, BY_ADDRESS = ctypes.c_size_t(4), ctypes.c_size_t(8), 1, 2, 4
told, memory = ctypes.c_uint64(), ctypes.c_uint64()
good(cuda.cuMemAlloc_v2(ctypes.byref(memory), EIGHT))
# How a program may first meet a variable that it never asked for: it copies it, or asks what its address is.
kind, start = ctypes.c_uint(), ctypes.c_uint64()
meetings = {
    "copy": lambda place: cuda.cuMemcpy(memory, place, FOUR),
    "copy in": lambda place: runtime.cudaMemcpy(place, ctypes.byref(ctypes.c_uint32(41)), FOUR, BY_ADDRESS),
    "kind": lambda place: cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, place),
    "range": lambda place: cuda.cuMemGetAddressRange_v2(ctypes.byref(start), None, place),
    "runtime": lambda place: runtime.cudaPointerGetAttributes(ctypes.byref((ctypes.c_uint64 * 32)()), place),
}
for meeting, meet in meetings.items():
    good(cuda.cuModuleLoad(ctypes.byref(module), name))
    good(cuda.cuModuleGetFunction(ctypes.byref(second), module, b"tell"))
    given = (POINTER * 1)(ctypes.addressof(memory))
    good(cuda.cuLaunchKernel(second, 1, 1, 1, 1, 1, 1, 0, None, given, None))
    good(cuda.cuMemcpyDtoH_v2(ctypes.byref(told), memory, EIGHT))
    assert meet(told) == 0, meeting
    good(cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, told))
    assert kind.value == 2, meeting
    good(cuda.cuModuleUnload(module))

for load, kernel, variable, unload, take, put in (
    (cuda.cuModuleLoad, cuda.cuModuleGetFunction, cuda.cuModuleGetGlobal_v2, cuda.cuModuleUnload)
    + (cuda.cuMemcpyDtoH_v2, lambda to, word, bytes: cuda.cuMemsetD32_v2(to, word.value, ctypes.c_size_t(bytes.value // 4))),
    (
        lambda place, file: runtime.cudaLibraryLoadFromFile(place, file, None, None, 0, None, None, 0),
        runtime.cudaLibraryGetKernel,
        runtime.cudaLibraryGetGlobal,
        runtime.cudaLibraryUnload,
        lambda word, place, bytes: runtime.cudaMemcpy(word, place, bytes, TO_HOST),
        lambda place, word, bytes: runtime.cudaMemcpy(place, ctypes.byref(word), bytes, TO_DEVICE),
    ),
):
    good(load(ctypes.byref(library), name))
    good(kernel(ctypes.byref(first), library, b"nothing"))
    assert kernel(ctypes.byref(second), library, b"something") == NOT_FOUND
    good(cuda.cuLaunchKernel(*launch))
    # A kernel tells where a variable is that the program never asked for.
    good(kernel(ctypes.byref(second), library, b"tell"))
    given = (POINTER * 1)(ctypes.addressof(memory))
    good(cuda.cuLaunchKernel(second, 1, 1, 1, 1, 1, 1, 0, None, given, None))
    good(cuda.cuMemcpyDtoH_v2(ctypes.byref(told), memory, EIGHT))
    word = ctypes.c_uint32()
    good(take(ctypes.byref(word), told, FOUR))
    assert word.value == 41
    good(put(told, ctypes.c_uint32(43), FOUR))
    good(take(ctypes.byref(word), told, FOUR))
    assert word.value == 43
    good(variable(ctypes.byref(entry), ctypes.byref(size), library, b"place"))
    assert entry.value and size.value == 4
    place, kind = ctypes.c_uint64(entry.value), ctypes.c_uint()
    copies = (cuda.cuMemcpyHtoD_v2, place, ctypes.byref(word)), (cuda.cuMemcpyDtoH_v2, ctypes.byref(word), place)
    for copy, *ends in copies:
        good(copy(*ends, ctypes.c_size_t(4)))
    good(cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, place))
    assert kind.value == 2
    good(unload(library))
    # Its variables have gone with it, which whoever still names one is told at once.
    assert cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, place) == INVALID_VALUE
    assert [copy(*ends, ctypes.c_size_t(4)) for copy, *ends in copies] == [INVALID_VALUE] * 2
    assert cuda.cuMemsetD8Async(place, 1, ctypes.c_size_t(4), None) == INVALID_VALUE
    good(cuda.cuCtxSynchronize())
    assert load(ctypes.byref(library), name + b".not") == 301
runtime.cudaGetLastError()
for wrong in (b"", b"\x7fELF", b"\x50\xed\x55\xba" + b"\xff" * 60, b"\xb1\x43\x62\x46" + b"\x01" * 60):
    path.write_bytes(wrong)
    assert cuda.cuModuleLoad(ctypes.byref(module), name) == 200, wrong


class End(ctypes.Structure):
    """One end of a rectangle."""

    _fields_ = [("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("kind", NUMBER), ("host", POINTER), ("device", ctypes.c_uint64)] + [
        ("array", POINTER),
        ("pitch", ctypes.c_size_t),
    ]


class Rectangle(ctypes.Structure):
    """`CUDA_MEMCPY2D`."""

    _fields_ = [("source", End), ("target", End), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t)]


# Rows of 8 bytes out of rows of 16, to where rows have a pitch of their own, and back.
memory, pitch = ctypes.c_uint64(), ctypes.c_size_t()
good(cuda.cuMemAllocPitch_v2(ctypes.byref(memory), ctypes.byref(pitch), ctypes.c_size_t(16), ctypes.c_size_t(4), 4))
source, target = (ctypes.c_uint8 * 64)(*range(64)), (ctypes.c_uint8 * 64)()
here = End(4, 1, 1, ctypes.addressof(source), 0, None, 16)
there = End(8, 1, 2, None, memory.value, None, pitch.value)
good(cuda.cuMemcpy2D_v2(ctypes.byref(Rectangle(here, there, 8, 3))))
good(cuda.cuMemcpy2DAsync_v2(ctypes.byref(Rectangle(there, End(0, 0, 1, ctypes.addressof(target), 0, None, 16), 8, 3)), stream))
good(cuda.cuStreamSynchronize(stream))
assert all(target[row * 16 + at] == source[(row + 1) * 16 + 4 + at] for row in range(3) for at in range(8))
assert not any(target[row * 16 + at] for row in range(4) for at in range(8, 16))
attributes, ordinal, kind = (NUMBER * 2)(2, 9), NUMBER(7), ctypes.c_uint(7)
places = (POINTER * 2)(ctypes.addressof(kind), ctypes.addressof(ordinal))
good(cuda.cuPointerGetAttributes(2, attributes, places, memory))
assert (kind.value, ordinal.value) == (2, 0)
good(cuda.cuPointerGetAttributes(2, attributes, places, ctypes.c_uint64(ctypes.addressof(source))))
assert kind.value == 0
value, bus = ctypes.c_size_t(), ctypes.create_string_buffer(32)
good(cuda.cuCtxGetLimit(ctypes.byref(value), 0))
assert value.value == 1024 and cuda.cuCtxSetLimit(0, ctypes.c_size_t(1 << 20)) == 215
good(cuda.cuDeviceGetPCIBusId(bus, 32, 0))
good(cuda.cuDeviceGetByPCIBusId(ctypes.byref(ordinal), bus))
major, minor = NUMBER(), NUMBER()
good(cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), 0))
assert major.value == 9
print("right")
