"""A connection to the pool through the node of this host."""

from __future__ import annotations

import builtins
import logging
import os
import sys
import threading
from types import TracebackType
from typing import BinaryIO, Callable, Optional, Union

from . import _native
from ._native import Guard
from .records import Member, NodeStatus, ObjectInfo, Verified, node_status, object_info, verified

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing import Any as Buffer

logger = logging.getLogger("hinterland")
# Seconds after which it is said what is waited for.
NOTICE = 2.0
Source = Union[Buffer, str, "os.PathLike[str]", BinaryIO]
Progress = Callable[[int, Optional[int]], object]


class Lock:
    """A lock that is held; leaving its `with` block gives it back."""

    def __init__(self, pool: Pool, address: int) -> None:
        self.pool = pool
        self.address = address

    def unlock(self) -> None:
        """Gives the lock back."""
        self.pool.unlock(self.address)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unlock()


class Pool(_native.Pool):
    """A connection to the pool. `socket`: the node's; by default HINTERLAND_SOCKET, else hinterland/node.sock below
    XDG_RUNTIME_DIR, else below /run.

    Any thread may use it. When it is closed, or the program ends in whatever way, the node takes back its locks,
    allocations and unfinished puts; what is mapped stays mapped, and what was opened is of no more use. Guards that are held
    keep all of it until they are unlocked. A forked child opens a pool of its own.

    Ctrl-C ends a call that waits for a node which does not answer, after a second, and the pool is closed by that:
    open another one. Only `map` waits on, since all that is mapped would be lost with it.
    """

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def put(
        self,
        name: str,
        source: Source,
        copies: int = 1,
        rack: str | None = None,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Puts a sealed object: bytes, an array, a file by its path (a str is a path), or a file opened with "rb".

        `copies` go to distinct nodes, the first to `rack`, by default this one or else the one with the most room.
        `progress(done, total)` hears of the bytes; total is None where it is not known. What it raises ends the put, and
        after any failure nothing is left behind.
        """
        return object_info(super().put(name, source, copies, rack, progress))

    def kv(self, fingerprint: str, within: float | None = None) -> _native.KvCache:
        """Opens the KV blocks of engines that agree on a fingerprint: model, revision, type, layout, tokens of a block, rank.

        At its first use the node makes its memory for blocks, which takes a second and more for each GiB. What the node does
        not answer `within` seconds then is a TimeoutError, and the blocks are lost (`is_lost`), to be opened again; without, it
        is waited for as long as the node lives. What is found and read in the memory of this host asks the node for nothing.
        """
        notice = threading.Timer(NOTICE, logger.warning, [
            "waiting for the node: it makes its memory for KV blocks at their first use, up to some seconds for each GiB"
        ])
        notice.daemon = True
        notice.start()
        try:
            return super().kv(fingerprint, within)
        finally:
            notice.cancel()

    def stat(self, name: str) -> ObjectInfo:
        """What is known of an object."""
        return object_info(super().stat(name))

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        """All objects whose name starts with `prefix`, by name."""
        return [object_info(fields) for fields in super().list(prefix)]

    def verify(self, name: str) -> Verified:
        """Has every copy of an object compared with its checksums."""
        return verified(super().verify(name))

    def status(self) -> NodeStatus:
        """What the node of this host says of itself."""
        return node_status(super().status())

    def members(self) -> builtins.list[Member]:
        """All nodes of the pool."""
        return [Member(**fields) for fields in super().members()]

    def create_region(
        self, name: str, bytes: int, rack: str | None = None, spread: bool = False
    ) -> ObjectInfo:
        """Makes a region: named memory of zeros that is read and written in place, in `rack` or in this one.

        With `spread` its pages (2 MiB) lie on all nodes that have room, and move to the racks that use them.
        """
        return object_info(super().create_region(name, bytes, rack, spread))

    def read_guard(self, address: int, bytes: int, wait: float = 10.0) -> Guard:
        """Locks an address of any rack together with other readers, with a range of one region from there on.

        Waits up to `wait` seconds, then TimeoutError.
        """
        return super().read_guard(address, bytes, wait)

    def write_guard(self, address: int, bytes: int, wait: float = 10.0) -> Guard:
        """Locks an address of any rack alone, with a range of one region from there on, which is written through the guard.

        Who has lost the lock, because it was stopped or cut off for longer than the lease, changes nothing any more. Ranges
        that start elsewhere do not exclude each other. Waits up to `wait` seconds, then TimeoutError.
        """
        return super().write_guard(address, bytes, wait)

    def rlock(self, address: int, wait: float = 10.0) -> Lock:
        """Takes a lock on an address of any rack together with other readers, waiting up to `wait` seconds."""
        super().lock(address, "read", wait)
        return Lock(self, address)

    def wlock(self, address: int, wait: float = 10.0) -> Lock:
        """Takes a lock on an address of any rack alone, waiting up to `wait` seconds.

        It belongs to this pool, not to a thread: threads that want to exclude each other open a pool each.
        """
        super().lock(address, "write", wait)
        return Lock(self, address)
