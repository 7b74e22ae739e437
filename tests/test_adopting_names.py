"""Names after the loss of a directory: what was written anew, renamed or replaced while a node was away is not what that node remembers."""

import os
import shutil

import pytest
from faults import MEBIBYTE, members_up, wait_until
from test_belonging import is_whole, put_here, start_adopting
from test_mount_writing import Mount, names, pytestmark  # noqa: F401

ROOM = ["--capacity", "64M"]


@pytest.fixture
def pool(start_node):
    """Nodes `a`, which has the directory and no room, `b` and `c`."""
    a = start_node("a", options=["--capacity", "0"])
    b = start_node("b", join=a.address, options=ROOM)
    c = start_node("c", join=a.address, options=ROOM)
    wait_until(lambda: members_up(a) == [True, True, True], why=a.words)
    return a, b, c


def lose_the_directory(a, *others):
    for node in others:
        node.stop()
    a.stop()
    (a.state / "directory.redb").unlink()


def adopt_in_order(a, b, c, first):
    start_adopting(a)
    for node in (b, c) if first == "b" else (c, b):
        start_adopting(node)


@pytest.mark.parametrize("first", ["b", "c"])
def test_a_file_that_was_put_anew_while_its_node_was_away_is_the_new_one(pool, folder, make_file, first):
    a, b, c = pool
    old = put_here(b, make_file, "file", MEBIBYTE)
    number = a.json("stat", "file")["object"]
    b.kill()
    a.run("rm", "file")
    new = put_here(c, make_file, "file", 2 * MEBIBYTE)
    lose_the_directory(a, c)
    adopt_in_order(a, b, c, first)
    is_whole(a, "file", folder, new)
    is_whole(a, f"recovered/{number}", folder, old)
    told = c if first == "b" else b
    assert f"recovered/{number}" in told.words(), told.words()
    # So it stays, and a further start adopts nothing.
    for node in (b, c, a):
        node.stop()
    for node in (a, c, b):
        node.start()
    is_whole(b, "file", folder, new)


@pytest.mark.parametrize("first", ["b", "c"])
def test_a_file_that_was_renamed_over_another_while_that_ones_node_was_away_has_its_name(pool, folder, make_file, first):
    a, b, c = pool
    put_here(b, make_file, "file", MEBIBYTE)
    b.kill()
    mounted = Mount(c, folder)
    try:
        # As editors save: beside the file, and then in its place.
        (mounted / "file.new").write_bytes(b"n" * 100_000)
        os.replace(mounted / "file.new", mounted / "file")
        (mounted / "before").write_bytes(b"renamed")
        (mounted / "folder").mkdir()
        os.rename(mounted / "before", mounted / "folder" / "after")
    finally:
        mounted.stop()
    lose_the_directory(a, c)
    adopt_in_order(a, b, c, first)
    written = [name for name in names(a) if not name.startswith("recovered/")]
    assert written == ["file", "folder/after"], names(a)
    a.run("get", "file", folder / "read")
    assert (folder / "read").read_bytes() == b"n" * 100_000
    assert [name for name in names(a) if name.startswith("recovered/")], names(a)


def test_what_a_node_brings_back_that_was_away_is_said_to_be_of_before(pool, folder, make_file):
    a, b, c = pool
    kept = put_here(b, make_file, "kept", MEBIBYTE)
    wait_until(lambda: (b.state / "names").exists(), why=b.words)
    b.kill()
    put_here(c, make_file, "later", MEBIBYTE)
    lose_the_directory(a, c)
    adopt_in_order(a, b, c, "c")
    assert "of before, perhaps: 1 object, 1.00 MiB (kept)" in b.words(), b.words()
    is_whole(a, "kept", folder, kept)
    for node in (b, c):
        node.stop()
    a.stop()
    (a.state / "directory.redb").unlink()
    # All are told of all names by then.
    said = len(b.words())
    adopt_in_order(a, b, c, "b")
    assert "adopted 1 object" in b.words()[said:] and "of before" not in b.words()[said:], b.words()[said:]


def renamed_behind_a_copy(pool, folder, make_file):
    """Keeps a copy of the directory, `old.redb`, and then renames an object of b from `before` to `after`; returns its digest."""
    a, b, _ = pool
    expected = put_here(b, make_file, "before", MEBIBYTE)
    a.stop()
    shutil.copy(a.state / "directory.redb", folder / "old.redb")
    a.start()
    wait_until(lambda: members_up(a) == [True, True, True], why=a.words)
    mounted = Mount(b, folder)
    try:
        os.rename(mounted / "before", mounted / "after")
    finally:
        mounted.stop()
    return expected


def test_a_directory_that_is_older_takes_no_names_back_before_somebody_has_decided(pool, folder, make_file):
    a, b, c = pool
    expected = renamed_behind_a_copy(pool, folder, make_file)
    put_here(b, make_file, "new", MEBIBYTE)
    a.stop()
    shutil.copy(a.state / "directory.redb", folder / "newest.redb")
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    a.start()
    wait_until(lambda: "older than this node's objects" in b.words(), why=b.words)
    a.stop()
    shutil.copy(folder / "newest.redb", a.state / "directory.redb")
    a.start()
    wait_until(lambda: members_up(a) == [True, True, True], why=a.words)
    lose_the_directory(a, b, c)
    adopt_in_order(a, b, c, "b")
    assert names(a) == ["after", "new"]
    is_whole(a, "after", folder, expected)


def test_a_directory_that_is_older_by_a_rename_alone_is_said_to_be(pool, folder, make_file):
    a, b, c = pool
    expected = renamed_behind_a_copy(pool, folder, make_file)
    wait_until(lambda: names_kept(b) == ["after"], why=lambda: str(names_kept(b)))
    a.stop()
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    a.start()
    wait_until(lambda: "older than names that this node knew" in b.words(), why=b.words)
    assert "of 1 of its objects it has another one, such as before in place of after;" in b.words(), b.words()
    assert names(a) == ["before"] and "older than" not in c.words()
    is_whole(a, "before", folder, expected)


def names_kept(node):
    """The names in the headers of what a node holds."""
    headers = [path.read_bytes() for path in (node.state / "objects").glob("*.object")]
    return sorted(header[80 : 80 + int.from_bytes(header[64:68], "little")].decode() for header in headers)


def test_names_of_an_older_directory_that_somebody_has_put_back_are_those_that_nodes_keep(pool, folder, make_file):
    a, b, c = pool
    expected = renamed_behind_a_copy(pool, folder, make_file)
    put_here(b, make_file, "new", MEBIBYTE)
    wait_until(lambda: names_kept(b) == ["after", "new"], why=b.words)
    for node in (b, c, a):
        node.stop()
    shutil.copy(folder / "old.redb", a.state / "directory.redb")
    adopt_in_order(a, b, c, "b")
    assert names(a) == ["before", "new"]
    # From here on these are the names, also when this directory is lost.
    wait_until(lambda: names_kept(b) == ["before", "new"], why=b.words)
    lose_the_directory(a, b, c)
    adopt_in_order(a, b, c, "b")
    assert names(a) == ["before", "new"]
    is_whole(a, "before", folder, expected)



def test_a_disk_that_does_not_take_names_is_said(pool, make_file):
    a, b, c = pool
    (b.state / "names.new").mkdir()
    put_here(b, make_file, "file", MEBIBYTE)
    wait_until(lambda: "names of objects are not kept here" in b.words(), why=b.words)
    (b.state / "names.new").rmdir()
    wait_until(lambda: (b.state / "names").exists(), why=b.words)
