"""Benches of far memory from outside, with small sizes: their rows, what they say where a figure is missing, and that they leave nothing behind."""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
SECONDS_MAX = 120
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or KERNEL < (6, 8) or platform.machine() != "x86_64",
        reason="far memory needs root, Linux 6.8 and x86-64",
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


def bench(binary, name, *words):
    """Runs one with small sizes; its rows by their names. Its folder, groups and devices are gone afterwards."""
    line = [binary, "bench", name, "--quick", "--rounds", "1", "--json", *words]
    with subprocess.Popen(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TREE) as process:
        told, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    mark = f"hinterland-bench-{process.pid}"
    assert not (pathlib.Path(tempfile.gettempdir()) / mark).exists()
    assert not list(pathlib.Path("/sys/fs/cgroup").glob(f"memory/{mark}*"))
    assert mark not in pathlib.Path("/proc/swaps").read_text()
    return {row["case"]: row for row in json.loads(told)["rows"]}


def test_programs_that_fit_are_compared_run_by_run(binary):
    rows = bench(binary, "far-overhead")
    programs = ["mallocs", "maps", "threads", "shell-forks", "shell-programs", "python-start"]
    assert list(rows) == [name for program in programs for name in (program, *(f"{program}-{way}" for way in ("wall", "cpu", "instructions")))]
    for program in programs:
        assert rows[program]["ours"] > 0 and rows[program]["limit"] > 0, rows[program]
        for way in ("wall", "cpu"):
            row = rows[f"{program}-{way}"]
            assert row["ours"] > 0 and row["peer"] > 0 and "empty library" in row["peer_name"], row
        counted = rows[f"{program}-instructions"]
        assert counted["ours"] or "perf_event_open" in counted["why"]


def test_faults_of_a_victim_are_told_alone_and_beside_a_neighbour(binary):
    rows = bench(binary, "far-isolation")
    cases = [f"{back_end}-{percentile}" for back_end in ("lz4", "pool", "ssd") for percentile in ("p50", "p99", "p999")]
    assert list(rows) == [name for case in cases for name in (f"{case}-alone", case, f"{case}-times")]
    for case in cases:
        alone, beside, times = rows[f"{case}-alone"], rows[case], rows[f"{case}-times"]
        assert alone["ours"] == beside["limit"] > 0 and beside["ours"] > 0, rows
        assert times["ours"] == pytest.approx(beside["ours"] / alone["ours"])
        assert beside["peer"] is None and "--quick" in beside["why"]


def test_a_switch_is_told_with_its_time_and_the_longest_wait_beside_swapoff(binary):
    rows = bench(binary, "far-switch", "--set", "160M", "--local", "96M")
    ways = ["lz4-to-ssd", "ssd-to-lz4"]
    assert list(rows) == [*(f"{way}{part}" for way in ways for part in ("", "-pause")), "quiet-pause"]
    for name, row in rows.items():
        assert row["ours"] > 0 and row["limit"] > 0, row
        if name != "quiet-pause":
            assert (row["peer"] or 0) > 0 or "hint" in row["why"], row


def test_advised_settings_are_run_beside_a_sweep(binary):
    rows = bench(binary, "far-tune")
    assert list(rows) == [f"{program}{part}" for program in ("scan", "random") for part in ("", "-live", "-foretold")]
    for program in ("scan", "random"):
        ours, live, foretold = (rows[f"{program}{part}"] for part in ("", "-live", "-foretold"))
        for row in (ours, live):
            assert row["ours"] > 0 and row["limit"] > 0 and row["peer"] > 0, row
            assert row["limit_name"].startswith("the best of a sweep: run --local ")
        assert ours["why"].startswith("advised: run --local ") and live["peer"] == ours["peer"]
        assert foretold["ours"] > 0 and foretold["limit"] == ours["ours"]
