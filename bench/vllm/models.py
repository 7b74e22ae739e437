#!/usr/bin/env python3
"""Writes models with random weights: `models.py FOLDER`.

tiny: four layers, for tests. window: layers of which some look back 256 tokens only. Their weights are the same each time, and
so large that a wrong byte in the cache shows: those that vLLM makes up by itself (--load-format dummy) are so small that every
token nearly looks alike. q06: the shapes of Qwen3-0.6B with a small vocabulary, without weights, for the bench. A word of the
tokenizer is `w` and its number.
"""

import json
import pathlib
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 4096
TOKENS_MAX = 8192


def write(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": TOKENS_MAX, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    common = {
        "vocab_size": VOCABULARY, "max_position_embeddings": TOKENS_MAX, "rms_norm_eps": 1e-6, "attention_bias": False,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
        "initializer_range": 0.1,
    }
    (folder / "config.json").write_text(json.dumps({**common, **config}, indent=1))


def qwen3(layers, hidden, heads, kv_heads, head, inner):
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "intermediate_size": inner,
        "rope_theta": 1000000, "hidden_act": "silu",
    }


def gemma3(layers, hidden, heads, kv_heads, head, inner, window):
    kinds = ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": layers,
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head,
        "intermediate_size": inner, "rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window": window,
        "layer_types": kinds, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": head,
    }


def add_weights(folder):
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


def main():
    folder = pathlib.Path(sys.argv[1])
    write(folder / "tiny", qwen3(4, 256, 8, 4, 64, 768))
    write(folder / "window", gemma3(6, 256, 8, 4, 64, 768, window=256))
    write(folder / "q06", qwen3(28, 1024, 16, 8, 128, 3072))
    for name in ("tiny", "window"):
        add_weights(folder / name)


if __name__ == "__main__":
    main()
