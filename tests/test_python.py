"""The Python package: objects by every way in and out, buffers without copies, errors, locks, forks."""

import ast
import contextlib
import copy
import ctypes
import errno
import functools
import gc
import hashlib
import importlib
import io
import multiprocessing
import os
import pathlib
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
MEBIBYTE = 1 << 20
TORCH = TREE / ".cache/vllm/venv/bin/python"


@pytest.fixture
def pool(hinterland, node):
    """A pool through a node of its own."""
    with hinterland.Pool(node.socket) as pool:
        yield pool


@pytest.fixture
def near(hinterland, two_racks):
    """A pool through rack a; rack b is the other."""
    with hinterland.Pool(two_racks[0].socket) as pool:
        yield pool


@pytest.fixture
def far(hinterland, two_racks):
    """A pool through rack b."""
    with hinterland.Pool(two_racks[1].socket) as pool:
        yield pool


def pattern(size, seed=1):
    """Bytes that look random, the same for the same size and seed."""
    return numpy.random.default_rng(seed).bytes(size)


def is_mapped(pointer):
    """Whether an address of this process lies in a mapping."""
    ranges = re.findall(r"^(\w+)-(\w+) ", pathlib.Path("/proc/self/maps").read_text(), re.MULTILINE)
    return any(int(start, 16) <= pointer < int(end, 16) for start, end in ranges)


# --- objects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rack", ["a", "b"])
def test_what_goes_in_by_any_way_comes_out_by_every_way(near, folder, rack):
    data = pattern(5 * MEBIBYTE + 12)
    (folder / "file").write_bytes(data)
    ways = {
        "bytes": data,
        "array": numpy.frombuffer(data, dtype="f4"),
        "memoryview": memoryview(bytearray(data)),
        "path": folder / "file",
        "text": str(folder / "file"),
        "stream": io.BytesIO(data),
    }
    for name, source in ways.items():
        info = near.put(f"ways/{name}", source, rack=rack)
        assert (info.name, info.bytes, info.state, info.homes[0].rack) == (f"ways/{name}", len(data), "sealed", rack)
        assert near.get(f"ways/{name}") == data
    with open(folder / "file", "rb") as file:
        file.seek(100)
        assert near.put("ways/rest", file, rack=rack).bytes == len(data) - 100
    with near.map("ways/rest") as mapping, near.open("ways/rest") as opened:
        assert bytes(memoryview(mapping)) == data[100:]
        assert opened.read_at(len(data) - 110) == data[-10:] and opened.read_at(5, 7) == data[105:112]
        assert len(mapping) == mapping.nbytes == len(opened) == opened.nbytes == len(data) - 100
        into = numpy.zeros(25, dtype="u8")
        assert opened.read_into(into, 8) == 200 and into.tobytes() == data[108:308]
        assert near.put("ways/mapped", mapping).bytes == len(data) - 100
    assert near.get("ways/mapped") == data[100:]
    info = near.stat("ways/rest")
    assert near.read(info.address + 9, 50) == data[109:159]
    assert {info.name for info in near.list("ways/")} == {f"ways/{name}" for name in [*ways, "rest", "mapped"]}
    near.remove("ways/rest")
    assert "ways/rest" not in [info.name for info in near.list()]


def test_an_object_without_bytes_is_an_object(pool):
    assert pool.put("empty", b"").bytes == 0
    assert pool.get("empty") == b""
    with pool.map("empty") as mapping:
        assert len(mapping) == 0 and memoryview(mapping).tobytes() == b""
        mapping.advise("random")


def test_records_say_what_the_pool_is(hinterland, near):
    near.put("one", b"x" * 100_000, copies=2)
    verified = near.verify("one")
    assert isinstance(verified, hinterland.Verified) and len(verified.good) == 2 and not verified.bad
    assert [member.rack for member in sorted(near.members(), key=lambda member: member.rack)] == ["a", "b"]
    status = near.status()
    assert status.rack == "a" and status.sessions >= 1 and isinstance(status.counters, hinterland.Counters)
    assert isinstance(near.stat("one").homes[1], hinterland.Home) and len(near.stat("one").digest) == 32
    assert pickle.loads(pickle.dumps(near.stat("one"))) == near.stat("one")


def test_progress_is_heard_and_what_it_raises_ends_the_put(hinterland, pool):
    heard = []
    pool.put("heard", bytes(9 * MEBIBYTE), progress=lambda *numbers: heard.append(numbers))
    assert heard[-1] == (9 * MEBIBYTE, 9 * MEBIBYTE) and len(heard) > 1
    pool.put("stream", io.BytesIO(b"abc"), progress=lambda *numbers: heard.append(numbers))
    assert heard[-1] == (3, None)

    def enough(done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        pool.put("half", bytes(9 * MEBIBYTE), progress=enough)
    with pytest.raises(hinterland.NotFoundError):
        pool.stat("half")


ENDING = """
import sys, threading, time
import hinterland
inside = threading.Event()
def wait(*_):
    inside.set()
    while True:
        time.sleep(0.001)
class Source:
    read = wait
pool = hinterland.Pool(sys.argv[1])
put = {"read": lambda: pool.put("read", Source()), "progress": lambda: pool.put("heard", bytes(9 << 20), progress=wait)}
threading.Thread(target=put[sys.argv[2]], daemon=True).start()
inside.wait()
"""


@pytest.mark.parametrize("where", ["read", "progress"])
def test_a_program_ends_well_while_a_thread_of_it_is_in_its_own_code_within_a_put(hinterland, node, where):
    environment = {**os.environ, "PYTHONPATH": str(TREE / "python")}
    command = [sys.executable, "-c", ENDING, str(node.socket), where]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_a_source_raises_is_raised_and_nothing_is_left(hinterland, pool):
    class Broken:
        def read(self, size):
            raise ZeroDivisionError("broken")

    with pytest.raises(ZeroDivisionError, match="broken"):
        pool.put("half", Broken())
    with pytest.raises(TypeError, match="'rb'"):
        pool.put("half", io.StringIO("text"))
    with pytest.raises(TypeError, match="cannot put a dict"):
        pool.put("half", {})
    with pytest.raises(BufferError, match="contiguous"):
        pool.put("half", numpy.zeros((4, 4))[:, 1])
    with pytest.raises(FileNotFoundError):
        pool.put("half", "/nowhere/file")
    with pytest.raises(hinterland.NotFoundError):
        pool.stat("half")


def test_an_interrupt_ends_a_put_that_waits_for_its_source(hinterland, pool, folder):
    os.mkfifo(folder / "pipe")
    writer = os.open(folder / "pipe", os.O_RDWR)
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.put("never", folder / "pipe")
    timer.join()
    os.close(writer)
    with pytest.raises(hinterland.NotFoundError):
        pool.stat("never")


# --- mappings ---------------------------------------------------------------------------------------------------


def test_64_mib_are_mapped_across_racks_and_come_once(hinterland, two_racks, make_file):
    near, far = two_racks
    source = make_file("model", 64 * MEBIBYTE)
    expected = numpy.fromfile(source, dtype="u8")
    with hinterland.Pool(far.socket) as pool:
        pool.put("model", source, rack="b")
    with hinterland.Pool(near.socket) as pool:
        mapping = pool.map("model")
        assert mapping.is_remote and mapping.is_symmetric and not mapping.is_writable
        mapping.advise("sequential")
        mapping.advise("willneed", 0, MEBIBYTE)
        array = numpy.frombuffer(mapping, dtype="u8")
        assert array.ctypes.data == mapping.pointer
        assert (array == expected).all()
        moved = pool.status().counters.network_received_bytes
        assert moved >= 64 * MEBIBYTE
        with pool.map("model") as again:
            assert (numpy.frombuffer(again, dtype="u8") == expected).all()
        assert pool.status().counters.network_received_bytes - moved < MEBIBYTE
        assert [cache.name for cache in pool.status().caches] == ["model"]


@pytest.mark.parametrize("rack", ["a", "b"])
def test_a_view_keeps_the_memory_after_mapping_and_pool_are_closed(hinterland, two_racks, rack):
    data = pattern(3 * MEBIBYTE)
    with hinterland.Pool(two_racks[0].socket) as pool:
        pool.put("kept", data, rack=rack)
        with pool.map("kept") as mapping:
            pointer = mapping.pointer
            view = memoryview(mapping)[MEBIBYTE:]
        assert mapping.closed
        with pytest.raises(ValueError, match="closed"):
            memoryview(mapping)
        with pytest.raises(ValueError, match="closed"):
            mapping.advise("random")
        array = numpy.frombuffer(view, dtype="u1")
    del mapping
    gc.collect()
    assert view == data[MEBIBYTE:] and is_mapped(pointer)
    del view
    gc.collect()
    assert array.tobytes() == data[MEBIBYTE:]
    del array
    gc.collect()
    assert not is_mapped(pointer), "the last view lets go of the memory"


def test_a_sealed_object_is_never_writable(hinterland, pool):
    pool.put("sealed", b"12345678" * 1024)
    with pool.map("sealed") as mapping:
        assert memoryview(mapping).readonly
        array = numpy.frombuffer(mapping, dtype="u8")
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(TypeError):
            memoryview(mapping)[0] = 1
        with pytest.raises(TypeError, match="bytearray"):
            pool.open("sealed").read_into(mapping)
        with pytest.raises(ValueError, match="willneed"):
            mapping.advise("perhaps")
    for wrong in (lambda: pool.map("sealed", writable=True), lambda: pool.open("sealed", writable=True),
                  lambda: pool.write(pool.stat("sealed").address, b"x"), lambda: pool.open("sealed").write_at(0, b"x")):
        with pytest.raises(PermissionError):
            wrong()
    assert pool.get("sealed") == b"12345678" * 1024


TORCH_PROGRAM = """
import sys, hinterland, torch
with hinterland.Pool(sys.argv[1]) as pool, pool.map("tensor") as mapping:
    tensor = torch.frombuffer(mapping, dtype=torch.float32)
    assert tensor.data_ptr() == mapping.pointer
    print(float(tensor.sum()))
"""


@pytest.mark.skipif(not TORCH.exists(), reason="no torch here (hint: bench/vllm/prepare.sh)")
def test_torch_sees_the_memory_without_a_copy(hinterland, node):
    node.run("put", "-", "--name", "tensor", input=numpy.arange(1024, dtype="f4").tobytes(), text=False)
    done = subprocess.run([TORCH, "-c", TORCH_PROGRAM, node.socket], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str(float(1023 * 512)), done.stderr


def test_a_region_is_written_in_place(hinterland, two_racks):
    with hinterland.Pool(two_racks[0].socket) as one, hinterland.Pool(two_racks[0].socket) as other:
        info = one.create_region("shared", 2 * MEBIBYTE)
        assert info.state == "region"
        with one.map("shared", writable=True) as mapping:
            array = numpy.frombuffer(mapping, dtype="u8")
            array[:] = numpy.arange(array.size)
            assert other.read(info.address + 80, 16) == (10).to_bytes(8, "little") + (11).to_bytes(8, "little")
            other.write(info.address, numpy.array([7], dtype="u8"))
            assert array[0] == 7
        far = other.create_region("far", MEBIBYTE, rack="b")
        one.write(far.address + 5, b"across racks")
        into = bytearray(12)
        assert other.read_into(far.address + 5, into) == 12 and into == b"across racks"
        with one.open("far", writable=True) as opened:
            opened.write_at(5, b"A")
            assert opened.read_at(5, 6) == b"Across" and not opened.is_local
        with pytest.raises(hinterland.HinterlandError, match="another rack"):
            one.map("far", writable=True)


# --- processes and threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["pool", "object", "guard"])
@pytest.mark.parametrize("shift", [-4096, -8, -1, 1, 8, 4096])
def test_memory_of_a_mapping_is_moved_within_its_region_whole(pool, way, shift):
    address = pool.create_region("moved", 4 * MEBIBYTE).address
    first, second = 8192, 8192 + shift
    with pool.map("moved", writable=True) as mapping, pool.open("moved", writable=True) as opened:
        assert mapping.is_symmetric
        view = memoryview(mapping)
        for size in (100, 3000, 600_000):
            data = pattern(size, size)
            with pool.write_guard(address, 4 * MEBIBYTE) as guard:
                write = {"pool": lambda at, bytes: pool.write(address + at, bytes), "object": opened.write_at, "guard": guard.write}[way]
                read_into = {"pool": lambda bytes, at: pool.read_into(address + at, bytes), "object": opened.read_into,
                             "guard": guard.read_into}[way]
                write(first, data)
                write(second, view[first : first + size])
                assert view[second : second + size] == data, f"{size} bytes written"
                write(first, data)
                assert read_into(view[second : second + size], first) == size
                assert view[second : second + size] == data, f"{size} bytes read"
        view.release()


def test_pickling_is_refused_with_a_way_out(hinterland, pool):
    pool.put("one", b"x" * 5000)
    for thing in (pool, pool.map("one"), pool.open("one")):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="hint:"):
                attempt(thing)


def child(pipe, pool, mappings):
    """What a forked child can do with what its parent has."""
    answers = [hashlib.sha256(memoryview(mapping)).hexdigest() for mapping in mappings]
    for mapping in mappings:
        mapping.close()
    try:
        pool.stat("near")
        answers.append("the parent's pool was used")
    except ConnectionError as error:
        answers.append(type(error).__name__)
    with type(pool)(os.environ["TEST_SOCKET"]) as own:
        answers.append(own.stat("far").bytes)
    pipe.send(answers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_reads_the_mappings_and_opens_its_own_pool(hinterland, two_racks, monkeypatch):
    monkeypatch.setenv("TEST_SOCKET", str(two_racks[0].socket))
    data = pattern(8 * MEBIBYTE)
    with hinterland.Pool(two_racks[0].socket) as pool:
        for name, rack in (("near", "a"), ("far", "b")):
            pool.put(name, data, rack=rack)
        mappings = [pool.map("near"), pool.map("far")]
        # A part is here before the fork, the rest comes in the child.
        assert bytes(memoryview(mappings[1])[:100]) == data[:100]
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs, pool, mappings))
        process.start()
        assert mine.poll(60), "the child hangs"
        expected = hashlib.sha256(data).hexdigest()
        assert mine.recv() == [expected, expected, "NoNodeError", len(data)]
        process.join(30)
        assert process.exitcode == 0
        assert pool.get("near") == data, "the parent's session is whole"
        assert bytes(memoryview(mappings[1])) == data


def use_region(pipe, own_pool, name):
    """What a forked child does with a region, by every way, through a pool of its own."""
    with own_pool() as own:
        address = own.stat(name).address
        answers = [own.read(address, 5)]
        own.write(address, b"child")
        with own.open(name, writable=True) as region, own.write_guard(address, 16) as guard:
            answers += [region.read_at(0, 5), guard.read(0, 5)]
            guard.write(8, b"guard")
        pipe.send(answers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("rack", ["a", "b"])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_forked_child_reads_and_writes_regions_through_its_own_pool(hinterland, two_racks, rack, is_open):
    own_pool = functools.partial(hinterland.Pool, two_racks[0].socket)
    pool = own_pool()
    address = pool.create_region("shared", 4096, rack=rack).address
    pool.write(address, b"mine!")
    if not is_open:
        pool.close()
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=use_region, args=(theirs, own_pool, "shared"))
    process.start()
    theirs.close()
    assert mine.poll(60), "the child hangs"
    assert mine.recv() == [b"mine!", b"child", b"child"]
    process.join(30)
    assert process.exitcode == 0
    with pool if is_open else own_pool() as again:
        assert again.read(address, 13) == b"child\0\0\0guard"
        again.write(address, b"after")


def test_threads_read_at_once(near):
    data = pattern(16 * MEBIBYTE)
    near.put("model", data, rack="b")
    expected = hashlib.sha256(data).hexdigest()
    found = []

    def read(way):
        whole = near.get("model") if way % 2 else memoryview(near.map("model"))
        found.append(hashlib.sha256(whole).hexdigest())

    threads = [threading.Thread(target=read, args=(way,)) for way in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


def handles_of_each_kind(near, far):
    """For an object and a region, here and in the other rack: a handle to all of it, writable where that can be."""
    for rack in "ab":
        near.put(f"object-{rack}", pattern(200_000), rack=rack)
        near.create_region(f"region-{rack}", 2 << 20, rack=rack)
    assert near.open("object-a").is_local and far.open("object-b").is_local
    return [near.open(f"{kind}-{rack}", writable=kind == "region") for kind in ("object", "region") for rack in "ab"]


def test_a_weaker_handle_reaches_its_bytes_and_is_refused_all_others(hinterland, near, far):
    for whole in handles_of_each_kind(near, far):
        part = whole.diminish(4096, 1000)
        assert (part.offset, part.nbytes, len(part), part.is_writable) == (4096, 1000, 1000, False)
        assert (whole.offset, whole.diminish().nbytes) == (0, whole.nbytes)
        right = whole.read_at(4096, 1000)
        assert part.read_at() == right and part.read_at(5000) == right[904:] and part.diminish(5000).read_at() == right[904:]
        into = bytearray(1000)
        assert part.read_into(into) == 1000 and into == right
        for offset, count in ((0, 8), (4095, 2), (5095, 2), (1 << 63, 8)):
            with pytest.raises(hinterland.HinterlandError, match="4096 to 5096|out of|ends behind") as failure:
                part.read_at(offset, count)
            assert failure.value.errno == errno.EINVAL and failure.value.hint
        with pytest.raises(hinterland.AccessError, match="r---"):
            part.diminish(writable=True)
        with pytest.raises(hinterland.AccessError):
            part.write_at(4096, b"x")
        with pytest.raises(hinterland.HinterlandError, match="4096 to 5096"):
            part.diminish(4096, 1001)
        if whole.is_writable:
            writer = whole.diminish(4096, 8, writable=True)
            writer.write_at(4096, b"12345678")
            with pytest.raises(hinterland.HinterlandError, match="4096 to 4104"):
                writer.write_at(4097, b"12345678")
            assert part.read_at(4096, 8) == b"12345678"


def test_a_revoked_handle_takes_those_that_were_made_from_it_along(hinterland, near, far):
    for whole in handles_of_each_kind(near, far):
        parent = whole.diminish(writable=whole.is_writable)
        child = parent.diminish(4096, 4096)
        sibling = whole.diminish(4096, 4096)
        right = whole.read_at(4096, 4096)
        assert child.read_at() == right
        parent.revoke()
        for handle in (parent, child):
            into = bytearray(b"\xaa" * 8)
            for use in (lambda: handle.read_into(into, 4096), handle.diminish, lambda: handle.read_at(4096, 1)):  # noqa: B023
                with pytest.raises(hinterland.HinterlandError, match="revoked") as failure:
                    use()
                assert failure.value.errno == errno.EBADF and failure.value.hint
            assert into == b"\xaa" * 8
            handle.revoke()
        with pytest.raises(hinterland.HinterlandError):
            parent.write_at(0, b"x")
        parent.close(), child.close(), whole.close()
        assert sibling.read_at() == right, "it lives until it is closed itself"
        sibling.revoke()
        with pytest.raises(hinterland.HinterlandError, match="revoked"):
            sibling.read_at()


def test_guards_cover_a_range_of_a_spread_region(hinterland, near, far):
    info = near.create_region("guarded", 8 << 20, spread=True)
    with near.write_guard(info.address, 4096) as guard:
        assert guard.writable and (guard.address, guard.nbytes) == (info.address, 4096)
        guard.write(100, b"guard")
        assert guard.read(98, 9) == b"\0\0guard\0\0"
        with pytest.raises(TimeoutError):
            far.read_guard(info.address, 4096, wait=0.05)
        for offset, count in ((4092, 5), (1 << 63, 1)):
            with pytest.raises(hinterland.HinterlandError, match="range|outside"):
                guard.read(offset, count)
        with pytest.raises(hinterland.HinterlandError, match="range"):
            guard.write(4092, b"guard")
        first = guard.fence
    with pytest.raises(hinterland.HinterlandError, match="guard is closed"):
        guard.read(0, 1)
    guard.unlock()
    with far.read_guard(info.address, 4096) as guard:
        into = bytearray(5)
        assert guard.read_into(into, 100) == 5 and into == b"guard" and not guard.writable
        with pytest.raises(hinterland.AccessError, match="upgrade"):
            guard.write(0, b"x")
        guard.upgrade()
        guard.write(100, b"GUARD")
        guard.flush()
        assert guard.writable and guard.fence > first
        with pytest.raises(TypeError, match="of one process"):
            pickle.dumps(guard)
    assert near.read(info.address + 100, 5) == b"GUARD"
    with pytest.raises(hinterland.HinterlandError, match="spread"):
        near.create_region("both", 4096, rack="a", spread=True)


def test_locks_exclude_pools_and_waiting_lets_threads_run(hinterland, node):
    with hinterland.Pool(node.socket) as one, hinterland.Pool(node.socket) as other:
        address = one.alloc(64)
        with one.rlock(address), other.rlock(address, wait=0):
            pass
        held = one.wlock(address)
        start = time.monotonic()
        with pytest.raises(TimeoutError) as failure:
            other.rlock(address, wait=0.1)
        assert failure.value.errno == errno.ETIMEDOUT and time.monotonic() - start >= 0.1
        with pytest.raises(hinterland.HinterlandError, match="already"):
            one.wlock(address)
        taken = threading.Event()

        def wait():
            with other.wlock(address, wait=30):
                taken.set()

        thread = threading.Thread(target=wait)
        thread.start()
        # Neither the interpreter nor the pool of the thread that waits is held up.
        for _ in range(20):
            assert other.stat(one.list("segments/")[0].name).state == "region"
        assert not taken.is_set()
        held.unlock()
        assert taken.wait(30)
        thread.join()
        for wait_seconds in (-1.0, float("nan"), float("inf")):
            with pytest.raises(hinterland.HinterlandError, match="seconds"):
                one.rlock(address, wait=wait_seconds)
        one.write(address, b"kept until freed")
        one.free(address)
        with pytest.raises(hinterland.HinterlandError) as failure:
            one.free(address)
        assert failure.value.errno == errno.EINVAL


@contextlib.contextmanager
def interrupt(seconds=0.3):
    """Ctrl-C comes soon, and ends what is done."""
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


def test_an_interrupt_ends_a_wait_for_a_lock_and_leaves_the_queue(hinterland, node):
    with hinterland.Pool(node.socket) as one, hinterland.Pool(node.socket) as other:
        address = one.alloc(64)
        # Far longer than the test may take.
        for wait in (lambda: other.wlock(address, wait=86400), lambda: other.rlock(address, wait=86400),
                     lambda: other.write_guard(address, 64, wait=86400), lambda: other.read_guard(address, 64, wait=86400)):
            with one.wlock(address), interrupt():
                wait()
            # Nobody stands in the queue, or has the lock without knowing.
            with one.wlock(address, wait=0):
                pass
        reading, another = one.read_guard(address, 64), other.read_guard(address, 64)
        with interrupt():
            reading.upgrade(wait=86400)
        another.unlock()
        reading.upgrade(wait=30)
        reading.write(0, b"written")
        reading.unlock()
        assert one.read(address, 7) == b"written"


def test_a_lock_is_for_reading_or_for_writing(hinterland, node):
    with hinterland.Pool(node.socket) as pool:
        with pytest.raises(ValueError, match='"read" or "write"'):
            hinterland._native.Pool.lock(pool, pool.alloc(64), "Read", 0.0)


@pytest.mark.parametrize("memory,right", [
    (ctypes.create_string_buffer(b"some bytes", 10), b"some bytes"),
    ((ctypes.c_int32 * 3)(1, 2, 3), b"\1\0\0\0\2\0\0\0\3\0\0\0"),
    (ctypes.c_uint16(258), b"\2\1"),
    (numpy.array(258, "<u4"), b"\2\1\0\0"),
])
def test_memory_without_dimensions_goes_in_and_out(hinterland, near, memory, right):
    near.put("shapeless", memory)
    assert near.get("shapeless") == right
    near.create_region("filled", 4096)
    address = memory.ctypes.data if isinstance(memory, numpy.ndarray) else ctypes.addressof(memory)
    with near.open("filled", writable=True) as region, near.kv("shapeless") as kv:
        region.write_at(0, memory)
        assert kv.put([b"key"], [memory]) == [True]
        ctypes.memset(address, 0, len(right))
        assert region.read_into(memory) == len(right) and memoryview(memory).tobytes() == right
        ctypes.memset(address, 0, len(right))
        assert kv.read_into([b"key"], [memory]) == [len(right)] and memoryview(memory).tobytes() == right
    with pytest.raises(TypeError, match="cannot be written"):
        near.open("shapeless").read_into(numpy.broadcast_to(numpy.array(1), ()))
    with pytest.raises(TypeError, match="objects of Python"):
        near.open("filled", writable=True).write_at(0, ctypes.py_object(right))


def test_fragments_fit_memory_and_numbers_of_lists_are_refused_with_their_range(hinterland, near):
    with pytest.raises(hinterland.HinterlandError, match="longer than all memory") as failure:
        hinterland.Fragments([1, 1], [2**63, 2**63])
    assert failure.value.errno == errno.EINVAL
    with near.kv("numbers") as kv:
        for call, argument in [(lambda: hinterland.Fragments([-1], [1]), "addresses"), (lambda: hinterland.Fragments([1], [2**64]), "sizes"),
                               (lambda: kv.read_into([b"a"], [bytearray(1)], offsets=[2**32]), "offsets"),
                               (lambda: kv.read_into([b"a"], [bytearray(1)], offsets=[-1]), "offsets"),
                               (lambda: kv.read_ranges([b"a"], [[bytearray(1)]], [[2**70]]), "offsets")]:
            with pytest.raises(ValueError, match="out of range .hint: 0 to ") as failure:
                call()
            assert argument in str(failure.value.__notes__)
        with pytest.raises(TypeError):
            kv.read_into([b"a"], [bytearray(1)], offsets=["1"])


# --- errors -----------------------------------------------------------------------------------------------------


def test_errors_are_those_of_python_with_an_errno_and_a_hint(hinterland, pool, folder):
    with pytest.raises(FileNotFoundError) as failure:
        pool.get("nobody")
    assert isinstance(failure.value, hinterland.HinterlandError)
    assert failure.value.errno == errno.ENOENT and "nobody" in str(failure.value)
    pool.put("one", b"1")
    with pytest.raises(FileExistsError) as failure:
        pool.put("one", b"2")
    assert failure.value.hint and "hint" not in failure.value.hint
    copied = pickle.loads(pickle.dumps(failure.value))
    assert (type(copied), copied.errno, copied.hint) == (hinterland.ExistsError, errno.EEXIST, failure.value.hint)
    with pytest.raises(ConnectionError, match="hinterland up"):
        hinterland.Pool(folder / "nobody.sock")
    for name, code in (("", errno.EINVAL), ("a/../b", errno.EINVAL), ("x" * 4096, errno.ENAMETOOLONG)):
        with pytest.raises(hinterland.HinterlandError) as failure:
            pool.put(name, b"1")
        assert failure.value.errno == code and failure.value.hint
    with pytest.raises(hinterland.HinterlandError) as failure:
        pool.put("large", bytes(300 * MEBIBYTE))
    assert failure.value.errno == errno.ENOSPC
    for wrong in (lambda: pool.read(1 << 46, 1), lambda: pool.open("one").read_at(0, 2),
                  lambda: pool.open("one").read_at(1, 1)):
        with pytest.raises(hinterland.HinterlandError) as failure:
            wrong()
        assert failure.value.errno == errno.EINVAL, failure.value
    with pytest.raises(FileNotFoundError):
        pool.read(1 << 45, 1)


def test_a_length_beyond_all_that_is_there_is_refused_before_memory_is_made_for_it(pool):
    address = pool.create_region("short", 4 * MEBIBYTE).address
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # What an object ends behind, and what nobody has.
    for start in (address, 1 << 45):
        with pytest.raises(OSError):
            pool.read(start, 2048 * MEBIBYTE)
    # In KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10
    assert pool.read(address, 4 * MEBIBYTE) == bytes(4 * MEBIBYTE)


def test_what_is_closed_says_so(hinterland, node):
    pool = hinterland.Pool(socket=node.socket)
    pool.put("one", b"1")
    opened = pool.open("one")
    opened.close()
    with pool.map("one") as mapped:
        assert bytes(mapped) == b"1" and is_mapped(mapped.pointer)
    # An address that may be another's by now is not given away.
    with pytest.raises(ValueError, match="closed"):
        print(mapped.pointer)
    assert "closed" in repr(mapped)
    pool.close()
    pool.close()
    for wrong in (pool.members, opened.read_at, lambda: pool.socket):
        with pytest.raises(ConnectionError, match="closed"):
            wrong()


def test_a_closed_pool_keeps_no_lock_whatever_was_opened_through_it(hinterland, node):
    with hinterland.Pool(node.socket) as other:
        first = other.create_region("locked", 4096).address
        pool = hinterland.Pool(node.socket)
        opened = pool.open("locked", writable=True)
        part = opened.diminish(0, 8)
        pool.wlock(first)
        pool.close()
        with other.wlock(first):
            pass
        for wrong in (opened.read_at, part.read_at, part.revoke, opened.diminish, lambda: opened.write_at(0, b"x"),
                      lambda: opened.read_into(bytearray(8))):
            with pytest.raises(ConnectionError, match="this Pool is closed"):
                wrong()


def test_a_guard_outlives_its_pool_and_writes_what_it_has(hinterland, node):
    with hinterland.Pool(node.socket) as other:
        first = other.create_region("guarded", 4096).address
        pool = hinterland.Pool(node.socket)
        guard = pool.write_guard(first, 8)
        guard.write(0, b"buffered")
        pool.close()
        with pytest.raises(TimeoutError):
            other.wlock(first, 0.2)
        guard.unlock()
        with other.wlock(first):
            assert other.read(first, 8) == b"buffered"


def test_what_was_opened_keeps_a_pool_that_nobody_has(hinterland, node):
    hinterland.Pool(node.socket).put("kept", b"bytes")
    opened = hinterland.Pool(node.socket).open("kept")
    gc.collect()
    assert opened.read_at() == b"bytes" and opened.diminish(1, 2).read_at() == b"yt"


def test_a_node_that_dies_is_an_error_and_no_hang(hinterland, node):
    with hinterland.Pool(node.socket) as pool:
        address = pool.alloc(64)
        node.kill()
        with pytest.raises(hinterland.HinterlandError):
            pool.list()
        deadline = time.monotonic() + 10
        with pytest.raises(hinterland.HinterlandError):
            while time.monotonic() < deadline:
                pool.write(address, b"to nobody")


# --- the package ------------------------------------------------------------------------------------------------


def test_the_stub_has_what_the_compiled_module_has(hinterland):
    native = importlib.import_module("hinterland._native")
    stub = ast.parse((TREE / "python/hinterland/_native.pyi").read_text())
    # A protocol says what the caller's own objects have.
    is_own = lambda item: isinstance(item, ast.ClassDef) and "Protocol" not in map(ast.unparse, item.bases)
    classes = {item.name: item for item in stub.body if is_own(item)}
    assert set(classes) == {name for name in dir(native) if isinstance(getattr(native, name), type)}
    unseen = {"__new__", "__buffer__", "__release_buffer__", "__module__", "__doc__", "__repr__"}
    for name, item in classes.items():
        declared = {part.name for part in item.body if isinstance(part, ast.FunctionDef)}
        assert declared - unseen == set(vars(getattr(native, name))) - unseen, name


def test_the_example_runs(hinterland, two_racks):
    for rack in ("a", "b"):
        environment = {**os.environ, "HINTERLAND_SOCKET": str(two_racks[0].socket), "PYTHONPATH": str(TREE / "python")}
        command = [sys.executable, TREE / "examples/python/numpy_weights.py", rack]
        outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert outcome.returncode == 0, outcome.stderr
        assert "the same product: True" in outcome.stdout and f"into rack {rack}" in outcome.stdout
