"""Functions that streams call: in their order, beside the program, and before the work behind them."""

import ctypes
import threading

from gpu_runtime import HOST, good, runtime, stream

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
BYTES = 1 << 20
OUT, IN = 2, 1
INVALID_VALUE, NOT_READY, NOT_PERMITTED = 1, 600, 800
# Long enough for any machine: it ends the test and not the wait.
SECONDS = 60


def pointer(make, *words):
    """What a call of the runtime allocates."""
    made = ctypes.c_void_p()
    good(make(ctypes.byref(made), *words))
    return made


def copy(to, source, kind, on):
    """Copies all bytes in the order of a stream."""
    good(runtime.cudaMemcpyAsync(to, source, ctypes.c_size_t(BYTES), kind, on))


far = pointer(runtime.cudaMalloc, ctypes.c_size_t(BYTES))
here = pointer(runtime.cudaMallocHost, ctypes.c_size_t(BYTES))
one, other = stream(1), stream(1)
order, flag = [], threading.Event()


@HOST
def waits(_):
    """Waits for what the program does after it has given this function to a stream."""
    order.append(("waits", flag.wait(SECONDS)))


@CALLBACK
def told(which, code, data):
    """Keeps what it is told."""
    order.append((which, code, data))


# The call returns; the stream is not done, and others are.
good(runtime.cudaMemsetAsync(far, 7, ctypes.c_size_t(BYTES), one))
good(runtime.cudaLaunchHostFunc(one, waits, None))
good(runtime.cudaStreamAddCallback(one, told, ctypes.c_void_p(5), 0))
assert runtime.cudaStreamQuery(one) == NOT_READY and order == []
good(runtime.cudaMemsetAsync(far, 7, ctypes.c_size_t(BYTES), other))
good(runtime.cudaStreamSynchronize(other))
good(runtime.cudaStreamQuery(other))
flag.set()
good(runtime.cudaStreamSynchronize(one))
assert order == [("waits", True), (one.value, 0, 5)], order
good(runtime.cudaStreamQuery(one))
# Who names no stream is told none, also where that means the thread's own. No flags are known.
order.clear()
for give_to in (runtime.cudaStreamAddCallback, runtime.cudaStreamAddCallback_ptsz):
    good(give_to(None, told, ctypes.c_void_p(6), 0))
    assert give_to(None, told, ctypes.c_void_p(7), 1) == INVALID_VALUE
    good(runtime.cudaDeviceSynchronize())
assert order == [(None, 0, 6)] * 2, order


@HOST
def changes(_):
    """Changes what was copied here, in time for the copy back."""
    order.append(ctypes.string_at(here, BYTES) == b"\7" * BYTES)
    ctypes.memset(here, 9, BYTES)


@HOST
def calls(_):
    """Calls CUDA, which it may not."""
    order.append(runtime.cudaMemsetAsync(far, 1, ctypes.c_size_t(BYTES), one))
    order.append(runtime.cudaStreamSynchronize(one))
    order.append(runtime.cudaLaunchHostFunc(one, changes, None))


# Work before it is done, and work behind it waits for it: also where the default stream stands between.
for before, behind in ((one, one), (stream(), None), (None, stream())):
    order.clear()
    good(runtime.cudaMemsetAsync(far, 7, ctypes.c_size_t(BYTES), before))
    copy(here, far, OUT, before)
    good(runtime.cudaLaunchHostFunc(before, changes, None))
    copy(far, here, IN, behind)
    good(runtime.cudaLaunchHostFunc(behind, calls, None))
    good(runtime.cudaDeviceSynchronize())
    back = (ctypes.c_ubyte * BYTES)()
    good(runtime.cudaMemcpy(back, far, ctypes.c_size_t(BYTES), OUT))
    assert order == [True] + [NOT_PERMITTED] * 3, order
    assert bytes(back) == b"\11" * BYTES

# Many, of several streams and threads: those of one stream in their order.
streams = [stream(flags) for flags in (0, 1, 0, 1)]
counted = {each.value: [] for each in streams}
count = CALLBACK(lambda which, code, data: counted[which].append((code, data)))


def give(each):
    """Gives a stream many functions."""
    for number in range(1, 201):
        good(runtime.cudaMemsetAsync(far, number % 256, ctypes.c_size_t(16), each))
        good(runtime.cudaStreamAddCallback(each, count, ctypes.c_void_p(number), 0))


threads = [threading.Thread(target=give, args=(each,)) for each in streams]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
good(runtime.cudaDeviceSynchronize())
assert all(found == [(0, number) for number in range(1, 201)] for found in counted.values())
assert runtime.cudaLaunchHostFunc(one, HOST(), None) == 1
print("right")
