"""A storage back end of SGLang's HiCache: pages of its host pool in the KV blocks of this host.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "hinterland", "interface_v1": 1,
        "module_path": "hinterland.compat.sglang", "class_name": "HinterlandHiCache"}'

A page is one value, gathered from wherever the pool's layout keeps its pieces and scattered to there again. Engines whose pools
differ in anything that a page's bytes depend on have namespaces of their own. A node that fails makes pages missing, no more.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import threading
import time
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from ..weights import state
from .pieces import Piece, length
from .values import Name, Put, Values, named

LOG = logging.getLogger("hinterland.sglang")
Result = TypeVar("Result")

# What is used of the extra configuration; the rest is SGLang's.
SETTINGS = ("socket", "extra_backend_tag", "hashes_have_adapters")
# What an engine may be told that changes keys and values of the same tokens.
CHOICES = ("revision", "quantization", "json_model_override_args", "dtype")
# What the bytes of a page depend on but its tokens, as attributes of the pool; and of pools beside the first.
FORM = ("layout", "dtype", "page_size", "layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim",
        "kv_cache_dim", "start_layer", "end_layer", "storage_format_tag")
# How the names of pools of draft models begin.
DRAFTS = "draft"
FORM_BESIDE = (*FORM, "num_mamba_layers", "conv_dtype", "conv_state_shapes", "temporal_dtype", "temporal_state_shape")


class HinterlandHiCache(HiCacheStorage):
    """Pages by their hash. Of the extra configuration `socket` (the node's, by default as everywhere), `extra_backend_tag` (more
    that engines must agree on) and `hashes_have_adapters` (whether hashes tell adapters apart) are used."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Optional[dict[str, Any]] = None) -> None:
        extra = storage_config.extra_config or {}
        _warn_of_mistyped(extra)
        self._config = storage_config
        self._socket: Optional[str] = extra.get("socket")
        self._tag = str(extra.get("extra_backend_tag", ""))
        self._lock = threading.Lock()
        # Pages, bytes and seconds of what was read and written since the last report.
        self._counts = {"get": [0, 0, 0.0], "set": [0, 0, 0.0]}
        # What the names of pages have in them for the form of their pool.
        self._forms: dict[str, str] = {}
        # Drafts of which each rank has a part of its own, beside a model of which all have the same.
        self._split: set[str] = set()
        self._engine = _engine()
        # SGLang tells the name that a model is served under, which two may have; and one may be changed where it lies.
        self._model = _model(self._engine)
        # Most releases of SGLang hash the tokens of a page and nothing else: what one adapter made of them would be another's.
        has_adapters = _has_adapters(self._engine) and extra.get("hashes_have_adapters") is not True
        if has_adapters:
            LOG.warning("nothing is shared: SGLang hashes the tokens of a page and not its LoRA adapter (hint: start the engine without LoRA, or set "
                        "hashes_have_adapters to true in the extra configuration if this release hashes extra_key)")
        is_told = self._model is not None or bool(self._tag)
        if not is_told:
            LOG.warning("nothing is shared: nothing tells which weights %s has, and another engine may have others under this name (hint: --revision "
                        "with a commit, --model-path with a folder, or extra_backend_tag in the extra configuration, another one for each version of "
                        "the weights)", storage_config.model_name)
        self._stands_aside = has_adapters or not is_told
        self._values = Values(self._fingerprint(None), self._socket)

    # --- the pool whose pages these are ---

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the pool; from here on the pages are those of pools of the same form."""
        super().register_mem_pool_host(mem_pool_host)
        values = Values(self._fingerprint(mem_pool_host), self._socket)
        old, self._values = self._values, values
        old.close()

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: str) -> None:
        """Takes a pool beside the first; engines share its pages when their pools of this name are of the same form."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        form = hashlib.blake2b(_form(host_pool, FORM_BESIDE).encode(), digest_size=16).hexdigest()
        kind = PoolName(host_pool_name).value
        self._forms[kind] = f".{form}"
        # Of everything else beside such a model one rank stores for all.
        if self._config.is_mla_model and kind.startswith(DRAFTS) and _has_heads(host_pool):
            self._split.add(kind)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> list[bool]:
        """Fills pages of the pool; for each, whether it was there."""
        return self._pages("get", keys, self.mem_pool_host, host_indices, PoolName.KV)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> list[bool]:
        """Stores pages of the pool; for each, whether it is there."""
        return self._pages("set", keys, self.mem_pool_host, host_indices, PoolName.KV)

    def batch_exists(self, keys: list[str], extra_info: Optional[HiCacheStorageExtraInfo] = None) -> int:
        """How many pages are there, from the first on."""
        there = self._there(keys, PoolName.KV)
        return there.index(False) if False in there else len(there)

    # --- pools beside the first: states of hybrid models, indexers ---

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: Optional[list[PoolTransfer]] = None,
        extra_info: Optional[HiCacheStorageExtraInfo] = None,
    ) -> PoolTransferResult:
        """The longest prefix that every pool can restore, and how far each one reaches."""
        kv_pages = self.batch_exists(keys)
        hits: dict[str, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        for transfer in pool_transfers or []:
            if not restorable:
                break
            there = self._there(keys[:kv_pages], transfer.name)
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                possible = set(range(1, (there.index(False) if False in there else kv_pages) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                trailing = max(1, len(transfer.keys or []))
                possible = {end for end in range(1, kv_pages + 1) if all(there[max(0, end - trailing):end])}
            else:
                raise ValueError(f"hit policy {transfer.hit_policy} is unknown (hint: use a back end that SGLang ships)")
            if possible:
                hits[transfer.name] = max(possible)
            restorable = [end for end in restorable if end in possible]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> dict[str, list[bool]]:
        """Fills pages of several pools."""
        return {each.name: self._transfer("get", each) for each in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> dict[str, list[bool]]:
        """Stores pages of several pools."""
        return {each.name: self._transfer("set", each) for each in transfers}

    # --- pages in memory of the caller ---

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fills a contiguous tensor, or memory at addresses, with a page; the target, or None where it is missing."""
        return self.batch_get([key], [target_location], [target_sizes])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fills tensors, or memory at addresses, with pages; each target, or None."""
        sizes = target_sizes if target_sizes is not None else [None] * len(keys)
        targets = list(target_locations or [])
        pieces = [_target(target, size) for target, size in zip(targets, sizes)]
        found = self._read([self._name(key, PoolName.KV) for key in keys], pieces)
        return [target if was_there else None for target, was_there in zip(targets, found)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a page from a tensor, or from memory at addresses."""
        return self.batch_set([key], [value], [target_location], [target_sizes])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores pages; whether all are there."""
        sizes = target_sizes if target_sizes is not None else [None] * len(keys)
        given = zip(values or [None] * len(keys), target_locations or [None] * len(keys), sizes)
        pieces = [_source(value) if value is not None else _target(target, size) for value, target, size in given]
        return all(self._write([self._name(key, PoolName.KV) for key in keys], pieces))

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self._there([key], PoolName.KV) == [True]

    def clear(self) -> bool:
        """Removes all pages of pools of this form at all nodes, also those of other engines; False if some may be left."""
        return self._with(False, lambda values: values.clear() >= 0)

    def close(self) -> None:
        """Ends the connection; the pages stay."""
        self._values.close()

    def get_stats(self) -> Any:
        """Pages and gigabytes a second since the last report, in SGLang's form; None unless it wants them."""
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            counts, self._counts = self._counts, {"get": [0, 0, 0.0], "set": [0, 0, 0.0]}
        report = StorageMetrics()
        for (pages, size, seconds), numbers, rates in (
            (counts["get"], report.prefetch_pgs, report.prefetch_bandwidth),
            (counts["set"], report.backup_pgs, report.backup_bandwidth),
        ):
            if pages:
                numbers.append(pages)
                rates.append(size / max(seconds, 1e-9) / (1 << 30))
        return report

    # --- beneath ---

    def _fingerprint(self, pool: Any) -> str:
        """Everything that a page's bytes depend on but its tokens."""
        config = self._config
        # Not every release has these.
        dcp = f"dcp {getattr(config, 'dcp_rank', 0)}/{getattr(config, 'dcp_size', 1)}"
        parts = [f"SGLang {config.model_name}", f"model {self._model}", f"pp {config.pp_rank}/{config.pp_size}",
                 f"cp {config.attn_cp_rank}/{config.attn_cp_size}", dcp,
                 f"logical page {getattr(config, 'logical_page_size', None)}", f"tag {self._tag}"]
        # What MLA keeps is the same in every rank of a group.
        parts.append(f"tp */{config.tp_size}" if config.is_mla_model else f"tp {config.tp_rank}/{config.tp_size}")
        if pool is not None:
            parts.append(_form(pool, FORM))
        return ", ".join(parts + _choices(self._engine))

    def _name(self, key: str, pool: str) -> Name:
        if pool == PoolName.KV:
            return named(key)
        # States and heads are split over the ranks also where the KV cache is not.
        kind = PoolName(pool).value
        rank = f".{self._config.tp_rank}" if pool == PoolName.MAMBA or kind in self._split else ""
        return named(f"{key}.{kind}{rank}{self._forms.get(kind, '')}")

    def _there(self, keys: Sequence[str], pool: str) -> list[bool]:
        names = [self._name(key, pool) for key in keys]
        if self._stands_aside:
            return [False] * len(keys)
        return self._with([False] * len(keys), lambda values: [size is not None for size in values.sizes(names)])

    def _transfer(self, way: str, transfer: PoolTransfer) -> list[bool]:
        return self._pages(way, transfer.keys or [], self.registered_pools[transfer.name], transfer.host_indices, transfer.name)

    def _pages(self, way: str, keys: Sequence[str], pool: Any, indices: Optional[torch.Tensor], pool_name: str) -> list[bool]:
        """Reads or writes pages of a pool."""
        size = getattr(pool, "page_size", 1) or 1
        if indices is None or indices.numel() != len(keys) * size:
            LOG.error("%d pages of %d tokens and %s indices", len(keys), size, "no" if indices is None else indices.numel())
            return [False] * len(keys)
        if not keys:
            return []
        names = [self._name(key, pool_name) for key in keys]
        pieces = _pieces_of_pages(pool, indices, len(keys))
        begun = time.perf_counter()
        if pieces is not None:
            done = self._read(names, pieces) if way == "get" else self._write(names, pieces)
        else:
            done = self._flat_pages(way, names, pool, indices[::size].tolist())
        moved = len(keys) and sum(length(each) for each, was_done in zip(pieces or [], done) if was_done)
        with self._lock:
            counts = self._counts[way]
            self._counts[way] = [counts[0] + sum(done), counts[1] + moved, counts[2] + time.perf_counter() - begun]
        return done

    def _flat_pages(self, way: str, names: list[Name], pool: Any, places: list[int]) -> list[bool]:
        """The same through a copy of each page, for layouts whose pieces have no addresses."""
        if way == "set":
            return self._write(names, [_source(pool.get_data_page(place, flat=True)) for place in places])
        copies = [pool.get_dummy_flat_data_page() for _ in places]
        found = self._read(names, [_target(copy, None) for copy in copies])
        for place, copy, was_there in zip(places, copies, found):
            if was_there:
                pool.set_from_flat_data_page(place, copy)
        return found

    def _read(self, names: list[Name], targets: list[list[Piece]]) -> list[bool]:
        """Fills memory with values of exactly its length."""
        def read(values: Values) -> list[bool]:
            sizes = values.sizes(names)
            fitting = [index for index, size in enumerate(sizes) if size == length(targets[index])]
            found = values.read([names[index] for index in fitting], [targets[index] for index in fitting])
            right = {index for index, size in zip(fitting, found) if size == sizes[index]}
            return [index in right for index in range(len(names))]

        return [False] * len(names) if self._stands_aside else self._with([False] * len(names), read)

    def _write(self, names: list[Name], sources: list[list[Piece]]) -> list[bool]:
        if self._stands_aside:
            return [False] * len(names)
        return self._with([False] * len(names),
                          lambda values: [outcome is Put.THERE for outcome in values.put(names, sources)])

    def _with(self, otherwise: Result, call: Callable[[Values], Result]) -> Result:
        """What a call gives, or something else if the node fails; then the log has the words."""
        try:
            return call(self._values)
        except OSError as error:
            LOG.error("%s", error)
            return otherwise


def _warn_of_mistyped(extra: dict[str, Any]) -> None:
    """Names settings that are nearly one of this back end: they are left alone, as SGLang has some of its own in the same place."""
    for name in set(extra) - set(SETTINGS):
        for meant in difflib.get_close_matches(str(name), SETTINGS, 1, 0.8):
            LOG.warning("there is no setting %s, it is left alone (hint: is %s meant?)", name, meant)


def _engine() -> Any:
    """What the engine was told, or None in a release that does not say."""
    try:
        from sglang.srt.server_args import get_global_server_args

        return get_global_server_args()
    except (ImportError, ValueError):
        return None


def _model(engine: Any) -> Optional[str]:
    """Which model an engine has, and what tells its weights from others; None if nothing does."""
    path = getattr(engine, "model_path", None)
    if not path:
        return None
    if getattr(engine, "load_format", None) == "dummy":
        told: Optional[str] = f"made of the seed {getattr(engine, 'random_seed', None)}"
    else:
        told = state(path, getattr(engine, "revision", None), getattr(engine, "download_dir", None))
    # One folder has several names.
    name = Path(path).resolve() if Path(path).exists() else path
    return told and f"{name} {told}"


def _has_adapters(engine: Any) -> bool:
    return bool(getattr(engine, "enable_lora", False) or getattr(engine, "lora_paths", None))


def _choices(engine: Any) -> list[str]:
    """What an engine was told of its keys and values, if anything. Of a file with their scales it is the contents that count."""
    told = [f"{name} {getattr(engine, name, None)}" for name in CHOICES if getattr(engine, name, None) not in (None, "", "{}")]
    scales = getattr(engine, "quantization_param_path", None)
    if scales:
        try:
            told.append(f"scales {hashlib.blake2b(Path(scales).read_bytes(), digest_size=16).hexdigest()}")
        except OSError:
            told.append(f"scales {scales}")
    return told


def _form(pool: Any, names: Sequence[str]) -> str:
    return ", ".join([type(pool).__name__] + [f"{name} {getattr(pool, name, None)}" for name in names])


def _has_heads(pool: Any) -> bool:
    """Whether a pool keeps keys and values of heads, which the ranks share out among them."""
    return getattr(pool, "head_num", None) is not None and getattr(pool, "kv_lora_rank", None) is None


def _pieces_of_pages(pool: Any, indices: torch.Tensor, pages: int) -> list[list[Piece]] | None:
    """The addresses and lengths that each page consists of; None for a pool that has none."""
    try:
        starts, sizes = pool.get_page_buffer_meta(indices)
    except (AttributeError, NotImplementedError, ValueError):
        return None
    each, left = divmod(len(starts), pages)
    if left or not each or len(sizes) != len(starts):
        return None
    pieces = list(zip(map(int, starts), map(int, sizes)))
    return [pieces[first:first + each] for first in range(0, len(pieces), each)]


def _source(value: torch.Tensor) -> list[Piece]:
    """The bytes of a tensor, copied if they are not in order or not in this memory."""
    return [memoryview(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())]


def _target(target: Any, size: Any) -> list[Piece]:
    """Memory to be filled or stored: a contiguous tensor, or addresses and their sizes."""
    if isinstance(target, torch.Tensor):
        if not target.is_contiguous() or target.device.type != "cpu":
            raise ValueError("a page is read into contiguous memory of the host (hint: pass such a tensor)")
        return [memoryview(target.reshape(-1).view(torch.uint8).numpy())]
    if isinstance(target, int) and isinstance(size, int):
        return [(target, size)]
    if isinstance(target, (list, tuple)) and isinstance(size, (list, tuple)) and len(target) == len(size):
        return list(zip(target, size))
    raise ValueError("a page has a tensor, or addresses and as many sizes (hint: pass target_location and target_sizes)")
