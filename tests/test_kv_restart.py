"""KV blocks outlive their node: all that is found after a restart is what was put, whatever was killed, cut off or flipped."""

import hashlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import TREE
from faults import FULL, MEBIBYTE, wait_until

CAPACITY = ["--capacity", "64M", "--kv-capacity", "64M"]
ROUNDS = 24 if FULL else 6
# Puts blocks of several sizes in prefixes as fast as it can, and opens the namespace again when the node is gone.
WRITER = """
import random, sys, time
sys.path[:0] = sys.argv[3:]
import hinterland
from test_kv_restart import bytes_of, key_of
socket, number, chance = sys.argv[1], int(sys.argv[2]), random.Random(sys.argv[2])
kv, prefix = None, 0
print("begun", flush=True)
while True:
    try:
        kv = kv or hinterland.Pool(socket).kv("model")
        prefix += 1
        keys = [key_of(number, prefix * 100 + index) for index in range(chance.randrange(1, 24))]
        kv.put(keys, [bytes_of(key) for key in keys], prefix=chance.random() < 0.5)
        if chance.random() < 0.1:
            kv.remove(keys[:2])
    except (hinterland.HinterlandError, OSError):
        kv = None
        time.sleep(0.01)
"""
# Puts blocks without a pause: says each round that is there, and removes the one before it.
STEADY = """
import sys
sys.path[:0] = sys.argv[3:]
import hinterland
from test_kv_restart import steady_bytes, steady_keys
socket, number = sys.argv[1], int(sys.argv[2])
kv, before = hinterland.Pool(socket).kv("steady"), []
print("begun", flush=True)
for round_ in range(1 << 30):
    keys = steady_keys(number, round_)
    assert kv.put(keys, [steady_bytes(key) for key in keys], prefix=round_ % 2 == 0) == [True] * len(keys)
    print(round_, flush=True)
    kv.remove(before)
    before = keys
"""


def key_of(writer, number):
    return b"w%d-%d" % (writer, number)


def bytes_of(key):
    """Bytes that no other key has, of one of some sizes."""
    size = [5000, 20_000, 65_536, 300_000][key[-1] % 4]
    return hashlib.shake_128(key).digest(4096) * (size // 4096) + key


def steady_keys(writer, round_):
    return [b"s%d-%d-%d" % (writer, round_, index) for index in range(24)]


def steady_bytes(key):
    """Bytes that no other key has, made faster than they are copied."""
    return key.ljust(32, b".") * (2048 + key[-1])


def status(node):
    stores = node.json("kv", "stat")
    return stores[0] if stores else None


def settled(node):
    """Waits until the node has summed up what was put and checked what came from before; its status."""
    def done():
        store = status(node)
        return store and store["kept"]["unsummed_blocks"] == store["kept"]["unchecked_blocks"] == 0
    wait_until(done, 30, lambda: f"never settled: {status(node)}")
    return status(node)


def right(kv):
    """How many blocks there are; the bytes of each are looked at."""
    found = 0
    for key in kv.keys():
        block = kv.get(key)
        if block is not None:
            assert block == bytes_of(key), f"{key} has bytes that nobody put there"
            found += 1
    return found


def put(kv, numbers):
    keys = [key_of(0, number) for number in numbers]
    assert kv.put(keys, [bytes_of(key) for key in keys]) == [True] * len(keys)


def files(node, what):
    """Paths of files of the kept stores."""
    number = (node.state / "node.id").read_text().strip()
    folders = [pathlib.Path(f"/dev/shm/hinterland-{number}"), *node.state.glob(f"memory-{number}/*")]
    return [path for folder in folders for path in folder.glob(f"kv-*.{what}")]


@pytest.mark.parametrize("coherence", ["hardware", "software"])
@pytest.mark.parametrize("backing", ["auto", "base"])
def test_blocks_are_hits_after_a_kill_and_after_a_stop(start_node, hinterland, coherence, backing):
    node = start_node("a", options=[*CAPACITY, "--coherence", coherence, "--backing", backing])
    kv = hinterland.Pool(node.socket).kv("model")
    kv.limit(40 * MEBIBYTE, 90)
    put(kv, range(100))
    settled(node)
    node.kill()
    assert right(kv) == 100, "who has them mapped reads on without the node"
    with pytest.raises((hinterland.HinterlandError, OSError), match="hint|closed|reset|pipe|ended"):
        put(kv, range(100, 110))
    node.start()
    assert settled(node)["kept"]["restored_blocks"] == 100
    again = hinterland.Pool(node.socket).kv("model")
    assert right(again) == right(kv) == 100, "who was there before sees the same books"
    put(again, range(100, 120))
    assert right(kv) == 120
    (space,) = status(node)["namespaces"]
    assert (space["quota_bytes"], space["priority"], space["label"]) == (40 * MEBIBYTE, 90, "model")
    settled(node)
    assert node.stop() == 0
    node.start()
    assert settled(node)["kept"]["restored_blocks"] == 120
    last = hinterland.Pool(node.socket).kv("model")
    assert right(last) == 120 and last.remove([key_of(0, number) for number in range(120)]) == 120
    assert right(kv) == 0, "a removal is seen by those of before"
    assert node.stop() == 0
    assert files(node, "*") == [], "a store without blocks leaves nothing"


def test_a_prefix_still_leaves_from_its_end(start_node, hinterland):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M"])
    kv = hinterland.Pool(node.socket).kv("model")
    keys = [b"p%d" % number for number in range(8)]
    assert kv.put(keys, [bytes(MEBIBYTE)] * 8, prefix=True) == [True] * 8
    settled(node)
    node.kill()
    node.start()
    settled(node)
    kv = hinterland.Pool(node.socket).kv("model")
    assert kv.match_prefix(keys) == 8
    others = [b"o%d" % number for number in range(12)]
    assert kv.put(others, [bytes(MEBIBYTE)] * 12) == [True] * 12
    there = kv.exists(keys)
    assert there == sorted(there, reverse=True) and 0 < sum(there) < 8, there


def start_writers(node, count, what=WRITER):
    places = [str(TREE / "tests"), str(TREE / "python")]
    writers = [subprocess.Popen([sys.executable, "-c", what, str(node.socket), str(number + 1), *places],
                                stdout=subprocess.PIPE) for number in range(count)]
    for writer in writers:
        assert writer.stdout.readline() == b"begun\n"
    return writers


def end_writers(writers):
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()


def test_a_node_that_is_killed_under_load_again_and_again_never_gives_a_wrong_byte(start_node, hinterland):
    node = start_node("a", options=CAPACITY)
    writers = start_writers(node, 3)
    restored = 0
    try:
        for round_ in range(ROUNDS):
            # Writers of before stop in the middle of a copy, and go on when their slots would be others'.
            paused = writers[round_ % 3]
            time.sleep(random.Random(round_).uniform(0.1, 0.8))
            paused.send_signal(signal.SIGSTOP)
            node.kill()
            node.start()
            kept = status(node)["kept"]
            assert kept["dropped_blocks"] == 0, "what was published had a checksum"
            restored += kept["restored_blocks"]
            kv = hinterland.Pool(node.socket).kv("model")
            right(kv)
            for writer in writers:
                writer.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            right(kv)
    finally:
        end_writers(writers)
    assert restored > 100, f"{restored} blocks did survive: {node.words()}"
    assert settled(node)["kept"]["damaged_blocks"] == 0
    wait_until(lambda: status(node)["reserved"] == status(node)["kept"]["abandoned_slots"] == 0,
               why=lambda: f"slots of the dead are held: {status(node)}")
    # All of it can be had: nothing of the dead holds a slot.
    kv = hinterland.Pool(node.socket).kv("model")
    kv.clear()
    assert kv.put([b"%d" % number for number in range(64)], [bytes(MEBIBYTE)] * 64) == [True] * 64


def test_writers_that_never_pause_lose_nothing_with_a_killed_node(start_node, hinterland):
    node = start_node("a", options=CAPACITY)
    for round_ in range(ROUNDS):
        writers = start_writers(node, 3, STEADY)
        time.sleep(random.Random(round_).uniform(0.3, 1))
        node.kill()
        said = [writer.communicate()[0].split() for writer in writers]
        assert all(writer.returncode == 1 for writer in writers), "each saw its node die"
        node.start()
        kept = settled(node)["kept"]
        assert kept["dropped_blocks"] == kept["damaged_blocks"] == 0, kept
        kv = hinterland.Pool(node.socket).kv("steady")
        for number, rounds in enumerate(said, 1):
            assert rounds, "no put was answered"
            for key in steady_keys(number, int(rounds[-1])):
                assert kv.get(key) == steady_bytes(key), f"{key} was there before the kill, after {len(rounds)} rounds"
        assert len(kv.keys()) <= 3 * 3 * 24
        kv.clear()


def test_a_node_that_takes_checksums_behind_keeps_what_it_had_time_for(start_node, hinterland):
    node = start_node("a", options=[*CAPACITY, "--kv-sums", "behind"])
    kv = hinterland.Pool(node.socket).kv("model")
    put(kv, range(100))
    settled(node)
    node.kill()
    node.start()
    assert settled(node)["kept"]["restored_blocks"] == 100
    assert right(hinterland.Pool(node.socket).kv("model")) == 100


def flip(path, offset):
    with open(path, "r+b") as file:
        if path.suffix == ".blocks" and os.statvfs(path).f_bsize > 4096:
            import mmap
            with mmap.mmap(file.fileno(), 0) as memory:
                memory[offset] ^= 64
            return
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 64]))


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_bits_that_flip_while_the_node_is_down_are_misses(start_node, hinterland, ends):
    node = start_node("a", options=CAPACITY)
    kv = hinterland.Pool(node.socket).kv("model")
    put(kv, range(200))
    settled(node)
    getattr(node, ends)()
    kv.close()
    chance = random.Random(ends)
    (blocks,), (books,) = files(node, "blocks"), files(node, "books")
    for _ in range(300):
        flip(blocks, chance.randrange(24 * MEBIBYTE))
    written = [at for at, _ in data(books)]
    for _ in range(60):
        flip(books, min(chance.choice(written) + chance.randrange(4096), books.stat().st_size - 1))
    node.start()
    # A flip in the head of the books is told apart and costs all blocks.
    store = settled(node)
    kept = store["kept"]
    again = hinterland.Pool(node.socket).kv("model")
    found = right(again)
    assert found == store["blocks"] < 200
    assert kept["restored_blocks"] == 0 or kept["damaged_blocks"] + kept["dropped_blocks"] > 0, kept
    put(again, range(1000, 1100))
    assert right(again) >= 100


def data(path):
    """Pages of a file that were written."""
    at = 0
    with open(path, "rb") as file:
        while True:
            page = file.read(4096)
            if not page:
                return
            if any(page):
                yield at, page
            at += 4096


@pytest.mark.parametrize("what,said", [
    ("books cut off", "was cut off"), ("books empty", "was cut off"), ("books gone", ""), ("blocks cut off", "was cut off"),
    ("blocks gone", "bytes are gone"), ("touches gone", "touches"), ("spaces gone", "list of namespaces"),
    ("spaces cut off", "list of namespaces"), ("another release", "another release"),
])
def test_files_that_do_not_fit_are_said_and_dropped(start_node, hinterland, what, said):
    node = start_node("a", options=CAPACITY)
    put(hinterland.Pool(node.socket).kv("model"), range(50))
    settled(node)
    node.kill()
    which, how = (what.split(" ", 1) + [""])[:2]
    (path,) = files(node, "books" if which == "another" else which)
    if which == "another":
        with open(path, "r+b") as file:
            file.write(b"HLKVBK01")
    elif how == "gone":
        path.unlink()
    else:
        os.truncate(path, 0 if how == "empty" else path.stat().st_size // 2 // (2 * MEBIBYTE) * (2 * MEBIBYTE) or 50)
    before = len(node.words())
    node.start()
    words = node.words()[before:]
    assert said in words and (not said or "dropped" in words), words
    kv = hinterland.Pool(node.socket).kv("model")
    assert kv.keys() == []
    put(kv, range(50))
    assert right(kv) == 50


@pytest.mark.parametrize("before,after,said", [
    ([], ["--kv-capacity", "96M"], "--kv-capacity"), ([], ["--coherence", "software"], "--coherence"),
    ([], ["--kv-keep", "off"], "--kv-keep"), ([], ["--kv-capacity", "0"], "dropped"),
    (["--coherence", "software"], ["--coherence", "hardware"], "--coherence"),
])
def test_other_options_drop_blocks_with_a_reason(start_node, hinterland, before, after, said):
    node = start_node("a", options=[*CAPACITY, *before])
    old = hinterland.Pool(node.socket).kv("model")
    put(old, range(50))
    settled(node)
    node.kill()
    node.options = [*CAPACITY, *after] if "--kv-capacity" not in after else ["--capacity", "64M", *after]
    start = len(node.words())
    node.start()
    words = node.words()[start:]
    assert said in words and "dropped" in words, words
    assert right(old) == 50, "who has the old files mapped reads what nobody changes"
    if "0" not in after:
        kv = hinterland.Pool(node.socket).kv("model")
        assert kv.keys() == []
        put(kv, range(50, 90))
        assert right(kv) == 40 and right(old) == 50


def test_other_orders_and_checks_keep_blocks(start_node, hinterland):
    node = start_node("a", options=CAPACITY)
    put(hinterland.Pool(node.socket).kv("model"), range(50))
    for more in (["--eviction", "s3fifo"], ["--kv-verify", "always"], []):
        settled(node)
        node.kill()
        node.options = [*CAPACITY, *more]
        node.start()
        assert settled(node)["blocks"] == 50
        assert right(hinterland.Pool(node.socket).kv("model")) == 50


def test_without_keeping_nothing_is_left_in_memory(start_node, hinterland):
    node = start_node("a", options=[*CAPACITY, "--kv-keep", "off"])
    put(hinterland.Pool(node.socket).kv("model"), range(50))
    assert files(node, "*") == [] and status(node)["kept"]["path"] is None
    node.kill()
    node.start()
    assert hinterland.Pool(node.socket).kv("model").keys() == []


def test_a_program_that_cuts_off_the_files_ends_neither_the_node_nor_others(start_node, hinterland):
    node = start_node("a", options=CAPACITY)
    pool = hinterland.Pool(node.socket)
    kv = pool.kv("model")
    put(kv, range(20))
    kv.close()
    for what in ("blocks", "books", "touches"):
        (path,) = files(node, what)
        os.truncate(path, 0)
        with pytest.raises((hinterland.HinterlandError, OSError)):
            for _ in range(50):
                # The first touch of what is gone tells; the next request is refused.
                subject = hinterland.Pool(node.socket).kv("model")
                if subject.keys() == []:
                    raise OSError("made anew")
        assert node.process.poll() is None, node.words()
        kv = pool.kv("model")
        put(kv, range(20))
        assert right(kv) == 20
        kv.close()


def test_checks_of_every_read_find_what_changed_in_memory(start_node, hinterland):
    node = start_node("a", options=[*CAPACITY, "--kv-verify", "always"])
    kv = hinterland.Pool(node.socket).kv("model")
    put(kv, range(40))
    assert right(kv) == 40
    (blocks,) = files(node, "blocks")
    place = kv.keys()[0]
    inspected = node.json("kv", "inspect", "model", place.decode())
    flip(blocks, inspected["offset"] + 1234)
    assert kv.get(place) is None
    assert kv.get(place) is None, "it stays a miss"
    assert status(node)["kept"]["damaged_blocks"] == 1 and status(node)["blocks"] == 39
    assert right(kv) == 39
    assert re.search(r"hinterland_kv_damaged_blocks_total\{.*\} 1\n", node.run("metrics").stdout)
    assert "1 were damaged and dropped" in node.run("kv", "stat").stdout
    # Parts of a block are checked as well.
    place = kv.keys()[0]
    flip(blocks, node.json("kv", "inspect", "model", place.decode())["offset"] + 2500)
    into = bytearray(len(bytes_of(place)))
    assert kv.get_into([place], [into]) == [False]
    assert kv.put([place], [bytes_of(place)]) == [True] and kv.get(place) == bytes_of(place)


def test_without_checks_of_every_read_what_arrived_is_still_checked(start_node, hinterland):
    node = start_node("a", options=CAPACITY)
    kv = hinterland.Pool(node.socket).kv("model")
    put(kv, [0])
    settled(node)
    place = key_of(0, 0)
    (blocks,) = files(node, "blocks")
    flip(blocks, node.json("kv", "inspect", "model", place.decode())["offset"] + 1)
    assert kv.get(place) != bytes_of(place), "this is what the switch is for"
    node.kill()
    node.start()
    assert settled(node)["kept"]["damaged_blocks"] == 1
    assert hinterland.Pool(node.socket).kv("model").get(place) is None
