"""A node that is gone for good is taken out of the pool, and what it held in several copies is copied anew."""

import pytest

from faults import MEBIBYTE, sha, wait_until


@pytest.fixture
def three(start_node, make_file):
    """Nodes `a`, `b` and `c`; `twice` is in copies on b and another node, `once` on c alone."""
    options = ["--capacity", "64M", "--repair-after", "0"]
    a = start_node("a", options=options)
    b = start_node("b", join=a.address, options=options)
    c = start_node("c", join=a.address, options=options)
    path = make_file("content", 3 * MEBIBYTE)
    c.run("put", path, "--name", "twice", "--rack", "c", "--copies", "2")
    c.run("put", path, "--name", "once", "--rack", "c")
    return a, b, c, sha(path)


def addresses(node):
    """The addresses of the pool's members, and whether they are up."""
    return {member["address"]: member["up"] for member in node.json("status")["members"] or []}


def test_a_node_that_is_gone_is_forgotten_and_its_copies_are_made_anew(three, folder):
    a, b, c, expected = three
    up = a.run("forget", c.address, check=False)
    assert up.returncode == 1 and "is up" in up.stderr and "hint: stop it first" in up.stderr, up.stderr
    c.kill()
    wait_until(lambda: addresses(a)[c.address] is False, 30)
    last = a.run("forget", c.address, check=False)
    assert last.returncode == 1 and "has the only live copy of once\n" in last.stderr, last.stderr
    assert "hinterland forget NODE --lose-last-copies" in last.stderr and c.address in addresses(a)
    told = a.json("forget", c.address, "--lose-last-copies")
    assert told["lost"] == 1 and told["address"] == c.address
    assert set(addresses(a)) == {a.address, b.address}
    wait_until(lambda: len(a.json("stat", "twice")["homes"]) == 2, 30)
    a.run("get", "twice", folder / "read")
    assert sha(folder / "read") == expected
    lost = a.run("get", "once", folder / "lost", check=False)
    assert lost.returncode != 0 and "hint:" in lost.stderr, lost.stderr
    a.run("rm", "once")
    unknown = a.run("forget", c.address, check=False)
    assert unknown.returncode == 1 and "the pool has no node" in unknown.stderr, unknown.stderr


def test_nodes_are_shown_and_taken_out_by_the_names_that_people_gave_them(start_node):
    """Also after the directory has begun anew while one of them was down."""
    options = ["--capacity", "64M"]
    a = start_node("first", rack="north", options=options)
    b = start_node("second", rack="north", join=a.address, options=options)
    names = lambda: {member["name"]: member["up"] for member in a.json("status")["members"] or []}
    assert names() == {"first": True, "second": True}
    # Errors name other nodes as tables do, of the node that has the directory as of another one.
    for asked, other in [(a, "second"), (b, "first")]:
        wait_until(lambda: f"error: {other} (node-" in asked.run("forget", other, check=False).stderr, 10)
    b.kill()
    a.stop()
    a.start()
    wait_until(lambda: names() == {"first": True, "second": False}, 30)
    (shown,) = (line for line in a.run("status").stdout.splitlines() if "second" in line)
    assert shown.split()[:2] == ["north", "second"] and "down" in shown, shown
    told = a.run("forget", "second")
    assert told.stdout.startswith("second (node-"), told.stdout
    assert names() == {"first": True}
    metrics = a.run("metrics").stdout
    assert 'name="first"' in metrics and 'name="second"' not in metrics
