"""A program is killed at every step of put, map, read and remove: what it held is free within a second, and no object is half there.

The steps of each command, which are its messages to the node, are counted first by a run that nobody kills.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from faults import MEBIBYTE, sha, wait_until

MAPPED = pathlib.Path(__file__).resolve().parent / "programs/mapped.py"
# What is read again and again would get a copy, which is no leak and looks like one.
ROOM = ["--capacity", "64M", "--cache-budget", "64M", "--heat-copies", "off"]
STEP = re.compile(rb"^fault-point ((?:client|program)-\S+)$", re.M)
# Commands, and the steps without which nothing would be tried.
STORIES = {
    "put": (["put", "SOURCE", "--name", "one", "--copies", "2"], {"client-asks", "client-asked", "client-answered"}),
    "put of a stream": (["put", "-", "--name", "one", "--rack", "a"], {"client-writes", "client-written"}),
    "map": (["run", "--unit", "1M", "--budget", "3M", "--", sys.executable, str(MAPPED), "whole", "/pool/kept"],
            {"program-asks", "program-asked", "program-answered", "client-asks"}),
    "remove": (["rm", "one"], {"client-asks", "client-asked", "client-answered"}),
}


class Pool:
    """Two racks, an object that stays in the other one, and commands by way of the first."""

    def __init__(self, start_node, make_file, story):
        self.b = start_node("b", options=ROOM)
        self.a = start_node("a", join=self.b.address, options=ROOM)
        self.words, self.needed = STORIES[story]
        self.is_remove = story == "remove"
        self.source = make_file("source", 9 * MEBIBYTE + 2)
        self.a.run("put", self.source, "--name", "kept", "--rack", "b")
        self.used = self.used_bytes()
        self.sessions = self.sessions_of()

    def used_bytes(self):
        return [node.json("status")["used_bytes"] for node in (self.a, self.b)]

    def sessions_of(self):
        return [node.json("status")["sessions"] for node in (self.a, self.b)]

    def run(self, plan):
        """Runs the command with a plan for its steps; whether it ended well, and the steps it said."""
        if self.is_remove:
            self.a.run("put", self.source, "--name", "one", "--copies", "2")
        words = [str(self.source) if word == "SOURCE" else word for word in self.words]
        with open(self.source, "rb") as stream:
            done = subprocess.run(self.a.command(*words), stdin=stream, capture_output=True, timeout=60,
                                  env={**os.environ, "HINTERLAND_FAULT_POINT": plan})
        if done.returncode == 0 and words[0] == "run":
            assert done.stdout.decode().strip() == sha(self.source), "a wrong byte was read"
        return done.returncode == 0, [step.decode() for step in STEP.findall(done.stderr)]

    def check(self, step):
        """What it held is free, and what shows is whole."""
        wait_until(lambda: self.sessions_of() == self.sessions, seconds=5, why=f"{step}: a session is left: {self.sessions_of()}")
        found = {entry["name"] for entry in self.a.json("ls")}
        assert "kept" in found and found <= {"kept", "one"}, (step, found)
        if "one" in found:
            verified, = self.a.json("verify", "one")
            assert verified["bad"] == [], (step, verified)
            assert sha(self.a.run("get", "one", "-", text=False).stdout) == sha(self.source), step
            self.a.run("rm", "one")
        wait_until(lambda: self.used_bytes() == self.used, seconds=5, why=lambda: f"{step}: {self.used_bytes()} is not {self.used}")
        assert self.a.json("verify", "kept")[0]["bad"] == [], step


@pytest.mark.parametrize("story", STORIES)
def test_a_program_that_is_killed_at_any_step(start_node, make_file, story):
    pool = Pool(start_node, make_file, story)
    is_well, steps = pool.run("count")
    assert is_well
    pool.check("nobody was killed")
    assert pool.needed <= {step.split(":")[0] for step in steps}, steps
    steps = sorted(set(steps), key=steps.index)
    killed = 0
    for step in steps:
        is_well, _ = pool.run(step)
        killed += not is_well
        pool.check(step)
    assert killed * 2 > len(steps), f"of {steps} only {killed} were reached again"
