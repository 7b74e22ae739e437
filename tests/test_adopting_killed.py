"""A node is killed at every step of `hinterland node --adopt`, its own or the directory's: nothing is lost, or there twice, after the next starts.

Each step is named, so that one which is not passed any more fails its test. By default some of the directory's are tried;
HINTERLAND_FULL=1 tries all.
"""

import shutil
import signal

import pytest

from faults import FULL, MEBIBYTE, is_dead, start_armed, wait_until
from test_belonging import is_whole, put_here, start_adopting

ROOM = ["--capacity", "64M"]
OWN_STEPS = ["joined:1", "adopted:1", "rescue-written:1", "rescued:1", "let-go-dropped:1"]
# In its own start and in that of the other node: join, what is held, what is doubted, what is adopted, what is let go of.
DIRECTORY_STEPS = [f"directory-{step}:{count}" for count in range(1, 9) for step in ("planned", "durable")]


class Pool:
    """Node `a` with the directory, node `b`, and objects that the directory does not know any more."""

    def __init__(self, start_node, make_file, folder):
        self.a = start_node("a", options=ROOM)
        self.b = start_node("b", join=self.a.address, options=ROOM)
        self.folder, self.make_file = folder, make_file
        self.sums, self.rescued = {}, set()

    def put(self, node, name, size):
        self.sums[name] = put_here(node, self.make_file, name, size)

    def put_all(self):
        for node, name, size in [(self.a, "a/new", 5000), (self.b, "b/new", 3 * MEBIBYTE), (self.b, "b/small", 17)]:
            self.put(node, name, size)
        self.b.run("region", "create", "scratch", "2M", "--rack", "b")
        self.rescued.add("scratch")

    def put_the_directory_back(self):
        """To when it knew one object."""
        self.put(self.b, "kept", 3 * MEBIBYTE)
        self.a.stop()
        shutil.copy(self.a.state / "directory.redb", self.folder / "old.redb")
        self.a.start()
        wait_until(lambda: all(member["up"] for member in self.a.json("status")["members"]), why=self.a.words)
        self.put_all()
        self.a.stop()
        self.b.stop()
        shutil.copy(self.folder / "old.redb", self.a.state / "directory.redb")

    def lose_the_directory(self):
        """With its machine; another one has given the first number again."""
        self.put(self.b, "kept", 3 * MEBIBYTE)
        self.put_all()
        self.a.stop()
        self.a.state.rename(self.folder / "gone")
        self.a.start()
        del self.sums["a/new"], self.sums["kept"]
        self.rescued.add("kept")
        self.put(self.a, "put since", MEBIBYTE)
        self.b.stop()

    def check(self):
        """After a start as ever each object is there once, and whole, and what could not be taken in lies in a file."""
        for node in (self.a, self.b):
            node.stop()
            node.start()
        names = [row["name"] for row in self.a.json("ls")]
        assert sorted(names) == sorted(self.sums), names
        for name, expected in self.sums.items():
            is_whole(self.a, name, self.folder, expected)
            assert len(self.a.json("stat", name)["homes"]) == 1
            assert all(verified["bad"] == [] for verified in self.a.json("verify", name))
        files = [file.name for file in (self.b.state / "rescued").iterdir()]
        assert {name.partition("-")[2].removesuffix(".bytes") for name in files} == self.rescued, files
        assert len(files) == len(self.rescued), files


@pytest.fixture
def pool(start_node, make_file, folder):
    """A pool that nothing has happened to yet."""
    return Pool(start_node, make_file, folder)


def start_armed_adopting(node, step):
    node.options.append("--adopt")
    start_armed(node, step)
    node.options.remove("--adopt")


def start_again(node):
    """As people do: as ever, which may be refused and loses nothing, and then with --adopt."""
    if node.process.stdout is not None and not node.process.stdout.closed:
        node.process.stdout.close()
    try:
        node.start()
    except AssertionError:
        assert node.process.wait(timeout=10) == 1 and "--adopt" in node.words(), node.words()
        start_adopting(node)


def was_killed(node):
    """Whether it was killed at its step, once it is dead."""
    return is_dead(node) and node.process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("step", OWN_STEPS)
@pytest.mark.parametrize("what", ["put back", "lost"])
def test_a_node_that_is_killed_while_it_adopts(pool, what, step):
    if what == "lost":
        pool.lose_the_directory()
    else:
        pool.put_the_directory_back()
        start_adopting(pool.a)
    start_armed_adopting(pool.b, step)
    assert was_killed(pool.b), pool.b.words()
    start_again(pool.b)
    pool.check()


@pytest.mark.parametrize("step", ["joined:1", "adopted:1", *(DIRECTORY_STEPS if FULL else DIRECTORY_STEPS[1::3])])
def test_the_node_of_the_directory_is_killed_while_nodes_adopt(pool, step):
    pool.put_the_directory_back()
    start_armed_adopting(pool.a, step)
    if was_killed(pool.a):
        start_again(pool.a)
        start_adopting(pool.b)
    else:
        try:
            start_adopting(pool.b)
        except AssertionError:
            pool.b.options.remove("--adopt")
        wait_until(lambda: is_dead(pool.a), why=pool.a.words)
        assert was_killed(pool.a), pool.a.words()
        start_again(pool.a)
        if is_dead(pool.b):
            start_again(pool.b)
    pool.check()
