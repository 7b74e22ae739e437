#!/usr/bin/env python3
"""Two vLLM engines that share a cache in one way or another, and the time to the first token: `ttft.py WAY MODEL SOCKET`.

WAY is `hinterland` (the node with this socket), `file` (a folder of a tmpfs), `mooncake` (its store, in a process of its own,
by TCP). `hinterland bench vllm-ttft` asks line by line; each answer is one figure. Times are of generate() with one token.

  cold TOKENS NUMBER -> milliseconds of a prompt that nobody has seen, in the first engine
  pool TOKENS NUMBER -> milliseconds of the same prompt in the second engine, whose own cache is empty
  own TOKENS NUMBER  -> milliseconds of the same prompt in the second engine, whose own cache has it
  copy TOKENS        -> milliseconds in which one thread copies as many bytes as those tokens have keys and values
"""

import contextlib
import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy
from engine import number_format
from engines_of_vllm import CACHE, Engine, EngineError, hinterland, transfer

BLOCK_TOKENS = 128
# Keys and values take twice as much in numbers of 32 bits.
WIDE = 2 if number_format() == "float32" else 1
MOONCAKE_SEGMENT = f"{3 * WIDE} GB"
RESET_SECONDS_MAX = 60
MEMORY = {"VLLM_CPU_KVCACHE_SPACE": str(2 * WIDE)}


def end_with_parent(by=signal.SIGKILL):
    ctypes.CDLL(None).prctl(1, by)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_mooncake(stack, folder):
    """A master and a process with the memory; the file that says so to vLLM's connector."""
    # Beside the packages of this environment; what is imported is that of the programs.
    programs = next((CACHE / "venv/lib").glob("python*/site-packages/mooncake"), None)
    if programs is None:
        raise EngineError("Mooncake is not installed (hint: bench/vllm/prepare.sh --peers)")
    master, client = free_port(), free_port()
    commands = [
        ["mooncake_master", f"--rpc_port={master}", f"--metrics_port={free_port()}", "--default_kv_lease_ttl=500"],
        ["mooncake_client", "--host=127.0.0.1", f"--port={client}", f"--global_segment_size={MOONCAKE_SEGMENT}",
         "--local_buffer_size=64 MB", f"--master_server_address=127.0.0.1:{master}", "--metadata_server=P2PHANDSHAKE"],
    ]
    for name, *words in commands:
        with open(folder / f"{name}.log", "wb") as log:
            server = subprocess.Popen([programs / name, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      preexec_fn=end_with_parent)
        stack.callback(server.wait)
        stack.callback(server.kill)
        time.sleep(2)
        if server.poll() is not None:
            raise EngineError(f"{name} ended at once: {(folder / f'{name}.log').read_text(errors='replace')[-500:]}")
    settings = {"metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{master}", "protocol": "tcp",
                "mode": "standalone-store", "global_segment_size": 0, "local_buffer_size": 1 << 30}
    path = folder / "mooncake.json"
    path.write_text(json.dumps(settings))
    return path


class Pair:
    """A writer and a reader on one shared cache."""

    def __init__(self, stack, way, model, address, folder):
        environment = dict(MEMORY)
        if way == "hinterland":
            config = hinterland(address)
        elif way == "file":
            blocks = pathlib.Path(tempfile.mkdtemp(prefix="hinterland-bench-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, blocks, ignore_errors=True)
            config = transfer("FileConnector", "file_connector", folder=str(blocks))
        else:
            environment |= {"MOONCAKE_CONFIG_PATH": str(start_mooncake(stack, folder)), "VLLM_HOST_IP": "127.0.0.1",
                            "GLOG_minloglevel": "2"}
            config = transfer("MooncakeStoreConnector")
        self.way, self.model, self.tokens = way, model, {}
        # One after the other: two that start at once on two processors take longer, and more memory at a time.
        self.writer, self.reader = (self.start(stack, folder / f"{name}.log", config, environment)
                                    for name in ("writer", "reader"))
        for engine in (self.writer, self.reader):
            engine.ask(prompts=[[5] * (BLOCK_TOKENS - 1), [6] * (5 * BLOCK_TOKENS)], max_tokens=1)

    def start(self, stack, log, config, environment):
        engine = Engine(log, self.model, config, environment=environment)
        stack.callback(engine.stop)
        return engine.wait_ready()

    def prompt(self, tokens, number):
        chance = random.Random(f"{tokens} {number}")
        return [chance.randrange(3, 4096) for _ in range(tokens)]

    def cold(self, tokens, number):
        answer = self.writer.ask(prompts=[self.prompt(tokens, number)], max_tokens=1)
        self.tokens[tokens, number] = answer["tokens"]
        if self.way == "mooncake":
            # It saves beside the engine and says nothing when it has.
            time.sleep(3)
        return self.checked(answer, tokens, number, 0)

    def pool(self, tokens, number):
        # Who saves beside the engine holds its blocks until then.
        deadline = time.monotonic() + RESET_SECONDS_MAX
        while not self.reader.ask(reset="cache")["reset"]:
            if time.monotonic() > deadline:
                raise EngineError("the reader's own cache cannot be emptied")
            time.sleep(0.1)
        return self.own(tokens, number)

    def own(self, tokens, number):
        answer = self.reader.ask(prompts=[self.prompt(tokens, number)], max_tokens=1)
        return self.checked(answer, tokens, number, (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)

    def checked(self, answer, tokens, number, cached):
        if answer["cached"] != [cached]:
            raise EngineError(f"{answer['cached'][0]} of {tokens} tokens were cached, not {cached}")
        if answer["tokens"] != self.tokens[tokens, number]:
            raise EngineError(f"the token is {answer['tokens']}, not {self.tokens[tokens, number]}")
        return answer["milliseconds"]

    def copy(self, tokens):
        config = json.loads((CACHE / "models" / self.model / "config.json").read_text())
        heads = config["num_key_value_heads"] * config["head_dim"]
        count = (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS * config["num_hidden_layers"] * heads * 2 * 2 * WIDE
        source, target = numpy.ones(count, "uint8"), numpy.zeros(count, "uint8")
        begin = time.perf_counter()
        numpy.copyto(target, source)
        return (time.perf_counter() - begin) * 1e3


def stop_at_once(*_):
    Engine.patience_s = 0
    sys.exit(143)


def main():
    way, model, address = sys.argv[1:]
    signal.signal(signal.SIGTERM, stop_at_once)
    # A bench that is interrupted does not wait for a prompt that is being computed. Its children have its mask.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    end_with_parent(signal.SIGTERM)
    # Loaded libraries must not be able to print into the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hinterland-ttft-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        pair, why = None, ""
        try:
            pair = Pair(stack, way, model, address, folder)
        except EngineError as error:
            why = str(error)
        for line in sys.stdin:
            name, *numbers = line.split()
            try:
                if pair is None:
                    raise EngineError(why)
                print(getattr(pair, name)(*map(int, numbers)), file=answers, flush=True)
            except EngineError as error:
                print("error", " ".join(str(error).split())[-600:], file=answers, flush=True)


if __name__ == "__main__":
    main()
