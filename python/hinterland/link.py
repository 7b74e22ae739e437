"""A namespace of a pool that may be absent, die and come back, without the program that uses it minding."""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, TypeVar

from . import KvCache, Pool

Answer = TypeVar("Answer")
# How long the node may take for an answer: as long as one of another rack. Who only wants a cache hangs no longer.
SILENCE_SECONDS_MAX = 10.0
# A node that does not answer is tried again after a pause of this many times what the last attempt took.
PAUSE_ATTEMPTS = 10


class Link:
    """The blocks of one fingerprint, or nothing while there is no node. Any thread may ask.

    `instead` says in words what the program does without a pool; each loss and each return is said once.
    """

    def __init__(
        self, socket: str | None, fingerprint: str, check_seconds: float, logger: logging.Logger, instead: str
    ) -> None:
        self.fingerprint = fingerprint
        self._socket = socket
        self._check_seconds = check_seconds
        self._logger = logger
        self._instead = instead
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._kv: KvCache | None = None
        self._next_connect = 0.0
        self._next_check = 0.0
        self._warned = False

    @property
    def is_up(self) -> bool:
        """Whether there is a pool, as far as is known."""
        return self._kv is not None

    def ask(self, work: Callable[[KvCache], Answer], otherwise: Answer) -> Answer:
        """What `work` answers when it is given the blocks, or `otherwise` when there is no pool."""
        kv = self._blocks()
        if kv is None:
            return otherwise
        try:
            return work(kv)
        except Exception as error:  # Whatever it is, a program that only wants a cache does not end for it.
            self._lost(kv, error)
            return otherwise

    def close(self) -> None:
        """Ends the session; nothing is connected to after that."""
        with self._lock:
            self._drop()
            self._next_connect = float("inf")

    def _blocks(self) -> KvCache | None:
        with self._lock:
            now = time.monotonic()
            if self._pool is not None and now >= self._next_check:
                self._next_check = now + self._check_seconds
                if self._kv is not None and self._kv.is_lost():
                    self._say_lost("the node has ended the session (hint: its log says why)")
            if self._kv is None and now >= self._next_connect:
                self._connect(now)
            return self._kv

    def _connect(self, now: float) -> None:
        try:
            self._pool = Pool(self._socket)
            self._kv = self._pool.kv(self.fingerprint, SILENCE_SECONDS_MAX)
        except OSError as error:
            self._say_lost(error)
            self._next_connect += (time.monotonic() - now) * PAUSE_ATTEMPTS
            return
        self._next_check = now + self._check_seconds
        if self._warned:
            self._logger.info("Hinterland's pool is back.")
        self._warned = False

    def _lost(self, kv: KvCache, error: Exception) -> None:
        with self._lock:
            # Another thread may have connected anew meanwhile.
            if kv is self._kv:
                self._say_lost(error)

    def _say_lost(self, error: Exception | str) -> None:
        self._drop()
        self._next_connect = time.monotonic() + self._check_seconds
        if not self._warned:
            self._logger.warning("Hinterland's pool cannot be used; %s: %s", self._instead, error)
        self._warned = True

    def _drop(self) -> None:
        for part in (self._kv, self._pool):
            if part is not None:
                part.close()
        self._kv = self._pool = None
