"""Steps at which a node can be killed, commands that are watched while it dies, and what must be true afterwards."""

import hashlib
import os
import signal
import subprocess
import time

FULL = os.environ.get("HINTERLAND_FULL", "") not in ("", "0")
STEP = b"fault-point "
MEBIBYTE = 1 << 20


def wait_until(what, seconds=10, why="it did not come true in time"):
    """Polls until `what()` is true; an assertion when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return
        time.sleep(0.02)
    raise AssertionError(why() if callable(why) else why)


def members_up(node):
    """Whether each of the members is up, as a node is told; none while it is told nothing."""
    return [member["up"] for member in node.json("status")["members"] or []]


def steps_said(node, start=0):
    """The steps `NAME:N` that a counting node has said on standard error, from an offset of its log on."""
    with open(node.log, "rb") as log:
        log.seek(start)
        return [line[len(STEP):].decode() for line in log.read().splitlines() if line.startswith(STEP)]


def is_dead(node):
    """Whether the node's process has ended."""
    return node.process.poll() is not None


def start_armed(node, step):
    """Starts a node that is killed at a step; it may die before it is ready."""
    node.start({"HINTERLAND_FAULT_POINT": step}, wait=False)
    try:
        node.wait_ready()
    except AssertionError:
        assert is_dead(node), node.words()


def bury(node):
    """Takes the status of a node that was killed, and starts it again."""
    assert node.process.wait() == -signal.SIGKILL, f"{node.name} ended otherwise:\n{node.words()}"
    node.process.stdout.close()
    node.start()


def watched(node, victim, *words, stdin=None, seconds=60):
    """Runs a command against a node and starts `victim` again as soon as it is dead; returns the outcome."""
    with open(stdin or os.devnull, "rb") as source:
        process = subprocess.Popen(node.command(*words), stdin=source, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if is_dead(victim):
            bury(victim)
        time.sleep(0.005)
    if process.poll() is None:
        process.kill()
        raise AssertionError(f"{words} hangs:\n{process.communicate()}\n{node.words()}\n{victim.words()}")
    output, said = process.communicate()
    if is_dead(victim):
        bury(victim)
    return subprocess.CompletedProcess(words, process.returncode, output, said)


def patiently(node, *words, seconds=20):
    """Runs a command until it succeeds: after a restart others need a moment to find each other again."""
    deadline = time.monotonic() + seconds
    while True:
        outcome = node.run(*words, check=False)
        if outcome.returncode == 0:
            return outcome
        assert time.monotonic() < deadline, f"{words} never succeeds: {outcome.stderr}\n{node.words()}"
        time.sleep(0.05)


def sha(data):
    """The sha256 of bytes, or of a file's bytes."""
    return hashlib.sha256(data if isinstance(data, bytes) else data.read_bytes()).hexdigest()


def sigbus(status):
    """Whether a status is that of a program that died by SIGBUS, seen from a shell or from its parent."""
    return status in (128 + signal.SIGBUS, -signal.SIGBUS)
