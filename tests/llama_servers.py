"""llama-servers with the program in front of them, as processes, and prompts for them."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import time

from conftest import TREE
from loopback import free_port

PYTHON = TREE / ".cache/demo-venv/bin/python"
MODEL = TREE / ".cache/models/smollm2-135m.gguf"
SERVER = TREE / "bench/llamacpp/llama_server.py"
READY_SECONDS_MAX = 120
REQUEST_SECONDS_MAX = 300
# Tokens of a block of this model.
BLOCK = 128


def prompt(seed, steps=32):
    """A text of about nine tokens a step; no two seeds have a block in common."""
    return " ".join(f"{seed} step {step} is {step * 7 % 13}." for step in range(steps))


class Server:
    """A llama-server; with the socket of a node, also the program that shares its prompts."""

    def __init__(self, folder, name, socket=None, options=(), words=(), environment=None):
        self.port = free_port()
        self.log = folder / f"{name}.log"
        command = [PYTHON, SERVER, "-m", MODEL, "-c", "2048", "-np", "2", "--port", self.port, *words]
        if socket is not None:
            ours = ["--socket", socket, "--check-seconds", "0.2", "--min-tokens", BLOCK, *options]
            command = [PYTHON, "-m", "hinterland.llamacpp", *ours, "--", *command]
        variables = {"PYTHONPATH": str(TREE / "python"), "XDG_CACHE_HOME": str(folder / "cache"), **(environment or {})}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=TREE,
                env={**os.environ, **variables},
            )

    def wait_ready(self):
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"a server did not become ready; it said:\n{self.words()}")

    def words(self):
        return self.log.read_text(errors="replace")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS_MAX)

    def send(self, method, path, body=None, headers=None):
        """Sends a request; returns the connection, and the response when it begins."""
        connection = self.connect()
        sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, sent, {"Content-Type": "application/json", **(headers or {})})
        return connection, connection.getresponse()

    def get(self, path):
        connection, response = self.send("GET", path)
        with contextlib.closing(connection):
            return response.status, response.read()

    def post(self, path, body, headers=None):
        connection, response = self.send("POST", path, body, headers)
        with contextlib.closing(connection):
            return response.status, response.read()

    def complete(self, text, count=8, **more):
        """The text that follows a prompt, and how many of its tokens were not computed."""
        status, body = self.post("/completion", {"prompt": text, "n_predict": count, "temperature": 0, **more})
        assert status == 200, (body, self.words())
        answer = json.loads(body)
        return answer["content"], answer["timings"]["cache_n"]

    def status(self):
        """What the program in front says of itself."""
        return json.loads(self.get("/hinterland")[1])

    def settled(self):
        """The same, once no slot is being saved any more: a slot that is asked for is given in order."""
        for slot in range(2):
            self.complete("x", count=1, id_slot=slot)
        return self.status()

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def children(process):
    """The processes that a process has started."""
    text = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]
