"""Traces of real programs, advice from them, and balance of clusters: right features, clear refusals, and the guide's commands."""

import json
import os
import pathlib
import platform
import re
import subprocess
import xml.etree.ElementTree

import pytest
from guides import commands
SECONDS_MAX = 120
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
needs_far_memory = pytest.mark.skipif(
    os.geteuid() != 0 or KERNEL < (6, 8) or platform.machine() != "x86_64",
    reason="far memory needs root, Linux 6.8 and x86-64",
)

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
    size_t pages = (128u << 20) / 4096, rounds = strcmp(words[1], "scan") ? 60000 : 3 * pages;
    volatile char *memory = malloc(pages * 4096 + 4096);
    unsigned long state = 1, sum = 0;
    for (size_t page = 0; page < pages; page++) memory[page * 4096] = 1;
    for (size_t round = 0; round < rounds; round++) {
        state = state * 6364136223846793005ul + 1;
        sum += memory[(strcmp(words[1], "scan") ? (state >> 33) % pages : round % pages) * 4096];
    }
    puts(sum == rounds ? "right" : "wrong");
    return sum != rounds;
}
"""

# Threads of the supervisor, which is the parent, that read and that write back ends.
COUNT = "cat /proc/$PPID/task/*/comm | awk '/^far-read$/ { r++ } /^far-write$/ { w++ } END { print r + 0, w + 0 }'"


def hinterland(binary, *words, **settings):
    """Runs a command and returns what became of it."""
    return subprocess.run([binary, *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False, **settings)


@pytest.fixture(scope="module")
def traces(binary, tmp_path_factory):
    """A trace of a program that scans, and one of a program that reads at random."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "toucher.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O1", "-o", folder / "toucher", folder / "toucher.c"], check=True)
    for name in ("scan", "random"):
        options = ["trace", "-o", folder / f"{name}.trace", "--window", "40M"]
        ended = hinterland(binary, *options, "--", folder / "toucher", name)
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        assert "records in" in ended.stderr
    return folder


def advice(binary, trace, *options):
    """What is advised, as JSON."""
    ended = hinterland(binary, "--json", "advise", trace, "--local", "64M", "--far", "lz4", "--by", "time", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@needs_far_memory
def test_a_scan_and_a_random_reader_get_what_suits_each(binary, traces):
    scan, random = (advice(binary, traces / f"{name}.trace") for name in ("scan", "random"))
    assert scan["features"]["sequential_ratio"] > 0.8 > 0.2 > random["features"]["sequential_ratio"]
    assert random["features"]["fragment_ratio"] > scan["features"]["fragment_ratio"]
    for told in (scan, random):
        assert 124 << 20 <= told["features"]["footprint_bytes"] <= 144 << 20
        # Five units of one size and those that are fitted, each with and without fetching ahead and with four more widths.
        assert len(told["choices"]) == 6 * (2 + 4) and told["why"]
        assert {choice["width"] for choice in told["choices"]} == {1, 2, 4, 8, 16}
        fitted = [choice for choice in told["choices"] if choice["is_fitted"]]
        assert len(fitted) == 6 and not any("--far-unit" in choice["command"] for choice in fitted)
        times = [choice["time_s"] for choice in told["choices"]]
        assert times == sorted(times) and told["plain_s"] <= times[0]
    # How quick the back end is was measured, so that only what holds for any speed is asked for.
    def time(told, unit_bytes):
        found = (choice for choice in told["choices"] if choice["unit_bytes"] == unit_bytes and not choice["ahead"])
        return next(found)["time_s"]

    assert time(random, 4 << 10) < time(random, 2 << 20)
    assert time(scan, 64 << 10) < time(scan, 4 << 10)


@needs_far_memory
def test_a_run_that_was_recorded_tells_what_suits_and_what_it_could_not_see(binary, traces, tmp_path):
    told = {}
    for name in ("scan", "random"):
        options = ["run", "--local", "64M", "--record", tmp_path / f"{name}.trace", "--"]
        ended = hinterland(binary, *options, traces / "toucher", name)
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        assert f"`hinterland advise {tmp_path}/{name}.trace`" in ended.stderr
        told[name] = advice(binary, tmp_path / f"{name}.trace")
        assert 124 << 20 <= told[name]["features"]["footprint_bytes"] <= 144 << 20
    # What was filled ahead of the scan counts, or it would seem to touch a page here and there.
    assert told["scan"]["features"]["sequential_ratio"] > 0.8 > 0.3 > told["random"]["features"]["sequential_ratio"]
    assert told["scan"]["features"]["touches"] > 2 * (128 << 20) // (16 << 10)
    best = told["random"]["recommended"]["unit_bytes"]
    assert any("16 KiB apart" in why for why in told["random"]["why"]) == (best <= 16 << 10)
    options = ["run", "--local", "80M", "--record", tmp_path / "coarser.trace", "--"]
    assert hinterland(binary, *options, traces / "toucher", "random").returncode == 0
    less = hinterland(binary, "advise", tmp_path / "coarser.trace", "--local", "64M", "--far", "lz4", "--by", "time")
    assert "saw nothing of what the program did within 80 MiB" in less.stdout, less.stdout
    for refused in (["--tune", "--", "true"], ["--", "none-of-this-name"]):
        options = ["run", "--local", "64M", "--record", tmp_path / "random.trace", *refused]
        before = (tmp_path / "random.trace").read_bytes()
        assert hinterland(binary, *options).returncode != 0
        assert (tmp_path / "random.trace").read_bytes() == before, "a record of before was replaced by nothing"


@needs_far_memory
def test_no_local_memory_is_advised_that_a_run_refuses(binary, traces):
    trace = traces / "random.trace"
    told = hinterland(binary, "advise", trace, "--far", "lz4", "--slowdown", "1000", "--local", "10%")
    assert "\nhinterland run --local 64M " in told.stdout and "--local 64M is the least" in told.stdout, told.stdout + told.stderr
    for local in ("0", "1M"):
        refused = hinterland(binary, "advise", trace, "--local", local)
        assert refused.returncode == 2 and "(hint: at least 64M)" in refused.stderr, refused.stderr


@needs_far_memory
@pytest.mark.parametrize("times", ["nan", "inf", "0", "-1", "0.9", "much"])
def test_a_slowdown_that_is_none_is_refused(binary, traces, times):
    refused = hinterland(binary, "advise", traces / "random.trace", "--far", "lz4", f"--slowdown={times}")
    assert refused.returncode == 2 and "is no slowdown (hint: 1 or more" in refused.stderr, refused.stdout + refused.stderr


@needs_far_memory
def test_what_is_told_is_compared_with_the_run(binary, traces):
    told = advice(binary, traces / "random.trace", "--run", "--", traces / "toucher", "random")
    assert [run["name"] for run in told["runs"]] == ["without far memory", "recommended", "default"]
    for run in told["runs"]:
        assert run["took_s"] > 0
        assert abs((run["told_s"] - run["took_s"]) / run["took_s"] * 100 - run["error_percent"]) < 0.1


@needs_far_memory
@pytest.mark.parametrize("back_ends", ["lz4", "ssd"])
def test_a_command_that_is_advised_runs_with_its_width(binary, traces, tmp_path, back_ends):
    far = back_ends if back_ends == "lz4" else f"ssd:{tmp_path}@1G"
    ended = hinterland(binary, "advise", traces / "scan.trace", "--local", "64M", "--far", far, "--by", "time")
    assert ended.returncode == 0, ended.stderr
    command = re.search(r"^hinterland (run .*) -- PROGRAM$", ended.stdout, re.MULTILINE).group(1).split()
    width = command[command.index("--far-width") + 1]
    assert f"width {width}, threads that read and that write: " in ended.stdout
    ran = hinterland(binary, *command, "--", traces / "toucher", "scan")
    assert ran.returncode == 0 and ran.stdout == "right\n", ran.stderr
    # There are so many threads of each kind, and a variable takes those of one kind off.
    for words, environment, readers, writers in (
        (command, {}, width, width),
        ([*command, "--far-width", "5"], {"HINTERLAND_FAR_READERS": "0"}, "0", "5"),
    ):
        if words != command:
            del words[words.index("--far-width") : words.index("--far-width") + 2]
        counted = hinterland(binary, *words, "--", "sh", "-c", COUNT, env={**os.environ, **environment})
        assert counted.stdout.split() == [readers, writers], (counted.stdout, counted.stderr)


@needs_far_memory
@pytest.mark.parametrize("width", ["0", "17", "1000", "-1", "many"])
def test_a_width_that_cannot_be_is_refused_before_the_program_starts(binary, width, tmp_path):
    ended = hinterland(binary, "run", "--local", "64M", f"--far-width={width}", "--", "touch", tmp_path / "started")
    assert ended.returncode == 2 and not (tmp_path / "started").exists()
    assert f"{width} is no number of threads" in ended.stderr and "1 to 16" in ended.stderr and "hint:" in ended.stderr
    alone = hinterland(binary, "run", "--far-width", "4", "--", "true")
    assert alone.returncode == 2 and "--local" in alone.stderr


@needs_far_memory
def test_a_tuned_run_is_right_and_says_what_it_learnt(binary, traces):
    ended = hinterland(binary, "run", "--local", "64M", "--tune", "--", traces / "toucher", "scan")
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert re.search(r"; fetched at most \d+ KiB ahead at last, changed \d+ times", ended.stderr), ended.stderr
    refused = hinterland(binary, "run", "--local", "64M", "--tune", "--no-ahead", "--", "true")
    assert refused.returncode == 2


@needs_far_memory
def test_the_status_of_a_traced_program_is_ours_and_one_without_memory_gets_no_advice(binary, tmp_path):
    ended = hinterland(binary, "trace", "-o", tmp_path / "small.trace", "--", "sh", "-c", "exit 7")
    assert ended.returncode == 7, ended.stderr
    assert b"HLFTRACE" == (tmp_path / "small.trace").read_bytes()[:8]


@needs_far_memory
def test_a_trace_that_is_cut_or_changed_is_refused(binary, traces, tmp_path):
    whole = (traces / "random.trace").read_bytes()
    bad = {
        "cut off": whole[:-24], "cut off after 0": whole[:70], "damaged": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
        "version 7": whole[:8] + b"\7" + whole[9:], "no page trace": b"\x7fELF" + whole,
    }
    for words, content in bad.items():
        (tmp_path / "bad.trace").write_bytes(content)
        ended = hinterland(binary, "advise", tmp_path / "bad.trace", "--far", "lz4")
        assert ended.returncode == 1 and words in ended.stderr and "hint:" in ended.stderr, (words, ended.stderr)


def test_files_that_cannot_be_had_are_told(binary, tmp_path):
    for words in (
        ["advise", tmp_path / "none"],
        ["trace", "-o", tmp_path / "none/file", "--", "true"],
        ["simulate", "balance", "--trace", tmp_path / "none"],
    ):
        ended = hinterland(binary, *words)
        assert ended.returncode == 1 and "hint:" in ended.stderr, ended.stderr


def test_the_balance_of_a_known_cluster(binary, tmp_path):
    trace = tmp_path / "cluster.csv"
    lines = ["machine,utilisation", *(f"idle{index},20" for index in range(50)), *(f"busy{index},90" for index in range(50))]
    trace.write_text("\n".join(lines) + "\nlost,\n")
    picture = tmp_path / "balance.svg"
    ended = hinterland(binary, "--json", "simulate", "balance", "--trace", trace, "--plot", picture)
    told = json.loads(ended.stdout)
    assert told["observations"] == 100 and told["left_out"] == 1 and told["mean_percent"] == 55
    # Half can give up to 35 above their 20, half have 35 above 55.
    assert told["at_mean"] == {"low": 55.0, "high": 55.0, "effect_percent": 35.0}
    assert told["matched"]["effect_percent"] == 35.0
    xml.etree.ElementTree.parse(picture)
    assert ended.stderr == f"the picture is in {picture}\n"
    by_machine = hinterland(binary, "--json", "simulate", "balance", "--trace", trace, "--machine", "machine")
    assert json.loads(by_machine.stdout)["machines"] == 100


def test_a_trace_of_utilisation_that_is_none_is_refused(binary, tmp_path):
    bad = {"a,b\n1,2\n": "no such column", "utilisation\nmuch\n": "is no number", "utilisation\n150\n": "outside", "": "no line"}
    for content, words in bad.items():
        (tmp_path / "bad.csv").write_text(content)
        ended = hinterland(binary, "simulate", "balance", "--trace", tmp_path / "bad.csv")
        assert ended.returncode == 1 and words in ended.stderr and "hint:" in ended.stderr, ended.stderr
    (tmp_path / "bad.csv").write_bytes(bytes(range(256)) * 10)
    assert hinterland(binary, "simulate", "balance", "--trace", tmp_path / "bad.csv").returncode == 1


@needs_far_memory
def test_the_guide_works_as_written(binary, tmp_path):
    script = "\n".join(["set -e", *commands("far-tuning.md")])
    environment = {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "hinterland run --local 80M --far lz4" in ended.stdout and "recommended" in ended.stdout
    assert (tmp_path / "balance.svg").exists()
