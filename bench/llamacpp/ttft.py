#!/usr/bin/env python3
"""Two llama-servers that share prompts, and the time to the first token: `ttft.py SOCKET`, the socket of a node.

`hinterland bench llamacpp-ttft` asks line by line; each answer is one figure. Times are of a request for one token over HTTP.

  cold TOKENS NUMBER -> milliseconds of a prompt that nobody has seen, at the first server
  pool TOKENS NUMBER -> milliseconds of the same prompt at the second server, whose slot has another one
  own TOKENS NUMBER  -> milliseconds of the same prompt at the second server, whose slot has it
  file TOKENS NUMBER -> milliseconds in which a server without us restores the prompt from a file in a tmpfs, and completes it

The server is that of xllamacpp, or the program that LLAMA_SERVER names.
"""

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = TREE / ".cache/demo-venv/bin/python"
MODEL = TREE / ".cache/models/smollm2-135m.gguf"
CONTEXT = 4352
READY_SECONDS_MAX = 120
MEMORY = "/dev/shm"


class BenchError(Exception):
    """What went wrong, in words."""


class Server:
    """A server of one slot, with or without the program in front of it."""

    def __init__(self, stack, folder, port, node=None):
        program = shlex.split(os.environ.get("LLAMA_SERVER", f"{PYTHON} {TREE}/bench/llamacpp/llama_server.py"))
        command = [*program, "-m", MODEL, "-c", CONTEXT, "-np", 1, "-t", 1, "--port", port]
        if node:
            command = [PYTHON, "-m", "hinterland.llamacpp", "--socket", node, "--", *command]
        else:
            command += ["--slot-save-path", f"{folder}/", "--cache-ram", "0"]
        self.port, self.log = port, folder / f"{port}.log"
        environment = {**os.environ, "PYTHONPATH": str(TREE / "python")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        stack.callback(self.process.wait)
        stack.callback(self.process.terminate)

    def wait_ready(self):
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.ask("GET", "/health") is not None:
                    return
            time.sleep(0.05)
        raise BenchError(f"a server did not become ready: {self.log.read_text(errors='replace')[-500:]}")

    def ask(self, method, path, content=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            body = None if content is None else json.dumps(content).encode()
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        if response.status == 503:
            return None
        if response.status != 200:
            raise BenchError(f"{path} gave {response.status}: {answer[:200]!r}")
        return json.loads(answer)

    def complete(self, tokens, cached=None):
        """Milliseconds to one token after a prompt, of which so many tokens must not have been computed."""
        wanted = {"prompt": tokens, "n_predict": 1, "temperature": 0, "id_slot": 0}
        begin = time.perf_counter()
        answer = self.ask("POST", "/completion", wanted)
        took = (time.perf_counter() - begin) * 1e3
        found = answer["timings"]["cache_n"]
        if cached is not None and found != cached:
            raise BenchError(f"{found} of {len(tokens)} tokens were there, not {cached}")
        return took


class Scene:
    """The servers, one after the other: they load the model on the same processors."""

    def __init__(self, stack, node, folder):
        ports = free_ports(3)
        self.first, self.second, self.alone = (
            Server(stack, folder, port, address) for port, address in zip(ports, (node, node, None))
        )
        for server in (self.first, self.second, self.alone):
            server.wait_ready()
        for server in (self.first, self.second):
            status = server.ask("GET", "/hinterland")
            if not status["sharing"]:
                raise BenchError(f"nothing is shared: {status['why']}")

    def prompt(self, tokens, number):
        chance = random.Random(f"{tokens} {number}")
        return [chance.randrange(1000, 40000) for _ in range(tokens)]

    def cold(self, tokens, number):
        prompt = self.prompt(tokens, number)
        took = self.first.complete(prompt, 0)
        # Given in order: when this one has the slot, the other has been saved.
        self.first.complete([5] * 8)
        self.alone.complete(prompt[:-1])
        self.alone.ask("POST", "/slots/0?action=save", {"filename": f"{tokens}-{number}"})
        return took

    def pool(self, tokens, number):
        self.second.complete([6] * 8)
        return self.second.complete(self.prompt(tokens, number), tokens - 1)

    def own(self, tokens, number):
        return self.second.complete(self.prompt(tokens, number), tokens - 1)

    def file(self, tokens, number):
        prompt = self.prompt(tokens, number)
        self.alone.complete([7] * 8)
        begin = time.perf_counter()
        self.alone.ask("POST", "/slots/0?action=restore", {"filename": f"{tokens}-{number}"})
        self.alone.complete(prompt, tokens - 1)
        return (time.perf_counter() - begin) * 1e3


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def main():
    # It ends with the bench, however that ends; the bench has signals blocked.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hinterland-bench-", dir=MEMORY))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        scene, why = None, ""
        try:
            scene = Scene(stack, sys.argv[1], folder)
        except (BenchError, OSError) as error:
            why = str(error)
        for line in sys.stdin:
            name, *numbers = line.split()
            try:
                if scene is None:
                    raise BenchError(why)
                print(getattr(scene, name)(*map(int, numbers)), flush=True)
            except (BenchError, OSError) as error:
                print("error", " ".join(str(error).split())[-600:], flush=True)


if __name__ == "__main__":
    main()
