"""`hinterland bench ycsb` from outside: all ways of sharing the table are driven, and every value that is read is right."""

import json
import shutil
import subprocess

import pytest

# A driver that reads a wrong value ends, and with it the bench.
WAYS = ["", "-still", "-plain", "-fault", "-fault-tenth"]


def ycsb(binary, *words):
    """The rows of a small run."""
    outcome = subprocess.run([binary, "bench", "ycsb", "--quick", "--json", *words], text=True, capture_output=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    return {row["case"]: row for row in json.loads(outcome.stdout)["rows"]}


def test_every_way_does_every_workload(binary):
    rows = ycsb(binary)
    assert list(rows) == [f"{workload}-{popularity}{way}" for popularity in ("zipfian", "uniform") for workload in "abcdef" for way in WAYS]
    if any(row["ours"] is None and "userfaultfd" in row["why"] for row in rows.values()):
        pytest.skip(rows["a-zipfian-fault"]["why"])
    for row in rows.values():
        assert row["ours"] > 0 and row["limit"] > 0, row
        assert (row["peer"] is not None and row["peer"] > 0) == (shutil.which("redis-server") is not None), row
        assert "both programs together" in row["why"], row


def test_page_faults_can_be_left_out_and_only_there(binary):
    assert not any("-fault" in case for case in ycsb(binary, "--no-page-faults"))
    outcome = subprocess.run([binary, "bench", "rpc", "--no-page-faults"], text=True, capture_output=True, timeout=60)
    assert outcome.returncode != 0 and "--no-page-faults is for ycsb" in outcome.stderr


def test_a_program_that_waits_for_a_page_of_one_that_was_killed_ends(binary):
    program = binary.with_name("hinterland-table")
    start = lambda *words: subprocess.Popen([program, "faults", *words, "--mebibytes", "8", "--records", "100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = start("--listen", "127.0.0.1:0")
    try:
        second = start("--connect", first.stdout.readline().strip())
        print("create", file=first.stdin, flush=True)
        assert first.stdout.readline() == "done\n"
        first.kill()
        first.wait(10)
        _, said = second.communicate("load\n", timeout=30)
        assert second.returncode == 1 and "the other program has ended" in said
    finally:
        for process in (first, second):
            process.kill()
            process.wait(10)
