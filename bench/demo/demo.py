#!/usr/bin/env python3
"""Runs one model four ways, from a file and from pool memory near and far, and compares text, speed and memory.

Starts two racks on this machine joined by TCP, puts the model into rack B, and generates the same text from the
plain file, from rack B itself, and from rack A with more and with less memory than the model needs. Everything
that it starts, it stops; it fails when any text differs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
# Two names, so that each of the far ways starts with an empty cache.
OBJECTS = ["models/smollm2.gguf", "models/smollm2-tight.gguf"]
MEBIBYTE = 1 << 20
READY_SECONDS_MAX = 30
RUN_SECONDS_MAX = 300


def remove_folder(folder):
    """Removes a folder and the memory below it, which outlives its node on purpose."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        left = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{folder}/")]
    for mount in reversed(left):
        subprocess.run(["umount", "--lazy", mount], check=False)
    for identifier in folder.glob("**/node.id"):
        small = pathlib.Path("/dev/shm") / f"hinterland-{identifier.read_text().strip()}"
        shutil.rmtree(small, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


class DemoError(Exception):
    """What failed, in words for a person."""


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Rack:
    """One memory node of its own rack, started for the demo."""

    def __init__(self, binary, folder, name, port, join=None, options=()):
        self.binary = str(binary)
        self.name = name
        self.socket = folder / f"{name}.sock"
        self.log = folder / f"{name}.log"
        command = [self.binary, "node", "--name", name, "--rack", name, "--socket", self.socket]
        command += ["--state", folder / f"state-{name}", "--listen", f"127.0.0.1:{port}", "--json"]
        # What lies in the other rack is to stay there, however often the demonstration reads it.
        command += ["--capacity", "1G", "--heat-copies", "off", *options]
        if join is not None:
            command += ["--join", f"127.0.0.1:{join}"]
        with open(self.log, "wb") as log:
            # An own process group: the ctrl-C of the terminal is for the demo, which then stops its nodes.
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self):
        """Reads standard output up to the object that says ready."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        os.set_blocking(self.process.stdout.fileno(), False)
        text = b""
        while time.monotonic() < deadline:
            text += self.process.stdout.read() or b""
            if any(json.loads(line).get("ready") for line in text.splitlines(keepends=True) if line.endswith(b"\n")):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise DemoError(f"node {self.name} did not become ready; it said:\n{self.log.read_text()[-2000:]}")

    def command(self, *words):
        """The words of a hinterland command that talks to this node."""
        return [self.binary, "--socket", str(self.socket), *map(str, words)]

    def ask(self, *words):
        """Runs a command against this node and returns its JSON, or nothing when it prints none."""
        outcome = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
        if outcome.returncode != 0:
            raise DemoError(f"hinterland {' '.join(map(str, words))} failed:\n{outcome.stderr[-2000:]}")
        return json.loads(outcome.stdout) if outcome.stdout.strip() else None

    def sent_bytes(self):
        """Bytes that this node has sent so far, to other nodes and to programs of other racks."""
        return self.ask("status", "--json")["counters"]["network_sent_bytes"]

    def cached_bytes(self, name):
        """Bytes that this host holds of an object of another rack; nothing if it has no cache of it."""
        caches = self.ask("status", "--json")["caches"]
        return next((cache["resident_bytes"] for cache in caches if cache["name"] == name), None)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()


class Generation:
    """One running generate.py, whose memory can be measured while it lives."""

    def __init__(self, prefix, model):
        script = HERE / "generate.py"
        words = [*prefix, sys.executable, str(script), str(model), "--hold"]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.outcome = None

    def finish_text(self):
        self.outcome = self.read()
        return self.outcome

    def memory(self):
        self.process.stdin.write("memory\n")
        self.process.stdin.flush()
        return self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            _, words = self.process.communicate(timeout=10)
            raise DemoError(f"llama.cpp ended without an answer; it said:\n{words[-2000:]}")
        return json.loads(line)

    def stop(self):
        if self.process.poll() is None:
            if self.outcome is None:
                self.process.terminate()
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def model_bytes_held(memories):
    """Memory under the mapped model files of several processes, each shared page counted once."""
    held = {}
    for memory in memories:
        for name, entry in memory["mapped_files"].items():
            total = held.setdefault(name, {"pss": 0, "rss": 0})
            total["pss"] += entry["pss_bytes"]
            total["rss"] = max(total["rss"], entry["rss_bytes"])
    # Huge pages of hugetlbfs have no proportional size: there the largest process stands for all.
    return sum(total["pss"] or total["rss"] for total in held.values())


def run_twice(label, prefix, model, home=None, rack=None, cached=None):
    """Generates in one process, then in a second while the first still has the model mapped.

    What crosses the network is what the model's home sends; the memory is that of the rack where the program runs."""
    say(f"{label}: one process, then a second beside it")
    network = home.sent_bytes if home else lambda: 0

    def held(*memories):
        far = rack.cached_bytes(cached) if cached else None
        return model_bytes_held(memories) if far is None else far

    start = network()
    with contextlib.ExitStack() as processes:
        first = Generation(prefix, model)
        processes.callback(first.stop)
        one = first.finish_text()
        after_one, held_by_one = network(), held(one["memory"])
        second = Generation(prefix, model)
        processes.callback(second.stop)
        two = second.finish_text()
        after_two, held_by_two = network(), held(first.memory(), second.memory())
    return {
        "way": label,
        "text": one["text"],
        "second_text": two["text"],
        "load_seconds": one["load_seconds"],
        "first_token_seconds": one["first_token_seconds"],
        "tokens_per_second": one["tokens_per_second"],
        "network_bytes": after_one - start,
        "second_load_seconds": two["load_seconds"],
        "second_network_bytes": after_two - after_one,
        "held_bytes": held_by_one,
        "held_bytes_two": held_by_two,
    }


COLUMNS = [
    ("way", "llama.cpp reads", str),
    ("load_seconds", "load", lambda value: f"{value:.2f} s"),
    ("first_token_seconds", "first token", lambda value: f"{value:.2f} s"),
    ("tokens_per_second", "tokens/s", lambda value: f"{value:.1f}"),
    ("network_bytes", "network", lambda value: mebibytes(value)),
    ("second_load_seconds", "2nd load", lambda value: f"{value:.2f} s"),
    ("second_network_bytes", "2nd network", lambda value: mebibytes(value)),
    ("held_bytes", "held for 1", lambda value: mebibytes(value)),
    ("held_bytes_two", "held for 2", lambda value: mebibytes(value)),
    ("same", "text", str),
]


def mebibytes(value):
    return f"{value / MEBIBYTE:.0f} MiB"


def print_table(rows):
    """The rows as aligned columns on standard output; a figure that could not be taken is a dash."""
    cells = [[title for _, title, _ in COLUMNS]]
    for row in rows:
        cells.append(["-" if row.get(key) is None else form(row[key]) for key, _, form in COLUMNS])
    print_rows(cells)


def print_rows(cells):
    """Rows of words as aligned columns, the first row being their titles."""
    widths = [max(len(line[index]) for line in cells) for index in range(len(cells[0]))]
    print()
    for number, line in enumerate(cells):
        padded = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join(padded).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    print(flush=True)


def demonstrate(stack, binary, model, budget):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hinterland-demo-"))
    stack.callback(remove_folder, folder)
    say("two racks on this machine, joined by TCP on the loopback")
    port = free_port()
    far = Rack(binary, folder, "b", port)
    stack.callback(far.stop)
    far.wait_ready()
    near = Rack(binary, folder, "a", free_port(), join=port)
    stack.callback(near.stop)
    near.wait_ready()

    for name in OBJECTS:
        say(f"hinterland put {model.name} --name {name} --rack b")
        far.ask("put", model, "--name", name, "--rack", "b", "--quiet")
    roomy, tight = [f"/pool/{name}" for name in OBJECTS]
    room = f"{(model.stat().st_size // MEBIBYTE + 34)}M"
    near_run = [near.command("run", "--budget", size, "--") for size in (room, budget)]
    return [
        run_twice("the plain file", [], model),
        run_twice("rack B, inside it", far.command("run", "--"), roomy, far),
        run_twice(f"rack B, from A, {room}", near_run[0], roomy, far, near, OBJECTS[0]),
        run_twice(f"rack B, from A, {budget}", near_run[1], tight, far, near, OBJECTS[1]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("--binary", type=pathlib.Path, default=TREE / "target/release/hinterland")
    parser.add_argument("--budget", default="64M", help="memory for the last way, less than the model (64M)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    arguments = parser.parse_args()
    for path, hint in ((arguments.model, "run ./demo"), (arguments.binary, "cargo build --release -p hinterland-cli")):
        if not path.exists():
            sys.exit(f"demo: there is no {path} (hint: {hint})")
    started = time.monotonic()
    # Also where a shell started the demo in the background and had it ignore ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with contextlib.ExitStack() as stack:
            rows = demonstrate(stack, arguments.binary.resolve(), arguments.model.resolve(), arguments.budget)
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; everything that it started is stopped")
    expected = rows[0]["text"]
    for row in rows:
        row["same"] = "same" if row["text"] == expected and row["second_text"] == expected else "DIFFERS"
    if arguments.json:
        print(json.dumps({"text": expected, "rows": rows}))
    else:
        print(f"\nThe capital of France is{expected}")
        print_table(rows)
        size = mebibytes(arguments.model.stat().st_size)
        print(f"The model has {size}. `held` is memory of the host under the mapped weights, each page counted once:")
        print("one copy serves every process, and from the other rack never more than the budget.")
        print(f"Done in {time.monotonic() - started:.0f} s; nothing is left running.")
    if any(row["same"] != "same" for row in rows):
        sys.exit("demo: the text differs between the ways above: this is a bug")


if __name__ == "__main__":
    main()
