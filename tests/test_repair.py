"""Copies that went with a node are made again elsewhere, once and right, whoever dies meanwhile."""

import contextlib
import json
import mmap
import pathlib
import subprocess
import sys

import hinterland
import pytest

from faults import bury, is_dead, patiently, sha, start_armed, steps_said, wait_until

MEBIBYTE = 1 << 20
SIZE = 20 * MEBIBYTE + 5
ROOM = ["--capacity", "256M"]
AT_ONCE = [*ROOM, "--repair-after", "0", "--repair-rate", "0"]
# A lease of three seconds, and the pauses of who looks for repairs.
SECONDS = 30


@pytest.fixture
def racks(start_node):
    """A function that starts node `d` with the directory and no room, and nodes `a`, `b` and `c` in racks of their own."""
    def start(options):
        d = start_node("d", options=["--capacity", "2M", *options[2:]])
        return [d] + [start_node(name, join=d.address, options=options) for name in ("a", "b", "c")]
    return start


def homes(node, name="data"):
    """The racks of the homes of an object that are up, and of those that are down."""
    found = node.json("stat", name)["homes"]
    return ({home["rack"] for home in found if home["up"]}, {home["rack"] for home in found if not home["up"]})


def copies_made(node):
    """How many copies a node says that it has made again."""
    return node.json("status")["counters"]["copies_made"]


def verifies(node, name="data"):
    """Whether a node's own copy of an object agrees with its checksums."""
    checked = json.loads(node.run("verify", name, "--json", check=False).stdout)[0]
    return node.json("status")["node"] in checked["good"]


def memory_files(node):
    """The files of a node's objects."""
    number = (node.state / "node.id").read_text().strip()
    return [*node.state.glob("memory-*/**/*.bytes"), *pathlib.Path(f"/dev/shm/hinterland-{number}").glob("*.bytes")]


def flip(path, offset):
    """Flips a bit where the node has it in memory."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[offset] ^= 64


@contextlib.contextmanager
def stuck(path, offset):
    """A byte of memory that keeps a wrong value, whatever is written to it."""
    script = "import mmap, sys\nfile = open(sys.argv[1], 'r+b')\nmemory = mmap.mmap(file.fileno(), 0)\noffset = int(sys.argv[2])\n" \
             "wrong = memory[offset] ^ 64\nmemory[offset] = wrong\nprint(flush=True)\nwhile True: memory[offset] = wrong"
    with subprocess.Popen([sys.executable, "-c", script, path, str(offset)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"\n"
            yield
        finally:
            holder.kill()


def has_two(node, name="data"):
    """Whether an object has two homes that are up."""
    return len(homes(node, name)[0]) == 2


def test_a_copy_that_died_with_its_node_is_made_again(racks, make_file, folder):
    _, a, b, c = racks(AT_ONCE)
    source = make_file("source", SIZE)
    names = {"data": source, "small": make_file("small", 777), "nothing": make_file("nothing", 0)}
    for name, path in names.items():
        a.run("put", path, "--name", name, "--copies", "2")
    [other] = [node for node in (b, c) if node.name in homes(a)[0]]
    [third] = [node for node in (b, c) if node is not other]
    other.kill()
    # By one look: between two, a home may be seen up and then gone.
    wait_until(lambda: all(homes(a, name)[0] == {"a", third.name} for name in names), SECONDS)
    assert homes(a)[0] == {"a", third.name}
    assert verifies(third)
    assert copies_made(third) >= 1 and copies_made(a) == 0
    # Now the first home may die too: every byte that was acknowledged is there.
    a.kill()
    for name, path in names.items():
        patiently(third, "get", name, folder / f"back-{name}")
        assert sha(folder / f"back-{name}") == sha(path)


def test_what_a_node_brings_back_is_given_up_where_it_is_too_much(racks, make_file):
    _, a, b, c = racks(AT_ONCE)
    a.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2")
    [other] = [node for node in (b, c) if node.name in homes(a)[0]]
    [third] = [node for node in (b, c) if node is not other]
    other.kill()
    wait_until(lambda: homes(a)[0] == {"a", third.name}, SECONDS)
    other.start()
    wait_until(lambda: other.json("status")["used_bytes"] == 0, SECONDS)
    assert homes(a) == ({"a", third.name}, set())
    a.run("rm", "data")
    wait_until(lambda: all(node.json("status")["used_bytes"] == 0 for node in (a, other, third)), SECONDS)


def test_a_short_absence_moves_nothing(racks, make_file):
    _, a, b, c = racks([*ROOM, "--repair-after", "20"])
    a.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2")
    [other] = [node for node in (b, c) if node.name in homes(a)[0]]
    [third] = [node for node in (b, c) if node is not other]
    other.kill()
    wait_until(lambda: homes(a) == ({"a"}, {other.name}), SECONDS)
    other.start()
    wait_until(lambda: homes(a) == ({"a", other.name}, set()), SECONDS)
    assert copies_made(third) == 0 and third.json("status")["used_bytes"] == 0


def test_where_nobody_has_room_nothing_is_broken(racks, make_file, start_node):
    d = start_node("d", options=["--capacity", "2M", "--repair-after", "0"])
    a = start_node("a", join=d.address, options=AT_ONCE)
    b = start_node("b", join=d.address, options=AT_ONCE)
    a.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2")
    b.kill()
    wait_until(lambda: homes(a) == ({"a"}, {"b"}), SECONDS)
    c = start_node("c", join=d.address, options=["--capacity", "4M", *AT_ONCE[2:]])
    assert homes(a) == ({"a"}, {"b"}) and c.json("status")["used_bytes"] == 0
    # Room comes with another node, and so does the copy.
    start_node("e", join=d.address, options=AT_ONCE)
    wait_until(lambda: homes(a)[0] == {"a", "e"}, SECONDS)


@pytest.mark.parametrize("step", ["repair-reserved:1", "repair-piece:2", "object-header-drafted:1", "repair-copied:1", "repair-made:1"])
def test_who_makes_a_copy_and_dies_leaves_one_copy_or_none(racks, make_file, folder, step):
    _, a, b, c = racks(AT_ONCE)
    source = make_file("source", SIZE)
    a.run("put", source, "--name", "data", "--copies", "2")
    [other] = [node for node in (b, c) if node.name in homes(a)[0]]
    [third] = [node for node in (b, c) if node is not other]
    third.kill()
    start_armed(third, step)
    other.kill()
    wait_until(lambda: is_dead(third), SECONDS, why=lambda: f"{step} is never reached:\n{third.words()}")
    bury(third)
    wait_until(lambda: homes(a)[0] == {"a", third.name}, SECONDS)
    assert verifies(third)
    a.kill()
    patiently(third, "get", "data", folder / "back")
    assert sha(folder / "back") == sha(source)
    used = third.json("status")["used_bytes"]
    assert SIZE <= used < SIZE + 2 * (2 * MEBIBYTE), "no second copy's room is held"


def test_a_switch_leaves_things_as_they_are(racks, make_file):
    _, a, b, c = racks([*AT_ONCE, "--repair", "off"])
    a.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2")
    [other] = [node for node in (b, c) if node.name in homes(a)[0]]
    [third] = [node for node in (b, c) if node is not other]
    other.kill()
    wait_until(lambda: homes(a) == ({"a"}, {other.name}), SECONDS)
    third.kill()
    third.start({"HINTERLAND_FAULT_POINT": "count"})
    wait_until(lambda: "joined:1" in steps_said(third), SECONDS)
    assert copies_made(third) == 0


def test_a_flipped_bit_is_found_and_its_copy_made_again(racks, make_file, folder):
    _, a, b, c = racks(AT_ONCE)
    source = make_file("source", SIZE)
    a.run("put", source, "--name", "data", "--copies", "2")
    [path] = memory_files(a)
    flip(path, 12_345_678)
    assert a.run("verify", "data", check=False).returncode == 1
    said = a.run("verify", "data", "--drop", check=False)
    assert "WRONG" in said.stdout and "right again" not in said.stdout and said.returncode == 1
    assert not path.exists(), "the copy was let go"
    wait_until(lambda: has_two(a) and a.run("verify", "data", check=False).returncode == 0, SECONDS)
    for node in (a, b, c):
        patiently(node, "get", "data", folder / "back")
        assert sha(folder / "back") == sha(source)


@pytest.mark.parametrize("at", ["a", "b"])
def test_who_has_mapped_a_wrong_copy_sees_right_bytes_once_it_is_mended(start_node, make_file, at):
    """On the home's own host, where nothing stands between a program and the memory. `verify` is asked of the home and of another node."""
    b = start_node("b", options=ROOM)
    a = start_node("a", join=b.address, options=ROOM)
    asked = {"a": a, "b": b}[at]
    source = make_file("source", SIZE)
    a.run("put", source, "--name", "data", "--copies", "2", "--rack", "a")
    [path] = memory_files(a)
    with hinterland.Pool(str(a.socket)) as pool:
        mapped = pool.map("data")
        assert bytes(mapped) == source.read_bytes()
        for offset in (5, 65_536, SIZE - 1):
            flip(path, offset)
        assert bytes(mapped) != source.read_bytes()
        said = asked.run("verify", "data", "--mend", check=False)
        assert said.returncode == 1 and "right again, from other copies" in said.stdout and "are right again" in said.stderr, said
        assert bytes(mapped) == source.read_bytes()
    [checked] = json.loads(asked.run("verify", "data", "--mend", "--json").stdout)
    assert checked["bad"] == [] and len(checked["good"]) == 2
    assert homes(a) == ({"a", "b"}, set()) and path.exists() and copies_made(a) + copies_made(b) == 0


def test_copies_that_are_wrong_in_different_places_mend_each_other(racks, make_file):
    _, a, b, c = racks(ROOM)
    source = make_file("source", SIZE)
    a.run("put", source, "--name", "data", "--copies", "3")
    copies = [memory_files(node)[0] for node in (a, b, c)]
    # All three are wrong, and no two in the same block but for one, which the third has right.
    for path, offsets in zip(copies, ([5, MEBIBYTE], [MEBIBYTE + 1, 7 * MEBIBYTE], [SIZE - 1]), strict=True):
        for offset in offsets:
            flip(path, offset)
    [checked] = json.loads(a.run("verify", "data", "--mend", "--json", check=False).stdout)
    assert len(checked["bad"]) == 3 and all(home["mended"] for home in checked["bad"]), checked
    assert a.run("verify", "data").stdout.startswith("data: 3 right copies")
    assert all(path.read_bytes()[:SIZE] == source.read_bytes() for path in copies)


def test_a_copy_whose_memory_does_not_keep_what_is_written_is_let_go(start_node, make_file):
    b = start_node("b", options=ROOM)
    a = start_node("a", join=b.address, options=ROOM)
    a.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2", "--rack", "a")
    [path] = memory_files(a)

    def is_let_go():
        a.run("verify", "data", "--mend", check=False)
        return not path.exists()

    # On a busy machine the byte may be right for a moment, and be looked at in that one.
    with stuck(path, 5):
        wait_until(is_let_go, SECONDS)


def test_a_block_that_nobody_has_right_leaves_the_copies_that_are_there(start_node, make_file):
    b = start_node("b", options=ROOM)
    a = start_node("a", join=b.address, options=ROOM)
    a.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2")
    for node in (a, b):
        flip(memory_files(node)[0], 5)
    flip(memory_files(b)[0], SIZE - 1)
    [checked] = json.loads(a.run("verify", "data", "--mend", "--json", check=False).stdout)
    assert len(checked["bad"]) == 2 and not any(home["mended"] for home in checked["bad"]), checked
    assert homes(a) == ({"a", "b"}, set())
    # What somebody has right is right with everybody now.
    flip(memory_files(a)[0], 5)
    flip(memory_files(b)[0], 5)
    assert a.run("verify", "data").returncode == 0


def bytes_of(opened, size):
    """What an open object reads, all of it."""
    read = bytearray(size)
    assert opened.read_into(read) == size
    return bytes(read)


@pytest.mark.parametrize("size", [100_000, SIZE])
def test_who_has_read_a_wrong_copy_reads_the_right_one_once_it_is_dropped(start_node, make_file, size):
    """Its handles of the copy lead nowhere when that is dropped: objects that are open and such that are opened again are read by others."""
    b = start_node("b", options=AT_ONCE)
    a = start_node("a", join=b.address, options=AT_ONCE)
    reader = start_node("reader", join=b.address, options=["--capacity", "2M"])
    source = make_file("source", size)
    a.run("put", source, "--name", "data", "--copies", "2")
    with hinterland.Pool(str(reader.socket)) as pool:
        for node in (a, b):
            kept = pool.open("data")
            assert sha(bytes_of(kept, size)) == sha(source)
            [path] = memory_files(node)
            flip(path, 5)
            # Wrong bytes of a read past the cache are for whoever reads to find; which home is asked is the pool's choice.
            bytes_of(kept, size)
            assert "WRONG" in a.run("verify", "data", "--drop", check=False).stdout
            wait_until(lambda: has_two(a) and a.run("verify", "data", check=False).returncode == 0, SECONDS)
            for _ in range(2):
                assert sha(bytes_of(kept, size)) == sha(source)
                assert sha(bytes_of(pool.open("data"), size)) == sha(source)


@pytest.mark.parametrize("size", [100_000, SIZE])
def test_a_get_reads_the_right_bytes_of_two_homes_with_wrong_ones(start_node, make_file, folder, size):
    b = start_node("b", options=ROOM)
    a = start_node("a", join=b.address, options=ROOM)
    reader = start_node("reader", join=b.address, options=["--capacity", "2M"])
    source = make_file("source", size)
    a.run("put", source, "--name", "data", "--copies", "2")
    assert homes(a) == ({"a", "b"}, set())
    [first], [second] = memory_files(a), memory_files(b)
    flip(first, 5)
    flip(second, size - 5)
    assert a.run("verify", "data", check=False).stdout.count("WRONG") == 2
    for node in (a, b, reader):
        said = node.run("get", "data", folder / "back").stderr
        assert sha(folder / "back") == sha(source)
        assert "1 block of data came wrong" in said and "--mend" in said
        assert sha(node.run("get", "data", "-", text=False).stdout) == sha(source)
    # What nobody has right is not written, and what was there before stays.
    flip(first, size - 5)
    for node in (a, b, reader):
        failed = node.run("get", "data", folder / "back", check=False)
        assert failed.returncode == 1 and "hinterland verify data" in failed.stderr, failed.stderr
        assert sha(folder / "back") == sha(source)
        assert not list(folder.glob(".back*"))
        assert node.run("get", "data", "-", check=False, text=False).returncode == 1


def test_a_home_that_is_down_is_not_called_wrong(start_node, make_file):
    b = start_node("b", options=ROOM)
    a = start_node("a", join=b.address, options=ROOM)
    b.run("put", make_file("source", SIZE), "--name", "data", "--copies", "2")
    a.kill()
    # The first time the directory may believe that it is up, and connecting fails; later it knows that it is down.
    for is_known in (False, True):
        if is_known:
            wait_until(lambda: homes(b) == ({"b"}, {"a"}), SECONDS)
        told = b.run("verify", "data", "--mend", check=False)
        assert told.returncode == 1
        assert "could not be asked" in told.stdout and "1 right copy" in told.stdout, told.stdout
        assert "WRONG" not in told.stdout and "wrong" not in told.stderr, told
    [checked] = json.loads(b.run("verify", "data", "--json", check=False).stdout)
    assert [home["asked"] for home in checked["bad"]] == [False]


def test_the_last_copy_is_never_dropped(node, make_file):
    node.run("put", make_file("source", SIZE), "--name", "data")
    [path] = memory_files(node)
    flip(path, 100)
    assert node.run("verify", "data", "--mend", check=False).returncode == 1
    assert homes(node) == ({"a"}, set())
    flip(path, 100)
    assert node.run("verify", "data").returncode == 0
