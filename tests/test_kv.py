"""KV blocks from Python: shared by processes, in views of any stride, gone with nobody but their node."""

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
from conftest import TREE

MEBIBYTE = 1 << 20
# A second engine: says what it finds of a prefix, and the sum of it.
READER = """
import sys, numpy, hinterland
with hinterland.Pool(sys.argv[1]) as pool, pool.kv("model") as kv:
    keys = [number.to_bytes(32, "little") for number in range(int(sys.argv[2]))]
    found = kv.match_prefix(keys)
    cache = numpy.zeros((2, found, 128), "float32")
    assert all(kv.get_into(keys[:found], [cache[:, block] for block in range(found)]))
    print(found, float(cache.sum()))
"""
# A writer that dies in the middle of everything.
WRITER = """
import os, sys, hinterland
kv = hinterland.Pool(sys.argv[1]).kv("model")
print("begun", flush=True)
block = os.urandom(1 << 20)
for number in range(10**9):
    kv.put([os.urandom(16) for _ in range(8)], [block] * 8)
"""


@pytest.fixture(params=["hardware", "software"])
def node(start_node, request):
    """A node that leaves its memory to the caches, and one that moves lines by hand."""
    return start_node("a", options=["--capacity", "256M", "--coherence", request.param])


@pytest.fixture
def kv(hinterland, node):
    """The blocks of a model on a node of its own."""
    with hinterland.Pool(node.socket) as pool, pool.kv("model") as kv:
        yield kv


def environment():
    return {**os.environ, "PYTHONPATH": str(TREE / "python")}


def keys_of(count):
    return [number.to_bytes(32, "little") for number in range(count)]


def test_another_process_finds_the_prefix_and_its_bytes(kv, node):
    cache = numpy.arange(2 * 40 * 128, dtype="float32").reshape(2, 40, 128)
    assert kv.put(keys_of(40), [cache[:, block] for block in range(40)]) == [True] * 40
    outcome = subprocess.run([sys.executable, "-c", READER, node.socket, "50"], env=environment(),
                             capture_output=True, text=True, timeout=60)
    assert outcome.stdout.split() == ["40", str(float(cache.sum()))], outcome.stderr


def test_views_of_any_stride_come_back_as_they_went(kv):
    whole = numpy.random.default_rng(1).integers(0, 1 << 31, (6, 5, 4, 8))
    views = [whole[1], whole[:, 2], whole[:, :, 3], whole[::2, ::-1], whole[..., 3], whole[..., ::3], whole[2, 3, 1, 5:6]]
    keys = keys_of(len(views))
    assert kv.put(keys, views) == [True] * len(views)
    empty = numpy.zeros_like(whole)
    for key, view in zip(keys, views):
        assert kv.get(key) == view.tobytes()
    for key, view, into in zip(keys, views, [empty[1], empty[:, 2], empty[:, :, 3], empty[::2, ::-1], empty[..., 3],
                                             empty[..., ::3], empty[2, 3, 1, 5:6]]):
        into[...] = 0
        before = empty.copy()
        assert kv.get_into([key], [into]) == [True]
        assert (into == view).all()
        into[...] = 0
        assert (before == empty).all(), "nothing beside the view was written"


def test_the_answers_are_in_the_order_of_the_keys(kv):
    keys = keys_of(5)
    kv.put(keys[:2] + keys[3:4], [b"zero", b"one!", b"three"])
    assert kv.exists(keys) == [True, True, False, True, False]
    assert kv.match_prefix(keys) == 2
    buffers = [bytearray(4), bytearray(4), bytearray(4)]
    assert kv.get_into(keys[:3], buffers) == [True, True, False]
    assert buffers[:2] == [b"zero", b"one!"]
    assert kv.put(keys[:1], [b"more"]) == [True] and kv.get(keys[0]) == b"zero"
    assert kv.remove(keys) == 3 and kv.get(keys[0]) is None
    assert kv.put([], []) == [] and kv.get_into([], []) == [] and kv.match_prefix([]) == 0


def test_wrong_arguments_are_refused(kv, hinterland):
    kv.put([b"k"], [b"four"])
    for wrong in (lambda: kv.put([b""], [b"x"]), lambda: kv.put([b"k" * 65], [b"x"]), lambda: kv.put([b"n"], [b""]),
                  lambda: kv.put([b"n"], [bytes(4 * MEBIBYTE + 1)]), lambda: kv.put([b"n", b"m"], [b"x"]),
                  lambda: kv.get_into([b"k"], [bytearray(5)]), lambda: kv.get_into([b"k"], [bytearray(3)])):
        with pytest.raises(hinterland.HinterlandError) as failure:
            wrong()
        assert failure.value.errno == errno.EINVAL and failure.value.hint, failure.value
    for wrong in (lambda: kv.get_into([b"k"], [b"four"]), lambda: kv.put([b"n"], [7]), lambda: pickle.dumps(kv)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(BufferError, match="share memory"):
        kv.get_into([b"k"], [numpy.lib.stride_tricks.as_strided(numpy.zeros(2, "int8"), (4,), (0,))])
    assert kv.get(b"k") == b"four"


def test_what_is_no_key_is_refused_with_what_one_is(kv):
    one, block = b"key", b"a block"
    with kv.queue() as queue:
        for call in (lambda keys: kv.put(keys, [block]), lambda keys: kv.get_into(keys, [bytearray(7)]), kv.match_prefix, kv.remove,
                     lambda keys: queue.submit_put(keys, [block]), queue.submit_exists):
            for keys in (one, bytearray(one), memoryview(one), "key", 5, None):
                with pytest.raises(TypeError, match=rf"keys are a list of bytes, not {type(keys).__name__} \(hint: `\[key\]` for one\)"):
                    call(keys)
            with pytest.raises(TypeError, match=r"not generator \(hint: `list\(keys\)`\)"):
                call(key for key in [one])
            with pytest.raises(TypeError, match=r"a key is bytes, not str \(hint: `key.encode\(\)`"):
                call(["key"])
            with pytest.raises(TypeError, match=r"a key is bytes, not int \(hint: 1 to 64"):
                call([1])
    with pytest.raises(TypeError, match="a key is bytes, not str"):
        kv.get("key")
    with pytest.raises(TypeError, match="a key is bytes, not str"):
        kv.put([one], [block], prefix=True, after="key")
    # What has the bytes of a key is one, and any sequence has keys.
    assert kv.put((bytearray(one),), (block,)) == [True] and kv.exists([memoryview(one), one]) == [True, True]
    assert kv.get(bytearray(one)) == block


def test_arrays_of_objects_are_refused(kv, hinterland, node):
    pointers = numpy.array([["a text"], None], dtype=object)
    fields = numpy.zeros(2, dtype=[("O", "f4"), ("other", object)])
    kv.put([b"k"], [bytes(pointers.nbytes)])
    with hinterland.Pool(node.socket) as pool:
        region = pool.create_region("r", 4096)
        for array in (pointers, fields, fields["other"]):
            for wrong in (lambda array=array: kv.put([b"n"], [array]), lambda array=array: kv.get_into([b"k"], [array]),
                          lambda array=array: pool.write(region.address, array),
                          lambda array=array: pool.read_into(region.address, array)):
                with pytest.raises(TypeError, match="objects of Python"):
                    wrong()
    assert pointers.tolist() == [["a text"], None]
    # A name of a field is no kind of one.
    named = numpy.ones(2, dtype=[("O", "f4"), ("BOOL", "?")])
    assert kv.put([b"n"], [named]) == [True] and kv.get(b"n") == named.tobytes()


def test_kv_stat_shows_namespaces_and_what_is_in_them(kv, node):
    kv.put(keys_of(3), [bytes(1000), bytes(2000), bytes(3000)])
    (store,) = node.json("kv", "stat")
    assert store["user"] == os.getuid() and store["blocks"] == 3 and store["bytes"] == 6000 and store["reserved"] == 0
    (space,) = store["namespaces"]
    assert space["label"] == "model" and space["blocks"] == 3 and space["bytes"] == 6000
    words = node.run("kv", "stat").stdout
    assert space["namespace"] in words and "model" in words and "3, 0 being written" in words


def test_what_is_closed_says_so(kv):
    kv.close()
    kv.close()
    with pytest.raises(ConnectionError, match="closed"):
        kv.get(b"k")


def test_writers_that_are_killed_leave_no_slot_and_no_half_block(kv, node, hinterland):
    def status():
        with hinterland.Pool(node.socket) as pool:
            return pool.status().sessions
    first = status()
    for round_ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, node.socket], env=environment(),
                                  stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "begun\n"
        time.sleep(0.05 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    deadline = time.monotonic() + 10
    while status() > first:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kv.clear()
    # The whole store can be reserved at once: nothing of the dead holds a slot.
    block = bytes(MEBIBYTE)
    assert kv.put(keys_of(256), [block] * 256) == [True] * 256


def test_a_block_whose_length_changes_is_the_old_or_the_new_one_at_any_moment(kv):
    blocks = [bytes([number]) * (100 + 3000 * number) for number in range(20)]
    kv.replace([b"key"], [blocks[0]])
    is_over = threading.Event()

    def write():
        for number in range(3000):
            assert kv.replace([b"key"], [blocks[number * 7 % 20]]) == [True]
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not is_over.is_set() and writer.is_alive():
            assert kv.get(b"key") in blocks
    finally:
        writer.join()
    assert is_over.is_set()


def test_threads_that_put_and_get_see_whole_blocks(kv):
    stop, wrong, hits = threading.Event(), [], []

    def read():
        into = numpy.zeros(20_000, "int64")
        while not stop.is_set():
            for number in range(0, 600, 7):
                if kv.get_into([number.to_bytes(8, "big")], [into])[0]:
                    hits.append(number)
                    if not (into == number).all():
                        wrong.append(number)
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for round_ in range(4):
        for first in range(0, 3000, 50):
            numbers = [number % 600 for number in range(first, first + 50)]
            kv.put([number.to_bytes(8, "big") for number in numbers], [numpy.full(20_000, number) for number in numbers])
        kv.remove([number.to_bytes(8, "big") for number in range(round_, 600, 4)])
    stop.set()
    for reader in readers:
        reader.join()
    assert hits and not wrong
