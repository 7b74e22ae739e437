"""A directory in etcd that several nodes may lead: any of them may die, be stopped or cut off, and nothing acknowledged is lost or done twice."""

import collections
import concurrent.futures
import errno
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from etcd_servers import TREE, Cluster, needs_etcd, program
from faults import patiently, sha, wait_until
from guides import commands
from loopback import free_port
from test_belonging import start_adopting
from test_clock import clock  # noqa: F401
from test_mount_writing import Mount

pytestmark = needs_etcd
MEBIBYTE = 1 << 20
ROOM = ["--capacity", "128M", "--kv-capacity", "1M", "--repair", "off"]
# A lease of three seconds, and room for a machine that is busy.
SECONDS = 30


@pytest.fixture
def etcd(folder):
    """A function that starts an etcd of so many members."""
    started = []

    def start(count=1, **choices):
        started.append(Cluster(folder, count, **choices).start())
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture
def hosts(etcd, start_node):
    """A function that starts nodes a, b and c with a directory in etcd, as (cluster, nodes by name)."""
    def start(members=1, names="abc", options=()):
        cluster = etcd(members)
        choices = ["--directory", cluster.directory(), *ROOM, *options]
        return cluster, {name: start_node(name, options=choices) for name in names}
    return start


def leader_of(node):
    """Who leads, as a node sees it."""
    leader = node.json("status").get("leader")
    return leader and leader["name"]


def are_all_up(node):
    """Whether the node knows the members of its pool, and all of them are up."""
    found = json.loads(patiently(node, "status", "--json").stdout)["members"]
    return bool(found) and all(member["up"] for member in found)


def names_of(node):
    """The names of all objects, as one node lists them."""
    return {row["name"] for row in json.loads(patiently(node, "ls", "--json").stdout)}


def test_one_host_keeps_its_directory_in_etcd(etcd, start_node, make_file, folder):
    cluster = etcd()
    node = start_node("a", options=["--directory", cluster.directory(), *ROOM])
    source = make_file("source", 3 * MEBIBYTE + 7)
    node.run("put", source, "--name", "data")
    node.run("region", "create", "counters", "4M")
    assert cluster.leader() == "a"
    assert cluster.get("hinterland/t/names/data") is not None
    node.kill()
    node.start()
    assert patiently(node, "get", "data", folder / "back").returncode == 0
    assert sha(folder / "back") == sha(source)
    assert names_of(node) == {"data", "counters"}
    node.run("rm", "data")
    assert names_of(node) == {"counters"}
    assert node.stop() == 0
    assert cluster.leader() is None, "who stops makes room at once"


def test_another_host_leads_when_one_is_killed(hosts, make_file, folder):
    cluster, nodes = hosts()
    source = make_file("source", MEBIBYTE + 3)
    for name, node in nodes.items():
        node.run("put", source, "--name", f"from-{name}", "--copies", "2")
    first = cluster.leader()
    nodes[first].kill()
    others = [node for name, node in nodes.items() if name != first]
    # Nobody waits for the old one: the request goes on until somebody leads.
    others[0].run("put", source, "--name", "behind")
    assert cluster.leader() not in (None, first)
    for node in others:
        assert names_of(node) == {"from-a", "from-b", "from-c", "behind"}
        for name in names_of(node):
            node.run("get", name, folder / "back")
            assert sha(folder / "back") == sha(source)
    nodes[first].start()
    wait_until(lambda: are_all_up(nodes[first]), SECONDS)
    assert len(names_of(nodes[first])) == 4


# A thread of a load keeps so many objects and as many regions: then a pool has room for them however long the load goes on.
KEPT = 3


class Load:
    """Commands from several threads through several nodes, each with names of its own, and what became of each."""

    def __init__(self, nodes, source, folder, mounts=True):
        self.nodes, self.source = nodes, source
        self.mounts = [Mount(node, folder, f"mount-{number}-{time.monotonic_ns()}") for number, node in enumerate(nodes)] if mounts else []
        self.there, self.unsure, self.wrong = {}, set(), []
        self.done = 0
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.pool = concurrent.futures.ThreadPoolExecutor(len(nodes))
        self.threads = [self.pool.submit(self.work, number) for number in range(len(nodes))]

    def work(self, number):
        count = 0
        stamp = time.monotonic_ns() % 10**9
        kept = collections.deque()
        while not self.stopped.is_set():
            count += 1
            kept += self.round(number, f"w{number}-{stamp}-{count}")
            while len(kept) > 2 * KEPT:
                self.remove(number, kept.popleft())

    def round(self, number, name):
        """One object and one region, put, renamed, made, and every other object removed; the names that are there."""
        node, moved, region, kept = self.nodes[number], f"{name}-moved", f"{name}-region", []
        if self.ask(node, [name], "put", self.source, "--name", name):
            self.note(name, True)
            kept = [name]
            if self.mounts and self.rename(number, name, moved):
                self.note(name, False)
                self.note(moved, True)
                kept = [] if hash(name) % 2 and self.remove(number, moved) else [moved]
        if self.ask(node, [region], "region", "create", region, "4M"):
            self.note(region, True)
            kept.append(region)
        return kept

    def remove(self, number, name):
        """Whether an object or region was removed."""
        is_removed = self.ask(self.nodes[number], [name], "rm", name)
        if is_removed:
            self.note(name, False)
        return is_removed

    def note(self, name, is_there):
        with self.lock:
            self.done += 1
            if is_there:
                self.there[name] = True
            else:
                self.there.pop(name, None)

    def rename(self, number, name, moved):
        """Renames through a mount."""
        try:
            os.rename(self.mounts[number] / name, self.mounts[number] / moved)
            return True
        except OSError as error:
            self.failed([name, moved], "rename", f"{error}", error.errno in (errno.EHOSTUNREACH, errno.EIO))
            return False

    def ask(self, node, names, *words):
        """Whether a command was acknowledged."""
        outcome = node.run(*words, check=False)
        if outcome.returncode == 0:
            return True
        self.failed(names, words, outcome.stderr, any(text in outcome.stderr for text in ("does not answer", "lease", "cannot be reached", "is stopped")))
        return False

    def failed(self, names, words, why, may_be):
        """A refusal that says that something was done before is a command that was done twice."""
        with self.lock:
            self.unsure |= set(names)
            if not may_be:
                self.wrong.append((words, why))

    def wait(self, more, seconds=SECONDS):
        """Waits until so many more commands were acknowledged."""
        goal = self.done + more
        wait_until(lambda: self.done >= goal, seconds, why=lambda: f"only {self.done} of {goal}; {self.wrong[:3]}")

    def stop(self):
        """Ends the threads."""
        self.stopped.set()
        for thread in self.threads:
            thread.result()
        self.pool.shutdown()
        for mount in self.mounts:
            mount.stop()
        self.mounts = []

    def check(self, node):
        """What was acknowledged is there, and nothing else but what nobody is sure of."""
        assert not self.wrong, self.wrong[:3]
        found = names_of(node)
        for name in set(self.there) - self.unsure:
            assert name in found, f"{name} was acknowledged and is lost"
        for name in found - set(self.there):
            assert name in self.unsure, f"{name} is there, and nobody was told so"


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_node_that_waits_for_etcd_at_its_start_says_so(binary, folder, is_silent):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if is_silent:
            listener.listen()
        place = f"etcd://127.0.0.1:{listener.getsockname()[1]}/pool"
        words = [binary, "--socket", folder / "socket", "node", "--name", "a", "--state", folder / "state", "--directory", place, *ROOM]
        outcome = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode == 1 and "etcd does not answer" in outcome.stderr, outcome.stderr
    first = outcome.stderr.splitlines()[0]
    assert first == f"warning: waiting for etcd, which does not answer yet: {place}"


def test_a_leader_killed_under_load_loses_nothing_and_repeats_nothing(hosts, make_file, folder):
    cluster, nodes = hosts(3)
    source = make_file("source", 70_000)
    first = cluster.leader()
    load = Load([node for name, node in nodes.items() if name != first] * 2, source, folder)
    try:
        load.wait(30)
        nodes[first].kill()
        load.wait(30)
        assert cluster.leader() not in (None, first)
        # And an etcd of three.
        cluster.members[0].kill()
        load.wait(30)
        cluster.members[0].start(cluster.words)
        nodes[first].start()
        load.wait(10)
    finally:
        load.stop()
    for node in nodes.values():
        load.check(node)
    leaders = [node.json("status")["leader"] for node in nodes.values()]
    assert all(leader == leaders[0] for leader in leaders) and leaders[0]["term"] >= 2


def test_a_leader_that_sleeps_through_its_lease_is_fenced(hosts, make_file, folder):
    cluster, nodes = hosts()
    source = make_file("source", 70_000)
    first = cluster.leader()
    asleep = nodes[first]
    load = Load([node for name, node in nodes.items() if name != first], source, folder)
    own = Load([asleep, asleep], source, folder, mounts=False)
    try:
        load.wait(10)
        own.wait(5)
        # It has plans on their way when it falls asleep.
        asleep.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: cluster.leader() not in (None, first), SECONDS)
        load.wait(10)
        asleep.process.send_signal(signal.SIGCONT)
        # It asks the new leader as all others do, and answers nothing by itself.
        own.wait(5)
        seen = asleep.json("status")
        assert seen["leader"]["name"] == cluster.leader() != first and not seen["directory"]
    finally:
        asleep.process.send_signal(signal.SIGCONT)
        load.stop()
        own.stop()
    load.there |= own.there
    load.unsure |= own.unsure
    load.wrong += own.wrong
    for node in nodes.values():
        load.check(node)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_hosts_whose_clocks_disagree_lead_one_after_another(etcd, start_node, make_file, folder, clock):  # noqa: F811
    cluster = etcd()
    source = make_file("source", 70_000)
    nodes = {}
    for name, days in (("a", 40), ("b", -40), ("c", 0)):
        offset = folder / f"offset-{name}"
        offset.write_text(str(days * 86_400))
        environment = {**clock.environment, "CLOCK_OFFSET_FILE": str(offset)}
        nodes[name] = start_node(name, environment, options=["--directory", cluster.directory(), *ROOM])
        nodes[name].again = environment
    for number in range(3):
        first = cluster.leader()
        for node in nodes.values():
            node.run("put", source, "--name", f"{node.name}-{number}")
        # Its clock jumps back behind that of everybody, in the midst.
        (folder / f"offset-{first}").write_text(str(-400 * 86_400))
        nodes[first].run("put", source, "--name", f"jumped-{number}")
        nodes[first].kill()
        left = [node for node in nodes.values() if node.name != first]
        left[0].run("put", source, "--name", f"behind-{number}")
        assert cluster.leader() != first
        nodes[first].start(nodes[first].again)
        wait_until(lambda: are_all_up(left[0]), SECONDS)
    for node in nodes.values():
        assert len(names_of(node)) == 3 * 5
        node.run("status")


def test_an_etcd_that_is_down_is_said_and_what_is_mapped_stays(hosts, make_file, hinterland):
    cluster, nodes = hosts(names="ab")
    a, b = nodes["a"], nodes["b"]
    source = make_file("source", 5 * MEBIBYTE)
    b.run("put", source, "--name", "data", "--rack", "b")
    with hinterland.Pool(a.socket).map("data") as mapped:
        assert bytes(memoryview(mapped)[:100]) == source.read_bytes()[:100]
        for member in cluster.members:
            member.kill()
        began = time.monotonic()
        refused = a.run("put", source, "--name", "more", check=False)
        assert refused.returncode != 0 and time.monotonic() - began < SECONDS
        assert "etcd does not answer" in refused.stderr and "hint:" in refused.stderr, refused.stderr
        assert cluster.members[0].client in refused.stderr
        # Nobody is told to kill a node that waits.
        assert "has not answered for" not in refused.stderr or "waits for the directory" in refused.stderr, refused.stderr
        told = a.run("doctor", check=False)
        assert "etcd does not answer" in told.stdout + told.stderr
        leader = next(line for line in a.run("status").stdout.splitlines() if line.startswith("leader"))
        assert re.search(r"when it was last known, term 1; .*; for \d+ s, etcd does not answer", leader), leader
        # The rest comes from the other rack at this moment.
        assert bytes(memoryview(mapped)) == source.read_bytes()
    cluster.start()
    patiently(a, "put", source, "--name", "more")
    assert names_of(b) >= {"data", "more"}
    for node in (a, b):
        assert "does not answer: the directory does not answer" not in node.words(), node.words()


def test_an_etcd_that_is_full_refuses_changes_and_answers_questions(etcd, start_node, make_file):
    cluster = etcd(options=["--quota-backend-bytes", 8 * MEBIBYTE])
    node = start_node("a", options=["--directory", cluster.directory(), *ROOM])
    source = make_file("source", 70_000)
    node.run("put", source, "--name", "before")
    with pytest.raises(OSError):
        for number in range(64):
            cluster.put(f"filler/{number}", bytes(MEBIBYTE))
    refused = node.run("put", source, "--name", "more", check=False)
    assert refused.returncode != 0 and "nothing was changed" in refused.stderr and "etcdctl alarm disarm" in refused.stderr, refused.stderr
    assert node.run("get", "before", "-", text=False).stdout == source.read_bytes()
    assert names_of(node) == {"before"}
    cluster.ctl("del", "--prefix", "filler/")
    revision = json.loads(cluster.ctl("endpoint", "status", "-w", "json").stdout)[0]["Status"]["header"]["revision"]
    cluster.ctl("compact", revision)
    cluster.ctl("defrag")
    cluster.ctl("alarm", "disarm")
    patiently(node, "put", source, "--name", "more")
    assert names_of(node) == {"before", "more"}


def test_a_node_stops_soon_also_without_etcd(hosts):
    cluster, nodes = hosts(names="a")
    cluster.stop()
    assert nodes["a"].stop() == 0


@pytest.mark.parametrize("text, words", [
    ("127.0.0.1:2379", "does not begin with etcd://"),
    ("consul://127.0.0.1:2379", "consul:// is not known"),
    ("https://127.0.0.1:2379", "write etcds://"),
    ("etcd://127.0.0.1", "is not HOST:PORT"),
    ("etcd://127.0.0.1:1?password=/etc/hostname", "come together"),
])
def test_an_address_that_makes_no_sense_is_refused_with_what_to_write(binary, folder, text, words):
    outcome = subprocess.run([binary, "node", "--name", "a", "--state", folder / "s", "--directory", text],
                             capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode == 2 and words in outcome.stderr and "hint:" in outcome.stderr, outcome.stderr


def refused_start(binary, folder, directory, name="x", state=None):
    """What a node says that does not start."""
    outcome = subprocess.run(
        [binary, "node", "--name", name, "--state", state or folder / f"state-{name}", "--socket", folder / f"{name}.sock",
         "--directory", directory, *ROOM], capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode != 0 and "hint:" in outcome.stderr, outcome.stderr
    return outcome.stderr


def test_a_file_of_the_address_that_is_of_no_use_is_named(binary, folder):
    (folder / "text").write_text("no certificate")
    for option in ("ca", "cert"):
        for name, why in (("none", "No such file"), ("text", "PEM" if option == "ca" else "")):
            also = f"&key={folder}/none" if option == "cert" else ""
            words = refused_start(binary, folder, f"etcds://127.0.0.1:1/p?{option}={folder / name}{also}")
            assert f"{folder}/" in words and "of --directory cannot be used" in words and why in words, words
            assert "is no directory" not in words, words


def test_an_etcd_that_is_not_there_or_none_is_refused(etcd, binary, folder):
    nowhere = f"127.0.0.1:{free_port()}"
    assert f"{nowhere}: nobody listens there" in refused_start(binary, folder, f"etcd://{nowhere}")
    cluster = etcd()
    words = refused_start(binary, folder, f"etcd://{cluster.members[0].peer}")
    assert "not as etcd 3.4 or later does" in words
    words = refused_start(binary, folder, f"etcds://{cluster.members[0].client}")
    assert "TLS" in words


def test_a_user_without_password_or_right_is_refused(etcd, start_node, binary, folder):
    cluster = etcd()
    for words in ("user add root:secret", "user grant-role root root", "user add pool:word", "user add other:word", "role add pool",
                  "role grant-permission pool --prefix=true readwrite hinterland/", "user grant-role pool pool", "auth enable"):
        cluster.ctl(*words.split())
    address = cluster.members[0].client
    word, wrong = folder / "word", folder / "wrong"
    word.write_text("word\n")
    wrong.write_text("wrong\n")
    assert "wants a user" in refused_start(binary, folder, f"etcd://{address}")
    assert "is wrong" in refused_start(binary, folder, f"etcd://pool@{address}?password={wrong}")
    assert "grant-permission" in refused_start(binary, folder, f"etcd://other@{address}?password={word}")
    assert "No such file" in refused_start(binary, folder, f"etcd://pool@{address}?password={folder}/none")
    node = start_node("a", options=["--directory", f"etcd://pool@{address}?password={word}", *ROOM])
    assert names_of(node) == set()


def test_tls_is_used_where_it_is_asked_for(etcd, start_node, binary, folder):
    key, cert, other = folder / "key.pem", folder / "cert.pem", folder / "other.pem"
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    settings = folder / "openssl.cnf"
    settings.write_text("[req]\ndistinguished_name=d\nx509_extensions=e\n[d]\n[e]\nbasicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1\n")
    for target, key_file in ((cert, key), (other, folder / "other.key")):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-config", settings, "-keyout", key_file, "-out", target,
                        "-days", "2", "-subj", "/CN=127.0.0.1"], capture_output=True, check=True)
    cluster = Cluster(folder, 1, scheme="https", options=["--cert-file", cert, "--key-file", key])
    cluster.start(wait=False)
    try:
        address = cluster.members[0].client
        wait_until(lambda: "answer" not in probe(address), SECONDS)
        assert "TLS" in refused_start(binary, folder, f"etcds://{address}?ca={other}")
        assert "etcds://" in refused_start(binary, folder, f"etcd://{address}")
        node = start_node("a", options=["--directory", f"etcds://{address}?ca={cert}", *ROOM])
        assert names_of(node) == set()
        assert node.stop() == 0
    finally:
        cluster.stop()


def probe(address):
    """Whether somebody listens: an empty text, or what is wrong."""
    import socket

    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        return ""
    except OSError as error:
        return f"no answer: {error}"


def test_a_state_of_another_pool_is_refused_before_anything_is_lost(hosts, etcd, start_node, make_file, binary, folder):
    cluster, nodes = hosts(names="a")
    a = nodes["a"]
    source = make_file("source", MEBIBYTE)
    a.run("put", source, "--name", "data")
    a.stop()
    # Another prefix, another etcd, and none at all.
    elsewhere = etcd()
    start_node("b", options=["--directory", cluster.directory("/others"), *ROOM])
    for directory, why in ((cluster.directory("/empty"), "no pool at all"), (elsewhere.directory(), "no pool at all"),
                           (cluster.directory("/others"), "holds pool-")):
        words = refused_start(binary, folder, directory, "a")
        assert "belongs to pool-" in words and why in words and "nothing was changed" in words
    assert cluster.get("empty/pool") is None
    alone = subprocess.run([binary, "node", "--name", "a", "--state", a.state, "--socket", a.socket, *ROOM],
                           capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode != 0 and "start with --directory etcd://" in alone.stderr
    a.start()
    assert sha(a.run("get", "data", "-", text=False).stdout) == sha(source)
    # What has a directory of its own is not taken over either.
    own = start_node("own", options=ROOM)
    own.run("put", source, "--name", "mine")
    own.stop()
    assert "nothing was changed" in refused_start(binary, folder, cluster.directory(), "own")
    own.start()
    assert sha(own.run("get", "mine", "-", text=False).stdout) == sha(source)


def twin_of(original, cluster, start_node, folder):
    """Starts a node on a copy of the state of one that runs, which is refused."""
    copy = folder / "copied"
    shutil.copytree(original.state, copy, ignore=shutil.ignore_patterns("memory-*"))
    with pytest.raises(AssertionError, match="is a copy of the state of node-"):
        start_node("twin", rack=original.rack, state=copy, options=["--directory", cluster.directory(), *ROOM])
    words = (folder / "twin.log").read_text()
    assert original.address in words and "does not answer" not in words, words


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
def test_a_copy_of_the_state_of_a_node_is_refused_and_nothing_is_lost(hosts, start_node, make_file, folder, leads):
    cluster, nodes = hosts(names="ab")
    first = cluster.leader()
    original = nodes[first if leads else next(name for name in nodes if name != first)]
    source = make_file("source", 3 * MEBIBYTE)
    original.run("put", source, "--name", "data", "--rack", original.rack)
    twin_of(original, cluster, start_node, folder)
    assert cluster.leader() != "twin"
    for node in nodes.values():
        assert sha(node.run("get", "data", "-", text=False).stdout) == sha(source)
        node.run("put", source, "--name", f"more-{node.name}")
    # It comes back at another address while etcd has its reign of before.
    original.kill()
    original.address = f"{original.address.rsplit(':', 1)[0]}:0"
    original.start()
    wait_until(lambda: are_all_up(original), SECONDS)
    assert names_of(original) == {"data", "more-a", "more-b"}


def test_a_copy_that_was_elected_before_it_is_refused_makes_room_at_once(etcd, start_node, make_file, folder):
    cluster = etcd()
    choices = ["--directory", cluster.directory(), *ROOM]
    host = start_node("host", options=choices)
    original = start_node("original", options=[*choices, "--directory-host", "off"])
    source = make_file("source", 70_000)
    original.run("put", source, "--name", "data", "--rack", "original")
    host.stop()
    assert cluster.leader() is None
    twin_of(original, cluster, start_node, folder)
    assert cluster.leader() is None
    host.start()
    wait_until(lambda: are_all_up(host), SECONDS)
    assert sha(host.run("get", "data", "-", text=False).stdout) == sha(source)


def test_what_an_etcd_that_is_restored_does_not_know_is_adopted(hosts, make_file, folder):
    cluster, nodes = hosts(names="ab")
    a, b = nodes["a"], nodes["b"]
    data = folder / f"etcd-{cluster.members[0].name}"
    sums = {}

    def put(node, name, size, *words):
        source = make_file("source", size, seed=len(sums) + 1)
        patiently(node, "put", source, "--name", name, "--rack", node.rack, *words)
        sums[name] = sha(source)

    def stop():
        for node in (b, a):
            assert node.stop() == 0
        cluster.stop()

    put(a, "kept", MEBIBYTE, "--copies", "2")
    stop()
    shutil.copytree(data, folder / "saved")
    cluster.start()
    for node in (a, b):
        node.start()
    put(a, "a/new", 5000)
    put(b, "b/new", 3 * MEBIBYTE)
    put(b, "both", 70_000, "--copies", "2")
    b.run("region", "create", "scratch", "2M", "--rack", "b")
    stop()
    shutil.rmtree(data)
    (folder / "saved").rename(data)
    cluster.start()
    for node in (a, b):
        with pytest.raises(AssertionError, match="older than this node's objects"):
            node.start()
        assert cluster.leader() is None, "who does not start makes room at once"
    start_adopting(a)
    assert "adopted 2 objects, 73.2 KiB (a/new, both)" in a.words(), a.words()
    start_adopting(b)
    assert "adopted 2 objects, 3.07 MiB (b/new, both)" in b.words(), b.words()
    assert [file.stat().st_size for file in (b.state / "rescued").iterdir()] == [2 * MEBIBYTE], b.words()
    for node in (a, b):
        node.stop()
        node.start()
    wait_until(lambda: are_all_up(a), SECONDS)
    assert names_of(a) == set(sums)
    for name, expected in sums.items():
        assert sha(b.run("get", name, "-", text=False).stdout) == expected, name
        assert len(a.json("stat", name)["homes"]) == (2 if name in ("kept", "both") else 1)
    put(a, "later", 100)


def test_keys_that_something_else_wrote_are_refused(etcd, binary, folder, start_node):
    cluster = etcd()
    cluster.put("hinterland/pool", "their words")
    assert "was not written by this program" in refused_start(binary, folder, cluster.directory())
    node = start_node("a", options=["--directory", cluster.directory("/mine"), *ROOM])
    cluster.put("mine/t/names/strange", b"\xff\xff")
    node.kill()
    node.start(wait=False)
    wait_until(lambda: "cannot" in node.words() or "cannot" in (json.loads(
        node.run("status", "--json", check=False).stdout or "{}").get("directory_trouble") or ""), SECONDS, why=node.words)
    node.kill()


@pytest.mark.parametrize("is_unfinished", [False, True])
def test_records_of_a_later_release_are_refused_for_their_format(etcd, start_node, is_unfinished):
    cluster = etcd()
    node = start_node("a", options=["--directory", cluster.directory(), *ROOM])
    node.kill()
    # A format and a table that no release of today has.
    cluster.put("hinterland/t/meta/meta", b"\x63\x01\x01")
    cluster.put("hinterland/t/later/key", b"x")
    if is_unfinished:
        # A large change of that table, of one piece, with which its leader was killed.
        cluster.put("hinterland/redo/00000000", b"\x01\x63\x03key\x01\x01x")
        cluster.put("hinterland/redo", b"1")
    # Nothing is written, not even who leads.
    written = lambda: [cluster.get(f"hinterland/{key}") for key in ("leader", "reigns", "seq")]
    wait_until(lambda: written()[0] is None, SECONDS)
    before, versions = written(), cluster.version("hinterland/reigns")
    node.start(wait=False)
    wait_until(lambda: "cannot" in node.words(), SECONDS, why=node.words)
    assert (written(), cluster.version("hinterland/reigns")) == (before, versions)
    assert "the store has format 99" in node.words() and "run the release that wrote it" in node.words(), node.words()
    node.kill()


@pytest.mark.parametrize("step, names", [
    ("directory-piece:1", {"folder"}),
    ("directory-pieces-whole:1", {"moved"}),
    ("directory-piece-applied:2", {"moved"}),
])
def test_a_folder_is_renamed_whole_by_the_next_leader_or_not_at_all(etcd, start_node, folder, make_file, step, names):
    cluster = etcd()
    choices = ["--directory", cluster.directory(), *ROOM]
    armed = start_node("armed", {"HINTERLAND_FAULT_POINT": step}, options=choices)
    other = start_node("other", options=choices)
    assert cluster.leader() == "armed"
    source = make_file("source", 10)
    mount = Mount(other, folder)
    try:
        os.mkdir(mount / "folder")
        for number in range(120):
            shutil.copyfile(source, mount / "folder" / str(number))
        # 360 operations: four pieces.
        try:
            os.rename(mount / "folder", mount / "moved")
            done = True
        except OSError:
            done = False
    finally:
        mount.stop()
    wait_until(lambda: armed.process.poll() is not None, SECONDS)
    found = names_of(other)
    assert {name.split("/")[0] for name in found} <= {"folder", "moved"} and len(found) == 120
    assert {name.split("/")[0] for name in found} == ({"moved"} if done else names)
    assert cluster.leader() == "other" and cluster.get("hinterland/redo") is None
    armed.process.stdout.close()
    armed.start()
    assert names_of(armed) == found


@pytest.mark.parametrize("step", ["directory-planned:4", "directory-durable:4", "directory-answered:9"])
def test_a_leader_killed_at_a_step_of_a_command_has_done_it_or_not(etcd, start_node, make_file, step):
    cluster = etcd()
    choices = ["--directory", cluster.directory(), *ROOM]
    armed = start_node("armed", options=choices)
    other = start_node("other", options=choices)
    source = make_file("source", 70_000)
    other.run("put", source, "--name", "before")
    armed.stop()
    wait_until(lambda: cluster.leader() == "other", SECONDS)
    # It leads again, with the step before it.
    other.process.send_signal(signal.SIGSTOP)
    armed.start({"HINTERLAND_FAULT_POINT": step}, wait=False)
    wait_until(lambda: cluster.leader() == "armed", SECONDS)
    other.process.send_signal(signal.SIGCONT)
    for number in range(12):
        # Each is done once, whoever leads: a second time would say that the name is taken, or that there is none.
        other.run("put", source, "--name", f"name{number}")
        other.run("region", "create", f"region{number}", "4M")
        if number % 2:
            other.run("rm", f"name{number}")
        if armed.process.poll() is not None and cluster.leader() == "other":
            break
    assert armed.process.poll() == -signal.SIGKILL, armed.words()
    expected = {f"region{n}" for n in range(number + 1)} | {f"name{n}" for n in range(0, number + 1, 2)} | {"before"}
    assert names_of(other) == expected


def test_the_guide_works_as_it_is_written(binary, folder):
    script = "\n".join(commands("directory.md")).replace("/tmp/hl-guide", str(folder))
    script = script.replace("23790", str(free_port())).replace("23800", str(free_port()))
    # Whoever types it sees the line that says ready.
    script = re.sub(r"^(a|b)=\$!$", r"\1=$!\nfor i in $(seq 200); do hinterland --socket " + str(folder) + r"/\1.sock status >/dev/null 2>&1 && break; sleep 0.1; done",
                    script, flags=re.MULTILINE)
    script = "set -e\ntrap 'kill $etcd $a $b 2>/dev/null' EXIT\n" + script + "\ntrap - EXIT\n"
    path = f"{binary.parent}:{pathlib.Path(program('etcd')).parent}:{os.environ['PATH']}"
    with open(folder / "script.log", "wb") as log:
        outcome = subprocess.run(["bash", "-c", script], stdout=log, stderr=log, timeout=120, check=False,
                                 env={**os.environ, "PATH": path, "NO_COLOR": "1"})
    said = (folder / "script.log").read_text(errors="replace")
    assert outcome.returncode == 0, said
    assert "hello" in said and "leader   a at" in said and "leader   b at" in said and "term 2" in said, said
