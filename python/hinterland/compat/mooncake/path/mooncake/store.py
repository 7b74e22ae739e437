"""The module `mooncake.store` for programs that know nothing of Hinterland."""

from hinterland.compat.mooncake import (
    BufferHandle,
    MooncakeDistributedStore,
    ObjectDataType,
    ReplicateConfig,
    SoftPinAction,
)

__all__ = ["BufferHandle", "MooncakeDistributedStore", "ObjectDataType", "ReplicateConfig", "SoftPinAction"]
