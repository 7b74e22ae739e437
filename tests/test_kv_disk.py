"""KV blocks that do not fit into memory: on a disk, back by the same call, there after a restart or a crash."""

import os
import re
import select
import subprocess
import time

import pytest

MEBIBYTE = 1 << 20


def block(number):
    return number.to_bytes(4, "little") * (MEBIBYTE // 4)


def key(number):
    return b"key" + number.to_bytes(4, "little")


@pytest.fixture
def start(start_node, folder):
    """A function that starts a node with 16 MiB in memory and 256 MiB on the disk, again and again on the same state."""

    def start(name="a", **choices):
        disk, more = choices.pop("disk", folder / "disk"), choices.pop("more", ["--kv-watermarks", "off"])
        options = ["--capacity", "64M", "--kv-capacity", "16M", "--kv-disk", disk, "--kv-disk-capacity", "256M"]
        # What comes back comes from the disk.
        options += ["--kv-keep", "off", *more]
        return start_node(name, options=[*map(str, options)], **choices)

    return start


def open_kv(hinterland, node):
    """The blocks of a model, once the node knows what its disk holds: until then there are only misses."""
    kv = hinterland.Pool(node.socket).kv("model")
    until = time.monotonic() + 30
    while disk(node)["state"].startswith("reading") and time.monotonic() < until:
        time.sleep(0.01)
    return kv


def put(kv, numbers):
    for number in numbers:
        assert kv.put([key(number)], [block(number)]) == [True]


def right(kv, numbers):
    """How many of these come back; each one's bytes are looked at."""
    numbers = list(numbers)
    found = 0
    for number in numbers:
        if kv.fetch([key(number)]) == [True]:
            assert kv.get(key(number)) == block(number)
            found += 1
    return found


def disk(node):
    (store,) = node.json("kv", "stat")
    return store["disk"]


def test_what_was_evicted_comes_back_and_is_a_local_hit_then(start, hinterland):
    node = start()
    kv = open_kv(hinterland, node)
    put(kv, range(48))
    assert kv.get(key(0)) is None, "a read alone asks nobody"
    assert kv.match_prefix([key(number) for number in range(48)], remote=True) == 48
    lengths = kv.lengths([key(0), b"never", key(47)], remote=True)
    assert lengths == [MEBIBYTE, None, MEBIBYTE] and kv.lengths([key(0)]) == [None], "to ask moves nothing"
    part = bytearray(8)
    assert kv.read_into([key(1), b"never"], [part, bytearray(8)], [MEBIBYTE - 4, 0], remote=True) == [MEBIBYTE, None]
    assert part == block(1)[-4:] + bytes(4)
    assert right(kv, range(48)) == 48
    assert kv.fetch([key(0), b"never"]) == [True, False]
    assert disk(node)["failures"] == disk(node)["checksum_failures"] == disk(node)["lost_blocks"] == 0
    assert "brought back" in node.run("kv", "stat").stdout
    assert "hinterland_kv_disk_read_bytes_total" in node.run("metrics").stdout


def test_all_is_there_after_a_restart_and_most_after_a_crash(start, hinterland):
    node = start()
    put(open_kv(hinterland, node), range(48))
    assert node.stop() == 0
    node.start()
    kv = open_kv(hinterland, node)
    assert right(kv, range(48)) == 48, "what was in memory was written at the end"
    put(kv, range(100, 148))
    while disk(node)["staged_bytes"]:
        time.sleep(0.01)
    node.kill()
    node.start()
    kv = open_kv(hinterland, node)
    assert right(kv, range(100, 132)) == 32, "what had left the memory"
    assert right(kv, [*range(48), *range(132, 148)]) >= 40


def test_what_was_replaced_never_comes_back_from_the_disk(start, hinterland):
    node = start()
    kv = open_kv(hinterland, node)

    def leave(numbers):
        put(kv, numbers)
        while disk(node)["staged_bytes"]:
            time.sleep(0.01)

    put(kv, range(8))
    leave(range(100, 124))
    assert kv.get(key(0)) is None
    keys = [key(number) for number in range(8)]
    assert kv.replace(keys, [block(1000 + number) for number in range(8)]) == [True] * 8
    assert [kv.get(key(number)) for number in range(8)] == [block(1000 + number) for number in range(8)]
    leave(range(200, 224))
    assert kv.get(key(0)) is None
    for again in (False, True):
        assert kv.fetch(keys) == [True] * 8
        assert [kv.get(key(number)) for number in range(8)] == [block(1000 + number) for number in range(8)]
        if not again:
            node.stop()
            node.start()
            kv = open_kv(hinterland, node)


def test_what_was_removed_stays_away_and_other_models_never_meet(start, hinterland):
    node = start()
    kv = open_kv(hinterland, node)
    put(kv, range(40))
    assert kv.remove([key(3), b"never"]) == 1, "also from the disk"
    assert right(kv, [3]) == 0
    with kv.queue() as queue:
        assert kv.exists([key(5)]) == [False], "it is on the disk only"
        queue.submit_remove([key(5), key(39), b"never"])
        select.select([queue], [], [], 30)
        ((_, is_done, why, answers),) = queue.drain()
        assert is_done and answers == [False, True, False], why
    assert right(kv, [5, 39]) == 0
    other = hinterland.Pool(node.socket).kv("another model")
    assert other.fetch([key(4)]) == [False]
    node.stop()
    node.start()
    kv = open_kv(hinterland, node)
    assert right(kv, [3, 5, 39]) == 0 and right(kv, [4]) == 1
    other = hinterland.Pool(node.socket).kv("another model")
    assert other.fetch([key(4)]) == [False]
    kv.clear()
    assert right(kv, range(40)) == 0


def test_bits_that_flip_on_the_disk_are_misses(start, hinterland, folder):
    node = start()
    put(open_kv(hinterland, node), range(48))
    node.stop()
    path = folder / "disk" / f"kv-{os.getuid()}.blocks"
    with open(path, "r+b") as file:
        for offset in range(0, path.stat().st_size, 3 * MEBIBYTE):
            file.seek(offset + 300_000)
            byte = file.read(1)
            file.seek(offset + 300_000)
            file.write(bytes([byte[0] ^ 64]) if byte else b"")
    node.start()
    kv = open_kv(hinterland, node)
    found = right(kv, range(48))
    assert 20 <= found < 48 and disk(node)["checksum_failures"] + found >= 44
    assert disk(node)["checksum_failures"] > 0


def test_a_disk_that_cannot_be_used_is_said_and_stops_nobody(start, hinterland, folder):
    (folder / "file").write_text("no folder")
    node = start(disk=folder / "file")
    # Before any program has come.
    assert re.search(r"KV blocks that leave the memory will be lost: cannot make .*hint: ", node.words())
    kv = open_kv(hinterland, node)
    put(kv, range(40))
    assert right(kv, range(40)) == 16
    assert disk(node)["state"] == "not used" and "hint:" in disk(node)["last_error"]


def test_two_nodes_do_not_share_a_file(start, hinterland):
    one, two = start("a"), start("b")
    put(open_kv(hinterland, one), range(20))
    kv = open_kv(hinterland, two)
    put(kv, range(20))
    assert disk(two)["state"] == "not used" and "own folder" in disk(two)["last_error"]
    assert disk(one)["state"] == "working"


def evicted(node, hinterland):
    """Evictions that puts waited for, and those that were made ahead, after puts with pauses between them."""
    kv = open_kv(hinterland, node)
    for number in range(60):
        put(kv, [number])
        time.sleep(0.02)
    (store,) = node.json("kv", "stat")
    ahead = store["kept"]["evictions_ahead"]
    return store["evictions"] - ahead, ahead


def test_room_is_made_ahead_so_that_puts_evict_nothing(start, hinterland):
    node = start(more=["--kv-watermarks", "15,40"])
    inline, ahead = evicted(node, hinterland)
    assert ahead >= 44 > inline * 4, (inline, ahead)
    kv = open_kv(hinterland, node)
    assert right(kv, range(60)) == 60 and disk(node)["lost_blocks"] == 0
    assert "hinterland_kv_evicted_ahead_blocks_total" in node.run("metrics").stdout


def test_without_watermarks_or_without_a_disk_puts_evict_themselves(start, start_node, hinterland):
    inline, ahead = evicted(start(), hinterland)
    assert (inline, ahead) == (44, 0)
    node = start_node("b", options=["--capacity", "64M", "--kv-capacity", "16M", "--kv-watermarks", "15,40"])
    kv = hinterland.Pool(node.socket).kv("model")
    put(kv, range(48))
    (store,) = node.json("kv", "stat")
    assert (store["evictions"], store["kept"]["evictions_ahead"], store["blocks"]) == (32, 0, 16)


@pytest.mark.parametrize("wrong", ["5,2", "0,5", "2", "2,60", "a,b"])
def test_watermarks_that_make_no_sense_are_refused(node, wrong):
    refused = node.run("node", "--kv-watermarks", wrong, check=False)
    assert refused.returncode == 2 and "percent" in refused.stderr, refused


def test_room_on_a_disk_that_is_not_named_is_refused(binary):
    ended = subprocess.run([binary, "up", "--kv-disk-capacity", "1G"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "--kv-disk <DIR>" in ended.stderr, ended.stderr
