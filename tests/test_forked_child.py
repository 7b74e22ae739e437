"""A program that is killed leaves a child behind that it had forked, which holds its sockets: what only the program could finish is free all the same,
and what the child can still use stays as it is."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import MEBIBYTE, TREE
from faults import wait_until

BEGIN = """
import os, sys, time
import hinterland
def fork():
    if os.fork() == 0:
        print("child", os.getpid(), flush=True)
        exec(sys.argv[2])
        os._exit(0)
"""
SLEEP = "time.sleep(300)"
# It is killed between the reservation of its slots and the first byte.
WRITER = """
kv = hinterland.Pool(sys.argv[1]).kv("model")
assert kv.put([b"pinned"], [b"bytes"]) == [True] and kv.pin([b"pinned"]) == [True]
fork()
kv.put([b"k%d" % number for number in range(8)], [bytes(1 << 20)] * 8)
"""
# Takes what it is sent into an object that it never ends.
PUTTER = """
pool = hinterland.Pool(sys.argv[1])
fork()
pool.put("one", sys.stdin.buffer)
"""
# Locks a region's first bytes.
LOCKER = """
pool = hinterland.Pool(sys.argv[1])
lock = pool.wlock(pool.create_region("counters", 1 << 20).address)
fork()
time.sleep(300)
"""
# The child reads what was mapped when its parent is gone and others have filled the pool.
READER = """
pool = hinterland.Pool(sys.argv[1])
mapping = memoryview(pool.map("kept"))
fork()
time.sleep(300)
"""
READ = """
sys.stdin.readline()
print(set(mapping[:]) == {7}, flush=True)
time.sleep(300)
"""


@contextlib.contextmanager
def running(node, program, child=SLEEP, plan=None):
    """A program with a child; both are ended in the end. Gives the program and the number of the child."""
    environment = {**os.environ, "PYTHONPATH": str(TREE / "python"), **({"HINTERLAND_FAULT_POINT": plan} if plan else {})}
    process = subprocess.Popen([sys.executable, "-c", BEGIN + program, node.socket, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env=environment)
    forked = None
    try:
        word, number = process.stdout.readline().split()
        assert word == b"child"
        forked = int(number)
        yield process, forked
    finally:
        process.kill()
        process.wait()
        if forked is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(forked, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


def lives(process):
    """Whether a process that is no child of this one has not ended."""
    with contextlib.suppress(FileNotFoundError):
        return pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(") ", 1)[1][0] not in "ZX"
    return False


def waits_in_send(process):
    """Whether a process waits for room in a socket that it sends over."""
    number = pathlib.Path(f"/proc/{process}/syscall").read_text(encoding="ascii").split()[0]
    return number in ("44", "46")


def test_slots_and_pins_of_a_killed_writer_are_free_though_its_child_lives(start_node, hinterland):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M"])
    with running(node, WRITER, plan="kv-put-reserved:2") as (writer, child):
        assert writer.wait(timeout=30) == -signal.SIGKILL
        def held():
            return [node.json("kv", "stat")[0][name] for name in ("reserved", "pinned_bytes")]
        wait_until(lambda: held() == [0, 0], why=lambda: f"{held()} slots and pinned bytes are held")
        assert lives(child), "the child has ended, so this shows nothing"
        kv = hinterland.Pool(node.socket).kv("model")
        assert kv.put([b"k%d" % number for number in range(8)], [bytes(MEBIBYTE)] * 8) == [True] * 8
        assert kv.remove([b"pinned"]) == 1


def test_the_draft_of_a_killed_program_is_given_up_though_its_child_lives(start_node):
    node = start_node("a", options=["--capacity", "64M"])
    with running(node, PUTTER) as (putter, child):
        putter.stdin.write(bytes(5 * MEBIBYTE))
        putter.stdin.flush()
        wait_until(lambda: node.json("status")["used_bytes"] > 0, why="the put never began")
        putter.kill()
        putter.wait()
        wait_until(lambda: node.json("status")["used_bytes"] == 0, why="the draft is kept")
        assert lives(child), "the child has ended, so this shows nothing"
        node.run("put", "-", "--name", "one", input="bytes")


def test_the_draft_of_a_program_that_is_killed_while_it_sends_is_given_up_though_its_child_lives(start_node):
    node = start_node("a", options=["--capacity", "64M"])
    with running(node, PUTTER) as (putter, child):
        putter.stdin.write(bytes(5 * MEBIBYTE))
        putter.stdin.flush()
        wait_until(lambda: node.json("status")["used_bytes"] > 0, why="the put never began")
        # The node reads nothing meanwhile, so that the program is stuck in the middle of a piece.
        node.process.send_signal(signal.SIGSTOP)
        try:
            putter.stdin.write(bytes(3 * MEBIBYTE))
            putter.stdin.flush()
            wait_until(lambda: waits_in_send(putter.pid), why="the program was never stuck")
            putter.kill()
            putter.wait()
        finally:
            node.process.send_signal(signal.SIGCONT)
        wait_until(lambda: node.json("status")["used_bytes"] == 0, why="the draft is kept")
        assert lives(child), "the child has ended, so this shows nothing"
        node.run("put", "-", "--name", "one", input="bytes")


def test_the_locks_of_a_killed_program_are_free_though_its_child_lives(start_node, hinterland):
    node = start_node("a", options=["--capacity", "64M"])
    with running(node, LOCKER) as (locker, child):
        locker.kill()
        locker.wait()
        with hinterland.Pool(node.socket) as pool:
            pool.wlock(pool.stat("counters").address, wait=10).unlock()
        assert lives(child), "the child has ended, so this shows nothing"


def test_what_a_program_has_mapped_its_child_reads_when_the_program_is_gone(start_node):
    node = start_node("a", options=["--capacity", "64M"])
    node.run("put", "-", "--name", "kept", input=bytes([7]) * 20 * MEBIBYTE, text=False)
    with running(node, READER, child=READ) as (reader, child):
        reader.kill()
        reader.wait()
        node.run("rm", "kept")
        # What is free is taken by others.
        for number in range(2):
            node.run("put", "-", "--name", f"other-{number}", input=bytes(20 * MEBIBYTE), text=False)
        reader.stdin.write(b"\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == b"True\n"
        assert lives(child)


def test_a_child_is_refused_the_blocks_of_its_parent_in_words(start_node, hinterland):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M"])
    kv = hinterland.Pool(node.socket).kv("model")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            with pytest.raises(ConnectionError, match="fork"):
                kv.put([b"k"], [b"v"])
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert kv.put([b"k"], [b"v"]) == [True]
