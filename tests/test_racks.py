"""Across racks: bytes move once for a host, budgets hold, and a second process finds what the first one fetched."""

import hashlib
import pathlib
import subprocess
import sys

import pytest
from faults import sha, sigbus

MEBIBYTE = 1 << 20
MAPPED = pathlib.Path(__file__).resolve().parent / "programs/mapped.py"


def received(node):
    """Bytes that the node's fills received from others."""
    return node.json("status")["counters"]["network_received_bytes"]


def scan(node, name, *options):
    """Maps and hashes an object under run."""
    outcome = node.run("run", *options, "--", sys.executable, MAPPED, "whole", f"/pool/{name}")
    return outcome.stdout.strip()


def test_members_of_both_racks_are_known_to_both(two_racks):
    for node in two_racks:
        members = node.json("status")["members"]
        assert {member["rack"] for member in members} == {"a", "b"}
        assert all(member["up"] for member in members)


def test_without_its_host_the_directory_is_named_with_what_to_start(two_racks, make_file):
    a, b = two_racks
    source = make_file("source", 1000)
    a.run("put", source, "--name", "x", "--copies", "2")
    b.stop()
    for words in (("ls",), ("get", "x", "-"), ("put", a.log, "--name", "y")):
        outcome = a.run(*words, check=False)
        assert outcome.returncode == 1 and "the directory does not answer: cannot connect" in outcome.stderr, outcome.stderr
        assert f"hint: start the node at {b.address} again" in outcome.stderr and "does not answer: the directory" not in a.words()
    b.start()
    assert a.run("get", "x", "-", text=False).stdout == source.read_bytes()


def test_put_goes_into_the_named_rack_and_else_stays_local(two_racks, make_file):
    a, _ = two_racks
    source = make_file("source", 1000)
    a.run("put", source, "--name", "there", "--rack", "b")
    a.run("put", source, "--name", "here")
    assert [home["rack"] for home in a.json("stat", "there")["homes"]] == ["b"]
    assert [home["rack"] for home in a.json("stat", "here")["homes"]] == ["a"]


def test_a_rack_that_does_not_exist_is_refused(two_racks, make_file):
    a, _ = two_racks
    outcome = a.run("put", make_file("source", 1000), "--name", "x", "--rack", "nowhere", check=False)
    assert outcome.returncode == 1 and "nowhere" in outcome.stderr and "hint:" in outcome.stderr


def sent(node):
    """Bytes that the node has sent, to other nodes and to programs of other racks."""
    return node.json("status")["counters"]["network_sent_bytes"]


def test_a_second_process_that_maps_moves_no_byte_over_the_network(two_racks, make_file):
    a, b = two_racks
    source = make_file("source", 40 * MEBIBYTE)
    a.run("put", source, "--name", "data", "--rack", "b")
    expected = hashlib.sha256(source.read_bytes()).hexdigest()
    start = received(a)
    assert scan(a, "data", "--budget", "64M") == expected
    first, home = received(a), sent(b)
    assert 40 * MEBIBYTE <= first - start <= 41 * MEBIBYTE
    assert scan(a, "data", "--budget", "64M") == expected
    assert received(a) == first and sent(b) == home


def test_in_the_rack_nothing_moves(two_racks, make_file):
    a, b = two_racks
    source = make_file("source", 20 * MEBIBYTE)
    b.run("put", source, "--name", "data")
    assert scan(b, "data") == hashlib.sha256(source.read_bytes()).hexdigest()
    assert received(b) == 0 and b.json("status")["cache_bytes"] == 0


def test_a_budget_smaller_than_the_object_holds(two_racks, make_file):
    a, _ = two_racks
    source = make_file("source", 40 * MEBIBYTE)
    a.run("put", source, "--name", "data", "--rack", "b")
    process = subprocess.Popen(
        a.command("run", "--budget", "10M", "--", sys.executable, MAPPED, "half_and_wait", "/pool/data"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "half\n"
    (cache,) = a.json("status")["caches"]
    assert 0 < cache["resident_bytes"] <= 10 * MEBIBYTE
    text, _ = process.communicate("go on\n", timeout=60)
    assert text.strip() == hashlib.sha256(source.read_bytes()).hexdigest()
    assert a.json("status")["cache_bytes"] <= 10 * MEBIBYTE


def test_a_budget_holds_at_every_moment_while_several_fills_want_room(two_racks, make_file):
    a, _ = two_racks
    source = make_file("source", 80 * MEBIBYTE)
    a.run("put", source, "--name", "data", "--rack", "b")
    words = a.command("run", "--budget", "9M", "--unit", "1M", "--", sys.executable, MAPPED, "whole", "/pool/data")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    seen = []
    while process.poll() is None:
        seen += [cache["resident_bytes"] for cache in a.json("status")["caches"]]
    assert process.stdout.read().strip() == hashlib.sha256(source.read_bytes()).hexdigest()
    assert seen and max(seen) > 4 * MEBIBYTE, "it was looked at while it mattered"
    assert max(seen) <= 9 * MEBIBYTE


def test_a_unit_that_is_set_is_used(two_racks, make_file):
    a, _ = two_racks
    source = make_file("source", 16 * MEBIBYTE)
    a.run("put", source, "--name", "data", "--rack", "b")
    scan(a, "data", "--unit", "1M")
    (cache,) = a.json("status")["caches"]
    assert cache["units"] == 16


def test_touching_one_byte_fetches_one_unit(two_racks, make_file):
    a, _ = two_racks
    a.run("put", make_file("source", 64 * MEBIBYTE), "--name", "data", "--rack", "b")
    program = "import mmap; f = open('/pool/data', 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); m[33 << 20]"
    start = received(a)
    a.run("run", "--unit", "2M", "--", sys.executable, "-c", program)
    assert received(a) - start <= 5 * MEBIBYTE


# Maps a page of a file and touches it.
TOUCH = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
kind = {"shared": mmap.MAP_SHARED, "private": mmap.MAP_PRIVATE}[sys.argv[2]]
address = libc.mmap(None, 4096, mmap.PROT_READ, kind, os.open(sys.argv[1], os.O_RDONLY), 0)
assert address != ctypes.c_void_p(-1).value, ctypes.get_errno()
print("mapped", flush=True)
ctypes.string_at(address, 1)
"""


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_touching_an_object_without_bytes_is_sigbus_and_faults_of_others_are_served_on(two_racks, make_file, kind):
    a, _ = two_racks
    source = make_file("source", 3 * MEBIBYTE)
    a.run("put", source, "--name", "data", "--rack", "b")
    a.run("put", make_file("nothing", 0), "--name", "empty", "--rack", "b")
    outcome = a.run("run", "--", sys.executable, "-c", TOUCH, "/pool/empty", kind, check=False)
    assert sigbus(outcome.returncode) and outcome.stdout == "mapped\n", (outcome, a.words())
    assert scan(a, "data") == sha(source)
    assert a.json("status")["problems"] == []
