"""What is done before and after a request, so that prompts of other servers are used and ours can be."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from array import array
from typing import NamedTuple

from .http import Request
from .prompt import Prompt, prompt_of, touches_slots
from .server import Server
from .slot_file import SlotFileError
from .slots import Slot, Slots, common
from .store import Store

logger = logging.getLogger("hinterland.llamacpp")

# A conversation that grows is saved again when it has grown by this part: all of it is written each time.
GROWTH = 8
FAILURES = (OSError, SlotFileError, KeyError, TypeError)


@dataclasses.dataclass
class Counters:
    """What has happened since the start."""

    # Requests with a prompt that is understood, and others that use slots.
    prompts: int = 0
    others: int = 0
    # Prompts of which a part came from the pool, and its tokens.
    restored: int = 0
    restored_tokens: int = 0
    # Slots that were saved, and the tokens that the pool lacked before.
    saved: int = 0
    saved_tokens: int = 0
    # Steps that failed; the server computed instead.
    failures: int = 0


class Turn(NamedTuple):
    """A request that has its slot."""

    slot: Slot
    prompt: array[int]
    body: bytes
    # Tokens that the slot had, that the pool had, and how many foreign requests there had been.
    own: int
    there: int
    others: int
    clean: bool


class Sharing:
    """The slots of a server and the blocks of a pool."""

    def __init__(self, server: Server, slots: Slots, store: Store, min_tokens: int) -> None:
        self.server = server
        self.slots = slots
        self.store = store
        self.min_tokens = min_tokens
        self.counters = Counters()
        self._others_now = 0
        self._said: set[str] = set()

    async def begin(self, request: Request) -> Turn | None:
        """Chooses the slot and fills it; nothing for a request that is passed on as it is."""
        try:
            prompt = await prompt_of(request, self.server)
        except OSError as error:
            self._failed("a prompt was not understood", error)
            prompt = None
        if prompt is None:
            return None
        self.counters.prompts += 1
        wanted = prompt.content.get("id_slot")
        slot = await self.slots.take(prompt.tokens, wanted if type(wanted) is int and wanted >= 0 else None)
        try:
            return await self._fill(slot, prompt)
        except BaseException:
            slot.tokens = None
            self.slots.give(slot)
            raise

    @contextlib.contextmanager
    def other(self, request: Request):
        """While a request runs that is passed on as it is: it may use any slot."""
        if not touches_slots(request):
            yield
            return
        self.counters.others += 1
        self._others_now += 1
        self.slots.forget()
        try:
            yield
        finally:
            self._others_now -= 1
            self.slots.forget()

    async def _fill(self, slot: Slot, prompt: Prompt) -> Turn:
        tokens, there = prompt.tokens, 0
        own = common(slot.tokens, tokens) if slot.tokens is not None else 0
        if len(tokens) >= self.min_tokens:
            keys = self.store.keys(tokens)
            there = await asyncio.to_thread(self.store.longest, keys)
            restored = 0
            if there >= own + self.min_tokens and prompt.content.get("cache_prompt") is not False:
                restored = await self._restore(slot, tokens, keys, there)
            own = max(own, restored)
            if slot.tokens is None:
                await self._erase(slot)
        clean = slot.tokens is not None and self._others_now == 0
        body = json.dumps({**prompt.content, "id_slot": slot.number}).encode()
        return Turn(slot, tokens, body, own, there, self.counters.others, clean)

    async def _restore(self, slot: Slot, tokens: array[int], keys: list[bytes], there: int) -> int:
        name = f"restore-{slot.number}"
        try:
            count = await asyncio.to_thread(self.store.load, tokens, keys, there, name)
            if not count:
                return 0
            slot.tokens = None
            found = await self.server.act(slot.number, "restore", name)
            if found["n_restored"] != count:
                raise SlotFileError(f"{found['n_restored']} tokens of {count} were restored")
        except FAILURES as error:
            self._failed("a prompt of the pool was not restored", error)
            return 0
        finally:
            self._remove(name)
        slot.tokens = tokens[:count]
        self.counters.restored += 1
        self.counters.restored_tokens += count
        return count

    async def _erase(self, slot: Slot) -> None:
        try:
            await self.server.act(slot.number, "erase", "")
            slot.tokens = array("i")
        except FAILURES as error:
            self._failed("a slot was not emptied", error)

    async def end(self, turn: Turn, answered: bool) -> None:
        """Saves the slot if that is worth it, and gives it back. `answered`: the whole answer has gone to the client."""
        slot = turn.slot
        try:
            if not turn.clean or turn.others != self.counters.others:
                slot.tokens = None
            elif not answered:
                # What was computed of the rest is not known.
                slot.tokens = turn.prompt[:turn.own]
            else:
                slot.tokens = turn.prompt
                whole = len(turn.prompt) // self.store.chunk * self.store.chunk
                if whole - turn.there >= max(self.min_tokens, whole // GROWTH):
                    slot.is_saving = True
                    await self._save(slot, turn)
        finally:
            slot.is_saving = False
            self.slots.give(slot)

    async def _save(self, slot: Slot, turn: Turn) -> None:
        name = f"save-{slot.number}"
        try:
            written = await self.server.act(slot.number, "save", name)
            saved = await asyncio.to_thread(self.store.save, name, written["n_written"], turn.prompt)
        except FAILURES as error:
            slot.tokens = None
            self._failed("a prompt was not saved", error)
            return
        finally:
            self._remove(name)
        slot.tokens = saved.tokens
        if saved.there > turn.there:
            self.counters.saved += 1
            self.counters.saved_tokens += saved.there - turn.there

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.store.folder / name).unlink(missing_ok=True)

    def _failed(self, what: str, error: Exception) -> None:
        """Counts, and says each kind of failure once."""
        self.counters.failures += 1
        level = logging.DEBUG if what in self._said else logging.WARNING
        self._said.add(what)
        logger.log(level, "%s; the server computes it (%s: %s)", what, type(error).__name__, error)
