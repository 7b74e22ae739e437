"""Parts of the program in front of a llama-server, each by itself: slot files, slots, HTTP, the command line, digests."""

import asyncio
import os
import random
import sys
import types
from array import array

import pytest
from conftest import TREE

sys.path.insert(0, str(TREE / "python"))


@pytest.fixture(scope="module")
def parts(hinterland):
    """The modules."""
    from hinterland.llamacpp import command, digest, http, prompt, proxy, sharing, slot_file, slots, store

    class Parts:
        pass

    Parts.command, Parts.digest, Parts.http, Parts.prompt = command, digest, http, prompt
    Parts.proxy, Parts.sharing = proxy, sharing
    Parts.slot_file, Parts.slots, Parts.store = slot_file, slots, store
    return Parts


def layout(parts, version=4, streams=3, sections=1):
    """Two layers of three and five bytes for K, and two for V."""
    rows = parts.slot_file.Rows
    marks = (0,) * parts.slot_file.VERSIONS[version]
    section = parts.slot_file.Section(streams, marks, (rows(1, 3), rows(8, 5)), (rows(1, 2), rows(1, 2)))
    return parts.slot_file.Layout(version, True, (section,) * sections)


def file(parts, tokens, **choices):
    """A slot's file with rows of random bytes."""
    kind = layout(parts, **choices)
    data = bytearray(kind.file_bytes(len(tokens)))
    slot = parts.slot_file.compose(memoryview(data), kind, array("i", tokens))
    chance = random.Random(1)
    for piece in slot.pieces(0, len(tokens)):
        piece[:] = chance.randbytes(len(piece))
    return kind, data


@pytest.mark.parametrize("choices", [{}, {"version": 3}, {"sections": 2}, {"streams": 1}])
def test_what_was_composed_is_understood_and_has_the_same_rows(parts, choices):
    kind, data = file(parts, range(7, 27), **choices)
    slot = parts.slot_file.take_apart(memoryview(bytes(data)))
    assert slot.layout == kind and list(slot.tokens) == list(range(7, 27))
    other = bytearray(kind.file_bytes(20))
    copy = parts.slot_file.compose(memoryview(other), kind, slot.tokens)
    for first, count in ((0, 8), (8, 8), (16, 4)):
        for into, source in zip(copy.pieces(first, count), slot.pieces(first, count)):
            into[:] = source
    assert other == data


def test_a_file_that_is_cut_off_anywhere_or_has_one_byte_more_is_refused(parts):
    _, data = file(parts, range(10), sections=2)
    whole = parts.slot_file.take_apart(memoryview(data))
    for size in range(len(data)):
        cut = memoryview(bytes(data[:size]))
        # The first section by itself is a file, too; its layout is another one.
        try:
            assert parts.slot_file.take_apart(cut).layout != whole.layout
        except parts.slot_file.SlotFileError:
            pass
    with pytest.raises(parts.slot_file.SlotFileError):
        parts.slot_file.take_apart(memoryview(bytes(data) + b"\0"))


def test_a_file_with_wrong_bytes_is_refused_or_has_another_layout_and_never_ends_the_program(parts):
    _, data = file(parts, range(10))
    whole = parts.slot_file.take_apart(memoryview(bytes(data)))
    chance = random.Random(2)
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 1, 4))):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            found = parts.slot_file.take_apart(memoryview(broken))
        except parts.slot_file.SlotFileError:
            continue
        if found.layout == whole.layout:
            # Rows, tokens, or the number of the sequence: everything is where it was.
            assert len(found.tokens) == 10 and len(found.pieces(0, 10)) == len(whole.pieces(0, 10))


def test_rows_of_cells_that_lie_in_another_order_are_found_by_position(parts):
    tokens = list(range(100, 106))
    kind, data = file(parts, tokens, sections=1)
    slot = parts.slot_file.take_apart(memoryview(data))
    rows = [[bytes(piece) for piece in slot.pieces(token, 1)] for token in range(6)]
    # The cells of the positions 4, 5, 0, 1, 2, 3: the caches of servers with one store for all slots turn round.
    order = [4, 5, 0, 1, 2, 3]
    turned = bytearray(data)
    view = memoryview(turned)
    begin = turned.index(array("i", [0, 1, 0, 1, 1, 0]).tobytes())
    for cell, position in enumerate(order):
        view[begin + 12 * cell:begin + 12 * cell + 4] = position.to_bytes(4, "little")
        for layer, (start, size) in enumerate(slot.places[0][1]):
            view[start + cell * size:start + (cell + 1) * size] = rows[position][layer]
    found = parts.slot_file.take_apart(view)
    assert [[bytes(piece) for piece in found.pieces(token, 1)] for token in range(6)] == rows
    assert b"".join(found.pieces(0, 6)) == b"".join(slot.pieces(0, 6))
    view[begin:begin + 4] = (1).to_bytes(4, "little")
    with pytest.raises(parts.slot_file.SlotFileError, match="positions"):
        parts.slot_file.take_apart(view)


def test_a_block_takes_as_many_tokens_as_fit(parts):
    rows = parts.slot_file.Rows

    def with_row(size):
        section = parts.slot_file.Section(1, (), (rows(1, size),), (rows(1, size),))
        return parts.slot_file.Layout(3, True, (section,))

    assert parts.store.chunk_tokens(with_row(1000)) == 128
    assert parts.store.chunk_tokens(with_row(64 << 10)) == 32
    with pytest.raises(parts.slot_file.SlotFileError):
        parts.store.chunk_tokens(with_row(3 << 20))


def test_a_key_stands_for_all_tokens_before_its_end(parts):
    store = parts.store.Store(None, layout(parts), 4, None)
    one, other = store.keys(array("i", range(10))), store.keys(array("i", [9, *range(1, 10)]))
    assert len(one) == 2 and one[0] != other[0] and one[1] != other[1]
    assert store.keys(array("i", range(9)))[:2] == one and store.keys(array("i", range(3))) == []


def test_the_slot_with_the_longest_common_beginning_is_taken_and_waiting_is_in_order(parts):
    async def run():
        slots = parts.slots.Slots(2)
        slots.all[0].tokens, slots.all[1].tokens = array("i", range(10)), array("i", range(100))
        assert (await slots.take(array("i", range(120)), None)).number == 1
        # Its own is saved only any more: the request waits for it, though the other slot is free.
        slots.all[1].is_saving = True
        waiting = asyncio.ensure_future(slots.take(array("i", range(120)), None))
        second = asyncio.ensure_future(slots.take(array("i", [5]), 0))
        left = asyncio.ensure_future(slots.take(array("i", [5]), None))
        await asyncio.sleep(0)
        assert not waiting.done() and not second.done()
        left.cancel()
        slots.all[1].is_saving = False
        slots.give(slots.all[1])
        assert (await waiting).number == 1 and (await second).number == 0
        slots.forget()
        assert slots.all[0].tokens is None
        slots.give(slots.all[0])
        assert (await slots.take(array("i", [1]), 2)).number == 0

    asyncio.run(run())


def test_common_beginnings_have_the_right_length(parts):
    chance = random.Random(3)
    for _ in range(300):
        one = array("i", [chance.randrange(2) for _ in range(chance.randrange(40))])
        other = array("i", [chance.randrange(2) for _ in range(chance.randrange(40))])
        count = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        assert parts.slots.common(one, other) == count


def served(parts, data):
    """What reading these bytes as a request gives."""
    class Nobody:
        written = b""

        def write(self, data):
            self.written += data

    async def run():
        reader = asyncio.StreamReader(limit=parts.http.HEAD_BYTES_MAX)
        reader.feed_data(data)
        reader.feed_eof()
        return await parts.http.read_request(reader, Nobody())

    return asyncio.run(run())


def test_requests_are_read_with_a_length_and_in_chunks(parts):
    plain = served(parts, b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello, and more")
    assert (plain.method, plain.path, plain.body) == ("POST", "/a", b"hello")
    chunks = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
    request = served(parts, chunks)
    assert request.body == b"abc0123456789"
    message = request.message(b"new")
    assert b"chunked" not in message and b"Content-Length: 3\r\n" in message and message.endswith(b"\r\n\r\nnew")
    assert served(parts, b"") is None


@pytest.mark.parametrize("data,status", [
    (b"GET /\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nHost: x", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort", 400), (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * (70 << 10) + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nSmuggled : x\r\n\r\n", 400),
])
def test_a_request_that_cannot_be_read_is_answered_with_what_is_wrong(parts, data, status):
    with pytest.raises(parts.http.HttpError) as caught:
        served(parts, data)
    assert caught.value.status == status and str(status).encode() in caught.value.message()


def test_options_that_may_change_keys_and_values_separate_servers_and_others_do_not(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, adapter = tmp_path / "model.gguf", tmp_path / "vector.gguf"
    model.write_bytes(b"model")
    adapter.write_bytes(b"vector")

    def facts(*words, **environment):
        return parts.command.take_apart(["llama-server", "-m", str(model), *words], environment).facts

    plain = facts()
    assert facts("--port", "9", "-t", "4", "-np", "2", "--metrics", "--api-key", "x") == plain
    assert facts(LLAMA_ARG_THREADS="8", PATH="/bin") == plain
    different = [facts("--rope-freq-scale", "0.5"), facts("--control-vector", str(adapter)), facts("--new-option"),
                 facts(LLAMA_ARG_ROPE_SCALE="2")]
    adapter.write_bytes(b"other!")
    different.append(facts("--control-vector", str(adapter)))
    assert len({repr(found) for found in [plain, *different]}) == 6
    scaled = ["--control-vector-scaled", f"{adapter}:0.5,{model}:1"]
    assert facts(*scaled) == facts(*scaled) != facts(*scaled[:1], f"{adapter}:0.6,{model}:1")
    before = [facts(*scaled), facts("--control-vector", f"{model},{adapter}")]
    adapter.write_bytes(b"third")
    assert facts(*scaled) != before[0] and facts("--control-vector", f"{model},{adapter}") != before[1]
    assert facts("--tensor-split", "3,1", "--override-kv", "a=int:1")[-3:] == ["3,1", "--override-kv", "a=int:1"]


def test_a_command_is_changed_only_where_it_listens_and_saves(parts, tmp_path):
    taken = parts.command.take_apart(["llama-server", "--host", "0.0.0.0", "-m", "x", "--port", "81", "--port", "82"], {})
    assert (taken.host, taken.port, taken.words) == ("0.0.0.0", 82, ["llama-server", "-m", "x"])
    words = taken.started(tmp_path / "s.sock", tmp_path)
    assert words[3:] == ["--host", str(tmp_path / "s.sock"), "--slot-save-path", f"{tmp_path}/", "--cache-ram", "0"]
    own = parts.command.take_apart(["llama-server", "-cram", "100"], {"LLAMA_ARG_PORT": "83"})
    assert own.port == 83 and "--cache-ram" not in own.started(tmp_path / "s.sock", tmp_path)


@pytest.mark.parametrize("words,environment", [
    (["--context-shift"], {}), (["--cache-reuse", "256"], {}), (["--lora", "x"], {}), ([], {"LLAMA_ARG_CACHE_REUSE": "1"}),
    # llama-server reads dashes for underscores, and takes the last of several.
    (["--cache_reuse", "256"], {}), (["--lora_scaled", "x:0.5"], {}), (["--context_shift"], {}),
    (["--cache-reuse", "0", "--cache-reuse", "256"], {}),
])
def test_what_makes_keys_depend_on_more_than_the_prompt_turns_sharing_off(parts, words, environment):
    assert parts.command.take_apart(["llama-server", *words], environment).unshared
    assert parts.command.take_apart(["llama-server", "--cache-reuse", "0"], {}).unshared is None


@pytest.mark.parametrize("words,environment", [
    (["--api-prefix", "/x"], {}), (["--api_prefix", "/x"], {}), (["--slot_save_path", "/tmp"], {}),
    ([], {"LLAMA_ARG_API_PREFIX": "/x"}), ([], {"LLAMA_ARG_SSL_KEY_FILE": "key.pem"}), ([], {"LLAMA_ARG_MODELS_DIR": "/x"}),
])
def test_what_cannot_be_had_together_with_the_program_is_refused_however_it_is_said(parts, words, environment):
    with pytest.raises(parts.command.CommandError, match="cannot be had together .*hint"):
        parts.command.take_apart(["llama-server", *words], environment)
    taken = parts.command.take_apart(["llama-server", "--cache_ram", "0", "--api_key", "k"], {"LLAMA_ARG_API_PREFIX": ""})
    assert taken.words[1:] == ["--cache_ram", "0", "--api_key", "k"]
    assert (taken.has_cache_ram, taken.authorization) == (True, "Bearer k")


def test_a_digest_is_remembered_until_the_file_changes(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model"
    path.write_bytes(b"one")
    first = parts.digest.file_digest(path)
    memory = tmp_path / "cache/hinterland/digests.json"
    assert str(path) in memory.read_text() and parts.digest.file_digest(path) == first
    times = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert parts.digest.file_digest(path) != first
    for spoilt in ("", "[]", '{"a": 1}', "\0"):
        memory.write_text(spoilt)
        assert len(parts.digest.file_digest(path)) == 64
    split = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in split:
        part.write_bytes(b"x")
    whole = parts.digest.model_digest(split[0])
    split[1].write_bytes(b"y")
    assert parts.digest.model_digest(split[0]) != whole != parts.digest.file_digest(split[0])


def test_requests_for_more_than_one_completion_of_a_text_are_not_understood(parts):
    def prompt(body):
        request = parts.http.Request("POST", "/completion", [], body)
        return asyncio.run(parts.prompt.prompt_of(request, None))

    assert list(prompt(b'{"prompt": [1, 2]}').tokens) == [1, 2]
    for body in (b'{"prompt": [1], "n": 2}', b'{"prompt": [[1], [2]]}', b'{"prompt": [1, "a"]}', b'{"prompt": []}', b"[]", b"{",
                 b'{"prompt": [true]}', b'{"prompt": [1], "lora": [{"id": 0}]}', b'{"prompt": [1], "n_cache_reuse": 8}'):
        assert prompt(body) is None, body


def answered(parts, folder, bodies):
    """What the program in front of a server that cannot be reached answers to these completions, each in a connection of its own."""
    server = types.SimpleNamespace(socket=folder / "none.sock")
    slots = parts.slots.Slots(1)
    proxy = parts.proxy.Proxy(server, parts.sharing.Sharing(server, slots, None, 256), None)

    async def ask(address, body):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        answer = await reader.read()
        writer.close()
        return answer

    async def run():
        listening = await proxy.listen("127.0.0.1", 0)
        async with listening:
            return [await ask(listening.sockets[0].getsockname(), body) for body in bodies]

    return asyncio.run(run())


def test_json_of_any_depth_is_answered(parts, tmp_path):
    def body(depth):
        return b'{"prompt": [1, 2], "x": %s%s}' % (b"[" * depth, b"]" * depth)

    # Around the limit, what can be read may be too deep to be written again.
    limit = sys.getrecursionlimit()
    depths = [1, 100_000, *range(limit - 80, limit + 5)]
    answers = answered(parts, tmp_path, [b"[" * 100_000, b'{"a":' * 100_000, *map(body, depths)])
    statuses = [answer.split(b" ", 2)[1:2] for answer in answers]
    assert statuses[:4] == [[b"400"], [b"400"], [b"502"], [b"400"]], answers[:4]
    assert all(status in ([b"400"], [b"502"]) for status in statuses), statuses
    assert all(b"too many levels" in answer for answer, status in zip(answers, statuses) if status == [b"400"])
