#!/usr/bin/env python3
"""Mooncake's store under `hinterland bench kv-trace`: one process that serves, and several that replay requests.

  trace_peer.py serve BYTES                            answers `port` with the port of a store of BYTES bytes, `clear` with 0
  trace_peer.py client PORT FILE BLOCK_BYTES BLOCKS    puts BLOCKS blocks that nobody asks for, says `ready`, then takes numbers
                                                       of requests from standard input, 4 bytes each, as other clients do from
                                                       the same pipe, and ends with a line of figures

The bytes of a block follow from its number, as in crates/cli/src/bench/kv_trace/content.rs: whoever reads a wrong one says so.
"""

import contextlib
import ctypes
import os
import sys
import time

import numpy
import peer

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
# What the store says when it is full of blocks that were read or put a moment ago; it makes room in the background.
NO_ROOM = -200
CAPACITY_BYTES_MIN = 16 << 20
ROOM_TRIES = 20
ROOM_PAUSE_S = 0.005


def mixed(number):
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & MASK
    return number ^ (number >> 31)


class Engine:
    """What an engine does with its store."""

    def __init__(self, port, block_bytes):
        self.store, self.pool = peer.attach(port)
        self.block_bytes = block_bytes
        self.window = max(peer.POOL // block_bytes, 1)
        memory = (ctypes.c_char * (self.window * block_bytes)).from_address(self.pool)
        self.words = numpy.frombuffer(memory, "uint64").reshape(self.window, block_bytes // 8)
        self.steps = numpy.arange(block_bytes // 8, dtype="uint64") * numpy.uint64(STEP)
        self.clear()

    def clear(self):
        self.requests = self.asked = self.found = self.stored = self.refused = 0
        self.busy_s = 0.0

    def places(self, count):
        return [self.pool + index * self.block_bytes for index in range(count)], [self.block_bytes] * count

    def bytes_of(self, block):
        return self.steps + numpy.uint64(mixed(block))

    def serve(self, blocks):
        keys = [f"block-{block:024x}" for block in blocks]
        begin = time.perf_counter()
        there = self.store.batch_is_exist(keys)
        self.busy_s += time.perf_counter() - begin
        matched = next((index for index, answer in enumerate(there) if answer != 1), len(keys))
        found = 0
        for first in range(0, matched, self.window):
            wanted = keys[first:min(matched, first + self.window)]
            places, sizes = self.places(len(wanted))
            begin = time.perf_counter()
            read = self.store.batch_get_into(wanted, places, sizes)
            self.busy_s += time.perf_counter() - begin
            # One that was evicted meanwhile ends the prefix.
            got = next((index for index, size in enumerate(read) if size < 0), len(read))
            for index in range(got):
                if read[index] != self.block_bytes:
                    raise RuntimeError(f"block {blocks[first + index]} has {read[index]} bytes")
                if not numpy.array_equal(self.words[index], self.bytes_of(blocks[first + index])):
                    raise RuntimeError(f"block {blocks[first + index]} has wrong bytes")
            found += got
            if got < len(wanted):
                break
        self.requests += 1
        self.asked += len(blocks)
        self.found += found
        self.put(blocks[found:], keys[found:])

    def put(self, blocks, keys):
        for first in range(0, len(keys), self.window):
            some = blocks[first:first + self.window]
            for index, block in enumerate(some):
                numpy.add(self.steps, numpy.uint64(mixed(block)), out=self.words[index])
            self.put_window(keys[first:first + self.window])

    def put_window(self, keys):
        places, sizes = self.places(len(keys))
        begin = time.perf_counter()
        for _ in range(ROOM_TRIES):
            results = self.store.batch_put_from(keys, places, sizes)
            full = [index for index, result in enumerate(results) if result == NO_ROOM]
            self.stored += sum(result == 0 for result in results)
            if any(result not in (0, NO_ROOM) for result in results):
                self.refused += sum(result not in (0, NO_ROOM) for result in results)
            keys = [keys[index] for index in full]
            places, sizes = [places[index] for index in full], [self.block_bytes] * len(full)
            if not keys:
                break
            time.sleep(ROOM_PAUSE_S)
        self.refused += len(keys)
        self.busy_s += time.perf_counter() - begin

    def line(self):
        return f"{self.requests} {self.asked} {self.found} {self.stored} {self.refused} {self.busy_s}"


def client(answers, port, path, block_bytes, fill_blocks):
    engine = Engine(port, block_bytes)
    words = numpy.fromfile(path, "<u4")
    ends, blocks = words[1:1 + words[0]].tolist(), words[1 + words[0]:].tolist()
    begins = [0, *ends[:-1]]
    # Requests count from 0; clients differ by their process.
    own = range(fill_blocks)
    engine.put([1 << 31 | number for number in own], [f"fill-{os.getpid()}-{number}" for number in own])
    engine.clear()
    print("ready", file=answers, flush=True)
    while number := os.read(0, 4):
        number = int.from_bytes(number, "little")
        engine.serve(blocks[begins[number]:ends[number]])
    print(engine.line(), file=answers, flush=True)
    with contextlib.suppress(Exception):
        engine.store.close()


def serve(answers, capacity_bytes):
    if capacity_bytes < CAPACITY_BYTES_MIN:
        raise RuntimeError(f"it takes no less than {CAPACITY_BYTES_MIN} bytes (hint: --capacity 16M)")
    store, _, servers, port = peer.connect(f"{capacity_bytes >> 20} MB")
    for line in sys.stdin:
        if line.strip() == "clear":
            peer.clear(store)
        print(port if line.strip() == "port" else 0, file=answers, flush=True)
    with contextlib.suppress(Exception):
        store.close()
    for server in servers:
        server.kill()


def main():
    # What the library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        match sys.argv[1:]:
            case ["serve", capacity]:
                serve(answers, int(capacity))
            case ["client", port, path, block_bytes, fill_blocks]:
                client(answers, int(port), path, int(block_bytes), int(fill_blocks))
            case _:
                print(f"error {__doc__}".replace("\n", " "), file=answers, flush=True)
    except RuntimeError as error:
        print(f"error {error}", file=answers, flush=True)
        # The others get no more either.
        while os.read(0, 1 << 16):
            pass


if __name__ == "__main__":
    main()
