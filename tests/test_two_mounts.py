"""Writable mounts on two hosts of one pool: what one closes is what the other opens."""

import errno
import os
import shutil
import signal
import threading

import pytest
from faults import MEBIBYTE, members_up, wait_until
from test_belonging import start_adopting
from test_mount_writing import Mount, code_of, names, pytestmark  # noqa: F401


@pytest.fixture
def two_mounts(two_racks, folder):
    """The pool mounted writable on node `a` and on node `b`, which lie in two racks."""
    mounts = [Mount(node, folder, name) for node, name in zip(two_racks, ("on-a", "on-b"))]
    yield mounts
    for mounted in mounts:
        if mounted.process.poll() is None:
            mounted.stop()


def test_who_opens_a_file_gets_what_another_host_has_just_closed(two_mounts):
    here, there = two_mounts
    for version in range(40):
        (there / "file").write_bytes(b"%02d" % version * 70_000)
        # What somebody has open still, as the next one of this loop does, is not what the next one gets.
        held = open(here / "file", "rb")
        assert held.read() == b"%02d" % version * 70_000


def test_a_file_of_another_rack_is_read_on_when_it_is_replaced_or_removed(two_mounts):
    here, there = two_mounts
    (there / "file").write_bytes(b"1" * 5 * MEBIBYTE)
    first = open(here / "file", "rb")
    (there / "file").write_bytes(b"2" * 5 * MEBIBYTE)
    second = open(here / "file", "rb")
    (there / "file").unlink()
    wait_until(lambda: not (here / "file").exists())
    # By its descriptor, which has no name any more.
    again = open(f"/proc/self/fd/{second.fileno()}", "rb")
    assert first.read() == b"1" * 5 * MEBIBYTE
    assert second.read() == b"2" * 5 * MEBIBYTE and again.read() == b"2" * 5 * MEBIBYTE


def test_a_file_whose_node_was_silent_for_too_long_is_lost_and_says_so(two_mounts, two_racks):
    mounted, node = two_mounts[0], two_racks[0]
    file = open(mounted / "file", "wb", buffering=0)
    file.write(b"x" * 3 * MEBIBYTE)
    node.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: members_up(two_racks[1]) != [True, True])
    finally:
        node.process.send_signal(signal.SIGCONT)
    wait_until(lambda: members_up(two_racks[1]) == [True, True])
    assert code_of(file.close) == errno.EIO
    assert names(two_racks[1]) == []
    (mounted / "file").write_bytes(b"anew")
    assert (two_mounts[1] / "file").read_bytes() == b"anew"


def test_files_of_before_a_directory_was_lost_come_back_under_their_names(start_node, folder, make_file):
    # The first is full, so that what is written there goes to the other.
    a = start_node("a", options=["--capacity", "4M"])
    b = start_node("b", join=a.address, options=["--capacity", "64M"])
    a.run("put", make_file("full", 4 * MEBIBYTE), "--name", "full", "--rack", "a")
    a.stop()
    shutil.copy(a.state / "directory.redb", folder / "old.redb")
    a.start()
    wait_until(lambda: members_up(a) == [True, True])
    written = {"there": b"t" * 5 * MEBIBYTE, "folder/here": b"h" * 100_000}
    for node, name in ((a, "there"), (b, "folder/here")):
        mounted = Mount(node, folder)
        try:
            (mounted / name).parent.mkdir(exist_ok=True)
            # The second in place of the first.
            for version in (b"before", written[name]):
                (mounted / name).write_bytes(version)
        finally:
            mounted.stop()
    a.stop()
    b.stop()
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    for node in (a, b):
        start_adopting(node)
    assert names(a) == sorted(["full", *written])
    for name, content in written.items():
        a.run("get", name, folder / "read")
        assert (folder / "read").read_bytes() == content


def test_a_file_that_goes_on_elsewhere_has_its_name_all_the_time(start_node, folder):
    a = start_node("a", options=["--capacity", "16M"])
    b = start_node("b", join=a.address, options=["--capacity", "512M"])
    wait_until(lambda: members_up(a) == [True, True])
    mounted, other = Mount(a, folder, "one"), Mount(b, folder, "two")
    made, is_over = [], threading.Event()

    def make(name):
        # As programs that lock by making a file.
        while not is_over.is_set():
            try:
                os.close(os.open(other / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                made.append(name)
                return
            except OSError:
                pass

    try:
        for number in range(12):
            name = f"large-{number}"
            is_over.clear()
            with open(mounted / name, "xb", buffering=0) as file:
                file.write(bytes(MEBIBYTE))
                makers = [threading.Thread(target=make, args=(name,)) for _ in range(3)]
                for maker in makers:
                    maker.start()
                for _ in range(19):
                    file.write(bytes(MEBIBYTE))
                assert made == []
                is_over.set()
                for maker in makers:
                    maker.join()
            os.unlink(mounted / name)
    finally:
        is_over.set()
        other.stop()
        mounted.stop()
