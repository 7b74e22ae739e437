"""Tensors of torch as values: type and shape as JSON, then the elements. torch is imported when one is met, not before."""

from __future__ import annotations

import json
import struct
from typing import Any

from ..pieces import Piece

# Length of the JSON text; elements start at a multiple of this.
PRELUDE_UNIT = 64
PREFIX = struct.Struct("<4sI")
MAGIC = b"HLT1"


def pieces(tensor: Any) -> list[Piece]:
    """A tensor as the pieces of a value. TypeError for what is none."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is wanted, not {type(tensor).__name__} (hint: put() takes bytes)")
    kept = tensor.detach().cpu().contiguous()
    text = json.dumps({"dtype": str(kept.dtype).removeprefix("torch."), "shape": list(kept.shape)}).encode()
    prelude = PREFIX.pack(MAGIC, len(text)) + text
    prelude += bytes(-len(prelude) % PRELUDE_UNIT)
    return [memoryview(prelude), memoryview(kept.reshape(-1).view(torch.uint8).numpy())]


def tensor(value: bytearray) -> Any:
    """The tensor of a value, in its memory; None for a value that is none."""
    import torch

    if len(value) < PREFIX.size or PREFIX.unpack_from(value)[0] != MAGIC:
        return None
    text_bytes = PREFIX.unpack_from(value)[1]
    told = json.loads(value[PREFIX.size:PREFIX.size + text_bytes])
    start = -(-(PREFIX.size + text_bytes) // PRELUDE_UNIT) * PRELUDE_UNIT
    kind = getattr(torch, told["dtype"])
    if start == len(value):
        return torch.empty(told["shape"], dtype=kind)
    return torch.frombuffer(value, dtype=kind, offset=start).reshape(told["shape"])
