"""A writable mount of a real pool: what programs write becomes objects, whole or not at all."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from faults import MEBIBYTE, sha, wait_until

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


class Mount:
    """A `hinterland mount --writable` process."""

    def __init__(self, node, folder, name="pool", options=("--writable",)):
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
        self.process.wait(30)
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
    # Also for those who do not ask through the mount: what made it has closed it, and had no children.
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


def test_nobody_sees_a_file_before_it_is_closed(mount, node):
    writer = start_writer(mount / "half")
    assert not (mount / "half").exists() and os.listdir(mount.folder) == [] and "half" not in names(node)
    assert code_of(lambda: os.open(mount / "half", os.O_WRONLY | os.O_CREAT | os.O_EXCL)) == errno.EEXIST
    writer.stdin.write("go on\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "closed\n"
    assert (mount / "half").read_bytes() == b"a" * 3_000_000 + b"b" * 3_000_000
    assert finish(writer) == 0


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
        wait_until(lambda: used(node) == before)
        assert names(node) == []
        (mounted / "small").write_bytes(b"x" * MEBIBYTE)
        assert (mounted / "small").stat().st_size == MEBIBYTE
    finally:
        mounted.stop()


def test_files_are_written_forwards_and_holes_are_zeros(mount, node):
    with open(mount / "holes", "wb", buffering=0) as target:
        os.pwrite(target.fileno(), b"head", 0)
        os.pwrite(target.fileno(), b"tail", 200_000)
        os.ftruncate(target.fileno(), 200_010)
    assert (mount / "holes").read_bytes() == b"head" + bytes(199_996) + b"tail" + bytes(6)
    target = os.open(mount / "backwards", os.O_WRONLY | os.O_CREAT)
    os.write(target, b"0123456789")
    assert code_of(lambda: os.pwrite(target, b"x", 3)) == errno.EOPNOTSUPP
    with pytest.raises(OSError):
        os.close(target)
    assert not (mount / "backwards").exists()
    wait_until(lambda: names(node) == ["holes"])
    assert "copy it" in mount.words()
    (mount / "empty").touch()
    assert (mount / "empty").read_bytes() == b""


def test_what_is_there_never_changes_but_can_be_removed(mount, node):
    path = mount / "folder/name"
    path.parent.mkdir()
    path.write_bytes(b"first")
    assert code_of(lambda: open(path, "wb")) == code_of(lambda: open(path, "ab")) == errno.EEXIST
    assert code_of(lambda: os.truncate(path, 0)) in (errno.EPERM, errno.EEXIST)
    assert path.read_bytes() == b"first"
    assert code_of(lambda: path.parent.rmdir()) == errno.ENOTEMPTY
    with open(path, "rb") as reader:
        path.unlink()
        path.write_bytes(b"second")
        assert reader.read() == b"first"
    time.sleep(1.1)
    assert path.read_bytes() == b"second"
    assert code_of(lambda: os.rename(path, mount / "other")) == errno.EXDEV
    subprocess.run(["mv", path, mount / "other"], check=True)
    assert (mount / "other").read_bytes() == b"second" and names(node) == ["other"]
    path.parent.rmdir()
    assert os.listdir(mount.folder) == ["other"]


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


def test_read_only_is_the_default(node, folder):
    mounted = Mount(node, folder, options=())
    try:
        assert code_of(lambda: open(mounted / "new", "wb")) == errno.EROFS
    finally:
        mounted.stop()
