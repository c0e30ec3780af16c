"""Hashes of a text's blocks, by which equal text is found wherever it stands."""

from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_LEAST, _MOST = 128, 1 << 20  # bytes of a block that does not end its document
_WINDOW = 8  # bytes that decide whether a block ends behind them
#: The product of a window and the factor is below 2 ** 54 once in 1,024 times.
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(54)


class Blocks:
    """Hashes of the blocks of documents, in which white space does not count.

    A block has some 1,000 bytes and ends where the bytes before its end say so, so that a copy has
    the same blocks at any place of another document. A shorter document is one block.
    """

    def __init__(self) -> None:
        self._hashes, self._documents = array("Q"), array("Q")
        self._count = 0

    def add(self, pieces: Iterable[str], most: int | None = None) -> None:
        """Add the blocks of a document: those that begin in its first `most` bytes, if given."""
        size = 0
        for block in _blocks(pieces):
            if most is not None and size >= most:
                break
            self._append(block)
            size += len(block)
        self._count += 1

    def _append(self, block: bytes) -> None:
        digest = blake2b(block, digest_size=8).digest()
        self._hashes.append(int.from_bytes(digest, "little"))
        self._documents.append(self._count)

    def array(self) -> NDArray[np.uint64]:
        """Return a row for each block, in order: the index of its document, and its hash."""
        return np.stack([np.asarray(self._documents), np.asarray(self._hashes)], 1).astype("<u8")


def without_spaces(text: str) -> bytes:
    """Return a text in UTF-8 without its white space."""
    return "".join(text.split()).encode("utf-8", "surrogatepass")


def _blocks(pieces: Iterable[str]) -> Iterator[bytes]:
    """Yield the blocks of a document; its end is the end of the last one."""
    rest = b""
    for piece in pieces:
        rest += without_spaces(piece)
        ends = _ends(rest) if len(rest) >= 2 * _WINDOW else []
        for start, end in zip([0, *ends], ends, strict=False):
            yield rest[start:end]
        rest = rest[ends[-1] :] if ends else rest
        if len(rest) > _MOST:
            yield rest
            rest = b""
    if rest:
        yield rest


def _ends(text: bytes) -> list[int]:
    """Return where the blocks of a text end that surely do, in order."""
    found = []
    for start in range(_WINDOW):
        words = np.frombuffer(text, "<u8", (len(text) - start) // _WINDOW, start)
        found.append(np.flatnonzero(words * _FACTOR >> _SHIFT == 0) * _WINDOW + start)
    ends = np.sort(np.concatenate(found)) + _WINDOW
    # In a text that repeats itself ends may follow each other closely: then they are none.
    return [int(end) for end in ends[np.diff(ends, prepend=0) >= _LEAST]]
