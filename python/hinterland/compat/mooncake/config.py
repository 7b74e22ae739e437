"""What a program may say about a value. Blocks lie once in the memory of the host, so most of it asks for nothing here."""

from __future__ import annotations

import enum


class SoftPinAction(enum.Enum):
    """Whether a value is to outlive others when memory is short. Eviction follows use here, whatever is said."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(enum.Enum):
    """What a value is."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicateConfig:
    """Wishes about a value: copies, places, pins. They are kept and checked; one copy in this host is what there is."""

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.with_hard_pin = False
        self.soft_pin_action = SoftPinAction.PRESERVE
        self.soft_pin_ttl_ms: int | None = None
        self.preferred_segment = ""
        self.preferred_segments: list[str] = []
        self.preferred_nof_segments: list[str] = []
        self.prefer_alloc_in_same_node = False
        self.group_ids: list[str] | None = None
        self.data_type = ObjectDataType.UNKNOWN

    def __setattr__(self, name: str, value: object) -> None:
        """As strict as Mooncake's: what is no lifetime in milliseconds is a TypeError at once."""
        if name == "soft_pin_ttl_ms" and value is not None and not (isinstance(value, int) and 0 <= value < 1 << 64):
            raise TypeError(f"soft_pin_ttl_ms is milliseconds or None, not {value!r} (hint: 0 to 2^64 - 1)")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"ReplicateConfig({fields})"

    def is_sound(self, keys: int) -> bool:
        """Whether a call about so many keys may be made with it: a lifetime belongs to a pin that is enabled, and group
        identifiers to every key."""
        if self.soft_pin_ttl_ms is not None and self.soft_pin_action is not SoftPinAction.ENABLE:
            return False
        return self.group_ids is None or len(self.group_ids) == keys
