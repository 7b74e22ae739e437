"""A node that is started with another directory than before: it refuses, and loses nothing."""

import concurrent.futures
import re
import shutil
import signal
import subprocess

import pytest

from faults import MEBIBYTE, sha, wait_until
from test_silent_node import stopped


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


def start_adopting(node):
    node.options.append("--adopt")
    node.start()
    node.options.remove("--adopt")


def put_here(node, make_file, name, size):
    path = make_file(name.replace("/", "-"), size)
    node.run("put", path, "--name", name, "--rack", node.rack)
    return sha(path)


def is_whole(node, name, folder, expected):
    target = folder / "read"
    node.run("get", name, target)
    assert sha(target) == expected, name


def test_a_directory_that_is_put_back_from_an_older_copy_gets_newer_objects_again(held, folder, make_file):
    a, b, expected = held
    a.stop()
    shutil.copy(a.state / "directory.redb", folder / "old.redb")
    a.start()
    sums = {"kept": expected}
    for node, name, size in [(a, "a/new", 5000), (b, "b/new", 3 * MEBIBYTE), (b, "b/small", 17)]:
        wait_until(lambda: "joining" not in a.run("status", "--json").stdout.lower(), why=a.words)
        sums[name] = put_here(node, make_file, name, size)
    b.run("region", "create", "scratch", "2M")
    a.stop()
    b.stop()
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    for _ in range(2):
        with pytest.raises(AssertionError, match="such as a/new; nothing was deleted.*put the newest store back"):
            a.start()
    start_adopting(a)
    assert "adopted 1 object, 4.88 KiB (a/new)" in a.words(), a.words()
    with pytest.raises(AssertionError, match="does not know 3 of them"):
        b.start()
    a.run("put", make_file("later", 99), "--name", "later")
    start_adopting(b)
    assert "adopted 2 objects, 3.00 MiB (b/new, b/small)" in b.words(), b.words()
    assert f"saved in {b.state}/rescued as NUMBER-NAME.bytes what the directory cannot take in: it is a region" in b.words()
    assert "1 object, 2.00 MiB (scratch)" in b.words()
    assert [file.stat().st_size for file in (b.state / "rescued").iterdir()] == [2 * MEBIBYTE]
    for node in (a, b):
        node.stop()
        node.start()
    for name, expected in sums.items():
        is_whole(a, name, folder, expected)


def test_a_node_that_runs_while_an_older_directory_comes_back_deletes_nothing(held, folder, make_file):
    a, b, expected = held
    a.stop()
    shutil.copy(a.state / "directory.redb", folder / "old.redb")
    a.start()
    wait_until(lambda: "joining" not in a.run("status", "--json").stdout.lower(), why=a.words)
    new = put_here(b, make_file, "new", MEBIBYTE)
    a.kill()
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    a.start()
    wait_until(lambda: "older than this node's objects" in b.words(), why=b.words)
    b.stop()
    start_adopting(b)
    is_whole(a, "new", folder, new)
    is_whole(a, "kept", folder, expected)


def test_a_node_that_waits_for_its_directory_says_that_the_one_that_comes_is_older(held, folder, make_file):
    a, b, expected = held
    b.stop()
    a.stop()
    # To this store the node is not up, so that it has to join.
    shutil.copy(a.state / "directory.redb", folder / "old.redb")
    a.start()
    b.start()
    new = put_here(b, make_file, "new", MEBIBYTE)
    a.kill()
    wait_until(lambda: "the directory does not answer" in b.words(), why=b.words)
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    a.start()
    wait_until(lambda: "older than this node's objects" in b.words(), why=b.words)
    assert "put the newest store back, or start this node and then all others with --adopt" in b.words(), b.words()
    b.stop()
    start_adopting(b)
    is_whole(a, "new", folder, new)
    is_whole(a, "kept", folder, expected)


def test_a_directory_that_is_lost_with_its_machine_is_made_anew_of_what_the_nodes_hold(held, folder, make_file):
    a, b, expected = held
    a.stop()
    shutil.rmtree(a.state)
    a.start()
    taken = put_here(a, make_file, "put since", MEBIBYTE)
    b.stop()
    refused(b, f"{a.address} is of pool-", "--adopt")
    start_adopting(b)
    # Its number is that of the new pool's first object.
    assert "what the directory cannot take in: another object has its number now: 1 object, 3.00 MiB (kept)" in b.words()
    (saved,) = (b.state / "rescued").iterdir()
    assert sha(saved) == expected
    b.run("put", saved, "--name", "kept")
    is_whole(a, "kept", folder, expected)
    is_whole(b, "put since", folder, taken)
    b.stop()
    b.start()
    is_whole(a, "kept", folder, expected)


def test_what_was_saved_is_said_by_a_node_that_is_interrupted_while_it_starts(held, make_file):
    a, b, expected = held
    a.stop()
    shutil.rmtree(a.state)
    a.start()
    put_here(a, make_file, "put since", MEBIBYTE)
    b.stop()
    b.options.append("--adopt")
    with stopped(a):
        b.start(wait=False)
        wait_until(lambda: "waiting for the node at" in b.words(), why=b.words)
        b.process.send_signal(signal.SIGINT)
        wait_until(lambda: "ending, as soon as" in b.words(), why=b.words)
    assert b.process.wait(timeout=30) == 0, b.words()
    assert "what the directory cannot take in: another object has its number now: 1 object, 3.00 MiB (kept)" in b.words()
    (saved,) = (b.state / "rescued").iterdir()
    assert sha(saved) == expected


def test_a_directory_whose_file_is_lost_is_made_anew_of_what_the_nodes_hold(held, folder, make_file):
    a, b, expected = held
    own = put_here(a, make_file, "own", MEBIBYTE)
    a.stop()
    b.stop()
    (a.state / "directory.redb").unlink()
    refused(a, "no directory.redb", "--adopt")
    start_adopting(a)
    start_adopting(b)
    is_whole(b, "own", folder, own)
    is_whole(a, "kept", folder, expected)


def test_what_is_made_after_adopting_stays_when_the_node_was_cut_off(start_node, folder, make_file):
    room = ["--capacity", "64M", "--lease", "1"]
    a = start_node("a", options=room)
    b = start_node("b", join=a.address, options=room)
    expected = put_here(b, make_file, "kept", MEBIBYTE)
    a.stop()
    shutil.rmtree(a.state)
    a.start()
    b.stop()
    start_adopting(b)
    b.run("region", "create", "scratch", "2M", "--rack", "b")
    b.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not all(member["up"] for member in a.json("status")["members"]), why=a.words)
    b.process.send_signal(signal.SIGCONT)
    wait_until(lambda: all(member["up"] for member in a.json("status")["members"]), why=b.words)
    assert [home["rack"] for home in b.json("stat", "scratch")["homes"]] == ["b"], b.words()
    assert not (b.state / "rescued").exists()
    is_whole(a, "kept", folder, expected)


# More than are adopted with one question.
MANY = 520


def test_a_node_adopts_all_however_long_it_saves_what_cannot_be_taken_in(start_node, folder):
    a = start_node("a", options=["--capacity", "64M"])
    b = start_node("b", join=a.address, options=["--capacity", "1G"])
    b.run("region", "create", "scratch", "600M", "--rack", "b")
    tasks = [b.command("put", "-", "--name", f"many/{number}") for number in range(MANY)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: subprocess.run(task, check=True, input=b"bytes", capture_output=True), tasks))
    b.stop()
    a.stop()
    shutil.rmtree(a.state)
    a.options += ["--lease", "0.3"]
    a.start()
    said = len(b.words().splitlines())
    start_adopting(b)
    assert [file.name for file in (b.state / "rescued").iterdir()] == ["16-scratch.bytes"], b.words()
    # However many there are, they are summed up.
    assert re.search(rf"adopted {MANY} objects, 2.54 KiB \(many/\d+(, many/\d+){{4}} and {MANY - 5} more\)", b.words()), b.words()
    assert len(b.words().splitlines()) < said + 20, b.words()
    assert len(a.json("ls")) == MANY
