"""Far memory on a disk that fails under it: the right bytes from another copy, or SIGBUS with the reason, never others."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys

import pytest

from failing_disk import MEBIBYTE, FailingDisk
from test_far import compiled

SECONDS_MAX = 120
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own has to be mounted"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
    pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="no mkfs.ext4 (hint: apt install e2fsprogs)"),
]

# Fills memory with pages that differ, says so, waits for a line and reads all of them once more.
PROGRAM = """
import sys
PAGE, COUNT = 4096, 200 << 8
memory = bytearray(PAGE * COUNT)
head = lambda number: b"page %08d of far memory" % number
for number in range(COUNT):
    memory[number * PAGE : number * PAGE + 27] = head(number)
print("ready", flush=True)
sys.stdin.readline()
for number in range(COUNT):
    if memory[number * PAGE : number * PAGE + 27] != head(number):
        print("WRONG", number, flush=True)
        break
else:
    print("right", flush=True)
"""


@pytest.fixture(name="make_disk")
def _make_disk(tmp_path):
    disks = []

    def make(room_bytes=None):
        disks.append(FailingDisk(tmp_path / str(len(disks)), 600 * MEBIBYTE, room_bytes))
        return disks[-1]

    yield make
    for disk in disks:
        disk.end()


def run_while(binary, far, fail, options=()):
    """Runs the program with 64 MiB here and has `fail` happen when all it has was written; returns its end, stdout and stderr."""
    command = [binary, "run", "--local", "64M", *(word for name in far for word in ("--far", name)), *options]
    command += ["--", sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            fail()
            said, told = running.communicate("\n", timeout=SECONDS_MAX)
        finally:
            running.kill()
    return running.returncode, said, told


def names(disks):
    """The disks as back ends with room for all, and not for all twice."""
    return [f"ssd:{disk.folder}@400M" for disk in disks]


def is_told(disk, told, reason):
    """Whether somebody is told that this disk failed, and why."""
    return re.search(rf"ssd:{disk.folder} failed: .*{reason}", told) is not None


# More runs than that read from the same one of two disks by chance once in a thousand times.
TURNS_MAX = 10
CHANGED = "the bytes that came back are not those that were put"
# Of a read that reaches over the end of the disk below, a loop device gives back zeros.
UNREADABLE = f"(Input/output error|{CHANGED})"


def fail(disk, reason):
    """Has a disk fail in one of these ways."""
    if reason == UNREADABLE:
        disk.lose_contents()
    else:
        assert disk.change_contents(b" of far memory") > 1000


@pytest.mark.parametrize("reason", [UNREADABLE, CHANGED], ids=["unreadable", "changed"])
def test_a_disk_that_fails_ends_the_program_with_the_reason_and_no_wrong_byte(binary, make_disk, reason):
    disk = make_disk()
    code, said, told = run_while(binary, names([disk]), lambda: fail(disk, reason))
    assert code == 128 + signal.SIGBUS and said == "", (code, said, told)
    assert "are lost" in told and is_told(disk, told, reason), told


def test_a_run_says_what_failed_while_the_program_writes_to_where_it_is_said(binary, make_disk, tmp_path):
    """The kernel holds a pipe for the writer that waits for its far memory, and whoever serves that must not wait for the pipe."""
    disk = make_disk()
    command = [binary, "run", "--local", "64M", "--far", *names([disk]), "--", compiled(tmp_path, "far_written")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as running:
        try:
            assert running.stdout.readline() == b"ready\n"
            disk.lose_contents()
            said, _ = running.communicate(b"\n", timeout=SECONDS_MAX)
        finally:
            running.kill()
    # A call on memory that is lost fails.
    assert running.returncode == 1 and b"Bad address" in said and b"are lost" in said, (running.returncode, said[-2000:])


@pytest.mark.parametrize("reason", [UNREADABLE, CHANGED], ids=["unreadable", "changed"])
def test_what_a_second_disk_has_is_read_from_there(binary, make_disk, reason):
    # Contents are read from the one that is quicker of late: one of the two, now this one and now that.
    for turn in range(TURNS_MAX):
        disks = [make_disk(), make_disk()]
        broken = disks[turn % 2]
        code, said, told = run_while(binary, names(disks), lambda disk=broken: fail(disk, reason), ["--copies", "2"])
        assert code == 0 and said == "right\n", (code, said, told)
        if is_told(broken, told, reason):
            break
    else:
        pytest.fail(f"in {TURNS_MAX} runs nobody read from the disk that had failed: {told}")


def test_a_disk_that_takes_no_more_is_told_of_and_costs_a_copy_but_no_byte(binary, make_disk):
    """Room for its file was set aside by the file system; the disk below has less."""
    disk = make_disk(room_bytes=100 * MEBIBYTE)
    code, said, told = run_while(binary, [*names([disk]), "zstd"], lambda: None, ["--copies", "2"])
    assert code == 0 and said == "right\n", (code, said, told)
    assert is_told(disk, told, "(No space left on device|Input/output error)"), told
    assert "fewer copies" in told, told
