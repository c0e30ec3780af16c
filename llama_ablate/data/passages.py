"""Hashes of sampled passages of a text, by which shared parts of documents are found."""

import unicodedata

import numpy as np
from numpy.typing import NDArray

LENGTH = 320  # bytes of a passage without white space: some 400 with it
_SAMPLED = 1 << 57  # one in 128 positions begins a passage: those with the lowest hashes
_BLOCK = 1 << 18  # bytes that are hashed at a time
_END = b"\xff"  # end of a document: no byte of UTF-8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_WEIGHTS = np.full(LENGTH // 8, _FACTOR).cumprod()


class Passages:
    """Hashes of the sampled passages of documents; letter case and Unicode forms are ignored.

    A position begins a passage if the hash of the eight bytes from there is low, so that equal
    passages are sampled alike in all texts.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        self._hashes = [np.zeros(0, np.uint64)]

    def add(self, letters: str) -> None:
        """Add a piece of a document, without white space."""
        if not letters.isascii():
            letters = unicodedata.normalize("NFKC", letters).casefold()
        self._text += letters.lower().encode()
        if len(self._text) > _BLOCK:
            self._hash()

    def end_document(self) -> None:
        """End a document: no passage is part of two documents."""
        self._text += _END

    def hashes(self) -> NDArray[np.uint64]:
        """Return the hashes of all passages, sorted."""
        self._hash()
        hashes = np.concatenate(self._hashes)
        self._hashes.clear()
        hashes.sort()
        return hashes.astype("<u8", copy=False)

    def _hash(self) -> None:
        """Hash the complete passages of the buffer, and keep its end."""
        text = np.frombuffer(bytes(self._text), np.uint8)
        if (count := len(text) - LENGTH + 1) <= 0:
            return
        places = []
        for k in range(8):
            words = text[k : k + (len(text) - k) // 8 * 8].view("<u8")
            places.append(8 * np.flatnonzero(words * _FACTOR < _SAMPLED) + k)
        starts, ends = np.concatenate(places), np.flatnonzero(text == _END[0])
        starts = starts[starts < count]
        starts = starts[np.searchsorted(ends, starts) == np.searchsorted(ends, starts + LENGTH)]
        windows = np.lib.stride_tricks.sliding_window_view(text, LENGTH)[starts].view("<u8")
        self._hashes.append((windows * _WEIGHTS).sum(1, dtype=np.uint64))
        del self._text[:count]
