"""Processes that die: replicas answer, restarts find what was there, and nobody hangs or reads zeros."""

import hashlib
import pathlib
import signal
import subprocess
import sys
import time

import pytest

MEBIBYTE = 1 << 20
MAPPED = pathlib.Path(__file__).resolve().parent / "programs/mapped.py"
SIZE = 24 * MEBIBYTE + 5
ROOM = ["--capacity", "256M"]


def wait_until(what, seconds=10):
    """Polls until `what()` is true; an assertion when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come true in time")


def start_half(node, name, *options):
    """A program that has read one half of an object and waits for a line."""
    process = subprocess.Popen(
        node.command("run", *options, "--", sys.executable, MAPPED, "half_and_wait", f"/pool/{name}"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line == "half\n", process.communicate(timeout=10)
    return process


def finish(process):
    """Lets the program read the other half; returns what it printed."""
    output, words = process.communicate("go on\n", timeout=90)
    return output.strip(), words


def sha(path):
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def three_racks(start_node):
    """A reader's node `a` and two homes `b` and `c`; a node `d` of its own hosts the directory."""
    d = start_node("d", options=ROOM)
    return [start_node(name, join=d.address, options=ROOM) for name in ("a", "b", "c")] + [d]


def put_twice(node, source):
    """Puts two copies, the first one on the node itself; returns the other nodes' racks that have one."""
    node.run("put", source, "--name", "data", "--copies", "2")
    return {home["rack"] for home in node.json("stat", "data")["homes"]}


@pytest.mark.parametrize("which", ["one home", "the other home"])
def test_a_home_that_dies_is_replaced_by_its_replica(start_node, make_file, which):
    b = start_node("b", options=ROOM)
    c = start_node("c", join=b.address, options=ROOM)
    source = make_file("source", SIZE)
    assert put_twice(b, source) == {"b", "c"}
    a = start_node("a", join=b.address, options=ROOM)
    process = start_half(a, "data", "--unit", "1M")
    (b if which == "one home" else c).kill()
    output, words = finish(process)
    assert output == sha(source), words


def test_every_home_but_one_may_die_between_reads(three_racks, make_file, folder):
    a, b, _, _ = three_racks
    source = make_file("source", SIZE)
    assert "b" in put_twice(b, source)
    b.kill()
    a.run("get", "data", folder / "back")
    assert sha(folder / "back") == sha(source)


def test_without_a_replica_the_program_gets_sigbus_and_the_reason(start_node, make_file):
    d = start_node("d", options=ROOM)
    # Fetching ahead may have brought all of it before the home dies.
    a = start_node("a", join=d.address, options=[*ROOM, "--without", "sequential-prefetch"])
    b = start_node("b", join=d.address, options=ROOM)
    b.run("put", make_file("source", SIZE), "--name", "data")
    process = start_half(a, "data", "--unit", "1M")
    b.kill()
    started = time.monotonic()
    output, words = finish(process)
    assert output == ""
    assert process.returncode == 128 + signal.SIGBUS, (process.returncode, words)
    assert "data" in words, "the reason is on standard error"
    assert time.monotonic() - started < 60
    doctor = a.run("doctor", check=False).stdout
    assert "data" in doctor


def test_a_restarted_node_still_has_its_objects(start_node, make_file, folder):
    node = start_node("a", options=ROOM)
    source = make_file("source", SIZE)
    node.run("put", source, "--name", "kept")
    for _ in range(2):
        node.kill()
        node.start()
        node.run("get", "kept", folder / "back")
        assert sha(folder / "back") == sha(source)
        assert node.json("verify", "kept")[0]["bad"] == []
    node.run("rm", "kept")
    wait_until(lambda: node.json("status")["used_bytes"] == 0)


def test_half_a_put_is_gone_after_a_restart(start_node, make_file):
    node = start_node("a", options=ROOM)
    put = subprocess.Popen(node.command("put", "-", "--name", "half"), stdin=subprocess.PIPE,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    put.stdin.write(bytes(5 * MEBIBYTE))
    put.stdin.flush()
    wait_until(lambda: node.json("status")["used_bytes"] > 0)
    node.kill()
    put.stdin.close()
    assert put.wait(timeout=20) != 0
    put.stderr.close()
    node.start()
    assert node.json("ls") == []
    wait_until(lambda: node.json("status")["used_bytes"] == 0)
    node.run("put", make_file("source", 100), "--name", "half")


def test_a_mapped_program_survives_a_restart_of_its_own_node(start_node, make_file):
    b = start_node("b", options=ROOM)
    a = start_node("a", join=b.address, options=ROOM)
    source = make_file("source", SIZE)
    b.run("put", source, "--name", "data")
    process = start_half(a, "data", "--unit", "1M")
    a.kill()
    a.start()
    output, words = finish(process)
    assert output == sha(source), words


def test_a_program_mapped_in_the_rack_does_not_need_the_node(start_node, make_file):
    a = start_node("a", options=ROOM)
    source = make_file("source", SIZE)
    a.run("put", source, "--name", "data")
    process = start_half(a, "data")
    a.kill()
    output, words = finish(process)
    assert output == sha(source), words


def test_a_dead_client_leaves_no_session(node):
    before = node.json("status")["sessions"]
    program = subprocess.Popen(node.command("run", "--", "sleep", "60"), stderr=subprocess.DEVNULL)
    wait_until(lambda: node.json("status")["sessions"] > before)
    program.kill()
    program.wait()
    wait_until(lambda: node.json("status")["sessions"] <= before, seconds=3)


def test_ctrl_c_ends_a_node_cleanly_while_a_put_runs(start_node):
    node = start_node("a", options=ROOM)
    put = subprocess.Popen(node.command("put", "-", "--name", "half"), stdin=subprocess.PIPE,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: node.json("status")["sessions"] >= 2)
    assert node.stop() == 0
    put.stdin.close()
    assert put.wait(timeout=20) != 0
    assert "hint:" in put.stderr.read()
    put.stderr.close()


def test_a_directory_that_dies_comes_back_with_every_name(start_node, make_file, folder):
    d = start_node("d", options=ROOM)
    a = start_node("a", join=d.address, options=ROOM)
    source = make_file("source", 3 * MEBIBYTE)
    for number in range(5):
        a.run("put", source, "--name", f"o{number}")
    d.kill()
    d.start()
    wait_until(lambda: a.run("ls", check=False).returncode == 0, seconds=20)
    assert [entry["name"] for entry in a.json("ls")] == [f"o{number}" for number in range(5)]
    a.run("get", "o3", folder / "back")
    assert sha(folder / "back") == sha(source)


READ_AT = """
import mmap, sys
file = open(sys.argv[1], "rb")
mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("mapped", flush=True)
for line in sys.stdin:
    start, end = map(int, line.split())
    print(mapping[start:end].hex(), flush=True)
"""


def start_reader(node, name):
    """A program that has mapped an object and reads where it is told to."""
    process = subprocess.Popen(
        node.command("run", "--unit", "64K", "--", sys.executable, "-c", READ_AT, f"/pool/{name}"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "mapped\n", process.communicate(timeout=10)
    return process


def ask_for(process, start, end):
    """Tells a reader where to read."""
    process.stdin.write(f"{start} {end}\n")
    process.stdin.flush()


def end(process):
    """Ends a program of a test and closes its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_while_the_directory_hangs_others_read_from_a_home_that_is_back(start_node, make_file):
    # The directory's node has no room for a copy.
    d = start_node("d", options=["--capacity", "16M"])
    b, c = (start_node(name, join=d.address, options=ROOM) for name in "bc")
    source = make_file("source", SIZE)
    assert put_twice(b, source) == {"b", "c"}
    a = start_node("a", join=d.address, options=ROOM)
    first, second = start_reader(a, "data"), start_reader(a, "data")
    b.kill()
    try:
        for node in (c, d):
            node.process.send_signal(signal.SIGSTOP)
        # No home answers within the five seconds that a read may take: the directory is asked, which does not answer either.
        ask_for(first, 0, 16)
        time.sleep(7)
        c.process.send_signal(signal.SIGCONT)
        started = time.monotonic()
        ask_for(second, SIZE // 2, SIZE // 2 + 16)
        read = second.stdout.readline().strip()
        assert time.monotonic() - started < 4
        assert bytes.fromhex(read) == source.read_bytes()[SIZE // 2:SIZE // 2 + 16]
        started = time.monotonic()
        assert a.json("status")["caches"]
        assert time.monotonic() - started < 15
    finally:
        for node in (c, d):
            node.process.send_signal(signal.SIGCONT)
        end(first)
        end(second)


def test_memory_that_was_removed_while_its_node_was_stopped_is_given_to_no_program(hinterland, start_node):
    a = start_node("a", options=ROOM)
    b = start_node("b", join=a.address, options=ROOM)
    is_up = lambda: {member["address"]: member["up"] for member in a.json("status")["members"]}[b.address]
    with hinterland.Pool(b.socket) as pool, hinterland.Pool(a.socket) as other:
        lost = pool.alloc(4096)
        pool.write(lost, b"mine")
        [segment] = other.list("segments/")
        b.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: not is_up(), 60)
            other.remove(segment.name)
        finally:
            b.process.send_signal(signal.SIGCONT)
        wait_until(lambda: is_up() and b.json("status")["used_bytes"] == 0, 60)
        # The addresses are given again.
        region = other.create_region("region", segment.bytes)
        assert region.address <= lost < region.address + region.bytes
        mine = pool.alloc(4096)
        assert not region.address <= mine < region.address + region.bytes
        pool.write(mine, b"mine")
        assert pool.read(mine, 4) == b"mine"
        assert other.read(region.address, 8192) == bytes(8192)
        with pytest.raises(hinterland.HinterlandError, match="nothing was allocated"):
            pool.free(lost)
