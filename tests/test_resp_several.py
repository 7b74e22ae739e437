"""Commands of Redis clients that change one key after a look at another, and those that change a part of a value."""

import random
import threading

import pytest
from test_resp import MEBIBYTE, Wire, client_store, needs_redis, peer, redis, serve  # noqa: F401


def run_all(*works):
    """Runs functions at once; what the first one that failed raised."""
    failures = []

    def guard(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_redis_py_moves_copies_and_changes_parts(serve, redis):
    client = redis.Redis(port=serve().port)
    assert client.msetnx({"a": 1, "b": 2}) and not client.msetnx({"b": 3, "c": 3}) and client.mget("a", "b", "c") == [b"1", b"2", None]
    assert client.setrange("a", 3, "xy") == 5 and client.get("a") == b"1\0\0xy" and client.setrange("none", 9, "") == 0
    assert client.incrbyfloat("b", 0.5) == 2.5 and client.get("b") == b"2.5"
    assert client.rename("b", "c") and client.get("c") == b"2.5" and client.exists("b") == 0
    assert not client.renamenx("c", "a") and client.renamenx("c", "b") and client.get("b") == b"2.5"
    assert client.copy("a", "d") and not client.copy("b", "d") and client.copy("b", "d", replace=True) and client.get("d") == b"2.5"
    assert client.copy("a", "other", destination_db=3) and redis.Redis(port=client.get_connection_kwargs()["port"], db=3).get("other") == b"1\0\0xy"
    with pytest.raises(redis.ResponseError, match="^no such key$"):
        client.rename("none", "a")
    assert client.get("a") == b"1\0\0xy"


def test_ends_go_with_their_values_and_stay_where_a_part_changes(serve, redis):
    client = redis.Redis(port=serve().port)
    end = 4_000_000_000_123
    client.set("k", "1.5", pxat=end)
    client.set("never", "v")
    assert client.setrange("k", 3, "0") == 4 and client.pexpiretime("k") == end
    assert client.incrbyfloat("k", 1) == 2.5 and client.pexpiretime("k") == end
    assert client.rename("k", "l") and client.pexpiretime("l") == end and client.pexpiretime("k") == -2
    assert client.copy("l", "never", replace=True) and client.pexpiretime("never") == end == client.pexpiretime("l")
    assert client.copy("l", "m", destination_db=1)
    assert redis.Redis(port=client.get_connection_kwargs()["port"], db=1).pexpiretime("m") == end
    assert client.setbit("l", 3, 0) == 1 and client.pexpiretime("l") == end
    client.set("forever", "w")
    assert client.rename("forever", "l") and client.pexpiretime("l") == -1 and client.get("l") == b"w"
    client.set("past", "x", px=1)
    while client.exists("past"):
        pass
    assert client.msetnx({"past": "y"}) and client.pexpiretime("past") == -1


@pytest.mark.parametrize("size", [0, 1, 4 * MEBIBYTE - 64, 9 * MEBIBYTE + 5])
@pytest.mark.parametrize("key", [b"k", b"n" * 65, b""])
def test_values_of_all_sizes_move_whole_and_leave_nothing(serve, redis, size, key):
    client = redis.Redis(port=serve(kv="128M").port)
    value = random.Random(size).randbytes(size)
    client.set(key, value, ex=1000)
    assert client.rename(key, "to") and client.get("to") == value and client.exists(key) == 0
    assert client.copy("to", key) and client.get(key) == value == client.get("to")
    client.set("to", b"x" * (5 * MEBIBYTE))
    assert client.rename(key, "to") and client.get("to") == value and client.dbsize() == 1 and client.ttl("to") > 900
    assert client.setrange("to", size, "end") == size + 3 and client.get("to") == value + b"end"
    assert client.delete("to") == 1 and client_store(client) == [0], "parts go with their value"
    large = {f"k{number}".encode(): value + b"%d" % number for number in range(3)}
    assert client.msetnx(large) and client.mget(*large) == list(large.values()) and not client.msetnx({"z": 1} | large)
    assert client.delete(*large) == 3 and client_store(client) == [0]


def test_what_cannot_be_set_all_or_none_is_refused_and_sets_nothing(serve, redis):
    client = redis.Redis(port=serve(kv="128M").port)
    with pytest.raises(redis.ResponseError, match="at most 512 keys with 32 MiB"):
        client.msetnx({f"k{number}": 1 for number in range(513)})
    for size in (4 * MEBIBYTE - 70, 4 * MEBIBYTE - 64):
        with pytest.raises(redis.ResponseError, match="at most 512 keys with 32 MiB"):
            client.msetnx({f"k{number}": bytes(size) for number in range(9)})
    assert client.dbsize() == 0
    assert client.msetnx({f"k{number}": bytes(4 * MEBIBYTE - 63) for number in range(9)}), "values in parts count little"
    assert client.flushdb() and client_store(client) == [0]
    assert client.msetnx({f"k{number}": 1 for number in range(512)}) and client.dbsize() == 512
    assert not client.msetnx({f"k{number}": 1 for number in range(511, 1100)}), "one of them is there"
    small = redis.Redis(port=serve(kv="32M").port)
    with pytest.raises(redis.ResponseError, match="no room"):
        small.msetnx({"a": 1, "b": bytes(40 * MEBIBYTE)})
    with pytest.raises(redis.ResponseError, match="no room"):
        small.setrange("a", 500 * MEBIBYTE, "x")
    assert small.dbsize() == 0 and small.msetnx({"a": 1, "b": 2})


def test_one_of_many_servers_sets_all_of_its_keys_and_no_other_any(serve, redis):
    first = serve("--threads", "2")
    ports = [first.port, serve(node=first.node).port]
    rounds, keys = 150, ["a", "b", "c", "d"]
    barrier = threading.Barrier(4)
    won = [[] for _ in range(rounds)]

    def contend(number):
        client = redis.Redis(port=ports[number % 2])
        own = keys[number % 2:][:3]
        for turn in range(rounds):
            barrier.wait(60)
            if client.msetnx({f"{key}{turn}": number for key in own}):
                won[turn].append(number)

    run_all(*[lambda number=number: contend(number) for number in range(4)])
    client = redis.Redis(port=ports[0])
    for turn in range(rounds):
        (winner,) = won[turn]
        value = str(winner).encode()
        expected = [value if key in keys[winner % 2:][:3] else None for key in keys]
        assert client.mget([f"{key}{turn}" for key in keys]) == expected


@pytest.mark.parametrize("size", [10, 5 * MEBIBYTE])
def test_a_value_that_many_servers_move_is_never_lost_nor_doubled(serve, redis, size):
    first = serve("--threads", "2", kv="256M")
    ports = [first.port, serve(node=first.node).port]
    value = b"v" * size
    places = ["x", "y", "z"]
    redis.Redis(port=ports[0]).set("x", value)
    enough = 60 if size < MEBIBYTE else 6

    def move(number):
        client, chance = redis.Redis(port=ports[number % 2]), random.Random(number)
        moves = 0
        while moves < enough:
            source, target = chance.sample(places, 2)
            try:
                moves += bool(chance.choice([client.rename, client.renamenx])(source, target))
            except redis.ResponseError as error:
                assert "no such key" in str(error)

    run_all(*[lambda number=number: move(number) for number in range(4)])
    client = redis.Redis(port=ports[1])
    assert sorted(client.mget(places), key=lambda found: found or b"") == [None, None, value]
    assert client.delete(*places) == 1 and client_store(client) == [0]


def test_readers_never_see_a_mixture_of_values_that_many_servers_move_and_replace(serve, redis):
    first = serve("--threads", "2", kv="512M")
    ports = [first.port, serve(node=first.node).port]
    keys, sizes = ["a", "b", "c", b"n" * 70], [3, 5000, 4 * MEBIBYTE, 5 * MEBIBYTE]
    stop, wrong, reads = threading.Event(), [], []

    def write(number):
        client, chance = redis.Redis(port=ports[number % 2]), random.Random(number)
        for _ in range(60):
            one, two = chance.sample(keys, 2)
            value = bytes([chance.randrange(256)]) * chance.choice(sizes)
            try:
                chance.choice([
                    lambda: client.set(one, value), lambda: client.rename(one, two), lambda: client.copy(one, two, replace=True),
                    lambda: client.delete(one), lambda: client.msetnx({one: value, two: value}), lambda: client.renamenx(one, two),
                ])()
            except redis.ResponseError as error:
                assert "no such key" in str(error)

    def read(port):
        client = redis.Redis(port=port)
        while not stop.is_set():
            for value in client.mget(keys):
                reads.append(value is not None)
                if value is not None and (len(value) not in sizes or value.count(value[:1]) != len(value)):
                    wrong.append((len(value), value[:9]))

    readers = [threading.Thread(target=read, args=(port,)) for port in ports]
    for reader in readers:
        reader.start()
    try:
        run_all(*[lambda number=number: write(number) for number in range(3)])
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong and sum(reads) > 50


def test_nobody_on_a_server_sees_a_value_under_both_keys_or_none(serve, redis):
    server = serve("--threads", "3")
    mover = redis.Redis(port=server.port)
    mover.set("a", "v")
    stop, seen = threading.Event(), []

    def read():
        client = redis.Redis(port=server.port)
        while not stop.is_set():
            with client.pipeline() as pipeline:
                seen.append(pipeline.get("a").get("b").get("m").get("n").execute())

    def move():
        try:
            for _ in range(200):
                mover.rename("a", "b")
                mover.rename("b", "a")
                assert mover.msetnx({"m": 1, "n": 1})
                with mover.pipeline() as pipeline:
                    assert pipeline.delete("m", "n").execute() == [2]
        finally:
            stop.set()

    run_all(move, read, read)
    assert len(seen) > 50
    assert all((one is None) != (two is None) and three == four for one, two, three, four in seen)


def test_who_has_not_said_the_password_moves_nothing(serve, redis, folder):
    (folder / "secret").write_text("right\n")
    port = serve("--password-file", str(folder / "secret")).port
    known = redis.Redis(port=port, password="right")
    known.set("a", "v")
    for words in (("RENAME", "a", "b"), ("COPY", "a", "b"), ("MSETNX", "b", 1), ("BITOP", "NOT", "a", "a")):
        assert Wire(port).ask(*words) == (b"-", b"NOAUTH Authentication required.")
    assert known.keys() == [b"a"] and known.get("a") == b"v"


def test_changes_of_parts_by_many_servers_lose_nothing(serve, redis):
    first = serve("--threads", "2")
    ports = [first.port, serve(node=first.node).port]

    def change(number):
        client = redis.Redis(port=ports[number % 2])
        for turn in range(100):
            client.incrbyfloat("sum", 0.25)
            client.setrange("letters", turn * 4 + number, str(number))

    run_all(*[lambda number=number: change(number) for number in range(4)])
    client = redis.Redis(port=ports[0])
    assert client.get("sum") == b"100" and client.get("letters") == b"0123" * 100


def test_any_key_comes_up_and_none_that_has_ended(serve, redis):
    client = redis.Redis(port=serve().port)
    assert client.randomkey() is None
    keys = {f"key{number}".encode() for number in range(9)} | {b"n" * 100, b""}
    client.mset({key: 1 for key in keys})
    client.psetex("ended", 1, "x")
    redis.Redis(port=client.get_connection_kwargs()["port"], db=1).set("elsewhere", 1)
    while client.exists("ended"):
        pass
    found = [client.randomkey() for _ in range(400)]
    assert set(found) == keys and max(found.count(key) for key in keys) < 150
    client.mset({f"more{number}": 1 for number in range(3000)})
    assert len({client.randomkey() for _ in range(200)}) > 100


def test_values_that_are_evicted_while_they_move_are_missing_and_never_wrong(serve, redis):
    client = redis.Redis(port=serve(kv="32M").port)
    chance = random.Random(5)
    sizes = [100, 30_000, MEBIBYTE, 5 * MEBIBYTE]
    content = lambda number: number.to_bytes(2, "big") * (sizes[number % 4] // 2)
    keys = [f"k{number}" for number in range(12)]
    model, hits, moved = {}, 0, 0
    for number in range(400):
        one, two = chance.sample(keys, 2)
        try:
            done = chance.choice([
                lambda: client.set(one, content(number)) and {one: number},
                lambda: client.rename(one, two) and {one: None, two: model.get(one)},
                lambda: client.copy(one, two, replace=True) and {two: model.get(one)},
                lambda: client.msetnx({one: content(number), two: content(number)}) and {one: number, two: number},
            ])()
            moved += len(done or {}) == 2
            model.update(done or {})
        except redis.ResponseError as error:
            assert "no such key" in str(error) or "no room" in str(error)
        looked = [one, two, chance.choice(keys)] if number < 399 else keys
        for key, value in zip(looked, client.mget(looked)):
            hits += value is not None
            assert value is None or model.get(key) is not None and value == content(model[key]), (number, key)
    assert moved > 50 and hits > 300


def random_float(chance):
    """A number in one of the forms that C has, of any size."""
    digits = lambda count: "".join(chance.choice("0123456789") for _ in range(count))
    return chance.choice([
        lambda: f"{chance.uniform(-1000, 1000)}",
        lambda: f"{chance.choice(['', '-', '+'])}{digits(chance.randint(1, 25))}.{digits(chance.randint(0, 25))}",
        lambda: f"{digits(chance.randint(1, 20))}e{chance.choice(['', '-', '+'])}{chance.randint(0, 30)}",
        lambda: f"{digits(3)}.{digits(20)}E{chance.choice([-4970, -4950, -4930, 4920, 4929, 4930, 300, -300])}",
        lambda: f"{chance.choice(['', '-'])}0x{chance.randrange(2**70):x}.{chance.randrange(2**30):x}p{chance.randint(-90, 20)}",
        lambda: f"{2**64 + chance.randint(-9, 9)}",
        lambda: f"{chance.randint(-10**18, 10**18)}e-{chance.randint(15, 22)}",
        lambda: f"0x1.{chance.randrange(2**68):017x}p{chance.choice([16383, 16382, -16445, -16440, -16382])}",
        lambda: chance.choice(["0x", "1e", ".", "-", "1.2.3", "inf", "-inf", "nan", "0x.p1", "1e5x", "1_0", "0e9999999999", "-0", "١"]),
    ])()


@needs_redis
@pytest.mark.parametrize("seed", range(3))
def test_sums_of_numbers_with_a_fraction_are_those_of_redis(serve, peer, seed):
    ours, theirs = Wire(serve().port), Wire(peer)
    chance = random.Random(seed)
    sums = 0
    for number in range(3000):
        words = [("SET", "k", random_float(chance))] * chance.randint(0, 1) + [("INCRBYFLOAT", "k", random_float(chance)), ("GET", "k")]
        for word in words:
            got, expected = ours.ask(*word), theirs.ask(*word)
            assert got == expected, (number, words)
            sums += word[0] == "INCRBYFLOAT" and isinstance(got, bytes)
    assert sums > 1000, "the test is too tame"


def random_look(chance):
    """A command on bits or texts of the keys a, b and c."""
    key = lambda: chance.choice("abc")
    place = lambda: chance.choice([0, 1, -1, 2, 3, -3, 7, 8, -8, 9, 20, -40, 63, 64, 100])
    measure = lambda: chance.choice(["BIT", "BIT", "BYTE"])
    return chance.choice([
        lambda: ("BITCOUNT", key(), place(), place(), measure()),
        lambda: ("BITPOS", key(), chance.choice([0, 1]), place(), place(), measure()),
        lambda: ("BITPOS", key(), chance.choice([0, 1]), place()),
        lambda: ("BITOP", chance.choice(["AND", "OR", "XOR"]), "d", key(), key(), key()),
        lambda: ("BITOP", "NOT", "d", key()),
        lambda: ("GET", "d"),
        lambda: ("LCS", key(), key()),
        lambda: ("LCS", key(), key(), "IDX", "MINMATCHLEN", chance.randint(0, 4), *["WITHMATCHLEN"] * chance.randint(0, 1)),
        lambda: ("LCS", key(), key(), "LEN"),
        lambda: ("SETRANGE", key(), chance.randint(0, 9), bytes(chance.choices(b"\x00\xffab", k=3))),
        lambda: ("SETBIT", key(), chance.randint(0, 80), chance.randint(0, 1)),
        lambda: ("SET", key(), bytes(chance.choices(chance.choice([b"ab", b"abcdefgh", b"\x00\xff", bytes(range(256))]), k=chance.randint(0, 40)))),
        lambda: ("DEL", key()) if chance.random() < 0.2 else ("STRLEN", "d"),
    ])()


@needs_redis
@pytest.mark.parametrize("version", [2, 3])
def test_bits_and_what_texts_have_in_common_are_those_of_redis(serve, peer, version):
    ours, theirs = Wire(serve().port), Wire(peer)
    chance = random.Random(version)
    for wire in (ours, theirs):
        wire.ask("HELLO", version)
    for number in range(6000):
        words = random_look(chance)
        got, expected = ours.ask(*words), theirs.ask(*words)
        assert got == expected, (number, words)


def test_a_search_that_would_take_too_much_memory_is_refused(serve, redis):
    client = redis.Redis(port=serve("--buffers", "16M").port)
    client.mset({"a": b"x" * 20_000, "b": b"y" * 20_000, "c": b"x" * 3000})
    with pytest.raises(redis.ResponseError, match="exceeds proto-max-bulk-len"):
        client.lcs("a", "b")
    with pytest.raises(redis.ResponseError, match="more than the buffers have left"):
        client.lcs("a", "c")
    client.set("d", b"zxxz")
    assert client.lcs("c", "d") == b"xx" and client.lcs("c", "d", len=True) == 2
