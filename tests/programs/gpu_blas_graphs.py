"""Products of cuBLAS in graphs are as their handle was set when they were captured, and a handle is as the program has set it last, whatever is captured."""

import ctypes

from gpu_runtime import good, runtime, stream

blas = ctypes.CDLL("libcublas.so.13")
POINTER, FOUR = ctypes.c_void_p, ctypes.c_size_t(4)
HOST, DEVICE, RELAXED, TO_DEVICE, TO_HOST = 0, 1, 2, 1, 2


def number(value):
    """A number in memory of the device."""
    made = POINTER()
    good(runtime.cudaMalloc(ctypes.byref(made), FOUR))
    good(runtime.cudaMemcpy(made, ctypes.byref(ctypes.c_float(value)), FOUR, TO_DEVICE))
    return made


two, three, ten, zero, result = (number(value) for value in (2, 3, 10, 0, 0))
one, nothing = ctypes.c_float(1), ctypes.c_float(0)
handle, first, second = POINTER(), stream(1), stream(1)
good(blas.cublasCreate_v2(ctypes.byref(handle)))


def multiply(alpha, beta):
    """Two times three times a factor."""
    good(blas.cublasSgemm_v2(handle, 0, 0, 1, 1, 1, alpha, two, 1, three, 1, beta, result, 1))


def of_host():
    """Six, with factors of the program's."""
    multiply(ctypes.byref(one), ctypes.byref(nothing))


def of_device():
    """Sixty, with factors in memory of the device."""
    multiply(ten, zero)


def mode(which):
    """Says where factors lie."""
    good(blas.cublasSetPointerMode_v2(handle, which))


def seen():
    """The last product; the place is zero again."""
    word = ctypes.c_float()
    good(runtime.cudaDeviceSynchronize())
    good(runtime.cudaMemcpy(ctypes.byref(word), result, FOUR, TO_HOST))
    good(runtime.cudaMemset(result, 0, FOUR))
    good(runtime.cudaDeviceSynchronize())
    return word.value


def captured(*calls):
    """A graph of calls."""
    graph = POINTER()
    good(runtime.cudaStreamBeginCapture(first, RELAXED))
    for call in calls:
        call()
    good(runtime.cudaStreamEndCapture(first, ctypes.byref(graph)))
    return graph


def launched(graph):
    """An instance of a graph, launched once."""
    made = POINTER()
    good(runtime.cudaGraphInstantiate(ctypes.byref(made), graph, ctypes.c_uint64(0)))
    good(runtime.cudaGraphLaunch(made, first))
    return made


good(blas.cublasSetStream_v2(handle, first))
# Set before the capture, and to something else before the graph is sent.
mode(DEVICE)
graph = captured(of_device)
mode(HOST)
instance = launched(graph)
assert seen() == 60
of_host()
assert seen() == 6
# Set in the capture: also for what is done before the graph is sent.
graph = captured(lambda: mode(DEVICE), of_device)
of_device()
assert seen() == 60
mode(HOST)
launched(graph)
assert seen() == 60
of_host()
assert seen() == 6
# Each product of a graph is as it was captured, in any launch.
several = captured(of_host, lambda: mode(DEVICE), of_device, lambda: mode(HOST), lambda: multiply(ctypes.byref(one), ctypes.byref(one)))
mode(DEVICE)
instance = launched(several)
assert seen() == 66
good(runtime.cudaGraphLaunch(instance, first))
assert seen() == 66
of_device()
assert seen() == 60
# A product of an instance that is switched off leaves the others as they were captured.
mode(HOST)
nodes, count = (POINTER * 3)(), ctypes.c_size_t(3)
good(runtime.cudaGraphGetNodes(several, nodes, ctypes.byref(count)))
assert count.value == 3
for is_on, right in ((0, 12), (1, 66)):
    good(runtime.cudaGraphNodeSetEnabled(instance, POINTER(nodes[1]), is_on))
    good(runtime.cudaGraphLaunch(instance, first))
    assert seen() == right
# A handle that has gone is not missed by an instance that is there, and neither is an instance changed that the GPU node would not take any more.
own, lost, is_on = handle, POINTER(), ctypes.c_uint(7)
good(blas.cublasCreate_v2(ctypes.byref(lost)))
handle = lost
good(blas.cublasSetStream_v2(handle, first))
graph = captured(of_host, lambda: multiply(ctypes.byref(one), ctypes.byref(one)))
instance = launched(graph)
assert seen() == 12
good(runtime.cudaGraphGetNodes(graph, nodes, ctypes.byref(count)))
good(blas.cublasDestroy_v2(handle))
assert runtime.cudaGraphNodeSetEnabled(instance, POINTER(nodes[1]), 0) == 400
assert runtime.cudaGetLastError() == 400
good(runtime.cudaGraphNodeGetEnabled(instance, POINTER(nodes[1]), ctypes.byref(is_on)))
assert is_on.value == 1
good(runtime.cudaGraphLaunch(instance, first))
assert seen() == 12
handle = own
# In the stream that the handle had.
mode(HOST)
graph = captured(of_host)
good(blas.cublasSetStream_v2(handle, second))
launched(graph)
assert seen() == 6
mode(DEVICE)
of_device()
assert seen() == 60
print("right")
