"""A node that is started with another directory than before: it refuses, and loses nothing."""

import shutil

import pytest

from faults import MEBIBYTE, sha, wait_until


@pytest.fixture
def held(start_node, make_file):
    """Nodes `a`, which has the directory, and `b`, which alone has an object; and that object's checksum."""
    a = start_node("a", options=["--capacity", "64M"])
    b = start_node("b", join=a.address, options=["--capacity", "64M"])
    path = make_file("kept", 3 * MEBIBYTE)
    b.run("put", path, "--name", "kept", "--rack", "b")
    return a, b, sha(path)


def refused(node, *parts):
    """Starts a node that must not start, and checks what it says."""
    with pytest.raises(AssertionError, match="did not become ready"):
        node.start()
    assert node.process.wait(timeout=10) == 1
    words = node.words()
    assert all(part in words for part in [*parts, "nothing was changed", "\"hint\":"]), words


def still_there(node, folder, expected):
    """The object is read whole; members come back one after the other."""
    target = folder / "read"
    wait_until(lambda: node.run("get", "kept", target, check=False).returncode == 0, why=node.words)
    assert sha(target) == expected


def test_a_node_that_forgets_join_refuses_and_keeps_its_objects(held, folder):
    a, b, expected = held
    b.stop()
    join, b.join = b.join, None
    refused(b, "without --join it is pool-")
    b.join = join
    b.start()
    still_there(a, folder, expected)


def test_a_node_that_joins_another_pool_refuses_and_keeps_its_objects(held, start_node, folder):
    a, b, expected = held
    other = start_node("c", options=["--capacity", "64M"])
    b.stop()
    join, b.join = b.join, other.address
    refused(b, f"{other.address} is of pool-")
    b.join = join
    b.start()
    still_there(a, folder, expected)


@pytest.mark.parametrize("state", ["gone", "empty"])
def test_a_directory_whose_file_is_gone_or_empty_is_not_begun_anew(held, folder, state):
    a, b, expected = held
    a.stop()
    (a.state / "directory.redb").rename(folder / "kept.redb")
    if state == "empty":
        (a.state / "directory.redb").touch()
    refused(a, "no directory.redb")
    (folder / "kept.redb").rename(a.state / "directory.redb")
    a.start()
    still_there(b, folder, expected)


def test_a_directory_whose_file_is_damaged_is_told_and_loses_nothing(held, folder):
    a, b, expected = held
    a.stop()
    shutil.copy(a.state / "directory.redb", folder / "kept.redb")
    whole = (folder / "kept.redb").read_bytes()
    (a.state / "directory.redb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AssertionError, match="did not become ready"):
        a.start()
    assert a.process.wait(timeout=10) == 1
    assert "is damaged" in a.words() and "put the file back from a copy" in a.words(), a.words()
    shutil.copy(folder / "kept.redb", a.state / "directory.redb")
    a.start()
    still_there(b, folder, expected)


def test_a_copy_of_a_state_is_refused_while_its_node_runs_and_nothing_is_lost(held, start_node, folder):
    a, b, expected = held
    copy = folder / "copied"
    shutil.copytree(b.state, copy, ignore=shutil.ignore_patterns("memory-*"))
    with pytest.raises(AssertionError, match="is a copy of the state of node-"):
        start_node("twin", rack="b", join=a.address, state=copy, options=["--capacity", "64M"])
    assert b.address in (folder / "twin.log").read_text()
    still_there(a, folder, expected)
    b.kill()
    b.address = f"{b.address.rsplit(':', 1)[0]}:0"
    b.start()  # At another address, while the directory still counts on the one of before.
    still_there(a, folder, expected)


def test_a_directory_that_lost_its_whole_state_does_not_have_others_delete_theirs(held, folder):
    a, b, expected = held
    a.stop()
    b.stop()
    a.state.rename(folder / "kept-state")
    a.start()
    refused(b, f"{a.address} is of pool-")
    a.stop()
    shutil.rmtree(a.state)
    (folder / "kept-state").rename(a.state)
    a.start()
    b.start()
    still_there(b, folder, expected)
