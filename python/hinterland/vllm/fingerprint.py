"""What engines must agree on before they read each other's blocks, as the text of a namespace."""

import json
import os
import pathlib
import platform

import vllm

from ..weights import digest, state

# Hash algorithms whose seed is drawn anew in each process unless PYTHONHASHSEED is set.
SEEDED_AT_RANDOM = ("xxhash", "xxhash_cbor")
CPUINFO = pathlib.Path("/proc/cpuinfo")
# Kinds of positions with two sets of factors, for short and for long contexts.
LONG_ROPES = ("longrope", "su")
# What vLLM's attention on processors lays keys out for, beside the kind of the processor.
LAID_OUT_FOR = {"amx_tile", "avx512f"}


def fingerprint(vllm_config, shape, namespace, rank):
    """The text for one rank. `shape` says how a block lies in memory, `namespace` is what the user set.

    ValueError when block hashes would differ between processes, so that nothing could ever be found.
    """
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    algorithm = cache.prefix_caching_hash_algo
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and algorithm in SEEDED_AT_RANDOM:
        raise ValueError(
            f"hinterland: with prefix_caching_hash_algo={algorithm} each engine hashes with a seed of its own, so none finds"
            " the blocks of another (hint: --prefix-caching-hash-algo sha256_cbor, or the same PYTHONHASHSEED for all)"
        )
    speculative = vllm_config.speculative_config
    facts = {
        "vllm": vllm.__version__,
        "dtype": model.dtype,
        "kv": cache.cache_dtype,
        "quantization": model.quantization,
        "load": (vllm_config.load_config.load_format, model.seed),
        "config": digest(model.hf_config.to_json_string()),
        "weights": weights(vllm_config),
        "multimodal": multimodal(model),
        "speculative": speculative and (speculative.method, speculative.model, speculative.num_speculative_tokens),
        "hash": (algorithm, seed),
        "ranks": (
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.decode_context_parallel_size,
            parallel.prefill_context_parallel_size,
        ),
        "shape": digest(shape),
        "namespace": namespace,
        # These are left out where they decide nothing.
        "long positions": long_positions(model),
        "loader": getattr(vllm_config.load_config, "model_loader_extra_config", None) or None,
    }
    for name in ("long positions", "loader"):
        if facts[name] is None:
            del facts[name]
    words = "; ".join(f"{name} {fact}" for name, fact in facts.items())
    # One folder has several names.
    name = pathlib.Path(model.model).resolve() if pathlib.Path(model.model).exists() else model.model
    return f"vLLM {name} {model.revision or ''}, rank {rank}; {words}"


def multimodal(model):
    """What the engine's own settings make of an image or a video; its hash, and so those of its blocks, is of the input alone."""
    config = getattr(model, "multimodal_config", None)
    names = ("mm_processor_kwargs", "video_pruning_rate", "video_pruning_method", "mm_encoder_attn_dtype")
    settings = [getattr(config, name, None) for name in names]
    return json.dumps(settings, sort_keys=True, default=repr) if any(settings) else None


def long_positions(model):
    """Whether an engine turns keys by the factors for long contexts: it does so for all tokens, if the longest context that it takes is a long
    one. None for a model with one set of factors."""
    config = getattr(model, "hf_text_config", None) or model.hf_config
    ropes = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    ropes = [rope for rope in ropes if isinstance(rope, dict)]
    # Some models have such for each kind of layer.
    ropes += [rope for kinds in ropes for rope in kinds.values() if isinstance(rope, dict)]
    for rope in ropes:
        if rope.get("rope_type", rope.get("type")) in LONG_ROPES:
            short = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
            return model.max_model_len > short if short else model.max_model_len
    return None


def device(kind):
    """What of a device decides how attention lays keys and values out within a block: of a processor, the instructions that it has, for
    which keys are packed."""
    if kind != "cpu":
        return kind
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return " ".join([kind, platform.machine(), *sorted(LAID_OUT_FOR.intersection(flags))])


def weights(vllm_config):
    """What tells one set of weights from another under the same name; None where nothing does."""
    model, load = vllm_config.model_config, vllm_config.load_config
    if not pathlib.Path(model.model).exists():
        if getattr(load.load_format, "value", load.load_format) == "dummy":
            return "made of the seed"
        # That of the configuration, which not every format of one has.
        known = getattr(model.hf_config, "_commit_hash", None)
        if known:
            return known
    return state(model.model, model.revision, getattr(load, "download_dir", None))
