"""LMCache's adapter over Hinterland's plug-in, made as its server makes it: stores, finds, loads and deletes; one line of JSON.

usage: lmcache_adapter.py SOCKET
"""

import json
import select
import sys
import time

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import NativePluginL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

MEBIBYTE = 1 << 20


def memory(size, seed=None):
    """Memory as LMCache's first level hands it to its second."""
    raw = torch.zeros(size, dtype=torch.uint8)
    if seed is not None:
        raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    metadata = MemoryObjMetadata(shape=raw.shape, dtype=raw.dtype, address=0, phy_size=size, ref_count=1,
                                 fmt=MemoryFormat.KV_2LTD, shapes=[raw.shape], dtypes=[raw.dtype])
    return TensorMemoryObj(raw, metadata, None)


def wait(descriptor, take):
    """What `take` gives when the descriptor has said that there is something."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        select.select([descriptor], [], [], 1)
        result = take()
        if result is not None and result != {}:
            return result
    raise TimeoutError("the adapter says nothing")


def main():
    config = NativePluginL2AdapterConfig.from_dict({
        "type": "native_plugin", "module_path": "hinterland.compat.lmcache", "class_name": "Client",
        "adapter_params": {"socket": sys.argv[1], "namespace": "tests"}, "max_capacity_gb": 1,
    })
    adapter = create_l2_adapter_from_registry(config)
    keys = [ObjectKey(chunk_hash=bytes([number]) * 32, model_name="org/model", kv_rank=1) for number in range(3)]
    sizes = [300_000, 33 * MEBIBYTE]
    stored = [memory(size, seed) for seed, size in enumerate(sizes)]
    task = adapter.submit_store_task(keys[:2], stored)
    done = wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)[task]
    task = adapter.submit_lookup_and_lock_task(keys, {})
    found = wait(adapter.get_lookup_and_lock_event_fd(), lambda: adapter.query_lookup_and_lock_result(task))
    loaded = [memory(size) for size in [*sizes, 100]]
    task = adapter.submit_load_task(keys, loaded)
    got = wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
    adapter.submit_unlock(keys)
    adapter.delete(keys[:1])
    task = adapter.submit_lookup_and_lock_task(keys[:2], {})
    left = wait(adapter.get_lookup_and_lock_event_fd(), lambda: adapter.query_lookup_and_lock_result(task))
    print(json.dumps({
        "stored": bool(done.success if hasattr(done, "success") else done.is_successful()),
        "found": [bool(found.test(index)) for index in range(3)],
        "loaded": [bool(got.test(index)) for index in range(3)],
        "equal": all(bool((one.raw_data == two.raw_data).all()) for one, two in zip(stored, loaded)),
        "deleted": [bool(left.test(index)) for index in range(2)],
    }))
    adapter.close()


if __name__ == "__main__":
    main()
