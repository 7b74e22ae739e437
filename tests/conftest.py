"""Fixtures that start real nodes from the built binary in temporary folders and end them by their process id.

The binary is `target/debug/hinterland`, or what HINTERLAND_BIN names. Traffic stays on the loopback.
"""

import fcntl
import hashlib
import importlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from loopback import own_address

# A shell that starts jobs in the background lets them ignore ctrl-C, and what they start too; the tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TREE = pathlib.Path(__file__).resolve().parent.parent
READY_SECONDS_MAX = 30
COMMAND_SECONDS_MAX = 120
MEBIBYTE = 1 << 20


def pytest_configure(config):
    """Tests with this mark are run by ./check when no other runs beside them."""
    config.addinivalue_line("markers", "alone: changes what the whole machine has, or counts what busy processors change")


@pytest.fixture(scope="session")
def binary():
    """The hinterland binary under test."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target"))
    path = pathlib.Path(os.environ.get("HINTERLAND_BIN", target / "debug/hinterland"))
    if not path.exists():
        pytest.fail(f"there is no {path} (hint: cargo build -p hinterland-cli)")
    return path.resolve()


@pytest.fixture(scope="session")
def hinterland():
    """The package, with its compiled module built from this tree."""
    subprocess.run([TREE / "python/build.sh"], check=True)
    sys.path.insert(0, str(TREE / "python"))
    return importlib.import_module("hinterland")


@pytest.fixture
def folder():
    """A short temporary folder: a unix socket's path has at most 107 bytes."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="hl-"))
    yield path
    remove_folder(path)


def remove_folder(path):
    """Removes a folder with the states of nodes. Memory outlives its node on purpose: here is where it ends."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        left = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{path}/")]
    for mount in reversed(left):
        subprocess.run(["umount", "--lazy", mount], check=False)
    for identifier in path.glob("**/node.id"):
        small = pathlib.Path("/dev/shm") / f"hinterland-{identifier.read_text().strip()}"
        give_back(small / "huge-pages")
        shutil.rmtree(small, ignore_errors=True)
    shutil.rmtree(path)


def give_back(claim):
    """Lowers the machine's limit of huge pages by what a node has noted that it claimed."""
    if claim.exists():
        with open("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "r+", encoding="utf-8") as limit:
            fcntl.flock(limit, fcntl.LOCK_EX)
            left = max(0, int(limit.read()) - int(claim.read_text()))
            limit.seek(0)
            limit.write(str(left))


class Node:
    """One `hinterland node` process; it can be killed and started again on the same state."""

    def __init__(self, binary, folder, name, rack=None, join=None, options=(), state=None, wrapper=(), listen=None):
        self.binary = str(binary)
        self.wrapper = [str(word) for word in wrapper]
        self.folder = folder
        self.name = name
        self.rack = rack or name
        self.socket = folder / f"{name}.sock"
        self.state = state or folder / f"state-{name}"
        self.log = folder / f"{name}.log"
        self.address = listen or f"{own_address()}:0"
        self.join = join
        self.options = [str(word) for word in options]
        self.process = None

    def start(self, environment=None, wait=True):
        """Starts the process and waits for its ready line."""
        command = [*self.wrapper, self.binary, "node", "--name", self.name, "--rack", self.rack]
        command += ["--socket", self.socket, "--state", self.state, "--listen", self.address, "--json"]
        if self.join is not None:
            command += ["--join", self.join]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command] + self.options,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        """Reads standard output up to the JSON object that says ready, and returns it."""
        os.set_blocking(self.process.stdout.fileno(), False)
        deadline = time.monotonic() + READY_SECONDS_MAX
        text = b""
        while time.monotonic() < deadline:
            text += self.process.stdout.read() or b""
            for line in text.split(b"\n")[:-1]:
                words = json.loads(line)
                if words.get("ready"):
                    # Kept for the next start: others know it by this address.
                    self.address = words["address"]
                    return words
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"node {self.name} did not become ready; its words:\n{self.words()}")

    def words(self):
        """What it has said on standard error so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self):
        """Ends it as a crash would: SIGKILL, no farewell."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        """Ends it as ctrl-C would; returns the exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        return self.process.returncode

    def command(self, *words):
        """The words of a hinterland command that talks to this node."""
        return [self.binary, "--socket", str(self.socket), *map(str, words)]

    def run(self, *words, check=True, **options):
        """Runs a command against this node; standard output and error are text unless asked otherwise."""
        options = {"capture_output": True, "text": True, "timeout": COMMAND_SECONDS_MAX, **options}
        outcome = subprocess.run(self.command(*words), **options)
        if check and outcome.returncode != 0:
            shown = " ".join(map(str, words))
            raise AssertionError(f"hinterland {shown} gave {outcome.returncode}:\n{outcome.stderr}\n{self.words()}")
        return outcome

    def json(self, *words):
        """Runs a command with --json and returns what it printed."""
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture
def start_node(binary, folder):
    """A function that starts nodes; all of them end with the test, the latest first."""
    started = []
    numbers = itertools.count(1)

    def start(name=None, environment=None, **choices):
        node = Node(binary, folder, name or f"n{next(numbers)}", **choices)
        started.append(node)
        return node.start(environment)

    yield start
    for node in reversed(started):
        node.stop()


@pytest.fixture
def node(start_node):
    """One node that is a pool of its own."""
    return start_node("a", options=["--capacity", "256M"])


@pytest.fixture
def two_racks(start_node):
    """Node `a` in rack a and node `b` in rack b, joined by TCP; `b` holds the directory."""
    b = start_node("b", options=["--capacity", "256M"])
    a = start_node("a", join=b.address, options=["--capacity", "256M"])
    return a, b


@pytest.fixture
def make_file(folder):
    """A function that makes a file of pseudo-random bytes, the same for the same size and seed."""

    def make(name, size, seed=1):
        path = folder / name
        state = seed.to_bytes(8, "little")
        with open(path, "wb") as target:
            stream = hashlib.shake_128(state)
            block = stream.digest(min(size, MEBIBYTE))
            written = 0
            while written < size:
                piece = bytearray(block[: size - written])
                piece[:8] = (written ^ seed).to_bytes(8, "little")[: len(piece)]
                target.write(piece)
                written += len(piece)
        return path

    return make
