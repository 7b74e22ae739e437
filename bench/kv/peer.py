#!/usr/bin/env python3
"""Mooncake's store as a peer of the kv benches: a master, a client process with memory of this host, and this process, which
reaches that memory as shared memory. `hinterland bench kv-*` asks line by line; each answer is one figure.

  fill BYTES COUNT              -> 0; puts COUNT objects of BYTES bytes in place of what was there
  get BYTES TIMES               -> median microseconds of one object at random
  batch BYTES BATCH TIMES       -> gigabytes a second of reads of BATCH objects by one call
  put BYTES BATCH TIMES         -> gigabytes a second of writes of BATCH new objects by one call
  scatter PIECES PIECE TIMES    -> median microseconds of one object into PIECES pieces, every other one of a buffer
  lookup KEYS TIMES             -> median microseconds of one question about KEYS objects
"""

import contextlib
import ctypes
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import time

os.environ.setdefault("GLOG_minloglevel", "2")
import mooncake
from mooncake.store import MooncakeDistributedStore

SEGMENT = "1 GB"
POOL = 64 << 20
# Objects are told apart by their size and number, and each filling has a number of its own: an old key is never written anew.
generation = 0
count = 0
puts = 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(*words):
    """Starts a server that ends with this process."""
    def end_with_parent():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    program = pathlib.Path(mooncake.__file__).parent / words[0]
    return subprocess.Popen([program, *words[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)


def attach(client):
    """The store whose client process listens there, and the address of memory that it reads into and writes from."""
    store = MooncakeDistributedStore()
    if store.setup_dummy(POOL + (64 << 20), 16 << 20, f"127.0.0.1:{client}") != 0:
        raise RuntimeError("Mooncake does not answer")
    pool = store.alloc_from_mem_pool(POOL)
    store.register_buffer(pool, POOL)
    return store, pool


def connect(segment):
    """A store of its own, memory to read into, its servers, and the port of its client process."""
    master, client = free_port(), free_port()
    servers = [start("mooncake_master", f"--rpc_port={master}", f"--metrics_port={free_port()}",
                     "--default_kv_lease_ttl=100")]
    time.sleep(1.5)
    servers.append(start("mooncake_client", "--host=127.0.0.1", f"--port={client}", f"--global_segment_size={segment}",
                         "--local_buffer_size=64 MB", f"--master_server_address=127.0.0.1:{master}",
                         "--metadata_server=P2PHANDSHAKE"))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if any(server.poll() is not None for server in servers):
            raise RuntimeError("a server of Mooncake ended at once (hint: apt install libibverbs1)")
        with contextlib.suppress(RuntimeError):
            return *attach(client), servers, client
    raise RuntimeError("Mooncake does not answer")


def key(number):
    return f"g{generation}-{number}"


def checked(results, expected):
    if any(result != expected for result in results):
        raise RuntimeError(f"Mooncake answered {results[:3]} in place of {expected}")


def clear(store):
    """Removes everything; what was read a moment ago has a lease that must end first."""
    time.sleep(0.3)
    store.remove_all()


def fill(store, pool, size, number):
    global generation, count
    clear(store)
    generation, count = generation + 1, number
    batch = min(128, POOL // size)
    for first in range(0, number, batch):
        keys = [key(index) for index in range(first, min(first + batch, number))]
        checked(store.batch_put_from(keys, [pool + place * size for place in range(len(keys))], [size] * len(keys)), 0)
    return 0


def timed(times, work):
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e6


def get(store, pool, size, times):
    return timed(times, lambda: checked(store.batch_get_into([key(random.randrange(count))], [pool], [size]), size))


def batch(store, pool, size, number, times):
    def work():
        first = random.randrange(count - number)
        keys = [key(first + index) for index in range(number)]
        checked(store.batch_get_into(keys, [pool + index * size for index in range(number)], [size] * number), size)
    return number * size / timed(times, work) / 1e3


def put(store, pool, size, number, times):
    global puts
    clear(store)

    def work():
        global puts
        puts += 1
        keys = [f"p{puts}-{index}" for index in range(number)]
        checked(store.batch_put_from(keys, [pool + index * size for index in range(number)], [size] * number), 0)
    return number * size / timed(times, work) / 1e3


def scatter(store, pool, pieces, piece, times):
    places = [pool + 2 * index * piece for index in range(pieces)]

    def work():
        name = [key(random.randrange(count))]
        checked(store.batch_get_into_multi_buffers(name, [places], [[piece] * pieces]), pieces * piece)
    return timed(times, work)


def lookup(store, _pool, number, times):
    def work():
        first = random.randrange(count - number)
        checked(store.batch_is_exist([key(first + index) for index in range(number)]), 1)
    return timed(times, work)


def main():
    # What the library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    store, pool, servers, _ = connect(SEGMENT)
    commands = {work.__name__: work for work in (fill, get, batch, put, scatter, lookup)}
    for line in sys.stdin:
        name, *numbers = line.split()
        try:
            print(commands[name](store, pool, *map(int, numbers)), file=answers, flush=True)
        except RuntimeError as error:
            print(f"error {error}", file=answers, flush=True)
    with contextlib.suppress(Exception):
        store.close()
    for server in servers:
        server.kill()


if __name__ == "__main__":
    main()
