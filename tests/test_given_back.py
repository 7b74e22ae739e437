"""Memory that is counted as free is free: nobody keeps an object's file at a home that was read, written or mapped from elsewhere."""

import os

import pytest
from faults import wait_until

MEBIBYTE = 1 << 20


def removed_files(node):
    """Files of objects that are removed and that the node still holds open."""
    folder = f"/proc/{node.process.pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        if target.endswith(".bytes (deleted)"):
            found.append(target)
    return found


@pytest.fixture
def far(hinterland, two_racks):
    """A pool through rack a that stays open, and the node of rack b."""
    with hinterland.Pool(two_racks[0].socket) as pool:
        yield pool, two_racks[1]


def test_what_was_read_from_another_rack_and_removed_is_gone_there(far, make_file):
    pool, home = far
    for number in range(5):
        home.run("put", make_file("source", 3 * MEBIBYTE, number), "--name", "x")
        with pool.open("x") as opened:
            assert opened.read_at(1, 1000)[:1] and opened.read_at(2 * MEBIBYTE, MEBIBYTE)
        home.run("rm", "x")
    wait_until(lambda: removed_files(home) == [], why=lambda: removed_files(home))


def test_what_was_put_into_another_rack_and_removed_is_gone_there(far):
    pool, home = far
    for _ in range(5):
        pool.put("x", bytes(3 * MEBIBYTE), rack="b")
        pool.remove("x")
    wait_until(lambda: removed_files(home) == [], why=lambda: removed_files(home))


def test_what_was_put_and_removed_here_is_gone(hinterland, node):
    with hinterland.Pool(node.socket) as pool:
        for _ in range(5):
            pool.put("x", bytes(3 * MEBIBYTE))
            assert pool.get("x") == bytes(3 * MEBIBYTE)
            pool.remove("x")
        wait_until(lambda: removed_files(node) == [], why=lambda: removed_files(node))


@pytest.mark.parametrize("rack", ["a", "b"])
def test_a_region_that_was_removed_is_gone_at_its_home(hinterland, two_racks, rack):
    home = two_racks["ab".index(rack)]
    with hinterland.Pool(two_racks[0].socket) as pool:
        use_regions(pool, rack)
        wait_until(lambda: removed_files(home) == [], why=lambda: removed_files(home))


def use_regions(pool, rack):
    for _ in range(3):
        info = pool.create_region("x", 2 * MEBIBYTE, rack=rack)
        pool.write(info.address + 5, b"bytes")
        with pool.open("x", writable=True) as opened:
            assert opened.read_at(5, 5) == b"bytes"
        pool.remove("x")


def test_what_was_mapped_and_removed_is_gone_at_its_home(two_racks, make_file):
    node, home = two_racks
    for number in range(3):
        home.run("put", make_file("source", 3 * MEBIBYTE, number), "--name", "x")
        node.run("run", "--", "sha256sum", "/pool/x")
        node.run("rm", "x")
    wait_until(lambda: removed_files(home) == [], why=lambda: removed_files(home))
