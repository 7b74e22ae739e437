"""Huge pages are made again where far memory has come to rest, and every byte stays right when they fall apart."""

import os
import pathlib
import re
import sys

import pytest

from test_far import far, library, pytestmark  # noqa: F401

SETTING = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
WANTED = re.search(r"\[(\w+)\]", SETTING.read_text()).group(1) if SETTING.exists() else "never"
needs_huge_pages = pytest.mark.skipif(
    WANTED == "never", reason="this kernel makes no transparent huge pages (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)"
)

# Goes through all of its memory, rests on a part of it, and so on; a child looks, too, and some of it is given back.
PROGRAM = """
import mmap, os, sys, time
BYTES, PART, PAGE = 192 << 20, 64 << 20, 4096
memory = mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(ADVICE)
there = {}
def write(round, pages):
    for page in pages:
        there[page] = (page * 31 + round).to_bytes(8, "little")
        at = page * PAGE + 8 * (page % 500)
        memory[at:at + 8] = there[page]
def check(pages):
    for page in pages:
        at = page * PAGE + 8 * (page % 500)
        if memory[at:at + 8] != there.get(page, bytes(8)):
            print(f"page {page} is wrong")
            os._exit(1)
everything, part = range(BYTES // PAGE), range(PART // PAGE)
for round in range(ROUNDS):
    write(round, everything)
    until = time.monotonic() + 1.6
    while time.monotonic() < until:
        check(part)
    write(round + 100, part[::7])
    child = os.fork()
    if child == 0:
        check(part)
        write(round + 200, part[::3])
        check(part)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("the child found something wrong")
    # From the middle of a huge page into the middle of another one.
    first = 1000 + 777 * round
    memory.madvise(mmap.MADV_DONTNEED, first * PAGE, 1200 * PAGE)
    for page in range(first, first + 1200):
        there.pop(page, None)
    check(everything)
print("right")
"""


def run(binary, advice, rounds, **environment):
    program = [sys.executable, "-c", PROGRAM.replace("ADVICE", advice).replace("ROUNDS", str(rounds))]
    ended = far(binary, ["--local", "128M"], program, env={**os.environ, **environment})
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr
    found = re.search(r"(\d+) huge pages made again", ended.stderr)
    return int(found.group(1)) if found else 0


@needs_huge_pages
def test_memory_at_rest_gets_huge_pages_and_keeps_its_bytes_when_they_fall_apart(binary, library):
    made = run(binary, "mmap.MADV_HUGEPAGE", 3)
    # Of the part's 32, some never left; others are made in each round.
    assert made >= 16, made


def test_without_the_switch_and_for_who_wants_none_nothing_is_made(binary, library):
    assert run(binary, "mmap.MADV_HUGEPAGE", 1, HINTERLAND_FAR_HUGE="0") == 0
    assert run(binary, "mmap.MADV_NOHUGEPAGE", 1) == 0
