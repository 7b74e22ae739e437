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
from on_hosts import Host
from partition_users import Cell, Locked, Users

NAMES = "abcd"
RACKS = {"a": "one", "b": "one", "c": "two", "d": "two"}
ROOM = ["--capacity", "64M", "--cache-budget", "64M", "--kv-capacity", "4M", "--repair", "off", "--backing", "base"]
WAYS = partitions(NAMES)
# A way for each shape, and the one that cuts between the racks; all of them in `./check --full`.
SOME = [way for way in WAYS if sorted(map(sorted, way)) in (
    [["a", "b"], ["c", "d"]], [["a"], ["b", "c", "d"]], [["a", "d"], ["b"], ["c"]])]
# The way in which programs take part, too; all of them in `./check --full`: an access that reaches nobody is tried for 15 s.
[BETWEEN_RACKS] = [way for way in SOME if sorted(map(sorted, way)) == [["a", "b"], ["c", "d"]]]
SECONDS = 60


def test_every_way_to_cut_four_is_tried():
    assert len(WAYS) == 14 and len({str(sorted(map(sorted, way))) for way in WAYS}) == 14


def test_what_must_not_be_seen_under_a_cut_would_be_noticed():
    cell = Cell()
    cell.acknowledged, cell.tried = 3, 4
    for right in (3, 4):
        cell.check(right, 3, "a word")
    for wrong in (2, 5):
        with pytest.raises(AssertionError, match="a word"):
            cell.check(wrong, 3, "a word")
    # What the second holder reads, whether the first one knows that it wrote 7, and what it writes late.
    for read, known, late, is_right in ((7, True, None, True), (0, True, None, False), (0, False, None, True), (7, False, None, True),
                                        (9, False, None, False), (7, True, 7, False), (7, True, 8, True)):
        locked = Locked()
        locked.note(1, "both", read=[0], wrote=[7], known=known)
        locked.note(2, "both", read=[read], wrote=[8], known=True)
        if late is not None:
            locked.note(2, "read only", read=[late])
        if is_right:
            locked.check("a lock")
        else:
            with pytest.raises(AssertionError, match="a lock"):
                locked.check("a lock")


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


@pytest.fixture
def programs(hinterland, folder):
    """A function that starts a program on a node's host."""
    started = []

    def start(node):
        started.append(Host(node, folder / "pool.key"))
        return started[-1]

    yield start
    for host in started:
        host.stop()


def try_to_write(node, source, name, times):
    """What a put says: nothing if it was done. One that was under way when the leader changed may be refused."""
    for _ in range(times):
        outcome = node.run("put", source, "--name", name, check=False)
        if outcome.returncode == 0:
            return ""
    return outcome.stderr


def cut_and_heal(network, nodes, way, may_write, source, folder, number, users):
    """Cuts the network, has every node write, and checks who may; then heals it and finds all that was acknowledged."""
    before = f"before-{number}"
    patiently(nodes["a"], "put", source, "--name", before, "--copies", "2", seconds=SECONDS)
    if users:
        users.before(number)
    with concurrent.futures.ThreadPoolExecutor(2 * len(nodes)) as pool:
        pulls = [pool.submit(users.pull, name) for name in nodes if users]
        network.split(way)
        names = {name: f"cut-{number}-{name}" for name in nodes}
        said = dict(zip(nodes, pool.map(lambda name: try_to_write(nodes[name], source, names[name], 3 if name in may_write else 1), nodes)))
        for name, words in said.items():
            if name in may_write:
                assert words == "", f"{name} of {way} should go on:\n{words}\n{nodes[name].words()}"
            else:
                assert words and "hint:" in words, f"{name} of {way} should refuse"
                assert "does not answer" in words or "cannot be reached" in words or "did not answer" in words or "connect" in words, words
        if users:
            users.during(way, may_write)
        for pull in pulls:
            pull.result()
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
    if users:
        users.after()


def members(node):
    """All members as a node is told; none while it is told nothing."""
    outcome = node.run("status", "--json", check=False)
    return (json.loads(outcome.stdout)["members"] or []) if outcome.returncode == 0 else []


def test_with_one_directory_who_reaches_it_goes_on(network, start_on, programs, make_file, folder):
    source = make_file("source", 100_000)
    nodes = {"a": start_on("a")}
    for name in "bcd":
        nodes[name] = start_on(name, join=f"{network.address('a')}:7401")
    users = Users(nodes, programs, folder)
    for number, way in enumerate(WAYS if FULL else SOME):
        [with_directory] = [part for part in way if "a" in part]
        cut_and_heal(network, nodes, way, with_directory, source, folder, number, users if FULL or way == BETWEEN_RACKS else None)


@needs_etcd
def test_with_etcd_the_side_with_most_of_it_goes_on(network, start_on, programs, make_file, folder):
    source = make_file("source", 100_000)
    cluster = Cluster(folder, 0)
    try:
        start_etcd(cluster, network, folder)
        options = ["--directory", f"etcd://{','.join(member.client for member in cluster.members)}"]
        nodes = {name: start_on(name, options) for name in NAMES}
        users = Users(nodes, programs, folder)
        for number, way in enumerate(WAYS if FULL else SOME):
            most = [part for part in way if len(set(part) & set("abc")) >= 2]
            cut_and_heal(network, nodes, way, most[0] if most else [], source, folder, number, users if FULL else None)
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
