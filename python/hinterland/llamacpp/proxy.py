"""The program in front of a llama-server: passes every request on, and every byte of the answers back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re

from .http import HEAD_BYTES_MAX, HttpError, Request, answer, read_request
from .server import Server
from .sharing import Sharing, Turn

logger = logging.getLogger("hinterland.llamacpp")

STATUS_PATH = "/hinterland"
COPY_BYTES = 64 << 10
# The end of a body in chunks.
LAST_CHUNK = b"0\r\n\r\n"
REQUEST_SECONDS_MAX = 600


class Proxy:
    """Serves clients. `sharing` is nothing when prompts cannot be shared, and `why` says why not."""

    def __init__(self, server: Server, sharing: Sharing | None, why: str | None) -> None:
        self.server = server
        self.sharing = sharing
        self.why = why

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Listens. OSError when it cannot."""
        return await asyncio.start_server(self.serve, host, port, limit=HEAD_BYTES_MAX)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                request = await read_request(reader, writer)
            if request is not None:
                await self._serve(request, reader, writer)
        except HttpError as error:
            writer.write(error.message())
        except (ConnectionError, TimeoutError):
            pass  # The client has gone, or never asked.
        except Exception:
            logger.exception("a request failed (hint: report this)")
        finally:
            await close(writer)

    async def _serve(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.path == STATUS_PATH:
            writer.write(answer(200, "OK", self.status()))
            return
        turn = await self._begin(request) if self.sharing else None
        if turn is not None:
            answered = False
            try:
                answered = await self._pass_on(request.message(turn.body), reader, writer)
                await close(writer)
            finally:
                await finish(self.sharing, turn, answered)
            return
        with self.sharing.other(request) if self.sharing else contextlib.nullcontext():
            await self._pass_on(request.message(request.body), reader, writer)

    async def _begin(self, request: Request) -> Turn | None:
        try:
            return await self.sharing.begin(request)
        except RecursionError as error:
            # Read here, or written again for the server, which is spared it.
            text = "the JSON of the body has too many levels (hint: send fewer than 100)"
            raise HttpError(400, "Bad Request", text) from error

    async def _pass_on(self, message: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Sends a request and copies the answer; whether all of a good one has gone to the client."""
        try:
            upstream, sender = await asyncio.open_unix_connection(self.server.socket)
        except OSError as error:
            raise HttpError(502, "Bad Gateway", f"llama-server cannot be reached: {error} (hint: see its log)") from error
        copy = Copy(upstream, sender, writer)
        copying = asyncio.ensure_future(copy.run(message))
        leaving = asyncio.ensure_future(gone(reader))
        try:
            await asyncio.wait([copying, leaving], return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
            return copy.is_good and copy.is_whole
        finally:
            leaving.cancel()
            copying.cancel()
            # The server sees this and stops computing.
            sender.close()
            await asyncio.gather(copying, leaving, return_exceptions=True)

    def status(self) -> dict[str, object]:
        """What is shared, and what has happened."""
        if self.sharing is None:
            return {"sharing": False, "why": self.why}
        link = self.sharing.store.link
        return {
            "sharing": True, "pool": link.is_up, "fingerprint": link.fingerprint, "block_tokens": self.sharing.store.chunk,
            **dataclasses.asdict(self.sharing.counters),
        }


async def finish(sharing: Sharing, turn: Turn, answered: bool) -> None:
    """Ends a turn to the last step, also when this program is about to end."""
    await asyncio.shield(sharing.end(turn, answered))


class Copy:
    """An answer on its way from the server to a client."""

    def __init__(self, upstream: asyncio.StreamReader, sender: asyncio.StreamWriter, writer: asyncio.StreamWriter) -> None:
        self._upstream, self._sender, self._writer = upstream, sender, writer
        self._head = b""
        # Bytes of the body that are to come, if they are announced; and the last bytes otherwise.
        self._left: int | None = None
        self._tail = b""
        self._ended = False

    @property
    def is_good(self) -> bool:
        """Whether the server had an answer, and not an error."""
        return self._head.split(b" ", 2)[1:2] == [b"200"]

    @property
    def is_whole(self) -> bool:
        """Whether all of it has been passed on: a client may leave as soon as it has that."""
        return self._ended or self._left == 0 or (self._left is None and self._tail.endswith(LAST_CHUNK))

    async def run(self, message: bytes) -> None:
        """Sends the request and copies the answer to its end."""
        self._sender.write(message)
        await self._sender.drain()
        while data := await self._upstream.read(COPY_BYTES):
            self._look(data)
            self._writer.write(data)
            await self._writer.drain()
        if not self._head:
            raise HttpError(502, "Bad Gateway", "llama-server ended the connection (hint: see its log)")
        self._ended = not self._left

    def _look(self, data: bytes) -> None:
        if b"\r\n\r\n" not in self._head:
            before = len(self._head)
            self._head, _, rest = (self._head + data).partition(b"\r\n\r\n")
            if len(self._head) == before + len(data):
                return
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", self._head)
            self._head += b"\r\n\r\n"
            self._left = int(length[1]) if length else None
            data = rest
        if self._left is not None:
            self._left -= len(data)
        self._tail = (self._tail + data)[-len(LAST_CHUNK):]


async def gone(reader: asyncio.StreamReader) -> None:
    """Waits until the client leaves; what it still sends is left out."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(COPY_BYTES):
            pass


async def close(writer: asyncio.StreamWriter) -> None:
    """Sends what is left and closes."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
