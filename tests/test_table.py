"""The hash table of examples/table: programs of two racks share it without a server for it, and one that dies harms nobody."""

import random
import resource
import shutil
import signal
import socket
import subprocess
import threading

import pytest
from conftest import TREE
from test_resp import redis  # noqa: F401

needs_tools = pytest.mark.skipif(shutil.which("redis-benchmark") is None, reason="no redis-benchmark (apt-get install redis-tools)")


@pytest.fixture(scope="session")
def program(binary):
    """The example's program, which is built beside `hinterland`."""
    path = binary.parent / "hinterland-table"
    if not path.exists():
        subprocess.run(["cargo", "build", "--quiet", "-p", "hinterland-table"], cwd=TREE, check=True)
    return path


@pytest.fixture
def racks(two_racks, program):
    """A table in rack b, and a function that starts a server on a node; each returns its process and port."""
    a, b = two_racks
    started = []

    def serve(node, *options):
        process = subprocess.Popen([program, "--socket", node.socket, "serve", "table", *options], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, int(process.stdout.readline().rsplit(":", 1)[1])

    subprocess.run([program, "--socket", a.socket, "create", "table", "--mebibytes", "32", "--rack", "b"], check=True)
    yield a, b, serve
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_programs_of_two_racks_see_one_table(racks, redis):
    a, b, serve = racks
    clients = [redis.Redis(port=serve(node, *options)[1]) for node, options in ((a, ()), (b, ()), (a, ("--forgetful",)))]
    chance, plain = random.Random(3), {}
    for _ in range(2000):
        client, key = chance.choice(clients), b"k%d" % chance.randrange(200)
        what = chance.random()
        if what < 0.4:
            plain[key] = chance.randbytes(chance.choice([0, 1, 100, 1000, 20_000]))
            client.set(key, plain[key])
        elif what < 0.5:
            assert client.delete(key) == (plain.pop(key, None) is not None)
        else:
            assert client.get(key) == plain.get(key)
    keys = [b"k%d" % number for number in range(200)]
    for client in clients:
        assert client.mget(keys) == [plain.get(key) for key in keys]
        assert client.exists(*keys) == len(plain)
    assert clients[0].info()["remembered"] > 0 and clients[2].info()["remembered"] == 0


def test_more_clients_than_descriptors_end_no_server(racks, redis):
    a, b, serve = racks
    process, port = serve(b)
    client = redis.Redis(port=port)
    client.set("key", "value")
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (16, 16))
    many = [socket.create_connection(("127.0.0.1", port)) for _ in range(24)]
    # Those of them that were taken are answered, and the first one still is.
    many[0].sendall(b"PING\r\n")
    assert many[0].recv(7) == b"+PONG\r\n"
    assert client.get("key") == b"value"
    for connection in many:
        connection.close()
    late = redis.Redis(port=port)
    assert late.get("key") == b"value" and process.poll() is None


def test_a_program_that_is_killed_while_it_writes_harms_nobody(racks, redis):
    a, b, serve = racks
    reader = redis.Redis(port=serve(b)[1])
    answered = {}
    for round_number in range(4):
        process, port = serve(a)

        def write(thread, port=port):
            client = redis.Redis(port=port, retry=None)
            try:
                for number in range(10**6):
                    key = b"%d:%d" % (thread, number % 50)
                    value = b"%d/%d/" % (round_number, number) * 50
                    client.set(key, value)
                    answered[key] = (round_number, number)
            except redis.ConnectionError:
                pass

        writers = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(200):
            value = reader.get(random.choice(list(answered) or [b"none"]))
            assert value is None or value == b"/".join(value.split(b"/")[:2] + [b""]) * 50, "a value is whole"
        process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.join()
        for key, least in answered.items():
            found = tuple(int(word) for word in reader.get(key).split(b"/")[:2])
            assert found >= least, f"{key}: {found} after {least} was answered"
        assert reader.set("still", "works") and reader.get("still") == b"works"


def test_what_cannot_be_is_said(racks, program, redis):
    a, _, serve = racks
    outcome = subprocess.run([program, "--socket", a.socket, "create", "table"], capture_output=True, text=True)
    assert outcome.returncode == 1 and "table" in outcome.stderr
    a.run("put", program.parent / "hinterland-table.d", "--name", "words")
    outcome = subprocess.run([program, "--socket", a.socket, "serve", "words"], capture_output=True, text=True)
    assert outcome.returncode == 1 and "hint:" in outcome.stderr
    client = redis.Redis(port=serve(a)[1])
    with pytest.raises(redis.ResponseError, match="hint:"):
        client.lpush("list", 1)
    with pytest.raises(redis.ResponseError, match="are the most"):
        client.set("k", bytes(300_000))
    assert client.get("k") is None


@needs_tools
def test_redis_benchmark_runs_against_it(racks):
    _, b, serve = racks
    command = ["redis-benchmark", "-p", str(serve(b)[1]), "-t", "set,get", "-n", "20000", "-c", "8", "-r", "1000", "-q", "--csv"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0 and '"GET"' in outcome.stdout and '"SET"' in outcome.stdout, outcome
