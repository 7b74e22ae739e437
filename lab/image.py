"""The first file system of a guest: busybox, the modules it may load, and the lab's init, as an archive that the kernel unpacks."""

import lzma
import os
import pathlib
import stat
import subprocess
import tempfile

from packages import CACHE, digest, program

HERE = pathlib.Path(__file__).resolve().parent
# What every guest needs to see the host's files and each other.
BASE_MODULES = ("virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay")
# Raise it when the layout below changes, so that kept archives are made anew.
LAYOUT = 3


class Archive:
    """A writer of `newc` archives, the kernel's format of a first file system."""

    def __init__(self):
        self._parts, self._number, self._names = [], 1, set()

    def _entry(self, name, mode, data=b"", device=(0, 0)):
        name = name.lstrip("/")
        if name in self._names:
            return
        parent = os.path.dirname(name)
        if parent:
            self._entry(parent, stat.S_IFDIR | 0o755)
        self._names.add(name)
        path = name.encode() + b"\0"
        fields = (self._number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        self._number += 1
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self._parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]

    def file(self, name, data, mode=0o755):
        """Adds a file with these bytes."""
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name, target):
        """Adds a symbolic link."""
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def device(self, name, major, minor):
        """Adds a character device."""
        self._entry(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def content(self):
        """The archive with its end mark."""
        end = Archive()
        end._entry("TRAILER!!!", 0)
        return b"".join(self._parts + end._parts)


def base_image(kernel, modules):
    """The archive that all guests with these modules share; made once and kept."""
    init = (HERE / "guest/init").read_bytes()
    kept = CACHE / f"image-{digest(kernel.release, sorted(modules), init, LAYOUT)}"
    if not kept.exists():
        archive = Archive()
        archive.device("dev/console", 5, 1)
        archive.file("init", init)
        archive.file("bin/busybox", pathlib.Path(program("busybox")).read_bytes())
        archive.link("bin/sh", "busybox")
        _add_modules(archive, kernel, [*BASE_MODULES, *modules])
        draft = kept.with_suffix(".draft")
        draft.write_bytes(archive.content())
        draft.rename(kept)
    return kept


def _add_modules(archive, kernel, names):
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        root = pathlib.Path(work)
        folder = root / "lib/modules" / kernel.release
        for path in kernel.module_files(names):
            data = (kernel.modules / path).read_bytes()
            target = folder / path.removesuffix(".xz")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(lzma.decompress(data) if path.endswith(".xz") else data)
        for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
            if (kernel.modules / name).exists():
                (folder / name).write_bytes((kernel.modules / name).read_bytes())
        subprocess.run([program("depmod"), "-b", root, kernel.release], check=True, stderr=subprocess.DEVNULL)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.file(f"lib/modules/{kernel.release}/{path.relative_to(folder)}", path.read_bytes(), 0o644)
