#!/usr/bin/env python3
"""A program that knows nothing of Hinterland: it maps a file in many ways and prints the sha256 of what it saw.

usage: mapped.py WAY FILE
"""

import ctypes
import hashlib
import mmap
import os
import random
import sys
import threading

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def sha(*parts):
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def open_map(path, **options):
    with open(path, "rb") as source:
        return mmap.mmap(source.fileno(), 0, **{"access": mmap.ACCESS_READ, **options})


def whole(path):
    """One look from start to end."""
    return sha(open_map(path))


def backwards(path):
    """From end to start in odd steps."""
    mapping = open_map(path)
    parts = [mapping[start:start + 99_991] for start in range(0, len(mapping), 99_991)]
    for start in reversed(range(0, len(mapping), 99_991)):
        assert mapping[start:start + 1] == parts[start // 99_991][:1]
    return sha(*parts)


def threads(path):
    """Four threads, each touching a quarter in its own order."""
    mapping = open_map(path)
    pieces = [None] * 64
    step = -(-len(mapping) // 64)

    def work(own):
        random.Random(own[0]).shuffle(own)
        for index in own:
            pieces[index] = mapping[index * step:(index + 1) * step]

    workers = [threading.Thread(target=work, args=(list(range(n, 64, 4)),)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sha(*pieces)


def fork(path):
    """The child reads what the parent has mapped and touched in part."""
    mapping = open_map(path)
    half = len(mapping) // 2
    sha(mapping[:half])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, sha(mapping).encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 100).decode()
    assert os.waitpid(child, 0)[1] == 0
    assert text == sha(mapping)
    return text


def system_calls(path):
    """The kernel itself reads from the mapping: write(2) to a pipe and to a file."""
    mapping = open_map(path)
    view = memoryview(mapping)
    out = os.memfd_create("out")
    written = 0
    while written < len(view):
        written += os.write(out, view[written:written + (1 << 20)])
    os.lseek(out, 0, os.SEEK_SET)
    with os.fdopen(out, "rb") as copy:
        return sha(copy.read())


def advice(path):
    """Every hint that a program may give changes nothing that it reads."""
    with open(path, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, source.fileno(), 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    text = []
    for hint in (mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL, mmap.MADV_WILLNEED, mmap.MADV_DONTNEED, mmap.MADV_NORMAL):
        assert libc.madvise(address, size, hint) == 0, (hint, ctypes.get_errno())
        text.append(sha((ctypes.c_char * size).from_address(address)))
    assert len(set(text)) == 1
    return text[0]


def lock(path):
    """The first MiB is locked in memory, then all is read."""
    with open(path, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, source.fileno(), 0)
    if libc.mlock(address, min(size, 1 << 20)) != 0:
        assert ctypes.get_errno() in (1, 11, 12), ctypes.get_errno()
    return sha((ctypes.c_char * size).from_address(address))


def partial_unmap(path):
    """The way of llama.cpp: map all, unmap head and tail, go on with the rest."""
    with open(path, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, source.fileno(), 0)
    head, tail = 5 * PAGE, size // 2 // PAGE * PAGE
    first = bytes((ctypes.c_char * head).from_address(address))
    assert libc.munmap(address, head) == 0
    middle = bytes((ctypes.c_char * (tail - head)).from_address(address + head))
    rest = bytes((ctypes.c_char * (size - tail)).from_address(address + tail))
    assert libc.munmap(address + tail, size - tail) == 0
    again = bytes((ctypes.c_char * (tail - head)).from_address(address + head))
    assert again == middle
    assert libc.munmap(address + head, tail - head) == 0
    return sha(first, middle, rest)


def offset(path):
    """A mapping that starts in the middle of the file."""
    size = os.stat(path).st_size
    start = size // 2 // PAGE * PAGE
    with open(path, "rb") as source:
        first = mmap.mmap(source.fileno(), start, access=mmap.ACCESS_READ)
        second = mmap.mmap(source.fileno(), size - start, access=mmap.ACCESS_READ, offset=start)
    return sha(first, second)


def private(path):
    """A private mapping may be written; the file and other mappings stay as they are."""
    with open(path, "rb") as source:
        mapping = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
    before = sha(mapping)
    mapping[:4] = b"mine"
    assert mapping[:4] == b"mine" and open_map(path)[:4] != b"mine"
    return before


def shared_write(path):
    """A writable shared mapping is refused as for any file that is not ours."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        assert error.errno in (1, 13, 30), error
        return whole(path)
    os.close(descriptor)
    raise AssertionError("a sealed object was opened for writing")


def twice(path):
    """Two mappings of one file at once, and the plain file beside them."""
    one, two = open_map(path), open_map(path)
    with open(path, "rb") as source:
        plain = sha(source.read())
    assert sha(one) == sha(two) == plain
    return plain


def numpy_memmap(path):
    """numpy.memmap, the way of many data sets."""
    import numpy

    return sha(numpy.memmap(path, dtype=numpy.uint8, mode="r"))


def half_and_wait(path):
    """Reads one half, says so, waits for a line, reads the other."""
    mapping = open_map(path)
    half = len(mapping) // 2
    first = mapping[:half]
    print("half", flush=True)
    sys.stdin.readline()
    return sha(first, mapping[half:])


if __name__ == "__main__":
    print(globals()[sys.argv[1]](sys.argv[2]), flush=True)
