"""Memory that the nodes of a rack share: what lies there is loaded and not fetched, and what is wrong there is fetched and never shown."""

import os
import pathlib
import subprocess

import pytest
from faults import MEBIBYTE, sha

SHELF_BYTES = 16 * MEBIBYTE
# Heads, holds and entries in front of the bytes of a part.
CONTROL_BYTES = 72 << 10


@pytest.fixture
def shelf():
    """A file that stands for memory which both nodes reach."""
    path = pathlib.Path("/dev/shm") / f"hinterland-test-shelf-{os.getpid()}"
    path.write_bytes(bytes(SHELF_BYTES))
    yield path
    path.unlink()


def on(shelf, part):
    """The options of a node that has a part of it."""
    return ["--coherence", "software", "--shelf", f"{part}/2:{shelf}"]


def pair(start_node, shelf):
    """Two nodes of one rack that share the shelf."""
    sizes = ["--capacity", "64M", "--cache-budget", "32M"]
    first = start_node("a", rack="one", options=[*sizes, *on(shelf, 1)])
    return first, start_node("b", rack="one", join=first.address, options=[*sizes, *on(shelf, 2)])


def received(node):
    """Bytes of objects that came to a node over the network."""
    return node.json("status")["counters"]["network_received_bytes"]


def read(node, name):
    """The digest of an object as a program finds it that opens it below /pool."""
    return node.run("run", "--", "sha256sum", f"/pool/{name}").stdout.split()[0]


def test_what_is_on_the_shelf_is_loaded_and_not_fetched(start_node, make_file, shelf):
    first, second = pair(start_node, shelf)
    for number in range(5):
        source = make_file(f"source{number}", 3 * MEBIBYTE + number)
        first.run("put", source, "--name", "data", "--rack", "one")
        assert read(second, "data") == sha(source)
        first.run("rm", "data")
    assert received(second) == 0


def test_wrong_bytes_on_the_shelf_are_fetched_from_the_home(start_node, make_file, shelf):
    first, second = pair(start_node, shelf)
    source = make_file("source", 3 * MEBIBYTE)
    first.run("put", source, "--name", "data", "--rack", "one")
    with open(shelf, "r+b") as memory:
        memory.seek(CONTROL_BYTES + MEBIBYTE)
        before = memory.read(1)
        assert before == source.read_bytes()[MEBIBYTE:MEBIBYTE + 1]
        memory.seek(CONTROL_BYTES + MEBIBYTE)
        memory.write(bytes([before[0] ^ 1]))
    assert read(second, "data") == sha(source)
    assert received(second) > 0
    assert second.json("status")["counters"]["checksum_failures"] > 0


def test_objects_are_on_the_shelf_again_after_a_restart(start_node, make_file, shelf):
    first, second = pair(start_node, shelf)
    source = make_file("source", 3 * MEBIBYTE)
    first.run("put", source, "--name", "data", "--rack", "one")
    first.kill()
    first.start()
    assert read(second, "data") == sha(source)
    assert received(second) == 0


def test_a_shelf_is_refused_that_could_not_be_right(start_node, binary, folder, shelf):
    pair(start_node, shelf)
    small = folder / "small"
    small.write_bytes(bytes(100 << 10))
    words = [binary, "node", "--name", "c", "--socket", folder / "c.sock", "--state", folder / "c", "--listen", "127.0.0.1:0"]
    for options, reason in [
        (["--shelf", f"1/2:{shelf}"], "start with --coherence software too"),
        (on(shelf, 1), "give each node a part of its own"),
        (["--coherence", "software", "--shelf", f"2/4:{shelf}"], "all of them the same number"),
        (on(small, 1), "too small"),
        (["--coherence", "software", "--shelf", f"3/2:{shelf}"], "PART/PARTS:PATH"),
    ]:
        ran = subprocess.run([*words, *options], capture_output=True, text=True, timeout=30)
        assert ran.returncode != 0 and reason in ran.stderr, (options, ran.stderr)


@pytest.mark.parametrize("part", [1, 2])
def test_a_file_that_is_no_shelf_keeps_its_bytes(binary, folder, make_file, part):
    model = make_file("model", SHELF_BYTES)
    before = sha(model)
    words = [binary, "node", "--name", "c", "--socket", folder / "c.sock", "--state", folder / "c", "--listen", "127.0.0.1:0"]
    ran = subprocess.run([*words, *on(model, part)], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 1 and f"part {part} holds something that is no shelf" in ran.stderr and "hint:" in ran.stderr, ran
    assert sha(model) == before
