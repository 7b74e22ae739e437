"""The demonstration itself: an unmodified llama.cpp gives the same text from every place that its weights can lie."""

import json
import pathlib
import subprocess

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
PYTHON = TREE / ".cache/demo-venv/bin/python"
MODEL = TREE / ".cache/models/smollm2-135m.gguf"
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def rows(binary):
    """What the demonstration measured, by the way that the model was reached."""
    assert PYTHON.exists() and MODEL.exists(), "hint: ./demo --prepare"
    command = [PYTHON, TREE / "bench/demo/demo.py", "--model", MODEL, "--binary", binary, "--budget", "64M", "--json"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert outcome.returncode == 0, outcome.stderr
    return dict(zip(["file", "rack", "far", "tight"], json.loads(outcome.stdout)["rows"]))


def test_the_text_is_the_same_every_way(rows):
    texts = {row[key] for row in rows.values() for key in ("text", "second_text")}
    assert len(texts) == 1 and texts.pop().startswith(" Paris")


def test_in_the_rack_no_byte_moves_and_one_copy_serves_two(rows):
    row = rows["rack"]
    assert row["network_bytes"] == row["second_network_bytes"] == 0
    assert row["held_bytes_two"] <= MODEL.stat().st_size + 4 * MEBIBYTE


def test_from_the_other_rack_each_byte_moves_once_for_the_host(rows):
    row = rows["far"]
    assert 0.9 * MODEL.stat().st_size <= row["network_bytes"] <= 1.1 * MODEL.stat().st_size
    assert row["second_network_bytes"] == 0
    assert row["held_bytes_two"] <= MODEL.stat().st_size + 4 * MEBIBYTE


def test_a_budget_smaller_than_the_model_holds_for_one_and_for_two(rows):
    row = rows["tight"]
    assert 0 < row["held_bytes"] <= 64 * MEBIBYTE
    assert 0 < row["held_bytes_two"] <= 64 * MEBIBYTE
