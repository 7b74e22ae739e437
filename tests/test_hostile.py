"""Peers that send what no peer would: each is refused, and the node goes on serving others."""

import os
import random
import socket
import struct

import pytest

MEBIBYTE = 1 << 20


def crc32c_table():
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


TABLE = crc32c_table()


def crc32c(data):
    """The checksum of the wire, by its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def message(kind, body, oldest=2, newest=2, length=None, magic=b"HNTL"):
    """A message of the handshake as docs/internals/wire.md lays it out."""
    head = magic + struct.pack("<BBHHH", kind, 0, length or 16 + len(body), oldest, newest)
    return head + struct.pack("<I", crc32c(head + body)) + body


def hello(pool=0, keyed=0):
    """The body of a Hello from a client."""
    body = struct.pack("<BB6xQQ", 1, keyed, 0, 77) + pool.to_bytes(16, "little") + os.urandom(32)
    return body + struct.pack("<Q", 0) + bytes(32)


def frame(kind, sequence, body=b"", argument=0, handle=0, version=2, length=None):
    """A frame with right checksums."""
    head = b"HNTL" + struct.pack("<HBBQQIIQI", version, kind, 0, sequence & (2**64 - 1), 1, handle,
                                 len(body) if length is None else length, argument, 0)
    return head + struct.pack("<I", crc32c(head)) + body


class Peer:
    """One TCP connection to a node."""

    def __init__(self, node):
        host, port = node.address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)

    def send(self, data):
        """Sends what it can: the node may close first."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive_all(self):
        """Everything until the node closes the connection."""
        data = b""
        try:
            while piece := self.socket.recv(65_536):
                data += piece
        except ConnectionResetError:
            pass
        return data

    def close(self):
        self.socket.close()


@pytest.fixture
def peer(node):
    """A connection to a node that afterwards must still serve."""
    connection = Peer(node)
    yield connection
    connection.close()
    assert node.process.poll() is None, node.words()
    assert node.run("ls").returncode == 0


def test_checksum_of_this_test_is_the_one_of_the_wire():
    assert crc32c(b"123456789") == 0xE3069283


def test_a_browser_is_told_that_this_is_no_web_server(peer):
    peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = peer.receive_all()
    assert answer.startswith(b"HTTP/1.0 4") and b"Hinterland" in answer


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_are_refused(peer, seed):
    peer.send(random.Random(seed).randbytes(200_000))
    peer.receive_all()


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_behind_a_right_magic_are_refused(peer, seed):
    peer.send(b"HNTL" + random.Random(seed).randbytes(100_000))
    peer.receive_all()


@pytest.mark.parametrize("oldest, newest, hint", [(900, 901, b"upgrade this node"), (1, 1, b"upgrade the client")],
                         ids=["later", "the one before"])
def test_a_peer_of_another_release_gets_a_clear_refusal(peer, oldest, newest, hint):
    peer.send(message(0x81, hello(), oldest=oldest, newest=newest))
    answer = peer.receive_all()
    assert answer[:4] == b"HNTL" and answer[4] == 0x85
    assert struct.unpack_from("<H", answer, 16)[0] == 2
    assert f"versions {oldest} to {newest}, this node 2 to 2".encode() in answer and hint in answer


def test_a_peer_that_looks_for_another_pool_gets_a_clear_refusal(peer):
    peer.send(message(0x81, hello(pool=12345)))
    answer = peer.receive_all()
    assert answer[4] == 0x85 and struct.unpack_from("<H", answer, 16)[0] == 3


def test_a_flipped_bit_in_the_hello_is_noticed(peer):
    data = bytearray(message(0x81, hello()))
    data[60] ^= 4
    peer.send(bytes(data))
    answer = peer.receive_all()
    assert answer == b"" or answer[4] == 0x85


@pytest.mark.parametrize("length", [0, 15, 1025, 65_535])
def test_a_length_that_lies_is_refused(peer, length):
    peer.send(message(0x81, hello(), length=length or 1))
    peer.socket.shutdown(socket.SHUT_WR)
    answer = peer.receive_all()
    assert answer == b"" or answer[4] == 0x85


def test_a_hello_cut_short_holds_nothing_up(node, peer):
    peer.send(message(0x81, hello())[:100])
    assert node.run("ls").returncode == 0


def test_silence_is_not_waited_for_for_ever(peer):
    peer.socket.settimeout(60)
    assert peer.receive_all()[:4] in (b"", b"HNTL")


def test_many_silent_connections_do_not_keep_others_out(node):
    silent = [Peer(node) for _ in range(100)]
    assert node.run("ls").returncode == 0
    for connection in silent:
        connection.close()


def test_frames_before_the_handshake_are_refused(peer):
    peer.send(frame(1, 0, b"x" * 100))
    answer = peer.receive_all()
    assert answer == b"" or answer[4] == 0x85


@pytest.mark.parametrize("data", [b"", b"\0" * 100_000, b"\xff" * 100_000, struct.pack("<I", 2**32 - 1) + b"x",
                                  b"GET / HTTP/1.1\r\n\r\n"],
                         ids=["nothing", "zeros", "ones", "a huge length", "a browser"])
def test_garbage_on_the_local_socket_ends_that_session_only(node, data):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(node.socket))
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass
    connection.close()
    assert node.process.poll() is None, node.words()
    assert node.run("ls").returncode == 0
