"""What a program on each of four hosts in two racks does with one pool; `lab/tests/test_four_hosts.py` runs it in guests."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import hinterland

NUMBER = int(os.environ["LAB_NUMBER"])
# Hosts 1 and 2 share memory, and so do 3 and 4.
RACKS = {1: "north", 2: "north", 3: "south", 4: "south"}
OTHER_RACK = {"north": "south", "south": "north"}[RACKS[NUMBER]]
FAR = [number for number, rack in RACKS.items() if rack == OTHER_RACK]
SHARED = pathlib.Path("/shared")
KIBIBYTE = 1 << 10
MEBIBYTE = 1 << 20
# Of a region: a piece that each host writes once, and a record that all change under one lock.
REGION_BYTES = 4 * MEBIBYTE
PIECE_BYTES = 512 * KIBIBYTE
RECORD, RECORD_BYTES = 3 * MEBIBYTE, 4 * KIBIBYTE
OBJECT_BYTES = MEBIBYTE
BLOCK_BYTES = 256 * KIBIBYTE
# What a packet of soft-RoCE carries at the most.
PACKET_BYTES = 4 * KIBIBYTE
TURNS = 8
WAIT_SECONDS = 60.0
COUNTS = {True: 0, False: 0}


def expect(words, good, shown=""):
    """Says and counts whether something is right."""
    COUNTS[bool(good)] += 1
    print(f"{'ok   ' if good else 'WRONG'} {words} {'' if good else shown}", flush=True)


def meet(name):
    """Returns when all hosts have come to it."""
    (SHARED / f"py.{name}.{NUMBER}").touch()
    end = time.monotonic() + WAIT_SECONDS
    for other in RACKS:
        while not (SHARED / f"py.{name}.{other}").exists():
            if time.monotonic() > end:
                raise TimeoutError(f"host {other} did not come to {name}")
            time.sleep(0.05)


def piece(seed, count):
    """So many bytes that belong to a number."""
    once = bytes((seed * 37 + index * 11) % 251 for index in range(251))
    return (once * (count // 251 + 1))[:count]


def status():
    """What the node of this host says of itself."""
    said = subprocess.run(["hinterland", "status", "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(said)


def shelf_bytes():
    """Bytes of objects that this host has loaded from the memory that its rack shares."""
    return int(re.search(r"(\d+) bytes loaded from the shelf", status()["backing"])[1])


class Wires:
    """What came to this host since it was made: packets by RDMA, and bytes on the wire that has the rest."""

    def __init__(self):
        self.packets, self.bytes = self.now()

    @staticmethod
    def now():
        """Since the host began."""
        paths = "infiniband/rxe0/ports/1/hw_counters/rcvd_pkts", "net/eth0/statistics/rx_bytes"
        return [int(pathlib.Path("/sys/class", path).read_text()) for path in paths]

    def expect_rdma(self, words, count):
        """So many bytes came by RDMA, and so did not come by TCP."""
        packets, others = self.now()
        expect(f"{words} came by RDMA", packets - self.packets >= count // PACKET_BYTES, f"{packets - self.packets} packets for {count} bytes")
        expect(f"{words} did not come by TCP", others - self.bytes < count // 2, f"{others - self.bytes} of {count} bytes")


def objects(pool):
    """An object of each host, read by all: those of the rack from the memory that it shares, the others by RDMA."""
    pool.put(f"object {NUMBER}", piece(NUMBER, OBJECT_BYTES), rack=RACKS[NUMBER])
    meet("put")
    before, own = shelf_bytes(), f"10.0.0.{NUMBER}:7401"
    near = [number for number in RACKS if number not in FAR]
    elsewhere = [number for number in near if all(home.address != own for home in pool.stat(f"object {number}").homes)]
    expect("every byte of the rack's objects is right", all(object_is_right(pool, number) for number in near))
    expect("those of the other host were loaded from shared memory", shelf_bytes() - before == len(elsewhere) * OBJECT_BYTES, elsewhere)
    meet("near")
    wires = Wires()
    expect("every byte of the other rack's objects is right", all(object_is_right(pool, number) for number in FAR))
    wires.expect_rdma("they", len(FAR) * OBJECT_BYTES)
    meet("got")


def object_is_right(pool, number):
    """Reads an object as a program does that has it mapped."""
    with pool.map(f"object {number}") as mapping:
        return bytes(mapping) == piece(number, OBJECT_BYTES)


def region(pool, rack):
    """A region in the memory of one rack: all write into it, and all read what all have written. Returns its address."""
    if NUMBER == 1:
        pool.create_region(rack, REGION_BYTES, rack=rack)
    meet(f"made {rack}")
    address = int(str(pool.stat(rack).address), 0)
    pool.write(address + (NUMBER - 1) * PIECE_BYTES, piece(NUMBER, PIECE_BYTES))
    meet(f"written {rack}")
    whole = b"".join(piece(number, PIECE_BYTES) for number in RACKS)
    wires = Wires()
    expect(f"every byte in {rack} is right, whoever wrote it", pool.read(address, len(whole)) == whole)
    if rack == OTHER_RACK:
        wires.expect_rdma("they", len(whole))
    meet(f"read {rack}")
    return address


def record(count):
    """The record after so many turns: one number, in all of its words."""
    return count.to_bytes(8, "little") * (RECORD_BYTES // 8)


def hold_and_die(address):
    """A program that dies with a lock."""
    guard = hinterland.Pool().write_guard(address + RECORD, RECORD_BYTES, wait=WAIT_SECONDS)
    guard.write(0, record(1))
    guard.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def lock(pool, rack, address):
    """Who holds the lock in the other rack dies; after that all count under it, and no turn is lost or seen in part."""
    if NUMBER == (3 if rack == "north" else 1):
        died = subprocess.run([sys.executable, __file__, str(address)], check=False).returncode
        expect(f"the holder of a lock in {rack} has died", died == -signal.SIGKILL, died)
    meet(f"died {rack}")
    halves = 0
    for _ in range(TURNS):
        with pool.write_guard(address + RECORD, RECORD_BYTES, wait=WAIT_SECONDS) as guard:
            there = guard.read(0, RECORD_BYTES)
            count = int.from_bytes(there[:8], "little")
            halves += there != record(count)
            guard.write(0, record(count + 1))
        with pool.read_guard(address + RECORD, RECORD_BYTES, wait=WAIT_SECONDS) as guard:
            there = guard.read(0, RECORD_BYTES)
            halves += there != record(int.from_bytes(there[:8], "little"))
    expect(f"no record in {rack} was seen in part", halves == 0, halves)
    meet(f"counted {rack}")
    with pool.read_guard(address + RECORD, RECORD_BYTES, wait=WAIT_SECONDS) as guard:
        count = int.from_bytes(guard.read(0, 8), "little")
    expect(f"no turn in {rack} was lost", count == 1 + TURNS * len(RACKS), count)


def blocks(pool):
    """A block of each host, read by all. Where caches do not see each other they come by messages, whose sender drops its cache's copies first."""
    kv = pool.kv("four hosts")
    expect("a block is put", kv.put([key(NUMBER)], [piece(NUMBER, BLOCK_BYTES)]) == [True])
    meet("blocks")
    buffers = [bytearray(BLOCK_BYTES) for _ in RACKS]
    # A node that takes its time to connect, as emulated ones do, is left alone for ten seconds.
    found, end = [False], time.monotonic() + WAIT_SECONDS / 2
    while not all(found) and time.monotonic() < end:
        found = kv.get_into([key(number) for number in RACKS], buffers, remote=True)
        time.sleep(0.2)
    expect("the blocks of all hosts are found", found == [True] * len(RACKS), found)
    expect("every byte of them is right", all(buffer == piece(number, BLOCK_BYTES) for number, buffer in zip(RACKS, buffers)))
    expect("they are hits of this host then", kv.exists([key(number) for number in RACKS]) == [True] * len(RACKS))
    meet("fetched")


def key(number):
    """The key of a host's block."""
    return f"block {number}".encode().ljust(32, b".")


def main():
    """All steps."""
    if len(sys.argv) > 1:
        hold_and_die(int(sys.argv[1]))
    pool = hinterland.Pool()
    objects(pool)
    for rack in ("north", "south"):
        lock(pool, rack, region(pool, rack))
    blocks(pool)
    print(f"{COUNTS[True]} right, {COUNTS[False]} wrong", flush=True)
    sys.exit(COUNTS[False] > 0)


main()
