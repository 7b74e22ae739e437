"""The llama-server behind: started, asked, and ended together with this program."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Mapping, Sequence

from .http import call

FOLDER_PREFIX = "hinterland-llamacpp-"
# Files of slots are written and read at once: memory is where they belong.
MEMORY_FOLDER = "/dev/shm"
STOP_SECONDS_MAX = 20
POLL_SECONDS = 0.05
DEATH_SIGNAL_OPTION = 1


class ServerEnded(Exception):
    """The server has ended by itself, with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"llama-server ended with status {status}")
        self.status = status


def make_folder(parent: str | None) -> pathlib.Path:
    """A folder that only this user reaches, for the socket and the files of slots. Removes those of programs that were
    killed."""
    if parent is None:
        parent = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else tempfile.gettempdir()
    for old in pathlib.Path(parent).glob(f"{FOLDER_PREFIX}*"):
        number = old.name[len(FOLDER_PREFIX):].partition("-")[0]
        if number.isdigit() and not os.path.exists(f"/proc/{number}"):
            shutil.rmtree(old, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=parent))


class Server:
    """A started server, reached at a socket of this user."""

    def __init__(self, folder: pathlib.Path, authorization: str | None) -> None:
        self.socket = folder / "server.sock"
        self.authorization = authorization
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it. OSError if there is no such program."""
        prctl = ctypes.CDLL(None).prctl
        parent = os.getpid()

        def end_with_parent() -> None:
            # Whoever started this program may have blocked it.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
            prctl(DEATH_SIGNAL_OPTION, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(
            words, env=dict(environment), stdin=subprocess.DEVNULL, preexec_fn=end_with_parent, start_new_session=True
        )

    async def wait_ready(self) -> None:
        """Waits until the model is loaded. ServerEnded if the server gives up."""
        while True:
            self.check()
            with contextlib.suppress(OSError):
                status, _ = await self.ask("GET", "/health")
                if status == 200:
                    return
            await asyncio.sleep(POLL_SECONDS)

    def check(self) -> None:
        """ServerEnded if it has ended."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise ServerEnded(status if status >= 0 else 128 - status)

    async def wait_ended(self) -> int:
        """Its status, once it ends by itself."""
        while True:
            try:
                self.check()
            except ServerEnded as ended:
                return ended.status
            await asyncio.sleep(POLL_SECONDS)

    async def ask(self, method: str, target: str, content: Any = None, authorization: str | None = None) -> tuple[int, Any]:
        """One request in the name of this program, or with a client's authorization."""
        return await call(self.socket, method, target, content, authorization or self.authorization)

    async def act(self, slot: int, action: str, name: str) -> dict[str, Any]:
        """Saves, restores or erases a slot. ConnectionError with the server's words if it does not."""
        status, found = await self.ask("POST", f"/slots/{slot}?action={action}", {"filename": name})
        if status != 200 or not isinstance(found, dict):
            error = found.get("error", {}) if isinstance(found, dict) else {}
            raise ConnectionError(f"llama-server did not {action} slot {slot}: {error.get('message') or status}")
        return found

    def stop(self) -> None:
        """Ends it, in order if it can."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
