"""Memory that captured streams allocate and free, and graphs that captured streams launch. Words say which parts to do."""

import ctypes
import sys

from gpu_runtime import good, runtime, stream

BYTES = 4 << 20
# More than the device has room for at once.
MANY = 40
WITHIN = 3
INVALID_VALUE = 1

on = stream(1)


def taken():
    """Bytes of the device that are not free."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    good(runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
    return total.value - free.value


def pointer(make, *more):
    """What a call of the runtime allocates."""
    made = ctypes.c_void_p()
    good(make(ctypes.byref(made), ctypes.c_size_t(BYTES), *more))
    return made


def fill(place, value):
    """Sets all bytes."""
    good(runtime.cudaMemsetAsync(place, value, ctypes.c_size_t(BYTES), on))


def copy(to, source):
    """Copies all bytes."""
    good(runtime.cudaMemcpyAsync(to, source, ctypes.c_size_t(BYTES), WITHIN, on))


def is_all(place, value):
    """Whether memory of the device has one value."""
    seen = ctypes.create_string_buffer(BYTES)
    good(runtime.cudaMemcpyAsync(seen, place, ctypes.c_size_t(BYTES), 2, on))
    good(runtime.cudaStreamSynchronize(on))
    return seen.raw == bytes([value]) * BYTES


def captured(work):
    """A graph of what `work` does, and an instance of it."""
    graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
    good(runtime.cudaStreamBeginCapture(on, 1))
    made = work()
    good(runtime.cudaStreamEndCapture(on, ctypes.byref(graph)))
    good(runtime.cudaGraphInstantiate(ctypes.byref(instance), graph, ctypes.c_ulonglong(0)))
    return graph, instance, made


def end(graph, instance):
    """Ends both."""
    good(runtime.cudaGraphDestroy(graph))
    good(runtime.cudaGraphExecDestroy(instance))


def launch(instance, on=on):
    """Launches an instance."""
    good(runtime.cudaGraphLaunch(instance, on))


def kinds(graph):
    """What the nodes of a graph do."""
    count, kind = ctypes.c_size_t(64), ctypes.c_int()
    nodes, found = (ctypes.c_void_p * 64)(), []
    good(runtime.cudaGraphGetNodes(graph, nodes, ctypes.byref(count)))
    for node in nodes[: count.value]:
        good(runtime.cudaGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        found.append(kind.value)
    return found


result = pointer(runtime.cudaMalloc)
before = taken()


def through(value):
    """Fills memory of the graph's own and copies it to the result."""
    own = pointer(runtime.cudaMallocAsync, on)
    fill(own, value)
    copy(result, own)
    good(runtime.cudaFreeAsync(own, on))
    return own


def given_back():
    """Memory that a graph allocates and frees goes with the last of its graph, its copies and its instances."""
    for value in range(MANY):
        graph, instance, _ = captured(lambda: through(value))
        clone, other = ctypes.c_void_p(), ctypes.c_void_p()
        good(runtime.cudaGraphClone(ctypes.byref(clone), graph))
        good(runtime.cudaGraphDestroy(graph))
        good(runtime.cudaGraphInstantiate(ctypes.byref(other), clone, ctypes.c_ulonglong(0)))
        good(runtime.cudaGraphDestroy(clone))
        launch(instance)
        assert is_all(result, value)
        good(runtime.cudaGraphExecDestroy(instance))
        # What is allocated now is not where the other instance has its memory.
        taker = pointer(runtime.cudaMallocAsync, on)
        fill(taker, 99)
        fill(result, 100)
        launch(other)
        assert is_all(result, value)
        assert is_all(taker, 99)
        good(runtime.cudaGraphExecDestroy(other))
        good(runtime.cudaFreeAsync(taker, on))
    assert taken() <= before + 2 * BYTES


def updated():
    """An instance that is to do what another graph says has that one's memory."""
    graph, instance, _ = captured(lambda: through(0))
    good(runtime.cudaGraphDestroy(graph))
    for value in range(1, MANY):
        graph, own, _ = captured(lambda: through(value))
        good(runtime.cudaGraphExecUpdate(instance, graph, None))
        end(graph, own)
        launch(instance)
        assert is_all(result, value)
    good(runtime.cudaGraphExecDestroy(instance))
    assert taken() <= before + 2 * BYTES


def within():
    """What was freed in a capture is there for what the stream allocates next in it."""

    def work():
        for value in range(MANY):
            through(value)

    graph, instance, _ = captured(work)
    launch(instance)
    assert is_all(result, MANY - 1)
    end(graph, instance)
    assert taken() <= before + 2 * BYTES


def freed():
    """A graph that is launched again has its memory again, though the program freed it in between."""

    def work():
        own = pointer(runtime.cudaMallocAsync, on)
        fill(own, 7)
        return own

    graph, instance, own = captured(work)
    launch(instance)
    assert is_all(own, 7)
    good(runtime.cudaFreeAsync(own, on))
    others = [pointer(runtime.cudaMallocAsync, on) for _ in range(3)]
    for other in others:
        fill(other, 9)
    launch(instance)
    assert is_all(own, 7)
    for other in others:
        assert is_all(other, 9)
        good(runtime.cudaFreeAsync(other, on))
    # It outlives what made it, and is freed once.
    end(graph, instance)
    assert is_all(own, 7)
    good(runtime.cudaFree(own))
    assert runtime.cudaFree(own) == INVALID_VALUE
    assert runtime.cudaGetLastError() == INVALID_VALUE
    assert taken() <= before + 2 * BYTES


def elsewhere():
    """One graph allocates, and another one frees."""
    for value in range(MANY):

        def work():
            own = pointer(runtime.cudaMallocAsync, on)
            fill(own, value)
            return own

        first, makes, own = captured(work)

        def takes():
            copy(result, own)
            good(runtime.cudaFreeAsync(own, on))

        second, frees, _ = captured(takes)
        for _ in range(2):
            launch(makes)
            launch(frees)
            assert is_all(result, value)
        end(second, frees)
        end(first, makes)
    assert taken() <= before + 2 * BYTES


def children():
    """The memory of a graph is that of the graph that has it as a node, too."""
    for value in range(MANY):
        graph, instance, _ = captured(lambda: through(value))
        parent, node, whole = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        good(runtime.cudaGraphCreate(ctypes.byref(parent), 0))
        good(runtime.cudaGraphAddChildGraphNode(ctypes.byref(node), parent, None, ctypes.c_size_t(0), graph))
        end(graph, instance)
        good(runtime.cudaGraphInstantiate(ctypes.byref(whole), parent, ctypes.c_ulonglong(0)))
        launch(whole)
        assert is_all(result, value)
        end(parent, whole)
    assert taken() <= before + 2 * BYTES


def launched():
    """A graph that a captured stream launches is a node of what is captured, as it is then, between what is before and behind it."""
    other = pointer(runtime.cudaMalloc)

    def inner():
        copy(other, result)
        through(5)

    first, instance, _ = captured(inner)

    def outer():
        fill(result, 3)
        launch(instance)
        copy(result, other)
        launch(instance)
        fill(other, 8)

    second, whole, _ = captured(outer)
    assert kinds(second) == [2, 4, 1, 4, 2], kinds(second)
    end(first, instance)
    for _ in range(2):
        fill(other, 0)
        fill(result, 0)
        launch(whole)
        assert is_all(result, 5)
        assert is_all(other, 8)
    end(second, whole)
    good(runtime.cudaFree(other))
    assert taken() <= before + 2 * BYTES


def appended():
    """What is captured into a graph that is there is all in it, also where nobody has asked for its nodes since."""
    graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
    good(runtime.cudaGraphCreate(ctypes.byref(graph), 0))
    good(runtime.cudaStreamBeginCaptureToGraph(on, graph, None, None, ctypes.c_size_t(0), 1))
    fill(result, 4)
    good(runtime.cudaStreamEndCapture(on, ctypes.byref(graph)))
    good(runtime.cudaGraphInstantiate(ctypes.byref(instance), graph, ctypes.c_ulonglong(0)))
    fill(result, 0)
    launch(instance)
    assert is_all(result, 4)
    end(graph, instance)


for word in sys.argv[1:]:
    globals()[word]()
    print(word)
