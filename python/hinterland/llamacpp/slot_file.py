"""Files in which llama-server keeps a slot: taken apart strictly, and composed.

A file is a magic number, a version, the tokens, and one or more sections, one for each cache of keys and values that the model
has. All numbers are little-endian.

    section   u32 streams; for each of them u32 cells, and all but one have none. For the one that has:
              cells x (i32 position, u32 1, i32 sequence), u32 whether V is transposed, u32 layers, from version 4 on two
              numbers that say how rows are kept, layers x (i32 type, u64 bytes of a row, cells rows) for K, and the same for V
"""

from __future__ import annotations

import itertools
import struct
from array import array
from typing import Iterator, NamedTuple, Sequence

MAGIC = 0x67677371
# Versions, and how many numbers follow on that of the layers.
VERSIONS = {3: 0, 4: 2}
# A list of tokens with a version of its own begins with this one, which is none.
NO_TOKEN = -1
TOKENS_VERSION = 1
CELL_BYTES = 12
ROWS_HEAD = struct.Struct("<iQ")
# More than any model has; a file that says more is none.
LAYERS_MAX = 4096
STREAMS_MAX = 4096
ROW_BYTES_MAX = 1 << 24
ROW_TYPES_MAX = 256


class SlotFileError(ValueError):
    """A file that is not understood, and why."""


class Rows(NamedTuple):
    """Keys or values of one layer: ggml's number of the type, and the bytes of one token."""

    kind: int
    row_bytes: int


class Section(NamedTuple):
    """One cache: how many streams a file lists, the numbers of newer versions, and its layers."""

    streams: int
    marks: tuple[int, ...]
    keys: tuple[Rows, ...]
    values: tuple[Rows, ...]


class Layout(NamedTuple):
    """What files of one server have in common. `versioned`: the tokens stand in a list with a version."""

    version: int
    versioned: bool
    sections: tuple[Section, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        return sum(rows.row_bytes for section in self.sections for rows in section.keys + section.values)

    def words(self) -> str:
        """What servers must have in common to understand each other's rows."""
        parts = [f"version {self.version}"]
        for section in self.sections:
            parts.append("marks " + " ".join(map(str, section.marks)))
            for name, layers in (("k", section.keys), ("v", section.values)):
                same = ((rows, len(list(group))) for rows, group in itertools.groupby(layers))
                parts.append(name + " " + " ".join(f"{count}x{rows.kind}:{rows.row_bytes}" for rows, count in same))
        return ", ".join(parts)

    def file_bytes(self, tokens: int) -> int:
        """The length of a file with so many tokens."""
        head = 12 + 4 * (tokens + (4 if self.versioned else 0))
        for section in self.sections:
            head += 4 + 4 * section.streams + CELL_BYTES * tokens + 8 + 4 * len(section.marks)
            head += ROWS_HEAD.size * len(section.keys + section.values)
        return head + tokens * self.token_bytes


class Run(NamedTuple):
    """Consecutive tokens whose rows stand one after the other."""

    token: int
    cell: int
    count: int


# The runs of one section, and for each of its layers, keys first, where the first row begins and how long a row is.
Place = tuple[tuple[Run, ...], tuple[tuple[int, int], ...]]


class Slot(NamedTuple):
    """A file in memory: its tokens, and where the rows of each layer are."""

    view: memoryview
    layout: Layout
    tokens: array[int]
    places: tuple[Place, ...]

    def pieces(self, first: int, count: int) -> list[memoryview]:
        """The rows of `count` tokens from `first` on, in the order that every file gives them."""
        found = []
        for runs, layers in self.places:
            parts = list(overlaps(runs, first, count))
            for start, row_bytes in layers:
                for cell, cells in parts:
                    begin = start + cell * row_bytes
                    found.append(self.view[begin:begin + cells * row_bytes])
        return found


def overlaps(runs: Sequence[Run], first: int, count: int) -> Iterator[tuple[int, int]]:
    """The cells of `count` tokens from `first` on, as first cell and number of cells; runs are sorted by token."""
    for run in runs:
        begin, end = max(run.token, first), min(run.token + run.count, first + count)
        if begin < end:
            yield run.cell + begin - run.token, end - begin


def take_apart(view: memoryview) -> Slot:
    """Reads a whole file. SlotFileError for anything that is not exactly such a file."""
    reader = Reader(view)
    if (magic := reader.number()) != MAGIC:
        raise SlotFileError(f"it begins with {magic:#x} and not as the file of a slot")
    if (version := reader.number()) not in VERSIONS:
        raise SlotFileError(f"it has version {version}, and {', '.join(map(str, VERSIONS))} are known")
    versioned, tokens = read_tokens(reader.integers(reader.number()))
    sections, places = [], []
    while not sections or reader.left:
        section, place = read_section(reader, VERSIONS[version], len(tokens))
        sections.append(section)
        places.append(place)
    return Slot(view, Layout(version, versioned, tuple(sections)), tokens, tuple(places))


def read_tokens(packed: array[int]) -> tuple[bool, array[int]]:
    """The tokens of a list, and whether it has a version of its own."""
    if not packed or packed[0] != NO_TOKEN:
        return False, packed
    if len(packed) < 4 or packed[1] != TOKENS_VERSION or packed[2] < 0 or len(packed) != packed[2] + 4:
        raise SlotFileError("its tokens have media among them, or a version that is not known")
    tokens = packed[3:-1]
    if packed[-1] != 0 or NO_TOKEN in tokens:
        raise SlotFileError("its tokens have media among them")
    return True, tokens


def read_section(reader: Reader, mark_count: int, tokens: int) -> tuple[Section, Place]:
    """One section, all of it."""
    streams = reader.number()
    if not 1 <= streams <= STREAMS_MAX:
        raise SlotFileError(f"a section has {streams} streams")
    runs: tuple[Run, ...] = ()
    marks: tuple[int, ...] = ()
    keys: list[Rows] = []
    values: list[Rows] = []
    layers: list[tuple[int, int]] = []
    filled = 0
    for _ in range(streams):
        cells = reader.number()
        if not cells:
            continue
        filled += 1
        if cells != tokens or filled > 1:
            raise SlotFileError(
                f"it has {tokens} tokens, and {cells} cells of a cache (hint: models with a sliding window need --swa-full)"
            )
        runs = read_cells(reader.integers(3 * cells))
        if reader.number():
            raise SlotFileError("V is transposed (hint: start llama-server with -fa on)")
        count = reader.number()
        if not 1 <= count <= LAYERS_MAX:
            raise SlotFileError(f"a section has {count} layers")
        marks = tuple(reader.number() for _ in range(mark_count))
        for _ in range(count):
            keys.append(read_rows(reader, cells, layers))
        # Some models keep no values of their own.
        for _ in range(count if reader.left else 0):
            values.append(read_rows(reader, cells, layers))
    if not filled:
        raise SlotFileError("a section has no cells")
    return Section(streams, marks, tuple(keys), tuple(values)), (runs, tuple(layers))


def read_rows(reader: Reader, cells: int, layers: list[tuple[int, int]]) -> Rows:
    """The rows of one layer; remembers where they are."""
    rows = Rows(*ROWS_HEAD.unpack(reader.bytes(ROWS_HEAD.size)))
    if not 0 <= rows.kind < ROW_TYPES_MAX or not 1 <= rows.row_bytes <= ROW_BYTES_MAX:
        raise SlotFileError(f"a layer has rows of type {rows.kind} and {rows.row_bytes} bytes")
    layers.append((reader.at, rows.row_bytes))
    reader.bytes(cells * rows.row_bytes)
    return rows


def read_cells(numbers: array[int]) -> tuple[Run, ...]:
    """Where each token is. Cells must be those of the positions from 0 on, each once, of one sequence."""
    positions, count = numbers[0::3], len(numbers) // 3
    if numbers[1::3].count(1) != count or numbers[2::3].count(numbers[2]) != count:
        raise SlotFileError("its cells are not those of one sequence")
    if positions == array("i", range(count)):
        return (Run(0, 0, count),)
    if sorted(positions) != list(range(count)):
        raise SlotFileError("its cells are not those of the positions from 0 on")
    runs, begin = [], 0
    for cell in range(1, count + 1):
        if cell == count or positions[cell] != positions[cell - 1] + 1:
            runs.append(Run(positions[begin], begin, cell - begin))
            begin = cell
    return tuple(sorted(runs))


def compose(view: memoryview, layout: Layout, tokens: array[int]) -> Slot:
    """Writes everything but the rows of a file into `view`, which has exactly its length; rows go to the pieces."""
    count = len(tokens)
    writer = Writer(view)
    packed = array("i", [NO_TOKEN, TOKENS_VERSION, count, *tokens, 0]) if layout.versioned else tokens
    writer.numbers(MAGIC, layout.version, len(packed))
    writer.bytes(packed.tobytes())
    cells = array("i", [0]) * (3 * count)
    cells[0::3] = array("i", range(count))
    cells[1::3] = array("i", [1]) * count
    places = []
    for section in layout.sections:
        writer.numbers(section.streams, count)
        writer.bytes(cells.tobytes())
        writer.numbers(0, len(section.keys), *section.marks)
        layers = []
        for rows in section.keys + section.values:
            writer.bytes(ROWS_HEAD.pack(*rows))
            layers.append((writer.at, rows.row_bytes))
            writer.at += count * rows.row_bytes
        writer.numbers(*[0] * (section.streams - 1))
        places.append(((Run(0, 0, count),), tuple(layers)))
    if writer.at != len(view):
        raise SlotFileError(f"a file of {len(view)} bytes was composed of {writer.at}")
    return Slot(view, layout, tokens, tuple(places))


class Reader:
    """Takes numbers off the front of a view, never past its end."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.view) - self.at

    def bytes(self, count: int) -> memoryview:
        if count > self.left:
            raise SlotFileError(f"it ends after {len(self.view)} bytes, in the middle")
        self.at += count
        return self.view[self.at - count:self.at]

    def number(self) -> int:
        return int.from_bytes(self.bytes(4), "little")

    def integers(self, count: int) -> array[int]:
        found = array("i")
        found.frombytes(self.bytes(4 * count))
        return found


class Writer:
    """Puts bytes at the front of what is left of a view."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0

    def bytes(self, data: bytes) -> None:
        self.view[self.at:self.at + len(data)] = data
        self.at += len(data)

    def numbers(self, *numbers: int) -> None:
        self.bytes(struct.pack(f"<{len(numbers)}I", *numbers))
