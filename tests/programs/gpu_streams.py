"""Streams that end while work is in them, and streams that have work of the default stream in front of theirs. Words say which parts to do."""

import ctypes
import sys
import threading

from gpu_runtime import HOST, good, runtime, stream

BYTES = 1 << 20
PIECE = 4096
IN, OUT, WITHIN = 1, 2, 3
NOT_READY = 600
# More than may be ending at once.
MANY = 1100


def pointer(make, bytes_of=BYTES):
    """What a call of the runtime allocates."""
    made = ctypes.c_void_p()
    good(make(ctypes.byref(made), ctypes.c_size_t(bytes_of)))
    return made


def copy(to, source, kind, on, bytes_of=BYTES):
    """Copies in the order of a stream."""
    good(runtime.cudaMemcpyAsync(to, source, ctypes.c_size_t(bytes_of), kind, on))


def fill(place, value, on, bytes_of=BYTES):
    """Sets bytes in the order of a stream."""
    good(runtime.cudaMemsetAsync(place, value, ctypes.c_size_t(bytes_of), on))


def is_all(memory, value):
    """Whether memory of the host has one value."""
    return ctypes.string_at(memory, BYTES) == bytes([value]) * BYTES


far, here = pointer(runtime.cudaMalloc), pointer(runtime.cudaMallocHost)


def waited():
    """Who waits for the device, or for the default stream, waits for streams that have ended."""
    for flags, wait in (
        (1, runtime.cudaDeviceSynchronize),
        (0, runtime.cudaDeviceSynchronize),
        (0, lambda: runtime.cudaStreamSynchronize(None)),
    ):
        ctypes.memset(here, 0, BYTES)
        one = stream(flags)
        fill(far, 7, one)
        copy(here, far, OUT, one)
        good(runtime.cudaStreamDestroy(one))
        assert runtime.cudaStreamSynchronize(one) == 400, "its name is nobody's any more"
        good(wait())
        assert is_all(here, 7)


def unregistered():
    """Memory that the program takes back gets nothing of what an ended stream still brought."""
    own = ctypes.create_string_buffer(BYTES)
    good(runtime.cudaHostRegister(own, ctypes.c_size_t(BYTES), 0))
    one = stream(1)
    fill(far, 7, one)
    copy(own, far, OUT, one)
    good(runtime.cudaStreamDestroy(one))
    good(runtime.cudaHostUnregister(own))
    assert is_all(own, 7)
    ctypes.memset(own, 5, BYTES)
    copy(here, far, OUT, None)
    good(runtime.cudaDeviceSynchronize())
    assert is_all(own, 5)


def pieces():
    """Memory that is freed is given again when an ended stream has done with it."""
    first, kept = pointer(runtime.cudaMalloc, PIECE), pointer(runtime.cudaMalloc, PIECE)
    good(runtime.cudaMemset(first, 7, ctypes.c_size_t(PIECE)))
    good(runtime.cudaDeviceSynchronize())
    one, other = stream(1), stream(1)
    for _ in range(4):
        copy(kept, first, WITHIN, one, PIECE)
    good(runtime.cudaStreamDestroy(one))
    good(runtime.cudaFree(first))
    again = pointer(runtime.cudaMalloc, PIECE)
    assert again.value == first.value
    fill(again, 9, other, PIECE)
    good(runtime.cudaDeviceSynchronize())
    seen = ctypes.create_string_buffer(PIECE)
    good(runtime.cudaMemcpy(seen, kept, ctypes.c_size_t(PIECE), OUT))
    assert seen.raw == b"\7" * PIECE


def filled():
    """What an ended stream only copied in is there for whatever is sent later."""
    own = ctypes.create_string_buffer(b"\6" * BYTES, BYTES)
    one, other = stream(1), stream(1)
    copy(far, own, IN, one)
    good(runtime.cudaStreamDestroy(one))
    good(runtime.cudaDeviceSynchronize())
    copy(here, far, OUT, other)
    good(runtime.cudaStreamSynchronize(other))
    assert is_all(here, 6)


def threads():
    """The own stream of a thread ends with it, and its work is waited for."""

    def work():
        own = ctypes.c_void_p(2)
        fill(far, 8, own)
        copy(here, far, OUT, own)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    good(runtime.cudaDeviceSynchronize())
    assert is_all(here, 8)


def many():
    """A program may end streams faster than their work is done."""
    for _ in range(MANY):
        one = stream(1)
        copy(far, pointer_within(PIECE), WITHIN, one, PIECE)
        good(runtime.cudaStreamDestroy(one))
    good(runtime.cudaDeviceSynchronize())


def pointer_within(offset):
    """A place within the memory of the device."""
    return ctypes.c_void_p(far.value + offset)


def captured():
    """A graph is made of what was captured, whatever became of its streams and events since."""
    one, other = stream(1), stream(1)
    half = BYTES // 2
    good(runtime.cudaStreamBeginCapture(one, 2))
    fill(far, 3, one, half)
    order(one, other)
    fill(pointer_within(half), 4, other, half)
    order(other, one)
    graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
    good(runtime.cudaStreamEndCapture(one, ctypes.byref(graph)))
    good(runtime.cudaStreamDestroy(one))
    good(runtime.cudaStreamDestroy(other))
    good(runtime.cudaGraphInstantiate(ctypes.byref(instance), graph, ctypes.c_uint64(0)))
    last = stream(1)
    good(runtime.cudaGraphLaunch(instance, last))
    copy(here, far, OUT, last)
    good(runtime.cudaStreamSynchronize(last))
    assert ctypes.string_at(here, BYTES) == b"\3" * half + b"\4" * half


def failed():
    """Who asks for a capture that has failed is told that, and has no error by it."""
    one = stream(1)
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p(7)

    def asked():
        good(runtime.cudaStreamGetCaptureInfo(one, ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None, None))
        return status.value, bool(number.value), bool(graph.value)

    assert asked() == (0, False, False)
    good(runtime.cudaStreamBeginCapture(one, 2))
    assert asked() == (1, True, True)
    assert runtime.cudaStreamSynchronize(one) == 900
    assert asked() == (2, True, False)
    assert runtime.cudaStreamEndCapture(one, ctypes.byref(graph)) == 901
    assert asked() == (0, False, False)


def order(before, after):
    """Has a stream wait for another one by an event that is ended at once, as programs do."""
    event = ctypes.c_void_p()
    good(runtime.cudaEventCreateWithFlags(ctypes.byref(event), 2))
    good(runtime.cudaEventRecord(event, before))
    good(runtime.cudaStreamWaitEvent(after, event, 0))
    good(runtime.cudaEventDestroy(event))


def behind_the_default():
    """Work of a stream that is not apart comes after what is in the default stream, and so does whoever waits for it."""
    one, called = stream(0), threading.Event()

    def begun(value):
        ctypes.memset(here, 0, BYTES)
        fill(far, value, None)
        copy(here, far, OUT, None)

    other = pointer(runtime.cudaMalloc)
    begun(1)
    fill(other, 0, one)
    good(runtime.cudaStreamSynchronize(one))
    assert is_all(here, 1)
    begun(2)
    fill(other, 0, one)
    while (code := runtime.cudaStreamQuery(one)) == NOT_READY:
        pass
    good(code)
    assert is_all(here, 2)
    seen = []

    @HOST
    def looks(_):
        seen.append(is_all(here, 3))
        called.set()

    begun(3)
    good(runtime.cudaLaunchHostFunc(one, looks, None))
    assert called.wait(60) and seen == [True]
    good(runtime.cudaDeviceSynchronize())


for part in sys.argv[1:]:
    globals()[part]()
    print(part, flush=True)
