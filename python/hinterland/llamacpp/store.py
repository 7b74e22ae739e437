"""Prompts of a slot as KV blocks: under which keys, from a file into the pool, and from the pool into a file."""

from __future__ import annotations

import hashlib
import mmap
import os
import pathlib
from array import array
from typing import NamedTuple

from ..link import Link
from .slot_file import Layout, SlotFileError, compose, take_apart

BLOCK_BYTES_MAX = 4 << 20
# Tokens of a block, if they fit. More is less to look up; fewer are lost at the end of a prefix.
CHUNK_TOKENS_MAX = 128
# Blocks that are put at once: each has a view for each layer.
BATCH_BLOCKS = 64
# How often a shorter prefix is composed because a block left the pool meanwhile.
ATTEMPTS = 4


class Saved(NamedTuple):
    """What became of a slot's file: the tokens in it, and how many tokens of the pool's blocks came of it."""

    tokens: array[int]
    there: int


def chunk_tokens(layout: Layout) -> int:
    """Tokens of a block. SlotFileError when not one fits."""
    count = CHUNK_TOKENS_MAX
    while count * layout.token_bytes > BLOCK_BYTES_MAX:
        count //= 2
    if not count:
        raise SlotFileError(f"one token has {layout.token_bytes} bytes, and a block at most {BLOCK_BYTES_MAX}")
    return count


class Store:
    """The blocks of servers that agree on everything. All calls block; any thread may make them."""

    def __init__(self, link: Link, layout: Layout, chunk: int, folder: pathlib.Path) -> None:
        self.link = link
        self.layout = layout
        self.chunk = chunk
        self.folder = folder

    def keys(self, tokens: array[int]) -> list[bytes]:
        """One key for each whole chunk; it stands for all tokens up to its end."""
        found, before = [], b""
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            before = hashlib.blake2b(before + tokens[end - self.chunk:end].tobytes(), digest_size=32).digest()
            found.append(before)
        return found

    def longest(self, keys: list[bytes]) -> int:
        """How many tokens of a prompt the pool has, here or in other racks."""
        return self.link.ask(lambda kv: kv.match_prefix(keys, remote=True), 0) * self.chunk

    def load(self, tokens: array[int], keys: list[bytes], count: int, name: str) -> int:
        """Composes a file with the first `count` tokens, or with fewer if blocks have left; returns how many.

        OSError when the folder has no room. The file is there only if the answer is not 0.
        """
        for _ in range(ATTEMPTS):
            if not count:
                return 0
            wanted = keys[:count // self.chunk]
            found = self._fill(tokens[:count], wanted, name)
            if all(found):
                return count
            (self.folder / name).unlink()
            count = found.index(False) * self.chunk
        return 0

    def _fill(self, tokens: array[int], keys: list[bytes], name: str) -> list[bool]:
        size = self.layout.file_bytes(len(tokens))
        with open(self.folder / name, "w+b") as file:
            # Room that is missing is an error here, and not a signal when the memory is touched.
            os.posix_fallocate(file.fileno(), 0, size)
            view = memoryview(mmap.mmap(file.fileno(), size))
        slot = compose(view, self.layout, tokens)
        pieces = [slot.pieces(index * self.chunk, self.chunk) for index in range(len(keys))]
        return self.link.ask(lambda kv: kv.get_into(keys, pieces, remote=True), [False] * len(keys))

    def save(self, name: str, size: int, prompt: array[int]) -> Saved:
        """Puts what a slot's file has and the pool lacks. `size` is what the server wrote, `prompt` what must be in it.

        SlotFileError for a file that is not whole or not of this prompt.
        """
        with open(self.folder / name, "rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise SlotFileError(f"it has {found} bytes, and {size} were written")
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        slot = take_apart(view)
        if slot.layout != self.layout:
            raise SlotFileError("its layers are not those that the server had at its start")
        if slot.tokens[:len(prompt)] != prompt:
            raise SlotFileError("the slot has other tokens than the prompt")
        keys = self.keys(slot.tokens)
        there = 0
        for first in range(0, len(keys), BATCH_BLOCKS):
            batch = keys[first:first + BATCH_BLOCKS]
            pieces = [slot.pieces((first + index) * self.chunk, self.chunk) for index in range(len(batch))]
            after = keys[first - 1] if first else None
            put = self.link.ask(lambda kv: kv.put(batch, pieces, prefix=True, after=after), [False] * len(batch))
            there += sum(put)
            if not all(put):
                break
        return Saved(slot.tokens, there * self.chunk)
