"""Queues of KV batches from Python: event loops wait for them, memory stays until it is answered for, full ones say so."""

import asyncio
import ctypes
import errno
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy
import pytest
from conftest import TREE
from faults import wait_until

# Leaves the interpreter while batches are on their way.
LEAVER = """
import os, sys, hinterland
kv = hinterland.Pool(sys.argv[1]).kv("model")
queue = kv.queue()
for number in range(100):
    queue.submit_put([number.to_bytes(8, "little")], [bytes(1 << 20)])
child = os.fork()
if child == 0:
    try:
        queue.drain()
    except ConnectionError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("left", flush=True)
"""


@pytest.fixture
def kv(hinterland, node):
    """The blocks of a model on a node of its own."""
    with hinterland.Pool(node.socket) as pool, pool.kv("model") as kv:
        yield kv


def answered(queue, count=1):
    """Waits for answers, in the order of the batches."""
    answers, deadline = [], time.monotonic() + 30
    while len(answers) < count:
        ready, _, _ = select.select([queue], [], [], deadline - time.monotonic())
        assert ready, "no answer came"
        answers += queue.drain()
    assert len(answers) == count
    return sorted(answers)


def keys_of(count):
    return [number.to_bytes(32, "little") for number in range(count)]


def test_an_event_loop_waits_for_many_batches_at_once(kv):
    cache = numpy.random.default_rng(1).integers(0, 255, (6, 2, 64, 512), dtype="uint8")
    loaded = numpy.zeros_like(cache)
    views = [cache[:, :, block] for block in range(64)]

    async def work():
        loop, waiting = asyncio.get_running_loop(), {}
        queue = kv.queue(workers=2)

        def answers():
            for batch, done, error, outcomes in queue.drain():
                future = waiting.pop(batch)
                future.set_result(outcomes) if done else future.set_exception(RuntimeError(error))

        def future_of(batch):
            waiting[batch] = loop.create_future()
            return waiting[batch]

        loop.add_reader(queue.fileno(), answers)
        keys = keys_of(64)
        parts = [slice(first, first + 8) for first in range(0, 64, 8)]
        stored = await asyncio.gather(*(future_of(queue.submit_put(keys[part], views[part])) for part in parts))
        there = await future_of(queue.submit_exists([*keys, b"none"]))
        into = [loaded[:, :, block] for block in range(64)]
        hits = await asyncio.gather(*(future_of(queue.submit_get(keys[part], into[part])) for part in parts))
        removed = await future_of(queue.submit_remove([keys[0], b"none"]))
        with pytest.raises(RuntimeError, match="hint:"):
            await future_of(queue.submit_get([keys[1]], [bytearray(3)]))
        loop.remove_reader(queue.fileno())
        queue.close()
        return stored, there, hits, removed

    stored, there, hits, removed = asyncio.run(asyncio.wait_for(work(), 60))
    assert stored == hits == [[True] * 8] * 8 and there == [True] * 64 + [False] and removed == [True, False]
    assert (loaded == cache).all()
    assert kv.match_prefix(keys_of(1)) == 0


def test_all_that_is_done_by_keys_is_done_by_a_queue_too(kv, node):
    keys = keys_of(6)
    with kv.queue(workers=2) as queue:
        def answer(number):
            [(batch, done, why, answers)] = answered(queue)
            assert (batch, done, why) == (number, True, None)
            return answers

        kv.put(keys[:4], [bytes([place]) * 5000 for place in range(4)])
        assert answer(queue.submit_match_prefix(keys)) == [True] * 4 + [False] * 2
        assert answer(queue.submit_match_prefix([keys[0], keys[5], keys[1]])) == [True, False, False]
        assert answer(queue.submit_match_prefix(keys, remote=True)) == [True] * 4 + [False] * 2
        assert answer(queue.submit_fetch(keys)) == [True] * 4 + [False] * 2
        assert answer(queue.submit_pin(keys[:5])) == [True] * 4 + [False]
        assert node.json("kv", "stat")[0]["pinned_bytes"] > 0
        # Whichever worker it comes to: pins are the queue's.
        for _ in range(8):
            assert answer(queue.submit_pin(keys[:1])) == answer(queue.submit_unpin(keys[:1])) == [True]
        assert answer(queue.submit_unpin([keys[3], keys[3], keys[4]])) == [True, False, False]
        assert answer(queue.submit_clear()) == []
        # Whoever reads on has them: what is pinned stays.
        assert kv.exists(keys) == [True] * 3 + [False] * 3
    assert node.json("kv", "stat")[0]["pinned_bytes"] == 0, "its pins ended with the queue"


def test_numbers_out_of_range_are_refused_with_the_range_and_the_argument(kv, node, hinterland):
    with hinterland.Pool(node.socket) as pool:
        for call, name, words in (
            (lambda: kv.queue(workers=0), "workers", "0 is out of range (hint: 1 to 64 are possible)"),
            (lambda: kv.queue(workers=65), "workers", "65 is"),
            (lambda: kv.queue(depth=-1), "depth", "1 to 65536"),
            (lambda: kv.limit(-1), "quota_bytes", "-1 is out of range"),
            (lambda: kv.limit(None, priority=256), "priority", "0 to 255"),
            (lambda: kv.events(1 << 64), "after", "0 to 18446744073709551615"),
            (lambda: pool.put("a", b"a", copies=0), "copies", "1 to 8"),
            (lambda: pool.alloc(-1), "bytes", "-1 is"),
            (lambda: pool.create_region("b", 10**60), "bytes", "1000000000000"),
            (lambda: pool.read(-1, 8), "address", "-1 is"),
        ):
            with pytest.raises(ValueError) as refused:
                call()
            assert words in str(refused.value) and "hint:" in str(refused.value), refused.value
            assert any(f"'{name}'" in note for note in refused.value.__notes__), (name, refused.value.__notes__)
        with pytest.raises(TypeError):
            kv.queue(workers="2")
    assert kv.limit(None, 100) == 0


def test_a_queue_finds_and_brings_blocks_of_another_rack(two_racks, hinterland):
    a, b = two_racks
    keys = keys_of(3)
    with hinterland.Pool(a.socket) as near, hinterland.Pool(b.socket) as home, near.kv("model") as kv, home.kv("model") as theirs:
        theirs.put(keys[:2], [b"one" * 1000, b"two" * 1000])
        deadline = time.monotonic() + 30
        while kv.match_prefix(keys, remote=True) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        with kv.queue() as queue:
            queue.submit_match_prefix(keys)
            assert answered(queue)[0][3] == [False] * 3
            queue.submit_match_prefix(keys, remote=True)
            assert answered(queue)[0][3] == [True, True, False]
            queue.submit_fetch(keys)
            assert answered(queue)[0][3] == [True, True, False]
        assert (kv.get(keys[0]), kv.get(keys[1])) == (b"one" * 1000, b"two" * 1000)


def test_buffers_live_until_their_answer_is_drained(kv):
    class Array(numpy.ndarray):
        """An array that can be watched."""

    with kv.queue() as queue:
        array = numpy.full(100_000, 7, "uint8").view(Array)
        watched = weakref.ref(array)
        queue.submit_put([b"k"], [[array[:50_000], array[50_000:]]])
        del array
        gc.collect()
        assert watched() is not None
        assert answered(queue) == [(1, True, None, [True])]
        gc.collect()
        assert watched() is None
        assert kv.get(b"k") == bytes([7]) * 100_000


def test_a_block_goes_into_a_list_of_views_and_into_memory_by_address(kv, hinterland):
    data = numpy.random.default_rng(2).integers(0, 255, 4 * 1000, dtype="uint8")
    layers = [numpy.zeros((3, 1000), "uint8") for _ in range(4)]
    assert kv.put([b"k"], [[data[:1500], data[1500:]]]) == [True]
    assert kv.get(b"k") == data.tobytes()
    assert kv.get_into([b"k"], [[layer[1] for layer in layers]]) == [True]
    assert (numpy.concatenate([layer[1] for layer in layers]) == data).all()
    assert not any(layer[0].any() or layer[2].any() for layer in layers)
    into = (ctypes.c_uint8 * 4000)()
    memory = hinterland.Fragments([ctypes.addressof(into) + 2000, ctypes.addressof(into)], [2000, 2000], owner=into)
    assert memory.nbytes == 4000 and kv.get_into([b"k"], [memory]) == [True]
    assert bytes(into) == data[2000:].tobytes() + data[:2000].tobytes()
    assert kv.put([b"n"], [memory]) == [True] and kv.get(b"n") == data.tobytes()


def test_a_part_of_a_block_is_read_from_any_byte_on(kv):
    kv.put([b"k", b"m"], [bytes(range(100)), b"short"])
    into = [bytearray(10), bytearray(10), bytearray(10), bytearray(10), bytearray(10)]
    assert kv.read_into([b"k", b"k", b"m", b"none", b"m"], into, [20, 95, 0, 0, 9]) == [100, 100, 5, None, 5]
    assert into[:3] == [bytearray(range(20, 30)), bytearray(range(95, 100)) + bytes(5), bytearray(b"short") + bytes(5)]
    assert into[4] == bytes(10)
    assert kv.lengths([b"k", b"none", b"m"]) == [100, None, 5]
    assert kv.read_into([b"k"], [bytearray(0)]) == [100]


def test_parts_of_one_block_are_read_at_once(kv, hinterland):
    kv.put([b"k", b"m"], [bytes(range(100)), b"short"])
    into = [bytearray(3) for _ in range(5)]
    assert kv.read_ranges([b"k", b"m", b"none", b"k"], [into[:2], into[2:4], into[4:], []],
                          [[10, 98], [0, 3], [0], []]) == [100, 5, None, 100]
    assert into == [bytearray([10, 11, 12]), bytearray([98, 99, 0]), b"sho", b"rt\0", bytes(3)]
    for wrong in (([b"k"], [into[:1]], [[0, 1]]), ([b"k"], [], [[0]]), ([b"k", b"m"], [into[:1]], [[0]])):
        with pytest.raises(hinterland.HinterlandError, match="hint:"):
            kv.read_ranges(*wrong)


def test_a_program_can_see_that_its_node_has_gone(kv, node):
    kv.put([b"k"], [b"v"])
    assert not kv.is_lost()
    node.kill()
    assert kv.is_lost()
    node.start()
    assert kv.is_lost()


def test_keys_are_those_of_the_namespace_that_are_there(kv, node, hinterland):
    kv.put([b"one", b"two" * 20, b"three"], [b"1", b"2", b"3"])
    kv.remove([b"three"])
    with hinterland.Pool(node.socket) as pool, pool.kv("another") as other:
        other.put([b"foreign"], [b"x"])
        assert other.keys() == [b"foreign"]
    assert sorted(kv.keys()) == [b"one", b"two" * 20]


def test_a_full_queue_refuses_or_waits(kv, node, hinterland):
    refusing, waiting = kv.queue(workers=1, depth=2), kv.queue(workers=1, depth=2, wait=True)
    node.process.send_signal(signal.SIGSTOP)
    try:
        # A put needs the node, so nothing is done now.
        assert [refusing.submit_put([bytes([number])], [b"x"]) for number in (1, 2)] == [1, 2]
        with pytest.raises(hinterland.HinterlandError) as failure:
            refusing.submit_put([b"z"], [b"x"])
        assert failure.value.errno == errno.EAGAIN and "again" in failure.value.hint
        waker = subprocess.Popen([sys.executable, "-c", "import os, sys, time; time.sleep(0.3); os.kill(int(sys.argv[1]), 18)",
                                  str(node.process.pid)])
        assert [waiting.submit_put([b"w%d" % number], [b"x"]) for number in range(5)] == [1, 2, 3, 4, 5]
        waker.wait()
        node.process.send_signal(signal.SIGSTOP)
        # The two that fit, and one that waits until the program is interrupted.
        interrupter = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            for number in range(5, 10):
                waiting.submit_put([b"w%d" % number], [b"x"])
        interrupter.join()
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert [answer[1] for answer in answered(refusing, 2)] == [True] * 2
    waiting.submit_put([b"last"], [b"x"])
    wait_until(lambda: kv.exists([b"last"]) == [True])
    # No batch of those that were interrupted comes later.
    answers = waiting.drain()
    assert [answer[0] for answer in sorted(answers)] == list(range(1, len(answers) + 1)) and all(answer[1] for answer in answers)
    refusing.close(), waiting.close()


def test_a_queue_of_a_stopped_node_is_closed_without_it(kv, node, hinterland):
    queue = kv.queue(workers=2, depth=8)
    kv.put([b"here"], [b"x"])
    node.process.send_signal(signal.SIGSTOP)
    try:
        for number in range(4):
            queue.submit_put([b"p%d" % number], [b"x"])
        closing = threading.Thread(target=queue.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    finally:
        node.process.send_signal(signal.SIGCONT)
    # The session of the program itself goes on.
    assert kv.put([b"later"], [b"x"]) == [True] and kv.exists([b"here", b"later"]) == [True, True]


def test_wrong_batches_are_refused_before_they_wait(kv, hinterland):
    with kv.queue() as queue:
        for wrong in (lambda: queue.submit_put([b""], [b"x"]), lambda: queue.submit_exists([b"k" * 65]),
                      lambda: queue.submit_get([b"k", b"l"], [bytearray(1)]),
                      lambda: hinterland.Fragments([1], []), lambda: hinterland.Fragments([0], [1])):
            with pytest.raises(hinterland.HinterlandError) as failure:
                wrong()
            assert failure.value.errno == errno.EINVAL and failure.value.hint
        for wrong in (lambda: queue.submit_get([b"k"], [b"four"]), lambda: queue.submit_put([b"n"], [7]),
                      lambda: queue.submit_get([b"k"], [hinterland.Fragments([4096], [1], writable=False)]),
                      lambda: pickle.dumps(queue)):
            with pytest.raises(TypeError):
                wrong()
        queue.submit_put([b"n"], [bytes(5 << 20)])
        ((_, done, error, outcomes),) = answered(queue)
        assert not done and "hint:" in error and outcomes == []
    with pytest.raises(ConnectionError, match="closed"):
        queue.drain()
    queue.close()


def test_a_program_that_leaves_with_batches_on_their_way_ends_at_once(kv, node):
    outcome = subprocess.run([sys.executable, "-c", LEAVER, node.socket], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "PYTHONPATH": str(TREE / "python")})
    assert (outcome.returncode, outcome.stdout) == (0, "left\n"), outcome.stderr
    # Nothing that it had reserved is held.
    deadline = time.monotonic() + 10
    while node.json("kv", "stat")[0]["reserved"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
