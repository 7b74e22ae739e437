"""Memory that programs pass by address, which they must have registered, and memory that they are handed."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import threading
from typing import Iterator, Sequence

MAPPINGS = "/proc/self/maps"


def is_host_memory(start: int, size: int) -> bool:
    """Whether all of a range is memory that this process can read. It is found out without reading it: addresses of a GPU look like
    others, and whoever reads there is ended."""
    end = start + size
    at = start
    for first, last, may_read in _mappings():
        if last <= at:
            continue
        if first > at or not may_read:
            return False
        stop = min(last, end)
        # A mapping of a device, or one that is longer than its file, says that it can be read, and cannot.
        if not (_can_read(at) and _can_read(stop - 1)):
            return False
        at = stop
        if at >= end:
            return True
    return False


def _mappings() -> Iterator[tuple[int, int, bool]]:
    """First address, the one behind the last, and whether it says that it can be read, in order."""
    with open(MAPPINGS, "rb") as lines:
        for line in lines:
            span, rights = line.split(b" ", 2)[:2]
            first, _, last = span.partition(b"-")
            yield int(first, 16), int(last, 16), rights.startswith(b"r")


def _can_read(address: int) -> bool:
    """Whether a byte can be read: the kernel copies it into a pipe, and says so where it would end the process."""
    reader, writer = os.pipe()
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, reader)
        opened.callback(os.close, writer)
        return ctypes.CDLL(None).write(writer, ctypes.c_void_p(address), ctypes.c_size_t(1)) == 1


class Registered:
    """Ranges of addresses that the program has promised to be memory."""

    def __init__(self) -> None:
        # Replaced and never changed, so that readers in other threads see one state; one thread at a time replaces it.
        self._ranges: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def add(self, start: int, size: int) -> bool:
        """Adds a range; false for none, and for one that shares memory with another."""
        if start <= 0 or size <= 0:
            return False
        with self._lock:
            place = bisect.bisect_left(self._ranges, (start, 0))
            if place < len(self._ranges) and self._ranges[place][0] < start + size:
                return False
            if place > 0 and sum(self._ranges[place - 1]) > start:
                return False
            self._ranges = [*self._ranges[:place], (start, size), *self._ranges[place:]]
            return True

    def remove(self, start: int) -> bool:
        """Takes the range away that starts there; false if there is none."""
        with self._lock:
            left = [place for place in self._ranges if place[0] != start]
            was_there = len(left) < len(self._ranges)
            self._ranges = left
            return was_there

    def covers(self, start: int, size: int) -> bool:
        """Whether one range holds all of it."""
        ranges = self._ranges
        place = bisect.bisect_right(ranges, (start, 1 << 64)) - 1
        return size >= 0 and place >= 0 and start + size <= sum(ranges[place])

    def covers_all(self, starts: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether there are as many sizes as starts, and each piece is in a range."""
        return len(starts) == len(sizes) and all(map(self.covers, starts, sizes))


class BufferHandle(bytearray):
    """A value in memory of its own."""

    def size(self) -> int:
        """Its length in bytes."""
        return len(self)

    def ptr(self) -> int:
        """Its address, as long as the handle lives and is not resized."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self)) if self else 0
