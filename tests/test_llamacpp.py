"""Real llama-servers that share prompts: what one has computed, the other uses, and whatever fails, it computes."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from conftest import Node, remove_folder
from faults import FULL, wait_until
from llama_servers import BLOCK, MODEL, PYTHON, Server, children, prompt

KV = ["--capacity", "64M", "--kv-capacity"]
full = pytest.mark.skipif(not FULL, reason="loads several servers (./check --full)")


@pytest.fixture(scope="module")
def place(binary, hinterland):
    """A folder for a module's servers."""
    assert PYTHON.exists() and MODEL.exists(), "hint: ./demo --prepare"
    path = pathlib.Path(tempfile.mkdtemp(prefix="hl-"))
    yield path
    remove_folder(path)


@pytest.fixture(scope="module")
def racks(binary, place):
    """Nodes of two racks with memory for blocks."""
    b = Node(binary, place, "b", options=[*KV, "256M"]).start()
    a = Node(binary, place, "a", join=b.address, options=[*KV, "256M"]).start()
    yield a, b
    a.stop()
    b.stop()


@pytest.fixture(scope="module")
def servers(place, racks):
    """A server in each rack, and one that shares nothing."""
    a, b = racks
    started = [Server(place, "first", a.socket), Server(place, "second", b.socket), Server(place, "alone")]
    try:
        yield [server.wait_ready() for server in started]
    finally:
        for server in started:
            server.stop()


@pytest.fixture
def start(folder):
    """A function that starts servers; all of them end with the test."""
    started = []

    def begin(name, *arguments, **choices):
        started.append(Server(folder, name, *arguments, **choices))
        return started[-1].wait_ready()

    yield begin
    for server in started:
        server.stop()


@pytest.fixture
def kv_node(start_node, hinterland):
    """One node with memory for blocks."""
    return start_node("k", options=[*KV, "256M"])


def whole(tokens):
    """The tokens of whole blocks."""
    return tokens // BLOCK * BLOCK


def test_a_prompt_that_one_server_computed_is_used_by_one_of_another_rack(servers):
    first, second, alone = servers
    text = prompt("shared")
    expected = alone.complete(text)
    assert first.complete(text) == (expected[0], 0)
    saved = first.settled()
    assert saved["saved"] == 1 and saved["saved_tokens"] % BLOCK == 0 and saved["failures"] == 0
    found, cached = second.complete(text)
    assert found == expected[0] and cached == saved["saved_tokens"] >= 2 * BLOCK
    assert second.status()["restored"] == 1


def test_a_prompt_that_only_begins_alike_shares_the_blocks_of_the_beginning(servers):
    first, second, alone = servers
    common = prompt("alike", 32)
    first.complete(common + " The first end " + prompt("x", 16))
    first.settled()
    text = common + " Another end " + prompt("y", 16)
    found, cached = second.complete(text)
    assert cached == 2 * BLOCK and found == alone.complete(text)[0]


def test_a_chat_is_shared_and_a_stream_has_the_bytes_of_the_server(servers):
    first, second, alone = servers
    request = {"messages": [{"role": "user", "content": prompt("chat")}], "max_tokens": 8, "temperature": 0, "stream": True}

    def stream(server):
        connection, response = server.send("POST", "/v1/chat/completions", request)
        with contextlib.closing(connection):
            assert response.status == 200 and response.getheader("Content-Type") == "text/event-stream"
            events = [line[6:] for line in response.read().decode().split("\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        parts = [json.loads(event) for event in events[:-1]]
        text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"])
        return text, parts[-1]["timings"]["cache_n"]

    text, cached = stream(alone)
    assert text and stream(first) == (text, 0)
    first.settled()
    assert stream(second) == (text, 2 * BLOCK)


def test_the_own_slot_is_used_before_the_pool(servers):
    first, _, _ = servers
    text = prompt("own")
    first.complete(text)
    before = first.status()["restored"]
    _, cached = first.complete(text)
    assert cached > whole(cached) and first.status()["restored"] == before


def test_tokens_and_openai_completions_are_shared_as_texts_are(servers):
    first, second, _ = servers
    text = prompt("tokens")
    tokens = json.loads(first.post("/tokenize", {"content": text, "add_special": True})[1])["tokens"]
    first.complete(tokens)
    first.settled()
    status, body = second.post("/v1/completions", {"prompt": text, "max_tokens": 2, "temperature": 0})
    assert status == 200 and json.loads(body)["timings"]["cache_n"] == whole(len(tokens))


def test_requests_at_once_have_slots_of_their_own_and_their_own_texts(servers):
    first, second, alone = servers
    texts = [prompt(f"at once {number}", 16) for number in range(3)]
    expected = [alone.complete(text)[0] for text in texts]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        found = [threads.submit(server.complete, text) for text in texts for server in (first, second)]
        answers = [one.result()[0] for one in found]
    assert answers == [text for text in expected for _ in range(2)]
    assert first.settled()["failures"] == second.settled()["failures"] == 0


def test_requests_that_are_not_understood_pass_and_nothing_wrong_is_saved_after_them(servers):
    first, second, alone = servers
    status, body = first.post("/completion", {"prompt": ["One two", "Three four"], "n_predict": 2, "temperature": 0})
    assert status == 200 and len(json.loads(body)) == 2
    others = first.status()["others"]
    assert others >= 1
    for request in (b"{", b"[]", b'{"n_predict": 2}'):
        assert first.post("/completion", request)[0] == alone.post("/completion", request)[0] >= 400
    assert first.get("/nothing")[0] == 404
    assert first.get("/props")[0] == first.get("/slots")[0] == 200
    text = prompt("after others")
    expected = alone.complete(text)[0]
    assert first.complete(text)[0] == expected
    first.settled()
    assert second.complete(text) == (expected, 2 * BLOCK)


def test_a_client_that_leaves_ends_the_work_and_the_slot_is_used_again(servers):
    first, _, alone = servers
    for _ in range(3):
        connection = first.connect()
        body = json.dumps({"prompt": prompt("leaving", 40), "n_predict": 1500, "ignore_eos": True})
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        time.sleep(0.1)
        connection.close()
    text = prompt("after leaving", 16)
    assert first.complete(text)[0] == alone.complete(text)[0]
    wait_until(lambda: not any(slot["is_processing"] for slot in json.loads(first.get("/slots")[1])))


@full
def test_servers_with_other_types_or_options_never_meet(start, kv_node):
    first = start("f16", kv_node.socket)
    text = prompt("other types")
    first.complete(text)
    assert first.settled()["saved"] == 1
    for number, words in enumerate((["-ctk", "q8_0", "-ctv", "q8_0"], ["--rope-freq-scale", "0.5"])):
        other = start(f"other{number}", kv_node.socket, words=words)
        assert other.complete(text)[1] == 0
        assert other.settled()["saved"] == 1
        other.stop()
    assert first.complete(text)[1] == 2 * BLOCK
    assert len(kv_node.json("kv", "stat")[0]["namespaces"]) == 3


@full
def test_slots_that_share_one_store_of_cells_are_saved_and_restored(start, kv_node):
    first, second = (start(name, kv_node.socket, words=["-kvu"]) for name in ("first", "second"))
    texts = [prompt(f"unified {number}", 24) for number in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        expected = [answer[0] for answer in threads.map(first.complete, texts)]
    assert first.settled()["saved"] == 3
    assert [second.complete(text) for text in texts] == [(right, 2 * BLOCK) for right in expected]
    assert first.status()["failures"] == second.status()["failures"] == 0


def test_without_flash_attention_nothing_is_shared_and_the_reason_is_said(start, kv_node):
    server = start("plain", kv_node.socket, words=["-fa", "off"])
    assert server.complete("One two three")[0]
    status = server.status()
    assert status["sharing"] is False and "-fa on" in status["why"] and "-fa on" in server.words()


def test_a_node_that_dies_costs_nothing_but_time_and_is_used_again_when_it_is_back(start, kv_node):
    first, second = start("first", kv_node.socket), start("second", kv_node.socket)
    text = prompt("dying")
    expected, _ = first.complete(text)
    first.settled()
    kv_node.kill()
    for _ in range(2):
        assert first.complete("Other " + text)[0] and second.complete("Other " + text)[0]
    assert second.status()["pool"] is False and second.words().count("cannot be used") == 1
    kv_node.start()
    time.sleep(0.3)
    first.complete(prompt("back"))
    assert first.settled()["pool"] is True
    assert "is back" in first.words()
    assert second.complete(prompt("back"))[1] == 2 * BLOCK
    assert second.complete(text)[0] == expected


@full
def test_the_death_of_a_node_in_the_middle_of_a_restore_gives_the_right_text(start, start_node, hinterland):
    b = start_node("b", options=[*KV, "256M"])
    a = start_node("a", join=b.address, options=[*KV, "256M"])
    first, second = start("first", a.socket), start("second", b.socket)
    texts = [prompt(f"middle {number}") for number in range(4)]
    expected = [first.complete(text)[0] for text in texts]
    first.settled()
    for delay, text, right in zip((0.0, 0.01, 0.03, 0.1), texts, expected):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            answer = threads.submit(second.complete, text)
            time.sleep(delay)
            a.kill()
            assert answer.result()[0] == right
        a.start()
    assert second.complete(texts[0])[0] == expected[0]


@full
def test_a_full_store_and_a_prompt_of_which_blocks_have_left(start, start_node, hinterland):
    # Room for about five blocks of 2.9 MB; two prompts have four and more.
    node = start_node("small", options=["--capacity", "64M", "--kv-capacity", "16M"])
    first, second = start("first", node.socket), start("second", node.socket)
    texts = [prompt(f"full {number}", 40) for number in range(3)]
    expected = [first.complete(text)[0] for text in texts]
    assert first.settled()["failures"] == 0
    for text, right in zip(texts, expected):
        assert second.complete(text)[0] == right
    assert second.settled()["failures"] == 0


@full
@pytest.mark.skipif(os.getuid() != 0, reason="needs the right to mount a tmpfs")
def test_a_folder_without_room_turns_restores_and_saves_off_and_no_request(start, kv_node, folder):
    tiny = folder / "tiny"
    tiny.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tiny], check=True)
    try:
        first, second = start("first", kv_node.socket), start("second", kv_node.socket, options=["--scratch", tiny])
        text = prompt("no room")
        expected, _ = first.complete(text)
        first.settled()
        assert second.complete(text) == (expected, 0)
        other = prompt("no room either")
        assert second.complete(other)[0]
        status = second.settled()
        assert status["failures"] >= 2 and status["restored"] == status["saved"] == 0
        assert second.complete(other)[0]
        assert second.words().count("was not restored") == 1
        second.stop()
    finally:
        subprocess.run(["umount", tiny], check=True)


@full
def test_a_server_with_a_key_is_asked_with_it_and_its_clients_need_their_own(start, kv_node):
    server = start("locked", kv_node.socket, words=["--api-key", "secret"])
    text = prompt("locked")
    assert server.post("/completion", {"prompt": text, "n_predict": 1})[0] == 401
    key = {"Authorization": "Bearer secret"}
    request = {"prompt": text, "n_predict": 1, "temperature": 0}
    assert server.post("/completion", request, key)[0] == 200
    wait_until(lambda: server.status()["saved"] == 1)


def test_the_program_and_its_server_end_together_and_leave_nothing(start, kv_node):
    scratch = pathlib.Path("/dev/shm")
    orderly = start("orderly", kv_node.socket)
    behind = children(orderly.process.pid)
    assert orderly.stop() == 0
    assert not any(os.path.exists(f"/proc/{number}") for number in behind)
    assert not list(scratch.glob(f"hinterland-llamacpp-{orderly.process.pid}-*"))

    # Whoever starts it may have signals blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        blocked = start("blocked", kv_node.socket)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    assert blocked.stop() == 0

    killed = start("killed", kv_node.socket)
    behind = children(killed.process.pid)
    killed.stop(signal.SIGKILL)
    wait_until(lambda: not any(os.path.exists(f"/proc/{number}") for number in behind))
    assert list(scratch.glob(f"hinterland-llamacpp-{killed.process.pid}-*"))

    crashed = start("crashed", kv_node.socket)
    assert not list(scratch.glob(f"hinterland-llamacpp-{killed.process.pid}-*"))
    os.kill(children(crashed.process.pid)[0], signal.SIGKILL)
    assert crashed.process.wait(30) == 128 + signal.SIGKILL


def test_a_command_that_cannot_work_is_refused_with_a_hint(binary, hinterland):
    def words(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(hinterland.__file__).parent.parent)}
        done = subprocess.run(
            [PYTHON, "-m", "hinterland.llamacpp", *arguments], capture_output=True, text=True, env=environment, timeout=60
        )
        return done.returncode, done.stderr

    for arguments, status in (
        ((), 2), (("--", "llama-server", "--ssl-key-file", "x"), 2), (("--", "llama-server", "--port", "high"), 2),
        (("--", "llama-server", "--slot-save-path", "x"), 2), (("--", str(shutil.which("nothing-of-this-name") or "/none")), 1),
    ):
        code, said = words(*arguments)
        assert code == status and "hint:" in said, (arguments, code, said)
    assert words("--", "false")[0] == 1
