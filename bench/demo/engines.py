#!/usr/bin/env python3
"""Runs two vLLM engines on one pool and shows what the first token costs: computed, from the engine's own cache, and from
the pool, where the other engine put it.

Needs what bench/vllm/prepare.sh installs. The weights are random, in the shapes of Qwen3-0.6B: what is computed is noise,
and takes as long as the real thing, in numbers of 16 bits if the processor has AVX-512, else of 32. Everything that it starts, it stops; it fails when a token differs.
"""

import argparse
import contextlib
import pathlib
import random
import signal
import sys
import tempfile
import time

from demo import TREE, DemoError, Rack, free_port, print_rows, remove_folder, say

sys.path.insert(0, str(TREE / "bench/vllm"))
from engines_of_vllm import Engine, EngineError, hinterland

# Whole blocks of 128 tokens, and one to compute.
PROMPTS = (1025, 2049)
COLUMNS = ("prompt", "computed", "own cache", "from the pool", "token")


def prompt(tokens):
    chance = random.Random(tokens)
    return [chance.randrange(3, 4096) for _ in range(tokens)]


def demonstrate(stack, binary):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hinterland-demo-"))
    stack.callback(remove_folder, folder)
    node = Rack(binary, folder, "a", free_port(), options=["--kv-capacity", "1G"])
    stack.callback(node.stop)
    node.wait_ready()
    say("two vLLM engines on one node (no GPU: one thread of the processor each)")
    engines = []
    for name in ("first", "second"):
        engine = Engine(folder / f"{name}.log", "q06", hinterland(node.socket))
        stack.callback(engine.stop)
        engines.append(engine)
    first, second = [engine.wait_ready() for engine in engines]
    for engine in engines:
        engine.ask(prompts=[[5] * 100], max_tokens=1)
    rows = []
    for tokens in PROMPTS:
        say(f"{tokens} tokens: the first engine computes them, the second finds them")
        request = {"prompts": [prompt(tokens)], "max_tokens": 1}
        computed = first.ask(**request)
        own = first.ask(**request)
        pool = second.ask(**request)
        if (computed["cached"], own["cached"], pool["cached"]) != ([0], [tokens - 1], [tokens - 1]):
            raise DemoError(f"of {tokens} tokens were cached: {computed['cached']}, {own['cached']}, {pool['cached']}")
        same = computed["tokens"] == own["tokens"] == pool["tokens"]
        times = [f"{answer['milliseconds']:,.0f} ms" for answer in (computed, own, pool)]
        rows.append((f"{tokens} tokens", *times, "same" if same else "DIFFERS"))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, default=TREE / "target/release/hinterland")
    arguments = parser.parse_args()
    started = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with contextlib.ExitStack() as stack:
            rows = demonstrate(stack, arguments.binary.resolve())
    except (DemoError, EngineError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; everything that it started is stopped")
    print_rows([COLUMNS, *rows])
    print("Milliseconds to the first token. The second engine had never seen the prompts.")
    print(f"Done in {time.monotonic() - started:.0f} s; nothing is left running.")
    if any(row[-1] != "same" for row in rows):
        sys.exit("demo: a token differs between the ways above: this is a bug")


if __name__ == "__main__":
    main()
