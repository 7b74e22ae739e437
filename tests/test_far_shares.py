"""Several programs with far memory on one disk: each reads what it wrote, and who has had more of it gives way."""

import os
import re
import subprocess
import sys

import pytest

from test_far import SECONDS_MAX, far, library, pytestmark  # noqa: F401

# Writes all of its memory, round after round, and compares what it finds; ends when its input does.
STORM = """
import mmap, sys, threading
BYTES, PAGE = 192 << 20, 4096
memory = mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
round = 0
while round < 2 or not over.is_set():
    for at in range(0, BYTES, PAGE):
        page = at // PAGE
        if round and memory[at:at + 8] != (page * round).to_bytes(8, "little"):
            sys.exit(f"page {page} is wrong in round {round}")
        memory[at:at + 8] = (page * (round + 1)).to_bytes(8, "little")
    round += 1
    if round == 2:
        print("two", flush=True)
print("right", flush=True)
"""


def start(binary, folder, share):
    command = [binary, "run", "--local", "80M", "--far", f"ssd:{folder}@1G", "--share", str(share), "--"]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, sys.executable, "-c", STORM], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_who_has_little_of_a_disk_by_its_share_gives_way_and_reads_what_it_wrote(binary, library, tmp_path):
    # Both at once, until each has been round twice beside the other.
    runs = [start(binary, tmp_path, share) for share in (1, 10000)]
    for run in runs:
        assert run.stdout.readline() == "two\n"
    told = []
    for run in runs:
        output, errors = run.communicate(timeout=SECONDS_MAX)
        assert run.returncode == 0 and output == "right\n", errors
        told.append(re.search(r"gave way to other runs for ([0-9.]+) s", errors))
    little, much = told
    assert little and float(little.group(1)) > 0.05, "the run with the smaller share never gave way"
    assert not much or float(much.group(1)) < float(little.group(1)) / 2, (little.group(0), much.group(0))


@pytest.mark.parametrize("unit", ["4K", "2M"])
def test_runs_that_crowd_the_processors_move_units_of_every_size(binary, library, tmp_path, unit):
    # Less leaves at once then than a unit of 2 MiB has, and a unit leaves whole.
    options = ["--local", "80M", "--far", "lz4", "--far-unit", unit]
    pipe = subprocess.PIPE
    runs = [subprocess.Popen([binary, "run", *options, "--", sys.executable, "-c", STORM], stdin=pipe, stdout=pipe,
                             stderr=pipe, text=True) for _ in range(os.cpu_count() + 1)]
    for run in runs:
        try:
            output, errors = run.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            for other in runs:
                other.kill()
            raise
        assert run.returncode == 0 and output == "two\nright\n", errors


def test_a_run_alone_gives_way_to_nobody(binary, library, tmp_path):
    options = ["--local", "80M", "--far", f"ssd:{tmp_path}@1G", "--share", "1"]
    ended = far(binary, options, [sys.executable, "-c", STORM], stdin=subprocess.DEVNULL)
    assert ended.returncode == 0 and ended.stdout == "two\nright\n", ended.stderr
    assert "gave way" not in ended.stderr


def test_a_board_that_cannot_be_had_is_told_of_and_the_program_runs(binary, library, tmp_path):
    folder = tmp_path / "run"
    (folder / "hinterland/far").mkdir(parents=True, mode=0o700)
    (folder / "hinterland/far").chmod(0o700)
    (folder / "hinterland/far/shares").write_bytes(b"another release of this file" * 1000)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    options = ["--local", "80M", "--far", "lz4"]
    ended = far(binary, options, [sys.executable, "-c", STORM], stdin=subprocess.DEVNULL, env=environment)
    assert ended.returncode == 0 and ended.stdout == "two\nright\n", ended.stderr
    assert "other runs of this host are not regarded" in ended.stderr and "hint: " in ended.stderr, ended.stderr


@pytest.mark.parametrize("share", ["0", "10001", "half"])
def test_what_is_no_share_is_refused_before_the_program_starts(binary, library, share):
    ended = far(binary, ["--local", "80M", "--share", share], ["echo", "started"])
    assert ended.returncode != 0 and "started" not in ended.stdout and "--share" in ended.stderr
