"""What is found out when the server is ready: whether prompts can be shared, and with whom."""

from __future__ import annotations

import asyncio
import logging
import mmap
import pathlib
from typing import Any, NamedTuple

from ..link import Link
from .command import Command, program_digest
from .digest import model_digest
from .server import Server
from .sharing import FAILURES, Sharing
from .slot_file import Layout, SlotFileError, take_apart
from .slots import Slots
from .store import Store, chunk_tokens

logger = logging.getLogger("hinterland.llamacpp")

PROBE = "One, two, three, four, five, six, seven, eight, nine, ten."
PROBE_FILE = "probe"
# What a server says of its build when it was made without knowing.
BUILD_UNKNOWN = "b0-"
INSTEAD = "the server computes every prompt itself"


class Unshared(Exception):
    """Why prompts of this server cannot be shared."""


class Settings(NamedTuple):
    """What the user chose."""

    socket: str | None
    namespace: str
    min_tokens: int
    check_seconds: float


async def begin_sharing(server: Server, command: Command, settings: Settings, folder: pathlib.Path) -> Sharing:
    """Looks at a server that is ready and not used yet. Unshared if its prompts cannot be shared."""
    if command.unshared:
        raise Unshared(command.unshared)
    try:
        facts = await look(server)
        digest, layout = await asyncio.gather(
            asyncio.to_thread(model_digest, pathlib.Path(facts["model_path"])), probe(server, folder)
        )
        chunk = chunk_tokens(layout)
        build = facts["build_info"]
        if build.startswith(BUILD_UNKNOWN):
            build = await asyncio.to_thread(program_digest, command.words)
    except FAILURES as error:
        raise Unshared(f"{type(error).__name__}: {error}") from error
    # Whoever agrees on all of this may have each other's bytes.
    parts = [
        f"llama.cpp {build}", f"model {digest}", f"context {facts['context']}", f"rows {layout.words()}",
        f"tokens {chunk}", f"options {' '.join(command.facts)}", f"namespace {settings.namespace}",
    ]
    link = Link(settings.socket, "; ".join(parts), settings.check_seconds, logger, INSTEAD)
    store = Store(link, layout, chunk, folder)
    return Sharing(server, Slots(facts["slots"]), store, max(settings.min_tokens, chunk))


async def look(server: Server) -> dict[str, Any]:
    """What the server says of itself. Unshared if that rules sharing out."""
    status, props = await server.ask("GET", "/props")
    if status != 200 or not isinstance(props, dict):
        raise Unshared(f"llama-server does not say what it is: status {status}")
    if any((props.get("modalities") or {}).values()):
        raise Unshared("prompts with media are not shared")
    # Not there with --no-slots.
    status, slots = await server.ask("GET", "/slots")
    if status == 200 and any(slot.get("speculative") for slot in slots):
        raise Unshared("a slot's file has no keys and values of a draft model")
    return {
        "build_info": props["build_info"], "model_path": props["model_path"], "slots": int(props["total_slots"]),
        "context": props["default_generation_settings"]["n_ctx"],
    }


async def probe(server: Server, folder: pathlib.Path) -> Layout:
    """How a slot's file looks: of a few tokens that are computed for it."""
    wanted = {"prompt": PROBE, "n_predict": 1, "id_slot": 0, "cache_prompt": False, "temperature": 0}
    status, answer = await server.ask("POST", "/completion", wanted)
    if status != 200:
        raise Unshared(f"llama-server completes nothing: status {status}, {str(answer)[:200]}")
    path = folder / PROBE_FILE
    try:
        written = await server.act(0, "save", PROBE_FILE)
        with open(path, "rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if len(view) != written["n_written"]:
            raise SlotFileError(f"it has {len(view)} bytes, and {written['n_written']} were written")
        layout = take_apart(view).layout
        await server.act(0, "erase", "")
    finally:
        path.unlink(missing_ok=True)
    return layout
