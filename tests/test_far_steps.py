"""A random program under far memory against plain memory: reads, writes, forks, remaps, unmaps, system calls, evictions and switches.

`./check far` takes ten million steps: every unit, every back end alone and together, and while its back ends, copies and budget change.
Without HINTERLAND_FULL a few thousand of them are taken.
"""

import itertools
import os
import pathlib
import platform
import re
import subprocess
import time

import pytest

from faults import FULL

TREE = pathlib.Path(__file__).resolve().parent.parent
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
ROW_SECONDS_MAX = 3600 if FULL else 120
# Between two switches, so that most of a run is not spent on them.
PAUSE_SECONDS = 0.2

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
]

# What a run is switched among: back ends, copies and budget.
SWITCHES = [
    ("ssd:DISK@2G", 1, "64M"),
    ("pool,ssd:DISK@2G", 2, "96M"),
    ("pool:b", 1, "64M"),
    ("zstd,lz4,ssd:DISK@2G", 3, "1G"),
    ("pool,pool:b,lz4", 1, "50%"),
    ("lz4", 1, "64M"),
]

# Thousand steps, unit, back ends, copies, whether they change meanwhile. A step with units of 2 MiB takes fifteen times one with 4 KiB; FIT is as
# much of 16 KiB as is used together.
FIT = "fit"
PLAN = [
    (900, "4K", "lz4", 1, False),
    (1000, "4K", "ssd:DISK@2G", 1, False),
    (800, "4K", "lz4,ssd:DISK@2G", 2, False),
    (800, "4K", "pool", 1, False),
    (600, "4K", "pool:b", 1, False),
    (1400, "4K", "lz4", 1, True),
    (300, "16K", "lz4", 1, False),
    (700, FIT, "lz4", 1, False),
    (900, FIT, "lz4", 1, True),
    (400, "16K", "pool,pool:b,zstd", 1, False),
    (400, "16K", "lz4", 1, True),
    (500, "64K", "lz4", 1, False),
    (300, "64K", "ssd:DISK@2G", 1, False),
    (300, "64K", "lz4,ssd:DISK@2G", 2, False),
    (400, "64K", "lz4", 1, True),
    (100, "2M", "lz4", 1, False),
    (60, "2M", "ssd:DISK@2G", 1, False),
    (60, "2M", "lz4,ssd:DISK@2G", 2, False),
    (40, "2M", "pool", 1, False),
    (40, "2M", "lz4", 1, True),
]
# What no other test has: the rows that change.
ROWS = PLAN if FULL else [row for row in PLAN if row[-1]]


def test_the_plan_takes_ten_million_steps():
    assert sum(row[0] for row in PLAN) == 10_000


@pytest.fixture(scope="module")
def random_program(binary, tmp_path_factory):
    """A program that checks everything it reads against what it wrote."""
    if not (binary.parent / "libhinterland_preload.so").exists():
        pytest.fail("there is no libhinterland_preload.so (hint: cargo build -p hinterland-preload)")
    path = tmp_path_factory.mktemp("far") / "far_random"
    subprocess.run(["cc", "-O1", "-o", path, TREE / "tests/programs/far_random.c", "-lpthread"], check=True)
    return path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}k-{row[1]}-{row[2]}{'-changing' if row[4] else ''}")
def test_a_random_program_reads_what_it_wrote(start_node, folder, random_program, row):
    thousands, unit, far, copies, is_changing = row
    b = start_node("b", options=["--capacity", "512M"])
    a = start_node("a", join=b.address, options=["--capacity", "512M"])
    (folder / "disk").mkdir()
    seed = 2000 + PLAN.index(row)
    steps = thousands * 1000 if FULL else 4000 if unit != "2M" else 400
    options = ["--local", "64M", "--name", "random", "--copies", copies, "--far", on(folder, far)]
    options += [] if unit == FIT else ["--far-unit", unit]
    began = time.monotonic()
    running = subprocess.Popen(
        a.command("run", *options, "--", "sh", "-c", 'echo ready; exec "$0" "$@"', random_program, steps, seed),
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert running.stdout.readline() == "ready\n", running.communicate()[1]
        switched = change(a, folder, running) if is_changing else 0
        said, told = running.communicate(timeout=ROW_SECONDS_MAX)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 0 and said == "right\n", (seed, told)
    assert switched > 0 or not is_changing, told
    print(f"{steps} steps from seed {seed}, {switched} switches, {time.monotonic() - began:.0f} s: {told.splitlines()[-1]}")


def on(folder, far):
    """Back ends, with the place of their disk."""
    return far.replace("DISK", str(folder / "disk"))


def change(node, folder, running):
    """Switches the program to other back ends, copies and budgets until it ends; returns how often that succeeded."""
    switched, refused = 0, []
    deadline = time.monotonic() + ROW_SECONDS_MAX
    for far, copies, budget in itertools.cycle(SWITCHES):
        words = ["switch", "random", "--far", on(folder, far), "--copies", copies, "--local", budget, "--wait", "20"]
        if running.poll() is not None:
            break
        assert time.monotonic() < deadline, refused[-3:]
        ended = node.run(*words, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)})
        switched += ended.returncode == 0
        if ended.returncode != 0:
            refused.append((far, ended.stderr))
        time.sleep(PAUSE_SECONDS)
    print(f"{switched} switches, {len(refused)} refused: {refused[:-1][-3:]}")
    return switched
