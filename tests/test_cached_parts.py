"""Parts of other racks' objects in little memory, in every order in which they can leave: the right bytes, again and again."""

import hashlib
import os
import random
import subprocess
import sys

import pytest
from faults import MEBIBYTE, sha

SIZE = 24 * MEBIBYTE + 4321
# What a node may keep is a quarter of the object.
BUDGET = 6 * MEBIBYTE
# Touches a window again and again while it goes through the rest, as the orders differ in what they make of that; prints a digest of all.
HOT_AND_COLD = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as source:
    mapping = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
step = 64 << 10
hot = mapping[:8 * step]
digest = hashlib.sha256()
for start in range(0, len(mapping), step):
    digest.update(mapping[start:start + step])
    number = start // step % 8
    assert mapping[number * step:(number + 1) * step] == hot[number * step:(number + 1) * step], start
print(digest.hexdigest())
"""


# Unmaps parts of a mapping, as llama.cpp does of what it has taken to a GPU, and maps other objects there; prints a digest of those once it is
# told to.
PARTS_REPLACED = """
import ctypes, hashlib, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
part = 2 << 20
def map(name, parts, address=None):
    descriptor = os.open("/pool/" + name, os.O_RDONLY)
    fixed = 0x10 if address else 0
    got = libc.mmap(address, parts * part, 1, 2 | fixed, descriptor, 0)
    assert got not in (None, 2**64 - 1), os.strerror(ctypes.get_errno())
    os.close(descriptor)
    return got
first = map("whole", 9)
for number in range(8):
    place = first + (1 + number) * part
    assert libc.munmap(place, part) == 0
    assert map(f"part-{number}", 1, place) == place
map("other", 1)
print("mapped", flush=True)
sys.stdin.readline()
print(hashlib.sha256(ctypes.string_at(first + part, 8 * part)).hexdigest())
"""


def test_what_is_mapped_where_a_part_of_another_mapping_was_is_not_lost_with_that(start_node, make_file):
    home = start_node("b", options=["--capacity", "64M"])
    goes = start_node("c", join=home.address, options=["--capacity", "64M"])
    a = start_node("a", join=home.address, options=["--capacity", "16M", "--cache-budget", "32M"])
    part = 2 * MEBIBYTE
    goes.run("put", make_file("whole", 9 * part, seed=100), "--name", "whole")
    sources = [make_file(f"part-{number}", part, seed=number) for number in range(8)]
    for source in [*sources, make_file("other", part, seed=101)]:
        home.run("put", source, "--name", source.name)
    command = a.command("run", "--", sys.executable, "-c", PARTS_REPLACED)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "mapped\n", program.communicate()[1]
        goes.kill()
        printed, errors = program.communicate("go on\n", timeout=90)
    expected = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    assert (printed.strip(), program.returncode) == (expected, 0), errors


@pytest.mark.parametrize("order", ["lru", "clock", "s3fifo", "fifo"])
def test_mapped_parts_leave_in_each_order_and_come_back_right(start_node, make_file, order):
    home = start_node("b", options=["--capacity", "64M"])
    a = start_node("a", join=home.address, options=["--capacity", "16M", "--cache-budget", "6M", "--eviction", order])
    source = make_file("source", SIZE)
    home.run("put", source, "--name", "data")
    for _ in range(2):
        ran = a.run("run", "--unit", "256K", "--budget", "6M", "--", sys.executable, "-c", HOT_AND_COLD, "/pool/data")
        assert ran.stdout.strip() == sha(source), ran.stderr
    counters = a.json("status")["counters"]
    # Each pass needs all of it, and most of it has left before it is needed again.
    assert counters["filled_bytes"] > SIZE + SIZE // 2
    assert counters["evicted_bytes"] >= counters["filled_bytes"] - BUDGET - 2 * MEBIBYTE


@pytest.mark.parametrize("options", [[], ["--no-passthrough"]], ids=["passthrough", "without"])
def test_a_file_whose_parts_can_leave_is_never_passed_through(start_node, make_file, folder, options):
    """The kernel would read holes where parts have left: zeros."""
    home = start_node("b", options=["--capacity", "64M"])
    a = start_node("a", join=home.address, options=["--capacity", "16M", "--cache-budget", "6M"])
    source = make_file("source", SIZE)
    home.run("put", source, "--name", "data")
    content = source.read_bytes()
    place = folder / "mounted"
    place.mkdir()
    mount = subprocess.Popen(a.command("mount", place, "--json", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if not mount.stdout.readline():
            pytest.skip(f"nothing can be mounted here: {mount.communicate()[1]}")
        descriptor = os.open(place / "data", os.O_RDONLY)
        try:
            # Pages that the kernel keeps would hide what the mount answers.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            starts = list(range(0, SIZE, 128 << 10)) * 2
            random.Random(5).shuffle(starts)
            for start in starts:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(descriptor, 128 << 10, start) == content[start:start + (128 << 10)], start
        finally:
            os.close(descriptor)
        assert a.json("status")["counters"]["evicted_bytes"] > SIZE // 2
    finally:
        mount.terminate()
        mount.communicate(timeout=20)


def test_two_programs_with_other_units_on_one_object_see_the_same_bytes(start_node, make_file):
    """The first mapping says how much is fetched at once; the second one gets by with it, or brings its own."""
    home = start_node("b", options=["--capacity", "64M"])
    a = start_node("a", join=home.address, options=["--capacity", "16M", "--cache-budget", "6M"])
    source = make_file("source", SIZE)
    home.run("put", source, "--name", "data")
    units = ["64K", "1M", "4M"]
    programs = [
        subprocess.Popen(a.command("run", "--unit", unit, "--budget", "6M", "--", sys.executable, "-c", HOT_AND_COLD, "/pool/data"),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for unit in units
    ]
    for unit, program in zip(units, programs, strict=True):
        output, words = program.communicate(timeout=100)
        assert (program.returncode, output.strip()) == (0, hashlib.sha256(source.read_bytes()).hexdigest()), (unit, words)
