"""A disk that can be made to fail: a file system on a loop device, whose file lies in memory."""

import os
import pathlib
import subprocess

import pytest

MEBIBYTE = 1 << 20


class FailingDisk:
    """A folder on a disk whose contents can be lost or changed behind the file system, and that can have less room than it says."""

    def __init__(self, ground, size_bytes, room_bytes=None):
        self.ground = pathlib.Path(ground)
        self.ground.mkdir(parents=True)
        size = f"size={room_bytes or size_bytes}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "failing-disk", self.ground], check=True)
        self.image = self.ground / "image"
        self.folder = self.ground / "disk"
        self.folder.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        # Without a journal nothing but the test's own bytes is written behind its back.
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", self.image], check=True)
        mounted = subprocess.run(
            ["mount", "-o", "loop", self.image, self.folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            self.end()
            pytest.skip(f"no loop device here: {mounted.stderr.strip()}")

    def lose_contents(self):
        """From here on a read of what the disk had is an input/output error."""
        os.truncate(self.image, MEBIBYTE)

    def change_contents(self, expected):
        """Turns one bit in each page that holds `expected`; returns in how many."""
        changed = 0
        with self.image.open("r+b") as file:
            for at in range(0, os.fstat(file.fileno()).st_size, 4096):
                page = os.pread(file.fileno(), 4096, at)
                place = page.find(expected)
                if place >= 0:
                    os.pwrite(file.fileno(), bytes([page[place] ^ 1]), at + place)
                    changed += 1
        return changed

    def end(self):
        """Takes it away; what it has not written is lost."""
        for folder in (self.folder, self.ground):
            subprocess.run(["umount", "-l", folder], check=False, capture_output=True)
