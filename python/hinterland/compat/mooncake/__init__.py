"""Mooncake's store class, `MooncakeDistributedStore`, over the KV blocks of this host.

Programs that import `mooncake.store` get it unchanged with this folder in front of their path:

    PYTHONPATH=$(python -m hinterland.compat.mooncake --path) program
"""

from .config import ObjectDataType, ReplicateConfig, SoftPinAction
from .memory import BufferHandle
from .store import MooncakeDistributedStore

__all__ = ["BufferHandle", "MooncakeDistributedStore", "ObjectDataType", "ReplicateConfig", "SoftPinAction"]
