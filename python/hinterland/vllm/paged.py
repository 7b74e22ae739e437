"""How blocks lie in an engine's paged cache: groups of layers, cut into slices that fit into a block of the pool."""

import dataclasses
import functools

import numpy
import torch

from .device import Device, DeviceSlice

BLOCK_BYTES_MAX = 4 << 20
# Types of keys and values that are stored as they were computed, without a scale.
WHOLE = ("auto", "bfloat16", "float16", "half", "float32", "float")


class NotShareable(Exception):
    """Why this engine's cache cannot be shared."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers with one block table, as `kv_cache_groups` lists them."""

    index: int
    block_tokens: int
    # Tokens that a layer looks back, or None for all of them.
    window_tokens: int | None
    # Consecutive layers that one block of the pool holds.
    slices: tuple[tuple[str, ...], ...]

    def suffixes(self):
        """What follows a block's hash in the keys of its slices."""
        return [bytes((self.index, number)) for number in range(len(self.slices))]


def groups(kv_cache_config):
    """The groups of an engine; NotShareable for caches that are not made of blocks of keys and values."""
    found = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        if not group.enable_kv_transfer or not spec.prefix_cacheable:
            raise NotShareable(f"group {index} of its cache cannot be shared")
        if hasattr(spec, "kv_cache_specs"):
            # The scheduler is told the size of one of them, and would look for blocks that no worker has.
            raise NotShareable(f"the layers of group {index} of its cache have blocks of different sizes")
        if "Mamba" in type(spec).__name__ or "Cross" in type(spec).__name__:
            raise NotShareable(f"group {index} of its cache holds a state, not keys and values ({type(spec).__name__})")
        page_bytes = spec.page_size_bytes
        if page_bytes > BLOCK_BYTES_MAX:
            raise NotShareable(f"one block of one layer has {page_bytes} bytes: choose a smaller --block-size")
        window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
        found.append(Group(index, spec.block_size, window, cut(group.layer_names, page_bytes)))
    if len({group.block_tokens for group in found}) != 1:
        raise NotShareable("its groups of layers have blocks of different sizes")
    # Versions differ in whether there is such a thing at all.
    hash_tokens = getattr(kv_cache_config, "hash_block_size", None)
    if hash_tokens not in (None, found[0].block_tokens):
        raise NotShareable(f"a hash stands for {hash_tokens} tokens, and a block for {found[0].block_tokens}")
    return found


def check_scales(cache):
    """NotShareable for engines that each find out by themselves by what they divide keys and values before they shorten them."""
    if getattr(cache, "calculate_kv_scales", False) and str(cache.cache_dtype) not in WHOLE:
        raise NotShareable("it finds scales of its own for its keys and values (calculate_kv_scales)")


def check_ranks(parallel):
    """NotShareable for engines whose ranks differ in more than which heads they have."""
    if parallel.pipeline_parallel_size > 1:
        # The scheduler is told the layers of the first rank, and would look for blocks that the others do not have.
        raise NotShareable("each of its ranks has layers of its own (pipeline parallelism)")
    if any(getattr(parallel, f"{part}_context_parallel_size", 1) > 1 for part in ("decode", "prefill")):
        raise NotShareable("the tokens of a block lie on several of its ranks (context parallelism)")


def cut(layers, page_bytes):
    """Layers in as few slices of about the same length as fit into blocks of the pool."""
    count = -(-len(layers) * page_bytes // BLOCK_BYTES_MAX)
    while -(-len(layers) // count) * page_bytes > BLOCK_BYTES_MAX:
        count += 1
    bounds = [len(layers) * number // count for number in range(count + 1)]
    return tuple(tuple(layers[first:end]) for first, end in zip(bounds, bounds[1:]))


def shape(kv_cache_config):
    """Everything that decides where a byte of a block lies, as a text."""
    parts = [kv_cache_config.kv_cache_layout, kv_cache_config.hash_block_size, groups(kv_cache_config)]
    parts += [(group.layer_names, group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
    return repr(parts)


def slices_of(groups_, kv_caches, block_count, device_allowed):
    """The slices of a paged cache in the order of their groups, as (group, number, layers, slice), and the GPU that has it, if one
    has; NotShareable if it lies as it should not."""
    kinds = {tensor.device for tensor in kv_caches.values()}
    place = next(iter(kinds)) if len(kinds) == 1 else None
    if place is None or place.type not in ("cpu", "cuda") or (place.type == "cuda" and not device_allowed):
        where = ", ".join(sorted(map(str, kinds)))
        hint = ' (hint: "device": true shares that of a CUDA GPU, which no GPU has run yet)'
        raise NotShareable(f"its cache lies in the memory of a device ({where}), not in the host's{hint}")
    if place.type == "cpu":
        device, make = None, Slice
    else:
        device = Device(place.index or 0)
        make = functools.partial(DeviceSlice, block_count=block_count, device=device)
    try:
        return [
            (group.index, number, layers, make([kv_caches[layer] for layer in layers]))
            for group in groups_
            for number, layers in enumerate(group.slices)
        ], device
    except ValueError as reason:
        raise NotShareable(str(reason)) from reason


class Slice:
    """Some consecutive layers of a paged cache; `slice[block]` is the memory of one block of them."""

    def __init__(self, tensors):
        views = [bytes_of(tensor) for tensor in tensors]
        self.block_bytes = sum(view[0].size for view in views)
        steps = {b.ctypes.data - a.ctypes.data for a, b in zip(views, views[1:])}
        alike = len({(view.shape, view.strides) for view in views}) == 1 and len(steps) == 1 and min(steps) > 0
        if alike and len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1:
            # One view that strides over the layers: quicker to hand over than a list.
            whole = views[0]
            shape_, strides = (len(views), *whole.shape), (steps.pop(), *whole.strides)
            self._layers, self._view = views, numpy.lib.stride_tricks.as_strided(whole, shape_, strides)
        else:
            self._layers, self._view = views, None

    def __getitem__(self, block):
        if self._view is not None:
            return self._view[:, block]
        return [view[block] for view in self._layers]


def bytes_of(tensor):
    """A layer's cache as an array of bytes whose first axis are blocks, in the order in which they lie."""
    if tensor.dim() < 2:
        raise NotShareable(f"a layer's cache has the shape {tuple(tensor.shape)}")
    if tensor.stride(-1) != 1:
        raise NotShareable(f"a layer's cache has the strides {tensor.stride()}")
    return tensor.detach().view(torch.uint8).numpy()
