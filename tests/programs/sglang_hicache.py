"""SGLang's HiCache over Hinterland, as far as it runs without a GPU: its factory, its host pools, its cache controller's page
functions, its Mooncake back end over Hinterland's store. One line of JSON for each part. usage: sglang_hicache.py SOCKET"""

import json
import sys
import types

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

PAGES, PAGE = 6, 16


def say(part, **found):
    print(json.dumps({"part": part, **found}), flush=True)


def storage_config(mla=False, **extra):
    return HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla,
        enable_storage_metrics=True, is_page_first_layout=True, model_name="org/model",
        extra_config={"backend_name": "hinterland", "module_path": "hinterland.compat.sglang", "interface_v1": 1,
                      "class_name": "HinterlandHiCache", "socket": sys.argv[1], "extra_backend_tag": "tests", **extra})


def host_pool(kind, layout, seed=None):
    """A host pool of SGLang with its buffer and none of the device's."""
    pool = object.__new__(kind)
    pool.layout, pool.page_size, pool.dtype, pool.device = layout, PAGE, torch.bfloat16, "cpu"
    pool.layer_num = pool.target_layer_num = 4
    pool.start_layer, pool.end_layer = 0, 4
    pool.page_num = PAGES
    pool.size = PAGES * PAGE
    pool.head_num, pool.head_dim, pool.v_head_dim, pool.head_group_num = 2, 32, 32, 1
    pool.kv_lora_rank, pool.qk_rope_head_dim, pool.kv_cache_dim = 32, 8, 40
    pool.pin_memory = False
    pool.allocator = types.SimpleNamespace(
        allocate=lambda shape, dtype=torch.bfloat16, device="cpu", **_: torch.zeros(shape, dtype=dtype))
    shape = {MHATokenToKVPoolHost: {
        "layer_first": (2, 4, pool.size, 2, 32), "page_first": (2, pool.size, 4, 2, 32),
        "page_first_direct": (2, PAGES, 4, PAGE, 2, 32),
    }, MLATokenToKVPoolHost: {
        "layer_first": (4, pool.size, 1, 40), "page_first": (pool.size, 4, 1, 40), "page_first_direct": (PAGES, 4, PAGE, 1, 40),
    }}[kind][layout]
    pool.kv_buffer = torch.zeros(shape, dtype=torch.bfloat16)
    if seed is not None:
        pool.kv_buffer.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    return pool


def indices_of(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def page_functions(kind, layout):
    """What one engine's controller writes, another's reads into other pages."""
    writer, reader = host_pool(kind, layout, seed=1), host_pool(kind, layout)
    config = storage_config(mla=kind is MLATokenToKVPoolHost)
    backends = []
    for pool in (writer, reader):
        backends.append(StorageBackendFactory.create_backend("dynamic", config, pool))
        backends[-1].register_mem_pool_host(pool)
    keys = [f"{layout}{page:064x}" for page in range(PAGES)]
    stored = backends[0].batch_set_v1(keys[:4], indices_of(range(4)))
    controller = types.SimpleNamespace(storage_backend=backends[1])
    operation = types.SimpleNamespace(request_id="r")
    exists = backends[1].batch_exists(keys)
    got = HiCacheController._page_get_zero_copy(controller, operation, keys[:5], indices_of([5, 4, 3, 2, 1]))
    token_axis = {"layer_first": kind is MHATokenToKVPoolHost and 2 or 1, "page_first": kind is MHATokenToKVPoolHost and 1 or 0}
    pairs = zip(range(4), [5, 4, 3, 2])

    def page(buffer, index):
        if layout == "page_first_direct":
            return buffer.select(1 if kind is MHATokenToKVPoolHost else 0, index)
        return buffer.narrow(token_axis[layout], index * PAGE, PAGE)

    equal = all(bool((page(writer.kv_buffer, one) == page(reader.kv_buffer, two)).all()) for one, two in pairs)
    untouched = bool((page(reader.kv_buffer, 0) == 0).all())
    stats = backends[0].get_stats()
    say(f"{kind.__name__} {layout}", stored=stored, exists=exists, got=got, equal=equal, untouched=untouched,
        backup_pgs=stats.backup_pgs)
    backends[0].clear()
    for backend in backends:
        backend.close()


def generic_functions():
    """Pages by tensors, and several pools."""
    backend = StorageBackendFactory.create_backend("dynamic", storage_config(extra_backend_tag="generic"), None)
    page = torch.randn(1000).to(torch.bfloat16)
    stored = [backend.set("k" * 100, page), backend.batch_set(["a", "b"], [page[:5], torch.randn(3 << 20)])]
    into = [torch.zeros(1000, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.bfloat16), torch.zeros(7)]
    found = backend.batch_get(["k" * 100, "a", "none"], into)
    say("tensors", stored=stored, found=[each is not None for each in found],
        equal=bool((into[0] == page).all() and (into[1] == page[:5]).all()), exists=backend.exists("b"),
        wrong_size=backend.get("a", torch.zeros(6, dtype=torch.bfloat16)) is None)
    kv, state = (host_pool(MHATokenToKVPoolHost, "page_first", seed) for seed in (1, 2))
    backend.register_mem_pool_host(kv)
    backend.register_mem_host_pool_v2(kv, PoolName.KV)
    backend.register_mem_host_pool_v2(state, PoolName.MAMBA)
    backend.batch_set_v2([PoolTransfer(PoolName.KV, host_indices=indices_of(range(4)), keys=["0", "1", "2", "3"]),
                          PoolTransfer(PoolName.MAMBA, host_indices=indices_of([2]), keys=["2"])])
    trailing = PoolTransfer(PoolName.MAMBA, keys=["x"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    result = backend.batch_exists_v2(["0", "1", "2", "3", "4"], [trailing])
    full = backend.batch_exists_v2(["0", "1"], [PoolTransfer(PoolName.MAMBA)])
    before = state.kv_buffer.clone()
    state.kv_buffer.zero_()
    loaded = backend.batch_get_v2([PoolTransfer(PoolName.MAMBA, host_indices=indices_of([2, 0]), keys=["2", "3"])])
    say("pools", kv_hit_pages=result.kv_hit_pages, restorable=result.restorable_prefix_pages, all_pages=full.kv_hit_pages,
        loaded=loaded[PoolName.MAMBA],
        equal=bool((before.narrow(1, 2 * PAGE, PAGE) == state.kv_buffer.narrow(1, 2 * PAGE, PAGE)).all()))
    backend.clear()
    backend.close()


def main():
    for kind in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
        for layout in ("layer_first", "page_first", "page_first_direct"):
            page_functions(kind, layout)
    generic_functions()


if __name__ == "__main__":
    main()
