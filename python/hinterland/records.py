"""What the pool tells, as frozen dataclasses. Sizes are bytes."""

import builtins
from dataclasses import dataclass
from typing import Any, Literal, Optional


@dataclass(frozen=True)
class Home:
    """One node that holds a whole copy of an object."""

    node: int
    rack: str
    #: `HOST:PORT` of its fabric.
    address: str
    #: Whether its lease is alive.
    up: bool
    #: Whether it is none of the copies that were asked for, but there because its rack reads the object a lot; only `stat` and `list` say so.
    heat: bool


@dataclass(frozen=True)
class ObjectInfo:
    """What is known of an object."""

    name: str
    bytes: int
    #: A sealed object never changes, a region is read and written in place.
    state: Literal["sealed", "region", "writing"]
    #: Global address of the first byte.
    address: Optional[int]
    #: Identifier, never used twice.
    object: int
    #: Copies that were asked for.
    copies: int
    #: blake3 over the size and the crc32c of each 64 KiB block; zeros for a region.
    digest: builtins.bytes
    homes: "tuple[Home, ...]"


@dataclass(frozen=True)
class Verified:
    """What comparing every copy with its checksums found."""

    #: Blocks of 64 KiB that were compared, over all copies.
    blocks: int
    #: Nodes whose copy is right.
    good: "tuple[int, ...]"
    #: Nodes whose copy is wrong or could not be read, and why.
    bad: "tuple[tuple[int, str], ...]"


@dataclass(frozen=True)
class Member:
    """One node of the pool."""

    node: int
    #: What people call it; `None` of one that has not joined since nodes say it.
    name: str | None
    rack: str
    #: `HOST:PORT` of its fabric.
    address: str
    #: Whether its lease is alive.
    up: bool
    capacity_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Counters:
    """Counters of a node since it started."""

    network_received_bytes: int
    network_sent_bytes: int
    faults: int
    demand_fills: int
    prefetch_fills: int
    filled_bytes: int
    evictions: int
    evicted_bytes: int
    checksum_failures: int
    failovers: int
    poisoned_faults: int
    ring_requests: int
    demand_fill_us: int
    copies_made: int
    copied_bytes: int
    heat_copies_made: int
    heat_copies_dropped: int


@dataclass(frozen=True)
class CacheStatus:
    """One cached object of another rack."""

    name: str
    bytes: int
    resident_bytes: int
    budget_bytes: Optional[int]
    units: int
    resident_units: int
    mappings: int
    #: "huge", "transparent" or "base".
    pages: str


@dataclass(frozen=True)
class Problem:
    """Something that went wrong on a node."""

    #: Milliseconds since 1970.
    at_ms: int
    text: str


@dataclass(frozen=True)
class NodeStatus:
    """What a node says of itself."""

    node: int
    name: str
    rack: str
    #: `HOST:PORT` of its fabric.
    address: str
    #: Whether it hosts the directory.
    directory: bool
    pid: int
    uptime_s: int
    capacity_bytes: int
    used_bytes: int
    cache_budget_bytes: int
    cache_bytes: int
    #: What its memory is made of, in words.
    backing: str
    sessions: int
    counters: Counters
    caches: "tuple[CacheStatus, ...]"
    #: Cached objects that are not among them, because an answer has no room for all.
    caches_left_out: int
    #: The last ones, oldest first.
    problems: "tuple[Problem, ...]"


def object_info(fields: "dict[str, Any]") -> ObjectInfo:
    """Gives the fields of an object their types."""
    return ObjectInfo(**{**fields, "homes": tuple(Home(**home) for home in fields["homes"])})


def verified(fields: "dict[str, Any]") -> Verified:
    """Gives the fields of a comparison their types."""
    return Verified(fields["blocks"], tuple(fields["good"]), tuple(fields["bad"]))


def node_status(fields: "dict[str, Any]") -> NodeStatus:
    """Gives the fields of a status their types."""
    parts = {
        "counters": Counters(**fields["counters"]),
        "caches": tuple(CacheStatus(**cache) for cache in fields["caches"]),
        "problems": tuple(Problem(**problem) for problem in fields["problems"]),
    }
    return NodeStatus(**{**fields, **parts})
