"""`hinterland bench far-apps` from outside: real programs with a part of their memory here find what they find with all of it."""

import json
import os
import pathlib
import platform
import re
import subprocess
import tempfile

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
PEERS = {"zram": "zram swap", "disk": "disk swap", "zswap": "zswap before disk swap"}
SECONDS_MAX = 300

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
    pytest.mark.skipif(not (TREE / ".cache/far-apps/.installed").exists(), reason="the workloads are not installed (hint: bench/far/prepare.sh)"),
]


def bench(binary, *words):
    """Runs it, and finds its folder, its control groups and its swap gone afterwards."""
    command = [binary, "bench", "far-apps", "--rounds", "1", "--json", *words]
    with subprocess.Popen(command, text=True, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        told, errors = process.communicate(timeout=SECONDS_MAX)
    folder = pathlib.Path(tempfile.gettempdir()) / f"hinterland-bench-{process.pid}"
    assert not folder.exists()
    assert str(folder) not in pathlib.Path("/proc/swaps").read_text(encoding="ascii")
    assert not list(pathlib.Path("/sys/fs/cgroup").glob(f"memory/**/hinterland-bench-{process.pid}-*"))
    return process.returncode, told, errors


def test_the_quick_set_finds_the_same_everywhere_and_every_figure_has_its_row(binary):
    """A checksum that is not that of the plain run fails the bench. The peers need rights that a machine may not give, and the kernel may kill them."""
    if not (binary.parent / "libhinterland_preload.so").exists():
        pytest.fail("there is no libhinterland_preload.so (hint: cargo build -p hinterland-preload)")
    code, told, errors = bench(binary, "--quick", "--scale", "0.1", "--shares", "80")
    assert code == 0, errors
    rows = {row["case"]: row for row in json.loads(told)["rows"]}
    for name in ("sort", "pagerank", "kmeans"):
        row = rows[f"{name}-80"]
        assert row["ours"] > 0 and row["limit"] > 0 and row["runs"] == 1 and "lz4" in row["why"], row
        assert rows[f"{name}-80-cpu"]["ours"] > 0
        for word, peer in PEERS.items():
            other = rows[f"{name}-80-{word}"]
            assert other["peer"] and peer in other["peer_name"] or peer in other["why"], other
    assert rows["slower-80"]["ours"] >= 0
    assert {case for case in rows if case.startswith("mean-")} == {"mean-80", *(f"mean-80-{word}" for word in PEERS)}
    if all(rows[f"mean-80-{word}"]["ours"] is None for word in PEERS):
        pytest.skip(f"no swap here: {rows['sort-80-zram'].get('why')}")
    assert 1 <= rows["mean-80"]["runs"] <= 3


def test_what_is_no_workload_is_told_before_anything_runs(binary):
    code, told, errors = bench(binary, "--workload", "chess")
    assert code == 2 and told == "" and "chess" in errors and "kmeans" in errors
