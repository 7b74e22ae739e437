"""Lists of pieces of memory, as views or by address: their length, a part of them, and the block that they make."""

from __future__ import annotations

from typing import Iterable, Sequence, Union

from .. import Fragments

# A piece is a view of memory, or an address and a length.
Piece = Union[memoryview, tuple[int, int]]


def view(value: object) -> memoryview:
    """The bytes of an object with a buffer."""
    seen = memoryview(value)  # type: ignore[arg-type]
    return seen if seen.format == "B" and seen.ndim == 1 and seen.contiguous else memoryview(seen.tobytes())


def length(pieces: Iterable[Piece]) -> int:
    """Bytes of all pieces."""
    return sum(piece[1] if isinstance(piece, tuple) else len(piece) for piece in pieces)


def part(pieces: Sequence[Piece], start: int, size: int) -> list[Piece]:
    """The pieces of `size` bytes from `start` on."""
    found: list[Piece] = []
    for piece in pieces:
        whole = piece[1] if isinstance(piece, tuple) else len(piece)
        if start < whole and size > 0:
            taken = min(whole - start, size)
            found.append((piece[0] + start, taken) if isinstance(piece, tuple) else piece[start:start + taken])
            size -= taken
        start = max(0, start - whole)
    return found


def block(pieces: Sequence[Piece]) -> list[Union[memoryview, Fragments]]:
    """The pieces as one block of a KvCache."""
    if all(isinstance(piece, tuple) for piece in pieces):
        return [Fragments([piece[0] for piece in pieces], [piece[1] for piece in pieces])]
    return [Fragments([piece[0]], [piece[1]]) if isinstance(piece, tuple) else piece for piece in pieces]
