"""A writable mount as programs expect it: what they set stays, what they list is there, what they copy is whole."""

import concurrent.futures
import contextlib
import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from faults import MEBIBYTE, bury, is_dead, start_armed, wait_until
from test_mount_writing import Mount, code_of, content, names, pytestmark, rename_with  # noqa: F401


@pytest.fixture
def mount(node, folder):
    """The node's pool, mounted writable."""
    mounted = Mount(node, folder)
    yield mounted
    if mounted.process.poll() is None:
        mounted.stop()


def sealed(path):
    """Waits until a file is an object: a process that has children hears of it a moment after `close`."""
    wait_until(lambda: os.getxattr(path, "user.hinterland.state") == b"sealed")


def test_what_is_set_by_a_descriptor_that_writes_nothing_stays(mount):
    path = mount / "file"
    path.write_bytes(b"x")
    sealed(path)
    # As `touch` sets times.
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.utime(file, (1_000_000_000, 1_100_000_000))
    os.fchmod(file, 0o640)
    os.close(file)
    wait_until(lambda: os.getxattr(path, "user.hinterland.state") == b"sealed")
    status = path.stat()
    assert (status.st_atime, status.st_mtime, status.st_mode & 0o7777) == (1_000_000_000, 1_100_000_000, 0o640)


def test_copies_take_over_no_attributes_of_the_pool(mount, folder):
    (mount / "from").mkdir()
    os.setxattr(mount / "from", "user.hinterland.copies", b"1")
    (mount / "from/file").write_bytes(b"x" * 100_000)
    sealed(mount / "from/file")
    assert os.listxattr(mount / "from/file") == [] and os.listxattr(mount / "from") == []
    assert os.getxattr(mount / "from/file", "user.hinterland.name") == b"from/file"
    for target in (mount / "to", folder / "outside"):
        shutil.copytree(mount / "from", target)
        assert (target / "file").read_bytes() == b"x" * 100_000
    assert os.listxattr(folder / "outside/file") == []
    assert code_of(lambda: os.getxattr(mount / "to", "user.hinterland.copies")) == errno.ENODATA


def test_a_name_that_is_no_utf_8_is_refused_as_such(mount):
    bad = os.fsencode(mount.folder) + b"/\xff\xfe"
    assert code_of(lambda: os.open(bad, os.O_CREAT | os.O_WRONLY)) == errno.EILSEQ
    assert code_of(lambda: os.mkdir(bad)) == errno.EILSEQ
    (mount / "file").touch()
    assert code_of(lambda: os.rename(mount / "file", bad)) == errno.EILSEQ
    assert code_of(lambda: os.stat(bad)) == errno.ENOENT and code_of(lambda: os.unlink(bad)) == errno.ENOENT


def entries(stream):
    """What `readdir` tells up to the end: inode numbers by name."""
    found = {}
    while entry := LIBC.readdir(stream):
        found[ctypes.string_at(entry + 19).decode()] = ctypes.c_uint64.from_address(entry).value
    return found


LIBC = ctypes.CDLL(None)
LIBC.opendir.restype = LIBC.readdir.restype = ctypes.c_void_p
LIBC.readdir.argtypes = LIBC.rewinddir.argtypes = LIBC.closedir.argtypes = [ctypes.c_void_p]


def test_a_folder_that_is_read_anew_shows_what_is_there(mount, node):
    (mount / "above/folder").mkdir(parents=True)
    (mount / "above/folder/one").touch()
    file = os.open(mount / "above/folder", os.O_RDONLY)
    assert os.listdir(file) == ["one"]
    stream = LIBC.opendir(os.fsencode(mount / "above/folder"))
    shown = entries(stream)
    assert sorted(shown) == [".", "..", "one"] and shown[".."] == (mount / "above").stat().st_ino
    (mount / "above/folder/two").touch()
    LIBC.rewinddir(stream)
    assert sorted(entries(stream)) == [".", "..", "one", "two"]
    (mount / "above/folder/one").unlink()
    LIBC.rewinddir(stream)
    assert sorted(entries(stream)) == [".", "..", "two"]
    LIBC.closedir(stream)
    assert os.listdir(file) == ["two"]
    os.close(file)
    wait_until(lambda: names(node) == ["above/folder/two"])


# Writes files and ends without closing them.
LEAVES_OPEN = """
import os, sys
for number in range(40):
    os.write(os.open(f"{sys.argv[1]}/out{number:02}", os.O_CREAT | os.O_WRONLY), b"x" * 1_000_000)
os._exit(0)
"""


def test_what_a_program_leaves_open_as_it_ends_is_there_when_its_mount_has_gone(node):
    node.run("run", "--writable", "--", sys.executable, "-c", LEAVES_OPEN, "/pool")
    assert names(node) == [f"out{number:02}" for number in range(40)]


@pytest.mark.parametrize("is_busy", [False, True], ids=["unused", "busy"])
def test_what_was_closed_is_there_when_the_mount_was_stopped_at_once(mount, node, is_busy):
    with subprocess.Popen(["sleep", "60"], cwd=mount.folder if is_busy else None) as somebody:
        subprocess.run([sys.executable, "-c", LEAVES_OPEN, mount.folder], check=True)
        mount.stop()
        somebody.kill()
    assert names(node) == [f"out{number:02}" for number in range(40)]


def test_what_is_still_written_as_the_mount_is_cut_off_is_no_object(mount, node):
    file = os.open(mount / "file", os.O_CREAT | os.O_WRONLY)
    os.write(file, b"the first half")
    # Busy all the same: the file is open.
    assert subprocess.run(["umount", "--force", mount.folder], capture_output=True).returncode != 0
    mount.process.wait(30)
    assert code_of(lambda: os.close(file)) == errno.ENOTCONN and names(node) == []


@pytest.mark.parametrize("options", [("--writable",), ("--no-passthrough",)], ids=["writable", "read-only"])
def test_a_node_of_another_pool_gives_no_bytes_for_those_of_the_mount(node, folder, make_file, options):
    node.run("put", make_file("old", 300_001, 1), "--name", "file")
    mounted = Mount(node, folder, options=options)
    try:
        held = open(mounted / "file", "rb", buffering=0)
        assert held.read() == (folder / "old").read_bytes()
        node.stop()
        node.state = folder / "another-state"
        node.start()
        # It has the number that the other one had in its pool.
        node.run("put", make_file("new", 300_001, 2), "--name", "file")
        def is_refused():
            """Whether it is, once the kernel asks where the name leads; what is open is read on until then."""
            try:
                assert (mounted / "file").read_bytes() == (folder / "old").read_bytes()
                return False
            except OSError as error:
                return error.errno == errno.EIO

        wait_until(is_refused)
        assert "mount again" in mounted.words()
        assert os.pread(held.fileno(), MEBIBYTE, 0) == (folder / "old").read_bytes()
        held.close()
    finally:
        mounted.stop()


def test_a_mount_that_is_out_of_descriptors_says_so_and_goes_on(node, folder):
    for number in range(80):
        node.run("put", "-", "--name", f"file{number}", input=f"{number}" * 1000)
    program = folder / "few"
    program.write_text(f'#!/bin/sh\nulimit -n 64\nexec {node.binary} "$@"\n')
    program.chmod(0o755)
    node.binary, binary = str(program), node.binary
    mounted = Mount(node, folder)
    node.binary = binary
    try:
        with contextlib.ExitStack() as held:
            with pytest.raises(OSError) as caught:
                for number in range(80):
                    held.enter_context(open(mounted / f"file{number}", "rb"))
        assert caught.value.errno == errno.EIO and "ulimit -n" in mounted.words(), mounted.words()
        for number in range(80):
            assert (mounted / f"file{number}").read_bytes() == b"%d" % number * 1000
        assert "waits up to" not in mounted.words()
    finally:
        mounted.stop()


class FewDescriptors:
    """What is started within this may have so many files open, and may raise that."""

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.before)


def test_more_files_are_open_than_the_mount_may_have_descriptors_at_first(node, folder):
    with FewDescriptors():
        mounted = Mount(node, folder)
    try:
        written = [open(mounted / f"file{number}", "wb", buffering=0) for number in range(300)]
        for number, file in enumerate(written):
            assert file.write(b"%03d" % number * 1000) == 3000
        for file in written:
            file.close()
        read = [open(mounted / f"file{number}", "rb") for number in range(300)]
        assert [file.read() for file in read] == [b"%03d" % number * 1000 for number in range(300)]
        for file in read:
            file.close()
    finally:
        mounted.stop()


def test_the_mount_of_run_has_many_files_open_and_the_program_its_own_limit(node):
    for number in range(3):
        node.run("put", "-", "--name", f"file{number}", input="x" * 5000)
    look = "ulimit -Sn; awk '/open files/ { print ($4 == $5) }' /proc/$PPID/limits"
    with FewDescriptors():
        assert node.run("run", "--", "sh", "-c", look).stdout.split() == ["200", "1"]


def test_a_mount_whose_node_is_stopped_says_what_is_waited_for(mount, node):
    (mount / "file").write_bytes(b"x")
    sealed(mount / "file")
    node.process.send_signal(signal.SIGSTOP)
    try:
        with subprocess.Popen(["ls", mount.folder], stdout=subprocess.PIPE, text=True) as listing:
            wait_until(lambda: f"`kill -CONT {node.process.pid}`" in mount.words(), seconds=30)
            assert listing.poll() is None
            node.process.send_signal(signal.SIGCONT)
            assert listing.communicate()[0] == "file\n"
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert mount.words().count("whoever uses files waits") == 1 and "the node answers again" in mount.words()


def test_no_file_takes_the_name_of_a_region(mount, node):
    node.run("region", "create", "shared", "2M")
    (mount / "file").write_bytes(b"x")
    sealed(mount / "file")
    assert code_of(lambda: os.rename(mount / "file", mount / "shared")) == errno.EBUSY
    assert "hinterland rm shared" in mount.words()
    assert node.json("stat", "shared")["state"] == "mutable" and (mount / "file").read_bytes() == b"x"


def test_a_file_does_not_replace_a_region_that_was_made_under_its_name(mount, node):
    (mount / "file").write_bytes(b"x" * 1000)
    sealed(mount / "file")
    with contextlib.suppress(FileExistsError), open(mount / "file", "r+b") as file:
        file.write(b"y")
        file.flush()
        node.run("rm", "file")
        node.run("region", "create", "file", "2M")
    wait_until(lambda: "file exists" in mount.words())
    assert node.json("stat", "file")["state"] == "mutable" and names(node) == ["file"]


def test_times_before_1970_are_what_was_set(mount):
    (mount / "file").write_bytes(b"x")
    sealed(mount / "file")
    for time in (-1_500_000_001, -1, -2_000_000_000, -999_999_999, 1_500_000_000):
        os.utime(mount / "file", ns=(time, time))
        assert (mount / "file").stat().st_mtime_ns == time


# Opens a file and writes to it, leaves its descriptor to a process that is nobody's child when this one closes it, and has that one go on.
LEFT_BEHIND = """
import os, sys
target = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
for _ in range(int(sys.argv[3])):
    os.write(target, b"a" * 1_000_000)
(waits, go), (hears, tell) = os.pipe(), os.pipe()
if (child := os.fork()) == 0:
    if os.fork() == 0:
        os.close(go)
        os.read(waits, 1)
        assert os.pread(target, 3, 0) == b"aaa"
        if sys.argv[2] == "cut":
            os.ftruncate(target, 1_000_000)
        os.pwrite(target, b"b" * 10, 500_000)
        os.close(target)
        os.write(tell, b"written")
    os._exit(0)
os.waitpid(child, 0)
os.close(tell)
os.close(target)
print("closed", flush=True)
sys.stdin.readline()
os.close(go)
print(os.read(hears, 10).decode(), flush=True)
"""


def start_left_behind(mount, how, pieces=40):
    program = subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND, mount / "left", how, str(pieces)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout.readline() == "closed\n"
    sealed(mount / "left")
    assert (mount / "left").stat().st_size == pieces * 1_000_000
    return program


@pytest.mark.parametrize("how", ["write", "cut"])
def test_a_descriptor_that_is_left_to_a_process_without_a_parent_writes_on(mount, node, how):
    said, _ = start_left_behind(mount, how).communicate("go on\n", timeout=60)
    assert said == "written\n", mount.words()
    bytes_left = 1_000_000 if how == "cut" else 40_000_000
    expected = b"a" * 500_000 + b"b" * 10 + b"a" * (bytes_left - 500_010)
    sealed(mount / "left")
    assert (mount / "left").read_bytes() == expected
    wait_until(lambda: content(node, "left") == expected)


def test_a_descriptor_that_is_left_writes_over_nothing_that_others_have_written(mount, node):
    program = start_left_behind(mount, "write")
    (mount / "new").write_bytes(b"new")
    sealed(mount / "new")
    os.rename(mount / "new", mount / "left")
    said, _ = program.communicate("go on\n", timeout=60)
    assert said == "\n" and "others have written it" in mount.words()
    assert (mount / "left").read_bytes() == b"new" and names(node) == ["left"]


def test_a_descriptor_that_is_left_to_a_file_that_was_removed_brings_nothing_back(mount, node):
    program = start_left_behind(mount, "write", 1)
    (mount / "left").unlink()
    said, _ = program.communicate("go on\n", timeout=60)
    assert said == "written\n" and names(node) == [] and os.listdir(mount.folder) == []


def test_removing_and_renaming_a_file_touches_no_region_that_has_its_name_since(mount, node):
    for name in ("file", "third", "written"):
        (mount / name).write_bytes(b"x")
        sealed(mount / name)
    with open(mount / "written", "r+b") as writer:
        writer.write(b"y")
        writer.flush()
        for name in ("file", "written"):
            (mount / name).stat()
            node.run("rm", name)
            node.run("region", "create", name, "1M")
        assert code_of(lambda: os.unlink(mount / "file")) == errno.ENOENT
        assert code_of(lambda: os.rename(mount / "written", mount / "other")) == errno.EBUSY
        assert code_of(lambda: os.rename(mount / "third", mount / "written")) == errno.EBUSY
        assert names(node) == ["file", "third", "written"]
        os.unlink(mount / "written")
    assert names(node) == ["file", "third", "written"] and os.listdir(mount.folder) == ["third"]


@pytest.mark.parametrize("how", ["remove", "rename", "exchange"])
def test_a_node_that_dies_when_it_has_changed_a_name_has_changed_it_once(node, folder, monkeypatch, how):
    monkeypatch.setenv("HINTERLAND_GRACE_S", "20")
    for name in ("one", "two"):
        node.run("put", "-", "--name", name, input=name)
    node.kill()
    start_armed(node, "remove-committed:1" if how == "remove" else "rename-committed:1")
    mounted = Mount(node, folder)
    try:
        changes = {
            "remove": lambda: os.unlink(mounted / "one"),
            "rename": lambda: os.rename(mounted / "one", mounted / "other"),
            "exchange": lambda: rename_with(2, mounted / "one", mounted / "two"),
        }
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            changed = thread.submit(changes[how])
            wait_until(lambda: is_dead(node))
            bury(node)
            changed.result(60)
        found = {name: (mounted / name).read_text() for name in os.listdir(mounted.folder)}
        assert found == {
            "remove": {"two": "two"},
            "rename": {"other": "one", "two": "two"},
            "exchange": {"one": "two", "two": "one"},
        }[how]
    finally:
        mounted.stop()
