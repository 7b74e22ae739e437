"""Addresses of the loopback for the servers that tests start.

A port of 127.0.0.1 that was free a moment ago, or that a server gave up when it was killed, may be gone: any connection of any
other program can be given it. What can listen anywhere gets an address that this process has to itself, from which nobody
connects; what must be at 127.0.0.1 gets a port that connections are not given.
"""

import itertools
import os
import pathlib
import socket


def own_address():
    """The address that this process has to itself: 127.64.0.0 and its number."""
    _, high, middle, low = os.getpid().to_bytes(4, "big")
    return f"127.{64 | high}.{middle}.{low}"


def _ports():
    """Ports below those of connections, each once; processes begin far from one another."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    lowest, ports = 10_000, first - 10_000
    for number in itertools.count(os.getpid() * 61):
        yield lowest + number % ports


_NEXT = _ports()


def free_port():
    """A port of 127.0.0.1 that nobody listens on, and that no connection will be given."""
    for port in itertools.islice(_NEXT, 10_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port of 127.0.0.1 is free")
