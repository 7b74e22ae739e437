"""Huge pages that run out while a node serves programs with them: the reason and SIGBUS, and right bytes again when there are some.

Linux says then of a page that cannot be made that somebody has made it; a node that believed it showed zeros."""

import os
import pathlib
import subprocess
import sys

import pytest
from faults import MEBIBYTE, sha, sigbus

pytestmark = pytest.mark.alone

COUNTS = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
MAPPED = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as source:
    print(hashlib.sha256(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)).hexdigest())
"""
READ = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"


def count(name):
    return int((COUNTS / name).read_text())


@pytest.fixture
def limit():
    """Sets how many huge pages there may be beside those that exist; the limit is as it was afterwards."""
    path = COUNTS / "nr_overcommit_hugepages"
    if not os.access(path, os.W_OK) or count("free_hugepages") > count("resv_hugepages"):
        pytest.skip("the limit of huge pages cannot be changed, or there are some in reserve")
    before = path.read_text()
    yield lambda more: path.write_text(str(count("surplus_hugepages") + more))
    path.write_text(before)


@pytest.mark.parametrize("how", [MAPPED, READ])
def test_a_program_gets_right_bytes_or_a_reason_when_huge_pages_run_out(start_node, make_file, limit, how):
    home = start_node("b", options=["--capacity", "128M"])
    near = start_node("a", join=home.address, options=["--capacity", "64M", "--cache-budget", "64M"])
    if "huge pages in" not in near.words():
        pytest.skip("the node has no huge pages here")
    source = make_file("source", 24 * MEBIBYTE + 77)
    near.run("put", str(source), "--name", "models/m", "--rack", "b")

    def program():
        words = near.command("run", "--", sys.executable, "-c", how, "/pool/models/m")
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    limit(0)
    without = program()
    if how is MAPPED:
        assert sigbus(without.returncode) and without.stdout == "", without
        assert "nr_overcommit_hugepages" in without.stderr + near.words()
    else:
        assert without.stdout.strip() == sha(source), "a reader needs no page"
    # Two pages are less than the object has: the one makes room for the other.
    limit(2)
    assert program().stdout.strip() == sha(source)
    limit(64)
    assert program().stdout.strip() == sha(source)
