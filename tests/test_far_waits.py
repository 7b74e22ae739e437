"""How the thread that serves faults waits for the next one: every byte is right whatever way it takes, and the machine's processors are kept awake for no longer than asked."""

import os
import pathlib
import subprocess
import threading

import pytest

from faults import wait_until
from test_far import far, library, pytestmark  # noqa: F401

DEVICE = pathlib.Path("/dev/cpu_dma_latency")
SECONDS_MAX = 120
# The serving thread looks each 10 ms whether it is still needed; others may want the processors.
REST_SECONDS_MAX = 30


class Toucher:
    """A program that touches random words of 160 MiB with 80 MiB here, and compares each."""

    def __init__(self, binary, *options, environment=None):
        command = [binary, "--quiet", "run", "--local", "80M", "--far-unit", "4K", *options, "--", binary, "bench", "far-toucher"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.running = subprocess.Popen(command, text=True, bufsize=1, env={**os.environ, **(environment or {})}, **pipes)
        assert self.ask(f"fill {160 << 20}") == "0"

    def ask(self, line):
        """The answer to a line."""
        self.running.stdin.write(line + "\n")
        return self.running.stdout.readline().strip()

    def touch(self, milliseconds):
        """How many words a second were touched, each of them right."""
        answer = self.ask(f"random {milliseconds}")
        assert not answer.startswith("error"), answer
        return float(answer)

    def end(self):
        """Ends it, and returns what it said beside its answers."""
        self.running.stdin.close()
        self.running.wait(timeout=SECONDS_MAX)
        return self.running.stderr.read()

    def keeps_awake(self):
        """Whether the run has the processors kept awake."""
        return any(target(link) == str(DEVICE) for link in pathlib.Path(f"/proc/{self.running.pid}/fd").iterdir())


def target(link):
    """Where a descriptor leads, unless it was closed meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("switches", [{}, {"HINTERLAND_FAR_LOOK": "0"}, {"HINTERLAND_FAR_FOLLOW": "0"}])
def test_every_word_is_right_whatever_way_the_next_fault_is_waited_for(binary, library, switches):
    toucher = Toucher(binary, environment=switches)
    for _ in range(4):
        assert toucher.touch(500) > 0
    assert toucher.end() == ""


@pytest.mark.skipif(not os.access(DEVICE, os.W_OK), reason="no processor can be kept from sleep without /dev/cpu_dma_latency")
def test_processors_are_kept_awake_while_faults_come_and_no_longer(binary, library):
    toucher = Toucher(binary, "--awake")
    wait_until(lambda: not toucher.keeps_awake(), REST_SECONDS_MAX)
    answers, is_enough = [], threading.Event()

    def touch():
        while not is_enough.is_set():
            answers.append(toucher.touch(500))

    touching = threading.Thread(target=touch)
    touching.start()
    try:
        wait_until(toucher.keeps_awake, REST_SECONDS_MAX)
    finally:
        is_enough.set()
        touching.join()
    assert answers and all(answers)
    wait_until(lambda: not toucher.keeps_awake(), REST_SECONDS_MAX)
    assert toucher.end() == ""


def test_processors_that_cannot_be_kept_awake_are_said_before_the_program_starts(binary, library, tmp_path):
    if not DEVICE.exists():
        ended = far(binary, ["--local", "80M", "--awake"], ["touch", tmp_path / "started"])
    else:
        cover = tmp_path / "cover"
        cover.touch()
        mount = 'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && exec "$@"'
        words = [binary, "run", "--local", "80M", "--awake", "--", "touch", tmp_path / "started"]
        command = ["unshare", "-m", "sh", "-c", mount, "sh", cover, DEVICE, *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode != 0 and not (tmp_path / "started").exists(), ended.stderr
    assert ended.stderr.startswith("error: --awake: ") and "leave --awake away" in ended.stderr, ended.stderr


def test_awake_is_refused_without_far_memory(binary):
    ended = subprocess.run([binary, "run", "--awake", "--", "true"], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode == 2 and "--local" in ended.stderr, ended.stderr
