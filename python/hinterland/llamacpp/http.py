"""HTTP/1.1 as much as a program between a client and its own server needs: heads, bodies, and one request to that server."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any, NamedTuple

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 256 << 20
# Those that are between two neighbours only, or that are made anew.
NOT_PASSED_ON = {
    "connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}


class HttpError(Exception):
    """A message that cannot be served: the status and the words for the client."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason

    def message(self) -> bytes:
        """The whole answer."""
        return answer(self.status, self.reason, {"error": {"code": self.status, "message": str(self), "type": "hinterland"}})


class Request(NamedTuple):
    """A request with its whole body."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of this name, in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def message(self, body: bytes) -> bytes:
        """The request for the server, with this body; the connection ends with the answer."""
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{key}: {value}" for key, value in self.headers if key.lower() not in NOT_PASSED_ON]
        if body or self.method not in ("GET", "HEAD", "OPTIONS"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


def answer(status: int, reason: str, content: Any) -> bytes:
    """A whole answer of JSON that ends the connection."""
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """A whole request, or nothing when the client has gone before it began. HttpError for one that cannot be read."""
    head = await read_head(reader)
    if head is None:
        return None
    first, headers = head
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HttpError(400, "Bad Request", f"this is no request: {first[:80]!r}")
    request = Request(words[0], words[1], headers, b"")
    if (request.header("expect") or "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return request._replace(body=await read_body(reader, headers))


async def read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]] | None:
    """The first line and the headers."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial.strip():
            return None
        raise HttpError(400, "Bad Request", "the request ends in its head") from error
    except asyncio.LimitOverrunError as error:
        raise HttpError(431, "Request Header Fields Too Large", f"a head has more than {HEAD_BYTES_MAX} bytes") from error
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\0" in line:
            raise HttpError(400, "Bad Request", f"this is no header: {line[:80]!r}")
        headers.append((name, value.strip()))
    return first, headers


async def read_body(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    """The body that the headers announce."""
    coding = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    lengths = {value for name, value in headers if name.lower() == "content-length"}
    if coding and (coding != ["chunked"] or lengths):
        raise HttpError(400, "Bad Request", "a body is sent with a length or in chunks, and in no other way")
    try:
        if coding:
            return await read_chunks(reader)
        if not lengths:
            return b""
        (length,) = lengths if len(lengths) == 1 else ("",)
        if not (length.isascii() and length.isdigit()):
            raise HttpError(400, "Bad Request", "the length of the body is no number")
        return await reader.readexactly(within_limit(int(length)))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise HttpError(400, "Bad Request", "the request ends in its body") from error


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks; what follows on the last chunk is left out."""
    body = bytearray()
    while True:
        text = (await reader.readuntil(b"\r\n"))[:-2].partition(b";")[0].strip()
        try:
            size = int(text, 16) if text.isalnum() else -1
        except ValueError:
            size = -1
        if size < 0:
            raise HttpError(400, "Bad Request", "the length of a chunk is no number")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return bytes(body)
        within_limit(len(body) + size)
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise HttpError(400, "Bad Request", "a chunk has another length than it says")


def within_limit(count: int) -> int:
    """The length of a body, if it is allowed."""
    if count > BODY_BYTES_MAX:
        raise HttpError(413, "Content Too Large", f"a body has more than {BODY_BYTES_MAX} bytes")
    return count


async def call(
    path: pathlib.Path, method: str, target: str, content: Any = None, authorization: str | None = None
) -> tuple[int, Any]:
    """Asks the server at a socket; the status, and the JSON that it answered or None. OSError when it cannot be asked."""
    headers = [("Host", "localhost"), ("Content-Type", "application/json")]
    if authorization:
        headers.append(("Authorization", authorization))
    body = b"" if content is None else json.dumps(content).encode()
    reader, writer = await asyncio.open_unix_connection(path, limit=HEAD_BYTES_MAX)
    try:
        writer.write(Request(method, target, headers, b"").message(body))
        await writer.drain()
        head = await read_head(reader)
        if head is None:
            raise ConnectionError("the server ended the connection")
        status = int(head[0].split(" ")[1])
        raw = await read_body(reader, head[1])
    except HttpError as error:
        raise ConnectionError(str(error)) from error
    finally:
        writer.close()
    try:
        return status, json.loads(raw)
    except (ValueError, RecursionError):
        return status, None
