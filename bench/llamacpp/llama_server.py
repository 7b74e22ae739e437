#!/usr/bin/env python3
"""llama-server out of a package: llama.cpp's own server, as xllamacpp ships it, with the options that are used here.

It needs no compiler and understands only the options below; a llama-server that was built knows all.
"""

import argparse
import os
import signal
import sys

import xllamacpp as llama

TYPES = {name: getattr(llama.ggml_type, f"GGML_TYPE_{name.upper()}") for name in ("f16", "f32", "q8_0")}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-ctk", "--cache-type-k", choices=TYPES, default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=TYPES, default="f16")
    parser.add_argument("-fa", "--flash-attn", choices=("on", "off"), default="on")
    parser.add_argument("-kvu", "--kv-unified", action="store_true")
    parser.add_argument("--rope-freq-scale", type=float)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-key")
    parser.add_argument("--slot-save-path")
    parser.add_argument("--cache-ram", type=int, default=8192)
    return parser.parse_args()


def parameters(arguments):
    """What the options say, as the package calls it."""
    found = llama.CommonParams()
    found.model.path = arguments.model
    found.n_ctx = arguments.ctx_size
    found.n_parallel = arguments.parallel
    found.kv_unified = arguments.kv_unified
    found.cpuparams.n_threads = arguments.threads
    found.cpuparams_batch.n_threads = arguments.threads
    found.cache_type_k = TYPES[arguments.cache_type_k]
    found.cache_type_v = TYPES[arguments.cache_type_v]
    switch = "ENABLED" if arguments.flash_attn == "on" else "DISABLED"
    found.flash_attn_type = getattr(llama.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{switch}")
    if arguments.rope_freq_scale is not None:
        found.rope_freq_scale = arguments.rope_freq_scale
    found.hostnames = [arguments.host]
    found.port = arguments.port
    if arguments.api_key:
        found.api_keys = [arguments.api_key]
    if arguments.slot_save_path:
        found.slot_save_path = os.path.join(arguments.slot_save_path, "")
    found.cache_ram_mib = arguments.cache_ram
    found.endpoint_slots = True
    found.fit_params = False
    found.warmup = False
    found.ui = False
    found.verbosity = 0
    return found


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    server = llama.Server(parameters(parse_arguments()))
    print("listening at", server.listening_address, file=sys.stderr, flush=True)
    signal.sigwait([signal.SIGINT, signal.SIGTERM])
    # Without a farewell: nothing of it outlives the process.
    os._exit(0)


if __name__ == "__main__":
    main()
