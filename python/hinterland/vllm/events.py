"""What came into the pool and left it, as the events that vLLM publishes for routers."""

import time

from vllm.distributed.kv_events import MEDIUM_CPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

# Bytes behind a block's hash in a key: its group and its slice.
SUFFIX_BYTES = 2
# Seconds between two questions to the node; a step that comes sooner asks nothing.
PAUSE = 0.1


class Record:
    """Follows the blocks of one namespace. A block is there when all of its slices are, whoever has stored them."""

    def __init__(self, link, suffixes, block_tokens, pause=PAUSE):
        self.link = link
        self.suffixes = frozenset(suffixes)
        self.block_tokens = block_tokens
        self.pause = pause
        self._next = 0.0
        # The number of the last event that was seen; none while nothing is known.
        self._after = None
        # Of each hash, the slices that are there.
        self._there = {}

    def take(self):
        """Events since the last call. What the record of the node does not hold any more is read from the blocks themselves,
        after an `AllBlocksCleared`."""
        now = time.monotonic()
        if now < self._next:
            return []
        self._next = now + self.pause
        events = []
        while True:
            answer = self.link.ask(lambda kv: kv.events(self._after or 0), None)
            if answer is None:
                # No pool: nothing of it can be hit.
                self._after = None
                return events + self._forget()
            last, changes, lost = answer
            if lost or self._after is None:
                events += self._forget()
                for key in self.link.ask(lambda kv: kv.keys(), []):
                    events += self._stored(key, None)
            for what, key, parent, _ in changes:
                events += self._stored(key, parent) if what == "stored" else self._removed(key)
            self._after = last
            if not changes:
                return events

    def _forget(self):
        known, self._there = bool(self._there), {}
        return [AllBlocksCleared()] if known else []

    def _stored(self, key, parent):
        name, suffix = key[:-SUFFIX_BYTES], key[-SUFFIX_BYTES:]
        if suffix not in self.suffixes or suffix in self._there.get(name, ()):
            return []
        slices = self._there.setdefault(name, set())
        slices.add(suffix)
        if slices != self.suffixes:
            return []
        # The pool knows hashes and no tokens.
        return [
            BlockStored(
                block_hashes=[maybe_convert_block_hash(name)],
                parent_block_hash=parent and maybe_convert_block_hash(parent[:-SUFFIX_BYTES]),
                token_ids=[],
                block_size=self.block_tokens,
                lora_id=None,
                medium=MEDIUM_CPU,
                lora_name=None,
            )
        ]

    def _removed(self, key):
        name, suffix = key[:-SUFFIX_BYTES], key[-SUFFIX_BYTES:]
        slices = self._there.get(name, set())
        was_whole = slices == self.suffixes
        slices.discard(suffix)
        if not slices:
            self._there.pop(name, None)
        if not was_whole or suffix not in self.suffixes:
            return []
        return [BlockRemoved(block_hashes=[maybe_convert_block_hash(name)], medium=MEDIUM_CPU)]
