"""vLLM engines as processes: starts bench/vllm/engine.py and talks to it."""

import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
CACHE = TREE / ".cache/vllm"
PYTHON = CACHE / "venv/bin/python"


class EngineError(Exception):
    """An engine that ended, in its own words."""


def transfer(connector, module=None, **extra):
    """A kv-transfer-config that loads a connector."""
    chosen = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return chosen | ({"kv_connector_module_path": module} if module else {})


def hinterland(socket, **extra):
    """The kv-transfer-config of an engine on the node with this socket."""
    return transfer("HinterlandConnector", "hinterland.vllm", socket=str(socket), **extra)


class Engine:
    """One engine. It starts at once; the first `read` waits until it is ready."""

    # How long an engine that is told to end may go on with what it computes.
    patience_s = 30

    def __init__(self, log, model, transfer=None, engine=None, environment=None, paths=()):
        settings = {"model": str(CACHE / "models" / model), "transfer": transfer, "engine": engine or {}}
        path = os.pathsep.join(str(part) for part in (TREE / "python", HERE, *paths))
        self.log = pathlib.Path(log)
        with open(self.log, "wb") as words:
            self.process = subprocess.Popen(
                [PYTHON, HERE / "engine.py", json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True,
                env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            )

    def wait_ready(self):
        self.read()
        return self

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"an engine ended; it said:\n{self.log.read_text(errors='replace')[-4000:]}")
        return json.loads(line)

    def ask(self, **request):
        """Sends a request, of those that engine.py names, and returns the answer."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def stop(self):
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=self.patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
