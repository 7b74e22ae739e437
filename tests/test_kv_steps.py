"""A writer of KV blocks, and a node with a disk for them, are killed between any two steps: nothing is wrong, nothing is held.

The steps are counted first by a run in which nobody dies, so that a step which is added is a step of this test. By default some are
tried; HINTERLAND_FULL=1 tries all.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from conftest import TREE
from faults import FULL, MEBIBYTE, STEP, bury, is_dead, start_armed, steps_said, wait_until

BLOCKS = 40
WRITER = """
import sys
sys.path[:0] = sys.argv[2:]
import hinterland
from test_kv_steps import batch
kv = hinterland.Pool(sys.argv[1]).kv("model")
keys, blocks = batch()
assert kv.put(keys, blocks, prefix=True) == [True] * len(keys)
"""
# What a writer must pass on the way: a list that is empty would kill nobody.
WRITER_STEPS = {"kv-put-asked", "kv-put-reserved", "kv-put-piece", "kv-put-written", "kv-put-published"}
NODE_STEPS = {"kv-chunk-noted", "kv-reserved", "kv-header-published", "kv-index-entered", "kv-index-left", "kv-header-retired",
              "kv-checked", "kv-restore-read", "kv-restore-cleared", "kv-spaces-drafted", "kv-blocks-made",
              "kv-touches-made", "kv-books-made", "kv-disk-staged", "kv-disk-appended", "kv-disk-written", "kv-disk-added",
              "kv-disk-scanned", "kv-disk-read", "kv-disk-brought"}
# Only a node that takes checksums itself comes by here.
BEHIND_STEPS = {"kv-summed"}
ENGINES = 1000 if FULL else 60


def key(number):
    return b"step-%d" % number


def pieces_of(name, size=60_000):
    """The bytes of a block, in three pieces."""
    whole = hashlib.shake_128(name).digest(size)
    return [whole[:10], whole[10:30_000], whole[30_000:]]


def batch():
    keys = [key(number) for number in range(BLOCKS)]
    return keys, [pieces_of(name) for name in keys]


def status(node):
    return node.json("kv", "stat")[0]


def right(kv, size=60_000):
    """The blocks that are there; the bytes of each are looked at."""
    found = []
    for name in kv.keys():
        block = kv.get(name)
        if block is not None:
            assert block == b"".join(pieces_of(name, size)), f"{name} has bytes that nobody put there"
            found.append(name)
    return found


def chosen(steps, count):
    """All steps, or some of each name: the first, and others at random."""
    if FULL:
        return steps
    by_name = {}
    for step in steps:
        by_name.setdefault(step.split(":")[0], []).append(step)
    chance = random.Random(7)
    firsts = [its[0] for its in by_name.values()]
    return (firsts + [chance.choice(its) for its in by_name.values()])[:count]


def write(node, step):
    places = [str(TREE / "tests"), str(TREE / "python")]
    return subprocess.run([sys.executable, "-c", WRITER, str(node.socket), *places], check=False, capture_output=True,
                          env={**os.environ, "HINTERLAND_FAULT_POINT": step})


def test_a_writer_that_is_killed_between_any_two_steps_of_put_leaves_whole_blocks_and_no_slot(start_node, hinterland):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M"])
    kv = hinterland.Pool(node.socket).kv("model")
    counted = write(node, "count")
    assert counted.returncode == 0, counted.stderr
    steps = [line[len(STEP):].decode() for line in counted.stderr.splitlines() if line.startswith(STEP)]
    assert {step.split(":")[0] for step in steps} >= WRITER_STEPS, steps
    assert len(steps) >= BLOCKS * 4
    keys, blocks = batch()
    for step in chosen(steps, 14):
        kv.clear()
        killed = write(node, step)
        assert killed.returncode == -signal.SIGKILL, f"{step}: {killed}"
        wait_until(lambda: status(node)["reserved"] == 0, why=f"killed at {step}, slots are held")
        found = right(kv)
        assert found == [] or sorted(found) == sorted(keys[:len(found)]), f"{step}: a prefix, whole parts of it"
        # Who comes after writes what is missing, and all of it is right.
        assert kv.put(keys, blocks, prefix=True) == [True] * BLOCKS
        assert len(right(kv)) == BLOCKS, step


def tell(node, hinterland):
    """Puts more than memory holds, brings back, removes, replaces nothing; ends when the node does."""
    try:
        kv = hinterland.Pool(node.socket).kv("model")
        names = [b"n%d" % number for number in range(30)]
        for first in range(0, 30, 5):
            some = names[first:first + 5]
            kv.put(some, [pieces_of(name, MEBIBYTE) for name in some], after=names[first - 1] if first else None)
        wait_until(lambda: is_dead(node) or status(node)["disk"]["staged_bytes"] == 0)
        # Memory holds half of them: the others come from the disk, whichever they are.
        kv.fetch(names[:15])
        kv.fetch(names[15:])
        removed = []
        for name in names[3:6]:
            kv.remove([name])
            removed.append(name)
        wait_until(lambda: is_dead(node) or status(node)["kept"]["unsummed_blocks"] == 0)
        return removed
    except (hinterland.HinterlandError, OSError, subprocess.CalledProcessError, AssertionError):
        if not is_dead(node):
            node.process.wait(timeout=10)
        return []


def check(node, hinterland):
    """All that is found is right, wherever it comes from, and the whole memory can be had."""
    wait_until(lambda: not node.json("kv", "stat") or (
        status(node)["kept"]["unchecked_blocks"] == 0 and not status(node)["disk"]["state"].startswith("reading")))
    kv = hinterland.Pool(node.socket).kv("model")
    right(kv, MEBIBYTE)
    for number in range(30):
        if kv.fetch([b"n%d" % number]) == [True]:
            block = kv.get(b"n%d" % number)
            assert block is None or block == b"".join(pieces_of(b"n%d" % number, MEBIBYTE)), number
    assert status(node)["disk"]["checksum_failures"] == 0 and status(node)["kept"]["damaged_blocks"] == 0
    wait_until(lambda: status(node)["reserved"] == 0, why=lambda: f"slots are held: {status(node)}")
    kv.clear()
    assert kv.put([b"%d" % number for number in range(16)], [bytes(MEBIBYTE)] * 16) == [True] * 16
    kv.clear()


@pytest.fixture
def start_victim(start_node, folder):
    disk = ["--kv-disk", folder / "disk", "--kv-disk-capacity", "192M"]
    return lambda sums: start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M", "--kv-sums", sums, *disk])


@pytest.mark.parametrize("sums", ["writer", "behind"])
def test_a_node_that_is_killed_between_any_two_steps_of_a_block_gives_right_bytes_or_misses(start_victim, hinterland, sums):
    node = start_victim(sums)
    steps = count(node, hinterland)
    names = {step.split(":")[0] for step in steps}
    expected = NODE_STEPS | BEHIND_STEPS if sums == "behind" else NODE_STEPS
    assert names >= expected, f"never reached: {expected - names}"
    died = 0
    some = chosen(steps, 46) if sums == "writer" else chosen([step for step in steps if step.split(":")[0] in BEHIND_STEPS], 4)
    for step in some:
        # A node that stops without blocks leaves no files: the next one makes them.
        _ = node.stop() if step.split(":")[0].endswith("-made") else node.kill()
        start_armed(node, step)
        life = node.process
        if is_dead(node):
            bury(node)
        try:
            removed = tell(node, hinterland)
            if is_dead(node):
                bury(node)
            elif node.process is life:
                # Not reached this time: it must not be reached later either.
                node.kill()
                node.start()
                removed = []
                died -= 1
            died += 1
            kv = hinterland.Pool(node.socket).kv("model")
            assert not any(kv.exists(removed)) or removed == [], "what was removed stays away"
            check(node, hinterland)
        except AssertionError as error:
            raise AssertionError(f"killed at {step}: {error}\n{node.words()[-3000:]}") from error
    # How often a node sums behind its writers is a matter of time: of two such steps one may not come again.
    assert died * 2 >= len(some), f"only {died} of {len(some)} steps were reached again"


def count(node, hinterland):
    """The steps of a node that finds nothing, is told the story and killed, and of the next one that finds what was left."""
    before = node.log.stat().st_size
    node.kill()
    node.start({"HINTERLAND_FAULT_POINT": "count"})
    tell(node, hinterland)
    node.kill()
    node.start({"HINTERLAND_FAULT_POINT": "count"})
    tell(node, hinterland)
    # What is passed while the end is looked at does not come again while the story is told.
    steps = steps_said(node, before)
    check(node, hinterland)
    return [step for step in dict.fromkeys(steps) if step.startswith("kv-")]


def test_engines_that_are_killed_under_load_hold_no_slot(start_node, hinterland):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "64M"])
    watching = hinterland.Pool(node.socket).kv("model")
    watching.put([b"x"], [b"x"])
    chance = random.Random(5)
    reached, held = 0, 0
    for round_ in range(ENGINES):
        child = os.fork()
        if child == 0:
            try:
                kv = hinterland.Pool(node.socket).kv("model")
                numbers = iter(range(round_ * 10_000, 10**9))
                while True:
                    names = [key(next(numbers)) for _ in range(16)]
                    kv.put(names, [pieces_of(name) for name in names])
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.001, 0.04))
        if round_ % 5 == 4:
            os.kill(child, signal.SIGSTOP)
            held += status(node)["reserved"] > 0
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if round_ % 50 == 49:
            reached += len(right_sample(watching, chance))
    wait_until(lambda: status(node)["reserved"] == 0 and node.json("status")["sessions"] <= 3,
               why=lambda: f"something is held after {ENGINES} engines: {status(node)}")
    assert held > 0 and reached > 0, "nobody was killed in the middle of a put, or nothing was ever put"
    watching.clear()
    assert watching.put([b"%d" % number for number in range(64)], [bytes(MEBIBYTE)] * 64) == [True] * 64


def right_sample(kv, chance):
    keys = kv.keys()
    some = chance.sample(keys, min(len(keys), 50))
    for name in some:
        block = kv.get(name)
        assert block is None or name == b"x" or block == b"".join(pieces_of(name)), f"{name} is wrong"
    return some
