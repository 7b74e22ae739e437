"""A `get` that is interrupted in its midst leaves nothing behind, whatever the file system is."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from faults import sha
from test_mount_writing import Mount

MEBIBYTE = 1 << 20
ROOM = ["--capacity", "256M"]
SIZE = 200 * MEBIBYTE
MAY_MOUNT = os.path.exists("/dev/fuse") and (os.getuid() == 0 or shutil.which("fusermount3") is not None)


def written(process):
    """Bytes of the regular file that a process writes; none before it has one."""
    for entry in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            flags = pathlib.Path(f"/proc/{process.pid}/fdinfo/{entry.name}").read_text(encoding="utf-8")
            if int(flags.split("flags:")[1].split()[0], 8) & os.O_ACCMODE == os.O_WRONLY and entry.is_file():
                return entry.stat().st_size
    return 0


def interrupt_in_the_midst(reader, home, target, how):
    """Starts a get, stops the home of its object when a part is written, and interrupts it; what it ended with."""
    get = subprocess.Popen(reader.command("get", "large", target), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while written(get) == 0:
            assert get.poll() is None, "it ended before it wrote anything"
        get.send_signal(signal.SIGSTOP)
        assert written(get) < SIZE
        home.process.send_signal(signal.SIGSTOP)
        get.send_signal(signal.SIGCONT)
        get.send_signal(how)
        return get.wait(10)
    finally:
        home.process.send_signal(signal.SIGCONT)
        get.kill()
        get.wait()


@pytest.fixture
def apart(two_racks, make_file):
    """A reader, the home of a large object, and its bytes."""
    reader, home = two_racks
    source = make_file("source", SIZE)
    home.run("put", source, "--name", "large", "--rack", home.rack)
    return reader, home, source


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_of_a_get_that_is_interrupted(apart, folder, how):
    reader, home, source = apart
    (folder / "out").mkdir()
    target = folder / "out/back"
    target.write_text("before")
    assert interrupt_in_the_midst(reader, home, target, how) == -how
    assert os.listdir(folder / "out") == ["back"] and target.read_text() == "before"
    reader.run("get", "large", target)
    assert os.listdir(folder / "out") == ["back"] and sha(target) == sha(source)


@pytest.mark.skipif(not MAY_MOUNT, reason="no right to mount")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_stays_where_each_file_needs_a_name(apart, start_node, make_file, folder, how):
    reader, home, _ = apart
    mount = Mount(start_node("other", options=["--capacity", "512M"]), folder)
    try:
        assert interrupt_in_the_midst(reader, home, mount / "back", how) == 128 + how
        assert os.listdir(mount.folder) == []
        small = make_file("small", 100_000)
        reader.run("put", small, "--name", "small")
        reader.run("get", "small", mount / "back")
        assert os.listdir(mount.folder) == ["back"] and sha(mount / "back") == sha(small)
    finally:
        mount.stop()
