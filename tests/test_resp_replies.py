"""Which replies a Redis client gets: those that it does not want are left out, and no word of a request is ignored in silence."""

import pytest
from test_resp import Wire, encoded, needs_redis, peer, serve  # noqa: F401

# What is sent in one piece, and the replies to it.
SILENT = [
    ("all of them", [("CLIENT", "REPLY", "OFF"), ("SET", "a", 1), ("GET", "a"), ("NONSENSE",), ("SET", "a", 2), ("CLIENT", "REPLY", "SKIP"),
                     ("CLIENT", "REPLY", "ON"), ("GET", "a")], b"+OK\r\n$1\r\n2\r\n"),
    ("one", [("SET", "a", 3), ("CLIENT", "REPLY", "SKIP"), ("SET", "a", 4), ("GET", "a")], b"+OK\r\n$1\r\n4\r\n"),
    ("one that fails", [("CLIENT", "REPLY", "SKIP"), ("NONSENSE",), ("PING",)], b"+PONG\r\n"),
    ("one that is said twice", [("CLIENT", "REPLY", "SKIP"), ("CLIENT", "REPLY", "SKIP"), ("PING",), ("PING",)], b"+PONG\r\n"),
    ("a transaction", [("CLIENT", "REPLY", "OFF"), ("MULTI",), ("SET", "a", 5), ("GET", "a"), ("EXEC",), ("CLIENT", "REPLY", "ON"),
                       ("GET", "a")], b"+OK\r\n$1\r\n5\r\n"),
    ("only that of EXEC", [("MULTI",), ("GET", "b"), ("PING",)], b"+OK\r\n+QUEUED\r\n+QUEUED\r\n"),
]
# Requests whose second word, or what follows it, is wrong or narrows the answer.
NARROWED = [
    ("COMMAND", "LIST", "FILTERBY", "PATTERN", "getd*"), ("COMMAND", "LIST", "FILTERBY", "MODULE", "json"), ("COMMAND", "LIST", "x"),
    ("COMMAND", "COUNT", "x"), ("COMMAND", ""), ("CLIENT", "LIST", "TYPE", "pubsub"), ("CLIENT", "LIST", "TYPE", "foo"),
    ("CLIENT", "LIST", "ID", "x"), ("CLIENT", "LIST", "ID", 10**9), ("CLIENT", "LIST", "x"), ("CLIENT", "REPLY"), ("CLIENT", "REPLY", "x"),
    ("CONFIG", "RESETSTAT", "x"), ("CONFIG", "GET"), ("MEMORY", "USAGE", "none", "SAMPLES", "x"), ("MEMORY", "USAGE", "none", "SAMPLES", 5),
    ("MEMORY", "USAGE", "none", "x", 5), ("OBJECT", "FREQ"), ("OBJECT", "x", "y"),
]


def answered(port, commands, count):
    """The bytes that answer to commands which are sent at once, of a new connection."""
    wire = Wire(port)
    wire.socket.sendall(b"".join(encoded(*words) for words in commands) + encoded("QUIT"))
    got = wire.file.read(count + len(b"+OK\r\n"))
    wire.socket.close()
    return got.removesuffix(b"+OK\r\n")


def test_replies_that_are_not_wanted_are_left_out_and_no_others(serve):
    port = serve().port
    for name, commands, expected in SILENT:
        assert answered(port, commands, len(expected)) == expected, name


@needs_redis
def test_the_replies_that_are_left_out_are_those_that_redis_leaves_out(peer):
    for name, commands, expected in SILENT:
        assert answered(peer, commands, len(expected)) == expected, name


def test_a_client_cannot_make_exec_answer_with_fewer_replies_than_it_says(serve):
    wire = Wire(serve().port)
    for wanted in ("OFF", "SKIP", "ON"):
        assert wire.ask("MULTI") == (b"+", b"OK")
        assert b"say it before" in wire.ask("CLIENT", "REPLY", wanted)[1]
        assert wire.ask("PING") == (b"+", b"QUEUED")
        assert wire.ask("EXEC")[1].startswith(b"EXECABORT")


def test_a_transaction_with_a_subcommand_that_is_none_is_not_run(serve):
    wire = Wire(serve().port)
    for wrong in (("CLIENT", "foo"), ("OBJECT", "x"), ("CONFIG", "GET"), ("COMMAND", "x"), ("MEMORY", "USAGE")):
        assert wire.ask("MULTI") == (b"+", b"OK")
        assert wire.ask("SET", "never", 1) == (b"+", b"QUEUED")
        assert wire.ask(*wrong)[0] == b"-", wrong
        assert wire.ask("EXEC")[1].startswith(b"EXECABORT"), wrong
    assert wire.ask("EXISTS", "never") == (b":", b"0")


@needs_redis
def test_no_word_of_a_request_is_ignored_that_redis_looks_at(serve, peer):
    ours, theirs = Wire(serve().port), Wire(peer)
    for words in NARROWED:
        # Some texts say what Redis can and this server cannot; whether it is an error is the same.
        mine, right = ours.ask(*words), theirs.ask(*words)
        assert mine == right or mine[0] == right[0] == b"-" and mine[1][:4] == right[1][:4], (words, mine, right)


@needs_redis
def test_the_end_that_getex_gives_is_looked_at_for_a_key_that_is_there(serve, peer):
    ours, theirs = Wire(serve().port), Wire(peer)
    ends = [("EX", -1), ("EX", 0), ("PX", "soon"), ("EXAT", -5), ("EX", 2**63 - 1), ("EX",), ("EX", 1, 2), ("KEEPTTL",), ("PERSIST",), ()]
    for key, has in (("there", True), ("absent", False)):
        if has:
            assert ours.ask("SET", key, 1) == theirs.ask("SET", key, 1)
        for end in ends:
            assert ours.ask("GETEX", key, *end) == theirs.ask("GETEX", key, *end), (key, end)


@pytest.mark.parametrize("mebibytes", [16, 32])
def test_buffers_need_no_more_room_than_a_value_has(serve, mebibytes):
    port = serve("--buffers", f"{mebibytes + 4}M", kv="128M").port
    wire, value = Wire(port), b"v" * (mebibytes << 20)
    assert wire.ask("SET", "large", value) == (b"+", b"OK")
    assert wire.ask("STRLEN", "large") == (b":", b"%d" % len(value))
