"""Memory that a program maps by itself: what is in a piece stays in it as long as the program has its handle, wherever it is mapped."""

import ctypes
import random
import sys

PIECE = 2 << 20
WORDS = PIECE // 4
INVALID_VALUE = 1

cuda = ctypes.CDLL("libcuda.so.1")
by = ctypes.byref
size, number = ctypes.c_size_t, ctypes.c_uint64


def good(code):
    """Nothing went wrong."""
    assert code == 0, code


def got(function, *arguments, kind=number):
    """What a function writes to its first argument."""
    place = kind()
    good(function(by(place), *arguments))
    return place.value


def free():
    """Bytes that are free."""
    left, total = size(), size()
    good(cuda.cuMemGetInfo_v2(by(left), by(total)))
    return left.value


def reserved(pieces):
    """Addresses for so many pieces."""
    return got(cuda.cuMemAddressReserve, size(pieces * PIECE), size(0), number(0), number(0))


def piece():
    """A piece of memory."""
    return got(cuda.cuMemCreate, size(PIECE), (ctypes.c_int * 8)(1, 0, 1, 0), number(0))


def map_at(address, handle):
    """Maps a piece, and opens it."""
    good(cuda.cuMemMap(number(address), size(PIECE), size(0), number(handle), number(0)))
    good(cuda.cuMemSetAccess(number(address), size(PIECE), (ctypes.c_int * 3)(1, 0, 3), size(1)))


def unmap(address, pieces=1):
    """Unmaps pieces."""
    good(cuda.cuMemUnmap(number(address), size(pieces * PIECE)))


def fill(address, value, stream):
    """Puts one value everywhere in a piece, and does not wait."""
    good(cuda.cuMemsetD32Async(number(address), value, size(WORDS), stream))


def check(address, value, pieces=1):
    """All of a range is of one value."""
    words = (ctypes.c_uint32 * (pieces * WORDS))()
    good(cuda.cuMemcpyDtoH_v2(words, number(address), size(ctypes.sizeof(words))))
    is_right = bytes(words) == value.to_bytes(4, "little") * len(words)
    assert is_right, f"{value} was put there, and {set(words)} is"


def grown(stream):
    """A vector that grows as in NVIDIA's example: at larger addresses, where the same pieces are mapped again."""
    start = reserved(2)
    handles = [piece(), piece()]
    for index, handle in enumerate(handles):
        map_at(start + index * PIECE, handle)
        fill(start + index * PIECE, 7 + index, stream)
    larger = reserved(4)
    unmap(start, 2)
    for index, handle in enumerate(handles):
        map_at(larger + index * PIECE, handle)
    good(cuda.cuMemAddressFree(number(start), size(2 * PIECE)))
    for index in range(2):
        check(larger + index * PIECE, 7 + index)
    unmap(larger, 2)
    for handle in handles:
        good(cuda.cuMemRelease(number(handle)))
    good(cuda.cuMemAddressFree(number(larger), size(4 * PIECE)))


def changed(stream):
    """Two pieces change places, and one whose addresses are given back comes again elsewhere."""
    start = reserved(2)
    one, other = piece(), piece()
    for _ in range(3):
        map_at(start, one)
        map_at(start + PIECE, other)
        fill(start, 1, stream)
        fill(start + PIECE, 2, stream)
        unmap(start, 2)
        map_at(start, other)
        map_at(start + PIECE, one)
        check(start, 2)
        check(start + PIECE, 1)
        unmap(start, 2)
    good(cuda.cuMemAddressFree(number(start), size(2 * PIECE)))
    again = reserved(1)
    map_at(again, one)
    check(again, 1)
    good(cuda.cuMemRelease(number(one)))
    check(again, 1)
    unmap(again)
    assert cuda.cuMemMap(number(again), size(PIECE), size(0), number(one), number(0)) == INVALID_VALUE
    map_at(again, other)
    check(again, 2)
    unmap(again)
    good(cuda.cuMemRelease(number(other)))
    good(cuda.cuMemAddressFree(number(again), size(PIECE)))


def anyhow(streams, seed):
    """Any order of calls, against a plain model."""
    chance = random.Random(seed)
    places, values, mapped = [], {}, {}
    for turn in range(120):
        empty = [at for start in places for at in range(start, start + 4 * PIECE, PIECE) if at not in mapped]
        loose = [handle for handle in values if handle not in mapped.values()]
        match chance.randrange(8):
            case 0 if len(places) < 4:
                places.append(reserved(4))
            case 1 if len(values) < 6:
                values[piece()] = 0
            case 2 | 3 if empty and loose:
                at, handle = chance.choice(empty), chance.choice(loose)
                map_at(at, handle)
                mapped[at] = handle
                check(at, values[handle])
            case 4 if mapped:
                at = chance.choice(list(mapped))
                values[mapped[at]] = turn + 1
                fill(at, turn + 1, chance.choice(streams))
            case 5 | 6 if mapped:
                at = chance.choice(list(mapped))
                if chance.randrange(2):
                    check(at, values[mapped[at]])
                unmap(at)
                del mapped[at]
            case 7 if loose and chance.randrange(3) == 0:
                handle = chance.choice(loose)
                good(cuda.cuMemRelease(number(handle)))
                del values[handle]
            case 7 if places:
                start = chance.choice(places)
                if not any(start <= at < start + 4 * PIECE for at in mapped):
                    good(cuda.cuMemAddressFree(number(start), size(4 * PIECE)))
                    places.remove(start)
    for at, handle in mapped.items():
        check(at, values[handle])
        unmap(at)
    for handle in values:
        good(cuda.cuMemRelease(number(handle)))
    for start in places:
        good(cuda.cuMemAddressFree(number(start), size(4 * PIECE)))


good(cuda.cuInit(0))
cuda.cuCtxSetCurrent(ctypes.c_void_p(got(cuda.cuDevicePrimaryCtxRetain, 0, kind=ctypes.c_void_p)))
stream = ctypes.c_void_p(got(cuda.cuStreamCreate, 0, kind=ctypes.c_void_p))
before = free()
for part in sys.argv[1:]:
    if part == "anyhow":
        for seed in range(3):
            anyhow([None, stream], seed)
    else:
        {"grown": grown, "changed": changed}[part](stream)
    good(cuda.cuCtxSynchronize())
    assert free() == before, "all memory is back"
    print(part)
