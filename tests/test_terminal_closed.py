"""A terminal that is closed in the middle: what ran in it ends in order, as by ctrl-C, and what was started with `nohup` goes on."""

import os
import signal
import subprocess

import pytest
from faults import wait_until

SECONDS = 20


@pytest.fixture
def mounted(node, folder):
    """A function that starts a mount in the words of a wrapper; it gives the process and the folder."""
    place = folder / "mounted"
    place.mkdir()
    started = []

    def start(*wrapper):
        started.append(subprocess.Popen([*wrapper, *node.command("mount", place, "--json")], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL))
        assert started[-1].stdout.readline(), "it is not mounted"
        return started[-1], place

    yield start
    for one in started:
        one.kill()
        one.wait()
        one.stdout.close()
    subprocess.run(["umount", "--lazy", place], check=False, stderr=subprocess.DEVNULL)


def test_a_mount_ends_in_order_with_its_terminal(mounted):
    process, place = mounted()
    process.send_signal(signal.SIGHUP)
    assert process.wait(SECONDS) == 0
    assert not os.path.ismount(place) and os.listdir(place) == []


def test_a_mount_that_was_started_with_nohup_outlives_its_terminal(mounted, node):
    process, place = mounted("nohup")
    process.send_signal(signal.SIGHUP)
    node.run("put", "-", "--name", "later", input="bytes")
    wait_until(lambda: os.listdir(place) == ["later"])
    assert process.poll() is None and os.path.ismount(place)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def test_a_node_stops_in_order_with_its_terminal(node):
    node.run("put", "-", "--name", "kept", input="bytes")
    node.process.send_signal(signal.SIGHUP)
    assert node.process.wait(SECONDS) == 0
    assert "stopping; objects stay in memory for the next start" in node.words()


def test_a_node_without_objects_does_not_speak_of_them(node):
    assert node.stop() == 0
    assert "stopping" in node.words() and "objects stay" not in node.words()
