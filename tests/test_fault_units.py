"""Fault units that the node chooses from how an object was read."""

import sys

from faults import MEBIBYTE

SIZE = 48 * MEBIBYTE
# A byte of 1500 pages without a pattern, which are the same in every run; all must be right.
AT_RANDOM = """
import mmap, random, sys
with open(sys.argv[1], "rb") as source:
    mapping = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
content = open(sys.argv[2], "rb").read()
numbers = random.Random(7)
for _ in range(1500):
    at = numbers.randrange(len(content))
    assert mapping[at] == content[at], at
"""


def test_random_reads_under_a_budget_move_fewer_bytes_in_the_next_program(start_node, make_file):
    home = start_node("b", options=["--capacity", "96M"])
    a = start_node("a", join=home.address, options=["--capacity", "16M", "--cache-budget", "64M"])
    source = make_file("source", SIZE)
    home.run("put", source, "--name", "data")
    units, moved = [], [0]
    for _ in range(6):
        a.run("run", "--budget", "12M", "--", sys.executable, "-c", AT_RANDOM, "/pool/data", source)
        status = a.json("status")
        units.append(status["caches"][0]["units"])
        moved.append(status["counters"]["network_received_bytes"])
    moved = [after - before for before, after in zip(moved, moved[1:], strict=False)]
    assert units[0] < units[1] and units == sorted(units), units
    assert moved[1] < moved[0] and moved[5] < moved[0] // 4, moved


def test_a_unit_that_was_asked_for_stays(start_node, make_file):
    home = start_node("b", options=["--capacity", "96M"])
    a = start_node("a", join=home.address, options=["--capacity", "16M", "--cache-budget", "64M"])
    source = make_file("source", SIZE)
    home.run("put", source, "--name", "data")
    for _ in range(3):
        a.run("run", "--budget", "12M", "--unit", "1M", "--", sys.executable, "-c", AT_RANDOM, "/pool/data", source)
        assert a.json("status")["caches"][0]["units"] == SIZE // MEBIBYTE
