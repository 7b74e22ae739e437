"""Lists of pieces of memory, as views or by address: their length, a part of them, and the block that they make."""

from __future__ import annotations

from typing import Iterable, Sequence, Union

from .. import Fragments

# A piece is a view of memory, or an address and a length.
Piece = Union[memoryview, tuple[int, int]]


def view(value: object) -> memoryview:
    """The bytes of an object with a buffer. TypeError for what is none, and for an array of objects, whose bytes are addresses."""
    if isinstance(value, str):
        raise TypeError("a value is bytes, not a str (hint: pass value.encode())")
    try:
        seen = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a value is bytes, not of type {type(value).__name__} (hint: pass bytes, an array, or a tensor to put_tensor)") from None
    if "O" in seen.format:
        raise TypeError("the array has objects of Python in it, not their bytes (hint: pass an array of numbers, or bytes)")
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
