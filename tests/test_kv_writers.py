"""Two programs put one block at once: whoever is told that it is there finds it there, whatever becomes of the other."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import MEBIBYTE, TREE
from faults import wait_until

SIZE = 4 * MEBIBYTE - 4096
# Puts a value and removes it, again and again, so that it is in the middle of a put most of the time.
WRITER = """
import sys
from hinterland.compat.mooncake import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "", 0, 0, "tcp", "", sys.argv[1]) == 0
value = bytes([1]) * int(sys.argv[2])
print("begun", flush=True)
while True:
    assert store.put("k", value) == 0
    store.remove("k")
"""


@pytest.fixture
def node(start_node):
    return start_node("a", options=["--capacity", "64M", "--kv-capacity", "64M"])


@contextlib.contextmanager
def stopped_writer(node, kv):
    """A program that is stopped in the middle of a put: it has a slot for the block and has not published it."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, node.socket, str(SIZE)], stdout=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": str(TREE / "python")})
    try:
        assert writer.stdout.readline() == b"begun\n"

        def is_in_the_middle():
            writer.send_signal(signal.SIGSTOP)
            # The node has answered what it had been asked.
            time.sleep(0.05)
            if node.json("kv", "stat")[0]["reserved"] == 1 and kv.exists([b"vkk"]) == [False]:
                return True
            writer.send_signal(signal.SIGCONT)
            time.sleep(0.003)
            return False
        wait_until(is_in_the_middle, 60, "the writer was never caught in a put")
        yield writer
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


@pytest.fixture
def store(hinterland, node):
    from hinterland.compat.mooncake import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    assert store.setup("localhost", "", 0, 0, "tcp", "", str(node.socket)) == 0
    yield store
    store.close()


def blocks_of(store):
    """The blocks beneath a store."""
    return store._values.kv


def test_a_put_that_came_second_holds_though_the_first_writer_is_killed(node, store):
    with stopped_writer(node, blocks_of(store)) as writer:
        killer = threading.Timer(0.1, writer.kill)
        killer.start()
        code = store.put("k", bytes([2]) * SIZE)
        # At once: who was told 0 need not wait.
        data = store.get("k")
        killer.join()
    assert code == 0
    assert data == bytes([2]) * SIZE
    wait_until(lambda: node.json("kv", "stat")[0]["reserved"] == 0, why="a slot is held")


def test_a_put_that_came_second_waits_for_no_writer_that_is_stopped(node, store):
    with stopped_writer(node, blocks_of(store)) as writer:
        assert store.put("k", bytes([2]) * SIZE) == 0
        assert store.get("k") == bytes([2]) * SIZE
        # The first one finds another value in its place, which is as good: it goes on.
        writer.send_signal(signal.SIGCONT)
        wait_until(lambda: store.get("k") == bytes([1]) * SIZE, why=lambda: f"the first writer does not go on: {writer.poll()}")
        assert writer.poll() is None


def test_a_prefix_with_a_block_that_nobody_finishes_is_whole(node, store):
    kv, keys = blocks_of(store), [b"a", b"vkk", b"z"]
    with stopped_writer(node, kv):
        assert kv.put(keys, [b"1", b"2", b"3"], prefix=True) == [True] * 3
        assert kv.exists(keys) == [True] * 3
