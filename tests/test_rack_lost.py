"""A whole rack dies under running writers: with two copies every acknowledged byte is read back, and what is left makes the copies again."""

import concurrent.futures
import hashlib
import json
import threading

import pytest

from etcd_servers import Cluster, needs_etcd
from faults import members_up, patiently, sha, wait_until

ROOM = ["--capacity", "128M", "--cache-budget", "64M", "--kv-capacity", "1M", "--repair-after", "1", "--repair-rate", "0"]
RACKS = {"a": "one", "b": "one", "c": "two", "d": "two"}
SECONDS = 90


class Writer:
    """Puts objects of its own with two copies through one node, until it is stopped; what was acknowledged is remembered."""

    def __init__(self, node, folder, number):
        self.node, self.folder, self.number = node, folder, number
        self.acknowledged, self.refused = {}, []
        self.stopped = threading.Event()

    def work(self):
        count = 0
        while not self.stopped.is_set():
            count += 1
            name = f"w{self.number}/{count}"
            size = [3, 70_000, 2_500_000][count % 3]
            data = hashlib.shake_128(name.encode()).digest(size)
            path = self.folder / f"writing-{self.number}"
            path.write_bytes(data)
            outcome = self.node.run("put", path, "--name", name, "--copies", "2", check=False)
            if outcome.returncode == 0:
                self.acknowledged[name] = hashlib.sha256(data).hexdigest()
            else:
                self.refused.append(outcome.stderr)


@pytest.mark.parametrize("directory", ["one host", pytest.param("etcd", marks=needs_etcd)])
def test_every_acknowledged_byte_outlives_a_rack(start_node, folder, directory):
    cluster = Cluster(folder, 1).start() if directory == "etcd" else None
    try:
        nodes = start_racks(start_node, cluster)
        lost = ["c", "d"]
        if cluster is not None and RACKS[cluster.leader()] == "one":
            # The rack of the leader dies with it.
            lost = ["a", "b"]
        kept = [name for name in nodes if name not in lost]
        lose_a_rack(nodes, kept, lost, folder)
    finally:
        if cluster is not None:
            cluster.stop()


def start_racks(start_node, cluster):
    """Four nodes in two racks of two."""
    nodes = {}
    for name, rack in RACKS.items():
        if cluster is not None:
            nodes[name] = start_node(name, rack=rack, options=["--directory", cluster.directory(), *ROOM])
        else:
            join = nodes["a"].address if nodes else None
            nodes[name] = start_node(name, rack=rack, join=join, options=ROOM)
    return nodes


def lose_a_rack(nodes, kept, lost, folder):
    """Kills a rack in the midst of puts from both, and reads all that was acknowledged in the other."""
    writers = [Writer(nodes[name], folder, number) for number, name in enumerate([kept[0], kept[1], lost[0]])]
    with concurrent.futures.ThreadPoolExecutor(len(writers)) as pool:
        threads = [pool.submit(writer.work) for writer in writers]
        try:
            wait_until(lambda: all(len(writer.acknowledged) >= 4 for writer in writers), SECONDS, why=lambda: f"{[w.refused[:2] for w in writers]}")
            for name in lost:
                nodes[name].process.kill()
            # Who writes in the rack that is left goes on: two nodes are enough for two copies.
            before = [len(writer.acknowledged) for writer in writers]
            wait_until(lambda: all(len(writers[number].acknowledged) >= before[number] + 3 for number in (0, 1)), SECONDS,
                       why=lambda: f"{[w.refused[-2:] for w in writers]}")
        finally:
            for writer in writers:
                writer.stopped.set()
            for thread in threads:
                thread.result()
    acknowledged = {name: digest for writer in writers for name, digest in writer.acknowledged.items()}
    for number, (name, digest) in enumerate(sorted(acknowledged.items())):
        patiently(nodes[kept[number % 2]], "get", name, folder / "back", seconds=SECONDS)
        assert sha(folder / "back") == digest, f"{name} has other bytes"
    # What lacks a copy gets it in what is left.
    for name in acknowledged:
        wait_until(lambda: homes_up(nodes[kept[0]], name) == 2, SECONDS,
                   why=lambda: f"{name}: {nodes[kept[0]].run('stat', name, check=False).stdout}\n{nodes[kept[1]].words()}")
    for name in lost:
        nodes[name].process.wait()
        nodes[name].process.stdout.close()
        nodes[name].start()
    wait_until(lambda: members_up(nodes[kept[0]]) and all(members_up(nodes[kept[0]])), SECONDS)
    # And the rack that comes back finds all of it, also what was written meanwhile.
    for name, digest in list(acknowledged.items())[-6:]:
        patiently(nodes[lost[0]], "get", name, folder / "back", seconds=SECONDS)
        assert sha(folder / "back") == digest


def homes_up(node, name):
    """How many homes of an object are up."""
    return sum(home["up"] for home in json.loads(patiently(node, "stat", name, "--json").stdout)["homes"])
