"""Back ends of far memory together, under real programs: pool, another rack, compressed memory and disks; and what happens when one dies."""

import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

import pytest

from faults import FULL, wait_until
from leavings import marked, processes

TREE = pathlib.Path(__file__).resolve().parent.parent
SECONDS_MAX = 120
# A program that is killed has left nothing after far less than a second; the rest is for a machine that is busy.
KILLED_SECONDS_MAX = 5

KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
]

# Fills memory with what does not compress, says so, waits for a line, and checks all of it.
CHECKING = """
import hashlib, sys
blocks = [hashlib.shake_128(number.to_bytes(8, "little")).digest(1 << 20) for number in range(int(sys.argv[1]))]
print("ready", flush=True)
sys.stdin.readline()
for number, block in enumerate(blocks):
    if block != hashlib.shake_128(number.to_bytes(8, "little")).digest(1 << 20):
        print("WRONG", flush=True)
        sys.exit(1)
print("right", flush=True)
"""


@pytest.fixture(scope="module")
def library(binary):
    """The preloaded library beside the binary."""
    path = binary.parent / "libhinterland_preload.so"
    if not path.exists():
        pytest.fail(f"there is no {path} (hint: cargo build -p hinterland-preload)")
    return path


@pytest.fixture(scope="module")
def random_program(tmp_path_factory):
    """A program that checks everything it reads against what it wrote."""
    path = tmp_path_factory.mktemp("far") / "far_random"
    subprocess.run(["cc", "-O1", "-o", path, TREE / "tests/programs/far_random.c", "-lpthread"], check=True)
    return path


def names(folder, far):
    """The back ends with their folders made."""
    for name in ("d1", "d2"):
        (folder / name).mkdir(exist_ok=True)
    return far.replace("ssd:", f"ssd:{folder}/")


@pytest.mark.parametrize(
    "far, copies",
    [
        ("pool", 1),
        ("pool:b", 1),
        ("zstd", 1),
        ("ssd:d1@1G,ssd:d2@1G", 1),
        ("pool,pool:b,zstd", 1),
        ("pool:b,ssd:d1@1G,lz4", 2),
    ],
)
def test_a_random_program_reads_what_it_wrote(library, two_racks, random_program, folder, far, copies):
    a, _ = two_racks
    options = ["--local", "64M", "--far", names(folder, far), "--copies", copies, "--", random_program, "1500", "979"]
    ended = a.run("run", *options, check=False)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    for name in far.split(","):
        name = names(folder, name.split("@")[0])
        moved = re.search(rf"; {re.escape(name)}: (\d+) MiB out, \d+ MiB in", ended.stderr)
        assert moved, ended.stderr
        assert len(far.split(",")) > 1 or int(moved.group(1)) > 0, ended.stderr
    assert not any((folder / "d1").iterdir()), "a file of far memory has a name"
    given_back(a)


def lends(node):
    """Whether a member of the pool has anything."""
    return any(member["used_bytes"] for member in node.json("status")["members"])


def given_back(node):
    """Waits until no member of the pool has anything any more."""
    wait_until(lambda: not lends(node), SECONDS_MAX, "far memory stays in the pool")


class Run:
    """A program that has filled its memory, and waits to check it."""

    def __init__(self, node, *options, mebibytes=140, environment=None):
        command = node.command("run", "--local", "96M", *options, "--", sys.executable, "-c", CHECKING, mebibytes)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout.readline() == "ready\n", self.process.communicate(timeout=SECONDS_MAX)[1]

    def check(self):
        """Lets the program check; returns its exit status and what was said."""
        said, told = self.process.communicate("\n", timeout=SECONDS_MAX)
        assert "WRONG" not in said, told
        return self.process.returncode, said, told


def test_a_node_that_dies_costs_nothing_with_two_copies(library, two_racks):
    a, b = two_racks
    run = Run(a, "--far", "pool:b,lz4", "--copies", "2")
    b.kill()
    code, said, told = run.check()
    assert code == 0 and said == "right\n", told


def test_a_node_that_dies_with_the_only_copy_stops_the_program_and_says_why(library, two_racks):
    a, b = two_racks
    run = Run(a, "--far", "pool:b")
    b.kill()
    code, said, told = run.check()
    assert code == 128 + signal.SIGBUS and said == "", (code, told)
    assert "are lost" in told and "pool:b failed" in told and "--copies 2" in told, told


@pytest.mark.parametrize("options, seconds, ends", [
    (["--far", "pool:b,lz4", "--copies", "2"], None, "right"),
    (["--far", "pool:b"], 3, "right"),
    pytest.param(["--far", "pool:b"], None, "lost", marks=pytest.mark.skipif(not FULL, reason="a minute, ./check --full has it")),
], ids=["two-copies", "one-copy-for-a-moment", "one-copy"])  # fmt: skip
def test_a_node_that_hangs_is_waited_for_a_while_and_then_is_as_one_that_died(library, two_racks, options, seconds, ends):
    a, b = two_racks
    run = Run(a, *options)
    b.process.send_signal(signal.SIGSTOP)
    try:
        if seconds is not None:
            run.process.stdin.write("\n")
            run.process.stdin.flush()
            time.sleep(seconds)
            assert run.process.poll() is None, "it did not wait"
            b.process.send_signal(signal.SIGCONT)
        code, said, told = run.check()
    finally:
        b.process.send_signal(signal.SIGCONT)
    if ends == "right":
        assert code == 0 and said == "right\n", (code, told)
    else:
        assert code == 128 + signal.SIGBUS and said == "" and "are lost" in told, (code, told)


def test_what_the_own_node_had_stays_readable_when_it_dies(library, two_racks):
    a, _ = two_racks
    run = Run(a, "--far", "pool,lz4")
    a.kill()
    code, said, told = run.check()
    assert code == 0 and said == "right\n", told


def test_a_killed_run_leaves_nothing_in_the_pool(library, two_racks):
    a, b = two_racks
    run = Run(a, "--far", "pool,pool:b")
    assert sum(member["used_bytes"] for member in b.json("status")["members"]) > 0
    run.process.kill()
    run.process.communicate(timeout=SECONDS_MAX)
    given_back(b)


@pytest.mark.parametrize("far", ["lz4", "zstd", "ssd:d1@1G", "pool", "pool:b", "lz4,ssd:d1@1G,pool,pool:b"])
def test_a_killed_program_leaves_nothing_after_seconds(library, two_racks, folder, far):
    """The program, and not the run that it is in: that one ends by itself, and gives back what it had in the pool and in its folder."""
    a, _ = two_racks
    temporary = folder / "temporary"
    temporary.mkdir()
    environment, mark = marked(TMPDIR=str(temporary))
    run = Run(a, "--far", names(folder, far), environment=environment)
    assert lends(a) or "pool" not in far
    assert any(temporary.iterdir())
    (program,) = [int(number) for number in processes(mark) if int(number) != run.process.pid]
    os.kill(program, signal.SIGKILL)
    left = {"a process": lambda: processes(mark), "a file": lambda: any(temporary.iterdir()), "bytes of the pool": lambda: lends(a)}
    deadline = time.monotonic() + KILLED_SECONDS_MAX
    for what, is_left in {"the run": lambda: run.process.poll() is None, **left}.items():
        wait_until(lambda: not is_left(), deadline - time.monotonic(), f"{what} is left")
    _, told = run.process.communicate(timeout=SECONDS_MAX)
    assert run.process.returncode == 128 + signal.SIGKILL, told
    assert not any((folder / "d1").iterdir()), "a file of far memory has a name"


def test_a_full_pool_hands_over_to_the_next_back_end_or_says_so(library, two_racks, folder):
    a, _ = two_racks
    run = Run(a, "--far", names(folder, "pool@32M,ssd:d1@1G"))
    code, said, told = run.check()
    assert code == 0 and said == "right\n" and "has no room" not in told, told
    run = Run(a, "--far", "pool@32M", mebibytes=200)
    code, said, told = run.check()
    assert code == 0 and said == "right\n" and "has no room" in told, told


def fails(run):
    """Cuts off the file of a disk back end, so that each of its transfers fails."""
    cut = 0
    for entry in pathlib.Path(f"/proc/{run.process.pid}/fd").iterdir():
        if "/d1/" in os.readlink(entry):
            os.truncate(entry, 0)
            cut += 1
    assert cut == 1


def test_a_disk_that_fails_loses_nothing_with_two_copies_and_says_so_without(library, two_racks, folder):
    a, _ = two_racks
    run = Run(a, "--far", names(folder, "ssd:d1@1G,pool"), "--copies", "2")
    fails(run)
    code, said, told = run.check()
    assert code == 0 and said == "right\n", told
    run = Run(a, "--far", names(folder, "ssd:d1@1G"))
    fails(run)
    code, said, told = run.check()
    assert code == 128 + signal.SIGBUS and "are lost" in told and "d1 failed" in told, (code, told)


def test_back_ends_that_cannot_be_had_are_refused_before_the_program_starts(library, two_racks, folder):
    a, _ = two_racks
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
    try:
        cases = [
            ("pool:nowhere", "no node of rack nowhere"),
            ("pool@1M", "reached its limit"),
            ("lz4,lz4", "twice"),
            (f"ssd:{small}@64M", "No space left"),
        ]
        for far, part in cases:
            ended = a.run("run", "--local", "1G", "--far", far, "--", "echo", "started", check=False)
            assert ended.returncode != 0 and part in ended.stderr and "hint:" in ended.stderr, (far, ended.stderr)
            assert not ended.stdout
        assert not any(small.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def test_a_running_program_gets_a_second_copy_and_outlives_its_first_back_end(library, two_racks):
    a, b = two_racks
    run = Run(a, "--far", "pool:b")
    a.run("switch", run.process.pid, "--far", "pool:b,lz4", "--copies", "2")
    b.kill()
    code, said, told = run.check()
    assert code == 0 and said == "right\n", told


def test_a_running_program_is_switched_to_the_pool_and_back(library, two_racks):
    a, b = two_racks
    run = Run(a, "--far", "lz4")
    a.run("switch", run.process.pid, "--far", "pool:b,pool")
    assert sum(member["used_bytes"] for member in b.json("status")["members"]) > 0
    a.run("switch", run.process.pid, "--far", "zstd")
    code, said, told = run.check()
    assert code == 0 and said == "right\n", told
    given_back(a)
