#!/usr/bin/env python3
"""Writes a llama model with random Q4_0 weights and no tokenizer as a GGUF file, with nothing but Python's own library.

What it says is noise; what is launched, copied and waited for with it is what a real model of that shape asks for. The default shape is
small, with the depth and vocabulary of Llama 2 7B; `--shape 7b` and others are whole.
"""

import argparse
import random
import struct

# Layers, width, width of the inner layer, heads, heads of keys and values, words.
SHAPES = {
    "test": (32, 256, 512, 4, 4, 32000),
    "1b": (22, 2048, 5632, 32, 4, 32000),
    "7b": (32, 4096, 11008, 32, 32, 32000),
    "13b": (40, 5120, 13824, 40, 40, 32000),
}
ALIGNMENT = 32
TYPE_F32 = 0
TYPE_Q4_0 = 2
BLOCK_VALUES = 32
# Standard deviation of a Q4_0 weight whose four bits are uniform, in units of its scale.
DEVIATION = 4.64
# Random bytes that are made once and repeated: weights need not differ from each other.
POOL_BLOCKS = 1 << 16


def parse_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--shape", choices=SHAPES, default="test")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def string(text):
    """A string as GGUF has it."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def field(key, value):
    """A field of the header: the kind follows from the value."""
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    if isinstance(value, float):
        return string(key) + struct.pack("<If", 6, value)
    return string(key) + struct.pack("<II", 4, value)


def fields(shape, context):
    """The header of a llama model without words."""
    layers, width, inner, heads, kv_heads, words = SHAPES[shape]
    return [
        field("general.architecture", "llama"),
        field("general.name", f"random-{shape}"),
        field("general.alignment", ALIGNMENT),
        field("general.file_type", 2),
        field("llama.context_length", context),
        field("llama.embedding_length", width),
        field("llama.block_count", layers),
        field("llama.feed_forward_length", inner),
        field("llama.attention.head_count", heads),
        field("llama.attention.head_count_kv", kv_heads),
        field("llama.attention.layer_norm_rms_epsilon", 1e-5),
        field("llama.rope.dimension_count", width // heads),
        field("llama.rope.freq_base", 10000.0),
        field("llama.vocab_size", words),
        field("tokenizer.ggml.model", "none"),
    ]


def tensors(shape):
    """Name, dimensions and kind of each tensor."""
    layers, width, inner, heads, kv_heads, words = SHAPES[shape]
    kv_width = width // heads * kv_heads
    yield "token_embd.weight", (width, words), TYPE_Q4_0
    yield "output_norm.weight", (width,), TYPE_F32
    yield "output.weight", (width, words), TYPE_Q4_0
    for layer in range(layers):
        yield f"blk.{layer}.attn_norm.weight", (width,), TYPE_F32
        yield f"blk.{layer}.ffn_norm.weight", (width,), TYPE_F32
        for name, sizes in (
            ("attn_q", (width, width)),
            ("attn_k", (width, kv_width)),
            ("attn_v", (width, kv_width)),
            ("attn_output", (width, width)),
            ("ffn_gate", (width, inner)),
            ("ffn_up", (width, inner)),
            ("ffn_down", (inner, width)),
        ):
            yield f"blk.{layer}.{name}.weight", sizes, TYPE_Q4_0


def count(sizes):
    """Values of a tensor."""
    values = 1
    for size in sizes:
        values *= size
    return values


def tensor_bytes(sizes, kind):
    """Bytes of a tensor."""
    return count(sizes) * 4 if kind == TYPE_F32 else count(sizes) // BLOCK_VALUES * 18


def blocks(deviation, source):
    """Random blocks whose values have this standard deviation, and no mean: four bits alone lean to one side, so half of the scales are negative."""
    scales = [struct.pack("<e", sign * deviation / DEVIATION) for sign in (1, -1)]
    return b"".join(scales[source[at * 16] & 1] + source[at * 16 : at * 16 + 16] for at in range(POOL_BLOCKS))


def write_tensors(file, shape, source):
    """Writes the bytes of all tensors."""
    pools = {}
    for number, (name, sizes, kind) in enumerate(tensors(shape)):
        left = tensor_bytes(sizes, kind)
        if kind == TYPE_F32:
            file.write(struct.pack("<f", 1.0) * count(sizes))
        else:
            # Sums over a row are near 1. What a token stands for is larger than what the layers add, so that each leads to another.
            deviation = 1.0 if name == "token_embd.weight" else sizes[0] ** -0.5
            pool = pools.setdefault(deviation, blocks(deviation, source))
            start = number * 7919 % POOL_BLOCKS * 18
            while left:
                part = pool[start : start + left]
                file.write(part)
                left -= len(part)
                start = 0
        file.write(bytes(-file.tell() % ALIGNMENT))


def main():
    """Writes the file."""
    arguments = parse_arguments()
    head = fields(arguments.shape, arguments.context)
    every = list(tensors(arguments.shape))
    source = random.Random(arguments.seed).randbytes(POOL_BLOCKS * 16)
    with open(arguments.output, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(every), len(head)) + b"".join(head))
        offset = 0
        for name, sizes, kind in every:
            file.write(string(name) + struct.pack("<I", len(sizes)))
            file.write(struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset))
            offset += tensor_bytes(sizes, kind)
            offset += -offset % ALIGNMENT
        file.write(bytes(-file.tell() % ALIGNMENT))
        write_tensors(file, arguments.shape, source)


if __name__ == "__main__":
    main()
