"""The native plug-in of LMCache over KV blocks: its six methods and delete, and LMCache's own adapter on top where it is installed."""

import json
import os
import pathlib
import select
import subprocess
import time

import pytest
from conftest import TREE
from faults import wait_until

MEBIBYTE = 1 << 20
# Made by `tests/peers`, and an interpreter that has torch.
PEER = TREE / ".cache/peers/lmcache"
TORCH = TREE / ".cache/vllm/venv/bin/python"


@pytest.fixture
def open_client(hinterland, node):
    """A function that makes clients of a node; they are closed with the test."""
    from hinterland.compat.lmcache import Client

    clients = []

    def start(**words):
        clients.append(Client(socket=str(node.socket), **words))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def client(open_client):
    """A client of a node of its own."""
    return open_client()


def completed(client, number):
    """Waits for one batch; what came of it."""
    poller, deadline = select.poll(), time.monotonic() + 30
    poller.register(client.event_fd(), select.POLLIN)
    while time.monotonic() < deadline:
        if poller.poll(1000):
            completions = client.drain_completions()
            if completions:
                assert [each[0] for each in completions] == [number]
                return completions[0][1:]
    raise AssertionError("no completion came")


def values_of(*sizes):
    return [bytearray(os.urandom(size)) for size in sizes]


def views(values):
    return [memoryview(value) for value in values]


KEYS = ["model@00000001@0@" + "ab" * 32, "short", "model@00000001@0@" + "cd" * 32 + "@salt", "large"]


def test_settings_that_are_no_numbers_of_at_least_one_are_named(open_client):
    for words in ({"workers": 0}, {"workers": "2"}, {"depth": -1}):
        (name,) = words
        with pytest.raises(ValueError, match=f"^{name} is .*hint: a whole number"):
            open_client(**words)


def test_values_of_any_size_under_keys_of_any_length_come_back(client, open_client):
    values = values_of(100, 4 * MEBIBYTE, 4 * MEBIBYTE, 9 * MEBIBYTE + 7)
    assert completed(client, client.submit_batch_exists(KEYS)) == (True, "", [False] * 4)
    assert completed(client, client.submit_batch_set(KEYS, views(values))) == (True, "", [True] * 4)
    assert completed(client, client.submit_batch_set(KEYS, views(values_of(*map(len, values))))) == (True, "", [True] * 4)
    other = open_client()
    assert completed(other, other.submit_batch_exists([*KEYS, "none"])) == (True, "", [True] * 4 + [False])
    loaded = [bytearray(len(value)) for value in values]
    assert completed(other, other.submit_batch_get(KEYS, views(loaded))) == (True, "", [True] * 4)
    assert loaded == values
    # One that is missing, and ones of another length: the others are there.
    loaded = [bytearray(101), bytearray(5), bytearray(4 * MEBIBYTE), bytearray(9 * MEBIBYTE)]
    keys = [KEYS[0], "none", KEYS[2], KEYS[3]]
    assert completed(other, other.submit_batch_get(keys, views(loaded))) == (True, "", [False, False, True, False])
    assert loaded[2] == values[2]
    assert completed(other, other.submit_batch_delete([*KEYS[1:], "none"])) == (True, "", [True] * 3 + [False])
    assert completed(client, client.submit_batch_exists(KEYS)) == (True, "", [True, False, False, False])
    stranger = open_client(namespace="another")
    assert completed(stranger, stranger.submit_batch_exists(KEYS)) == (True, "", [False] * 4)


def test_a_value_that_lost_a_part_is_missing_and_can_be_set_again(client):
    values = values_of(9 * MEBIBYTE)
    assert completed(client, client.submit_batch_set(["k"], views(values)))[0]
    part = next(key for key in client._values.kv.keys() if key.startswith(b"p"))
    assert client._values.kv.remove([part]) == 1
    assert completed(client, client.submit_batch_exists(["k"])) == (True, "", [False])
    assert completed(client, client.submit_batch_get(["k"], views([bytearray(9 * MEBIBYTE)]))) == (True, "", [False])
    again = values_of(9 * MEBIBYTE)
    assert completed(client, client.submit_batch_set(["k"], views(again))) == (True, "", [True])
    loaded = [bytearray(9 * MEBIBYTE)]
    assert completed(client, client.submit_batch_get(["k"], views(loaded))) == (True, "", [True]) and loaded == again
    assert len(client._values.kv.keys()) == 4, "nothing of the first is left"


def test_a_value_that_came_while_its_parts_were_written_stays_as_it_is(client, open_client):
    mine, others = values_of(9 * MEBIBYTE, 9 * MEBIBYTE)
    number, other = client.submit_batch_set(["k"], views([mine])), open_client()
    assert completed(other, other.submit_batch_set(["k"], views([others]))) == (True, "", [True])
    assert completed(client, number) == (True, "", [True])
    loaded = [bytearray(9 * MEBIBYTE)]
    assert completed(client, client.submit_batch_get(["k"], views(loaded))) == (True, "", [True]) and loaded == [others]
    assert len(client._values.kv.keys()) == 4, "its own parts are gone"


def test_what_finds_no_room_fails_and_leaves_no_head(client):
    done, error, answers = completed(client, client.submit_batch_set(["k", "l"], views(values_of(400 * MEBIBYTE, 10))))
    assert (done, answers) == (False, [False, True]) and error
    assert completed(client, client.submit_batch_exists(["k", "l"]))[2][0] is False


def test_a_node_that_goes_fails_batches_and_one_that_comes_back_serves_them(client, node):
    fd = client.event_fd()
    kept, read = values_of(10), [bytearray(10)]
    assert completed(client, client.submit_batch_set(["k"], views(kept)))[0]
    node.kill()
    for submit in (lambda: client.submit_batch_set(["n"], views(values_of(10))), lambda: client.submit_batch_exists(["k"]),
                   lambda: client.submit_batch_get(["k"], views(values_of(10))), lambda: client.submit_batch_delete(["k"])):
        done, error, answers = completed(client, submit())
        assert (done, answers) == (False, [False]) and "hint:" in error
    node.start()
    wait_until(lambda: completed(client, client.submit_batch_get(["k"], views(read))) == (True, "", [True]),
               why="what was put outlives the node, and is found once it is checked")
    assert read == kept
    value = values_of(5 * MEBIBYTE)
    assert completed(client, client.submit_batch_set(["l"], views(value))) == (True, "", [True])
    loaded = [bytearray(5 * MEBIBYTE)]
    assert completed(client, client.submit_batch_get(["l"], views(loaded))) == (True, "", [True]) and loaded == value
    assert client.event_fd() == fd


def test_a_node_that_goes_once_more_while_the_queue_is_opened_again_fails_one_batch(client, monkeypatch):
    class Opened:
        """Blocks that were opened anew, and whose node is gone again when the queue is to be opened."""

        def __init__(self, kv):
            self.kv, self.failures = kv, [OSError("no node answers")]

        def queue(self, *words, **choices):
            if self.failures:
                raise self.failures.pop()
            return self.kv.queue(*words, **choices)

        def __getattr__(self, name):
            return getattr(self.kv, name)

    opened = Opened(client._values.kv)
    monkeypatch.setattr(type(client._values), "kv", property(lambda _: opened))
    assert completed(client, client.submit_batch_set(["k"], views(values_of(10)))) == (False, "no node answers", [False])
    assert completed(client, client.submit_batch_set(["k"], views(values_of(10)))) == (True, "", [True])
    assert completed(client, client.submit_batch_exists(["k"])) == (True, "", [True])


def test_wrong_arguments_and_closed_clients_are_refused(client):
    with pytest.raises(ValueError, match="hint:"):
        client.submit_batch_get(["k"], [])
    completed(client, client.submit_batch_set(["k"], [memoryview(b"four")]))
    with pytest.raises(TypeError, match="written"):
        client.submit_batch_get(["k"], [memoryview(b"four")])
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.submit_batch_exists(["k"])


@pytest.mark.skipif(not (PEER.exists() and TORCH.exists()), reason="no LMCache with torch here (hint: tests/peers)")
def test_lmcaches_own_adapter_stores_finds_and_loads_through_it(node):
    outcome = subprocess.run([TORCH, TREE / "tests/programs/lmcache_adapter.py", node.socket], capture_output=True, text=True,
                             timeout=180, env={**os.environ, "PYTHONPATH": f"{PEER}:{TREE / 'python'}", "LMCACHE_LOG_LEVEL": "ERROR"})
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout.splitlines()[-1]) == {
        "stored": True, "found": [True, True, False], "loaded": [True, True, False], "equal": True, "deleted": [False, True],
    }
