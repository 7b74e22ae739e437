"""What a rack reads again and again over the network gets a copy there, which goes first when anything needs its room."""

import subprocess
import sys

import pytest

from faults import bury, is_dead, patiently, sha, start_armed, wait_until

MEBIBYTE = 1 << 20
SIZE = 20 * MEBIBYTE + 5
# A quarter of what is free is for such copies: 32 MiB.
ROOM = ["--capacity", "128M"]
# The cache holds a part of the object, so that each reading fetches it again.
READER = [*ROOM, "--cache-budget", "8M"]
# Longer than the pace at which a node looks what is due, and than a lease.
SECONDS = 30
READ = """
import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as source:
    while piece := source.read(1 << 20):
        digest.update(piece)
print(digest.hexdigest())
"""
MAPPED = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as source:
    memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
for line in sys.stdin:
    print(hashlib.sha256(memory).hexdigest(), flush=True)
"""


@pytest.fixture
def racks(start_node):
    """A function that starts node `d` with the directory and no room, node `b` that has the object, and node `a` that reads it."""
    def start(reader=(), home=()):
        d = start_node("d", options=["--capacity", "2M", "--heat-copies", "off"])
        b = start_node("b", join=d.address, options=[*ROOM, *home])
        a = start_node("a", join=d.address, options=[*READER, *reader])
        return d, b, a
    return start


def put(b, make_file, size=SIZE):
    """Puts `data` into the rack of `b`."""
    source = make_file("source", size)
    b.run("put", source, "--name", "data", "--rack", "b")
    return source


def read(node, text=READ):
    """Reads all of it through the node's cache, or from its memory; returns the digest."""
    words = node.command("run", "--", sys.executable, "-c", text, "/pool/data")
    done = subprocess.run(words, input="\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stderr, node.words())
    return done.stdout.strip()


def counters(node):
    return node.json("status")["counters"]


def homes(node, name="data"):
    """The racks of homes that are up: of the copies that were asked for, and of heat copies."""
    up = [home for home in node.json("stat", name)["homes"] if home["up"]]
    return ({home["rack"] for home in up if not home["heat"]}, {home["rack"] for home in up if home["heat"]})


def heat_up(a, source):
    """Reads until there is a copy in the rack of `a`."""
    for _ in range(3):
        assert read(a) == sha(source)
    wait_until(lambda: homes(a)[1] == {"a"}, SECONDS, why=lambda: f"no copy is made:\n{a.words()}\n{counters(a)}")


def test_what_is_read_again_and_again_gets_a_copy_and_then_no_byte_crosses_the_network(racks, make_file, folder):
    d, b, a = racks()
    source = put(b, make_file)
    heat_up(a, source)
    assert homes(d) == ({"b"}, {"a"})
    assert "1 wanted, 1 held, 1 beside them for heat" in a.run("stat", "data").stdout
    assert "b, a (heat)" in d.run("ls").stdout
    assert a.run("verify", "data").returncode == 0
    before = counters(b)["network_sent_bytes"], counters(a)["network_received_bytes"]
    for text in (READ, MAPPED, READ):
        assert read(a, text) == sha(source)
    a.run("get", "data", folder / "back")
    assert sha(folder / "back") == sha(source)
    assert (counters(b)["network_sent_bytes"], counters(a)["network_received_bytes"]) == before
    assert counters(a)["heat_copies_made"] == 1


def test_gets_that_pass_the_cache_count_too(racks, make_file, folder):
    _, b, a = racks()
    source = put(b, make_file)
    for _ in range(2):
        a.run("get", "data", folder / "back")
        assert sha(folder / "back") == sha(source)
    wait_until(lambda: homes(a)[1] == {"a"}, SECONDS, why=a.words)


def test_one_reading_makes_none_and_neither_does_the_switch(racks, make_file, folder):
    _, b, a = racks(["--heat-copies", "off"])
    source = put(b, make_file)
    for _ in range(4):
        assert read(a) == sha(source)
        a.run("get", "data", folder / "back")
    b.run("put", make_file("other", SIZE, seed=2), "--name", "once", "--rack", "b")
    a.run("get", "once", folder / "back")
    # A second is the pace at which copies are made.
    with pytest.raises(AssertionError):
        wait_until(lambda: counters(a)["heat_copies_made"] > 0, 3)
    assert homes(a) == ({"b"}, set()) and a.json("status")["used_bytes"] == 0


def test_a_put_that_needs_the_room_drops_it_and_who_has_it_mapped_reads_on(racks, make_file, folder):
    _, b, a = racks()
    source = put(b, make_file)
    heat_up(a, source)
    words = a.command("run", "--", sys.executable, "-c", MAPPED, "/pool/data")
    reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask():
        reader.stdin.write("\n")
        reader.stdin.flush()
        return reader.stdout.readline().strip()
    assert ask() == sha(source)
    big = make_file("big", 120 * MEBIBYTE, seed=3)
    a.run("put", big, "--name", "big", "--rack", "a")
    assert homes(a) == ({"b"}, set()) and counters(a)["heat_copies_dropped"] == 1
    assert ask() == sha(source)
    reader.stdin.close()
    assert reader.wait(timeout=30) == 0
    a.run("get", "big", folder / "back")
    assert sha(folder / "back") == sha(big)
    assert read(a) == sha(source), "it comes over the network again"
    assert homes(a)[1] == set(), "there is no room for it"


def test_a_put_that_needs_the_room_of_a_copy_in_the_making_gets_it(racks, make_file):
    _, b, a = racks(["--repair-rate", "2M"])
    source = put(b, make_file)
    for _ in range(3):
        assert read(a) == sha(source)
    wait_until(lambda: a.json("status")["used_bytes"] > 0, SECONDS)
    a.run("put", make_file("big", 120 * MEBIBYTE, seed=3), "--name", "big", "--rack", "a")
    assert homes(a) == ({"b"}, set()) and counters(a)["heat_copies_made"] == 0
    a.run("rm", "big")
    wait_until(lambda: a.json("status")["used_bytes"] == 0, SECONDS)


def test_programs_that_had_it_mapped_before_read_from_the_copy(racks, make_file):
    _, b, a = racks()
    source = put(b, make_file)
    words = a.command("run", "--budget", "4M", "--", sys.executable, "-c", MAPPED, "/pool/data")
    reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask():
        reader.stdin.write("\n")
        reader.stdin.flush()
        return reader.stdout.readline().strip()
    assert [ask(), ask()] == [sha(source)] * 2
    wait_until(lambda: homes(a)[1] == {"a"}, SECONDS, why=a.words)
    before, filled = counters(b)["network_sent_bytes"], counters(a)["filled_bytes"]
    assert [ask(), ask()] == [sha(source)] * 2
    assert counters(b)["network_sent_bytes"] == before
    assert counters(a)["filled_bytes"] > filled, "from the node's own memory"
    reader.stdin.close()
    assert reader.wait(timeout=30) == 0


def test_other_nodes_of_the_rack_read_the_copy_and_make_none(racks, make_file, start_node):
    d, b, a = racks()
    source = put(b, make_file)
    other = start_node("e", rack="a", join=d.address, options=READER)
    # It has read it before there was the copy.
    assert read(other) == sha(source)
    heat_up(a, source)
    before, served = counters(b)["network_sent_bytes"], counters(a)["network_sent_bytes"]
    for _ in range(4):
        assert read(other) == sha(source)
    assert counters(b)["network_sent_bytes"] == before
    assert counters(a)["network_sent_bytes"] >= served + 3 * SIZE
    assert counters(other)["heat_copies_made"] == 0


def test_what_other_nodes_of_the_rack_had_mapped_before_is_filled_from_the_copy(racks, make_file, start_node):
    d, b, a = racks()
    source = put(b, make_file)
    # A node without room of its own makes no copy.
    other = start_node("e", rack="a", join=d.address, options=["--capacity", "2M", "--cache-budget", "8M"])
    words = other.command("run", "--", sys.executable, "-c", MAPPED, "/pool/data")
    reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def asks_b():
        """Whether reading it once more has `b` send bytes."""
        before = counters(b)["network_sent_bytes"]
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline().strip() == sha(source)
        return counters(b)["network_sent_bytes"] > before
    assert asks_b()
    heat_up(a, source)
    wait_until(lambda: not asks_b(), SECONDS)
    reader.stdin.close()
    assert reader.wait(timeout=30) == 0


def test_a_region_that_needs_the_room_gets_it(racks, make_file):
    _, b, a = racks()
    heat_up(a, put(b, make_file))
    a.run("region", "create", "scratch", "120M", "--rack", "a")
    assert homes(a) == ({"b"}, set())


def test_reads_go_on_when_the_home_dies_and_the_copy_is_kept_as_one_that_was_asked_for(racks, make_file, folder):
    _, b, a = racks(["--repair-after", "6"])
    source = put(b, make_file)
    heat_up(a, source)
    b.kill()
    for text in (READ, MAPPED):
        assert read(a, text) == sha(source)
    # Not even a put that needs the room takes the last copy, as soon as the directory knows that it is the last.
    wait_until(lambda: homes(a) == (set(), {"a"}), SECONDS)
    failed = a.run("put", make_file("big", 120 * MEBIBYTE, seed=3), "--name", "big", "--rack", "a", check=False)
    assert failed.returncode == 1
    assert read(a) == sha(source)
    wait_until(lambda: homes(a) == ({"a"}, set()), SECONDS)
    # Its home comes back with one too many.
    b.start()
    wait_until(lambda: b.json("status")["used_bytes"] == 0, SECONDS)
    assert homes(a) == ({"a"}, set())
    patiently(b, "get", "data", folder / "back")
    assert sha(folder / "back") == sha(source)


def test_a_copy_outlives_its_node_and_goes_with_its_object(racks, make_file):
    d, b, a = racks()
    source = put(b, make_file)
    heat_up(a, source)
    a.kill()
    a.start()
    wait_until(lambda: homes(d) == ({"b"}, {"a"}), SECONDS)
    before = counters(b)["network_sent_bytes"]
    assert read(a) == sha(source)
    assert counters(b)["network_sent_bytes"] == before
    d.run("rm", "data")
    wait_until(lambda: all(node.json("status")["used_bytes"] == 0 for node in (a, b)), SECONDS)


def test_a_node_that_is_told_to_have_none_drops_what_it_has(racks, make_file):
    _, b, a = racks()
    heat_up(a, put(b, make_file))
    a.stop()
    a.options += ["--heat-copies", "off"]
    a.start()
    wait_until(lambda: a.json("status")["used_bytes"] == 0 and homes(b) == ({"b"}, set()), SECONDS)


def test_a_copy_that_nobody_reads_goes_and_one_that_is_read_or_open_stays(racks, make_file):
    _, b, a = racks(["--heat-copies-memory", "4"])
    source = put(b, make_file)
    # Read on and on: what was fetched soon counts no more here.
    wait_until(lambda: read(a) == sha(source) and homes(a)[1] == {"a"}, SECONDS)
    words = a.command("run", "--", sys.executable, "-c", MAPPED, "/pool/data")
    reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert reader.stdout.readline().strip() == sha(source)
    with pytest.raises(AssertionError):
        wait_until(lambda: counters(a)["heat_copies_dropped"] > 0, 7)
    reader.stdin.close()
    reader.wait(timeout=30)
    wait_until(lambda: a.json("status")["used_bytes"] == 0 and homes(a)[1] == set(), SECONDS)


@pytest.mark.parametrize("step", ["repair-reserved:1", "repair-piece:2", "object-header-drafted:1", "repair-copied:1", "repair-made:1"])
def test_who_dies_while_it_makes_a_copy_leaves_one_or_none(racks, make_file, step):
    d, b, a = racks()
    source = put(b, make_file)
    a.kill()
    start_armed(a, step)
    digests = []
    try:
        for _ in range(3):
            patiently(a, "ls")
            digests.append(read(a))
    except AssertionError:
        # It has copied, and died, before it was read so often.
        if not is_dead(a):
            raise
    assert set(digests) <= {sha(source)}
    wait_until(lambda: is_dead(a), SECONDS, why=lambda: f"{step} is never reached:\n{a.words()}")
    bury(a)
    heat_up(a, source)
    used = a.json("status")["used_bytes"]
    assert SIZE <= used < SIZE + 2 * (2 * MEBIBYTE), "no second copy's room is held"
    d.run("rm", "data")
    wait_until(lambda: all(node.json("status")["used_bytes"] == 0 for node in (a, b)), SECONDS)


@pytest.mark.parametrize("step", ["heat-copy-let-go:1", "object-header-removed:1", "heat-copy-dropped:1"])
def test_who_dies_while_it_drops_a_copy_holds_no_room_for_it(racks, make_file, step):
    _, b, a = racks()
    source = put(b, make_file)
    heat_up(a, source)
    a.stop()
    a.options += ["--heat-copies", "off"]
    start_armed(a, step)
    wait_until(lambda: is_dead(a), SECONDS, why=lambda: f"{step} is never reached:\n{a.words()}")
    bury(a)
    wait_until(lambda: a.json("status")["used_bytes"] == 0 and homes(b) == ({"b"}, set()), SECONDS)
    assert read(a) == sha(source)
