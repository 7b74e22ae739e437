"""A writable mount of a real pool: what programs write becomes objects, whole or not at all."""

import concurrent.futures
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from faults import MEBIBYTE, members_up, sha, wait_until

# Writes pieces, says so, waits for a line, and writes the rest.
IN_TWO = """
import os, sys
target = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
os.write(target, b"a" * 3_000_000)
print("begun", flush=True)
sys.stdin.readline()
os.write(target, b"b" * 3_000_000)
os.close(target)
print("closed", flush=True)
sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(
    not os.path.exists("/dev/fuse") or (os.getuid() != 0 and shutil.which("fusermount3") is None), reason="no right to mount"
)


def waits(pid):
    """What each thread of a process waits for, for the words of a failure."""
    threads = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            where = [open(f"/proc/{pid}/task/{thread}/{name}").read().strip() for name in ("wchan", "syscall", "stack")]
        except OSError as error:
            where = [str(error)]
        threads.append(f"{thread}: {' '.join(where)}")
    return "\n".join(threads)


def content(node, name):
    """An object's bytes as another program gets them; nothing while it is being replaced."""
    return subprocess.run(node.command("get", name, "-"), capture_output=True).stdout


class Mount:
    """A `hinterland mount --writable` process."""

    def __init__(self, node, folder, name="pool", options=("--writable",)):
        self.node = node
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                node.command("mount", self.folder, "--json", *options), stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert json.loads(self.process.stdout.readline())["ready"], self.log.read_text()

    def __truediv__(self, name):
        return self.folder / name

    def words(self):
        return self.log.read_text(errors="replace")

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the mount does not end: {waits(self.process.pid)}\n{self.words()}") from None
        self.process.stdout.close()
        if how == signal.SIGKILL:
            subprocess.run(["umount", "--lazy", self.folder], check=False)


@pytest.fixture
def mount(node, folder):
    """The node's pool, mounted writable."""
    mounted = Mount(node, folder)
    yield mounted
    if mounted.process.poll() is None:
        mounted.stop()


def names(node):
    return sorted(entry["name"] for entry in node.json("ls"))


def used(node):
    return node.json("status")["used_bytes"]


def digest_of(node, name):
    """The digest of an object; waits for it, for threads of a test may start a child while it closes a file."""
    wait_until(lambda: name in names(node))
    return node.json("stat", name)["digest"]


def start_writer(path):
    writer = subprocess.Popen([sys.executable, "-c", IN_TWO, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "begun\n"
    return writer


def finish(writer):
    writer.stdin.close()
    writer.stdout.close()
    return writer.wait(30)


def code_of(what):
    with pytest.raises(OSError) as caught:
        what()
    return caught.value.errno


def test_what_tools_write_is_an_object_when_they_have_closed_it(mount, node, make_file):
    source = make_file("source", 9 * MEBIBYTE + 777)
    subprocess.run(["cp", source, mount / "copied"], check=True)
    # Also for those who do not ask through the mount: what made it has closed it.
    assert node.json("stat", "copied")["bytes"] == source.stat().st_size
    subprocess.run(["cp", "-p", source, mount / "kept"], check=True)
    subprocess.run(["dd", f"if={source}", f"of={mount / 'dd'}", "bs=100000", "status=none"], check=True)
    subprocess.run(f"cat {source} > {mount / 'cat'}; (head -c 5 {source}; tail -c +6 {source}) > {mount / 'parts'}",
                   shell=True, check=True)
    shutil.copyfile(source, mount / "python")
    for name in ("copied", "kept", "dd", "cat", "parts", "python"):
        assert sha(mount / name) == sha(source), name
        assert node.run("verify", name).returncode == 0
        assert node.run("get", name, "-", text=False).stdout == source.read_bytes()


def test_a_name_is_there_as_soon_as_its_file_is_closed_and_with_all_bytes(mount):
    for number in range(60):
        path = mount / f"many/{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]) * (number * 1000))
        assert path.stat().st_size == number * 1000 and path.read_bytes() == bytes([number]) * (number * 1000)
    assert len(os.listdir(mount / "many")) == 60


def test_the_pool_sees_a_file_when_it_is_closed_and_the_mount_as_it_grows(mount, node, folder):
    writer = start_writer(mount / "half")
    other = Mount(node, folder, "other")
    # Whoever opens it here shares what is written; everybody else finds nothing, and cannot take its name.
    assert (mount / "half").stat().st_size == 3_000_000 and os.listdir(mount.folder) == ["half"]
    assert (mount / "half").read_bytes() == b"a" * 3_000_000
    assert "half" not in names(node) and not (other / "half").exists() and os.listdir(other.folder) == []
    assert code_of(lambda: os.open(other / "half", os.O_WRONLY | os.O_CREAT | os.O_EXCL)) == errno.EEXIST
    assert code_of(lambda: os.open(other / "half", os.O_WRONLY | os.O_CREAT)) == errno.EBUSY
    assert code_of(lambda: os.open(mount / "half", os.O_WRONLY | os.O_CREAT | os.O_EXCL)) == errno.EEXIST
    writer.stdin.write("go on\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "closed\n"
    whole = b"a" * 3_000_000 + b"b" * 3_000_000
    assert (mount / "half").read_bytes() == whole
    wait_until(lambda: (other / "half").exists())
    assert (other / "half").read_bytes() == whole
    assert finish(writer) == 0
    other.stop()


def test_a_writer_that_is_killed_leaves_nothing_and_its_name_is_free(mount, node):
    before = used(node)
    writer = start_writer(mount / "killed")
    writer.kill()
    finish(writer)
    wait_until(lambda: used(node) == before)
    assert "killed" not in names(node) and not (mount / "killed").exists()
    (mount / "killed").write_bytes(b"again")
    assert (mount / "killed").read_bytes() == b"again"


def test_a_mount_that_is_killed_leaves_nothing(node, folder):
    mounted, before = Mount(node, folder), used(node)
    writer = start_writer(mounted / "half")
    mounted.stop(signal.SIGKILL)
    wait_until(lambda: used(node) == before)
    writer.stdin.write("go on\n")
    finish(writer)
    assert names(node) == []
    again = Mount(node, folder)
    (again / "half").write_bytes(b"whole")
    assert (again / "half").read_bytes() == b"whole" and node.run("get", "half", "-").stdout == "whole"
    again.stop()


def test_a_node_that_dies_makes_the_writer_fail_and_leaves_nothing(mount, node):
    writer = start_writer(mount / "half")
    node.kill()
    writer.stdin.write("go on\n")
    assert finish(writer) != 0
    node.start()
    wait_until(lambda: names(node) == [])
    (mount / "half").write_bytes(b"whole")
    assert (mount / "half").read_bytes() == b"whole" and names(node) == ["half"]


def test_a_full_pool_is_said_to_the_writer_and_nothing_leaks(start_node, folder):
    node = start_node("small", options=["--capacity", "16M"])
    mounted = Mount(node, folder)
    try:
        before = used(node)
        with open("/dev/zero", "rb") as zeros:
            outcome = subprocess.run(["dd", f"of={mounted / 'large'}", "bs=1M", "count=64"], stdin=zeros, capture_output=True, text=True)
        assert outcome.returncode != 0 and "No space left" in outcome.stderr
        assert 'writing of "large" failed' in mounted.words(), mounted.words()
        wait_until(lambda: used(node) == before)
        assert names(node) == []
        (mounted / "small").write_bytes(b"x" * MEBIBYTE)
        assert (mounted / "small").stat().st_size == MEBIBYTE
    finally:
        mounted.stop()


def test_a_file_for_which_the_own_node_has_no_room_goes_to_another_one(start_node, folder):
    a = start_node("a", options=["--capacity", "16M"])
    b = start_node("b", join=a.address, options=["--capacity", "256M"])
    wait_until(lambda: members_up(a) == [True, True])
    mounted = Mount(a, folder)
    try:
        # One that outgrows what stays in memory, so that the first node has its beginning; and one of which it has nothing.
        for name, mebibytes in (("large", 70), ("middle", 20)):
            with open(mounted / name, "w+b", buffering=0) as file:
                for number in range(mebibytes):
                    file.write(bytes([number]) * MEBIBYTE)
                expected = b"".join(bytes([number]) * MEBIBYTE for number in range(mebibytes))
                assert code_of(lambda n=name: os.open(mounted / n, os.O_WRONLY | os.O_CREAT | os.O_EXCL)) == errno.EEXIST
                file.seek(0)
                assert file.read() == expected
            wait_until(lambda n=name: n in names(a))
            assert content(b, name) == expected and a.run("verify", name).returncode == 0
            assert [home["rack"] for home in a.json("stat", name)["homes"]] == [b.rack]
        assert used(a) < 16 * MEBIBYTE
        (mounted / "small").write_bytes(b"here")
        file = open(mounted / "too-large", "wb", buffering=0)
        assert code_of(lambda: [file.write(bytes(MEBIBYTE)) for _ in range(400)]) == errno.ENOSPC
        assert code_of(file.close) == errno.ENOSPC
    finally:
        mounted.stop()


def test_files_are_written_anywhere_and_holes_are_zeros(mount, node):
    with open(mount / "holes", "wb", buffering=0) as target:
        os.pwrite(target.fileno(), b"tail", 200_000)
        os.pwrite(target.fileno(), b"head", 0)
        os.ftruncate(target.fileno(), 200_010)
    assert (mount / "holes").read_bytes() == b"head" + bytes(199_996) + b"tail" + bytes(6)
    with open(mount / "backwards", "wb", buffering=0) as target:
        for at in reversed(range(40)):
            os.pwrite(target.fileno(), bytes([at]) * 50_000, at * 50_000)
    assert (mount / "backwards").read_bytes() == b"".join(bytes([at]) * 50_000 for at in range(40))
    (mount / "empty").touch()
    assert (mount / "empty").read_bytes() == b"" and names(node) == ["backwards", "empty", "holes"]
    assert all(node.run("verify", name).returncode == 0 for name in names(node))


def test_a_large_file_whose_header_is_written_last_is_whole(mount, node):
    # More than stays in memory: its beginning has gone to the pool by then.
    with open(mount / "large", "wb", buffering=0) as target:
        for number in range(50):
            target.write(bytes([number]) * MEBIBYTE)
        os.pwrite(target.fileno(), b"header", 0)
        target.write(b"end")
    expected = b"header" + b"".join(bytes([number]) * MEBIBYTE for number in range(50))[6:] + b"end"
    assert (mount / "large").read_bytes() == expected
    assert node.run("verify", "large").returncode == 0


def test_a_large_file_that_is_removed_or_replaced_as_it_is_written_leaves_its_name_to_others(mount, node):
    # More than stays in memory: the pool has its beginning, which its descriptor reads on.
    pieces = [bytes([number]) * MEBIBYTE for number in range(1, 41)]

    def begin(name):
        file = open(mount / name, "w+b", buffering=0)
        for piece in pieces:
            file.write(piece)
        return file

    def goes_on(file):
        file.write(b"end")
        file.seek(0)
        return file.read() == b"".join(pieces) + b"end"

    before = used(node)
    with begin("removed") as file:
        os.unlink(mount / "removed")
        (mount / "removed").write_bytes(b"anew")
        assert (mount / "removed").read_bytes() == b"anew" and goes_on(file)
    (mount / "source").write_bytes(b"sealed")
    with begin("replaced") as file:
        os.rename(mount / "source", mount / "replaced")
        assert (mount / "replaced").read_bytes() == b"sealed" and goes_on(file)
    with begin("written") as file, open(mount / "draft", "wb", buffering=0) as draft:
        draft.write(b"draft")
        os.rename(mount / "draft", mount / "written")
        draft.close()
        assert (mount / "written").read_bytes() == b"draft" and goes_on(file)
    assert sorted(os.listdir(mount.folder)) == ["removed", "replaced", "written"]
    assert [content(node, name) for name in ("removed", "replaced", "written")] == [b"anew", b"sealed", b"draft"]
    for name in os.listdir(mount.folder):
        os.unlink(mount / name)
    wait_until(lambda: used(node) == before)


def test_an_object_is_replaced_when_it_was_written_and_readers_keep_the_old_one(mount, node):
    path = mount / "folder/name"
    path.parent.mkdir()
    path.write_bytes(b"first " * 50_000)
    digest = digest_of(node, "folder/name")
    with open(path, "rb") as reader:
        with open(path, "r+b", buffering=0) as writer:
            writer.seek(100_000)
            writer.write(b"SECOND")
            assert digest_of(node, "folder/name") == digest
            # Opened by its name it is the new one, opened before it is the old one.
            assert path.read_bytes()[100_000:100_006] == b"SECOND"
        assert reader.read() == b"first " * 50_000
    wait_until(lambda: digest_of(node, "folder/name") != digest)
    expected = bytearray(b"first " * 50_000)
    expected[100_000:100_006] = b"SECOND"
    assert path.read_bytes() == expected and node.run("verify", "folder/name").returncode == 0
    with open(path, "ab") as writer:
        writer.write(b"more")
    assert path.read_bytes() == expected + b"more"
    os.truncate(path, 5)
    assert path.read_bytes() == b"first"
    wait_until(lambda: content(node, "folder/name") == b"first")
    path.write_bytes(b"anew")
    assert path.read_bytes() == b"anew" and names(node) == ["folder/name"]


def test_an_object_that_is_only_looked_at_for_writing_stays_the_same(mount, node):
    (mount / "same").write_bytes(b"x" * 100_000)
    digest_of(node, "same")
    before = node.json("stat", "same")
    with open(mount / "same", "r+b") as file:
        assert file.read() == b"x" * 100_000
    assert node.json("stat", "same") == before and (mount / "same").stat().st_ino == before["object"]


def test_a_file_that_is_opened_to_be_read_may_be_emptied_by_that(mount, node):
    path = mount / "emptied"
    for _ in range(2):
        path.write_bytes(b"x" * 100_000)
        digest_of(node, "emptied")
        reader = os.open(path, os.O_RDONLY | os.O_TRUNC)
        assert os.read(reader, 10) == b"" and os.fstat(reader).st_size == 0
        assert code_of(lambda: os.write(reader, b"y")) == errno.EBADF
        os.close(reader)
        assert path.read_bytes() == b""
        wait_until(lambda: content(node, "emptied") == b"")
    # While another one writes it, too.
    with open(path, "wb", buffering=0) as writer:
        writer.write(b"z" * 100)
        os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
        assert path.stat().st_size == 0
        writer.write(b"end")
    assert path.read_bytes() == bytes(100) + b"end"


def test_a_writer_that_is_killed_leaves_the_old_object(mount, node):
    (mount / "kept").write_bytes(b"old " * 1000)
    digest_of(node, "kept")
    before, bytes_before = node.json("stat", "kept"), used(node)
    script = "import os, sys, time; f = os.open(sys.argv[1], os.O_RDWR); os.write(f, b'new'); print('x', flush=True); time.sleep(60)"
    writer = subprocess.Popen([sys.executable, "-c", script, mount / "kept"], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"x\n" and (mount / "kept").read_bytes()[:4] == b"new "
    writer.kill()
    writer.wait(30)
    writer.stdout.close()
    wait_until(lambda: (mount / "kept").read_bytes() == b"old " * 1000)
    assert node.json("stat", "kept") == before
    wait_until(lambda: used(node) == bytes_before)


def test_a_file_whose_writer_is_killed_can_be_opened_for_writing_at_that_moment(mount):
    (mount / "old").write_bytes(b"old" * 100)
    refused = set()
    for _ in range(60):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(os.open(mount / "old", os.O_RDWR), b"new")
            os.write(writing, b"x")
            signal.pause()
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        os.close(writing)
        os.kill(child, signal.SIGKILL)
        for _ in range(20):
            try:
                file = os.open(mount / "old", os.O_RDWR)
            except OSError as error:
                refused.add(errno.errorcode[error.errno])
                continue
            # What the other one had begun is lost, and who had it open as well hears of it.
            with contextlib.suppress(OSError):
                os.close(file)
        os.waitpid(child, 0)
    assert not refused
    wait_until(lambda: (mount / "old").read_bytes() == b"old" * 100)


def test_a_file_that_another_mount_makes_at_that_moment_can_be_opened_or_is_busy(mount, node, folder):
    other = Mount(node, folder, "other")
    chance = random.Random(1)

    def write(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, b"bytes")
        os.close(file)

    refused = set()
    for turn in range(250):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(OSError):
                write(other / str(turn))
            os._exit(0)
        end = time.perf_counter() + chance.random() * 0.006
        while time.perf_counter() < end:
            pass
        try:
            write(mount / str(turn))
        except OSError as error:
            refused.add(errno.errorcode[error.errno])
        os.waitpid(child, 0)
    other.stop()
    assert refused <= {"EBUSY"}


def test_names_change_in_one_step(mount, node):
    (mount / "a/b").mkdir(parents=True)
    for name in ("a/one", "a/b/two", "x"):
        (mount / name).write_bytes(name.encode())
    objects = {name: (mount / name).stat().st_ino for name in ("a/one", "a/b/two", "x")}
    os.rename(mount / "x", mount / "a/one")
    assert (mount / "a/one").read_bytes() == b"x" and names(node) == ["a/b/two", "a/one"]
    assert (mount / "a/one").stat().st_ino == objects["x"]
    os.rename(mount / "a", mount / "c")
    assert names(node) == ["c/b/two", "c/one"] and (mount / "c/b/two").read_bytes() == b"a/b/two"
    assert code_of(lambda: os.rename(mount / "c", mount / "c/b/inside")) == errno.EINVAL
    (mount / "full").mkdir()
    (mount / "full/file").touch()
    assert code_of(lambda: os.rename(mount / "c", mount / "full")) in (errno.ENOTEMPTY, errno.EEXIST)
    assert code_of(lambda: os.rename(mount / "c", mount / "full/file")) == errno.ENOTDIR
    assert code_of(lambda: os.rename(mount / "full/file", mount / "c")) == errno.EISDIR
    with open(mount / "open", "wb", buffering=0) as file:
        file.write(b"written ")
        os.rename(mount / "open", mount / "full/file")
        file.write(b"on")
    assert (mount / "full/file").read_bytes() == b"written on" and not (mount / "open").exists()
    with open(mount / "full/file", "rb") as reader:
        os.rename(mount / "c/one", mount / "full/file")
        assert reader.read() == b"written on"
    assert names(node) == ["c/b/two", "full/file"]
    (mount / "c/b/two").unlink()
    assert os.listdir(mount / "c/b") == [] and names(node) == ["full/file"]
    (mount / "c/b").rmdir()
    (mount / "c").rmdir()
    assert os.listdir(mount.folder) == ["full"]


def test_a_folder_is_renamed_whole_or_not_at_all(mount, node):
    deep = mount / "a" / "/".join(letter * 230 for letter in "bcde")
    deep.mkdir(parents=True)
    (mount / "a/kept").write_bytes(b"kept")
    far_too_long = mount / ("f" * 200)
    # A file that is being written would have a longer name than any object.
    with open(deep / "written", "wb", buffering=0) as file:
        file.write(b"some ")
        assert code_of(lambda: os.rename(mount / "a", far_too_long)) == errno.ENAMETOOLONG
        assert os.listdir(mount.folder) == ["a"] and names(node) == ["a/kept"]
        file.write(b"more")
    assert (deep / "written").read_bytes() == b"some more"
    (deep / "written").unlink()
    # So would a folder without a file.
    assert code_of(lambda: os.rename(mount / "a", far_too_long)) == errno.ENAMETOOLONG
    assert os.listdir(mount.folder) == ["a"] and names(node) == ["a/kept"] and os.listdir(deep) == []


def rename_with(flags, source, target):
    """`renameat2`, for which Python has no function."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def test_names_are_exchanged_or_kept_if_a_program_asks_for_that(mount, node):
    (mount / "one").write_bytes(b"1")
    (mount / "two").write_bytes(b"2")
    assert code_of(lambda: rename_with(1, mount / "one", mount / "two")) == errno.EEXIST
    rename_with(2, mount / "one", mount / "two")
    assert (mount / "one").read_bytes() == b"2" and (mount / "two").read_bytes() == b"1"
    rename_with(1, mount / "one", mount / "three")
    assert names(node) == ["three", "two"]
    (mount / "folder").mkdir()
    assert code_of(lambda: rename_with(2, mount / "folder", mount / "two")) == errno.EINVAL


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "written"])
def test_a_name_that_two_hosts_give_without_replacing_goes_to_one(mount, node, folder, is_sealed):
    """Programs of several hosts take turns by that: who gets the name has the turn."""
    other = Mount(node, folder, "other")
    mounts = (mount, other)
    barrier = threading.Barrier(2)
    for number in range(40):
        with contextlib.ExitStack() as opened:
            for place, mounted in enumerate(mounts):
                file = open(mounted / f"mine-{place}", "wb", buffering=0)
                opened.enter_context(file).write(b"%d" % place)
                if is_sealed:
                    file.close()
                    wait_until(lambda p=place: f"mine-{p}" in names(node))

            def take(place, name=f"turn-{number}"):
                barrier.wait()
                try:
                    rename_with(1, mounts[place] / f"mine-{place}", mounts[place] / name)
                    return True
                except FileExistsError:
                    return False

            with concurrent.futures.ThreadPoolExecutor(2) as threads:
                have = list(threads.map(take, (0, 1)))
        assert sorted(have) == [False, True], f"turn {number}: {have}"
        wait_until(lambda n=number, h=have: content(node, f"turn-{n}") == (b"0" if h[0] else b"1"))
        loser = 1 if have[0] else 0
        wait_until(lambda p=loser: f"mine-{p}" in names(node))
        assert (mounts[loser] / f"mine-{loser}").read_bytes() == b"%d" % loser
    other.stop()


def test_what_is_removed_is_read_on_and_its_room_is_back(mount, node):
    before = used(node)
    (mount / "sealed").write_bytes(b"s" * 3 * MEBIBYTE)
    new = open(mount / "new", "w+b", buffering=0)
    new.write(b"n" * 3 * MEBIBYTE)
    sealed = open(mount / "sealed", "rb")
    (mount / "sealed").unlink()
    (mount / "new").unlink()
    assert os.listdir(mount.folder) == [] and os.fstat(new.fileno()).st_nlink == 0
    wait_until(lambda: used(node) == before)
    assert sealed.read() == b"s" * 3 * MEBIBYTE
    new.write(b"more")
    new.seek(0)
    assert new.read() == b"n" * 3 * MEBIBYTE + b"more"
    sealed.close()
    new.close()
    assert names(node) == [] and used(node) == before


def test_a_mapping_of_a_file_that_is_being_written_reaches_the_pool(mount, node):
    import mmap
    with open(mount / "mapped", "w+b") as file:
        file.truncate(300_000)
        with mmap.mmap(file.fileno(), 300_000) as mapping:
            mapping[100_000:100_005] = b"hello"
            mapping.flush()
            mapping[299_999] = 7
    expected = bytearray(300_000)
    expected[100_000:100_005], expected[299_999] = b"hello", 7
    assert (mount / "mapped").read_bytes() == expected
    # The descriptor goes first, as numpy's memmap does it.
    script = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(file, 300_000)
os.close(file)
mapping[0:4] = b"late"
mapping.close()
"""
    subprocess.run([sys.executable, "-c", script, mount / "mapped"], check=True)
    expected[0:4] = b"late"
    wait_until(lambda: content(node, "mapped") == bytes(expected))


def test_attributes_decide_where_a_file_lies(two_racks, folder):
    a, _ = two_racks
    mounted = Mount(a, folder)
    try:
        (mounted / "far").mkdir()
        os.setxattr(mounted / "far", "user.hinterland.rack", b"b")
        assert os.getxattr(mounted / "far", "user.hinterland.rack") == b"b"
        (mounted / "far/one").write_bytes(b"1" * 100_000)
        with open(mounted / "two", "wb", buffering=0) as file:
            os.setxattr(file.fileno(), "user.hinterland.copies", b"2")
            file.write(b"2" * 100_000)
            assert code_of(lambda: os.setxattr(file.fileno(), "user.hinterland.copies", b"1")) == errno.EBUSY
        (mounted / "near").write_bytes(b"3")
        for name in ("far/one", "near", "two"):
            digest_of(a, name)
        racks = {entry["name"]: sorted(home["rack"] for home in entry["homes"]) for entry in a.json("ls")}
        assert racks == {"far/one": ["b"], "near": ["a"], "two": ["a", "b"]}
        assert os.getxattr(mounted / "two", "user.hinterland.copies") == b"2"
        assert os.getxattr(mounted / "two", "user.hinterland.state") == b"sealed"
        assert (mounted / "far/one").read_bytes() == b"1" * 100_000
        for name, value, code in (("rack", b"none", errno.EBUSY), ("digest", b"x", errno.EPERM)):
            assert code_of(lambda n=name, v=value: os.setxattr(mounted / "near", f"user.hinterland.{n}", v)) == code
        assert code_of(lambda: os.setxattr(mounted / "near", "user.comment", b"x")) == errno.EOPNOTSUPP
    finally:
        mounted.stop()


def test_attributes_are_made_replaced_or_taken_away_as_a_program_asks(mount):
    (mount / "folder").mkdir()
    name = "user.hinterland.copies"
    assert code_of(lambda: os.setxattr(mount / "folder", name, b"2", os.XATTR_REPLACE)) == errno.ENODATA
    assert code_of(lambda: os.removexattr(mount / "folder", name)) == errno.ENODATA
    os.setxattr(mount / "folder", name, b"2", os.XATTR_CREATE)
    assert code_of(lambda: os.setxattr(mount / "folder", name, b"3", os.XATTR_CREATE)) == errno.EEXIST
    assert os.getxattr(mount / "folder", name) == b"2"
    os.setxattr(mount / "folder", name, b"1", os.XATTR_REPLACE)
    os.removexattr(mount / "folder", name)
    assert code_of(lambda: os.getxattr(mount / "folder", name)) == errno.ENODATA
    with open(mount / "file", "wb", buffering=0) as file:
        # A file always has a number of copies, and a rack when one was named.
        assert code_of(lambda: os.setxattr(file.fileno(), name, b"1", os.XATTR_CREATE)) == errno.EEXIST
        os.setxattr(file.fileno(), name, b"1", os.XATTR_REPLACE)
        assert code_of(lambda: os.removexattr(file.fileno(), "user.hinterland.rack")) == errno.ENODATA


def test_modes_and_times_are_remembered_by_the_mount(mount):
    (mount / "file").write_bytes(b"x")
    os.chmod(mount / "file", 0o751)
    os.utime(mount / "file", (1_000_000_000, 1_100_000_000))
    status = (mount / "file").stat()
    assert (status.st_mode & 0o7777, status.st_atime, status.st_mtime) == (0o751, 1_000_000_000, 1_100_000_000)
    os.rename(mount / "file", mount / "moved")
    assert (mount / "moved").stat().st_mtime == 1_100_000_000
    with open(mount / "moved", "ab") as file:
        file.write(b"y")
    status = (mount / "moved").stat()
    assert status.st_mode & 0o7777 == 0o751 and abs(status.st_mtime - time.time()) < 100


def test_hard_links_and_special_files_are_refused(mount):
    (mount / "file").touch()
    for what in (
        lambda: os.link(mount / "file", mount / "other"),
        lambda: os.mkfifo(mount / "other"),
    ):
        assert code_of(what) == errno.EPERM
    assert code_of(lambda: os.open(mount.folder, os.O_TMPFILE | os.O_RDWR)) == errno.EOPNOTSUPP


def test_two_writers_in_one_mount_share_the_file_and_in_two_the_last_close_wins(mount, node, folder):
    other = Mount(node, folder, "other")
    (mount / "file").write_bytes(b"0" * 10)
    one, two = (open(mount / "file", "r+b", buffering=0) for _ in range(2))
    os.pwrite(one.fileno(), b"1", 0)
    os.pwrite(two.fileno(), b"2", 9)
    one.close()
    two.close()
    wait_until(lambda: content(node, "file") == b"1000000002")
    time.sleep(1.1)
    here, there = open(mount / "file", "r+b", buffering=0), open(other / "file", "r+b", buffering=0)
    os.pwrite(here.fileno(), b"h", 0)
    os.pwrite(there.fileno(), b"t", 1)
    here.close()
    wait_until(lambda: content(node, "file") == b"h000000002")
    there.close()
    wait_until(lambda: content(node, "file") == b"1t00000002")
    other.stop()


def test_a_lost_node_fails_the_next_call_and_the_old_object_is_there_when_it_is_back(mount, node):
    (mount / "kept").write_bytes(b"old")
    file = open(mount / "kept", "r+b", buffering=0)
    file.write(b"new")
    node.kill()
    assert code_of(lambda: file.write(b"x")) == errno.EIO
    assert code_of(file.close) == errno.EIO
    assert "kept was not published" in mount.words()
    node.start()
    wait_until(lambda: (mount / "kept").read_bytes() == b"old")


def test_a_program_with_children_has_an_object_when_it_has_closed_the_file(mount, node):
    """The node and the mount are children of this process."""
    for number in range(20):
        (mount / f"file-{number}").write_bytes(b"whole")
        assert f"file-{number}" in names(node)


# Starts and ends threads all the time, without an end.
THREADS_COME_AND_GO = """
import threading, time
print("begun", flush=True)
while True:
    one = threading.Thread(target=time.sleep, args=(0.001,))
    one.start()
    one.join()
"""


def is_there_when_closed(mount, file):
    """Whether the pool has a file when `close` returns: what comes a moment later the mount, which is stopped, does not do."""
    name = os.path.relpath(file.name, mount.folder)
    file.close()
    os.kill(mount.process.pid, signal.SIGSTOP)
    try:
        return name in names(mount.node)
    finally:
        os.kill(mount.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("is_younger", [False, True], ids=["older", "younger"])
def test_children_whose_threads_come_and_go_hold_up_no_file(mount, is_younger):
    late = []
    with contextlib.ExitStack() as children:
        def start():
            child = children.enter_context(subprocess.Popen([sys.executable, "-c", THREADS_COME_AND_GO], stdout=subprocess.PIPE, text=True))
            children.callback(child.kill)
            assert child.stdout.readline() == "begun\n"

        # The mount is a child too.
        if not is_younger:
            start()
        for number in range(60):
            file = open(mount / f"file-{number}", "wb", buffering=0)
            file.write(b"whole")
            if is_younger and number % 15 == 0:
                start()
            if not is_there_when_closed(mount, file):
                late.append(number)
    assert late == []


def test_a_file_that_a_program_has_opened_twice_is_there_when_it_has_closed_both(mount):
    late = []
    for number in range(60):
        first, second = (open(mount / f"file-{number}", "ab", buffering=0) for _ in range(2))
        first.write(b"one ")
        second.write(b"two")
        first.close()
        if not is_there_when_closed(mount, second):
            late.append(number)
    assert late == []


# Writes files in many threads, while others start programs, each of which has descriptors of some files until it is another program.
IN_THREADS = """
import os, subprocess, sys, threading
folder, count = sys.argv[1], int(sys.argv[2])
over = threading.Event()

def start():
    while not over.is_set():
        subprocess.run(["true"])

def write(place):
    for number in range(count):
        with open(f"{folder}/{place}-{number}", "wb", buffering=0) as file:
            for _ in range(4):
                file.write(b"%d" % place * 20_000)

starters = [threading.Thread(target=start) for _ in range(2)]
writers = [threading.Thread(target=write, args=(place,)) for place in range(8)]
for thread in starters + writers:
    thread.start()
print("begun", flush=True)
for thread in writers:
    thread.join()
over.set()
for thread in starters:
    thread.join()
"""


def test_a_program_of_many_threads_that_start_programs_writes_files(mount, node):
    subprocess.run([sys.executable, "-c", IN_THREADS, mount.folder, "15"], check=True, timeout=120)
    expected = {f"{place}-{number}": b"%d" % place * 80_000 for place in range(8) for number in range(15)}
    wait_until(lambda: names(node) == sorted(expected))
    assert {name: content(node, name) for name in expected} == expected


def test_a_program_of_many_threads_that_is_killed_leaves_whole_files_or_none(mount, node):
    chance = random.Random(7)
    for turn in range(12):
        (mount / str(turn)).mkdir()
        program = subprocess.Popen([sys.executable, "-c", IN_THREADS, mount / str(turn), "1000"], stdout=subprocess.PIPE, text=True)
        assert program.stdout.readline() == "begun\n"
        time.sleep(0.05 + chance.random() * 0.2)
        program.kill()
        program.wait(30)
        program.stdout.close()
    # What was closed last is published by now, too.
    wait_until(lambda: names(node) == sorted(f"{turn}/{name}" for turn in range(12) for name in os.listdir(mount / str(turn))))
    parts = {name: len(found) for name in names(node) if (found := content(node, name)) != name.split("/")[1][:1].encode() * 80_000}
    assert parts == {}


def test_a_descriptor_that_a_child_has_keeps_the_file_open(mount):
    path = mount / "shared"
    with open(path, "wb", buffering=0) as target:
        target.write(b"parent ")
        child = subprocess.Popen(["sh", "-c", "sleep 0.3; echo child"], stdout=target)
    # The parent has closed it, the child writes later.
    child.wait(30)
    wait_until(path.exists)
    assert path.read_bytes() == b"parent child\n"


def test_writers_at_once_get_what_each_has_written(mount):
    script = "import sys; open(sys.argv[1], 'wb').write(sys.argv[2].encode() * 700_000)"
    writers = [subprocess.Popen([sys.executable, "-c", script, mount / f"w{n}", f"{n:04}"]) for n in range(6)]
    assert [writer.wait(60) for writer in writers] == [0] * 6
    for number in range(6):
        assert (mount / f"w{number}").read_bytes() == f"{number:04}".encode() * 700_000


def test_programs_that_rewrite_a_file_at_once_find_it_each_time(mount, node):
    """None of them makes it; each opens what others have just written and closed."""
    (mount / "shared").write_bytes(bytes(4096))
    script = (
        "import os, sys\n"
        "for number in range(250):\n"
        "    with open(sys.argv[1], 'r+b', buffering=0) as file: os.pwrite(file.fileno(), sys.argv[2].encode() * 1024, 1024 * int(sys.argv[2]))\n"
        "    if number % 25 == 0: os.truncate(sys.argv[1], 4096)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, mount / "shared", str(number)], stderr=subprocess.PIPE, text=True) for number in range(4)]
    assert [(writer.communicate(timeout=120)[1], writer.returncode) for writer in writers] == [("", 0)] * 4
    whole = b"".join(str(number).encode() * 1024 for number in range(4))
    assert (mount / "shared").read_bytes() == whole
    wait_until(lambda: content(node, "shared") == whole)


def test_a_mount_that_would_hide_the_socket_of_the_node_is_refused(node):
    place = os.path.dirname(os.path.realpath(node.socket))
    for words in (["mount", place], ["run", "--at", place, "--", "true"]):
        # One that is there is ended as a busy one, and fails the test.
        ended = subprocess.run(["timeout", "20", *node.command(*words)], capture_output=True, text=True)
        assert ended.returncode == 1 and "by which the node is reached" in ended.stderr and "hint:" in ended.stderr, ended


def test_read_only_is_the_default(node, folder):
    mounted = Mount(node, folder, options=())
    try:
        assert code_of(lambda: open(mounted / "new", "wb")) == errno.EROFS
        node.run("put", sys.executable, "--name", "kept")
        assert code_of(lambda: os.open(mounted / "kept", os.O_RDONLY | os.O_TRUNC)) == errno.EROFS
    finally:
        mounted.stop()


def test_a_read_waits_for_a_node_that_is_started_again(start_node, make_file, folder, monkeypatch):
    monkeypatch.setenv("HINTERLAND_GRACE_S", "3")
    home = start_node("b", options=["--capacity", "64M"])
    node = start_node("a", join=home.address, options=["--capacity", "64M"])
    source = make_file("source", 24 << 20)
    home.run("put", source, "--name", "data")
    mounted = Mount(node, folder, options=())
    try:
        with open(mounted / "data", "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 4096, 0) == source.read_bytes()[:4096]
            node.kill()
            again = threading.Timer(0.5, node.start)
            again.start()
            middle = os.pread(file.fileno(), 4096, 12 << 20)
            again.join()
            assert middle == source.read_bytes()[12 << 20:][:4096]
            node.kill()
            assert code_of(lambda: os.pread(file.fileno(), 4096, 20 << 20)) == errno.ENOTCONN
            assert "data" in mounted.words(), "the reason is in its log"
    finally:
        mounted.stop()
        node.start()


def test_whoever_uses_files_waits_for_a_node_that_is_started_again(node, folder, monkeypatch):
    monkeypatch.setenv("HINTERLAND_GRACE_S", "20")
    mounted = Mount(node, folder)
    uses = {
        "open": lambda: (mounted / "kept").read_bytes(),
        "write": lambda: (mounted / "new").write_bytes(b"new"),
        "rewrite": lambda: (mounted / "other").write_bytes(b"anew"),
        "stat": lambda: (mounted / "kept").stat().st_size,
        "list": lambda: {"kept", "other"} <= set(os.listdir(mounted.folder)),
        "rename": lambda: os.rename(mounted / "moved", mounted / "there"),
        "remove": lambda: os.unlink(mounted / "gone"),
        "room": lambda: os.statvfs(mounted.folder).f_blocks > 0,
    }
    try:
        for name in ("kept", "other", "moved", "gone"):
            node.run("put", "-", "--name", name, input="bytes")
        node.kill()
        with concurrent.futures.ThreadPoolExecutor(len(uses)) as threads:
            begun = {what: threads.submit(use) for what, use in uses.items()}
            wait_until(lambda: "waits up to 20 s for the node" in mounted.words())
            node.start()
            outcomes = {what: use.result(60) for what, use in begun.items()}
        assert outcomes == {"open": b"bytes", "write": 3, "rewrite": 4, "stat": 5, "list": True, "rename": None, "remove": None, "room": True}
        assert sorted(os.listdir(mounted.folder)) == ["kept", "new", "other", "there"]
        assert mounted.words().count("waits up to") == 1 and "the node answers again" in mounted.words()
    finally:
        mounted.stop()


def test_a_program_that_is_killed_while_it_opens_a_file_leaves_nothing(mount, node):
    (mount / "old").write_bytes(b"old" * 100)
    chance = random.Random(5)
    for turn in range(400):
        name = mount / (f"new-{turn}" if turn % 2 else "old")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"x")
            os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            signal.pause()
        os.read(reading, 1)
        os.close(reading)
        os.close(writing)
        end = time.perf_counter() + chance.random() * 0.003
        while time.perf_counter() < end:
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    wait_until(lambda: names(node) == ["old"])
    assert (mount / "old").read_bytes() == b"old" * 100


def test_a_writer_is_not_disturbed_by_who_looks_at_the_file(mount):
    (mount / "file").write_bytes(b"0" * 1000)
    over = threading.Event()

    def look():
        while not over.is_set():
            with open(mount / "file", "rb") as file:
                file.read()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for turn in range(300):
            with open(mount / "file", "r+b") as file:
                file.write(b"%d" % (turn % 10) * 1000)
    finally:
        over.set()
        for looker in lookers:
            looker.join()


# Becomes another program with a file that it has made still open: the kernel closes it under a lock that who looks at the process needs.
BECOMES_ANOTHER = """
import os, sys
target = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
os.write(target, b"a" * 100)
os.execv("/bin/echo", ["echo", "became"])
"""


def test_a_program_that_becomes_another_one_with_an_open_file_goes_on(mount):
    program = subprocess.Popen(
        [sys.executable, "-c", BECOMES_ANOTHER, str(mount.folder / "made")], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    # Who waited for ever could not even be killed: nobody waits for the process itself.
    wait_until(lambda: os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert program.stdout.read() == "became\n" and program.wait() == 0
    wait_until(lambda: content(mount.node, "made") == b"a" * 100)
