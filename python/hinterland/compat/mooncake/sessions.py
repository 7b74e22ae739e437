"""Values that are read or written range by range over several calls: each is one value of one writing all the while."""

from __future__ import annotations

import ctypes
import threading
from typing import Sequence

from . import codes

# Address, bytes, and where in the value.
Range = tuple[int, int, int]


class Sessions:
    """What was taken for reading and begun for writing, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, bytearray] = {}
        self._begun: dict[str, bytearray] = {}

    def read(self, key: str, data: bytearray | None) -> bool:
        """Takes a value, in place of one that was taken before; false for None."""
        with self._lock:
            self._taken.pop(key, None)
            if data is not None:
                self._taken[key] = data
        return data is not None

    def forget(self, keys: Sequence[str]) -> None:
        """Lets go of values that were taken."""
        with self._lock:
            for key in keys:
                self._taken.pop(key, None)

    def begin(self, key: str, size: int) -> int:
        """Begins a value of zeros; 0, or a code for one that was begun before, without a byte, or with more than there is memory."""
        with self._lock:
            if key in self._begun or size <= 0:
                return codes.INVALID_PARAMETERS
            try:
                self._begun[key] = bytearray(size)
            except (MemoryError, OverflowError):
                return codes.NO_ROOM
        return 0

    def take(self, key: str) -> bytearray | None:
        """What was written of a value that was begun; it is begun no more."""
        with self._lock:
            return self._begun.pop(key, None)

    def copy_out(self, key: str, ranges: Sequence[Range]) -> int:
        """Copies ranges of a value to addresses that the caller has checked; bytes, or a code."""
        with self._lock:
            data = self._taken.get(key)
            if data is None or not _fit(data, ranges):
                return codes.INVALID_PARAMETERS
            for address, size, offset in ranges:
                ctypes.memmove(address, bytes(memoryview(data)[offset:offset + size]), size)
        return sum(size for _, size, _ in ranges)

    def copy_in(self, key: str, ranges: Sequence[Range]) -> int:
        """Copies from addresses that the caller has checked into ranges of a value; bytes, or a code."""
        with self._lock:
            data = self._begun.get(key)
            if data is None or not _fit(data, ranges):
                return codes.INVALID_PARAMETERS
            for address, size, offset in ranges:
                data[offset:offset + size] = ctypes.string_at(address, size)
        return sum(size for _, size, _ in ranges)


def _fit(data: bytearray, ranges: Sequence[Range]) -> bool:
    return all(offset >= 0 and size >= 0 and offset + size <= len(data) for _, size, offset in ranges)
