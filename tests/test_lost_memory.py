"""Memory whose node dies while programs map it: right bytes, or SIGBUS with the reason. Never zeros, never a hang."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import pytest
from faults import MEBIBYTE, sha, sigbus, wait_until

ROOM = ["--capacity", "128M"]
SIZE = 48 * MEBIBYTE + 777
# Reads in an order that no prefetch guesses, with pauses, and says how far it is.
SLOWLY = """
import hashlib, mmap, random, sys, time
with open(sys.argv[1], "rb") as source:
    mapping = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
step = 1 << 20
starts = list(range(0, len(mapping), step))
random.Random(int(sys.argv[2])).shuffle(starts)
pieces = {}
for number, start in enumerate(starts):
    pieces[start] = mapping[start:start + step]
    if number in (3, len(starts) // 2):
        print("at", number, flush=True)
    time.sleep(0.01)
print(hashlib.sha256(b"".join(pieces[start] for start in sorted(pieces))).hexdigest())
"""


def read_slowly(node, name, seed=1, options=(), grace=None):
    """Starts a program that maps an object and reads it slowly; returns it when it has begun."""
    environment = {"HINTERLAND_GRACE_S": str(grace)} if grace else {}
    program = subprocess.Popen(
        node.command("run", "--unit", "1M", *options, "--", sys.executable, "-c", SLOWLY, f"/pool/{name}", str(seed)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    line = program.stdout.readline()
    assert line == "at 3\n", (line, program.communicate(timeout=30))
    return program


def finish(program, seconds=60):
    """What it printed last, and its words; it must end within the time."""
    try:
        output, words = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        raise AssertionError(f"it hangs: {program.communicate()}") from None
    lines = [line for line in output.split("\n") if line and not line.startswith("at ")]
    return (lines[-1] if lines else ""), words


@pytest.fixture
def homes(start_node, make_file):
    """A reader `a`, a home `b`, another `c`, and `d` with the directory; the file that is put."""
    d = start_node("d", options=ROOM)
    a, b, c = (start_node(name, join=d.address, options=ROOM) for name in "abc")
    return a, b, c, make_file("source", SIZE)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("budget", [[], ["--budget", "6M"]], ids=["with room", "in little memory"])
def test_with_a_replica_a_slow_reader_does_not_notice_the_death_of_a_home(homes, seed, budget):
    a, b, c, source = homes
    b.run("put", source, "--name", "data", "--copies", "2")
    program = read_slowly(a, "data", seed, budget)
    racks = [home["rack"] for home in a.json("stat", "data")["homes"]]
    victim = next(node for node in (b, c) if node.rack in racks)
    victim.kill()
    output, words = finish(program)
    assert output == sha(source), words
    counters = a.json("status")["counters"]
    assert counters["poisoned_faults"] == 0
    assert counters["failovers"] <= 6, "a home that is gone is not asked again for every unit"


def test_without_a_replica_the_reason_is_on_stderr_and_among_the_problems(homes):
    a, b, _, source = homes
    b.run("put", source, "--name", "data")
    program = read_slowly(a, "data", options=["--budget", "6M"])
    b.kill()
    output, words = finish(program)
    assert output == "" and sigbus(program.returncode), (program.returncode, words)
    assert "data" in words and "lost" in words and "hint:" in words, words
    problems = [problem["text"] for problem in a.json("status")["problems"]]
    assert any("data" in text and "lost" in text for text in problems), problems
    assert "data" in a.run("doctor", check=False).stdout


def test_a_home_that_comes_back_serves_new_programs_with_right_bytes(homes):
    a, b, _, source = homes
    b.run("put", source, "--name", "data")
    program = read_slowly(a, "data", options=["--budget", "6M"])
    b.kill()
    finish(program)
    b.start()
    wait_until(lambda: a.run("verify", "data", check=False).returncode == 0)
    assert finish(read_slowly(a, "data", 5))[0] == sha(source)


@pytest.mark.parametrize("pause", [0, 1])
def test_a_local_node_that_comes_back_in_time_is_not_noticed(homes, pause):
    a, b, _, source = homes
    b.run("put", source, "--name", "data")
    program = read_slowly(a, "data", options=["--budget", "6M"])
    a.kill()
    time.sleep(pause)
    a.start()
    output, words = finish(program)
    assert output == sha(source), words


def test_a_local_node_that_stays_away_ends_in_sigbus_with_the_reason(homes):
    a, b, _, source = homes
    b.run("put", source, "--name", "data")
    program = read_slowly(a, "data", options=["--budget", "6M"], grace=2)
    a.kill()
    output, words = finish(program, seconds=30)
    assert output == "" and sigbus(program.returncode), (program.returncode, words)
    assert "data is lost" in words and "hint:" in words, words


def test_what_a_killed_client_held_is_free_within_a_second(homes):
    a, b, _, source = homes
    b.run("put", source, "--name", "data")
    before = a.json("status")
    program = read_slowly(a, "data")
    put = subprocess.Popen(a.command("put", "-", "--name", "half"), stdin=subprocess.PIPE,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    put.stdin.write(bytes(9 * MEBIBYTE))
    put.stdin.flush()
    wait_until(lambda: a.json("status")["used_bytes"] > before["used_bytes"])
    assert any(cache["mappings"] > 0 for cache in a.json("status")["caches"])
    for process in (program, put):
        process.kill()
        process.wait()
    started = time.monotonic()
    put.stdin.close()

    def is_free():
        now = a.json("status")
        mappings = sum(cache["mappings"] for cache in now["caches"])
        return (now["sessions"], now["used_bytes"], mappings) == (before["sessions"], before["used_bytes"], 0)

    # A second is the promise; what a loaded machine adds to it is not counted against it.
    wait_until(is_free, seconds=5, why=lambda: f"{a.json('status')} after {time.monotonic() - started} s")
    program.stdout.close()
    program.stderr.close()


# Hashes a mapping, then does so again for each line that it is given.
AGAIN = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as source:
    mapping = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
print(hashlib.sha256(mapping).hexdigest(), flush=True)
for _ in sys.stdin:
    print(hashlib.sha256(mapping).hexdigest(), flush=True)
"""


def take_pages(node):
    """Punches everything out of the cache files of a node behind its back; returns how many files that were."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 1 | 2
    taken = 0
    for entry in os.scandir(f"/proc/{node.process.pid}/fd"):
        if "memfd:hinterland-cache" not in os.readlink(entry.path):
            continue
        with open(entry.path, "r+b", buffering=0) as cache:
            size = os.fstat(cache.fileno()).st_size
            refused = libc.fallocate(cache.fileno(), keep_size_and_punch, ctypes.c_long(0), ctypes.c_long(size))
            assert refused == 0, os.strerror(ctypes.get_errno())
            taken += 1
    return taken


@pytest.mark.parametrize("unit", ["64K", "2M"])
def test_pages_that_vanish_from_the_cache_are_fetched_again_and_nobody_faults_forever(two_racks, make_file, unit):
    a, b = two_racks
    source = make_file("source", 5 * MEBIBYTE + 77)
    b.run("put", source, "--name", "data")
    program = subprocess.Popen(
        a.command("run", "--unit", unit, "--", sys.executable, "-c", AGAIN, "/pool/data"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline().strip() == sha(source)
    for _ in range(2):
        assert take_pages(a) == 1
        program.stdin.write("again\n")
        program.stdin.flush()
        reader = threading.Timer(60, program.kill)
        reader.start()
        assert program.stdout.readline().strip() == sha(source)
        reader.cancel()
    _, words = program.communicate(timeout=30)
    assert program.returncode == 0, words
    assert "are gone" in a.words()


# Maps two objects and, when it is told to, reads the first and then touches the second: in a child if asked.
TWO = """
import hashlib, mmap, os, sys, time
def open_map(path):
    with open(path, "rb") as source:
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
one, other = open_map(sys.argv[1]), open_map(sys.argv[2])
one[:1], other[:1]
print("mapped", flush=True)
sys.stdin.readline()
started = time.monotonic()
child = os.fork() if sys.argv[3] == "fork" else 0
if child == 0:
    print(hashlib.sha256(one).hexdigest(), time.monotonic() - started, flush=True)
    other[-1:]
    print("it is there", flush=True)
    os._exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(hashlib.sha256(one).hexdigest())
"""


def map_two(node, how, grace=None):
    """Starts a program that has mapped the objects `one` and `other`, which are put before."""
    environment = {"HINTERLAND_GRACE_S": str(grace)} if grace else {}
    program = subprocess.Popen(
        node.command("run", "--unit", "1M", "--", sys.executable, "-c", TWO, "/pool/one", "/pool/other", how),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment})
    assert program.stdout.readline() == "mapped\n", program.communicate(timeout=10)
    return program


def goes_on(program):
    """Lets the program go on; its lines, and what it said on standard error."""
    output, words = program.communicate("go on\n", timeout=90)
    return output.splitlines(), words


def test_an_object_that_was_removed_costs_a_forked_child_nothing_else(two_racks, make_file):
    a, b = two_racks
    source = make_file("source", 5 * MEBIBYTE + 77)
    for name in ("one", "other"):
        b.run("put", source, "--name", name)
    program = map_two(a, "fork")
    b.run("rm", "other")
    lines, words = goes_on(program)
    digest, seconds = lines[0].split()
    assert digest == sha(source) and float(seconds) < 5, (lines, words)
    assert sigbus(int(lines[1].split()[1])) and lines[2] == sha(source), (lines, words)
    assert "memory of other is lost" in words and "memory of one" not in words, words


def test_an_object_that_was_removed_costs_no_other_when_the_own_node_starts_again(two_racks, make_file):
    a, b = two_racks
    source = make_file("source", 5 * MEBIBYTE + 77)
    for name in ("one", "other"):
        b.run("put", source, "--name", name)
    program = map_two(a, "here")
    b.run("rm", "other")
    a.kill()
    a.start()
    lines, words = goes_on(program)
    digest, seconds = lines[0].split()
    assert digest == sha(source) and float(seconds) < 10, (lines, words)
    assert len(lines) == 1 and sigbus(program.returncode), (program.returncode, lines, words)
    assert "memory of other is lost" in words and "memory of one" not in words, words


def test_an_object_without_a_home_costs_no_other_when_the_own_node_starts_again(homes):
    a, b, c, source = homes
    b.run("put", source, "--name", "one", "--rack", b.rack)
    c.run("put", source, "--name", "other", "--rack", c.rack)
    program = map_two(a, "here", grace=3)
    for node in (c, a):
        node.kill()
    a.start()
    lines, words = goes_on(program)
    assert lines and lines[0].split()[0] == sha(source), (lines, words)
    assert len(lines) == 1 and sigbus(program.returncode), (program.returncode, lines, words)
    assert "memory of other is lost" in words and "memory of one" not in words, words
    assert "hint: bring a home back" in words, words


def test_an_object_whose_home_is_back_in_time_is_not_lost_with_the_own_node(homes):
    a, b, c, source = homes
    b.run("put", source, "--name", "one", "--rack", b.rack)
    c.run("put", source, "--name", "other", "--rack", c.rack)
    program = map_two(a, "here")
    for node in (c, a):
        node.kill()
    a.start()
    program.stdin.write("go on\n")
    program.stdin.flush()
    assert program.stdout.readline().split()[0] == sha(source)
    a.run("get", "one", os.devnull)
    c.start()
    output, words = program.communicate(timeout=60)
    assert program.returncode == 0 and output == "it is there\n", (output, words)
    assert "lost" not in words, words
