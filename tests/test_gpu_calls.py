"""`hinterland bench gpu-calls` from outside: its rows, what it counts, and that it leaves nothing behind."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

TIMES = {"launch-async", "launches-per-second", "shm-token-time", "tcp-token-time"}
COUNTS = {"shm-steady-roundtrips", "tcp-steady-roundtrips", "shm-steady-bytes", "tcp-steady-bytes"}

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def bench(binary, **environment):
    """Runs it with small sizes, and finds its folder gone afterwards."""
    with subprocess.Popen([binary, "bench", "gpu-calls", "--quick", "--rounds", "1", "--json"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={**os.environ, **environment}) as process:
        told, words = process.communicate(timeout=120)
    assert not (pathlib.Path(tempfile.gettempdir()) / f"hinterland-bench-{process.pid}").exists()
    return process.returncode, told, words


def test_a_token_waits_once_at_most_whatever_switches_the_environment_has(binary):
    if not (binary.parent / "libhinterland_cuda.so").exists():
        pytest.skip("there is no libhinterland_cuda.so (hint: cargo build -p hinterland-cuda)")
    code, told, words = bench(binary, HINTERLAND_NO_FENCE="1", HINTERLAND_GPU_DELAY_US="100000")
    assert code == 0, words
    rows = {row["case"]: row for row in json.loads(told)["rows"]}
    assert rows.keys() == TIMES | COUNTS
    for row in rows.values():
        assert row["ours"] > 0 and row["limit"] > 0 and row["peer"] > 0 and "why" not in row, row
        assert row["limit_name"] and "one round trip a call" in row["peer_name"], row
    for fabric in ("shm", "tcp"):
        trips, sent = rows[f"{fabric}-steady-roundtrips"], rows[f"{fabric}-steady-bytes"]
        # The average of some tokens, of which one that has its bytes before it asks for them waits for nothing.
        assert 0 < trips["ours"] <= 1 and (trips["limit"], trips["peer"]) == (1, 22)
        assert sent["limit"] == 1560 < sent["ours"] <= 2500
        assert sent["peer"] > sent["limit"]


def test_a_core_that_is_none_is_told(binary, folder):
    (folder / "core.so").write_text("no library")
    code, told, words = bench(binary, HINTERLAND_CUDA_CORE=str(folder / "core.so"))
    assert code != 0 and told == "" and "the program that calls CUDA" in words and "core.so" in words
    code, told, words = bench(binary, HINTERLAND_CUDA_CORE=str(folder / "nothing.so"))
    assert code != 0 and told == "" and '"hint":' in words and "nothing.so" in words
