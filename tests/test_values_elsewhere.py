"""Values of Mooncake's, SGLang's and LMCache's programs that are not in the memory of their host: in another rack, on the node's disk."""

import contextlib
import ctypes
import hashlib
import select
import signal
import sys
import threading
import time
import types

import pytest
from faults import wait_until

MEBIBYTE = 1 << 20
# A block, a name that is in the block, and a value of several blocks.
VALUES = {"short": 1000, "a name of more than 62 bytes" * 3: 70_000, "long": 9 * MEBIBYTE + 7}
# This machine may be busy with other tests: silence is what one test is about, and it says so itself.
PATIENT = ["--capacity", "64M", "--kv-capacity", "64M", "--kv-remote-wait", "20000"]


def value_of(name, size):
    """The bytes that belong to a name, and to no other."""
    return hashlib.shake_128(name.encode()).digest(size)


def values_of(count, size=MEBIBYTE):
    return {f"value {number}": value_of(f"value {number}", size) for number in range(count)}


class OfMooncake:
    """A program for Mooncake."""

    def __init__(self, socket):
        from hinterland.compat.mooncake import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        assert self.store.setup("localhost", "P2PHANDSHAKE", MEBIBYTE, MEBIBYTE, "tcp", "", str(socket)) == 0
        self.close = self.store.close

    def put(self, values):
        return [self.store.put(name, value) == 0 for name, value in values.items()]

    def there(self, names):
        return [code == 1 for code in self.store.batch_is_exist(list(names))]

    def get(self, sizes):
        """Values of these lengths, in one batch; None for those that are missing."""
        places = [(ctypes.c_ubyte * size)() for size in sizes.values()]
        starts = list(map(ctypes.addressof, places))
        for start, size in zip(starts, sizes.values()):
            assert self.store.register_buffer(start, size) == 0
        found = self.store.batch_get_into(list(sizes), starts, list(sizes.values()))
        for start in starts:
            self.store.unregister_buffer(start)
        return [bytes(place) if length == len(place) else None for place, length in zip(places, found)]


class OfLMCache:
    """LMCache's server."""

    def __init__(self, socket):
        from hinterland.compat.lmcache import Client

        self.client = Client(socket=str(socket))
        self.close = self.client.close

    def completed(self, number):
        poller, deadline = select.poll(), time.monotonic() + 60
        poller.register(self.client.event_fd(), select.POLLIN)
        while time.monotonic() < deadline:
            if poller.poll(1000):
                for batch, _, _, answers in self.client.drain_completions():
                    assert batch == number
                    return answers
        raise AssertionError("no completion came")

    def put(self, values):
        views = [memoryview(value) for value in values.values()]
        return self.completed(self.client.submit_batch_set(list(values), views))

    def there(self, names):
        return self.completed(self.client.submit_batch_exists(list(names)))

    def get(self, sizes):
        places = [bytearray(size) for size in sizes.values()]
        found = self.completed(self.client.submit_batch_get(list(sizes), list(map(memoryview, places))))
        return [bytes(place) if was_there else None for place, was_there in zip(places, found)]


class OfSGLang:
    """SGLang's HiCache. Its own modules are not needed for pages that have addresses: stand-ins are imported in their place."""

    def __init__(self, socket):
        from hinterland.compat.sglang import HinterlandHiCache

        ranks = {name: 0 for name in ("pp_rank", "attn_cp_rank", "dcp_rank", "tp_rank")}
        ranks |= {name: 1 for name in ("pp_size", "attn_cp_size", "dcp_size", "tp_size")}
        # These say nothing of an engine's weights, so its pages have a tag.
        extra = {"socket": str(socket), "extra_backend_tag": "tests"}
        config = types.SimpleNamespace(extra_config=extra, model_name="model", logical_page_size=64,
                                       is_mla_model=False, enable_storage_metrics=False, **ranks)
        self.backend = HinterlandHiCache(config)
        self.close = self.backend.close

    def put(self, values):
        places = [(ctypes.c_ubyte * len(value)).from_buffer_copy(value) for value in values.values()]
        return [self.backend.set(name, None, ctypes.addressof(place), len(place)) for name, place in zip(values, places)]

    def there(self, names):
        return [self.backend.exists(name) for name in names]

    def get(self, sizes):
        places = [(ctypes.c_ubyte * size)() for size in sizes.values()]
        found = self.backend.batch_get(list(sizes), list(map(ctypes.addressof, places)), list(sizes.values()))
        return [bytes(place) if was_there is not None else None for place, was_there in zip(places, found)]


@pytest.fixture
def stand_ins(monkeypatch):
    """Modules of SGLang and torch, as far as pages with addresses need them."""
    modules = {name: types.ModuleType(name) for name in ("torch", "sglang", "sglang.srt", "sglang.srt.mem_cache",
                                                         "sglang.srt.mem_cache.hicache_storage")}
    modules["torch"].Tensor = type("Tensor", (), {})
    for name in ("HiCacheStorage", "HiCacheStorageConfig", "HiCacheStorageExtraInfo", "PoolHitPolicy", "PoolTransfer",
                 "PoolTransferResult"):
        setattr(modules["sglang.srt.mem_cache.hicache_storage"], name, type(name, (), {}))
    modules["sglang.srt.mem_cache.hicache_storage"].PoolName = type("PoolName", (), {"KV": "kv", "MAMBA": "mamba"})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    # Ours is imported with these, and again by whoever has the real ones.
    monkeypatch.delitem(sys.modules, "hinterland.compat.sglang", raising=False)
    yield
    sys.modules.pop("hinterland.compat.sglang", None)


@pytest.fixture(params=[OfMooncake, OfSGLang, OfLMCache])
def open_kind(request, hinterland, stand_ins):
    """A function that opens a program of one kind at a node; it is closed with the test."""
    with contextlib.ExitStack() as opened:
        def start(node):
            program = request.param(node.socket)
            opened.callback(program.close)
            return program
        yield start


@pytest.fixture
def start_racks(start_node, open_kind):
    """A function that starts a home `b` and a reader `a`, and programs of one kind at both."""

    def start(options=PATIENT, home_environment=None):
        a = start_node("a", options=options)
        b = start_node("b", join=a.address, options=options, environment=home_environment)
        near, home = open_kind(a), open_kind(b)
        wait_until(lambda: racks_of(a)["nodes"] == 1, why="they see each other")
        return a, b, near, home

    return start


def racks_of(node):
    (store,) = node.json("kv", "stat")
    return {**store["racks"], "reserved": store["reserved"]}


def test_a_value_of_another_rack_is_found_read_and_then_local(start_racks):
    a, _, near, home = start_racks()
    values = {name: value_of(name, size) for name, size in VALUES.items()}
    assert home.put(values) == [True] * 3
    assert near.there(["short", "none"]) == [True, False] and racks_of(a)["hits"] == 0, "to ask moves nothing"
    assert near.there([*values, "none"]) == [True] * 3 + [False]
    assert racks_of(a)["bytes"] < 1000, "but the head of a long value"
    if isinstance(near, OfSGLang):
        assert near.backend.batch_exists([*values, "none"]) == 3 and near.backend.batch_exists(["none", *values]) == 0
    assert near.get({**VALUES, "none": 10}) == [*values.values(), None]
    before = racks_of(a)
    assert before["hits"] == 6, "two blocks, a head and three parts"
    assert near.get(VALUES) == [*values.values()] and near.there(values) == [True] * 3
    assert racks_of(a) == before
    # What a buffer of another length asks for is not given.
    assert near.get({"short": 1001, "long": MEBIBYTE}) == [None, None]


def test_values_that_memory_has_no_room_for_come_back_from_the_disk_also_after_a_restart(start_node, open_kind, folder):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M", "--kv-disk", folder / "disk", "--kv-disk-capacity",
                                    "256M", "--kv-watermarks", "off", "--kv-keep", "off"])
    program = open_kind(node)
    wait_until(lambda: disk_of(node)["state"] == "working", why="it knows what its disk holds")
    values = {**{name: value_of(name, size) for name, size in VALUES.items()}, **values_of(40)}
    sizes = {name: len(value) for name, value in values.items()}
    assert all(program.put({name: value}) == [True] for name, value in values.items())
    assert disk_of(node)["lost_blocks"] == 0
    assert program.there([*values, "none"]) == [True] * 43 + [False]
    assert program.get({**sizes, "none": 10}) == [*values.values(), None], "in one batch that is larger than the memory"
    assert node.stop() == 0
    node.start()
    again = open_kind(node)
    wait_until(lambda: disk_of(node)["state"] == "working", why="it knows what its disk holds")
    assert again.get(sizes) == list(values.values())
    assert disk_of(node)["failures"] == disk_of(node)["checksum_failures"] == 0


def disk_of(node):
    (store,) = node.json("kv", "stat")
    return store["disk"]


@pytest.fixture
def start_stores(hinterland, start_node, folder):
    """A function that starts two nodes in two racks, and gives a store of Mooncake's at each, and the nodes. Each has a disk, so that what was
    evicted comes back, too, if nobody sees to it."""
    with contextlib.ExitStack() as opened:
        def start(memory):
            options = ["--capacity", "64M", "--kv-capacity", memory, "--kv-remote-wait", "20000", "--kv-disk-capacity", "256M",
                       "--kv-watermarks", "off"]
            a = start_node("a", options=[*options, "--kv-disk", folder / "disk-a"])
            b = start_node("b", join=a.address, options=[*options, "--kv-disk", folder / "disk-b"])
            near, home = OfMooncake(a.socket), OfMooncake(b.socket)
            opened.callback(near.close)
            opened.callback(home.close)
            wait_until(lambda: racks_of(a)["nodes"] == racks_of(b)["nodes"] == 1, why="they see each other")
            return near.store, home.store, a, b
        yield start


@pytest.mark.parametrize("sizes", [[1000], [9 * MEBIBYTE], [1000, 5 * MEBIBYTE]], ids=["short", "long", "both"])
def test_who_reads_after_a_value_was_replaced_in_another_rack_never_sees_the_old_one(start_stores, sizes):
    # Room for a value that is written, the one before, and those that two readers bring meanwhile.
    near, home, *_ = start_stores("64M")
    ended, mixed = threading.Event(), []

    def read():
        while not ended.is_set():
            data = near.get("value")
            if data != data[:1] * len(data):
                mixed.append(data)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    misses = 0
    try:
        for number in range(40):
            # In turn by the one and the other: both have copies.
            writer, size = (home, near)[number % 2], sizes[number // 2 % len(sizes)]
            assert writer.upsert("value", bytes([number]) * size) == 0
            for store in (near, home):
                data = store.get("value")
                assert data in (b"", bytes([number]) * size), (number, data[:1], len(data))
                misses += not data
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert misses < 40, "half are where they were written, and the others mostly come"
    assert mixed == []


@pytest.mark.parametrize("new", [1000, 5 * MEBIBYTE], ids=["short", "long"])
@pytest.mark.parametrize("was_read", [False, True], ids=["unread", "read"])
def test_a_value_that_was_replaced_in_one_rack_takes_no_memory_of_another(start_stores, was_read, new):
    near, home, _, b = start_stores("64M")
    assert home.put("value", bytes(9 * MEBIBYTE)) == 0
    assert not was_read or near.get("value") == bytes(9 * MEBIBYTE)
    assert near.upsert("value", b"x" * new) == 0
    (store,) = b.json("kv", "stat")
    assert store["blocks"] == 0, "its parts are gone with it"
    assert home.get("value") == near.get("value") == b"x" * new


def test_what_was_removed_in_one_rack_is_in_none_and_its_name_is_free(start_stores):
    near, home, a, b = start_stores("16M")
    values = {name: value_of(name, size) for name, size in VALUES.items()}
    for name, value in values.items():
        assert home.put(name, value) == 0 and near.get(name) == value
        assert near.put(name, b"it is there") == 0 and near.get(name) == value, "also in another rack"
    # All of it is on the disks, too.
    for store in (near, home):
        for number in range(24):
            assert store.put(f"{id(store)} {number}", bytes(MEBIBYTE)) == 0
    for node in (a, b):
        wait_until(lambda: disk_of(node)["staged_bytes"] == 0, why="it is written")
    for store, name in zip((near, home, near), values):
        assert store.remove(name) == 0
        assert near.is_exist(name) == home.is_exist(name) == 0 and near.get(name) == home.get(name) == b""
        assert near.remove(name) == home.remove(name) == -704
        assert near.put(name, b"anew") == 0 and home.get(name) == b"anew"
    assert home.remove_all() > 0
    assert near.is_exist("short") == home.is_exist("short") == 0


def test_a_rack_that_is_not_reached_is_said_when_it_may_keep_what_was_replaced_or_removed(start_stores, caplog):
    near, home, _, b = start_stores("16M")
    assert home.put("k", b"old") == 0 and near.get("k") == b"old"
    b.stop()
    assert near.upsert("k", b"new") < 0 and "node-" in caplog.text and "hint:" in caplog.text
    assert near.get("k") == b"new", "here it is done"
    assert near.remove("k") < 0 and near.get("k") == b""
    assert near.remove_all() < 0
    b.start()
    wait_until(lambda: near.upsert("k", b"newer") == 0, 60, "it is reached again")
    again = OfMooncake(b.socket)
    assert again.store.get("k") in (b"newer", b"")
    again.close()


def test_a_clear_of_sglang_reaches_all_racks_and_a_delete_of_lmcache_its_own(start_racks):
    a, _, near, home = start_racks()
    values = values_of(3)
    assert all(home.put(values)) and near.get(dict.fromkeys(values, MEBIBYTE)) == list(values.values())
    if isinstance(near, OfSGLang):
        assert near.backend.clear()
        assert near.there(values) == home.there(values) == [False] * 3, "of old weights nothing may be left"
    elif isinstance(near, OfLMCache):
        assert near.completed(near.client.submit_batch_delete(["value 0", "none"])) == [True, False]
        assert racks_of(a)["hits"] == 3 and near.there(values) == [True] * 3, "the other rack keeps its own"


def test_a_rack_that_is_silent_makes_values_missing_and_is_then_left_alone(start_racks):
    a, b, near, home = start_racks(["--capacity", "64M", "--kv-capacity", "64M", "--kv-remote-wait", "500"])
    values = values_of(2)
    assert home.put(values) == [True, True]
    b.process.send_signal(signal.SIGSTOP)
    try:
        assert near.there(values) == [False, False] and near.get(dict.fromkeys(values, MEBIBYTE)) == [None, None]
        assert racks_of(a)["nodes"] == 0, "it is left alone"
        assert [near.get({"value 0": MEBIBYTE}) for _ in range(100)] == [[None]] * 100
        assert near.put({"own": b"own"}) == [True] and near.get({"own": 3}) == [b"own"]
    finally:
        b.process.send_signal(signal.SIGCONT)
    wait_until(lambda: near.there(values) == [True, True], 60, "it rests ten seconds, and is then asked again")
    assert near.get(dict.fromkeys(values, MEBIBYTE)) == list(values.values())


@pytest.mark.parametrize("step", ["home-kv-found:1", "home-kv-found:2", "home-kv-checked:1", "home-kv-checked:2"])
def test_a_rack_that_dies_at_any_step_makes_values_missing_and_never_wrong(start_racks, step):
    a, b, near, home = start_racks(home_environment={"HINTERLAND_FAULT_POINT": step})
    values = {**values_of(20), "long": value_of("long", VALUES["long"])}
    assert all(home.put(values))
    sizes = {name: len(value) for name, value in values.items()}
    found = near.get(sizes)
    assert b.process.wait(timeout=20) == -signal.SIGKILL
    assert None in found and all(one in (value, None) for one, value in zip(found, values.values()))
    assert near.get(sizes) == found and racks_of(a)["reserved"] == 0
    b.process.stdout.close()
    b.start()


@pytest.mark.parametrize(("old", "new"), [(9 * MEBIBYTE + 7, 1000), (1000, 9 * MEBIBYTE + 7), (9 * MEBIBYTE + 7, 8 * MEBIBYTE)])
def test_a_value_on_the_disk_does_not_come_back_when_what_replaced_it_is_gone(start_node, hinterland, folder, old, new):
    from hinterland.compat.values import named

    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "16M", "--kv-disk", folder / "disk", "--kv-disk-capacity",
                                    "256M", "--kv-watermarks", "off"])
    program = OfMooncake(node.socket)
    with contextlib.closing(program):
        wait_until(lambda: disk_of(node)["state"] == "working", why="it knows what its disk holds")
        assert program.put({"value": value_of("old", old)}) == [True]
        # What comes after it puts all of it on the disk. Nobody asks for it: that would bring the head of a long value back.
        assert all(program.put({name: value}) == [True] for name, value in values_of(40).items())
        replacement = value_of("new", new)
        assert program.store.upsert("value", replacement) == 0 and program.store.get("value") == replacement
        # As if it was evicted when the disk had no time for it: its block, or its head, is nowhere any more.
        name = named("value")
        assert program.store._values.kv.remove([name.value if new < MEBIBYTE else name.head]) == 1
        assert program.store.get("value") == b"" and program.there(["value"]) == [False]
