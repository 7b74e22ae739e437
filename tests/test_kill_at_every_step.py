"""A node is killed at every step of put, seal, map, fill, evict and remove: nothing is lost, left behind or wrong.

The steps are counted first by a run in which nobody dies, so that a step which is added to the node is a step of this
test. By default some steps of each kind of node are tried; HINTERLAND_FULL=1 tries all.
"""

import json
import pathlib
import sys

import pytest
from faults import FULL, MEBIBYTE, bury, is_dead, patiently, sha, sigbus, start_armed, steps_said, wait_until, watched

MAPPED = pathlib.Path(__file__).resolve().parent / "programs/mapped.py"
ROOM = ["--capacity", "64M", "--cache-budget", "64M"]
STEPS_TRIED = None if FULL else 5
# What a node must pass on the way, whatever else it passes: a list that is empty would kill nobody.
EXPECTED = {
    "writer": {"put-reserved", "put-room-made", "put-homes-sealed", "put-sealed", "put-aborted", "object-bytes-synced",
               "object-header-drafted", "object-header-renamed", "object-file-removed", "map-cached", "map-registered", "fill-begun",
               "fill-fetched", "fill-written", "fill-completed", "evict-chosen", "evict-punched", "remove-committed",
               "remove-dropped", "joined"},
    "home": {"home-created", "home-grown", "home-sealed", "home-dropped", "home-attached", "object-file-made",
             "object-header-drafted", "object-header-renamed", "object-header-removed", "object-file-removed", "joined"},
    "directory": {"directory-planned", "directory-written", "directory-durable"},
}


class Story:
    """Two racks, and what people do with them; whoever dies is started again."""

    def __init__(self, start_node, make_file, directory, victim):
        other = "a" if directory == "b" else "b"
        nodes = {directory: start_node(directory, options=ROOM)}
        nodes[other] = start_node(other, join=nodes[directory].address, options=ROOM)
        self.a, self.b = nodes["a"], nodes["b"]
        self.victim = nodes[victim]
        self.sources = {"one": make_file("one", 3 * MEBIBYTE + 1, 1), "two": make_file("two", 9 * MEBIBYTE + 2, 2)}
        self.state = {}

    def tell(self):
        """Puts, maps across racks in little memory, removes, gives up; remembers what was acknowledged."""
        self.state = {"one": "unknown", "two": "unknown"}
        if self.ask("put", self.sources["one"], "--name", "one", "--copies", "2").returncode == 0:
            self.state["one"] = "there"
        if self.ask("put", "-", "--name", "two", "--rack", "b", stdin=self.sources["two"]).returncode == 0:
            self.state["two"] = "there"
            self.read_mapped()
        if self.state["one"] == "there":
            self.state["one"] = "gone" if self.ask("rm", "one").returncode == 0 else "unknown"
        # Larger than the pool, which a stream does not say before it is read.
        assert self.ask("put", "-", "--name", "three", stdin="/dev/zero").returncode != 0

    def read_mapped(self):
        """A program maps the object: right bytes, or SIGBUS with the reason if its only home is dead."""
        program = [sys.executable, MAPPED, "whole", "/pool/two"]
        outcome = self.ask("run", "--unit", "1M", "--budget", "3M", "--", *program)
        if outcome.returncode == 0:
            assert outcome.stdout.strip() == sha(self.sources["two"]), "a wrong byte was read"
            return
        assert outcome.stdout == "", "a wrong byte was read"
        assert self.victim is self.b or not sigbus(outcome.returncode), f"its home was there: {outcome.stderr}"
        assert not sigbus(outcome.returncode) or "two" in outcome.stderr, outcome

    def ask(self, *words, **options):
        """Runs a command by way of node `a`; whoever fails says what to do."""
        outcome = watched(self.a, self.victim, *words, **options)
        assert outcome.returncode == 0 or words[0] == "run" or "hint:" in outcome.stderr, outcome
        return outcome

    def check(self):
        """Nothing acknowledged is lost, what shows is whole, and all that was taken can be given back."""
        found = {entry["name"] for entry in self.json("ls")}
        assert found <= set(self.sources), found
        for name, state in self.state.items():
            assert state != "there" or name in found, f"{name} was acknowledged and is lost"
            assert state != "gone" or name not in found, f"{name} was removed and is back"
        for name in found:
            verified, = self.json("verify", name)
            assert verified["bad"] == [], verified
            back = self.a.run("get", name, "-", text=False).stdout
            assert sha(back) == sha(self.sources[name]), f"{name} has other bytes"
            patiently(self.a, "rm", name)
        self.check_empty("after everything was removed")
        for name, source in self.sources.items():
            patiently(self.a, "put", source, "--name", name, "--copies", "2")
            patiently(self.a, "rm", name)
        self.check_empty("after the names were used again")

    def check_empty(self, when):
        """No byte, no header and no file of bytes is left anywhere."""
        for node in (self.a, self.b):
            wait_until(lambda node=node: node.json("status")["used_bytes"] == 0,
                       why=lambda node=node: f"{node.name} still uses {node.json('status')['used_bytes']} {when}")
            left = [*node.state.glob("objects/*"), *node.state.glob("memory-*/*.bytes")]
            number = (node.state / "node.id").read_text().strip()
            left += pathlib.Path(f"/dev/shm/hinterland-{number}").glob("*.bytes")
            assert left == [], when

    def json(self, *words):
        """What a command prints with --json, once it succeeds."""
        return json.loads(patiently(self.a, *words, "--json").stdout)


@pytest.mark.parametrize("directory,victim", ["aa", "ab", "ba", "bb"],
                         ids=["writer with directory", "home", "writer", "home with directory"])
def test_a_node_that_is_killed_at_any_step(start_node, make_file, directory, victim):
    story = Story(start_node, make_file, directory, victim)
    steps = count(story)
    names = {step.split(":")[0] for step in steps}
    expected = EXPECTED["writer" if victim == "a" else "home"] | (EXPECTED["directory"] if directory == victim else set())
    assert expected <= names, f"never reached: {expected - names}"
    died = [step for step in chosen(steps) if dies_well(story, step)]
    assert len(died) * 2 > len(chosen(steps)), f"of {chosen(steps)} only {died} were reached again"


def count(story):
    """The steps that the victim passes when nobody dies."""
    story.victim.kill()
    before = story.victim.log.stat().st_size
    story.victim.start({"HINTERLAND_FAULT_POINT": "count"})
    story.tell()
    assert story.state == {"one": "gone", "two": "there"}
    steps = steps_said(story.victim, before)
    story.check()
    return steps


def dies_well(story, step):
    """Kills the victim at one step and checks what is left; whether the step was reached."""
    story.victim.kill()
    start_armed(story.victim, step)
    life = story.victim.process
    try:
        if is_dead(story.victim):
            bury(story.victim)
        story.tell()
        if story.victim.process is life:
            # Not reached this time: it must not be reached later either.
            story.victim.kill()
            story.victim.start()
            story.check()
            return False
        story.check()
        return True
    except AssertionError as error:
        raise AssertionError(f"killed at {step}: {error}") from error


def chosen(steps):
    """All steps, or as many as the time allows, spread over all names of steps."""
    if STEPS_TRIED is None:
        return steps
    firsts = {}
    for step in steps:
        firsts.setdefault(step.split(":")[0], step)
    firsts = list(firsts.values())
    return firsts[::max(1, len(firsts) // STEPS_TRIED)][:STEPS_TRIED]
