"""A file system that takes the closing of a file and does not answer: whoever becomes another program with one open stays on its way, and the kernel keeps who looks at it waiting."""

import ctypes
import os
import struct
import subprocess
import sys
import threading

LOOKUP, GETATTR, OPEN, RELEASE, FLUSH, INIT = 1, 3, 14, 18, 25, 26
NO_ANSWER = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
ENOSYS = 38
HEADER = struct.Struct("<IIQQIIII")
REQUEST_BYTES = 1 << 20
MNT_DETACH = 2
# Opens the file, and becomes another program with it.
BECOMES_ANOTHER = "import os, sys; os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC); os.execv('/bin/true', ['true'])"


class Stuck:
    """Within `with`: a process, `number`, is on its way to another program."""

    def __init__(self, folder):
        self._folder = folder
        self._closing = threading.Event()
        self._flush = None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self):
        self._folder.mkdir()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"stuck", os.fsencode(self._folder), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        self._server = threading.Thread(target=self._serve)
        self._server.start()
        self._process = subprocess.Popen([sys.executable, "-c", BECOMES_ANOTHER, self._folder / "file"])
        self.number = self._process.pid
        self._closing.wait()
        return self

    def __exit__(self, *_):
        self._answer(self._flush, b"")
        ended = self._process.wait()
        self._libc.umount2(os.fsencode(self._folder), MNT_DETACH)
        self._server.join()
        os.close(self._device)
        assert ended == 0

    def _answer(self, unique, body, error=0):
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)

    def _serve(self):
        while True:
            try:
                request = os.read(self._device, REQUEST_BYTES)
            except OSError:
                return  # It is not mounted any more.
            _, what, unique, node, *_ = HEADER.unpack_from(request)
            if what == FLUSH:
                self._flush = unique
                self._closing.set()
            elif what not in NO_ANSWER:
                body = answer_of(what, node)
                self._answer(unique, body or b"", 0 if body is not None else ENOSYS)


def answer_of(what, node):
    """What the kernel is told; nothing of what it need not know."""
    def attributes(number):
        mode = 0o40755 if number == 1 else 0o100644
        return struct.pack("<QQQQQQIIIIIIIIII", number, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    return {
        INIT: struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0) + bytes(28),
        LOOKUP: struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + attributes(2),
        GETATTR: struct.pack("<QII", 60, 0, 0) + attributes(node),
        OPEN: struct.pack("<QII", 1, 0, 0),
        RELEASE: b"",
    }.get(what)
