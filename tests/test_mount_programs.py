"""A writable mount as programs expect it: what they set stays."""

import os

import pytest
from faults import wait_until
from test_mount_writing import Mount, pytestmark  # noqa: F401


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
