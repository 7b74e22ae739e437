#!/usr/bin/env python3
"""Maps a model with an unmodified llama.cpp and makes its first token; `hinterland bench load` asks when.

Each line on standard input is answered with two figures: seconds to map the model and make one token, and the number
of that token's characters. The weights stay in the mapping: repacking, which would copy them, is off.
"""

import sys
import time

import xllamacpp as llama


def parameters(path):
    result = llama.CommonParams()
    result.model.path = path
    result.load_mode = llama.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    result.no_extra_bufts = True
    result.fit_params = False
    result.warmup = False
    result.n_ctx = 256
    result.n_parallel = 1
    result.n_threads_http = 1
    result.cpuparams.n_threads = 1
    result.cpuparams_batch.n_threads = 1
    result.cache_ram_mib = 0
    result.ui = False
    result.verbosity = 0
    return result


def main():
    for _ in sys.stdin:
        began = time.monotonic()
        server = llama.Server(parameters(sys.argv[1]))
        answer = server.handle_completions({"prompt": "The capital of France is", "n_predict": 1, "temperature": 0})
        print(time.monotonic() - began, len(str(answer.get("content", answer))), flush=True)


if __name__ == "__main__":
    main()
