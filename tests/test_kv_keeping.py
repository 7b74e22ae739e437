"""What stays and what leaves of KV blocks, and what people and routers are told of them."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.request

import pytest

MEBIBYTE = 1 << 20


@pytest.fixture
def small(start_node):
    """A node with room for 16 blocks of 1 MiB."""
    return start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M"])


@pytest.fixture
def kv(hinterland, small):
    with hinterland.Pool(small.socket) as pool, pool.kv("model") as kv:
        yield kv


def prefix(name, blocks):
    return [f"{name}{number}".encode() for number in range(blocks)]


def put(kv, keys, **options):
    return kv.put(keys, [bytes(MEBIBYTE)] * len(keys), **options)


def test_a_prefix_leaves_from_its_end_and_goes_on_after_a_block(kv):
    put(kv, prefix("a", 8), prefix=True)
    put(kv, prefix("b", 4), prefix=True)
    put(kv, prefix("more", 4), after=b"b3")
    put(kv, prefix("c", 5), prefix=True)
    assert kv.match_prefix(prefix("a", 8)) == 3 and kv.exists(prefix("a", 8)) == [True] * 3 + [False] * 5
    assert kv.match_prefix(prefix("b", 4) + prefix("more", 4)) == 8


def test_what_is_pinned_stays_until_its_session_ends(kv, small, hinterland):
    put(kv, prefix("a", 4), prefix=True)
    with hinterland.Pool(small.socket) as pool, pool.kv("model") as other:
        assert other.pin([b"a3", b"absent"]) == [True, False]
        put(kv, prefix("b", 16))
        assert kv.match_prefix(prefix("a", 4)) == 4
        assert other.unpin([b"a3", b"a0"]) == [True, False] and other.pin([b"a3"]) == [True]
        (store,) = small.json("kv", "stat")
        assert store["pinned_bytes"] == MEBIBYTE
    until = time.monotonic() + 5
    while small.json("kv", "stat")[0]["pinned_bytes"] and time.monotonic() < until:
        time.sleep(0.01)
    put(kv, prefix("c", 16))
    assert kv.match_prefix(prefix("a", 4)) == 0


def test_as_many_blocks_as_there_are_can_be_pinned_at_once(kv, small):
    # Their keys are more than a message takes.
    keys = [b"%064d" % number for number in range(20000)]
    assert kv.pin(keys) == kv.unpin(keys) == [False] * len(keys)
    put(kv, [keys[0], keys[-1]])
    there = [index in (0, len(keys) - 1) for index in range(len(keys))]
    assert kv.pin(keys) == there and small.json("kv", "stat")[0]["pinned_bytes"] > 0
    assert kv.unpin(keys) == there and small.json("kv", "stat")[0]["pinned_bytes"] == 0


def test_a_quota_is_kept_and_set_by_the_command(kv, small, hinterland):
    put(kv, prefix("a", 4), prefix=True)
    with hinterland.Pool(small.socket) as pool, pool.kv("other") as other:
        other.limit(quota_bytes=2 * MEBIBYTE)
        assert put(other, prefix("b", 3)) == [True, True, False], "what is being written cannot leave"
        assert put(other, [b"b2"]) == [True]
        assert other.exists(prefix("b", 3)) == [False, True, True] and kv.match_prefix(prefix("a", 4)) == 4
        told = small.json("kv", "limit", "other", "--quota", "none", "--priority", "7")
        assert told == {"quota_bytes": None, "priority": 7, "slot_bytes": 2 * MEBIBYTE}
        spaces = {space["label"]: space for space in small.json("kv", "stat")[0]["namespaces"]}
        assert spaces["other"]["quota_bytes"] is None and spaces["other"]["priority"] == 7
        assert spaces["other"]["evictions"] == 1 and spaces["model"]["evictions"] == 0
        put(kv, prefix("c", 12))
        assert other.exists(prefix("b", 3)) == [False] * 3, "the lower priority gives first"
        assert kv.match_prefix(prefix("a", 4)) == 4


def test_a_block_can_be_inspected_by_number_and_by_label(kv, small):
    put(kv, [bytes([0xAB, 0xCD]), b"child"], prefix=True)
    number = small.json("kv", "stat")[0]["namespaces"][0]["namespace"]
    block = small.json("kv", "inspect", number, "abcd")
    assert (block["bytes"], block["pins"], block["children"]) == (MEBIBYTE, 0, [b"child".hex()])
    words = small.run("kv", "inspect", "mod", "child").stdout
    assert "abcd" in words and "1.00 MiB" in words
    refused = small.run("kv", "inspect", "model", "absent", check=False)
    assert refused.returncode != 0 and "hint:" in refused.stderr
    refused = small.run("kv", "inspect", "nobody's", "absent", check=False)
    assert refused.returncode != 0 and "kv stat" in refused.stderr
    assert small.json("kv", "clear", "model") == {"removed": 2}


def test_events_are_told_in_order_and_once(kv, small):
    start, events, lost = kv.events()
    assert events == []
    put(kv, prefix("a", 2), prefix=True)
    kv.remove([b"a1"])
    after, events, lost = kv.events(start)
    stored = [("stored", b"a0", None, MEBIBYTE), ("stored", b"a1", b"a0", MEBIBYTE)]
    assert (events, lost) == (stored + [("removed", b"a1", None, 0)], False)
    assert kv.events(after) == (after, [], False)
    lines = small.run("kv", "events", "model", "--once", "--json").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["stored", "stored", "removed"]
    assert kv.events(1 << 60)[2], "a number of another node: look anew"


def test_hits_are_counted_by_those_who_read(kv, small):
    put(kv, prefix("a", 4))
    kv.match_prefix(prefix("a", 10))
    kv.get_into([b"a0", b"gone"], [bytearray(MEBIBYTE), bytearray(MEBIBYTE)])
    (space,) = small.json("kv", "stat")[0]["namespaces"]
    assert (space["asked"], space["found"], space["gets"], space["got"]) == (10, 4, 2, 1)
    assert space["read_bytes"] == MEBIBYTE
    assert "40.0 %" in small.run("kv", "stat").stdout
    assert "model" in small.run("kv", "top", "--once").stdout


def test_prometheus_reads_the_counters(kv, small):
    put(kv, prefix("a", 3))
    kv.match_prefix(prefix("a", 4))
    text = small.run("metrics").stdout
    assert re.search(r'^hinterland_kv_blocks\{user="\d+",namespace="[0-9a-f]{16}",label="model"\} 3$', text, re.M), text
    assert re.search(r"^hinterland_kv_found_keys_total\{.*\} 3$", text, re.M)
    server = subprocess.Popen(small.command("metrics", "--listen", "127.0.0.1:0"), stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", server.stderr.readline()).group()
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "hinterland_kv_blocks{" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address.replace("/metrics", "/other"), timeout=10)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "anything", timeout=10)
        assert urllib.request.urlopen(address + "?any=thing", timeout=10).status == 200
    finally:
        server.terminate()
        assert server.wait(10) == 0
