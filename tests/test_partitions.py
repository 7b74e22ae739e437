"""Networks that fall apart: whoever reaches the directory goes on, all others refuse to write and say why, and healed all is one again.

Four nodes in two racks of two, each with a network of its own. In every way in which four can be cut.
"""

import concurrent.futures
import json
import os

import pytest

from etcd_servers import Cluster, needs_etcd
from faults import FULL, patiently, sha, wait_until
from networks import Network, partitions

NAMES = "abcd"
RACKS = {"a": "one", "b": "one", "c": "two", "d": "two"}
ROOM = ["--capacity", "64M", "--cache-budget", "64M", "--kv-capacity", "1M", "--repair", "off", "--backing", "base"]
WAYS = partitions(NAMES)
# A way for each shape, and the one that cuts between the racks; all of them in `./check --full`.
SOME = [way for way in WAYS if sorted(map(sorted, way)) in (
    [["a", "b"], ["c", "d"]], [["a"], ["b", "c", "d"]], [["a", "d"], ["b"], ["c"]])]
SECONDS = 60


def test_every_way_to_cut_four_is_tried():
    assert len(WAYS) == 14 and len({str(sorted(map(sorted, way))) for way in WAYS}) == 14


@pytest.fixture
def network():
    """A network of four hosts."""
    network = Network(NAMES)
    yield network
    network.stop()


@pytest.fixture
def start_on(network, start_node, folder, binary):
    """A function that starts a node on its host."""
    key = folder / "pool.key"
    key.write_text(os.urandom(32).hex() + "\n")

    def start(name, options=(), join=None, **choices):
        node = start_node(name, rack=RACKS[name], wrapper=network.inside(name), join=join, listen=f"{network.address(name)}:7401",
                          options=["--key", key, *ROOM, *options], **choices)
        # Commands run on the host too: some talk to other nodes.
        script = folder / f"on-{name}"
        script.write_text(f'#!/bin/sh\nexport HINTERLAND_KEY_FILE={key}\nexec {" ".join(network.inside(name))} {binary} "$@"\n')
        script.chmod(0o755)
        node.binary = str(script)
        return node
    return start


def try_to_write(node, source, name, times):
    """What a put says: nothing if it was done. One that was under way when the leader changed may be refused."""
    for _ in range(times):
        outcome = node.run("put", source, "--name", name, check=False)
        if outcome.returncode == 0:
            return ""
    return outcome.stderr


def cut_and_heal(network, nodes, way, may_write, source, folder, number, settle=lambda: None):
    """Cuts the network, has every node write, and checks who may; then heals it and finds all that was acknowledged."""
    before = f"before-{number}"
    patiently(nodes["a"], "put", source, "--name", before, "--copies", "2", seconds=SECONDS)
    network.split(way)
    settle()
    with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
        names = {name: f"cut-{number}-{name}" for name in nodes}
        said = dict(zip(nodes, pool.map(lambda name: try_to_write(nodes[name], source, names[name], 3 if name in may_write else 1), nodes)))
    for name, words in said.items():
        if name in may_write:
            assert words == "", f"{name} of {way} should go on:\n{words}\n{nodes[name].words()}"
        else:
            assert words and "hint:" in words, f"{name} of {way} should refuse"
            assert "does not answer" in words or "cannot be reached" in words or "did not answer" in words or "connect" in words, words
    network.heal()
    for name, node in nodes.items():
        wait_until(lambda: all(member["up"] for member in members(node)) and len(members(node)) == len(nodes), SECONDS,
                   why=lambda: f"{name} does not see all: {members(node)}")
    for node in nodes.values():
        found = {row["name"] for row in json.loads(patiently(node, "ls", "--json", seconds=SECONDS).stdout)}
        assert before in found
        for name in may_write:
            assert names[name] in found, f"{names[name]} was acknowledged and is lost"
            patiently(node, "get", names[name], folder / "back", seconds=SECONDS)
            assert sha(folder / "back") == sha(source)
        # Who was refused may have been heard before the cut; whatever is there is whole.
        for name in set(names) - set(may_write):
            if names[name] in found:
                patiently(node, "get", names[name], folder / "back", seconds=SECONDS)
                assert sha(folder / "back") == sha(source)


def members(node):
    """All members as a node is told; none while it is told nothing."""
    outcome = node.run("status", "--json", check=False)
    return (json.loads(outcome.stdout)["members"] or []) if outcome.returncode == 0 else []


def test_with_one_directory_who_reaches_it_goes_on(network, start_on, make_file, folder):
    source = make_file("source", 100_000)
    nodes = {"a": start_on("a")}
    for name in "bcd":
        nodes[name] = start_on(name, join=f"{network.address('a')}:7401")
    for number, way in enumerate(WAYS if FULL else SOME):
        [with_directory] = [part for part in way if "a" in part]
        cut_and_heal(network, nodes, way, with_directory, source, folder, number)


@needs_etcd
def test_with_etcd_the_side_with_most_of_it_goes_on(network, start_on, make_file, folder):
    source = make_file("source", 100_000)
    cluster = Cluster(folder, 0)
    try:
        start_etcd(cluster, network, folder)
        options = ["--directory", f"etcd://{','.join(member.client for member in cluster.members)}"]
        nodes = {name: start_on(name, options) for name in NAMES}
        for number, way in enumerate(WAYS if FULL else SOME):
            most = [part for part in way if len(set(part) & set("abc")) >= 2]
            cut_and_heal(network, nodes, way, most[0] if most else [], source, folder, number)
            # Everybody follows the same one.
            wait_until(lambda: len({json.dumps(node.json("status")["leader"]) for node in nodes.values()}) == 1, SECONDS)
    finally:
        cluster.stop()


def start_etcd(cluster, network, folder):
    """An etcd member each on the hosts a, b and c."""
    from etcd_servers import Member

    for name in "abc":
        member = Member(folder, name, wrapper=network.inside(name))
        member.host = network.address(name)
        member.client, member.peer = f"{member.host}:2379", f"{member.host}:2380"
        cluster.members.append(member)
    cluster.words = ",".join(f"{member.name}=http://{member.peer}" for member in cluster.members)
    cluster.start(wait=False)
