"""The scheduler's side: which blocks of which request come from the pool, and which go there."""

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

# The block that stands in tables for one that a window has passed.
NULL_BLOCK = 0
# Loads of one request after which it is computed: what the pool shows but does not give must not be asked for without end.
LOADS_MAX = 3


@dataclasses.dataclass
class Load:
    """Blocks of a request that are to be copied from the pool. `blocks`: group, block of the engine's cache, hash."""

    request_id: str
    blocks: list[tuple[int, int, bytes]]


@dataclasses.dataclass
class Save:
    """Blocks of a request that are full after this step.

    `tables`: for each group, the blocks of the request up to the last of them; those from `computed` on are computed, at
    least in part, in this step. Blocks from `first` on are offered to the pool; `hashes` are theirs, `after` that of the
    block before them."""

    first: int
    computed: int
    tables: list[list[int]]
    hashes: list[bytes]
    after: bytes | None = None


@dataclasses.dataclass
class Step(KVConnectorMetadata):
    """What a worker does in one step. `busy`: whether it computes tokens."""

    loads: list[Load] = dataclasses.field(default_factory=list)
    saves: list[Save] = dataclasses.field(default_factory=list)
    busy: bool = False


class Tracked:
    """A request that has blocks."""

    def __init__(self, request):
        self.request = request
        self.loads = 0
        # Blocks that were offered to the pool.
        self.saved = 0


class Planner:
    """Finds prefixes, without a message to anybody if they are in the memory of this host, and plans each step."""

    def __init__(self, links, groups, settings, loads, saves):
        self.links = links
        self.groups = groups
        self.settings = settings
        self.loads = loads
        self.saves = saves
        self.block_tokens = groups[0].block_tokens
        self.tracked = {}
        # Where the prefix that was found for a request begins, in blocks.
        self.starts = {}
        self.pending = []
        self.whole = [suffix for group in groups if group.window_tokens is None for suffix in group.suffixes()]
        self.windows = [group for group in groups if group.window_tokens is not None]
        self.windowed = [suffix for group in self.windows for suffix in group.suffixes()]
        self.looked_back = max((-(-(group.window_tokens - 1) // self.block_tokens) for group in self.windows), default=0)

    def match(self, request, computed_tokens):
        """Tokens beyond `computed_tokens` whose blocks are all there; at least one token of a request is left to compute."""
        tracked = self.tracked.get(request.request_id)
        if not self.loads or not shareable(request) or (tracked and tracked.loads >= LOADS_MAX):
            return 0
        first, end = computed_tokens // self.block_tokens, (request.num_tokens - 1) // self.block_tokens
        self.starts[request.request_id] = first
        hashes = request.block_hashes[first:end]
        count = min((self._match(link, hashes, first) for link in self.links), default=0) if hashes else 0
        return count * self.block_tokens

    def _match(self, link, hashes, first):
        if self.whole:
            keys = [block + suffix for block in hashes for suffix in self.whole]
            count = link.ask(lambda kv: kv.match_prefix(keys, remote=self.settings.remote), 0) // len(self.whole)
        else:
            count = len(hashes)
        if count and self.windows:
            # A window needs only the last blocks of a prefix. They count only if they are in the memory of this host.
            keys = [block + suffix for block in hashes[:count] for suffix in self.windowed]
            there = link.ask(lambda kv: kv.exists(keys), [False] * len(keys))
            count = longest(there, len(self.windowed), self.looked_back, first)
        return count

    def allocated(self, request, tables, external_tokens):
        """Takes note of a request's block tables; `external_tokens` of what was found are to be loaded."""
        tracked = self.tracked.setdefault(request.request_id, Tracked(request))
        tracked.request = request
        if external_tokens == 0:
            return
        tracked.loads += 1
        first = self.starts[request.request_id]
        load = Load(request.request_id, [])
        for group, table in zip(self.groups, tables):
            for index in range(first, first + external_tokens // self.block_tokens):
                if table[index] != NULL_BLOCK:
                    load.blocks.append((group.index, table[index], request.block_hashes[index]))
        self.pending.append(load)

    def plan(self, output):
        """What the workers do in the step that `output` describes."""
        step = Step(self.pending, [], output.total_num_scheduled_tokens > 0)
        self.pending = []
        if self.saves:
            computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            computed.update(zip(cached.req_ids, cached.num_computed_tokens))
            for request_id, tokens in output.num_scheduled_tokens.items():
                tracked = self.tracked.get(request_id)
                if tracked and shareable(tracked.request):
                    save = self._save(tracked, computed[request_id], tokens, output.kv_connector_block_state)
                    if save:
                        step.saves.append(save)
        return step

    def _save(self, tracked, computed_tokens, step_tokens, state):
        request = tracked.request
        end_tokens = computed_tokens + step_tokens
        if not self.settings.save_decode:
            end_tokens = min(end_tokens, request.num_prompt_tokens)
        # A block has a hash once all of its tokens are known: what was only guessed has none.
        end = min(end_tokens // self.block_tokens, len(request.block_hashes))
        computed = computed_tokens // self.block_tokens
        # After a load that failed, or a preemption, blocks are computed a second time.
        first = min(tracked.saved, computed)
        if first >= end:
            return None
        tracked.saved = end
        tables = [table[:end] for table in state.resolve_block_ids(request.request_id)]
        after = request.block_hashes[first - 1] if first else None
        return Save(first, computed, tables, request.block_hashes[first:end], after)

    def finished(self, request_id):
        self.tracked.pop(request_id, None)
        self.starts.pop(request_id, None)

    def clear(self):
        """Removes all blocks of these engines, at every node of the pool if they ask other racks; whether every rank's were reached
        everywhere. If not, what a node that was not reached has comes back when it does."""
        everywhere = self.settings.remote
        return all([link.ask(lambda kv: kv.clear(everywhere), None) is not None for link in self.links])


def shareable(request):
    """Adapters are known by a name only, and two engines may mean two adapters by it."""
    return request.lora_request is None


def longest(there, per_block, looked_back, first):
    """The longest prefix whose last `looked_back` blocks are there; those before `first` are computed already."""
    best, run = 0, first
    for index in range(len(there) // per_block):
        run = run + 1 if all(there[index * per_block : (index + 1) * per_block]) else 0
        if run >= min(looked_back, first + index + 1):
            best = index + 1
    return best
