"""Which slot of a server a request gets, and what its tokens were."""

from __future__ import annotations

import asyncio
import collections
from array import array


class Slot:
    """One slot. `tokens` is nothing while it is not known what the slot holds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens: array[int] | None = array("i")
        self.is_busy = False
        # Whether it is only saved any more: soon it is free.
        self.is_saving = False
        self.turn = 0


class Slots:
    """All slots. A request has its slot alone, from before the restore until after the save; waiting is in order."""

    def __init__(self, count: int) -> None:
        self.all = [Slot(number) for number in range(count)]
        self._waiting: collections.deque[tuple[asyncio.Future[Slot], array[int], int | None]] = collections.deque()
        self._turns = 0

    async def take(self, tokens: array[int], wanted: int | None) -> Slot:
        """A free slot: the one that is wanted, else that with the longest common beginning, else the one not used for
        longest."""
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, tokens, wanted))
        self._serve()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(future.result())
            raise

    def give(self, slot: Slot) -> None:
        """Gives a slot back."""
        slot.is_busy = False
        self._serve()

    def forget(self) -> None:
        """A request that says nothing about its slot was passed on: any slot may hold anything."""
        for slot in self.all:
            slot.tokens = None

    def _serve(self) -> None:
        while self._waiting:
            future, tokens, wanted = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
                continue
            slot = self._choose(tokens, wanted)
            if slot is None:
                return
            self._waiting.popleft()
            self._turns += 1
            slot.is_busy, slot.turn = True, self._turns
            future.set_result(slot)

    def _choose(self, tokens: array[int], wanted: int | None) -> Slot | None:
        if wanted is not None:
            # The server, too, takes numbers that are too large round again.
            slot = self.all[wanted % len(self.all)]
            return None if slot.is_busy else slot
        able = [slot for slot in self.all if not slot.is_busy or slot.is_saving]
        best = min(able, key=lambda slot: (-worth(slot, tokens), slot.is_busy, slot.turn), default=None)
        return None if best is None or best.is_busy else best


def worth(slot: Slot, tokens: array[int]) -> int:
    """Tokens that the slot has in common with a prompt, if that is a tenth of the prompt at least."""
    same = common(slot.tokens, tokens) if slot.tokens is not None else 0
    return same if same * 10 >= len(tokens) else 0


def common(one: array[int], other: array[int]) -> int:
    """How many tokens two lists have in common from the first on."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
