"""A program to which no stream means its thread's own, as compiled with `--default-stream per-thread`: every name that CUDA's headers give to it."""

import ctypes

POINTER, NUMBER, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
LEGACY_STREAM, OWN_STREAM = 1, 2
ADDRESS = ctypes.c_uint64

cuda, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")


def good(code):
    """Ends the program on an error."""
    assert code == 0, code


class CopyPeer(ctypes.Structure):
    """`cudaMemcpy3DPeerParms`, and `cudaPitchedPtr` in it."""

    _fields_ = [("from_array", POINTER), ("from_at", SIZE * 3), ("source", POINTER), ("from_shape", SIZE * 3), ("from_device", NUMBER)] + [
        ("to_array", POINTER),
        ("to_at", SIZE * 3),
        ("target", POINTER),
        ("to_shape", SIZE * 3),
        ("to_device", NUMBER),
        ("extent", SIZE * 3),
    ]


good(cuda.cuInit(0))
context, memory, other = POINTER(), ADDRESS(), ADDRESS()
good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
good(cuda.cuCtxSetCurrent(context))
for place in (memory, other):
    good(cuda.cuMemAlloc_v2(ctypes.byref(place), SIZE(64)))


def words(address):
    """What is in memory, read in the order of the thread's own stream."""
    seen = (ctypes.c_uint32 * 16)()
    good(cuda.cuMemcpyDtoH_v2_ptds(seen, address, SIZE(64)))
    return list(seen)


def captured(begin, work, end):
    """What `work` puts on no stream while that is captured, as a number of nodes; the graph is launched, too."""
    graph, instance, count = POINTER(), POINTER(), SIZE()
    good(begin(None, 0))
    work()
    good(end(None, ctypes.byref(graph)))
    good(cuda.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    good(cuda.cuGraphInstantiateWithParams_ptsz(ctypes.byref(instance), graph, (ctypes.c_uint64 * 4)()))
    good(cuda.cuGraphUpload_ptsz(instance, None))
    good(cuda.cuGraphLaunch_ptsz(instance, None))
    good(cuda.cuStreamSynchronize_ptsz(None))
    return count.value


# A stream that is captured is no default stream, which cannot be.
begin, end = cuda.cuStreamBeginCapture_v2_ptsz, cuda.cuStreamEndCapture_ptsz
assert cuda.cuStreamBeginCapture_v2(None, 0) != 0
assert captured(begin, lambda: good(cuda.cuMemsetD32Async_ptsz(memory, 7, SIZE(16), None)), end) == 1
assert words(memory) == [7] * 16
assert captured(begin, lambda: good(cuda.cuMemsetD32_v2_ptds(memory, 8, SIZE(16))), end) == 1
assert words(memory) == [8] * 16
assert captured(begin, lambda: good(cuda.cuMemcpyDtoDAsync_v2_ptsz(other, memory, SIZE(64), None)), end) == 1
assert words(other) == [8] * 16
good(cuda.cuMemcpyHtoD_v2_ptds(memory, (ctypes.c_uint32 * 16)(*range(16)), SIZE(64)))
good(cuda.cuMemcpyDtoD_v2_ptds(other, memory, SIZE(64)))
assert words(other) == list(range(16))
event, status, flags = POINTER(), NUMBER(7), ctypes.c_uint(7)
good(cuda.cuEventCreate(ctypes.byref(event), 2))
good(cuda.cuEventRecord_ptsz(event, None))
good(cuda.cuStreamWaitEvent_ptsz(None, event, 0))
good(cuda.cuStreamIsCapturing_ptsz(None, ctypes.byref(status)))
assert status.value == 0

# The same functions by name.
entry, found = POINTER(), NUMBER()


def look(name, flags):
    """A function of the driver, for programs whose default stream is what the flags say."""
    good(cuda.cuGetProcAddress_v2(name, ctypes.byref(entry), 13000, ADDRESS(flags), ctypes.byref(found)))
    assert found.value == 0
    return ctypes.CFUNCTYPE(NUMBER, POINTER, POINTER)(entry.value)


for default in (0, LEGACY_STREAM):
    assert look(b"cuStreamBeginCapture", default)(None, None) != 0
fill = lambda: good(cuda.cuMemsetD32Async_ptsz(memory, 9, SIZE(16), None))  # noqa: E731
assert captured(look(b"cuStreamBeginCapture", OWN_STREAM), fill, look(b"cuStreamEndCapture", OWN_STREAM)) == 1
assert words(memory) == [9] * 16
assert look(b"cuMemAlloc", OWN_STREAM), "what names no stream has one name"
for ask in (
    lambda flags: runtime.cudaGetDriverEntryPoint_ptsz(b"cuStreamBeginCapture", ctypes.byref(entry), ADDRESS(flags), ctypes.byref(found)),
    lambda flags: runtime.cudaGetDriverEntryPointByVersion_ptsz(
        b"cuStreamBeginCapture", ctypes.byref(entry), 13000, ADDRESS(flags), ctypes.byref(found)
    ),
):
    good(ask(LEGACY_STREAM))
    assert ctypes.CFUNCTYPE(NUMBER, POINTER, NUMBER)(entry.value)(None, 0) != 0
    good(ask(0))
    assert captured(ctypes.CFUNCTYPE(NUMBER, POINTER, NUMBER)(entry.value), fill, end) == 1

# What the runtime has besides.
value = (ctypes.c_uint64 * 8)()
good(runtime.cudaStreamGetAttribute_ptsz(None, 8, value))
good(runtime.cudaStreamSetAttribute_ptsz(None, 3, value))
good(runtime.cudaStreamCopyAttributes_ptsz(None, None))
whole, none = (SIZE * 3)(64, 64, 1), (SIZE * 3)(0, 0, 0)
copy = CopyPeer(None, none, memory.value, whole, 0, None, none, other.value, whole, 0, (SIZE * 3)(64, 1, 1))
good(runtime.cudaMemcpy3DPeer_ptds(ctypes.byref(copy)))
assert words(other) == [9] * 16
good(cuda.cuMemsetD32_v2_ptds(memory, 10, SIZE(16)))
good(runtime.cudaMemcpy3DPeerAsync_ptsz(ctypes.byref(copy), None))
assert words(other) == [10] * 16
print("right")
