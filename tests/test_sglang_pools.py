"""The back end for SGLang's HiCache tells pools of different forms apart. SGLang and PyTorch are not needed: what is used of them stands in
this file."""

import ctypes
import enum
import importlib
import os
import sys
import types

import pytest

STORAGE = "sglang.srt.mem_cache.hicache_storage"
# An engine that was told of nothing but its model.
MODEL: dict = {}


class PoolName(str, enum.Enum):
    KV, MAMBA, DRAFT, SWA = "kv", "mamba", "draft", "swa"


class Storage:
    """The class that back ends are made of."""

    def register_mem_pool_host(self, pool):
        self.mem_pool_host = pool

    def register_mem_host_pool_v2(self, pool, name):
        self.registered_pools = {**getattr(self, "registered_pools", {}), name: pool}


class Indices(list):
    def numel(self):
        return len(self)


class Pool:
    """A pool of states of 64 bytes, one a page."""

    page_size = 1

    def __init__(self, fill, **form):
        vars(self).update(form)
        self.memory = bytearray([fill]) * 256
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def get_page_buffer_meta(self, indices):
        return [self.start + 64 * index for index in indices], [64] * len(indices)


@pytest.fixture
def connect(hinterland, monkeypatch, node, tmp_path):
    """A function that makes a back end with a pool of keys and values and one of states. `engine` is what the engine was told beside its
    model; None for a release that does not say."""
    (tmp_path / "model").mkdir()

    def module(name, **names):
        made = types.ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    module("torch", Tensor=type("Tensor", (), {}))
    for count in range(1, STORAGE.count(".") + 1):
        module(".".join(STORAGE.split(".")[:count]))
    module(STORAGE, HiCacheStorage=Storage, PoolName=PoolName, HiCacheStorageConfig=None, HiCacheStorageExtraInfo=None, PoolHitPolicy=None,
           PoolTransfer=None, PoolTransferResult=None)
    backend = importlib.import_module("hinterland.compat.sglang")
    made = []

    def connect(states, name=PoolName.MAMBA, is_mla_model=False, tp_rank=0, tp_size=1, lacks=(), engine=MODEL, **extra):
        names = {}
        if engine is not None:
            told = types.SimpleNamespace(**{"model_path": str(tmp_path / "model"), **engine})
            names["get_global_server_args"] = lambda: told
        module("sglang.srt.server_args", **names)
        config = types.SimpleNamespace(
            extra_config={"socket": str(node.socket), **extra}, model_name="m", pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, dcp_rank=0,
            dcp_size=1, logical_page_size=1, tp_rank=tp_rank, tp_size=tp_size, is_mla_model=is_mla_model)
        for field in lacks:
            delattr(config, field)
        made.append(backend.HinterlandHiCache(config))
        made[-1].register_mem_pool_host(Pool(0, dtype="float8"))
        made[-1].register_mem_host_pool_v2(states, name)
        return made[-1]

    yield connect
    for each in made:
        each.close()
    del sys.modules["hinterland.compat.sglang"]


def transfer(name=PoolName.MAMBA):
    return types.SimpleNamespace(name=name, keys=["page"], host_indices=Indices([1]))


@pytest.mark.parametrize("other", [
    {"temporal_dtype": "float16"}, {"conv_dtype": "float16"}, {"conv_state_shapes": [(8, 4)]}, {"temporal_state_shape": (8, 4)},
    {"layout": "page_first"},
])
def test_states_of_another_form_are_not_taken_for_ones_own(connect, other):
    form = {"temporal_dtype": "bfloat16", "conv_dtype": "bfloat16", "conv_state_shapes": [(4, 8)], "temporal_state_shape": (4, 8),
            "layout": "page_first_direct"}
    writer = connect(Pool(7, **form))
    assert writer.batch_set_v2([transfer()]) == {PoolName.MAMBA: [True]}
    same, different = Pool(1, **form), Pool(1, **{**form, **other})
    assert connect(same).batch_get_v2([transfer()]) == {PoolName.MAMBA: [True]} and same.memory[64:128] == bytes([7]) * 64
    assert connect(different).batch_get_v2([transfer()]) == {PoolName.MAMBA: [False]} and different.memory == bytes([1]) * 256


def test_a_release_that_cuts_no_pages_for_ranks_is_served(connect):
    """Releases of SGLang differ in whether their configuration says how tokens are shared out for decoding."""
    lacks = ("dcp_rank", "dcp_size", "logical_page_size")
    pool = Pool(1)
    assert connect(Pool(7), lacks=lacks).batch_set_v2([transfer()]) == {PoolName.MAMBA: [True]}
    assert connect(pool, lacks=lacks).batch_get_v2([transfer()]) == {PoolName.MAMBA: [True]} and pool.memory[64:128] == bytes([7]) * 64


def test_a_rank_does_not_take_the_heads_of_another_for_its_own(connect):
    """A draft with heads beside a model of MLA: of the model's cache all ranks have the same, of the draft's each has its heads."""
    heads, wanted = {"head_num": 4, "head_dim": 8}, [transfer(PoolName.DRAFT)]
    engine = {"name": PoolName.DRAFT, "is_mla_model": True, "tp_size": 2}
    for rank in (0, 1):
        assert connect(Pool(7 + rank, **heads), tp_rank=rank, **engine).batch_set_v2(wanted) == {PoolName.DRAFT: [True]}
    for rank in (0, 1):
        pool = Pool(1, **heads)
        assert connect(pool, tp_rank=rank, **engine).batch_get_v2(wanted) == {PoolName.DRAFT: [True]}
        assert pool.memory[64:128] == bytes([7 + rank]) * 64


@pytest.mark.parametrize(("name", "form"), [
    (PoolName.DRAFT, {"kv_lora_rank": 32, "qk_rope_head_dim": 8}), (PoolName.SWA, {"head_num": 1, "head_dim": 8}),
])
def test_ranks_share_what_is_the_same_in_all_of_them(connect, name, form):
    engine = {"name": name, "is_mla_model": True, "tp_size": 2}
    assert connect(Pool(7, **form), tp_rank=0, **engine).batch_set_v2([transfer(name)]) == {name: [True]}
    pool = Pool(1, **form)
    assert connect(pool, tp_rank=1, **engine).batch_get_v2([transfer(name)]) == {name: [True]} and pool.memory[64:128] == bytes([7]) * 64


def test_an_engine_with_adapters_shares_nothing_unless_its_hashes_tell_them_apart(connect, caplog):
    pool = Pool(1)
    assert connect(Pool(7), engine={"enable_lora": False}).batch_set_v2([transfer()]) == {PoolName.MAMBA: [True]} and not caplog.text
    adapted = connect(pool, engine={"enable_lora": True})
    assert "hint: " in caplog.text and adapted.batch_get_v2([transfer()]) == {PoolName.MAMBA: [False]} and pool.memory == bytes([1]) * 256
    assert adapted.batch_set_v2([transfer()]) == {PoolName.MAMBA: [False]} and not adapted.exists("page") and adapted.clear()
    told = connect(Pool(8), engine={"enable_lora": True}, hashes_have_adapters=True)
    assert told.batch_set_v2([transfer()]) == told.batch_get_v2([transfer()]) == {PoolName.MAMBA: [True]}


def test_engines_that_scale_or_change_a_model_in_different_ways_do_not_share(connect, tmp_path):
    for name, scale in ("a", "1"), ("b", "2"), ("c", "1"):
        (tmp_path / name).write_text(scale)
    engines = [{}, {"revision": "old"}, {"quantization": "fp8"}, {"json_model_override_args": '{"rope_theta": 1}'},
               {"quantization_param_path": str(tmp_path / "a")}, {"quantization_param_path": str(tmp_path / "b")}]
    for number, engine in enumerate(engines):
        pool = Pool(1)
        assert connect(pool, engine=engine).batch_get_v2([transfer()]) == {PoolName.MAMBA: [False]}, engine
        assert connect(Pool(number), engine=engine).batch_set_v2([transfer()]) == {PoolName.MAMBA: [True]}
    for number, engine in (0, {"json_model_override_args": "{}"}), (4, {"quantization_param_path": str(tmp_path / "c")}):
        pool = Pool(9)
        assert connect(pool, engine=engine).batch_get_v2([transfer()]) == {PoolName.MAMBA: [True]}
        assert pool.memory[64:128] == bytes([number]) * 64


def is_shared(connect, one, other, **extra):
    """Whether what an engine stores is found by another, and right."""
    assert connect(Pool(7), engine=one, **extra).batch_set_v2([transfer()]) == {PoolName.MAMBA: [True]}
    pool = Pool(1)
    (found,) = connect(pool, engine=other, **extra).batch_get_v2([transfer()])[PoolName.MAMBA]
    assert pool.memory[64:128] == bytes([7 if found else 1]) * 64
    return found


def test_models_that_are_served_under_one_name_do_not_share(connect, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights")
        os.utime(tmp_path / name / "model.safetensors", ns=(1, 1))
    one, two = ({"model_path": str(tmp_path / name)} for name in ("one", "two"))
    assert not is_shared(connect, one, two) and is_shared(connect, one, one)
    assert is_shared(connect, one, {"model_path": str(tmp_path / "two/../one")}), "a folder has several names"


def test_a_folder_whose_files_were_written_anew_is_another_model(connect, tmp_path):
    weights = tmp_path / "model/model.safetensors"
    weights.write_text("old")
    assert connect(Pool(7)).batch_set_v2([transfer()]) == {PoolName.MAMBA: [True]}
    pool = Pool(1)
    assert connect(pool).batch_get_v2([transfer()]) == {PoolName.MAMBA: [True]} and pool.memory[64:128] == bytes([7]) * 64
    weights.write_text("new")
    os.utime(weights, ns=(1, 1))
    pool = Pool(1)
    assert connect(pool).batch_get_v2([transfer()]) == {PoolName.MAMBA: [False]} and pool.memory == bytes([1]) * 256


def test_two_commits_of_a_model_of_the_hub_do_not_share(connect, monkeypatch, tmp_path):
    refs = tmp_path / "hub/models--org--model/refs"
    refs.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    engine = {"model_path": "org/model"}
    (refs / "main").write_text("0" * 40)
    assert is_shared(connect, engine, engine)
    (refs / "main").write_text("1" * 40)
    pool = Pool(1)
    assert connect(pool, engine=engine).batch_get_v2([transfer()]) == {PoolName.MAMBA: [False]} and pool.memory == bytes([1]) * 256


@pytest.mark.parametrize("engine", [None, {"model_path": "org/model"}])
def test_an_engine_whose_weights_nothing_tells_shares_nothing_unless_it_has_a_tag(connect, caplog, monkeypatch, tmp_path, engine):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    aside = connect(Pool(7), engine=engine)
    assert "nothing tells which weights" in caplog.text and "extra_backend_tag" in caplog.text
    assert aside.batch_set_v2([transfer()]) == {PoolName.MAMBA: [False]} and not aside.exists("page")
    assert is_shared(connect, engine, engine, extra_backend_tag="version 1")
    pool = Pool(1)
    other = connect(pool, engine=engine, extra_backend_tag="version 2")
    assert other.batch_get_v2([transfer()]) == {PoolName.MAMBA: [False]} and pool.memory == bytes([1]) * 256
