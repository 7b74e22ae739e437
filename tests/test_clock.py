"""The wall clock is set forth and back under running nodes: leases, orders and blocks do not notice, and ends of values are met."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from faults import MEBIBYTE, members_up, wait_until
from test_resp import Server

SOURCE = pathlib.Path(__file__).resolve().parent / "programs/clock.c"
DAY = 86_400

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def clock(folder):
    """A function that sets the clock of all that was started under its environment."""
    library, offset = folder / "clock.so", folder / "offset"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(offset)}

    def set_clock(seconds):
        draft = folder / "offset.draft"
        draft.write_text(str(seconds))
        os.rename(draft, offset)

    set_clock(0)
    set_clock.environment = environment
    return set_clock


def said_date(environment):
    return int(subprocess.run(["date", "+%s"], env={**os.environ, **environment}, check=True,
                              capture_output=True, text=True).stdout)


def test_a_clock_that_jumps_breaks_no_lease_no_order_and_no_block(start_node, hinterland, make_file, clock):
    environment = clock.environment
    b = start_node("b", environment, options=["--capacity", "64M", "--kv-capacity", "8M"])
    a = start_node("a", environment, join=b.address, options=["--capacity", "64M", "--kv-capacity", "8M"])
    clock(40 * DAY)
    assert abs(said_date(environment) - time.time() - 40 * DAY) < 100, "the library does set the clock"
    source = make_file("one", 3 * MEBIBYTE)
    kv = hinterland.Pool(a.socket).kv("model")
    keys = [b"%d" % number for number in range(8)]
    kv.put(keys, [name * MEBIBYTE for name in keys], prefix=True)
    for offset in (0, 40 * DAY, -40 * DAY, 3, -1):
        clock(offset)
        # Longer than a lease: whoever took its time from this clock would be taken for dead, or for ever alive.
        until = time.monotonic() + 4
        while time.monotonic() < until:
            assert members_up(a) == [True, True], a.words()
            time.sleep(0.2)
        assert a.run("put", source, "--name", f"at{offset}", "--rack", "b").returncode == 0
        assert a.run("get", f"at{offset}", "-", text=False).stdout == source.read_bytes()
        there = kv.exists(keys)
        assert there == sorted(there, reverse=True) and there[0], there
        newer = b"%d at" % offset
        assert kv.put([newer], [bytes(MEBIBYTE)]) == [True] and kv.get(newer) == bytes(MEBIBYTE)
    # A node that comes back to a clock far behind is still taken for a later life.
    wait_until(lambda: a.json("kv", "stat")[0]["kept"]["unsummed_blocks"] == 0)
    a.kill()
    clock(-400 * DAY)
    a.start(environment)
    wait_until(lambda: members_up(a) == [True, True])
    kv = hinterland.Pool(a.socket).kv("model")
    wait_until(lambda: a.json("kv", "stat")[0]["kept"]["unchecked_blocks"] == 0)
    assert kv.get(newer) == bytes(MEBIBYTE)


def test_values_end_when_the_clock_says_so_and_stay_gone(start_node, clock):
    environment = clock.environment
    node = start_node("a", options=["--capacity", "16M", "--kv-capacity", "16M"])
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        server = Server(node)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def ask(*words):
        with server.connect() as connection:
            connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            return connection.recv(4096)

    try:
        assert ask(b"SET", b"kept", b"1") == ask(b"SET", b"ends", b"2", b"EX", b"100") == b"+OK\r\n"
        clock(50)
        assert ask(b"GET", b"ends") == b"$1\r\n2\r\n"
        clock(DAY)
        assert ask(b"GET", b"ends") == b"$-1\r\n" and ask(b"GET", b"kept") == b"$1\r\n1\r\n"
        clock(-DAY)
        assert ask(b"GET", b"ends") in (b"$-1\r\n", b"$1\r\n2\r\n") and ask(b"GET", b"kept") == b"$1\r\n1\r\n"
        assert ask(b"SET", b"again", b"3", b"EX", b"100") == b"+OK\r\n" and ask(b"GET", b"again") == b"$1\r\n3\r\n"
        left = int(ask(b"TTL", b"again")[1:-2])
        assert 90 <= left <= 100
        clock(0)
        assert ask(b"GET", b"again") == b"$-1\r\n" and server.process.poll() is None
    finally:
        assert server.stop() in (0, -signal.SIGTERM)
