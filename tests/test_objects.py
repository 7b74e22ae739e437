"""Objects: what was put comes back byte for byte, under names that make sense, and nothing else ever shows."""

import hashlib
import json
import subprocess
import time

import pytest

MEBIBYTE = 1 << 20


def digest(path):
    """The sha256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def used_bytes(node):
    """Bytes that the node's objects hold or have reserved."""
    return node.json("status")["used_bytes"]


def wait_until(what, seconds=5):
    """Polls until `what()` is true; an assertion when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come true in time")


@pytest.mark.parametrize("size", [1, 4095, 65_536, 65_537, 2 * MEBIBYTE, 5 * MEBIBYTE + 3])
def test_a_file_comes_back_byte_for_byte(node, folder, make_file, size):
    source = make_file("source", size)
    node.run("put", source, "--name", "a/b")
    node.run("get", "a/b", folder / "back")
    assert digest(folder / "back") == digest(source)
    assert node.json("stat", "a/b")["bytes"] == size


def test_a_stream_of_unknown_size_comes_back(node, folder, make_file):
    source = make_file("source", 9 * MEBIBYTE + 1)
    with open(source, "rb") as stream:
        node.run("put", "-", "--name", "streamed", stdin=stream)
    back = node.run("get", "streamed", "-", text=False).stdout
    assert hashlib.sha256(back).hexdigest() == digest(source)


def test_a_list_is_sorted_and_takes_a_prefix(node, make_file):
    source = make_file("source", 100)
    for name in ["m/b", "m/a", "z", "m/c/d"]:
        node.run("put", source, "--name", name)
    assert [entry["name"] for entry in node.json("ls")] == ["m/a", "m/b", "m/c/d", "z"]
    assert [entry["name"] for entry in node.json("ls", "m/")] == ["m/a", "m/b", "m/c/d"]


def test_the_same_bytes_have_the_same_digest(node, make_file):
    source = make_file("source", 3 * MEBIBYTE)
    other = make_file("other", 3 * MEBIBYTE, seed=2)
    digests = [json.loads(node.run("put", path, "--name", name, "--json").stdout)["digest"]
               for path, name in [(source, "one"), (source, "two"), (other, "three")]]
    assert digests[0] == digests[1] != digests[2]


BAD_NAMES = ["", "a" * 4096, "a/../b", "../a", "/a", "a//b", "a/", ".", "a\nb", "x/" + "y" * 256]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: name[:12].replace("\n", "newline") or "empty")
def test_a_bad_name_is_refused_with_a_hint_and_leaves_nothing(node, make_file, name):
    source = make_file("source", 100)
    outcome = node.run("put", source, "--name", name, check=False)
    assert outcome.returncode in (1, 2)
    assert "hint:" in outcome.stderr
    assert node.json("ls") == []
    assert used_bytes(node) == 0


def test_a_name_that_is_taken_keeps_its_first_object(node, folder, make_file):
    first, second = make_file("first", 1000), make_file("second", 2000, seed=2)
    node.run("put", first, "--name", "taken")
    outcome = node.run("put", second, "--name", "taken", check=False)
    assert outcome.returncode == 1 and "taken" in outcome.stderr and "hint:" in outcome.stderr
    node.run("get", "taken", folder / "back")
    assert digest(folder / "back") == digest(first)


def test_of_two_writers_of_one_name_one_wins_whole(node, folder, make_file):
    sources = [make_file(f"source-{seed}", 20 * MEBIBYTE, seed) for seed in (1, 2)]
    puts = [subprocess.Popen(node.command("put", source, "--name", "contended"),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for source in sources]
    words = [put.communicate(timeout=60)[1] for put in puts]
    codes = [put.returncode for put in puts]
    assert sorted(codes) == [0, 1], words
    node.run("get", "contended", folder / "back")
    assert digest(folder / "back") == digest(sources[codes.index(0)])


def test_an_object_larger_than_the_pool_is_refused_before_a_byte_moves(node, folder):
    huge = folder / "huge"
    with open(huge, "wb") as target:
        target.truncate(8 << 30)
    started = time.monotonic()
    outcome = node.run("put", huge, "--name", "huge", check=False)
    assert outcome.returncode == 1 and "hint:" in outcome.stderr
    assert time.monotonic() - started < 5, "it read the file before it looked for room"
    assert used_bytes(node) == 0 and node.json("ls") == []


def test_a_stream_that_outgrows_the_pool_leaves_nothing(node):
    with open("/dev/zero", "rb") as endless:
        outcome = node.run("put", "-", "--name", "endless", stdin=endless, check=False)
    assert outcome.returncode == 1 and "hint:" in outcome.stderr
    wait_until(lambda: used_bytes(node) == 0)
    assert node.json("ls") == []


def test_what_is_removed_makes_room(node, make_file):
    source = make_file("source", 100 * MEBIBYTE)
    for _ in range(4):
        node.run("put", source, "--name", "large")
        node.run("rm", "large")
    assert node.json("ls") == []
    wait_until(lambda: used_bytes(node) == 0)


def test_removing_what_is_not_there_fails_with_a_hint(node):
    outcome = node.run("rm", "nothing", check=False)
    assert outcome.returncode == 1 and "hint:" in outcome.stderr


def test_verify_reads_every_copy(two_racks, make_file):
    a, _ = two_racks
    a.run("put", make_file("source", 5 * MEBIBYTE), "--name", "twice", "--copies", "2")
    (verified,) = a.json("verify", "twice")
    assert len(verified["good"]) == 2 and verified["bad"] == []
    assert verified["blocks"] == 2 * 80
    assert len({home["node"] for home in a.json("stat", "twice")["homes"]}) == 2


def test_more_copies_than_nodes_are_refused(two_racks, make_file):
    a, _ = two_racks
    outcome = a.run("put", make_file("source", 100), "--name", "many", "--copies", "3", check=False)
    assert outcome.returncode == 1 and "hint:" in outcome.stderr
    assert a.json("ls") == []
