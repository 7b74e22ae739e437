"""Transactions of Redis clients: what is queued runs with nothing in between, or not at all, with the replies that Redis gives."""

import random
import socket
import threading

import pytest
from test_resp import KEYS, VALUES, Wire, ask_in_pieces, encoded, needs_redis, peer, random_command, redis, serve  # noqa: F401

# Their replies depend on the clock, or on keys that have ended and were not looked at.
UNSURE = ("DBSIZE", "SCAN")


# A key that was made and removed again counts as unchanged here, and as changed for Redis.
REMOVERS = ("DEL", "UNLINK", "GETDEL", "GETEX", "FLUSHDB", "FLUSHALL", "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "RENAME", "RENAMENX", "BITOP")


def some_command(chance, may_remove):
    """A command whose replies inside a transaction are Redis's to the byte."""
    while True:
        words = random_command(chance)
        is_remover = words[0] in REMOVERS or any(word in ("EXAT", "PXAT") for word in words)
        if words[0] not in UNSURE + ("RESET", "KEYS") and (may_remove or not is_remover):
            return words


@needs_redis
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_transactions_get_the_replies_that_redis_gives(serve, peer, seed, version):
    chance = random.Random(seed * 10 + version)
    port = serve().port
    pairs = [(Wire(port), Wire(peer)) for _ in range(2)]
    for pair in pairs:
        for wire in pair:
            wire.ask("HELLO", version)
    outcomes = {"ran": 0, "changed": 0, "aborted": 0}
    watching, inside = set(), set()
    for number in range(4000):
        ours, theirs = chance.choice(pairs)
        command = lambda: some_command(chance, not watching and not inside)
        words = chance.choice([
            lambda: ("MULTI",), lambda: ("EXEC",), lambda: ("EXEC",), command, command,
            lambda: ("WATCH", chance.choice(KEYS), chance.choice(KEYS)), lambda: chance.choice([("DISCARD",), ("UNWATCH",), ("WATCH",)]),
            lambda: ("RESET",) if chance.random() < 0.05 else ("SET", chance.choice(KEYS[:3]), chance.choice(VALUES)),
        ])()
        got, expected = ours.ask(*words), theirs.ask(*words)
        assert got == expected, (number, words)
        if words[0] in ("MULTI", "WATCH") and got == (b"+", b"OK"):
            (inside if words[0] == "MULTI" else watching).add(ours)
        is_over = words[0] in ("EXEC", "DISCARD", "RESET") and not (isinstance(got, tuple) and b"without MULTI" in got[1])
        if is_over or words[0] == "UNWATCH" and got == (b"+", b"OK"):
            watching.discard(ours)
        if is_over:
            inside.discard(ours)
        if words == ("EXEC",):
            is_error = isinstance(got, tuple)
            outcomes["ran"] += isinstance(got, list)
            outcomes["changed"] += got is None or got == (b"_", b"")
            outcomes["aborted"] += is_error and got[1].startswith(b"EXECABORT")
        if words == ("RESET",):
            for wire in (ours, theirs):
                wire.ask("HELLO", version)
    assert min(outcomes.values()) > 10, f"the test is too tame: {outcomes}"


def counting(count):
    """Pipelined transactions that count, with plain commands in between, and the right replies."""
    commands, right = [], []
    for number in range(count):
        inside = [("SET", "k", number), ("INCR", "sum"), ("GET", "k")]
        commands += [("MULTI",), *inside, ("EXEC",)]
        value = str(number).encode()
        right += [(b"+", b"OK")] + [(b"+", b"QUEUED")] * 3 + [[b"*", (b"+", b"OK"), (b":", str(number + 1).encode()), value]]
        if number % 3 == 0:
            commands += [("SET", f"p{number}", number), ("SET", "p", b"x" * (number % 90)), ("GET", f"p{number}")]
            right += [(b"+", b"OK"), (b"+", b"OK"), value]
    return commands, right


@pytest.mark.parametrize("cuts", [[1], [1, 7, 100, 1000], [100_000]])
def test_pipelined_transactions_of_any_cut_get_the_right_replies(serve, cuts):
    commands, right = counting(1000)
    replies = ask_in_pieces(serve().port, commands, cuts)
    wrong = [number for number, (ours, theirs) in enumerate(zip(replies, right)) if ours != theirs]
    assert not wrong, (wrong[0], commands[wrong[0]], replies[wrong[0]], right[wrong[0]])


@needs_redis
@pytest.mark.parametrize("seed", range(3))
def test_pipelined_transactions_of_any_cut_get_the_replies_that_redis_gives(serve, peer, seed):
    chance = random.Random(seed)
    command = lambda: some_command(chance, False)
    commands = []
    for _ in range(1500):
        commands += [command() for _ in range(chance.randint(0, 3))]
        commands += [("WATCH", chance.choice(KEYS))] * chance.randint(0, 1)
        commands += [("MULTI",)] + [command() for _ in range(chance.randint(0, 5))]
        commands += [chance.choice([("EXEC",), ("EXEC",), ("EXEC",), ("DISCARD",), ("EXEC", "x"), ("MULTI",)])]
    ours, theirs = (ask_in_pieces(port, commands, [1, 7, 100, 1000]) for port in (serve().port, peer))
    for number, words in enumerate(commands):
        assert ours[number] == theirs[number], (number, words)


def test_a_client_that_closes_behind_its_transactions_gets_all_replies(serve):
    commands, right = counting(50)
    wire = Wire(serve().port)
    wire.socket.sendall(b"".join(encoded(*words) for words in commands))
    wire.socket.shutdown(socket.SHUT_WR)
    assert [wire.receive() for _ in commands] == right and wire.file.read() == b""


def test_pipelines_of_redis_py_are_transactions(serve, redis):
    client = redis.Redis(port=serve().port)
    with client.pipeline() as pipeline:
        replies = pipeline.set("a", 1).incr("a").get("a").execute()
    assert replies == [True, 2, b"2"]
    with client.pipeline() as pipeline:
        with pytest.raises(redis.ResponseError):
            pipeline.set("a", "words").incr("a").set("b", 1).execute()
    assert client.get("a") == b"words" and client.get("b") == b"1", "an error of one command does not stop the others"


@pytest.mark.parametrize("threads", [1, 3])
def test_counting_by_watching_loses_nothing(serve, redis, threads):
    server = serve("--threads", str(threads))
    redis.Redis(port=server.port).set("count", 0)

    def add_one(pipeline):
        value = int(pipeline.get("count"))
        pipeline.multi()
        pipeline.set("count", value + 1)

    def count():
        client = redis.Redis(port=server.port)
        for _ in range(100):
            client.transaction(add_one, "count")

    clients = [threading.Thread(target=count) for _ in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert redis.Redis(port=server.port).get("count") == b"400"


def test_nobody_sees_one_half_of_a_transaction(serve, redis):
    server = serve("--threads", "3")
    writer = redis.Redis(port=server.port)
    writer.mset({"one": 0, "two": 0})
    stop, seen = threading.Event(), []

    def read():
        client = redis.Redis(port=server.port)
        while not stop.is_set():
            with client.pipeline() as pipeline:
                one, two = pipeline.get("one").get("two").execute()
            seen.append(one == two)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(500):
        with writer.pipeline() as pipeline:
            pipeline.set("one", number).set("two", number).execute()
    stop.set()
    for reader in readers:
        reader.join()
    assert len(seen) > 100 and all(seen)


def test_a_change_by_another_server_is_noticed(serve, redis):
    first = serve()
    second = serve(node=first.node)
    mine, other = redis.Redis(port=first.port), redis.Redis(port=second.port)
    mine.set("k", 1)
    with mine.pipeline() as pipeline:
        pipeline.watch("k")
        assert other.set("k", 1), "the same value is a change as well"
        pipeline.multi()
        pipeline.set("k", 2)
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    assert mine.get("k") == b"1"


def test_a_transaction_larger_than_the_buffers_is_refused_and_others_go_on(serve, redis):
    server = serve("--buffers", "8M")
    wire = Wire(server.port)
    assert wire.ask("MULTI") == (b"+", b"OK")
    with pytest.raises((ConnectionError, AssertionError, OSError)):
        for _ in range(64):
            assert wire.ask("SET", "k", b"v" * (1 << 20)) == (b"+", b"QUEUED")
    wire.socket.close()
    client = redis.Redis(port=server.port)
    assert client.get("k") is None and client.set("k", 1)


def test_a_client_that_leaves_in_a_transaction_leaves_nothing(serve, redis):
    server = serve()
    wire = Wire(server.port)
    for words in (("MULTI",), ("SET", "k", 1), ("WATCHES",)):
        wire.ask(*words)
    wire.socket.close()
    assert redis.Redis(port=server.port).get("k") is None
