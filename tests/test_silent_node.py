"""A node that takes what is said to it and does not answer, since somebody has stopped it: every command says so, and none hangs."""

import concurrent.futures
import contextlib
import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from faults import MEBIBYTE, wait_until
from test_put_interrupted import CHUNK, waits_for_more

# Longer than any of them waits, and far shorter than for ever.
SECONDS = 60
UNREACHABLE = 3


# Does one thing after the other while a node is stopped, and is interrupted in each; says what became of it.
INTERRUPTED = """
import os, pathlib, signal, sys, threading, time
import hinterland

def state(task):
    return (task / "stat").read_text().rpartition(") ")[2][0]

socket, node = sys.argv[1], int(sys.argv[2])
if sys.argv[3] == "threads":
    # With them it asks over rings.
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
with hinterland.Pool(socket) as pool:
    pool.put("there", bytes(100_000))
    address = pool.alloc(4096)
    pool.kv("prints")
calls = {
    "stat": lambda pool, blocks, opened: pool.stat("there"),
    "get": lambda pool, blocks, opened: pool.get("there"),
    "put": lambda pool, blocks, opened: pool.put("large", bytes(5_000_000)),
    "list": lambda pool, blocks, opened: pool.list(""),
    "read": lambda pool, blocks, opened: opened.read_at(0, 100),
    "lock": lambda pool, blocks, opened: pool.lock(address, "write", 100.0),
    "blocks": lambda pool, blocks, opened: blocks.put([b"k" * 16], [bytes(100_000)]),
}
for name, call in calls.items():
    pool = hinterland.Pool(socket)
    blocks, opened = pool.kv("prints"), pool.open("there")
    os.kill(node, signal.SIGSTOP)
    # A thread that runs stands still a little later.
    while any(state(task) not in "TZX" for task in pathlib.Path(f"/proc/{node}/task").iterdir()):
        time.sleep(0.01)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    # In case that nothing ends it.
    saved = threading.Timer(30, os.kill, (node, signal.SIGCONT))
    saved.start()
    try:
        told = call(pool, blocks, opened)
    except KeyboardInterrupt:
        told = "interrupted"
    print(name, told, saved.is_alive(), flush=True)
    saved.cancel()
    os.kill(node, signal.SIGCONT)
    with hinterland.Pool(socket) as other:
        assert other.stat("there").bytes == 100_000
"""


def state(task):
    """What a thread does, as a letter of its `stat`."""
    return (task / "stat").read_text(encoding="utf-8").rpartition(") ")[2][0]


@contextlib.contextmanager
def stopped(node):
    """The node is stopped meanwhile."""
    node.process.send_signal(signal.SIGSTOP)
    # A thread that runs stands still a little later.
    while any(state(task) not in "TZX" for task in pathlib.Path(f"/proc/{node.process.pid}/task").iterdir()):
        time.sleep(0.01)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


def test_commands_that_find_a_stopped_node_say_so_and_end(node):
    lines = [["ls"], ["stat", "x"], ["status"], ["kv", "stat"], ["metrics"], ["locks"], ["rm", "x"], ["put", "/dev/null", "--name", "y"], ["doctor"]]
    with stopped(node), concurrent.futures.ThreadPoolExecutor(len(lines)) as pool:
        outcomes = list(pool.map(lambda words: node.run(*words, check=False, timeout=SECONDS), lines))
    for words, outcome in zip(lines, outcomes, strict=True):
        said = outcome.stderr if words != ["doctor"] else outcome.stdout
        assert f"process {node.process.pid} is stopped" in said and f"kill -CONT {node.process.pid}" in said, (words, outcome)
        if words != ["doctor"]:
            assert (outcome.returncode, outcome.stdout) == (UNREACHABLE, ""), (words, outcome)
    for words, outcome in zip(lines, outcomes, strict=True):
        if words not in (["doctor"], ["metrics"]):
            # Whoever waits is told of it before, once, and what is asked for as JSON is JSON still.
            assert outcome.stderr.count("waiting for the node") == 1, (words, outcome)
            assert outcome.stderr.index("waiting for the node") < outcome.stderr.index("error:")
    assert (node.run("ls").stdout, node.run("ls").stderr.count("waiting")) == ("", 0)


def unaccepted(address):
    """Connections to a listening address that nobody has taken."""
    place = f"{int(address.rsplit(':', 1)[1]):04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    # State 0A is that of the listener; what was not taken belongs to no file.
    return [row for row in rows if row[1].endswith(f":{place}") and row[3] != "0A" and row[9] == "0"]


def test_a_get_of_what_a_stopped_home_holds_says_what_it_waits_for_and_waits_once(two_racks, make_file, folder):
    home, asked = two_racks
    asked.run("put", make_file("source", 3 * MEBIBYTE), "--name", "held", "--rack", home.rack)
    with stopped(home):
        outcome = asked.run("get", "held", folder / "got", check=False, timeout=SECONDS)
        assert outcome.returncode == 1 and outcome.stdout == "" and not (folder / "got").exists()
        assert f"waiting for the bytes of held from {home.address} in rack {home.rack}" in outcome.stderr
        assert outcome.stderr.count("waiting for") == 1 and outcome.stderr.count("no answer to the handshake") == 1
        assert len(unaccepted(home.address)) == 1, "it tries the home once"
    wait_until(lambda: asked.run("get", "held", folder / "got", check=False).returncode == 0)


def test_a_put_whose_node_is_stopped_meanwhile_says_so_and_goes_on(node):
    put = subprocess.Popen(node.command("put", "-", "--name", "late"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    content = os.urandom(MEBIBYTE) * 40
    put.stdin.write(content[:20 * MEBIBYTE])
    put.stdin.flush()
    with stopped(node):
        os.set_blocking(put.stdin.fileno(), False)
        sent = 20 * MEBIBYTE
        words = b""
        deadline = time.monotonic() + SECONDS
        os.set_blocking(put.stderr.fileno(), False)
        while b"is stopped" not in words and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                # Nobody may read on while the node is silent.
                sent += os.write(put.stdin.fileno(), content[sent:sent + 65536])
            words += put.stderr.read() or b""
            if sent == len(content) and not put.stdin.closed:
                put.stdin.close()
            time.sleep(0.001)
        assert f"kill -CONT {node.process.pid}".encode() in words, words
        assert put.poll() is None, "it waits"
    if not put.stdin.closed:
        os.set_blocking(put.stdin.fileno(), True)
        put.stdin.write(content[sent:])
        put.stdin.close()
    assert put.wait(SECONDS) == 0
    assert node.run("get", "late", "-", text=False).stdout == content


@pytest.mark.parametrize("chunks", [1, 2], ids=["before it is sealed", "before there is more room"])
def test_a_put_whose_home_is_stopped_ends_with_the_lease_of_that_home(start_node, chunks):
    room = ["--capacity", "256M"]
    directory = start_node("d", options=room)
    asked, home = (start_node(name, join=directory.address, options=room) for name in "ab")
    command = asked.command("put", "-", "--name", "half", "--rack", home.rack)
    put = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    put.stdin.write(bytes(chunks * CHUNK))
    wait_until(lambda: waits_for_more(put), SECONDS)
    with stopped(home):
        if chunks == 2:
            put.stdin.write(bytes(CHUNK))
        _, said = put.communicate(timeout=SECONDS)
        assert put.returncode == 1 and b"is down: it has not answered for its lease" in said, said
        assert said.count(b"waiting for") == 1 and home.address.encode() in said, said
        assert asked.json("ls") == []
    wait_until(lambda: asked.run("put", "/dev/null", "--name", "half", "--rack", home.rack, check=False).returncode == 0, SECONDS)
    wait_until(lambda: home.json("status")["used_bytes"] < CHUNK, SECONDS)


def test_the_room_of_puts_that_end_while_their_home_has_no_lease_is_given_back(start_node):
    room = ["--capacity", "256M", "--lease", "1"]
    directory = start_node("d", options=room)
    asked, home = (start_node(name, {"HINTERLAND_LOG": "debug"}, join=directory.address, options=room) for name in "ab")
    puts = []
    for number in range(2):
        command = asked.command("put", "-", "--name", f"half-{number}", "--rack", home.rack)
        put = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0)
        put.stdin.write(bytes(CHUNK))
        wait_until(lambda put=put: waits_for_more(put), SECONDS)
        puts.append(put)
    assert home.json("status")["used_bytes"] >= 2 * CHUNK
    with stopped(home):
        wait_until(lambda: not all(member["up"] for member in directory.json("status")["members"]), SECONDS)
        for number, put in enumerate(puts):
            put.kill()
            put.wait()
            put.stdin.close()
            # The first is said to the home, which may read it later; for the second it is not asked so soon again.
            wait_until(lambda number=number: asked.words().count("hears of the abandoned put") == number + 1, SECONDS, why=asked.words)
    wait_until(lambda: home.json("status")["used_bytes"] == 0, SECONDS)


def test_a_put_goes_on_with_a_home_that_was_stopped_for_less_than_its_lease(start_node):
    room = ["--capacity", "256M", "--lease", "60"]
    directory = start_node("d", options=room)
    asked, home = (start_node(name, join=directory.address, options=room) for name in "ab")
    command = asked.command("put", "-", "--name", "whole", "--rack", home.rack)
    put = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    put.stdin.write(bytes(CHUNK))
    wait_until(lambda: waits_for_more(put), SECONDS)
    with stopped(home):
        put.stdin.close()
        os.set_blocking(put.stderr.fileno(), False)
        words = b""

        def is_told():
            nonlocal words
            words += put.stderr.read() or b""
            return b"waiting for" in words

        wait_until(is_told, SECONDS)
        # It looks whether the home is up, more than once.
        time.sleep(3)
        assert put.poll() is None, words
    assert put.wait(SECONDS) == 0
    assert asked.run("get", "whole", "-", text=False).stdout == bytes(CHUNK)


def test_what_a_stopped_home_holds_is_removed_without_waiting_long(two_racks, make_file):
    home, asked = two_racks
    source = make_file("source", 3 * MEBIBYTE)
    asked.run("put", source, "--name", "held", "--rack", home.rack)
    asked.run("put", source, "--name", "late", "--rack", home.rack)
    assert home.json("status")["used_bytes"] > 0
    with stopped(home):
        for name in ("held", "late"):
            begun = time.monotonic()
            asked.run("rm", name, timeout=SECONDS)
            assert time.monotonic() - begun < 25, name
        assert asked.json("ls") == []
    # It hears of it when it goes on.
    wait_until(lambda: home.json("status")["used_bytes"] == 0)


def test_who_serves_redis_clients_says_that_the_node_is_silent_and_that_it_answers_again(node, folder):
    said = folder / "said"
    with said.open("w", encoding="utf-8") as words:
        command = node.command("--json", "resp", "--listen", "127.0.0.1:0")
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, text=True)
    try:
        port = int(json.loads(server.stdout.readline())["listen"][0].rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
            with stopped(node):
                client.sendall(b"SET a b\r\n")
                wait_until(lambda: f"process {node.process.pid} is stopped" in said.read_text(encoding="utf-8"), SECONDS)
            # What was asked meanwhile was refused or is done now, as the node was needed for it.
            assert client.recv(1000)[:1] in (b"+", b"-")
            client.sendall(b"PING\r\n")
            assert client.recv(100) == b"+PONG\r\n"
        wait_until(lambda: "answers again" in said.read_text(encoding="utf-8"), SECONDS)
        assert said.read_text(encoding="utf-8").count("clients are not served") == 1
        # One that has ended is told as such, and not by what became of its connection.
        node.stop()
        wait_until(lambda: said.read_text(encoding="utf-8").count("clients are not served") == 2, SECONDS)
        assert "no node answers on" in said.read_text(encoding="utf-8").splitlines()[-1]
    finally:
        server.terminate()
    assert server.wait(SECONDS) == 0
    server.stdout.close()


def test_redis_clients_of_a_stopped_node_are_told_so_and_hang_no_longer_than_their_own_patience(node):
    server = subprocess.Popen(node.command("--json", "resp", "--listen", "127.0.0.1:0", "--threads", "1"), stdout=subprocess.PIPE, text=True)
    try:
        port = int(json.loads(server.stdout.readline())["listen"][0].rsplit(":", 1)[1])
        clients = [socket.create_connection(("127.0.0.1", port), timeout=SECONDS) for _ in range(8)]
        clients[0].sendall(b"SET key before\r\n")
        assert clients[0].recv(1000) == b"+OK\r\n"
        begun = time.monotonic()
        with stopped(node):
            for number, client in enumerate(clients):
                client.sendall((b"SET key %d\r\n", b"INCR counter-%d\r\n", b"DEL key-%d\r\n")[number % 3] % number)
                time.sleep(0.2)
            answers = [client.recv(1000) for client in clients]
        # They wait together, and not one after the other.
        assert time.monotonic() - begun < 40
        for answer in answers:
            assert answer.startswith(b"-ERR the node has not answered for") and b"kill -CONT" in answer, answers
        for client in clients:
            client.sendall(b"SET key after\r\nGET key\r\n")
        for client in clients:
            answer = b""
            while not answer.endswith(b"after\r\n"):
                answer += client.recv(1000)
            assert answer == b"+OK\r\n$5\r\nafter\r\n"
            client.close()
    finally:
        server.terminate()
    assert server.wait(SECONDS) == 0
    server.stdout.close()


@pytest.fixture
def metrics(node):
    """The address of a server of the node's metrics."""
    server = subprocess.Popen(node.command("metrics", "--listen", "127.0.0.1:0"), stderr=subprocess.PIPE, text=True)
    yield re.search(r"http://\S+", server.stderr.readline()).group()
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 0


def test_metrics_are_served_while_other_clients_say_nothing(metrics):
    host, port = metrics.split("/")[2].split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(8)]
    answer = urllib.request.urlopen(metrics, timeout=SECONDS).read().decode()
    assert "hinterland_uptime_seconds" in answer
    for one in silent:
        # Nobody was answered or cut off before the one that asked.
        one.settimeout(0)
        with pytest.raises(BlockingIOError):
            one.recv(1)
        one.close()


def test_metrics_of_a_stopped_node_are_a_reason_for_all_who_ask(node, metrics):
    with stopped(node):
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(metrics, timeout=SECONDS)
            assert error.value.code == 503 and "is stopped" in error.value.read().decode()
    assert urllib.request.urlopen(metrics, timeout=SECONDS).status == 200


def test_kv_top_goes_on_when_its_node_is_stopped_and_started_again(node, hinterland):
    with hinterland.Pool(node.socket) as pool:
        pool.kv("model").put([b"k"], [b"bytes"])
    top = subprocess.Popen(node.command("kv", "top", "--interval", "0.1", "--json"), stdout=subprocess.PIPE, text=True)

    def until(what):
        deadline = time.monotonic() + SECONDS
        for line in top.stdout:
            if what(json.loads(line)):
                return
            assert time.monotonic() < deadline, line
        raise AssertionError("it has ended")

    def shows_blocks(picture):
        return isinstance(picture, list) and picture and picture[0]["store"]["blocks"] == 1

    until(shows_blocks)
    with stopped(node):
        until(lambda picture: isinstance(picture, dict) and "is stopped" in picture["node_trouble"])
    until(shows_blocks)
    node.kill()
    until(lambda picture: isinstance(picture, dict) and "no node answers" in picture["node_trouble"])
    node.start()
    until(shows_blocks)
    top.send_signal(signal.SIGINT)
    assert top.wait(20) == 0


def test_python_says_what_it_waits_for_while_the_memory_of_kv_blocks_is_made(hinterland, node, caplog):
    """A node that is stopped is as silent as one that makes many GiB."""
    with hinterland.Pool(node.socket) as pool, concurrent.futures.ThreadPoolExecutor(1) as threads:
        with stopped(node):
            opening = threads.submit(pool.kv, "slow")
            wait_until(lambda: "makes its memory for KV blocks" in caplog.text, why="it is said meanwhile")
            assert not opening.done()
        assert opening.result(SECONDS) is not None


@pytest.mark.parametrize("threads", ["alone", "threads"])
def test_ctrl_c_ends_what_python_waits_for_at_a_stopped_node(hinterland, start_node, threads):
    node = start_node("a", options=["--capacity", "256M"])
    words = [sys.executable, "-c", INTERRUPTED, node.socket, str(node.process.pid), threads]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(hinterland.__file__).parent.parent)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=5 * SECONDS, check=False)
    names = ["stat", "get", "put", "list", "read", "lock", "blocks"]
    assert done.stdout.splitlines() == [f"{name} interrupted True" for name in names], done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_a_program_that_maps_an_object_is_told_that_its_node_is_stopped_and_goes_on_with_it(hinterland, node, make_file):
    node.run("put", make_file("bytes", MEBIBYTE, 3), "--name", "x")
    script = "import hinterland, sys; pool = hinterland.Pool(sys.argv[1]); print(pool.map('x').nbytes, flush=True); input(); print(pool.map('x').nbytes)"
    words = [sys.executable, "-c", script, node.socket]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(hinterland.__file__).parent.parent)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env=environment, text=True, **pipes) as program:
        assert program.stdout.readline() == f"{MEBIBYTE}\n"
        with stopped(node):
            program.stdin.write("\n")
            program.stdin.flush()
            said = program.stderr.readline()
        assert said.startswith("hinterland: waiting: the node has not answered for 5 s") and f"kill -CONT {node.process.pid}" in said
        assert program.communicate(timeout=SECONDS) == (f"{MEBIBYTE}\n", "")


def test_who_wants_only_a_cache_finds_less_while_the_node_is_stopped_and_hangs_no_longer(hinterland, node, monkeypatch):
    from hinterland import Pool, link
    from hinterland.compat import values

    monkeypatch.setattr(link, "SILENCE_SECONDS_MAX", 1.0)
    monkeypatch.setattr(values, "SILENCE_SECONDS_MAX", 1.0)
    logger = logging.getLogger("test")
    engine = link.Link(str(node.socket), "blocks of an engine", 0.0, logger, "the engine goes on without it")
    assert engine.ask(lambda kv: kv.put([b"here"], [b"block"]), None) == [True]
    store, here, missing = values.Values("values of a program", str(node.socket)), values.named("here"), values.named("missing")
    # The question opens the session that waits for other racks: it may be the only one to hear of the silence.
    assert store.put([here], [[memoryview(b"value")]]) == [values.Put.THERE] and store.sizes([here, missing]) == [5, None]
    with Pool(str(node.socket)) as pool, pool.kv("blocks of a program", within=1) as kv, stopped(node):
        begun = time.monotonic()
        assert store.sizes_here([here]) == [5] and engine.ask(lambda kv: kv.exists([b"here"]), None) == [True]
        for wait in (lambda: store.sizes([missing]), lambda: kv.put([b"key"], [b"block"])):
            with pytest.raises(TimeoutError, match="is stopped"):
                wait()
        assert kv.is_lost()
        assert engine.ask(lambda kv: kv.put([b"new"], [b"block"]), "computed") == "computed"
        # Whoever tries to reach a silent node gives it long pauses.
        assert [engine.ask(lambda kv: kv.exists([b"here"]), "computed") for _ in range(20)] == ["computed"] * 20
        assert time.monotonic() - begun < SECONDS
    assert store.sizes([here, missing]) == [5, None]
    engine.close()
    again = link.Link(str(node.socket), "blocks of an engine", 0.0, logger, "the engine goes on without it")
    assert again.ask(lambda kv: kv.exists([b"here"]), None) == [True]
    again.close()
    store.close()


def test_blocks_are_lost_when_the_first_question_to_other_racks_finds_the_node_stopped(node, hinterland):
    with hinterland.Pool(str(node.socket)) as pool, pool.kv("patient") as patient, pool.kv("impatient", within=1) as impatient:
        with stopped(node):
            for kv in (patient, impatient):
                with pytest.raises(TimeoutError, match="is stopped"):
                    kv.lengths([b"missing"], remote=True)
            # Who keeps asking a cache that is not lost waits for five seconds each time.
            assert impatient.is_lost() and not patient.is_lost()
        assert patient.lengths([b"missing"], remote=True) == [None] and not patient.is_lost()


def test_who_keeps_values_at_a_stopped_node_waits_for_it_once_and_not_at_each_call(hinterland, node, monkeypatch):
    from hinterland.compat import values

    monkeypatch.setattr(values, "SILENCE_SECONDS_MAX", 1.0)
    monkeypatch.setattr(values, "PAUSE_ATTEMPTS", 3)
    store, here, missing = values.Values("values of a program", str(node.socket)), values.named("here"), values.named("missing")
    # The question opens the session that waits for other racks.
    assert store.put([here], [[memoryview(b"value")]]) == [values.Put.THERE] and store.sizes([here, missing]) == [5, None]
    with stopped(node):
        begun = time.monotonic()
        for _ in range(20):
            with pytest.raises(OSError, match="is stopped"):
                store.sizes([missing])
        # Each attempt to open a session with it takes five seconds.
        assert time.monotonic() - begun < SECONDS

    def is_back():
        with contextlib.suppress(OSError):
            return store.sizes([here, missing]) == [5, None]

    wait_until(is_back, SECONDS)
    store.close()


def test_who_frees_does_not_wait_with_who_allocates_for_a_silent_directory(start_node):
    a = start_node("a", options=["--capacity", "64M"])
    b = start_node("b", join=a.address, options=["--capacity", "64M"])
    hinterland = pytest.importorskip("hinterland")
    with hinterland.Pool(str(b.socket)) as one, hinterland.Pool(str(b.socket)) as other:
        with stopped(a), concurrent.futures.ThreadPoolExecutor() as executor:
            # The first makes the region, which the directory has to say yes to.
            asked = executor.submit(one.alloc, 4096)
            for _ in range(20):
                time.sleep(0.05)
                with pytest.raises(Exception, match="nothing was allocated"):
                    other.free(1 << 40)
                assert not asked.done()
            a.process.send_signal(signal.SIGCONT)
            one.free(asked.result(SECONDS))


@pytest.mark.parametrize("words, status", [
    (["kv", "events", "x"], 130),
    (["kv", "events", "x", "--once"], 130),
    (["mount", "there"], 130),
    (["resp", "--listen", "unix:r.sock"], 130),
    (["gpu", "serve", "--listen", "unix:g.sock", "--device", "software", "--pool", "SOCKET"], 130),
    (["swap", "serve", "--size", "16M", "--far", "pool@16M", "--listen", "./s.sock"], 130),
], ids=lambda words: words[0] if isinstance(words, list) else "")
def test_ctrl_c_ends_a_command_that_waits_for_a_stopped_node(node, folder, words, status):
    (folder / "there").mkdir()
    words = [str(node.socket) if word == "SOCKET" else word for word in words]
    with stopped(node):
        waiting = subprocess.Popen(node.command(*words), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_until(lambda: holds_back_interrupts(waiting.pid))
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(10) == status, waiting.stdout.read()
            assert [path.name for path in folder.iterdir() if path.suffix == ".sock" and path.name in ("r.sock", "g.sock", "s.sock")] == []
        finally:
            waiting.kill()
            waiting.communicate()


def holds_back_interrupts(process):
    """Whether a process takes ctrl-C as data, so that it does not end by it alone."""
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:"))
    return blocked >> (signal.SIGINT - 1) & 1


def test_ctrl_c_is_heard_by_a_node_that_waits_for_the_one_to_join(binary, folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        words = [binary, "--socket", folder / "b.sock", "node", "--name", "b", "--state", folder / "b", "--capacity", "8M", "--join", address]
        starting = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            said = starting.stderr
            assert until(said, "waiting for") == f"waiting for the node at {address}, which is to host the directory\n"
            starting.send_signal(signal.SIGINT)
            assert until(said, "ending") and starting.poll() is None
            # A terminal that closes sends two: that is nobody who asked again.
            starting.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert starting.poll() is None
            starting.send_signal(signal.SIGINT)
            assert starting.wait(5) == 130
        finally:
            starting.kill()
            starting.communicate()


def until(lines, word):
    """The first line that begins with a word."""
    return next(line for line in lines if line.startswith(word))
