"""Training batches of documents in random order, and of several corpora by their shares.

A batch is a pure function of a seed and a step; windows drawn anywhere are `Tokens.batch`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.tokens import Tokens

#: Batch `k` of a seed, (size, context + 1): of a seed, k, a size and a context.
Batches = Callable[[int, int, int, int], NDArray[np.int64]]
_DOCUMENTS_PER_DRAW = 256  # documents of a stream at a time


@dataclass(frozen=True)
class DocumentStreams:
    """Streams of documents drawn with replacement; each step reads the next `span` tokens.

    A batch has as many streams as fit it. Which documents a stream holds depends on the seed and
    the stream's number alone: so models of another context, whose windows are parts of `span`, read
    the same tokens in the same step, and models of another tokenizer the same documents in the same
    order.
    """

    tokens: Tokens
    span: int
    _streams: dict[tuple[int, int], "_Stream"] = field(default_factory=dict)

    def batch(self, seed: int, k: int, size: int, context: int) -> NDArray[np.int64]:
        """Return batch `k` of a seed, (size, context + 1): the spans of all streams, cut.

        It depends on nothing else. Raises DamagedError where the tokens have changed since they
        were opened.
        """
        streams = size * context // self.span
        assert streams * self.span == size * context, (size, context, self.span)
        assert self.span % context == 0, (self.span, context)
        ids = self.tokens.training
        places = np.arange(k * self.span, (k + 1) * self.span + 1)
        index = np.stack([self._stream(seed, n).at(places) for n in range(streams)])
        read = np.asarray(ids[np.minimum(index, len(ids) - 1)], np.int64)
        if (lacking := index == len(ids)).any():  # the separator behind the last document
            assert self.tokens.separator is not None
            read[lacking] = self.tokens.separator
        cut = np.arange(0, self.span, context)[:, None] + np.arange(context + 1)
        return read[:, cut].reshape(size, context + 1)

    def _stream(self, seed: int, number: int) -> "_Stream":
        if (seed, number) not in self._streams:
            self._streams[seed, number] = _Stream(seed, number, self._bounds)
        return self._streams[seed, number]

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        """Start indices of the documents, and the end of the last document with its separator."""
        ids, begins = self.tokens.training, self.tokens.documents("train")
        ended = begins[-1] == len(ids)
        return begins if ended else np.append(begins, len(ids) + 1)


class _Stream:
    """Endless sequence of documents, a function of its seed and number."""

    def __init__(self, seed: int, number: int, bounds: NDArray[np.int64]) -> None:
        self._seed, self._number, self._bounds = seed, number, bounds
        self._documents = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the tokens at some places of the stream."""
        while not len(self._ends) or self._ends[-1] <= places[-1]:
            self._draw()
        nth = np.searchsorted(self._ends, places, "right")
        return self._bounds[self._documents[nth] + 1] - (self._ends[nth] - places)

    def _draw(self) -> None:
        first = len(self._documents) // _DOCUMENTS_PER_DRAW
        generator = np.random.Generator(
            np.random.Philox(key=[self._seed, self._number], counter=[0, 0, 0, first])
        )
        documents = generator.integers(0, len(self._bounds) - 1, _DOCUMENTS_PER_DRAW)
        before = self._ends[-1] if len(self._ends) else 0
        ends = before + np.diff(self._bounds)[documents].cumsum()
        self._documents = np.append(self._documents, documents)
        self._ends = np.append(self._ends, ends)


@dataclass(frozen=True)
class TextMixture:
    """Mixture of windows: each source's tokens, share of the rows, and token limit.

    A row is the same row of a source's own batch. So one source with a share of 1 has its batches,
    and of two mixtures the rows are equal for which both have drawn the same source.
    """

    parts: Sequence[tuple[Tokens, float, int]]

    def batch(self, seed: int, k: int, size: int, context: int) -> NDArray[np.int64]:
        """Return batch `k` of a seed, (size, context + 1); it depends on nothing else.

        Raises DamagedError where the tokens have changed since they were opened.
        """
        generator = np.random.Generator(np.random.Philox(key=[seed, k], counter=[0, 0, 0, 1]))
        ends = np.cumsum([share for _, share, _ in self.parts])
        chosen = np.searchsorted(ends[:-1], generator.random(size), "right")
        read = np.empty((size, context + 1), np.int64)
        for i, (tokens, _, first) in enumerate(self.parts):
            rows = chosen == i
            read[rows] = tokens.batch(seed, k, size, context, first, rows)
        return read
