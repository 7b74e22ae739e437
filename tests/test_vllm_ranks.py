"""The vLLM connector's scheduler and workers, and those of other hosts, agree on what they share, or say that they share nothing. vLLM
and PyTorch are not needed: what is used of them stands in this file."""

import importlib
import logging
import os
import sys
import types

import pytest
from conftest import TREE

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
BLOCK = 16
# Commits of a model of the Hub.
OLD, NEW = "0" * 40, "1" * 40


class Spec:
    """The cache of layers that are all alike."""

    prefix_cacheable, block_size, page_size_bytes = True, BLOCK, 4096

    def __repr__(self):
        return f"Spec({self.page_size_bytes})"


class ConnectorBase:
    def __init__(self, vllm_config, role, kv_cache_config):
        pass


@pytest.fixture
def vllm(hinterland, monkeypatch):
    """The connector's module, over stand-ins of vLLM's and PyTorch's."""

    def module(name, **names):
        made = types.ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    module("torch")
    for count in range(1, BASE.count(".") + 1):
        module(".".join(BASE.split(".")[:count]), __version__="0")
    roles = types.SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")
    module(BASE, KVConnectorBase_V1=ConnectorBase, KVConnectorRole=roles, KVConnectorTransferResults=None, SupportsHMA=object,
           KVConnectorMetadata=object)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.distributed.kv_events", MEDIUM_CPU="CPU", AllBlocksCleared=None, BlockRemoved=None, BlockStored=None)
    for name in ("vllm.v1", "vllm.v1.core"):
        module(name)
    module("vllm.v1.core.kv_cache_utils", maybe_convert_block_hash=None)
    monkeypatch.setattr(sys.modules["hinterland"], "__path__", [str(TREE / "python/hinterland")])
    yield importlib.import_module("hinterland.vllm.connector")
    for name in [name for name in sys.modules if name.startswith("hinterland.vllm")]:
        del sys.modules[name]


@pytest.fixture
def connect(vllm, node):
    """A function that makes one side of a connector."""
    made = []

    def connect(role="scheduler", rank=0, layers=("layer.0", "layer.1"), spec=None, hashed=BLOCK, device="cpu", cache=None, media=None,
                model=None, loader=None, namespace="", **parallel):
        parallel = {"world_size": 2, "rank": rank, "tensor_parallel_size": 2, "pipeline_parallel_size": 1,
                    "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, **parallel}
        transfer = types.SimpleNamespace(kv_connector_extra_config={"socket": str(node.socket), "namespace": namespace}, is_kv_consumer=True, is_kv_producer=True)
        config = types.SimpleNamespace(
            kv_transfer_config=transfer, parallel_config=types.SimpleNamespace(**parallel), speculative_config=None, kv_events_config=None,
            device_config=types.SimpleNamespace(device_type=device),
            model_config=types.SimpleNamespace(**{
                "dtype": "bfloat16", "quantization": None, "seed": 0, "model": "a/model", "revision": OLD,
                "hf_config": types.SimpleNamespace(to_json_string=str),
                "multimodal_config": media and types.SimpleNamespace(mm_processor_kwargs=media), **(model or {})}),
            cache_config=types.SimpleNamespace(**{"cache_dtype": "auto", "prefix_caching_hash_algo": "sha256", **(cache or {})}),
            load_config=types.SimpleNamespace(**{"load_format": "auto", **(loader or {})}),
        )
        group = types.SimpleNamespace(layer_names=list(layers), kv_cache_spec=spec or Spec(), enable_kv_transfer=True)
        layout = types.SimpleNamespace(num_blocks=64, kv_cache_groups=[group], kv_cache_layout="NHD", hash_block_size=hashed)
        made.append(vllm.HinterlandConnector(config, role, layout))
        return made[-1]

    yield connect
    for connector in made:
        connector.shutdown()


def namespaces(*connectors):
    """The fingerprints that schedulers look in, or that workers have."""
    return [link.fingerprint for side in connectors for link in (side.planner.links if side.planner else [side.copier.link])]


def test_a_scheduler_looks_where_its_workers_store(connect):
    assert namespaces(connect()) == namespaces(connect("worker", 0), connect("worker", 1))


@pytest.mark.parametrize("choices,why", [
    ({"pipeline_parallel_size": 2, "tensor_parallel_size": 1}, "layers of its own"),
    ({"decode_context_parallel_size": 2, "hashed": 2 * BLOCK}, "on several of its ranks"),
    ({"prefill_context_parallel_size": 2}, "on several of its ranks"),
    # Blocks of groups that are hashed in smaller parts.
    ({"hashed": BLOCK // 2}, "a hash stands for 8 tokens"),
    # Each engine has the scales of what it computed first.
    ({"cache": {"cache_dtype": "fp8", "calculate_kv_scales": True}}, "scales of its own"),
])
def test_an_engine_whose_ranks_or_hashes_are_not_understood_stands_aside(connect, caplog, choices, why):
    scheduler, worker = connect(**choices), connect("worker", 1, layers=("layer.2", "layer.3"), **choices)
    assert scheduler.planner is None and worker.copier is None and why in caplog.text
    request = types.SimpleNamespace(request_id="r", num_tokens=100, block_hashes=[], lora_request=None)
    assert scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


def test_engines_that_make_different_tokens_of_an_image_do_not_share(connect):
    names = [namespaces(connect("worker", media=media)) for media in (None, {"num_crops": 4, "a": 1}, {"a": 1, "num_crops": 4}, {"num_crops": 16})]
    assert names[1] == names[2] and len({name for (name,) in names}) == 3
    # Without a type that is scaled, the switch does nothing.
    assert namespaces(connect("worker", cache={"calculate_kv_scales": True})) == names[0]


@pytest.mark.parametrize("place", ["in it", "beside it", "of a kind of layer"])
def test_engines_that_turn_keys_for_short_and_for_long_contexts_do_not_share(connect, place):
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    if place == "beside it":
        rope = {"type": "su"}
    beside = {"original_max_position_embeddings": 4096} if place == "beside it" else {}
    ropes = {"rope_parameters": {"full_attention": rope, "other": None}} if place == "of a kind of layer" else {"rope_scaling": rope}
    config = types.SimpleNamespace(to_json_string=str, **ropes, **beside)
    names = [namespaces(connect("worker", model={"hf_config": config, "max_model_len": longest})) for longest in (2048, 4096, 4097, 131072)]
    assert names[0] == names[1] != names[2] == names[3]
    # Of other models the longest context decides nothing.
    plain = types.SimpleNamespace(to_json_string=str, rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 4096})
    names = [namespaces(connect("worker", model={"hf_config": plain, "max_model_len": longest})) for longest in (2048, 131072)]
    assert names[0] == names[1] == namespaces(connect("worker"))


def test_engines_whose_loaders_were_told_of_other_weights_do_not_share(connect):
    loaders = [{"model_loader_extra_config": {"tensorizer_uri": uri}} for uri in ("one", "two", "two")] + [{"model_loader_extra_config": {}}]
    names = [namespaces(connect("worker", loader=loader)) for loader in loaders]
    assert names[0] != names[1] == names[2] and names[3] == namespaces(connect("worker"))


def test_engines_of_two_commits_of_a_model_do_not_share(connect, monkeypatch, tmp_path):
    """Not every form of a configuration says which commit it is of; then the cache of the Hub's library does."""
    refs = tmp_path / "hub/models--a--model/refs"
    refs.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def of(commit, **model):
        (refs / "main").write_text(commit)
        return namespaces(connect("worker", model={"revision": None, **model}))

    assert of(OLD) == of(OLD) != of(NEW)
    config = types.SimpleNamespace(to_json_string=str, _commit_hash=NEW)
    assert of(OLD, hf_config=config) == of(NEW), "what was read tells more than what would be read now"
    # Weights are looked up where they are downloaded to.
    beside = tmp_path / "beside/models--a--model/refs"
    beside.mkdir(parents=True)
    (beside / "main").write_text(NEW)
    (there,) = namespaces(connect("worker", model={"revision": None}, loader={"download_dir": str(tmp_path / "beside")}))
    assert [there] == of(NEW)


def test_an_engine_whose_weights_nothing_tells_stands_aside(connect, caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for revision in (None, "a-branch", "../refs", "0" * 39):
        scheduler, worker = connect(model={"revision": revision}), connect("worker", model={"revision": revision})
        assert scheduler.planner is None and worker.copier is None
        assert "which weights a/model stands for" in caplog.text and "hint: " in caplog.text
    # Who says which version it is has said it.
    one, two = (namespaces(connect("worker", model={"revision": None}, namespace=namespace)) for namespace in ("one", "two"))
    assert one != two
    assert connect("worker", model={"revision": None}, loader={"load_format": "dummy"}).copier, "made of the seed"


def test_engines_do_not_share_once_a_file_of_their_model_was_written_anew(connect, tmp_path):
    def of():
        return namespaces(connect("worker", model={"model": str(tmp_path), "revision": None}))

    (tmp_path / "model.safetensors").write_text("old")
    (tmp_path / "config.json").symlink_to("nowhere")
    before = of()
    assert of() == before
    (tmp_path / "model.safetensors").write_text("new")
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert of() != before


def test_a_worker_whose_layers_differ_in_size_stores_nothing_that_its_scheduler_would_not_find(connect, caplog):
    several = Spec()
    several.kv_cache_specs = {"layer.0": Spec(), "layer.1": Spec()}
    assert connect("worker", spec=several).copier is None and "different sizes" in caplog.text


def test_hosts_whose_processors_pack_keys_in_different_ways_do_not_share(connect, monkeypatch, tmp_path):
    from hinterland.vllm import fingerprint

    def of(*flags, device="cpu"):
        (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags\t\t: fpu {' '.join(flags)}\n")
        monkeypatch.setattr(fingerprint, "CPUINFO", tmp_path / "cpuinfo")
        (name,) = namespaces(connect("worker", device=device))
        return name

    assert len({of(), of("avx512f"), of("avx512f", "amx_tile")}) == 3
    assert of("avx512f") == of("avx512f", "avx512_vp2intersect")
    assert of(device="cuda") == of("amx_tile", device="cuda")
