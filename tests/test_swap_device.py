"""The swap device without a kernel: real servers, driven by a client of its own and by those of other projects."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

FULL = os.environ.get("HINTERLAND_FULL") == "1"
SECONDS_MAX = 120
BLOCK = 4096
MEBIBYTE = 1 << 20
READ, WRITE, DISCONNECT, FLUSH, TRIM, ZERO = 0, 1, 2, 3, 4, 6
EIO, EINVAL, ENOSPC = 5, 22, 28
REQUEST, REPLY = 0x25609513, 0x67446698


class Refused(Exception):
    """The server answered with an error number."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class Client:
    """A client of the fixed newstyle protocol, written from its specification."""

    def __init__(self, address, agrees=True):
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(SECONDS_MAX)
        self.socket.connect(address)
        self.cookie = 0
        if agrees:
            self.agree()

    def agree(self):
        """The handshake, by the option `go`."""
        magic, options, flags = struct.unpack(">8s8sH", self.take(18))
        assert (magic, options, flags) == (b"NBDMAGIC", b"IHAVEOPT", 3)
        self.socket.sendall(struct.pack(">I8sIIIH", 3, b"IHAVEOPT", 7, 6, 0, 0))
        while True:
            magic, option, kind, length = struct.unpack(">QIII", self.take(20))
            assert (magic, option) == (0x3E889045565A9, 7)
            payload = self.take(length)
            if kind == 1:
                return
            assert kind == 3, hex(kind)
            if payload[:2] == b"\0\0":
                self.bytes, self.flags = struct.unpack(">QH", payload[2:])

    def take(self, count):
        """Exactly so many bytes."""
        parts = []
        while count:
            part = self.socket.recv(min(count, MEBIBYTE))
            if not part:
                raise ConnectionError("the server ended the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(self, command, offset, length, payload=b"", flags=0):
        """A request, without waiting for its reply."""
        self.cookie += 1
        self.socket.sendall(struct.pack(">IHHQQI", REQUEST, flags, command, self.cookie, offset, length) + payload)

    def ask(self, command, offset, length, payload=b"", flags=0):
        """A request and its reply."""
        self.send(command, offset, length, payload, flags)
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        assert (magic, cookie) == (REPLY, self.cookie)
        if error:
            raise Refused(error)
        return self.take(length) if command == READ else b""

    def read(self, offset, length):
        """Bytes of the device."""
        return self.ask(READ, offset, length)

    def write(self, offset, payload):
        """Bytes to the device."""
        self.ask(WRITE, offset, len(payload), payload)

    def close(self):
        """Goes away without a word."""
        self.socket.close()


class Server:
    """A `hinterland swap serve`."""

    def __init__(self, binary, folder, *options, size="64M", listen=None):
        self.path = listen or str(folder / "swap.sock")
        command = [binary, "swap", "serve", "--json", "--size", size, "--listen", self.path, *options]
        self.words = open(folder / "words", "w+", encoding="utf-8")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.words, text=True)
        line = self.process.stdout.readline()
        assert line, self.said()
        self.ready = json.loads(line)
        self.address = self.path
        if listen:
            host, port = self.ready["listen"][0].rsplit(":", 1)
            self.address = (host, int(port))

    def said(self):
        """What it wrote to standard error."""
        self.words.seek(0)
        return self.words.read()

    def finish(self):
        """Ends it as a person would, and returns its report."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=SECONDS_MAX)
        assert self.process.returncode == 0, self.said()
        return json.loads(out.splitlines()[-1])

    def close(self):
        """Ends it anyhow."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.words.close()


@pytest.fixture
def serve(binary, folder):
    """Starts servers, and ends those that are left."""
    servers = []

    def started(*options, **settings):
        servers.append(Server(binary, folder, *options, **settings))
        return servers[-1]

    yield started
    for server in servers:
        server.close()


def content(chance, count):
    """Blocks as memory has them: zeros, some that compress, some that do not."""
    kinds = [bytes(BLOCK), bytes([chance.randrange(1, 256)]) * BLOCK, chance.randbytes(256) * 16, chance.randbytes(BLOCK)]
    return b"".join(chance.choice(kinds) for _ in range(count))


def drive(client, first, blocks, steps, seed):
    """Random requests on a range of the device, each answer compared with plain bytes."""
    chance, model = random.Random(seed), bytearray(blocks * BLOCK)
    base = first * BLOCK
    for _ in range(steps):
        at = chance.randrange(blocks)
        count = min(blocks - at, chance.choice([1, 1, 1, 2, 8, 32, 257]))
        here, length = at * BLOCK, count * BLOCK
        what = chance.choice("wwwrrrrtzf")
        if what == "w":
            payload = content(chance, count)
            client.write(base + here, payload)
            model[here : here + length] = payload
        elif what == "r":
            assert client.read(base + here, length) == model[here : here + length], (seed, at, count)
        elif what == "f":
            client.ask(FLUSH, 0, 0)
        else:
            client.ask(TRIM if what == "t" else ZERO, base + here, length)
            model[here : here + length] = bytes(length)
    for at in range(0, len(model), MEBIBYTE):
        assert client.read(base + at, min(MEBIBYTE, len(model) - at)) == model[at : at + MEBIBYTE], (seed, at)


@pytest.mark.parametrize("options", [[], ["--unit", "4K"], ["--unit", "2M", "--no-recent"],
                                     ["--far", "ssd:{}@256M"], ["--far", "lz4,ssd:{}@256M", "--copies", "2"]])
def test_random_requests_of_two_clients_find_what_was_written(serve, folder, options):
    server = serve(*[option.format(folder) for option in options])
    failures = []

    def run(number):
        client = Client(server.address)
        try:
            drive(client, number * 2048, 2048, 3000 if FULL else 150, number)
        except BaseException as failure:  # pylint: disable=broad-exception-caught
            failures.append(failure)
        finally:
            client.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    report = server.finish()
    assert report["lost_bytes"] == report["refused_bytes"] == 0
    assert report["zero_bytes"] > 0 and report["written_bytes"] > report["zero_bytes"]
    assert not [name for name in os.listdir(folder) if name.startswith(".hinterland-far")]


def test_trimmed_and_zero_blocks_are_not_kept(serve):
    server = serve()
    client = Client(server.address)
    assert client.bytes == 64 * MEBIBYTE and client.flags & 0x165 == 0x165
    client.write(0, bytes(8 * MEBIBYTE))
    client.write(0, random.Random(1).randbytes(8 * MEBIBYTE))
    client.ask(TRIM, 0, 8 * MEBIBYTE)
    assert client.read(4 * MEBIBYTE, BLOCK) == bytes(BLOCK)
    client.close()
    report = server.finish()
    assert (report["zero_bytes"], report["live_bytes"]) == (8 * MEBIBYTE, 0)
    assert report["memory_bytes"] == 0 and report["moved"][0]["out_bytes"] > 7 * MEBIBYTE


def test_a_killed_client_leaves_what_it_wrote_and_others_go_on(serve):
    server = serve("--clients", "100")
    first, second = Client(server.address), Client(server.address)
    for number in range(20):
        # In the middle of a write, of a handshake, and before any.
        broken = Client(server.address)
        broken.send(WRITE, 0, MEBIBYTE, b"x" * 5000 if number % 2 else b"")
        broken.close()
        half = Client(server.address, agrees=False)
        half.socket.sendall(b"\0\0")
        half.close()
        first.write(8192, bytes([number + 1]) * BLOCK)
        assert second.read(8192, BLOCK) == bytes([number + 1]) * BLOCK
    assert second.read(0, BLOCK) == bytes(BLOCK)
    first.close()
    second.close()
    assert server.finish()["requests"] >= 41


def test_more_clients_than_allowed_are_turned_away_and_the_room_comes_back(serve):
    server = serve("--clients", "2")
    first, second = Client(server.address), Client(server.address)
    with pytest.raises((ConnectionError, OSError)):
        Client(server.address)
    first.close()
    # The server sees the farewell by itself, some time later.
    third, late = None, time.monotonic() + SECONDS_MAX
    while third is None and time.monotonic() < late:
        try:
            third = Client(server.address)
        except OSError:
            time.sleep(0.01)
    third.write(0, b"a" * BLOCK)
    assert second.read(0, BLOCK) == b"a" * BLOCK
    second.close()
    third.close()
    server.finish()


def test_requests_that_make_no_sense_are_refused_and_the_connection_goes_on(serve):
    server = serve("--clients", "200")
    client = Client(server.address)
    end = 64 * MEBIBYTE
    bad = [(READ, 1, BLOCK, b"", 0, EINVAL), (READ, end, BLOCK, b"", 0, EINVAL), (READ, 0, 512, b"", 0, EINVAL),
           (READ, (1 << 64) - BLOCK, BLOCK, b"", 0, EINVAL), (WRITE, end, BLOCK, b"x" * BLOCK, 0, ENOSPC),
           (WRITE, 7, BLOCK, b"x" * BLOCK, 0, EINVAL), (WRITE, 0, BLOCK, b"x" * BLOCK, 1, EINVAL),
           (TRIM, 0, 2 * end, b"", 0, EINVAL), (ZERO, end - BLOCK, 2 * BLOCK, b"", 0, ENOSPC), (99, 0, 0, b"", 0, EINVAL)]
    for command, offset, length, payload, flags, error in bad:
        with pytest.raises(Refused) as refused:
            client.ask(command, offset, length, payload, flags)
        assert refused.value.number == error, (command, offset, length)
        assert client.read(0, BLOCK) == bytes(BLOCK)
    client.send(WRITE, 0, (1 << 32) - 4096)
    with pytest.raises((ConnectionError, OSError)):
        client.take(16)
    noise = random.Random(3)
    for _ in range(100):
        hostile = Client(server.address, agrees=noise.random() < 0.5)
        hostile.socket.sendall(noise.randbytes(noise.randrange(1, 400)))
        hostile.close()
    again = Client(server.address)
    assert again.read(0, BLOCK) == bytes(BLOCK)
    again.close()
    assert server.finish()["broken"] >= 1


def test_a_full_back_end_refuses_writes_and_keeps_what_it_has(serve, folder):
    server = serve("--far", f"ssd:{folder}@2M", "--unit", "64K")
    client, chance = Client(server.address), random.Random(5)
    written = []
    with pytest.raises(Refused) as refused:
        while len(written) < 4096:
            block = chance.randbytes(BLOCK)
            client.write(len(written) * BLOCK, block)
            written.append(block)
    assert refused.value.number == ENOSPC and len(written) >= 512
    for number, block in enumerate(written):
        assert client.read(number * BLOCK, BLOCK) == block, number
    client.ask(TRIM, 0, MEBIBYTE)
    client.write(0, b"z" * BLOCK)
    assert client.read(0, BLOCK) == b"z" * BLOCK
    client.close()
    assert server.finish()["refused_bytes"] > 0
    assert "full" in server.said()


def test_a_signal_waits_for_who_uses_the_device_and_a_second_one_does_not(serve):
    server = serve()
    client = Client(server.address)
    client.write(0, b"a" * BLOCK)
    server.process.send_signal(signal.SIGTERM)
    # It goes on serving; what it says comes some time later.
    late = time.monotonic() + SECONDS_MAX
    while "would be lost" not in server.said() and time.monotonic() < late:
        assert client.read(0, BLOCK) == b"a" * BLOCK
    assert server.process.poll() is None and "swap detach" in server.said()
    server.finish()
    with pytest.raises((ConnectionError, OSError)):
        client.read(0, BLOCK)


def test_a_closed_terminal_does_not_end_a_server_that_is_used(serve):
    server = serve()
    client = Client(server.address)
    client.write(0, b"a" * BLOCK)
    late = time.monotonic() + SECONDS_MAX
    while "would be lost" not in server.said() and time.monotonic() < late:
        server.process.send_signal(signal.SIGHUP)
        assert client.read(0, BLOCK) == b"a" * BLOCK
    # A shell passes on to its jobs what the kernel has told them already.
    for _ in range(3):
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert client.read(0, BLOCK) == b"a" * BLOCK
    assert server.process.poll() is None and "swap detach" in server.said()
    client.close()
    assert server.process.wait(SECONDS_MAX) == 0


def test_a_killed_server_is_the_end_of_its_content_and_the_next_one_is_another(serve):
    server = serve()
    client = Client(server.address)
    client.write(0, b"a" * BLOCK)
    server.process.kill()
    server.process.wait()
    with pytest.raises((ConnectionError, OSError)):
        client.read(0, BLOCK)
    following = serve()
    other = Client(following.address)
    assert other.read(0, BLOCK) == bytes(BLOCK)
    other.close()
    following.finish()


def test_tcp_is_for_this_host_unless_told_otherwise(serve, binary):
    server = serve(listen="127.0.0.1:0")
    client = Client(server.address)
    drive(client, 0, 256, 50, 1)
    client.close()
    server.finish()
    command = [binary, "swap", "serve", "--size", "64M", "--listen", "0.0.0.0:0"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert refused.returncode == 2 and "--serve-other-hosts" in refused.stderr


def test_attaching_without_the_module_says_what_is_missing(binary, folder):
    if os.path.exists("/sys/module/nbd"):
        pytest.skip("this kernel has the module nbd")
    command = [binary, "swap", "attach", str(folder / "nobody.sock")]
    failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    expected = "modprobe nbd" if os.geteuid() == 0 else "root"
    assert failed.returncode == 1 and expected in failed.stderr, failed.stderr


def test_the_default_socket_is_where_the_help_says(binary, folder):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "HINTERLAND_SOCKET": str(folder / "elsewhere/node.sock")}
    with subprocess.Popen([binary, "swap", "serve", "--json", "--size", "1M"], stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert json.loads(server.stdout.readline())["listen"] == [str(folder / "hinterland/swap.sock")]
        finally:
            server.terminate()


def test_a_socket_that_cannot_be_is_refused_with_the_reason(binary, folder):
    (folder / "file").write_text("")
    words = {folder / "mistyped/x.sock": f"mkdir -p {folder}/mistyped", folder / "file": "is there already and no socket"}
    for path, said in words.items():
        command = [binary, "swap", "serve", "--size", "1M", "--listen", path]
        refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
        assert refused.returncode == 1 and said in refused.stderr and "another server" not in refused.stderr, refused.stderr
    assert not (folder / "mistyped").exists()


@pytest.mark.skipif(shutil.which("nbdinfo") is None, reason="nbdinfo is not installed (hint: apt-get install libnbd-bin)")
def test_libnbd_sees_the_device(serve):
    server = serve()
    where = f"nbd+unix:///?socket={server.path}"
    said = subprocess.run(["nbdinfo", "--json", where], capture_output=True, text=True, check=True, timeout=SECONDS_MAX)
    export = json.loads(said.stdout)["exports"][0]
    assert (export["export-size"], export["block_size_minimum"], export["can_multi_conn"]) == (64 * MEBIBYTE, BLOCK, True)
    assert export["can_trim"] and not export["is_read_only"]
    subprocess.run(["nbdinfo", "--list", where], check=True, capture_output=True, timeout=SECONDS_MAX)
    server.finish()


@pytest.mark.skipif(shutil.which("nbdcopy") is None or shutil.which("qemu-img") is None,
                    reason="nbdcopy or qemu-img is not installed (hint: apt-get install libnbd-bin qemu-utils)")
def test_images_copied_by_libnbd_and_qemu_compare_equal(serve, folder):
    server = serve()
    where = f"nbd+unix:///?socket={server.path}"
    image = folder / "image"
    image.write_bytes(content(random.Random(9), 64 * MEBIBYTE // BLOCK))

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
        assert done.returncode == 0, done.stdout + done.stderr

    run("nbdcopy", str(image), where)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(image), where)
    run("qemu-io", "-f", "raw", where, "-c", "write -P 0xab 1M 3M", "-c", "read -P 0xab 1M 3M", "-c", "discard 1M 1M",
        "-c", "read -P 0 1M 1M", "-c", "read -P 0xab 2M 2M", "-c", "write -z 2M 2M", "-c", "flush", "-c", "read -P 0 2M 2M")
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", str(image), where)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(image), where)
    server.finish()
