"""Redis clients against `hinterland resp`: redis-cli, redis-py and redis-benchmark, and the same commands against a real Redis.

redis-py is installed by name into a folder of the tree; redis-server and its programs are those of the system
(`apt-get install redis-server`), and what needs them is skipped without.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import TREE
from faults import wait_until
from loopback import free_port

MEBIBYTE = 1 << 20
READY_SECONDS_MAX = 30
HAS_REDIS = shutil.which("redis-server") is not None
needs_redis = pytest.mark.skipif(not HAS_REDIS, reason="no redis-server (apt-get install redis-server)")
needs_tools = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli (apt-get install redis-tools)")


@pytest.fixture(scope="session")
def redis():
    """The redis-py package."""
    folder = TREE / ".cache/redis-py"
    subprocess.run([TREE / "tests/python-environment", folder, "redis"], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    sys.path.append(str(packages))
    import redis as package

    yield package
    sys.path.remove(str(packages))


class Server:
    """One `hinterland resp` process."""

    def __init__(self, node, *options, listen=("127.0.0.1:0",)):
        words = [word for address in listen for word in ("--listen", address)]
        self.process = subprocess.Popen(node.command("--json", "resp", *words, *options), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.stderr.read().decode())
        self.listen = json.loads(line)["listen"]
        self.port = int(self.listen[0].rsplit(":", 1)[1])

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=15)
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def connect(self):
        """A plain socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@pytest.fixture
def serve(start_node):
    """A function that starts a server on a node of its own."""
    started = []

    def start(*options, kv="64M", node=None, **more):
        node = node or start_node(options=["--capacity", "16M", "--kv-capacity", kv])
        server = Server(node, *options, **more)
        server.node = node
        started.append(server)
        return server

    yield start
    for server in reversed(started):
        assert server.stop() == 0


@pytest.fixture
def peer(folder):
    """A port of a real Redis that keeps nothing on disk."""
    port = free_port()
    process = subprocess.Popen(["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"],
                               cwd=folder, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    yield port
    process.terminate()
    process.wait()


def encoded(*words):
    """The bytes of a request."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Wire:
    """A connection that sends words and reads replies as they are."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        self.socket.sendall(encoded(*words))

    def receive(self):
        line = self.file.readline()
        assert line.endswith(b"\r\n"), line
        marker, rest = line[:1], line[1:-2]
        if marker in b"$=" and rest != b"-1":
            value = self.file.read(int(rest) + 2)
            assert value.endswith(b"\r\n")
            return value[:-2]
        if marker in b"*~>%":
            count = int(rest) * (2 if marker == b"%" else 1)
            return None if count < 0 else [marker] + [self.receive() for _ in range(count)]
        return (marker, rest)

    def ask(self, *words):
        self.send(*words)
        return self.receive()


KEYS = [b"a", b"b", b"c", b"\r\n", b"", b"k" * 64, b"k" * 65, b"l" * 3000]
FLOATS = [b"0.1", b"-2.5e3", b"1e17", b"3.0e-5", b"-7", b".5", b"5.", b"+1", b"inf", b"-Infinity", b"nan", b"abc", b"", b" 1", b"1 ", b"0x1.8p1",
          b"1e400", b"1e4932", b"1e4933", b"1e-4950", b"1e-4951", b"0.00000000000000001", b"123456789.987654321", b"1\x00", b"1" * 30, b"1" * 5120]
BITS = [0, 1, 7, 8, 9, 100, 40_003, 2**32, -1, 2**63, b"x", b"01"]
MEASURES = ["BIT", "bit", "BYTE", "byte", "nibble"]
VALUES = [b"", b"0", b"7", b"-3", b"9223372036854775807", b"hello", b"\x00\r\n\xff", b"v" * 5000, b"w" * 70_000, b"01", b" 1",
          b"10.50", b"-0.3", b"\xff" * 9, b"\xff\xf0\x00\x0f\x81"]


def random_command(chance):
    """Words of a command that both servers know; times are far away or past, so that no clock decides."""
    key, value = lambda: chance.choice(KEYS), lambda: chance.choice(VALUES)
    number = lambda: chance.choice([0, 1, -1, 3, 5, 100, -100, 2**62, b"x", b""])
    far, past = 10**9, 1
    options = lambda: chance.sample(["NX", "XX", "GET", "KEEPTTL", "EX", "nx", "px"], chance.randint(0, 2))
    def set_options():
        for word in options():
            yield word
            if word in ("EX", "px"):
                yield chance.choice([far, far, 0, -5, b"y"])
    return chance.choice([
        lambda: ("SET", key(), value(), *set_options()),
        lambda: ("SET", key(), value(), chance.choice(["EXAT", "PXAT"]), chance.choice([far * 10, past])),
        lambda: ("GET", key()),
        lambda: ("get", key(), key()),
        lambda: ("SETNX", key(), value()),
        lambda: (chance.choice(["SETEX", "PSETEX"]), key(), chance.choice([far, 0, b"z"]), value()),
        lambda: ("MGET", *[key() for _ in range(chance.randint(0, 5))]),
        lambda: ("MSET", *[word for _ in range(chance.randint(1, 4)) for word in (key(), value())]),
        lambda: ("MSET", key(), value(), key()),
        lambda: ("GETSET", key(), value()),
        lambda: ("GETDEL", key()),
        lambda: ("GETEX", key(), *chance.choice([(), ("PERSIST",), ("EX", far), ("PXAT", past), ("EX",), ("EX", -1), ("PX", "soon"), ("KEEPTTL",)])),
        lambda: ("STRLEN", key()),
        lambda: ("APPEND", key(), value()),
        lambda: ("GETRANGE", key(), number(), number()),
        lambda: ("EXISTS", key(), key()),
        lambda: (chance.choice(["DEL", "UNLINK"]), key(), key()),
        lambda: ("TYPE", key()),
        lambda: (chance.choice(["EXPIRE", "PEXPIRE"]), key(), chance.choice([far, -1, 0, b"q", 2**63 - 1]),
                 *chance.choice([(), (), ("NX",), ("XX",), ("GT",), ("LT",), ("NX", "GT"), ("foo",)])),
        lambda: (chance.choice(["EXPIREAT", "PEXPIREAT"]), key(), chance.choice([far * 10, far * 2000, past])),
        lambda: ("PERSIST", key()),
        lambda: (chance.choice(["EXPIRETIME", "PEXPIRETIME"]), b"a-key-that-is-not-there"),
        lambda: (chance.choice(["INCR", "DECR"]), key()),
        lambda: (chance.choice(["INCRBY", "DECRBY"]), key(), number()),
        lambda: ("INCRBYFLOAT", key(), chance.choice(FLOATS)),
        lambda: ("SETRANGE", key(), chance.choice([0, 1, 5, 6000, -1, 2**29, 2**62, b"x"]), value()),
        lambda: ("GETBIT", key(), chance.choice(BITS)),
        lambda: ("SETBIT", key(), chance.choice(BITS), chance.choice([0, 1, 1, 2, -1, b"x"])),
        lambda: ("BITCOUNT", key(), *chance.choice([(), (), (0,), (number(), number()), (number(), number(), chance.choice(MEASURES))])),
        lambda: ("BITPOS", key(), chance.choice([0, 1, 1, 2, b"x"]),
                 *chance.choice([(), (number(),), (number(), number()), (number(), number(), chance.choice(MEASURES)), (0, 1, "BIT", 1)])),
        lambda: ("ROLE",),
        lambda: ("BITOP", chance.choice(["AND", "or", "XOR", "XOR", "NOT", "nand"]), *[key() for _ in range(chance.randint(2, 4))]),
        lambda: ("LCS", key(), key(), *chance.choice([(), (), ("LEN",), ("IDX",), ("idx", "MINMATCHLEN", chance.choice([0, 2, -1, b"x"]), "WITHMATCHLEN"),
                                                      ("IDX", "LEN"), ("MINMATCHLEN",), ("what",), ("LEN", "MINMATCHLEN", 3)])),
        lambda: ("MSETNX", *[word for _ in range(chance.randint(1, 3)) for word in (key(), value())]),
        lambda: ("MSETNX", key(), value(), key()),
        lambda: (chance.choice(["RENAME", "RENAMENX"]), key(), key()),
        lambda: ("COPY", key(), key(), *chance.choice([(), (), ("REPLACE",), ("replace", "DB", 0), ("DB", chance.choice([1, 15, 16, -1, 2**40, b"x"])),
                                                       ("DB",), ("DB", 1, "REPLACE"), ("what",), ("DB", 99, "what")])),
        lambda: ("KEYS", chance.choice([b"*", b"a", b"[ab]", b"k*", b"?", b"[^a]", b""])),
        lambda: ("DBSIZE",),
        lambda: ("ECHO", value()),
        lambda: ("PING", *chance.choice([(), (value(),), (1, 2)])),
        lambda: ("SELECT", chance.choice([0, 0, 0, 1, 15, 16, -1, 2**31, b"x"])),
        lambda: ("OBJECT", "FREQ", key()),
        lambda: ("OBJECT", "nothing", key()),
        lambda: ("TOUCH", key()),
        lambda: ("SCAN", b"x"),
        lambda: ("SCAN", 0, "COUNT", chance.choice([0, b"x"])),
        lambda: ("SCAN", 0, "MATCH"),
        lambda: ("NOSUCHCOMMAND", "some", "words"),
        lambda: ("SET", key()),
        lambda: ("CLIENT", "nosuchthing"),
        lambda: ("CLIENT", "SETNAME", chance.choice([b"name", b"a b", b""])),
        lambda: ("CLIENT", "GETNAME"),
        lambda: ("HELLO", chance.choice([4, b"x"])),
        lambda: ("AUTH", "a"),
        lambda: ("FLUSHDB",) if chance.random() < 0.2 else ("FLUSHALL", "x"),
        lambda: ("RESET",) if chance.random() < 0.1 else ("TTL", b"a-key-that-is-not-there"),
    ])()


def in_order(words, reply):
    """The reply without the order that nobody promises."""
    if words[0] == "KEYS" and isinstance(reply, list):
        return [reply[0], *sorted(reply[1:])]
    return reply


def is_time_near(words, ours, theirs):
    """Replies that the clock decides may differ by a little."""
    return words[0] in ("PTTL", "TTL", "PEXPIRETIME", "EXPIRETIME") and abs(int(ours[1]) - int(theirs[1])) < 5000


@needs_redis
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_commands_get_the_same_replies_as_from_redis(serve, peer, seed, version):
    ours, theirs = Wire(serve().port), Wire(peer)
    chance = random.Random(seed * 10 + version)
    for wire in (ours, theirs):
        wire.ask("HELLO", version)
    for number in range(3000):
        words = random_command(chance)
        if chance.random() < 0.2:
            words = (chance.choice(["PTTL", "TTL", "PEXPIRETIME", "EXPIRETIME"]), chance.choice(KEYS))
        if words[0] == "DBSIZE":
            # Keys that have ended count until somebody looks at them.
            assert ours.ask("EXISTS", *KEYS) == theirs.ask("EXISTS", *KEYS)
        got, expected = ours.ask(*words), theirs.ask(*words)
        assert in_order(words, got) == in_order(words, expected) or is_time_near(words, got, expected), (number, words)


def ask_in_pieces(port, commands, cuts):
    """The replies to commands that come at once, cut anywhere."""
    wire, cutting = Wire(port), random.Random(8)

    def send():
        stream, start = b"".join(encoded(*words) for words in commands), 0
        while start < len(stream):
            cut = cutting.choice(cuts)
            wire.socket.sendall(stream[start:start + cut])
            start += cut

    sender = threading.Thread(target=send)
    sender.start()
    replies = [wire.receive() for _ in commands]
    sender.join()
    return replies


@needs_redis
def test_pipelines_of_any_cut_get_the_same_replies_as_from_redis(serve, peer):
    chance = random.Random(7)
    commands = [words for words in (random_command(chance) for _ in range(4000)) if words[0] not in ("RESET", "KEYS", "DBSIZE")]
    replies = []
    for port in (serve().port, peer):
        replies.append(ask_in_pieces(port, commands, [1, 7, 1000, 100_000]))
    for words, ours, theirs in zip(commands, *replies):
        assert ours == theirs, words


def test_redis_py_works_in_both_versions_of_the_protocol(serve, redis):
    server = serve()
    for protocol in (2, 3):
        client = redis.Redis(port=server.port, protocol=protocol, client_name="tests", db=protocol)
        assert client.ping() and client.client_getname() in ("tests", b"tests")
        assert client.set("k", b"\x00\xff", px=100_000) and client.get("k") == b"\x00\xff"
        assert client.set("k", "other", nx=True) is None and client.set("k", "x", xx=True, get=True) == b"\x00\xff"
        assert client.mset({"a": 1, "b": 2}) and client.mget("a", "none", "b") == [b"1", None, b"2"]
        assert client.incr("a", 41) == 42 and client.append("b", "!") == 2 and client.getrange("b", 0, 0) == b"2"
        assert client.expire("a", 100) and 99 <= client.ttl("a") <= 100 and client.persist("a") and client.ttl("a") == -1
        assert client.getex("a", ex=50) == b"42" and client.getdel("a") == b"42" and client.exists("a", "b", "b") == 2
        assert sorted(client.scan_iter(match="[bk]*", count=1)) == [b"b", b"k"] == sorted(client.keys())
        assert client.dbsize() == 2 and client.type("k") == b"string" and client.memory_usage("k") >= 1024
        info = client.info()
        assert info["server_name"] == "hinterland" and info[f"db{protocol}"]["keys"] == 2
        assert client.config_get("save") == {"save": ""} and "get" in client.command()
        (line,) = [line for line in client.client_list() if line["id"] == str(client.client_id())]
        assert line["name"] == "tests" and line["db"] == str(protocol) and line["lib-name"].startswith("redis-py")
        with client.pipeline(transaction=False) as pipeline:
            for number in range(1000):
                pipeline.set(f"p{number}", number).get(f"p{number}")
            replies = pipeline.execute()
        assert replies == [item for number in range(1000) for item in (True, str(number).encode())]
        assert client.flushdb() and client.dbsize() == 0
        client.close()
    with pytest.raises(redis.ResponseError, match="unknown command"):
        redis.Redis(port=server.port).lpush("list", 1)


def test_values_of_all_sizes_come_back_and_long_keys_too(serve, redis):
    client = redis.Redis(port=serve(kv="256M").port)
    rest = 4 * MEBIBYTE - 64
    for size in (0, 1, 63, 64, 65, 4096, 1 << 20, rest - 1, rest, rest + 1, 4 * MEBIBYTE + 1, 9 * MEBIBYTE + 5, 40 * MEBIBYTE):
        value = random.Random(size).randbytes(size)
        for key in (b"k", b"n" * 65, b"n" * 10_000):
            assert client.set(key, value, ex=1000)
            assert client.strlen(key) == size and client.get(key) == value
            assert client.expire(key, 2000) and client.get(key) == value and client.ttl(key) > 1000
            assert client.getrange(key, -3, -1) == value[-3:]
    assert sorted(client.scan_iter()) == [b"k", b"n" * 65, b"n" * 10_000]
    assert client.delete("k", b"n" * 65, b"n" * 10_000, "none") == 3 and client.dbsize() == 0
    (store,) = client_store(client)
    assert store == 0, "parts go with their value"
    with pytest.raises(Exception, match="at most 65536 bytes"):
        client.set(b"k" * 65_537, 1)


def client_store(client):
    """Bytes that the node has stored."""
    return [client.info("memory")["used_memory"]]


def test_a_value_larger_than_the_memory_is_refused_and_leaves_nothing(serve, redis):
    client = redis.Redis(port=serve(kv="32M").port)
    client.set("k", "before")
    for size in (33 * MEBIBYTE, 200 * MEBIBYTE):
        with pytest.raises(redis.ResponseError, match="no room"):
            client.set("large", bytes(size))
    assert client.get("large") is None
    assert client.set("k", "after") and client.get("k") == b"after"
    assert client.set("fits", bytes(16 * MEBIBYTE)) and client.get("fits") == bytes(16 * MEBIBYTE)


def test_readers_see_one_of_the_values_and_never_none_or_a_mixture(serve, redis):
    port = serve("--threads", "2", kv="256M").port
    sizes = [10, 5000, 100_000, 5 * MEBIBYTE]
    client = redis.Redis(port=port)
    for size in sizes:
        client.set(f"k{size}", b"0" * size)
    stop, wrong, reads = threading.Event(), [], []

    def write(digits):
        own = redis.Redis(port=port)
        for digit in digits * 10:
            for size in sizes:
                own.set(f"k{size}", digit * size)

    def read():
        own = redis.Redis(port=port)
        while not stop.is_set():
            for size, value in zip(sizes, own.mget([f"k{size}" for size in sizes])):
                reads.append(1)
                if value is None or len(value) != size or value.count(value[:1]) != size:
                    wrong.append((size, value and value[:20]))
    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(digits,)) for digits in ([b"1", b"2"], [b"3", b"4"])]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert len(reads) > 20 and not wrong


def test_values_that_are_evicted_are_misses_and_never_wrong(serve, redis):
    client = redis.Redis(port=serve(kv="32M").port)
    sizes = [100, 30_000, 1 << 20, 5 * MEBIBYTE]
    hits = 0
    for number in range(400):
        size = sizes[number % 4]
        client.set(f"k{number}", number.to_bytes(2, "big") * (size // 2))
        for old in range(max(0, number - 20), number):
            value = client.get(f"k{old}")
            hits += value is not None
            assert value in (None, old.to_bytes(2, "big") * (sizes[old % 4] // 2)), old
    assert 0 < hits < 8000


def test_every_key_that_stays_is_listed_while_others_come_go_and_are_replaced(serve, redis):
    port = serve().port
    client = redis.Redis(port=port)
    staying = {f"stay{number}".encode() for number in range(3000)}
    for key in staying:
        client.set(key, 1)
    stop = threading.Event()

    def churn():
        own, number = redis.Redis(port=port), 0
        while not stop.is_set():
            with own.pipeline(transaction=False) as pipeline:
                for key in list(staying)[number % 3000:][:50]:
                    pipeline.set(key, b"x" * (number % 5000))
                pipeline.set(f"come{number}", 1).delete(f"come{number - 50}").execute()
            number += 1
    thread = threading.Thread(target=churn)
    thread.start()
    for _ in range(5):
        assert staying <= set(client.scan_iter(count=20))
        assert staying <= set(client.keys())
    stop.set()
    thread.join()


def test_conditional_writes_of_many_clients_lose_nothing(serve, redis):
    port = serve("--threads", "3").port

    def add():
        own = redis.Redis(port=port)
        for _ in range(200):
            own.incr("sum")
            own.append("letters", "x")
            if own.set("lock", 1, nx=True):
                own.incr("locked")
                assert own.getdel("lock") == b"1"
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client = redis.Redis(port=port)
    assert client.get("sum") == b"800" and client.strlen("letters") == 800 and int(client.get("locked")) >= 200


def test_keys_end_when_their_time_is_over(serve, redis):
    client = redis.Redis(port=serve().port)
    client.set("short", 1, px=30)
    client.set("long", 1, ex=100)
    deadline = time.monotonic() + 10
    while client.get("short") is not None:
        assert time.monotonic() < deadline
    assert client.ttl("short") == -2 and client.exists("short") == 0 and client.dbsize() == 1
    assert client.set("short", 2, nx=True) and client.keys() in ([b"long", b"short"], [b"short", b"long"])
    assert client.expireat("long", 1) and client.get("long") is None


def test_servers_of_one_namespace_share_keys_and_others_do_not(serve, redis):
    first = serve()
    same, other = serve(node=first.node), serve("--namespace", "other", node=first.node)
    one, two, three = (redis.Redis(port=server.port) for server in (first, same, other))
    one.set("k", "v")
    assert two.get("k") == b"v" and three.get("k") is None
    three.flushall()
    assert two.get("k") == b"v" and one.flushall() and two.get("k") is None


def test_a_node_that_ends_is_noticed_and_a_new_one_is_used(serve, redis):
    server = serve()
    client = redis.Redis(port=server.port)
    client.set("k", "v")
    server.node.kill()
    deadline = time.monotonic() + 10
    while True:
        try:
            # What is mapped stays readable for the moment until the end is noticed.
            assert client.get("k") == b"v" and time.monotonic() < deadline
        except redis.ResponseError as error:
            assert "no node answers" in str(error)
            break
    with pytest.raises(redis.ResponseError, match="no node answers"):
        client.set("k", "v")
    server.node.start()
    wait_until(lambda: client.get("k") == b"v", why="what was set outlives the node, and is found once it is checked")
    assert client.set("k", "w") and client.get("k") == b"w"


def test_values_never_reach_the_disk_of_a_node_nor_of_one_that_comes_later(serve, redis, start_node, folder):
    disk = folder / "disk"
    options = ["--capacity", "16M", "--kv-capacity", "64M", "--kv-disk", str(disk), "--kv-disk-capacity", "256M"]
    node = start_node("a", options=options)
    server = serve(node=node)
    secret = os.urandom(64) * 64
    assert redis.Redis(port=server.port).set("k", secret)
    for _ in range(2):
        # In order: what is in memory and may be written is.
        node.stop()
        node.start()
        assert redis.Redis(port=serve(node=node).port).get("k") == secret, "it outlives the node in memory"
        (file,) = [path for path in disk.rglob("*") if path.is_file()]
        assert secret[:64] not in file.read_bytes()


def test_a_password_is_asked_for_and_needed_for_other_addresses(serve, redis, folder, node):
    for address in ("0.0.0.0:0", "[::]:0"):
        refused = node.run("resp", "--listen", address, check=False)
        assert refused.returncode == 2 and "--password-file" in refused.stderr
    secret = folder / "secret"
    secret.write_text("right\n")
    port = serve("--password-file", str(secret), node=node, listen=["0.0.0.0:0"]).port
    stranger = redis.Redis(port=port)
    with pytest.raises(redis.AuthenticationError):
        stranger.get("k")
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port, password="wrong").ping()
    for protocol in (2, 3):
        assert redis.Redis(port=port, password="right", protocol=protocol).set("k", "v")
    wire = Wire(port)
    wire.send("SET", "k", b"x" * 20_000)
    assert wire.receive() == (b"-", b"ERR Protocol error: unauthenticated bulk length") and wire.file.read() == b""
    refused = node.run("resp", "--listen", "192.0.2.1:1", "--password-file", secret, check=False)
    assert refused.returncode == 1 and "hint: no card of this host has this address" in refused.stderr
    secret.write_text("\n")
    refused = node.run("resp", "--password-file", secret, check=False)
    assert refused.returncode == 2 and "urandom" in refused.stderr


@pytest.mark.parametrize("garbage", [b"*1\r\n$-5\r\n", b"*99999999\r\n", b"*1\r\n%1\r\n", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000000\r\n",
                                     b"SET a \"b\r\n", b"x" * 70_000, b"*1\r\n$3\r\nGETxxxx", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_garbage_gets_an_error_and_the_connection_ends(serve, garbage):
    server = serve()
    with server.connect() as connection:
        connection.sendall(garbage)
        replies = b""
        while piece := connection.recv(4096):
            replies += piece
    assert replies.startswith(b"-ERR") and replies.count(b"\r\n") == 1
    assert Wire(server.port).ask("PING") == (b"+", b"PONG")


def resident(server):
    """Bytes of memory that a server has."""
    return int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def test_a_client_that_does_not_read_cannot_make_the_server_grow(serve):
    server = serve()
    assert Wire(server.port).ask("SET", "k", b"x" * MEBIBYTE) == (b"+", b"OK")
    before = resident(server)
    with server.connect() as connection:
        connection.settimeout(1)
        try:
            while True:
                connection.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" * 10_000)
        except TimeoutError:
            pass
        assert Wire(server.port).ask("PING") == (b"+", b"PONG")
        assert resident(server) - before < 40 * MEBIBYTE


def test_lengths_that_are_announced_and_never_come_take_no_memory(serve):
    server = serve("--buffers", "64M")
    before = resident(server)
    connections = [server.connect() for _ in range(100)]
    for connection in connections:
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000000\r\nabc")
    assert Wire(server.port).ask("PING") == (b"+", b"PONG")
    assert resident(server) - before < 40 * MEBIBYTE
    # Those that really come are refused when the buffers are full, and the others go on.
    for connection in connections[:3]:
        try:
            for _ in range(100):
                connection.sendall(bytes(MEBIBYTE))
            assert connection.recv(1000).startswith(b"-OOM")
        except ConnectionError:
            # It was closed while more was on its way.
            pass
    assert Wire(server.port).ask("SET", "k", "v") == (b"+", b"OK")
    assert resident(server) - before < 200 * MEBIBYTE
    for connection in connections:
        connection.close()


def test_clients_beyond_the_limit_are_turned_away(serve):
    server = serve("--clients", "3")
    wires = [Wire(server.port) for _ in range(3)]
    assert all(wire.ask("PING") == (b"+", b"PONG") for wire in wires)
    assert Wire(server.port).receive() == (b"-", b"ERR max number of clients reached")
    wires[0].socket.close()
    wires[0].file.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            if Wire(server.port).ask("PING") == (b"+", b"PONG"):
                break
        except (AssertionError, OSError):
            pass
        assert time.monotonic() < deadline


def test_a_client_that_closes_after_its_commands_gets_all_replies(serve):
    server = serve(listen=["127.0.0.1:0", "unix:/tmp/hl-resp-%d.sock" % os.getpid()])
    unix = socket.socket(socket.AF_UNIX)
    unix.connect(server.listen[1].removeprefix("unix:"))
    for connection in (server.connect(), unix):
        connection.sendall(b"SET k v\r\n" + b"GET k\r\n" * 1000 + b"PING\r\n")
        connection.shutdown(socket.SHUT_WR)
        replies = b""
        while piece := connection.recv(65_536):
            replies += piece
        connection.close()
        assert replies == b"+OK\r\n" + b"$1\r\nv\r\n" * 1000 + b"+PONG\r\n"


@pytest.mark.parametrize("eviction", ["lru", "clock", "s3fifo", "fifo"])
def test_what_is_evicted_first_is_said_as_the_node_was_told(serve, start_node, redis, eviction):
    node = start_node(options=["--capacity", "16M", "--kv-capacity", "32M", "--eviction", eviction])
    client = redis.Redis(port=serve(node=node).port)
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": f"allkeys-{eviction}"}
    assert client.info("memory")["maxmemory_policy"] == f"allkeys-{eviction}"


def test_values_outlive_server_and_node_unless_the_node_keeps_none(serve, start_node, redis):
    for keep, expected in (("on", b"v"), ("off", None)):
        node = start_node(options=["--capacity", "16M", "--kv-capacity", "32M", "--kv-keep", keep])
        first = serve(node=node)
        redis.Redis(port=first.port).set("k", "v")
        assert first.stop() == 0 and redis.Redis(port=serve(node=node).port).get("k") == b"v", "the node still has it"
        node.stop()
        node.start()
        client = redis.Redis(port=serve(node=node).port)
        wait_until(lambda: client.get("k") == expected, why="what was kept is found once it is checked")


@needs_tools
def test_redis_cli_and_redis_benchmark_work(serve, folder):
    server = serve()
    port = str(server.port)
    run = lambda *words, **more: subprocess.run(words, capture_output=True, timeout=120, check=True, **more).stdout
    assert run("redis-cli", "-p", port, "-3", "SET", "k", "v") == b"OK\n"
    assert run("redis-cli", "-p", port, input=b"GET k\nGET none\nTTL k\nCOMMAND COUNT\nHELLO 3\n").startswith(b"v\n\n-1\n")
    assert b"k" in run("redis-cli", "-p", port, "--scan") and b"db0:keys=1" in run("redis-cli", "-p", port, "INFO")
    (folder / "value").write_bytes(os.urandom(5 * MEBIBYTE))
    assert run("redis-cli", "-p", port, "-x", "SET", "file", stdin=open(folder / "value", "rb")) == b"OK\n"
    assert run("redis-cli", "-p", port, "GET", "file")[:-1] == (folder / "value").read_bytes()
    for words in (["-P", "32"], ["-c", "5", "-d", "10000"], ["-3", "--threads", "2"]):
        told = run("redis-benchmark", "-p", port, "-t", "ping,set,get,mset,incr", "-n", "2000", "-q", *words)
        assert told.count(b"requests per second") >= 5 and b"rror" not in told, told


@pytest.mark.skipif(shutil.which("memtier_benchmark") is None, reason="no memtier_benchmark (apt-get install memtier-benchmark)")
def test_memtier_benchmark_works(serve):
    words = ["memtier_benchmark", "-p", str(serve().port), "-n", "500", "-c", "4", "-t", "2", "--hide-histogram"]
    for protocol in ("resp2", "resp3"):
        told = subprocess.run([*words, "--protocol", protocol], capture_output=True, text=True, timeout=120, check=True)
        assert "Totals" in told.stdout and "rror" not in told.stderr, told.stderr
