"""A `put` that ends in its midst leaves nothing, wherever that is: the room is as before and the name is free."""

import fcntl
import hashlib
import pathlib
import random
import signal
import struct
import subprocess
import termios

import pytest
from conftest import MEBIBYTE
from faults import sha, wait_until

# What a put hands to the nodes at once; what its reader has beyond that they do not have.
CHUNK = 4 * MEBIBYTE
SIZE = 9 * MEBIBYTE + 5
DATA = hashlib.shake_128(b"put").digest(SIZE)
# Around pages of the machine and of the pool, of huge pages and of chunks, and at the end, which nobody has announced.
EDGES = [0, 1, 4095, 4096, 65_535, 65_536, 65_537, 2 * MEBIBYTE - 1, 2 * MEBIBYTE, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, SIZE - 1, SIZE]
OFFSETS = sorted({*EDGES, *random.Random(1).sample(range(SIZE), 5)})


class Pair:
    """Nodes of two racks whose memory is files, so that a test sees what bytes have come."""

    def __init__(self, start_node, folder):
        self.folders = {name: folder / f"memory-{name}" for name in "ab"}
        for path in self.folders.values():
            path.mkdir()
        self.b = start_node("b", options=["--capacity", "64M", "--backing", self.folders["b"]])
        self.a = start_node("a", join=self.b.address, options=["--capacity", "64M", "--backing", self.folders["a"]])

    def files(self, rack):
        """The files of the memory that a node lends."""
        return list(self.folders[rack].rglob("*.bytes"))

    def holds(self, racks, start, end):
        """Whether these nodes have these bytes of the object, the only one that there is."""
        for rack in racks:
            content = [path.read_bytes()[start:end] for path in self.files(rack)]
            if end > start and content != [DATA[start:end]]:
                return False
        return True

    def is_empty(self):
        """Whether no node has reserved or holds anything."""
        nodes = [self.a, self.b]
        return all(node.json("status")["used_bytes"] == 0 for node in nodes) and not any(map(self.files, "ab"))


@pytest.fixture
def pair(start_node, folder):
    return Pair(start_node, folder)


def waits_for_more(put):
    """Whether a put has read what was sent and waits in a read: all that it hands on has arrived then."""
    unread = struct.unpack("i", fcntl.ioctl(put.stdin, termios.FIONREAD, bytes(4)))[0]
    return unread == 0 and "pipe_read" in pathlib.Path(f"/proc/{put.pid}/wchan").read_text(encoding="ascii")


WHERE = {"here": ([], "a"), "other rack": (["--rack", "b"], "b"), "two copies": (["--copies", "2"], "ab")}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_put_that_ends_at_any_byte_leaves_nothing(pair, where, way):
    options, racks = WHERE[where]
    for sent in OFFSETS:
        put = start_put(pair.a, options, sent)
        wait_until(lambda: waits_for_more(put), why=f"at {sent} it does not wait for more")
        assert pair.holds(racks, 0, sent // CHUNK * CHUNK), f"at {sent} other bytes have come"
        end_put(put, way)
        wait_until(pair.is_empty, why=lambda: f"at {sent} something is left: {[pair.files(rack) for rack in 'ab']}")
    put_again(pair, options)


@pytest.mark.parametrize("where", WHERE)
def test_a_put_that_dies_while_its_bytes_move_leaves_nothing(pair, where):
    options, racks = WHERE[where]
    for round_number in range(3):
        start = CHUNK * (round_number % 2)
        put = start_put(pair.a, options, start + CHUNK)
        # The first bytes of a chunk are there, the others may be under way.
        wait_until(lambda: pair.holds(racks[:1], start, start + 64), why="its bytes never come")
        end_put(put, signal.SIGKILL)
        wait_until(pair.is_empty, why=lambda: f"something is left: {[pair.files(rack) for rack in 'ab']}")
        put_again(pair, options)


def start_put(node, options, sent):
    """A put of a stream of which so many bytes have been sent."""
    put = subprocess.Popen(node.command("put", "-", "--name", "half", "--quiet", *options), stdin=subprocess.PIPE,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0)
    left = memoryview(DATA)[:sent]
    while left:
        left = left[put.stdin.write(left):]
    return put


def end_put(put, way):
    """Ends a put; its input stays open until it is over."""
    put.send_signal(way)
    assert put.wait(timeout=20) != 0
    put.stdin.close()


def put_again(pair, options):
    """Puts the same name whole, reads it from both racks, and removes it."""
    pair.a.run("put", "-", "--name", "half", *options, input=DATA, text=False)
    for node in (pair.a, pair.b):
        assert sha(node.run("get", "half", "-", text=False).stdout) == sha(DATA)
        assert node.json("verify", "half")[0]["bad"] == []
    pair.a.run("rm", "half")
    wait_until(pair.is_empty, why="what was removed is left")
