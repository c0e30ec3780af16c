"""Training batches from shuffled documents, or from a weighted mixture of corpora.

Each batch is a pure function of (seed, step). `Tokens.batch` draws the third kind of batch: windows
at random positions of one corpus.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.tokens import Tokens

#: Function of (seed, k, size, context) that returns batch `k` as token ids, (size, context + 1).
Batches = Callable[[int, int, int, int], NDArray[np.int64]]
_DOCUMENTS_PER_DRAW = 256  # documents that a stream draws at a time


@dataclass(frozen=True)
class DocumentStreams:
    """Batch sampler over streams of documents that are drawn with replacement.

    At each step, every stream supplies its next `span` tokens; a batch of `size` windows of
    `context` tokens has `size * context / span` streams. The documents of a stream depend only on
    the seed and the stream's number. So models with a shorter context, for which `span` is cut into
    several windows, read the same tokens in the same step as other models, and models with another
    tokenizer read the same documents in the same order.
    """

    tokens: Tokens
    span: int
    _streams: dict[tuple[int, int], "_Stream"] = field(default_factory=dict)

    def batch(self, seed: int, k: int, size: int, context: int) -> NDArray[np.int64]:
        """Return batch `k` of a seed as token ids, (size, context + 1).

        The next `span` tokens of each stream are cut into windows of `context` tokens plus the last
        target. The batch depends on the arguments alone. Raises DamagedError if the tokens have
        changed since they were opened.
        """
        streams = size * context // self.span
        assert streams * self.span == size * context, (size, context, self.span)
        assert self.span % context == 0, (self.span, context)
        ids = self.tokens.training
        places = np.arange(k * self.span, (k + 1) * self.span + 1)
        index = np.stack([self._stream(seed, n).at(places) for n in range(streams)])
        read = np.asarray(ids[np.minimum(index, len(ids) - 1)], np.int64)
        if (lacking := index == len(ids)).any():  # no separator after the last document
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
        """Start index of each document, then the end of the last document, separator included."""
        ids, begins = self.tokens.training, self.tokens.documents("train")
        ended = begins[-1] == len(ids)
        return begins if ended else np.append(begins, len(ids) + 1)


class _Stream:
    """Infinite sequence of random documents, determined by a seed and a stream number."""

    def __init__(self, seed: int, number: int, bounds: NDArray[np.int64]) -> None:
        self._seed, self._number, self._bounds = seed, number, bounds
        self._documents = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices, in the corpus, of the tokens at some positions of the stream."""
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
    """Batch sampler that draws each row from a randomly chosen corpus.

    Each of `parts` has the tokens of a corpus, the corpus' share of the rows, and a number of
    tokens: windows are drawn only from so many tokens at the beginning of the corpus. Row i of a
    batch is row i of the chosen corpus' own batch. So a single corpus with a share of 1 gives the
    batches of the corpus itself, and two mixtures have equal rows wherever both have drawn the same
    corpus.
    """

    parts: Sequence[tuple[Tokens, float, int]]

    def batch(self, seed: int, k: int, size: int, context: int) -> NDArray[np.int64]:
        """Return batch `k` of a seed as token ids, (size, context + 1).

        The batch depends on the arguments alone. Raises DamagedError if the tokens have changed
        since they were opened.
        """
        generator = np.random.Generator(np.random.Philox(key=[seed, k], counter=[0, 0, 0, 1]))
        ends = np.cumsum([share for _, share, _ in self.parts])
        chosen = np.searchsorted(ends[:-1], generator.random(size), "right")
        read = np.empty((size, context + 1), np.int64)
        for i, (tokens, _, first) in enumerate(self.parts):
            rows = chosen == i
            read[rows] = tokens.batch(seed, k, size, context, first, rows)
        return read
