"""A program for the driver's interface alone, with PTX as text: what Triton and others do, on a GPU elsewhere."""

import ctypes

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry add_all(.param .u64 numbers, .param .u32 count, .param .u32 value) {
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [numbers];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra done;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%rd3], %r7;
done:
    ret;
}
"""

# Blocks of this kernel have one shape alone.
EXACT = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry exact() .reqntid 16, 2 { ret; }
"""

cuda = ctypes.CDLL("libcuda.so.1")


def good(code):
    """Ends the program on an error."""
    if code != 0:
        words = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(words))
        raise SystemExit(f"error {code}: {words.value.decode()}")


good(cuda.cuInit(0))
device, context = ctypes.c_int(), ctypes.c_void_p()
good(cuda.cuDeviceGet(ctypes.byref(device), 0))
good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
good(cuda.cuCtxSetCurrent(context))
module, function, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
good(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
good(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"add_all"))
assert cuda.cuModuleGetFunction(ctypes.byref(ctypes.c_void_p()), module, b"nothing") == 500
assert cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b"this is no PTX") != 0
good(cuda.cuStreamCreate(ctypes.byref(stream), 1))
exact_module, exact = ctypes.c_void_p(), ctypes.c_void_p()
good(cuda.cuModuleLoadData(ctypes.byref(exact_module), EXACT))
good(cuda.cuModuleGetFunction(ctypes.byref(exact), exact_module, b"exact"))
for shape, code in (((16, 2, 1), 0), ((32, 1, 1), 1), ((16, 1, 1), 1), ((16, 2, 2), 1)):
    assert cuda.cuLaunchKernel(exact, 1, 1, 1, *shape, 0, stream, None, None) == code, shape
good(cuda.cuStreamSynchronize(stream))
COUNT = 10_000
numbers = (ctypes.c_uint32 * COUNT)(*range(COUNT))
memory = ctypes.c_uint64()
good(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.sizeof(numbers)))
good(cuda.cuMemcpyHtoDAsync_v2(memory, numbers, ctypes.c_size_t(ctypes.sizeof(numbers)), stream))
values = [memory, ctypes.c_uint32(COUNT), ctypes.c_uint32(5)]
each = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values))
good(cuda.cuLaunchKernel(function, (COUNT + 255) // 256, 1, 1, 256, 1, 1, 0, stream, each, None))
back = (ctypes.c_uint32 * COUNT)()
good(cuda.cuMemcpyDtoHAsync_v2(back, memory, ctypes.c_size_t(ctypes.sizeof(back)), stream))
good(cuda.cuStreamSynchronize(stream))
assert list(back) == [number + 5 for number in range(COUNT)]
# What there is to say of clusters: nothing in this kernel, but what the program sets.
value = ctypes.c_int(-1)
for attribute in range(10, 16):
    good(cuda.cuFuncGetAttribute(ctypes.byref(value), attribute, function))
    assert value.value == 0, attribute
for attribute, given in ((11, 2), (14, 1), (15, 1)):
    good(cuda.cuFuncSetAttribute(function, attribute, given))
    good(cuda.cuFuncGetAttribute(ctypes.byref(value), attribute, function))
    assert value.value == given, attribute
assert cuda.cuFuncGetAttribute(ctypes.byref(value), 16, function) == 1
# Memory of small pieces is there for large ones when it is free.
small = [ctypes.c_uint64() for _ in range(800)]
for one in small:
    good(cuda.cuMemAlloc_v2(ctypes.byref(one), ctypes.c_size_t(512 << 10)))
for one in small:
    good(cuda.cuMemFree_v2(one))
good(cuda.cuMemAlloc_v2(ctypes.byref(small[0]), ctypes.c_size_t(400 << 20)))
good(cuda.cuMemFree_v2(small[0]))
entry = ctypes.c_void_p()
good(cuda.cuGetProcAddress_v2(b"cuMemAlloc", ctypes.byref(entry), 13000, ctypes.c_uint64(0), None))
assert entry.value
# PyTorch calls nothing of the driver by itself if it does not find these, which refuse.
for name in (b"cuMemExportToShareableHandle", b"cuMemImportFromShareableHandle", b"cuStreamWriteValue32"):
    good(cuda.cuGetProcAddress_v2(name, ctypes.byref(entry), 13000, ctypes.c_uint64(0), None))
    assert ctypes.CFUNCTYPE(ctypes.c_int)(entry.value)() == 801
# Memory that may be given to another process as a file is memory; giving it is what is refused.
for kind, code in ((1, 0), (8, 801)):
    given = (ctypes.c_int * 8)(1, kind, 1, 0)
    assert cuda.cuMemCreate(ctypes.byref(entry), ctypes.c_size_t(2 << 20), given, ctypes.c_uint64(0)) == code
    assert code or cuda.cuMemExportToShareableHandle(ctypes.byref(ctypes.c_int()), entry, 1, ctypes.c_uint64(0)) == 801
    assert code or cuda.cuMemRelease(entry) == 0
# Errors have the driver's numbers, also where the runtime has numbers of its own.
assert cuda.cuLaunchKernel(function, 1, 1, 1, 4096, 1, 1, 0, stream, each, None) == 1
assert cuda.cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, stream, each, None) == 1
rows = (ctypes.c_uint64 * 16)(0, 0, 2, 0, memory.value, 0, 4, 0, 0, 2, 0, memory.value + 4096, 0, 4, 8, 2)
assert cuda.cuMemcpy2D_v2(rows) == 1, "rows that lie upon each other"
# Elements of rows begin at multiples of their length, as do those of one row.
lengths = ctypes.c_size_t(4), ctypes.c_size_t(2)
for fill, bytes in ((cuda.cuMemsetD2D16Async, 2), (cuda.cuMemsetD2D32Async, 4)):
    for place, pitch in ((memory.value + 1, 64), (memory.value, 65)):
        assert fill(ctypes.c_uint64(place), ctypes.c_size_t(pitch), 0, *lengths, stream) == 1, (bytes, place, pitch)
    good(fill(ctypes.c_uint64(memory.value + bytes), ctypes.c_size_t(64), 0, *lengths, stream))
    good(fill(memory, ctypes.c_size_t(65), 0, ctypes.c_size_t(4), ctypes.c_size_t(1), stream))
good(cuda.cuStreamSynchronize(stream))
# What programs ask of pinned memory.
pinned, kind, number = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint64()
good(cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(8192), 0))
inside = ctypes.c_uint64(pinned.value + 100)
good(cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, inside))
assert kind.value == 1
for attribute, told in ((4, inside.value), (11, pinned.value), (12, 8192)):
    good(cuda.cuPointerGetAttribute(ctypes.byref(number), attribute, inside))
    assert number.value == told
assert cuda.cuPointerGetAttribute(ctypes.byref(number), 3, inside) == 1, "devices do not see it"
# Whether it can be shared, whether it is there, and which pool it is of.
pool, pooled = ctypes.c_void_p(), ctypes.c_uint64()
good(cuda.cuDeviceGetMemPool(ctypes.byref(pool), device))
good(cuda.cuMemAllocAsync(ctypes.byref(pooled), ctypes.c_size_t(1000), stream))
for asked, of in ((memory, None), (inside, None), (pooled, pool.value)):
    for attribute, right in ((10, 0), (13, 1), (15, 0)):
        kind.value = 9
        good(cuda.cuPointerGetAttribute(ctypes.byref(kind), attribute, asked))
        assert kind.value == right, attribute
    number.value, found = 9, ctypes.c_void_p(9)
    good(cuda.cuPointerGetAttribute(ctypes.byref(number), 14, asked))
    good(cuda.cuPointerGetAttribute(ctypes.byref(found), 17, asked))
    assert (number.value, found.value) == (0, of)
# Numbers that no other memory gets, where it is mapped, and what devices may do with it.
numbers = []
for asked, start, bytes_of, reach in ((memory, None, None, 3), (inside, pinned.value, 8192, 0), (pooled, pooled.value, 1000, 3)):
    for attribute, right in ((6, 0), (16, reach), (21, 0)):
        kind.value = 9
        good(cuda.cuPointerGetAttribute(ctypes.byref(kind), attribute, asked))
        assert kind.value == right, attribute
    for attribute, right in ((18, bytes_of), (19, start)):
        good(cuda.cuPointerGetAttribute(ctypes.byref(number), attribute, asked))
        assert right is None or number.value == right, attribute
    for attribute in (7, 20):
        good(cuda.cuPointerGetAttribute(ctypes.byref(number), attribute, asked))
        numbers.append((attribute, number.value))
assert len(set(numbers)) == 6, numbers
good(cuda.cuMemFreeAsync(pooled, stream))
again = ctypes.c_uint64()
good(cuda.cuMemAllocAsync(ctypes.byref(again), ctypes.c_size_t(1000), stream))
good(cuda.cuPointerGetAttribute(ctypes.byref(number), 7, again))
assert (7, number.value) not in numbers, "an address that is given again is other memory"
good(cuda.cuMemFreeAsync(again, stream))
good(cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(memory.value + 100)))
assert kind.value == 2
# Where a name says that an end is a device's, other memory of the host is refused and stays as it is. Pinned memory is one of devices, too.
words, other, four = (ctypes.c_uint32 * 1)(1), (ctypes.c_uint32 * 1)(2), ctypes.c_size_t(4)
address, another = (ctypes.c_uint64(ctypes.addressof(one)) for one in (words, other))
for copy, ends in (
    (cuda.cuMemcpyHtoD_v2, (address, other)),
    (cuda.cuMemcpyDtoH_v2, (words, another)),
    (cuda.cuMemcpyDtoD_v2, (address, another)),
    (cuda.cuMemcpyDtoD_v2, (address, memory)),
    (cuda.cuMemcpyDtoD_v2, (memory, another)),
):
    assert copy(*ends, four) == 1, copy
for copy, ends in (
    (cuda.cuMemcpyHtoDAsync_v2, (address, other)),
    (cuda.cuMemcpyDtoHAsync_v2, (words, another)),
    (cuda.cuMemcpyDtoDAsync_v2, (address, another)),
):
    assert copy(*ends, four, stream) == 1, copy
good(cuda.cuStreamSynchronize(stream))
assert (words[0], other[0]) == (1, 2)
good(cuda.cuMemcpyHtoD_v2(inside, other, four))
good(cuda.cuMemcpyDtoH_v2(words, inside, four))
assert words[0] == 2
# Fills of pinned memory are behind what the stream brings there, and in front of what it takes from there.
wide = (ctypes.c_uint32 * 16)()
at, row = ctypes.c_uint64(pinned.value + 64), ctypes.c_size_t(4)
ctypes.memset(pinned, 1, 8192)
good(cuda.cuMemsetD32Async(memory, 6, ctypes.c_size_t(16), stream))
good(cuda.cuMemcpyDtoHAsync_v2(at, memory, ctypes.c_size_t(64), stream))
good(cuda.cuMemsetD32Async(at, 7, row, stream))
good(cuda.cuMemsetD2D16Async(ctypes.c_uint64(at.value + 16), ctypes.c_size_t(8), 8, ctypes.c_size_t(2), row, stream))
good(cuda.cuMemcpyHtoDAsync_v2(memory, at, ctypes.c_size_t(64), stream))
good(cuda.cuMemsetD8_v2(at, 9, ctypes.c_size_t(64)))
good(cuda.cuMemcpyDtoHAsync_v2(wide, memory, ctypes.c_size_t(64), stream))
good(cuda.cuStreamSynchronize(stream))
assert list(wide) == [7] * 4 + [0x80008, 6] * 4 + [6] * 4, list(wide)
assert ctypes.string_at(pinned, 192) == b"\1" * 64 + b"\11" * 64 + b"\1" * 64
assert cuda.cuMemsetD8_v2(ctypes.c_uint64(pinned.value + 8000), 9, ctypes.c_size_t(193)) == 1, "not all of it is pinned"
flags = ctypes.c_uint(9)
good(cuda.cuMemHostGetFlags(ctypes.byref(flags), inside))
assert flags.value == 0
good(cuda.cuMemFreeHost(pinned))
good(cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(8192), 5))
good(cuda.cuMemHostGetFlags(ctypes.byref(flags), pinned))
assert flags.value == 5, "as they were given"
inside = ctypes.c_uint64(pinned.value + 100)
good(cuda.cuMemFreeHost(pinned))
assert cuda.cuMemHostGetFlags(ctypes.byref(flags), inside) == 1
assert cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, inside) == 1
# What only the driver of a GPU knows, and what would be another program's.
place = ctypes.create_string_buffer(192)
tensor = ctypes.c_void_p((ctypes.addressof(place) + 63) & ~63)
sizes, strides, tile, steps = (ctypes.c_uint64 * 2)(64, 32), (ctypes.c_uint64 * 1)(256), (ctypes.c_uint32 * 2)(8, 8), (ctypes.c_uint32 * 2)(1, 1)
encode = cuda.cuTensorMapEncodeTiled
assert encode(tensor, 2, 2, memory, sizes, strides, tile, steps, 0, 0, 0, 0) == 801
assert encode(None, 2, 2, memory, sizes, strides, tile, steps, 0, 0, 0, 0) == 1
assert encode(ctypes.c_void_p(tensor.value + 8), 2, 2, memory, sizes, strides, tile, steps, 0, 0, 0, 0) == 1
assert encode(tensor, 2, 6, memory, sizes, strides, tile, steps, 0, 0, 0, 0) == 1
assert encode(tensor, 2, 2, ctypes.c_uint64(16), sizes, strides, tile, steps, 0, 0, 0, 0) == 1
assert encode(tensor, 2, 2, memory, sizes, None, tile, steps, 0, 0, 0, 0) == 1
good(cuda.cuFuncSetCacheConfig(function, 1))
assert cuda.cuFuncSetCacheConfig(None, 1) == 400
event = ctypes.c_void_p()
assert cuda.cuIpcGetMemHandle(place, memory) == 801
assert cuda.cuMemExportToShareableHandle(place, ctypes.c_uint64(1), 1, ctypes.c_uint64(0)) == 801
assert cuda.cuIpcOpenMemHandle_v2(ctypes.byref(memory.__class__()), place, 1) == 801
for name in ("cuIpcGetEventHandle", "cuIpcOpenEventHandle", "cuIpcCloseMemHandle", "cuMemPoolExportToShareableHandle"):
    assert getattr(cuda, name)(place, place, 0, ctypes.c_uint64(0)) == 801
assert cuda.cuEventCreate(ctypes.byref(event), 6) == 801
value = ctypes.c_int(7)
good(cuda.cuDeviceGetAttribute(ctypes.byref(value), 125, device))
assert value.value == 0, "programs ask whether events can be shared"
good(cuda.cuMemFree_v2(memory))
good(cuda.cuModuleUnload(module))
print("right")
