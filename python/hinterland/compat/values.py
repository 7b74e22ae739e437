"""Values of any length under names of any length, kept in blocks: read whole, in part, or as missing, and never mixed.

A value of up to 4 MiB is a block. A longer one is a *head* that names a number drawn for this one writing, and *parts* under that
number: whoever has read a head can only meet the parts of the same writing, and a part that was evicted makes the value missing.
Names of up to 62 bytes are in the block's key; longer ones are hashed, and stand at the start of the block.

What is not in the memory of this host is looked for on the node's disk and in other racks, and brought here to be read.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import itertools
import os
import struct
import threading
import time
from typing import Callable, Iterator, NamedTuple, Sequence

from .. import Fragments, HinterlandError, KvCache, Pool
from ..errors import for_code
from ..link import PAUSE_ATTEMPTS, SILENCE_SECONDS_MAX
from .pieces import Piece, block, length, part

BLOCK_BYTES_MAX = 4 << 20
# Parts of a value: what lists them stays below some MiB, also where another program has written nonsense into a head.
PARTS_MAX = 1 << 16
# The longest name: its length is in two bytes before it, and both in whole units.
NAME_BYTES_MAX = (1 << 16) - 66
# A name that is not in the key is padded to whole cache lines, so that the value stays aligned.
PRELUDE_UNIT = 64
# How often a value that is replaced meanwhile is looked at again before it counts as missing: a busy machine lets one reader lose several times.
ATTEMPTS = 16
HEAD = struct.Struct("<4sIQ16sH")
MAGIC = b"HLV1"


class Put(enum.Enum):
    """What became of a value that was to be put."""

    THERE = 0
    NO_ROOM = 1
    # It has no bytes or too many, or its name has none or too many.
    REFUSED = 2


class Name(NamedTuple):
    """A name as keys: of the block of a short value, of the head of a long one."""

    value: bytes
    head: bytes
    # What stands before the value in its block.
    prelude: bytes


class Head(NamedTuple):
    """A long value: its length, that of its parts, and the number that they were written under."""

    size: int
    part_bytes: int
    number: bytes
    name: bytes

    def keys(self) -> list[bytes]:
        """The keys of its parts."""
        count = -(-self.size // self.part_bytes)
        return [b"p" + self.number + index.to_bytes(4, "little") for index in range(count)]

    def block(self) -> bytes:
        """The bytes of its block."""
        return HEAD.pack(MAGIC, self.part_bytes, self.size, self.number, len(self.name)) + self.name

    def places(self, pieces: Sequence[Piece]) -> list[list[memoryview | Fragments]]:
        """Memory of the value, cut into that of its parts."""
        starts = range(0, self.size, self.part_bytes)
        return [block(part(pieces, start, size)) for start, size in zip(starts, self.lengths())]

    def lengths(self) -> list[int]:
        """The lengths of its parts."""
        count = -(-self.size // self.part_bytes)
        return [min(self.part_bytes, self.size - index * self.part_bytes) for index in range(count)]


def named(text: str) -> Name:
    """The keys of a name."""
    name = text.encode("utf-8", "surrogatepass")
    if len(name) <= 62:
        return Name(b"vk" + name, b"lk" + name, b"")
    digest = hashlib.blake2b(name, digest_size=32).digest()
    prelude = struct.pack("<H", min(len(name), (1 << 16) - 1)) + name
    return Name(b"vh" + digest, b"lh" + digest, prelude + bytes(-len(prelude) % PRELUDE_UNIT))


def new_head(name: Name, size: int) -> Head:
    """The head of a long value that is about to be written, under a number that no other has."""
    text = name.head[2:]
    if name.prelude:
        (name_bytes,) = struct.unpack_from("<H", name.prelude)
        text = name.prelude[2:2 + name_bytes]
    return Head(size, BLOCK_BYTES_MAX, os.urandom(16), text)


def parsed(data: bytes | None) -> Head | None:
    """A head from the bytes of its block; None if it is none."""
    if data is None or len(data) < HEAD.size:
        return None
    magic, part_bytes, size, number, name_bytes = HEAD.unpack_from(data)
    if magic != MAGIC or not 0 < size <= part_bytes * PARTS_MAX or len(data) != HEAD.size + name_bytes:
        return None
    return Head(size, part_bytes, number, data[HEAD.size:])


def _is_possible(name: Name, size: int) -> bool:
    """Whether a value has a length and a name that can be."""
    return 0 < size <= PARTS_MAX * BLOCK_BYTES_MAX and len(name.value) > 2 and len(name.prelude) <= NAME_BYTES_MAX + PRELUDE_UNIT


class Values:
    """Values in one namespace. Any thread may use them."""

    def __init__(self, fingerprint: str, socket: str | None = None) -> None:
        self._fingerprint = fingerprint
        self._socket = socket
        self._lock = threading.Lock()
        # Why it could not be opened again, and until when that is the answer.
        self._refusal: HinterlandError | None = None
        self._next_open = 0.0
        self._opened = self._open()

    @property
    def kv(self) -> KvCache:
        """The blocks that the values are kept in."""
        return self._kv

    def heads(self, names: Sequence[Name]) -> list[Head | None]:
        """For each name, the head of its long value if one is there, with or without all parts."""
        found = dict(self._heads(names, range(len(names))))
        return [found.get(index) for index in range(len(names))]

    def make_way(self, names: Sequence[Name]) -> list[bool]:
        """For each name, whether a long value is there whole. What else is in the place of its head is removed: what is left of a value of
        which a part was evicted, or no head at all."""
        whole, stale = [], []
        for name in names:
            data = self._kv.get(name.head)
            old = parsed(data)
            whole.append(old is not None and all(self._kv.exists(old.keys())))
            if data is not None and not whole[-1]:
                stale += [name.head, *(old.keys() if old else [])]
        if stale:
            self._kv.remove(stale)
        return whole

    def close(self) -> None:
        """Gives the namespace back; the values stay."""
        pool, kv = self._opened
        kv.close()
        pool.close()

    def is_alive(self) -> bool:
        """Whether the node answers."""
        try:
            self._kv.remove([b"\0"])
        except OSError:
            return False
        return True

    def sizes(self, names: Sequence[Name]) -> list[int | None]:
        """The length of each value that is there whole, here, on the disk or in another rack, or None. No value is brought here for it."""
        sizes = self.sizes_here(names)
        if None in sizes:
            missing = [index for index, size in enumerate(sizes) if size is None]
            for index, size in zip(missing, self._sizes_elsewhere([names[index] for index in missing])):
                sizes[index] = size
        return sizes

    def sizes_here(self, names: Sequence[Name]) -> list[int | None]:
        """The same of the values that are in the memory of this host, without a message to anybody."""
        found = self._kv.lengths([name.value for name in names])
        sizes = [None if size is None else size - len(name.prelude) for size, name in zip(found, names)]
        missing = [index for index, size in enumerate(sizes) if size is None]
        for index, head in self._heads(names, missing):
            sizes[index] = self._of_one_writing(names[index], head, lambda head: all(self._kv.exists(head.keys())))
        # A long value that a short one was put in place of, meanwhile.
        for index in missing:
            if sizes[index] is None and self._kv.exists([names[index].value]) == [True]:
                (sizes[index],) = self.sizes_here([names[index]])
        return sizes

    def put(self, names: Sequence[Name], values: Sequence[Sequence[Piece]], anywhere: bool = False) -> list[Put]:
        """Writes values that are not here; with `anywhere`, those that are neither here nor on the disk nor in another rack."""
        results = [Put.THERE] * len(names)
        sizes = [length(pieces) for pieces in values]
        known = self.sizes(names) if anywhere else self.sizes_here(names)
        short: list[int] = []
        for index, (name, size) in enumerate(zip(names, sizes)):
            if not _is_possible(name, size):
                results[index] = Put.REFUSED
            elif known[index] is None and size + len(name.prelude) > BLOCK_BYTES_MAX:
                results[index] = self._put_long(name, values[index], size)
            elif known[index] is None:
                short.append(index)
        if short:
            blocks = [[memoryview(names[index].prelude), *block(values[index])] if names[index].prelude
                      else block(values[index]) for index in short]
            keys = [names[index].value for index in short]
            for index, stored in zip(short, self._kv.put(keys, blocks)):
                results[index] = Put.THERE if stored else Put.NO_ROOM
        return results

    def replace(self, names: Sequence[Name], values: Sequence[Sequence[Piece]]) -> list[Put]:
        """Writes values in place of those that are there: who reads meanwhile finds the old or the new one. OSError if another rack may
        still have an old one: then it is not reached."""
        # Only the head of an old value tells of its parts, which other racks have, too.
        heads = [name.head for name in names]
        unknown = [head for head, there in zip(heads, self._kv.exists(heads) if heads else []) if not there]
        if unknown:
            self._kv.fetch(unknown)
        old: list[bytes] = []
        results = [self._replace(name, pieces, old) for name, pieces in zip(names, values)]
        old += [key for name, result in zip(names, results) if result is Put.THERE for key in (name.value, name.head)]
        if old:
            self._kv.remove_elsewhere(old)
        return results

    def read(
        self, names: Sequence[Name], targets: Sequence[Sequence[Piece]], offsets: Sequence[int] | None = None
    ) -> list[int | None]:
        """Copies as much of each value as its target holds, from its byte `offset` on; the length of the whole value, or
        None where it is not there, and then what is in the target is of no use."""
        starts = offsets if offsets is not None else [0] * len(names)
        sizes = self._read_blocks(names, targets, starts)
        missing = [index for index, size in enumerate(sizes) if size is None]
        if not missing:
            return sizes

        def read_long(index: int, head: Head) -> None:
            start, target = starts[index], targets[index]
            sizes[index] = self._of_one_writing(names[index], head, lambda head: self._read_parts(head, start, target))

        heads = dict(self._heads(names, missing))
        for index, head in heads.items():
            read_long(index, head)
        # A long value that a short one was put in place of, meanwhile.
        for index in missing:
            if sizes[index] is None and self._kv.exists([names[index].value]) == [True]:
                (sizes[index],) = self.read([names[index]], [targets[index]], [starts[index]])
        far = [index for index in missing if sizes[index] is None]
        if far:
            brought = self._read_blocks(*([of[index] for index in far] for of in (names, targets, starts)), remote=True)
            for index, size in zip(far, brought):
                sizes[index] = size
            for index, head in self._brought_heads(names, [index for index in far if sizes[index] is None and index not in heads]):
                read_long(index, head)
        return sizes

    def whole(self, name: Name, make: Callable[[int], bytearray] = bytearray) -> bytearray | None:
        """A value in memory that `make` gives, or None."""
        for _ in range(ATTEMPTS):
            (size,) = self.sizes([name])
            if size is None:
                return None
            data = make(size)
            if self.read([name], [[memoryview(data)]]) == [size]:
                return data
        return None

    def read_ranges(
        self, names: Sequence[Name], targets: Sequence[Sequence[Piece]], offsets: Sequence[Sequence[int]]
    ) -> list[int | None]:
        """Fills one piece for each offset of each value, all of the same writing of it; the answers are those of `read`."""
        sizes = self._read_ranges_here(names, targets, offsets)
        far = [index for index, size in enumerate(sizes) if size is None]
        if far:
            self._kv.fetch([key for index in far for key in (names[index].value, names[index].head)])
            brought = self._read_ranges_here(*([of[index] for index in far] for of in (names, targets, offsets)))
            for index, size in zip(far, brought):
                sizes[index] = size
        return sizes

    def bytes(self, name: Name) -> bytes | None:
        """A value, or None."""
        if not name.prelude:
            data = self._kv.get(name.value)
            if data is not None:
                return data
        whole = self.whole(name)
        return None if whole is None else bytes(whole)

    def remove(self, names: Sequence[Name], everywhere: bool = False) -> list[bool]:
        """Removes values from the memory and the disk of this host, or from those of all nodes; for each, whether it was there. OSError if
        one may be left at a node."""
        were_there = [size is not None for size in self.sizes(names)]
        keys = [key for name in names for key in (name.value, name.head)]
        for _, head in self._heads(names, range(len(names))):
            keys += head.keys()
        if keys:
            self._kv.remove(keys, everywhere=everywhere)
        return were_there

    def names(self) -> Iterator[str]:
        """The names of the values that are in the memory of this host, in no order."""
        for key in self._kv.keys():
            name: bytes | None = None
            if key[:2] == b"vk":
                name = key[2:]
            elif key[:2] == b"vh":
                name = self._prelude(key)
            elif key[:1] == b"l":
                head = parsed(self._kv.get(key))
                name = None if head is None else head.name
            if name is not None:
                yield name.decode("utf-8", "surrogatepass")

    def clear(self) -> int:
        """Removes all at all nodes; returns how many values there were in memory here. OSError if some may be left at a node."""
        count = len(set(self.names()))
        self._kv.clear(everywhere=True)
        return count

    def _prelude(self, key: bytes) -> bytes | None:
        """The name at the start of a block."""
        data = bytearray(NAME_BYTES_MAX + 2)
        (size,) = self._kv.read_into([key], [data])
        if size is None or size < 2:
            return None
        (name_bytes,) = struct.unpack_from("<H", data)
        return bytes(data[2:2 + name_bytes]) if name_bytes + 2 <= size else None

    def _heads(self, names: Sequence[Name], places: Sequence[int]) -> Iterator[tuple[int, Head]]:
        """The heads of those names, by place, that have one."""
        there = self._kv.exists([names[place].head for place in places]) if places else []
        for place, is_there in zip(places, there):
            head = parsed(self._kv.get(names[place].head)) if is_there else None
            if head is not None:
                yield place, head

    def _brought_heads(self, names: Sequence[Name], places: Sequence[int]) -> Iterator[tuple[int, Head]]:
        """The heads of those names, by place, that have one anywhere; they are here then."""
        if places:
            self._kv.fetch([names[place].head for place in places])
        return self._heads(names, places)

    def _sizes_elsewhere(self, names: Sequence[Name]) -> list[int | None]:
        """As `sizes`, for values that are not in the memory of this host: a question for all blocks and heads, one for all parts."""
        found = self._kv.lengths([key for name in names for key in (name.value, name.head)], remote=True)
        sizes = [None if size is None else size - len(name.prelude) for size, name in zip(found[::2], names)]
        long = [index for index, size in enumerate(sizes) if size is None and found[2 * index + 1] is not None]
        heads = dict(self._brought_heads(names, long))
        keys = [key for head in heads.values() for key in head.keys()]
        there = iter(self._kv.lengths(keys, remote=True) if keys else [])
        for index, head in heads.items():
            lengths = head.lengths()
            sizes[index] = head.size if list(itertools.islice(there, len(lengths))) == lengths else None
        return sizes

    def _read_blocks(
        self, names: Sequence[Name], targets: Sequence[Sequence[Piece]], starts: Sequence[int], remote: bool = False
    ) -> list[int | None]:
        """As `read`, for the short values among them."""
        skipped = [min(start, BLOCK_BYTES_MAX) + len(name.prelude) for start, name in zip(starts, names)]
        keys, buffers = [name.value for name in names], [block(target) for target in targets]
        found = self._kv.read_into(keys, buffers, skipped, remote=remote)
        return [None if size is None else size - len(name.prelude) for size, name in zip(found, names)]

    def _read_ranges_here(
        self, names: Sequence[Name], targets: Sequence[Sequence[Piece]], offsets: Sequence[Sequence[int]]
    ) -> list[int | None]:
        """As `read_ranges`, for values whose block or head is here."""
        places = [[block([piece]) for piece in pieces] for pieces in targets]
        skipped = [[min(start, BLOCK_BYTES_MAX) + len(name.prelude) for start in starts]
                   for starts, name in zip(offsets, names)]
        found = self._kv.read_ranges([name.value for name in names], places, skipped)
        sizes = [None if size is None else size - len(name.prelude) for size, name in zip(found, names)]
        for index, head in self._heads(names, [index for index, size in enumerate(sizes) if size is None]):
            parts = list(zip(targets[index], offsets[index]))
            # The parts of a head are of one writing, whenever they are read.
            sizes[index] = self._of_one_writing(
                names[index], head, lambda head: all([self._read_parts(head, start, [piece]) for piece, start in parts]))
        return sizes

    def _put_long(self, name: Name, pieces: Sequence[Piece], size: int) -> Put:
        """Parts first, then the head: it is there when it is whole."""
        head = new_head(name, size)
        if self.make_way([name]) == [True]:
            # Another writer has come first since it was looked for.
            return Put.THERE
        keys, places = head.keys(), head.places(pieces)
        kv = self._kv
        stored = all(kv.put(keys, places)) and all(kv.exists(keys)) and all(kv.put([name.head], [head.block()]))
        winner = parsed(self._kv.get(name.head))
        if winner is None or winner.number != head.number:
            # No room, or another writer was first: its value is as good.
            self._kv.remove(keys)
        return Put.THERE if stored and winner is not None else Put.NO_ROOM

    def _of_one_writing(self, name: Name, head: Head, read: Callable[[Head], bool]) -> int | None:
        """Reads a long value, and again if it was replaced meanwhile; its length, or None."""
        for _ in range(ATTEMPTS):
            if read(head):
                return head.size
            (now,) = self.heads([name])
            if now is None or now.number == head.number:
                return None
            head = now
        return None

    def _replace(self, name: Name, pieces: Sequence[Piece], gone: list[bytes]) -> Put:
        """The new value is there before what is left of the old one goes. Where a short one is, it counts and not a long one. The keys of parts
        that went are added to `gone`."""
        size = length(pieces)
        if not _is_possible(name, size):
            return Put.REFUSED
        for _ in range(ATTEMPTS):
            (old,) = self.heads([name])
            if size + len(name.prelude) > BLOCK_BYTES_MAX:
                head = new_head(name, size)
                keys, kv = head.keys(), self._kv
                is_there = all(kv.put(keys, head.places(pieces))) and all(kv.exists(keys)) and all(
                    kv.replace([name.head], [head.block()]))
                left = [name.value, *(old.keys() if old else [])] if is_there else keys
            else:
                prelude = [memoryview(name.prelude)] if name.prelude else []
                (is_there,) = self._kv.replace([name.value], [[*prelude, *block(pieces)]])
                # A head that has left the memory may be on the disk, and would come back when the short value is gone.
                left = [name.head, *(old.keys() if old else [])] if is_there else []
            if left:
                self._kv.remove(left)
            if is_there and old:
                gone += old.keys()
            # Two who write a short and a long one at once may each have removed the other's.
            if not is_there or self.sizes([name]) != [None]:
                return Put.THERE if is_there else Put.NO_ROOM
        return Put.NO_ROOM

    def _read_parts(self, head: Head, start: int, target: Sequence[Piece]) -> bool:
        """Copies what a target holds of a long value; whether all of it was there."""
        size = min(length(target), max(0, head.size - start))
        keys, wanted, places, offsets, done = head.keys(), [], [], [], 0
        lengths = head.lengths()
        while done < size:
            index, offset = divmod(start + done, head.part_bytes)
            count = min(lengths[index] - offset, size - done)
            wanted.append(index)
            places.append(block(part(target, done, count)))
            offsets.append(offset)
            done += count
        kv = self._kv
        found = kv.read_into([keys[index] for index in wanted], places, offsets)
        far = [place for place, index in enumerate(wanted) if found[place] != lengths[index]]
        if far:
            brought = kv.read_into([keys[wanted[place]] for place in far], [places[place] for place in far],
                                   [offsets[place] for place in far], remote=True)
            if brought != [lengths[wanted[place]] for place in far]:
                return False
        # The others must be there too: a value with a hole is missing, whichever part of it is asked for.
        others = [index for index in range(len(keys)) if index not in set(wanted)]
        other_keys = [keys[index] for index in others]
        return all(kv.exists(other_keys)) or kv.lengths(other_keys, remote=True) == [lengths[index] for index in others]

    def _open(self) -> tuple[Pool, KvCache]:
        pool = Pool(self._socket)
        try:
            return pool, pool.kv(self._fingerprint, SILENCE_SECONDS_MAX)
        except BaseException:
            pool.close()
            raise

    @property
    def _kv(self) -> KvCache:
        """The namespace, opened again if the node has gone and come back: its old blocks are nobody's."""
        kv = self._opened[1]
        if kv.is_lost():
            with self._lock:
                if self._opened[1] is kv:
                    # Readers in other threads may still be in the old one: it ends with the last of them.
                    self._opened = self._open_again()
            kv = self._opened[1]
        return kv

    def _open_again(self) -> tuple[Pool, KvCache]:
        """A node that does not answer is left alone for many times what the attempt took: else each call would wait for it, one after the
        other."""
        begun = time.monotonic()
        if self._refusal is not None and begun < self._next_open:
            raise for_code(self._refusal.errno or errno.EIO, self._refusal.strerror or "")
        try:
            return self._open()
        except HinterlandError as refusal:
            now = time.monotonic()
            self._refusal, self._next_open = refusal, now + (now - begun) * PAUSE_ATTEMPTS
            raise
