"""The store class of Mooncake over KV blocks: the peer's answers to the same calls, values longer than a block, hostile pointers.

`tests/programs/mooncake_calls.jsonl` is what Mooncake 0.3.13.post1 answered to `mooncake_calls.py`. Where Mooncake is installed
(`bench/kv/prepare.sh`) it is asked again.
"""

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import TREE
from faults import wait_until
from loopback import free_port

MEBIBYTE = 1 << 20
PROGRAMS = TREE / "tests/programs"
PEER = TREE / ".cache/bench/mooncake"
# Puts one value under one name again and again, each time with other bytes: all of one writing are alike.
WRITER = """
import itertools, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "", 0, 0, "tcp", "", sys.argv[1]) == 0
print("begun", flush=True)
for number in itertools.count(int(sys.argv[2])):
    store.upsert("value", bytes([number % 251]) * int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def shim(hinterland):
    """The folder that holds `mooncake/store.py`."""
    outcome = subprocess.run([sys.executable, "-m", "hinterland.compat.mooncake", "--path"], capture_output=True, text=True,
                             check=True, env={**os.environ, "PYTHONPATH": str(TREE / "python")})
    return pathlib.Path(outcome.stdout.strip())


@pytest.fixture
def environment(shim):
    """What a program that knows only of Mooncake runs with."""
    return {**os.environ, "PYTHONPATH": f"{shim}:{TREE / 'python'}"}


@pytest.fixture
def open_store(hinterland, node):
    """A function that opens stores over the blocks of a node; they are closed with the test."""
    from hinterland.compat.mooncake import MooncakeDistributedStore

    with contextlib.ExitStack() as opened:
        def start(tenant="default", socket=node.socket):
            store = MooncakeDistributedStore()
            assert store.setup("localhost", "P2PHANDSHAKE", 16 * MEBIBYTE, 16 * MEBIBYTE, "tcp", "", str(socket),
                               tenant_id=tenant) == 0
            opened.callback(store.close)
            return store
        yield start


@pytest.fixture
def store(open_store):
    """A store over the blocks of a node of its own."""
    return open_store()


def memory(store, size, data=b""):
    """Registered memory that starts with `data`, and its address."""
    place = (ctypes.c_ubyte * size)()
    ctypes.memmove(place, data, len(data))
    assert store.register_buffer(ctypes.addressof(place), size) == 0
    return place, ctypes.addressof(place)


def answers(outcome):
    return [line for line in outcome.stdout.splitlines() if line.startswith("[")]


def test_every_call_is_answered_as_mooncake_answers_it(node, environment):
    outcome = subprocess.run([sys.executable, PROGRAMS / "mooncake_calls.py", node.socket, "", "0"], env=environment,
                             capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    expected = (PROGRAMS / "mooncake_calls.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(expected) > 200
    assert answers(outcome) == expected


@pytest.mark.skipif(not PEER.exists(), reason="no Mooncake here (hint: bench/kv/prepare.sh)")
def test_mooncake_itself_still_answers_so():
    port, metrics = free_port(), free_port()
    (program,) = PEER.glob("lib/python3*/site-packages/mooncake/mooncake_master")
    master = subprocess.Popen([program, f"--rpc_port={port}", f"--metrics_port={metrics}", "--default_kv_lease_ttl=300"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        outcome = subprocess.run([PEER / "bin/python", PROGRAMS / "mooncake_calls.py", f"127.0.0.1:{port}", "P2PHANDSHAKE", "0.6"],
                                 capture_output=True, text=True, timeout=120)
    finally:
        master.kill()
        master.wait()
    assert outcome.returncode == 0, outcome.stderr
    assert answers(outcome) == (PROGRAMS / "mooncake_calls.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.skipif(not PEER.exists(), reason="no Mooncake here (hint: bench/kv/prepare.sh)")
def test_mooncakes_own_asynchronous_store_runs_on_ours(node, environment):
    # Its package has the module; the store beneath is ours.
    program = """
import asyncio, sys
from mooncake.async_store import MooncakeDistributedStoreAsync
import mooncake.store, mooncake.async_store
assert "hinterland" in mooncake.store.__file__ and "bench" in mooncake.async_store.__file__
async def work():
    store = MooncakeDistributedStoreAsync()
    assert await store.async_setup("localhost", "", 0, 0, "tcp", "", sys.argv[1]) == 0
    await asyncio.gather(*(store.async_put(f"k{number}", bytes([number]) * 5_000_000) for number in range(4)))
    got = await asyncio.gather(*(store.async_get(f"k{number}") for number in range(5)))
    assert got == [bytes([number]) * 5_000_000 for number in range(4)] + [b""]
    print("right")
asyncio.run(work())
"""
    outcome = subprocess.run([PEER / "bin/python", "-c", program, node.socket], env=environment, capture_output=True,
                             text=True, timeout=60)
    assert outcome.stdout == "right\n", outcome.stderr


def test_a_value_is_never_a_mixture_while_it_is_replaced_and_evicted(store, node, environment):
    size = 11 * MEBIBYTE
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, node.socket, str(first), str(size)], env=environment,
                                stdout=subprocess.PIPE, text=True) for first in (0, 100)]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "begun\n"
        place, start = memory(store, size)
        seen, misses, deadline = set(), 0, time.monotonic() + 6
        while time.monotonic() < deadline or (len(seen) < 3 and time.monotonic() < deadline + 30):
            got = store.get_into("value", start, size)
            if got == size:
                data = bytes(place)
                assert data == data[:1] * size
                seen.add(data[0])
            else:
                assert got == -704, got
                misses += 1
            ranges = store.get_into_ranges([start], [["value"]], [[[0, 10, 20]]], [[[0, 5 * MEBIBYTE, size - 10]]], [[[10] * 3]])
            if ranges == [[[10] * 3]]:
                assert bytes(place[:30]) == bytes(place[:1]) * 30
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
    assert len(seen) >= 3


# Long under long, short under short, and both in turn, by one writer.
@pytest.mark.parametrize("sizes", [[1000], [9 * MEBIBYTE], [1000, 9 * MEBIBYTE]], ids=["short", "long", "both"])
def test_a_value_that_is_replaced_is_there_all_the_time(store, open_store, sizes):
    assert store.upsert("value", b"\1" * sizes[0]) == 0
    ended, written, codes = threading.Event(), [], []

    def write():
        other = open_store()
        while not ended.is_set():
            number = len(written) % 250 + 1
            codes.append(other.upsert("value", bytes([number]) * sizes[len(written) % len(sizes)]))
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    try:
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline or (len(seen) < 5 and time.monotonic() < deadline + 30):
            data = store.get("value")
            assert len(data) in sizes, f"{len(data)} bytes after {len(written)} writings"
            assert data == data[:1] * len(data)
            seen.add(data[0])
    finally:
        ended.set()
        writer.join()
    assert len(seen) >= 5 and set(codes) == {0}
    assert store.get("value")[:1] == bytes([written[-1]])
    assert store.remove("value") == 0 and store.get("value") == b""


@pytest.mark.parametrize("size", [1000, 5 * MEBIBYTE], ids=["short", "long"])
def test_a_value_that_came_while_others_of_a_batch_were_written_stays_as_it_is(store, node, size):
    # Two programs that put the same batch, one a value behind the other, do the same as one that names a key twice.
    first, second = b"1" * size, b"2" * size
    assert store.put_batch(["k", "other", "k"], [first, b"value", second]) == 0
    assert store.get("k") == first
    assert store.remove("k") == 0 and store.remove("other") == 0
    (counted,) = node.json("kv", "stat")
    assert counted["blocks"] == 0


def test_a_head_that_names_more_parts_than_a_value_may_have_is_none(store):
    from hinterland.compat.values import BLOCK_BYTES_MAX, PARTS_MAX, Head, Put, named

    name, number = named("k"), bytes(16)
    # Any program of the user can write one; a list of its parts would take more memory than there is.
    for size, part_bytes in ((0, 0), (1 << 62, BLOCK_BYTES_MAX), (1 << 40, 1), (PARTS_MAX * BLOCK_BYTES_MAX + 1, BLOCK_BYTES_MAX)):
        assert store._values.kv.replace([name.head], [Head(size, part_bytes, number, b"k").block()]) == [True]
        assert store.is_exist("k") == 0 and store.get("k") == b"" and store.get_size("k") == -704
    assert store.put("k", b"v" * (5 * MEBIBYTE)) == 0 and store.get("k") == b"v" * (5 * MEBIBYTE)
    # Nothing of memory that is too long is looked at.
    assert store._values.put([named("long")], [[(4096, PARTS_MAX * BLOCK_BYTES_MAX + 1)]]) == [Put.REFUSED]


def test_values_of_many_parts_lose_to_eviction_whole(store, node):
    data = [bytes([number]) * (9 * MEBIBYTE) for number in range(60)]
    for number, value in enumerate(data):
        assert store.put(f"k{number}", value) == 0
    there = store.batch_is_exist([f"k{number}" for number in range(60)])
    assert 0 < sum(there) < 60, "the store must be smaller than all of them"
    for number, value in enumerate(data):
        # Nobody else is here: what is there stays there, and a value with a hole is not there.
        assert store.get(f"k{number}") == (value if there[number] else b"")
        assert store.get_size(f"k{number}") == (len(value) if there[number] else -704)
    lost = there.index(0)
    assert store.put(f"k{lost}", b"short now") == 0 and store.get(f"k{lost}") == b"short now"
    lost = there.index(0, lost + 1)
    assert store.put(f"k{lost}", data[1]) == 0 and store.get(f"k{lost}") == data[1]
    assert store.remove_all() > 2
    (counted,) = node.json("kv", "stat")
    assert counted["blocks"] == 0 and counted["reserved"] == 0


def test_what_is_larger_than_the_store_has_no_room_and_leaves_nothing(store, node):
    assert store.put("k", bytes(300 * MEBIBYTE)) == -200
    assert store.is_exist("k") == 0 and store.get("k") == b""
    assert store.put("k", b"small") == 0


def test_memory_that_is_not_registered_is_never_touched(store):
    place, start = memory(store, 1000, b"0123456789")
    assert store.put("k", bytes(range(100))) == 0
    other = (ctypes.c_ubyte * 1000)()
    address = ctypes.addressof(other)
    for wrong, size in ((address, 100), (start + 901, 100), (start - 1, 100), (0, 100), (-5, 10), (start, -1), (start, 1001)):
        assert store.put_from("n", wrong, size) == -600
        assert store.get_into("k", wrong, size) == -600
        assert store.get_into_ranges([wrong], [["k"]], [[[0]]], [[[0]]], [[[size]]]) == [[[-600]]]
        assert store.batch_get_into_multi_buffers(["k"], [[start, wrong]], [[10, size]]) == [-600]
    assert store.batch_get_into(["k", "k"], [address, start], [100, 100]) == [-600, 100]
    assert bytes(other) == bytes(1000) and bytes(place[:100]) == bytes(range(100)) and store.is_exist("n") == 0
    # Memory that is too short stays as it was.
    ctypes.memset(place, 7, 1000)
    assert store.get_into("k", start, 99) == -600 and bytes(place) == bytes([7]) * 1000
    assert store.get_into_ranges([start], [["k"]], [[[990]]], [[[0]]], [[[11]]]) == [[[-600]]]
    assert store.get_into_ranges([start], [["k"]], [[[0]]], [[[-1]]], [[[1]]]) == [[[-600]]]
    assert store.unregister_buffer(start) == 0 and store.get_into("k", start, 100) == -600


def test_what_is_no_memory_of_the_host_is_refused_and_the_program_goes_on(node, environment):
    # As the drivers of GPUs do it: addresses that are taken, and that nobody can read. In a program of its own, which such an
    # address would end.
    program = """
import ctypes, mmap, os, sys, tempfile
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "", 0, 0, "tcp", "", sys.argv[1]) == 0
assert store.put("k", b"v" * 100) == 0
PAGE = mmap.PAGESIZE
area = mmap.mmap(-1, 8 * PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
protect = ctypes.CDLL(None).mprotect
assert protect(ctypes.c_void_p(start + 2 * PAGE), ctypes.c_size_t(2 * PAGE), 0) == 0
with tempfile.TemporaryFile() as short:
    short.write(b"x")
    short.flush()
    beyond = mmap.mmap(short.fileno(), 1)
    os.ftruncate(short.fileno(), 0)
gone = ctypes.addressof(ctypes.c_char.from_buffer(beyond))
top = 1 << 64
wrong = [(start, 8 * PAGE), (start + 2 * PAGE, PAGE), (start + PAGE, PAGE + 1), (start + 4 * PAGE - 1, 2), (gone, 1), (8, 100),
         (0x600000000000, 100), (top - 100, 100), (top, 100), (start, top)]
for place, size in wrong:
    assert store.register_buffer(place, size) == -600, (hex(place), size)
    assert store.put_from("n", place, size) == -600 and store.get_into("k", place, size) == -600
assert store.register_buffer(start, 2 * PAGE) == 0 and store.register_buffer(start + 4 * PAGE, 4 * PAGE) == 0
assert store.get_into("k", start + 4 * PAGE, 100) == 100 and area[4 * PAGE:4 * PAGE + 100] == b"v" * 100
print("right", len(wrong))
"""
    outcome = subprocess.run([sys.executable, "-c", program, node.socket], env=environment, capture_output=True, text=True, timeout=60)
    assert outcome.stdout == "right 10\n", (outcome.returncode, outcome.stderr)
    said = [line for line in outcome.stderr.splitlines() if "register_buffer:" in line]
    assert len(said) == 10 and all("memory of the host" in line and "hint:" in line for line in said)


def test_a_value_is_gathered_from_pieces_and_scattered_to_others(store):
    data = bytes(index % 251 for index in range(10 * MEBIBYTE))
    place, start = memory(store, 30 * MEBIBYTE, data)
    pieces = [(start + 7, 3 * MEBIBYTE), (start + 5 * MEBIBYTE, 1), (start + 6 * MEBIBYTE, 3 * MEBIBYTE + 11)]
    starts, sizes = [piece[0] for piece in pieces], [piece[1] for piece in pieces]
    whole = b"".join(ctypes.string_at(*piece) for piece in pieces)
    for key in ("short name", "a name of more than 62 bytes" * 3):
        assert store.batch_put_from_multi_buffers([key], [starts], [sizes]) == [0]
        assert store.get(key) == whole and bytes(store.get_buffer(key)) == whole
        into = start + 10 * MEBIBYTE
        ctypes.memset(into, 0, 20 * MEBIBYTE)
        # More room than bytes: the rest stays as it is.
        assert store.batch_get_into_multi_buffers([key], [[into, into + 9 * MEBIBYTE]], [[100, 9 * MEBIBYTE]]) == [len(whole)]
        assert ctypes.string_at(into, 101) == whole[:100] + b"\0"
        assert ctypes.string_at(into + 9 * MEBIBYTE, 9 * MEBIBYTE) == whole[100:] + bytes(9 * MEBIBYTE - len(whole) + 100)


@pytest.mark.parametrize("name", ["k", "k" * 62, "k" * 63, "k" * 5000, "ключ", "\0", "é" * 40, "\ud800"])
def test_names_of_any_length_and_letters(store, name):
    for size in (1, 100, 4 * MEBIBYTE - 64, 4 * MEBIBYTE, 5 * MEBIBYTE):
        value = os.urandom(size)
        place, start = memory(store, size + 100)
        assert store.put(name, value) == 0 and store.get(name) == value and store.get_size(name) == size
        assert store.get_into(name, start, size + 100) == size
        assert bytes(place) == value + bytes(100), "nothing behind the value is written"
        assert store.is_exist(name[:-1] + "x") == 0
        assert list(store._values.names()) == [name]
        assert store.remove(name) == 0 and store.is_exist(name) == 0
        store.unregister_buffer(start)


def test_tenants_never_meet(open_store):
    one, two = open_store("one"), open_store("two")
    assert one.put("k", b"ones") == 0 and two.is_exist("k") == 0 and two.put("k", b"twos") == 0
    assert (one.get("k"), two.get("k")) == (b"ones", b"twos")
    assert one.remove_all() == 1 and two.get("k") == b"twos"


def test_a_store_without_a_node_says_so_and_one_whose_node_came_back_goes_on(hinterland, folder, node, open_store):
    from hinterland.compat.mooncake import MooncakeDistributedStore

    nowhere = MooncakeDistributedStore()
    assert nowhere.setup("localhost", "", 0, 0, "tcp", "", str(folder / "none.sock")) < 0
    assert nowhere.put("k", b"v") < 0 and nowhere.get("k") == b"" and nowhere.is_exist("k") == -1
    assert nowhere.health_check() == 1 and nowhere.close() == 0
    assert nowhere.setup({"local_hostname": "localhost", "global_segment_size": "50%"}) < 0

    store = open_store()
    assert store.setup({"local_hostname": "localhost", "global_segment_size": "16 MB", "local_buffer_size": "16MB",
                        "master_server_addr": str(node.socket)}) == 0
    host, port = store.get_hostname().split(":")
    assert host == "localhost" and 12300 <= int(port) <= 14300
    assert store.put("k", b"before") == 0 and store.health_check() == 0
    node.kill()
    assert store.put("n", b"v") < 0 and store.health_check() < 0
    node.start()
    wait_until(lambda: store.get("k") == b"before", why="what was put outlives the node, and is found once it is checked")
    assert store.put("n", b"after") == 0 and store.get("n") == b"after" and store.health_check() == 0


def test_threads_share_a_store(store):
    failures = []

    def work(number):
        for round_ in range(30):
            key, value = f"{number}-{round_}", bytes([number]) * (round_ * 10_000 + 1)
            if store.put(key, value) != 0 or store.get(key) != value or store.remove(key) != 0:
                failures.append(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_memory_that_there_is_not_is_a_code_and_no_exception(store, size):
    assert store.alloc_from_mem_pool(size) == 0
    assert store.batch_put_session_start(["a", "b"], [size, 10]) == [-200, 0]
    assert store.batch_put_session_end(["a", "b"]) == [-600, 0]


def test_no_thread_loses_the_memory_that_another_registers(hinterland):
    from hinterland.compat.mooncake.memory import Registered

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            registered, barrier = Registered(), threading.Barrier(8)

            def work(number, registered=registered, barrier=barrier):
                barrier.wait()
                for index in range(20):
                    assert registered.add((number + 1 << 20) + 100 * index, 100)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            starts = [(number + 1 << 20) + 100 * index for number in range(8) for index in range(20)]
            assert registered.covers_all(starts, [100] * len(starts))
    finally:
        sys.setswitchinterval(before)


def test_a_value_that_is_no_bytes_is_refused_with_what_to_pass(store):
    with pytest.raises(TypeError, match=r"not a str \(hint: pass value.encode\(\)\)"):
        store.put("k", "text")
    with pytest.raises(TypeError, match=r"not of type int \(hint: pass bytes"):
        store.upsert_parts("k", b"a", 3)
    numpy = pytest.importorskip("numpy")
    # Its bytes are addresses of this process.
    with pytest.raises(TypeError, match="objects of Python"):
        store.put_batch(["k", "l"], [b"a", numpy.array([None, "x"], dtype=object)])
    assert store.get_batch(["k", "l"]) == [b"", b""]
    assert store.put("k", numpy.arange(3, dtype="u1")) == 0 and store.get("k") == bytes([0, 1, 2])
