"""Contexts under the driver's names: what belongs to which, and what is left when one ends. Words say which parts to do."""

import ctypes
import sys
import threading

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
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, DESTROYED = 1, 201, 400, 709
NOT_INITIALIZED = 1
MEBIBYTE = 1 << 20

cuda = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL("libcudart.so.13")
blas = ctypes.CDLL("libcublas.so.13")
by = ctypes.byref


def good(code):
    """Nothing went wrong."""
    assert code == 0, code


def got(function, *arguments, kind=ctypes.c_void_p):
    """What a function writes to its first argument."""
    place = kind()
    good(function(by(place), *arguments))
    return place


def made(flags=0, device=0):
    """A context, which is current."""
    return got(cuda.cuCtxCreate_v2, ctypes.c_uint(flags), device)


def memory(mebibytes):
    """Memory of the current context."""
    return got(cuda.cuMemAlloc_v2, ctypes.c_size_t(mebibytes * MEBIBYTE), kind=ctypes.c_uint64)


def free():
    """Mebibytes that are free on the current device."""
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    good(cuda.cuMemGetInfo_v2(by(left), by(total)))
    return left.value // MEBIBYTE


def current():
    """The current context."""
    return got(cuda.cuCtxGetCurrent).value


def number(context):
    """The number of a context."""
    place = ctypes.c_uint64()
    good(cuda.cuCtxGetId(context, by(place)))
    return place.value


def value(address):
    """The four bytes at an address."""
    seen = ctypes.c_uint32()
    good(cuda.cuMemcpyDtoH_v2(by(seen), address, ctypes.c_size_t(4)))
    return seen.value


def launched(kernel, stream=None):
    """What a launch of one thread returns."""
    one = ctypes.c_uint(1)
    return cuda.cuLaunchKernel(kernel, one, one, one, one, one, one, ctypes.c_uint(0), stream, None, None)


def state(device=0):
    """Flags of the primary context, and whether it is there."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    good(cuda.cuDevicePrimaryCtxGetState(device, by(flags), by(active)))
    return flags.value, active.value


def elsewhere(work):
    """Does something in a thread of its own, and returns what it does."""
    said = []
    thread = threading.Thread(target=lambda: said.append(work()))
    thread.start()
    thread.join()
    return said[0]


def everything():
    """One of each thing that belongs to a context, and the functions that find it."""
    stream, event = got(cuda.cuStreamCreate, 1), got(cuda.cuEventCreate, 0)
    module = got(cuda.cuModuleLoadData, PTX)
    kernel = got(cuda.cuModuleGetFunction, module, b"count_up")
    address, pinned = memory(8), got(cuda.cuMemHostAlloc, ctypes.c_size_t(MEBIBYTE), 0)
    good(cuda.cuMemcpyHtoDAsync_v2(address, pinned, ctypes.c_size_t(MEBIBYTE), stream))
    good(launched(kernel, stream))
    good(cuda.cuEventRecord(event, stream))
    good(cuda.cuStreamBeginCapture_v2(stream, 2))
    good(launched(kernel, stream))
    graph = ctypes.c_void_p()
    good(cuda.cuStreamEndCapture(stream, by(graph)))
    instance = got(cuda.cuGraphInstantiateWithFlags, graph, ctypes.c_uint64(0))
    good(cuda.cuGraphLaunch(instance, stream))
    return {
        "stream": lambda: cuda.cuStreamSynchronize(stream),
        "event": lambda: cuda.cuEventQuery(event),
        "module": lambda: cuda.cuModuleGetFunction(by(ctypes.c_void_p()), module, b"count_up"),
        "kernel": lambda: launched(kernel),
        "graph": lambda: cuda.cuGraphDestroy(graph),
        "instance": lambda: cuda.cuGraphExecDestroy(instance),
        "memory": lambda: cuda.cuMemFree_v2(address),
        "pinned": lambda: cuda.cuMemFreeHost(pinned),
    }


def rounds():
    """A thousand contexts, each with things that nobody frees, leave all memory free."""
    good(cuda.cuInit(0))
    first = made()
    before = free()
    seen = {number(first)}
    for _ in range(1000):
        context = made()
        assert context.value != first.value
        seen.add(number(context))
        memory(100)
        memory(1)
        small = ctypes.c_uint64()
        good(cuda.cuMemAlloc_v2(by(small), ctypes.c_size_t(100)))
        got(cuda.cuStreamCreate, 0)
        got(cuda.cuEventCreate, 0)
        got(cuda.cuMemHostAlloc, ctypes.c_size_t(4096), 0)
        good(cuda.cuCtxDestroy_v2(context))
        assert current() == first.value
    assert len(seen) == 1001
    assert free() == before, (free(), before)


def names():
    """What was made in a context is an error when it has ended, and what others have stays."""
    good(cuda.cuInit(0))
    base = made()
    before = free()
    kept = memory(8)
    good(cuda.cuMemsetD32_v2(kept, 7, ctypes.c_size_t(4)))
    ours = everything()
    context = made()
    theirs = everything()
    # Small pieces that are made in turn do not lie together.
    small = lambda: got(cuda.cuMemAlloc_v2, ctypes.c_size_t(100), kind=ctypes.c_uint64)  # noqa: E731
    small()
    good(cuda.cuCtxPushCurrent_v2(base))
    little = small()
    good(cuda.cuMemsetD32_v2(little, 8, ctypes.c_size_t(4)))
    good(cuda.cuCtxPopCurrent_v2(None))
    assert theirs["kernel"]() == 0
    good(cuda.cuCtxDestroy_v2(context))
    assert current() == base.value
    expected = {"stream": INVALID_HANDLE, "event": INVALID_HANDLE, "module": INVALID_HANDLE, "kernel": INVALID_HANDLE,
                "graph": INVALID_HANDLE, "instance": INVALID_HANDLE, "memory": INVALID_VALUE, "pinned": INVALID_VALUE}  # fmt: skip
    found = {name: find() for name, find in theirs.items()}
    assert found == expected, found
    # What is made now gets names and addresses of its own.
    more = everything()
    # But for memory of the host, which is the system's.
    del theirs["pinned"], expected["pinned"]
    assert {name: find() for name, find in theirs.items()} == expected
    assert cuda.cuCtxDestroy_v2(context) == cuda.cuCtxSetCurrent(context) == cuda.cuCtxPushCurrent_v2(context) == INVALID_CONTEXT
    assert cuda.cuCtxGetApiVersion(context, by(ctypes.c_uint())) == INVALID_CONTEXT
    assert cuda.cuCtxDestroy_v2(None) == INVALID_CONTEXT
    assert value(kept) == 7 and value(little) == 8
    assert {name: find() for name, find in ours.items()} == dict.fromkeys(ours, 0)
    assert {name: find() for name, find in more.items()} == dict.fromkeys(more, 0)
    good(cuda.cuMemFree_v2(kept))
    good(cuda.cuMemFree_v2(little))
    assert free() == before - 2, "a granule of small pieces stays"


def apart():
    """Contexts of one device keep their things apart."""
    good(cuda.cuInit(0))
    one = made()
    module, stream = got(cuda.cuModuleLoadData, PTX), got(cuda.cuStreamCreate, 0)
    kernel, event = got(cuda.cuModuleGetFunction, module, b"count_up"), got(cuda.cuEventCreate, 0)
    library = got(cuda.cuLibraryLoadData, PTX, None, None, 0, None, None, 0)
    everywhere = got(cuda.cuLibraryGetKernel, library, b"count_up")
    counter = got(cuda.cuLibraryGetGlobal, None, library, b"counter", kind=ctypes.c_uint64)
    good(launched(everywhere))
    first = memory(1)
    two = made()
    assert one.value != two.value and number(one) != number(two)
    second = memory(1)
    # What calls without a stream use is of the current context, and a module of its own one.
    assert got_context(None) == two.value and got_context(stream) == one.value
    assert launched(kernel) == INVALID_HANDLE and launched(kernel, stream) == 0
    assert cuda.cuEventRecord(event, None) == INVALID_HANDLE and cuda.cuEventRecord(event, stream) == 0
    assert [of(first), of(second)] == [one.value, two.value]
    # A library has a variable in each context.
    for _ in range(3):
        good(launched(everywhere))
    other = got(cuda.cuLibraryGetGlobal, None, library, b"counter", kind=ctypes.c_uint64)
    assert [value(counter), value(other)] == [6, 8]
    place = ctypes.c_void_p()
    good(runtime.cudaMalloc(by(place), ctypes.c_size_t(MEBIBYTE)))
    assert of(ctypes.c_uint64(place.value)) == two.value, "the runtime uses the context that is current"
    assert state() == (0, 0), "and not the primary one"
    good(runtime.cudaDeviceReset())
    assert value(other) == 8, "a reset by the runtime leaves contexts that a program made"
    good(cuda.cuCtxDestroy_v2(two))
    assert value(counter) == 6 and cuda.cuMemFree_v2(second) == INVALID_VALUE
    good(launched(everywhere))
    assert value(counter) == 7
    good(cuda.cuMemFree_v2(first))


def got_context(stream):
    """The context of a stream."""
    place = ctypes.c_void_p()
    good(cuda.cuStreamGetCtx(stream, by(place)))
    return place.value


def of(address):
    """The context of memory."""
    place = ctypes.c_void_p()
    good(cuda.cuPointerGetAttribute(by(place), 1, address))
    return place.value


def current_ones():
    """What is current, for this thread and others, and what may be asked of it."""
    good(cuda.cuInit(0))
    assert current() is None and cuda.cuCtxGetDevice(by(ctypes.c_int())) == INVALID_CONTEXT
    one = made(flags=4, device=1)
    two = made(flags=0x18)
    assert cuda.cuCtxCreate_v2(by(ctypes.c_void_p()), 3, 0) == cuda.cuCtxCreate_v2(by(ctypes.c_void_p()), 0x100, 0) == INVALID_VALUE
    assert current() == two.value
    assert got(cuda.cuCtxGetFlags, kind=ctypes.c_uint).value == 0x18
    version = ctypes.c_uint()
    good(cuda.cuCtxGetApiVersion(two, by(version)))
    assert version.value == 3020
    assert got(cuda.cuCtxPopCurrent_v2).value == two.value and current() == one.value
    assert got(cuda.cuCtxGetDevice, kind=ctypes.c_int).value == 1 and got(cuda.cuCtxGetFlags, kind=ctypes.c_uint).value == 4
    assert got(runtime.cudaGetDevice, kind=ctypes.c_int).value == 1
    good(cuda.cuCtxPushCurrent_v2(two))
    ready, over = threading.Event(), threading.Event()

    def other():
        good(cuda.cuCtxSetCurrent(two))
        good(cuda.cuCtxPushCurrent_v2(one))
        event = got(cuda.cuEventCreate, 0)
        good(cuda.cuCtxSetCurrent(two))
        stream = got(cuda.cuStreamCreate, 0)
        ready.set()
        over.wait()
        assert current() == two.value, "it stays current"
        calls = [
            cuda.cuMemAlloc_v2(by(ctypes.c_uint64()), ctypes.c_size_t(1)),
            cuda.cuStreamCreate(by(ctypes.c_void_p()), 0),
            cuda.cuStreamSynchronize(None),
            cuda.cuStreamSynchronize(stream),
            cuda.cuCtxSynchronize(),
            cuda.cuCtxGetDevice(by(ctypes.c_int())),
            cuda.cuModuleLoadData(by(ctypes.c_void_p()), PTX),
            cuda.cuEventCreate(by(ctypes.c_void_p()), 0),
            cuda.cuEventRecord(event, None),
            runtime.cudaMalloc(by(ctypes.c_void_p()), ctypes.c_size_t(1)),
        ]
        assert calls == [DESTROYED] * len(calls), calls
        good(cuda.cuCtxSetCurrent(one))
        good(cuda.cuCtxSynchronize())
        # Below it lies the one that has ended.
        assert got(cuda.cuCtxPopCurrent_v2).value == one.value
        assert cuda.cuCtxSynchronize() == DESTROYED
        return True

    thread, said = threading.Thread(target=lambda: said.append(other())), []
    thread.start()
    ready.wait()
    good(cuda.cuCtxDestroy_v2(two))
    assert current() == one.value, "it was popped here"
    over.set()
    thread.join()
    assert said == [True]
    good(cuda.cuCtxSetCurrent(None))
    assert current() is None
    assert cuda.cuMemAlloc_v2(by(ctypes.c_uint64()), ctypes.c_size_t(1)) == cuda.cuCtxSynchronize() == INVALID_CONTEXT
    # One that is not current for anybody.
    good(cuda.cuCtxDestroy_v2(one))
    assert current() is None


def primary():
    """The primary context is counted, and what belongs to it goes with the last one that holds it."""
    good(cuda.cuInit(0))
    good(cuda.cuDevicePrimaryCtxSetFlags_v2(0, 4))
    assert state() == (4, 0)
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == INVALID_CONTEXT
    one = got(cuda.cuDevicePrimaryCtxRetain, 0)
    assert state() == (4, 1) and state(1) == (0, 0) and current() is None
    assert got(cuda.cuDevicePrimaryCtxRetain, 0).value == one.value
    assert cuda.cuCtxDestroy_v2(one) == INVALID_CONTEXT, "it is released, and not destroyed"
    good(cuda.cuCtxSetCurrent(one))
    before, first = free(), number(None)
    things = everything()
    made()
    kept = memory(8)
    good(cuda.cuMemsetD32_v2(kept, 9, ctypes.c_size_t(4)))
    good(cuda.cuCtxPopCurrent_v2(None))
    good(cuda.cuDevicePrimaryCtxRelease_v2(0))
    assert state() == (4, 1) and things["stream"]() == 0, "somebody holds it"
    good(cuda.cuDevicePrimaryCtxRelease_v2(0))
    assert state() == (4, 0) and cuda.cuDevicePrimaryCtxRelease_v2(0) == INVALID_CONTEXT
    assert current() == one.value, "it stays current"
    assert cuda.cuMemAlloc_v2(by(ctypes.c_uint64()), ctypes.c_size_t(1)) == cuda.cuCtxSynchronize() == DESTROYED
    assert got(cuda.cuDevicePrimaryCtxRetain, 0).value == one.value and number(one) != first
    assert things["stream"]() == things["module"]() == INVALID_HANDLE and things["memory"]() == INVALID_VALUE
    assert free() == before - 8 and value(kept) == 9, "others lose nothing"
    good(cuda.cuMemFree_v2(kept))
    # The runtime holds it, too, and does not let go before a reset.
    assert elsewhere(lambda: runtime.cudaSetDevice(0)) == 0
    address = memory(1)
    good(cuda.cuDevicePrimaryCtxRelease_v2(0))
    assert state() == (4, 1) and cuda.cuDevicePrimaryCtxRelease_v2(0) == INVALID_CONTEXT
    good(cuda.cuMemFree_v2(address))
    address = memory(1)
    good(runtime.cudaDeviceReset())
    assert state() == (4, 0) and cuda.cuMemFree_v2(address) == DESTROYED
    # It begins again with the next call of the runtime.
    place = ctypes.c_void_p()
    good(runtime.cudaMalloc(by(place), ctypes.c_size_t(MEBIBYTE)))
    assert state() == (4, 1) and cuda.cuMemFree_v2(address) == INVALID_VALUE
    good(cuda.cuMemFree_v2(ctypes.c_uint64(place.value)))
    assert free() == before


def outlives():
    """As CUDA has it, memory of pools and memory that is mapped by hand belong to no context; handles of cuBLAS do."""
    good(cuda.cuInit(0))
    base = made()
    before = free()
    context = made()
    stream, handle = got(cuda.cuStreamCreate, 0), got(blas.cublasCreate_v2)
    good(blas.cublasSetStream_v2(handle, stream))
    pooled = got(cuda.cuMemAllocAsync, ctypes.c_size_t(MEBIBYTE), stream, kind=ctypes.c_uint64)
    good(cuda.cuMemsetD32_v2(pooled, 3, ctypes.c_size_t(4)))
    place = got(cuda.cuMemAddressReserve, ctypes.c_size_t(4 * MEBIBYTE), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0), kind=ctypes.c_uint64)  # fmt: skip
    piece = got(cuda.cuMemCreate, ctypes.c_size_t(4 * MEBIBYTE), (ctypes.c_int * 8)(1, 0, 1, 0), ctypes.c_uint64(0), kind=ctypes.c_uint64)
    good(cuda.cuMemMap(place, ctypes.c_size_t(4 * MEBIBYTE), ctypes.c_size_t(0), piece, ctypes.c_uint64(0)))
    good(cuda.cuMemsetD32_v2(place, 4, ctypes.c_size_t(4)))
    good(cuda.cuCtxDestroy_v2(context))
    assert current() == base.value and value(pooled) == 3 and value(place) == 4
    assert blas.cublasSetStream_v2(handle, None) == blas.cublasDestroy_v2(handle) == NOT_INITIALIZED
    good(cuda.cuMemFree_v2(pooled))
    good(cuda.cuMemUnmap(place, ctypes.c_size_t(4 * MEBIBYTE)))
    good(cuda.cuMemRelease(piece))
    assert free() >= before - 2, "a chunk of small pieces may stay"


def peers():
    """Each context says for itself whose memory it reaches."""
    good(cuda.cuInit(0))
    far = made(device=1)
    enabled = 704
    for _ in range(3):
        near = made()
        assert cuda.cuCtxEnablePeerAccess(far, 0) == 0 and cuda.cuCtxEnablePeerAccess(far, 0) == enabled
        good(cuda.cuCtxDestroy_v2(near))
    near = made()
    good(cuda.cuCtxEnablePeerAccess(far, 0))
    good(cuda.cuCtxDestroy_v2(far))
    assert cuda.cuCtxEnablePeerAccess(far, 0) == INVALID_CONTEXT
    assert near.value == current()
    # What kernels reach is told by the one library as by the other; links between devices are none that anybody knows of.
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    good(nvml.nvmlInit_v2())
    handles = [got(lambda place, at=at: nvml.nvmlDeviceGetHandleByIndex_v2(at, place)) for at in range(2)]
    answers = [got(lambda place, kind=kind: nvml.nvmlDeviceGetP2PStatus(*handles, kind, place), kind=ctypes.c_int).value for kind in range(5)]
    assert answers == [0, 0, 5, 5, 5]
    assert got(lambda place: nvml.nvmlDeviceGetP2PStatus(handles[0], handles[0], 2, place), kind=ctypes.c_int).value == 5
    place = ctypes.c_int()
    assert nvml.nvmlDeviceGetP2PStatus(*handles, 5, by(place)) == nvml.nvmlDeviceGetP2PStatus(*handles, 0, None) == INVALID_VALUE + 1


for part in sys.argv[1:]:
    {part.__name__: part for part in (rounds, names, apart, current_ones, primary, outlives, peers)}[part]()
    print(part)
