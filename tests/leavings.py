"""What programs leave on a machine: processes, shared memory, and memory that is gone."""

import os
import pathlib
import uuid

VARIABLE = "TEST_MARK"


def marked(**more):
    """An environment by which whatever is started with it is known, and its mark."""
    mark = uuid.uuid4().hex
    return {**os.environ, VARIABLE: mark, **more}, f"{VARIABLE}={mark}".encode()


def processes(mark):
    """The processes that were started with an environment of this mark, whoever their parent is now."""
    return [entry.parent.name for entry in pathlib.Path("/proc").glob("[0-9]*/environ") if mark in read(entry)]


def read(path):
    """What a file of /proc says; nothing for a process that has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def shared_files():
    """The files of shared memory that have a name."""
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()}


def descriptors(process):
    """How many files a process has open, and how many of these are memory."""
    links = []
    for entry in pathlib.Path(f"/proc/{process}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return {"files": len(links), "memory": sum(link.startswith("/memfd:") for link in links)}


def memory_bytes(name):
    """A line of the kernel's account of memory."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def proportional_bytes(process):
    """Resident bytes of a process, those that it shares with others counted in parts; none once it has ended."""
    for line in read(pathlib.Path(f"/proc/{process}/smaps_rollup")).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    return 0
