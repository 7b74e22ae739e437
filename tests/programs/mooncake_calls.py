"""A sequence of calls of a Mooncake store, one line of JSON for each with what came back: the same for every store that keeps the
contract. usage: mooncake_calls.py MASTER METADATA LEASE_SECONDS

Bytes are shown as their length and digest, so that a difference is a line.
"""

import ctypes
import hashlib
import json
import random
import sys
import time

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MEBIBYTE = 1 << 20
MASTER, METADATA, LEASE = sys.argv[1], sys.argv[2], float(sys.argv[3])


def shown(value):
    if hasattr(value, "size") and hasattr(value, "ptr"):
        return ["buffer", value.size(), shown(bytes(value))]
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return data.decode("latin1") if len(data) < 20 else f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:16]}"
    if isinstance(value, (list, tuple)):
        return [shown(part) for part in value]
    if isinstance(value, ReplicateConfig):
        return "config"
    if isinstance(value, int):
        for start, (size, name) in PLACES.items():
            if start <= value <= start + size:
                return f"{name}+{value - start}"
    return value


class Calls:
    """Makes calls and writes down what they give."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        def call(*words, **named):
            try:
                result = shown(getattr(self.store, name)(*words, **named))
            except Exception as error:
                result = f"raised {type(error).__name__}"
            self.write(name, shown(words), result)
            return result
        return call

    def write(self, name, words, result):
        print(json.dumps([name, *words, result])[:400], flush=True)


# Memory by its first address: its length, and what it is called in what is written down.
PLACES = {}


def memory(size, seed=None):
    place = (ctypes.c_ubyte * size)()
    if seed is not None:
        ctypes.memmove(place, random.Random(seed).randbytes(size), size)
    return place


def address(place, name):
    PLACES[ctypes.addressof(place)] = (len(place), name)
    return ctypes.addressof(place)


def whole_values(calls):
    """Bytes in, bytes out."""
    blocks = {size: random.Random(size).randbytes(size)
              for size in (1, 100, 4096, 65536, MEBIBYTE, 4 * MEBIBYTE - 1, 4 * MEBIBYTE, 4 * MEBIBYTE + 1, 11 * MEBIBYTE)}
    for size, data in blocks.items():
        calls.is_exist(f"v{size}")
        calls.get(f"v{size}")
        calls.get_size(f"v{size}")
        calls.get_buffer(f"v{size}")
        calls.put(f"v{size}", data)
        calls.put(f"v{size}", data[:-1] + b"!")
        calls.is_exist(f"v{size}")
        calls.get_size(f"v{size}")
        calls.get(f"v{size}")
        calls.get_buffer(f"v{size}")
    calls.put("empty", b"")
    calls.is_exist("empty")
    calls.get("empty")
    calls.get_size("empty")
    calls.put("", b"no key")
    calls.is_exist("")
    calls.get("")
    calls.put("k" * 300, b"a long key")
    calls.put("k" * 299 + "l", b"another")
    calls.get("k" * 300)
    calls.get("k" * 299 + "l")
    calls.put("ключ/of other letters", bytearray(b"unicode"))
    calls.get("ключ/of other letters")
    calls.put("view", memoryview(b"0123456789")[2:5])
    calls.get("view")
    calls.put("config", b"with one", ReplicateConfig())
    calls.put_parts("parts", b"one,", b"two,", bytearray(b"three"))
    calls.get("parts")
    calls.put_parts("parts", b"other")
    calls.get("parts")
    calls.put_batch(["b1", "b2", "v100"], [b"first", b"second", b"third"])
    calls.get_batch(["b1", "none", "b2", "v100"])
    calls.put_batch(["c1", "c2"], [b"first"])
    calls.put_batch([], [])
    calls.get_batch([])
    calls.batch_is_exist(["b1", "none", "b2"])
    calls.batch_is_exist([])
    calls.batch_get_buffer(["b1", "none"])


def by_address(calls):
    """Registered memory, in and out."""
    place, size = memory(12 * MEBIBYTE, seed=1), 12 * MEBIBYTE
    start = address(place, "place")
    original = bytes(place)
    calls.register_buffer(start, size)
    calls.register_buffer(start, size)
    calls.register_buffer(start + 1000, 1000)
    calls.register_buffer(0, 100)
    calls.put_from("z1", start, 1000)
    calls.put_from("z2", start + 1000, 9 * MEBIBYTE)
    calls.batch_put_from(["y1", "y2", "z1"], [start, start + 5000, start], [5000, 70_000, 10])
    calls.batch_put_from(["x1", "x2"], [start], [10])
    calls.batch_put_from([], [], [])
    calls.batch_put_from_multi_buffers(["m1", "m2"], [[start, start + 8192], [start + 100]], [[4096, 100], [7]])
    calls.batch_put_from_multi_buffers(["m3"], [[start, start + 8192]], [[4096]])
    for key in ("z1", "z2", "y1", "y2", "m1", "m2", "m3", "x1"):
        calls.get(key)
    ctypes.memset(place, 0, size)
    calls.get_into("z1", start, 1000)
    calls.get_into("z1", start, 2000)
    calls.get_into("z1", start, 999)
    calls.get_into("none", start, 999)
    calls.get_into("z2", start + 2000, 9 * MEBIBYTE)
    calls.get_into("z2", start + 2000, 9 * MEBIBYTE - 1)
    calls.batch_get_into(["y1", "none", "y2"], [start, start, start + 5000], [5000, 10, 80_000])
    calls.batch_get_into(["y1", "y2"], [start, start + 5000], [4999, 80_000])
    calls.batch_get_into(["y1", "y2"], [start], [5000])
    calls.batch_get_into([], [], [])
    calls.write("memory", [], shown(bytes(place)[:80_000]))
    ctypes.memset(place, 0, size)
    calls.batch_get_into_multi_buffers(["m1", "m2"], [[start, start + 8192], [start + 100_000]], [[4096, 100], [7]])
    calls.write("memory", [], shown(bytes(place)))
    ctypes.memset(place, 0, size)
    calls.batch_get_into_multi_buffers(["m1", "none"], [[start, start + 8192], [start]], [[4096, 50], [1]])
    calls.batch_get_into_multi_buffers(["m1"], [[start, start + 8192]], [[4096]])
    calls.write("memory", [], shown(bytes(place)[:4096]))
    ctypes.memmove(place, original, size)
    calls.unregister_buffer(start)
    calls.unregister_buffer(start)


def ranges(calls):
    """Parts of values into parts of buffers."""
    data = random.Random(5).randbytes(9 * MEBIBYTE)
    calls.put("r1", bytes(range(100)))
    calls.put("r2", data)
    one, two = memory(1000), memory(6 * MEBIBYTE)
    first, second = address(one, "one"), address(two, "two")
    calls.register_buffer(first, 1000)
    calls.register_buffer(second, 6 * MEBIBYTE)
    calls.get_into_ranges([first, second], [["r1", "r2"], ["r2", "r1"]], [[[0, 50], [100]], [[0], [5 * MEBIBYTE]]],
                          [[[10, 90], [4 * MEBIBYTE - 5]], [[3 * MEBIBYTE], [0]]], [[[5, 10], [10]], [[5 * MEBIBYTE], [100]]])
    calls.write("memory", [], shown(bytes(one)))
    calls.write("memory", [], shown(bytes(two)))
    calls.get_into_ranges([first], [["r1", "r1"]], [[[0], []]], [[[0, 1], []]], [[[], []]])
    calls.get_into_ranges([first], [["r1"]], [[[0]]], [[[99]]], [[[2]]])
    calls.get_into_ranges([first], [["r1"]], [[[999]]], [[[0]]], [[[2]]])
    calls.get_into_ranges([first], [["none", "r1"]], [[[0], [8]]], [[[0], [0]]], [[[4], [4]]])
    calls.get_into_ranges([], [], [], [], [])
    calls.unregister_buffer(first)
    calls.unregister_buffer(second)


def sessions(calls):
    """Values that are written and read range by range."""
    place = memory(10 * MEBIBYTE, seed=7)
    start = address(place, "session")
    calls.register_buffer(start, len(place))
    calls.batch_put_from_multi_buffer_ranges(["s1"], [[start]], [[10]], [[0]])
    calls.batch_put_session_start(["s1", "s2"], [100, 9 * MEBIBYTE])
    calls.batch_put_session_start(["s1"], [100])
    calls.batch_put_session_start(["s3", "s4"], [100])
    calls.batch_put_from_multi_buffer_ranges(["s1", "s2"], [[start, start + 50], [start]], [[50, 50], [8 * MEBIBYTE]],
                                             [[0, 50], [MEBIBYTE]])
    calls.batch_put_from_multi_buffer_ranges(["s2", "s1"], [[start], [start]], [[MEBIBYTE], [10]], [[0], [95]])
    calls.is_exist("s1")
    calls.batch_put_session_end(["s1", "s2", "none"])
    calls.get("s1")
    calls.get("s2")
    calls.batch_put_session_end(["s1"])
    calls.batch_put_session_start(["s1"], [100])
    calls.batch_put_session_start(["s5"], [100])
    calls.batch_put_session_revoke(["s5", "none"])
    calls.is_exist("s5")
    ctypes.memset(place, 0, len(place))
    calls.batch_get_into_multi_buffer_ranges(["s1"], [[start]], [[10]], [[0]])
    calls.batch_get_session_start(["s1", "none", "s2"])
    calls.batch_get_into_multi_buffer_ranges(["s1", "s2"], [[start, start + 100], [start + 1000]], [[10, 20], [6 * MEBIBYTE]],
                                             [[0, 80], [3 * MEBIBYTE - 5]])
    calls.batch_get_into_multi_buffer_ranges(["s1", "none"], [[start], [start]], [[10], [10]], [[95], [0]])
    calls.batch_get_into_multi_buffer_ranges(["s1"], [[start]], [[10, 11]], [[0]])
    calls.write("memory", [], shown(bytes(place)))
    calls.batch_get_session_end(["s1", "s2", "none"])
    calls.batch_get_into_multi_buffer_ranges(["s1"], [[start]], [[10]], [[0]])
    calls.unregister_buffer(start)


def ends(calls):
    """What is removed, replaced and removed by pattern."""
    time.sleep(LEASE)
    calls.remove("v100")
    calls.remove("v100")
    calls.is_exist("v100")
    calls.remove(f"v{11 * MEBIBYTE}")
    calls.get(f"v{11 * MEBIBYTE}")
    calls.put(f"v{11 * MEBIBYTE}", b"small in its place")
    calls.get(f"v{11 * MEBIBYTE}")
    calls.put("v100", b"large in its place" * MEBIBYTE)
    calls.get("v100")
    calls.upsert("new", b"upserted")
    calls.get("new")
    time.sleep(LEASE)
    calls.upsert("new", b"upserted again, longer")
    calls.get("new")
    time.sleep(LEASE)
    calls.upsert("v100", b"short again")
    calls.get("v100")
    time.sleep(LEASE)
    calls.batch_remove(["b1", "none", "b2"])
    for number in range(5):
        calls.put(f"regex/{number}", b"x" * (number + 1))
    calls.put("regex/long/" + "l" * 200, b"long key")
    calls.remove_by_regex("^regex/[12]$")
    calls.batch_is_exist([f"regex/{number}" for number in range(5)])
    calls.remove_by_regex("regex/long")
    calls.is_exist("regex/long/" + "l" * 200)
    calls.remove_by_regex("nothing like it")
    calls.remove("regex/3", True)
    calls.remove("none", force=True)
    config = ReplicateConfig()
    config.soft_pin_ttl_ms = 1000
    calls.put("config2", b"a lifetime without a pin", config)
    calls.upsert("config2", b"a lifetime without a pin", config)
    calls.health_check()


def main():
    store = MooncakeDistributedStore()
    calls = Calls(store)
    result = store.setup("localhost", METADATA, 256 * MEBIBYTE, 64 * MEBIBYTE, "tcp", "", MASTER)
    calls.write("setup", [], result)
    for part in (whole_values, by_address, ranges, sessions, ends):
        part(calls)
    calls.close()


if __name__ == "__main__":
    main()
