"""A namespace of a pool that may be absent, die and come back, without the engine minding."""

import threading
import time

from vllm.logger import init_logger

import hinterland

logger = init_logger("vllm.hinterland")


class Link:
    """The blocks of one fingerprint, or nothing while there is no node."""

    def __init__(self, socket, fingerprint, check_seconds):
        self.socket = socket
        self.fingerprint = fingerprint
        self.check_seconds = check_seconds
        self._lock = threading.Lock()
        self._pool = None
        self._kv = None
        self._next_connect = 0.0
        self._next_check = 0.0
        self._warned = False

    def ask(self, work, otherwise):
        """What `work` answers when it is given the blocks, or `otherwise` when there is no pool."""
        kv = self._blocks()
        if kv is None:
            return otherwise
        try:
            return work(kv)
        except Exception as error:  # Whatever it is, an engine does not end for it.
            self._lost(kv, error)
            return otherwise

    def close(self):
        with self._lock:
            self._drop()
            self._next_connect = float("inf")

    def _blocks(self):
        with self._lock:
            now = time.monotonic()
            if self._kv is not None and now >= self._next_check:
                self._next_check = now + self.check_seconds
                try:
                    self._pool.status()
                except OSError as error:
                    self._say_lost(error)
            if self._kv is None and now >= self._next_connect:
                self._connect(now)
            return self._kv

    def _connect(self, now):
        try:
            self._pool = hinterland.Pool(self.socket)
            self._kv = self._pool.kv(self.fingerprint)
        except OSError as error:
            self._say_lost(error)
            return
        self._next_check = now + self.check_seconds
        if self._warned:
            logger.info("Hinterland's pool is back.")
        self._warned = False

    def _lost(self, kv, error):
        with self._lock:
            # Another thread may have connected anew meanwhile.
            if kv is self._kv:
                self._say_lost(error)

    def _say_lost(self, error):
        self._drop()
        self._next_connect = time.monotonic() + self.check_seconds
        if not self._warned:
            logger.warning("Hinterland's pool cannot be used; the engine goes on without it: %s", error)
        self._warned = True

    def _drop(self):
        for part in (self._kv, self._pool):
            if part is not None:
                part.close()
        self._kv = self._pool = None
