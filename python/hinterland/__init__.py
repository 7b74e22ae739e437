"""Hinterland for Python: objects and memory of other machines, mapped without a copy.

    import hinterland, numpy

    with hinterland.Pool() as pool:
        pool.put("weights", numpy.arange(10.0))
        with pool.map("weights") as mapping:
            print(numpy.frombuffer(mapping).sum())
"""

from ._native import Fragments, Guard, KvCache, KvGpu, KvQueue, KvTransfer, Mapping, Object, __version__
from .errors import (
    AccessError,
    ExistsError,
    HinterlandError,
    NoNodeError,
    NotFoundError,
    TimedOutError,
)
from .pool import Lock, Pool
from .records import (
    CacheStatus,
    Counters,
    Home,
    Member,
    NodeStatus,
    ObjectInfo,
    Problem,
    Verified,
)

__all__ = [
    "AccessError",
    "CacheStatus",
    "Counters",
    "ExistsError",
    "Fragments",
    "Guard",
    "HinterlandError",
    "Home",
    "KvCache",
    "KvGpu",
    "KvQueue",
    "KvTransfer",
    "Lock",
    "Mapping",
    "Member",
    "NoNodeError",
    "NodeStatus",
    "NotFoundError",
    "Object",
    "ObjectInfo",
    "Pool",
    "Problem",
    "TimedOutError",
    "Verified",
    "__version__",
]
