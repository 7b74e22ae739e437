#!/usr/bin/env python3
"""Writes a mixture-of-experts model with random weights as a GGUF file: the shape of OLMoE-1B-7B, 3.9 GB.

What is computed with it is noise; which bytes are touched is what a real model of that shape would touch. The tokenizer
comes from a small real model (SmolLM2). Weights of the matrices are random Q4_0 blocks of a fixed scale and a random
sign, so that sums have no common bias and activations stay bounded. The matrices of the experts start at multiples of
64 KiB. Needs `gguf` and `numpy`; memory for one tensor.
"""

import argparse

import numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter

BLOCK_VALUES = 32
BLOCK_BYTES = 18
# Standard deviation of a Q4_0 weight whose 4 bits are uniform, in units of its scale.
UNIFORM_DEVIATION = 4.64


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--tokenizer", required=True, help="GGUF file that the tokenizer is taken from")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--used", type=int, default=8, help="experts that each token uses in a layer")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def write_head(writer, arguments, source):
    """Everything but tensors; returns how many words the tokenizer knows."""
    def field(key):
        return source.fields[f"tokenizer.ggml.{key}"].contents()

    words = field("tokens")
    writer.add_custom_alignment(65536)
    writer.add_name(f"synthetic-experts-{arguments.layers}x{arguments.experts}-top{arguments.used}")
    writer.add_context_length(4096)
    writer.add_embedding_length(arguments.width)
    writer.add_block_count(arguments.layers)
    writer.add_feed_forward_length(arguments.inner)
    writer.add_head_count(arguments.heads)
    writer.add_head_count_kv(arguments.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(arguments.experts)
    writer.add_expert_used_count(arguments.used)
    writer.add_file_type(2)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model(field("model"))
    writer.add_tokenizer_pre(field("pre"))
    writer.add_token_list(words)
    writer.add_token_types(field("token_type"))
    writer.add_token_merges(field("merges"))
    writer.add_bos_token_id(field("bos_token_id"))
    writer.add_eos_token_id(field("eos_token_id"))
    writer.add_unk_token_id(field("unknown_token_id"))
    writer.add_pad_token_id(field("padding_token_id"))
    writer.add_add_bos_token(False)
    return len(words)


def tensors(arguments, words):
    """Name, shape, type and standard deviation of every tensor; no deviation stands for ones."""
    width, inner, experts = arguments.width, arguments.inner, arguments.experts
    wide, narrow = width**-0.5, inner**-0.5
    yield "token_embd.weight", (words, width), Type.Q4_0, 0.02 * width**0.5
    yield "output_norm.weight", (width,), Type.F32, None
    yield "output.weight", (words, width), Type.Q4_0, wide
    for layer in range(arguments.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (width,), Type.F32, None
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}{name}.weight", (width, width), Type.Q4_0, wide
        for name in ("attn_q_norm", "attn_k_norm", "ffn_norm"):
            yield f"{block}{name}.weight", (width,), Type.F32, None
        yield block + "ffn_gate_inp.weight", (experts, width), Type.F32, 2 * wide
        yield block + "ffn_gate_exps.weight", (experts, inner, width), Type.Q4_0, wide
        yield block + "ffn_down_exps.weight", (experts, width, inner), Type.Q4_0, narrow
        yield block + "ffn_up_exps.weight", (experts, inner, width), Type.Q4_0, wide


def stored_shape(shape, kind):
    return shape if kind == Type.F32 else shape[:-1] + (shape[-1] // BLOCK_VALUES * BLOCK_BYTES,)


def values(random, shape, kind, deviation):
    if kind == Type.F32:
        if deviation is None:
            return numpy.ones(shape, numpy.float32)
        return random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(deviation)
    count = int(numpy.prod(shape)) // BLOCK_VALUES
    blocks = numpy.frombuffer(random.bytes(count * BLOCK_BYTES), numpy.uint8).reshape(count, BLOCK_BYTES).copy()
    scale = numpy.float16(deviation / UNIFORM_DEVIATION)
    signed = numpy.where(blocks[:, 0] & 1, scale, -scale).astype(numpy.float16)
    blocks[:, :2] = signed.view(numpy.uint8).reshape(count, 2)
    return blocks.reshape(stored_shape(shape, kind))


def main():
    arguments = parse_arguments()
    random = numpy.random.default_rng(arguments.seed)
    writer = GGUFWriter(arguments.output, "olmoe")
    plan = list(tensors(arguments, write_head(writer, arguments, GGUFReader(arguments.tokenizer))))
    for name, shape, kind, _ in plan:
        plain = kind == Type.F32
        item = numpy.dtype(numpy.float32 if plain else numpy.uint8)
        shape = stored_shape(shape, kind)
        count = int(numpy.prod(shape)) * item.itemsize
        writer.add_tensor_info(name, shape, item, count, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, shape, kind, deviation in plan:
        writer.write_tensor_data(values(random, shape, kind, deviation))
    writer.close()


if __name__ == "__main__":
    main()
