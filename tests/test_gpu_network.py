"""CUDA programs over a network that is slow, cut, or stands still: right bytes or a prompt error, and nothing hangs."""

import queue
import random
import shutil
import socket
import subprocess
import threading
import time

import pytest

from test_gpu import PARTS, TREE, gpu_node, program, wait_until  # noqa: F401

# What the guide says: a network that is silent for so long is given up.
SILENCE_SECONDS = 10
# The kernel looks a few seconds apart, and this machine may be busy.
SLACK_SECONDS = 15


@pytest.fixture
def steady(binary, folder):
    """A program that copies for ever, linked with the libraries that stand in for CUDA's."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run([binary, "gpu", "libraries", folder / "libraries"], check=True, capture_output=True)
    path = folder / "steady"
    subprocess.run(["cc", "-O1", TREE / "tests/programs/gpu_steady.c", "-o", path, f"-L{folder}/libraries", "-l:libcudart.so.13",
                    f"-Wl,-rpath-link,{folder}/libraries"], check=True)
    return path


class Running:
    """A program whose lines are read as they come."""

    def __init__(self, node, path, address):
        command, environment = node.program(path, address=address)
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=lambda: [self.lines.put(line.strip()) for line in self.process.stdout], daemon=True).start()

    def line(self, seconds=30):
        """The next line."""
        return self.lines.get(timeout=seconds)

    def skip(self):
        """Forgets the lines that are there."""
        while not self.lines.empty():
            self.lines.get()

    def end(self, seconds):
        """The last line, the status and the words on standard error, when it has ended within so many seconds."""
        status = self.process.wait(seconds)
        words, last = self.process.stderr.read(), None
        time.sleep(0.1)
        while not self.lines.empty():
            last = self.lines.get()
        return last, status, words


class Proxy:
    """Stands between a program and its node, and passes on what comes, in pieces and late."""

    def __init__(self, port, piece, pause=0.0):
        self.target, self.piece, self.pause, self.random = port, piece, pause, random.Random(1)
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """Takes each client."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            node = socket.create_connection(("127.0.0.1", self.target))
            self.sockets += [client, node]
            for one, other in ((client, node), (node, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.forward, args=(one, other), daemon=True).start()

    def forward(self, one, other):
        """Passes on what comes from one side."""
        try:
            while data := one.recv(self.random.randint(1, self.piece)):
                time.sleep(self.random.random() * self.pause)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        """Ends all connections, wherever they are."""
        self.listener.close()
        for one in self.sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


@pytest.fixture
def inside(binary, folder):
    """A network of its own with nothing but a loopback: a command that runs the binary there, and one that runs others."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("no unshare, nsenter or ip")
    holder = subprocess.Popen(["unshare", "-Urn", "sleep", "900"])
    try:
        enter = ["nsenter", "-t", str(holder.pid), "-U", "-n", "--preserve-credentials"]

        def loopback(state):
            return subprocess.run([*enter, "ip", "link", "set", "lo", state], capture_output=True, check=False).returncode == 0

        end = time.monotonic() + 5
        while not loopback("up"):
            if holder.poll() is not None or time.monotonic() > end:
                pytest.skip("no network of one's own can be made here")
            time.sleep(0.05)
        script = folder / "inside"
        script.write_text(f'#!/bin/sh\nexec {" ".join(enter)} {binary} "$@"\n')
        script.chmod(0o755)
        yield script, loopback
    finally:
        holder.kill()
        holder.wait()


@pytest.fixture
def node_inside(inside, folder):
    """A GPU node in that network, and what sets the network up or down."""
    from test_gpu import GpuNode

    script, loopback = inside
    node = GpuNode(script, folder, "software:memory=512M")
    yield node, loopback
    loopback("up")
    node.stop()


@pytest.mark.parametrize("piece", [60, 1500])
def test_frames_that_come_in_pieces_and_late_change_no_result(gpu_node, program, piece):  # noqa: F811
    node = gpu_node()
    # Few bytes at a time go slowly enough by themselves.
    proxy = Proxy(node.port, piece, 0.0 if piece < 100 else 0.0003)
    parts = PARTS[:1] if piece < 100 else ("basic", "streams", "errors")
    outcome = node.run(program, *parts, address=proxy.address)
    proxy.cut()
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_a_connection_that_is_cut_ends_the_program_promptly(gpu_node, steady):  # noqa: F811
    node = gpu_node()
    for _ in range(5):
        proxy = Proxy(node.port, 60_000)
        running = Running(node, steady, proxy.address)
        assert running.line() == "0"
        time.sleep(random.random() * 0.3)
        proxy.cut()
        last, status, words = running.end(seconds=10)
        assert (last, status) == ("cudaErrorDevicesUnavailable", 7)
        assert words.count("the GPU node is gone") == 1 and "hint:" in words
        wait_until(lambda: not node.sessions())


def test_a_network_that_stands_still_for_some_seconds_costs_a_program_nothing_else(node_inside, steady):
    node, loopback = node_inside
    running = Running(node, steady, node.tcp)
    assert running.line() == "0"
    for seconds in (1, 4):
        assert loopback("down")
        time.sleep(0.5)
        running.skip()
        time.sleep(seconds)
        assert running.lines.empty(), "nothing went over"
        assert loopback("up")
        for _ in range(3):
            assert running.line(SLACK_SECONDS).isdigit()
    running.process.terminate()
    assert running.process.wait(20) != 7


def test_a_network_that_stays_away_is_given_up_in_words_by_both_sides(node_inside, steady):
    node, loopback = node_inside
    running = Running(node, steady, node.tcp)
    assert running.line() == "0" and len(node.sessions()) == 1
    assert loopback("down")
    began = time.monotonic()
    last, status, words = running.end(SILENCE_SECONDS + SLACK_SECONDS)
    assert time.monotonic() - began > SILENCE_SECONDS / 3, "a short pause is no end"
    assert (last, status) == ("cudaErrorDevicesUnavailable", 7)
    assert words.count("the GPU node is gone") == 1 and "hint:" in words
    wait_until(lambda: not node.sessions(), seconds=SILENCE_SECONDS + SLACK_SECONDS)
    assert loopback("up")
    again = Running(node, steady, node.tcp)
    assert again.line() == "0"
    again.process.kill()
    again.process.wait()
