"""Maps a pool file as Python programs do: behaviours.py FILE OBJECT, where FILE stands for an object of known bytes."""

import mmap
import multiprocessing
import os
import subprocess
import sys
import threading

PATH, OBJECT = sys.argv[1], int(sys.argv[2])


def byte_of(offset: int) -> int:
    """The byte of the object at an offset."""
    return ((offset >> 12) * 131 + (offset & 4095) * 7 + OBJECT * 13) % 255 + 1


def is_right(memory: mmap.mmap) -> bool:
    """Whether a byte of every page is the object's."""
    return all(memory[at] == byte_of(at) for at in range(0, len(memory), 4093))


def map_file(access: int, **more: int) -> mmap.mmap:
    """Maps the file and closes it at once."""
    with open(PATH, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=access, **more)


def worker(_: int) -> bool:
    """What a process of a pool of workers does with memory that it inherited and with memory of its own."""
    own = map_file(mmap.ACCESS_READ)
    return is_right(SHARED) and is_right(own)


SHARED = map_file(mmap.ACCESS_READ)

if __name__ == "__main__":
    assert is_right(SHARED)
    SHARED.madvise(mmap.MADV_WILLNEED)
    SHARED.madvise(mmap.MADV_RANDOM)
    assert SHARED.find(bytes([byte_of(70000 + at) for at in range(40)])) <= 70000
    copy = map_file(mmap.ACCESS_COPY)
    copy[10:14] = b"abcd"
    assert bytes(copy[10:14]) == b"abcd" and SHARED[10] == byte_of(10)
    part = map_file(mmap.ACCESS_READ, offset=mmap.ALLOCATIONGRANULARITY * 3)
    assert part[5] == byte_of(3 * mmap.ALLOCATIONGRANULARITY + 5)
    part.close()
    child = os.fork()
    if child == 0:
        os._exit(0 if is_right(SHARED) and bytes(copy[10:14]) == b"abcd" and copy[15] == byte_of(15) else 1)
    assert os.waitpid(child, 0)[1] == 0
    threads = [threading.Thread(target=lambda: is_right(map_file(mmap.ACCESS_READ)) or os._exit(1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(3) as pool:
            assert all(pool.map(worker, range(6))), method
    assert subprocess.run([sys.executable, "-c", "pass"], check=False).returncode == 0
    SHARED.close()
    copy.close()
