#!/usr/bin/env python3
"""Measures llama.cpp with its GPU here and elsewhere, and prints one JSON object in the form of `hinterland bench`.

Every configuration decodes the same prompt with the same model and must say the same words. Configurations are run in turn, round after round, and a
row gives the median. `ours` is time with the GPU elsewhere, `limit` the same program on the GPU of this machine, `peer` llama.cpp's own RPC back end.
Times are microseconds: of the whole prompt, and of one token at the median.
"""

import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REMOTE = {"shm": ("unix", 0), "tcp": ("tcp", 0), "tcp-30us": ("tcp", 30), "tcp-100us": ("tcp", 100)}


def parse_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", type=pathlib.Path, required=True, help="folder with llama.cpp's libraries and its CUDA back end")
    parser.add_argument("--tokens", type=pathlib.Path, help="the measuring program [default: in the folder of the libraries]")
    parser.add_argument("--hinterland", type=pathlib.Path, default=HERE / "hinterland")
    parser.add_argument("--device", default="cuda", help="as `hinterland gpu serve` takes it")
    parser.add_argument("--shapes", default="1b,7b,13b", help="models, by their names in model.py")
    parser.add_argument("--model-maker", type=pathlib.Path, default=HERE / "model.py")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("."), help="folder for models")
    parser.add_argument("--prefill", type=int, default=1000)
    parser.add_argument("--decode", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=520, help="no round begins after this time")
    parser.add_argument("--out", type=pathlib.Path)
    return parser.parse_args()


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ground:
    """A GPU node, the RPC server of llama.cpp if there is one, and commands for each configuration."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.tokens = arguments.tokens or arguments.libraries / "tokens"
        self.is_software = arguments.device.startswith("software")
        self.socket = arguments.work.resolve() / f"gpu-{os.getpid()}.sock"
        self.port, self.rpc_port = free_port(), free_port()
        serve = [arguments.hinterland, "gpu", "serve", "--listen", f"unix:{self.socket}", "--listen", f"tcp:127.0.0.1:{self.port}",
                 "--device", arguments.device]
        self.processes = [subprocess.Popen(list(map(str, serve)), stdout=subprocess.PIPE, text=True)]
        server = arguments.libraries / "rpc-server"
        self.has_rpc = server.exists() and not self.is_software
        if self.has_rpc:
            words = [server, "-H", "127.0.0.1", "-p", str(self.rpc_port)]
            self.processes.append(subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        # Its only line says that it can be connected to.
        if "are served at" not in self.processes[0].stdout.readline():
            sys.exit("the GPU node did not start (hint: run `hinterland gpu serve` by hand)")

    def close(self):
        """Ends what was started."""
        for process in self.processes:
            process.terminate()
            process.wait()

    def names(self):
        """The configurations that can run here."""
        return ([] if self.is_software else ["local"]) + list(REMOTE) + (["rpc"] if self.has_rpc else [])

    def start(self, name, model):
        """Starts the program in a configuration."""
        arguments = self.arguments
        words = [self.tokens, arguments.libraries, model, arguments.prefill, arguments.decode]
        environment = {**os.environ, "HINTERLAND_SOCKET": "/nowhere"}
        if name in REMOTE:
            fabric, delay = REMOTE[name]
            address = f"unix:{self.socket}" if fabric == "unix" else f"tcp:127.0.0.1:{self.port}"
            words = [arguments.hinterland, "--quiet", "run", "--gpu", address, "--", *words]
            environment["HINTERLAND_GPU_DELAY_US"] = str(delay)
        elif name == "rpc":
            environment.update(TOKENS_RPC=f"127.0.0.1:{self.rpc_port}", CUDA_VISIBLE_DEVICES="")
        return subprocess.Popen(list(map(str, words)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def finish(process, name):
        """Waits for the program: microseconds of the prompt, of a token at the median, and what it said."""
        out, words = process.communicate(timeout=500)
        if process.returncode != 0:
            raise RuntimeError(f"{name}: status {process.returncode}: {words.strip()[-400:]}")
        rows = [line.split() for line in out.splitlines()]
        steps = {int(row[0]): row for row in rows}
        # The first tokens are outside of the graph.
        decode = [float(row[2]) for step, row in steps.items() if step >= 3]
        return float(steps[-1][2]), statistics.median(decode), [int(row[1]) for row in rows]


def rows_of(shape, taken, failed):
    """Rows of a model: each configuration against the same program on this machine's GPU."""
    rows = []
    for at, step in ((0, "prefill"), (1, "decode")):
        local = statistics.median(run[at] for run in taken["local"]) if taken.get("local") else None
        rpc = statistics.median(run[at] for run in taken["rpc"]) if taken.get("rpc") else None
        for name in REMOTE:
            runs = [run[at] for run in taken.get(name, [])]
            row = {"case": f"{shape}-{step}-{name}", "unit": "us", "better": "lower", "ours": statistics.median(runs) if runs else None,
                   "spread": [min(runs), max(runs)] if runs else None, "runs": len(runs), "limit": local,
                   "limit_name": "the same program on the GPU of its own machine", "peer": rpc, "peer_name": "llama.cpp's RPC back end"}
            if not runs:
                row["why"] = failed.get(name, "no time was left")
            elif local is None:
                row["why"] = failed.get("local", "the device in software cannot be had as a GPU of one's own")
            rows.append(row)
    return rows


def measure(ground, shape, deadline):
    """All rounds of a model, and its rows."""
    arguments = ground.arguments
    model = arguments.work.resolve() / f"{shape}.gguf"
    if not model.exists():
        subprocess.run([sys.executable, arguments.model_maker, model, "--shape", shape, "--context", "4096"], check=True)
    taken, failed, said = {}, {}, {}
    for number in range(arguments.rounds + 1):
        for name in ground.names():
            if time.monotonic() > deadline or name in failed:
                continue
            try:
                prompt, token, words = ground.finish(ground.start(name, model), name)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed[name] = str(error)
                continue
            said.setdefault(name, words)
            # The first round warms up: code is sent and compiled, files are read.
            if number > 0:
                taken.setdefault(name, []).append((prompt, token))
    rows = rows_of(shape, taken, failed)
    right = said.get("local") or next(iter(said.values()), [])
    rows.append({"case": f"{shape}-same-words", "unit": "configurations", "better": "higher", "runs": len(said), "spread": None,
                 "ours": sum(words == right for words in said.values()), "limit": len(said), "limit_name": "configurations that ran",
                 "peer": None})
    rows.extend(together(ground, shape, model, deadline))
    return rows


def together(ground, shape, model, deadline):
    """Several programs at once: the slowest token of all at the median, here and elsewhere."""
    figures = {}
    for name in [name for name in ("local", "shm") if name in ground.names()]:
        if time.monotonic() > deadline:
            break
        running = [ground.start(name, model) for _ in range(ground.arguments.clients)]
        try:
            figures[name] = [ground.finish(process, name)[:2] for process in running]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{shape}, {name}, several at once: {error}", file=sys.stderr)
    rows = []
    for at, step in ((0, "prefill"), (1, "decode")):
        value = {name: statistics.mean(run[at] for run in runs) for name, runs in figures.items()}
        rows.append({"case": f"{shape}-{step}-{ground.arguments.clients}-clients-shm", "unit": "us", "better": "lower", "runs": 1,
                     "spread": None, "ours": value.get("shm"), "limit": value.get("local"),
                     "limit_name": "as many programs on the GPU of their own machine", "peer": None,
                     **({} if "shm" in value and "local" in value else {"why": "one of both did not run"})})
    return rows


def main():
    """Takes all figures."""
    arguments = parse_arguments()
    deadline = time.monotonic() + arguments.seconds
    ground = Ground(arguments)
    rows = []
    try:
        for shape in arguments.shapes.split(","):
            rows.extend(measure(ground, shape, deadline))
    finally:
        ground.close()
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0], "device": arguments.device}
    result = json.dumps({"bench": "remote-gpu", "machine": machine, "rows": rows}, indent=1)
    print(result)
    if arguments.out:
        arguments.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
