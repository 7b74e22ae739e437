"""What is told of a node while others are away: `status`, `metrics` and `top` go on with what the own node knows."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time

import pytest

ROOM = ["--capacity", "64M"]
SECONDS = 30


class Watcher:
    """A `hinterland top`, or one of its kind, whose lines are read as they come."""

    def __init__(self, command):
        self.process = subprocess.Popen([*command, "--interval", "0.2"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Passes each line on, and an empty one at the end."""
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self.lines.put(line.rstrip("\n") or " ")
        self.lines.put("")

    def until(self, what):
        """The next line of which something is true."""
        deadline = time.monotonic() + SECONDS
        seen = []
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                line = self.lines.get(timeout=0.2)
                assert line != "", f"it has ended: {self.process.stderr.read()}"
                seen.append(line)
                if what(line):
                    return line
        raise AssertionError("it never said so, but:\n" + "\n".join(seen[-30:]))

    def picture(self, what):
        """The next picture of which something is true."""
        return json.loads(self.until(lambda line: what(json.loads(line))))

    def end(self):
        """Ends it by ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(5) == 0


@pytest.fixture
def watch():
    """A function that starts to watch a node, or what another command watches."""
    watchers = []

    def start(node, *options, command=None):
        watchers.append(Watcher(command or node.command("top", *options)))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.process.kill()
        watcher.process.wait()
        watcher.process.stderr.close()


@pytest.fixture
def pair(start_node):
    """A node whose directory another one hosts, and that one."""
    d = start_node("d", options=ROOM)
    return start_node("a", join=d.address, options=ROOM), d


def members(picture):
    """How many members a picture of JSON has; none while no node answers."""
    return len(picture.get("status", {}).get("members") or [])


def test_top_goes_on_while_the_node_with_the_directory_is_dead(pair, watch):
    a, d = pair
    value, plain = watch(a, "--json"), watch(a)
    assert value.picture(lambda picture: members(picture) == 2)["status"]["members_trouble"] is None
    plain.until(lambda line: "NODE" in line and "ADDRESS" in line)
    d.kill()
    away = value.picture(lambda picture: picture["status"]["members_trouble"])
    assert away["status"]["name"] == "a" and away["rates"] and away["status"]["members"] is None
    assert "connect" in away["status"]["members_trouble"] and away["node_trouble"] is None
    assert "connect" in plain.until(lambda line: line.startswith("members are not known: "))
    plain.until(lambda line: line.startswith("network in"))
    d.start()
    value.picture(lambda picture: members(picture) == 2)
    plain.until(lambda line: "NODE" in line and "ADDRESS" in line)
    value.end()
    plain.end()


def test_status_metrics_and_top_begin_while_the_node_with_the_directory_is_dead(pair):
    a, d = pair
    d.kill()
    status = a.run("status").stdout
    assert status.startswith("node     a ") and "members are not known: " in status
    value = a.json("status")
    assert value["name"] == "a" and value["members"] is None and "connect" in value["members_trouble"]
    metrics = a.run("metrics").stdout
    assert 'hinterland_members_known{node="a",rack="a"} 0' in metrics and "\n# members are not known: " in metrics
    assert 'hinterland_sessions{node="a"' in metrics
    assert "members are not known: " in a.run("top", "--once").stdout
    assert a.json("top", "--once")["status"]["members_trouble"]


@pytest.mark.parametrize("options", [["--json"], []])
def test_top_goes_on_when_its_node_starts_again(start_node, watch, options):
    a = start_node("a", options=ROOM)
    watcher = watch(a, *options)
    seen, gone = ('"name":"a"', '"node_trouble":"no node answers on') if options else ("hinterland top   a in rack a", "no node answers on")
    for _ in range(2):
        watcher.until(lambda line: seen in line)
        a.kill()
        watcher.until(lambda line: gone in line)
        a.start()
    watcher.until(lambda line: seen in line)
    a.kill()
    watcher.until(lambda line: gone in line)
    watcher.end()


def test_top_says_that_a_node_is_stopped_and_ends_by_ctrl_c(start_node, watch):
    a = start_node("a", options=ROOM)
    watcher = watch(a, "--json")
    watcher.picture(lambda picture: picture["node_trouble"] is None)
    os.kill(a.process.pid, signal.SIGSTOP)
    try:
        watcher.picture(lambda picture: "has not answered for" in (picture["node_trouble"] or ""))
        os.kill(a.process.pid, signal.SIGCONT)
        watcher.picture(lambda picture: picture["node_trouble"] is None)
        os.kill(a.process.pid, signal.SIGSTOP)
        watcher.picture(lambda picture: picture["node_trouble"])
        watcher.end()
    finally:
        os.kill(a.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("options", [["--json"], []])
def test_gpu_top_goes_on_when_its_node_starts_again_and_says_that_it_is_stopped(binary, folder, watch, options):
    address = f"unix:{folder}/gpu.sock"
    serve = [binary, "gpu", "serve", "--listen", address, "--device", "software", "--json"]

    def start():
        node = subprocess.Popen(serve, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert json.loads(node.stdout.readline())["ready"]
        return node

    seen, gone = ('"devices"', '"node_trouble"') if options else ("DEVICE  NAME", "hint: ")
    node = start()
    try:
        watcher = watch(None, command=[binary, "gpu", "top", address, *options])
        for _ in range(2):
            watcher.until(lambda line: seen in line)
            node.kill()
            node.wait()
            watcher.until(lambda line: gone in line)
            node = start()
        watcher.until(lambda line: seen in line)
        os.kill(node.pid, signal.SIGSTOP)
        watcher.until(lambda line: "has not answered for" in line)
        os.kill(node.pid, signal.SIGCONT)
        watcher.until(lambda line: seen in line)
        os.kill(node.pid, signal.SIGSTOP)
        watcher.until(lambda line: "has not answered for" in line)
        watcher.end()
    finally:
        node.kill()
        node.wait()


def test_a_directory_that_hangs_holds_up_neither_top_nor_status(pair, watch):
    a, d = pair
    watcher = watch(a, "--json")
    watcher.picture(lambda picture: members(picture) == 2)
    os.kill(d.process.pid, signal.SIGSTOP)
    try:
        watcher.picture(lambda picture: picture["status"]["members_trouble"])
        started = time.monotonic()
        assert a.json("status")["members_trouble"]
        assert time.monotonic() - started < 15
        for _ in range(5):
            assert watcher.picture(lambda picture: True)["status"]["name"] == "a"
    finally:
        os.kill(d.process.pid, signal.SIGCONT)
    watcher.picture(lambda picture: members(picture) == 2)
    watcher.end()


def test_locks_of_a_name_that_is_not_there_are_no_answer(start_node):
    a = start_node("a", options=ROOM)
    a.run("region", "create", "counters", "4M")
    assert "nobody holds a lock" in a.run("locks", "counters").stderr
    for options in ([], ["--json"]):
        outcome = a.run("locks", "counter", *options, check=False)
        assert outcome.returncode == 1 and outcome.stdout == "" and "there is no object counter" in outcome.stderr, outcome


def test_who_keeps_locks_and_does_not_answer_is_not_taken_for_nobody(pair):
    a, d = pair
    assert "nobody holds a lock" in d.run("locks").stderr
    a.kill()
    said = d.run("locks").stderr
    assert f"locks kept by a ({a.address}) are not shown: " in said and "nobody holds a lock" not in said, said
