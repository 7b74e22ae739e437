"""The demonstration itself: an unmodified llama.cpp gives the same text from every place that its weights can lie, also if a home dies."""

import json
import os
import pathlib
import subprocess

import pytest
from faults import sigbus

TREE = pathlib.Path(__file__).resolve().parent.parent
PYTHON = TREE / ".cache/demo-venv/bin/python"
MODEL = TREE / ".cache/models/smollm2-135m.gguf"
MEBIBYTE = 1 << 20
# What lies in another rack is to stay there, however often it is read.
ROOM = ["--capacity", "256M", "--heat-copies", "off"]
NAME = "models/small.gguf"


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


@pytest.fixture(scope="module")
def undisturbed():
    """The text that the plain file gives."""
    assert PYTHON.exists() and MODEL.exists(), "hint: ./demo --prepare"
    outcome = subprocess.run([PYTHON, TREE / "bench/demo/generate.py", MODEL], capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)["text"]


def start_generating(node):
    """llama.cpp in the rack of a node, with memory for less than the model, that has given its first piece of text."""
    generate = [PYTHON, TREE / "bench/demo/generate.py", f"/pool/{NAME}", "--say"]
    process = subprocess.Popen(
        [str(word) for word in node.command("run", "--budget", "64M", "--", *generate)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "HINTERLAND_GRACE_S": "3"})
    said = os.read(process.stderr.fileno(), 1)
    assert said and process.poll() is None, process.communicate(timeout=10)
    return process, said


def finish(process, said):
    """Waits for the end; what it printed, and all that it said."""
    output, more = process.communicate(timeout=300)
    return output.decode(), (said + more).decode()


def sent_bytes(node):
    """Bytes that a node has sent so far."""
    return node.json("status")["counters"]["network_sent_bytes"]


def test_a_home_that_dies_while_text_comes_is_replaced_by_its_replica(start_node, undisturbed):
    b = start_node("b", options=ROOM)
    c = start_node("c", join=b.address, options=ROOM)
    b.run("put", MODEL, "--name", NAME, "--copies", "2")
    assert {home["rack"] for home in b.json("stat", NAME)["homes"]} == {"b", "c"}
    a = start_node("a", join=b.address, options=ROOM)
    before = {node.name: sent_bytes(node) for node in (b, c)}
    process, said = start_generating(a)
    sent = {node.name: sent_bytes(node) - before[node.name] for node in (b, c)}
    used = max((b, c), key=lambda node: sent[node.name])
    assert sent[used.name] > MEBIBYTE, sent
    used.kill()
    assert process.poll() is None, "it had ended before"
    output, words = finish(process, said)
    assert process.returncode == 0, words
    assert json.loads(output)["text"] == undisturbed
    assert a.json("status")["counters"]["failovers"] > 0


def test_without_a_replica_it_ends_with_sigbus_and_the_reason(start_node):
    d = start_node("d", options=ROOM)
    a = start_node("a", join=d.address, options=ROOM)
    b = start_node("b", join=d.address, options=ROOM)
    b.run("put", MODEL, "--name", NAME)
    assert [home["rack"] for home in a.json("stat", NAME)["homes"]] == ["b"]
    process, said = start_generating(a)
    b.kill()
    assert process.poll() is None, "it had ended before"
    output, words = finish(process, said)
    assert sigbus(process.returncode), (process.returncode, words)
    assert output == "" and NAME in words, words
    assert NAME in a.run("doctor", check=False).stdout
