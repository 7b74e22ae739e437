"""KV blocks across racks, between real nodes over TCP: fetched once, then local; right or missing, whoever dies and whatever
the wire does."""

import hashlib
import random
import signal
import socket
import threading
import time

import pytest

MEBIBYTE = 1 << 20
# This machine may be busy with other tests: silence is what one test is about, and it says so itself.
PATIENT = ["--capacity", "64M", "--kv-capacity", "64M", "--kv-remote-wait", "20000"]


def keys_of(count, first=0):
    return [number.to_bytes(32, "little") for number in range(first, first + count)]


def block_of(key, size=200_000):
    """The bytes that belong to a key, and to no other."""
    return hashlib.shake_128(key + size.to_bytes(8, "little")).digest(size)


def racks_of(node):
    (store,) = node.json("kv", "stat")
    return {**store["racks"], "reserved": store["reserved"]}


def wait_until(what, is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def racks(hinterland, start_node):
    """A function that starts a home `b` and a reader `a`, and opens the blocks of a model on both."""
    opened = []

    def start(options=PATIENT, home_options=(), environment=None):
        a = start_node("a", options=options)
        b = start_node("b", join=a.address, options=[*options, *home_options], environment=environment)
        for node in (a, b):
            opened.append(hinterland.Pool(node.socket))
            opened.append(opened[-1].kv("model"))
        wait_until("they see each other", lambda: racks_of(a)["nodes"] == 1)
        return a, b, opened[1], opened[3]

    yield start
    for resource in reversed(opened):
        resource.close()


def test_a_prefix_of_the_other_rack_is_found_fetched_and_then_local(racks):
    a, b, near, home = racks()
    keys = keys_of(40)
    assert home.put(keys[:30], [block_of(key) for key in keys[:30]]) == [True] * 30
    assert near.match_prefix(keys) == 0 and near.match_prefix(keys, remote=True) == 30
    assert near.exists(keys) == [False] * 40, "to ask moves nothing"
    assert near.fetch(keys) == [True] * 30 + [False] * 10
    assert [near.get(key) for key in keys[:30]] == [block_of(key) for key in keys[:30]]
    before = racks_of(a), racks_of(b), b.json("status")["counters"]["network_sent_bytes"]
    assert before[0]["hits"] == 30 and before[0]["bytes"] == before[1]["sent_bytes"] == 30 * 200_000
    assert near.fetch(keys[:30]) == [True] * 30 and near.match_prefix(keys) == 30
    assert near.match_prefix(keys[:30], remote=True) == 30
    assert (racks_of(a), racks_of(b), b.json("status")["counters"]["network_sent_bytes"]) == before
    words = a.run("kv", "stat").stdout
    assert "1 other nodes" in words and "30 blocks" in words


def test_a_prefetch_does_not_wait_and_a_fetch_of_the_same_waits_for_it(racks):
    _, _, near, home = racks()
    keys = keys_of(50)
    home.put(keys, [block_of(key, MEBIBYTE) for key in keys])
    assert near.prefetch(keys) == 50
    assert near.fetch(keys) == [True] * 50
    assert near.prefetch(keys) == 0
    assert all(near.get(key) == block_of(key, MEBIBYTE) for key in keys)


def test_blocks_are_read_into_buffers_from_wherever_they_are(racks, hinterland):
    a, _, near, home = racks()
    keys = keys_of(60)
    home.put(keys[:50], [block_of(key, MEBIBYTE) for key in keys[:50]])
    # Some are here already, some are in the other rack, some nowhere; none is in order.
    order = keys[::7] + [key for key in keys if key not in keys[::7]]
    near.put(keys[:40:3], [block_of(key, MEBIBYTE) for key in keys[:40:3]])
    buffers = [bytearray(MEBIBYTE) for _ in order]
    assert near.get_into(order, buffers, remote=True) == [key in keys[:50] for key in order]
    assert all(buffer == block_of(key, MEBIBYTE) for key, buffer in zip(order, buffers) if key in keys[:50])
    assert near.get_into(order, buffers) == [key in keys[:50] for key in order]
    near.clear()
    with pytest.raises(hinterland.HinterlandError, match="does not fit"):
        near.get_into(keys[:50], [bytearray(MEBIBYTE)] * 20 + [bytearray(7)] * 30, remote=True)
    assert near.match_prefix(keys, remote=True) == 50 and racks_of(a)["reserved"] == 0


def test_blocks_are_cleared_in_all_racks_or_the_words_say_in_which_they_are_not(racks, hinterland):
    a, b, near, home = racks()
    keys = keys_of(10)
    home.put(keys, [block_of(key) for key in keys])
    assert near.fetch(keys[:3]) == [True] * 3
    assert near.clear() == 3 and near.match_prefix(keys, remote=True) == 10
    assert near.clear(everywhere=True) == 10
    assert near.match_prefix(keys, remote=True) == 0 and home.exists(keys) == [False] * 10
    near.put(keys[:1], [b"new"])
    home.put(keys[1:], [b"new"] * 9)
    assert a.json("kv", "clear", "model", "--everywhere") == {"removed": 10}
    assert near.exists(keys) == home.exists(keys) == [False] * 10
    near.put(keys[:1], [b"new"])
    b.stop()
    with pytest.raises(hinterland.HinterlandError, match="node-.*hint"):
        near.clear(everywhere=True)
    assert near.exists(keys[:1]) == [False]


def test_equal_keys_of_other_models_are_not_found(racks, hinterland):
    a, b, near, _ = racks()
    with hinterland.Pool(b.socket) as pool, pool.kv("another model") as kv:
        kv.put([b"k"], [b"of another model"])
        assert near.fetch([b"k"]) == [False] and near.match_prefix([b"k"], remote=True) == 0
    with hinterland.Pool(a.socket) as pool, pool.kv("another model") as kv:
        assert kv.fetch([b"k"]) == [True] and kv.get(b"k") == b"of another model"


COHERENCE = pytest.mark.parametrize("coherence", ["hardware", "software"])


@COHERENCE
@pytest.mark.parametrize("step", ["home-kv-found:1", "home-kv-checked:1", "home-kv-checked:2"])
def test_a_home_that_dies_at_any_step_is_a_miss_and_leaves_no_slot(racks, step, coherence):
    a, b, near, home = racks([*PATIENT, "--coherence", coherence], environment={"HINTERLAND_FAULT_POINT": step})
    keys = keys_of(40)
    home.put(keys, [block_of(key, MEBIBYTE) for key in keys])
    here = near.fetch(keys)
    assert b.process.wait(timeout=20) == -signal.SIGKILL
    # What was checked before it died may stay: nothing, or the parts before the one that it died in.
    assert not all(here) and (step != "home-kv-found:1" or not any(here))
    for key, is_here in zip(keys, here):
        assert near.get(key) == (block_of(key, MEBIBYTE) if is_here else None)
    assert near.fetch(keys) == here and racks_of(a)["reserved"] == 0
    b.process.stdout.close()
    b.start()


@COHERENCE
@pytest.mark.parametrize("step", ["kv-fetch-reserved:1", "kv-fetch-reserved:2", "kv-fetch-read:1", "kv-fetch-read:2"])
def test_a_reader_that_dies_at_any_step_harms_nobody_else(hinterland, start_node, step, coherence):
    options = [*PATIENT, "--coherence", coherence]
    home = start_node("home", options=options)
    reader = start_node("reader", join=home.address, options=options, environment={"HINTERLAND_FAULT_POINT": step})
    keys = keys_of(40)
    with hinterland.Pool(home.socket) as pool, pool.kv("model") as kv:
        kv.put(keys, [block_of(key, MEBIBYTE) for key in keys])
        with hinterland.Pool(reader.socket) as other, other.kv("model") as near, pytest.raises(OSError):
            wait_until("they see each other", lambda: near.match_prefix(keys[:1], remote=True) == 1)
            near.fetch(keys)
        assert reader.process.wait(timeout=20) == -signal.SIGKILL
        reader.process.stdout.close()
        reader.start()
        with hinterland.Pool(reader.socket) as other, other.kv("model") as near:
            wait_until("it is found again", lambda: near.fetch(keys) == [True] * 40)
            assert all(near.get(key) == block_of(key, MEBIBYTE) for key in keys)
        assert racks_of(reader)["reserved"] == racks_of(home)["reserved"] == 0


def test_homes_that_are_killed_again_and_again_give_right_bytes_or_none(racks, hinterland):
    a, b, near, home = racks()
    seeded, hits, misses = random.Random(5), 0, 0
    for round_ in range(6):
        keys = keys_of(48, first=1000 * round_)
        home.put(keys, [block_of(key, MEBIBYTE) for key in keys])
        wait_until("it is found", lambda: near.match_prefix(keys[:1], remote=True) == 1)
        killer = threading.Timer(seeded.random() * 0.03, b.process.kill)
        killer.start()
        here = near.fetch(keys)
        killer.join()
        b.process.wait()
        b.process.stdout.close()
        for key, is_here in zip(keys, here):
            assert near.get(key) == (block_of(key, MEBIBYTE) if is_here else None)
        hits, misses = hits + sum(here), misses + here.count(False)
        assert racks_of(a)["reserved"] == 0
        near.clear()
        home.close()
        b.start()
        home = hinterland.Pool(b.socket).kv("model")
        # Only who is silent is left alone for a while.
        assert racks_of(a)["resting"] == 0
    assert hits + misses == 288 and misses > 0, "some fetch was cut off"


def test_a_silent_home_costs_a_bounded_wait_once(racks):
    a, b, near, home = racks(options=["--capacity", "64M", "--kv-capacity", "64M", "--kv-remote-wait", "500"])
    home.put([b"k"], [b"bytes"])
    b.process.send_signal(signal.SIGSTOP)
    try:
        assert near.fetch([b"k"]) == [False]
        assert racks_of(a)["nodes"] == 0, "it is left alone"
        assert [near.fetch([b"k"]) for _ in range(100)] == [[False]] * 100
    finally:
        b.process.send_signal(signal.SIGCONT)
    # It rests ten seconds, and is then asked again.
    wait_until("it is found again", lambda: near.fetch([b"k"]) == [True])
    assert near.get(b"k") == b"bytes"


class Wire:
    """A proxy before a node. While it is bad, one byte in each of many pieces that the node sends is another."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.listener.getsockname())
        self.target = None
        self.is_bad = False
        self.flips = 0
        self.seeded = random.Random(9)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            host, port = self.target.rsplit(":", 1)
            far = socket.create_connection((host, int(port)))
            for source, sink, damages in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.pump, args=(source, sink, damages), daemon=True).start()

    def pump(self, source, sink, damages):
        try:
            while piece := source.recv(MEBIBYTE):
                if damages and self.is_bad and len(piece) > 4096:
                    piece = bytearray(piece)
                    piece[self.seeded.randrange(len(piece))] ^= 1 << self.seeded.randrange(8)
                    self.flips += 1
                sink.sendall(piece)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_bits_that_flip_on_the_wire_are_misses_and_counted(hinterland, start_node):
    wire = Wire()
    a = start_node("a", options=PATIENT)
    b = start_node("b", join=a.address, options=PATIENT)
    # Where it listens is known by now: it comes back behind the wire.
    b.stop()
    wire.target, b.options = b.address, [*b.options, "--advertise", wire.address]
    b.start()
    keys = keys_of(20)
    with hinterland.Pool(a.socket) as pool, pool.kv("model") as near, \
            hinterland.Pool(b.socket) as other, other.kv("model") as home:
        home.put(keys, [block_of(key, MEBIBYTE) for key in keys])
        wait_until("it is found", lambda: near.match_prefix(keys[:1], remote=True) == 1)
        wire.is_bad = True
        for _ in range(5):
            here = near.fetch(keys)
            for key, is_here in zip(keys, here):
                assert near.get(key) == (block_of(key, MEBIBYTE) if is_here else None)
            near.clear()
        status = racks_of(a)
        assert wire.flips > 0 and status["checksum_failures"] > 0 and status["reserved"] == 0, (wire.flips, status)
        wire.is_bad = False
        wait_until("all is well again", lambda: near.fetch(keys) == [True] * 20)
        assert [near.get(key) for key in keys] == [block_of(key, MEBIBYTE) for key in keys]
    wire.listener.close()
